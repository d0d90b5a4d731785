//! Any bytes as a saved part of an analysis, as they are and with the checksums of their sections made right:
//! an error that names a byte, or a part that is written as it was read and can be asked and joined.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream_trace::{Stretch, StretchError};

const HEAD: usize = 16;

fn read(bytes: &[u8]) {
    match Stretch::from_bytes(bytes) {
        Ok(part) => {
            let written = part.to_bytes();
            // A part of an older version is written as one of the newest.
            if written.get(8..10) == bytes.get(8..10) {
                assert_eq!(written, bytes, "read, and not written, so");
            }
            let mut first = part.clone();
            let _ = first.join(&part);
            let _ = Stretch::from_bytes(&first.to_bytes()).map(|whole| assert_eq!(whole.to_bytes(), first.to_bytes()));
            let _ = part.into_partial();
        }
        Err(
            StretchError::Cut { byte } | StretchError::Checksum { byte } | StretchError::Damaged { byte, .. },
        ) => assert!(byte <= bytes.len()),
        Err(_) => {}
    }
}

/// The same bytes with right checksums and lengths: of the head, and of each section as far as there are
/// some.
fn sealed(data: &[u8]) -> Vec<u8> {
    let mut out = data.get(..HEAD).unwrap_or(data).to_vec();
    out.truncate(12);
    let sum = crc32fast::hash(&out);
    out.extend(sum.to_le_bytes());
    let mut rest = data.get(HEAD..).unwrap_or_default();
    while let Some((head, after)) = rest.split_at_checked(12) {
        let wanted = head.last_chunk::<8>().map_or(0, |len| u64::from_le_bytes(*len));
        let len = usize::try_from(wanted).map_or(after.len(), |len| len.min(after.len()));
        let (content, after) = after.split_at(len);
        let begin = out.len();
        out.extend(head.iter().take(4));
        out.extend((len as u64).to_le_bytes());
        out.extend(content);
        let sum = crc32fast::hash(&out[begin..]);
        out.extend(sum.to_le_bytes());
        rest = after.get(4..).unwrap_or_default();
    }
    out
}

fuzz_target!(|data: &[u8]| {
    if data.len() > 30_000 {
        return;
    }
    read(data);
    read(&sealed(data));
});
