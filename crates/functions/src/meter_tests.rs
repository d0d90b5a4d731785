use proptest::prelude::*;

use super::*;

/// A fraction of bytes, as a numerator over eight billions, as rates are in bits: what the RFCs' buckets
/// hold.
type Fraction = i128;
const ONE: Fraction = 8_000_000_000;

/// The RFCs as written: one nanosecond at a time would be endless, one packet at a time with exact fractions
/// is the same.
struct Slow {
    tc: Fraction,
    te: Fraction,
    tp: Fraction,
    last: u64,
}

fn slow(marker: &Marker, state: &mut Slow, bytes: u32, before: Colour, now: u64) -> Colour {
    let b = Fraction::from(bytes) * ONE;
    let dt = Fraction::from(now - state.last);
    state.last = now;
    match *marker {
        Marker::SingleRate { cir, cbs, ebs } => {
            // RFC 2697 §2: Tc is incremented while below CBS, else Te while below EBS.
            let mut new = Fraction::from(cir) * dt;
            let into_c = new.min(Fraction::from(cbs) * ONE - state.tc);
            state.tc += into_c;
            new -= into_c;
            state.te = (state.te + new).min(Fraction::from(ebs) * ONE);
            // §3, the colour-aware mode.
            if before == Colour::Green && state.tc - b >= 0 {
                state.tc -= b;
                Colour::Green
            } else if (before == Colour::Green || before == Colour::Yellow) && state.te - b >= 0 {
                state.te -= b;
                Colour::Yellow
            } else {
                Colour::Red
            }
        }
        Marker::TwoRate { cir, cbs, pir, pbs } => {
            state.tc = (state.tc + Fraction::from(cir) * dt).min(Fraction::from(cbs) * ONE);
            state.tp = (state.tp + Fraction::from(pir) * dt).min(Fraction::from(pbs) * ONE);
            if before == Colour::Red || state.tp - b < 0 {
                Colour::Red
            } else if before == Colour::Yellow || state.tc - b < 0 {
                state.tp -= b;
                Colour::Yellow
            } else {
                state.tp -= b;
                state.tc -= b;
                Colour::Green
            }
        }
    }
}

fn marker() -> impl Strategy<Value = Marker> {
    let rate = || prop_oneof![1..1000_u64, 1_000_000..2_000_000_000_u64];
    let burst = || prop_oneof![1..5000_u64, 100_000..200_000_u64, Just(MAX_TOKENS)];
    prop_oneof![
        (rate(), burst(), burst()).prop_map(|(cir, cbs, ebs)| Marker::SingleRate { cir, cbs, ebs }),
        (rate(), rate(), burst(), burst()).prop_map(|(cir, more, cbs, pbs)| Marker::TwoRate {
            cir,
            cbs,
            pir: cir + more,
            pbs
        }),
    ]
}

proptest! {
    #[test]
    fn equals_exact_fractions(
        marker in marker(),
        packets in proptest::collection::vec(
            (0..10_000_u32, prop_oneof![0..2000_u64, 0..1_000_000_000_u64, Just(40_000_000_000_000)], 0..3_usize), 1..200),
        aware: bool,
    ) {
        let marker = marker.checked().unwrap();
        let (cbs, ebs, pbs) = match marker {
            Marker::SingleRate { cbs, ebs, .. } => (cbs, ebs, 0),
            Marker::TwoRate { cbs, pbs, .. } => (cbs, 0, pbs),
        };
        let full = |size: u64| Fraction::from(size) * ONE;
        let mut now = 1_700_000_000_000_000_000;
        let mut twin = Slow { tc: full(cbs), te: full(ebs), tp: full(pbs), last: now };
        let mut meter = Meter::new(&marker, Nanos(now));
        let key = FlowKey::Narrow(slipstream_wire::NarrowKey([1, 2]));
        let mut flows = FlowMeters::new(marker, 4, 7).unwrap();
        flows.meter(&key, flows.prefetch(&key), Nanos(now));
        for (bytes, gap, before) in packets {
            now += gap;
            let before = if aware { [Colour::Green, Colour::Yellow, Colour::Red][before] } else { Colour::Green };
            let expected = slow(&marker, &mut twin, bytes, before, now);
            prop_assert_eq!(meter.colour(&marker, bytes, before, Nanos(now)), expected);
            // Forgotten and made anew, or not: the same.
            flows.expire(Nanos(now), 10);
            let (marker, of_flow) = flows.meter(&key, flows.prefetch(&key), Nanos(now));
            prop_assert_eq!(of_flow.colour(marker, bytes, before, Nanos(now)), expected);
        }
    }
}

#[test]
fn a_meter_goes_from_green_over_yellow_to_red() {
    let marker = Marker::SingleRate { cir: 8000, cbs: 1500, ebs: 1000 };
    let mut meter = Meter::new(&marker, Nanos(0));
    let mut at = |ms: u64| meter.colour(&marker, 1000, Colour::Green, Nanos(ms * 1_000_000));
    assert_eq!([at(0), at(0), at(0)], [Colour::Green, Colour::Yellow, Colour::Red]);
    assert_eq!([at(499), at(500)], [Colour::Red, Colour::Green]);
}

#[test]
fn flows_without_room_share() {
    let mut meters = FlowMeters::new(Marker::SingleRate { cir: 1, cbs: 1000, ebs: 0 }, 1, 7).unwrap();
    let key = |n| FlowKey::Narrow(slipstream_wire::NarrowKey([n, 2]));
    let mut colour = |n| {
        let (marker, meter) = meters.meter(&key(n), meters.prefetch(&key(n)), Nanos(9));
        meter.colour(marker, 1000, Colour::Green, Nanos(9))
    };
    assert_eq!([colour(1), colour(2), colour(3)], [Colour::Green, Colour::Green, Colour::Red]);
    assert_eq!((meters.shared(), meters.flows()), (2, 1));
}

#[test]
fn code_points() {
    let map = DscpMap::assured_forwarding(1);
    assert_eq!([Colour::Green, Colour::Yellow, Colour::Red].map(|c| map.mark(c, 0)), [10, 12, 14]);
    assert_eq!(
        [10, 12, 14, 46].map(|d| map.colour_of(d)),
        [Colour::Green, Colour::Yellow, Colour::Red, Colour::Green]
    );
    // Without marks, or with others: any assured forwarding class.
    let none = DscpMap { marks: [None; 3] };
    for class in 1..=4_u8 {
        let points = [2, 4, 6].map(|precedence| none.colour_of(class << 3 | precedence));
        assert_eq!(points, [Colour::Green, Colour::Yellow, Colour::Red], "class {class}");
    }
    assert_eq!([0, 8, 4, 6, 46, 44].map(|d| none.colour_of(d)), [Colour::Green; 6]);
    let own = DscpMap { marks: [Some(14), Some(8), None] };
    assert_eq!([14, 8, 22].map(|d| own.colour_of(d)), [Colour::Green, Colour::Yellow, Colour::Red]);
    assert_eq!(DscpMap { marks: [None, None, Some(8)] }.mark(Colour::Yellow, 46), 46);
}

#[test]
fn numbers_that_make_no_meter() {
    let single = |cir, cbs, ebs| Marker::SingleRate { cir, cbs, ebs }.checked().err();
    let two = |cir, cbs, pir, pbs| Marker::TwoRate { cir, cbs, pir, pbs }.checked().err();
    assert_eq!(single(0, 1, 1), Some(MeterError::NoRate));
    assert_eq!(single(1, 0, 0), Some(MeterError::NoBurst));
    assert_eq!(single(1, 0, 1), None);
    assert_eq!(single(1, 1 << 32, 1), Some(MeterError::Burst(1 << 32)));
    assert_eq!(two(5, 1, 4, 1), Some(MeterError::PeakBelowCommitted));
    assert_eq!(two(5, 0, 5, 1), Some(MeterError::NoBurst));
    assert_eq!(two(5, 1, 5, 1), None);
}
