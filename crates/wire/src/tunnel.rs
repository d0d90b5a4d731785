//! Tunnels: from the outermost to the innermost IP header, through GRE (RFC 2784, RFC 2890), IP in IP (RFC
//! 2003, RFC 4213), VXLAN (RFC 7348) and GENEVE (RFC 8926), nested up to [`MAX_DEPTH`].
//!
//! The key is that of the innermost header that can be read; its VLAN ids are those of the outer frame
//! followed by those of the inner one. Where a tunnel can't be followed (a fragment, an unknown version, a
//! control packet, no IP inside, too many tags, bytes not captured), the deepest header understood gives the
//! key.

use crate::bytes::{array, be16, byte};
use crate::general::{self, Network, Parsed};
use crate::protocol::{
    ETHERTYPE_BRIDGING, ETHERTYPE_IPV4, ETHERTYPE_IPV6, GENEVE_PORT, GRE, IPV4, IPV6, UDP, VXLAN_PORT,
};
use crate::{Flags, Headers, LinkType, Skip};

/// Tunnels followed in one frame at most.
const MAX_DEPTH: usize = 8;

/// Headers of a frame, the key from the innermost IP header.
pub(crate) fn innermost(link: LinkType, frame: &[u8]) -> Result<Headers, Skip> {
    let mut deepest = general::classify(link, frame)?;
    for _ in 0..MAX_DEPTH {
        match next(frame, &deepest) {
            Some(inner) => deepest = inner,
            None => break,
        }
    }
    Ok(deepest.headers)
}

/// The IP header inside the packet that `outer` describes.
fn next(frame: &[u8], outer: &Parsed) -> Option<Parsed> {
    if outer.headers.flags.has(Flags::FRAGMENT) {
        return None;
    }
    let at = outer.l4;
    let (at, ethertype) = match outer.headers.key.protocol() {
        IPV4 => (at, ETHERTYPE_IPV4),
        IPV6 => (at, ETHERTYPE_IPV6),
        GRE => gre(frame, at)?,
        UDP => match outer.headers.key.dst_port() {
            VXLAN_PORT => vxlan(frame, at + 8)?,
            GENEVE_PORT => geneve(frame, at + 8)?,
            _ => return None,
        },
        _ => return None,
    };
    let network = match ethertype {
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => Network { at, ethertype, vlans: outer.vlans },
        ETHERTYPE_BRIDGING => general::ethernet(frame, at, outer.vlans).ok()?,
        _ => return None,
    };
    if network.at >= usize::from(u16::MAX) {
        return None;
    }
    let mut inner = general::ip(frame, network).ok()?;
    inner.headers.flags.0 |= Flags::INNER;
    Some(inner)
}

/// GRE version 0 with optional checksum, key and sequence number; source routing (RFC 1701) is not followed.
fn gre(frame: &[u8], at: usize) -> Option<(usize, u16)> {
    captured(frame, at, 4)?;
    let flags = be16(frame, at);
    let optional = (flags & 0xb000).count_ones() as usize * 4;
    (flags & 0x4c07 == 0).then_some((at + 4 + optional, be16(frame, at + 2)))
}

/// A VXLAN header with a valid network identifier; an Ethernet frame follows.
fn vxlan(frame: &[u8], at: usize) -> Option<(usize, u16)> {
    captured(frame, at, 8)?;
    (byte(frame, at) & 8 != 0).then_some((at + 8, ETHERTYPE_BRIDGING))
}

/// GENEVE version 0, options skipped; control packets (O) carry no user data.
fn geneve(frame: &[u8], at: usize) -> Option<(usize, u16)> {
    captured(frame, at, 8)?;
    let [first, second] = array(frame, at);
    let options = usize::from(first & 0x3f) * 4;
    (first >> 6 == 0 && second & 0x80 == 0).then_some((at + 8 + options, be16(frame, at + 2)))
}

fn captured(frame: &[u8], at: usize, length: usize) -> Option<()> {
    (frame.len() >= at + length).then_some(())
}
