//! Errors of a port.

use std::io;

use slipstream_core::source::SourceError;
use thiserror::Error;

/// The reason why an AF_XDP port can't be opened or used any more.
#[derive(Debug, Error)]
pub enum XdpError {
    /// There is no interface of this name.
    #[error("there is no interface `{0}`; `ip link` lists those that there are")]
    NoInterface(String),
    /// It is there, but down.
    #[error("interface `{0}` is down; bring it up first: ip link set dev {0} up")]
    Down(String),
    /// Its frames are no Ethernet frames.
    #[error("interface `{name}` carries no Ethernet frames (its ARP hardware type is {hardware})")]
    NotEthernet {
        /// Its name.
        name: String,
        /// `ARPHRD_…`.
        hardware: u16,
    },
    /// The process has no right to do this.
    #[error(
        "{what} on `{name}` is not allowed; AF_XDP takes root, or the capabilities CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF, \
         as in: setcap cap_net_raw,cap_net_admin,cap_bpf+ep slipstream"
    )]
    NotAllowed {
        /// The interface.
        name: String,
        /// The operation.
        what: &'static str,
    },
    /// A queue has an AF_XDP socket already.
    #[error(
        "queue {queue} of `{name}` has an AF_XDP socket already, of this program or another; one stage may stand for both \
         directions of an interface"
    )]
    QueueTaken {
        /// The interface.
        name: String,
        /// The queue.
        queue: u32,
    },
    /// An XDP program is there already.
    #[error(
        "interface `{0}` has an XDP program already; `ip link show dev {0}` shows it, and `ip link set dev {0} xdp off` takes \
         it off unless another process holds it there"
    )]
    OtherProgram(String),
    /// The interface has no such queue.
    #[error(
        "interface `{name}` has no queue {queue}: it has {have}, from 0 on; `ethtool -l {name}` shows them"
    )]
    NoQueue {
        /// The interface.
        name: String,
        /// The queue.
        queue: u32,
        /// Queues that it has.
        have: u32,
    },
    /// A port that shares its interface has no such number.
    #[error("an interface that {of} ports share has none with the number {number}; they count from 0")]
    Share {
        /// Its number.
        number: u32,
        /// The number of all.
        of: u32,
    },
    /// Fewer queues than shards.
    #[error(
        "`{name}` serves {have} of its queues here, and there are {shards} shards, each of which needs one: `ethtool -L {name} \
         combined {shards}` makes more where the driver has them, af_packet:{name} needs none, or take fewer --shards"
    )]
    FewQueues {
        /// The interface.
        name: String,
        /// Queues that are served.
        have: u32,
        /// Shards.
        shards: u32,
    },
    /// Its frames are longer than the packet memory has room for.
    #[error(
        "interface `{name}` has an MTU of {mtu} bytes, and the packet memory takes {most}; set a smaller MTU, {}or use \
         af_packet:{name}", if *larger { "or `chunk=4096` on each port, " } else { "" }
    )]
    TooLong {
        /// The interface.
        name: String,
        /// Its MTU.
        mtu: u32,
        /// The largest that the memory has room for.
        most: u32,
        /// There are larger buffers.
        larger: bool,
    },
    /// The packet memory is too small for the rings.
    #[error(
        "{buffers} packet buffers are too few: the rings of the AF_XDP ports take {rings}, and as many again are needed for \
         packets on their way; set a larger `buffers` on each port, or a smaller `ring`"
    )]
    FewBuffers {
        /// Buffers that there are.
        buffers: u32,
        /// Buffers that wait in rings.
        rings: u32,
    },
    /// The packet memory can't be had, or not be registered.
    #[error(
        "no packet memory of {bytes} bytes for `{name}` ({error}); set a smaller `buffers`, or allow more locked memory: \
         ulimit -l"
    )]
    NoMemory {
        /// The interface.
        name: String,
        /// Its size.
        bytes: u64,
        /// The system's error.
        error: io::Error,
    },
    /// The kernel, or the interface's driver, doesn't have it.
    #[error(
        "{what} on `{name}` is not supported by the kernel or the driver ({error}); use af_packet:{name}"
    )]
    Unsupported {
        /// The interface.
        name: String,
        /// The operation.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// The kernel tells programs no lengths of packets, or refuses rules that ask for some.
    #[error(
        "the kernel takes no program with the rules of `only` for `{name}` ({error}); they ask for `length`, which takes \
         Linux 5.18 or later: leave it out"
    )]
    Length {
        /// The interface.
        name: String,
        /// The system's error.
        error: io::Error,
    },
    /// The interface was taken away while in use.
    #[error("interface `{0}` is gone")]
    Gone(String),
    /// Anything else that the system refuses.
    #[error("{what} on `{name}`: {error}")]
    System {
        /// The interface.
        name: String,
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

impl XdpError {
    pub(super) fn of(name: &str, what: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| {
            let name = name.to_owned();
            match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => Self::NotAllowed { name, what },
                Some(libc::ENODEV | libc::ENXIO) => Self::NoInterface(name),
                Some(libc::ENETDOWN) => Self::Down(name),
                Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EAFNOSUPPORT | libc::ENOPROTOOPT) => {
                    Self::Unsupported { name, what, error }
                }
                _ => Self::System { name, what, error },
            }
        }
    }
}

impl From<XdpError> for SourceError {
    fn from(error: XdpError) -> Self {
        Self::new(error)
    }
}
