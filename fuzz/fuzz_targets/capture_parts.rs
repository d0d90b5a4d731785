//! Any bytes as a capture file, read in one piece, in parts of any size by several threads, and cut into
//! spans: the same packets come, with the same notes and damage, or a span says that it was cut in a wrong
//! place.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::io::capture::{CaptureError, CaptureReader, Part, Parts, Record, Span, spans, spans_of};
use slipstream_wire::LinkType;

type Packet = (u64, u32, LinkType, u32, Vec<u8>);

fn packet(record: &Record<'_>) -> Packet {
    (record.time.0, record.interface, record.link, record.original_len, record.data.to_vec())
}

/// The spans of a file, each read by itself; None where one was cut in a wrong place, or can't be read
/// without what stands before it.
fn spanned(path: &std::path::Path, spans: &[Span], walk: bool) -> Option<Vec<Packet>> {
    let (mut all, mut context, mut end) = (Vec::new(), None, 0);
    for span in spans {
        let packets = |record: &Record<'_>| all.push(packet(record));
        let read = match span.read::<CaptureError>(path, walk, packets, |_| Ok(())) {
            Err(CaptureError::NotThere { .. }) => return None,
            other => other.expect("it was opened before"),
        };
        let joins = context.is_none_or(|before| walk || before == read.context_from);
        if span.from != end || !joins || read.context_from == slipstream::io::capture::SpanRead::TIME_BEFORE {
            return None;
        }
        (context, end) = (Some(read.context_to), read.to);
        if read.damage.is_some() {
            break;
        }
    }
    Some(all)
}

fuzz_target!(|data: &[u8]| {
    let Some((&[size, threads, cut], bytes)) = data.split_first_chunk::<3>() else { return };
    let folder = std::path::Path::new("/dev/shm");
    let folder = if folder.is_dir() { folder.to_owned() } else { std::env::temp_dir() };
    let path = folder.join(format!("slipstream-fuzz-parts-{}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    let Ok(mut whole) = CaptureReader::open(&path) else { return };
    let mut packets = Vec::new();
    while let Some(record) = whole.next_record().expect("a file") {
        packets.push(packet(&record));
    }

    let opened = || CaptureReader::open(&path).expect("it was opened before");
    if let Ok(parts) = Parts::of(opened(), u64::from(size) + 1) {
        let mut found = Vec::new();
        let make = |part: &Part, made: &mut Vec<Packet>| {
            made.clear();
            made.extend(part.records().map(|record| packet(&record)));
        };
        let take = |made: &mut Vec<Packet>| {
            found.append(made);
            Ok::<(), CaptureError>(())
        };
        parts.each(usize::from(threads % 3), make, take).expect("a file");
        let reader = parts.into_reader();
        assert_eq!(found, packets);
        assert_eq!((reader.damage(), reader.notes()), (whole.damage(), whole.notes()));
        assert_eq!(reader.interfaces(), whole.interfaces());
    }

    let bytes = u64::from(cut) * 4 + 1;
    let found = if cut % 2 == 0 { spans(&path, bytes) } else { spans_of(&path, bytes, Some(u64::from(size))) };
    let found = found.expect("it was opened before");
    assert!(found[0].from == 0 && found.last().is_some_and(|span| span.to == u64::MAX));
    assert!(found.windows(2).all(|pair| pair[0].from < pair[0].to && pair[0].to == pair[1].from));
    for walk in [false, true] {
        if let Some(spanned) = spanned(&path, &found, walk) {
            assert_eq!(spanned, packets, "{found:?}");
        }
    }
    let _ = std::fs::remove_file(&path);
});
