//! The bytes that a framing looks at: a buffer that slides over a stream.
//!
//! It grows to hold one record and never beyond, and only as bytes really arrive: a header that promises 60
//! MB in a file of 200 bytes costs nothing.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::Damage;
use super::ahead::{Ahead, Block, ROOM};
use super::decompress::DeviceError;

/// Bytes asked of the stream at once, and the size that the buffer starts with.
const CHUNK: usize = 256 * 1024;
/// Bytes that are read behind a part of a file at least.
const MORE: usize = 4096;

/// The reason why no record came out.
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

/// Source of the bytes.
enum Source {
    Stream(Box<dyn Read + Send>),
    /// Another thread reads it.
    Ahead(Ahead),
    /// A part of a file: what is behind the bytes that are there is read as it is wanted, and nothing moves.
    Part(Arc<File>),
    /// It moves to another thread.
    Gone,
}

/// A sliding buffer over a stream.
pub(super) struct Window {
    source: Source,
    bytes: Vec<u8>,
    /// Unread bytes are `bytes[start..end]`.
    start: usize,
    end: usize,
    /// Position in the stream of `bytes[0]`; of a block with room in front, it may be less than 0, modulo
    /// 2^64.
    base: u64,
    /// The stream gives no more.
    ended: bool,
    /// The error of the stream at its end, in a decompressor's words.
    fault: Option<String>,
    /// The error of the device at the end of the stream, for whoever wants more than there is.
    device: Option<io::Error>,
}

impl Window {
    pub(super) fn new(source: Box<dyn Read + Send>) -> Self {
        Self {
            source: Source::Stream(source),
            bytes: vec![0; CHUNK],
            start: 0,
            end: 0,
            base: 0,
            ended: false,
            fault: None,
            device: None,
        }
    }

    /// An empty one for parts of files.
    pub(super) fn for_parts() -> Self {
        let (source, bytes) = (Source::Gone, Vec::new());
        Self { source, bytes, start: 0, end: 0, base: 0, ended: true, fault: None, device: None }
    }

    /// Reads `len` bytes of a file from `base` on, in place of what it has. More come behind them when they
    /// are wanted.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn read_part(&mut self, file: &Arc<File>, base: u64, len: usize) -> io::Result<()> {
        self.bytes.resize(len, 0);
        (self.start, self.end, self.base, self.ended) = (0, 0, base, false);
        (self.fault, self.device) = (None, None);
        self.end = read_at(file, &mut self.bytes, base)?;
        self.source = Source::Part(Arc::clone(file));
        Ok(())
    }

    /// Passes over what comes before a place of the file.
    pub(super) fn pass_to(&mut self, position: u64) {
        let by = position.wrapping_sub(self.position());
        self.start = usize::try_from(by).map_or(self.end, |by| (self.start + by).min(self.end));
    }

    /// Lets another thread read the rest of the stream, ahead of what is wanted.
    pub(super) fn read_ahead(&mut self) {
        let source = match std::mem::replace(&mut self.source, Source::Gone) {
            Source::Stream(source) => source,
            other => return self.source = other,
        };
        self.source = match Ahead::start(source) {
            Ok(ahead) => Source::Ahead(ahead),
            Err(source) => Source::Stream(source),
        };
    }

    /// CPU time of the thread that reads ahead, in ns.
    pub(super) fn ahead_cpu_ns(&self) -> u64 {
        if let Source::Ahead(ahead) = &self.source { ahead.cpu_ns() } else { 0 }
    }

    /// Makes `n` bytes available; false where the stream ends before.
    ///
    /// # Errors
    ///
    /// The device failed. Damage in a compressed stream is not an error, but the end.
    #[inline]
    pub(super) fn want(&mut self, n: usize) -> io::Result<bool> {
        if self.end - self.start >= n { Ok(true) } else { self.fill(n, n) }
    }

    /// Reads from the stream once, on the way to `n` bytes: what it has, or, where that is nothing, what
    /// comes.
    ///
    /// # Errors
    ///
    /// As [`Window::want`].
    pub(super) fn read_once(&mut self, n: usize) -> io::Result<()> {
        let more = self.end - self.start + 1;
        self.fill(more, n.max(more)).map(drop)
    }

    /// Returns true if the stream gives no more.
    pub(super) fn is_over(&self) -> bool {
        self.ended
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
        self.base.wrapping_add(self.start as u64)
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
                let have = self.base.wrapping_add(self.end as u64).wrapping_sub(byte);
                format!("the file ends {have} bytes into {expected}")
            }
        };
        Stop::Damage(Damage { byte, what })
    }

    /// [`Window::want`], where more has to be read; there is to be room for `all` in the end.
    #[cold]
    #[inline(never)]
    fn fill(&mut self, n: usize, all: usize) -> io::Result<bool> {
        if matches!(self.source, Source::Stream(_)) {
            self.slide();
        }
        while self.end - self.start < n {
            if self.ended {
                return self.device.take().map_or(Ok(false), Err);
            }
            let read = match &mut self.source {
                Source::Gone => Ok(0),
                Source::Part(file) => {
                    let missing = (n - (self.end - self.start)).clamp(MORE, CHUNK);
                    self.bytes.resize(self.end + missing, 0);
                    let at = self.base.wrapping_add(self.end as u64);
                    read_at(file, self.bytes.get_mut(self.end..).unwrap_or_default(), at)
                }
                Source::Ahead(ahead) => {
                    let block = ahead.next();
                    self.take_block(block);
                    continue;
                }
                Source::Stream(source) => {
                    if self.end == self.bytes.len() {
                        // Twice what has arrived, so that a promise alone allocates nothing.
                        let grown = (2 * self.end).min(all.max(CHUNK));
                        self.bytes.resize(grown, 0);
                    }
                    let until = self.bytes.len().min(self.end + CHUNK);
                    let room = self.bytes.get_mut(self.end..until).unwrap_or_default();
                    source.read(room).map(|got| got.min(room.len()))
                }
            };
            match read {
                Ok(0) => self.ended = true,
                Ok(got) => self.end += got,
                Err(error) => self.failed(error),
            }
        }
        Ok(true)
    }

    /// Unread bytes move to the beginning of the buffer.
    fn slide(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        self.base = self.position();
        self.end -= self.start;
        self.start = 0;
    }

    /// Takes the next block of a stream that another thread reads.
    fn take_block(&mut self, block: Option<Block>) {
        let Some(Block { mut bytes, end, last }) = block else {
            self.ended = true;
            return;
        };
        let left = self.end - self.start;
        let position = self.position();
        let front = bytes.get_mut(ROOM.saturating_sub(left)..ROOM).filter(|front| front.len() == left);
        if let (Some(front), Some(unread)) = (front, self.bytes.get(self.start..self.end)) {
            // The block becomes the buffer: only what is left of the one before is copied.
            front.copy_from_slice(unread);
            std::mem::swap(&mut self.bytes, &mut bytes);
            (self.start, self.end) = (ROOM - left, end);
            self.base = position.wrapping_sub(self.start as u64);
        } else {
            // A record that is larger than a block: it grows as its bytes come.
            self.slide();
            self.bytes.truncate(self.end);
            self.bytes.extend_from_slice(bytes.get(ROOM..end).unwrap_or_default());
            self.end = self.bytes.len();
        }
        if let Source::Ahead(ahead) = &self.source {
            ahead.give_back(bytes);
        }
        match last {
            None => {}
            Some(Ok(())) => self.ended = true,
            Some(Err(error)) => self.failed(error),
        }
    }

    /// The stream gave an error: a device's ends everything, a decompressor's is the end of what can be read.
    #[cold]
    fn failed(&mut self, error: io::Error) {
        if error.kind() == io::ErrorKind::Interrupted {
            return;
        }
        self.ended = true;
        if DeviceError::is(&error) {
            self.device = Some(error);
        } else {
            self.fault = Some(error.to_string());
        }
    }
}

/// Fills `bytes` from a place of a file on; returns how many there were.
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(DeviceError::wrap(error)),
        }
    }
    Ok(done)
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
