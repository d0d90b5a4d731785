//! From the bytes of a device to those of a capture: gzip and Zstandard, as many layers as the content shows.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Compression;
use super::gunzip::Gunzip;
use super::window::Window;

/// Bytes asked of the zstd decoder at once: what it decoded in a call that comes upon damage is lost, so that
/// it is better asked for little.
const ZSTD_PIECE: usize = 8 * 1024;

/// The words of libzstd for a frame whose window is longer than 128 MiB, the most that is given to it.
const TOO_LONG: &str = "Frame requires too much memory for decoding";
/// The same in words of ours; the stream is sound.
pub(super) const LONG_WINDOW: &str =
    "the zstd stream takes more than 128 MiB of memory; unpack it first, with `zstd -d --long=31`";

/// The words of libzstd for bytes that no frame begins with. The stream was known by its first frame, so that
/// they come behind a whole one.
const NO_FRAME: &str = "Unknown frame descriptor";

/// The compression that a stream begins with.
///
/// gzip: RFC 1952, section 2.3.1 (with deflate, the only method there is). Zstandard: RFC 8878, sections
/// 3.1.1 and 3.1.2 (a skippable frame may come first: parallel compressors write one).
pub(super) fn compression(begin: &[u8]) -> Compression {
    match begin {
        [0x1f, 0x8b, 8, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
        _ => Compression::None,
    }
}

/// The content of a stream that begins as `compression` does.
///
/// # Errors
///
/// The decompressor could not be set up (memory).
pub(super) fn layer(below: Window, compression: Compression) -> io::Result<Window> {
    Ok(match compression {
        Compression::None => below,
        Compression::Gzip => {
            Window::new(Box::new(Worded { decoder: Gunzip::new(below), name: "gzip", most: usize::MAX }))
        }
        Compression::Zstd => {
            let decoder = zstd::Decoder::with_buffer(below)?;
            Window::new(Box::new(Worded { decoder, name: "zstd", most: ZSTD_PIECE }))
        }
    })
}

/// An error of the device, not of what the bytes say: told apart by this wrapper.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct DeviceError(io::Error);

impl DeviceError {
    pub(super) fn wrap(error: io::Error) -> io::Error {
        io::Error::new(error.kind(), Self(error))
    }

    pub(super) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }

    /// The device's own error, if `error` wraps one.
    pub(super) fn unwrap(error: io::Error) -> io::Error {
        error.downcast::<Self>().map_or_else(|error| error, |device| device.0)
    }
}

/// The error for bytes behind a whole stream that are no part of it.
#[derive(Debug, thiserror::Error)]
#[error("something else follows the stream")]
pub(super) struct NotPartOf;

impl NotPartOf {
    pub(super) fn wrap() -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, Self)
    }

    fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>()) || error.to_string() == NO_FRAME
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
        _ if NotPartOf::is(&error) => {
            format!("the {name} stream is whole up to here, and what follows is not {name}")
        }
        _ if error.to_string() == TOO_LONG => LONG_WINDOW.to_owned(),
        _ => format!("the {name} stream is corrupt ({error})"),
    };
    io::Error::new(io::ErrorKind::InvalidData, words)
}

/// A decompressor whose errors are put into words.
struct Worded<D> {
    decoder: D,
    name: &'static str,
    /// The most that is asked of the decoder at once.
    most: usize,
}

impl<D: Read> Read for Worded<D> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = into.len().min(self.most);
        let into = into.get_mut(..len).unwrap_or_default();
        self.decoder.read(into).map_err(|error| fault(self.name, error))
    }
}
