//! A network interface as a port, by a packet socket (packet(7)).
//!
//! Packets come in through a ring that the kernel writes (packet_mmap), each with the kernel's time stamp in
//! ns, and go out in batches of one system call. What the port itself sends doesn't come back to it. VLAN
//! tags that the kernel took out of the frame are put back; a transport checksum that the sender left to its
//! network card is filled in. Packets that `reframe` marked as a super-frame leave as one.
//!
//! - [`receive`]: the ring as a source; [`send`]: the way out.
//! - [`ring`], [`sys`]: the only unsafe code.

mod error;
mod fanout;
mod receive;
#[allow(unsafe_code)]
mod ring;
mod send;
mod stage;
#[allow(unsafe_code)]
mod sys;

use std::sync::Arc;

pub use error::PortError;
pub use receive::Receiver;
pub use send::Sender;
pub use stage::AF_PACKET;

pub(crate) use sys::{InterfaceInfo, Socket, named};

use slipstream_core::registry::BuildError;
use slipstream_core::settings::Settings;

/// The interface that settings name.
///
/// # Errors
/// No interface can have this name.
pub(crate) fn interface_of(settings: &Settings) -> Result<&str, BuildError> {
    let name = settings.text("interface");
    let odd = |c: char| matches!(c, '/' | ':' | '%' | '\0') || c.is_whitespace();
    if ["", ".", ".."].contains(&name) || name.len() > 15 || name.contains(odd) {
        let error = BuildError::setting("interface", format!("`{name}` can't be an interface's name"));
        return Err(error.hint("1 to 15 characters without `/`, `:`, `%` or space"));
    }
    Ok(name)
}

/// Bytes of a frame that its payload, which is what an interface limits, doesn't count: Ethernet header and
/// two VLAN tags.
const OVERHEAD: u32 = 14 + 2 * 4;

/// Settings for opening a port.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interface's name.
    pub interface: String,
    /// Take packets for other stations too.
    pub promiscuous: bool,
    /// Packets that the ring has room for while nobody looks.
    pub ring: u32,
    /// Longest frame in bytes; 0: as the interface's MTU says.
    pub longest: u32,
    /// Send past traffic control, straight to the driver.
    pub bypass_queueing: bool,
    /// Bytes on their way out at most.
    pub send_buffer: u32,
    /// Have the kernel tell what senders left to a network card: checksums are completed, super-frames cut.
    pub offloads: bool,
    /// The group of sockets that share the interface's packets by flow, if any.
    pub fanout: Option<u16>,
    /// Send super-frames as such: the kernel, or a card, cuts them. Not with `bypass_queueing`, past which
    /// only frames go that the driver takes as they are.
    pub super_frames: bool,
}

impl Options {
    /// Of an interface, everything else as is usual: promiscuous, a ring of 4096 packets.
    #[must_use]
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            promiscuous: true,
            ring: 4096,
            longest: 0,
            bypass_queueing: false,
            send_buffer: 4 << 20,
            offloads: true,
            fanout: None,
            super_frames: true,
        }
    }

    /// Opens the port to receive and to send.
    ///
    /// # Errors
    /// [`PortError`], which says what to do about it.
    pub fn open(&self) -> Result<(Receiver, Sender), PortError> {
        let receiver = self.open_receiver()?;
        // Packets sent by a socket that gets headers before packets would need such headers, too.
        let apart = receiver.has_offloads() || self.super_frames;
        let sender = if apart { self.open_sender()? } else { Sender::new(receiver.port(), false) };
        Ok((receiver, sender))
    }

    /// Opens it to receive.
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn open_receiver(&self) -> Result<Receiver, PortError> {
        let (port, ring, offloads) = self.socket(true)?;
        let ring = ring.ok_or_else(|| PortError::NoInterface(self.interface.clone()))?;
        Ok(Receiver::new(port, ring, offloads))
    }

    /// Opens it to send; nothing is received.
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn open_sender(&self) -> Result<Sender, PortError> {
        let super_frames = self.super_frames && !self.bypass_queueing;
        self.socket(false).map(|(port, ..)| Sender::new(port, super_frames))
    }

    /// A socket, its ring if it is to `receive`, and whether it tells of offloads.
    fn socket(&self, receive: bool) -> Result<(Arc<Port>, Option<ring::Ring>, bool), PortError> {
        let name = self.interface.as_str();
        let failed = |what| PortError::of(name, what);
        let socket = Socket::new().map_err(failed("opening a packet socket"))?;
        let info = socket.interface(name).map_err(failed("asking for the interface"))?;
        if !info.up {
            return Err(PortError::Down(name.to_owned()));
        }
        if ![libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&info.hardware) {
            return Err(PortError::NotEthernet { name: name.to_owned(), hardware: info.hardware });
        }
        let (mut ring, mut offloads) = (None, false);
        if receive {
            // A kernel that is too old for it tells of missing checksums only.
            offloads = self.offloads && socket.tell_offloads().is_ok();
            let longest = if self.longest == 0 { info.mtu + OVERHEAD } else { self.longest };
            let request = ring::request(self.ring, longest as usize);
            let bytes = u64::from(request.tp_block_size) * u64::from(request.tp_block_nr);
            let no_memory = |error| PortError::NoMemory { name: name.to_owned(), bytes, error };
            socket.use_ring(&request).map_err(no_memory)?;
            ring = Some(ring::Ring::map(socket.fd(), &request).map_err(no_memory)?);
            // A kernel that is too old for it leaves such packets to be told apart one by one.
            let _ = socket.ignore_outgoing();
            if self.promiscuous {
                socket.promiscuous(info.index).map_err(failed("switching to promiscuous"))?;
            }
        }
        if self.bypass_queueing {
            socket.bypass_queueing().map_err(failed("bypassing traffic control"))?;
        }
        socket.send_buffer(self.send_buffer as i32).map_err(failed("setting the send buffer"))?;
        let group = self.fanout.filter(|_| receive);
        if group.is_some() {
            socket.take_nothing().map_err(failed("setting a filter"))?;
        }
        socket.bind(info.index, receive).map_err(failed("binding to the interface"))?;
        if let Some(group) = group {
            let joined = socket.fanout(group, &fanout::program());
            joined.map_err(|error| match error.raw_os_error() {
                Some(libc::EINVAL | libc::EALREADY | libc::ENOSPC) => {
                    PortError::Group { name: name.to_owned(), group, error }
                }
                _ => failed("joining a fanout group")(error),
            })?;
        }
        let port = Port { socket, name: name.to_owned(), mtu: info.mtu };
        Ok((Arc::new(port), ring, offloads))
    }
}

/// The parts of a port that both directions share.
#[derive(Debug)]
struct Port {
    socket: Socket,
    name: String,
    /// Longest packet when it was opened, in bytes from the IP header on.
    mtu: u32,
}

impl Port {
    /// The error of an interface that is no more.
    fn gone(&self) -> Option<PortError> {
        self.socket.has_lost_interface().then(|| PortError::Gone(self.name.clone()))
    }
}
