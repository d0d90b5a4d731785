//! Any bytes as a poll log: an error, or polls in order of time, which are written and read again as they
//! were.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream_model::{PollLog, PollWriter, fit};

fuzz_target!(|data: &[u8]| {
    let Ok(log) = PollLog::read("fuzz", data, Some(1000.0)) else { return };
    assert!(log.polls() > 0);
    for run in &log.runs {
        assert!(run.polls.windows(2).all(|w| w[0].time_ns < w[1].time_ns));
        assert!(run.services().all(|(_, ns)| ns > 0.0));
    }
    let _ = fit(&log);
    // Whole times come back as they were: since the first poll.
    let run = &log.runs[0];
    let whole = |ns: f64| ns.fract() == 0.0 && (0.0..1e15).contains(&ns);
    if run.polls.iter().all(|p| whole(p.time_ns) && p.empty_before == 0) {
        let mut writer = PollWriter::new(Vec::new(), u64::MAX).unwrap();
        for poll in &run.polls {
            writer.poll(poll.time_ns as u64 + 1, poll.batch).unwrap();
        }
        let again = PollLog::read("again", writer.finish().unwrap().as_slice(), None).unwrap();
        assert_eq!(again.runs[0].polls, run.polls);
    }
});
