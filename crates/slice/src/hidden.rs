//! Tokens where neither end would look for them: behind more tags than a flow key holds, inside tunnels, in
//! what ICMP errors quote, in frames that are no IP. A function that takes off what is around such a token
//! brings it to where it counts, so that nothing of the network may bring one in; and nothing may leave with
//! one, for whoever sees it could send it in again.
//!
//! Both ends read any number of tags. Where a packet may hold another, every eight bytes of it are looked up:
//! they count if they are the last token that an entry of the table was given.

use slipstream_wire::field::be16;
use slipstream_wire::protocol::{AH, GRE, ICMP, ICMPV6, IPV4, IPV6, TCP, UDP, is_vlan};
use slipstream_wire::{Flags, Headers, LinkType, Skip, classify};

use super::payload_table::PayloadTable;
use super::token::{TOKEN_LEN, Token};

/// Bytes of a token that are looked for at least at the end of what was cut off: as many as hold its index
/// and its generation, so that nothing else is taken for them. Fewer say nothing of a tag of 24 bits.
const LEAST_PART: usize = 5;

/// EtherIP (RFC 3378), L2TP (RFC 3931), MPLS in IP (RFC 4023), IP in IP by encapsulation (RFC 1241).
const OTHER_TUNNELS: [u8; 4] = [97, 115, 137, 94];

/// The headers of a packet behind any number of tags; `None` where it is no IP, or its headers are not there.
#[inline(always)]
pub(super) fn read(link: LinkType, packet: &[u8]) -> Option<Headers> {
    match classify(link, packet) {
        Ok(headers) => Some(headers),
        Err(Skip::Malformed) if matches!(link, LinkType::Ethernet) => behind_tags(packet),
        Err(_) => None,
    }
}

/// The headers behind more tags than a flow key holds; their key has none of these.
#[cold]
fn behind_tags(packet: &[u8]) -> Option<Headers> {
    let mut at = 12;
    while is_vlan(be16(packet, at)?) {
        at += 4;
    }
    let version = match be16(packet, at)? {
        slipstream_wire::protocol::ETHERTYPE_IPV4 => 4,
        slipstream_wire::protocol::ETHERTYPE_IPV6 => 6,
        _ => return None,
    };
    let ip = packet.get(at + 2..)?;
    let headers = classify(LinkType::RawIp, ip).ok()?;
    let moved = |place: u16| u16::try_from(usize::from(place) + at + 2).ok();
    let (l3, l4) = (moved(headers.l3)?, moved(headers.l4)?);
    (ip.first()? >> 4 == version).then_some(Headers { l3, l4, ..headers })
}

/// Returns true if a UDP port is one that tunnels have: L2TP, GTP, GRE, VXLAN, GUE, GENEVE, MPLS, and VXLAN
/// as Linux once had it.
#[inline(always)]
pub(super) const fn is_tunnel_port(port: u16) -> bool {
    // Most ports are below all of them, or above.
    port.wrapping_sub(1701) <= 8472 - 1701
        && matches!(port, 1701 | 2152 | 4754..=4755 | 4789..=4790 | 6080..=6081 | 6635 | 8472)
}

/// Returns true if a packet with these headers may hold another, which a function could take out of it or put
/// into it.
#[inline]
pub(super) fn may_hold_another(packet: &[u8], headers: &Headers) -> bool {
    match headers.key.protocol() {
        TCP => false,
        UDP => is_tunnel_port(headers.key.dst_port()),
        // All but echoes, which quote nothing.
        protocol @ (ICMP | ICMPV6) if !headers.flags.has(Flags::FRAGMENT) => {
            let kind = packet.get(usize::from(headers.l4)).copied().unwrap_or(0);
            !matches!((protocol, kind), (ICMP, 0 | 8) | (ICMPV6, 128 | 129))
        }
        IPV4 | IPV6 | GRE | AH => true,
        protocol => OTHER_TUNNELS.contains(&protocol),
    }
}

/// A token that was found, or the beginning of one at the end of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hidden {
    /// Its offset.
    pub(super) at: usize,
    /// Bytes of it that are there.
    pub(super) len: usize,
    pub(super) token: Token,
}

impl PayloadTable {
    /// The first place of `bytes`, from `from` on, where a token stands that this table gave a packet and
    /// that no later one has replaced (of another worker: any that the key makes).
    pub(super) fn find_hidden(&self, bytes: &[u8], from: usize) -> Option<Hidden> {
        let last = self.format.last_index();
        let bytes = bytes.get(from..)?;
        for (at, window) in (from..).zip(bytes.windows(TOKEN_LEN)) {
            let &[a, b, c, d, e, f, g, h] = window else { continue };
            if u16::from_be_bytes([a, b]) > last {
                continue;
            }
            let token = Token::from_bytes([a, b, c, d, e, f, g, h]);
            if self.gave(token) {
                return Some(Hidden { at, len: TOKEN_LEN, token });
            }
        }
        None
    }

    /// The beginning of such a token in the last bytes: what was cut off in the middle of it.
    pub(super) fn find_cut_off(&self, bytes: &[u8]) -> Option<Hidden> {
        (LEAST_PART..TOKEN_LEN).rev().find_map(|len| {
            let at = bytes.len().checked_sub(len)?;
            self.find_part(bytes, at).filter(|_| self.begins_with(bytes, at))
        })
    }

    /// Such a token, or as much of its beginning as counts, in what stands at `at`, however that goes on: at
    /// most 8 bytes.
    pub(super) fn find_part(&self, bytes: &[u8], at: usize) -> Option<Hidden> {
        let part = bytes.get(at..).filter(|part| part.len() <= TOKEN_LEN)?;
        let token = self.last_of_entry(padded(part))?;
        let same = token.to_bytes().iter().zip(part).take_while(|(a, b)| a == b).count();
        (same >= LEAST_PART).then_some(Hidden { at, len: part.len(), token })
    }

    /// Returns true if all of what stands at `at` is the beginning of such a token.
    fn begins_with(&self, bytes: &[u8], at: usize) -> bool {
        let part = bytes.get(at..).unwrap_or_default();
        self.last_of_entry(padded(part)).is_some_and(|token| token.to_bytes().starts_with(part))
    }

    /// Either.
    pub(super) fn find_any(&self, bytes: &[u8]) -> Option<Hidden> {
        self.find_hidden(bytes, 0).or_else(|| self.find_cut_off(bytes))
    }

    /// Returns true if a token is the last that its entry was given; one of another worker: whether it is
    /// genuine.
    fn gave(&self, token: Token) -> bool {
        match self.format.read(token) {
            Some(fields) if fields.worker != self.worker => self.format.is_genuine(token),
            Some(_) => self.last_of_entry(token) == Some(token),
            None => false,
        }
    }
}

/// The beginning of a token, and zeros.
fn padded(part: &[u8]) -> Token {
    let mut whole = [0; TOKEN_LEN];
    whole.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
    Token::from_bytes(whole)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{SliceConfig, Sliced, Slicer, Storage, TokenKey};
    use slipstream_core::time::Nanos;

    fn udp() -> Vec<u8> {
        let mut packet = vec![9u8; 700];
        packet[..28].copy_from_slice(&[
            0x45, 0, 2, 188, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 2, 168, 0, 0,
        ]);
        packet
    }

    proptest! {
        /// Beside the obvious search: every token that was given, at every place.
        #[test]
        fn the_search_finds_what_is_there(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            entries in 1u32..300,
            put in prop::option::of((0usize..200, 0usize..5)),
            cut in 0usize..8,
        ) {
            let config = SliceConfig {
                entries,
                storage: Storage::Copied { entry_bytes: 2000 },
                key: TokenKey::from_seed(2),
                ..SliceConfig::default()
            };
            let mut table = PayloadTable::new(&config, 0).unwrap();
            let mut slicer = Slicer::new(&config).unwrap();
            let mut given = Vec::new();
            for _ in 0..entries.min(5) {
                let mut packet = udp();
                let done = slicer.slice(&mut table, LinkType::RawIp, &mut packet, 700, Nanos(0));
                let Sliced::Sliced { token, .. } = done else { panic!("{done:?}") };
                given.push(token);
            }
            if let Some((at, which)) = put {
                let token = given[which % given.len()].to_bytes();
                let at = at.min(bytes.len());
                bytes.splice(at..at, token);
                bytes.truncate(bytes.len().saturating_sub(cut));
            }
            let windows = bytes.windows(8).enumerate();
            let twin = windows.clone().find(|(_, w)| given.iter().any(|t| t.to_bytes() == **w));
            prop_assert_eq!(table.find_hidden(&bytes, 0).map(|h| h.at), twin.map(|(at, _)| at));
            let part = (5..8).rev().find(|len| {
                bytes.len() >= *len && given.iter().any(|t| t.to_bytes()[..*len] == bytes[bytes.len() - len..])
            });
            prop_assert_eq!(table.find_cut_off(&bytes).map(|h| h.len), part);
        }
    }

    #[test]
    fn tunnel_ports_are_those_of_the_list() {
        let listed = [1701, 2152, 4754, 4755, 4789, 4790, 6080, 6081, 6635, 8472];
        assert_eq!((0..=u16::MAX).filter(|port| is_tunnel_port(*port)).collect::<Vec<_>>(), listed);
    }
}
