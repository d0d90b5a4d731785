//! Datagrams to somebody who may not be there, and how many of them are lost as far as the system tells.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;

/// The way of datagrams over a connected socket. The system says that nobody took one when the next one is
/// sent, which then stays here.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
    /// The count of the last one that went out.
    last: u64,
    /// The sum of the counts of those that are lost.
    lost: u64,
}

impl Datagrams {
    /// Over this socket.
    #[must_use]
    pub fn new(socket: UdpSocket) -> Self {
        Self { socket, last: 0, lost: 0 }
    }

    /// Sends one that counts as so much, such as the events in it.
    ///
    /// # Errors
    /// Those of the system. One may be about the datagram before: this one has gone out then.
    pub fn send(&mut self, datagram: &[u8], count: u64) -> io::Result<()> {
        let result = self.socket.send(datagram);
        let mut sent = result.is_ok();
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            self.lost += std::mem::take(&mut self.last);
            sent = self.socket.send(datagram).is_ok();
        }
        if sent {
            self.last = count;
        } else {
            self.lost += count;
        }
        result.map(drop)
    }

    /// The sum of the counts lost since this was last asked, as far as it is known by now of the last
    /// datagram; and the error about that one.
    pub fn take_lost(&mut self) -> (u64, Option<io::Error>) {
        let late = self.socket.take_error().ok().flatten();
        if late.is_some() {
            self.lost += std::mem::take(&mut self.last);
        }
        (std::mem::take(&mut self.lost), late)
    }
}
