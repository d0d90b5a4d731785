//! The system calls of a packet socket, each wrapped as thinly as it can be; all unsafe code of the port but
//! the ring's.

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libc::{c_int, c_uint, c_ulong, socklen_t};

use super::fanout;
use crate::offload::HEADER;
use crate::socket::{RawSocket, checked};

/// Packets that one system call sends at most.
pub(super) const SEND_AT_ONCE: usize = 64;

/// Bytes of super-frames that wait beside the ring at most.
const SUPER_FRAMES: c_int = 8 << 20;

/// Every protocol, in network byte order, as a packet socket is told.
const ALL_PROTOCOLS: u16 = (libc::ETH_P_ALL as u16).to_be();

/// A packet socket (packet(7)).
#[derive(Debug)]
pub(crate) struct Socket(RawSocket);

/// The kernel's attributes of an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InterfaceInfo {
    pub(crate) index: c_uint,
    pub(crate) up: bool,
    /// Link type as in ARP (`ARPHRD_…`).
    pub(crate) hardware: u16,
    /// Largest payload of a frame, in bytes.
    pub(crate) mtu: u32,
}

impl Socket {
    /// A socket that receives nothing until it is bound to an interface.
    pub(crate) fn new() -> io::Result<Self> {
        RawSocket::new(libc::AF_PACKET, libc::SOCK_RAW).map(Self)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The attributes of the interface of this name; `ENODEV` if there is none.
    pub(crate) fn interface(&self, name: &str) -> io::Result<InterfaceInfo> {
        let flags = self.ask(name, libc::SIOCGIFFLAGS)?;
        let hardware = self.ask(name, libc::SIOCGIFHWADDR)?;
        let mtu = self.ask(name, libc::SIOCGIFMTU)?;
        let index = self.ask(name, libc::SIOCGIFINDEX)?;
        // SAFETY: each request filled the field of the union that is read here; all are plain numbers.
        unsafe {
            Ok(InterfaceInfo {
                index: index.ifr_ifru.ifru_ifindex as c_uint,
                up: c_int::from(flags.ifr_ifru.ifru_flags) & libc::IFF_UP != 0,
                hardware: hardware.ifr_ifru.ifru_hwaddr.sa_family,
                mtu: mtu.ifr_ifru.ifru_mtu as u32,
            })
        }
    }

    /// Receive queues of an interface; 0 where its driver doesn't say.
    pub(crate) fn queues(&self, name: &str) -> u32 {
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        let Ok(mut question) = named(name) else { return 0 };
        question.ifr_ifru.ifru_data = (&raw mut channels).cast();
        // SAFETY: the request reads the name, which ends with a zero, and writes what the pointer leads to,
        // which outlives it.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCETHTOOL as _, &mut question) };
        if result < 0 { 0 } else { channels.combined + channels.receive }
    }

    fn ask(&self, name: &str, request: c_ulong) -> io::Result<libc::ifreq> {
        let mut question = named(name)?;
        // SAFETY: these requests read the name, which ends with a zero, and write into the `ifreq`, which
        // outlives them.
        checked(unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, &mut question) })?;
        Ok(question)
    }

    /// Ring frames in the second layout: each frame has its own state, so that a packet can be read as soon
    /// as it is there (the third hands over blocks of many packets, at the latest after a millisecond).
    pub(super) fn use_ring(&self, request: &libc::tpacket_req) -> io::Result<()> {
        let version = libc::tpacket_versions::TPACKET_V2 as c_int;
        self.0.set(libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        self.0.set(libc::SOL_PACKET, libc::PACKET_RX_RING, request)
    }

    /// Not to be told of packets that this machine sends by the interface; kernels before 4.20 can't.
    pub(super) fn ignore_outgoing(&self) -> io::Result<()> {
        self.0.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32)
    }

    /// Send past traffic control, straight to the driver.
    pub(super) fn bypass_queueing(&self) -> io::Result<()> {
        self.0.set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1i32)
    }

    /// Room for packets on their way out, in bytes; more than the system's limit where the process may.
    pub(super) fn send_buffer(&self, bytes: c_int) -> io::Result<()> {
        self.0
            .set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
            .or_else(|_| self.0.set(libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes))
    }

    /// Takes what is for other stations too, as long as the socket is open.
    pub(crate) fn promiscuous(&self, index: c_uint) -> io::Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: index as c_int,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.0.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
    }

    /// Each packet comes with a header that says what its sender left to a network card; packets too long for
    /// a frame of the ring can be had by [`Socket::receive`]. To be asked for before the ring is made.
    pub(super) fn tell_offloads(&self) -> io::Result<()> {
        self.0.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1i32)?;
        self.0.set(libc::SOL_PACKET, libc::PACKET_COPY_THRESH, &1i32)?;
        let room: c_int = SUPER_FRAMES;
        self.0
            .set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &room)
            .or_else(|_| self.0.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &room))
    }

    /// Takes nothing of what comes, until it has joined a group.
    pub(super) fn take_nothing(&self) -> io::Result<()> {
        self.0.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program_of(&[fanout::NOTHING]))
    }

    /// Shares the interface's packets with all sockets of this group: the program's result says which one
    /// gets a packet. Up to then it [took nothing](Self::take_nothing): a socket has to be bound before it
    /// can join, and would get packets that the group's other sockets get, too.
    pub(super) fn fanout(&self, group: u16, program: &[libc::sock_filter]) -> io::Result<()> {
        let kind = libc::PACKET_FANOUT_CBPF;
        self.0.set(libc::SOL_PACKET, libc::PACKET_FANOUT, &(u32::from(group) | kind << 16))?;
        self.0.set(libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0i32)?;
        // The kernel copies the program, which outlives the call.
        self.0.set(libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, &program_of(program))
    }

    /// The next packet that was too long for the ring, with its header; its length.
    pub(super) fn receive(&self, to: &mut [u8]) -> io::Result<usize> {
        let (fd, flags) = (self.0.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: pointer and length are those of bytes that outlive the call.
        let result = unsafe { libc::recv(fd, to.as_mut_ptr().cast(), to.len(), flags) };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    }

    /// Binds to an interface: from now on it receives all that comes there, or, where it doesn't `receive`,
    /// nothing.
    pub(crate) fn bind(&self, index: c_uint, receive: bool) -> io::Result<()> {
        // SAFETY: a `sockaddr_ll` is numbers and arrays of them: all zero bytes are one.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = if receive { ALL_PROTOCOLS } else { 0 };
        address.sll_ifindex = index as c_int;
        let len = size_of::<libc::sockaddr_ll>() as socklen_t;
        // SAFETY: pointer and length are those of an address of the family that the socket has.
        let result = unsafe {
            libc::bind(self.0.as_raw_fd(), std::ptr::from_ref(&address).cast::<libc::sockaddr>(), len)
        };
        checked(result).map(|_| ())
    }

    /// Returns true if the interface that it was bound to was taken away, also where another one has its name
    /// and number by now.
    pub(crate) fn has_lost_interface(&self) -> bool {
        // SAFETY: a `sockaddr_ll` is numbers and arrays of them: all zero bytes are one.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        let mut len = size_of::<libc::sockaddr_ll>() as socklen_t;
        // SAFETY: pointer and length are those of an address, which outlives the call.
        let result = unsafe {
            libc::getsockname(self.0.as_raw_fd(), (&raw mut address).cast::<libc::sockaddr>(), &mut len)
        };
        // The kernel says -1 from then on.
        result >= 0 && address.sll_ifindex < 0
    }

    /// Packets that found no place in the ring since this was last asked.
    pub(super) fn dropped(&self) -> io::Result<u64> {
        let stats: libc::tpacket_stats = self.0.get(libc::SOL_PACKET, libc::PACKET_STATISTICS)?;
        Ok(u64::from(stats.tp_drops))
    }

    /// The error that the socket keeps, such as that its interface went down; asking forgets it.
    pub(super) fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.0.take_error()
    }

    /// From now on each frame is sent behind a header that says what is left to the kernel.
    pub(super) fn send_headers(&self) -> io::Result<()> {
        self.0.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1i32)
    }

    /// Sends one frame in parts, without waiting.
    pub(super) fn send_parts(&self, parts: &[io::IoSlice<'_>]) -> io::Result<()> {
        // SAFETY: a `msghdr` is pointers and numbers, of which all zero bytes are a value (null, nothing).
        let mut message: libc::msghdr = unsafe { zeroed() };
        // An `IoSlice` is an `iovec` in memory.
        message.msg_iov = parts.as_ptr().cast_mut().cast();
        message.msg_iovlen = parts.len() as _;
        // SAFETY: the message points at parts that point at borrowed bytes, which sending only reads; all of
        // them outlive the call.
        let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), &message, libc::MSG_DONTWAIT) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Sends up to [`SEND_AT_ONCE`] frames in order, without waiting; returns how many left. An error is
    /// about the first. With `headers`, each goes behind a header that leaves nothing to the kernel.
    pub(super) fn send(&self, frames: &[&[u8]], headers: bool) -> io::Result<usize> {
        static NOTHING: [u8; HEADER] = [0; HEADER];
        // Only what is used is written: one call may have one frame.
        let mut parts = [const { MaybeUninit::<[libc::iovec; 2]>::uninit() }; SEND_AT_ONCE];
        let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; SEND_AT_ONCE];
        let part =
            |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut n = 0;
        for ((frame, parts), message) in frames.iter().zip(&mut parts).zip(&mut messages) {
            let parts = parts.write([part(&NOTHING), part(frame)]);
            let used = if headers { &mut parts[..] } else { &mut parts[1..] };
            // SAFETY: pointers and numbers, of which all zero bytes are a value (null, nothing).
            let message = message.write(unsafe { zeroed() });
            message.msg_hdr.msg_iov = used.as_mut_ptr();
            message.msg_hdr.msg_iovlen = used.len() as _;
            n += 1;
        }
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the first `n` messages were written and point at one or two of `parts` each, which were,
        // too, and these at borrowed frames and zeros, which sending only reads; all of them outlive the
        // call.
        let sent = unsafe { libc::sendmmsg(self.0.as_raw_fd(), messages.as_mut_ptr().cast(), n, flags as _) };
        checked(sent).map(|n| n as usize)
    }
}

/// A program for the classic packet filter as a system call takes it, as long as the program is there.
fn program_of(program: &[libc::sock_filter]) -> libc::sock_fprog {
    libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() }
}

/// A question about the interface of this name; `ENODEV` where none can have it.
pub(crate) fn named(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: an `ifreq` is numbers and arrays of them: all zero bytes are one.
    let mut question: libc::ifreq = unsafe { zeroed() };
    let (room, bytes) = (question.ifr_name.len(), name.as_bytes());
    if bytes.is_empty() || bytes.len() >= room || bytes.contains(&0) {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in question.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(question)
}

/// The numbers of queues that an interface has (`struct ethtool_channels`).
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    send: u32,
    other: u32,
    combined: u32,
}

const SIOCETHTOOL: c_ulong = 0x8946;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
