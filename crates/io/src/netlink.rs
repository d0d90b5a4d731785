//! The kernel's description of an interface by netlink (rtnetlink(7)), beyond what it tells by name.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// Message types and flags.
const NLMSG_ERROR: u16 = 2;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLM_F_REQUEST: u16 = 1;
/// Bytes of a message's header, and of the fixed part of one about an interface.
const HEADER: usize = 16;
const FIXED: usize = 16;
/// Bytes of an answer at most; that about one interface takes some 2,000.
const ANSWER: usize = 1 << 16;

/// Attributes of an interface, by number.
mod attribute {
    pub(super) const LINK: u16 = 5;
    pub(super) const LINKINFO: u16 = 18;
    pub(super) const LINK_NETNSID: u16 = 37;
    /// Within `LINKINFO`.
    pub(super) const INFO_KIND: u16 = 1;
    pub(super) const INFO_DATA: u16 = 2;
    /// Within `INFO_DATA` of a TUN or TAP interface.
    pub(super) const TUN_TYPE: u16 = 3;
    pub(super) const TUN_MULTI_QUEUE: u16 = 7;
    /// Bits of a number that are none of it.
    pub(super) const FLAGS: u16 = 0xc000;
}

/// An interface as the kernel describes it.
#[derive(Debug)]
pub(crate) struct Description {
    attributes: Vec<u8>,
}

impl Description {
    /// Of the interface of this number in this thread's network namespace.
    ///
    /// # Errors
    /// `ENODEV` if there is none.
    pub(crate) fn of(number: u32) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let mut request = Vec::with_capacity(HEADER + FIXED);
        request.extend_from_slice(&((HEADER + FIXED) as u32).to_ne_bytes());
        request.extend_from_slice(&RTM_GETLINK.to_ne_bytes());
        request.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
        // Its number and sender, and of the interface the family and type: any.
        request.extend_from_slice(&[0; 8 + 4]);
        request.extend_from_slice(&number.to_ne_bytes());
        request.resize(HEADER + FIXED, 0);
        send(&socket, &request, SendFlags::empty())?;
        let mut answer = vec![0; ANSWER];
        let (read, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
        answer.truncate(read);
        Self::read(&answer)
    }

    /// Of the message that is an answer.
    fn read(answer: &[u8]) -> io::Result<Self> {
        let odd = || io::Error::from(io::ErrorKind::InvalidData);
        let len = number32(answer, 0).ok_or_else(odd)? as usize;
        let message = answer.get(HEADER..len).ok_or_else(odd)?;
        match number16(answer, 4) {
            Some(RTM_NEWLINK) => {
                let attributes = message.get(FIXED..).ok_or_else(odd)?.to_vec();
                Ok(Self { attributes })
            }
            Some(NLMSG_ERROR) => {
                let code = number32(message, 0).ok_or_else(odd)? as i32;
                Err(io::Error::from_raw_os_error(code.saturating_neg()))
            }
            _ => Err(odd()),
        }
    }

    /// The number of the interface that it leads to, such as the other end of a virtual pair, if that is in
    /// the same network namespace.
    pub(crate) fn leads_to(&self) -> Option<u32> {
        match find(&self.attributes, attribute::LINK_NETNSID) {
            Some(_) => None,
            None => number32(find(&self.attributes, attribute::LINK)?, 0),
        }
    }

    /// Of a TAP interface, whether it may have several queues; none of any other.
    pub(crate) fn tap_of_several_queues(&self) -> Option<bool> {
        let info = find(&self.attributes, attribute::LINKINFO)?;
        let kind = find(info, attribute::INFO_KIND)?;
        let data = find(info, attribute::INFO_DATA).filter(|_| kind == b"tun\0")?;
        let number = |attribute| find(data, attribute)?.first().copied();
        let is_tap = number(attribute::TUN_TYPE).map(i32::from) == Some(libc::IFF_TAP);
        number(attribute::TUN_MULTI_QUEUE).filter(|_| is_tap).map(|several| several != 0)
    }
}

fn number16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// The content of the first attribute of this number.
fn find(mut attributes: &[u8], number: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(number16(attributes, 0)?);
        let kind = number16(attributes, 2)? & !attribute::FLAGS;
        let content = attributes.get(4..len)?;
        if kind == number {
            return Some(content);
        }
        // Each begins at a multiple of four bytes.
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::number_of;

    fn attribute(number: u16, content: &[u8]) -> Vec<u8> {
        let mut all = ((content.len() + 4) as u16).to_ne_bytes().to_vec();
        all.extend_from_slice(&number.to_ne_bytes());
        all.extend_from_slice(content);
        all.resize(all.len().next_multiple_of(4), 0);
        all
    }

    #[test]
    fn the_loopback_interface_leads_nowhere() {
        let description = Description::of(number_of("lo").unwrap()).unwrap();
        assert_eq!((description.leads_to(), description.tap_of_several_queues()), (None, None));
        assert_eq!(Description::of(i32::MAX as u32).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn a_pair_leads_to_its_other_end_in_the_same_namespace_only() {
        let link = attribute(attribute::LINK, &7u32.to_ne_bytes());
        let name = attribute(3, b"veth0\0");
        let here = Description { attributes: [&name[..], &link].concat() };
        assert_eq!(here.leads_to(), Some(7));
        let elsewhere = attribute(attribute::LINK_NETNSID, &0u32.to_ne_bytes());
        let there = Description { attributes: [name, link, elsewhere].concat() };
        assert_eq!(there.leads_to(), None);
    }

    #[test]
    fn tap_interfaces_say_how_many_queues_they_may_have() {
        let tap = |kind: &[u8], what: u8, several: u8| {
            let data =
                [attribute(attribute::TUN_TYPE, &[what]), attribute(attribute::TUN_MULTI_QUEUE, &[several])];
            let info =
                [attribute(attribute::INFO_KIND, kind), attribute(attribute::INFO_DATA, &data.concat())];
            let attributes = attribute(attribute::LINKINFO | 0x8000, &info.concat());
            Description { attributes }.tap_of_several_queues()
        };
        let (tun_type, tap_type) = (libc::IFF_TUN as u8, libc::IFF_TAP as u8);
        assert_eq!([0, 1].map(|several| tap(b"tun\0", tap_type, several)), [Some(false), Some(true)]);
        assert_eq!((tap(b"tun\0", tun_type, 1), tap(b"veth\0", tap_type, 1)), (None, None));
    }

    #[test]
    fn damaged_answers_are_errors() {
        let mut answer = vec![0; 64];
        answer[..4].copy_from_slice(&64u32.to_ne_bytes());
        answer[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
        // An attribute of no length ends them.
        assert_eq!(Description::read(&answer).unwrap().leads_to(), None);
        for len in 0..32 {
            assert!(Description::read(&answer[..len]).is_err());
        }
    }
}
