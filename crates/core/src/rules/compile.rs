//! From a tree to something quick: constants folded, tests of fixed header bits merged into one masked
//! comparison, and what is left laid out as steps, each of which says where to go when it holds and where
//! when it doesn't (as BPF does).

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use ipnet::IpNet;
use slipstream_wire::{Flags, Headers};

use super::expr::{ByteSet, Expr, Ranges, Side, Test};

/// Bits of a packet in one word: [`Flags`] (0..8), TCP flags (8..16), TOS (16..24), IP protocol (24..32).
const TCP_FLAGS_AT: u32 = 8;
const TOS_AT: u32 = 16;
const PROTOCOL_AT: u32 = 24;
const TCP_FLAGS: u32 = 0xff << TCP_FLAGS_AT;
const PROTOCOL: u32 = 0xff << PROTOCOL_AT;
const TCP: u32 = Flags::TCP as u32;

/// A condition on the word of a packet: its bits under `mask` are `value`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Word {
    mask: u32,
    value: u32,
}

impl Word {
    fn new(mask: u32, value: u32) -> Self {
        Self { mask, value }
    }

    /// Returns true if a packet fulfils the condition. The key is read only for a condition on the protocol.
    #[inline]
    pub(super) fn holds(self, h: &Headers) -> bool {
        let protocol = if self.mask & PROTOCOL == 0 { 0 } else { h.key.protocol() };
        self.holds_for(word(h, protocol))
    }

    #[inline]
    fn holds_for(self, word: u32) -> bool {
        word & self.mask == self.value
    }

    /// Mask and value, where the condition is that a packet's TCP flags can be seen and are these.
    pub(super) fn tcp_flags_only(self) -> Option<(u8, u8)> {
        let Self { mask, value } = self.closed().filter(|all| all.value & TCP != 0)?;
        let [flags, mask, tos, _] = mask.to_le_bytes();
        let [_, value, _, _] = value.to_le_bytes();
        (flags == Flags::TCP && tos == 0).then_some((mask, value))
    }

    /// Both conditions; `None` where they exclude each other.
    fn and(self, other: Self) -> Option<Self> {
        let differ = (self.value ^ other.value) & self.mask & other.mask;
        (differ == 0).then(|| Self::new(self.mask | other.mask, self.value | other.value))
    }

    /// The condition that holds wherever either of the two does.
    fn common(self, other: Self) -> Self {
        let mask = self.mask & other.mask & !(self.value ^ other.value);
        Self::new(mask, self.value & mask)
    }

    /// The same condition together with what follows from it: a TCP flag is only ever set in [`Headers`] with
    /// [`Flags::TCP`], and that only for protocol 6.
    fn closed(self) -> Option<Self> {
        let flag = if self.value & TCP_FLAGS == 0 { Self::default() } else { Self::new(TCP, TCP) };
        let all = self.and(flag)?;
        if all.value & TCP == 0 { Some(all) } else { all.and(Self::new(PROTOCOL, 6 << PROTOCOL_AT)) }
    }

    /// The same condition without what follows from the rest of it; `None` where it can't be fulfilled.
    fn minimal(self) -> Option<Self> {
        let mut drop = 0;
        let all = self.closed()?;
        if all.value & TCP != 0 {
            drop |= PROTOCOL;
        }
        if all.value & TCP_FLAGS != 0 {
            drop |= TCP;
        }
        Some(Self::new(self.mask & !drop, self.value & !drop))
    }
}

#[inline]
fn word(h: &Headers, protocol: u8) -> u32 {
    u32::from_le_bytes([h.flags.0, h.tcp_flags, h.tos, protocol])
}

/// The fields that programs read of a packet, taken from its headers once.
struct Packet<'a> {
    headers: &'a Headers,
    word: u32,
    src: End,
    dst: End,
    len: u32,
}

/// An address, that of IPv4 in the low 32 bits, and a port.
struct End {
    address: [u64; 2],
    port: u32,
}

impl End {
    #[inline]
    fn new(address: IpAddr, port: u16) -> Self {
        let address = match address {
            IpAddr::V4(a) => [0, u64::from(a.to_bits())],
            IpAddr::V6(a) => halves(a.to_bits()),
        };
        Self { address, port: u32::from(port) }
    }
}

impl<'a> Packet<'a> {
    #[inline]
    fn new(headers: &'a Headers, word: u32, len: u32) -> Self {
        let key = &headers.key;
        let (src, dst) = (End::new(key.src(), key.src_port()), End::new(key.dst(), key.dst_port()));
        Self { headers, word, src, dst, len }
    }

    #[inline]
    fn end(&self, src: bool) -> &End {
        if src { &self.src } else { &self.dst }
    }
}

/// A question to be answered in one step.
#[derive(Clone, Debug)]
enum Check {
    Word(Word),
    Proto(ByteSet),
    Net { src: bool, six: bool, address: [u64; 2], mask: [u64; 2] },
    Port { src: bool, ports: Ranges },
    Dscp(u64),
    Ecn(u8),
    Vlan(Option<Ranges>),
    Length(Ranges),
}

impl Check {
    #[inline]
    fn holds(&self, packet: &Packet<'_>) -> bool {
        let h = packet.headers;
        match self {
            Self::Word(w) => w.holds_for(packet.word),
            Self::Proto(set) => set.contains(h.key.protocol()),
            Self::Net { src, six, address: [high, low], mask: [high_mask, low_mask] } => {
                let [a, b] = packet.end(*src).address;
                ((a & high_mask) ^ high) | ((b & low_mask) ^ low) == 0 && h.flags.has(Flags::IPV6) == *six
            }
            Self::Port { src, ports } => h.flags.has(Flags::PORTS) && ports.contains(packet.end(*src).port),
            Self::Dscp(set) => set >> (h.tos >> 2) & 1 == 1,
            Self::Ecn(set) => set >> (h.tos & 3) & 1 == 1,
            Self::Vlan(ids) => tagged(h, ids.as_ref()),
            Self::Length(bytes) => bytes.contains(packet.len),
        }
    }

    /// The condition that every packet fulfils for which this holds.
    fn required(&self) -> Word {
        let bit = |bit: u8, set: bool| Word::new(u32::from(bit), if set { u32::from(bit) } else { 0 });
        match self {
            Self::Word(w) => w.closed().unwrap_or(*w),
            Self::Net { six, .. } => bit(Flags::IPV6, *six),
            Self::Port { .. } => bit(Flags::PORTS, true),
            Self::Proto(_) | Self::Dscp(_) | Self::Ecn(_) | Self::Vlan(_) | Self::Length(_) => {
                Word::default()
            }
        }
    }
}

fn halves(bits: u128) -> [u64; 2] {
    [(bits >> 64) as u64, bits as u64]
}

/// Returns true if a tag has one of the ids, or any. Not inlined: the compiler would take the tags apart for
/// every packet.
#[inline(never)]
fn tagged(h: &Headers, ids: Option<&Ranges>) -> bool {
    h.key.vlans().any(|id| ids.is_none_or(|ids| ids.contains(u32::from(id))))
}

/// A simplified tree.
enum Node {
    Const(bool),
    Check(Check),
    Not(Box<Node>),
    And(Vec<Node>),
    Or(Vec<Node>),
}

impl Node {
    fn word(mask: u32, value: u32) -> Self {
        match Word::new(mask, value).minimal() {
            Some(w) if w.mask == 0 => Self::Const(true),
            Some(w) => Self::Check(Check::Word(w)),
            None => Self::Const(false),
        }
    }

    fn from(expr: &Expr) -> Self {
        match expr {
            Expr::Any => Self::Const(true),
            Expr::None => Self::Const(false),
            Expr::Test(test) => Self::test(test),
            Expr::Not(inner) => Self::from(inner).not(),
            Expr::And(parts) => Self::and(parts.iter().map(Self::from)),
            Expr::Or(parts) => Self::or(parts.iter().map(Self::from)),
        }
    }

    fn test(test: &Test) -> Self {
        let bit = u32::from;
        match test {
            Test::Ip6(six) => Self::word(bit(Flags::IPV6), if *six { bit(Flags::IPV6) } else { 0 }),
            Test::Fragment => Self::word(bit(Flags::FRAGMENT), bit(Flags::FRAGMENT)),
            Test::Flags { mask, value } => {
                Self::word(TCP | u32::from(*mask) << TCP_FLAGS_AT, TCP | u32::from(*value) << TCP_FLAGS_AT)
            }
            Test::Proto(set) => match *set.iter().collect::<Vec<_>>() {
                [one] => Self::word(PROTOCOL, u32::from(one) << PROTOCOL_AT),
                _ => Self::Check(Check::Proto(*set)),
            },
            Test::Dscp(set) if set.count_ones() == 1 => {
                Self::word(0xfc << TOS_AT, set.trailing_zeros() << 2 << TOS_AT)
            }
            Test::Dscp(set) => Self::Check(Check::Dscp(*set)),
            Test::Ecn(set) if set.count_ones() == 1 => {
                Self::word(3 << TOS_AT, set.trailing_zeros() << TOS_AT)
            }
            Test::Ecn(set) => Self::Check(Check::Ecn(*set)),
            Test::Net(side, nets) => {
                Self::sides(*side, |src| Self::or(nets.iter().map(|net| Self::Check(prefix(src, net)))))
            }
            Test::Port(side, ports) => {
                Self::sides(*side, |src| Self::Check(Check::Port { src, ports: ports.clone() }))
            }
            Test::Vlan(ids) => Self::Check(Check::Vlan(ids.clone())),
            Test::Length(bytes) => Self::Check(Check::Length(bytes.clone())),
        }
    }

    fn sides(side: Side, of: impl Fn(bool) -> Self) -> Self {
        match side {
            Side::Src => of(true),
            Side::Dst => of(false),
            Side::Either => Self::or([of(true), of(false)].into_iter()),
        }
    }

    fn not(self) -> Self {
        match self {
            Self::Const(b) => Self::Const(!b),
            Self::Not(inner) => *inner,
            Self::Check(Check::Word(Word { mask, value })) if mask.is_power_of_two() => {
                Self::word(mask, value ^ mask)
            }
            other => Self::Not(Box::new(other)),
        }
    }

    /// All of `parts`: the conditions on the word as one, and first.
    fn and(parts: impl Iterator<Item = Self>) -> Self {
        let mut word = Word::default();
        let mut rest = Vec::new();
        for part in flat(parts, |n| if let Self::And(inner) = n { Ok(inner) } else { Err(n) }) {
            match part {
                Self::Const(true) => {}
                Self::Const(false) => return part,
                Self::Check(Check::Word(w)) => match word.and(w) {
                    Some(both) => word = both,
                    None => return Self::Const(false),
                },
                part => rest.push(part),
            }
        }
        match Self::word(word.mask, word.value) {
            Self::Const(true) => {}
            Self::Const(false) => return Self::Const(false),
            first => rest.insert(0, first),
        }
        if rest.len() > 1 { Self::And(rest) } else { rest.pop().unwrap_or(Self::Const(true)) }
    }

    /// Some of `parts`.
    fn or(parts: impl Iterator<Item = Self>) -> Self {
        let mut rest = Vec::new();
        for part in flat(parts, |n| if let Self::Or(inner) = n { Ok(inner) } else { Err(n) }) {
            match part {
                Self::Const(false) => {}
                Self::Const(true) => return part,
                part => rest.push(part),
            }
        }
        if rest.len() > 1 { Self::Or(rest) } else { rest.pop().unwrap_or(Self::Const(false)) }
    }

    /// The condition that every packet fulfils for which this holds.
    fn required(&self) -> Word {
        match self {
            Self::Const(_) | Self::Not(_) => Word::default(),
            Self::Check(check) => check.required(),
            Self::And(parts) => {
                parts.iter().map(Self::required).fold(Word::default(), |all, w| all.and(w).unwrap_or(all))
            }
            Self::Or(parts) => parts.iter().map(Self::required).reduce(Word::common).unwrap_or_default(),
        }
    }
}

/// `parts`, those that `split` takes apart being replaced by their own parts.
fn flat(
    parts: impl Iterator<Item = Node>,
    split: fn(Node) -> Result<Vec<Node>, Node>,
) -> impl Iterator<Item = Node> {
    parts.flat_map(move |part| split(part).unwrap_or_else(|one| vec![one]))
}

fn prefix(src: bool, net: &IpNet) -> Check {
    let (six, address, mask) = match net {
        IpNet::V4(net) => {
            (false, [0, u64::from(net.network().to_bits())], [0, u64::from(net.netmask().to_bits())])
        }
        IpNet::V6(net) => (true, halves(net.network().to_bits()), halves(net.netmask().to_bits())),
    };
    Check::Net { src, six, address, mask }
}

/// Targets of steps that decide for or against the packet. Both are beyond the end of every program.
const ACCEPT: u32 = u32::MAX;
const REJECT: u32 = u32::MAX - 1;

#[derive(Clone, Debug)]
struct Step {
    check: Check,
    /// The step to go to when the check holds, and when it doesn't: always a later one.
    yes: u32,
    no: u32,
}

/// Steps to go through for a packet.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// The condition that every matching packet fulfils.
    required: Word,
    first: u32,
    steps: Box<[Step]>,
}

impl Program {
    fn new(node: &Node) -> Self {
        let mut steps = Vec::new();
        let first = emit(node, ACCEPT, REJECT, &mut steps);
        // `emit` lays a step down behind those that it leads to.
        steps.reverse();
        let count = u32::try_from(steps.len()).unwrap_or(REJECT);
        let turned = |at: u32| if at < count { count - 1 - at } else { at };
        for step in &mut steps {
            (step.yes, step.no) = (turned(step.yes), turned(step.no));
        }
        Self { required: node.required(), first: turned(first), steps: steps.into() }
    }

    #[inline(never)]
    pub(super) fn matches(&self, h: &Headers, packet_len: u32) -> bool {
        let word = word(h, h.key.protocol());
        if !self.required.holds_for(word) {
            return false;
        }
        let packet = Packet::new(h, word, packet_len);
        let mut at = self.first;
        while let Some(step) = self.steps.get(at as usize) {
            at = if step.check.holds(&packet) { step.yes } else { step.no };
        }
        at == ACCEPT
    }
}

/// Lays down the steps of `node`, last first, and gives the one to begin with.
fn emit(node: &Node, yes: u32, no: u32, steps: &mut Vec<Step>) -> u32 {
    match node {
        Node::Const(b) => {
            if *b {
                yes
            } else {
                no
            }
        }
        Node::Not(inner) => emit(inner, no, yes, steps),
        Node::And(parts) => parts.iter().rev().fold(yes, |next, part| emit(part, next, no, steps)),
        Node::Or(parts) => parts.iter().rev().fold(no, |next, part| emit(part, yes, next, steps)),
        Node::Check(check) => {
            steps.push(Step { check: check.clone(), yes, no });
            u32::try_from(steps.len() - 1).unwrap_or(no)
        }
    }
}

/// The compiled form of a rule.
#[derive(Clone, Debug)]
pub(super) enum Compiled {
    Never,
    Always,
    Word(Word),
    Program(Box<Program>),
}

impl Compiled {
    pub(super) fn new(expr: &Expr) -> Self {
        match Node::from(expr) {
            Node::Const(false) => Self::Never,
            Node::Const(true) => Self::Always,
            Node::Check(Check::Word(word)) => Self::Word(word),
            node => Self::Program(Box::new(Program::new(&node))),
        }
    }
}
