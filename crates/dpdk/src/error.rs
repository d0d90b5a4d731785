//! Errors of DPDK ports.

use slipstream_core::pool::AdoptError;
use slipstream_core::source::SourceError;
use thiserror::Error;

/// Why a DPDK port can't be opened or used.
#[derive(Debug, Error)]
pub enum DpdkError {
    /// EAL would take huge pages, and there are none.
    #[error(
        "there are no free huge pages for DPDK; make some (echo 256 > /proc/sys/vm/nr_hugepages, as root), or do \
         without, more slowly: eal=\"--no-huge\""
    )]
    NoHugePages,
    /// Two options of EAL that contradict each other.
    #[error(
        "EAL takes `--no-huge` or `--in-memory`, not both; `--in-memory` is what it gets where neither is given"
    )]
    NoHugeInMemory,
    /// A word among EAL's arguments that is neither an option nor the value of one.
    #[error(
        "`{0}` is no option of EAL, nor the value of one: options begin with dashes, such as `--no-huge`"
    )]
    Stray(String),
    /// EAL is asked for its options, after which it ends the process.
    #[error(
        "`eal` takes no `--help`, with which nothing would run: DPDK's guide for Linux lists the options of EAL"
    )]
    Help,
    /// Another process's mempool can't be the pipeline's memory.
    #[error(
        "EAL takes no `--proc-type` here but `primary`: a run has a mempool of its own, and a secondary process waits for another's"
    )]
    NotPrimary,
    /// An option that has a NUL in it.
    #[error("`{0}` can't be handed to EAL: there is a NUL byte in it")]
    Nul(String),
    /// EAL refuses to start.
    #[error("EAL doesn't start with {arguments}: {why}; what it says itself stands above")]
    Start {
        /// Its arguments.
        arguments: String,
        /// Its reason.
        why: String,
    },
    /// EAL was stopped: it starts once a process.
    #[error("EAL was stopped, and starts only once in a process")]
    Stopped,
    /// The environment is there already, and other than this port wants it.
    #[error(
        "`{setting}` is for all DPDK ports of a process: the first one had `{first}`, this one has `{this}`; \
         give it to both alike, or to the first alone"
    )]
    OneForAll {
        /// The setting.
        setting: &'static str,
        /// Arguments of the first port.
        first: String,
        /// Arguments of this port.
        this: String,
    },
    /// No memory for the mempool.
    #[error(
        "no memory for a mempool of {mbufs} mbufs, about {mib} MiB ({why}); make more huge pages, or set fewer `mbufs`"
    )]
    NoMemory {
        /// Mbufs that were asked for.
        mbufs: u32,
        /// Memory that they take, in MiB.
        mib: u64,
        /// DPDK's reason.
        why: String,
    },
    /// Less memory than the mempool takes was left to EAL, or there is less.
    #[error(
        "no memory for a mempool of {mbufs} mbufs, about {mib} MiB ({why}); set fewer `mbufs`, or more for `-m` in \
         `eal` where that is given"
    )]
    NoMemoryWithoutHuge {
        /// Mbufs that were asked for.
        mbufs: u32,
        /// Memory that they take, in MiB.
        mib: u64,
        /// The reason.
        why: String,
    },
    /// The mempool's memory has holes.
    #[error(
        "the memory of the mempool is not in one piece; make more huge pages, or larger ones, or set fewer `mbufs`"
    )]
    Scattered,
    /// The engine can't use the mempool's memory.
    #[error(transparent)]
    Adopt(#[from] AdoptError),
    /// There is no such device.
    #[error(
        "there is no DPDK device `{name}` ({why}); a virtual one is named after its driver, as net_null0 or \
         net_pcap0,rx_pcap=in.pcap, a card by its address, as 0000:01:00.0; there are {known}"
    )]
    NoDevice {
        /// Its name.
        name: String,
        /// DPDK's reason.
        why: String,
        /// Devices that there are.
        known: String,
    },
    /// A driver makes no device with these arguments.
    #[error(
        "DPDK makes no device of `{arguments}`{}; are the files there, and does its driver have these arguments? \
         What it says itself stands above", reason_in_brackets(.why)
    )]
    NotMade {
        /// The device with its arguments.
        arguments: String,
        /// DPDK's reason, where it has one.
        why: Option<String>,
    },
    /// A capture can't go on.
    #[error(
        "device `{0}` finds no free mbuf for its next packet: the pipeline holds all, and in the times of a capture \
         they leave only when packets come; set more `mbufs`, or hold for a shorter time"
    )]
    NoMbufs(String),
    /// The device is there already, made with other arguments.
    #[error(
        "device `{0}` is there already; give its arguments once, to the first port that names it or in `eal`"
    )]
    OtherArguments(String),
    /// The device is open already, otherwise than this stage wants it.
    #[error(
        "device `{0}` is open already with other `queues`, `ring` or `mtu`; give both stages that name it the same"
    )]
    OtherSetup(String),
    /// Another stage receives from the device, or sends to it.
    #[error("another stage {what} `{name}` already; a device has one source and one sink")]
    Taken {
        /// The device.
        name: String,
        /// The use that is made of it.
        what: &'static str,
    },
    /// A port that shares its device has no such number.
    #[error("a device that {of} shards share has none with the number {number}; they count from 0")]
    Share {
        /// Its number.
        number: u16,
        /// The number of all.
        of: u16,
    },
    /// It has not so many queues.
    #[error("device `{name}` has {most} queues to receive from, not {queues}")]
    Queues {
        /// The device.
        name: String,
        /// Queues that were asked for.
        queues: u16,
        /// Queues that it has.
        most: u16,
    },
    /// It gives no times.
    #[error("device `{0}` gives packets no times of a capture; only net_pcap does: leave out time=captured")]
    NoTimes(String),
    /// The device can't be opened.
    #[error("device `{name}` can't be opened: {why}")]
    Open {
        /// The device.
        name: String,
        /// DPDK's reason.
        why: String,
    },
    /// The pool of the run is another.
    #[error(
        "the run's packet memory is not the mempool of its DPDK ports; hand slipstream_dpdk::take_pool() to its Driver"
    )]
    OtherPool,
}

impl DpdkError {
    /// The setting that is to blame.
    pub(crate) fn setting(&self) -> &'static str {
        match self {
            Self::NoHugePages
            | Self::NoHugeInMemory
            | Self::NotPrimary
            | Self::Stray(_)
            | Self::Help
            | Self::Start { .. }
            | Self::Stopped => "eal",
            Self::OneForAll { setting, .. } => setting,
            Self::NoMemory { .. }
            | Self::NoMemoryWithoutHuge { .. }
            | Self::NoMbufs(_)
            | Self::Scattered
            | Self::Adopt(_) => "mbufs",
            Self::Queues { .. } => "queues",
            Self::NoTimes(_) => "time",
            _ => "device",
        }
    }
}

/// A reason as it stands behind what it is the reason of.
fn reason_in_brackets(why: &Option<String>) -> String {
    why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
}

impl From<DpdkError> for SourceError {
    fn from(error: DpdkError) -> Self {
        Self::new(error)
    }
}
