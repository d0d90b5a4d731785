//! DPDK's environment (EAL), which is started once a process, and the mempool that all ports have together.

use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use slipstream_core::pool::{AdoptError, Pool};

use crate::device::{Device, Known};
use crate::error::DpdkError;
use crate::mempool::Mempool;
use crate::sys::{self, Memory};

/// Bytes of an mbuf beside its packet, about.
const BESIDE: u64 = 384;
/// Memory that EAL needs beside the mempool where there are no huge pages, in MiB.
const OWN_MIB: u64 = 64;

/// The environment that a port wants; all ports of a process have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// Arguments of EAL, as its programs have them on their command line, between spaces.
    pub arguments: String,
    /// Mbufs of the mempool: packets that are inside, on their way out, or waiting to be received.
    pub mbufs: u32,
    /// Bytes of the longest packet that an mbuf holds, a multiple of 64.
    pub room: u16,
}

/// The state of DPDK in this process.
#[derive(Default)]
pub(crate) struct State {
    /// Arguments that EAL was started with.
    started: Option<String>,
    stopped: bool,
    mempool: Option<Held>,
    pub(crate) devices: Vec<Known>,
}

/// The mempool.
struct Held {
    mbufs: u32,
    room: u16,
    memory: Memory,
    pool: Option<Pool>,
    /// The engine's pool has another, as long as it is there.
    used: Arc<()>,
}

static STATE: Mutex<State> =
    Mutex::new(State { started: None, stopped: false, mempool: None, devices: Vec::new() });

/// All that is asked of EAL before and after packets flow is asked with this.
pub(crate) fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The environment as it was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Mbufs of the mempool.
    pub mbufs: u32,
    /// Mbufs that had not come back, though no port nor pool was left: 0, or somebody lost packets.
    pub mbufs_left: u32,
}

/// A pool whose memory is the mempool of the ports that were opened, for the pipeline that they are part of;
/// where it runs in shards, each takes one. None where there is no port.
///
/// ```no_run
/// use std::ops::ControlFlow;
///
/// use slipstream::pipeline::{Plan, built_in};
/// use slipstream::runtime::Driver;
///
/// let mut registry = built_in();
/// registry.register(slipstream_dpdk::DPDK)?;
/// let graph = "in :: dpdk(device=net_null0) -> reframe -> out :: dpdk(device=net_null1)";
/// let plan = Plan::from_graph_with(&registry, graph, None, None, "".as_ref())?;
/// let mut driver = Driver::new(plan.build(plan.seeds(None))?);
/// // SAFETY: the driver hands the pool to stages and ports, which use packets that it gave them, with their lengths.
/// if let Some(pool) = unsafe { slipstream_dpdk::take_pool() } {
///     driver = driver.pool(pool);
/// }
/// driver.run(&mut |_| ControlFlow::Continue(()))?;
/// // Closes the devices; then all mbufs must be back.
/// drop(driver);
/// assert_eq!(slipstream_dpdk::close().map(|closed| closed.mbufs_left), Some(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Safety
/// That of [`Pool::adopt`]: every packet that the pool is asked for is one that it gave, with its length,
/// and not freed since.
#[must_use]
#[allow(unsafe_code)]
pub unsafe fn take_pool() -> Option<Pool> {
    let mut state = state();
    let held = state.mempool.as_mut()?;
    held.pool.take().or_else(|| held.another().ok())
}

/// Ends the mempool, once all ports and the pool are gone; none where one is still there, or there never
/// was one. The next port that is opened makes another.
#[must_use]
#[allow(unsafe_code)]
pub fn close() -> Option<Closed> {
    let mut state = state();
    state.devices.retain(Known::is_open);
    if !state.devices.is_empty() {
        return None;
    }
    let mut held = state.mempool.take()?;
    held.pool = None;
    if Arc::strong_count(&held.used) > 1 {
        state.mempool = Some(held);
        return None;
    }
    // SAFETY: no device is open, and no pool is there.
    let mbufs_left = unsafe { held.memory.free() };
    Some(Closed { mbufs: held.mbufs, mbufs_left })
}

/// Stops EAL, which can't be started again in this process. It does nothing where it was not started, or
/// something of it is in use.
pub fn stop() {
    let mut state = state();
    if state.mempool.is_none() && state.devices.is_empty() && state.started.take().is_some() {
        state.stopped = true;
        sys::stop();
    }
}

/// Without huge pages EAL has a folder whose name is this process's, has nothing in it, and leaves it behind.
/// It is removed as soon as EAL has started, so that none is left of a process that is killed, either.
fn remove_folder(arguments: &str) {
    if !has(&words(arguments), &["--file-prefix"]) {
        let _ = sys::folder().map(std::fs::remove_dir);
    }
}

impl State {
    /// Starts EAL and makes the mempool, where that was not done yet.
    pub(crate) fn ready(&mut self, wanted: &Environment) -> Result<Memory, DpdkError> {
        let other = |setting, first: String, this: String| DpdkError::OneForAll { setting, first, this };
        match &self.started {
            Some(first) if wanted.arguments.is_empty() || *first == wanted.arguments => {}
            Some(first) => return Err(other("eal", first.clone(), wanted.arguments.clone())),
            None if self.stopped => return Err(DpdkError::Stopped),
            None => {
                let started = start(wanted);
                remove_folder(&wanted.arguments);
                started?;
                self.started = Some(wanted.arguments.clone());
            }
        }
        if let Some(held) = &self.mempool {
            if held.mbufs != wanted.mbufs {
                return Err(other("mbufs", held.mbufs.to_string(), wanted.mbufs.to_string()));
            }
            if held.room != wanted.room {
                return Err(other("buffer", held.room.to_string(), wanted.room.to_string()));
            }
            return Ok(held.memory);
        }
        let held = Held::new(wanted)?;
        let memory = held.memory;
        self.mempool = Some(held);
        Ok(memory)
    }

    /// The device of this name, where it is open.
    pub(crate) fn open_device(&self, name: &str) -> Option<(&Known, Arc<Device>)> {
        let known = self.devices.iter().find(|known| known.name == name)?;
        Some((known, Weak::upgrade(&known.device)?))
    }
}

impl Held {
    #[allow(unsafe_code)]
    fn new(wanted: &Environment) -> Result<Self, DpdkError> {
        let (mbufs, room) = (wanted.mbufs, wanted.room);
        let memory = Memory::new(mbufs, room).map_err(|error| match Errno::from_raw_os_error(-error) {
            Errno::FAULT => DpdkError::Scattered,
            _ => no_memory(wanted, sys::reason(error)),
        })?;
        let mut held = Self { mbufs, room, memory, pool: None, used: Arc::new(()) };
        let pool = held.another().inspect_err(|_| {
            // SAFETY: nobody has a packet, nor has any device been opened with it.
            let _ = unsafe { memory.free() };
        })?;
        held.pool = Some(pool);
        Ok(held)
    }

    /// One more pool over the mempool, which gives each mbuf to one of them, and whose lists take turns.
    #[allow(unsafe_code)]
    fn another(&self) -> Result<Pool, AdoptError> {
        let region = Mempool::new(self.memory, self.room.into(), Arc::clone(&self.used));
        // SAFETY: who takes the pool promises it. An mbuf is in the mempool, with a device, or with one pool.
        unsafe { Pool::adopt(Box::new(region)) }
    }
}

/// The error for a mempool that can't be had; with huge pages another remedy helps than without.
fn no_memory(wanted: &Environment, why: String) -> DpdkError {
    let (mbufs, mib) = (wanted.mbufs, mib(wanted));
    match has(&words(&wanted.arguments), &["--no-huge"]) {
        true => DpdkError::NoMemoryWithoutHuge { mbufs, mib, why },
        false => DpdkError::NoMemory { mbufs, mib, why },
    }
}

/// Memory that programs can have, in MiB, as the kernel says it in `/proc/meminfo`.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? >> 10)
}

/// Memory that the mempool takes, in MiB.
fn mib(wanted: &Environment) -> u64 {
    (u64::from(wanted.mbufs) * (u64::from(wanted.room) + BESIDE)).div_ceil(1 << 20)
}

/// The arguments of EAL, one by one.
fn words(arguments: &str) -> Vec<&str> {
    arguments.split_whitespace().collect()
}

/// Says that an option is among the arguments: by itself, or with its value behind `=`.
fn has(arguments: &[&str], options: &[&str]) -> bool {
    arguments.iter().any(|argument| {
        let name = argument.split_once('=').map_or(*argument, |(name, _)| name);
        options.iter().any(|option| {
            let short = !option.starts_with("--") && argument.starts_with(option);
            name == *option || short
        })
    })
}

/// The arguments that EAL gets: those that were asked for, and defaults for what they leave open.
fn complete(wanted: &Environment, cores: &[usize]) -> Result<Vec<String>, DpdkError> {
    let asked = words(&wanted.arguments);
    let no_huge = has(&asked, &["--no-huge"]);
    if no_huge && has(&asked, &["--in-memory"]) {
        return Err(DpdkError::NoHugeInMemory);
    }
    // A word without a dash is the value of the option before it, if of anything.
    let before = std::iter::once(&"").chain(&asked);
    let mut strays = asked.iter().zip(before).filter(|(word, before)| {
        **word == "--" || !word.starts_with('-') && (!before.starts_with('-') || before.contains('='))
    });
    if let Some((word, _)) = strays.next() {
        return Err(DpdkError::Stray((*word).to_owned()));
    }
    // EAL would print its options and end the process, with success.
    if has(&asked, &["-h", "--help"]) {
        return Err(DpdkError::Help);
    }
    // A secondary process has nobody to wait for here, and does so in EAL, where no signal ends it.
    let words = asked.iter().flat_map(|argument| argument.split('='));
    let mut types = words.skip_while(|word| *word != "--proc-type").skip(1);
    if types.next().is_some_and(|kind| kind != "primary") {
        return Err(DpdkError::NotPrimary);
    }
    let mut all = vec!["slipstream".to_owned()];
    all.extend(asked.iter().map(|&argument| argument.to_owned()));
    let mut unless = |options: &[&str], arguments: &[String]| {
        if !has(&asked, options) {
            all.extend_from_slice(arguments);
        }
    };
    if no_huge {
        // Nothing is left behind, and several processes don't get in each other's way.
        unless(&["--no-shconf"], &["--no-shconf".to_owned()]);
        unless(&["--file-prefix"], &[format!("--file-prefix=slipstream-{}", std::process::id())]);
        // Pages of 4 KiB hold a whole number of mbufs: up to twice as much is taken.
        let needed = mib(wanted) * 2 + OWN_MIB;
        unless(&["-m", "--socket-mem"], &["-m".to_owned(), needed.to_string()]);
    } else {
        unless(&["--in-memory", "--file-prefix", "--huge-dir"], &["--in-memory".to_owned()]);
    }
    unless(&["--no-telemetry", "--telemetry"], &["--no-telemetry".to_owned()]);
    unless(&["--log-level"], &["--log-level=*:warning".to_owned()]);
    // One thread of DPDK's, which is this one, and which may run where it may run now.
    let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    unless(&["-l", "-c", "--lcores", "--main-lcore"], &[format!("--lcores=0@({list})")]);
    Ok(all)
}

/// Says whether a huge page is free, of whatever size.
fn huge_pages_free() -> bool {
    let Ok(sizes) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return false };
    sizes.flatten().any(|size| {
        let free = std::fs::read_to_string(size.path().join("free_hugepages"));
        free.is_ok_and(|free| free.trim().parse::<u64>().is_ok_and(|free| free > 0))
    })
}

fn start(wanted: &Environment) -> Result<(), DpdkError> {
    let cores = sched_getaffinity(None).ok();
    let numbers: Vec<usize> = match &cores {
        Some(cores) => (0..CpuSet::MAX_CPU).filter(|core| cores.is_set(*core)).collect(),
        None => vec![0],
    };
    let arguments = complete(wanted, &numbers)?;
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if !has(&words, &["--no-huge"]) && !huge_pages_free() {
        return Err(DpdkError::NoHugePages);
    }
    // Where there is less, the kernel would end the process without a word, and maybe others.
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    if has(&words, &["--no-huge"])
        && let Some(available) = available(&meminfo).filter(|available| *available < mib(wanted))
    {
        return Err(no_memory(wanted, format!("{available} MiB are available")));
    }
    let texts = arguments
        .iter()
        .map(|argument| CString::new(argument.as_str()).map_err(|_| DpdkError::Nul(argument.clone())))
        .collect::<Result<Vec<_>, _>>()?;
    let result = sys::start(texts);
    if let Some(cores) = &cores {
        // EAL ties the thread that starts it to its first core. Who pins threads here is somebody else.
        let _ = sched_setaffinity(None, cores);
    }
    let shown = arguments.get(1..).unwrap_or_default().join(" ");
    let start = |why| DpdkError::Start { arguments: format!("`{shown}`"), why };
    match result.map_err(|error| start(sys::reason(error)))? {
        0 => Ok(()),
        more => Err(start(format!("it takes {more} of these words for no option of its own"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &str) -> Result<String, DpdkError> {
        let wanted = Environment { arguments: arguments.to_owned(), mbufs: 16_383, room: 2048 };
        complete(&wanted, &[0, 3]).map(|all| all.join(" "))
    }

    #[test]
    fn what_is_left_open_has_defaults() {
        let all = of("").unwrap();
        assert_eq!(all, "slipstream --in-memory --no-telemetry --log-level=*:warning --lcores=0@(0,3)");
        let all = of("--no-huge --log-level=8").unwrap();
        assert!(all.contains("--no-huge --log-level=8 --no-shconf --file-prefix=slipstream-"), "{all}");
        assert!(all.contains(" -m 140 ") && !all.contains("--in-memory"), "{all}");
    }

    #[test]
    fn memory_that_is_available_is_read() {
        let meminfo = "MemTotal:       24671232 kB\nMemAvailable:   20480 kB\nBuffers: 1 kB\n";
        assert_eq!((available(meminfo), available("MemFree: 3 kB"), available("")), (Some(20), None, None));
    }

    #[test]
    fn memory_that_is_missing_has_the_remedy_that_helps() {
        let of = |arguments: &str| {
            let wanted = Environment { arguments: arguments.to_owned(), mbufs: 16_383, room: 2048 };
            no_memory(&wanted, "none".to_owned()).to_string()
        };
        assert!(of("--no-huge -m 8").contains("`-m` in `eal`"), "{}", of("--no-huge"));
        assert!(!of("--no-huge -m 8").contains("huge pages"), "{}", of("--no-huge"));
        assert!(of("--no-pci").contains("make more huge pages"), "{}", of("--no-pci"));
    }

    #[test]
    fn what_was_asked_for_stays() {
        let all = of("-l1 -m 99 --no-huge --telemetry --no-pci").unwrap();
        assert!(
            !all.contains("--lcores") && !all.contains("-m 1") && !all.contains("--no-telemetry"),
            "{all}"
        );
        assert!(!of("--file-prefix=mine").unwrap().contains("--in-memory"));
        assert!(matches!(of("--in-memory --no-huge"), Err(DpdkError::NoHugeInMemory)));
        assert!(of("--no-huge --proc-type=primary").unwrap().contains("--proc-type=primary"));
        for (stray, word) in [
            ("no-huge no-pci", "no-huge"),
            ("--file-prefix=a b", "b"),
            ("-m 64 64 --no-huge", "64"),
            ("--no-huge -- x", "--"),
        ] {
            assert!(matches!(of(stray), Err(DpdkError::Stray(found)) if found == word), "{stray}");
        }
        assert!(of("-m 64 --vdev net_null0,size=64 --no-pci").is_ok());
        for help in ["--no-huge --help", "-h"] {
            assert!(matches!(of(help), Err(DpdkError::Help)), "{help}");
        }
        assert!(of("--huge-dir=/mnt/huge").is_ok());
        for other in ["--proc-type=secondary", "--no-pci --proc-type auto"] {
            assert!(matches!(of(other), Err(DpdkError::NotPrimary)), "{other}");
        }
    }
}
