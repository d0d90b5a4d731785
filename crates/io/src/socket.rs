//! A socket as the system has it, with its options: what the sockets of ports have in common.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_void, socklen_t};

/// The result of a system call that returns a negative number where it fails.
pub(crate) fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A socket of any kind.
#[derive(Debug)]
pub(crate) struct RawSocket(OwnedFd);

impl RawSocket {
    /// A socket of a domain (`AF_…`) and a type (`SOCK_…`), which programs that are started don't inherit.
    pub(crate) fn new(domain: c_int, kind: c_int) -> io::Result<Self> {
        // SAFETY: no pointer is passed; the result is checked.
        let fd = checked(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, 0) })?;
        // SAFETY: the descriptor was just made, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sets an option.
    pub(crate) fn set<T>(&self, level: c_int, option: c_int, value: &T) -> io::Result<()> {
        let (fd, len) = (self.as_raw_fd(), size_of::<T>() as socklen_t);
        // SAFETY: the pointer and the length are those of a value that outlives the call, which only reads
        // it.
        let result =
            unsafe { libc::setsockopt(fd, level, option, std::ptr::from_ref(value).cast::<c_void>(), len) };
        checked(result).map(drop)
    }

    /// An option that all zero bytes are a value of.
    pub(crate) fn get<T: Plain>(&self, level: c_int, option: c_int) -> io::Result<T> {
        let mut value = MaybeUninit::<T>::zeroed();
        let mut len = size_of::<T>() as socklen_t;
        // SAFETY: pointer and length are those of `value`, which the call fills in part or whole.
        let result =
            unsafe { libc::getsockopt(self.as_raw_fd(), level, option, value.as_mut_ptr().cast(), &mut len) };
        checked(result)?;
        // SAFETY: every byte was set, to zero or by the kernel, and `Plain` types may have any bytes.
        Ok(unsafe { value.assume_init() })
    }

    /// The error that the socket keeps, such as that its interface went down; asking forgets it.
    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        let code: c_int = self.get(libc::SOL_SOCKET, libc::SO_ERROR)?;
        Ok((code != 0).then(|| io::Error::from_raw_os_error(code)))
    }
}

impl AsFd for RawSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for RawSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Types that may have any bytes.
///
/// # Safety
/// Every sequence of bytes of the type's length is a value of it.
pub(crate) unsafe trait Plain {}
// SAFETY: a number.
unsafe impl Plain for c_int {}
// SAFETY: it consists of numbers.
unsafe impl Plain for libc::tpacket_stats {}
// SAFETY: it consists of numbers.
unsafe impl Plain for libc::xdp_options {}
// SAFETY: it consists of numbers.
unsafe impl Plain for libc::xdp_statistics {}
// SAFETY: it consists of numbers.
unsafe impl Plain for libc::xdp_mmap_offsets {}
