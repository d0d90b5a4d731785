//! Messages to the service manager about a run (`Type=notify`): that it is ready, that it is alive, that it
//! reloads, that it ends. A datagram each, to the socket that `NOTIFY_SOCKET` names (sd_notify(3)).

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A manager that is behind is waited for that long: who doesn't read holds up no run.
const PATIENCE: Duration = Duration::from_secs(1);

/// The service manager, or nobody.
#[derive(Debug)]
pub(crate) struct Manager {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// It was told that the run ends: a reload that ends later is none of its business.
    ends: Mutex<bool>,
}

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
        Self::new(address())
    }

    fn new(address: Option<SocketAddr>) -> Self {
        Self { to: address.and_then(Self::reaching), ends: Mutex::new(false) }
    }

    fn reaching(address: SocketAddr) -> Option<(UnixDatagram, SocketAddr)> {
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_write_timeout(Some(PATIENCE)).ok()?;
        Some((socket, address))
    }

    /// True where it wants to hear now and then that the run is alive (`WatchdogSec=`).
    pub(crate) fn has_watchdog(&self) -> bool {
        self.to.is_some() && env::var_os("WATCHDOG_USEC").is_some()
    }

    /// Tells it, unless it knows that the run ends. Who doesn't listen misses it.
    pub(crate) fn tell(&self, what: &str) {
        self.send(what, false);
    }

    /// Tells it that the run ends, behind which nothing is told.
    pub(crate) fn tell_end(&self) {
        self.send("STOPPING=1", true);
    }

    fn send(&self, what: &str, ends: bool) {
        let Some((socket, address)) = &self.to else { return };
        // Messages of several threads come in the order in which the threads look at this.
        let mut ended = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if !*ended {
            *ended = ends;
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
        let manager = Manager::new(SocketAddr::from_pathname(&path).ok());
        let mut heard = [0; 64];
        let mut hear = || {
            let length = listens.recv(&mut heard).unwrap();
            String::from_utf8_lossy(&heard[..length]).into_owned()
        };
        manager.tell("READY=1");
        assert_eq!(hear(), "READY=1");
        // It reads no more. What it has no room for is not waited for without an end.
        let filler = UnixDatagram::unbound().unwrap();
        filler.set_nonblocking(true).unwrap();
        while filler.send_to(b"WATCHDOG=1", &path).is_ok() {}
        manager.tell("READY=1");
        Manager::new(None).tell("READY=1");
    }

    /// A reload on a thread of its own ends when the run ends already.
    #[test]
    fn behind_the_end_nothing_is_told() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("notify");
        let listens = UnixDatagram::bind(&path).unwrap();
        listens.set_nonblocking(true).unwrap();
        let manager = Manager::new(SocketAddr::from_pathname(&path).ok());
        manager.tell("RELOADING=1");
        manager.tell_end();
        manager.tell("READY=1");
        manager.tell_end();
        let mut heard = [0; 64];
        let mut hear = || listens.recv(&mut heard).map(|length| heard[..length].to_vec());
        assert_eq!(hear().unwrap(), b"RELOADING=1");
        assert_eq!(hear().unwrap(), b"STOPPING=1");
        assert!(hear().is_err());
    }
}
