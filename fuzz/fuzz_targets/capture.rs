//! Any bytes as a capture file: no panic, an end, damage within the file, and memory that the bytes account
//! for.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::io::capture::{CaptureReader, Compression};

fuzz_target!(|bytes: &[u8]| {
    let len = bytes.len() as u64;
    let Ok(mut reader) = CaptureReader::from_reader(std::io::Cursor::new(bytes.to_vec()), "fuzz") else {
        return;
    };
    let plain = reader.compression() == Compression::None;
    let mut data = 0;
    while let Some(record) = reader.next_record().expect("memory does not fail") {
        data += record.data.len() as u64 + 16;
        let interface = record.interface as usize;
        assert!(!plain || data <= len);
        assert!(interface < reader.interfaces().len());
    }
    assert!(reader.next_record().expect("memory does not fail").is_none());
    if plain {
        assert!(reader.damage().is_none_or(|damage| damage.byte < len));
    }
});
