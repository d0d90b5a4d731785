//! Devices of DPDK: opened once, by the first stage that names one, and closed when nobody uses it any more.

use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::io::Errno;

use crate::eal::{Environment, State, state};
use crate::error::DpdkError;
use crate::receive::Receiver;
use crate::send::Sender;
use crate::sys::{self, Memory, Setup, Stats};

/// Settings for opening a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The device's name, and behind a comma arguments of a virtual one: `net_pcap0,rx_pcap=in.pcap`.
    pub device: String,
    /// The state that all ports share.
    pub environment: Environment,
    /// Queues to receive from; the card spreads connections over them.
    pub queues: u16,
    /// Packets that wait in each queue, at most.
    pub ring: u16,
    /// Bytes of the longest packet, its Ethernet header left out; 0: as the device has it.
    pub mtu: u16,
    /// Take packets for other stations too.
    pub promiscuous: bool,
    /// Packets received at once, at most.
    pub burst: usize,
    /// Packets come at the times of the capture that the device reads.
    pub captured: bool,
    /// Longest time that it may be left unasked when it had nothing, in ns; 0: it is asked all the time.
    pub idle: u64,
    /// Longest wait for room in a full ring before packets are dropped, in ns.
    pub send_wait: u64,
    /// The part of the device that is this port's.
    pub share: Share,
}

/// One of several ports that share a device: each has some of its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its number, from 0 on.
    pub number: u16,
    /// The number of all, at least 1.
    pub of: u16,
}

impl Default for Share {
    fn default() -> Self {
        Self { number: 0, of: 1 }
    }
}

/// A device that is open.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) port: u16,
    pub(crate) name: String,
    pub(crate) memory: Memory,
    /// It was not there before it was opened.
    made: bool,
    /// Queues to receive from.
    queues: u16,
    /// The turns of queues to send to; where there are fewer than shards, several send to one.
    turns: Box<[Mutex<()>]>,
    pub(crate) receives: Halves,
    pub(crate) sends: Halves,
    /// [`Known::open`] has the other end. Fields go behind what `drop` does.
    _open: Arc<()>,
}

/// The shards that have one half of a device.
#[derive(Debug, Default)]
pub(crate) struct Halves(Mutex<Vec<u16>>);

impl Halves {
    /// Takes the half of a shard; false where somebody has it.
    fn take(&self, shard: u16) -> bool {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = !taken.contains(&shard);
        if free {
            taken.push(shard);
        }
        free
    }

    /// Gives it back.
    pub(crate) fn leave(&self, shard: u16) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|taken| *taken != shard);
    }
}

/// A device as others may find it.
pub(crate) struct Known {
    pub(crate) name: String,
    arguments: String,
    setup: Setup,
    pub(crate) device: Weak<Device>,
    /// It is there until the device is closed, which takes a while from when nobody has it.
    open: Weak<()>,
}

impl Known {
    /// Returns true if the device is not closed, though maybe about to be.
    pub(crate) fn is_open(&self) -> bool {
        self.open.strong_count() > 0
    }
}

impl Options {
    /// The device's name, without arguments.
    #[must_use]
    pub fn name(&self) -> &str {
        self.device.split_once(',').map_or(&*self.device, |(name, _)| name)
    }

    /// Opens the half that receives.
    ///
    /// # Errors
    /// [`DpdkError`], which says what to do about it.
    pub fn open_receiver(&self) -> Result<Receiver, DpdkError> {
        let device = self.open()?;
        if !device.receives.take(self.share.number) {
            return Err(DpdkError::Taken { name: device.name.clone(), what: "receives from" });
        }
        if self.promiscuous {
            sys::promiscuous(device.port);
        }
        Receiver::new(device, self)
    }

    /// Opens the half that sends.
    ///
    /// # Errors
    /// As [`Options::open_receiver`].
    pub fn open_sender(&self) -> Result<Sender, DpdkError> {
        let device = self.open()?;
        if !device.sends.take(self.share.number) {
            return Err(DpdkError::Taken { name: device.name.clone(), what: "sends to" });
        }
        Ok(Sender::new(device, self.send_wait, self.share))
    }

    fn setup(&self) -> Setup {
        let Self { queues, ring, mtu, share, .. } = *self;
        Setup { queues, ring, mtu, shards: share.of.max(1), senders: 0 }
    }

    fn open(&self) -> Result<Arc<Device>, DpdkError> {
        // It would have queues that another shard has, too.
        let Share { number, of } = self.share;
        if number >= of.max(1) {
            return Err(DpdkError::Share { number, of });
        }
        let mut state = state();
        let memory = state.ready(&self.environment)?;
        if let Some((known, device)) = state.open_device(self.name()) {
            if known.arguments != self.device && self.device.contains(',') {
                return Err(DpdkError::OtherArguments(device.name.clone()));
            }
            if known.setup != self.setup() {
                return Err(DpdkError::OtherSetup(device.name.clone()));
            }
            return Ok(device);
        }
        // Another thread may be closing it, for which it doesn't need the state.
        while state.devices.iter().any(|known| known.name == self.name() && known.is_open()) {
            std::thread::yield_now();
        }
        self.open_first(&mut state, memory)
    }

    fn open_first(&self, state: &mut State, memory: Memory) -> Result<Arc<Device>, DpdkError> {
        let name = self.name().to_owned();
        let nul = |_| DpdkError::Nul(self.device.clone());
        let (text, arguments) =
            (CString::new(name.as_str()).map_err(nul)?, CString::new(self.device.as_str()).map_err(nul)?);
        let (port, made) = sys::find(&text, &arguments).map_err(|error| {
            let errno = Errno::from_raw_os_error(-error);
            // EAL knows the driver of a virtual device, else it can't read the name.
            if !name.contains(':') && errno != Errno::FAULT {
                // A driver that has no reason to tell returns -1, which happens to be the number of this one.
                let why = (errno != Errno::PERM).then(|| sys::reason(error));
                return DpdkError::NotMade { arguments: self.device.clone(), why };
            }
            let mut known = sys::names().join(", ");
            if known.is_empty() {
                "none".clone_into(&mut known);
            }
            DpdkError::NoDevice { name: name.clone(), why: sys::reason(error), known }
        })?;
        // From here on it is closed again by the value's end.
        let (receives, sends) = (Halves::default(), Halves::default());
        let (queues, turns, here) = (0, Box::default(), Arc::new(()));
        let open = Arc::downgrade(&here);
        let mut device =
            Device { port, name: name.clone(), memory, made, queues, turns, receives, sends, _open: here };
        if !made && self.device.contains(',') {
            return Err(DpdkError::OtherArguments(name));
        }
        let mut setup = self.setup();
        sys::open(port, &memory, &mut setup).map_err(|error| match Errno::from_raw_os_error(-error) {
            Errno::MLINK => DpdkError::Queues { name: name.clone(), queues: self.queues, most: setup.queues },
            _ => DpdkError::Open { name: name.clone(), why: sys::reason(error) },
        })?;
        device.queues = setup.queues;
        device.turns = (0..setup.senders).map(|_| Mutex::new(())).collect();
        let device = Arc::new(device);
        state.devices.retain(|known| known.name != name);
        let (device_too, arguments) = (Arc::downgrade(&device), self.device.clone());
        state.devices.push(Known { name, arguments, setup: self.setup(), device: device_too, open });
        Ok(device)
    }
}

impl Device {
    /// Counters of the whole device, which the first shard reports for all.
    pub(crate) fn stats(&self, share: Share) -> Stats {
        if share.number == 0 { sys::stats(self.port) } else { Stats::default() }
    }

    /// The queues that a shard receives from; none where there are fewer than shards.
    pub(crate) fn queues(&self, share: Share) -> Box<[u16]> {
        (share.number..self.queues).step_by(usize::from(share.of.max(1))).collect()
    }

    /// The queue that a shard sends to, and its turns where others send there, too.
    pub(crate) fn way_out(&self, share: Share) -> (u16, Option<&Mutex<()>>) {
        let queue = share.number % (self.turns.len() as u16).max(1);
        let alone = self.turns.len() >= usize::from(share.of);
        (queue, self.turns.get(usize::from(queue)).filter(|_| !alone))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        sys::close(self.port, self.made);
    }
}
