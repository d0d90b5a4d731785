//! The bytes that a framing looks at: a buffer that slides over a stream.
//!
//! It grows to hold one record and never beyond, and only as bytes really arrive: a header that promises 60
//! MB in a file of 200 bytes costs nothing.

use std::io::{self, BufRead, Read};
use std::ops::Range;

use super::Damage;
use super::decompress::DeviceError;

/// Bytes asked of the stream at once, and the size that the buffer starts with.
const CHUNK: usize = 256 * 1024;

/// Why no record came out.
pub(super) enum Stop {
    /// The stream is over, at the end of a record.
    End,
    /// The bytes make no sense from here on.
    Damage(Damage),
    /// The device failed.
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A sliding buffer over a stream.
pub(super) struct Window {
    source: Box<dyn Read + Send>,
    bytes: Vec<u8>,
    /// Unread bytes are `bytes[start..end]`.
    start: usize,
    end: usize,
    /// Position in the stream of `bytes[0]`.
    base: u64,
    /// The stream gives no more.
    ended: bool,
    /// The error of the stream at its end, in a decompressor's words.
    fault: Option<String>,
}

impl Window {
    pub(super) fn new(source: Box<dyn Read + Send>) -> Self {
        Self { source, bytes: vec![0; CHUNK], start: 0, end: 0, base: 0, ended: false, fault: None }
    }

    /// Makes `n` bytes available; false where the stream ends before.
    ///
    /// # Errors
    ///
    /// The device failed. Damage in a compressed stream is not an error, but the end.
    #[inline]
    pub(super) fn want(&mut self, n: usize) -> io::Result<bool> {
        if self.end - self.start >= n { Ok(true) } else { self.fill(n) }
    }

    /// The bytes that are available now.
    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        self.slice(self.start..self.end)
    }

    /// The bytes that [`Window::take`] told of, if nothing was wanted since.
    #[inline]
    pub(super) fn slice(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// Position in the stream of the next unread byte.
    #[inline]
    pub(super) fn position(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Passes over `total` available bytes; of these, tells where those from `from` to `to` are.
    #[inline]
    pub(super) fn take(&mut self, total: usize, from: usize, to: usize) -> Range<usize> {
        let range = self.start + from..self.start + to;
        self.start = (self.start + total).min(self.end);
        range
    }

    /// Passes over `n` bytes, in bounded memory; false where the stream ends before.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub(super) fn skip(&mut self, mut n: u64) -> io::Result<bool> {
        loop {
            let here = n.min((self.end - self.start) as u64);
            self.start += here as usize;
            n -= here;
            if n == 0 {
                return Ok(true);
            }
            if !self.want(1)? {
                return Ok(false);
            }
        }
    }

    /// The error of the stream at its end, if there was one.
    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// The stream ended, and something was still expected: an orderly end, or damage?
    #[cold]
    pub(super) fn end(&self, expected: &str) -> Stop {
        if self.start == self.end && self.fault.is_none() {
            return Stop::End;
        }
        self.cut(self.position(), expected)
    }

    /// The stream ended inside what begins at `byte`.
    #[cold]
    pub(super) fn cut(&self, byte: u64, expected: &str) -> Stop {
        let what = match &self.fault {
            Some(fault) => fault.clone(),
            None => {
                let have = self.base + self.end as u64 - byte;
                format!("the file ends {have} bytes into {expected}")
            }
        };
        Stop::Damage(Damage { byte, what })
    }

    /// [`Window::want`], where more has to be read.
    #[cold]
    #[inline(never)]
    fn fill(&mut self, n: usize) -> io::Result<bool> {
        self.bytes.copy_within(self.start..self.end, 0);
        self.base += self.start as u64;
        self.end -= self.start;
        self.start = 0;
        while self.end < n {
            if self.ended {
                return Ok(false);
            }
            if self.end == self.bytes.len() {
                // Twice what has arrived, so that a promise alone allocates nothing.
                let grown = (2 * self.end).min(n.max(CHUNK));
                self.bytes.resize(grown, 0);
            }
            let until = self.bytes.len().min(self.end + CHUNK);
            let room = self.bytes.get_mut(self.end..until).unwrap_or_default();
            match self.source.read(room) {
                Ok(0) => self.ended = true,
                Ok(got) => self.end += got.min(room.len()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if DeviceError::is(&error) => return Err(error),
                Err(error) => {
                    self.ended = true;
                    self.fault = Some(error.to_string());
                }
            }
        }
        Ok(true)
    }
}

/// As a decompressor reads what is below it.
impl BufRead for Window {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if !self.want(1)?
            && let Some(fault) = &self.fault
        {
            return Err(io::Error::new(io::ErrorKind::InvalidData, fault.clone()));
        }
        Ok(self.unread())
    }

    fn consume(&mut self, n: usize) {
        self.start = self.start.saturating_add(n).min(self.end);
    }
}

impl Read for Window {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.fill_buf()?.read(into)?;
        self.consume(n);
        Ok(n)
    }
}
