//! Namespaces of this lab's own: clients, the machine in the middle, a server. They go away with the value.
//!
//! ```text
//! c (c0) ==== (mc) m (ms) ==== (s0) s
//! ```

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

/// The clients' end, the middle, and the server's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Clients,
    Middle,
    Server,
}

/// Address of the server.
pub(super) const SERVER: &str = "10.78.0.2";
const CLIENTS: &str = "10.78.0.1";

/// The three namespaces.
#[derive(Debug)]
pub(super) struct Net {
    names: [String; 3],
}

/// A program that runs in a namespace; it is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Running(Child);

/// Runs a command; its output, if its status is 0.
fn done(mut command: Command) -> anyhow::Result<String> {
    let what = format!("{command:?}").replace('"', "");
    let Output { status, stdout, stderr } =
        command.stdin(Stdio::null()).output().with_context(|| format!("{what}: can't be started"))?;
    if !status.success() {
        bail!("{what}: {status}: {}", String::from_utf8_lossy(&stderr).trim());
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

fn ip(words: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("ip");
    command.args(words);
    done(command).map(drop)
}

/// Checks that these programs are there.
pub(super) fn need(programs: &[&str]) -> anyhow::Result<()> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let has = |program: &&&str| std::env::split_paths(&paths).any(|folder| folder.join(**program).is_file());
    let missing: Vec<&str> = programs.iter().filter(|p| !has(p)).copied().collect();
    if !missing.is_empty() {
        bail!(
            "this needs {}: not installed (apt install {})",
            missing.join(", "),
            packages(&missing).join(" ")
        );
    }
    Ok(())
}

/// Debian's packages of programs, each once.
fn packages<'a>(programs: &[&'a str]) -> Vec<&'a str> {
    let package = |program: &&'a str| match *program {
        "ip" => "iproute2",
        "sysctl" => "procps",
        "ping" => "iputils-ping",
        "taskset" => "util-linux",
        name if name.ends_with("-dpdk") => "openvswitch-switch-dpdk",
        name if name.starts_with("ovs") => "openvswitch-switch",
        name => name,
    };
    let mut all: Vec<&str> = programs.iter().map(package).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Time for which this core has had nothing to do since the machine started, ns.
pub(super) fn idle_ns(core: usize) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
    idle_of(&text, core).with_context(|| format!("/proc/stat doesn't tell what core {core} did"))
}

/// The same, of the text of `/proc/stat`, which counts in hundredths of a second.
fn idle_of(stat: &str, core: usize) -> Option<u64> {
    let name = format!("cpu{core}");
    let words: Vec<&str> = stat
        .lines()
        .map(|l| l.split_whitespace())
        .find_map(|mut words| (words.next() == Some(name.as_str())).then(|| words.collect()))?;
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    Some((number(3)? + number(4)?) * 10_000_000)
}

/// Processes whose names begin so.
fn processes(name: &str) -> anyhow::Result<Vec<String>> {
    let all = std::fs::read_dir("/proc").context("/proc")?.filter_map(Result::ok);
    let named = |path: &Path| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end().starts_with(name))
    };
    Ok(all.filter(|e| named(&e.path())).map(|e| e.file_name().to_string_lossy().into_owned()).collect())
}

/// The number of the process that made a namespace of this lab.
fn owner(namespace: &str) -> Option<&str> {
    let process = namespace.strip_prefix("sliplab")?.strip_suffix(['c', 'm', 's'])?;
    (!process.is_empty() && process.bytes().all(|digit| digit.is_ascii_digit())).then_some(process)
}

impl Net {
    /// Makes them, and takes away those of a lab that was killed.
    pub(super) fn new() -> anyhow::Result<Self> {
        let mut list = Command::new("ip");
        list.args(["netns", "list"]);
        for name in done(list)?.lines().filter_map(|line| line.split_whitespace().next()) {
            if owner(name).is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                ip(&["netns", "del", name])?;
            }
        }
        let id = std::process::id();
        let this = Self { names: ["c", "m", "s"].map(|end| format!("sliplab{id}{end}")) };
        for name in &this.names {
            ip(&["netns", "add", name]).context("this lab makes network namespaces, which takes root")?;
        }
        let [clients, middle, server] = this.names.each_ref().map(String::as_str);
        for (space, near, far, address) in [(clients, "c0", "mc", CLIENTS), (server, "s0", "ms", SERVER)] {
            ip(&["link", "add", near, "netns", space, "type", "veth", "peer", "name", far, "netns", middle])?;
            for (space, interface) in [(space, near), (middle, far)] {
                let mut off = this.command_in(space, "sysctl");
                off.args(["-qw", &format!("net.ipv6.conf.{interface}.disable_ipv6=1")]);
                done(off)?;
                ip(&["-n", space, "link", "set", "dev", interface, "up"])?;
            }
            ip(&["-n", space, "link", "set", "dev", "lo", "up"])?;
            ip(&["-n", space, "addr", "add", &format!("{address}/24"), "dev", near])?;
            // Packets are as long as on a wire, and have their checksums.
            let mut off = this.command_in(space, "ethtool");
            off.args(["-K", near, "tx", "off", "tso", "off", "gso", "off"]);
            done(off)?;
        }
        Ok(this)
    }

    /// Lets the server's end receive on this core: its interrupts, and what its stack does in them.
    ///
    /// Where the kernel is to merge packets (GRO), a thread of this core polls the interface and waits up to
    /// 20 µs for more of a flow, as a card's interrupts would. For that the far end sends packets one by one,
    /// since a virtual pair that hands over super-frames is not polled.
    pub(super) fn receive_on(&self, core: usize, kernel_merges: bool) -> anyhow::Result<()> {
        let on = if kernel_merges { "on" } else { "off" };
        self.run(End::Server, "ethtool", &["-K", "s0", "gro", on])?;
        self.run(End::Middle, "ethtool", &["-K", "ms", "tso", if kernel_merges { "off" } else { "on" }])?;
        let mask = format!("{:x}", 1_u64.checked_shl(u32::try_from(core)?).context("a core beyond 63")?);
        let set = |file: &str, value: &str| {
            let path = format!("/sys/class/net/s0/{file}");
            self.run(End::Server, "sh", &["-c", "echo \"$1\" > \"$2\"", "sh", value, &path]).map(drop)
        };
        if !kernel_merges {
            return set("queues/rx-0/rps_cpus", &mask);
        }
        set("gro_flush_timeout", "20000")?;
        set("napi_defer_hard_irqs", "1")?;
        set("threaded", "1")?;
        for process in processes("napi/s0-")? {
            self.run(End::Server, "taskset", &["-p", &mask, &process])?;
        }
        Ok(())
    }

    fn command_in(&self, space: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", space, program]);
        command
    }

    /// A command in a namespace.
    pub(super) fn command(&self, end: End, program: impl AsRef<Path>) -> Command {
        let [clients, middle, server] = &self.names;
        let space = match end {
            End::Clients => clients,
            End::Middle => middle,
            End::Server => server,
        };
        self.command_in(space, &program.as_ref().to_string_lossy())
    }

    /// The same on this core, if one is told.
    fn command_on(&self, end: End, core: Option<usize>, program: impl AsRef<Path>) -> Command {
        let Some(core) = core else { return self.command(end, program) };
        let mut command = self.command(end, "taskset");
        command.args(["-c", &core.to_string()]).arg(program.as_ref());
        command
    }

    /// Runs a command in a namespace to its end; its output.
    pub(super) fn run(&self, end: End, program: &str, words: &[&str]) -> anyhow::Result<String> {
        self.run_on(end, None, program, words)
    }

    /// The same on this core, if one is told.
    pub(super) fn run_on(
        &self,
        end: End,
        core: Option<usize>,
        program: &str,
        words: &[&str],
    ) -> anyhow::Result<String> {
        let mut command = self.command_on(end, core, program);
        command.args(words);
        done(command)
    }

    /// Starts a command in a namespace.
    pub(super) fn start(
        &self,
        end: End,
        program: impl AsRef<Path>,
        words: &[&str],
    ) -> anyhow::Result<Running> {
        self.start_on(end, None, program, words)
    }

    /// The same on this core, if one is told.
    pub(super) fn start_on(
        &self,
        end: End,
        core: Option<usize>,
        program: impl AsRef<Path>,
        words: &[&str],
    ) -> anyhow::Result<Running> {
        let mut command = self.command_on(end, core, program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let what = format!("{command:?}").replace('"', "");
        Ok(Running(command.spawn().with_context(|| format!("{what}: can't be started"))?))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in &self.names {
            // One that was never made can't be taken away.
            let _ = ip(&["netns", "del", name]);
        }
    }
}

impl Running {
    /// Waits a moment, in which it is to get ready and not to end.
    pub(super) fn settle(&mut self, time: Duration) -> anyhow::Result<()> {
        std::thread::sleep(time);
        if let Some(status) = self.0.try_wait()? {
            let mut said = String::new();
            if let Some(err) = &mut self.0.stderr {
                err.read_to_string(&mut said)?;
            }
            bail!("a program ended too early, {status}: {}", said.trim());
        }
        Ok(())
    }

    /// Interrupts it as Ctrl-C does; its output.
    pub(super) fn interrupt(mut self) -> anyhow::Result<String> {
        let mut kill = Command::new("kill");
        kill.args(["-INT", &self.0.id().to_string()]);
        done(kill)?;
        self.output()
    }

    /// Waits until it has ended; its output.
    pub(super) fn output(&mut self) -> anyhow::Result<String> {
        let mut text = String::new();
        if let Some(out) = &mut self.0.stdout {
            out.read_to_string(&mut text)?;
        }
        let status = self.0.wait()?;
        if !status.success() {
            let mut said = String::new();
            if let Some(err) = &mut self.0.stderr {
                err.read_to_string(&mut said)?;
            }
            bail!("a program ended with {status}: {}", said.trim());
        }
        Ok(text)
    }

    /// CPU time that those of its threads have taken whose names begin so, in ns.
    pub(super) fn cpu_ns_of(&self, name: &str) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id()));
        let time = |task: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
            let path = task.ok()?.path();
            std::fs::read_to_string(path.join("comm")).ok().filter(|comm| comm.starts_with(name))?;
            let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        tasks.into_iter().flatten().filter_map(time).sum()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended can't be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::{idle_of, need, owner, packages};

    #[test]
    fn the_idle_time_of_a_core_is_its_own() {
        let stat = "cpu  9 9 9 9 9 9 9\ncpu0 1 2 3 40 5 6 7\ncpu1 1 2 3 70 8 0 0\ncpu10 0 0 0 1 0\nintr 5\n";
        assert_eq!(idle_of(stat, 0), Some(450_000_000));
        assert_eq!(idle_of(stat, 1), Some(780_000_000));
        assert_eq!(idle_of(stat, 10), Some(10_000_000));
        assert_eq!(idle_of(stat, 2), None);
        assert_eq!(idle_of("cpu0 1 2\n", 0), None);
    }

    #[test]
    fn packages_are_named_once() {
        assert_eq!(
            packages(&["ovs-vsctl", "wrk", "ovsdb-server", "ip", "/usr/lib/x/ovs-vswitchd-dpdk"]),
            ["iproute2", "openvswitch-switch", "openvswitch-switch-dpdk", "wrk"]
        );
    }

    #[test]
    fn what_is_missing_is_told_with_its_package() {
        assert!(need(&["sh", "env"]).is_ok());
        let why = need(&["sh", "/no/such/ovs-vsctl", "no-such-program"]).unwrap_err().to_string();
        assert!(why.contains("/no/such/ovs-vsctl, no-such-program: not installed"), "{why}");
    }

    #[test]
    fn only_namespaces_of_this_lab_have_an_owner() {
        assert_eq!(owner("sliplab123c"), Some("123"));
        assert_eq!(owner("sliplab9s"), Some("9"));
        for other in ["sliplabc", "sliplab12x", "sliplab1a2m", "my-sliplab12c", "blue"] {
            assert_eq!(owner(other), None, "{other}");
        }
    }
}
