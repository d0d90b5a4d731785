//! The operator's side of a stage: settings that change while it runs, tables that are listed, saved and
//! restored, and what has to be told of each entry.
//!
//! All of it happens on the data path, between two batches. So everything is either small, or comes in slices
//! of as many places as the caller says; what takes time, such as reading files, building trees and making
//! text of records, is done before or after, elsewhere. For that a table's entries leave as plain bytes: each
//! is a [`StateTable`]'s record, integers in little-endian order, which [`StateTable::describe`] reads.

use std::any::Any;
use std::net::{IpAddr, Ipv6Addr};

use crate::registry::{BuildError, Site};
use crate::settings::Settings;
use crate::time::Nanos;

/// New settings of a stage, made off the data path; or what it gave up for them, to be freed there.
pub type Update = Box<dyn Any + Send>;

/// Makes an update off the data path, and says in words what will have been done by it; an error says why it
/// can't be.
pub type Preparation = Box<dyn FnOnce() -> Result<(Update, String), String> + Send>;

/// The settings of a stage type that can change while its stages run.
#[derive(Clone, Copy, Debug)]
pub struct Reloading {
    /// Their names.
    pub settings: &'static [&'static str],
    /// The names of ports that a stage of these settings has because of them: they can't change.
    pub ports: fn(&Settings) -> Vec<String>,
    /// Returns true if they name files, whose contents may have changed where the settings have not.
    pub reads_files: fn(&Settings) -> bool,
    /// Reads them, and whatever files they name, and makes what [`Operate::update`] takes, or is [`Apart`].
    /// It may take long.
    pub make: fn(&Settings, &Site<'_>) -> Result<Update, BuildError>,
}

/// Work that may fail, with the reason in words.
pub type Work = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// An update that is not for a stage on the data path: it is done once the stages have taken theirs, and says
/// why it could not be.
pub struct Apart(pub Work);

impl std::fmt::Debug for Apart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Apart")
    }
}

impl Reloading {
    /// No names of ports come from the settings.
    pub const NO_PORTS: fn(&Settings) -> Vec<String> = |_| Vec::new();
}

/// A table of a stage type.
#[derive(Clone, Copy, Debug)]
pub struct StateTable {
    /// Its name: a-z and _.
    pub name: &'static str,
    /// Number of the layout of its records; another layout has another number.
    pub version: u16,
    /// Bytes of a record.
    pub record: usize,
    /// The fields of a record as JSON; none of one that can't be.
    pub describe: fn(&[u8]) -> Option<serde_json::Value>,
    /// The fields of a record that have one of a few names, such as the state of a connection: with all of
    /// these names.
    pub names: &'static [(&'static str, &'static [&'static str])],
    /// The packets that the entry of a record is for; none of one that can't be.
    pub ends: fn(&[u8]) -> Option<EntryEnds>,
}

/// The packets that an entry of a table is for, from which it follows to which shard they are led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryEnds {
    /// Protocol behind the IP header.
    pub protocol: u8,
    /// Address and port that the first packet came from, or the identifier of ICMP queries.
    pub source: (IpAddr, u16),
    /// The address that it went to; unspecified where that doesn't matter.
    pub destination: (IpAddr, u16),
    /// Of a session of address translation: the external endpoint that stands for the source.
    pub external: Option<(IpAddr, u16)>,
}

/// The beginning or the end of a session of address translation, with what RFC 6888 §4 REQ-12 has logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionEvent {
    /// The time at which it happened.
    pub time: Nanos,
    /// True at its beginning.
    pub begins: bool,
    /// TCP (6), UDP (17) or ICMP (1).
    pub protocol: u8,
    /// The inside endpoint.
    pub inside: (IpAddr, u16),
    /// The external endpoint that stands for it.
    pub external: (IpAddr, u16),
    /// The endpoint at the other end.
    pub remote: (IpAddr, u16),
}

/// A decision against a packet, one of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The time at which it happened.
    pub time: Nanos,
    /// Line of the rule in its file; none where no rule matched, and the default decided.
    pub line: Option<u32>,
    /// The packet's flow.
    pub flow: slipstream_wire::FlowKey,
    /// Packets denied since the one that was told of before, with this one.
    pub packets: u64,
}

/// Events in a stage since somebody last asked.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// Sessions that began or ended.
    pub sessions: Vec<SessionEvent>,
    /// Packets that were denied: some of them.
    pub denials: Vec<Denial>,
    /// Packets that were denied since the last one that was told of, and will be counted by the next.
    pub untold: u64,
    /// Events for which there was no room.
    pub missed: u64,
}

impl Events {
    /// Takes the place of everything that happened so far; gives that back, with its memory for the next
    /// time.
    pub fn swap(&mut self, empty: &mut Self) {
        empty.sessions.clear();
        empty.denials.clear();
        (empty.missed, empty.untold) = (0, 0);
        std::mem::swap(self, empty);
    }
}

/// A stage as its operator sees it. Tables are named by their places in
/// [`Properties::tables`](crate::registry::Properties::tables).
pub trait Operate {
    /// Goes by new settings from `now` on, without losing a packet or what it knows of flows. It gives back
    /// what it needs no longer. What isn't its own comes back as it is.
    fn update(&mut self, new: Update, _now: Nanos) -> Update {
        new
    }

    /// Gives what it needs no longer since an update, where that was not known at once; it is asked a little
    /// later.
    fn given_up(&mut self) -> Option<Update> {
        None
    }

    /// Appends the records of a table's places from `from` on, of so many `places` at most, and gives the
    /// place to go on from; none at its end. Entries that come or go meanwhile may be in it or not.
    fn save(&self, _table: usize, _from: u32, _places: u32, _now: Nanos, _out: &mut Vec<u8>) -> Option<u32> {
        None
    }

    /// Takes in an entry that was saved `away` ns ago. False where its time has passed meanwhile, it is none,
    /// or there is no room for it, or no place by the settings that it has now.
    fn restore(&mut self, _table: usize, _record: &[u8], _away: u64, _now: Nanos) -> bool {
        false
    }

    /// Takes the entry of this record out; false where there is none.
    fn remove(&mut self, _table: usize, _record: &[u8], _now: Nanos) -> bool {
        false
    }

    /// Ends entries whose time has passed, which otherwise may be in its tables for a while yet.
    fn expire(&mut self, _now: Nanos) {}

    /// Ends what stands in so many `places` from `from` on, since nobody will remember it, and gives the
    /// place to go on from; none at the end. Only what it tells of ([`events`](Self::events)) has to end.
    fn end_all(&mut self, _from: u32, _places: u32, _now: Nanos) -> Option<u32> {
        None
    }

    /// Takes an action that its type alone knows, such as to drain a backend: gives what has to be made for
    /// it, elsewhere, and be handed to [`update`](Self::update) then.
    ///
    /// # Errors
    /// The reason why it can't, in words.
    fn act(&self, action: &str, _on: &str) -> Result<Preparation, String> {
        Err(format!("`{action}` is nothing that stages of this type do"))
    }

    /// Notes what happens from now on in the memory of `empty`, and puts there what happened so far. Until
    /// this is first called nothing is noted.
    fn events(&mut self, empty: &mut Events) {
        empty.swap(&mut Events::default());
    }
}

/// Takes the fields of a record apart, in little-endian order. Past its end everything is 0.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    /// The next so many bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_first_chunk().unwrap_or((&[0; N], &[]));
        self.0 = rest;
        *head
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        let [byte] = self.bytes();
        byte
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    /// The next four.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    /// The next eight.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// The next sixteen, as [`put_address`] has written them.
    pub fn address(&mut self) -> IpAddr {
        Ipv6Addr::from(self.bytes()).to_canonical()
    }
}

/// Appends an address to a record: 16 bytes, of IPv4 as `::ffff:a.b.c.d`.
pub fn put_address(out: &mut Vec<u8>, address: IpAddr) {
    let address = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    out.extend(address.octets());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_end_where_the_record_does() {
        let mut fields = Fields(&[1, 2, 0, 3, 0, 0, 0, 9]);
        assert_eq!((fields.u8(), fields.u16(), fields.u32()), (1, 2, 3));
        assert_eq!((fields.u64(), fields.u8()), (0, 0), "there are no eight bytes left, and none after that");
    }

    #[test]
    fn addresses_take_sixteen_bytes() {
        let addresses: [IpAddr; 3] = ["10.0.0.1", "2001:db8::1", "::"].map(|a| a.parse().unwrap());
        let mut record = Vec::new();
        addresses.iter().for_each(|address| put_address(&mut record, *address));
        assert_eq!(record.len(), 48);
        let mut fields = Fields(&record);
        assert_eq!(addresses.map(|_| fields.address()), addresses);
    }

    #[test]
    fn events_change_places() {
        let (mut kept, mut mine) = (Events::default(), Events::default());
        (kept.missed, kept.untold) = (3, 5);
        (mine.missed, mine.untold) = (1, 2);
        kept.swap(&mut mine);
        assert_eq!((kept.missed, mine.missed, kept.untold, mine.untold), (0, 3, 0, 5));
    }
}
