//! The token that stands in a sliced packet for its payload: eight bytes, big-endian.
//!
//! | mode | fields, from the highest bit |
//! |---|---|
//! | keyed | index 16, generation 24, tag 24; a longer tag, up to 40 bits, leaves a generation of as many fewer |
//! | paper | generation, then an index of as many bits as it needs (NFSlicer, §III-C d) |
//!
//! The index names a worker and one of its entries, so that a packet that comes back on another worker can be
//! handed over. The generation says which of the payloads that an entry has held is meant. The tag is made of
//! both by a block cipher (AES-128, of whose block it is the last bits), so that nobody who doesn't know the
//! key can make a token; the first generation of every entry depends on the key too. A processor with
//! instructions for AES makes a tag in a few nanoseconds.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes128Enc, Block};
use zeroize::Zeroize;

/// Bytes of a token.
pub const TOKEN_LEN: usize = slipstream_core::pool::TOKEN_LEN;

/// Bits of a tag at least, which is also what it has by default.
pub const TAG_BITS: u32 = 24;
/// Bits of a tag at most: a generation keeps 8.
pub const MOST_TAG_BITS: u32 = 40;
const KEYED_INDEX_BITS: u32 = 16;
/// Bits of a keyed token below its index: generation and tag.
const BELOW_INDEX: u32 = u64::BITS - KEYED_INDEX_BITS;

/// Workers and entries that there can be: what 16 bits of index hold.
pub const MAX_PLACES: u32 = 1 << KEYED_INDEX_BITS;

/// The construction of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenMode {
    /// With a keyed tag.
    #[default]
    Keyed,
    /// As in the paper: index and generation, and nothing that keeps a guess from being right.
    Paper,
}

/// A token as it stands in a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

impl Token {
    /// From its bytes in a packet.
    #[inline]
    #[must_use]
    pub const fn from_bytes(bytes: [u8; TOKEN_LEN]) -> Self {
        Self(u64::from_be_bytes(bytes))
    }

    /// Its bytes in a packet.
    #[inline]
    #[must_use]
    pub const fn to_bytes(self) -> [u8; TOKEN_LEN] {
        self.0.to_be_bytes()
    }
}

/// The fields of a token, before anybody has checked that they are true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// The worker whose table holds the payload.
    pub worker: u32,
    /// The entry of that table.
    pub entry: u32,
    /// The number of the payload among those that the entry has held.
    pub generation: u64,
}

/// The secret behind the tags: 128 bits, which are erased from memory when the key goes.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenKey([u64; 2]);

impl Drop for TokenKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenKey(…)")
    }
}

impl TokenKey {
    /// This key. Every table whose tokens may come back to another must have the same.
    #[must_use]
    pub const fn new(key: [u64; 2]) -> Self {
        Self(key)
    }

    /// A key that nobody knows, from the operating system.
    #[must_use]
    pub fn random() -> Self {
        let mut key = Self([0; 2]);
        let drawn = key.0.iter_mut().try_for_each(|word| getrandom::u64().map(|drawn| *word = drawn));
        if drawn.is_err() {
            use std::hash::{BuildHasher, RandomState};
            // The standard library has sources of its own, and ends the program where none of them has
            // anything.
            key.0 = [1u64, 2].map(|n| RandomState::new().hash_one(n));
        }
        key
    }

    /// A key that depends on a seed alone: for replays, whose bytes must come out the same.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let base = Hash::new(&Self([0x736c_6963_6500_0001, seed]));
        Self([base.of(Purpose::Key, 1), base.of(Purpose::Key, 2)])
    }
}

/// The purpose of a hash: the same message has another hash for every purpose.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum Purpose {
    Tag,
    FirstGeneration,
    Key,
    Flow,
}

impl Purpose {
    #[inline]
    fn block(self, message: u64) -> Block {
        (u128::from(self as u8) << 64 | u128::from(message)).to_le_bytes().into()
    }
}

/// A keyed hash of short messages: a block of AES-128, as a pseudorandom function.
#[derive(Clone, Debug)]
struct Hash(Aes128Enc);

impl Hash {
    fn new(TokenKey([low, high]): &TokenKey) -> Self {
        let mut key = (u128::from(*high) << 64 | u128::from(*low)).to_le_bytes();
        let hash = Self(Aes128Enc::new((&key).into()));
        key.zeroize();
        hash
    }

    /// The first half of the last block of a chain: of a message of three blocks (CBC-MAC, whose messages are
    /// all of a length).
    fn of_chain(&self, blocks: [u128; 3]) -> u64 {
        let last = blocks.into_iter().fold(0, |chain, block| {
            let mut block = (chain ^ block).to_le_bytes().into();
            self.0.encrypt_block(&mut block);
            u128::from_le_bytes(block.into())
        });
        last as u64
    }

    /// The first half of the block.
    #[inline]
    fn of(&self, purpose: Purpose, message: u64) -> u64 {
        let mut block = purpose.block(message);
        self.0.encrypt_block(&mut block);
        u128::from_le_bytes(block.into()) as u64
    }

    /// Those of several messages.
    fn of_all<const N: usize>(&self, purpose: Purpose, messages: [u64; N]) -> [u64; N] {
        let mut blocks = messages.map(|message| purpose.block(message));
        self.0.encrypt_blocks(&mut blocks);
        blocks.map(|block| u128::from_le_bytes(block.into()) as u64)
    }
}

/// Makes tokens and takes them apart.
#[derive(Clone, Debug)]
pub struct TokenFormat {
    mode: TokenMode,
    hash: Hash,
    entries: u32,
    workers: u32,
    /// Bits of the entry's number, below those of the worker's.
    entry_bits: u32,
    index_bits: u32,
    tag_bits: u32,
    generation_mask: u64,
}

impl TokenFormat {
    /// For `workers` tables of `entries` entries each; `None` if an index can't name them all
    /// ([`MAX_PLACES`]), or there are none. Tags have [`TAG_BITS`] bits.
    #[must_use]
    pub fn new(mode: TokenMode, key: &TokenKey, entries: u32, workers: u32) -> Option<Self> {
        Self::with_tags(mode, TAG_BITS, key, entries, workers)
    }

    /// As [`TokenFormat::new`], with tags of `tag_bits` bits, [`TAG_BITS`] to [`MOST_TAG_BITS`]; `None` also
    /// where it is not one of those.
    #[must_use]
    pub fn with_tags(
        mode: TokenMode,
        tag_bits: u32,
        key: &TokenKey,
        entries: u32,
        workers: u32,
    ) -> Option<Self> {
        if !(TAG_BITS..=MOST_TAG_BITS).contains(&tag_bits) {
            return None;
        }
        let bits = |n: u32| n.checked_sub(1).map(|last| u32::BITS - last.leading_zeros());
        let entry_bits = bits(entries)?;
        let needed = entry_bits + bits(workers)?;
        let (index_bits, generation_bits) = match mode {
            TokenMode::Keyed => (KEYED_INDEX_BITS, BELOW_INDEX - tag_bits),
            TokenMode::Paper => (needed, u64::BITS.saturating_sub(needed)),
        };
        if needed > KEYED_INDEX_BITS {
            return None;
        }
        let generation_mask = u64::MAX >> (u64::BITS - generation_bits);
        let hash = Hash::new(key);
        Some(Self { mode, hash, entries, workers, entry_bits, index_bits, tag_bits, generation_mask })
    }

    /// The construction of its tokens.
    #[must_use]
    pub fn mode(&self) -> TokenMode {
        self.mode
    }

    /// Bits of a generation; the count starts again when they are used up.
    #[must_use]
    pub fn generation_bits(&self) -> u32 {
        self.generation_mask.count_ones()
    }

    /// The generation behind this one.
    #[inline]
    #[must_use]
    pub fn next_generation(&self, generation: u64) -> u64 {
        generation.wrapping_add(1) & self.generation_mask()
    }

    #[inline]
    fn generation_mask(&self) -> u64 {
        self.generation_mask
    }

    /// The generation that an entry starts from: with a key it can't be guessed.
    #[must_use]
    pub fn first_generation(&self, worker: u32, entry: u32) -> u64 {
        match self.mode {
            TokenMode::Keyed => {
                let index = u64::from(self.index(worker, entry));
                self.hash.of(Purpose::FirstGeneration, index) & self.generation_mask()
            }
            TokenMode::Paper => 0,
        }
    }

    /// A token of the generation that an entry starts from; its tag is none.
    #[must_use]
    pub(super) fn first_token(&self, worker: u32, entry: u32) -> Token {
        let untagged =
            self.untagged(Fields { worker, entry, generation: self.first_generation(worker, entry) });
        Token(if self.mode == TokenMode::Keyed { untagged << self.tag_bits } else { untagged })
    }

    /// The entry that a token says.
    #[inline(always)]
    pub(super) fn entry(&self, Token(token): Token) -> u32 {
        let index = token >> if self.mode == TokenMode::Keyed { BELOW_INDEX } else { 0 };
        (index & ((1 << self.entry_bits) - 1)) as u32
    }

    /// The generation that a token says.
    #[inline]
    pub(super) fn generation(&self, Token(token): Token) -> u64 {
        match self.mode {
            TokenMode::Keyed => token >> self.tag_bits & self.generation_mask,
            TokenMode::Paper => token >> self.index_bits,
        }
    }

    #[inline]
    fn index(&self, worker: u32, entry: u32) -> u32 {
        worker << self.entry_bits | entry
    }

    #[inline]
    fn tag(&self, untagged: u64) -> u64 {
        self.hash.of(Purpose::Tag, untagged) & self.tag_mask()
    }

    #[inline]
    fn tag_mask(&self) -> u64 {
        (1 << self.tag_bits) - 1
    }

    /// Highest index that a keyed token can have: a token can't be known before that.
    #[inline]
    pub(super) fn last_index(&self) -> u16 {
        (self.index(self.workers - 1, self.entries - 1) & u32::from(u16::MAX)) as u16
    }

    /// A keyed hash of a flow: its addresses, and what else tells it from others.
    pub(super) fn flow(&self, [source, destination]: [u128; 2], rest: u64) -> u64 {
        self.hash.of_chain([u128::from(Purpose::Flow as u8) << 64 | u128::from(rest), source, destination])
    }

    /// The token of a payload.
    #[inline]
    #[must_use]
    pub fn make(&self, fields: Fields) -> Token {
        let untagged = self.untagged(fields);
        match self.mode {
            TokenMode::Keyed => Token(untagged << self.tag_bits | self.tag(untagged)),
            TokenMode::Paper => Token(untagged),
        }
    }

    /// The tokens of several payloads: [`TokenFormat::make`] of each, in less time.
    #[must_use]
    pub fn make_all<const N: usize>(&self, all: &[Fields; N]) -> [Token; N] {
        let all = all.map(|fields| self.untagged(fields));
        match self.mode {
            TokenMode::Keyed => {
                let mut tagged = self.hash.of_all(Purpose::Tag, all);
                for (tag, untagged) in tagged.iter_mut().zip(all) {
                    *tag = untagged << self.tag_bits | *tag & self.tag_mask();
                }
                tagged.map(Token)
            }
            TokenMode::Paper => all.map(Token),
        }
    }

    /// A token without its tag.
    #[inline]
    fn untagged(&self, fields: Fields) -> u64 {
        let index = u64::from(self.index(fields.worker, fields.entry));
        let generation = fields.generation & self.generation_mask();
        match self.mode {
            TokenMode::Keyed => index << (BELOW_INDEX - self.tag_bits) | generation,
            TokenMode::Paper => generation << self.index_bits | index,
        }
    }

    /// Reads the fields of a token; `None` if it names no worker or no entry that exists. The tag is not
    /// checked.
    #[inline(always)]
    #[must_use]
    pub fn read(&self, Token(token): Token) -> Option<Fields> {
        let index = match self.mode {
            TokenMode::Keyed => token >> BELOW_INDEX,
            // An index of no bits is 0.
            TokenMode::Paper => token & ((1 << self.index_bits) - 1),
        };
        let generation = self.generation(Token(token));
        let (worker, entry) = ((index >> self.entry_bits) as u32, self.entry(Token(token)));
        (worker < self.workers && entry < self.entries).then_some(Fields { worker, entry, generation })
    }

    /// Returns true if the tag is the one that only the key makes. Without tags nothing is genuine.
    #[inline]
    #[must_use]
    pub fn is_genuine(&self, Token(token): Token) -> bool {
        self.mode == TokenMode::Keyed && self.tag(token >> self.tag_bits) == token & self.tag_mask()
    }

    /// Returns true if `generation` comes before `current`, as far as a count that goes round can tell.
    #[must_use]
    pub fn is_older(&self, generation: u64, current: u64) -> bool {
        let behind = current.wrapping_sub(generation) & self.generation_mask();
        behind != 0 && behind <= self.generation_mask() / 2
    }
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;
