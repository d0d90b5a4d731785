//! Neighbours one by one: asked, answered, given up, displaced.

use proptest::prelude::*;

use super::neighbours::*;
use super::open::OPEN;
use super::*;
use slipstream_core::pool::BufId;

const SETTINGS: Settings =
    Settings { capacity: 4, links: 2, rate: 1 << 40, hold: 2, confirm: 100, retry: 10 };
const MAC: Mac = [2, 0, 0, 0, 0, 9];

fn address(n: u8) -> IpAddr {
    [10, 0, 0, n].into()
}

fn frame(n: u32) -> Frame {
    Frame::unclassified(Nanos(u64::from(n)), BufId(n), 60)
}

#[test]
fn a_neighbour_is_asked_for_and_answers() {
    let mut all = Neighbours::new(SETTINGS, 1);
    let id = all.number(1, address(5), Nanos(0)).unwrap();
    assert_eq!(all.ask(id, Nanos(0)), Known::Asks);
    assert_eq!(all.ask(id, Nanos(1)), Known::Waits);
    assert_eq!(all.wait(id, frame(1)), None);
    assert_eq!(all.wait(id, frame(2)), None);
    assert_eq!(all.wait(id, frame(3)), Some(frame(1)), "the oldest makes room");
    assert_eq!((all.held(), all.next_deadline()), (2, Nanos(10)));
    assert!(matches!(all.due(Nanos(10)), Some(Due::Ask(1, a, None)) if a == address(5)));
    assert!(all.due(Nanos(10)).is_none());
    assert!(all.heard(0, address(5), MAC, (Claim::Known, true), Nanos(11)).is_none(), "that is another link");
    let frames = all.heard(1, address(5), MAC, (Claim::Known, true), Nanos(12)).unwrap();
    assert_eq!(Vec::from(frames), [frame(2), frame(3)]);
    assert_eq!((all.held(), all.ask(id, Nanos(112))), (0, Known::At(MAC)));
    assert_eq!(all.ask(id, Nanos(113)), Known::Doubtful(MAC), "after a while it is asked again");
    assert_eq!(all.ask(id, Nanos(114)), Known::At(MAC), "and used meanwhile");
    assert!(all.heard(1, address(5), MAC, (Claim::Known, true), Nanos(115)).is_none());
    assert!(all.due(Nanos(10_000)).is_none(), "questions of before don't count");
}

#[test]
fn who_does_not_answer_is_given_up() {
    let mut all = Neighbours::new(SETTINGS, 1);
    let id = all.number(1, address(5), Nanos(0)).unwrap();
    assert_eq!(all.ask(id, Nanos(0)), Known::Asks);
    assert_eq!(all.wait(id, frame(1)), None);
    assert!(matches!(all.due(Nanos(10)), Some(Due::Ask(..))));
    assert!(matches!(all.due(Nanos(20)), Some(Due::Ask(..))));
    let Some(Due::Failed(1, frames)) = all.due(Nanos(30)) else { panic!("not given up") };
    assert_eq!(Vec::from(frames), [frame(1)]);
    assert_eq!((all.len(), all.held(), all.next_deadline()), (0, 0, Nanos::MAX));
}

#[test]
fn memory_is_bounded() {
    let mut all = Neighbours::new(SETTINGS, 1);
    let gateway = all.pin(0, address(1), None, Nanos(0)).unwrap();
    for n in 2..100 {
        assert!(all.heard(0, address(n), MAC, (Claim::New, true), Nanos(u64::from(n))).is_none());
        assert!(all.len() <= 4);
    }
    assert_eq!(all.number(0, address(1), Nanos(100)), Some(gateway), "a gateway stays");
}

/// Asks for as many unknown neighbours as there are places, and one more.
fn scan(all: &mut Neighbours, port: u8, from: u32, count: u32, now: Nanos) -> Vec<u32> {
    let one = |n: u32| {
        let id = all.number(port, IpAddr::from((from + n).to_be_bytes()), now)?;
        assert_eq!(all.ask(id, now), Known::Asks);
        assert_eq!(all.wait(id, frame(n)), None);
        Some(id)
    };
    (0..count).filter_map(one).collect()
}

#[test]
fn open_questions_make_room_for_newer_ones_of_their_link_alone() {
    let mut all = Neighbours::new(SETTINGS, 1);
    let other = all.number(1, address(1), Nanos(0)).unwrap();
    assert_eq!((all.ask(other, Nanos(0)), all.wait(other, frame(9_999))), (Known::Asks, None));
    assert_eq!(scan(&mut all, 0, 1 << 24, OPEN, Nanos(1)).len() as u32, OPEN);
    assert_eq!((all.counters.displaced, all.take_displaced()), (0, vec![]));
    scan(&mut all, 0, 2 << 24, 2, Nanos(2));
    assert_eq!((all.counters.displaced, all.take_displaced()), (2, vec![frame(0), frame(1)]));
    assert_eq!((all.len(), all.held()), (OPEN + 1, u64::from(OPEN) + 1));
    // The displaced are not asked for again, the others are.
    let asked = std::iter::from_fn(|| all.due(Nanos(12))).count() as u32;
    assert_eq!(asked, OPEN + 1);
    let frames = all.heard(1, address(1), MAC, (Claim::Known, true), Nanos(13)).unwrap();
    assert_eq!(Vec::from(frames), [frame(9_999)]);
}

#[test]
fn open_questions_take_no_place_of_known_neighbours() {
    let mut all = Neighbours::new(SETTINGS, 1);
    for n in 1..=4 {
        let id = all.number(0, address(n), Nanos(0)).unwrap();
        all.ask(id, Nanos(0));
        assert!(all.heard(0, address(n), MAC, (Claim::Known, true), Nanos(0)).is_some());
    }
    scan(&mut all, 0, 1 << 24, 3 * OPEN, Nanos(1));
    // Nor do those that only ask, or that answer while all places have been confirmed of late.
    for n in 5..50 {
        assert!(all.heard(0, address(n), MAC, (Claim::New, true), Nanos(2)).is_none());
    }
    let id = all.number(0, address(60), Nanos(2)).unwrap();
    assert_eq!((all.ask(id, Nanos(2)), all.wait(id, frame(1))), (Known::Asks, None));
    assert_eq!(
        all.heard(0, address(60), MAC, (Claim::Known, true), Nanos(3)),
        Some([frame(1)].into()),
        "what waited leaves"
    );
    assert_eq!(all.counters.full, 46);
    for n in 1..=4 {
        let id = all.number(0, address(n), Nanos(90)).unwrap();
        assert_eq!(all.ask(id, Nanos(90)), Known::At(MAC), "neighbour {n}");
    }
    // One that nobody needed for long makes room at last.
    let id = all.number(0, address(61), Nanos(500)).unwrap();
    all.ask(id, Nanos(500));
    assert!(all.heard(0, address(61), MAC, (Claim::Known, true), Nanos(501)).is_some());
    assert_eq!(all.ask(id, Nanos(502)), Known::At(MAC));
}

#[test]
fn who_only_asks_makes_room_first() {
    let mut all = Neighbours::new(SETTINGS, 1);
    for n in 1..=4 {
        assert!(all.heard(0, address(n), MAC, (Claim::New, true), Nanos(0)).is_none());
        // Asking again changes nothing about that.
        assert!(all.heard(0, address(n), MAC, (Claim::New, true), Nanos(1)).is_none());
    }
    let needed = all.number(0, address(1), Nanos(2)).unwrap();
    assert_eq!(all.ask(needed, Nanos(2)), Known::At(MAC));
    for n in 5..50 {
        assert!(all.heard(0, address(n), MAC, (Claim::New, true), Nanos(3)).is_none());
    }
    assert_eq!((all.number(0, address(1), Nanos(4)), all.len()), (Some(needed), 4));
}

#[test]
fn questions_about_unknown_neighbours_are_limited() {
    let mut all = Neighbours::new(Settings { rate: 10, ..SETTINGS }, 1);
    assert_eq!(scan(&mut all, 0, 1 << 24, OPEN + 5, Nanos(1)).len() as u32, OPEN);
    assert_eq!(all.counters.limited, 5);
    assert_eq!(scan(&mut all, 1, 1 << 24, 5, Nanos(1)).len(), 5, "each link has its own rate");
    assert_eq!(scan(&mut all, 0, 2 << 24, 5, Nanos(100_000_001)).len(), 1, "ten a second");
}

proptest! {
    /// Whatever comes: places are bounded, every packet that waits is given back once, and the books agree.
    #[test]
    fn the_books_agree(events in proptest::collection::vec((0..10_u8, 0..2_u8, 1..40_u8, 0..40_u64), 1..300)) {
        let mut all = Neighbours::new(Settings { capacity: 8, ..SETTINGS }, 1);
        let (mut now, mut next, mut waiting) = (0, 0, 0_u64);
        for (kind, port, n, gap) in events {
            now += gap;
            let (at, who) = (Nanos(now), address(n));
            match kind {
                0..4 => {
                    let Some(id) = all.number(port, who, at) else { continue };
                    if matches!(all.ask(id, at), Known::Asks | Known::Waits) {
                        next += 1;
                        waiting += u64::from(all.wait(id, frame(next)).is_none());
                    }
                }
                4 => waiting -= all.heard(port, who, MAC, (Claim::Known, true), at).map_or(0, |f| f.len() as u64),
                5 => waiting -= all.heard(port, who, MAC, (Claim::New, true), at).map_or(0, |f| f.len() as u64),
                6 => waiting -= all.heard(port, who, [4; 6], (Claim::Weak, true), at).map_or(0, |f| f.len() as u64),
                7 => waiting -= all.heard(port, who, [5; 6], (Claim::New, false), at).map_or(0, |f| f.len() as u64),
                8 => {
                    let pinned = all.pin(port, who, (n % 2 == 0).then_some(MAC), at);
                    waiting -= all.take_ready().len() as u64;
                    all.unpin(at, &[pinned]);
                }
                _ => while let Some(due) = all.due(at) {
                    if let Due::Failed(_, frames) = due {
                        waiting -= frames.len() as u64;
                    }
                }
            }
            waiting -= all.take_displaced().len() as u64;
            prop_assert_eq!(all.held(), waiting);
            prop_assert!(all.known() <= 8 && all.len() <= 8 + 2 * OPEN);
        }
        prop_assert_eq!(all.take_all().len() as u64, waiting);
    }
}

#[test]
fn fixed_ones_never_change() {
    let mut all = Neighbours::new(SETTINGS, 1);
    let id = all.pin(0, address(1), Some(MAC), Nanos(0)).unwrap();
    assert!(all.heard(0, address(1), [4; 6], (Claim::New, true), Nanos(5)).is_none());
    assert_eq!(all.ask(id, Nanos(1 << 40)), Known::At(MAC));
    all.unpin(Nanos(1 << 40), &[Some(id)]);
    assert_eq!(all.ask(id, Nanos(1 << 40)), Known::Asks);
    assert_eq!(all.wait(id, frame(1)), None);
    assert_eq!(all.pin(0, address(1), Some(MAC), Nanos(1 << 40)), Some(id));
    assert_eq!((all.held(), all.take_ready(), all.held()), (1, vec![(frame(1), 0, MAC)], 0));
    assert!(all.fix(0, address(2), MAC));
    let id = all.pin(0, address(2), Some([4; 6]), Nanos(0)).unwrap();
    all.unpin(Nanos(1 << 40), &[Some(id)]);
    assert_eq!(all.ask(id, Nanos(1 << 40)), Known::At(MAC), "the settings say so");
}

/// An advertisement without the Override flag (RFC 4861 §7.2.5) tells where somebody is who is asked for, and
/// changes nothing about one who is known, but that he is asked again.
#[test]
fn a_weak_claim_changes_no_known_neighbour() {
    let other = [4; 6];
    let mut all = Neighbours::new(SETTINGS, 1);
    assert!(all.heard(0, address(5), MAC, (Claim::Weak, true), Nanos(0)).is_none());
    assert_eq!(all.len(), 0, "nobody asked for it");
    let id = all.number(0, address(5), Nanos(0)).unwrap();
    all.ask(id, Nanos(0));
    assert!(all.heard(0, address(5), MAC, (Claim::Weak, true), Nanos(1)).is_some());
    assert_eq!(all.ask(id, Nanos(2)), Known::At(MAC));
    assert!(all.heard(0, address(5), other, (Claim::Weak, true), Nanos(3)).is_none());
    assert_eq!((all.settled(id, Nanos(4)), all.ask(id, Nanos(4))), (None, Known::Doubtful(MAC)));
    assert!(
        all.heard(0, address(5), other, (Claim::Weak, true), Nanos(5)).is_none(),
        "nor while it is asked"
    );
    assert_eq!(all.ask(id, Nanos(6)), Known::At(MAC));
    assert!(all.heard(0, address(5), MAC, (Claim::Weak, true), Nanos(7)).is_none());
    assert_eq!((all.ask(id, Nanos(107)), all.counters.changed), (Known::At(MAC), 0), "it confirms");
    all.heard(0, address(5), other, (Claim::Known, true), Nanos(108));
    assert_eq!((all.ask(id, Nanos(109)), all.counters.changed), (Known::At(other), 1));
    // Who only asked is no better for it.
    for n in 11..=13 {
        all.heard(0, address(n), MAC, (Claim::New, true), Nanos(110));
        all.heard(0, address(n), other, (Claim::Weak, true), Nanos(110));
    }
    for n in 14..50 {
        all.heard(0, address(n), MAC, (Claim::New, true), Nanos(111));
    }
    assert_eq!((all.number(0, address(5), Nanos(112)), all.known(), all.counters.full), (Some(id), 4, 0));
}

/// RFC 4861 §7.2.3 and §7.2.5: a message that answers nothing tells where somebody is, and does not show that
/// packets reach him. So he is asked with the next packet, and what was confirmed stays so.
#[test]
fn only_an_answer_confirms() {
    let other = [4; 6];
    let mut all = Neighbours::new(SETTINGS, 1);
    // One that is asked for: what waits goes there, and he is asked again.
    let id = all.number(0, address(5), Nanos(0)).unwrap();
    assert_eq!((all.ask(id, Nanos(0)), all.wait(id, frame(1))), (Known::Asks, None));
    assert_eq!(all.heard(0, address(5), MAC, (Claim::Known, false), Nanos(1)), Some([frame(1)].into()));
    assert_eq!((all.settled(id, Nanos(2)), all.ask(id, Nanos(2))), (None, Known::Doubtful(MAC)));
    assert!(matches!(all.due(Nanos(12)), Some(Due::Ask(0, _, Some(MAC)))), "what he says ends no question");
    assert!(all.heard(0, address(5), MAC, (Claim::Known, false), Nanos(13)).is_none());
    assert!(matches!(all.due(Nanos(22)), Some(Due::Ask(0, _, Some(MAC)))));
    // One that has answered: he need not be asked before an answer has lost its worth, and is asked then,
    // however often he speaks.
    assert!(all.heard(0, address(5), MAC, (Claim::Known, true), Nanos(23)).is_none());
    for now in 24..=123 {
        assert!(all.heard(0, address(5), MAC, (Claim::New, false), Nanos(now)).is_none());
        assert_eq!(all.ask(id, Nanos(now)), Known::At(MAC));
    }
    assert_eq!(all.ask(id, Nanos(124)), Known::Doubtful(MAC));
    assert!(all.heard(0, address(5), MAC, (Claim::Known, true), Nanos(125)).is_none());
    // He says that he is elsewhere: packets go there, and he is asked.
    assert!(all.heard(0, address(5), other, (Claim::Known, false), Nanos(126)).is_none());
    assert_eq!((all.ask(id, Nanos(127)), all.counters.changed), (Known::Doubtful(other), 1));
    // One that asks for us, again and again, is remembered as long, and asked with the first packet.
    for now in [130, 200, 290] {
        assert!(all.heard(0, address(6), MAC, (Claim::New, false), Nanos(now)).is_none());
    }
    let id = all.number(0, address(6), Nanos(385)).unwrap();
    assert_eq!(all.ask(id, Nanos(385)), Known::Doubtful(MAC));
    // Of those that did no more than that, one makes room for another.
    for n in 7..50 {
        all.heard(0, address(n), MAC, (Claim::New, false), Nanos(386));
    }
    assert_eq!((all.number(0, address(6), Nanos(387)), all.known(), all.counters.full), (Some(id), 4, 0));
}

/// Questions that are answered at once leave nothing behind, whichever one stays open before them.
#[test]
fn closed_questions_take_no_memory() {
    let mut all = Neighbours::new(SETTINGS, 1);
    let first = all.number(0, address(1), Nanos(0)).unwrap();
    assert_eq!(all.ask(first, Nanos(0)), Known::Asks);
    for n in 0..20_000_u32 {
        let now = Nanos(1 + u64::from(n) / 100);
        let address = IpAddr::from((0x0b00_0000 + n).to_be_bytes());
        let id = all.number(0, address, now).unwrap();
        assert_eq!(all.ask(id, now), Known::Asks);
        assert!(all.heard(0, address, MAC, (Claim::Known, true), now).is_some());
    }
    assert!(all.links[0].order.len() <= 4 * OPEN as usize);
    assert_eq!((all.ask(first, Nanos(1)), all.counters.displaced), (Known::Waits, 0));
}

/// An answer that nobody asked for says nothing about a gateway that was not needed yet, or gave none; nor
/// does one without an address about a gateway that is asked for.
#[test]
fn only_answers_count() {
    let mut all = Neighbours::new(SETTINGS, 1);
    let gateway = all.pin(0, address(9), None, Nanos(0)).unwrap();
    for claim in [Claim::Known, Claim::Weak, Claim::Same] {
        assert!(all.heard(0, address(9), MAC, (claim, true), Nanos(1)).is_none());
        assert_eq!(all.table.get(gateway).unwrap().state, State::Unknown);
    }
    assert_eq!(all.ask(gateway, Nanos(2)), Known::Asks);
    assert!(all.heard(0, address(9), MAC, (Claim::Same, true), Nanos(3)).is_none());
    assert_eq!(all.ask(gateway, Nanos(3)), Known::Waits);
    assert!(all.heard(0, address(9), MAC, (Claim::Known, true), Nanos(4)).is_some());
    assert_eq!(all.ask(gateway, Nanos(5)), Known::At(MAC));
    // By then it is known: the same counts again for as long, another one not.
    assert!(all.heard(0, address(9), MAC, (Claim::Same, true), Nanos(50)).is_none());
    assert!(all.heard(0, address(9), [4; 6], (Claim::Same, true), Nanos(60)).is_none());
    assert_eq!(all.ask(gateway, Nanos(150)), Known::At(MAC));
    assert_eq!(all.ask(gateway, Nanos(151)), Known::Doubtful(MAC));
    // One that asks for us tells where it is.
    let other = all.pin(0, address(8), None, Nanos(0)).unwrap();
    assert!(all.heard(0, address(8), MAC, (Claim::New, true), Nanos(160)).is_none());
    assert_eq!(all.ask(other, Nanos(161)), Known::At(MAC));
}
