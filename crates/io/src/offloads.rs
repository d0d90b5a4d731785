//! Offloads of an interface and its card for the system's network stack, switched off while packets are to
//! be seen as they are on the wire, and restored afterwards.
//!
//! They are asked for and switched off by ethtool's old requests, which all drivers know, and each of which
//! is about a group of features. What that switched off is restored bit by bit: others of the group may have
//! been off before.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::c_ulong;

use crate::af_packet::named;
use crate::link::{name_of, number_of};
use crate::netlink::Description;

/// The request of ethtool, and its commands.
const SIOCETHTOOL: c_ulong = 0x8946;
const GET_FLAGS: u32 = 0x25;
const SET_FLAGS: u32 = 0x26;
const GET_FEATURES: u32 = 0x3a;
const SET_FEATURES: u32 = 0x3b;
/// Words of 32 features each that there is room for; kernels have two.
const WORDS: usize = 8;

/// A feature of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Packets that came are merged by the system (GRO).
    Gro,
    /// Packets that came are merged by the card (LRO).
    Lro,
    /// VLAN tags are taken out of packets that came.
    VlanIn,
    /// VLAN tags are left to the card.
    VlanOut,
    /// Checksums are left to the card.
    Checksums,
    /// TCP super-frames are left to the card.
    Tso,
    /// Super-frames are cut just before the card.
    Gso,
}

/// The way in which a feature is asked for and set.
enum How {
    /// By commands of its own.
    Commands(u32, u32),
    /// By a bit among the flags.
    Flag(u32),
}

impl Feature {
    /// Its name, as ethtool has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gro => "gro",
            Self::Lro => "lro",
            Self::VlanIn => "rxvlan",
            Self::VlanOut => "txvlan",
            Self::Checksums => "tx",
            Self::Tso => "tso",
            Self::Gso => "gso",
        }
    }

    fn how(self) -> How {
        match self {
            Self::Gro => How::Commands(0x2b, 0x2c),
            Self::Checksums => How::Commands(0x16, 0x17),
            Self::Tso => How::Commands(0x1e, 0x1f),
            Self::Gso => How::Commands(0x23, 0x24),
            Self::Lro => How::Flag(1 << 15),
            Self::VlanIn => How::Flag(1 << 8),
            Self::VlanOut => How::Flag(1 << 7),
        }
    }
}

/// The memory that an ethtool request reads and writes.
///
/// # Safety
/// Its layout is the kernel's for the command that it begins with, and it has no pointers.
unsafe trait Argument {}

/// A number that goes to ethtool and comes from there.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

// SAFETY: `struct ethtool_value`, and the commands are those of `How` or for flags.
unsafe impl Argument for Value {}

/// The state of 32 features.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FeatureState {
    available: u32,
    requested: u32,
    active: u32,
    never_changed: u32,
}

/// The states of all features: the kernel writes as many words as `size` says, or as it has.
#[repr(C)]
struct GetFeatures {
    command: u32,
    size: u32,
    words: [FeatureState; WORDS],
}

// SAFETY: `struct ethtool_gfeatures` with room for `WORDS` words; made by `wanted` alone.
unsafe impl Argument for GetFeatures {}

/// The wanted state of 32 features: those whose bit is in `valid`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FeatureChange {
    valid: u32,
    requested: u32,
}

/// The wanted state of features: the kernel reads as many words as `size` says, which must be as many as it
/// has.
#[repr(C)]
struct SetFeatures {
    command: u32,
    size: u32,
    words: [FeatureChange; WORDS],
}

// SAFETY: `struct ethtool_sfeatures` with room for `WORDS` words; made by `want` alone.
unsafe impl Argument for SetFeatures {}

/// A set of features, by their bits in this kernel, and the number of words that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bits {
    words: [u32; WORDS],
    size: u32,
}

impl Bits {
    /// Those that aren't in the other set.
    fn without(mut self, other: Self) -> Self {
        self.words.iter_mut().zip(other.words).for_each(|(word, other)| *word &= !other);
        self
    }
}

/// A socket for requests.
struct Ethtool(OwnedFd);

impl Ethtool {
    fn open() -> io::Result<Self> {
        // SAFETY: no pointer is passed; the result is checked.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn request<A: Argument>(&self, interface: &str, argument: &mut A) -> io::Result<()> {
        let mut request = named(interface)?;
        request.ifr_ifru.ifru_data = std::ptr::from_mut(argument).cast();
        // SAFETY: the request reads the name, which ends with a zero, and reads and writes what the pointer
        // leads to, which outlives it; `Argument` says that it is what the command takes.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCETHTOOL as _, &mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn ask(&self, interface: &str, command: u32, data: u32) -> io::Result<u32> {
        let mut value = Value { command, data };
        self.request(interface, &mut value)?;
        Ok(value.data)
    }

    /// The features that an interface is to have, as far as it can; none where the kernel doesn't say.
    fn wanted(&self, interface: &str) -> Option<Bits> {
        let size = WORDS as u32;
        let mut states = GetFeatures { command: GET_FEATURES, size, words: Default::default() };
        self.request(interface, &mut states).ok()?;
        // More words than there is room for are not known.
        let size = (states.size <= size).then_some(states.size)?;
        Some(Bits { words: states.words.map(|word| word.requested), size })
    }

    /// Says that it is to have these features too.
    fn want(&self, interface: &str, bits: Bits) -> io::Result<()> {
        let words = bits.words.map(|word| FeatureChange { valid: word, requested: word });
        self.request(interface, &mut SetFeatures { command: SET_FEATURES, size: bits.size, words })
    }

    fn get(&self, interface: &str, feature: Feature) -> io::Result<bool> {
        match feature.how() {
            How::Commands(get, _) => Ok(self.ask(interface, get, 0)? != 0),
            How::Flag(bit) => Ok(self.ask(interface, GET_FLAGS, 0)? & bit != 0),
        }
    }

    fn set(&self, interface: &str, feature: Feature, on: bool) -> io::Result<()> {
        match feature.how() {
            How::Commands(_, set) => self.ask(interface, set, on.into()),
            How::Flag(bit) => {
                let others = self.ask(interface, GET_FLAGS, 0)? & !bit;
                self.ask(interface, SET_FLAGS, others | if on { bit } else { 0 })
            }
        }
        .map(drop)
    }
}

/// The other end of a virtual pair, if it is in this namespace.
fn other_end(interface: &str) -> Option<String> {
    let leads_to = |number| Description::of(number).ok()?.leads_to();
    let own = number_of(interface)?;
    let other = leads_to(own).filter(|other| *other != own)?;
    // A VLAN's interface, for one, leads to the card below, which doesn't lead back.
    (leads_to(other)? == own).then(|| name_of(other))?
}

/// Features that were switched off; they are switched on again when this is dropped.
#[derive(Debug, Default)]
pub struct Switched(Vec<On>);

/// A feature that was on, of an interface with this name and number.
#[derive(Debug)]
struct On {
    interface: String,
    number: Option<u32>,
    feature: Feature,
    /// The bits that it stands for, of those that were on; none where the kernel doesn't say.
    bits: Option<Bits>,
}

impl Switched {
    /// Switches off what merges packets or takes tags out of them on their way in by `interface`, and, at the
    /// other end of a virtual pair in this namespace, what leaves checksums and segmentation to a card that
    /// isn't there.
    ///
    /// # Errors
    /// It takes `CAP_NET_ADMIN`; what was switched off until then is on again.
    pub fn off(interface: &str) -> io::Result<Self> {
        let ethtool = Ethtool::open()?;
        let mut this = Self::default();
        let near =
            [Feature::Gro, Feature::Lro, Feature::VlanIn].map(|feature| (interface.to_owned(), feature));
        let far = other_end(interface).map(|other| {
            [Feature::Tso, Feature::Gso, Feature::Checksums, Feature::VlanOut]
                .map(|feature| (other.clone(), feature))
        });
        for (interface, feature) in near.into_iter().chain(far.into_iter().flatten()) {
            // A driver that doesn't know a feature doesn't do it.
            if !ethtool.get(&interface, feature).unwrap_or(false) {
                continue;
            }
            let before = ethtool.wanted(&interface);
            match ethtool.set(&interface, feature, false) {
                Ok(()) => {
                    let number = number_of(&interface);
                    let bits = before.and_then(|before| Some(before.without(ethtool.wanted(&interface)?)));
                    this.0.push(On { interface, number, feature, bits });
                }
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(this)
    }

    /// The interfaces and features that were on.
    pub fn features(&self) -> impl Iterator<Item = (&str, Feature)> {
        self.0.iter().map(|on| (on.interface.as_str(), on.feature))
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        let Ok(ethtool) = Ethtool::open() else { return };
        for On { number, feature, bits, .. } in self.0.iter().rev() {
            // It may have another name by now, and another one its name. One that is gone needs nothing.
            let Some(interface) = number.and_then(name_of) else { continue };
            let restored = bits.is_some_and(|bits| ethtool.want(&interface, bits).is_ok());
            if !restored {
                let _ = ethtool.set(&interface, *feature, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_restored_is_what_was_on_and_is_off() {
        let bits = |first, second| Bits { words: [first, second, 0, 0, 0, 0, 0, 0], size: 2 };
        let (before, after) = (bits(0b1011, 1), bits(0b0001, 1));
        assert_eq!(before.without(after), bits(0b1010, 0));
    }

    #[test]
    fn the_kernel_says_what_the_loopback_interface_is_to_have() {
        let wanted = Ethtool::open().unwrap().wanted("lo").unwrap();
        assert!(wanted.size >= 1 && wanted.words.iter().any(|word| *word != 0), "{wanted:?}");
        assert_eq!(Ethtool::open().unwrap().wanted("no-such-if0"), None);
    }
}
