//! A capture of all that is made.

use std::path::Path;

use serde::Serialize;

use super::Synth;
use crate::capture::{CaptureError, CaptureWriter, Interface};

/// The longest frame that a capture without a snap length says it may have.
const SNAP_LEN: u32 = 262_144;
/// Packets until [`Synth::write_to`] asks again whether to go on.
const ASK_EVERY: u64 = 1 << 16;

/// The report on a capture that was made, as `slipstream synth` and its twin in Python give it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    schema: u32,
    output: String,
    #[serde(flatten)]
    made: Made,
}

impl Made {
    /// The report, with the name of the capture.
    #[must_use]
    pub fn report(self, output: &Path) -> Report {
        Report { schema: 1, output: output.display().to_string(), made: self }
    }
}

/// The traffic that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Made {
    /// Packets.
    pub packets: u64,
    /// Bytes of their frames, without frame check sequence.
    pub bytes: u64,
    /// Bytes of them that are in the capture.
    pub captured_bytes: u64,
    /// From the first packet to the last one.
    pub duration_ns: u64,
    /// Size of the file; `None` without one.
    pub file_bytes: Option<u64>,
    /// The seed.
    pub seed: u64,
}

impl Synth {
    /// Makes all packets that are left and writes them, where there is a capture to write them to. Now and
    /// then `goes_on` is told which share of all is made.
    ///
    /// # Errors
    /// The file's, or that of `goes_on`: the capture is then not finished.
    pub fn write_to<E: From<CaptureError>>(
        mut self,
        mut capture: Option<CaptureWriter>,
        mut goes_on: impl FnMut(f64) -> Result<(), E>,
    ) -> Result<Made, E> {
        if let Some(capture) = &mut capture {
            let snap_len = self.config.snap_len.unwrap_or(SNAP_LEN);
            capture.add_interface(&Interface { link_number: 1, snap_len, name: Some("synth".into()) });
        }
        let seed = self.config.seed;
        let all = self.config.packets.max(1);
        let mut made =
            Made { packets: 0, bytes: 0, captured_bytes: 0, duration_ns: 0, file_bytes: None, seed };
        let (mut frame, mut first) = (Vec::new(), None);
        while let Some(packet) = self.next_record(&mut frame) {
            if let Some(capture) = &mut capture {
                capture.write(0, packet.time, packet.original_len, packet.data)?;
            }
            made.packets += 1;
            made.bytes += u64::from(packet.original_len);
            made.captured_bytes += packet.data.len() as u64;
            made.duration_ns = packet.time.since(*first.get_or_insert(packet.time));
            if made.packets.is_multiple_of(ASK_EVERY) {
                goes_on(made.packets as f64 / all as f64)?;
            }
        }
        made.file_bytes = capture.map(CaptureWriter::finish).transpose()?.map(|file| file.file_bytes);
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::capture::{CaptureReader, Format, WriterOptions};
    use crate::synth::SynthConfig;

    /// Against the packets one by one.
    #[test]
    fn a_capture_has_what_is_made() {
        let config = SynthConfig { flows: 7, packets: 70_000, snap_len: Some(100), ..SynthConfig::default() };
        let synth = || Synth::new(config.clone()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made.pcapng");
        let capture = CaptureWriter::create(&path, WriterOptions::for_path(&path, Format::PcapNg)).unwrap();
        let mut shares = Vec::new();
        let go_on = |share| {
            shares.push(share);
            Ok::<_, CaptureError>(())
        };
        let made = synth().write_to(Some(capture), go_on).unwrap();
        assert_eq!(shares, [65_536.0 / 70_000.0]);
        assert_eq!(made.file_bytes, Some(fs::metadata(&path).unwrap().len()));

        let mut reader = CaptureReader::open(&path).unwrap();
        let (mut twin, mut frame, mut times) = (synth(), Vec::new(), Vec::new());
        let (mut bytes, mut captured) = (0, 0);
        while let Some(time) = twin.next_packet(&mut frame) {
            let record = reader.next_record().unwrap().unwrap();
            let kept = &frame[..frame.len().min(100)];
            assert_eq!((record.time, record.original_len, record.data), (time, frame.len() as u32, kept));
            bytes += frame.len() as u64;
            captured += kept.len() as u64;
            times.push(time);
        }
        assert!(reader.next_record().unwrap().is_none());
        let duration_ns = times[times.len() - 1].since(times[0]);
        let wanted =
            Made { packets: 70_000, bytes, captured_bytes: captured, duration_ns, file_bytes: None, seed: 1 };
        assert_eq!(Made { file_bytes: None, seed: 1, ..made }, wanted);
        assert_eq!(made.seed, config.seed);
        assert_eq!(
            synth().write_to(None, |_| Ok::<_, CaptureError>(())).unwrap(),
            Made { seed: made.seed, ..wanted }
        );
    }

    #[test]
    fn who_does_not_go_on_has_no_capture() {
        let config = SynthConfig { packets: 70_000, ..SynthConfig::default() };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made.pcap");
        let capture = CaptureWriter::create(&path, WriterOptions::for_path(&path, Format::PcapNg)).unwrap();
        let stop = |_| Err(CaptureError::NoParts { file: "enough".into() });
        let result = Synth::new(config).unwrap().write_to(Some(capture), stop);
        assert!(matches!(result, Err(CaptureError::NoParts { .. })), "{result:?}");
        assert!(!path.exists());
    }
}
