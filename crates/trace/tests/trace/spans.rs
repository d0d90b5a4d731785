//! Captures cut at bytes: every cut is where a record begins, or it is noticed that it is not; and the parts,
//! each read by itself, give the whole.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use slipstream::io::capture::{
    CaptureError, CaptureReader, Record, Sections, Span, SpanRead, span_of_part, spans, spans_of,
};
use slipstream_trace::{
    Analyzer, Config, Ending, MergeError, Opening, Place, Report, Stretch, StretchAnalyzer,
};

use crate::expected::traces;

/// The places at which records of a capture begin and the last one ends, found by walking over them; None if
/// it is compressed or no capture.
fn records(bytes: &[u8]) -> Option<BTreeSet<u64>> {
    let word = |at: usize, little: bool| {
        let field: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(field) } else { u32::from_be_bytes(field) } as usize)
    };
    let mut places = BTreeSet::new();
    if word(0, true)? == 0x0a0d_0d0a {
        let (mut at, mut little) = (0, true);
        while let Some(kind) = word(at, true) {
            if kind == 0x0a0d_0d0a {
                little = word(at + 8, true)? == 0x1a2b_3c4d;
            }
            places.insert(at as u64);
            at += word(at + 4, little).filter(|len| *len >= 12)?;
        }
        places.insert(at as u64);
        return Some(places);
    }
    let known = [0xa1b2_c3d4, 0xa1b2_3c4d, 0xa1b2_cd34];
    let little = known.contains(&word(0, true)?);
    let header = if word(0, little)? == 0xa1b2_cd34 { 24 } else { 16 };
    if !known.contains(&word(0, little)?) {
        return None;
    }
    let mut at = 24;
    while let Some(captured) = word(at + 8, little) {
        places.insert(at as u64);
        at += header + captured.min(word(at + 12, little).unwrap_or(captured).max(captured));
    }
    places.insert(at as u64);
    Some(places)
}

/// One span of a file: its analysis, or why it can't be that.
fn read(path: &Path, span: Span, opening: Opening) -> Result<Stretch, CaptureError> {
    read_span(path, span, opening, false)
}

fn read_span(path: &Path, span: Span, opening: Opening, walk: bool) -> Result<Stretch, CaptureError> {
    let mut analyzer = StretchAnalyzer::new(Config::default(), opening).unwrap();
    let packet =
        |record: &Record<'_>| analyzer.packet(record.time.0, record.link, record.original_len, record.data);
    let read = span.read(path, walk, packet, |_| Ok::<(), CaptureError>(()))?;
    Ok(analyzer.finish(Place {
        file: path.display().to_string(),
        from: span.from,
        to: read.to,
        context_from: read.context_from,
        context_to: read.context_to,
        truncated_at_byte: read.damage.map(|damage| damage.byte),
        ending: if read.ends { Ending::Ends } else { Ending::Continues },
    }))
}

/// Spans of a file joined; None where a part has to be made anew.
fn joined(path: &Path, bytes: u64, longest: Option<u64>) -> Result<Option<(Report, usize)>, CaptureError> {
    let spans = spans_of(path, bytes, longest)?;
    let mut whole: Option<Stretch> = None;
    for span in &spans {
        let opening = if span.from == 0 { Opening::Trace } else { Opening::Middle };
        let stretch = read(path, *span, opening)?;
        match &mut whole {
            None => whole = Some(stretch),
            Some(whole) => {
                // Packets behind damage are no more part of the trace.
                if whole.place().truncated_at_byte.is_some() {
                    break;
                }
                match whole.join(&stretch) {
                    Ok(()) => {}
                    Err(MergeError::Unresolved | MergeError::Gap { .. }) => return Ok(None),
                    Err(other) => panic!("{}: {other}", path.display()),
                }
            }
        }
    }
    Ok(whole.map(|whole| (whole.into_partial().report(), spans.len())))
}

fn whole(path: &Path) -> Option<Report> {
    let mut reader = CaptureReader::open(path).ok()?;
    let mut analyzer = Analyzer::new(Config::default()).unwrap();
    while let Some(record) = reader.next_record().ok()? {
        analyzer.packet(record.time.0, record.link, record.original_len, record.data);
    }
    Some(analyzer.finish().report())
}

fn captures() -> Vec<PathBuf> {
    let Some(dir) = traces() else { return Vec::new() };
    let files =
        |d: &str| std::fs::read_dir(dir.join(d)).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
    let mut all: Vec<PathBuf> = ["multi", "odd"].iter().flat_map(|d| files(d)).collect();
    all.sort();
    all
}

/// Cuts at every byte of small captures, and at some of larger ones, are where records begin.
#[test]
fn cuts_are_where_records_begin() {
    let (mut cuts, mut wrong, mut judged) = (0, 0, 0);
    for path in captures() {
        let bytes = std::fs::read(&path).unwrap();
        let Some(places) = records(&bytes) else { continue };
        let len = bytes.len() as u64;
        let tried: Vec<u64> =
            if len <= 1200 { (1..=len).collect() } else { (2..5).map(|n| len / n + n).collect() };
        for at in tried {
            let Ok(spans) = spans_of(&path, at, Some(longest(&places))) else { continue };
            assert_eq!((spans[0].from, spans[spans.len() - 1].to), (0, u64::MAX));
            for pair in spans.windows(2) {
                assert_eq!(pair[0].to, pair[1].from);
                cuts += 1;
                if !places.contains(&pair[1].from) {
                    // A damaged file: then who reads up to there notices.
                    wrong += 1;
                    let noticed = match read(&path, pair[0], Opening::Middle) {
                        Ok(stretch) => stretch.place().truncated_at_byte.is_some(),
                        Err(error) => matches!(error, CaptureError::NotThere { .. }),
                    };
                    assert!(noticed, "{}: cut at {} ({at})", path.display(), pair[1].from);
                }
            }
        }
        judged += 1;
    }
    println!("{judged} captures, {cuts} cuts, {wrong} of them where no record begins");
    assert!(captures().is_empty() || judged > 500 && cuts > 300 && wrong < 20, "{judged}, {cuts}, {wrong}");
}

fn longest(places: &BTreeSet<u64>) -> u64 {
    places.iter().zip(places.iter().skip(1)).map(|(a, b)| b - a).max().unwrap_or(0)
}

#[test]
fn parts_of_captures_give_the_whole() {
    let (mut several, mut anew) = (0, 0);
    for path in captures() {
        let Some(want) = whole(&path) else { continue };
        let bytes = std::fs::read(&path).unwrap();
        let longest = records(&bytes).map(|places| longest(&places));
        for pieces in [2, 5] {
            match joined(&path, bytes.len() as u64 / pieces + 1, longest).unwrap() {
                Some((got, spans)) => {
                    assert_eq!(got, want, "{} in {pieces}", path.display());
                    several += usize::from(spans > 1);
                }
                None => anew += 1,
            }
        }
    }
    println!("{several} times in several parts, {anew} times a part would have to be made anew");
    assert!(
        captures().is_empty() || several > 150 && anew < 60,
        "{several} in several parts, {anew} to be made anew"
    );
}

/// A pcap file of packets with these payloads, each captured as a whole.
fn file(name: &str, packets: impl IntoIterator<Item = Vec<u8>>) -> PathBuf {
    let path = std::env::temp_dir().join(format!("slipstream-spans-{}-{name}.pcap", std::process::id()));
    let mut out = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    let mut header = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    header.extend([0; 8]);
    header.extend([0, 0, 4, 0, 1, 0, 0, 0]);
    out.write_all(&header).unwrap();
    for (n, packet) in packets.into_iter().enumerate() {
        out.write_all(&record(n as u32, packet.len())).unwrap();
        out.write_all(&packet).unwrap();
    }
    out.flush().unwrap();
    path
}

fn record(n: u32, len: usize) -> Vec<u8> {
    let len = (len as u32).to_le_bytes();
    [&1_700_000_000u32.to_le_bytes()[..], &n.to_le_bytes(), &len, &len].concat()
}

/// Packets that carry whole captures, or whose payloads are records that lead from packet to packet.
#[test]
fn payloads_that_look_like_records_fool_nobody() {
    // A capture within each packet: its records end with it.
    let inner: Vec<u8> = (0..12).flat_map(|n| [record(n, 80), vec![n as u8; 80]].concat()).collect();
    let carried = file("carried", (0..4000).map(|n| [vec![n as u8; 54], inner.clone()].concat()));
    // One record within each packet, as long as it takes to the one within the next.
    let parallel = file("parallel", (0..60_000).map(|_| [vec![7; 20], record(9, 100), vec![7; 64]].concat()));
    for (path, least) in [(&carried, 5), (&parallel, 1)] {
        let places = records(&std::fs::read(path).unwrap()).unwrap();
        let spans = spans(path, 500_000).unwrap();
        assert!(spans.len() >= least, "{spans:?}");
        assert!(spans[1..].iter().all(|span| places.contains(&span.from)), "{spans:?}");
        let (got, _) = joined(path, 500_000, None).unwrap().unwrap();
        assert_eq!(Some(got), whole(path));
    }
    let cuts = spans(&parallel, 500_000).unwrap().len();
    assert!(cuts <= 4, "where two chains go on side by side nothing is cut: {cuts}");
    [carried, parallel].iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

/// A cut is found behind records that can be read in two ways: of records of 80 bytes that are read one byte
/// too early, the length of each leads over 205 of them, and its time may pass for one as long as the
/// fraction of a second is small.
#[test]
fn a_cut_is_found_behind_what_looks_like_records_for_a_while() {
    const HALF: u32 = 10_000;
    let path = std::env::temp_dir().join(format!("slipstream-spans-{}-while.pcap", std::process::id()));
    let mut bytes = Vec::new();
    for word in [0xa1b2_3c4d, 0x0004_0002, 0, 0, 64, 1] {
        bytes.extend(u32::to_le_bytes(word));
    }
    for n in 0..2 * HALF {
        for word in [5 + n / HALF, n % HALF * 1000, 64, 600] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend([0xa5; 64]);
    }
    std::fs::write(&path, &bytes).unwrap();
    let spans = spans(&path, bytes.len() as u64 / 2 + 10).unwrap();
    let [one, two] = spans.as_slice() else { panic!("{spans:?}") };
    assert!((two.from - 24).is_multiple_of(80) && two.from < bytes.len() as u64 * 3 / 4, "{spans:?}");
    assert_eq!(read(&path, *one, Opening::Trace).unwrap().records(), (two.from - 24) / 80);
    std::fs::remove_file(path).unwrap();
}

/// Records that are longer than any should be, full of others: the cut is wrong, and who reads up to there
/// notices.
#[test]
fn a_wrong_cut_is_noticed() {
    let inner: Vec<u8> = (0..30_000).flat_map(|n| [record(n, 84), vec![n as u8; 84]].concat()).collect();
    let path = file("long", [vec![1; 60], inner, vec![2; 60]]);
    let places = records(&std::fs::read(&path).unwrap()).unwrap();
    let spans = spans(&path, 1_000_000).unwrap();
    assert!(spans[1..].iter().any(|span| !places.contains(&span.from)), "{spans:?}");
    let error = read(&path, spans[0], Opening::Trace).unwrap_err();
    assert!(matches!(error, CaptureError::NotThere { byte, .. } if byte == spans[0].to), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("byte {}", spans[0].to)) && text.contains("one piece"), "{text}");
    assert_eq!(read(&path, Span::ALL, Opening::Trace).unwrap().records(), 3);
    std::fs::remove_file(path).unwrap();
}

/// Parts by number: each found by itself, they are the file from its beginning to its end.
#[test]
fn parts_by_number_are_the_file() {
    let (mut files, mut cuts) = (0, 0);
    for path in captures().iter().step_by(3) {
        for parts in 1..=5 {
            let spans: Result<Vec<_>, _> =
                (1..=parts).map(|number| span_of_part(path, number, parts)).collect();
            let Ok(spans) = spans else { continue };
            let spans: Vec<Span> = spans.into_iter().flatten().collect();
            assert_eq!((spans[0].from, spans[spans.len() - 1].to), (0, u64::MAX), "{}", path.display());
            for pair in spans.windows(2) {
                assert_eq!(pair[0].to, pair[1].from, "{}", path.display());
                assert!(pair[0].from < pair[0].to);
                cuts += 1;
            }
            files += 1;
        }
    }
    assert!(files == 0 || files > 500 && cuts > 20, "{files} files, {cuts} cuts");
}

/// A pcapng file of so many packets, two of three without a time.
fn untimed(name: &str, packets: u32) -> PathBuf {
    let path = std::env::temp_dir().join(format!("slipstream-spans-{}-{name}.pcapng", std::process::id()));
    let mut out = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    let mut block = |kind: u32, head: &[u32], data: &[u8]| {
        let len = (12 + 4 * head.len() + data.len()) as u32;
        let words: Vec<u8> = [kind, len].iter().chain(head).flat_map(|word| word.to_le_bytes()).collect();
        out.write_all(&[&words, data, &len.to_le_bytes()].concat()).unwrap();
    };
    block(0x0a0d_0d0a, &[0x1a2b_3c4d, 1, u32::MAX, u32::MAX], &[]);
    block(1, &[1, 0], &[]);
    for n in 0..packets {
        let mut data = [0; 60];
        (data[12], data[14], data[17], data[23]) = (8, 0x45, 46, 17);
        data[29] = (n * n % 7) as u8;
        if n % 3 == 0 {
            block(6, &[0, 0, n * 1000, 60, 60], &data);
        } else {
            block(3, &[60], &data);
        }
    }
    out.flush().unwrap();
    path
}

/// A part that begins with a packet whose time is that of the one before joins none until it was made anew.
#[test]
fn a_part_that_lacks_its_first_time_does_not_join() {
    let path = untimed("few", 30);
    let want = whole(&path);
    let places = records(&std::fs::read(&path).unwrap()).unwrap();
    for (n, place) in places.iter().skip(2).take(30).enumerate().skip(1) {
        let [first, second] = [Span { from: 0, to: *place }, Span { from: *place, to: u64::MAX }];
        let before = read(&path, first, Opening::Trace).unwrap();
        let join = |walk| {
            let mut joined = before.clone();
            let next = read_span(&path, second, Opening::MiddleKept, walk).unwrap();
            let lacks = next.place().context_from == SpanRead::TIME_BEFORE;
            (lacks, joined.join(&next).map(|()| joined.into_partial().report()))
        };
        let (lacks, joined) = join(false);
        assert_eq!(lacks, n % 3 > 0, "{n}");
        match joined {
            Err(MergeError::Gap { .. }) if lacks => {}
            joined => assert_eq!(joined.ok(), want, "{n}"),
        }
        let without = [false, true].map(|walk| {
            let read = second.read(&path, walk, |_| {}, |_| Ok::<(), CaptureError>(()));
            read.unwrap().notes.without_time
        });
        assert_eq!(without, [(n as u64..30).filter(|n| n % 3 > 0).count() as u64; 2]);
        let (lacks, joined) = join(true);
        assert_eq!((lacks, joined.ok()), (false, want.clone()), "{n}");
    }
    std::fs::remove_file(path).unwrap();
}

/// Nor is such a file read in sections.
#[test]
fn a_section_that_lacks_its_first_time_is_none() {
    let (mut whole, mut none) = (0, 0);
    for packets in 40_000..40_012 {
        let path = untimed("many", packets);
        let sections = Sections::new(&path, 2).unwrap().unwrap();
        let mut times = Vec::new();
        let every = (0..sections.len()).all(|number| {
            let record = |times: &mut Vec<u64>, record: Record<'_>| times.push(record.time.0);
            sections.read(number, &mut times, record, |_, _| Ok::<_, CaptureError>(true)).unwrap()
        });
        let reader = sections.into_reader();
        assert_eq!(reader.is_some(), every);
        if let Some(reader) = reader {
            assert_eq!(reader.notes().without_time, u64::from(packets - packets.div_ceil(3)));
            assert_eq!(reader.notes().sections, 1);
            assert!(times.iter().copied().eq((0..packets).map(|n| u64::from(n - n % 3) * 1_000_000)));
            whole += 1;
        } else {
            none += 1;
        }
        std::fs::remove_file(path).unwrap();
    }
    assert!(whole > 0 && none > 0, "{whole} {none}");
}
