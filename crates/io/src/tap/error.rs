//! Errors of a TAP port.

use std::io;

use slipstream_core::source::SourceError;
use thiserror::Error;

use crate::link::number_of;
use crate::netlink::Description;

/// The reason why a TAP interface can't be opened or used any more.
#[derive(Debug, Error)]
pub enum TapError {
    /// The kernel has no TAP interfaces.
    #[error("there is no /dev/net/tun ({0}); load its module: modprobe tun")]
    NoDevice(io::Error),
    /// The process may not make interfaces.
    #[error(
        "{what} `{name}` is not allowed; it takes root or the capability CAP_NET_ADMIN, as in: \
         setcap cap_net_raw,cap_net_admin+ep slipstream; or have root make it: ip tuntap add {name} mode tap user $USER"
    )]
    NotAllowed {
        /// The interface.
        name: String,
        /// The operation.
        what: &'static str,
    },
    /// It is down, and the process may not bring interfaces up.
    #[error(
        "TAP interface `{0}` is down; to bring it up takes root or the capability CAP_NET_ADMIN: \
         have root do it: ip link set {0} up; or set `up=false`, and it is waited for"
    )]
    Down(String),
    /// Another program has it open.
    #[error("TAP interface `{0}` is in use by another program")]
    InUse(String),
    /// There is an interface of this name, and it isn't a TAP interface.
    #[error("`{0}` is there, and is no TAP interface; take another name")]
    NotTap(String),
    /// It has one queue, and one of several was to be opened.
    #[error(
        "TAP interface `{0}` has one queue only; leave out `multi_queue=true` and --shards, or make it anew for several: \
         ip link del {0}; ip tuntap add {0} mode tap multi_queue"
    )]
    OneQueue(String),
    /// It was made for several queues, and is to be opened as one of a single queue.
    #[error(
        "TAP interface `{0}` was made for several queues; set `multi_queue=true`, or make it anew for one: \
         ip link del {0}; ip tuntap add {0} mode tap"
    )]
    SeveralQueues(String),
    /// The interface was taken away while in use.
    #[error("interface `{0}` is gone")]
    Gone(String),
    /// Anything else that the system refuses.
    #[error("{what} `{name}`: {error}")]
    System {
        /// The interface.
        name: String,
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

impl TapError {
    /// The error of an interface that can't be opened as one of several queues, or of one.
    pub(super) fn opening(name: &str, several: bool, error: io::Error) -> Self {
        let number = number_of(name).filter(|_| error.raw_os_error() == Some(libc::EINVAL));
        let there = number.and_then(|number| Description::of(number).ok()?.tap_of_several_queues());
        match (there, several) {
            (Some(false), true) => Self::OneQueue(name.to_owned()),
            (Some(true), false) => Self::SeveralQueues(name.to_owned()),
            _ => Self::of(name, "opening a TAP interface")(error),
        }
    }

    /// The error of an interface that can't be brought up.
    pub(super) fn bringing_up(name: &str) -> impl FnOnce(io::Error) -> Self {
        move |error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Down(name.to_owned()),
            _ => Self::of(name, "bringing the interface up")(error),
        }
    }

    pub(super) fn of(name: &str, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| {
            let name = name.to_owned();
            match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => Self::NotAllowed { name, what },
                Some(libc::ENOENT | libc::ENXIO) => Self::NoDevice(error),
                Some(libc::EBUSY) => Self::InUse(name),
                Some(libc::EINVAL | libc::EEXIST) => Self::NotTap(name),
                Some(libc::EBADFD | libc::ENODEV) => Self::Gone(name),
                _ => Self::System { name, what, error },
            }
        }
    }
}

impl From<TapError> for SourceError {
    fn from(error: TapError) -> Self {
        Self::new(error)
    }
}
