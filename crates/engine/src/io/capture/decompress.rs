//! From the bytes of a device to those of a capture: gzip and Zstandard, as many layers as the content shows.

use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::GzDecoder;

use super::Compression;
use super::window::Window;

/// The compression that a stream begins with.
///
/// gzip: RFC 1952, section 2.3.1 (with deflate, the only method there is). Zstandard: RFC 8878, sections 3.1.1 and
/// 3.1.2 (a skippable frame may come first: parallel compressors write one).
pub(super) fn compression(begin: &[u8]) -> Compression {
    match begin {
        [0x1f, 0x8b, 8, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
        _ => Compression::None,
    }
}

/// What is inside a stream that `compression` told of.
///
/// # Errors
///
/// The decompressor could not be set up (memory).
pub(super) fn layer(below: Window, compression: Compression) -> io::Result<Window> {
    Ok(match compression {
        Compression::None => below,
        Compression::Gzip => Window::new(Box::new(Gunzip { member: Some(GzDecoder::new(below)) })),
        Compression::Zstd => Window::new(Box::new(Unzstd(zstd::Decoder::with_buffer(below)?))),
    })
}

/// An error of the device, not of what the bytes say: told apart by this wrapper.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct DeviceError(io::Error);

impl DeviceError {
    pub(super) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }

    /// The device's own error, if `error` wraps one.
    pub(super) fn unwrap(error: io::Error) -> io::Error {
        error.downcast::<Self>().map_or_else(|error| error, |device| device.0)
    }
}

/// The lowest layer: counts bytes and marks errors.
pub(super) struct Device<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R> Device<R> {
    pub(super) fn new(inner: R, read: Arc<AtomicU64>) -> Self {
        Self { inner, read }
    }
}

impl<R: Read> Read for Device<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.inner.read(into) {
                Ok(n) => {
                    self.read.fetch_add(n as u64, Ordering::Relaxed);
                    return Ok(n);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io::Error::new(error.kind(), DeviceError(error))),
            }
        }
    }
}

/// Words for what a decompressor says; errors of the device go through as they are.
fn fault(name: &str, error: io::Error) -> io::Error {
    if DeviceError::is(&error) {
        return error;
    }
    let words = match error.kind() {
        io::ErrorKind::UnexpectedEof => format!("the {name} stream ends early"),
        _ => format!("the {name} stream is corrupt ({error})"),
    };
    io::Error::new(io::ErrorKind::InvalidData, words)
}

/// gzip members one after another; zeros after the last one are padding.
struct Gunzip {
    /// None only while members change, and after the last.
    member: Option<GzDecoder<Window>>,
}

impl Gunzip {
    fn decode(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let n = member.read(into)?;
            if n > 0 {
                return Ok(n);
            }
            let Some(member) = self.member.take() else { break };
            let mut below = member.into_inner();
            self.member = match below.fill_buf()?.first() {
                None => None,
                Some(0) => {
                    skip_zeros(&mut below)?;
                    None
                }
                Some(_) => Some(GzDecoder::new(below)),
            };
        }
        Ok(0)
    }
}

impl Read for Gunzip {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        self.decode(into).map_err(|error| fault("gzip", error))
    }
}

/// Reads zeros up to the end.
fn skip_zeros(below: &mut Window) -> io::Result<()> {
    loop {
        let bytes = below.fill_buf()?;
        if bytes.is_empty() {
            return Ok(());
        }
        if bytes.iter().any(|&byte| byte != 0) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no gzip member after the last one"));
        }
        let n = bytes.len();
        below.consume(n);
    }
}

/// Zstandard frames one after another.
struct Unzstd(zstd::Decoder<'static, Window>);

impl Read for Unzstd {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(|error| fault("zstd", error))
    }
}
