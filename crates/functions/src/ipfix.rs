//! Flow records as IPFIX messages (RFC 7011), one template for IPv4 flows and one for IPv6 flows; or the
//! events of address translation (RFC 8158), which have one.
//!
//! The exporter fills messages up to a size and hands them to a writer of the caller's: a UDP socket, for
//! which templates are sent again from time to time (RFC 7011 §8.1), or a file (RFC 5655), where once is
//! enough.

use std::io;
use std::net::IpAddr;

use slipstream_wire::FlowKey;

use super::flow_stats::FlowRecord;
use slipstream_core::operate::SessionEvent;
use slipstream_core::time::Nanos;

const VERSION: u16 = 10;
const HEADER: usize = 16;
const TEMPLATE_SET: u16 = 2;
const TEMPLATE_V4: u16 = 256;
const TEMPLATE_V6: u16 = 257;
const TEMPLATE_SESSION: u16 = 258;

/// Information elements after the addresses: number and length in bytes (IANA's IPFIX registry).
const FIELDS: [(u16, u16); 11] = [
    (7, 2),   // sourceTransportPort
    (11, 2),  // destinationTransportPort
    (4, 1),   // protocolIdentifier
    (5, 1),   // ipClassOfService
    (6, 1),   // tcpControlBits: the eight of the octet of flags (RFC 7125)
    (58, 2),  // vlanId
    (2, 8),   // packetDeltaCount
    (1, 8),   // octetDeltaCount
    (152, 8), // flowStartMilliseconds
    (153, 8), // flowEndMilliseconds
    (136, 1), // flowEndReason
];
/// sourceIPv4Address, destinationIPv4Address.
const ADDRESSES_V4: [(u16, u16); 2] = [(8, 4), (12, 4)];
/// sourceIPv6Address, destinationIPv6Address.
const ADDRESSES_V6: [(u16, u16); 2] = [(27, 16), (28, 16)];

/// Information elements of an event of a NAT44 session (RFC 8158 §5.2).
const SESSION: [(u16, u16); 9] = [
    (323, 8), // observationTimeMilliseconds
    (230, 1), // natEvent
    (4, 1),   // protocolIdentifier
    (8, 4),   // sourceIPv4Address: inside
    (7, 2),   // sourceTransportPort
    (225, 4), // postNATSourceIPv4Address: external
    (227, 2), // postNAPTSourceTransportPort
    (12, 4),  // destinationIPv4Address
    (11, 2),  // destinationTransportPort
];
/// Values of natEvent (RFC 8158 §4.3): a session was created, deleted.
const SESSION_CREATED: u8 = 4;
const SESSION_DELETED: u8 = 5;

/// A template: its number, and its fields in two parts.
type Template<'a> = (u16, &'a [(u16, u16)], &'a [(u16, u16)]);

/// The kind of records that an exporter sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Records {
    Flows,
    Sessions,
}

/// Settings of the exporter's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpfixConfig {
    /// Observation domain id.
    pub domain: u32,
    /// Longest message in bytes, 256 to 65,535. Over UDP at most the path's MTU less its headers: 1420 is
    /// safe on Ethernet, 512 where nothing is known (RFC 7011 §10.3.3).
    pub max_message: u16,
    /// Nanoseconds after which templates are sent again; `None`: only once.
    pub template_interval: Option<u64>,
}

impl Default for IpfixConfig {
    fn default() -> Self {
        Self { domain: 0, max_message: 1420, template_interval: Some(600_000_000_000) }
    }
}

/// Counters of an exporter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpfixCounters {
    /// Messages handed to the writer.
    pub messages: u64,
    /// Flow records in them.
    pub records: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// An exporter.
///
/// ```
/// use slipstream_core::time::Nanos;
/// use slipstream_functions::flow_stats::{EndReason, FlowRecord};
/// use slipstream_functions::ipfix::{Exporter, IpfixConfig};
/// use slipstream_wire::FlowKey;
///
/// let record = FlowRecord {
///     key: FlowKey::new(&[], [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 5000, 53)?,
///     packets: 8,
///     bytes: 800,
///     first: Nanos(0),
///     last: Nanos(1000),
///     tcp_flags: 0,
///     tos: 0,
///     reason: EndReason::Idle,
/// };
/// let mut messages = Vec::new();
/// let mut write = |message: &[u8]| Ok(messages.push(message.to_vec()));
/// let mut exporter = Exporter::new(&IpfixConfig::default());
/// exporter.push(&record, Nanos(2000), &mut write)?;
/// exporter.flush(Nanos(2000), &mut write)?;
/// // One message of version 10, as long as it says: the templates and the record.
/// assert_eq!(messages.len(), 1);
/// assert_eq!(messages[0][..4], [0, 10, 0, messages[0].len() as u8]);
/// assert_eq!(exporter.counters().records, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Exporter {
    config: IpfixConfig,
    records: Records,
    message: Vec<u8>,
    /// Start of the open set, and its id.
    set: Option<(usize, u16)>,
    /// Records in the message.
    pending: u32,
    /// Records in the messages before it, modulo 2³².
    sequence: u32,
    templates_sent: Option<Nanos>,
    /// The latest time that there was: no message is exported before it, unless the clock was set back.
    latest: Nanos,
    counters: IpfixCounters,
}

impl Exporter {
    /// An exporter that has sent nothing.
    #[must_use]
    pub fn new(config: &IpfixConfig) -> Self {
        let config = IpfixConfig { max_message: config.max_message.max(256), ..*config };
        Self {
            message: Vec::with_capacity(usize::from(config.max_message)),
            records: Records::Flows,
            config,
            set: None,
            pending: 0,
            sequence: 0,
            templates_sent: None,
            latest: Nanos(0),
            counters: IpfixCounters::default(),
        }
    }

    /// An exporter of the events of address translation (RFC 8158).
    #[must_use]
    pub fn of_sessions(config: &IpfixConfig) -> Self {
        Self { records: Records::Sessions, ..Self::new(config) }
    }

    /// Adds a record. `write` gets each message that is full, whole, in one call.
    ///
    /// # Errors
    /// Those of `write`; the message is lost then and the sequence number shows it (RFC 7011 §3.1).
    pub fn push(
        &mut self,
        record: &FlowRecord,
        now: Nanos,
        write: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (id, size) = if record.key.is_ipv6() {
            (TEMPLATE_V6, length(&ADDRESSES_V6))
        } else {
            (TEMPLATE_V4, length(&ADDRESSES_V4))
        };
        let result = self.make_room(id, size, now, write);
        put_record(&mut self.message, record);
        self.pending += 1;
        result
    }

    /// Adds the beginning or the end of a session over IPv4, where it was made
    /// [for those](Self::of_sessions).
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_session(
        &mut self,
        event: &SessionEvent,
        now: Nanos,
        write: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let size = SESSION.iter().map(|(_, length)| usize::from(*length)).sum();
        let result = self.make_room(TEMPLATE_SESSION, size, now, write);
        self.message.extend((event.time.0 / 1_000_000).to_be_bytes());
        self.message.extend([if event.begins { SESSION_CREATED } else { SESSION_DELETED }, event.protocol]);
        for (address, port) in [event.inside, event.external, event.remote] {
            let address = if let IpAddr::V4(address) = address { address.octets() } else { [0; 4] };
            self.message.extend(address);
            self.message.extend(port.to_be_bytes());
        }
        self.pending += 1;
        result
    }

    /// Makes room for a record of the template `id`, of so many bytes, and opens its set.
    fn make_room(
        &mut self,
        id: u16,
        size: usize,
        now: Nanos,
        write: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.latest = self.latest.max(now);
        let set_header = if self.set.is_some_and(|(_, open)| open == id) { 0 } else { 4 };
        let mut result = Ok(());
        if self.message.len() + set_header + size > usize::from(self.config.max_message) {
            result = self.flush(now, write);
        }
        if self.message.is_empty() {
            self.message.resize(HEADER, 0);
            self.put_templates(now);
        }
        if self.set.is_none_or(|(_, open)| open != id) {
            self.close_set();
            self.open_set(id);
        }
        result
    }

    /// Times begin anew: somebody has set the clock back that they are of. Otherwise no message is exported
    /// before an earlier one.
    pub fn clock_was_set_back(&mut self) {
        self.latest = Nanos(0);
    }

    /// Sends what there is.
    ///
    /// # Errors
    /// Those of `write`; the message is lost then, and so may be the templates: the next one has them again.
    pub fn flush(&mut self, now: Nanos, write: &mut impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        if self.pending == 0 {
            return Ok(());
        }
        self.close_set();
        self.latest = self.latest.max(now);
        let seconds = (self.latest.0 / 1_000_000_000) as u32;
        let header = [
            VERSION.to_be_bytes(),
            (self.message.len() as u16).to_be_bytes(),
            ((seconds >> 16) as u16).to_be_bytes(),
            (seconds as u16).to_be_bytes(),
            ((self.sequence >> 16) as u16).to_be_bytes(),
            (self.sequence as u16).to_be_bytes(),
            ((self.config.domain >> 16) as u16).to_be_bytes(),
            (self.config.domain as u16).to_be_bytes(),
        ];
        self.message.iter_mut().zip(header.as_flattened()).for_each(|(byte, field)| *byte = *field);
        self.sequence = self.sequence.wrapping_add(self.pending);
        self.counters.messages += 1;
        self.counters.records += u64::from(self.pending);
        self.counters.bytes += self.message.len() as u64;
        self.pending = 0;
        let result = write(&self.message);
        if result.is_err() {
            self.send_templates_again();
        }
        self.message.clear();
        result
    }

    /// Has the next message that is begun carry the templates, since whoever reads it may not have them.
    pub fn send_templates_again(&mut self) {
        self.templates_sent = None;
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &IpfixCounters {
        &self.counters
    }

    fn put_templates(&mut self, now: Nanos) {
        let again = match (self.templates_sent, self.config.template_interval) {
            (None, _) => true,
            // Somebody may set the clock back, by hours.
            (Some(last), Some(interval)) => now.0.abs_diff(last.0) >= interval,
            (Some(_), None) => false,
        };
        if !again {
            return;
        }
        self.templates_sent = Some(now);
        self.open_set(TEMPLATE_SET);
        let of_flows: [Template<'_>; 2] =
            [(TEMPLATE_V4, &ADDRESSES_V4, &FIELDS), (TEMPLATE_V6, &ADDRESSES_V6, &FIELDS)];
        let of_sessions: [Template<'_>; 1] = [(TEMPLATE_SESSION, &SESSION, &[])];
        let templates = match self.records {
            Records::Flows => of_flows.as_slice(),
            Records::Sessions => of_sessions.as_slice(),
        };
        for (id, first, fields) in templates {
            self.message.extend(id.to_be_bytes());
            self.message.extend(((first.len() + fields.len()) as u16).to_be_bytes());
            for (element, length) in first.iter().chain(*fields) {
                self.message.extend(element.to_be_bytes());
                self.message.extend(length.to_be_bytes());
            }
        }
        self.close_set();
    }

    fn open_set(&mut self, id: u16) {
        self.set = Some((self.message.len(), id));
        self.message.extend(id.to_be_bytes());
        self.message.extend([0, 0]);
    }

    /// Writes the length of the open set.
    fn close_set(&mut self) {
        if let Some((start, _)) = self.set.take() {
            let length = (self.message.len() - start) as u16;
            super::bytes::put(&mut self.message, start + 2, &length.to_be_bytes());
        }
    }
}

/// Bytes of a record.
fn length(addresses: &[(u16, u16)]) -> usize {
    addresses.iter().chain(&FIELDS).map(|(_, length)| usize::from(*length)).sum()
}

/// The fields of a record, in the order of its template.
fn put_record(out: &mut Vec<u8>, record: &FlowRecord) {
    let key: &FlowKey = &record.key;
    for address in [key.src(), key.dst()] {
        match address {
            IpAddr::V4(a) => out.extend(a.octets()),
            IpAddr::V6(a) => out.extend(a.octets()),
        }
    }
    out.extend(key.src_port().to_be_bytes());
    out.extend(key.dst_port().to_be_bytes());
    out.extend([key.protocol(), record.tos, record.tcp_flags]);
    // The outermost; 0 of an untagged flow.
    out.extend(key.vlans().next().unwrap_or(0).to_be_bytes());
    out.extend(record.packets.to_be_bytes());
    out.extend(record.bytes.to_be_bytes());
    out.extend((record.first.0 / 1_000_000).to_be_bytes());
    out.extend((record.last.0 / 1_000_000).to_be_bytes());
    out.push(record.reason as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> SessionEvent {
        SessionEvent {
            time: Nanos(5),
            begins: true,
            protocol: 17,
            inside: (IpAddr::from([10, 0, 0, 1]), 5000),
            external: (IpAddr::from([192, 0, 2, 1]), 6000),
            remote: (IpAddr::from([198, 51, 100, 7]), 443),
        }
    }

    #[test]
    fn a_session_is_a_record_of_its_own_template() {
        let event = SessionEvent { time: Nanos(1_700_000_000_123_456_789), protocol: 6, ..event() };
        let mut exporter = Exporter::of_sessions(&IpfixConfig::default());
        let mut messages = Vec::new();
        let mut write = |message: &[u8]| {
            messages.push(message.to_vec());
            Ok(())
        };
        exporter.push_session(&event, event.time, &mut write).unwrap();
        exporter.push_session(&SessionEvent { begins: false, ..event }, event.time, &mut write).unwrap();
        exporter.flush(event.time, &mut write).unwrap();
        let [message] = messages.as_slice() else { panic!("one message") };
        // Header, set of templates with one of nine fields, set of two records of 28 bytes.
        let (template, records) = (4 + 4 + 9 * 4, 4 + 2 * 28);
        assert_eq!(message.len(), HEADER + template + records);
        assert_eq!(message[16..24], [0, 2, 0, template as u8, 1, 2, 0, 9]);
        let set = &message[HEADER + template..];
        assert_eq!(set[..4], [1, 2, 0, records as u8]);
        assert_eq!(set[4..12], 1_700_000_000_123u64.to_be_bytes());
        assert_eq!(set[12..20], [SESSION_CREATED, 6, 10, 0, 0, 1, 0x13, 0x88]);
        assert_eq!(set[20..32], [192, 0, 2, 1, 0x17, 0x70, 198, 51, 100, 7, 1, 187]);
        assert_eq!(set[40], SESSION_DELETED);
    }

    /// In a replay a batch of packets may go before a turn that was due within it: what they ended is no
    /// later than the message that has it.
    #[test]
    fn no_message_is_older_than_its_records_or_the_one_before() {
        let key = FlowKey::new(&[], [10, 0, 0, 1].into(), [192, 0, 2, 7].into(), 6, 5000, 443).unwrap();
        let record = |second: u64| {
            let (first, last) = (Nanos(second * 1_000_000_000), Nanos(second * 1_000_000_000 + 5));
            let reason = crate::flow_stats::EndReason::Idle;
            FlowRecord { key, packets: 1, bytes: 60, first, last, tcp_flags: 2, tos: 0, reason }
        };
        let (mut exporter, mut times) = (Exporter::new(&IpfixConfig::default()), Vec::new());
        let mut write = |message: &[u8]| {
            times.push(u64::from(crate::bytes::be32(message, 4).unwrap()));
            Ok(())
        };
        for (ended, turn) in [(7, 9), (15, 11), (12, 12), (16, 20), (70, 30)] {
            exporter.push(&record(ended - 2), Nanos(ended * 1_000_000_000), &mut write).unwrap();
            exporter.flush(Nanos(turn * 1_000_000_000), &mut write).unwrap();
        }
        exporter.clock_was_set_back();
        exporter.push(&record(38), Nanos(40 * 1_000_000_000), &mut write).unwrap();
        exporter.flush(Nanos(40 * 1_000_000_000), &mut write).unwrap();
        assert_eq!(times, [9, 15, 15, 20, 70, 40]);
    }

    /// A clock that is set back delays them by no more than their interval: a collector that begins meanwhile
    /// needs them.
    #[test]
    fn templates_come_at_their_interval_where_the_clock_is_set_back() {
        let event = event();
        let interval = IpfixConfig { template_interval: Some(60), ..IpfixConfig::default() };
        let mut exporter = Exporter::of_sessions(&interval);
        let mut has_templates = |now: u64| {
            let mut first_set = None;
            let mut write = |message: &[u8]| {
                first_set = crate::bytes::be16(message, HEADER);
                Ok(())
            };
            exporter.push_session(&event, Nanos(now), &mut write).unwrap();
            exporter.flush(Nanos(now), &mut write).unwrap();
            first_set == Some(TEMPLATE_SET)
        };
        let (times, with): (Vec<u64>, Vec<u64>) =
            (vec![7000, 7059, 7060, 3000, 3059, 3060, 3040], vec![7000, 7060, 3000, 3060]);
        assert_eq!(times.into_iter().filter(|now| has_templates(*now)).collect::<Vec<_>>(), with);
    }

    /// Whoever collects them may have begun anew where a message could not be sent.
    #[test]
    fn templates_are_sent_again_after_an_error() {
        let event = event();
        let mut exporter = Exporter::of_sessions(&IpfixConfig::default());
        let mut send = |fails: bool| {
            let mut first_set = None;
            let mut write = |message: &[u8]| {
                first_set = crate::bytes::be16(message, HEADER);
                if fails { Err(io::ErrorKind::ConnectionRefused.into()) } else { Ok(()) }
            };
            exporter.push_session(&event, event.time, &mut write).unwrap();
            assert_eq!(exporter.flush(event.time, &mut write).is_err(), fails);
            first_set
        };
        let (templates, records) = (Some(TEMPLATE_SET), Some(TEMPLATE_SESSION));
        assert_eq!(
            [false, false, true, false, false].map(&mut send),
            [templates, records, records, templates, records]
        );
    }
}
