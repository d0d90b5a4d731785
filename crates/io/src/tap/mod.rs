//! A TAP interface as a port: what the machine sends by it comes in here, and what leaves here comes to the
//! machine by it (`/dev/net/tun`).
//!
//! The interface is made if it isn't there, and goes away with the program; one that somebody made to stay
//! (`ip tuntap add`) is opened, and stays. The kernel gives a packet a system call, but leaves TCP and UDP in
//! super-frames of up to 64 KiB, which are cut here: of bulk traffic one call brings some 40 packets.
//! Transport checksums are completed. In the other direction, packets that `reframe` marked as a super-frame
//! are handed over as one.

mod error;
mod lost;
mod receive;
mod send;
mod stage;
#[allow(unsafe_code)]
mod sys;

use std::sync::Arc;

pub use error::TapError;
use lost::Lost;
pub use receive::Receiver;
pub use send::Sender;
pub use stage::TAP_INTERFACE;

/// Settings for opening a port.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interface's name.
    pub interface: String,
    /// Bring the interface up.
    pub up: bool,
    /// Have the kernel leave checksums and segmentation to this program.
    pub offloads: bool,
    /// Open one of several queues.
    pub multi_queue: bool,
    /// Hand super-frames over as such.
    pub super_frames: bool,
    /// Count the packets that the interface had no room for. Of several queues one counts them for all.
    pub counts_lost: bool,
}

impl Options {
    /// Of an interface, which is brought up.
    #[must_use]
    pub fn new(interface: impl Into<String>) -> Self {
        let (up, offloads, super_frames, multi_queue) = (true, true, true, false);
        Self { interface: interface.into(), up, offloads, super_frames, multi_queue, counts_lost: true }
    }

    /// Opens the port.
    ///
    /// # Errors
    /// [`TapError`], which says what to do about it.
    pub fn open(&self) -> Result<(Receiver, Sender), TapError> {
        let name = self.interface.as_str();
        let device = sys::Device::open(name, self.multi_queue)
            .map_err(|error| TapError::opening(name, self.multi_queue, error))?;
        let port = Port { device, name: name.to_owned() };
        let offloads = if self.offloads { port.device.take_offloads() } else { port.device.no_offloads() };
        offloads.map_err(TapError::of(name, "setting offloads"))?;
        if self.up {
            sys::bring_up(name).map_err(TapError::bringing_up(name))?;
        }
        let port = Arc::new(port);
        let lost = self.counts_lost.then(|| Lost::of(name));
        Ok((Receiver::new(Arc::clone(&port), lost), Sender::new(port, self.super_frames)))
    }
}

/// The parts of a port that both directions share.
#[derive(Debug)]
struct Port {
    device: sys::Device,
    name: String,
}

impl Drop for Port {
    /// An interface that stays leaves nothing to those who open it next: they may not know how to complete
    /// what the machine left to this program.
    fn drop(&mut self) {
        let _ = self.device.no_offloads();
    }
}

impl Port {
    /// The error of an interface that is no more.
    fn gone(&self) -> Option<TapError> {
        self.device.is_gone().then(|| TapError::Gone(self.name.clone()))
    }
}
