//! Errors of a live port.

use slipstream_core::source::SourceError;
use std::io;

use thiserror::Error;

/// The reason why a live port can't be opened or used any more.
#[derive(Debug, Error)]
pub enum PortError {
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
    /// The process may not open packet sockets.
    #[error(
        "not allowed to open a packet socket on `{0}`; it takes root or the capability CAP_NET_RAW, as in: \
         setcap cap_net_raw,cap_net_admin+ep slipstream"
    )]
    NotAllowed(String),
    /// The memory for the ring can't be had.
    #[error("no memory for a ring of {bytes} bytes on `{name}` ({error}); set a smaller `ring`")]
    NoMemory {
        /// The interface.
        name: String,
        /// Size of the ring that was asked for.
        bytes: u64,
        /// The system's error.
        error: io::Error,
    },
    /// The interface's packets can't be shared in this group.
    #[error(
        "fanout group {group} can't be joined on `{name}` ({error}): its sockets must be of one interface, 256 at most, and share \
         packets in the same way; take another number"
    )]
    Group {
        /// The interface.
        name: String,
        /// The group's number.
        group: u16,
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

impl PortError {
    pub(super) fn of(name: &str, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotAllowed(name.to_owned()),
            Some(libc::ENODEV | libc::ENXIO) => Self::NoInterface(name.to_owned()),
            Some(libc::ENETDOWN) => Self::Down(name.to_owned()),
            _ => Self::System { name: name.to_owned(), what, error },
        }
    }
}

impl From<PortError> for SourceError {
    fn from(error: PortError) -> Self {
        Self::new(error)
    }
}
