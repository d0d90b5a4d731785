//! Live runs that need no network: a generator at a set pace, and captures' own clocks against the wall.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use slipstream::clock;
use slipstream::pipeline::{OneThread, Plan};
use slipstream::runtime::{Driver, LiveOptions, RunReport};
use slipstream::seed::Seeds;

fn plan(graph: &str) -> Plan {
    Plan::from_graph(graph, None, None, Path::new("")).unwrap()
}

fn run(graph: &str, options: LiveOptions) -> RunReport {
    let pipeline = plan(graph).build(1).unwrap();
    assert!(pipeline.live());
    Driver::new(pipeline).live(options).run(&mut |_| ControlFlow::Continue(())).unwrap()
}

fn excess(report: &RunReport) -> &slipstream_stats::Histogram {
    report.stages.last().unwrap().excess.as_ref().unwrap()
}

#[test]
fn what_is_held_leaves_on_time_and_nothing_is_lost() {
    let graph =
        "paced(rate=20kpps, arrivals=poisson, packets=2000, queue=65536) -> reframe(hold=1ms) -> null";
    // Every packet has its entry. How late most were says more about what else the machine does than about
    // the loop, but some must have left on time, in one of several runs where others keep the cores busy.
    let on_time = (0..10).any(|_| {
        let report = run(graph, LiveOptions::default());
        let stats = report.stages[0].reframe.as_ref().unwrap();
        assert_eq!((stats.packets_in, stats.packets_out, report.live), (2000, 2000, 0));
        assert_eq!(report.sources[0].packets, 2000);
        assert_eq!(report.stages[1].tally.packets, 2000);
        assert_eq!(excess(&report).count(), 2000);
        assert!(stats.total().delay.max().unwrap() <= 1_000_000);
        excess(&report).min().unwrap() < 1_000_000
    });
    assert!(on_time, "no packet left within a millisecond of its time");
}

/// Threads beside the one that asks the sources take sections of the pipeline; what is held leaves though no
/// packet comes.
#[test]
fn several_threads_lose_nothing_and_let_go_what_is_held() {
    let graph = "paced(rate=20kpps, arrivals=poisson, packets=2000, queue=65536) -> reframe(hold=1ms) \
                 -> flow_stats -> reframe(hold=2ms) -> counter -> null";
    for workers in [2, 3] {
        let mut driver = Driver::new(plan(graph).build(1).unwrap()).workers(workers);
        let report = driver.run(&mut |_| ControlFlow::Continue(())).unwrap();
        let kinds: Vec<_> = report.stages.iter().map(|s| s.kind).collect();
        assert_eq!(kinds, ["reframe", "flow_stats", "reframe", "counter", "null"], "{workers} workers");
        for stage in &report.stages {
            assert_eq!((stage.tally.packets, stage.held), (2000, 0), "{}, {workers} workers", stage.name);
        }
        assert_eq!((report.sources[0].packets, report.live), (2000, 0));
        let released = report.stages[2].reframe.as_ref().unwrap().total();
        assert!(released.trains < 2000 && released.delay.max().unwrap() <= 2_000_000, "{released:?}");
        assert_eq!(excess(&report).count(), 2000);
    }
}

/// A limit ends such a run too, and what is inside leaves.
#[test]
fn several_threads_end_at_a_limit() {
    let graph = "paced(rate=50kpps, packets=1000000, queue=65536) -> reframe(hold=1ms) -> counter -> null";
    let options = LiveOptions { packets: Some(3000), ..LiveOptions::default() };
    let mut driver = Driver::new(plan(graph).build(1).unwrap()).workers(2).live(options);
    let report = driver.run(&mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((report.sources[0].packets, report.live), (3000, 0));
    assert_eq!(report.stages.last().unwrap().tally.packets, 3000);
}

/// A sender that has room for so much only is asked before the source is: one thread has to do both.
#[test]
fn what_needs_one_thread_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let graph =
        format!("paced(rate=1kpps, packets=10) -> shm(path=\"{}\")", dir.path().join("there").display());
    let refused =
        Driver::new(plan(&graph).build(1).unwrap()).workers(4).run(&mut |_| ControlFlow::Continue(()));
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("one thread") && said.contains("leave out --workers"), "{said}");
}

/// What settings alone tell of it is known before a port is open.
#[test]
fn what_needs_one_thread_is_known_from_the_settings() {
    for (graph, why) in [
        ("paced(rate=1kpps) -> shm(path=x)", Some(OneThread::Room)),
        ("paced(rate=1kpps) -> shm(path=x, when_full=drop)", None),
        ("shm(path=x) -> null", None),
        ("there :: shm(path=x); there -> there", Some(OneThread::Room)),
        ("paced(rate=1kpps, clock=own) -> null", Some(OneThread::OwnTime)),
    ] {
        assert_eq!(plan(graph).one_thread(), why, "{graph}");
    }
}

#[test]
fn a_log_of_polls_has_every_packet() {
    let pipeline = plan("paced(rate=200kpps, packets=5000, batch=8) -> null").build(1).unwrap();
    let mut run =
        Driver::new(pipeline).live(LiveOptions { poll_log: Some(10_000), ..LiveOptions::default() });
    let report = run.run(&mut |_| ControlFlow::Continue(())).unwrap();
    let log = run.poll_log().unwrap();
    let taken: u64 = log.polls().iter().map(|p| u64::from(p.batch)).sum();
    assert_eq!(taken, report.sources[0].packets);
    assert_eq!(taken + report.sources[0].counter("dropped_by_queue").unwrap(), 5000);
    assert!(log.polls().iter().all(|p| (1..=8).contains(&p.batch)));
    assert!(log.polls().windows(2).all(|w| w[0].time <= w[1].time));
}

#[test]
fn limits_end_a_run_and_what_is_held_leaves() {
    let endless = "paced(rate=100kpps) -> reframe(hold=4s, burst=256) -> null";
    let report = run(endless, LiveOptions { packets: Some(300), ..LiveOptions::default() });
    assert_eq!((report.sources[0].packets, report.stages[1].tally.packets, report.live), (300, 300, 0));

    let since = clock::now();
    let report =
        run(endless, LiveOptions { duration: Some(Duration::from_millis(50)), ..LiveOptions::default() });
    assert!(since.elapsed() >= Duration::from_millis(50));
    assert_eq!(report.stages[1].tally.packets, report.sources[0].packets);

    let mut asked = 0;
    let report = Driver::new(plan(endless).build(1).unwrap())
        .run(&mut |_| {
            asked += 1;
            if asked > 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!(report.stages[1].tally.packets, report.sources[0].packets);
}

/// A capture in a live run keeps its own pace, and the thread sleeps in between.
#[test]
fn generated_traffic_comes_at_its_own_pace() {
    let graph = "synth(traffic=\"packets=21,rate=100pps,start=1000000\") -> a :: null; \
                 paced(rate=1kpps, packets=10) -> b :: null";
    let since = clock::now();
    let report = run(graph, LiveOptions::default());
    assert!(since.elapsed() >= Duration::from_millis(200));
    let packets: Vec<_> = report.sources.iter().map(|s| (s.kind, s.packets)).collect();
    assert_eq!(packets, [("synth", 21), ("paced", 10)]);
    let late = report.stages[0].excess.as_ref().unwrap();
    assert_eq!(late.count(), 21);
    assert!(late.min().unwrap() < 5_000_000, "{:?}", late.min());
}

#[test]
fn a_live_port_may_stand_at_both_ends() {
    let graph = "lan :: af_packet(interface=eth1); wan :: af_packet(interface=eth2); \
                 lan -> east :: reframe -> wan; wan -> west :: reframe -> lan";
    let two = plan(graph);
    two.check().unwrap();
    let shared = "lan :: af_packet(interface=eth1); wan :: af_packet(interface=eth2); \
                  lan -> sw :: switch(ports=[\"dns: udp port 53\"]); wan -> sw; sw[dns] -> lan; sw[other] -> wan";
    plan(shared).check().unwrap();
    // A way round through stages stays one.
    let round = "lan :: af_packet(interface=eth1); lan -> a :: counter -> b :: counter -> a; b -> lan";
    assert!(Plan::from_graph(round, None, None, Path::new("")).is_err());
    // Files have one end.
    let file = "f :: pcap(path=x.pcap); f -> counter -> f";
    let error = Plan::from_graph(file, None, None, Path::new("")).unwrap_err().to_string();
    assert!(error.contains("both come from"), "{error}");
    for (name, wrong) in [("a/b", true), ("0123456789abcdef", true), ("eth0.100", false)] {
        let graph = format!("af_packet(interface=\"{name}\") -> null");
        assert_eq!(plan(&graph).check().is_err(), wrong, "{name}");
    }
    let error = plan("af_packet(interface=no-such-port) -> null").build(1).unwrap_err().to_string();
    assert!(error.contains("no interface `no-such-port`") || error.contains("CAP_NET_RAW"), "{error}");
}

/// A replay repeats itself; where packets come from a network nobody knows the seed, unless it was asked for.
#[test]
fn seeds_are_secret_where_packets_come_live() {
    let replay = plan("synth -> flow_stats -> null");
    let live = [
        "af_packet(interface=eth1) -> flow_stats -> null",
        "synth -> flow_stats -> af_packet(interface=eth1)",
        "paced(rate=1kpps) -> null",
    ];
    assert_eq!((replay.seeds(None), replay.seeds(Some(7))), (Seeds::Fixed(1), Seeds::Fixed(7)));
    for graph in live {
        let plan = plan(graph);
        assert_eq!((plan.seeds(None), plan.seeds(Some(7))), (Seeds::Secret, Seeds::Fixed(7)), "{graph}");
    }
}
