//! The instructions by which the XDP program reads the headers of a packet, as
//! [`classify`](slipstream_wire::classify()) does: fields of the headers go to places on the program's stack,
//! where the [prefilter](super::prefilter) compares them.
//!
//! The kernel's verifier follows each way through a program, with all that it knows of values, and gives up
//! after a million instructions. So the ways through the headers end alike: what lies on the stack is a
//! number that it knows nothing of in every case. Where it would know one, R9 takes part, which is zero
//! without the verifier knowing.

//!
//! Without `CAP_PERFMON` it allows no sum of a place in the packet and a number that isn't known beforehand.
//! So headers of unknown length are skipped in another way: the kernel is asked to have the packet begin
//! later by as much as they are long, which brings what follows to a known place, and then to have it begin
//! where it did. Packets without IPv4 options and IPv6 extension headers do without.

use slipstream_wire::Flags;

use super::instruction::Comparison::{Equal, Greater, Less, NotEqual};
use super::instruction::Operation::{Add, And, Multiply, Or, ShiftLeft, ShiftRight, Subtract, Xor};
use super::instruction::Register::{self, R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};
use super::instruction::{
    Assembly, Instruction, Label, add, call, change, change_by, copy, exit, from_network16, load8, load16,
    load32, load64, set, set64, store64,
};
use super::program::{field, helper};

/// VLAN tags that are read at most.
pub(super) const TAGS: usize = 2;
/// IPv6 extension headers that are walked at most.
pub(super) const EXTENSIONS: usize = 8;
/// In the place of a VLAN id, where there is no tag.
const NO_TAG: i32 = 0x1000;

/// The place of a field on the stack, of 64 bits: to the verifier, registers that are kept whole are alike
/// whichever way they came there, and parts of registers are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(u8);

impl Slot {
    /// Its place, in bytes from the end of the stack.
    pub(super) const fn offset(self) -> i16 {
        -8 * (self.0 as i16 + 1)
    }
}

/// Some of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slots(u32);

impl Slots {
    pub(super) fn add(&mut self, slot: Slot) {
        self.0 |= 1 << slot.0;
    }

    pub(super) fn has(self, slot: Slot) -> bool {
        self.0 >> slot.0 & 1 == 1
    }
}

/// The places of all fields. An address is words of 32 bits as they are in the packet, one of IPv4 the first
/// word; other fields are numbers.
pub(super) mod slot {
    use super::Slot;

    /// Bytes by which the packet begins later than it came.
    pub(super) const SHIFT: Slot = Slot(0);
    /// 1 of a packet that has more headers than are read.
    pub(super) const UNREAD: Slot = Slot(1);
    pub(in super::super) const PROTOCOL: Slot = Slot(2);
    /// As [`Flags`](slipstream_wire::Flags).
    pub(in super::super) const FLAGS: Slot = Slot(3);
    pub(in super::super) const SRC_PORT: Slot = Slot(4);
    pub(in super::super) const DST_PORT: Slot = Slot(5);
    pub(in super::super) const TCP_FLAGS: Slot = Slot(6);
    pub(in super::super) const DSCP: Slot = Slot(7);
    pub(in super::super) const ECN: Slot = Slot(8);
    /// VLAN ids, or more than there are.
    pub(in super::super) const TAGS: [Slot; super::TAGS] = [Slot(9), Slot(10)];
    pub(in super::super) const LENGTH: Slot = Slot(11);
    pub(in super::super) const SRC: [Slot; 4] = [Slot(12), Slot(13), Slot(14), Slot(15)];
    pub(in super::super) const DST: [Slot; 4] = [Slot(16), Slot(17), Slot(18), Slot(19)];
    /// Their number.
    pub(super) const ALL: u8 = 20;
}

/// IPv6 extension headers below 64, as bits: hop-by-hop options, routing, fragment, authentication,
/// destination options.
const EXTENSION_BITS: u64 = 1 | 1 << 43 | 1 << 44 | 1 << 51 | 1 << 60;
const MOBILITY: u32 = 135;
/// An Ethernet header without tags, and a tag.
const ETHERNET: i16 = 14;
const TAG: i16 = 4;
/// IP headers without options and extension headers.
const IPV4: i16 = 20;
const IPV6: i16 = 40;
/// `XDP_ABORTED`: the packet is lost, and the kernel counts it.
const ABORTED: i32 = 0;
const FRAGMENT: i32 = 44;
const AUTHENTICATION: i32 = 51;
const TCP: u32 = 6;
const UDP: u32 = 17;
const SCTP: u32 = 132;

/// A number of 16 bits as it is read from a packet without regard to the order of its bytes.
const fn network16(value: u16) -> i32 {
    u16::from_ne_bytes(value.to_be_bytes()) as i32
}

/// The labels to which the ways through the headers lead.
#[derive(Clone, Copy)]
struct Ends {
    /// All that there is was read.
    done: Label,
    /// There is more than is read, or the packet can't be shifted.
    unread: Label,
    /// The packet has no IP header. It must not be shifted.
    kernel: Label,
}

/// Reads these fields of the packet; of one that has no IP header, or more than is read, goes on at `kernel`.
/// R6 is the context, before and after.
pub(super) fn read(code: &mut Assembly, mut fields: Slots, kernel: Label) {
    [slot::SHIFT, slot::UNREAD, slot::PROTOCOL].into_iter().for_each(|slot| fields.add(slot));
    let ends = Ends { done: code.label(), unread: code.label(), kernel };
    let networks = [(); TAGS + 1].map(|()| code.label());
    Reader { code, fields, ends }.read(networks);
}
/// The program under way, as far as it reads headers.
struct Reader<'a> {
    code: &'a mut Assembly,
    /// The fields that somebody asks for.
    fields: Slots,
    ends: Ends,
}

impl Reader<'_> {
    /// `networks` are the labels of IP headers behind each number of tags.
    fn read(&mut self, networks: [Label; TAGS + 1]) {
        let ends = self.ends;
        self.begin();
        self.link_layer(networks);
        for (tags, network) in networks.into_iter().enumerate().rev() {
            self.code.place(network);
            let at = ETHERNET + TAG * tags as i16;
            let six = self.code.label();
            self.code.jump_if(R3, Equal, network16(0x86dd) as u32, six);
            self.code.jump_if(R3, NotEqual, network16(0x0800) as u32, ends.kernel);
            self.ipv4(at);
            self.code.place(six);
            self.ipv6(at);
        }
        self.code.place(ends.unread);
        self.keep_number(slot::UNREAD, 1);
        self.code.place(ends.done);
        self.shift_back();
        self.code.put([load64(R1, R10, slot::UNREAD.offset()), change_by(R1, Xor, R9)]);
        self.code.jump_if(R1, NotEqual, 0, ends.kernel);
    }

    /// `slot = from`, if somebody asks for it.
    fn keep(&mut self, slot: Slot, from: Register) {
        if self.fields.has(slot) {
            self.code.put([store64(R10, slot.offset(), from)]);
        }
    }

    /// `slot = number`. R1 is overwritten.
    fn keep_number(&mut self, slot: Slot, number: i32) {
        if self.fields.has(slot) {
            self.code.put([set(R1, number), change_by(R1, Xor, R9), store64(R10, slot.offset(), R1)]);
        }
    }

    /// `slot =` 32 bits of the packet from this place on, as they are. R1 is overwritten.
    fn keep_word(&mut self, slot: Slot, at: i16) {
        if self.fields.has(slot) {
            self.code.put([load32(R1, R2, at), store64(R10, slot.offset(), R1)]);
        }
    }

    /// R9 is the zero, and every field has a value; R2 is where the packet begins, R8 where it ends.
    fn begin(&mut self) {
        self.code.put([load32(R9, R6, field::QUEUE), copy(R1, R9), change(R1, Xor, -1)]);
        self.code.put([change_by(R9, And, R1)]);
        (0..slot::ALL).for_each(|slot| self.keep(Slot(slot), R9));
        slot::TAGS.into_iter().for_each(|tag| self.keep_number(tag, NO_TAG));
        if self.fields.has(slot::LENGTH) {
            self.code.put([copy(R1, R6), call(helper::GET_BUFF_LEN)]);
            self.keep(slot::LENGTH, R0);
        }
        self.code.put(BOUNDS);
    }

    /// Goes on at `otherwise` if the packet has fewer bytes than this. R1 is overwritten.
    fn need(&mut self, bytes: i16, otherwise: Label) {
        self.code.put([copy(R1, R2), add(R1, bytes.into())]);
        self.code.jump_if_greater(R1, R8, otherwise);
    }

    /// The Ethernet header and VLAN tags. Goes on at the label for the number of tags; R3 is the type of what
    /// follows them.
    fn link_layer(&mut self, networks: [Label; TAGS + 1]) {
        let kernel = self.ends.kernel;
        self.need(ETHERNET, kernel);
        self.code.put([load16(R3, R2, ETHERNET - 2)]);
        for (at, (tag, network)) in
            (ETHERNET..).step_by(TAG as usize).zip(slot::TAGS.into_iter().zip(networks))
        {
            let tagged = self.code.label();
            self.code.jump_if(R3, Equal, network16(0x8100) as u32, tagged);
            self.code.jump_if(R3, Equal, network16(0x88a8) as u32, tagged);
            self.code.jump_if(R3, NotEqual, network16(0x9100) as u32, network);
            self.code.place(tagged);
            self.need(at + TAG, kernel);
            self.code.put([load16(R4, R2, at), from_network16(R4), change(R4, And, 0xfff)]);
            self.keep(tag, R4);
            self.code.put([load16(R3, R2, at + 2)]);
        }
    }

    /// Keeps DSCP and ECN, of which R1 has the eight bits. R0 is overwritten.
    fn traffic_class(&mut self) {
        self.code.put([copy(R0, R1), change(R0, ShiftRight, 2), change(R1, And, 3)]);
        self.keep(slot::DSCP, R0);
        self.keep(slot::ECN, R1);
    }

    /// Has the packet begin later by R7 bytes. If it is too short for that, it stays as it is, and the
    /// program goes on at `ends.done`. R2, R8 are new, R3 is the protocol.
    fn shift(&mut self) {
        // Metadata before the packet would be moved with its beginning, over its first bytes.
        self.code.put([load32(R1, R6, field::DATA_META), load32(R2, R6, field::DATA)]);
        self.code.jump_if_less(R1, R2, self.ends.unread);
        self.code.put([copy(R1, R6), copy(R2, R7), call(helper::ADJUST_HEAD)]);
        self.code.jump_if(R0, NotEqual, 0, self.ends.done);
        self.code.put([load64(R1, R10, slot::SHIFT.offset()), change_by(R1, Add, R7)]);
        self.keep(slot::SHIFT, R1);
        self.code.put(BOUNDS);
        self.code.put([load64(R3, R10, slot::PROTOCOL.offset())]);
    }

    /// Has the packet begin where it did when it came.
    fn shift_back(&mut self) {
        let unshifted = self.code.label();
        self.code.put([load64(R7, R10, slot::SHIFT.offset()), change_by(R7, Xor, R9)]);
        self.code.jump_if(R7, Equal, 0, unshifted);
        self.code.put([copy(R1, R6), set(R2, 0), change_by(R2, Subtract, R7), call(helper::ADJUST_HEAD)]);
        self.code.jump_if(R0, Equal, 0, unshifted);
        // It began there before, so that this can't be.
        self.code.put([set(R0, ABORTED), exit()]);
        self.code.place(unshifted);
    }

    /// The IPv4 header at this place, and what follows.
    fn ipv4(&mut self, at: i16) {
        let Ends { done, kernel, .. } = self.ends;
        let (whole, transport) = (self.code.label(), self.code.label());
        self.need(at + IPV4, kernel);
        self.code.put([load8(R7, R2, at), copy(R1, R7), change(R1, ShiftRight, 4)]);
        self.code.jump_if(R1, NotEqual, 4, kernel);
        self.code.put([change(R7, And, 15), change(R7, ShiftLeft, 2)]);
        self.code.jump_if(R7, Less, IPV4 as u32, kernel);
        self.code.put([load8(R1, R2, at + 1)]);
        self.traffic_class();
        let ([src, ..], [dst, ..]) = (slot::SRC, slot::DST);
        self.keep_word(src, at + 12);
        self.keep_word(dst, at + 16);
        self.code.put([load8(R3, R2, at + 9)]);
        self.keep(slot::PROTOCOL, R3);
        // More fragments follow, or the offset is above 0.
        self.code.put([load16(R1, R2, at + 6), change(R1, And, network16(0x3fff))]);
        self.code.jump_if(R1, Equal, 0, whole);
        self.keep_number(slot::FLAGS, Flags::FRAGMENT.into());
        self.code.jump(done);
        self.code.place(whole);
        self.code.jump_if(R7, Equal, IPV4 as u32, transport);
        self.code.put([add(R7, -i32::from(IPV4))]);
        self.shift();
        self.code.place(transport);
        self.ports(at + IPV4, 0);
    }

    /// The IPv6 header at this place, and what follows.
    fn ipv6(&mut self, at: i16) {
        let Ends { done, kernel, unread } = self.ends;
        let (transport, fragment, flags) = (self.code.label(), self.code.label(), Flags::IPV6);
        self.need(at + IPV6, kernel);
        self.code.put([load8(R1, R2, at), change(R1, ShiftRight, 4)]);
        self.code.jump_if(R1, NotEqual, 6, kernel);
        self.code.put([load16(R1, R2, at), from_network16(R1)]);
        self.code.put([change(R1, ShiftRight, 4), change(R1, And, 0xff)]);
        self.traffic_class();
        for (slot, offset) in slot::SRC.into_iter().chain(slot::DST).zip((at + 8..).step_by(4)) {
            self.keep_word(slot, offset);
        }
        self.keep_number(slot::FLAGS, flags.into());
        self.code.put([load8(R3, R2, at + 6)]);
        self.keep(slot::PROTOCOL, R3);
        for walked in 0..=EXTENSIONS {
            let extension = self.code.label();
            self.code.jump_if(R3, Equal, MOBILITY, extension);
            self.code.jump_if(R3, Greater, 63, transport);
            self.code.put(set64(R1, EXTENSION_BITS));
            self.code.put([change_by(R1, ShiftRight, R3), change(R1, And, 1)]);
            self.code.jump_if(R1, Equal, 0, transport);
            self.code.place(extension);
            self.need(at + IPV6 + 8, done);
            if walked < EXTENSIONS {
                self.extension_header(at + IPV6, fragment);
                self.shift();
            }
        }
        self.code.jump(unread);
        self.code.place(fragment);
        self.keep_number(slot::FLAGS, (flags | Flags::FRAGMENT).into());
        self.code.jump(done);
        self.code.place(transport);
        self.ports(at + IPV6, flags);
    }

    /// The extension header of the kind R3, of at least eight bytes, at this place; R7 is its length then. A
    /// fragment of several goes on at `fragment`.
    ///
    /// All kinds take the same way, so that the verifier doesn't follow every sequence of kinds: the length
    /// is a sum of products with 0 or 1.
    fn extension_header(&mut self, at: i16, fragment: Label) {
        self.code.put([load8(R1, R2, at)]);
        self.keep(slot::PROTOCOL, R1);
        self.code.put(is(R0, FRAGMENT));
        self.code.put([load16(R1, R2, at + 2), change(R1, And, network16(0xfff9))]);
        self.code.put([change_by(R1, Multiply, R0)]);
        self.code.jump_if(R1, NotEqual, 0, fragment);
        self.code.put(is(R1, AUTHENTICATION));
        // Of an authentication header it is (R7 + 2) * 4, of a fragment header 8, and else (R7 + 1) * 8,
        // which is (R7 + 2) * 4 + R7 * 4. R4 is R7 * 4, unless it is an authentication header.
        self.code.put([load8(R7, R2, at + 1), copy(R4, R7), change(R4, ShiftLeft, 2)]);
        self.code.put([change(R1, Xor, 1), change_by(R4, Multiply, R1)]);
        self.code.put([change(R7, ShiftLeft, 2), add(R7, 8), change_by(R7, Add, R4)]);
        self.code.put([copy(R1, R0), change(R1, Xor, 1), change_by(R7, Multiply, R1)]);
        self.code.put([change(R0, ShiftLeft, 3), change_by(R7, Or, R0)]);
    }

    /// Reads the transport header of the protocol R3 at this place, and goes on at `ends.done`;
    /// `flags` are the packet's other [`Flags`].
    fn ports(&mut self, at: i16, flags: u8) {
        let (done, has_ports) = (self.ends.done, self.code.label());
        self.code.jump_if(R3, Equal, TCP, has_ports);
        self.code.jump_if(R3, Equal, UDP, has_ports);
        self.code.jump_if(R3, NotEqual, SCTP, done);
        self.code.place(has_ports);
        self.need(at + 4, done);
        for (slot, offset) in [(slot::SRC_PORT, at), (slot::DST_PORT, at + 2)] {
            self.code.put([load16(R1, R2, offset), from_network16(R1)]);
            self.keep(slot, R1);
        }
        self.keep_number(slot::FLAGS, (flags | Flags::PORTS).into());
        self.code.jump_if(R3, NotEqual, TCP, done);
        self.need(at + 14, done);
        self.code.put([load8(R1, R2, at + 13)]);
        self.keep(slot::TCP_FLAGS, R1);
        self.keep_number(slot::FLAGS, (flags | Flags::PORTS | Flags::TCP).into());
        self.code.jump(done);
    }
}

/// R2 is where the packet begins, R8 where it ends.
const BOUNDS: [Instruction; 2] = [load32(R2, R6, field::DATA), load32(R8, R6, field::DATA_END)];

/// `to = 1` if R3 is this number, else 0.
fn is(to: Register, number: i32) -> [Instruction; 4] {
    [copy(to, R3), change(to, Xor, number), change(to, Subtract, 1), change(to, ShiftRight, 63)]
}
