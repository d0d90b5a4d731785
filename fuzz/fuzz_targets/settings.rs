//! Any text as the value of every setting of every stage type, as a class, a budget, a task, a key and as
//! traffic to be made: an error in words, or a value of its kind, which reads again as it prints; and traffic
//! is made as its settings say.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::io::synth::{Synth, SynthConfig};
use slipstream::measure::{EpochLength, KeyKind, Keying, Task};
use slipstream::pipeline::{Kind, Value, stage_types};
use slipstream::reframe::{Budget, Class, ReframeConfig};
use slipstream::units::{Bytes, Count, Duration, Rate};
use slipstream_wire::{LinkType, classify};

/// Frames that are made of any settings.
const FRAMES: usize = 40;

fn traffic(text: &str) {
    let Ok(config) = SynthConfig::from_text(text) else { return };
    // What takes much memory is right, and not looked at here.
    if config.flows > 1 << 12 || config.copies > 4 {
        let _ = config.validate();
        return;
    }
    let (packets, plain) = (config.packets, config.vlan_ids.len() <= 1);
    let Ok(mut synth) = Synth::new(config) else { return };
    let (mut buf, mut last) = (Vec::new(), 0);
    for number in 0..FRAMES {
        let Some(time) = synth.next_packet(&mut buf) else {
            assert_eq!(number as u64, packets);
            return;
        };
        assert!(time.0 >= last);
        last = time.0;
        assert!(classify(LinkType::Ethernet, &buf).is_ok() || !plain, "{text}: {buf:?}");
    }
    assert!(packets >= FRAMES as u64);
}

fuzz_target!(|text: &str| {
    // Files are no matter of this.
    if text.contains('@') || text.len() > 2000 {
        return;
    }
    let here = std::path::Path::new("/nowhere");
    let said = |error: &str| assert!(!error.is_empty());
    for setting in stage_types().iter().flat_map(|kind| kind.settings) {
        match setting.parse(text, here) {
            Err(error) => said(&error),
            Ok(value) => {
                assert!(setting.kind.accepts(&value), "{}: {text:?} gives {value:?}", setting.name);
                let printed = value.to_string();
                let again = setting.parse(&printed, here);
                let whole = !matches!(value, Value::File(_) | Value::List(_)) && printed.len() < 65_536;
                // A number is a time only with its unit.
                let timeless = !matches!(setting.kind, Kind::Time(..) | Kind::TimeOr(..));
                assert!(!(whole && timeless) || again.as_ref() == Ok(&value), "{}: {printed:?} {again:?}", setting.name);
            }
        }
    }
    if let Ok(class) = Class::parse(text, &ReframeConfig::default().default, here) {
        let config = ReframeConfig { classes: vec![class], flows: 1, capacity: 4, ..ReframeConfig::default() };
        let _ = config.validate();
    }
    let _ = (text.parse::<Budget>(), text.parse::<Count>(), text.parse::<Bytes>(), text.parse::<Rate>());
    if let Ok(Duration(ns)) = text.parse::<Duration>() {
        let printed = Duration(ns).to_string();
        let Duration(again) = printed.parse().expect("a time that was printed");
        assert!(again.abs_diff(ns) as f64 <= ns as f64 * 1e-3 + 1.0, "{ns} ns, {printed}, {again} ns");
    }
    if let Ok(epoch) = text.parse::<EpochLength>() {
        assert!(!epoch.to_string().is_empty());
    }
    if let Ok(task) = text.parse::<Task>() {
        assert_eq!(task.to_string().parse::<Task>().ok(), Some(task));
    }
    let (kind, key) = text.split_once(' ').unwrap_or((text, ""));
    if let Ok(kind) = kind.parse::<KeyKind>() {
        assert_eq!(kind.to_string().parse::<KeyKind>(), Ok(kind));
        for keying in [Some(Keying::plain(kind)), Keying::pairs(kind, false).ok()].into_iter().flatten() {
            if let Ok((bytes, ipv6)) = keying.parse(key) {
                let shown = keying.show(bytes.get(), ipv6);
                assert_eq!(keying.parse(&shown), Ok((bytes, ipv6)), "{shown}");
            }
        }
    }
    traffic(text);
});
