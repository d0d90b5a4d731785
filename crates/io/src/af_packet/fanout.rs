//! Several sockets of one interface, each of which gets a share of its packets (`PACKET_FANOUT`): which one
//! is decided by a program for the kernel's classic packet filter.
//!
//! The program's hash is symmetric: both directions of a connection come to the same socket. It goes by the
//! addresses, and by the ports of TCP, UDP and SCTP where the packet is no fragment, so that all fragments of
//! a datagram come together. Packets that are not IP come to the first socket. So do those with two VLAN
//! tags; one tag doesn't matter, since Linux takes it out before.

use crate::spread::{MIX, WITH_PORTS};
use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX,
    BPF_LSH,
};
use libc::{
    BPF_MEM, BPF_MISC, BPF_MUL, BPF_RET, BPF_RSH, BPF_ST, BPF_TAX, BPF_W, BPF_X, BPF_XOR, sock_filter,
};

/// From here on offsets are those from the network header.
const NETWORK: u32 = -0x10_0000_i32 as u32;
/// Offset at which the kernel shows the EtherType, whatever stands before it.
const PROTOCOL: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;
/// Returns the accumulator.
const BPF_A: u32 = 0x10;

/// A program of one instruction, which takes no packet.
pub(super) const NOTHING: sock_filter = plain(BPF_RET | BPF_K, 0);

const fn plain(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn jump(code: u32, k: u32, jt: usize, jf: usize) -> sock_filter {
    sock_filter { code: (BPF_JMP | code | BPF_K) as u16, jt: jt as u8, jf: jf as u8, k }
}

/// Loads from so many bytes behind the beginning of the network header.
fn load(size: u32, offset: u32) -> sock_filter {
    plain(BPF_LD | size | BPF_ABS, NETWORK.wrapping_add(offset))
}

/// `M[0]` = both addresses, word by word, combined so that their order doesn't matter.
fn addresses(from: u32, words: u32) -> Vec<sock_filter> {
    let mut all = vec![load(BPF_W, from)];
    for word in 1..2 * words {
        all.extend([
            plain(BPF_MISC | BPF_TAX, 0),
            load(BPF_W, from + 4 * word),
            plain(BPF_ALU | BPF_XOR | BPF_X, 0),
        ]);
    }
    all.push(plain(BPF_ST, 0));
    all
}

/// The program: its result modulo the number of sockets says which.
pub(super) fn program() -> Vec<sock_filter> {
    // `M[0]` is what comes of it, mixed, so that few bits of difference spread.
    let end = [
        plain(BPF_LD | BPF_MEM, 0),
        plain(BPF_ALU | BPF_MUL | BPF_K, MIX),
        plain(BPF_ALU | BPF_RSH | BPF_K, 12),
        plain(BPF_RET | BPF_A, 0),
    ];
    // With the length of the IP header in X: both ports, mixed into `M[0]`.
    let ports = [
        plain(BPF_LD | BPF_H | BPF_IND, NETWORK),
        plain(BPF_ST, 1),
        plain(BPF_LD | BPF_H | BPF_IND, NETWORK.wrapping_add(2)),
        plain(BPF_LDX | BPF_MEM, 1),
        plain(BPF_ALU | BPF_XOR | BPF_X, 0),
        plain(BPF_ALU | BPF_MUL | BPF_K, MIX),
        plain(BPF_LDX | BPF_MEM, 0),
        plain(BPF_ALU | BPF_XOR | BPF_X, 0),
        plain(BPF_ST, 0),
    ];
    // From a test to the ports, and past them, `behind` instructions lying between.
    let tests = |at: u32, behind: usize| -> Vec<sock_filter> {
        let mut all = vec![load(BPF_B, at)];
        for (n, protocol) in WITH_PORTS.into_iter().enumerate() {
            let left = WITH_PORTS.len() - 1 - n;
            all.push(jump(BPF_JEQ, protocol.into(), left, if left == 0 { behind + ports.len() } else { 0 }));
        }
        all
    };

    let mut v6 = addresses(8, 4);
    v6.extend(tests(6, 1));
    v6.push(plain(BPF_LDX | BPF_W, 40));

    let header = [
        load(BPF_B, 0),
        plain(BPF_ALU | BPF_AND | BPF_K, 15),
        plain(BPF_ALU | BPF_LSH | BPF_K, 2),
        plain(BPF_MISC | BPF_TAX, 0),
    ];
    // Behind the part for IPv4 lies that for IPv6, which ends at the ports.
    let over = 1 + v6.len();
    let mut v4 = addresses(12, 1);
    v4.push(load(BPF_H, 6));
    let rest = tests(9, header.len() + over);
    v4.push(jump(BPF_JSET, 0x3fff, rest.len() + header.len() + over + ports.len(), 0));
    v4.extend(rest);
    v4.extend(header);
    v4.push(plain(BPF_JMP, v6.len() as u32));

    let mut all = vec![
        plain(BPF_LD | BPF_W | BPF_ABS, PROTOCOL),
        jump(BPF_JEQ, 0x86dd, 2 + v4.len(), 0),
        jump(BPF_JEQ, 0x0800, 1, 0),
        plain(BPF_RET | BPF_K, 0),
    ];
    all.extend(v4);
    all.extend(v6);
    all.extend(ports);
    all.extend(end);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A machine for classic programs, as far as this one goes; `packet` begins at the network header.
    fn run(program: &[sock_filter], kind: u32, packet: &[u8]) -> Option<u32> {
        let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; 16], 0usize);
        let bytes = |offset: u32, n: usize| {
            let start = offset.wrapping_sub(NETWORK) as usize;
            packet.get(start..start + n).map(|b| b.iter().fold(0, |sum, b| sum << 8 | u32::from(*b)))
        };
        for _ in 0..1000 {
            let i = program[at];
            at += 1;
            let (code, k) = (u32::from(i.code), i.k);
            let size = [4, 2, 1][(code >> 3 & 3) as usize];
            match code & 7 {
                BPF_LD => match code & 0xe0 {
                    _ if k == PROTOCOL => a = kind,
                    BPF_ABS => a = bytes(k, size)?,
                    BPF_IND => a = bytes(k.wrapping_add(x), size)?,
                    BPF_MEM => a = memory[k as usize],
                    other => panic!("load {other:#x}"),
                },
                BPF_LDX => x = if code & 0xe0 == BPF_MEM { memory[k as usize] } else { k },
                BPF_ST => memory[k as usize] = a,
                BPF_ALU => {
                    let by = if code & BPF_X != 0 { x } else { k };
                    a = match code & 0xf0 {
                        BPF_XOR => a ^ by,
                        BPF_AND => a & by,
                        BPF_LSH => a << by,
                        BPF_RSH => a >> by,
                        BPF_MUL => a.wrapping_mul(by),
                        other => panic!("arithmetic {other:#x}"),
                    };
                }
                BPF_JMP => {
                    at += match code & 0xf0 {
                        0 => k as usize,
                        BPF_JEQ => usize::from(if a == k { i.jt } else { i.jf }),
                        BPF_JSET => usize::from(if a & k != 0 { i.jt } else { i.jf }),
                        other => panic!("jump {other:#x}"),
                    };
                }
                BPF_RET => return Some(if code & BPF_A != 0 { a } else { k }),
                BPF_MISC => x = a,
                other => panic!("class {other:#x}"),
            }
        }
        panic!("it doesn't end");
    }

    /// The same as a function of a whole frame.
    fn twin(kind: u32, ip: &[u8]) -> u32 {
        let mut frame = vec![0; 12];
        frame.extend((kind as u16).to_be_bytes());
        frame.extend(ip);
        let mut tagged = frame.clone();
        tagged.splice(12..12, [0x81, 0, 0, 7]);
        let hash = |frame: &[u8]| crate::spread::Ends::of_frame(frame).map_or(0, |ends| ends.hash(false));
        assert_eq!(hash(&frame), hash(&tagged));
        hash(&frame)
    }

    proptest! {
        #[test]
        fn the_program_does_what_its_twin_does(
            bytes in proptest::collection::vec(any::<u8>(), 104), v6 in any::<bool>(), whole in any::<bool>(),
            protocol in prop_oneof![Just(6u8), Just(17), Just(132), Just(1), any::<u8>()], header in 5u8..16,
        ) {
            let (kind, mut ip) = (if v6 { 0x86dd } else { 0x0800 }, bytes);
            if v6 {
                ip[6] = protocol;
            } else {
                (ip[0], ip[9]) = (0x40 | header, protocol);
                if whole {
                    (ip[6], ip[7]) = (0x40, 0);
                }
            }
            let got = run(&program(), kind, &ip);
            prop_assert_eq!(got, Some(twin(kind, &ip)));
            // The other direction comes to the same socket.
            let mut back = ip.clone();
            let (from, len) = if v6 { (8, 16) } else { (12, 4) };
            let at = if v6 { 40 } else { usize::from(header) * 4 };
            for n in 0..len {
                back.swap(from + n, from + len + n);
            }
            for n in 0..2 {
                back.swap(at + n, at + 2 + n);
            }
            prop_assert_eq!(run(&program(), kind, &back), got);
            prop_assert_eq!(run(&program(), 0x0806, &ip), Some(0));
        }

        /// Flows that differ little come to all sockets alike.
        #[test]
        fn neighbours_spread(first in any::<u16>()) {
            let mut counts = [0u32; 4];
            for flow in 0..400u16 {
                let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
                ip.extend(first.wrapping_add(flow).to_be_bytes());
                ip.extend([0, 53, 0, 0]);
                counts[run(&program(), 0x0800, &ip).unwrap() as usize % 4] += 1;
            }
            prop_assert!(counts.iter().all(|n| (50..150).contains(n)), "{counts:?}");
        }
    }
}
