//! Bytes over PCI Express for each packet that a network card brings to memory and fetches from it again.

use super::FRAME_CHECK;

/// A PCI Express link, and how packets of the transaction layer go over it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Generation, 1 to 5: 2.5, 5, 8, 16, 32 GT/s a lane (PCI Express Base Specification; 8b/10b, from the
    /// third on 128b/130b). The paper's is 3.
    pub generation: u8,
    /// Lanes, 1 to 16. The paper's card has 16.
    pub lanes: u8,
    /// Largest payload of a write or completion in bytes (MPS). Servers usually agree on 256 (Neugebauer et
    /// al., Understanding PCIe performance for end host networking, SIGCOMM 2018).
    pub max_payload: u32,
    /// Most bytes that one read asks for (MRRS): 512, as there.
    pub max_read: u32,
    /// Bytes of a write around its payload: framing and sequence 4, header with a 64-bit address 16, link CRC
    /// 4.
    pub write_header: u32,
    /// Bytes of a read request: the same, without payload.
    pub read_header: u32,
    /// Bytes of a completion around its payload: its header has 12.
    pub completion_header: u32,
    /// Share of the link that acknowledgements and flow control leave to transactions: about 0.92 (Neugebauer
    /// et al.: 57.9 of 63 Gbit/s of eight lanes of the third generation).
    pub transaction_share: f64,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            generation: 3,
            lanes: 16,
            max_payload: 256,
            max_read: 512,
            write_header: 24,
            read_header: 24,
            completion_header: 20,
            transaction_share: 0.92,
        }
    }
}

impl Link {
    /// Bytes a second each way, of which only the line code is taken off.
    ///
    /// ```
    /// use slipstream_model::data_movement::pcie::Link;
    ///
    /// assert_eq!((Link::default().bytes_per_second() / 1e6).round(), 15_754.0);
    /// ```
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        let transfers = 2.5e9 * f64::from(self.generation.clamp(1, 5) - 1).exp2();
        let (transfers, code) = match self.generation {
            ..=2 => (transfers, 8.0 / 10.0),
            // From 5 to 8 GT/s the line code, not the clock, made up for the rest.
            _ => (transfers * 0.8, 128.0 / 130.0),
        };
        transfers * code * f64::from(self.lanes) / 8.0
    }

    /// Bytes a second that writes, reads and completions have each way.
    #[must_use]
    pub fn transaction_bytes_per_second(&self) -> f64 {
        self.bytes_per_second() * self.transaction_share
    }

    /// Bytes over the link for a write of so many bytes.
    fn write(&self, bytes: u32) -> f64 {
        f64::from(bytes) + f64::from(pieces(bytes, self.max_payload)) * f64::from(self.write_header)
    }

    /// Bytes over the link for a read of so many bytes: those of the requests, and those of the completions.
    fn read(&self, bytes: u32) -> (f64, f64) {
        let most = self.max_read.max(1);
        let requests = pieces(bytes, most);
        // Completions don't go beyond a request's end.
        let whole = f64::from(bytes / most) * f64::from(pieces(most, self.max_payload));
        let completions = whole + f64::from(pieces(bytes % most, self.max_payload));
        (
            f64::from(requests) * f64::from(self.read_header),
            f64::from(bytes) + completions * f64::from(self.completion_header),
        )
    }
}

/// Pieces of at most `most` bytes; 0 is taken as 1.
fn pieces(bytes: u32, most: u32) -> u32 {
    bytes.div_ceil(most.max(1))
}

/// The descriptors, completions and doorbells of a network card. The defaults are those of the paper's cards
/// (ConnectX-5 and -6 under DPDK's mlx5 driver, scalar receive path, one segment a packet).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queues {
    /// Bytes of a receive descriptor: one data segment, 16.
    pub receive_descriptor: u32,
    /// Receive descriptors that the card reads at a time: a cache line of them, 4.
    pub receive_descriptors_a_read: u32,
    /// Bytes of a receive completion: 64.
    pub receive_completion: u32,
    /// Bytes of a send descriptor: one basic block, 64.
    pub send_descriptor: u32,
    /// Send descriptors that the card reads at a time: 1, since it is told of packets in small bursts.
    pub send_descriptors_a_read: u32,
    /// Bytes of a send completion: 64.
    pub send_completion: u32,
    /// Packets that one send completion is for: 32, the driver's default.
    pub packets_a_send_completion: u32,
    /// Bytes that the processor writes to the card to tell it of packets to send, and of free descriptors: 8
    /// each time.
    pub doorbell: u32,
    /// Packets that one doorbell is for: a burst of 32.
    pub packets_a_doorbell: u32,
    /// Bytes of a cache line, in which reads and writes of memory are counted: 64.
    pub line: u32,
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            receive_descriptor: 16,
            receive_descriptors_a_read: 4,
            receive_completion: 64,
            send_descriptor: 64,
            send_descriptors_a_read: 1,
            send_completion: 64,
            packets_a_send_completion: 32,
            doorbell: 8,
            packets_a_doorbell: 32,
            line: 64,
        }
    }
}

/// A card in its slot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Card {
    /// The slot.
    pub link: Link,
    /// The traffic besides packets.
    pub queues: Queues,
}

/// Bytes of a packet that is received, read, and sent again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerPacket {
    /// Bytes that the card reads and writes in memory, both ways together, in whole cache lines for packets.
    /// A processor's counters (pcm-pcie) and the paper's Fig. 15 show this figure. It has no headers of
    /// transactions and no doorbells.
    pub memory_lines: f64,
    /// The part of `memory_lines` that is descriptors and completions.
    pub bookkeeping: f64,
    /// All bytes of the transaction layer towards the host: packets and completions written, reads asked for.
    pub to_host: f64,
    /// All bytes of the transaction layer away from the host: packets and descriptors read, doorbells.
    pub from_host: f64,
}

impl Card {
    /// Bytes for a frame of so many bytes on the wire each way.
    #[must_use]
    pub fn per_packet(&self, frame: u32) -> PerPacket {
        let (link, q) = (&self.link, &self.queues);
        let data = frame.saturating_sub(FRAME_CHECK).max(1);
        let share = |bytes: f64, packets: u32| bytes / f64::from(packets.max(1));
        let lines = f64::from(pieces(data, q.line)) * f64::from(q.line);
        let fetched = |bytes: u32, at_once: u32| {
            let (asked, came) = link.read(bytes.saturating_mul(at_once.max(1)));
            (share(asked, at_once), share(came, at_once))
        };
        let (packet_asked, packet_came) = link.read(data);
        let (receive_asked, receive_came) = fetched(q.receive_descriptor, q.receive_descriptors_a_read);
        let (send_asked, send_came) = fetched(q.send_descriptor, q.send_descriptors_a_read);
        let bookkeeping = [q.receive_descriptor, q.receive_completion, q.send_descriptor].map(f64::from);
        let bookkeeping = bookkeeping.into_iter().sum::<f64>()
            + share(f64::from(q.send_completion), q.packets_a_send_completion);
        PerPacket {
            memory_lines: 2.0 * lines + bookkeeping,
            bookkeeping,
            to_host: link.write(data)
                + link.write(q.receive_completion)
                + share(link.write(q.send_completion), q.packets_a_send_completion)
                + packet_asked
                + receive_asked
                + send_asked,
            from_host: packet_came
                + receive_came
                + send_came
                + share(2.0 * link.write(q.doorbell), q.packets_a_doorbell),
        }
    }
}

impl PerPacket {
    /// The counted bytes as a share of the link's capacity both ways together: the paper's 67 %.
    #[must_use]
    pub fn share_of_peak(&self, link: &Link, rate: f64) -> f64 {
        self.memory_lines * rate / (2.0 * link.bytes_per_second())
    }

    /// Utilisation of the two ways, towards the host and away from it, at so many packets a second; above 1
    /// the link is overloaded.
    #[must_use]
    pub fn utilization(&self, link: &Link, rate: f64) -> [f64; 2] {
        [self.to_host, self.from_host].map(|bytes| bytes * rate / link.transaction_bytes_per_second())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Transactions one by one, as they would go over the link.
    fn slow_read(link: &Link, bytes: u32) -> (f64, f64) {
        let (mut asked, mut came, mut left) = (0, 0, bytes);
        while left > 0 {
            let mut request = left.min(link.max_read);
            left -= request;
            asked += link.read_header;
            while request > 0 {
                let piece = request.min(link.max_payload);
                request -= piece;
                came += piece + link.completion_header;
            }
        }
        (f64::from(asked), f64::from(came))
    }

    proptest! {
        #[test]
        fn reads_are_those_of_single_transactions(bytes in 0u32..10_000, payload in 5u32..13, read in 5u32..13) {
            let link = Link { max_payload: 1 << payload, max_read: 1 << read, ..Link::default() };
            prop_assert_eq!(link.read(bytes), slow_read(&link, bytes));
        }

        #[test]
        fn longer_frames_never_cost_less(frame in 5u32..9000) {
            let (a, b) = (Card::default().per_packet(frame), Card::default().per_packet(frame + 1));
            prop_assert!(a.memory_lines <= b.memory_lines && a.to_host < b.to_host && a.from_host < b.from_host);
            prop_assert!(a.to_host > f64::from(frame - 4) && a.from_host > f64::from(frame - 4));
        }
    }

    /// Every field is public, so that each may have any value.
    #[test]
    fn no_number_is_too_large_or_too_small() {
        for n in [0, 1, u32::MAX] {
            let link = Link {
                max_payload: n,
                max_read: n,
                write_header: n,
                read_header: n,
                completion_header: n,
                ..Link::default()
            };
            let queues = Queues {
                receive_descriptor: n,
                receive_descriptors_a_read: n,
                receive_completion: n,
                send_descriptor: n,
                send_descriptors_a_read: n,
                send_completion: n,
                packets_a_send_completion: n,
                doorbell: n,
                packets_a_doorbell: n,
                line: n,
            };
            for frame in [0, 64, u32::MAX] {
                let packet = Card { link, queues }.per_packet(frame);
                let all = [packet.memory_lines, packet.bookkeeping, packet.to_host, packet.from_host];
                assert!(
                    all.iter().all(|bytes| bytes.is_finite() && *bytes >= 0.0),
                    "{n} {frame}: {packet:?}"
                );
            }
        }
    }

    /// The paper's Fig. 15: 1.9 and 21 GB/s at 6.5 million packets a second, 67 % of the slot's peak both
    /// ways.
    #[test]
    fn fig_15_within_a_tenth() {
        let card = Card::default();
        let close = |ours: f64, paper: f64| assert!((ours / paper - 1.0).abs() < 0.1, "{ours} for {paper}");
        close(card.per_packet(64).memory_lines * 6.5e6, 1.9e9);
        let large = card.per_packet(1518);
        close(large.memory_lines * 6.5e6, 21e9);
        close(large.share_of_peak(&card.link, 6.5e6), 0.67);
    }

    #[test]
    fn by_hand() {
        let frame = Card::default().per_packet(64);
        // A line each way; a quarter of a line of descriptors, two lines, a 32nd of one.
        assert_eq!(frame.bookkeeping, 16.0 + 64.0 + 64.0 + 2.0);
        assert_eq!(frame.memory_lines, 128.0 + 146.0);
        // 60 bytes and 24; a completion of 64 and 24, a 32nd of that for sending; three read requests, one of
        // them for four packets.
        assert_eq!(frame.to_host, 84.0 + 88.0 + 88.0 / 32.0 + 24.0 + 24.0 / 4.0 + 24.0);
        assert_eq!(frame.from_host, 80.0 + 84.0 / 4.0 + 84.0 + 64.0 / 32.0);
    }

    #[test]
    fn generations() {
        let gb = |generation, lanes| Link { generation, lanes, ..Link::default() }.bytes_per_second() / 1e9;
        for (generation, lanes, expected) in
            [(1, 1, 0.25), (2, 4, 2.0), (3, 8, 7.877), (4, 16, 31.508), (5, 16, 63.015)]
        {
            assert!((gb(generation, lanes) - expected).abs() < 0.001, "{generation} {lanes}");
        }
    }
}
