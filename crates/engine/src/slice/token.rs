//! The token that stands in a sliced packet for its payload: eight bytes, big-endian.
//!
//! | mode | fields, from the highest bit |
//! |---|---|
//! | keyed | index 16, generation 24, tag 24; a longer tag, up to 40 bits, leaves a generation of as many fewer |
//! | paper | generation, then an index of as many bits as it needs (NFSlicer, §III-C d) |
//!
//! The index names a worker and one of its entries, so that a packet that comes back on another worker can be handed over.
//! The generation says which of the payloads that an entry has held is meant. The tag is made of both by a block cipher
//! (AES-128, of whose block it is the last bits), so that nobody who doesn't know the key can make a token; the first generation of
//! every entry depends on the key too. A processor with instructions for AES makes a tag in a few nanoseconds.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes128Enc, Block};
use zeroize::Zeroize;

/// Bytes of a token.
pub const TOKEN_LEN: usize = 8;

/// Bits of a tag at least, which is also what it has by default.
pub const TAG_BITS: u32 = 24;
/// Bits of a tag at most: a generation keeps 8.
pub const MOST_TAG_BITS: u32 = 40;
const KEYED_INDEX_BITS: u32 = 16;
/// Bits of a keyed token below its index: generation and tag.
const BELOW_INDEX: u32 = u64::BITS - KEYED_INDEX_BITS;

/// Workers and entries that there can be: what 16 bits of index hold.
pub const MAX_PLACES: u32 = 1 << KEYED_INDEX_BITS;

/// How tokens are made.
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

/// What a token says, before anybody has checked that it is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// The worker whose table holds the payload.
    pub worker: u32,
    /// The entry of that table.
    pub entry: u32,
    /// Which of the payloads that the entry has held.
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
            // The standard library has sources of its own, and ends the program where none of them has anything.
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

/// What a hash is for: the same message has another for every purpose.
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

    /// The first half of the last block of a chain: of a message of three blocks (CBC-MAC, whose messages are all of a length).
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
    /// For `workers` tables of `entries` entries each; `None` if an index can't name them all ([`MAX_PLACES`]), or there
    /// are none. Tags have [`TAG_BITS`] bits.
    #[must_use]
    pub fn new(mode: TokenMode, key: &TokenKey, entries: u32, workers: u32) -> Option<Self> {
        Self::with_tags(mode, TAG_BITS, key, entries, workers)
    }

    /// As [`TokenFormat::new`], with tags of `tag_bits` bits, [`TAG_BITS`] to [`MOST_TAG_BITS`]; `None` also where it is not
    /// one of those.
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

    /// How tokens are made.
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

    /// What a token says; `None` where it names no worker or no entry that there is. The tag is not looked at.
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

    /// Whether the tag is the one that only the key makes. Without tags nothing is genuine.
    #[inline]
    #[must_use]
    pub fn is_genuine(&self, Token(token): Token) -> bool {
        self.mode == TokenMode::Keyed && self.tag(token >> self.tag_bits) == token & self.tag_mask()
    }

    /// Whether `generation` comes before `current`, as far as a count that goes round can tell.
    #[must_use]
    pub fn is_older(&self, generation: u64, current: u64) -> bool {
        let behind = current.wrapping_sub(generation) & self.generation_mask();
        behind != 0 && behind <= self.generation_mask() / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// AES-128 (FIPS 197) as its text has it, a byte at a time.
    fn twin(key: &TokenKey, purpose: Purpose, message: u64) -> u64 {
        let double = |x: u8| x << 1 ^ if x & 0x80 != 0 { 0x1b } else { 0 };
        let times = |mut a: u8, mut b: u8| {
            let mut product = 0;
            while b != 0 {
                product ^= if b & 1 != 0 { a } else { 0 };
                (a, b) = (double(a), b >> 1);
            }
            product
        };
        let substitute = |x: u8| {
            let inverse = (0..=255).find(|y| times(x, *y) == 1).unwrap_or(0);
            (0..5).fold(0x63, |s, n| s ^ inverse.rotate_left(n))
        };
        let mut round_key = [0; 16];
        round_key[..8].copy_from_slice(&key.0[0].to_le_bytes());
        round_key[8..].copy_from_slice(&key.0[1].to_le_bytes());
        let mut state = [0; 16];
        state[..8].copy_from_slice(&message.to_le_bytes());
        state[8] = purpose as u8;
        let add = |state: &mut [u8; 16], key: &[u8; 16]| state.iter_mut().zip(key).for_each(|(s, k)| *s ^= k);
        add(&mut state, &round_key);
        let mut constant = 1;
        for round in 1..=10 {
            let last = [13, 14, 15, 12].map(|n| substitute(round_key[n]));
            (0..4).for_each(|n| round_key[n] ^= last[n]);
            round_key[0] ^= constant;
            constant = double(constant);
            (4..16).for_each(|n| round_key[n] ^= round_key[n - 4]);
            // Bytes stand in columns of four; row r is shifted by r.
            state = std::array::from_fn(|n| substitute(state[(n + n % 4 * 4) % 16]));
            if round < 10 {
                let at = |n: usize, by: usize| state[n / 4 * 4 + (n + by) % 4];
                state = std::array::from_fn(|n| {
                    double(at(n, 0)) ^ double(at(n, 1)) ^ at(n, 1) ^ at(n, 2) ^ at(n, 3)
                });
            }
            add(&mut state, &round_key);
        }
        u64::from_le_bytes(state[..8].try_into().unwrap())
    }

    #[test]
    fn the_hash_has_the_value_that_the_standard_prints() {
        // FIPS 197, appendix C.1: key 00 01 … 0f; its plaintext has more than a purpose in the second half.
        let key = TokenKey::new([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        let mut block = 0xffee_ddcc_bbaa_9988_7766_5544_3322_1100_u128.to_le_bytes().into();
        Hash::new(&key).0.encrypt_block(&mut block);
        let expected =
            [0x69, 0xc4, 0xe0, 0xd8, 0x6a, 0x7b, 0x04, 0x30, 0xd8, 0xcd, 0xb7, 0x80, 0x70, 0xb4, 0xc5, 0x5a];
        assert_eq!(<[u8; 16]>::from(block), expected);
    }

    fn format() -> impl Strategy<Value = TokenFormat> {
        let mode = prop_oneof![Just(TokenMode::Keyed), Just(TokenMode::Paper)];
        (mode, any::<[u64; 2]>(), TAG_BITS..=MOST_TAG_BITS, 1u32..=65536, 1u32..=64)
            .prop_filter_map("too many", |(mode, key, tag, n, w)| {
                TokenFormat::with_tags(mode, tag, &TokenKey::new(key), n, w)
            })
    }

    proptest! {
        #[test]
        fn the_hash_is_a_block_of_aes(key: [u64; 2], message: u64) {
            let (key, hash) = (TokenKey::new(key), Hash::new(&TokenKey::new(key)));
            for purpose in [Purpose::Tag, Purpose::FirstGeneration, Purpose::Key, Purpose::Flow] {
                prop_assert_eq!(hash.of(purpose, message), twin(&key, purpose, message));
            }
        }

        #[test]
        fn what_is_made_can_be_read(format in format(), worker: u32, entry: u32, generation: u64) {
            let worker = worker % format.workers;
            let entry = entry % format.entries;
            let generation = generation & format.generation_mask();
            let fields = Fields { worker, entry, generation };
            let token = format.make(fields);
            prop_assert_eq!(format.read(token), Some(fields));
            let others = [1, 0, 7].map(|more| Fields { generation: generation ^ more, ..fields });
            prop_assert_eq!(format.make_all(&others), others.map(|fields| format.make(fields)));
            prop_assert_eq!(format.is_genuine(token), format.mode == TokenMode::Keyed);
            prop_assert_eq!(Token::from_bytes(token.to_bytes()), token);
        }

        /// A token with another bit in it is no token, whichever bit it is.
        #[test]
        fn no_bit_can_be_changed(format in format(), entry: u32, generation: u64, bit in 0u32..64) {
            let fields = Fields { worker: 0, entry: entry % format.entries, generation };
            let changed = Token(format.make(fields).0 ^ 1 << bit);
            // A tag of 24 bits or more is hit once in 16 million times, or less often.
            prop_assert!(!format.is_genuine(changed));
        }
    }

    #[test]
    fn fields_lie_where_the_table_says() {
        let key = TokenKey::from_seed(1);
        let keyed = TokenFormat::new(TokenMode::Keyed, &key, 256, 4).unwrap();
        let token = keyed.make(Fields { worker: 3, entry: 0x21, generation: 0xabcdef }).to_bytes();
        assert_eq!(token[..5], [0x03, 0x21, 0xab, 0xcd, 0xef]);
        let paper = TokenFormat::new(TokenMode::Paper, &key, 250, 1).unwrap();
        let token = paper.make(Fields { worker: 0, entry: 249, generation: 0xabcdef }).to_bytes();
        assert_eq!(token, [0, 0, 0, 0, 0xab, 0xcd, 0xef, 249]);
        assert_eq!((keyed.generation_bits(), paper.generation_bits()), (24, 56));
        // Entries 250 to 255 can be written, but there are none.
        assert_eq!(paper.read(Token(255)), None);
    }

    #[test]
    fn one_entry_needs_no_index() {
        let one = TokenFormat::new(TokenMode::Paper, &TokenKey::from_seed(1), 1, 1).unwrap();
        let fields = Fields { worker: 0, entry: 0, generation: u64::MAX };
        assert_eq!(one.make(fields), Token(u64::MAX));
        assert_eq!(one.read(Token(u64::MAX)), Some(fields));
        assert_eq!(one.next_generation(u64::MAX), 0);
    }

    #[test]
    fn an_index_names_so_many_places_and_no_more() {
        let new = |entries, workers| {
            TokenFormat::new(TokenMode::Keyed, &TokenKey::from_seed(1), entries, workers).is_some()
        };
        assert!(new(65_536, 1) && new(32_768, 2) && new(1, 65_536) && new(16_384, 3));
        assert!(!new(65_537, 1) && !new(65_536, 2) && !new(0, 1) && !new(1, 0) && !new(16_385, 3));
    }

    #[test]
    fn generations_go_round() {
        let format = TokenFormat::new(TokenMode::Keyed, &TokenKey::from_seed(9), 16, 1).unwrap();
        let last = (1 << 24) - 1;
        assert_eq!(format.next_generation(last), 0);
        assert!(format.is_older(last, 0) && format.is_older(last, 5) && format.is_older(4, 5));
        assert!(!format.is_older(5, 5) && !format.is_older(0, last) && !format.is_older(6, 5));
        let first: Vec<_> = (0..16).map(|e| format.first_generation(0, e)).collect();
        assert!(first.iter().any(|g| *g != first[0]) && first.iter().all(|g| *g <= last));
    }

    /// A tag that is longer takes its bits from the generation, and the index stays where it is.
    #[test]
    fn longer_tags_leave_shorter_generations() {
        let key = TokenKey::from_seed(4);
        for bits in TAG_BITS..=MOST_TAG_BITS {
            let format = TokenFormat::with_tags(TokenMode::Keyed, bits, &key, 1024, 1).unwrap();
            assert_eq!(format.generation_bits(), 48 - bits);
            let token = format.make(Fields { worker: 0, entry: 0x123, generation: 0x5a });
            assert_eq!(token.0 >> 48, 0x123);
            // Of guesses next to it none is right.
            assert!((1..1000).all(|n| !format.is_genuine(Token(token.0 ^ n))), "{bits}");
        }
        assert!(TokenFormat::with_tags(TokenMode::Keyed, TAG_BITS - 1, &key, 1, 1).is_none());
        assert!(TokenFormat::with_tags(TokenMode::Keyed, MOST_TAG_BITS + 1, &key, 1, 1).is_none());
    }

    #[test]
    fn keys_differ() {
        assert_ne!(TokenKey::random(), TokenKey::random());
        assert_ne!(TokenKey::from_seed(1), TokenKey::from_seed(2));
        assert_eq!(TokenKey::from_seed(7), TokenKey::from_seed(7));
        assert_eq!(format!("{:?}", TokenKey::from_seed(7)), "TokenKey(…)");
    }
}
