//! The state of network interfaces, as others see it who only look on: a log, for instance.

use std::ffi::{CStr, CString, c_int, c_ulong};
use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
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

    /// The MTU of the interface of this name, in bytes of IP packet; none where it can't be told.
    #[must_use]
    #[allow(unsafe_code)]
    pub fn mtu(&self, name: &str) -> Option<u32> {
        let request = self.ask(name, libc::SIOCGIFMTU as c_ulong)?;
        // SAFETY: a request that succeeded filled this field of the union, a number.
        u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
    }

    #[allow(unsafe_code)]
    fn flags(&self, name: &str) -> Option<c_int> {
        let request = self.ask(name, libc::SIOCGIFFLAGS as c_ulong)?;
        // SAFETY: a request that succeeded filled this field of the union, a number.
        Some(c_int::from(unsafe { request.ifr_ifru.ifru_flags }))
    }

    /// The answer of an interface to a request that reads its name and fills in the union.
    #[allow(unsafe_code)]
    fn ask(&self, name: &str, ask: c_ulong) -> Option<libc::ifreq> {
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
        // SAFETY: the request reads the name, which ends with a zero, and writes into the `ifreq`, which
        // outlives it.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), ask as _, &mut request) };
        (result >= 0).then_some(request)
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

/// The IP addresses that the system has on the interface of this name, but for link-local ones of IPv6, which
/// it gives every interface by itself.
#[must_use]
#[allow(unsafe_code)]
pub fn addresses_of(name: &str) -> Vec<IpAddr> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the call writes the pointer, which outlives it.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let mut all = Vec::new();
    let mut at: *const libc::ifaddrs = list;
    // SAFETY: entries, and what they lead to, stay as they are until the list is freed; behind the last one
    // there is null.
    while let Some(entry) = unsafe { at.as_ref() } {
        at = entry.ifa_next;
        // SAFETY: each entry has a name that ends with a zero.
        let label = unsafe { CStr::from_ptr(entry.ifa_name) }.to_bytes();
        // A further address may have a label of its own, as in eth1:2.
        let is_of = label.strip_prefix(name.as_bytes()).is_some_and(|rest| matches!(rest, [] | [b':', ..]));
        if is_of {
            // SAFETY: the pointer is null, or leads to an address of the family that it says.
            all.extend(unsafe { ip_of(entry.ifa_addr) });
        }
    }
    // SAFETY: it is the list that was given, and nothing of it is used any more.
    unsafe { libc::freeifaddrs(list) };
    all
}

/// The IP address in a socket address, if it is one and not link-local of IPv6.
///
/// # Safety
/// The pointer must be null, or lead to an address that is as long as its family says.
#[allow(unsafe_code)]
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as the caller says.
    match i32::from(unsafe { address.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: of this family it is of this type; nothing is said of its alignment.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let v6 = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            (!v6.is_unicast_link_local()).then_some(v6.into())
        }
        _ => None,
    }
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
    fn the_loopback_interface_has_its_address_where_it_is_up() {
        let up = Links::new().unwrap().state("lo") == LinkState::Up;
        let all = addresses_of("lo");
        assert_eq!(up, all.contains(&IpAddr::from([127, 0, 0, 1])), "{all:?}");
        assert_eq!((addresses_of("l"), addresses_of("no-such-if0")), (vec![], vec![]));
    }

    #[test]
    fn the_loopback_interface_is_there_and_others_are_not() {
        let links = Links::new().unwrap();
        assert!(matches!(links.state("lo"), LinkState::Up | LinkState::Down), "{:?}", links.state("lo"));
        assert!(links.mtu("lo").is_some_and(|mtu| mtu >= 1280), "{:?}", links.mtu("lo"));
        assert_eq!(links.mtu("no-such-if0"), None);
        for name in ["", "no-such-if0", "a-name-that-is-longer-than-any", "lo\0"] {
            let state = links.state(name);
            assert!(state == LinkState::Gone || name == "lo\0", "{name:?}: {state:?}");
        }
    }
}
