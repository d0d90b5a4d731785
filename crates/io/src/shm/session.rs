//! Taking a side of the file, and learning the state of the other side.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};

use super::Options;
use super::error::ShmError;
use super::layout::{self, Found, Place, SETUP_LOCK, Side};
use super::memory::{self, Memory};
use super::ring::{Consumer, Damage, Producer};
use slipstream_core::stop::Stopped;

/// Times that a process that leaves tries to be the only one that comes or goes, a millisecond apart.
const LEAVING: u32 = 50;
/// In the place of a side's mark: nobody may take it any more, since the process at the other side is about
/// to leave.
const SHUT: u32 = 2;
/// Times that a process that comes looks whether another one has come or gone, and the pause in between.
const GOING: u32 = 2000;
const PAUSE: Duration = Duration::from_millis(5);

/// A process's side of the file; its lock goes when this does.
#[derive(Debug)]
pub(super) struct Session {
    file: File,
    path: PathBuf,
    memory: Arc<Memory>,
    side: Side,
    /// The ring that it receives by.
    back: Place,
}

/// The state of the process at the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// It has not come yet.
    Awaited,
    /// It is there.
    There,
    /// It came and went.
    Left,
}

impl Session {
    /// Takes the side that is free: the first of a new session where nobody is there, else the other.
    pub(super) fn join(options: &Options) -> Result<(Arc<Self>, Consumer, Producer), ShmError> {
        layout::check_size(options.ring)?;
        let path = options.path.as_path();
        let failed = |what| move |error| ShmError::System { path: path.to_owned(), what, error };
        let mut looks = 0;
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(path)
                .map_err(failed("opening"))?;
            let about = file.metadata().map_err(failed("asking about"))?;
            if !about.is_file() {
                return Err(ShmError::NotOurs(path.to_owned()));
            }
            let ours = rustix::process::geteuid().as_raw();
            if let Some(why) = not_private(about.uid(), about.mode(), ours) {
                return Err(ShmError::NotPrivate { path: path.to_owned(), why });
            }
            // Another one may be coming or going, and be stopped at that.
            while !memory::lock(&file, SETUP_LOCK).map_err(failed("locking"))? {
                looks += 1;
                if looks >= GOING || Stopped::check().is_err() {
                    return Err(ShmError::Locked(path.to_owned()));
                }
                sleep(PAUSE);
            }
            // Whoever was the last to leave may have taken the file away meanwhile.
            if !is_at(&file, path) {
                continue;
            }
            if let Some((session, consumer, producer)) = Self::take_side(file, path, options.ring)? {
                memory::unlock(&session.file, SETUP_LOCK).map_err(failed("unlocking"))?;
                return Ok((session, consumer, producer));
            }
            looks += 1;
            if looks >= GOING || Stopped::check().is_err() {
                return Err(ShmError::Over(path.to_owned()));
            }
            sleep(PAUSE);
        }
    }

    /// The same while nobody else does it; none where the process at the other side is about to leave.
    fn take_side(
        file: File,
        path: &Path,
        ring: u64,
    ) -> Result<Option<(Arc<Self>, Consumer, Producer)>, ShmError> {
        let failed = |what| move |error| ShmError::System { path: path.to_owned(), what, error };
        let mut taken = None;
        for side in Side::BOTH {
            if taken.is_none() && memory::lock(&file, side.lock()).map_err(failed("locking"))? {
                taken = Some(side);
            }
        }
        let side = taken.ok_or_else(|| ShmError::InUse(path.to_owned()))?;
        let len = file.metadata().map_err(failed("asking about"))?.len();
        let found = layout::read(&file, len, path)?;
        let alone = !memory::locked_elsewhere(&file, side.other().lock()).map_err(failed("locking"))?;
        let ring = match (alone, found) {
            (true, _) => {
                if let Err((what, error)) = make(&file, ring) {
                    // Nobody has joined, and nobody can while this process takes a side.
                    let _ = std::fs::remove_file(path);
                    return Err(failed(what)(error));
                }
                ring
            }
            (false, Found::Port(ring)) => ring,
            (false, Found::Empty) => {
                return Err(ShmError::Damaged { path: path.to_owned(), what: "it is empty while in use" });
            }
        };
        let memory = Memory::map(&file, layout::file_bytes(ring) as usize).map_err(failed("mapping"))?;
        let memory = Arc::new(memory);
        let (out, back) = (side.ring(ring), side.other().ring(ring));
        let session = Self { file, path: path.to_owned(), memory: Arc::clone(&memory), side, back };
        let over = || ShmError::Over(path.to_owned());
        match session.mark(side).ok_or_else(over)?.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => {}
            Err(SHUT) => return Ok(None),
            Err(_) => return Err(over()),
        }
        let (consumer, producer) =
            (Consumer::new(Arc::clone(&memory), back), Producer::new(Arc::clone(&memory), out));
        Ok(Some((Arc::new(session), consumer, producer)))
    }

    fn mark(&self, side: Side) -> Option<&std::sync::atomic::AtomicU32> {
        self.memory.half_word(side.joined())
    }

    /// Finds the state of the other side. Costs a system call.
    pub(super) fn peer(&self) -> Peer {
        let other = self.side.other();
        if self.mark(other).is_none_or(|m| matches!(m.load(Ordering::Acquire), 0 | SHUT)) {
            return Peer::Awaited;
        }
        match memory::locked_elsewhere(&self.file, other.lock()) {
            Ok(false) => Peer::Left,
            // A lock that can't be asked about is taken for one that holds.
            Ok(true) | Err(_) => Peer::There,
        }
    }

    /// Returns true if the other side may be waiting for room, which it gets once packets are taken here: its
    /// ring is more than half full.
    pub(super) fn may_be_waited_for(&self) -> bool {
        let load = |at| self.memory.word(at).map_or(0, |word| word.load(Ordering::Acquire));
        load(self.back.tail).saturating_sub(load(self.back.head)) > self.back.bytes / 2
    }

    /// This process is about to leave, and nobody comes any more who has not come by now; finds the state of
    /// the other side, which stays [`Awaited`](Peer::Awaited) if it is.
    pub(super) fn shut(&self) -> Peer {
        let mark = self.mark(self.side.other());
        let shut = mark.map(|m| m.compare_exchange(0, SHUT, Ordering::AcqRel, Ordering::Acquire));
        match shut {
            Some(Ok(_) | Err(SHUT)) => Peer::Awaited,
            _ => self.peer(),
        }
    }

    /// Checks that a process that comes finds the file. Costs two system calls.
    pub(super) fn check_name(&self) -> Result<(), ShmError> {
        let named = std::fs::symlink_metadata(&self.path);
        let gone = match (named, self.file.metadata()) {
            (Ok(named), Ok(file)) => (named.dev(), named.ino()) != (file.dev(), file.ino()),
            (Err(error), _) => error.kind() == io::ErrorKind::NotFound,
            // A process that can't ask doesn't know.
            (Ok(_), Err(_)) => false,
        };
        if gone { Err(ShmError::Removed(self.path.clone())) } else { Ok(()) }
    }

    /// The error for damage found in a ring.
    pub(super) fn damaged(&self, damage: Damage) -> ShmError {
        ShmError::Damaged { path: self.path.clone(), what: damage.0 }
    }

    /// The error for a process that ended without finishing.
    pub(super) fn peer_died(&self) -> ShmError {
        ShmError::PeerDied(self.path.clone())
    }

    /// The error for a process that did not come in time.
    pub(super) fn nobody_came(&self, wait_ns: u64) -> ShmError {
        ShmError::NobodyCame { path: self.path.clone(), wait_ns }
    }

    /// The file's name.
    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }
}

impl Drop for Session {
    /// The last to leave takes the file away.
    fn drop(&mut self) {
        // One after the other, so that of two that leave at the same time the second finds itself alone.
        // If somebody keeps the lock, or the file can't be removed, it stays and is in nobody's way: the next
        // session begins anew in it.
        let alone_at_it = (0..LEAVING).any(|n| {
            if n > 0 {
                sleep(Duration::from_millis(1));
            }
            matches!(memory::lock(&self.file, SETUP_LOCK), Ok(true))
        });
        let _ = memory::unlock(&self.file, self.side.lock());
        let other = self.side.other().lock();
        if alone_at_it
            && matches!(memory::locked_elsewhere(&self.file, other), Ok(false))
            && is_at(&self.file, &self.path)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes rings of so many bytes in a file that nobody uses; an error says what failed. The size is written
/// last: a file without one, which a process leaves that ends in between, counts as empty.
fn make(file: &File, ring: u64) -> Result<(), (&'static str, io::Error)> {
    // The rest of an earlier session is cut off, so that everything begins with zero.
    file.set_len(0).map_err(|e| ("emptying", e))?;
    file.write_all_at(&layout::header(0), 0).map_err(|e| ("writing", e))?;
    reserve(file, layout::file_bytes(ring)).map_err(|e| ("reserving the memory of both rings in", e))?;
    file.write_all_at(&layout::header(ring), 0).map_err(|e| ("writing", e))
}

/// Gives a file so many bytes, and all of them their place in memory or on disk: who writes to a mapped file
/// where a file system has no place left is ended by a signal.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, bytes)) {
        // The file system can't promise that.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(bytes),
        other => Ok(other?),
    }
}

/// The reason why a file of this owner and mode is not for the processes of user `ours` alone, if it
/// isn't. Whoever has it open already keeps it, so that to change its mode would be no help.
fn not_private(owner: u32, mode: u32, ours: u32) -> Option<String> {
    if owner != ours {
        return Some(format!("belongs to user {owner}, and this process to user {ours}"));
    }
    (mode & 0o077 != 0).then(|| format!("may be used by others than its owner (mode {:03o})", mode & 0o777))
}

/// Returns true if the file is the one of this name.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(file), Ok(named)) => (file.dev(), file.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::not_private;

    #[test]
    fn a_file_is_private_that_its_owner_alone_may_use() {
        assert_eq!(not_private(7, 0o100_600, 7), None);
        assert!(not_private(8, 0o100_600, 7).is_some_and(|why| why.contains("user 8")));
        // Root has no business with another's file either.
        assert!(not_private(8, 0o100_600, 0).is_some());
        for mode in [0o666, 0o660, 0o606, 0o640, 0o604, 0o622] {
            assert!(
                not_private(7, 0o100_000 | mode, 7).is_some_and(|why| why.contains(&format!("{mode:03o}")))
            );
        }
    }
}
