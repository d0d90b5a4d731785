//! Fig. 3 in small: Open vSwitch with its datapath in userspace over DPDK, and what a packet takes there by
//! locality. The rules are as the paper's: by source and destination addresses of Ethernet and IP, of which
//! one takes the traffic.
//!
//! Packets come from a capture that DPDK's `net_pcap` has in memory, over and over, as fast as the switch
//! takes them, and leave by `net_null`: the switch is busy all the time, and what it takes is its own. Over
//! sockets a packet costs it 14 us, of which it looks for less than a hundredth.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;

use super::net::{End, Net, Running};
use super::{READY, median};
use crate::{Bench, Chart, Claim, Findings};

/// Debian has this beside the switch that knows nothing of DPDK.
const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
/// Programs of Open vSwitch that this takes.
pub(super) const PROGRAMS: [&str; 6] =
    ["ovsdb-tool", "ovsdb-server", "ovs-vsctl", "ovs-ofctl", "ovs-appctl", SWITCH];
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const RULES: [usize; 2] = [1000, 10_000];
const FLOWS: &str = "10000";
/// Packets of a capture: 16 of each flow. Those of them that come back to back make the SLF.
const PACKETS: &str = "160000";
/// Huge pages of 2 MiB, and MiB of them that DPDK takes at once.
const PAGES: u64 = 1000;
const MEMORY: &str = "900";
const ALL_PAGES: &str = "/proc/sys/vm/nr_hugepages";
/// SLF, and the paper's medians of the latency with 1,000 and with 10,000 rules at each, us (Fig. 3a).
const PAPER: [(u32, [f64; 2]); 6] = [
    (1, [74.5, 85.5]),
    (4, [58.0, 73.0]),
    (8, [46.0, 51.0]),
    (16, [42.5, 43.0]),
    (24, [45.0, 46.0]),
    (32, [51.0, 53.5]),
];
/// The SLF at which the claims compare.
const CLAIMED: u32 = 16;
/// The switch's caches of flows before its rules: as it is installed, and as the paper has them (the
/// signature match cache, without the exact match cache before it).
const CACHES: [(&str, &[&str]); 2] = [
    ("exact match cache", &[]),
    ("signature match cache", &["other_config:emc-insert-inv-prob=0", "other_config:smc-enable=true"]),
];
const WHY: &str = "the paper has latency through the kernel's datapath at 66 Gbit/s, this is CPU time of the datapath in \
                   userspace over DPDK";

/// As many huge pages more as this takes; they go back with the value.
struct HugePages(String);

impl HugePages {
    fn take() -> anyhow::Result<Self> {
        let before = fs::read_to_string(ALL_PAGES)?.trim().to_owned();
        let wanted = before.parse::<u64>().context("the number of huge pages")? + PAGES;
        fs::write(ALL_PAGES, wanted.to_string()).context("huge pages for DPDK, which take root")?;
        let this = Self(before);
        let there = fs::read_to_string(ALL_PAGES)?;
        ensure!(there.trim() == wanted.to_string(), "there are {} huge pages, not {wanted}", there.trim());
        Ok(this)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // Who may not write to it did not get this far.
        let _ = fs::write(ALL_PAGES, &self.0);
    }
}

/// A switch; its processes end with the value.
struct Switch {
    net: Net,
    folder: tempfile::TempDir,
    switch: Running,
    _database: Running,
    /// Sources that it had.
    sources: u32,
}

impl Switch {
    fn new(cache: &[&str]) -> anyhow::Result<Self> {
        let (net, folder) = (Net::new()?, tempfile::tempdir()?);
        let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let within = format!("OVS_RUNDIR={}", folder.path().display());
        let remote = format!("unix:{}", at("db.sock"));
        let in_middle = |words: &[&str]| net.run(End::Middle, "env", &[&[within.as_str()], words].concat());
        in_middle(&["ovsdb-tool", "create", &at("db"), SCHEMA])?;
        let start = |words: &[&str]| -> anyhow::Result<Running> {
            let quiet = ["-vconsole:off", "-vsyslog:off"];
            let mut running = net.start(End::Middle, "env", &[&[within.as_str()], words, &quiet].concat())?;
            running.settle(READY)?;
            Ok(running)
        };
        let listens = format!("--remote=p{remote}");
        let database = start(&["ovsdb-server", &at("db"), &listens, &format!("--unixctl={}", at("db.ctl"))])?;
        let database_too = format!("--db={remote}");
        let set = |words: &[&str]| {
            in_middle(&[&["ovs-vsctl", "--timeout=20", "--no-wait", &database_too], words].concat())
        };
        set(&["init"])?;
        let memory = format!("other_config:dpdk-socket-mem={MEMORY}");
        // Its thread that polls has a core of its own, where there are two.
        let core =
            if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) { 2 } else { 1 };
        let core = format!("other_config:pmd-cpu-mask={core}");
        let dpdk =
            ["other_config:dpdk-init=true", "other_config:dpdk-extra=--no-pci --in-memory", &memory, &core];
        set(&[&["set", "Open_vSwitch", "."][..], &dpdk, cache].concat())?;
        let switch = start(&[SWITCH, &remote, &format!("--unixctl={}", at("switch.ctl"))])?;
        let this = Self { net, folder, switch, _database: database, sources: 0 };
        let userspace = ["datapath_type=netdev", "protocols=OpenFlow14"];
        this.set(&[&["add-br", "br0", "--", "set", "bridge", "br0"][..], &userspace].concat())?;
        this.device("out", "net_null0,no-rx=1", 2)?;
        Ok(this)
    }

    /// A command of Open vSwitch's own.
    fn command(&self, words: &[&str]) -> anyhow::Result<String> {
        let within = format!("OVS_RUNDIR={}", self.folder.path().display());
        self.net.run(End::Middle, "env", &[&[within.as_str()], words].concat())
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn set(&self, words: &[&str]) -> anyhow::Result<String> {
        let database = format!("--db=unix:{}", self.at("db.sock"));
        self.command(&[&["ovs-vsctl", "--timeout=20", &database], words].concat())
    }

    /// Gives it a device of DPDK.
    fn device(&self, name: &str, arguments: &str, number: u32) -> anyhow::Result<()> {
        let (device, number) =
            (format!("options:dpdk-devargs=\"{arguments}\""), format!("ofport_request={number}"));
        self.set(&["add-port", "br0", name, "--", "set", "interface", name, "type=dpdk", &device, &number])?;
        Ok(())
    }

    /// Puts so many rules in the place of the present ones.
    fn rules(&self, count: usize) -> anyhow::Result<()> {
        let path = self.at("rules");
        fs::write(&path, rules(count))?;
        let bridge = format!("unix:{}", self.at("br0.mgmt"));
        let all =
            |words: &[&str]| self.command(&[&["ovs-ofctl", "-O", "OpenFlow14"], words].concat()).map(drop);
        all(&["del-flows", &bridge])?;
        all(&["add-flows", &bridge, &path])
    }

    /// CPU time of the thread that polls, in ns, and what it counted.
    fn counted(&self) -> anyhow::Result<(u64, BTreeMap<String, f64>)> {
        let target = self.at("switch.ctl");
        let text = self.command(&["ovs-appctl", "-t", &target, "dpif-netdev/pmd-stats-show"])?;
        Ok((self.switch.cpu_ns_of("pmd-"), counters(&text)))
    }

    /// CPU time of the switch for a packet of this capture, in ns; the parts of packets that its exact match
    /// cache and its signature match cache knew.
    fn forward(&mut self, capture: &Path, time: Duration) -> anyhow::Result<[f64; 3]> {
        self.sources += 1;
        let source = format!("in{}", self.sources);
        let arguments = format!("net_pcap{},rx_pcap={},infinite_rx=1", self.sources, capture.display());
        self.device(&source, &arguments, 1)?;
        // The caches get to know the flows.
        std::thread::sleep(READY);
        let (from, before) = self.counted()?;
        std::thread::sleep(time);
        let (to, after) = self.counted()?;
        self.set(&["del-port", "br0", &source])?;
        let more = |name: &str| after.get(name).unwrap_or(&0.0) - before.get(name).unwrap_or(&0.0);
        let packets = more("packets received");
        ensure!(packets > 0.0, "Open vSwitch forwarded no packet");
        Ok([(to - from) as f64 / packets, more("emc hits") / packets, more("smc hits") / packets])
    }
}

/// The counters of the thread that polls, by name, as Open vSwitch prints them.
fn counters(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().skip_while(|line| !line.starts_with("pmd thread")).skip(1);
    let counter = |line: &str| {
        let (name, value) = line.trim().split_once(':')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    lines.take_while(|line| line.starts_with(' ')).filter_map(counter).collect()
}

/// Captures of this traffic, one for each SLF.
fn captures(lab: &Bench<'_>, folder: &Path, slfs: &[(u32, [f64; 2])]) -> anyhow::Result<Vec<PathBuf>> {
    let capture = |(slf, _): &(u32, _)| {
        let (path, slf) = (folder.join(format!("slf{slf}.pcap")), slf.to_string());
        let words = ["--flows", FLOWS, "--packets", PACKETS, "--size", "60", "--seed", "7", "--slf", &slf];
        let done = std::process::Command::new(&lab.program).arg("synth").args(words).arg(&path).output()?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Ok(path)
    };
    slfs.iter().map(capture).collect()
}

/// So many rules, of which the last takes all traffic.
fn rules(count: usize) -> String {
    let mut text = String::new();
    for n in 1..count {
        let (high, low) = (n >> 8, n & 255);
        let _ = writeln!(
            text,
            "priority=10,ip,dl_src=02:11:00:00:{high:02x}:{low:02x},dl_dst=02:12:00:00:{high:02x}:{low:02x},\
             nw_src=172.16.{high}.{low},nw_dst=172.17.{high}.{low},actions=output:1"
        );
    }
    text + "priority=10,ip,in_port=1,actions=output:2\n"
}

/// Traffic of known SLF through the switch. `share` are the places of this part on the way of the whole lab.
pub(super) fn run(lab: &Bench<'_>, findings: &mut Findings, share: [f64; 2]) -> anyhow::Result<()> {
    let (runs, time) = if lab.quick { (1, 300) } else { (3, 500) };
    let slfs: Vec<(u32, [f64; 2])> =
        PAPER.into_iter().filter(|(slf, _)| !lab.quick || [1, CLAIMED].contains(slf)).collect();
    let _pages = HugePages::take()?;
    let folder = tempfile::tempdir()?;
    let captures = captures(lab, folder.path(), &slfs)?;
    let steps = CACHES.len() * RULES.len() * runs * slfs.len();
    let mut done = 0;
    let mut charted = Vec::new();
    for (cache, settings) in CACHES {
        let mut switch = Switch::new(settings)?;
        let mut medians = Vec::new();
        for (n, count) in RULES.iter().enumerate() {
            switch.rules(*count)?;
            let mut all: Vec<Vec<[f64; 3]>> = vec![Vec::new(); slfs.len()];
            for _ in 0..runs {
                for (capture, times) in captures.iter().zip(&mut all) {
                    times.push(switch.forward(capture, Duration::from_millis(time))?);
                    done += 1;
                    let [from, to] = share;
                    lab.step(from + (to - from) * f64::from(done) / steps as f64)?;
                }
            }
            let mut of_these = Vec::new();
            for ((slf, paper), times) in slfs.iter().zip(&all) {
                let of = |which: fn(&[f64; 3]) -> f64| median(times.iter().map(which).collect());
                let ns = of(|[ns, ..]| *ns);
                findings.row(json!({
                    "part": "open vswitch", "cache": cache, "rules": count, "slf": slf, "runs": runs,
                    "switch_ns_per_packet": ns, "known_to_exact_cache": of(|[_, exact, _]| *exact),
                    "known_to_signature_cache": of(|[.., signature]| *signature),
                    "paper_latency_p50_us": paper.get(n),
                }));
                of_these.push(ns);
            }
            medians.push(of_these);
        }
        claim(cache, &slfs, &medians, findings);
        let series = RULES.iter().zip(medians);
        charted
            .extend(series.map(|(count, all)| {
                (format!("{cache}, {count} rules"), all.into_iter().map(Some).collect())
            }));
    }
    findings.draw(Chart {
        title: "Open vSwitch's CPU by locality (beside Fig. 3a)".into(),
        caption: "CPU time of the switch a packet, datapath in userspace over DPDK; 10,000 UDP flows.".into(),
        x_label: "SLF".into(),
        y_label: "ns a packet".into(),
        groups: slfs.iter().map(|(slf, _)| slf.to_string()).collect(),
        series: charted,
    });
    Ok(())
}

/// What the paper claims, beside what one cache shows: `medians` by number of rules, then by SLF.
fn claim(cache: &str, slfs: &[(u32, [f64; 2])], medians: &[Vec<f64>], findings: &mut Findings) {
    let place = |slf: u32| slfs.iter().position(|(one, _)| *one == slf).unwrap_or_default();
    let ours = |rules: usize, slf: u32| {
        medians.get(rules).and_then(|all| all.get(place(slf))).copied().unwrap_or(f64::NAN)
    };
    let paper = |rules: usize, slf: u32| {
        slfs.get(place(slf)).and_then(|(_, all)| all.get(rules)).copied().unwrap_or(f64::NAN)
    };
    let mut claim = |text: String, paper: f64, ours: f64, tolerance: f64| {
        let number = Claim::number(text, paper, ours, tolerance, 1.0);
        findings.claims.push(Claim { why: Some(WHY.to_owned()), ..number });
    };
    for (n, count) in RULES.iter().enumerate() {
        claim(
            format!(
                "Open vSwitch, {cache}, {count} rules: a packet at SLF {CLAIMED}, of one at SLF 1 (Fig. 3a: median latency)"
            ),
            paper(n, CLAIMED) / paper(n, 1),
            ours(n, CLAIMED) / ours(n, 1),
            0.25,
        );
    }
    claim(
        format!(
            "Open vSwitch, {cache}, SLF {CLAIMED}: a packet with 10,000 rules, of one with 1,000 (Fig. 3a: median latency)"
        ),
        paper(1, CLAIMED) / paper(0, CLAIMED),
        ours(1, CLAIMED) / ours(0, CLAIMED),
        0.1,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_the_rules_takes_the_traffic() {
        for count in RULES {
            let text = rules(count);
            let lines: Vec<&str> = text.lines().collect();
            let distinct: std::collections::BTreeSet<_> = lines.iter().collect();
            assert_eq!((lines.len(), distinct.len()), (count, count));
            assert_eq!(lines.iter().filter(|line| line.contains("in_port=1,")).count(), 1);
        }
    }

    #[test]
    fn counters_of_the_thread_that_polls_are_read() {
        let text = "pmd thread numa_id 0 core_id 1:\n  packets received: 640\n  emc hits: 64\n  avg. packets per output \
                    batch: 32.00\n  idle cycles: 0 (0.00%)\nmain thread:\n  packets received: 3\n";
        let all = counters(text);
        assert_eq!(
            (all.get("packets received"), all.get("emc hits"), all.len()),
            (Some(&640.0), Some(&64.0), 3)
        );
        assert!(counters("main thread:\n  packets received: 3\n").is_empty());
    }
}
