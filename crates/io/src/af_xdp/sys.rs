//! The system calls of an AF_XDP socket, each wrapped as thinly as it can be.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libc::{c_int, socklen_t};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use slipstream_core::pool::LEAD;

use super::ring::{Entry, Layout, Ring, Side};
use super::umem::Umem;
use crate::socket::{RawSocket, checked};

const SO_PREFER_BUSY_POLL: c_int = 69;
const SO_BUSY_POLL: c_int = 46;
const SO_BUSY_POLL_BUDGET: c_int = 70;
/// Packets that one call sends, of kernels that can be told (from 6.17 on; 32 else).
const XDP_MAX_TX_SKB_BUDGET: c_int = 9;

/// An AF_XDP socket.
#[derive(Debug)]
pub(super) struct Socket(RawSocket);

/// The ring of a socket that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Receive,
    Transmit,
    Fill,
    Completion,
}

impl Kind {
    fn option(self) -> c_int {
        match self {
            Self::Receive => libc::XDP_RX_RING,
            Self::Transmit => libc::XDP_TX_RING,
            Self::Fill => libc::XDP_UMEM_FILL_RING,
            Self::Completion => libc::XDP_UMEM_COMPLETION_RING,
        }
    }

    fn offset(self) -> u64 {
        match self {
            Self::Receive => libc::XDP_PGOFF_RX_RING as u64,
            Self::Transmit => libc::XDP_PGOFF_TX_RING as u64,
            Self::Fill => libc::XDP_UMEM_PGOFF_FILL_RING,
            Self::Completion => libc::XDP_UMEM_PGOFF_COMPLETION_RING,
        }
    }

    fn side(self) -> Side {
        match self {
            Self::Receive | Self::Completion => Side::Reads,
            Self::Transmit | Self::Fill => Side::Writes,
        }
    }
}

impl Socket {
    pub(super) fn new() -> io::Result<Self> {
        RawSocket::new(libc::AF_XDP, libc::SOCK_RAW).map(Self)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Registers the packet memory; the kernel leaves as much free before each packet as the pool needs. The
    /// memory has to outlive the socket.
    pub(super) fn register(&self, umem: &Umem) -> io::Result<()> {
        let request = libc::xdp_umem_reg {
            addr: umem.start().as_ptr().expose_provenance() as u64,
            len: umem.bytes() as u64,
            chunk_size: umem.chunk() as u32,
            headroom: LEAD as u32,
            flags: 0,
            tx_metadata_len: 0,
        };
        self.0.set(libc::SOL_XDP, libc::XDP_UMEM_REG, &request)
    }

    /// Makes a ring of `size` entries.
    pub(super) fn ring<T: Entry>(&self, kind: Kind, size: u32) -> io::Result<Ring<T>> {
        self.0.set(libc::SOL_XDP, kind.option(), &size)?;
        let offsets: libc::xdp_mmap_offsets = self.0.get(libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
        let layout = match kind {
            Kind::Receive => offsets.rx,
            Kind::Transmit => offsets.tx,
            Kind::Fill => offsets.fr,
            Kind::Completion => offsets.cr,
        };
        Ring::map(self.fd(), kind.offset(), Layout::from(layout), kind.side(), size)
    }

    /// Binds to a queue of an interface.
    pub(super) fn bind(&self, interface: u32, queue: u32, flags: u16) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        let len = size_of::<libc::sockaddr_xdp>() as socklen_t;
        let pointer = std::ptr::from_ref(&address).cast::<libc::sockaddr>();
        // SAFETY: pointer and length are those of an address of the family that the socket has.
        checked(unsafe { libc::bind(self.0.as_raw_fd(), pointer, len) }).map(drop)
    }

    /// Returns true if the driver writes to the packet memory itself.
    pub(super) fn zero_copy(&self) -> bool {
        let options = self.0.get::<libc::xdp_options>(libc::SOL_XDP, libc::XDP_OPTIONS);
        options.is_ok_and(|options| options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// The kernel's counters.
    pub(super) fn statistics(&self) -> io::Result<libc::xdp_statistics> {
        self.0.get(libc::SOL_XDP, libc::XDP_STATISTICS)
    }

    /// The error that the socket keeps, such as that its interface went away; asking forgets it.
    pub(super) fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.0.take_error()
    }

    /// The driver is asked for packets when the program asks, not when interrupts come (kernels from 5.11
    /// on).
    pub(super) fn busy_poll(&self, packets: c_int) -> io::Result<()> {
        self.0.set(libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &1i32)?;
        self.0.set(libc::SOL_SOCKET, SO_BUSY_POLL, &20i32)?;
        self.0.set(libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &packets)
    }

    /// Room for packets on their way out, where the kernel copies them: in bytes, and as many a call as it
    /// lets.
    pub(super) fn send_room(&self, bytes: c_int, at_once: u32) {
        // Both make it faster only.
        let _ = self
            .0
            .set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
            .or_else(|_| self.0.set(libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes));
        let _ = self.0.set(libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &at_once);
    }

    /// Tells the kernel to send what is in the ring.
    pub(super) fn wake_to_send(&self) -> io::Result<()> {
        let (fd, flags) = (self.0.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: no data and no address are passed.
        let result = unsafe { libc::sendto(fd, std::ptr::null(), 0, flags, std::ptr::null(), 0) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Tells the driver that there are buffers to fill again.
    pub(super) fn wake_to_receive(&self) {
        let (fd, flags) = (self.0.as_raw_fd(), libc::MSG_DONTWAIT);
        let nobody = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: no room for data or an address is passed. An error is found by the next look at the socket.
        let _ = unsafe { libc::recvfrom(fd, std::ptr::null_mut(), 0, flags, nobody.0, nobody.1) };
    }
}

/// Lets this process lock as much memory as it may.
pub(super) fn lock_more_memory() {
    let limits = getrlimit(Resource::Memlock);
    // If that fails, registering memory says what to do.
    let _ = setrlimit(Resource::Memlock, Rlimit { current: limits.maximum, ..limits });
}
