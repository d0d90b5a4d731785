//! Classification: the headers of packets that have arrived are parsed once.

use alloc::vec::Vec;

use slipstream_wire::{
    Encapsulation, FlowKey, Headers, LinkType, NarrowKey, Skip, USUAL, classify, classify_usual,
    classify_with,
};

use crate::batch::Arrivals;
use crate::frame::{Frame, Info, MAX_FRAME_LEN};
use crate::interface::Interface;
use crate::pool::Pool;

/// Parses the headers of packets that have arrived.
///
/// ```
/// use slipstream_core::batch::Arrivals;
/// use slipstream_core::classify::Classifier;
/// use slipstream_core::frame::Frame;
/// use slipstream_core::pool::{PacketMeta, Pool};
/// use slipstream_core::time::Nanos;
/// use slipstream_wire::{Encapsulation, LinkType};
///
/// let udp = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 53, 4, 210, 0, 8, 0, 0];
/// let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
/// for packet in [&udp[..], &[0; 9]] {
///     let buf = pool.insert(PacketMeta::default(), packet); // of the first interface, number 0
///     arrivals.frames.push(Frame::unclassified(Nanos(0), buf, packet.len() as u32));
/// }
/// let mut classifier = Classifier::new(Encapsulation::Outer);
/// classifier.links(&[LinkType::RawIp]);
/// classifier.classify(&pool, &mut arrivals);
///
/// let classified: Vec<_> = arrivals.frames.iter().map(|frame| frame.info.classified()).collect();
/// assert_eq!(classified, [true, false]);
/// let key = arrivals.keys.as_slice().get(0).map(|key| key.to_string());
/// assert_eq!(key.as_deref(), Some("10.0.0.1:53 > 10.0.0.2:1234 udp"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Classifier {
    links: Vec<LinkType>,
    encapsulation: Encapsulation,
}

impl Classifier {
    /// With the headers of tunnels that `encapsulation` asks for, and no interface yet.
    #[must_use]
    pub fn new(encapsulation: Encapsulation) -> Self {
        Self { links: Vec::new(), encapsulation }
    }

    /// Learns of interfaces that have come up since.
    pub fn interfaces(&mut self, interfaces: &[Interface]) {
        for interface in interfaces.iter().skip(self.links.len()) {
            self.links.push(LinkType::from_number(interface.link_number as u16));
        }
    }

    /// As [`Classifier::interfaces`], the whole list of link types.
    pub fn links(&mut self, links: &[LinkType]) {
        self.links.clear();
        self.links.extend_from_slice(links);
    }

    fn link(&self, interface: u32) -> LinkType {
        self.links.get(interface as usize).copied().unwrap_or(LinkType::Other(u16::MAX))
    }

    /// Classifies what was appended to `arrivals` and is not classified yet.
    #[inline(never)]
    pub fn classify(&self, pool: &Pool, arrivals: &mut Arrivals) {
        let only = match self.links.as_slice() {
            [one] if self.encapsulation == Encapsulation::Outer => Some(*one),
            _ => None,
        };
        match only {
            Some(LinkType::Ethernet) => {
                classify_all(pool, arrivals, classify_usual, |_, data| classify(LinkType::Ethernet, data))
            }
            _ => classify_all(
                pool,
                arrivals,
                |_| None,
                |interface, data| classify_with(self.link(interface), data, self.encapsulation),
            ),
        }
    }
}

/// Packets whose first bytes are asked for ahead of use.
pub const DISTANCE: usize = 12;

/// Classifies by `fast` first, and by `other` the packets that it declines.
#[inline(always)]
fn classify_all(
    pool: &Pool,
    arrivals: &mut Arrivals,
    fast: impl Fn(&[u8; USUAL]) -> Option<Headers>,
    other: impl Fn(u32, &[u8]) -> Result<Headers, Skip>,
) {
    let Arrivals { frames, keys, .. } = arrivals;
    let Some(frames) = frames.get_mut(keys.len()..) else { return };
    keys.reserve(frames.len());
    for i in 0..frames.len() {
        if let Some(ahead) = frames.get(i + DISTANCE) {
            pool.prefetch_headers(ahead.buf, ahead.len);
        }
        let Some(frame) = frames.get_mut(i) else { break };
        if (USUAL as u32..=MAX_FRAME_LEN).contains(&frame.len)
            && let Some(headers) = pool.front(frame.buf).and_then(&fast)
        {
            frame.info = Info::new(&headers);
            keys.push(headers.key);
        } else {
            let (interface, data) = pool.packet(frame.buf, frame.len);
            keys.push(unusual(frame, other(interface, data)));
        }
    }
}

/// Notes what classification said of a frame; returns its key. A frame without headers, or one that is longer
/// than [`MAX_FRAME_LEN`], stays unclassified, and its key is all zero.
#[inline(never)]
pub fn unusual(frame: &mut Frame, headers: Result<Headers, Skip>) -> FlowKey {
    match headers {
        Ok(headers) if frame.len <= MAX_FRAME_LEN => {
            frame.info = Info::new(&headers);
            headers.key
        }
        _ => FlowKey::Narrow(NarrowKey([0, 0])),
    }
}
