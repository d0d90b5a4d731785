//! Any bytes as a file for a shared-memory port, and as what the other side wrote into its ring: an error, or
//! packets that lie within the ring. A file that is something else stays as it is.
#![no_main]

use std::os::unix::fs::FileExt;

use libfuzzer_sys::fuzz_target;
use slipstream::batch::Arrivals;
use slipstream::io::shm::Options;
use slipstream::pool::Pool;
use slipstream::runtime::LiveSource;
use slipstream::time::Nanos;

const RING: u64 = 1 << 16;
/// Places at which the second side's position and its ring begin.
const TAIL: u64 = 768;
const DATA: u64 = 4096 + RING;

fuzz_target!(|data: &[u8]| {
    let Some((&how, data)) = data.split_first() else { return };
    let path = std::env::temp_dir().join(format!("slipstream-fuzz-shm-{}", std::process::id()));
    let options = Options { ring: RING, ..Options::new(&path) };
    if how & 1 == 0 {
        std::fs::write(&path, data).unwrap();
        if options.open().is_err() {
            assert_eq!(std::fs::read(&path).unwrap(), data);
        }
        let _ = std::fs::remove_file(&path);
        return;
    }
    let (mut receiver, _sender) = options.open().unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let mut rest = data;
    let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
    // Several times the other side goes on: a position, and what lies there.
    while let Some((tail, after)) = rest.split_first_chunk::<8>() {
        let position = u64::from_le_bytes(*tail);
        let position = if how & 2 == 0 { position % (4 * RING) / 64 * 64 } else { position };
        let (bytes, after) = after.split_at(after.len().min(512));
        rest = after;
        file.write_at(bytes, DATA).unwrap();
        file.write_at(&position.to_ne_bytes(), TAIL).unwrap();
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
