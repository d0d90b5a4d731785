//! Files in the making: they have no name until they are complete, so that nothing is left of them however
//! the program ends.
//!
//! On file systems that can't do that (open(2), `O_TMPFILE`), they are hidden files beside the one that they
//! will be, which go away when they are dropped.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl, linkat};
use tempfile::{NamedTempFile, TempPath};

use crate::stop::Stopped;

/// Links that are followed from one to the next: as many as the system follows.
const LINKS: usize = 40;
/// Names that are tried for a file that is about to take the place of another.
const NAMES: u32 = 100;
/// Begin of the names that files have meanwhile. They don't have that of the file, which may be as long as a
/// name can be.
const MEANWHILE: &str = ".slipstream.";

/// A file in the making, which is written like any other.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    path: PathBuf,
    /// Its name meanwhile, where it has to have one.
    hidden: Option<TempPath>,
}

impl NewFile {
    /// Begins the file `path`, with the mode that any new file gets there.
    ///
    /// # Errors
    /// The system's error: there is no such directory, or no right to write there.
    pub fn create(path: &Path) -> io::Result<Self> {
        let folder = folder(path);
        let path = path.to_path_buf();
        // Without a name, a file could be written that can't have its name in the end.
        if let Err(error) = fs::symlink_metadata(&path)
            && error.kind() == io::ErrorKind::InvalidFilename
        {
            return Err(error);
        }
        let unnamed =
            OpenOptions::new().read(true).write(true).mode(0o666).custom_flags(libc::O_TMPFILE).open(folder);
        let failed = match unnamed {
            Ok(file) if open_path(&file).exists() => return Ok(Self { file, path, hidden: None }),
            other => other.err(),
        };
        // The system's word about the folder is told, not that about a hidden file of which nobody knows.
        let said = |error: io::Error| match failed {
            Some(first) if first.kind() == error.kind() => first,
            // In /proc there is no way to make a file, and what it says is that there is none.
            _ if error.kind() == io::ErrorKind::NotFound && folder.is_dir() => {
                io::Error::new(io::ErrorKind::Unsupported, "no new files are possible in this directory")
            }
            _ => error.kind().into(),
        };
        let (file, hidden) = hidden(&path).map_err(said)?.into_parts();
        Ok(Self { file, path, hidden: Some(hidden) })
    }

    /// The file itself, to set its mode.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Room for it on its disk, to be kept while its content is still in the making elsewhere.
    ///
    /// # Errors
    /// The system's: no descriptor is left.
    pub fn room(&self) -> io::Result<Room> {
        self.file.try_clone().map(Room)
    }

    /// Gives it its name, in place of any older file of that name.
    ///
    /// # Errors
    /// The system's error; the older file stays then.
    pub fn persist(self) -> io::Result<()> {
        self.publish().map(drop)
    }

    /// Gives it its name before it is complete, in place of any older file of that name, and goes on as an
    /// ordinary file.
    ///
    /// # Errors
    /// The system's error; the older file stays then.
    pub fn publish(self) -> io::Result<File> {
        let Self { file, path, hidden } = self;
        if let Some(hidden) = hidden {
            return hidden.persist(path).map(|()| file).map_err(|failed| failed.error);
        }
        // A file without a name can't replace one: it takes one beside it for a moment.
        let process = std::process::id();
        for n in 0..NAMES {
            let beside = folder(&path).join(format!("{MEANWHILE}{process}.{n}"));
            match linkat(CWD, open_path(&file), CWD, &beside, AtFlags::SYMLINK_FOLLOW) {
                Ok(()) => {
                    let renamed = fs::rename(&beside, &path).inspect_err(|_| {
                        // It is the renaming that failed, and that is said.
                        let _ = fs::remove_file(&beside);
                    });
                    return renamed.map(|()| file);
                }
                Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

/// Room on its disk for a file in the making.
#[derive(Debug)]
pub struct Room(File);

impl Room {
    /// Keeps room for the first so many bytes of the file, whose length stays. What is not used goes with the
    /// file, or when its length is set.
    ///
    /// # Errors
    /// The system's: there is no room, or the file system keeps none for anybody.
    pub fn keep(&self, bytes: u64) -> io::Result<()> {
        fallocate(&self.0, FallocateFlags::KEEP_SIZE, 0, bytes).map_err(io::Error::from)
    }
}

/// The destination that a name stands for: a new file, or what is there already and is no regular file.
#[derive(Debug)]
pub enum Output {
    /// A file that takes the place of an older one, where a link leads to as well.
    New(NewFile),
    /// A device, a pipe or stdout, which is written to and not replaced.
    Straight(File),
}

impl Output {
    /// Begins to write what will be `path`.
    ///
    /// # Errors
    /// As [`NewFile::create`] and [`open_straight`]; a folder can't be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        if is_stdout(path) {
            return Ok(Self::Straight(io::stdout().as_fd().try_clone_to_owned()?.into()));
        }
        match fs::metadata(path) {
            Ok(there) if there.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            Ok(there) if !there.is_file() => open_straight(path).map(Self::Straight),
            Ok(_) => NewFile::create(&fs::canonicalize(path)?).map(Self::New),
            Err(_) => NewFile::create(&target(path)).map(Self::New),
        }
    }

    /// Gives a new file its name.
    ///
    /// # Errors
    /// As [`NewFile::persist`].
    pub fn persist(self) -> io::Result<()> {
        match self {
            Self::New(file) => file.persist(),
            Self::Straight(_) => Ok(()),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::New(file) => file.write(bytes),
            Self::Straight(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::New(file) => file.flush(),
            Self::Straight(file) => file.flush(),
        }
    }
}

/// The advice about an error of writing, to be put behind its text; nothing where that says all.
#[must_use]
pub fn advice_on_write(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::FileTooLarge => "; raise the limit of files' lengths (ulimit -f) or write elsewhere",
        _ if is_full(error) => "; free some space or write elsewhere",
        _ => "",
    }
}

/// Returns true if there is no room on a disk, or none for this user or in a file of this length.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Opens a device or a pipe to write to it. A pipe that has a name is waited for until somebody reads it, or
/// [`stops_streams`](crate::stop::stops_streams) ends the waiting.
///
/// # Errors
/// The system's; [`Stopped`].
pub fn open_straight(path: &Path) -> io::Result<File> {
    const PAUSE: Duration = Duration::from_millis(20);
    loop {
        let opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path);
        match opened {
            // Nobody reads it yet.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) && is_pipe(path) => {
                Stopped::check().map_err(io::Error::other)?;
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error),
            Ok(file) => {
                let flags = fcntl_getfl(&file)?;
                fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
                return Ok(file);
            }
        }
    }
}

fn is_pipe(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| there.file_type().is_fifo())
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The file or folder that is written under this name, by which two names of one are told: links are
/// followed, and what is not there yet has its place in its folder. Stdout has one, too, whatever it is. None
/// for other devices and pipes, which several may write to.
#[must_use]
pub fn place(path: &Path) -> Option<PathBuf> {
    if is_stdout(path) {
        return Some(STDOUT.into());
    }
    match fs::metadata(path) {
        Ok(there) if there.is_file() || there.is_dir() => fs::canonicalize(path).ok(),
        Ok(_) => None,
        Err(_) => named(&target(path)),
    }
}

/// The name of stdout for users, and its place.
const STDOUT: &str = "-";
/// The open files of this process, by number.
const OPEN_FILES: &str = "/proc/self/fd";

/// Returns true if what is written under this name goes to stdout: `-`, `/dev/stdout`, `/dev/fd/1`, and links
/// to them.
#[must_use]
pub fn is_stdout(path: &Path) -> bool {
    if path.as_os_str() == STDOUT {
        return true;
    }
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let open_file = || Some(fs::canonicalize(folder(&path)).ok()? == fs::canonicalize(OPEN_FILES).ok()?);
        if path.file_name().is_some_and(|name| name == "1") && open_file() == Some(true) {
            return true;
        }
        let Ok(to) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(to);
    }
    false
}

/// The name itself in its folder, whether a file is there, or a link, or nothing.
#[must_use]
pub fn named(path: &Path) -> Option<PathBuf> {
    Some(fs::canonicalize(folder(path)).ok()?.join(path.file_name()?))
}

/// The file that a name stands for: links are followed, also to where no file is yet.
#[must_use]
pub fn target(path: &Path) -> PathBuf {
    let mut target = path.to_owned();
    for _ in 0..LINKS {
        let Ok(to) = fs::read_link(&target) else { break };
        target = target.parent().unwrap_or(Path::new("")).join(to);
    }
    target
}

/// The path by which the system names an open file.
fn open_path(file: &File) -> PathBuf {
    Path::new(OPEN_FILES).join(file.as_raw_fd().to_string())
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn hidden(path: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(MEANWHILE).permissions(fs::Permissions::from_mode(0o666));
    builder.tempfile_in(folder(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_has_no_name_before_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        if file.hidden.is_none() {
            // Whatever ends the program now leaves nothing.
            assert_eq!(names(folder.path()), [""; 0]);
        }
        drop(file);
        assert_eq!(names(folder.path()), [""; 0]);
        fs::write(&path, "old").unwrap();
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        file.persist().unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(folder.path())), (b"new".to_vec(), vec!["f".to_owned()]));
    }

    #[test]
    fn a_directory_without_new_files_is_told_of_as_such() {
        let error = NewFile::create(Path::new("/proc/self/new")).unwrap_err();
        assert!(error.to_string().contains("no new files are possible"), "{error}");
        let error = NewFile::create(Path::new("/proc/self/no folder/new")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    /// Both ways give a new file the same mode.
    #[test]
    fn a_file_with_a_name_meanwhile_does_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|n| folder.path().join(n));
        let (file, path) = hidden(&a).unwrap().into_parts();
        NewFile { file, path: a.clone(), hidden: Some(path) }.persist().unwrap();
        NewFile::create(&b).unwrap().persist().unwrap();
        let [a, b] = [a, b].map(|path| fs::metadata(path).unwrap().permissions().mode());
        assert_eq!(a, b);
        assert_eq!(names(folder.path()).len(), 2);
    }

    #[test]
    fn a_name_may_be_as_long_as_the_system_allows() {
        let folder = tempfile::tempdir().unwrap();
        for len in [240, 255] {
            let path = folder.path().join("n".repeat(len));
            // A new one, and one in place of another.
            for _ in 0..2 {
                NewFile::create(&path).unwrap().persist().unwrap();
            }
            let (file, meanwhile) = hidden(&path).unwrap().into_parts();
            NewFile { file, path, hidden: Some(meanwhile) }.persist().unwrap();
        }
        assert_eq!(names(folder.path()).len(), 2);
        // A file that can't have its name is not begun.
        let error = NewFile::create(&folder.path().join("n".repeat(256))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidFilename);
    }

    #[test]
    fn names_of_one_file_have_one_place() {
        let folder = tempfile::tempdir().unwrap();
        let [a, link] = ["a", "link"].map(|n| folder.path().join(n));
        let again = folder.path().join("./a");
        assert_eq!(place(&a), place(&again), "before it is there");
        assert!(place(&a).is_some() && place(&a) != place(&link));
        fs::write(&a, "").unwrap();
        std::os::unix::fs::symlink("a", &link).unwrap();
        assert!([&again, &link].iter().all(|name| place(name) == place(&a)));
        fs::remove_file(&a).unwrap();
        assert_eq!((place(&link), target(&link)), (place(&a), a), "a link to what is not there yet");
        assert_eq!(place(Path::new("/dev/null")), None);
        assert_eq!(place(&folder.path().join("no/such/f")), None);
    }

    #[test]
    fn stdout_is_one_place_by_all_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link.pcap");
        std::os::unix::fs::symlink("/dev/stdout", &link).unwrap();
        for name in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/./fd/../fd/1"] {
            assert!(is_stdout(Path::new(name)), "{name}");
        }
        assert!(is_stdout(&link) && place(&link) == place(Path::new("-")) && place(&link).is_some());
        for name in ["./-", "1", "/dev/stderr", "/dev/fd/2", "/dev/null", "/proc/self/fd", "stdout", ""] {
            assert!(!is_stdout(Path::new(name)), "{name}");
        }
        assert_ne!(place(Path::new("./-")), place(Path::new("-")));
    }

    /// Devices and pipes are written to, whoever reads them, and the file that a link leads to is replaced,
    /// not the link.
    #[test]
    fn devices_pipes_and_links_stay() {
        let folder = tempfile::tempdir().unwrap();
        let [pipe, link, file] = ["pipe", "link", "file"].map(|n| folder.path().join(n));
        let write = |path: &Path| {
            let mut output = Output::create(path).unwrap();
            output.write_all(b"data").unwrap();
            output.persist().unwrap();
        };
        write(Path::new("/dev/null"));
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        write(&pipe);
        assert_eq!(reader.join().unwrap(), b"data");
        assert!(is_pipe(&pipe));
        std::os::unix::fs::symlink("file", &link).unwrap();
        for _ in 0..2 {
            // Before there is a file, and once there is one.
            write(&link);
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(fs::read(&file).unwrap(), b"data");
        }
        assert_eq!(Output::create(folder.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }

    #[test]
    fn what_can_not_be_made_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(NewFile::create(&folder.path().join("no/such/f")).is_err());
        fs::write(folder.path().join("file"), "").unwrap();
        let within = NewFile::create(&folder.path().join("file/f")).unwrap_err();
        assert_eq!(within.to_string(), "Not a directory (os error 20)");
        fs::remove_file(folder.path().join("file")).unwrap();
        let path = folder.path().join("taken");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("x"), "").unwrap();
        assert!(NewFile::create(&path).unwrap().persist().is_err());
        assert_eq!(names(folder.path()), ["taken"]);
    }
}
