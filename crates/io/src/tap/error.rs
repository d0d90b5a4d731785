//! Errors of a TAP port.

use std::io;

use slipstream_core::source::SourceError;
use thiserror::Error;

/// Why a TAP interface can't be opened or used any more.
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
    /// Another program has it open.
    #[error("TAP interface `{0}` is in use by another program")]
    InUse(String),
    /// There is an interface of this name, and it isn't a TAP interface of one queue.
    #[error("`{0}` is there, and is no TAP interface (with one queue); take another name")]
    NotTap(String),
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
