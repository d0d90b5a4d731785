//! The state of network interfaces, as others see it who only look on: a log, for instance.

use std::ffi::{CStr, CString, c_int, c_ulong};
use std::io;
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

/// The state of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It is up, and so is the link behind it.
    Up,
    /// It is up, and nothing is at the other end.
    NoCarrier,
    /// Somebody has taken it down.
    Down,
    /// There is none of this name.
    Gone,
}

impl LinkState {
    /// A word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::NoCarrier => "no carrier",
            Self::Down => "down",
            Self::Gone => "gone",
        }
    }
}

/// The interfaces of the network namespace in which it was made.
#[derive(Debug)]
pub struct Links(UnixDatagram);

impl Links {
    /// Those of this thread's network namespace.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        // Any socket will do for a question about interfaces, also one that needs no privilege.
        UnixDatagram::unbound().map(Self)
    }

    /// The state of the interface of this name.
    #[must_use]
    pub fn state(&self, name: &str) -> LinkState {
        let Some(flags) = self.flags(name) else { return LinkState::Gone };
        match (flags & libc::IFF_UP != 0, flags & libc::IFF_RUNNING != 0) {
            (true, true) => LinkState::Up,
            (true, false) => LinkState::NoCarrier,
            (false, _) => LinkState::Down,
        }
    }

    #[allow(unsafe_code)]
    fn flags(&self, name: &str) -> Option<c_int> {
        // SAFETY: all bytes zero are an `ifreq`: a name, and numbers.
        let mut request: libc::ifreq = unsafe { zeroed() };
        // The last byte stays 0 and ends the name.
        let room = request.ifr_name.len().saturating_sub(1);
        if name.is_empty() || name.len() > room {
            return None;
        }
        for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *place = byte as _;
        }
        let ask = libc::SIOCGIFFLAGS as c_ulong;
        // SAFETY: the request reads the name, which ends with a zero, and writes into the `ifreq`, which
        // outlives it.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), ask as _, &mut request) };
        // SAFETY: a request that succeeded filled this field of the union, a number.
        (result >= 0).then(|| c_int::from(unsafe { request.ifr_ifru.ifru_flags }))
    }
}

/// The number of the interface of this name, which it keeps when it is renamed.
#[must_use]
#[allow(unsafe_code)]
pub fn number_of(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends with a zero and outlives the call.
    Some(unsafe { libc::if_nametoindex(name.as_ptr()) }).filter(|number| *number != 0)
}

/// The name that the interface of this number has now; none where it is gone.
#[must_use]
#[allow(unsafe_code)]
pub fn name_of(number: u32) -> Option<String> {
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: the call writes no more than `IF_NAMESIZE` bytes, the last of which is a zero.
    let found = unsafe { libc::if_indextoname(number, name.as_mut_ptr().cast()) };
    let name = CStr::from_bytes_until_nul(&name).ok().filter(|_| !found.is_null())?;
    Some(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_belong_together() {
        let number = number_of("lo").unwrap();
        assert_eq!(name_of(number).as_deref(), Some("lo"));
        assert_eq!((number_of("no-such-if0"), number_of("lo\0"), name_of(0)), (None, None, None));
    }

    #[test]
    fn the_loopback_interface_is_there_and_others_are_not() {
        let links = Links::new().unwrap();
        assert!(matches!(links.state("lo"), LinkState::Up | LinkState::Down), "{:?}", links.state("lo"));
        for name in ["", "no-such-if0", "a-name-that-is-longer-than-any", "lo\0"] {
            let state = links.state(name);
            assert!(state == LinkState::Gone || name == "lo\0", "{name:?}: {state:?}");
        }
    }
}
