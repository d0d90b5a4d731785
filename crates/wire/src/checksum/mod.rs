//! The Internet checksum (RFC 1071): sums, verification and computation over classified frames, and
//! incremental updates (RFC 1624) for functions that rewrite a few fields.
//!
//! A function that rewrites fields updates the checksum with a [`Delta`]: a right checksum stays right, a
//! wrong one stays wrong by the same difference, and nothing but the changed fields is read. One delta serves
//! every packet of a train.

mod delta;
mod frame;

pub use delta::{Delta, FoldedDelta};
pub use frame::{Verdict, fill_ip, fill_transport, verify_ip, verify_transport};

/// Ones' complement sum of 16-bit big-endian words, an odd last byte padded with zero (RFC 1071 §1). 0 only
/// if all bytes are.
#[inline]
#[must_use]
pub fn sum(data: &[u8]) -> u16 {
    let (lines, rest) = data.as_chunks::<64>();
    let (words, rest) = rest.as_chunks::<8>();
    let (halves, rest) = rest.as_chunks::<4>();
    let (pairs, last) = rest.as_chunks::<2>();
    // Sums commute with the byte order (RFC 1071 §2 B), so words are added as the machine has them.
    let mut total = if lines.is_empty() { 0 } else { sum_of_lines(lines) };
    for word in words {
        total += u128::from(u64::from_ne_bytes(*word));
    }
    for half in halves {
        total += u128::from(u32::from_ne_bytes(*half));
    }
    for pair in pairs {
        total += u128::from(u16::from_ne_bytes(*pair));
    }
    for byte in last {
        total += u128::from(u16::from_ne_bytes([*byte, 0]));
    }
    let folded = u128::from(total as u64) + (total >> 64);
    u16::from_be(fold(u64::from(folded as u32) + (folded >> 32) as u64))
}

/// As [`sum`], of bytes that are few words: the addresses of a header.
#[inline]
#[must_use]
pub fn sum_of_words(words: &[[u8; 8]]) -> u16 {
    let halves = |word: u64| (word >> 32) + (word & 0xffff_ffff);
    fold(words.iter().map(|word| halves(u64::from_be_bytes(*word))).sum())
}

/// Sum of the 32-bit words of payload, eight at a time: both halves of 64-bit words add up without a carry
/// in less than 2³² lines, so that the compiler can add several at once.
#[inline]
fn sum_of_lines(lines: &[[u8; 64]]) -> u128 {
    let (mut low, mut high) = ([0_u64; 8], [0_u64; 8]);
    for line in lines {
        let (words, _) = line.as_chunks::<8>();
        for ((low, high), word) in low.iter_mut().zip(&mut high).zip(words) {
            let word = u64::from_ne_bytes(*word);
            *low += word & 0xffff_ffff;
            *high += word >> 32;
        }
    }
    low.iter().chain(&high).map(|sum| u128::from(*sum)).sum()
}

/// Verifies the checksum of an IPv4 header without options.
#[inline]
#[must_use]
pub fn is_right_ipv4(header: &[u8; 20]) -> bool {
    let (words, _) = header.as_chunks::<4>();
    // 16-bit sums are the same in either byte order but for that order, in which 0xffff has no part.
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    // 2¹⁶ is 1 modulo 0xffff, so folding keeps the remainder; a sum of 0 is of zeros only, and folds to 0.
    sum != 0 && sum.is_multiple_of(0xffff)
}

/// The checksum of `data`, whose checksum field must hold 0; over data that holds its right checksum it is 0.
#[inline]
#[must_use]
pub fn checksum(data: &[u8]) -> u16 {
    !sum(data)
}

/// Sum of sums: of parts that each, but the last, have an even number of bytes.
#[inline]
#[must_use]
pub fn combine(a: u16, b: u16) -> u16 {
    fold(u64::from(a) + u64::from(b))
}

/// End-around carries, until 16 bits are left. 0 only for 0.
#[inline]
const fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
