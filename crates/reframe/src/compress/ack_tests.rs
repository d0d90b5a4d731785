//! One test a sentence of the specification.

use super::test_packets::{ACK, AE, CWR, ECE, FIN, PSH, Packet, RST, SYN, URG};
use super::{AckCompressor, AckState};

/// Says of each packet of a train whether it stays, the flow being known by an acknowledgement of 100.
fn kept(train: &[Packet]) -> Vec<bool> {
    let mut state = AckState::default();
    let opening = Packet { ack: 100, ..Packet::default() };
    assert_eq!(compress(&mut state, &[opening]), [true]);
    compress(&mut state, train)
}

pub(super) fn compress(state: &mut AckState, train: &[Packet]) -> Vec<bool> {
    let frames: Vec<_> = train.iter().map(Packet::frame).collect();
    let views: Vec<_> = train.iter().zip(&frames).map(|(p, f)| p.view(f)).collect();
    let mut keep = vec![false; 3];
    let dropped = AckCompressor.compress(state, &views, &mut keep);
    assert_eq!(dropped, keep.iter().filter(|&&k| !k).count());
    keep
}

pub(super) fn ack(ack: u32) -> Packet {
    Packet { ack, ..Packet::default() }
}

/// Two acknowledgements, of which the first goes if `first` and `second` leave them alike.
fn pair(first: impl Fn(&mut Packet), second: impl Fn(&mut Packet)) -> [Packet; 2] {
    let (mut a, mut b) = (ack(200), ack(300));
    first(&mut a);
    second(&mut b);
    [a, b]
}

fn merges(train: [Packet; 2]) -> bool {
    let keep = kept(&train);
    assert!(keep[1], "the last packet always stays");
    !keep[0]
}

/// Returns true if neither of two packets goes when the change is made to either, nor when to both.
fn never(change: impl Fn(&mut Packet)) -> bool {
    let as_is = |_: &mut Packet| {};
    !merges(pair(&change, as_is)) && !merges(pair(as_is, &change)) && !merges(pair(&change, &change))
}

/// Returns true if nothing goes when the change is made to one of two packets, but one does when to both.
fn only_alike(change: impl Fn(&mut Packet)) -> bool {
    let as_is = |_: &mut Packet| {};
    !merges(pair(&change, as_is)) && !merges(pair(as_is, &change)) && merges(pair(&change, &change))
}

pub(super) fn timestamps(value: u32, echo: u32) -> Vec<u8> {
    let mut option = vec![1, 1, 8, 10];
    option.extend(value.to_be_bytes());
    option.extend(echo.to_be_bytes());
    option
}

pub(super) fn sack(blocks: &[(u32, u32)]) -> Vec<u8> {
    let mut option = vec![1, 1, 5, 2 + 8 * blocks.len() as u8];
    for (start, end) in blocks {
        option.extend(start.to_be_bytes());
        option.extend(end.to_be_bytes());
    }
    option
}

#[test]
fn of_advancing_acks_the_last_stays() {
    assert_eq!(kept(&[ack(200), ack(300), ack(400)]), [false, false, true]);
    assert_eq!(kept(&[ack(200)]), [true]);
    assert!(kept(&[]).is_empty());
}

/// The number of a packet without the flag ACK means nothing (RFC 9293 §3.1): neither is the flow known by
/// it, nor are the acknowledgements behind it duplicates.
#[test]
fn a_number_without_the_flag_acknowledges_nothing() {
    for number in [50, 900] {
        let mute = Packet { flags: PSH, payload: 10, ..ack(number) };
        assert_eq!(kept(&[mute.clone(), ack(200), ack(300)]), [true, false, true], "{number}");
        let unknown = compress(&mut AckState::default(), &[mute, ack(100), ack(200), ack(300)]);
        assert_eq!(unknown, [true, true, false, true], "{number}");
    }
}

#[test]
fn ipv6_is_the_same() {
    let six = |a| Packet { ipv6: true, ..ack(a) };
    assert_eq!(kept(&[six(200), six(300)]), [false, true]);
}

#[test]
fn numbers_wrap_around() {
    let mut state = AckState::default();
    let train = [ack(u32::MAX - 10), ack(u32::MAX - 5), ack(5), ack(10)];
    assert_eq!(compress(&mut state, &train), [true, false, false, true]);
}

#[test]
fn the_first_ack_of_an_unknown_flow_stays() {
    assert_eq!(compress(&mut AckState::default(), &[ack(200), ack(300), ack(400)]), [true, false, true]);
}

#[test]
fn duplicates_stay() {
    assert_eq!(kept(&[ack(100), ack(100), ack(100)]), [true; 3]);
    assert_eq!(kept(&[ack(200), ack(200), ack(300)]), [true, true, true]);
    assert_eq!(kept(&[ack(200), ack(300), ack(300)]), [false, true, true]);
}

#[test]
fn a_duplicate_of_an_earlier_train_stays() {
    let mut state = AckState::default();
    compress(&mut state, &[ack(200)]);
    assert_eq!(compress(&mut state, &[ack(200), ack(300)]), [true, true]);
    assert_eq!(compress(&mut state, &[ack(300), ack(400)]), [true, true]);
    assert_eq!(compress(&mut state, &[ack(500), ack(600)]), [false, true]);
}

/// The bytes that it acknowledged may come again.
#[test]
fn behind_a_packet_that_cannot_be_read_nothing_goes() {
    let mut state = AckState::default();
    compress(&mut state, &[ack(100), ack(200)]);
    let cut = Packet { snap: Some(14 + 20 + 13), ..ack(500) };
    assert_eq!(compress(&mut state, &[ack(250), cut, ack(300), ack(500), ack(600)]), [true; 5]);
    assert_eq!(compress(&mut state, &[ack(700), ack(800)]), [true, true]);
    let opening = Packet { flags: SYN | ACK, ..ack(900) };
    assert_eq!(compress(&mut state, &[opening, ack(900), ack(950), ack(990)]), [true, true, false, true]);
}

#[test]
fn an_ack_behind_the_highest_stays_and_does_not_count() {
    assert_eq!(kept(&[ack(300), ack(200), ack(300), ack(400)]), [true, true, true, true]);
}

#[test]
fn data_counts_as_an_acknowledgement_seen() {
    let data = Packet { payload: 5, ..ack(200) };
    assert_eq!(kept(&[data, ack(200), ack(300)]), [true, true, true]);
}

#[test]
fn an_advance_that_no_window_holds_stays() {
    assert_eq!(kept(&[ack(100 + (1 << 30)), ack(200 + (1 << 30))]), [false, true]);
    assert_eq!(kept(&[ack(101 + (1 << 30)), ack(200 + (1 << 30))]), [true, true]);
    assert_eq!(kept(&[ack(200), ack(201 + (1 << 30))]), [true, true]);
}

#[test]
fn a_packet_between_keeps_both_sides() {
    let data = Packet { payload: 5, ..ack(200) };
    assert_eq!(kept(&[ack(200), data, ack(300)]), [true; 3]);
}

#[test]
fn data_stays_padding_does_not_count() {
    assert!(never(|p| p.payload = 1));
    let padded = ack(200);
    assert_eq!(padded.frame().len(), 60, "six bytes of padding");
    assert_eq!(kept(&[padded, ack(300)]), [false, true]);
}

#[test]
fn psh_fin_rst_syn_and_urg_stay() {
    for flag in [PSH, FIN, RST, SYN, URG] {
        assert!(never(|p| p.flags |= flag), "{flag:#x}");
    }
    assert!(never(|p| p.urgent = 1));
    assert!(never(|p| p.flags = 0), "no ACK flag");
}

#[test]
fn ece_has_to_be_equal() {
    assert!(only_alike(|p| p.flags |= ECE));
}

#[test]
fn cwr_ae_and_reserved_bits_stay() {
    for flag in [CWR, AE, 0x200, 0x400, 0x800] {
        assert!(never(|p| p.flags |= flag), "{flag:#x}");
    }
}

#[test]
fn of_an_accecn_connection_all_stay() {
    let open = |flags, expected: [bool; 4]| {
        let opening = Packet { flags, ..ack(0) };
        let keep = compress(&mut AckState::default(), &[opening, ack(100), ack(200), ack(300)]);
        assert_eq!(keep, expected, "{flags:#x}");
    };
    for flags in [AE | CWR | ECE, ACK | CWR, ACK | CWR | ECE, ACK | AE, ACK | AE | CWR] {
        open(SYN | flags, [true; 4]);
    }
    for flags in [0, CWR | ECE, ACK, ACK | ECE, ACK | AE | ECE] {
        open(SYN | flags, [true, true, false, true]);
    }
    for kind in [172, 174] {
        assert!(never(|p| p.options = vec![kind, 5, 0, 0, 1]), "{kind}");
    }
}

#[test]
fn an_ecn_capable_ack_stays() {
    for ecn in 1..4 {
        assert!(never(|p| p.tos = ecn), "{ecn}");
        assert!(never(|p| (p.ipv6, p.tos) = (true, ecn)), "{ecn}");
    }
}

#[test]
fn the_window_must_not_shrink() {
    assert!(merges(pair(|p| p.window = 500, |p| p.window = 501)));
    assert!(!merges(pair(|p| p.window = 501, |p| p.window = 500)));
}

#[test]
fn a_window_update_alone_stays() {
    let update = Packet { window: 900, ..ack(200) };
    assert_eq!(kept(&[ack(200), update, ack(300)]), [true, true, true]);
}

#[test]
fn the_sequence_number_has_to_be_equal() {
    assert!(!merges(pair(|_| {}, |p| p.seq += 1)));
    assert!(!merges(pair(|p| p.seq += 1, |_| {})), "a keep-alive follows");
}

#[test]
fn tos_ttl_and_flow_label_have_to_be_equal() {
    assert!(only_alike(|p| p.tos = 0xb8));
    assert!(only_alike(|p| p.ttl = 63));
    assert!(only_alike(|p| (p.ipv6, p.tos) = (true, 0xb8)));
    assert!(only_alike(|p| (p.ipv6, p.ttl) = (true, 63)));
    let six = |p: &mut Packet| p.ipv6 = true;
    assert!(!merges(pair(six, |p| (p.ipv6, p.ident) = (true, 7))));
}

#[test]
fn the_identification_of_ipv4_does_not_matter_dont_fragment_does() {
    assert!(merges(pair(|p| p.ident = 7, |p| p.ident = 8)));
    assert!(only_alike(|p| p.fragment = 0));
    assert!(never(|p| p.fragment = 0x8000), "the reserved bit");
}

#[test]
fn fragments_stay() {
    assert!(never(|p| p.fragment = 0x2000));
    assert!(never(|p| p.fragment = 1));
    assert!(never(|p| p.fragment = 0x100));
}

#[test]
fn the_link_layer_header_has_to_be_equal() {
    assert!(only_alike(|p| p.hardware = 2));
}

#[test]
fn ipv4_options_stay() {
    assert!(never(|p| p.ip_options = vec![1, 1, 1, 0]));
}

#[test]
fn ipv6_extension_headers_have_to_be_equal() {
    let with =
        |extension: &'static [u8]| move |p: &mut Packet| (p.ipv6, p.ip_options) = (true, extension.to_vec());
    let padding = with(&[6, 0, 1, 4, 0, 0, 0, 0]);
    assert!(merges(pair(padding, padding)));
    assert!(!merges(pair(padding, with(&[]))));
    assert!(!merges(pair(with(&[]), padding)));
    assert!(!merges(pair(padding, with(&[6, 0, 1, 2, 0, 0, 1, 0]))));
}

#[test]
fn a_cut_header_stays() {
    assert!(never(|p| p.snap = Some(14 + 20 + 19)));
    assert!(never(|p| (p.options, p.snap) = (timestamps(1, 1), Some(14 + 20 + 31))));
    assert!(merges(pair(|p| p.snap = Some(14 + 20 + 20), |_| {})), "cut padding is no loss");
}

#[test]
fn a_wrong_checksum_stays_and_stands_in_for_nobody() {
    assert!(never(|p| p.tcp_checksum_error = 1));
    assert!(never(|p| p.ip_checksum_error = 1));
    assert!(never(|p| (p.ipv6, p.tcp_checksum_error) = (true, 1)));
}

#[test]
fn an_ip_length_that_can_not_be_stays() {
    for length in [0, 39, 41, 1500] {
        assert!(never(|p| p.ip_length = Some(length)), "{length}");
    }
}

#[test]
fn timestamps_may_advance_but_not_run_backwards() {
    let with = |value, echo| move |p: &mut Packet| p.options = timestamps(value, echo);
    assert!(merges(pair(with(5, 7), with(5, 7))));
    assert!(merges(pair(with(5, 7), with(6, 9))));
    assert!(merges(pair(with(u32::MAX, u32::MAX), with(0, 3))), "they wrap around");
    assert!(!merges(pair(with(5, 7), with(4, 7))));
    assert!(!merges(pair(with(5, 7), with(5, 6))));
    assert!(!merges(pair(with(5, 7), |_| {})));
    assert!(!merges(pair(|_| {}, with(5, 7))));
}

#[test]
fn other_options_have_to_be_equal_in_kind_order_and_content() {
    let with = |options: &'static [u8]| move |p: &mut Packet| p.options = options.to_vec();
    assert!(only_alike(with(&[253, 4, 1, 2])));
    assert!(!merges(pair(with(&[253, 4, 1, 2]), with(&[253, 4, 1, 3]))));
    assert!(!merges(pair(with(&[253, 4, 1, 2]), with(&[254, 4, 1, 2]))));
    assert!(!merges(pair(with(&[1, 1, 253, 2]), with(&[253, 2, 1, 1]))));
    assert!(never(with(&[253, 1, 0, 0])), "a length that can't be");
    assert!(never(with(&[253, 9, 0, 0])), "a length beyond the header");
}

#[test]
fn sack_blocks_have_to_be_equal() {
    let with = |blocks: &'static [(u32, u32)]| move |p: &mut Packet| p.options = sack(blocks);
    assert!(only_alike(with(&[(1000, 2000)])));
    assert!(only_alike(with(&[(1000, 2000), (3000, 4000)])));
    assert!(!merges(pair(with(&[(1000, 2000)]), with(&[(1000, 2500)]))));
    assert!(!merges(pair(with(&[(1000, 2000), (3000, 4000)]), with(&[(3000, 4000), (1000, 2000)]))));
}

#[test]
fn duplicate_sacks_stay() {
    let with = |blocks: &'static [(u32, u32)]| move |p: &mut Packet| p.options = sack(blocks);
    assert!(never(with(&[(50, 80)])), "below the acknowledgement");
    assert!(never(with(&[(1200, 1300), (1000, 2000)])), "within the second block");
    assert!(never(with(&[(1000, 2000), (1000, 2000)])), "the same as the second block");
    assert!(only_alike(with(&[(1200, 2300), (1000, 2000)])), "beyond the second block");
}

#[test]
fn a_new_connection_begins_anew() {
    for flags in [SYN, SYN | ACK, RST, RST | ACK] {
        let change = Packet { flags, ..ack(150) };
        let train = [ack(900), change, ack(200), ack(300), ack(400)];
        assert_eq!(kept(&train), [true, true, true, false, true], "{flags:#x}");
    }
}

#[test]
fn a_second_pass_may_find_new_neighbours() {
    let window = |window, a| Packet { window, ..ack(a) };
    let train = [window(10, 200), window(5, 300), window(12, 400)];
    assert_eq!(kept(&train), [true, false, true]);
    let [first, _, last] = train;
    assert_eq!(kept(&[first, last]), [false, true]);
}
