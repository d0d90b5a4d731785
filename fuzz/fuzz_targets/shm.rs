//! Any bytes as a file for a shared-memory port, and as what the other side wrote into its ring: an error, or
//! packets that lie within the ring, in either direction. A file that is something else stays as it is.
#![no_main]

use std::os::unix::fs::{FileExt, PermissionsExt};

use libfuzzer_sys::fuzz_target;
use slipstream::batch::Arrivals;
use slipstream::io::shm::{Options, Outgoing, WhenFull};
use slipstream::pool::Pool;
use slipstream::runtime::LiveSource;
use slipstream::time::Nanos;

const RING: u64 = 1 << 16;
/// Places at which the second side's position and its ring begin.
const TAIL: u64 = 768;
/// The place of the second side's position in the first one's ring.
const HEAD: u64 = 640;
const DATA: u64 = 4096 + RING;

/// Any bytes as a file that was there before, for this user alone: others are refused unread.
fn open_any(options: &Options, path: &std::path::Path, data: &[u8]) {
    std::fs::write(path, data).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    if options.open().is_err() {
        assert_eq!(std::fs::read(path).unwrap(), data);
    }
    let _ = std::fs::remove_file(path);
}

/// A second side comes where somebody has written into the file's beginning: an error, or a way for packets.
fn open_second(options: &Options, path: &std::path::Path, data: &[u8]) {
    let (mut first, mut to_second) = options.open().unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    for edit in data.chunks_exact(3) {
        let at = u64::from(u16::from_le_bytes([edit[0], edit[1]]) % 1024);
        // A mark of 2 says that the side may not be taken, for which a process waits ten seconds.
        let value = if (128..260).contains(&at) { edit[2] & !2 } else { edit[2] };
        file.write_at(&[value], at).unwrap();
    }
    let Ok((mut second, mut to_first)) = options.open() else { return };
    let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
    for (sender, receiver) in [(&mut to_second, &mut second), (&mut to_first, &mut first)] {
        for len in [0, 60, 9000] {
            sender.send(&outgoing(data.get(..len).unwrap_or(data)));
        }
        sender.flush();
        while receiver.poll(&mut pool, &mut arrivals, 256, Nanos(0)).is_ok_and(|n| n > 0) {}
        let _ = (sender.check(), sender.waiting(), sender.room(), sender.counts());
    }
}

fn outgoing(data: &[u8]) -> Outgoing<'_> {
    let original_len = data.len() as u32;
    Outgoing { data, original_len, interface: 0, link: 1, arrival: Nanos(0), time: Nanos(0), sliced: None }
}

fuzz_target!(|data: &[u8]| {
    let Some((&how, data)) = data.split_first() else { return };
    let folder = std::path::Path::new("/dev/shm");
    let folder = if folder.is_dir() { folder.to_owned() } else { std::env::temp_dir() };
    let path = folder.join(format!("slipstream-fuzz-shm-{}", std::process::id()));
    let options = Options { ring: RING, when_full: WhenFull::Drop, ..Options::new(&path) };
    let _ = std::fs::remove_file(&path);
    match how & 3 {
        0 => return open_any(&options, &path, data),
        2 => return open_second(&options, &path, data),
        _ => {}
    }
    let (mut receiver, mut sender) = options.open().unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let mut rest = data;
    let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
    // Several times the other side goes on: a position, and what lies there.
    while let Some((tail, after)) = rest.split_first_chunk::<8>() {
        let position = u64::from_le_bytes(*tail);
        let position = if how & 0x80 == 0 { position % (4 * RING) / 64 * 64 } else { position };
        let (bytes, after) = after.split_at(after.len().min(512));
        rest = after;
        file.write_at(bytes, DATA).unwrap();
        file.write_at(&position.to_ne_bytes(), TAIL).unwrap();
        if how & 4 != 0 {
            // It takes packets, or says so of any that were never put in.
            sender.send(&outgoing(bytes));
            sender.flush();
            file.write_at(&(position ^ u64::from(how >> 3)).to_ne_bytes(), HEAD).unwrap();
            let _ = (sender.check(), sender.room());
            assert!(sender.waiting() <= RING);
        }
        let mut seen = 0;
        loop {
            match receiver.poll(&mut pool, &mut arrivals, 256, Nanos(0)) {
                Ok(0) => break,
                Err(_) => return,
                Ok(_) => {}
            }
            for frame in arrivals.frames.drain(..) {
                seen += u64::from(frame.len) + 32;
                assert_eq!(pool.data(frame.buf, frame.len).len(), frame.len as usize);
                pool.free(frame.buf);
            }
            arrivals.clear();
            assert!(seen <= RING, "more than the ring holds");
        }
    }
});
