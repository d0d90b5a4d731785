//! The system calls of a TAP interface.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use libc::c_int;

use crate::af_packet::named;
use crate::offload::HEADER;
use crate::socket::{RawSocket, checked};

/// Offloads that the kernel may leave to this program; older kernels know less.
const OFFLOADS: [u32; 2] = [
    libc::TUN_F_CSUM
        | libc::TUN_F_TSO4
        | libc::TUN_F_TSO6
        | libc::TUN_F_TSO_ECN
        | libc::TUN_F_USO4
        | libc::TUN_F_USO6,
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN,
];

/// An open TAP interface.
#[derive(Debug)]
pub(super) struct Device(File);

impl Device {
    /// Makes the interface, or opens it where it is there; one of its queues, where it may have several.
    pub(super) fn open(name: &str, multi_queue: bool) -> io::Result<Self> {
        let mut open = OpenOptions::new();
        let file = open.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
        let mut request = named(name)?;
        let several = if multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | several) as i16;
        // SAFETY: the request reads the name, which ends with a zero, and the flags, and writes to the
        // `ifreq`, which outlives it.
        checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request) })?;
        let header = HEADER as c_int;
        // SAFETY: the request reads a number, which outlives it.
        checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &header) })?;
        Ok(Self(file))
    }

    fn offloads(&self, offloads: u32) -> io::Result<()> {
        // SAFETY: the request takes a number in place of a pointer.
        checked(unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::TUNSETOFFLOAD as _, libc::c_ulong::from(offloads))
        })
        .map(drop)
    }

    /// Senders leave checksums and segmentation to this program.
    pub(super) fn take_offloads(&self) -> io::Result<()> {
        let [all, fewer] = OFFLOADS;
        self.offloads(all).or_else(|_| self.offloads(fewer))
    }

    /// Senders do all of it themselves.
    pub(super) fn no_offloads(&self) -> io::Result<()> {
        self.offloads(0)
    }

    /// Returns true if the interface was taken away. One that was renamed wasn't, and one that has its name
    /// or number by now is another.
    pub(super) fn is_gone(&self) -> bool {
        self.request().is_err_and(|error| error.raw_os_error() == Some(libc::EBADFD))
    }

    /// The name that the interface has now, if it is there.
    pub(super) fn name(&self) -> Option<String> {
        let name = self.request().ok()?.ifr_name;
        let name: Vec<u8> = name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
        Some(String::from_utf8_lossy(&name).into_owned())
    }

    /// The interface as the kernel tells of it.
    fn request(&self) -> io::Result<libc::ifreq> {
        // SAFETY: all bytes zero are an `ifreq`: a name, and numbers.
        let mut request: libc::ifreq = unsafe { zeroed() };
        // SAFETY: the request writes to the `ifreq`, which outlives it.
        checked(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNGETIFF as _, &mut request) })?;
        Ok(request)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The next packet behind its header; the length of both.
    pub(super) fn read(&self, to: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(to)
    }

    /// Hands a packet to the machine.
    pub(super) fn write(&self, packet: &[u8]) -> io::Result<()> {
        // A header of zeros: nothing is left to anybody.
        self.write_parts(&[IoSlice::new(&[0; HEADER]), IoSlice::new(packet)])
    }

    /// Hands over a packet in parts, the header before it first.
    pub(super) fn write_parts(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        (&self.0).write_vectored(parts).map(drop)
    }
}

/// Brings an interface up, if it isn't.
pub(super) fn bring_up(name: &str) -> io::Result<()> {
    let socket = RawSocket::new(libc::AF_INET, libc::SOCK_DGRAM)?;
    let mut request = named(name)?;
    // SAFETY: the request reads the name and writes the flags.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &mut request) })?;
    // SAFETY: the request before filled this field of the union, a number.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    if c_int::from(flags) & libc::IFF_UP != 0 {
        return Ok(());
    }
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as i16;
    // SAFETY: the request reads name and flags.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &mut request) }).map(drop)
}
