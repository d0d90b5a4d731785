//! Any bytes as a file of measured states, with a checksum that is right or not: an error that names a byte
//! of the file, or states that are written as they were read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream_measure::{Saved, SavedError};

fn read(bytes: &[u8]) {
    match Saved::parse(bytes) {
        Ok(saved) => {
            let written = saved.to_bytes();
            assert_eq!(Saved::parse(&written).unwrap(), saved);
            assert!(saved.about.keying().is_ok());
            for state in saved.epochs.iter().flat_map(|e| &e.states) {
                let _ = (slipstream_sketch::peek(state), slipstream_sketch::load::<4>(state));
            }
        }
        Err(SavedError::Damaged(byte, _) | SavedError::Checksum(byte)) => assert!(byte <= bytes.len()),
        Err(_) => {}
    }
}

fuzz_target!(|data: &[u8]| {
    if data.len() > 60_000 {
        return;
    }
    read(data);
    let mut sealed = data.to_vec();
    sealed.extend(crc32fast::hash(data).to_le_bytes());
    read(&sealed);
});
