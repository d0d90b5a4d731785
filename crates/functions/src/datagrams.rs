//! Datagrams to somebody who may not be there, and how many of them are lost as far as the system tells.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};

/// The way of datagrams over a connected socket. The system says that nobody took one when the next one is
/// sent, which then stays here.
///
/// A connected socket keeps the address of this machine that it was given in the beginning. Where the machine
/// has another one later, as after a change of provider or a failover, nothing leaves by the old one, and a
/// socket with the new one takes its place. A machine that has no way there yet, as while it starts, has a
/// socket once there is a way.
#[derive(Debug)]
pub struct Datagrams {
    /// None before there was a way.
    socket: Option<UdpSocket>,
    /// The addresses that are tried; once there was a way to one of them, that one alone.
    to: Vec<SocketAddr>,
    /// Nobody waits for room in the socket.
    without_waiting: bool,
    /// The count of the last one that went out.
    last: u64,
    /// The sum of the counts of those that are lost.
    lost: u64,
}

impl Datagrams {
    /// To the first of these addresses that the system knows a way to, now or later.
    ///
    /// # Errors
    /// Those of the system: there is no such host, or nothing may be sent to it.
    pub fn to(addresses: impl ToSocketAddrs) -> io::Result<Self> {
        let to: Vec<_> = addresses.to_socket_addrs()?.collect();
        let mut this = Self { socket: None, to, without_waiting: false, last: 0, lost: 0 };
        match this.connect() {
            Err(error) if !is_without_way(&error) => Err(error),
            _ => Ok(this),
        }
    }

    /// The reason why nothing can be sent now: the system knows no way to any of the addresses.
    #[must_use]
    pub fn without_way(&self) -> Option<io::Error> {
        self.reach().err()
    }

    /// A socket to the first of the addresses that there is a way to now.
    fn reach(&self) -> io::Result<(UdpSocket, SocketAddr)> {
        let mut failed = io::Error::new(ErrorKind::NotFound, "no such host");
        for to in &self.to {
            match connected(*to, self.without_waiting) {
                Ok(socket) => return Ok((socket, *to)),
                // One to which there may be a way later is not refused because of another one.
                Err(error) if is_without_way(&error) || !is_without_way(&failed) => failed = error,
                Err(_) => {}
            }
        }
        Err(failed)
    }

    /// Makes a socket, where there is none and a way to one of the addresses.
    fn connect(&mut self) -> io::Result<&UdpSocket> {
        if self.socket.is_none() {
            let (socket, to) = self.reach()?;
            (self.socket, self.to) = (Some(socket), vec![to]);
        }
        self.socket.as_ref().ok_or_else(|| ErrorKind::NotConnected.into())
    }

    /// A datagram that finds the socket's buffer full is lost; otherwise [`send`](Self::send) waits for room.
    ///
    /// # Errors
    /// Those of the system.
    pub fn without_waiting(self) -> io::Result<Self> {
        self.socket.as_ref().map_or(Ok(()), |socket| socket.set_nonblocking(true))?;
        Ok(Self { without_waiting: true, ..self })
    }

    /// Sends one that counts as so much, such as the events in it.
    ///
    /// # Errors
    /// Those of the system. One may be about the datagram before: this one has gone out then. Behind any
    /// error the next one may come from another address, and whoever takes it may know none before it.
    pub fn send(&mut self, datagram: &[u8], count: u64) -> io::Result<()> {
        let result = self.connect().and_then(|socket| socket.send(datagram));
        let mut sent = result.is_ok();
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            self.lost += std::mem::take(&mut self.last);
            sent = self.socket.as_ref().is_some_and(|socket| socket.send(datagram).is_ok());
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
        let (Some(before), [to]) = (&self.socket, self.to.as_slice()) else { return };
        let Ok(socket) = connected(*to, self.without_waiting) else { return };
        if address(&socket) != address(before) {
            (self.socket, self.last) = (Some(socket), 0);
        }
    }

    /// The sum of the counts lost since this was last asked, as far as it is known by now of the last
    /// datagram; and the error about that one.
    pub fn take_lost(&mut self) -> (u64, Option<io::Error>) {
        let late = self.socket.as_ref().and_then(|socket| socket.take_error().ok().flatten());
        if late.is_some() {
            self.lost += std::mem::take(&mut self.last);
        }
        (std::mem::take(&mut self.lost), late)
    }
}

/// True of the system's word that it knows no way to an address, which may change.
fn is_without_way(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NetworkUnreachable
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::AddrNotAvailable
    )
}

/// A socket whose datagrams go to this address, and wait for room or don't.
fn connected(to: SocketAddr, without_waiting: bool) -> io::Result<UdpSocket> {
    let any = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_nonblocking(without_waiting)?;
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
            datagrams.socket = Some(UdpSocket::bind(gone).unwrap());
            datagrams.send(b"lost", 3).unwrap_err();
            assert_eq!(datagrams.take_lost().0, 3);
            assert_eq!(datagrams.send(b"comes", 4).is_ok(), goes_on, "{gone}");
            if goes_on {
                let (_, from) = reader.recv_from(&mut [0; 9]).unwrap();
                assert_eq!(from, datagrams.socket.as_ref().unwrap().local_addr().unwrap());
                assert_eq!(datagrams.take_lost().0, 0);
            }
        }
    }

    /// No address stands in for addresses without a way.
    #[test]
    fn a_way_may_be_there_later() {
        let reader = UdpSocket::bind("127.0.0.1:0").unwrap();
        reader.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut datagrams =
            Datagrams { socket: None, to: Vec::new(), without_waiting: true, last: 0, lost: 0 };
        datagrams.send(b"lost", 3).unwrap_err();
        assert!(datagrams.without_way().is_some());
        assert_eq!(datagrams.take_lost().0, 3);
        datagrams.to.push(reader.local_addr().unwrap());
        datagrams.send(b"comes", 4).unwrap();
        assert_eq!(reader.recv(&mut [0; 9]).unwrap(), 5);
        assert!(datagrams.without_way().is_none());
        assert_eq!(datagrams.take_lost().0, 0);
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
