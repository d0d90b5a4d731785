//! `model` and `recommend`: what they take from a capture, and what they tell of settings that mean little.

use std::fs;
use std::path::Path;

use slipstream::io::capture::{CaptureWriter, Format, Interface, WriterOptions};
use slipstream::time::Nanos;

use crate::common::{campus, check_headings, run, scratch, text};

const SERVICE: [&str; 4] = ["--service-base", "100ns", "--service-per-packet", "20ns"];

/// A capture whose packets come at these times, in ns.
fn capture(file: &Path, times: &[u64]) {
    let mut writer = CaptureWriter::create(file, WriterOptions::for_path(file, Format::PcapNg)).unwrap();
    writer.add_interface(&Interface { link_number: 1, snap_len: 96, name: None });
    for time in times {
        writer.write(0, Nanos(*time), 60, &[0; 60]).unwrap();
    }
    writer.finish().unwrap();
}

/// Five packets within 1000 ns: four gaps of 250 ns on average, though the clock runs back by 300 ns.
#[test]
fn a_clock_that_runs_back_makes_no_time() {
    let dir = scratch();
    let file = dir.path().join("back.pcapng");
    capture(&file, &[5000, 5400, 5100, 5600, 6000]);
    let words = ["model", "solve", "--interarrival", "empirical", "--interarrivals", text(&file)];
    let json = run(words.into_iter().chain(SERVICE).chain(["--format", "json"])).with(0).json();
    assert_eq!(json["interarrival"]["mean_slots"], 250.0);
    assert_eq!(json["offered_pps"], 4e6);
    let told = run(["recommend", text(&file), "--hold-cost", "0"]);
    assert!(told.stderr.contains("no packet with a flow"), "{}", told.stderr);
    capture(&file, &[5000]);
    let words = words.into_iter().chain(SERVICE);
    run(words).with(2).silent().saying(&["back.pcapng: has no time between two packets"]);
}

/// Times are whole numbers of slots: those of a slot that is longer than any of them say next to nothing.
#[test]
fn a_slot_that_is_too_long_is_told() {
    let dir = scratch();
    let log = dir.path().join("log.csv");
    fs::write(&log, "time_ns,batch\n0,4\n900,9\n2300,12\n4000,8\n5200,7\n").unwrap();
    let rate = ["--rate", "1mpps"];
    let solve = |slot| run(["model", "solve", "--slot", slot].into_iter().chain(rate).chain(SERVICE)).with(0);
    solve("121ns").saying(&["--slot 121 ns", "one packet takes 120 ns", "shorter slot"]);
    assert!(!solve("120ns").stderr.contains("slot"));
    run(["model", "compare", text(&log), "--slot", "10us"]).with(0).saying(&["--slot 10", "shorter slot"]);
    assert!(!run(["model", "compare", text(&log)]).with(0).stderr.contains("slot"));
    let trace = ["recommend", "synth:packets=200", "--hold-cost", "0", "--holds", "0,16us"];
    run(trace.into_iter().chain(["--slot", "1us"])).with(0).saying(&["--slot 1", "shorter slot"]);
    // It chooses one itself where none is given, and that is no mistake of the user's.
    assert!(!run(trace.into_iter().chain(["--rate", "1pps"])).with(0).stderr.contains("slot"));
}

/// A slot that `recommend` chose itself is in its table where it is longer than usual.
#[test]
fn a_long_slot_is_in_the_table_of_recommend() {
    let table = |more: &[&str]| {
        let words = ["recommend", "synth:packets=200", "--hold-cost", "0", "--holds", "0,16us"];
        String::from_utf8(run(words.iter().chain(more)).with(0).stdout).unwrap()
    };
    assert!(!table(&[]).contains("times of the model"), "10 ns are as usual");
    let told = table(&["--rate", "10pps"]);
    assert!(told.contains("whole numbers of 100 ns (--slot)") && !told.contains("rough"), "{told}");
    let told = table(&["--rate", "1pps"]);
    assert!(told.contains("whole numbers of 1.0 µs (--slot), longer than a packet takes: rough"), "{told}");
}

/// The rate is that of the gaps, and is said to be; the trace's clock that runs back is told, too.
#[test]
fn recommend_says_what_its_rate_is_and_that_times_ran_back() {
    let dir = scratch();
    let file = dir.path().join("back.pcapng");
    let mut writer = CaptureWriter::create(&file, WriterOptions::for_path(&file, Format::PcapNg)).unwrap();
    writer.add_interface(&Interface { link_number: 1, snap_len: 96, name: None });
    // UDP over IPv4.
    let mut packet = [0; 60];
    packet[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    for time in [5000, 5400, 5100, 5600, 6000] {
        writer.write(0, Nanos(time), 60, &packet).unwrap();
    }
    writer.finish().unwrap();
    let ended = run(["recommend", text(&file), "--hold-cost", "0", "--holds", "0,16us"]).with(0);
    assert!(ended.stderr.contains("the times of 1 packet ran backwards"), "{}", ended.stderr);
    let table = String::from_utf8(ended.stdout).unwrap();
    // Four gaps in 1 µs, and not five packets.
    let line = table.lines().find(|line| line.contains("they come at")).unwrap();
    assert!(line.contains("by the mean gap") && line.ends_with("4.000 Mpps"), "{line}");
}

#[test]
fn settings_that_would_change_nothing_are_refused() {
    let dir = scratch();
    let log = dir.path().join("log.csv");
    fs::write(&log, "time_ns,batch\n0,4\n900,9\n2300,12\n").unwrap();
    let words = ["model", "solve", "--mean", "1000", "--seed", "2"];
    run(words.into_iter().chain(SERVICE)).with(2).silent().saying(&["--simulate"]);
    run(["model", "fit", text(&log), "--clock", "2000"]).with(2).silent().saying(&["times are in ns"]);
}

/// The settings that are recommended can be run: with the burst that was asked for, too.
#[test]
fn a_recommended_adaptive_hold_names_its_burst() {
    let told = |burst: &str| {
        let words = ["--hold-cost", "0", "--holds", "0,200us", "--load", "1.2", "--format", "json"];
        let asked = ["recommend", text(&campus()), "--burst", burst].map(str::to_owned);
        let result = run(asked.into_iter().chain(words.map(str::to_owned))).with(0).json();
        result["recommended"]["price"].as_str().unwrap().to_owned()
    };
    let (three, usual) = (told("3"), told("32"));
    assert!(three.contains(" --admit adaptive --budget price=") && three.ends_with(" --burst 3."), "{three}");
    assert!(usual.contains(" --admit adaptive") && !usual.contains("--burst"), "{usual}");
}

/// The page has what the table has: what the answer rests on, and every hold.
#[test]
fn a_page_of_recommend_has_its_figures() {
    let dir = scratch();
    let page = dir.path().join("p.html");
    let words = ["recommend", text(&campus()), "--hold-cost", "60ns", "--holds", "0,32us", "--load", "1.2"]
        .map(str::to_owned);
    run(words.into_iter().chain(["--report".to_owned(), text(&page).to_owned()])).with(0);
    let page = std::fs::read_to_string(page).unwrap();
    for figure in
        ["load is taken at", "a train costs (α)", "<h3>Holds</h3>", "mean latency</th>", ">32us</th>"]
    {
        assert!(page.contains(figure), "{figure}");
    }
    check_headings(&page);
}

/// A token names 65,536 entries at most: where room for bursts would take more, that is said.
#[test]
fn headroom_ends_with_the_entries_that_a_token_can_name() {
    // 250 payloads wait.
    let size = |headroom: &str| {
        let ended = run(["slice", "size", "--explain", "--headroom", headroom]).with(0);
        String::from_utf8(ended.stdout).unwrap()
    };
    let told = size("300");
    assert!(told.contains("x 300 for bursts: more than the 65,536 that a token can name"), "{told}");
    assert!(told.contains("no more can be named by a token: 262.1 times those that wait"), "{told}");
    assert!(!told.contains("N = 65536"), "{told}");
    let told = size("200");
    assert!(told.contains("x 200 for bursts, rounded up: N = 50000"), "{told}");
    assert!(!told.contains("named by a token"), "{told}");
}
