//! gzip (RFC 1952): members one after another, zeros after the last one as padding.
//!
//! The frame around the deflate stream is read here and not by `flate2`, whose readers lose what a call had
//! already decoded when the same call comes upon damage; a capture is to be delivered up to its damage.

use std::io::{self, BufRead, Read};

use flate2::{Crc, Decompress, FlushDecompress, Status};

use super::decompress::NotPartOf;
use super::fields::Order;
use super::window::Window;

/// The bytes that a member begins with: identification, and deflate as the method.
const MAGIC: [u8; 3] = [0x1f, 0x8b, 8];

/// Part of a member that the next byte belongs to.
enum Place {
    /// Before a header, or at the end.
    Between,
    Body,
    Trailer,
    Over,
    /// Beyond damage, which was told of or is to be.
    Corrupt,
}

/// Unpacks gzip.
pub(super) struct Gunzip {
    below: Window,
    inflate: Decompress,
    crc: Crc,
    place: Place,
}

impl Gunzip {
    pub(super) fn new(below: Window) -> Self {
        Self { below, inflate: Decompress::new(false), crc: Crc::new(), place: Place::Between }
    }

    fn decode(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.place {
                Place::Between => self.between()?,
                Place::Body => {
                    let n = self.body(into)?;
                    if n > 0 {
                        return Ok(n);
                    }
                }
                Place::Trailer => self.trailer()?,
                Place::Over => return Ok(0),
                Place::Corrupt => return Err(corrupt("bad deflate data")),
            }
        }
    }

    /// The header of a member, or padding, or nothing.
    fn between(&mut self) -> io::Result<()> {
        self.place = match self.below.fill_buf()? {
            [] => Place::Over,
            [0, ..] => {
                self.padding()?;
                Place::Over
            }
            _ => {
                self.magic()?;
                self.header()?;
                self.inflate.reset(false);
                self.crc.reset();
                Place::Body
            }
        };
        Ok(())
    }

    /// The bytes that a member begins with, as many of them as there are: something else after a member is
    /// no member that ends early. The first member has them, since the stream was known by them.
    fn magic(&mut self) -> io::Result<()> {
        self.below.want(MAGIC.len())?;
        let differs = self.below.unread().iter().zip(MAGIC).any(|(&byte, magic)| byte != magic);
        if differs { Err(NotPartOf::wrap()) } else { Ok(()) }
    }

    /// Section 2.3 of the RFC: magic, method, flags; the fields that the flags tell of.
    fn header(&mut self) -> io::Result<()> {
        self.want(10)?;
        let flags = self.below.unread().get(3).copied().unwrap_or_default();
        self.skip(10)?;
        if flags & 4 != 0 {
            self.want(2)?;
            let extra = Order::Little.u16(self.below.unread(), 0);
            self.skip(2 + u64::from(extra))?;
        }
        if flags & 8 != 0 {
            self.text()?;
        }
        if flags & 16 != 0 {
            self.text()?;
        }
        if flags & 2 != 0 { self.skip(2) } else { Ok(()) }
    }

    /// File name or comment: text that ends with a zero.
    fn text(&mut self) -> io::Result<()> {
        loop {
            self.want(1)?;
            let text = self.below.unread();
            let zero = text.iter().position(|&byte| byte == 0);
            let n = zero.map_or(text.len(), |zero| zero + 1);
            self.below.consume(n);
            if zero.is_some() {
                return Ok(());
            }
        }
    }

    /// A piece of the deflate stream. What was decoded before damage comes out; the damage at the next call.
    fn body(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
        let input = self.below.fill_buf()?;
        let at_end = input.is_empty();
        let result = self.inflate.decompress(input, into, FlushDecompress::None);
        let consumed = (self.inflate.total_in() - before_in) as usize;
        let produced = (self.inflate.total_out() - before_out) as usize;
        self.below.consume(consumed);
        self.crc.update(into.get(..produced).unwrap_or_default());
        match result {
            Ok(Status::StreamEnd) => self.place = Place::Trailer,
            Ok(_) if produced > 0 => {}
            Ok(_) if at_end => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) if consumed > 0 => {}
            Ok(_) | Err(_) => self.place = Place::Corrupt,
        }
        Ok(produced)
    }

    /// Checksum and length of what came out.
    fn trailer(&mut self) -> io::Result<()> {
        self.want(8)?;
        let (crc, len) =
            (Order::Little.u32(self.below.unread(), 0), Order::Little.u32(self.below.unread(), 4));
        self.below.consume(8);
        if crc != self.crc.sum() || len != self.crc.amount() {
            return Err(corrupt("the checksum does not match"));
        }
        self.place = Place::Between;
        Ok(())
    }

    /// Zeros up to the end.
    fn padding(&mut self) -> io::Result<()> {
        loop {
            let bytes = self.below.fill_buf()?;
            if bytes.is_empty() {
                return Ok(());
            }
            if bytes.iter().any(|&byte| byte != 0) {
                return Err(NotPartOf::wrap());
            }
            let n = bytes.len();
            self.below.consume(n);
        }
    }

    /// Makes `n` bytes available.
    fn want(&mut self, n: usize) -> io::Result<()> {
        if self.below.want(n)? { Ok(()) } else { Err(self.early()) }
    }

    fn skip(&mut self, n: u64) -> io::Result<()> {
        if self.below.skip(n)? { Ok(()) } else { Err(self.early()) }
    }

    /// The stream below ended too soon: by its own fault or not.
    fn early(&self) -> io::Error {
        match self.below.fault() {
            Some(fault) => corrupt(fault),
            None => io::ErrorKind::UnexpectedEof.into(),
        }
    }
}

impl Read for Gunzip {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() { Ok(0) } else { self.decode(into) }
    }
}

fn corrupt(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
