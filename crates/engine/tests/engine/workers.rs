//! Pipelines on several threads: the same bytes and the same counts as on one, whatever their number.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;

use proptest::prelude::*;
use slipstream::batch::Batch;
use slipstream::io::capture::{CaptureReader, CaptureWriter, Format, WriterOptions};
use slipstream::pipeline::Plan;
use slipstream::pool::Pool;
use slipstream::reframe::ReframeConfig;
use slipstream::runtime::{
    CaptureSource, Driver, NullSink, Pipeline, Preload, Replay, ReplayError, RunError, RunReport, ToSink,
};
use slipstream::stage::{Context, Observe, Output, Stage};
use slipstream::time::Nanos;

use crate::capture_support::NgFile;

const CAMPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/campus.pcap.gz");

/// Everything that a run reports but times, which differ from run to run.
fn counts(report: &RunReport) -> String {
    let mut text = String::new();
    for source in &report.sources {
        writeln!(text, "{}: {} {:?}", source.name, source.packets, source.counters).unwrap();
    }
    for stage in &report.stages {
        let t = stage.tally;
        let tally = (t.packets, t.trains, t.batches, t.packets_out);
        let (drops, report) = (stage.drops.iter().collect::<Vec<_>>(), &stage.report);
        writeln!(text, "{}: {tally:?} {:?} {drops:?} {} {report:?}", stage.name, stage.counters, stage.held)
            .unwrap();
    }
    writeln!(text, "{} left", report.live).unwrap();
    text
}

/// Runs a graph on `workers` threads in a directory of its own; the counts, and the files that it wrote by
/// their names.
fn run(graph: &str, base: &Path, workers: usize) -> (String, Vec<(PathBuf, Vec<u8>)>) {
    let (report, files) = run_in_batches(graph, base, workers, 256);
    (counts(&report), files)
}

fn run_in_batches(
    graph: &str,
    base: &Path,
    workers: usize,
    most: usize,
) -> (RunReport, Vec<(PathBuf, Vec<u8>)>) {
    let dir = base.join(format!("{workers}-{most}"));
    std::fs::create_dir_all(&dir).unwrap();
    let plan = Plan::from_graph(graph, None, None, &dir).unwrap_or_else(|e| panic!("{graph}\n{e}"));
    let pipeline = plan.build(7).unwrap_or_else(|e| panic!("{graph}\n{e}"));
    let mut driver = Driver::new(pipeline).workers(workers).largest_batch(most);
    let report = driver.run(&mut |_| ControlFlow::Continue(())).unwrap();
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into(), std::fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    (report, files)
}

/// The packets that took each way, and those that were dropped.
fn packets(report: &RunReport) -> Vec<String> {
    let of = |stage: &slipstream::runtime::StageReport| {
        let drops = stage.drops.iter().collect::<Vec<_>>();
        format!(
            "{}: {} in, {} out, {drops:?}, {} held",
            stage.name, stage.tally.packets, stage.tally.packets_out, stage.held
        )
    };
    report.stages.iter().map(of).collect()
}

fn same_on_any_number(graph: &str) {
    assert!(is_same_on_any_number(graph), "nothing was written:\n{graph}");
}

/// The same; returns true if more was written than a file's header.
fn is_same_on_any_number(graph: &str) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let (counts, files) = run(graph, dir.path(), 1);
    for workers in [2, 3, 4, 7] {
        let (others, written) = run(graph, dir.path(), workers);
        assert_eq!(others, counts, "{workers} workers\n{graph}");
        for ((name, bytes), (other, written)) in files.iter().zip(&written) {
            assert_eq!(name, other, "{workers} workers\n{graph}");
            assert!(bytes == written, "{} differs with {workers} workers\n{graph}", name.display());
        }
        assert_eq!(files.len(), written.len(), "{workers} workers\n{graph}");
    }
    // One event at a time is the obvious twin of batches.
    let (large, _) = run_in_batches(graph, dir.path(), 1, 256);
    for most in [1, 37] {
        let (report, written) = run_in_batches(graph, dir.path(), 1, most);
        assert_eq!(packets(&report), packets(&large), "batches of {most}\n{graph}");
        for ((name, bytes), (_, written)) in files.iter().zip(&written) {
            assert!(bytes == written, "{} differs with batches of {most}\n{graph}", name.display());
        }
    }
    files.iter().any(|(_, bytes)| bytes.len() > 1000)
}

/// The function stages, each with settings under which it has something to do, and the rules that they need.
fn functions(dir: &Path) -> Vec<String> {
    let rules = dir.join("rules.txt");
    let text = "deny tcp dst port 1-2000\ncount udp\nreset tcp src port 1024-9000\ndeny dscp 10\nallow length 60-700\n\
                default allow\n";
    std::fs::write(&rules, text).unwrap();
    // Lengths differ within a flow, and decisions by them can't be cached.
    let cacheable = dir.join("cacheable.txt");
    std::fs::write(&cacheable, text.replace("allow length 60-700\n", "")).unwrap();
    let stateful = dir.join("stateful.txt");
    std::fs::write(
        &stateful,
        "deny state invalid\nallow state established,related\nallow state new src port 1-40000\ndefault deny\n",
    )
    .unwrap();
    let iptables = dir.join("iptables.txt");
    std::fs::write(
        &iptables,
        "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -p tcp -m limit --limit 20/sec --limit-burst 10 -j ACCEPT\n\
         -A FORWARD -p tcp --syn -j DROP\nCOMMIT\n",
    )
    .unwrap();
    let firewall = |file: &Path, more: &str| format!("firewall(rules=\"{}\"{more})", file.display());
    vec![
        firewall(&rules, ""),
        firewall(&cacheable, ", cache=64"),
        firewall(&rules, ", decide=packet"),
        firewall(&stateful, ""),
        firewall(&stateful, ", connections=64"),
        firewall(&iptables, ", format=iptables, chain=FORWARD"),
        "nat(pool=[192.0.2.0/30])".into(),
        "nat(pool=[192.0.2.1], sessions=200)".into(),
        "nptv6(inside=2001:db8::/32, external=fd00:77::/48)".into(),
        "meter(cir=20mbps, cbs=30000, ebs=30000, mark=af2)".into(),
        "meter(cir=1mbps, cbs=3000, pir=2mbps, pbs=6000, per=flow, mark=af1)".into(),
        "flow_stats(flows=64)".into(),
        "flow_stats(active=1s, idle=300ms)".into(),
        "limit(rate=20kpps)".into(),
        "counter".into(),
        "vlan_push(id=7)".into(),
        "vlan_push(id=7) -> vlan_pop".into(),
        "delay(time=300us, jitter=200us)".into(),
        "delay(time=2ms, jitter=2ms, per_flow=false)".into(),
        "delay(time=20ms, jitter=10ms, capacity=20)".into(),
        "delay(time=20ms, jitter=20ms, per_flow=false, capacity=20)".into(),
        "limit(rate=20mbps, burst=3000)".into(),
        "reframe(hold=200us)".into(),
        "reframe(hold=30us, capacity=64, tcp_order=true, compress=ack)".into(),
        "reframe(hold=200us, compress=\"ack,gro\") -> nat(pool=[192.0.2.0/30])".into(),
        "measure(task=heavy-hitters, epoch=2000p)".into(),
        "slice -> meter(cir=20mbps, cbs=30000, ebs=30000, mark=af2) -> splice".into(),
    ]
}

#[test]
fn every_function_on_a_campus() {
    let dir = tempfile::tempdir().unwrap();
    // Several threads read a file that is not compressed.
    let campus = dir.path().join("campus.pcap");
    let packed = std::fs::File::open(CAMPUS).unwrap();
    std::io::copy(
        &mut flate2::read::MultiGzDecoder::new(packed),
        &mut std::fs::File::create(&campus).unwrap(),
    )
    .unwrap();
    for function in functions(dir.path()) {
        same_on_any_number(&format!(
            "in :: pcap(path=\"{}\") -> reframe(hold=64us) -> {function} -> out :: pcap(path=out.pcapng)",
            campus.display()
        ));
    }
}

/// Interfaces that come up in the middle of a file, a second section, time that runs backwards, tunnels, and
/// damage at the end.
#[test]
fn interfaces_that_come_late() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("late.pcapng");
    let mut file = NgFile::new(false).interface(1, 0, &[]);
    for n in 0..6000_u64 {
        let interface = match n {
            ..2000 => 0,
            2000..4000 => (n % 2) as u32,
            _ => 0,
        };
        if n == 2000 {
            file = file.interface(1, 100, &[]);
        } else if n == 4000 {
            file = file.section(false).interface(101, 0, &[]);
        }
        let link = if n < 4000 { &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..] } else { &[] };
        let ip = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, (n % 50) as u8, 10, 0, 0, 2];
        let packet = [link, &ip, &[4, (n % 7) as u8, 0, 53, 0, 8, 0, 0]].concat();
        let back = if n % 100 == 99 { 50 } else { 0 };
        file = file.enhanced(interface, 1_000_000 + 3 * n - back, packet.len() as u32, &packet);
    }
    let bytes = file.interface(1, 0, &[]).bytes;
    for cut in [bytes.len(), bytes.len() - 30] {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        for stages in
            ["reframe(hold=64us)", "counter -> vlan_push(id=7)", "reframe(tunnel=inner) -> flow_stats"]
        {
            let graph = "in :: pcap(path=\"FILE\") -> STAGES -> out :: pcap(path=out.pcapng)";
            same_on_any_number(&graph.replace("FILE", &path.display().to_string()).replace("STAGES", stages));
        }
    }
}

/// The first packets of the campus, sent to a router's station.
fn addressed_to_a_router(path: &Path) {
    let mut reader = CaptureReader::open(Path::new(CAMPUS)).unwrap();
    let options = WriterOptions::for_path(path, Format::Pcap);
    let mut writer = CaptureWriter::create(path, options).unwrap();
    let mut known = 0;
    for _ in 0..3000 {
        let Some(record) = reader.next_record().unwrap() else { break };
        let (mut data, time, len) = (record.data.to_vec(), record.time, record.original_len);
        data[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        for interface in reader.interfaces().iter().skip(known) {
            writer.add_interface(interface);
            known += 1;
        }
        writer.write(0, time, len, &data).unwrap();
    }
    writer.finish().unwrap();
}

/// Ways that part and meet again, packets that go round, several sources.
#[test]
fn graphs_of_any_shape() {
    let dir = tempfile::tempdir().unwrap();
    let to_router = dir.path().join("to_router.pcap");
    addressed_to_a_router(&to_router);
    let routes = dir.path().join("routes.txt");
    std::fs::write(&routes, "0.0.0.0/0 via 192.0.2.254\n").unwrap();
    let router = format!(
        "router(interfaces=[\"lan 10.0.0.1/30 02:00:00:00:00:01\", \"wan 192.0.2.1/24 02:00:00:00:00:02\", \
         \"back 198.51.100.1/24 02:00:00:00:00:03\"], neighbours=[\"192.0.2.254 02:00:00:00:00:03\"], routes=\"{}\")",
        routes.display()
    );
    let synth = |seed: u64| {
        format!(
            "synth(traffic=\"flows=200,packets=6000,slf=2,protocol=0.6,ipv6=0.2,vlan=0.2,size=100..1400,seed={seed}\")"
        )
    };
    let (a, b) = (synth(1), synth(2));
    let rules = dir.path().join("rules.txt");
    std::fs::write(&rules, "deny tcp dst port 1-2000\ndeny udp\ndefault allow\n").unwrap();
    for graph in [
        // Payloads are given up as soon as their packets are dropped, by a stage behind the splicer in the
        // order of stages.
        format!(
            "in :: pcap(path=\"{CAMPUS}\") -> reframe -> slice(entries=64) -> f :: firewall(rules=\"{}\") -> splice -> \
             vlan_push(id=7) -> out :: pcap(path=out.pcapng); f[denied] -> discard",
            rules.display()
        ),
        format!(
            "in :: pcap(path=\"{CAMPUS}\") -> s :: switch(ports=[\"tcp: tcp\", \"udp: udp\"]); \
             s[tcp] -> reframe(hold=100us) -> m :: counter -> out :: pcap(path=out.pcapng); \
             s[udp] -> reframe(hold=20us) -> m; s[2] -> rest :: pcap(path=rest.pcapng)"
        ),
        format!(
            "in :: pcap(path=\"{CAMPUS}\") -> t :: tee(ports=2); t[0] -> reframe -> out :: pcap(path=out.pcapng); \
             t[1] -> flow_stats -> other :: pcap(path=other.pcapng)"
        ),
        format!(
            "a :: {a} -> m :: counter -> reframe -> out :: pcap(path=out.pcapng); b :: {b} -> reframe(hold=1ms) -> m"
        ),
        // The next hop is the router itself, until the hop limit is used up.
        format!(
            "in :: pcap(path=\"{}\") -> reframe -> [lan]r :: {router}; r[lan] -> l :: pcap(path=lan.pcapng); \
             r[wan] -> t :: tee(ports=2); t[0] -> w :: pcap(path=wan.pcapng); t[1] -> discard; r[back] -> b :: pcap(path=back.pcapng)",
            to_router.display()
        ),
        format!(
            "in :: pcap(path=\"{}\") -> reframe -> [lan]r :: {router}; r[lan] -> l :: pcap(path=lan.pcapng); \
             r[wan] -> flow_stats -> tap(path=loop.pcapng) -> [back]r; r[back] -> b :: pcap(path=back.pcapng)",
            to_router.display()
        ),
        // Packets that go round meet those that came later, though nothing holds them.
        format!(
            "in :: pcap(path=\"{}\") -> [lan]r :: {router}; r[lan] -> l :: pcap(path=lan.pcapng); \
             r[wan] -> limit(rate=20mbps) -> tap(path=loop.pcapng) -> [back]r; r[back] -> b :: pcap(path=back.pcapng)",
            to_router.display()
        ),
        // The meter's marks take the place of those by which the splicer knows packets, which leave without
        // their payloads.
        format!(
            "in :: pcap(path=\"{CAMPUS}\") -> reframe -> slice(mode=paper) -> meter(cir=1mbps, cbs=20KB, ebs=30KB, mark=af1) -> \
             splice -> vlan_push(id=7) -> out :: pcap(path=out.pcapng)"
        ),
        // Packets that two reframers let go each at its own time go round before those that follow.
        format!(
            "in :: pcap(path=\"{}\") -> reframe(hold=300us) -> two :: reframe(hold=170us) -> [lan]r :: {router}; \
             r[lan] -> l :: pcap(path=lan.pcapng); r[wan] -> tap(path=loop.pcapng) -> [back]r; r[back] -> b :: pcap(path=back.pcapng)",
            to_router.display()
        ),
        // A reframer lets go what left at an instant once that is over: a delay of nothing behind ways of
        // different lengths is due before the call that its packets come from.
        format!(
            "a :: {a} -> reframe(hold=200us) -> p :: switch(ports=[\"x: udp or length 0-300\"]); p[x] -> counter -> e; \
             p[other] -> e :: delay(time=0ns) -> o :: pcap(path=out.pcapng)"
        ),
        format!(
            "a :: {a} -> [a]br :: l2fwd(ports=[a, b, c]); b :: {b} -> [b]br; br[a] -> x :: pcap(path=a.pcapng); \
             br[b] -> reframe -> y :: pcap(path=b.pcapng); br[c] -> z :: pcap(path=c.pcapng)"
        ),
    ] {
        same_on_any_number(&graph);
    }
}

/// A stage with a fault.
struct Faulty {
    good: usize,
}

impl Observe for Faulty {}

impl Stage for Faulty {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        assert!(self.good > 0, "a fault of a test's stage");
        self.good -= 1;
        out.emit(cx.pool, batch);
    }
}

/// On whichever thread a stage panics, the run ends, and doesn't go well.
#[test]
fn a_fault_of_a_stage_ends_the_run() {
    for (workers, good) in [(2, 0), (2, 3), (3, 20), (4, 41)] {
        let run = move || {
            let faulty: Box<dyn Stage + Send> = Box::new(Faulty { good });
            let stages = vec![
                ("first".to_owned(), Box::new(Faulty { good: usize::MAX }) as Box<dyn Stage + Send>),
                ("faulty".to_owned(), faulty),
                ("out".to_owned(), Box::new(ToSink::new(NullSink)) as Box<dyn Stage + Send>),
            ];
            let source = CaptureSource::new(CaptureReader::open(Path::new(CAMPUS)).unwrap());
            let pipeline = Pipeline::chain(stages).from_source(Box::new(source));
            // SAFETY: these stages hand packets on and keep nothing.
            let pipeline = unsafe { pipeline.shared() };
            Driver::new(pipeline).workers(workers).run(&mut |_| ControlFlow::Continue(())).map(|_| ())
        };
        // A panic of the thread that reads goes on; that of another one becomes an error.
        let ended = thread::spawn(run).join();
        assert!(!matches!(ended, Ok(Ok(()))), "{workers} workers went on");
        if let Ok(Err(error)) = ended {
            assert!(matches!(error, RunError::Died), "{error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Random chains of functions over random traffic.
    #[test]
    fn chains_of_functions(
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..5),
        seed in 0u64..1000,
        flows in 1u32..300,
        slf in 1u32..6,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let all = functions(dir.path());
        // Each stage has a name: two that are named by their type would be one, which packets come by again.
        let stages = picks.iter().flat_map(|pick| pick.get(&all).split(" -> "));
        let chain: Vec<String> = stages.enumerate().map(|(n, stage)| format!("f{n} :: {stage}")).collect();
        // A splice must say whose payloads it brings back where there are two slices.
        prop_assume!(chain.iter().filter(|f| f.contains("slice")).count() < 2);
        let slf = slf.min(flows);
        let graph = format!(
            "in :: synth(traffic=\"flows={flows},packets=4000,slf={slf},protocol=0.6,ipv6=0.2,vlan=0.2,size=100..1400,seed={seed}\") \
             -> {} -> out :: pcap(path=out.pcapng)",
            chain.join(" -> ")
        );
        // Of few flows a firewall may deny all.
        let _ = is_same_on_any_number(&graph);
    }
}

/// Stages that hold packets, or don't, for ways that part and meet.
const PLAIN: [&str; 12] = [
    "counter",
    "reframe(hold=200us)",
    "reframe(hold=50us, capacity=8)",
    "reframe(hold=1ms, burst=3, policy=shortest)",
    "delay(time=100us)",
    "delay(time=300us, jitter=300us)",
    "delay(time=300us, jitter=200us, per_flow=false)",
    "delay(time=5ms, jitter=1ms, capacity=7)",
    "delay(time=0ns)",
    "vlan_push(id=7)",
    "limit(rate=30kpps, burst=20)",
    "flow_stats(active=5ms, idle=1ms)",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Several sources, ways that part by rules or copies and meet again, and stages that hold packets
    /// anywhere on them.
    #[test]
    fn graphs_of_several_ways(
        picks in prop::collection::vec(any::<prop::sample::Index>(), 6),
        (sources, copies, meets, seed) in (1usize..4, any::<bool>(), any::<bool>(), 0u64..1000),
    ) {
        let pick = |n: usize| picks[n].get(&PLAIN);
        let mut graph = String::new();
        for n in 0..sources {
            let traffic = format!(
                "flows=40,packets={},rate={}kpps,slf=2,protocol=0.6,ipv6=0.2,vlan=0.2,size=100..1400,seed={}",
                1500 + 100 * n, 40 + 30 * n, seed + n as u64
            );
            write!(graph, "in{n} :: synth(traffic=\"{traffic}\") -> a{n} :: {} -> m; ", pick(n)).unwrap();
        }
        let (parts, ways) = match copies {
            true => ("tee(ports=2)", ["0", "1"]),
            false => ("switch(ports=[\"x: udp or length 0-300\"])", ["x", "other"]),
        };
        write!(graph, "m :: counter -> p :: {parts}; p[{}] -> b :: {} -> {}; p[{}] -> c :: {} -> ",
            ways[0], pick(3), if meets { "e" } else { "one :: pcap(path=one.pcapng)" }, ways[1], pick(4)).unwrap();
        write!(graph, "e :: {} -> two :: pcap(path=two.pcapng)", pick(5)).unwrap();
        let _ = is_same_on_any_number(&graph);
    }
}

/// Whoever brings a source of his own has to vouch for it before others work in the same memory.
#[test]
fn a_replay_of_somebody_elses_source_runs_on_one_thread() {
    let config = ReframeConfig::default();
    let run = |workers: usize| {
        let mut pool = Pool::new();
        let source = Preload::from_frames([(Nanos(1), &[0; 60][..])].into_iter(), &mut pool, 1);
        let replay = Replay::new(&config).unwrap().workers(workers);
        replay.run(source, pool, NullSink, &mut |_| ControlFlow::Continue(()))
    };
    assert_eq!(run(1).unwrap().stats.packets_in, 1);
    assert!(matches!(run(2), Err(ReplayError::Run(RunError::NotShared { .. }))));
}
