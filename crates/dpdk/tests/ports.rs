//! Pipelines over DPDK's virtual devices, without huge pages. EAL is there once a process: tests take turns.
#![cfg(feature = "libdpdk")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use slipstream::pipeline::{Plan, Registry, built_in};
use slipstream::runtime::{Driver, LiveOptions, RunReport, StageReport};
use slipstream::seed::Seeds;
use slipstream_dpdk::device::{Options, Share};
use slipstream_dpdk::eal::Environment;
use slipstream_dpdk::{Closed, DpdkError, close, take_pool};

static TURN: Mutex<()> = Mutex::new(());

fn registry() -> Registry {
    let mut registry = built_in();
    // SAFETY: its ports leave packets alone that they gave away, or let go to be sent.
    unsafe { registry.register_shared(slipstream_dpdk::DPDK) }.unwrap();
    registry
}

/// Runs a pipeline for so many packets, on so many threads, and closes all.
fn run(graph: &str, packets: u64, workers: usize) -> (RunReport, Closed) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let plan = Plan::from_graph_with(&registry(), graph, None, None, Path::new("")).unwrap();
    let pipeline = plan.build(1).unwrap_or_else(|errors| panic!("{errors}"));
    // SAFETY: stages and ports use packets of the pool that they were handed, which they give on or free,
    // with their lengths.
    let pool = unsafe { take_pool() }.unwrap();
    let duration = Some(Duration::from_secs(30));
    let options = LiveOptions { packets: Some(packets), duration, ..LiveOptions::default() };
    let mut driver = Driver::new(pipeline).pool(pool).live(options).workers(workers);
    let report = driver.run(&mut |_| ControlFlow::Continue(())).unwrap();
    assert!(close().is_none(), "ports are open");
    drop(driver);
    let closed = close().unwrap();
    assert_eq!(report.live, 0, "{report:#?}");
    (report, closed)
}

fn counter(counters: &[(&'static str, u64)], name: &str) -> u64 {
    counters.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no {name} in {counters:?}")).1
}

fn stage<'a>(report: &'a RunReport, name: &str) -> &'a StageReport {
    report.stages.iter().find(|s| s.name == name).unwrap()
}

const EAL: &str = "--no-huge --no-pci";

#[test]
fn nothing_is_copied_nor_lost_on_the_way() {
    let graph = format!(
        "in :: dpdk(device=\"net_null0,size=64\", eal=\"{EAL}\", mbufs=4095, queues=2) -> reframe(hold=10us)
         -> counter -> out :: dpdk(device=net_null1, mbufs=4095)"
    );
    for workers in [1, 2] {
        let (report, closed) = run(&graph, 200_000, workers);
        assert_eq!(closed, Closed { mbufs: 4095, mbufs_left: 0 });
        let [source] = report.sources.as_slice() else { panic!("{report:#?}") };
        let out = stage(&report, "out");
        assert_eq!((source.packets, counter(&source.counters, "packets_received")), (200_000, 200_000));
        assert_eq!((counter(&out.counters, "packets_sent"), out.drops.total()), (200_000, 0));
        assert_eq!(counter(&out.counters, "bytes_sent"), 200_000 * 64);
        assert_eq!((counter(&source.counters, "copied"), counter(&out.counters, "copied")), (0, 0));
    }
}

/// From device to device packets go as they are, also those that take several mbufs; all are counted, and a
/// few looked at.
#[test]
fn nobody_looks_at_packets_from_device_to_device() {
    let directory = tempfile::tempdir().unwrap();
    let (capture, out, frames) = captured(directory.path(), 5000);
    let graph = format!(
        "in :: dpdk(device=\"net_pcap6,rx_pcap={}\", eal=\"{EAL}\", mbufs=2047, buffer=512, burst=7)
         -> out :: dpdk(device=\"net_pcap7,tx_pcap={}\", mbufs=2047, buffer=512)",
        capture.display(),
        out.display()
    );
    let (report, closed) = run(&graph, 5000, 1);
    assert_eq!(closed.mbufs_left, 0);
    assert!(frames_of(&fs::read(out).unwrap()) == frames);
    let (source, out) = (report.sources.first().unwrap(), stage(&report, "out"));
    let bytes = frames.iter().map(|frame| frame.len() as u64).sum();
    assert_eq!((source.packets, counter(&source.counters, "packets_received")), (5000, 5000));
    assert_eq!(
        (counter(&source.counters, "bytes_received"), counter(&out.counters, "bytes_sent")),
        (bytes, bytes)
    );
    assert_eq!(
        (counter(&out.counters, "packets_sent"), out.tally.packets, out.drops.total()),
        (5000, 5000, 0)
    );
    // Neighbours are of different flows: each packet is a train, which those that were looked at tell.
    assert!((4999..=5000).contains(&out.tally.trains), "{:?}", out.tally);
    let copied = counter(&source.counters, "copied");
    assert!((200..1000).contains(&copied), "{copied} of {} packets were looked at", source.packets);
}

/// A ring that nobody takes packets from is full some time.
#[test]
fn packets_from_device_to_device_find_no_room() {
    let graph = format!(
        "in :: dpdk(device=\"net_null9,size=100\", eal=\"{EAL}\", mbufs=4095)
         -> out :: dpdk(device=net_ring9, mbufs=4095, send_wait=1us)"
    );
    let (report, closed) = run(&graph, 20_000, 1);
    let (source, out) = (report.sources.first().unwrap(), stage(&report, "out"));
    let (sent, no_room) = (counter(&out.counters, "packets_sent"), counter(&out.counters, "no_room"));
    assert_eq!((source.packets, sent + no_room, out.drops.total()), (20_000, 20_000, no_room));
    assert_eq!((counter(&out.counters, "bytes_sent"), u64::from(closed.mbufs_left)), (100 * sent, sent));
    assert!((1000..2000).contains(&sent), "{sent}");
}

/// A pipeline that holds all packets that there are gets no more until it lets some go, and says so.
#[test]
fn an_exhausted_mempool_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let capture = directory.path().join("in.pcap");
    fs::write(&capture, pcap(&(0..100).map(frame).collect::<Vec<_>>())).unwrap();
    let graph = format!(
        "in :: dpdk(device=\"net_pcap1,rx_pcap={},infinite_rx=1\", eal=\"{EAL}\", mbufs=511)
         -> reframe(hold=10ms, burst=256, capacity=100000) -> out :: dpdk(device=net_null3, mbufs=511)",
        capture.display()
    );
    let (report, closed) = run(&graph, 2000, 1);
    assert_eq!(closed.mbufs_left, 0);
    let source = report.sources.first().unwrap();
    assert_eq!(counter(&stage(&report, "out").counters, "packets_sent"), 2000);
    assert!(counter(&source.counters, "mempool_empty") > 0, "{report:#?}");
}

/// A capture whose packets are all held, before it is at its end, is no capture that is at its end.
#[test]
fn a_capture_without_free_mbufs_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let capture = directory.path().join("in.pcap");
    // So many flows that no train is full before all mbufs are taken.
    let of_a_flow = |number: u32| {
        let mut frame = frame(number);
        frame[28] = (number % 7) as u8;
        frame
    };
    fs::write(&capture, pcap(&(0..17_000).map(of_a_flow).collect::<Vec<_>>())).unwrap();
    let graph = |hold: &str| {
        format!(
            "in :: dpdk(device=\"net_pcap8,rx_pcap={}\", eal=\"{EAL}\", time=captured)
             -> reframe(hold={hold}, burst=256, capacity=100000) -> out :: null",
            capture.display()
        )
    };
    let (report, closed) = run(&graph("1us"), u64::MAX, 1);
    let source = report.sources.first().unwrap();
    assert_eq!(
        (counter(&source.counters, "packets_received"), counter(&source.counters, "no_mbuf")),
        (17_000, 0)
    );
    assert_eq!(closed.mbufs_left, 0);
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let plan = Plan::from_graph_with(&registry(), &graph("4s"), None, None, Path::new("")).unwrap();
    let pipeline = plan.build(1).unwrap_or_else(|errors| panic!("{errors}"));
    // SAFETY: as in `run`.
    let mut driver = Driver::new(pipeline).pool(unsafe { take_pool() }.unwrap());
    let error = driver.run(&mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(error.contains("no free mbuf") && error.contains("`mbufs`"), "{error}");
    drop(driver);
    assert!(close().is_some());
}

/// A capture whose last packet takes the last mbuf is at its end all the same.
#[test]
fn the_last_packet_of_a_capture_may_have_the_last_mbuf() {
    let directory = tempfile::tempdir().unwrap();
    let capture = directory.path().join("in.pcap");
    for packets in [510, 511] {
        fs::write(&capture, pcap(&(0..packets).map(frame).collect::<Vec<_>>())).unwrap();
        let graph = format!(
            "in :: dpdk(device=\"net_pcap9,rx_pcap={}\", eal=\"{EAL}\", mbufs=511, time=captured)
             -> reframe(hold=4s, burst=256, capacity=100000) -> out :: null",
            capture.display()
        );
        let (report, closed) = run(&graph, u64::MAX, 1);
        let source = report.sources.first().unwrap();
        assert_eq!((source.packets, closed.mbufs_left), (packets.into(), 0));
        // Nobody waited for an mbuf: nothing came since nothing was left.
        assert_eq!(
            (counter(&source.counters, "no_mbuf"), counter(&source.counters, "mempool_empty")),
            (0, 0)
        );
    }
}

/// Packets of a capture leave by a ring and come back: those that are put into the pool lie in mbufs, too.
#[test]
fn packets_go_around_a_ring() {
    let directory = tempfile::tempdir().unwrap();
    let (capture, out, frames) = captured(directory.path(), 500);
    let graph = format!(
        "in :: pcap(path=\"{}\") -> ring :: dpdk(device=net_ring0, eal=\"{EAL}\", mbufs=2047, buffer=512)
         -> out :: pcap(path=\"{}\")",
        capture.display(),
        out.display()
    );
    let (report, closed) = run(&graph, 1000, 1);
    assert_eq!(closed.mbufs_left, 0);
    let came = report.sources.iter().find(|s| s.name == "ring").unwrap();
    // Those that are longer than an mbuf came in several, and were put into one piece again.
    let long = frames.iter().filter(|frame| frame.len() > 512).count() as u64;
    let ring = stage(&report, "ring");
    assert!(long > 100);
    assert_eq!((counter(&ring.counters, "copied"), counter(&came.counters, "copied")), (long, long));
    assert_eq!((counter(&ring.counters, "packets_sent"), came.packets), (500, 500));
    assert_eq!(frames_of(&fs::read(out).unwrap()), frames);
}

/// Packets that stages make lie in mbufs, too, and have their lengths: without huge pages no mbuf crosses a
/// page, so that they lie unevenly.
#[test]
fn sliced_packets_keep_their_lengths() {
    let directory = tempfile::tempdir().unwrap();
    let (capture, out, frames) = captured(directory.path(), 500);
    let graph = format!(
        "in :: dpdk(device=\"net_pcap12,rx_pcap={}\", eal=\"{EAL}\", mbufs=2047, time=captured)
         -> slice -> splice -> out :: pcap(path=\"{}\")",
        capture.display(),
        out.display()
    );
    let (report, closed) = run(&graph, u64::MAX, 1);
    assert_eq!(closed.mbufs_left, 0);
    assert!(counter(&stage(&report, "splice").counters, "spliced") > 100, "{report:#?}");
    let whole: Vec<(u32, Vec<u8>)> = frames.into_iter().map(|frame| (frame.len() as u32, frame)).collect();
    assert!(records(&fs::read(out).unwrap()) == whole);
}

/// A device is there until it is closed, whoever closes it: only then it can be opened anew.
#[test]
fn a_device_that_is_being_closed_is_still_there() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let plan = |graph: &str| Plan::from_graph_with(&registry(), graph, None, None, Path::new("")).unwrap();
    // The mempool stays.
    let other = plan(&format!("dpdk(device=net_null13, eal=\"{EAL}\", mbufs=511) -> null")).build(1).unwrap();
    let again = plan("dpdk(device=\"net_null12,size=65\", mbufs=511) -> null");
    for _ in 0..20 {
        let first = again.build(1).unwrap_or_else(|errors| panic!("{errors}"));
        let gone = std::thread::spawn(|| drop(first));
        let anew = loop {
            match again.build(1) {
                Ok(anew) => break anew,
                // The first one still has it.
                Err(errors) => assert!(errors.to_string().contains("receives from"), "{errors}"),
            }
        };
        gone.join().unwrap();
        assert!(close().is_none(), "ports are open");
        drop(anew);
    }
    drop(other);
    assert_eq!(close().map(|closed| closed.mbufs_left), Some(0));
}

/// Shards have numbers below how many there are: others would have queues of the first ones, and a queue is
/// for one thread.
#[test]
fn shards_have_numbers_of_their_own() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let port = |number, of| {
        let environment = Environment { arguments: EAL.to_owned(), mbufs: 511, room: 2048 };
        let options = Options {
            device: "net_null14".to_owned(),
            environment,
            queues: 2,
            ring: 512,
            mtu: 0,
            promiscuous: false,
            burst: 32,
            captured: false,
            idle: 0,
            send_wait: 0,
            share: Share { number, of },
        };
        (options.open_receiver(), options.open_sender())
    };
    let (first, second) = (port(0, 2), port(1, 2));
    assert!(first.0.is_ok() && first.1.is_ok() && second.0.is_ok() && second.1.is_ok());
    for (number, of) in [(2, 2), (3, 2), (1, 1), (1, 0)] {
        let (receiver, sender) = port(number, of);
        assert!(matches!(receiver, Err(DpdkError::Share { .. })), "{number} of {of}: {receiver:?}");
        assert!(matches!(sender, Err(DpdkError::Share { .. })), "{number} of {of}: {sender:?}");
    }
    drop((first, second));
    assert_eq!(close().map(|closed| closed.mbufs_left), Some(0));
}

/// Errors name the setting, say what is wrong, and leave everything closed.
#[test]
fn errors_say_what_to_do() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for (graph, words) in [
        ("dpdk(device=eth9, EAL) -> null", &["no DPDK device `eth9`", "there are none"][..]),
        ("dpdk(device=\"net_null5,sighs=3\", EAL) -> null", &["net_null5"]),
        (
            "dpdk(device=\"net_pcap5,rx_pcap=/none\", EAL) -> null",
            &["makes no device", "net_pcap5,rx_pcap=/none"],
        ),
        ("dpdk(device=net_nul5, EAL) -> null", &["no DPDK device `net_nul5`"]),
        ("dpdk(device=net_null6, EAL, queues=2) -> dpdk(device=net_null6)", &["queues"]),
        ("dpdk(device=net_null6, EAL) -> dpdk(device=net_null7, mbufs=511)", &["`mbufs`", "16383", "511"]),
        ("dpdk(device=net_null6, EAL) -> dpdk(device=net_null7, eal=\"--no-telemetry\")", &["`eal`"]),
        ("dpdk(device=\"net_null6,size=80\", EAL) -> dpdk(device=\"net_null6,size=81\")", &["there already"]),
        ("null -> a :: dpdk(device=net_null6, EAL); null -> b :: dpdk(device=net_null6)", &["sends to"]),
        ("dpdk(device=net_null6, EAL, time=captured) -> null", &["times", "net_pcap"]),
        ("dpdk(device=net_ring6, EAL, queues=63) -> null", &["queues to receive from, not 63"]),
        ("dpdk(device=\",\", EAL) -> null", &["no name"]),
    ] {
        let graph = graph.replace("EAL", &format!("eal=\"{EAL}\""));
        let plan = Plan::from_graph_with(&registry(), &graph, None, None, Path::new("")).unwrap();
        let error = plan.build(1).err().unwrap_or_else(|| panic!("{graph}")).to_string();
        for word in words {
            assert!(error.contains(word), "{graph}\n{error}");
        }
        if let Some(closed) = close() {
            assert_eq!(closed.mbufs_left, 0, "{graph}");
        }
    }
}

/// A run whose pool is another says so.
#[test]
fn the_pool_has_to_be_the_mempool() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let graph = format!("dpdk(device=net_null8, eal=\"{EAL}\") -> null");
    let plan = Plan::from_graph_with(&registry(), &graph, None, None, Path::new("")).unwrap();
    let mut driver = Driver::new(plan.build(1).unwrap());
    let error = driver.run(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("take_pool"), "{error}");
    drop(driver);
    assert_eq!(close().map(|closed| closed.mbufs_left), Some(0));
}

/// Runs a pipeline on two shards for a while, and closes all.
fn run_shards(graph: &str, duration: Duration) -> RunReport {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let plan = Plan::from_graph_with(&registry(), graph, None, None, Path::new("")).unwrap();
    let plan = plan.in_shards(2).unwrap_or_else(|errors| panic!("{errors}"));
    let options = LiveOptions { duration: Some(duration), ..LiveOptions::default() };
    let driver = |pipeline| {
        // SAFETY: as in `run`.
        let pool = unsafe { take_pool() }.unwrap();
        Driver::new(pipeline).pool(pool).live(options.clone())
    };
    let pipelines = plan.build(|| Seeds::Fixed(1)).unwrap_or_else(|errors| panic!("{errors}"));
    let mut drivers = pipelines.into_iter().map(driver);
    let first = drivers.next().unwrap();
    let mut all = first.beside(drivers.collect());
    let report = all.run(&mut |_| ControlFlow::Continue(())).unwrap();
    drop(all);
    assert_eq!((report.live, close().unwrap().mbufs_left), (0, 0), "{report:#?}");
    report
}

fn of_sources(report: &RunReport, name: &str) -> u64 {
    report.sources.iter().flat_map(|s| &s.counters).filter(|(n, _)| *n == name).map(|(_, n)| n).sum()
}

/// Each shard has queues of its own to receive from and to send to.
#[test]
fn shards_have_queues_of_their_own() {
    for (steer, to_others) in [(false, false), (true, true)] {
        let graph = format!(
            "in :: dpdk(device=\"net_null10,size=64\", eal=\"{EAL}\", mbufs=2047, queues=3, steer={steer}) -> reframe(hold=10us)
             -> out :: dpdk(device=net_null11, mbufs=2047)"
        );
        let report = run_shards(&graph, Duration::from_millis(200));
        let queues: Vec<u64> =
            report.shards.iter().map(|shard| counter(&shard.sources[0].counters, "queues")).collect();
        assert_eq!(queues, [2, 2], "three queues for two shards are four");
        let out = stage(&report, "out");
        assert_eq!(counter(&out.counters, "packets_sent") + out.drops.total(), out.tally.packets);
        let taken: Vec<u64> = report.shards.iter().map(|shard| shard.sources[0].packets).collect();
        // Its frames are no IP, which belongs to the first shard.
        assert!(taken[0] > 1000 && (taken[1] == 0) == to_others, "{taken:?}");
        assert_eq!(of_sources(&report, "to_other_shards") > 0, to_others, "{report:#?}");
    }
}

/// A device with one queue to receive from and one to send to: the first shard receives, and hands over by a
/// ring; all send in turn. Each packet leaves once, those of a flow in order.
#[test]
fn a_device_with_one_queue_serves_all_shards() {
    let directory = tempfile::tempdir().unwrap();
    let (capture, out, frames) = captured(directory.path(), 3000);
    let graph = format!(
        "in :: dpdk(device=\"net_pcap10,rx_pcap={},tx_pcap={}\", eal=\"{EAL}\", mbufs=2047, buffer=4KiB); in -> reframe -> in",
        capture.display(),
        out.display()
    );
    let report = run_shards(&graph, Duration::from_millis(700));
    let shares: Vec<u64> = report.shards.iter().map(|s| stage(s, "in").tally.packets).collect();
    assert!(shares.iter().all(|n| *n > 500), "{shares:?}");
    assert_eq!(of_sources(&report, "to_other_shards"), shares[1]);
    let mut got = frames_of(&fs::read(out).unwrap());
    let flow = |frame: &Vec<u8>| frame[29];
    let number = |frame: &Vec<u8>| u32::from_be_bytes(frame[42..46].try_into().unwrap());
    let mut latest = [None; 50];
    for frame in &got {
        let before = latest[usize::from(flow(frame))].replace(number(frame));
        assert!(before < Some(number(frame)), "{} overtaken", number(frame));
    }
    got.sort_by_key(number);
    assert!(got == frames, "{} packets", got.len());
}

/// Directions of connections that come by different queues meet on one shard, and are one connection.
#[test]
fn both_directions_meet() {
    let directory = tempfile::tempdir().unwrap();
    let (there, back) = (directory.path().join("there.pcap"), directory.path().join("back.pcap"));
    let frames: Vec<Vec<u8>> = (0..500u32).map(frame).collect();
    let answer = |frame: &Vec<u8>| {
        let mut frame = frame.clone();
        for n in 0..4 {
            frame.swap(26 + n, 30 + n);
        }
        frame.swap(34, 36);
        frame.swap(35, 37);
        frame
    };
    fs::write(&there, pcap(&frames)).unwrap();
    fs::write(&back, pcap(&frames.iter().map(answer).collect::<Vec<_>>())).unwrap();
    let rules = directory.path().join("rules.txt");
    fs::write(&rules, "allow state new\nallow state established\n").unwrap();
    let graph = format!(
        "in :: dpdk(device=\"net_pcap11,rx_pcap={},rx_pcap={}\", eal=\"{EAL}\", mbufs=2047, buffer=4KiB)
         -> fw :: firewall(rules=\"{}\") -> null",
        there.display(),
        back.display(),
        rules.display()
    );
    let report = run_shards(&graph, Duration::from_millis(700));
    let counts: Vec<u64> =
        report.shards.iter().map(|s| counter(&stage(s, "fw").counters, "connections")).collect();
    assert_eq!(counts.iter().sum::<u64>(), 50, "{counts:?}");
    assert!(counts.iter().all(|n| *n > 5), "{counts:?}");
    assert_eq!(stage(&report, "fw").tally.packets, 1000);
    assert!(of_sources(&report, "to_other_shards") > 100, "{report:#?}");
}

/// A UDP datagram of one of 50 flows with its number in the payload, 60 to 1400 bytes long.
fn frame(number: u32) -> Vec<u8> {
    let len = 60 + (number as usize * 37) % 1341;
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 5, 8, 0, 0x45, 0];
    frame.extend(((len - 14) as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, (number % 50) as u8, 192, 0, 2, 200, 7, 208, 0, 53]);
    frame.extend(((len - 34) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(number.to_be_bytes());
    frame.resize(len, number as u8);
    frame
}

/// Packets every 10 µs.
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(0xa1b2_c3d4_u32.to_le_bytes());
    file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0]);
    for (time, frame) in (0u32..).step_by(10).zip(frames) {
        for word in [1000, time, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

/// A capture of so many frames in this folder, the name of one beside it to write to, and the frames.
fn captured(directory: &Path, number: u32) -> (PathBuf, PathBuf, Vec<Vec<u8>>) {
    let (capture, out) = (directory.join("in.pcap"), directory.join("out.pcap"));
    let frames: Vec<Vec<u8>> = (0..number).map(frame).collect();
    fs::write(&capture, pcap(&frames)).unwrap();
    (capture, out, frames)
}

/// The packets of a capture, each with its length on the wire.
fn records(file: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let (mut at, mut records) = (24, Vec::new());
    while at < file.len() {
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let len = word(at + 8) as usize;
        records.push((word(at + 12), file[at + 16..at + 16 + len].to_vec()));
        at += 16 + len;
    }
    records
}

fn frames_of(file: &[u8]) -> Vec<Vec<u8>> {
    records(file).into_iter().map(|(_, frame)| frame).collect()
}
