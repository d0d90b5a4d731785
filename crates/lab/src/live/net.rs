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
            "this lab needs {}: install them first (apt install {})",
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
        name if name.ends_with("-dpdk") => "openvswitch-switch-dpdk",
        name if name.starts_with("ovs") => "openvswitch-switch",
        name => name,
    };
    let mut all: Vec<&str> = programs.iter().map(package).collect();
    all.sort_unstable();
    all.dedup();
    all
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

    /// Merges packets on their way to the server's stack (GRO), or doesn't.
    pub(super) fn merge(&self, end: End, on: bool) -> anyhow::Result<()> {
        let interface = if end == End::Server { "s0" } else { "c0" };
        let mut command = self.command(end, "ethtool");
        command.args(["-K", interface, "gro", if on { "on" } else { "off" }]);
        done(command).map(drop)
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

    /// Runs a command in a namespace to its end; its output.
    pub(super) fn run(&self, end: End, program: &str, words: &[&str]) -> anyhow::Result<String> {
        let mut command = self.command(end, program);
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
        let mut command = self.command(end, program);
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

    /// CPU time that it has taken, all threads, in ns.
    pub(super) fn cpu_ns(&self) -> u64 {
        self.cpu_ns_of("")
    }

    /// The same of those threads whose names begin so.
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
    use super::{owner, packages};

    #[test]
    fn packages_are_named_once() {
        assert_eq!(
            packages(&["ovs-vsctl", "wrk", "ovsdb-server", "ip", "/usr/lib/x/ovs-vswitchd-dpdk"]),
            ["iproute2", "openvswitch-switch", "openvswitch-switch-dpdk", "wrk"]
        );
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
