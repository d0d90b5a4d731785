//! Datagrams to somebody who may not be there, and how many of them are lost as far as the system tells.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};

/// The way of datagrams over a connected socket. The system says that nobody took one when the next one is
/// sent, which then stays here.
///
/// A connected socket keeps the address of this machine that it was given in the beginning. Where the machine
/// has another one later, as after a change of provider or a failover, nothing leaves by the old one, and a
/// socket with the new one takes its place.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
    to: SocketAddr,
    /// Nobody waits for room in the socket.
    without_waiting: bool,
    /// The count of the last one that went out.
    last: u64,
    /// The sum of the counts of those that are lost.
    lost: u64,
}

impl Datagrams {
    /// To the first of these addresses that the system knows a way to.
    ///
    /// # Errors
    /// Those of the system: there is no such host, or no way to any of its addresses.
    pub fn to(addresses: impl ToSocketAddrs) -> io::Result<Self> {
        let mut failed = io::Error::new(ErrorKind::NotFound, "no such host");
        for to in addresses.to_socket_addrs()? {
            match connected(to) {
                Ok(socket) => return Ok(Self { socket, to, without_waiting: false, last: 0, lost: 0 }),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// A datagram that finds the socket's buffer full is lost; otherwise [`send`](Self::send) waits for room.
    ///
    /// # Errors
    /// Those of the system.
    pub fn without_waiting(self) -> io::Result<Self> {
        self.socket.set_nonblocking(true)?;
        Ok(Self { without_waiting: true, ..self })
    }

    /// Sends one that counts as so much, such as the events in it.
    ///
    /// # Errors
    /// Those of the system. One may be about the datagram before: this one has gone out then. Behind any
    /// error the next one may come from another address, and whoever takes it may know none before it.
    pub fn send(&mut self, datagram: &[u8], count: u64) -> io::Result<()> {
        let result = self.socket.send(datagram);
        let mut sent = result.is_ok();
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            self.lost += std::mem::take(&mut self.last);
            sent = self.socket.send(datagram).is_ok();
        } else if result.as_ref().is_err_and(|error| error.kind() != ErrorKind::WouldBlock) {
            self.follow_address();
        }
        if sent {
            self.last = count;
        } else {
            self.lost += count;
        }
        result.map(drop)
    }

    /// Goes on by another socket where the system would send from another address now. Where it wouldn't, the
    /// port stays as well, by which collectors tell senders.
    #[cold]
    fn follow_address(&mut self) {
        let address = |socket: &UdpSocket| socket.local_addr().map(|address| address.ip()).ok();
        let Ok(socket) = connected(self.to) else { return };
        if address(&socket) != address(&self.socket) && socket.set_nonblocking(self.without_waiting).is_ok() {
            (self.socket, self.last) = (socket, 0);
        }
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

/// A socket whose datagrams go to this address.
fn connected(to: SocketAddr) -> io::Result<UdpSocket> {
    let any = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A socket that nothing can be sent by stands in for one whose address this machine has no longer.
    #[test]
    fn another_address_of_this_machine_takes_the_place_of_one_that_is_gone() {
        let reader = UdpSocket::bind("127.0.0.1:0").unwrap();
        reader.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let to = reader.local_addr().unwrap();
        for (gone, goes_on) in [("127.0.0.2:0", true), ("127.0.0.1:0", false)] {
            let mut datagrams = Datagrams::to(to).unwrap().without_waiting().unwrap();
            datagrams.socket = UdpSocket::bind(gone).unwrap();
            datagrams.send(b"lost", 3).unwrap_err();
            assert_eq!(datagrams.take_lost().0, 3);
            assert_eq!(datagrams.send(b"comes", 4).is_ok(), goes_on, "{gone}");
            if goes_on {
                let (_, from) = reader.recv_from(&mut [0; 9]).unwrap();
                assert_eq!(from, datagrams.socket.local_addr().unwrap());
                assert_eq!(datagrams.take_lost().0, 0);
            }
        }
    }

    #[test]
    fn an_address_of_either_family_is_sent_to() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may be without IPv6.
            let Ok(reader) = UdpSocket::bind(at) else { continue };
            reader.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let to = reader.local_addr().unwrap();
            // As users write it, with brackets or without.
            for name in [to.to_string(), format!("{}:{}", to.ip(), to.port())] {
                Datagrams::to(name.as_str()).unwrap().send(b"comes", 1).unwrap();
                assert_eq!(reader.recv(&mut [0; 9]).unwrap(), 5, "{name}");
            }
        }
        assert!(Datagrams::to(&[] as &[SocketAddr]).is_err());
    }
}
