//! The state of a pipeline in a file: the entries of its stages' tables.
//!
//! Integers are in little-endian order:
//!
//! | bytes | |
//! |---|---|
//! | 8 | `SLPSTATE` |
//! | 2 | version of this layout: 1 |
//! | 2 | 0 |
//! | 4 | number of tables |
//! | 8 | when it was saved, in ns since 1970 |
//! | | the tables, one behind the other |
//! | 4 | CRC-32 (IEEE 802.3) of everything before |
//!
//! A table is the length of its stage's name (2 bytes), that of its own (2), the version of its records (2),
//! bytes of a record (2), the number of records (4), the two names in UTF-8, and the records.

use std::str;

use slipstream_core::clock::real_time;
use slipstream_core::operate::Fields;

const MAGIC: &[u8; 8] = b"SLPSTATE";
const VERSION: u16 = 1;
const HEADER: usize = 24;
const CRC: usize = 4;
const TABLE: usize = 12;

/// The reason why bytes are no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// It begins otherwise.
    #[error("this is no state of Slipstream")]
    Foreign,
    /// It is of a version that this program doesn't know.
    #[error("this is a state in layout {0}; this program reads layout {VERSION}")]
    Version(u16),
    /// Its checksum is not that of its contents.
    #[error("the state is damaged: its checksum is wrong, or its end is missing")]
    Damaged,
    /// The checksum is right, and yet a table is longer than the file.
    #[error("the state contradicts itself at byte {0}")]
    Contradiction(usize),
}

/// The entries of a table, as saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedTable<'a> {
    /// The stage.
    pub stage: &'a str,
    /// The table.
    pub name: &'a str,
    /// Number of the layout of its records.
    pub version: u16,
    /// Bytes of a record, at least 1.
    pub record: usize,
    /// The records, one behind the other.
    pub records: &'a [u8],
}

/// A state that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFile<'a> {
    /// The time at which it was saved, in ns since 1970.
    pub saved_ns: u64,
    /// Its tables.
    pub tables: Vec<SavedTable<'a>>,
}

impl<'a> StateFile<'a> {
    /// The bytes that every state begins with.
    pub const MAGIC: &'static [u8] = MAGIC;

    /// Reads a state.
    ///
    /// # Errors
    /// [`StateError`]: nothing of it is to be used then.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, StateError> {
        let mut header = Fields(bytes);
        if header.bytes() != *MAGIC {
            return Err(StateError::Foreign);
        }
        let version = header.u16();
        if version != VERSION {
            return Err(StateError::Version(version));
        }
        let end = bytes.len().checked_sub(CRC).filter(|end| *end >= HEADER).ok_or(StateError::Damaged)?;
        let (body, crc) = bytes.split_at_checked(end).ok_or(StateError::Damaged)?;
        if crc32fast::hash(body) != Fields(crc).u32() {
            return Err(StateError::Damaged);
        }
        let _ = header.u16();
        let (count, saved_ns) = (header.u32(), header.u64());
        let mut rest = body.get(HEADER..).unwrap_or_default();
        let mut tables = Vec::new();
        for _ in 0..count {
            let at = end - rest.len();
            let (table, behind) = SavedTable::parse(rest).ok_or(StateError::Contradiction(at))?;
            tables.push(table);
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(StateError::Contradiction(end - rest.len()));
        }
        Ok(Self { saved_ns, tables })
    }
}

impl<'a> SavedTable<'a> {
    /// The table at the start of these bytes, and what is behind it.
    fn parse(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (head, rest) = bytes.split_at_checked(TABLE)?;
        let mut head = Fields(head);
        let (stage, name) = (usize::from(head.u16()), usize::from(head.u16()));
        let (version, record, count) = (head.u16(), usize::from(head.u16()), head.u32() as usize);
        let (stage, rest) = rest.split_at_checked(stage)?;
        let (name, rest) = rest.split_at_checked(name)?;
        let (records, rest) = rest.split_at_checked(count.checked_mul(record)?)?;
        let (stage, name) = (str::from_utf8(stage).ok()?, str::from_utf8(name).ok()?);
        (record > 0).then_some((Self { stage, name, version, record, records }, rest))
    }
}

/// A state in the making.
#[derive(Clone, Debug)]
pub struct StateWriter {
    bytes: Vec<u8>,
    tables: u32,
    /// Positions of the number of records of the table under way and of its first record; bytes of a record.
    open: Option<(usize, usize, usize)>,
}

impl StateWriter {
    /// A state of now, without tables. It goes by real time, not by that of this run: the next one compares
    /// it with its own, and somebody may have set the clock meanwhile, as it is first set after a boot.
    #[must_use]
    pub fn now() -> Self {
        Self::new(real_time().0)
    }

    /// A state of this time, in ns since 1970, without tables.
    #[must_use]
    pub fn new(saved_ns: u64) -> Self {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 6]);
        bytes.extend(saved_ns.to_le_bytes());
        Self { bytes, tables: 0, open: None }
    }

    /// Begins a table, to which records are added until the next one begins. Names have 65,535 bytes at most.
    pub fn table(&mut self, stage: &str, name: &str, version: u16, record: u16) {
        self.close();
        self.tables += 1;
        for number in [stage.len() as u16, name.len() as u16, version, record] {
            self.bytes.extend(number.to_le_bytes());
        }
        let count = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(stage.bytes().chain(name.bytes()));
        self.open = Some((count, self.bytes.len(), usize::from(record)));
    }

    /// Adds records.
    pub fn records(&mut self, records: &[u8]) {
        self.bytes.extend(records);
    }

    fn close(&mut self) {
        let Some((place, start, record)) = self.open.take() else { return };
        let count = (self.bytes.len() - start) / record.max(1);
        self.put(place, count as u32);
    }

    fn put(&mut self, place: usize, number: u32) {
        if let Some(four) = self.bytes.get_mut(place..).and_then(<[u8]>::first_chunk_mut::<4>) {
            *four = number.to_le_bytes();
        }
    }

    /// The bytes of the file.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.close();
        self.put(12, self.tables);
        let crc = crc32fast::hash(&self.bytes);
        self.bytes.extend(crc.to_le_bytes());
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use slipstream_core::clock::stand_in;

    fn state() -> Vec<u8> {
        let mut state = StateWriter::new(77);
        state.table("nat", "sessions", 1, 3);
        state.records(&[1, 2, 3]);
        state.records(&[4, 5, 6]);
        state.table("fw", "connections", 2, 5);
        state.finish()
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let bytes = state();
        let read = StateFile::parse(&bytes).unwrap();
        let nat = SavedTable {
            stage: "nat",
            name: "sessions",
            version: 1,
            record: 3,
            records: &[1, 2, 3, 4, 5, 6],
        };
        let fw = SavedTable { stage: "fw", name: "connections", version: 2, record: 5, records: &[] };
        assert_eq!(read, StateFile { saved_ns: 77, tables: vec![nat, fw] });
        assert_eq!(StateFile::parse(&StateWriter::new(5).finish()).unwrap().tables, []);
    }

    #[test]
    fn a_state_is_of_real_time_whatever_the_clock_of_the_run_says() {
        const SINCE_BOOT: u64 = 5_000_000_000;
        stand_in::set(Some(SINCE_BOOT));
        let (before, bytes, after) = (real_time().0, StateWriter::now().finish(), real_time().0);
        stand_in::set(None);
        let saved = StateFile::parse(&bytes).unwrap().saved_ns;
        assert!(before <= saved && saved <= after && saved > 2 * SINCE_BOOT, "{before} {saved} {after}");
    }

    #[test]
    fn other_files_are_refused_in_words() {
        assert_eq!(StateFile::parse(b""), Err(StateError::Foreign));
        assert_eq!(StateFile::parse(b"\xd4\xc3\xb2\xa1 a capture"), Err(StateError::Foreign));
        let mut newer = state();
        newer[8] = 2;
        assert_eq!(StateFile::parse(&newer), Err(StateError::Version(2)));
        // A table that claims more records than there are, with a checksum that fits.
        let mut wrong = StateWriter::new(1);
        wrong.table("n", "t", 1, 4);
        wrong.open = None;
        wrong.put(HEADER + 8, 9);
        assert_eq!(StateFile::parse(&wrong.finish()), Err(StateError::Contradiction(HEADER)));
    }

    proptest! {
        /// Every state that is cut short or has another bit is refused.
        #[test]
        fn damage_is_found(at in any::<proptest::sample::Index>(), bit in 0..8u8) {
            let whole = state();
            let at = at.index(whole.len());
            prop_assert!(StateFile::parse(&whole[..at]).is_err());
            let mut other = whole.clone();
            other[at] ^= 1 << bit;
            // Two bytes of the header are not looked at but by the checksum.
            prop_assert!(StateFile::parse(&other).is_err());
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..100), sound in any::<bool>()) {
            let mut all = state()[..HEADER].to_vec();
            all.extend(bytes);
            if sound {
                let crc = crc32fast::hash(&all);
                all.extend(crc.to_le_bytes());
            }
            let _ = StateFile::parse(&all);
        }
    }
}
