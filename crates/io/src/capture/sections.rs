//! A capture file in as many sections as threads read it, each from one record to another.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{CaptureError, CaptureReader, Notes, Part, Parts, Record, Span, spans};

/// Bytes of a section: at least so many are worth a thread; more take much memory of who analyses one.
const SECTION: std::ops::RangeInclusive<u64> = 0x10_0000..=0x2000_0000;

/// Bytes that are read at a time: few enough that what a core's second-level cache has of flows stays there.
const PART: u64 = 64 * 1024;

/// The sections of a capture file, in order, which any threads may read at the same time.
///
/// ```no_run
/// use slipstream_io::capture::{CaptureError, Sections};
///
/// let Some(sections) = Sections::new("trace.pcap".as_ref(), 2)? else { return Ok(()) };
/// for number in 0..sections.len() {
///     // Each on a thread of its own.
///     let mut packets = 0u64;
///     let goes_on = |_: &mut u64, _| Ok::<_, CaptureError>(true);
///     let whole = sections.read(number, &mut packets, |packets, _| *packets += 1, goes_on)?;
///     println!("section {number}: {packets} packets, {whole}");
/// }
/// # Ok::<(), CaptureError>(())
/// ```
#[derive(Debug)]
pub struct Sections {
    path: PathBuf,
    spans: Vec<Span>,
    len: u64,
    read: AtomicU64,
    ends: Mutex<Ends>,
}

#[derive(Debug, Default)]
struct Ends {
    /// By section that was read to its end: numbers for what the file had said of records at its beginning
    /// and at its end.
    contexts: Vec<Option<(u64, u64)>>,
    /// Of all sections.
    notes: Notes,
    /// Of the last section.
    reader: Option<Box<CaptureReader>>,
}

impl Sections {
    /// Sections of about the same length for so many threads; None if the capture is better read in one
    /// piece: it is compressed, or no regular file, or small, or no places were found where records begin.
    ///
    /// # Errors
    /// [`CaptureError`]: the file can't be opened or read, or is no capture.
    pub fn new(path: &Path, threads: usize) -> Result<Option<Self>, CaptureError> {
        let Some(len) = CaptureReader::open(path)?.file_len() else { return Ok(None) };
        let threads = threads.max(1) as u64;
        let rounds = len.div_ceil(threads.saturating_mul(*SECTION.end())).max(1);
        let bytes = len.div_ceil(rounds * threads);
        if threads == 1 || bytes < *SECTION.start() {
            return Ok(None);
        }
        let spans = spans(path, bytes)?;
        if spans.len() < 2 {
            return Ok(None);
        }
        let ends = Ends { contexts: vec![None; spans.len()], ..Ends::default() };
        Ok(Some(Self { path: path.to_owned(), spans, len, read: AtomicU64::new(0), ends: Mutex::new(ends) }))
    }

    /// Number of sections; at least 2.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "there always are some")]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Reads the section of a number (from 0): `record` takes its records, in order; `goes_on` is asked now
    /// and then, gets the share of all of the capture that was read so far, and returns false to end it. Both
    /// work on `state`. Returns true if the section was read to its end, and the next one begins there;
    /// false: the capture must be read in one piece.
    ///
    /// # Errors
    /// [`CaptureError`]: the device failed; an error of `goes_on`.
    #[inline]
    pub fn read<T, E: From<CaptureError>>(
        &self,
        number: usize,
        state: &mut T,
        mut record: impl FnMut(&mut T, Record<'_>),
        mut goes_on: impl FnMut(&mut T, f64) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let Some(span) = self.spans.get(number) else { return Ok(false) };
        let parts = Parts::within_of(CaptureReader::open(&self.path)?, *span, PART)?;
        let Ok(parts) = parts else { return Ok(false) };
        let begins = parts.context();
        let (mut part, mut last) = (Part::default(), span.from);
        while parts.visit(&mut part, |one| record(state, one))? {
            let here = part.end().max(last);
            let read = self.read.fetch_add(here - last, Ordering::Relaxed) + (here - last);
            last = here;
            if !goes_on(state, (read as f64 / self.len.max(1) as f64).min(1.0))? {
                return Ok(false);
            }
        }
        let ends = match parts.span_end() {
            Ok((_, ends)) => ends,
            // Records are damaged, or the file was cut where none begins.
            Err(CaptureError::NotThere { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if parts.lacks_time() {
            return Ok(false);
        }
        let reader = parts.into_reader();
        let is_last = number + 1 == self.spans.len();
        if reader.damage().is_some() && !is_last {
            return Ok(false);
        }
        let mut state = self.ends();
        state.notes.add(&reader.notes());
        if let Some(contexts) = state.contexts.get_mut(number) {
            *contexts = Some((begins, ends));
        }
        if is_last {
            state.reader = Some(Box::new(reader));
        }
        Ok(true)
    }

    /// The reader of the last section, which knows of damage there, and has the notes of all sections, once
    /// all were read to their ends; None if some were not, or if the file says in the middle of one what
    /// those behind it must know of their records, the time of those without one among it: it must be read in
    /// one piece then.
    #[must_use]
    pub fn into_reader(self) -> Option<CaptureReader> {
        let Ends { contexts, notes, reader } = self.ends.into_inner().unwrap_or_else(PoisonError::into_inner);
        let contexts: Option<Vec<(u64, u64)>> = contexts.into_iter().collect();
        let alike = contexts?.windows(2).all(|pair| match pair {
            [(_, ends), (begins, _)] => ends == begins,
            _ => true,
        });
        let mut reader = *reader.filter(|_| alike)?;
        reader.set_notes(notes);
        Some(reader)
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(bytes: &[u8]) -> tempfile::TempPath {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file.into_temp_path()
    }

    /// A pcap of so many records of 1000 bytes.
    fn pcap(records: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
            bytes.extend(word.to_le_bytes());
        }
        for n in 0..records {
            for word in [1_700_000_000 + n, n, 1000, 1000] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend((0..1000).map(|byte| (byte as u32 * 7 + n) as u8));
        }
        bytes
    }

    fn times(sections: &Sections) -> (Vec<u64>, bool) {
        let (mut all, mut whole) = (Vec::new(), true);
        for number in 0..sections.len() {
            whole &= sections
                .read(
                    number,
                    &mut all,
                    |all, record| all.push(record.time.0 / 1_000_000_000),
                    |_, share| {
                        assert!((0.0..=1.0).contains(&share));
                        Ok::<_, CaptureError>(true)
                    },
                )
                .unwrap();
        }
        (all, whole)
    }

    #[test]
    fn all_records_are_read_once_and_damage_is_found() {
        let good = pcap(5_000);
        let want: Vec<u64> = (0..5_000).map(|n| 1_700_000_000 + n).collect();
        for threads in [2, 3, 4] {
            let path = file(&good);
            let sections = Sections::new(&path, threads).unwrap().unwrap();
            assert_eq!(sections.len(), threads);
            assert_eq!(times(&sections), (want.clone(), true));
            assert!(sections.into_reader().unwrap().damage().is_none());
        }
        // Cut off: the damage is the last section's.
        let path = file(&good[..good.len() - 500]);
        let sections = Sections::new(&path, 2).unwrap().unwrap();
        assert_eq!(times(&sections), (want[..4_999].to_vec(), true));
        assert_eq!(sections.into_reader().unwrap().damage().unwrap().byte, 24 + 4_999 * 1_016);
        // Damaged in the first section: it doesn't end where the second one begins.
        let mut bad = good.clone();
        bad[24 + 1_016 * 100 + 8..][..4].fill(0xff);
        let path = file(&bad);
        let sections = Sections::new(&path, 2).unwrap().unwrap();
        assert!(!times(&sections).1);
        assert!(sections.into_reader().is_none());
    }

    #[test]
    fn what_is_better_read_in_one_piece_has_no_sections() {
        let small = file(&pcap(1_000));
        assert!(Sections::new(&small, 2).unwrap().is_none());
        let large = file(&pcap(5_000));
        assert!(Sections::new(&large, 1).unwrap().is_none());
        assert!(Sections::new(&large, 8).unwrap().is_none());
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&pcap(5_000)).unwrap();
        let packed = file(&packed.finish().unwrap());
        assert!(Sections::new(&packed, 2).unwrap().is_none());
        let stopped = Sections::new(&large, 2).unwrap().unwrap();
        assert!(!stopped.read(0, &mut (), |(), _| {}, |(), _| Ok::<_, CaptureError>(false)).unwrap());
        assert!(stopped.into_reader().is_none());
        assert!(Sections::new("/nonexistent.pcap".as_ref(), 2).is_err());
    }
}
