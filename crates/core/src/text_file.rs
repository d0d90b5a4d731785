//! Files of rules, routes and configurations, as editors of all systems write them; `-` is stdin.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::stop::Stream;

/// The longest file that is read as one of rules or routes, in bytes.
pub const MAX_BYTES: u64 = 1 << 28;

/// The text of a file, without the byte order mark that it may begin with.
///
/// # Errors
/// The error of reading it; [`ErrorKind::InvalidData`] where it isn't UTF-8; [`ErrorKind::FileTooLarge`]
/// where it has more than [`MAX_BYTES`], as a device without an end has.
pub fn read(path: impl AsRef<Path>) -> Result<String> {
    let text = read_at_most(path.as_ref(), MAX_BYTES + 1)?;
    if text.len() as u64 > MAX_BYTES {
        let most = MAX_BYTES >> 20;
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it has more than {most} MiB")));
    }
    Ok(text)
}

/// As [`read`], but no more than the first `most` bytes of it, and those that the last character among them
/// has beyond.
///
/// # Errors
/// The error of reading it; [`ErrorKind::InvalidData`] where these bytes aren't UTF-8.
pub fn read_at_most(path: &Path, most: u64) -> Result<String> {
    // A character has up to three bytes behind its first. One that was cut in two would be an error of its
    // own, and hide that the text is too long.
    let mut bytes = bytes(path, most.saturating_add(3))?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if let Some(behind) = bytes.get(most..) {
        let rest = behind.iter().take_while(|byte| (0x80..0xc0).contains(*byte)).count();
        bytes.truncate(most + rest);
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let byte = error.utf8_error().valid_up_to();
        Error::new(ErrorKind::InvalidData, format!("byte {byte}, counted from 0, is not UTF-8"))
    })?;
    if text.starts_with('\u{feff}') {
        text.remove(0);
    }
    Ok(text)
}

/// No more than the first `most` bytes of a file, or of stdin, if it is `-`. Stdin is read once, and then the
/// same whenever it is asked for, as a file is.
///
/// # Errors
/// The error of reading it.
pub fn bytes(path: &Path, most: u64) -> Result<Vec<u8>> {
    if path.as_os_str() == "-" {
        return stdin(most);
    }
    let mut bytes = Vec::new();
    open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// All bytes of a file, or of stdin, if it is `-`, that begins with `mark`; of any other only as many as the
/// mark has: it may be as long as it likes.
///
/// # Errors
/// The error of reading it.
pub fn marked(path: &Path, mark: &[u8]) -> Result<Vec<u8>> {
    if path.as_os_str() == "-" {
        let begin = stdin(mark.len() as u64)?;
        return if begin == mark { stdin(u64::MAX) } else { Ok(begin) };
    }
    let (mut file, mut bytes) = (open(path)?, Vec::new());
    file.by_ref().take(mark.len() as u64).read_to_end(&mut bytes)?;
    if bytes == mark {
        file.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

fn open(path: &Path) -> Result<Box<dyn Read>> {
    let about = std::fs::metadata(path)?;
    Ok(if about.is_file() || about.is_dir() {
        Box::new(File::open(path)?)
    } else {
        Box::new(Stream::open(path)?)
    })
}

/// The first `most` bytes of stdin. What was read of it is kept.
fn stdin(most: u64) -> Result<Vec<u8>> {
    static STDIN: Mutex<(Vec<u8>, bool)> = Mutex::new((Vec::new(), false));
    let mut kept = STDIN.lock().unwrap_or_else(PoisonError::into_inner);
    let (bytes, ended) = &mut *kept;
    let lacking = most.saturating_sub(bytes.len() as u64);
    if lacking > 0 && !*ended {
        *ended = (Stream::stdin()?.take(lacking).read_to_end(bytes)? as u64) < lacking;
    }
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    Ok(bytes.get(..most).unwrap_or(bytes).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_no_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules");
        for (bytes, text) in [("\u{feff}allow any", "allow any"), ("any\u{feff}", "any\u{feff}"), ("", "")] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_text_is_not_cut_within_a_character() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules");
        std::fs::write(&path, "aé€😀").unwrap();
        for (most, text) in
            [(0, ""), (1, "a"), (2, "aé"), (3, "aé"), (4, "aé€"), (6, "aé€"), (7, "aé€😀"), (99, "aé€😀")]
        {
            assert_eq!(read_at_most(&path, most).unwrap(), text, "{most}");
        }
        std::fs::write(&path, b"a\x80\x80\x80\x80").unwrap();
        assert_eq!(read_at_most(&path, 1).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn what_has_no_end_is_an_error() {
        assert_eq!(read("/dev/zero").unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(marked("/dev/zero".as_ref(), b"MARK").unwrap(), [0; 4]);
    }

    #[test]
    fn what_has_its_mark_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        for (bytes, found) in
            [("MARK and more", "MARK and more"), ("MARL and more", "MARL"), ("MA", "MA"), ("", "")]
        {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(marked(&path, b"MARK").unwrap(), found.as_bytes());
        }
    }
}
