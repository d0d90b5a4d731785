//! Destinations of a capture: a file that appears whole or not at all, a device, a pipe.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{CaptureError, Compression};
use slipstream_core::new_file::{NewFile, open_straight, target};

/// Ends of names of files in compressions that captures are not written in.
const OTHER_COMPRESSIONS: [&str; 10] = ["7z", "br", "bz2", "lz", "lz4", "lzma", "sz", "xz", "z", "zip"];

/// The destination of bytes.
pub(super) enum Target {
    /// A file that takes its name when it is complete.
    New(NewFile),
    /// An existing file that is not a regular one: a device, a pipe.
    Direct(File),
    /// The caller's own.
    Other(Box<dyn Write + Send>),
}

impl Target {
    /// Opens `path` for writing.
    pub(super) fn create(path: &Path) -> Result<Self, CaptureError> {
        let failed = |error| CaptureError::create(path, error);
        // The file itself where `path` is a link to it: the link stays.
        let (path, existing) = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                return Err(CaptureError::IsDirectory { file: path.display().to_string() });
            }
            Ok(metadata) if !metadata.is_file() => {
                return open_straight(path).map(Self::Direct).map_err(failed);
            }
            Ok(metadata) => (fs::canonicalize(path).map_err(failed)?, Some(metadata.permissions())),
            Err(_) => (target(path), None),
        };
        // A plain capture of such a name would be taken for something else.
        let end = path.extension().map(|end| end.to_string_lossy().to_lowercase()).unwrap_or_default();
        if OTHER_COMPRESSIONS.contains(&end.as_str()) {
            return Err(CaptureError::OtherCompression {
                file: path.display().to_string(),
                compression: end,
            });
        }
        let file = NewFile::create(&path).map_err(failed)?;
        if let Some(permissions) = existing {
            file.file().set_permissions(permissions).map_err(failed)?;
        }
        Ok(Self::New(file))
    }

    /// Puts the file in its place before it is complete.
    fn publish(self) -> io::Result<Self> {
        match self {
            Self::New(file) => file.publish().map(Self::Direct),
            Self::Direct(file) => is_there(&file).map(|()| Self::Direct(file)),
            other => Ok(other),
        }
    }

    /// Puts the complete file in its place.
    pub(super) fn complete(mut self) -> io::Result<()> {
        self.flush()?;
        match self {
            Self::New(file) => file.persist(),
            Self::Direct(file) => is_there(&file),
            Self::Other(_) => Ok(()),
        }
    }

    /// Cuts a regular file back to its first `len` bytes. One that has no place yet is put there if it is
    /// `worth` that.
    pub(super) fn keep(self, len: u64, worth: bool) -> io::Result<()> {
        match self {
            Self::New(_) if !worth => Ok(()),
            Self::New(file) => file.file().set_len(len).and_then(|()| file.persist()),
            Self::Direct(file) if file.metadata()?.is_file() => file.set_len(len),
            Self::Direct(_) | Self::Other(_) => Ok(()),
        }
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::New(file) => file.write(bytes),
            Self::Direct(file) => file.write(bytes).map_err(reader_left),
            Self::Other(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::New(file) => file.flush(),
            Self::Direct(file) => file.flush(),
            Self::Other(out) => out.flush(),
        }
    }
}

/// A file that was put in its place may be moved, and is written on. One that has no name any more goes away
/// with this process, and all that is in it.
fn is_there(file: &File) -> io::Result<()> {
    let about = file.metadata()?;
    if about.is_file() && about.nlink() == 0 {
        return Err(io::Error::other(
            "it was removed or replaced while it was written; its packets are lost",
        ));
    }
    Ok(())
}

/// Whoever reads a pipe that was named has asked for all of it, unlike the next command of a pipeline (`… |
/// head`), which takes what it wants: that it went away is an error.
fn reader_left(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => {
            io::Error::other("whoever read it has gone away; packets are missing there")
        }
        _ => error,
    }
}

/// Counts what reaches the target.
pub(super) struct Counted {
    target: Target,
    written: u64,
}

impl Counted {
    /// The target; what a compressor still has goes nowhere.
    fn take(&mut self) -> Target {
        std::mem::replace(&mut self.target, Target::Other(Box::new(io::sink())))
    }

    /// Lets what was written until now be read under the file's name.
    fn publish(&mut self) -> io::Result<()> {
        self.target.flush()?;
        self.target = self.take().publish()?;
        Ok(())
    }
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.target.write(bytes)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.target.flush()
    }
}

/// A target behind a compressor.
pub(super) enum Sink {
    Plain(Counted),
    Gzip(flate2::write::GzEncoder<Counted>),
    Zstd(zstd::Encoder<'static, Counted>),
}

/// gzip level: close to the size of the usual 6, at twice its speed.
const GZIP_LEVEL: u32 = 3;
/// Zstandard level: its default.
const ZSTD_LEVEL: i32 = 3;

impl Sink {
    pub(super) fn new(target: Target, compression: Compression) -> io::Result<Self> {
        let counted = Counted { target, written: 0 };
        Ok(match compression {
            Compression::None => Self::Plain(counted),
            Compression::Gzip => {
                Self::Gzip(flate2::write::GzEncoder::new(counted, flate2::Compression::new(GZIP_LEVEL)))
            }
            Compression::Zstd => {
                let mut encoder = zstd::Encoder::new(counted, ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                Self::Zstd(encoder)
            }
        })
    }

    pub(super) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.write_all(bytes),
            Self::Gzip(out) => out.write_all(bytes),
            Self::Zstd(out) => out.write_all(bytes),
        }
    }

    /// Returns true if bytes go to the target as they are.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Bytes that have reached the target.
    pub(super) fn written(&self) -> u64 {
        match self {
            Self::Plain(out) => out.written,
            Self::Gzip(out) => out.get_ref().written,
            Self::Zstd(out) => out.get_ref().written,
        }
    }

    /// Has everything reach the target, so that it can be read from there.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Gzip(out) => out.flush(),
            Self::Zstd(out) => out.flush(),
        }
    }

    /// Lets what has reached the target be read under the file's name, however the program ends. Where that
    /// fails, the file is gone.
    pub(super) fn publish(&mut self) -> io::Result<()> {
        self.counted().publish()
    }

    /// Ends the compressed stream, and has it reach the target.
    pub(super) fn end(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => {}
            Self::Gzip(out) => out.try_finish()?,
            Self::Zstd(out) => out.do_finish()?,
        }
        self.counted().flush()
    }

    /// The target itself.
    pub(super) fn into_target(mut self) -> Target {
        self.counted().take()
    }

    fn counted(&mut self) -> &mut Counted {
        match self {
            Self::Plain(out) => out,
            Self::Gzip(out) => out.get_mut(),
            Self::Zstd(out) => out.get_mut(),
        }
    }
}
