//! Keys of measured flows: from a packet's flow key to the bytes that a sketch sees, and back to what people
//! read.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use slipstream_wire::FlowKey;

/// Bytes of an address of IPv4 and of IPv6.
const ADDRESS: [usize; 2] = [4, 16];
/// Bytes of two ports and a protocol.
const PORTS: usize = 5;

/// The longest key, in bytes: source, destination, ports and protocol of IPv6.
pub const MAX_KEY: usize = 2 * ADDRESS[1] + PORTS;

/// Returns true if keys of so many bytes are IPv6's; IPv4 has none of these lengths.
#[must_use]
pub(crate) const fn is_ipv6(len: usize) -> bool {
    let [_, address] = ADDRESS;
    len == address || len == 2 * address || len == 2 * address + PORTS
}

/// Fields of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fields {
    Src,
    Dst,
    SrcDst,
    FiveTuple,
}

impl Fields {
    const ALL: [Self; 4] = [Self::Src, Self::Dst, Self::SrcDst, Self::FiveTuple];

    const fn name(self) -> &'static str {
        match self {
            Self::Src => "src",
            Self::Dst => "dst",
            Self::SrcDst => "src-dst",
            Self::FiveTuple => "5tuple",
        }
    }
}

/// A kind of key: fields, and how many bits of addresses count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyKind {
    fields: Fields,
    /// Bits of IPv4 addresses, up to 32, and of IPv6 addresses, up to 128.
    bits: (u8, u8),
}

impl FromStr for KeyKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "{text:?} is no key; there are src, dst, src-dst, 5tuple, src/24 (networks of IPv4), src/24/56 (IPv4/IPv6)"
            )
        };
        let (name, prefix) = text.split_once('/').map_or((text, None), |(n, p)| (n, Some(p)));
        let fields = Fields::ALL.into_iter().find(|fields| fields.name() == name).ok_or_else(form)?;
        let bits = |text: &str, most: u8| {
            let n: u8 = text.parse().map_err(|_| form())?;
            if n == 0 || n > most {
                return Err(format!("{text:?} is no length of a prefix; it has 1 to {most} bits"));
            }
            Ok(n)
        };
        let bits = match prefix {
            None => (32, 128),
            Some(_) if fields == Fields::FiveTuple => return Err("a 5tuple has no prefix".to_owned()),
            Some(prefix) => match prefix.split_once('/') {
                Some((four, six)) => (bits(four, 32)?, bits(six, 128)?),
                // The networks of one version are of no meaning for the other: its addresses stay whole.
                None => match bits(prefix, 128)? {
                    four @ ..=32 => (four, WHOLE.1),
                    six => (WHOLE.0, six),
                },
            },
        };
        Ok(Self { fields, bits })
    }
}

impl KeyKind {
    /// Says that it names networks of IPv4 and leaves IPv6 addresses whole.
    #[must_use]
    pub const fn leaves_ipv6_whole(self) -> bool {
        self.bits.0 < WHOLE.0 && self.bits.1 == WHOLE.1
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.fields.name())?;
        match self.bits {
            (32, 128) => Ok(()),
            (four, 128) => write!(f, "/{four}"),
            (32, six @ 33..) => write!(f, "/{six}"),
            (four, six) => write!(f, "/{four}/{six}"),
        }
    }
}

/// The way from packets to the keys of a sketch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keying {
    kind: KeyKind,
    /// Keys are pairs of the source (of this kind) and its whole counterpart: what spreads are counted over.
    pairs: bool,
}

/// A key as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyBytes {
    bytes: [u8; MAX_KEY],
    len: usize,
}

impl KeyBytes {
    /// The bytes.
    #[must_use]
    pub fn get(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn new() -> Self {
        Self { bytes: [0; MAX_KEY], len: 0 }
    }

    fn push(&mut self, part: &[u8]) {
        if let Some(to) = self.bytes.get_mut(self.len..self.len + part.len()) {
            to.copy_from_slice(part);
            self.len += part.len();
        }
    }

    #[inline]
    fn push_ports(&mut self, src: u16, dst: u16, protocol: u8) {
        self.push(&src.to_be_bytes());
        self.push(&dst.to_be_bytes());
        self.push(&[protocol]);
    }

    /// An address, of which only the first bits count.
    fn push_address(&mut self, address: IpAddr, (four, six): (u8, u8)) {
        match address {
            IpAddr::V4(a) => self.push(&(a.to_bits() & mask32(four)).to_be_bytes()),
            IpAddr::V6(a) => self.push(&(a.to_bits() & mask128(six)).to_be_bytes()),
        }
    }
}

fn mask32(bits: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0)
}

fn mask128(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0)
}

const WHOLE: (u8, u8) = (32, 128);

impl Keying {
    /// Keys of flows.
    #[must_use]
    pub fn plain(kind: KeyKind) -> Self {
        Self { kind, pairs: false }
    }

    /// Pairs whose first part is a source (or with `victims`, a destination) of this kind.
    ///
    /// # Errors
    /// The kind isn't one of that side.
    pub fn pairs(kind: KeyKind, victims: bool) -> Result<Self, String> {
        let side = if victims { Fields::Dst } else { Fields::Src };
        match kind.fields {
            Fields::SrcDst => Ok(Self { kind: KeyKind { fields: side, ..kind }, pairs: true }),
            fields if fields == side => Ok(Self { kind, pairs: true }),
            _ => Err(format!(
                "key {kind}: this task counts counterparts of {0}; the key is {0} or {0}/24",
                side.name()
            )),
        }
    }

    /// Says that keys are pairs.
    #[must_use]
    pub fn is_pairs(self) -> bool {
        self.pairs
    }

    /// The kind of key, or of its first part.
    #[must_use]
    pub fn kind(self) -> KeyKind {
        self.kind
    }

    /// Bytes of a key of IPv4 and of IPv6.
    #[must_use]
    pub fn lens(self) -> [usize; 2] {
        ADDRESS.map(|address| match self.kind.fields {
            _ if self.pairs => 2 * address,
            Fields::Src | Fields::Dst => address,
            Fields::SrcDst => 2 * address,
            Fields::FiveTuple => 2 * address + PORTS,
        })
    }

    /// Bytes of the source in a key of one IP version; 0 where keys are no pairs.
    pub(crate) fn source_len(self, ipv6: bool) -> usize {
        let [four, six] = ADDRESS;
        match self.pairs {
            true if ipv6 => six,
            true => four,
            false => 0,
        }
    }

    /// The key of a packet.
    #[must_use]
    pub fn key(self, flow: &FlowKey) -> KeyBytes {
        let mut key = KeyBytes::new();
        let bits = self.kind.bits;
        match self.kind.fields {
            Fields::Src => {
                key.push_address(flow.src(), bits);
                if self.pairs {
                    key.push_address(flow.dst(), WHOLE);
                }
            }
            Fields::Dst => {
                key.push_address(flow.dst(), bits);
                if self.pairs {
                    key.push_address(flow.src(), WHOLE);
                }
            }
            Fields::SrcDst | Fields::FiveTuple => {
                key.push_address(flow.src(), bits);
                key.push_address(flow.dst(), bits);
            }
        }
        if self.kind.fields == Fields::FiveTuple {
            key.push_ports(flow.src_port(), flow.dst_port(), flow.protocol());
        }
        key
    }

    /// A key as people write it; of a pair, its source.
    #[must_use]
    pub fn show(self, key: &[u8], ipv6: bool) -> String {
        let len = if ipv6 { 16 } else { 4 };
        let (first, rest) = key.split_at_checked(len).unwrap_or((key, &[]));
        let (second, rest) = rest.split_at_checked(len).unwrap_or((&[], &[]));
        let (Some(a), b) = (address(first), address(second)) else { return String::new() };
        match (self.kind.fields, b) {
            (Fields::SrcDst, Some(b)) => format!("{} > {}", self.with_prefix(a), self.with_prefix(b)),
            (Fields::FiveTuple, Some(b)) => five_tuple(a, b, rest),
            _ => self.with_prefix(a),
        }
    }

    fn with_prefix(self, address: IpAddr) -> String {
        let (four, six) = self.kind.bits;
        match address {
            IpAddr::V4(a) if four < 32 => format!("{a}/{four}"),
            IpAddr::V6(a) if six < 128 => format!("{a}/{six}"),
            other => other.to_string(),
        }
    }

    /// A key from how it is shown, and whether it is IPv6; of pairs there is none.
    ///
    /// # Errors
    /// The text is no key of this kind.
    pub fn parse(self, text: &str) -> Result<(KeyBytes, bool), String> {
        if self.pairs {
            return Err(format!(
                "{text:?}: keys are pairs of {} and counterpart here, and no pair can be asked for by name",
                self.kind.fields.name()
            ));
        }
        self.parsed(text).ok_or_else(|| format!("{text:?} is no key of kind {}", self.kind))
    }

    fn parsed(self, text: &str) -> Option<(KeyBytes, bool)> {
        let (first, second) = match text.split_once('>') {
            Some((first, second)) => (first.trim(), Some(second.trim())),
            None => (text.trim(), None),
        };
        let (a, b, rest) = match (self.kind.fields, second) {
            (Fields::Src | Fields::Dst, None) => (self.parsed_address(first)?, None, None),
            (Fields::SrcDst, Some(second)) => {
                (self.parsed_address(first)?, Some(self.parsed_address(second)?), None)
            }
            (Fields::FiveTuple, Some(second)) => {
                let (second, protocol) = second.split_once(' ')?;
                let ((a, src_port), (b, dst_port)) = (endpoint(first)?, endpoint(second)?);
                (a, Some(b), Some((src_port, dst_port, protocol_number(protocol.trim())?)))
            }
            _ => return None,
        };
        let mut key = KeyBytes::new();
        key.push_address(a, self.kind.bits);
        if let Some(b) = b {
            if a.is_ipv6() != b.is_ipv6() {
                return None;
            }
            key.push_address(b, self.kind.bits);
        }
        if let Some((src_port, dst_port, protocol)) = rest {
            key.push_ports(src_port, dst_port, protocol);
        }
        Some((key, a.is_ipv6()))
    }

    /// An address, with the prefix of the keys or without; another one is no flow that was counted.
    fn parsed_address(self, text: &str) -> Option<IpAddr> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let address = address.parse::<IpAddr>().ok()?;
        let (four, six) = self.kind.bits;
        let bits = if address.is_ipv6() { six } else { four };
        prefix.is_none_or(|prefix| prefix.parse() == Ok(bits)).then_some(address)
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(four).into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|six| Ipv6Addr::from(six).into())
}

fn five_tuple(a: IpAddr, b: IpAddr, rest: &[u8]) -> String {
    let [s1, s2, d1, d2, protocol] = *rest.first_chunk().unwrap_or(&[0; 5]);
    let (sp, dp) = (u16::from_be_bytes([s1, s2]), u16::from_be_bytes([d1, d2]));
    FlowKey::new(&[], a, b, protocol, sp, dp).map(|k| k.to_string()).unwrap_or_default()
}

/// `10.0.0.1:80`, `[2001:db8::1]:80`, or an address alone, whose port is 0.
fn endpoint(text: &str) -> Option<(IpAddr, u16)> {
    if let Ok(address) = text.parse::<std::net::SocketAddr>() {
        return Some((address.ip(), address.port()));
    }
    text.parse().ok().map(|a| (a, 0))
}

/// A name as [`FlowKey`] prints it, or `proto N`.
fn protocol_number(text: &str) -> Option<u8> {
    if let Some(number) = text.strip_prefix("proto") {
        return number.trim().parse().ok();
    }
    (0..=u8::MAX).find(|n| slipstream_wire::protocol::name(*n) == Some(text)).or_else(|| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(src: &str, dst: &str, protocol: u8, sp: u16, dp: u16) -> FlowKey {
        FlowKey::new(&[7], src.parse().unwrap(), dst.parse().unwrap(), protocol, sp, dp).unwrap()
    }

    #[test]
    fn keys_are_shown_as_people_write_them_and_read_again() {
        let four = flow("10.1.2.3", "10.9.8.7", 6, 80, 1234);
        let six = flow("2001:db8::1", "2001:db8:0:1::2", 17, 53, 4000);
        let ping = flow("10.1.2.3", "10.9.8.7", 1, 0, 0);
        let odd = flow("10.1.2.3", "10.9.8.7", 250, 0, 0);
        for (kind, flow, text) in [
            ("src", &four, "10.1.2.3"),
            ("dst", &four, "10.9.8.7"),
            ("src-dst", &four, "10.1.2.3 > 10.9.8.7"),
            ("5tuple", &four, "10.1.2.3:80 > 10.9.8.7:1234 tcp"),
            ("src/24", &four, "10.1.2.0/24"),
            ("dst/8", &four, "10.0.0.0/8"),
            ("src/32", &four, "10.1.2.3"),
            ("src-dst/16", &four, "10.1.0.0/16 > 10.9.0.0/16"),
            ("src", &six, "2001:db8::1"),
            ("src/24/48", &six, "2001:db8::/48"),
            ("src/24", &six, "2001:db8::1"),
            ("src/24/24", &six, "2001:d00::/24"),
            ("src/64", &four, "10.1.2.3"),
            ("dst/64", &six, "2001:db8:0:1::/64"),
            ("5tuple", &six, "[2001:db8::1]:53 > [2001:db8:0:1::2]:4000 udp"),
            ("5tuple", &ping, "10.1.2.3 > 10.9.8.7 icmp"),
            ("5tuple", &odd, "10.1.2.3 > 10.9.8.7 proto 250"),
        ] {
            let keying = Keying::plain(kind.parse().unwrap());
            let key = keying.key(flow);
            let len = key.get().len();
            assert_eq!(len, keying.lens()[usize::from(flow.is_ipv6())]);
            assert_eq!(is_ipv6(len), flow.is_ipv6());
            assert_eq!(keying.show(key.get(), flow.is_ipv6()), text, "{kind}");
            assert_eq!(keying.parse(text), Ok((key, flow.is_ipv6())), "{kind} {text}");
        }
    }

    #[test]
    fn pairs_show_their_source() {
        let four = flow("10.1.2.3", "10.9.8.7", 6, 80, 1234);
        let sources = Keying::pairs("src/24".parse().unwrap(), false).unwrap();
        assert_eq!(sources.key(&four).get(), [10, 1, 2, 0, 10, 9, 8, 7]);
        assert_eq!((sources.lens(), [false, true].map(|ipv6| sources.source_len(ipv6))), ([8, 32], [4, 16]));
        assert_eq!(sources.show(sources.key(&four).get(), false), "10.1.2.0/24");
        let victims = Keying::pairs("src-dst".parse().unwrap(), true).unwrap();
        assert_eq!(victims.show(victims.key(&four).get(), false), "10.9.8.7");
        assert!(sources.parse("10.1.2.0/24").unwrap_err().contains("pairs of src and counterpart"));
        assert!(Keying::pairs("dst".parse().unwrap(), false).is_err());
        assert!(Keying::pairs("5tuple".parse().unwrap(), false).is_err());
    }

    #[test]
    fn what_is_no_key() {
        for text in ["", "source", "src/", "src/0", "src/129", "src/33/64", "5tuple/24", "src/24/0", "src//"]
        {
            assert!(text.parse::<KeyKind>().is_err(), "{text}");
        }
        for text in ["src", "dst/24", "src-dst", "5tuple", "src/24/56", "src/64", "src/24/24", "src/32/24"] {
            assert_eq!(text.parse::<KeyKind>().unwrap().to_string(), text);
        }
        assert_eq!("src/32".parse::<KeyKind>().unwrap(), "src".parse().unwrap());
        let keying = Keying::plain("src".parse().unwrap());
        for text in ["", "10.0.0", "10.0.0.1 > 10.0.0.2", "ten", "10.0.0.1/8", "10.0.0.1/", "::1/64"] {
            assert!(keying.parse(text).is_err(), "{text}");
        }
        let keying = Keying::plain("src-dst/24/56".parse().unwrap());
        for text in ["10.1.2.0/24 > 10.1.3.0/16", "10.1.2.0/24 > 10.1.3.0/24 > 10.1.4.0", "::/24 > ::/56"] {
            assert!(keying.parse(text).is_err(), "{text}");
        }
        // An address that is written whole is that of its network.
        let network = keying.parse("10.1.2.0/24 > 10.1.3.0/24");
        assert!(network.is_ok());
        assert_eq!(keying.parse("10.1.2.9 > 10.1.3.255/24"), network);
    }
}
