//! Tokens beside AES as its text has it, and their fields.

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
            state =
                std::array::from_fn(|n| double(at(n, 0)) ^ double(at(n, 1)) ^ at(n, 1) ^ at(n, 2) ^ at(n, 3));
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
