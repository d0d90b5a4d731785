//! A network interface as a port, by AF_XDP sockets: the driver, or the kernel just behind it, puts packets
//! straight into the memory of the pool, and sends them from there.
//!
//! A small XDP program of ours stands on the interface as long as the port is open, and not a moment longer,
//! however the process ends. It hands each packet to the socket of the queue by which it came, or those that
//! rules ask for, and the others stay with the kernel. Where the driver can, packets are received and sent
//! without a copy; else the kernel makes the only one.
//!
//! - [`receive`]: the way in; [`send`]: the way out; [`stage`]: both as a stage type.
//! - [`umem`]: the packet memory; [`ring`]: what is shared with the kernel beside it.
//! - [`program`]: the XDP program, of [`prefilter`], rules, and [`headers`], what they read of packets;
//!   [`instruction`], [`bpf`]: the form in which the kernel takes it. [`sys`]: other system calls.

#[allow(unsafe_code)]
mod bpf;
mod checksum;
mod error;
mod headers;
mod instruction;
#[cfg(test)]
mod interpreter;
mod prefilter;
#[cfg(test)]
mod prefilter_tests;
mod program;
mod queues;
#[allow(unsafe_code)]
mod receive;
#[allow(unsafe_code)]
mod ring;
#[allow(unsafe_code)]
mod send;
mod stage;
#[allow(unsafe_code)]
mod sys;
#[allow(unsafe_code)]
mod umem;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

pub use error::XdpError;
pub use prefilter::{Prefilter, TooManyComparisons};
pub use queues::Queues;
pub use receive::Receiver;
pub use send::Sender;
pub use stage::AF_XDP;
pub use umem::Umem;

use crate::af_packet::{InterfaceInfo, Socket as PacketSocket};
use crate::link::name_of;
use receive::Queue;
use slipstream_core::pool::LEAD;
use sys::{Kind, Socket};

/// Bytes of a frame that its payload, which is what an interface limits, doesn't count: Ethernet header and
/// two VLAN tags.
const OVERHEAD: u32 = 14 + 2 * 4;
/// Bytes of packets on their way out at most, where the kernel copies them.
const SEND_ROOM: i32 = 16 << 20;
/// Sizes of buffers; the kernel takes these two.
const CHUNKS: [usize; 2] = [2048, 4096];
/// Times that a queue which is taken is asked for: the kernel lets it go a moment after the process that had
/// it has ended.
const TRIES: u32 = 200;
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(5);
/// Bytes of a buffer before a packet that came.
const FRONT: usize = 256 + LEAD;

/// The way in which the program is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, or behind it where the driver can't.
    #[default]
    Auto,
    /// In the driver, or not at all.
    Native,
    /// Behind the driver.
    Generic,
}

/// The ways of a port that are to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    /// Receive.
    pub receive: bool,
    /// Send.
    pub send: bool,
}

/// Settings for opening a port.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interface's name.
    pub interface: String,
    /// The queues that are served. What is sent leaves by the first one.
    pub queues: Queues,
    /// The way in which the program is run.
    pub mode: Mode,
    /// Have the kernel copy packets, though the driver could do without.
    pub copy: bool,
    /// Take packets for other stations too.
    pub promiscuous: bool,
    /// Entries of each ring, 64 to 32768; rounded up to a power of two.
    pub ring: u32,
    /// Packet buffers; none: 8 for each entry of a receive ring, 16384 at least.
    pub buffers: Option<u32>,
    /// Bytes of a buffer, 2048 or 4096; none: as the interface's MTU needs.
    pub chunk: Option<usize>,
    /// Fill in transport checksums that neighbours on the same machine left to a card that isn't there.
    pub checksums: bool,
    /// The driver is asked for packets when the program asks, without interrupts.
    pub busy_poll: bool,
    /// The packets that are taken; all others stay with the kernel. None: all are.
    pub only: Option<Prefilter>,
    /// The part of the queues that is this port's, where several share the interface.
    pub share: Share,
}

/// One of several ports of a process that share an interface: each has a part of its queues, and packet
/// memory of its own. One program hands packets to the sockets of all of them.
#[derive(Clone, Debug)]
pub struct Share {
    /// Its number, from 0 on; the last one that is opened puts the program on the interface.
    pub number: u32,
    /// The number of all, which is above that of each.
    pub of: u32,
    /// The program, which all of them are given.
    pub program: Arc<Program>,
}

impl Default for Share {
    fn default() -> Self {
        Self { number: 0, of: 1, program: Arc::default() }
    }
}

/// The program on an interface and its maps, as far as they are there.
#[derive(Debug, Default)]
pub struct Program {
    map: OnceLock<OwnedFd>,
    /// Queues of the interface.
    queues: OnceLock<u32>,
    /// Counters of the packets that stay with the kernel.
    left: OnceLock<OwnedFd>,
    attached: OnceLock<Attached>,
}

/// The programs of this process, each with the name of its interface.
static PROGRAMS: Mutex<Vec<(String, Weak<Program>)>> = Mutex::new(Vec::new());

impl Program {
    /// The one that stands on this interface.
    fn on(interface: &str) -> Option<Arc<Self>> {
        let all = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = all.iter().filter(|(name, _)| name == interface).filter_map(|(_, one)| one.upgrade());
        found.find(|program| program.attached.get().is_some())
    }

    /// It can be found from now on, by the name of its interface.
    fn announce(self: &Arc<Self>, interface: &str) {
        let mut all = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(name, one)| name != interface && one.strong_count() > 0);
        all.push((interface.to_owned(), Arc::downgrade(self)));
    }

    /// Has the kernel check and take instructions that hand packets to the sockets of its map: all of them,
    /// or those that rules ask for.
    fn load(&self, interface: &str, only: Option<&Prefilter>) -> Result<OwnedFd, XdpError> {
        let failed = |what| XdpError::of(interface, what);
        let missing = || failed("making a BPF map")(std::io::ErrorKind::NotFound.into());
        let map = self.map.get().ok_or_else(missing)?;
        let part = match only {
            Some(rules) => {
                if self.left.get().is_none() {
                    let queues = self.queues.get().copied().unwrap_or(1);
                    let new = bpf::counters(queues).map_err(failed("making a BPF map"))?;
                    self.left.get_or_init(|| new);
                }
                let counters = self.left.get().ok_or_else(missing)?.as_raw_fd();
                Some(program::Only { rules, counters })
            }
            None => None,
        };
        let load = |stamped| bpf::load(&program::program(map.as_raw_fd(), part, stamped));
        // Older kernels keep the clock to programs under the GPL: packets then come when they are looked at.
        load(true).or_else(|_| load(false)).map_err(|error| match only {
            Some(rules) if rules.asks_for_length() && error.to_string().contains(program::LENGTH_REFUSED) => {
                XdpError::Length { name: interface.to_owned(), error }
            }
            _ => failed("loading an XDP program")(error),
        })
    }

    /// Goes by these instructions from now on, from one packet to the next.
    fn go_by(&self, interface: &str, loaded: &OwnedFd) -> Result<(), XdpError> {
        let Some(attached) = self.attached.get() else { return Ok(()) };
        bpf::replace(&attached.link, loaded).map_err(XdpError::of(interface, "changing an XDP program"))
    }

    fn is_native(&self) -> bool {
        self.attached.get().is_some_and(|attached| attached.mode == bpf::Mode::Native)
    }

    /// Packets of a queue that rules left to the kernel; 0 where there are no rules.
    fn left_to_kernel(&self, queue: u32) -> u64 {
        self.left.get().and_then(|map| bpf::counted(map, queue).ok()).unwrap_or(0)
    }
}

/// A port that was opened.
#[derive(Debug)]
pub struct Opened {
    /// The way in, if it was to be opened.
    pub receiver: Option<Receiver>,
    /// The way out, if it was to be opened.
    pub sender: Option<Sender>,
    /// The packet memory, for other ports of the same pipeline.
    pub umem: Arc<Umem>,
}

impl Options {
    /// Of an interface, everything else as is usual: all queues, promiscuous, rings of 2048 packets.
    #[must_use]
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            queues: Queues::All,
            mode: Mode::Auto,
            copy: false,
            promiscuous: true,
            ring: 2048,
            buffers: None,
            chunk: None,
            checksums: true,
            busy_poll: false,
            only: None,
            share: Share::default(),
        }
    }

    /// Opens the port. `umem` is the packet memory of ports that were opened before in the same pipeline.
    ///
    /// # Errors
    /// [`XdpError`], which says what to do about it.
    pub fn open(&self, ways: Ways, umem: Option<Arc<Umem>>) -> Result<Opened, XdpError> {
        let name = self.interface.as_str();
        let failed = |what| XdpError::of(name, what);
        let Share { number, of, .. } = self.share;
        if number >= of {
            return Err(XdpError::Share { number, of });
        }
        let packets = PacketSocket::new().map_err(failed("opening a packet socket"))?;
        let info = packets.interface(name).map_err(failed("asking for the interface"))?;
        if !info.up {
            return Err(XdpError::Down(name.to_owned()));
        }
        if ![libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&info.hardware) {
            return Err(XdpError::NotEthernet { name: name.to_owned(), hardware: info.hardware });
        }
        // It receives nothing; by it the kernel tells whether the interface is still the one that it was.
        packets.bind(info.index, false).map_err(failed("binding to the interface"))?;
        let have = packets.queues(name).max(1);
        let mut queues = self.queues.numbers(have);
        if let Some(queue) = queues.iter().copied().find(|queue| *queue >= have) {
            return Err(XdpError::NoQueue { name: name.to_owned(), queue, have });
        }
        let all = queues.len() as u32;
        if all < of {
            return Err(XdpError::FewQueues { name: name.to_owned(), have: all, shards: of });
        }
        // Those next to each other are of different shares: queues that cards fill first are shared out.
        queues.retain({
            let mut place = 0..;
            move |_| place.next().is_some_and(|place: u32| place % of == number)
        });
        if !ways.receive {
            queues.truncate(1);
        }
        let ring = self.ring.clamp(64, 1 << 15).next_power_of_two();
        let rings = if ways.receive { ring * queues.len() as u32 } else { 0 };
        sys::lock_more_memory();
        let umem = self.memory(umem, &info, rings)?;
        // It takes what is for other stations as long as it is open.
        if ways.receive && self.promiscuous {
            packets.promiscuous(info.index).map_err(failed("switching to promiscuous"))?;
        }
        let mut sockets = Vec::new();
        let mut way_out = None;
        for (n, queue) in queues.iter().copied().enumerate() {
            let out = ways.send && n == 0;
            let (socket, rings) = self.socket(&umem, &info, queue, ring, ways.receive, out)?;
            let Rings { receive, fill, send } = rings;
            if let Some((transmit, completion)) = send {
                way_out = Some((Arc::clone(&socket), transmit, completion));
            }
            if let Some(receive) = receive {
                sockets.push(Queue::new(queue, socket, receive, fill, &umem));
            }
        }
        if ways.receive {
            self.attach(&info, have, &sockets)?;
        }
        let port = Arc::new(Port {
            name: name.to_owned(),
            index: info.index,
            umem: Arc::clone(&umem),
            packets,
            program: Arc::clone(&self.share.program),
        });
        let receiver = match sockets.is_empty() {
            true => None,
            false => Some(Receiver::new(Arc::clone(&port), sockets, self).map_err(failed("waiting"))?),
        };
        let sender = way_out
            .map(|(socket, transmit, completion)| Sender::new(port, socket, transmit, completion, &info));
        Ok(Opened { receiver, sender, umem })
    }

    /// The packet memory: that of other ports, or some that is made now. `rings` of its buffers wait for
    /// packets.
    fn memory(
        &self,
        umem: Option<Arc<Umem>>,
        info: &InterfaceInfo,
        rings: u32,
    ) -> Result<Arc<Umem>, XdpError> {
        let name = self.interface.clone();
        let longest = (info.mtu + OVERHEAD) as usize;
        let umem = match umem {
            Some(umem) => umem,
            None => {
                let [small, large] = CHUNKS;
                let chunk = self.chunk.unwrap_or(if longest + FRONT <= small { small } else { large });
                let buffers = self.buffers.unwrap_or((8 * rings).max(1 << 14));
                let bytes = u64::from(buffers) * chunk as u64;
                Umem::new(buffers, chunk).map_err(|error| XdpError::NoMemory {
                    name: name.clone(),
                    bytes,
                    error,
                })?
            }
        };
        if longest > umem.longest() && info.hardware != libc::ARPHRD_LOOPBACK {
            let most = (umem.longest() as u32).saturating_sub(OVERHEAD);
            let larger = umem.chunk() < CHUNKS[1];
            return Err(XdpError::TooLong { name, mtu: info.mtu, most, larger });
        }
        let all = umem.reserve(rings);
        if all > umem.buffers() / 2 {
            return Err(XdpError::FewBuffers { buffers: umem.buffers(), rings: all });
        }
        Ok(umem)
    }

    /// A socket of a queue, bound to it.
    fn socket(
        &self,
        umem: &Umem,
        info: &InterfaceInfo,
        queue: u32,
        ring: u32,
        receive: bool,
        send: bool,
    ) -> Result<(Arc<Socket>, Rings), XdpError> {
        let name = self.interface.as_str();
        let failed = |what| XdpError::of(name, what);
        let socket = Socket::new().map_err(failed("opening an AF_XDP socket"))?;
        socket.register(umem).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN) => {
                XdpError::NoMemory { name: name.to_owned(), bytes: umem.bytes() as u64, error }
            }
            _ => failed("registering packet memory")(error),
        })?;
        let making = failed("making a ring");
        // A socket has a fill and a completion ring in any case.
        let fill = socket.ring(Kind::Fill, ring).map_err(&making)?;
        let completion = socket.ring(Kind::Completion, ring).map_err(&making)?;
        let incoming = if receive { Some(socket.ring(Kind::Receive, ring).map_err(&making)?) } else { None };
        let outgoing = if send { Some(socket.ring(Kind::Transmit, ring).map_err(&making)?) } else { None };
        if send {
            socket.send_room(SEND_ROOM, ring);
        }
        if self.busy_poll {
            socket.busy_poll(64).map_err(failed("polling the driver"))?;
        }
        // Without a word the kernel copies only where the driver can't do without.
        let copying = if self.copy || self.mode == Mode::Generic { libc::XDP_COPY } else { 0 };
        let taken = |error: std::io::Error| match error.raw_os_error() {
            Some(libc::EBUSY) => XdpError::QueueTaken { name: name.to_owned(), queue },
            _ => failed("binding to a queue")(error),
        };
        bind(&socket, info.index, queue, libc::XDP_USE_NEED_WAKEUP | copying).map_err(taken)?;
        let send = outgoing.map(|outgoing| (outgoing, completion));
        Ok((Arc::new(socket), Rings { receive: incoming, fill, send }))
    }

    /// Gives the program these sockets, and puts it on the interface once it has those of all shares: until
    /// then packets stay with the kernel.
    fn attach(&self, info: &InterfaceInfo, have: u32, sockets: &[Queue]) -> Result<(), XdpError> {
        let name = self.interface.as_str();
        let failed = |what| XdpError::of(name, what);
        let Share { number, of, program: shared } = &self.share;
        let map = match shared.map.get() {
            Some(map) => map,
            None => {
                let new = bpf::sockets(have).map_err(failed("making a BPF map"))?;
                shared.map.get_or_init(|| new)
            }
        };
        for queue in sockets {
            bpf::put(map, queue.number(), queue.socket().fd()).map_err(failed("filling a BPF map"))?;
        }
        if number + 1 < *of {
            return Ok(());
        }
        shared.queues.get_or_init(|| have);
        let program = shared.load(name, self.only.as_ref())?;
        let modes = match self.mode {
            Mode::Auto => &[bpf::Mode::Native, bpf::Mode::Generic][..],
            Mode::Native => &[bpf::Mode::Native],
            Mode::Generic => &[bpf::Mode::Generic],
        };
        let mut why = None;
        for mode in modes {
            match bpf::attach(&program, info.index, *mode) {
                Ok(link) => {
                    // It is there as long as a port is.
                    shared.attached.get_or_init(|| Attached { mode: *mode, link });
                    shared.announce(name);
                    return Ok(());
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EBUSY | libc::EEXIST) => return Err(XdpError::OtherProgram(name.to_owned())),
                    Some(libc::EPERM | libc::EACCES) => {
                        return Err(failed("attaching an XDP program")(error));
                    }
                    _ => why = Some(error),
                },
            }
        }
        let error = why.unwrap_or_else(|| std::io::ErrorKind::Unsupported.into());
        let name = name.to_owned();
        Err(XdpError::Unsupported { name, what: "an XDP program in this mode", error })
    }
}

/// Binds a socket to a queue, which one that was closed just now may still have for a moment.
fn bind(socket: &Socket, interface: u32, queue: u32, flags: u16) -> std::io::Result<()> {
    for _ in 1..TRIES {
        match socket.bind(interface, queue, flags) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
    socket.bind(interface, queue, flags)
}

/// The rings of a socket.
struct Rings {
    receive: Option<ring::Ring<libc::xdp_desc>>,
    fill: ring::Ring<u64>,
    send: Option<(ring::Ring<libc::xdp_desc>, ring::Ring<u64>)>,
}

/// The program on an interface; closed, it is taken off.
#[derive(Debug)]
struct Attached {
    mode: bpf::Mode,
    link: OwnedFd,
}

/// The parts of a port that both directions share.
#[derive(Debug)]
struct Port {
    name: String,
    index: u32,
    umem: Arc<Umem>,
    packets: PacketSocket,
    program: Arc<Program>,
}

impl Port {
    /// The error of an interface that is no more.
    fn gone(&self) -> Option<XdpError> {
        self.packets.has_lost_interface().then(|| XdpError::Gone(self.name.clone()))
    }

    /// The state of the interface now. It may have another name by now, and another one its name.
    fn info(&self) -> Option<InterfaceInfo> {
        let info = self.packets.interface(&name_of(self.index)?).ok()?;
        (info.index == self.index).then_some(info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_there_is_not_is_refused() {
        for (number, of) in [(0, 0), (2, 2), (u32::MAX, 1)] {
            let share = Share { number, of, ..Share::default() };
            let options = Options { share, ..Options::new("lo") };
            let refused = options.open(Ways { receive: true, send: true }, None).unwrap_err();
            assert!(refused.to_string().contains("they count from 0"), "{refused}");
        }
    }
}
