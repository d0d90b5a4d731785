//! Attacks from the network: an attacker never gets a payload, and no victim loses its own.

use slipstream::slice::splicer::token_of;
use slipstream::slice::{
    Bind, DSCP_SLICED, Marked, Refusal, SliceConfig, Sliced, Spliced, Storage, Token, TokenMode,
};
use slipstream_wire::LinkType;

use super::edges::{filled_ip, icmp_error, udp, with_tos};
use super::packets::Spec;
use super::same::{Pair, config};

const ETHERNET: LinkType = LinkType::Ethernet;

/// A datagram of the attacker that ends in these bytes.
fn ending_in(token: Token, payload: usize, tos: u8) -> Vec<u8> {
    let mut frame = udp(payload);
    frame[26..30].copy_from_slice(&[10, 6, 6, 6]);
    let end = frame.len();
    frame[end - 8..].copy_from_slice(&token.to_bytes());
    frame[40..42].fill(0);
    with_tos(frame, tos)
}

fn victim() -> Vec<u8> {
    Spec { payload: 1200, fill: 77, ..Spec::plain(false, true) }.build()
}

/// Whatever the attacker sends goes through slicer and splicer; it must leave as it came, or not at all, and
/// the victim's packet must leave with its own payload afterwards.
fn attack(pair: &mut Pair, sliced_victim: &[u8], frames: impl IntoIterator<Item = Vec<u8>>) {
    for frame in frames {
        let (done, through) = pair.slice(ETHERNET, &frame, 1);
        if done == Sliced::Dropped {
            continue;
        }
        // The function forwards it.
        match pair.splice(ETHERNET, &through, 2) {
            Ok((_, out)) => {
                let mut expected = frame.clone();
                if done == Sliced::Remarked {
                    expected = with_tos(expected, out[15]);
                    assert_ne!(out[15] >> 2, DSCP_SLICED);
                }
                assert_eq!(out, expected, "the attacker's packet got something else");
            }
            // It carries a token where it brings nothing back, and stays in.
            Err(Refusal::Hidden) => {}
            Err(refusal) => panic!("a packet of the network is {refusal:?}: it was taken for a sliced one"),
        }
    }
    let (done, out) = pair.splice(ETHERNET, sliced_victim, 3).expect("the victim's payload is gone");
    assert!(matches!(done, Spliced::Whole { .. }));
    assert_eq!(out, victim(), "the victim got another's payload");
    pair.table.audit().unwrap();
}

/// A pair with a victim's packet under way.
fn set_up(change: impl FnOnce(&mut SliceConfig)) -> (Pair, Vec<u8>, Token) {
    let mut config = SliceConfig { threshold: 500, entries: 64, ttl: 1000, ..config() };
    change(&mut config);
    let mut pair = Pair::new(&config);
    let (done, sliced) = pair.slice(ETHERNET, &victim(), 0);
    let Sliced::Sliced { token, .. } = done else { panic!("{done:?}") };
    (pair, sliced, token)
}

const POLICIES: [Marked; 3] = [Marked::Slice, Marked::Remark(0), Marked::Drop];

#[test]
fn dscp_63_with_a_guessed_token() {
    for marked in POLICIES {
        for mode in [TokenMode::Keyed, TokenMode::Paper] {
            let (mut pair, sliced, _) = set_up(|c| (c.marked, c.mode) = (marked, mode));
            // Every entry of the first generations, as paper tokens are; and keyed ones at random.
            let guesses = (0..64u64).flat_map(|index| (0..4).map(move |generation| generation << 6 | index));
            let random = (0..500u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !(0xffc0 << 48));
            let frames = guesses
                .chain(random)
                .flat_map(|n| [ending_in(Token(n), 8, 0xfc), ending_in(Token(n), 100, 0xff)]);
            attack(&mut pair, &sliced, frames);
        }
    }
}

#[test]
fn dscp_63_with_the_very_token_of_a_victim() {
    for marked in POLICIES {
        for mode in [TokenMode::Keyed, TokenMode::Paper] {
            let (mut pair, sliced, token) = set_up(|c| (c.marked, c.mode) = (marked, mode));
            let frames = [8, 9, 100, 400, 458].map(|payload| ending_in(token, payload, 0xfc));
            attack(&mut pair, &sliced, frames);
        }
    }
}

#[test]
fn a_seen_token_without_the_mark() {
    for marked in POLICIES {
        let (mut pair, sliced, token) = set_up(|c| c.marked = marked);
        attack(&mut pair, &sliced, [8, 100, 450].map(|payload| ending_in(token, payload, 0)));
        assert_eq!(pair.slicer.counters().tokens_from_network, 3, "nobody is told");
    }
}

/// In paper mode a token without the mark is nothing, at either end.
#[test]
fn a_seen_token_of_the_paper_without_the_mark() {
    let (mut pair, sliced, token) = set_up(|c| c.mode = TokenMode::Paper);
    attack(&mut pair, &sliced, [8, 100].map(|payload| ending_in(token, payload, 0)));
}

#[test]
fn a_replayed_sliced_packet() {
    for mode in [TokenMode::Keyed, TokenMode::Paper] {
        let (mut pair, sliced, _) = set_up(|c| c.mode = mode);
        // As it was seen between slicer and function, sent in from outside: before, and long after.
        attack(&mut pair, &sliced, [sliced.clone(), sliced.clone()]);
        let (_, through) = pair.slice(ETHERNET, &sliced, 4);
        assert_eq!(pair.splice(ETHERNET, &through, 5).unwrap().1, sliced);
        // On the function's side it is a duplicate.
        assert_eq!(pair.splice(ETHERNET, &sliced, 6).err(), Some(Refusal::Duplicate));
    }
}

#[test]
fn tokens_of_generations_that_are_yet_to_come() {
    let (mut pair, sliced, _) = set_up(|_| {});
    // All that the key would make next is what an attacker can't make: any other tag is wrong, and even the
    // right one is seen.
    let (done, next) = pair.slice(ETHERNET, &victim(), 0);
    let Sliced::Sliced { token, .. } = done else { panic!("{done:?}") };
    let guesses = (1..2000u64).map(|n| ending_in(Token(token.0 ^ n), 8, 0));
    attack(&mut pair, &sliced, guesses);
    assert_eq!(pair.splice(ETHERNET, &next, 3).unwrap().1, victim());
}

#[test]
fn a_token_where_the_padding_ends() {
    let (mut pair, sliced, token) = set_up(|_| {});
    // The frame ends in the token, the IP packet before.
    let mut padded = with_tos(udp(4), 0xfc);
    padded.extend([0; 6]);
    padded.extend(token.to_bytes());
    let mut unmarked = udp(4);
    unmarked.extend(token.to_bytes());
    attack(&mut pair, &sliced, [padded, unmarked]);
}

#[test]
fn a_token_at_the_end_of_a_fragment_or_of_what_is_no_tcp_or_udp() {
    for tos in [0, 0xfc] {
        let (mut pair, sliced, token) = set_up(|_| {});
        let of = |protocol: u8, fragment: [u8; 2]| {
            let mut frame = ending_in(token, 200, tos);
            frame[23] = protocol;
            frame[20..22].copy_from_slice(&fragment);
            filled_ip(frame)
        };
        let frames = [
            of(17, [0x20, 0]),
            of(17, [0, 9]),
            of(1, [0; 2]),
            of(50, [0; 2]),
            of(132, [0; 2]),
            of(4, [0; 2]),
        ];
        attack(&mut pair, &sliced, frames);
    }
}

#[test]
fn an_icmp_error_that_quotes_a_token() {
    for mode in [TokenMode::Keyed, TokenMode::Paper] {
        let (mut pair, sliced, token) = set_up(|c| c.mode = mode);
        let quoted = |tos| icmp_error(&ending_in(token, 8, 0xfc), 500, tos);
        // The paper's token can't tell this one from the router's own: the quote of a packet that was under
        // way.
        if mode == TokenMode::Keyed {
            attack(&mut pair, &sliced, [quoted(0), quoted(0xfc), icmp_error(&sliced, 500, 0)]);
        } else {
            attack(&mut pair, &sliced, [quoted(0xfc)]);
        }
    }
}

#[test]
fn lengths_that_lie() {
    let (mut pair, sliced, token) = set_up(|_| {});
    let mut frames = Vec::new();
    for length in [0u16, 19, 20, 27, 28, 35, 36, 37, 1000, 65_535] {
        for tos in [0, 0xfc] {
            let mut frame = ending_in(token, 8, tos);
            frame[16..18].copy_from_slice(&length.to_be_bytes());
            frames.push(filled_ip(frame.clone()));
            frame[38..40].copy_from_slice(&length.to_be_bytes());
            frames.push(filled_ip(frame));
        }
    }
    attack(&mut pair, &sliced, frames);
}

#[test]
fn a_flood_of_marked_packets_takes_no_more_than_a_quarter_of_the_entries() {
    let (mut pair, sliced, _) = set_up(|_| {});
    // All kept by the function: a quarter of the 64 entries is theirs, the rest are remarked, none is
    // dropped, and what can be sliced is.
    let mut kept = Vec::new();
    for n in 0..200 {
        let (done, out) = pair.slice(ETHERNET, &ending_in(Token(n), 60, 0xfc), 1);
        assert_eq!(matches!(done, Sliced::Empty { .. }), n < 16, "{n}: {done:?}");
        kept.push((done, n, out));
    }
    assert_eq!(pair.table.counters().empties, 16);
    // Past those of them that stand behind the victim's, at the start of the table.
    let found = (0..20).find(|_| matches!(pair.slice(ETHERNET, &victim(), 1).0, Sliced::Sliced { .. }));
    assert_eq!(found, Some(16));
    for (done, n, out) in kept {
        let tos = if done == Sliced::Remarked { 0 } else { 0xfc };
        assert_eq!(pair.splice(ETHERNET, &out, 2).unwrap().1, ending_in(Token(n), 60, tos));
    }
    assert_eq!(pair.splice(ETHERNET, &sliced, 3).unwrap().1, victim());
    assert_eq!((pair.table.waiting(), pair.table.counters().empties), (1, 0));
}

/// Half a million short packets a second that carry the mark, or end in a token that was seen, in front of
/// every packet of a victim, whose functions have it for as long as the table was sized for: it neither loses
/// packets nor goes unsliced.
#[test]
fn short_packets_spend_no_turns_of_payloads() {
    for (mode, seen) in [(TokenMode::Keyed, false), (TokenMode::Keyed, true), (TokenMode::Paper, false)] {
        // 10,000 packets a second, 1 ms at the functions: ten wait on average.
        let mut pair = Pair::new(&SliceConfig { threshold: 500, entries: 20, ttl: 10, mode, ..config() });
        let (mut under_way, mut lost, mut whole) = (std::collections::VecDeque::new(), 0, 0);
        let mut token = Token(1);
        for n in 0..1000u64 {
            for m in 0..50 {
                let of_attacker = if seen { ending_in(token, 8, 0) } else { ending_in(Token(m), 60, 0xfc) };
                let (done, out) = pair.slice(ETHERNET, &of_attacker, n * 100_000 + m);
                if done != Sliced::Dropped {
                    // The function drops every tenth, and nobody says so.
                    if m % 10 != 0 {
                        pair.splice(ETHERNET, &out, n * 100_000 + m).unwrap();
                    }
                }
            }
            let (done, out) = pair.slice(ETHERNET, &victim(), n * 100_000);
            match done {
                Sliced::Sliced { token: made, .. } => token = made,
                _ => whole += 1,
            }
            under_way.push_back(out);
            if under_way.len() > 10 {
                let out = under_way.pop_front().unwrap();
                lost += u32::from(pair.splice(ETHERNET, &out, n * 100_000).is_err());
            }
        }
        assert_eq!(lost, 0, "{mode:?}, tokens seen: {seen}");
        assert!(whole < 400, "{whole} of 1000 went whole");
    }
}

/// Packets that park payloads do spend turns; a least age keeps a payload in spite of them.
#[test]
fn a_least_age_keeps_payloads_from_a_flood_of_long_packets() {
    for (min_age_ns, kept) in [(0, false), (1000, true)] {
        let mut pair = Pair::new(&SliceConfig { entries: 4, ttl: 2, min_age_ns, ..config() });
        let (_, sliced) = pair.slice(ETHERNET, &victim(), 0);
        for n in 0..100 {
            pair.slice(ETHERNET, &victim(), n * 10);
        }
        let done = pair.splice(ETHERNET, &sliced, 999);
        assert_eq!(done.is_ok(), kept, "{done:?}");
        // Then they are given up as ever.
        for n in 100..120 {
            pair.slice(ETHERNET, &victim(), n * 10);
        }
        assert!(pair.table.counters().expired > 0);
        pair.table.audit().unwrap();
    }
}

/// A token without a payload that never comes back is forgotten after a second, also where nothing is sliced
/// meanwhile.
#[test]
fn lost_tokens_without_a_payload_are_forgotten() {
    let (mut pair, ..) = set_up(|c| c.entries = 8);
    let empty = |pair: &mut Pair, now| {
        matches!(pair.slice(ETHERNET, &ending_in(Token(1), 60, 0xfc), now).0, Sliced::Empty { .. })
    };
    assert!(empty(&mut pair, 0) && empty(&mut pair, 0) && !empty(&mut pair, 900_000_000));
    assert!(empty(&mut pair, 1_000_000_001), "nobody forgets");
    pair.table.audit().unwrap();
}

/// A function that exchanges the tokens of two flows exchanges their payloads, unless tokens are bound to
/// flows.
#[test]
fn tokens_bound_to_flows_can_not_be_exchanged() {
    for (bind, storage) in [
        (Bind::Nothing, Storage::Copied { entry_bytes: 2000 }),
        (Bind::Flow, Storage::Copied { entry_bytes: 2000 }),
    ] {
        for six in [false, true] {
            let (mut pair, ..) = set_up(|c| (c.bind, c.storage) = (bind, storage));
            let of =
                |port| Spec { payload: 1200, ports: (port, 443), fill: port as u8, ..Spec::plain(six, true) };
            let [a, b] = [of(2000), of(2001)].map(|spec| pair.slice(ETHERNET, &spec.build(), 0).1);
            let end = a.len();
            let [mut a_with_b, mut b_with_a] = [a.clone(), b.clone()];
            a_with_b[end - 8..].copy_from_slice(&b[end - 8..]);
            b_with_a[end - 8..].copy_from_slice(&a[end - 8..]);
            let [first, second] = [a_with_b, b_with_a].map(|f| pair.splice(ETHERNET, &f, 1));
            if bind == Bind::Nothing {
                assert!(first.is_ok() && second.is_ok());
                continue;
            }
            assert_eq!((first.err(), second.err()), (Some(Refusal::Swapped), Some(Refusal::Swapped)));
            // Neither has lost its own; hops, MAC addresses and tags may change.
            let mut a = a.clone();
            a[0] ^= 2;
            a.splice(12..12, [0x81, 0, 0, 5]);
            assert!(pair.splice(ETHERNET, &a, 2).is_ok());
            assert_eq!(pair.splice(ETHERNET, &b, 2).unwrap().1, of(2001).build());
        }
    }
}

#[test]
fn the_function_itself_can_not_make_a_token_up() {
    let (mut pair, sliced, token) = set_up(|_| {});
    // On the function's side, where tokens are accepted: any bit changed, and the packet is dropped.
    for bit in 0..64 {
        let forged = Token(token.0 ^ 1 << bit);
        let mut frame = sliced.clone();
        let end = frame.len();
        frame[end - 8..].copy_from_slice(&forged.to_bytes());
        assert_eq!(token_of(ETHERNET, &frame), Some(forged));
        assert_eq!(pair.splice(ETHERNET, &frame, 1).err(), Some(Refusal::Forged), "bit {bit}");
    }
    assert_eq!(pair.splice(ETHERNET, &sliced, 3).unwrap().1, victim());
}
