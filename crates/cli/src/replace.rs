//! Files that appear complete or not at all.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use slipstream::io::capture::Format;
use slipstream::new_file::{Output, Room, advice_on_write, is_stdout, place, target};

use crate::ui;

/// Refuses an output that would replace another one, or what is in use otherwise, such as an input. Outputs
/// are options with their paths; devices and pipes may stand in several places.
pub(crate) fn refuse_shared<'a>(
    outputs: impl IntoIterator<Item = (&'a str, Option<&'a Path>)>,
    in_use: impl IntoIterator<Item = &'a Path>,
) -> anyhow::Result<()> {
    // An input of this name is stdin.
    let in_use = in_use.into_iter().filter(|used| used.as_os_str() != "-");
    let in_use: Vec<_> = in_use.map(|used| (place(used), used)).collect();
    let mut taken: Vec<(PathBuf, &str, &Path)> = Vec::new();
    for (option, path) in outputs {
        let Some((path, place)) = path.and_then(|path| Some((path, place(path)?))) else { continue };
        if let Some((_, used)) = in_use.iter().find(|(known, _)| known.as_ref() == Some(&place)) {
            return Err(would_replace(option, path, used));
        }
        if let Some((_, other, same)) = taken.iter().find(|(known, ..)| *known == place) {
            bail!(
                "{other} {} and {option} {}: one would replace the other; give each a name of its own",
                same.display(),
                path.display()
            );
        }
        taken.push((place, option, path));
    }
    Ok(())
}

/// The error of an output that can't be `path`, which would replace what is `used`.
pub(crate) fn would_replace(option: &str, path: &Path, used: &Path) -> anyhow::Error {
    let (path, used) = (path.display(), used.display());
    anyhow!("{option} {path} would replace {used}, which is in use; name another file")
}

/// Returns true if the file is a capture: its name may stand where that of a new file was forgotten, as in
/// `--report a.pcap b.pcap`.
fn is_capture(path: &Path) -> bool {
    let mut begin = [0; 4];
    let is_file = std::fs::metadata(path).is_ok_and(|there| there.is_file());
    is_file
        && File::open(path).and_then(|mut file| file.read_exact(&mut begin)).is_ok()
        && Format::of(&begin).is_some()
}

/// A file that is being written. It takes its name with [`Replacement::commit`], in place of any older file
/// of that name; nothing is left of it if it comes to nothing, or a signal ends the program.
#[derive(Debug)]
pub(crate) struct Replacement {
    /// The option, and the file as it was named.
    said: String,
    to: Output,
}

impl Replacement {
    /// Begins a file that will be `path`; `option` is named in errors. A link's target is what is replaced.
    /// Where the file is stdout, results are printed to stderr.
    pub(crate) fn create(option: &str, path: &Path) -> anyhow::Result<Self> {
        let failed = || format!("{option} {}: can't be written", path.display());
        if path.as_os_str() == "-" {
            bail!("{option} -: stdout is taken by the result; name a file");
        }
        let target = target(path);
        let folder = target.parent().filter(|f| !f.as_os_str().is_empty() && !f.exists());
        if let Some(folder) = folder {
            bail!("{option} {}: there is no folder {}; make it first", path.display(), folder.display());
        }
        if path.is_dir() {
            bail!("{option} {}: is a directory; name a file", path.display());
        }
        if is_capture(path) {
            bail!(
                "{option} {}: is a capture, and what is written here is none; name another file, or take that away first",
                path.display()
            );
        }
        let to = Output::create(path).with_context(failed)?;
        if is_stdout(path) {
            ui::leave_stdout();
        }
        Ok(Self { to, said: format!("{option} {}", path.display()) })
    }

    /// The option, and the file as it was named.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    /// Room for the file on its disk; none for a device or a pipe.
    pub(crate) fn room(&self) -> Option<Room> {
        match &self.to {
            Output::New(file) => file.room().ok(),
            Output::Straight(_) => None,
        }
    }

    /// Leaves no more than these bytes in the file, and no room that was kept for more.
    pub(crate) fn shorten(&self, bytes: u64) -> io::Result<()> {
        match &self.to {
            Output::New(file) => file.file().set_len(bytes).map_err(|error| self.failed(error)),
            Output::Straight(_) => Ok(()),
        }
    }

    /// Gives the file its name.
    pub(crate) fn commit(mut self) -> anyhow::Result<()> {
        self.to.flush().map_err(|error| self.failed(error))?;
        let Self { said, to } = self;
        to.persist().with_context(|| format!("{said}: can't be written"))
    }

    /// Writes all that is to be in the file, and gives it its name.
    pub(crate) fn commit_with(mut self, data: &[u8]) -> anyhow::Result<()> {
        self.write_all(data)?;
        self.commit()
    }

    /// Gives all these files their names, once all of them are written.
    pub(crate) fn commit_all(mut files: Vec<Self>) -> anyhow::Result<()> {
        files.iter_mut().try_for_each(Write::flush)?;
        files.into_iter().try_for_each(Self::commit)
    }

    /// The error with the name of the file, and what to do.
    fn failed(&self, error: io::Error) -> io::Error {
        let text = format!("{}: can't be written: {error}{}", self.said, advice_on_write(&error));
        io::Error::new(error.kind(), text)
    }
}

impl Write for Replacement {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.to.write(data).map_err(|error| self.failed(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush().map_err(|error| self.failed(error))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "old").unwrap();
        let mut dropped = Replacement::create("--x", &path).unwrap();
        dropped.write_all(b"half").unwrap();
        drop(dropped);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        let mut file = Replacement::create("--x", &path).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn outputs_have_files_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let [input, link, new] = ["input", "link", "new"].map(|n| folder.path().join(n));
        fs::write(&input, "").unwrap();
        std::os::unix::fs::symlink(&input, &link).unwrap();
        let (again, null) = (folder.path().join("./new"), Path::new("/dev/null"));
        let refused = |outputs: [(&'static str, Option<&Path>); 2], inputs: [&Path; 2]| {
            refuse_shared(outputs, inputs).err().map(|error| error.to_string())
        };
        let words = Path::new("-");
        let told = refused([("--x", Some(&link)), ("--y", None)], [words, &input]).unwrap();
        assert!(told.starts_with("--x ") && told.contains("link would replace ") && told.contains("input,"));
        let told = refused([("--x", Some(&new)), ("--y", Some(&again))], [words, &input]).unwrap();
        assert!(told.contains("--x ") && told.contains("new and --y ") && told.contains("./new: one"));
        assert_eq!(refused([("--x", Some(&new)), ("--y", Some(&link))], [words, words]), None);
        assert_eq!(refused([("--x", Some(null)), ("--y", Some(null))], [null, null]), None);
    }

    #[test]
    fn devices_are_written_to_not_replaced() {
        let mut file = Replacement::create("--x", Path::new("/dev/null")).unwrap();
        file.write_all(b"gone").unwrap();
        file.commit().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let mut file = Replacement::create("--x", &link).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"new");
    }

    #[test]
    fn what_can_not_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for (path, why) in [
            (folder.path().join("no/such/f"), "there is no folder"),
            (folder.path().to_path_buf(), "directory"),
            (PathBuf::from("-"), "stdout"),
        ] {
            let error = format!("{:#}", Replacement::create("--report", &path).unwrap_err());
            assert!(error.starts_with("--report ") && error.contains(why), "{error}");
        }
    }
}
