//! Fig. 3 in small: Open vSwitch between two hosts, with its datapath in userspace (no kernel module), and
//! what a packet takes there by locality. The rules are as the paper's: by source and destination addresses
//! of Ethernet and IP, of which one takes the traffic.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde_json::json;

use super::net::{End, Net, Running};
use super::{READY, median, object};
use crate::{Bench, Chart, Claim, Findings};

/// Programs of Open vSwitch that this takes.
pub(super) const PROGRAMS: [&str; 5] =
    ["ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl"];
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const RULES: [usize; 2] = [1000, 10_000];
const FLOWS: &str = "10k";
/// Less than the switch forwards on a core of its own.
const RATE: &str = "50kpps";
/// SLF, and the paper's medians of the latency with 1,000 and with 10,000 rules at each, µs (Fig. 3a).
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
const WHY: &str = "the paper has latency through the kernel's datapath at 66 Gbit/s, this is CPU time of the datapath in \
                   userspace, whose packets come and go by sockets";

/// A switch in the middle; its processes end with the value.
struct Switch {
    net: Net,
    folder: tempfile::TempDir,
    switch: Running,
    _database: Running,
}

impl Switch {
    fn new() -> anyhow::Result<Self> {
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
        let set = |words: &[&str]| {
            in_middle(&[&["ovs-vsctl", "--timeout=20", &format!("--db={remote}")], words].concat())
        };
        set(&["--no-wait", "init"])?;
        let switch = start(&["ovs-vswitchd", &remote, &format!("--unixctl={}", at("switch.ctl"))])?;
        // As in the paper: the signature match cache, without the exact match cache before it.
        set(&[
            "set",
            "Open_vSwitch",
            ".",
            "other_config:emc-insert-inv-prob=0",
            "other_config:smc-enable=true",
        ])?;
        let userspace = ["datapath_type=netdev", "protocols=OpenFlow14"];
        set(&[&["add-br", "br0", "--", "set", "bridge", "br0"][..], &userspace].concat())?;
        for (port, number) in [("mc", "1"), ("ms", "2")] {
            let number = format!("ofport_request={number}");
            set(&["add-port", "br0", port, "--", "set", "interface", port, &number])?;
        }
        Ok(Self { net, folder, switch, _database: database })
    }

    /// Puts so many rules in the place of the present ones.
    fn rules(&self, count: usize) -> anyhow::Result<()> {
        let path = self.folder.path().join("rules");
        fs::write(&path, rules(count))?;
        let bridge = format!("unix:{}", self.folder.path().join("br0.mgmt").display());
        let all = |words: &[&str]| {
            self.net.run(End::Middle, "ovs-ofctl", &[&["-O", "OpenFlow14"], words].concat()).map(drop)
        };
        all(&["del-flows", &bridge])?;
        all(&["add-flows", &bridge, &path.to_string_lossy()])
    }

    /// CPU time of the switch for a packet of this traffic that it forwarded, in ns, and the part of the
    /// packets that it didn't.
    fn forward(&self, program: &Path, packets: u32, slf: u32) -> anyhow::Result<(f64, f64)> {
        let (cpu, before) = (self.switch.cpu_ns(), self.arrived()?);
        let traffic = format!("flows={FLOWS},packets={packets},rate={RATE},size=60,slf={slf}");
        let graph = format!("s :: synth(traffic=\"{traffic}\"); s -> out :: af_packet(interface=c0)");
        self.net.run(End::Clients, &program.to_string_lossy(), &["run", "-e", &graph])?;
        // Packets on their way arrive.
        std::thread::sleep(READY / 4);
        let arrived = self.arrived()? - before;
        anyhow::ensure!(arrived > 0.0, "Open vSwitch forwarded {arrived} of {packets} packets");
        Ok(((self.switch.cpu_ns() - cpu) as f64 / arrived, 1.0 - arrived / f64::from(packets)))
    }

    fn arrived(&self) -> anyhow::Result<f64> {
        let text = self.net.run(End::Server, "cat", &["/sys/class/net/s0/statistics/rx_packets"])?;
        text.trim().parse().context("the interface's counter")
    }
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
    let (runs, packets) = if lab.quick { (3, 60_000) } else { (5, 150_000) };
    let slfs: Vec<(u32, [f64; 2])> =
        PAPER.into_iter().filter(|(slf, _)| !lab.quick || [1, CLAIMED].contains(slf)).collect();
    let switch = Switch::new()?;
    let steps = RULES.len() * runs * slfs.len();
    let (mut done, mut medians) = (0, Vec::new());
    for (n, count) in RULES.iter().enumerate() {
        switch.rules(*count)?;
        // The caches get to know the flows.
        switch.forward(&lab.program, packets, 1)?;
        let mut all: Vec<Vec<(f64, f64)>> = vec![Vec::new(); slfs.len()];
        for _ in 0..runs {
            for ((slf, _), times) in slfs.iter().zip(&mut all) {
                times.push(switch.forward(&lab.program, packets, *slf)?);
                done += 1;
                let [from, to] = share;
                lab.step(from + (to - from) * done as f64 / steps as f64)?;
            }
        }
        let mut of_these = Vec::new();
        for ((slf, paper), times) in slfs.iter().zip(&all) {
            let ns = median(times.iter().map(|(ns, _)| *ns).collect());
            let lost = median(times.iter().map(|(_, lost)| *lost).collect());
            findings.rows.push(object(json!({
                "part": "open vswitch", "rules": count, "slf": slf, "runs": runs, "packets": packets,
                "switch_ns_per_packet": ns, "not_forwarded": lost, "paper_latency_p50_us": paper.get(n),
            })));
            of_these.push(ns);
        }
        medians.push(of_these);
    }
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
                "Open vSwitch, {count} rules: a packet at SLF {CLAIMED}, of one at SLF 1 (Fig. 3a: median latency)"
            ),
            paper(n, CLAIMED) / paper(n, 1),
            ours(n, CLAIMED) / ours(n, 1),
            0.25,
        );
    }
    claim(
        format!(
            "Open vSwitch at SLF {CLAIMED}: a packet with 10,000 rules, of one with 1,000 (Fig. 3a: median latency)"
        ),
        paper(1, CLAIMED) / paper(0, CLAIMED),
        ours(1, CLAIMED) / ours(0, CLAIMED),
        0.1,
    );
    findings.charts.push(Chart {
        title: "Open vSwitch's CPU by locality (beside Fig. 3a)".into(),
        caption: "CPU time of the switch a packet, datapath in userspace; 10,000 UDP flows.".into(),
        x_label: "SLF".into(),
        y_label: "ns a packet".into(),
        groups: slfs.iter().map(|(slf, _)| slf.to_string()).collect(),
        series: RULES
            .iter()
            .zip(medians)
            .map(|(count, all)| (format!("{count} rules"), all.into_iter().map(Some).collect()))
            .collect(),
    });
    Ok(())
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
}
