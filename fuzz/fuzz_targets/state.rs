//! Any bytes as a state, with a checksum that is right or not: an error, or tables whose records any stage
//! takes or refuses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::operate::StateFile;
use slipstream::pipeline::stage_types;

fuzz_target!(|data: &[u8]| {
    let _ = StateFile::parse(data);
    let mut sound = data.to_vec();
    sound.extend(crc32fast::hash(data).to_le_bytes());
    let Ok(state) = StateFile::parse(&sound) else { return };
    for table in &state.tables {
        assert_eq!(table.records.len() % table.record, 0);
        for record in table.records.chunks(table.record) {
            for kind in stage_types().iter().flat_map(|kind| kind.properties.tables) {
                let _ = (kind.describe)(record);
            }
        }
    }
});
