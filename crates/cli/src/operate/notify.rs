//! Messages to the service manager about a run (`Type=notify`): that it is ready, that it is alive, that it
//! reloads, that it ends. A datagram each, to the socket that `NOTIFY_SOCKET` names (sd_notify(3)).

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// A manager that is behind is waited for that long: who doesn't read holds up no run.
const PATIENCE: Duration = Duration::from_secs(1);

/// The service manager, or nobody.
#[derive(Debug)]
pub(crate) struct Manager(Option<(UnixDatagram, SocketAddr)>);

impl Manager {
    /// The one that started this program and wants to be told.
    pub(crate) fn from_environment() -> Self {
        let address = || {
            let name = env::var_os("NOTIFY_SOCKET")?;
            match name.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
                _ => SocketAddr::from_pathname(&name).ok(),
            }
        };
        Self(address().and_then(Self::reaching))
    }

    fn reaching(address: SocketAddr) -> Option<(UnixDatagram, SocketAddr)> {
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_write_timeout(Some(PATIENCE)).ok()?;
        Some((socket, address))
    }

    /// True where it wants to hear now and then that the run is alive (`WatchdogSec=`).
    pub(crate) fn has_watchdog(&self) -> bool {
        self.0.is_some() && env::var_os("WATCHDOG_USEC").is_some()
    }

    /// Tells it. Who doesn't listen misses it.
    pub(crate) fn tell(&self, what: &str) {
        if let Some((socket, address)) = &self.0 {
            let _ = socket.send_to_addr(what.as_bytes(), address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_hears_what_it_is_told() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("notify");
        let listens = UnixDatagram::bind(&path).unwrap();
        let manager = Manager(Manager::reaching(SocketAddr::from_pathname(&path).unwrap()));
        manager.tell("READY=1");
        let mut heard = [0; 64];
        let length = listens.recv(&mut heard).unwrap();
        assert_eq!(&heard[..length], b"READY=1");
        // It reads no more. What it has no room for is not waited for without an end.
        let filler = UnixDatagram::unbound().unwrap();
        filler.set_nonblocking(true).unwrap();
        while filler.send_to(b"WATCHDOG=1", &path).is_ok() {}
        manager.tell("READY=1");
        Manager(None).tell("READY=1");
    }
}
