//! The others: DPDK's `rte_gro`, and the kernel's GRO behind a pair of virtual interfaces. Both are asked by
//! small C programs, which are compiled here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

const RTE_GRO: &str = include_str!("rte_gro.c");
const KERNEL_GRO: &str = include_str!("kernel_gro.c");

/// The result of asking, or why it can't be had here.
pub(super) type Answer<T> = Result<T, String>;

/// Runs a command; what it prints.
fn output(command: &mut Command) -> Answer<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.output().map_err(|error| format!("{name}: {error}"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(format!("{name}: {}", said.lines().last().unwrap_or("it failed")))
}

/// Compiles a program in a directory.
fn compile(dir: &Path, name: &str, source: &str, flags: &[&str], libraries: &str) -> Answer<PathBuf> {
    let (file, program) = (dir.join(format!("{name}.c")), dir.join(name));
    std::fs::write(&file, source).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut command = Command::new("cc");
    command.args(flags).arg("-o").arg(&program).arg(&file).args(libraries.split_whitespace());
    output(&mut command)?;
    Ok(program)
}

/// Packets that `rte_gro` merged, and its CPU time a packet in ns: in bursts of 128, and in a context.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct RteGro {
    pub(super) burst_merged: u64,
    pub(super) burst_ns: f64,
    pub(super) context_merged: u64,
    pub(super) context_ns: f64,
}

/// `rte_gro`, compiled.
pub(super) fn rte_gro(dir: &Path) -> Answer<PathBuf> {
    let libraries = output(Command::new("pkg-config").args(["--cflags", "--libs", "libdpdk"]))?;
    let flags = ["-O3", "-march=native", "-DALLOW_EXPERIMENTAL_API"];
    compile(dir, "rte_gro", RTE_GRO, &flags, &libraries)
}

/// Asks it about a capture; its context is flushed after `window` packets.
pub(super) fn ask_rte_gro(program: &Path, capture: &Path, window: usize, rounds: usize) -> Answer<RteGro> {
    let words = [window.to_string(), rounds.to_string()];
    let text = output(Command::new(program).arg(capture).args(words))?;
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|error| format!("rte_gro said {line:?}: {error}"))
}

/// A namespace with a pair of virtual interfaces, g0 and g1, at the second of which GRO is on; it goes away
/// in the end.
struct Wire(String);

impl Wire {
    fn new() -> Answer<Self> {
        let wire = Self(format!("slipgro{}", std::process::id()));
        output(Command::new("ip").args(["netns", "add", &wire.0]))?;
        wire.run("ip link add g0 type veth peer name g1")?;
        // Nobody else is to send there.
        wire.run("sysctl -qw net.ipv6.conf.g0.disable_ipv6=1 net.ipv6.conf.g1.disable_ipv6=1")?;
        wire.run("ethtool -K g0 tx off tso off gso off")?;
        wire.run("ethtool -K g1 gro on rx-udp-gro-forwarding on")?;
        // Packets are sent one by one, so that the kernel has to wait for more after each.
        wire.write("/sys/class/net/g1/gro_flush_timeout", "20000000")?;
        wire.run("ip link set g0 up")?;
        wire.run("ip link set g1 up")?;
        Ok(wire)
    }

    /// A command in the namespace.
    fn run(&self, command: &str) -> Answer<String> {
        output(Command::new("ip").args(["netns", "exec", &self.0]).args(command.split_whitespace()))
    }

    /// Writes to a file of its own.
    fn write(&self, path: &str, value: &str) -> Answer<String> {
        let script = format!("echo {value} > {path}");
        output(Command::new("ip").args(["netns", "exec", &self.0, "sh", "-c", &script]))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = output(Command::new("ip").args(["netns", "del", &self.0]));
    }
}

/// The packets of each frame that the kernel's GRO makes of a capture, by the flow's number, in their order.
///
/// The kernel lets a super-frame go as soon as its clock ticks, in the middle of a train now and then; so it
/// is asked several times, and of each flow the answer with the fewest frames counts.
pub(super) fn ask_kernel(dir: &Path, capture: &Path, turns: usize) -> Answer<BTreeMap<u16, Vec<u16>>> {
    let program = compile(dir, "kernel_gro", KERNEL_GRO, &["-O2"], "")?;
    let wire = Wire::new()?;
    let mut best: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
    for _ in 0..turns {
        let text = wire.run(&format!("{} {} g0 g1", program.display(), capture.display()))?;
        let mut seen: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
        for (flow, packets) in text.lines().filter_map(|line| line.split_once(' ')) {
            if let (Ok(flow), Ok(packets)) = (flow.parse(), packets.parse()) {
                seen.entry(flow).or_default().push(packets);
            }
        }
        for (flow, frames) in seen {
            let known = best.entry(flow).or_insert_with(|| frames.clone());
            if frames.len() < known.len() {
                *known = frames;
            }
        }
    }
    Ok(best)
}
