//! pcapng: sections of blocks (draft-ietf-opsawg-pcapng). Every block is type, length, body, length again,
//! padded to four bytes; a section header sets the byte order and forgets the interfaces of the section
//! before.

use slipstream_wire::LinkType;

use super::fields::Order;
use super::pcap::Cut;
use super::reader::Notes;
use super::spans::Shape;
use super::window::{Stop, Window};
use super::{Damage, Interface, MAX_CAPTURED, MAX_INTERFACE_NAME};
use slipstream_core::time::Nanos;

/// Block type of a section header: a palindrome, the same in both byte orders.
pub(super) const SECTION: u32 = 0x0a0d_0d0a;
/// Bytes of the smallest section header.
pub(super) const SECTION_MIN: usize = 28;
/// Magic number that shows the byte order of a section.
pub(super) const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Block type of an interface description.
pub(super) const INTERFACE: u32 = 1;
/// Block type of the obsolete packet block.
const OLD_PACKET: u32 = 2;
/// Block type of the simple packet block.
const SIMPLE_PACKET: u32 = 3;
/// Block type of the enhanced packet block.
pub(super) const PACKET: u32 = 6;

/// Bytes of the smallest packet block, but for simple ones.
pub(super) const PACKET_MIN: u32 = 32;

/// Option: interface name.
pub(super) const IF_NAME: u16 = 2;
/// Option: resolution of time stamps.
pub(super) const IF_TSRESOL: u16 = 9;
/// Option: bits of the frame check sequence at the end of every packet.
pub(super) const IF_FCSLEN: u16 = 13;
/// Option: seconds to add to time stamps.
const IF_TSOFFSET: u16 = 14;

/// The largest block that has to be in memory at once: a packet, and as much again of options as is
/// reasonable.
const BLOCK_MAX: u32 = MAX_CAPTURED + 0x10_0000;
/// The most interfaces that a file may describe, so that a small file can't fill the memory.
const INTERFACES_MAX: usize = 65_536;

/// Conversion of the time stamps of an interface to nanoseconds.
#[derive(Clone, Copy)]
struct Clock {
    /// Units per second: a power of ten or two, the largest of which (2^127) has a place in 128 bits. 10^39
    /// and more don't, and all stamps in such units are 0.
    per_second: u128,
    /// Nanoseconds per unit, where that is a whole number and there is nothing to add; else 0.
    unit: u64,
    /// Seconds to add.
    offset: i64,
}

impl Clock {
    fn new(resolution: u8, offset: i64) -> Self {
        let exponent = u32::from(resolution & 0x7f);
        let base = if resolution & 0x80 == 0 { 10u128 } else { 2 };
        let per_second = base.checked_pow(exponent).unwrap_or(u128::MAX);
        let simple = offset == 0 && 1_000_000_000 % per_second == 0;
        let unit = if simple { (1_000_000_000 / per_second) as u64 } else { 0 };
        Self { per_second, unit, offset }
    }

    /// Nanoseconds since the epoch, and whether they had to be clamped.
    #[inline]
    fn time(&self, stamp: u64) -> (Nanos, bool) {
        if self.unit != 0
            && let Some(time) = stamp.checked_mul(self.unit)
        {
            return (Nanos(time), false);
        }
        self.time_exact(stamp)
    }

    #[cold]
    fn time_exact(&self, stamp: u64) -> (Nanos, bool) {
        // Below 2^94, so that neither product nor sum can overflow.
        let since = u128::from(stamp) * 1_000_000_000 / self.per_second;
        let time = i128::try_from(since).unwrap_or(i128::MAX) + i128::from(self.offset) * 1_000_000_000;
        match u64::try_from(time) {
            Ok(time) => (Nanos(time), false),
            Err(_) if time < 0 => (Nanos(0), true),
            Err(_) => (Nanos::MAX, true),
        }
    }
}

/// Attributes of an interface of the current section.
#[derive(Clone, Copy)]
struct Local {
    clock: Clock,
    link: LinkType,
    snap_len: u32,
}

/// A decoder of the packets of a pcapng file.
pub(super) struct PcapNg {
    order: Order,
    /// Interfaces of this section.
    locals: Vec<Local>,
    /// Index in the file of the section's first interface.
    first: u32,
    /// Time of the packet before, 0 where the file has none; None where packets before were left out.
    before: Option<Nanos>,
}

/// The version in the section header that `begin` starts with.
pub(super) fn version(begin: &[u8]) -> Option<(u16, u16)> {
    let order = byte_order(begin)?;
    (begin.len() >= 16).then(|| (order.u16(begin, 12), order.u16(begin, 14)))
}

fn byte_order(begin: &[u8]) -> Option<Order> {
    [Order::Little, Order::Big].into_iter().find(|order| order.u32(begin, 8) == BYTE_ORDER)
}

impl PcapNg {
    /// Reads the section header at the beginning of the file, all or nothing: where it is bad, nothing is
    /// consumed but what follows its version.
    pub(super) fn new(window: &mut Window, notes: &mut Notes) -> Result<Self, Stop> {
        let (order, locals, before) = (Order::Little, Vec::new(), Some(Nanos(0)));
        let mut ng = Self { order, locals, first: 0, before };
        ng.section(window, 0, notes)?;
        Ok(ng)
    }

    /// Returns the signs by which its blocks can be told.
    pub(super) fn shape(&self) -> Shape {
        Shape::Blocks { order: self.order }
    }

    /// Goes on at a later packet.
    pub(super) fn leave_out(&mut self) {
        self.before = None;
    }

    /// Writes what has been said of packets to come, in bytes.
    pub(super) fn describe(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.order == Order::Big));
        out.extend_from_slice(&self.first.to_le_bytes());
        for Local { clock, link, snap_len } in &self.locals {
            out.extend_from_slice(&clock.per_second.to_le_bytes());
            out.extend_from_slice(&clock.offset.to_le_bytes());
            out.extend_from_slice(format!("{link:?}").as_bytes());
            out.extend_from_slice(&snap_len.to_le_bytes());
        }
    }

    /// Bytes that have to be there before the next block can be taken in, or told to be damaged; 0 where they
    /// are.
    pub(super) fn lacks(&self, unread: &[u8]) -> usize {
        if unread.len() < 12 {
            return 12;
        }
        let section = self.order.u32(unread, 0) == SECTION;
        let order = if section { byte_order(unread) } else { Some(self.order) };
        let len = order.map_or(0, |order| order.u32(unread, 4));
        if len > BLOCK_MAX || len as usize <= unread.len() { 0 } else { len as usize }
    }

    /// Takes in the next block, if it is no packet; returns false if it is one, or there is none.
    pub(super) fn pass(
        &mut self,
        window: &mut Window,
        interfaces: &mut Vec<Interface>,
        notes: &mut Notes,
    ) -> Result<bool, Stop> {
        if !window.want(12)? {
            return Ok(false);
        }
        let kind = self.order.u32(window.unread(), 0);
        if [PACKET, OLD_PACKET, SIMPLE_PACKET].contains(&kind) {
            return Ok(false);
        }
        self.step(window, interfaces, notes).map(|_| true)
    }

    /// Cuts the next packet; takes in what comes before it.
    // By itself, so that loops of readers stay short.
    #[inline(never)]
    pub(super) fn next(
        &mut self,
        window: &mut Window,
        interfaces: &mut Vec<Interface>,
        notes: &mut Notes,
    ) -> Result<Cut, Stop> {
        loop {
            if let Some(cut) = self.block(window, interfaces, notes)? {
                return Ok(cut);
            }
        }
    }

    /// Takes in the blocks that begin before `end`, a byte of the file, and hands their packets to `each`:
    /// those that [`PcapNg::next`] gives one by one. They stay in registers on their way.
    #[inline]
    pub(super) fn each(
        &mut self,
        window: &mut Window,
        end: u64,
        (interfaces, notes): (&mut Vec<Interface>, &mut Notes),
        mut each: impl FnMut(&Window, Cut),
    ) -> Result<(), Stop> {
        while window.position() < end {
            if let Some(cut) = self.block(window, interfaces, notes)? {
                each(window, cut);
            }
        }
        Ok(())
    }

    /// Takes in the next block; returns its packet, if it has one.
    #[inline(always)]
    fn block(
        &mut self,
        window: &mut Window,
        interfaces: &mut Vec<Interface>,
        notes: &mut Notes,
    ) -> Result<Option<Cut>, Stop> {
        // The order is a constant in either call, and no field asks for it.
        let ready = match self.order {
            Order::Little => self.ready(Order::Little, window, notes),
            Order::Big => self.ready(Order::Big, window, notes),
        };
        let cut = match ready {
            Some(cut) => Some(cut),
            None => self.step(window, interfaces, notes)?,
        };
        if let Some(cut) = &cut {
            self.before = Some(cut.time);
        }
        Ok(cut)
    }

    /// The next block, if it is an enhanced packet block, sound, and all of it in the window.
    #[inline(always)]
    fn ready(&self, order: Order, window: &mut Window, notes: &mut Notes) -> Option<Cut> {
        let unread = window.unread();
        let head = unread.first_chunk::<{ PACKET_MIN as usize }>()?;
        let (kind, len, captured) = (order.u32(head, 0), order.u32(head, 4), order.u32(head, 20));
        if kind != PACKET || len < PACKET_MIN || !len.is_multiple_of(4) || captured > most_captured(len) {
            return None;
        }
        if order.u32(unread.get(..len as usize)?.last_chunk::<4>()?, 0) != len {
            return None;
        }
        let id = order.u32(head, 8);
        let local = self.locals.get(id as usize)?;
        Some(self.cut(order, window, id, local, notes))
    }

    /// Cuts the packet of a block in the window, of interface `id`. All lengths in it have been checked.
    #[inline(always)]
    fn cut(&self, order: Order, window: &mut Window, id: u32, local: &Local, notes: &mut Notes) -> Cut {
        let block = window.unread();
        let (len, captured) = (order.u32(block, 4) as usize, order.u32(block, 20) as usize);
        let stamp = u64::from(order.u32(block, 12)) << 32 | u64::from(order.u32(block, 16));
        let original_len = order.u32(block, 24);
        let (time, clamped) = local.clock.time(stamp);
        notes.clamped_times += u64::from(clamped);
        let data = window.take(len, 28, 28 + captured);
        Cut { time, interface: self.first + id, link: local.link, original_len, data }
    }

    /// Takes in one block of any kind, step by step; returns its packet, if it has one.
    #[inline(never)]
    fn step(
        &mut self,
        window: &mut Window,
        interfaces: &mut Vec<Interface>,
        notes: &mut Notes,
    ) -> Result<Option<Cut>, Stop> {
        if !window.want(12)? {
            return Err(window.end("a block header"));
        }
        let (kind, len) = (self.order.u32(window.unread(), 0), self.order.u32(window.unread(), 4));
        match kind {
            SECTION => {
                let first = u32::try_from(interfaces.len()).unwrap_or(u32::MAX);
                self.section(window, first, notes)?;
            }
            INTERFACE => {
                self.whole(window, len, 20)?;
                self.interface(window, len, interfaces)?;
            }
            PACKET | OLD_PACKET => {
                self.whole(window, len, PACKET_MIN)?;
                return self.packet(window, kind, len, notes).map(Some);
            }
            SIMPLE_PACKET => {
                self.whole(window, len, 16)?;
                return self.simple_packet(window, len, notes).map(Some);
            }
            _ => {
                self.check_len(window, len, 12)?;
                self.pass_over(window, len)?;
                notes.skipped_blocks += 1;
            }
        }
        Ok(None)
    }

    /// An enhanced packet block, or its predecessor, which differs in having 16 bits of interface and 16 of
    /// drops.
    fn packet(&self, window: &mut Window, kind: u32, len: u32, notes: &mut Notes) -> Result<Cut, Stop> {
        let block = window.unread();
        let id = if kind == PACKET { self.order.u32(block, 8) } else { u32::from(self.order.u16(block, 8)) };
        let captured = self.order.u32(block, 20);
        if captured > most_captured(len) {
            let what = format!("a packet that claims {captured} captured bytes in a block of {len}");
            return Err(damage(window, what));
        }
        let Some(local) = self.locals.get(id as usize) else { return Err(self.stranger(window, id)) };
        Ok(self.cut(self.order, window, id, local, notes))
    }

    /// A section header: byte order, and no interfaces.
    fn section(&mut self, window: &mut Window, first: u32, notes: &mut Notes) -> Result<(), Stop> {
        if !window.want(SECTION_MIN)? {
            return Err(window.cut(window.position(), "a section header"));
        }
        let Some(order) = byte_order(window.unread()) else {
            return Err(damage(window, "a section header without the byte-order mark 1a2b3c4d".to_owned()));
        };
        self.order = order;
        if let Some((major, minor)) = version(window.unread())
            && major != 1
        {
            return Err(damage(window, format!("a section of pcapng version {major}.{minor}, not 1.x")));
        }
        let len = order.u32(window.unread(), 4);
        self.check_len(window, len, SECTION_MIN as u32)?;
        self.pass_over(window, len)?;
        self.locals.clear();
        self.first = first;
        notes.sections += 1;
        Ok(())
    }

    /// An interface description, whole in the window.
    fn interface(
        &mut self,
        window: &mut Window,
        len: u32,
        interfaces: &mut Vec<Interface>,
    ) -> Result<(), Stop> {
        if interfaces.len() >= INTERFACES_MAX {
            return Err(damage(window, format!("more than {INTERFACES_MAX} interfaces")));
        }
        let block = window.unread();
        let (mut link_number, snap_len) = (u32::from(self.order.u16(block, 8)), self.order.u32(block, 12));
        let mut options = block.get(16..len as usize - 4).unwrap_or_default();
        let (mut resolution, mut offset, mut name) = (6, 0, None);
        while options.len() >= 4 {
            let (code, value_len) = (self.order.u16(options, 0), usize::from(self.order.u16(options, 2)));
            if code == 0 {
                break;
            }
            let Some(value) = options.get(4..4 + value_len) else {
                return Err(damage(window, format!("an interface whose option {code} runs past its block")));
            };
            match (code, value) {
                (IF_NAME, _) => name = Some(text(value)),
                (IF_TSRESOL, [exponent, ..]) => resolution = *exponent,
                (IF_FCSLEN, [len, ..]) => link_number = with_fcs(link_number, *len),
                (IF_TSOFFSET, [_, _, _, _, _, _, _, _, ..]) => offset = self.order.i64(value, 0),
                _ => {}
            }
            options = options.get(4 + value_len.next_multiple_of(4)..).unwrap_or_default();
        }
        let interface = Interface { link_number, snap_len, name };
        self.locals.push(Local { clock: Clock::new(resolution, offset), link: interface.link(), snap_len });
        interfaces.push(interface);
        window.take(len as usize, 0, 0);
        Ok(())
    }

    /// A simple packet block: of the first interface, without a time (it has that of the packet before), its
    /// captured length only implied.
    fn simple_packet(&mut self, window: &mut Window, len: u32, notes: &mut Notes) -> Result<Cut, Stop> {
        let Some(local) = self.locals.first() else { return Err(self.stranger(window, 0)) };
        let original_len = self.order.u32(window.unread(), 8);
        let snap_len = if local.snap_len == 0 { original_len } else { local.snap_len };
        let captured = original_len.min(len - 16).min(snap_len).min(MAX_CAPTURED);
        let data = window.take(len as usize, 12, 12 + captured as usize);
        notes.without_time += 1;
        notes.lacks_time |= self.before.is_none();
        let time = self.before.unwrap_or(Nanos(0));
        Ok(Cut { time, interface: self.first, link: local.link, original_len, data })
    }

    /// Makes a block available whole; checks both its lengths.
    fn whole(&self, window: &mut Window, len: u32, least: u32) -> Result<(), Stop> {
        self.check_len(window, len, least)?;
        if len > BLOCK_MAX {
            return Err(damage(
                window,
                format!("a block that claims {len} bytes (the most there can be: {BLOCK_MAX})"),
            ));
        }
        if !window.want(len as usize)? {
            return Err(window.cut(window.position(), &format!("a block of {len} bytes")));
        }
        let again = self.order.u32(window.unread(), len as usize - 4);
        if again != len {
            return Err(mismatch(window.position(), len, again));
        }
        Ok(())
    }

    fn check_len(&self, window: &Window, len: u32, least: u32) -> Result<(), Stop> {
        if len < least {
            return Err(damage(
                window,
                format!("a block that claims {len} bytes (its kind has {least} at least)"),
            ));
        }
        if !len.is_multiple_of(4) {
            return Err(damage(window, format!("a block that claims {len} bytes (not a multiple of 4)")));
        }
        Ok(())
    }

    /// Passes over a block without keeping it; checks the length at its end.
    fn pass_over(&self, window: &mut Window, len: u32) -> Result<(), Stop> {
        let byte = window.position();
        if !window.skip(u64::from(len) - 4)? || !window.want(4)? {
            return Err(window.cut(byte, &format!("a block of {len} bytes")));
        }
        let again = self.order.u32(window.unread(), 0);
        window.take(4, 0, 0);
        if again == len { Ok(()) } else { Err(mismatch(byte, len, again)) }
    }

    #[cold]
    fn stranger(&self, window: &Window, id: u32) -> Stop {
        damage(
            window,
            format!("a packet of interface {id}, and the section has described {}", self.locals.len()),
        )
    }
}

/// A link number with the length of the frame check sequence where a pcap file has it: in the top 4 bits, in
/// units of 16 bits, with bit 26 set. A length that has no place there is not kept.
///
/// The specification counts bits, but its example is 4, and so there are writers that count bytes. No check
/// sequence has 2 or 4 bits, and none has 16 or 32 bytes.
fn with_fcs(link_number: u32, len: u8) -> u32 {
    let units = match len {
        2 | 4 => len / 2,
        bits if bits.is_multiple_of(16) => bits / 16,
        _ => return link_number,
    };
    link_number & 0xffff | 1 << 26 | u32::from(units) << 28
}

/// Text of an option: UTF-8, which may end with a zero. No more of it is ever kept than a name may have.
fn text(value: &[u8]) -> String {
    let value = value.split(|&byte| byte == 0).next().unwrap_or_default();
    // A character that is cut in half becomes one of replacement, which has three bytes: behind the end.
    let begin = value.get(..value.len().min(MAX_INTERFACE_NAME + 4)).unwrap_or_default();
    let text = String::from_utf8_lossy(begin);
    String::from(text.get(..text.floor_char_boundary(MAX_INTERFACE_NAME)).unwrap_or_default())
}

#[cold]
fn damage(window: &Window, what: String) -> Stop {
    Stop::Damage(Damage { byte: window.position(), what })
}

/// The most captured bytes that a packet block of `len` bytes, at least [`PACKET_MIN`], has room for.
#[inline]
fn most_captured(len: u32) -> u32 {
    (len - PACKET_MIN).min(MAX_CAPTURED)
}

#[cold]
fn mismatch(byte: u64, len: u32, again: u32) -> Stop {
    Stop::Damage(Damage {
        byte,
        what: format!("a block whose length is {len} at its begin and {again} at its end"),
    })
}
