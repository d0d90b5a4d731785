//! Bytes of a saved stretch that are being read: numbers, flows and histograms, of which every length is
//! checked against the bytes at hand.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use slipstream_stats::Histogram;
use slipstream_wire::FlowKey;

use super::{MOST, StretchError};

/// Bytes that are being read.
#[derive(Clone, Copy)]
pub(super) struct In<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
    pub(super) end: usize,
}

impl<'a> In<'a> {
    pub(super) fn damaged<T>(&self, what: &'static str) -> Result<T, StretchError> {
        Err(StretchError::Damaged { byte: self.at, what })
    }

    pub(super) fn check(&self, holds: bool, what: &'static str) -> Result<(), StretchError> {
        if holds { Ok(()) } else { self.damaged(what) }
    }

    pub(super) fn take(&mut self, n: usize) -> Result<&'a [u8], StretchError> {
        let end = self.at.saturating_add(n);
        let taken = self.bytes.get(self.at..end).filter(|_| end <= self.end);
        let taken = taken.ok_or(StretchError::Cut { byte: self.at })?;
        self.at = end;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], StretchError> {
        let taken = self.take(N)?;
        Ok(taken.first_chunk().copied().unwrap_or([0; N]))
    }

    pub(super) fn section(&mut self, name: &[u8; 4]) -> Result<Self, StretchError> {
        let begin = self.at;
        let found = self.array::<4>()?;
        let len = u64::from_le_bytes(self.array()?);
        let content = self.at;
        let cut = StretchError::Cut { byte: begin };
        if found != *name {
            return Err(StretchError::Damaged {
                byte: begin,
                what: "another section than its version has here",
            });
        }
        let end = usize::try_from(len).ok().and_then(|len| content.checked_add(len)).ok_or(cut.clone())?;
        let all = self.bytes.get(begin..end).ok_or(cut.clone())?;
        self.at = end;
        let sum = u32::from_le_bytes(self.array().map_err(|_| cut)?);
        if crc32fast::hash(all) != sum {
            return Err(StretchError::Checksum { byte: begin });
        }
        Ok(Self { bytes: self.bytes, at: content, end })
    }

    pub(super) fn done(&self) -> Result<(), StretchError> {
        self.check(self.at == self.end, "a section that is longer than its content")
    }

    pub(super) fn byte(&mut self) -> Result<u8, StretchError> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    pub(super) fn flag(&mut self) -> Result<bool, StretchError> {
        let byte = self.byte()?;
        self.check(byte < 2, "neither yes nor no")?;
        Ok(byte == 1)
    }

    pub(super) fn number(&mut self) -> Result<u64, StretchError> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            n |= bits << shift;
            if byte & 0x80 == 0 {
                self.check(byte != 0 || shift == 0, "a number that is longer than it need be")?;
                return Ok(n);
            }
        }
        self.damaged("a number of more than 64 bits")
    }

    pub(super) fn numbers<const N: usize>(&mut self) -> Result<[u64; N], StretchError> {
        let mut numbers = [0; N];
        for n in &mut numbers {
            *n = self.number()?;
        }
        Ok(numbers)
    }

    pub(super) fn signed(&mut self) -> Result<i64, StretchError> {
        let n = self.number()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    /// A number of things, each of which takes a byte at least.
    pub(super) fn count(&mut self) -> Result<usize, StretchError> {
        let n = self.number()?;
        self.check(n <= (self.end - self.at) as u64, "more things than there are bytes")?;
        Ok(n as usize)
    }

    pub(super) fn narrow<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T, StretchError> {
        let n = self.number()?;
        T::try_from(n).or_else(|_| self.damaged(what))
    }

    pub(super) fn text(&mut self) -> Result<String, StretchError> {
        let len = self.count()?;
        let text = std::str::from_utf8(self.take(len)?);
        text.map(str::to_owned).or_else(|_| self.damaged("a name that is not UTF-8"))
    }

    pub(super) fn key(&mut self, version: u8) -> Result<FlowKey, StretchError> {
        let (src, dst): (IpAddr, IpAddr) = match version {
            4 => (Ipv4Addr::from(self.array::<4>()?).into(), Ipv4Addr::from(self.array::<4>()?).into()),
            6 => (Ipv6Addr::from(self.array::<16>()?).into(), Ipv6Addr::from(self.array::<16>()?).into()),
            _ => return self.damaged("an IP version that is neither 4 nor 6"),
        };
        let protocol = self.byte()?;
        let ports = [u16::from_le_bytes(self.array()?), u16::from_le_bytes(self.array()?)];
        let mut vlans = Vec::new();
        for _ in 0..self.count()? {
            vlans.push(self.narrow("a VLAN id beyond 4095")?);
        }
        let [src_port, dst_port] = ports;
        match FlowKey::new(&vlans, src, dst, protocol, src_port, dst_port) {
            Ok(key) if (key.src_port(), key.dst_port()) == (src_port, dst_port) => Ok(key),
            _ => self.damaged("a flow that can't be"),
        }
    }

    /// Numbers of trains by index, ascending, those that are not 0.
    pub(super) fn counts(&mut self, counts: &mut [u64]) -> Result<(), StretchError> {
        let mut next = 0;
        for _ in 0..self.count()? {
            let [i, n] = self.numbers()?;
            match usize::try_from(i).ok().and_then(|i| counts.get_mut(i)) {
                Some(count) if i >= next && n > 0 && n < MOST => *count = n,
                _ => return self.damaged("trains that can't be"),
            }
            next = i + 1;
        }
        Ok(())
    }

    pub(super) fn histogram(&mut self) -> Result<Histogram, StretchError> {
        // There are 7,424 buckets at most.
        let len: u16 = self.narrow("a histogram of more buckets than there are")?;
        let mut counts = Vec::new();
        while counts.len() < usize::from(len) {
            let [empty, n] = self.numbers()?;
            self.check(empty < u64::from(len) - counts.len() as u64 && n > 0, "a histogram that can't be")?;
            counts.resize(counts.len() + empty as usize, 0);
            counts.push(n);
        }
        let [low, high, min, max] = if len > 0 { self.numbers()? } else { [0; 4] };
        let sum = u128::from(high) << 64 | u128::from(low);
        Histogram::from_counts(counts, sum, min, max)
            .filter(|h| h.count() < MOST)
            .map_or_else(|| self.damaged("a histogram that can't be"), Ok)
    }
}
