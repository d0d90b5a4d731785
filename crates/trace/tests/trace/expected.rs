//! The analysis against independently computed figures of real captures.

use std::path::{Path, PathBuf};

use serde_json::Value;
use slipstream::io::capture::{CaptureError, CaptureReader, Part, Parts};
use slipstream_trace::{Analyzer, Config, Digest, Report, Sequence};

/// The captures; `None` where `SLIPSTREAM_TRACES=none` says that there are none.
pub(crate) fn traces() -> Option<PathBuf> {
    let dir = std::env::var_os("SLIPSTREAM_TRACES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces"), PathBuf::from);
    if dir.is_dir() {
        return Some(dir);
    }
    assert_eq!(
        dir,
        Path::new("none"),
        "no captures there: SLIPSTREAM_TRACES names their folder, or is `none`"
    );
    eprintln!("SLIPSTREAM_TRACES=none: nothing was tested");
    None
}

fn analyze(path: &Path, threads: usize) -> Report {
    let mut analyzer = Analyzer::new(Config { threads, ..Config::default() }).unwrap();
    let mut reader = CaptureReader::open(path).unwrap();
    if threads > 1 {
        match Parts::new(reader) {
            Ok(parts) => return analyze_parts(analyzer, &parts, threads),
            Err(packed) => reader = *packed,
        }
    }
    while let Some(record) = reader.next_record().unwrap() {
        analyzer.packet(record.time.0, record.link, record.original_len, record.data);
    }
    analyzer.finish().report()
}

/// The same, of a file of which several threads read parts.
fn analyze_parts(mut analyzer: Analyzer, parts: &Parts, threads: usize) -> Report {
    let empty = analyzer.digest();
    let make = |part: &Part, digest: &mut Option<Digest>| {
        let digest = digest.get_or_insert_with(|| empty.clone());
        digest.clear();
        for record in part.records() {
            digest.packet(record.time.0, record.link, record.original_len, record.data);
        }
    };
    let take = |digest: &mut Option<Digest>| -> Result<(), CaptureError> {
        digest.iter().for_each(|digest| analyzer.add(digest));
        Ok(())
    };
    parts.each(threads - 1, make, take).unwrap();
    analyzer.finish().report()
}

/// Compares figures with what is expected of one file.
struct Check<'a> {
    file: &'a str,
    /// Relative tolerance of figures that depend on how a clock that runs backwards is understood.
    window_tolerance: f64,
}

impl Check<'_> {
    fn close(&self, what: &str, got: Option<f64>, want: &Value, tolerance: f64) {
        let Some(want) = want.as_f64() else {
            assert!(want.is_null() && got.is_none(), "{}: {what}: {got:?} instead of {want}", self.file);
            return;
        };
        let got = got.unwrap_or_else(|| panic!("{}: {what}: nothing instead of {want}", self.file));
        assert!(
            (got - want).abs() <= tolerance * want.abs().max(f64::MIN_POSITIVE),
            "{}: {what}: {got} instead of {want}",
            self.file
        );
    }

    fn exact(&self, what: &str, got: Option<f64>, want: &Value) {
        self.close(what, got, want, 1e-12);
    }

    fn quantile(&self, what: &str, got: Option<f64>, want: &Value) {
        self.close(what, got, want, 0.01);
    }

    fn count(&self, what: &str, got: u64, want: &Value) {
        assert_eq!(Some(got), want.as_u64(), "{}: {what}", self.file);
    }

    fn windowed(&self, what: &str, got: Option<f64>, want: &Value) {
        self.close(what, got, want, self.window_tolerance);
    }

    fn sequence(&self, name: &str, got: &Sequence, want: &Value) {
        self.count("packets", got.packets, &want["packets"]);
        self.count("flows", got.flows, &want["flows_dir"]);
        if got.packets == 0 {
            return;
        }
        self.count("single", got.single_packet_flows, &want["single_packet_flows"]);
        self.count("runs", got.runs, &want["runs"]);
        self.exact("slf", got.slf, &want["slf"]);
        self.count("pairs", got.pairs, &want["pairs"]);
        let spatial = &want["spatial"];
        self.exact("share apart", got.share_spatial_distance_gt_1, &spatial["share_gt1"]);
        self.exact("spatial mean", got.spatial_distance.mean, &spatial["mean"]);
        self.quantile("spatial median", got.spatial_distance.p50, &spatial["median"]);
        let temporal = &want["temporal_ns"];
        let negative: u64 =
            got.temporal_distance_ns.histogram.iter().filter(|b| b.to < 0).map(|b| b.count).sum();
        self.count("negative distances", negative, &temporal["negative"]);
        self.exact("temporal mean", got.temporal_distance_ns.mean, &temporal["mean"]);
        self.quantile("temporal p25", got.temporal_distance_ns.p25, &temporal["p25"]);
        self.quantile("temporal p50", got.temporal_distance_ns.p50, &temporal["median"]);
        self.quantile("temporal p75", got.temporal_distance_ns.p75, &temporal["p75"]);
        let size = &want["flow_size"];
        let got_size = &got.flow_size;
        self.exact("largest flow", got_size.max.map(|v| v as f64), &size["max"]);
        self.exact("smallest flow", got_size.min.map(|v| v as f64), &size["min"]);
        self.exact("mean flow", got_size.distribution.mean, &size["mean"]);
        self.quantile("flow p25", got_size.distribution.p25, &size["p25"]);
        self.quantile("flow p50", got_size.distribution.p50, &size["median"]);
        self.quantile("flow p75", got_size.distribution.p75, &size["p75"]);
        self.quantile("flow p99", got_size.distribution.p99, &size["p99"]);
        self.windows(name, got, want);
        let mut switches = 0;
        for n in [32, 64, 256, 1024] {
            let want = &want[format!("switch_{n}")];
            if want.is_null() {
                continue;
            }
            let got = got.flow_switches.iter().find(|s| s.batch == n).unwrap();
            self.count("switch batches", got.batches, &want["batches"]);
            self.exact("unordered", Some(got.unordered), &want["unordered"]);
            self.exact("ordered", Some(got.ordered), &want["ordered"]);
            switches += 1;
        }
        assert_eq!(got.flow_switches.len(), switches);
    }

    fn windows(&self, name: &str, got: &Sequence, want: &Value) {
        assert_eq!(got.windows.len(), 3);
        for got in &got.windows {
            let want = &want[format!("train_{}us", got.window_ns / 1000)];
            self.windowed("batches", Some(got.batches as f64), &want["batches"]);
            self.windowed("mean train", got.mean_train, &want["mean"]);
            self.windowed("share", got.share_packets_in_trains, &want["share_pkts_in_batch_ge2"]);
            self.windowed("slf after", got.slf_after, &want["slf_out"]);
            if self.window_tolerance < 1e-9 {
                let sizes = want["hist"].as_object().unwrap();
                assert_eq!(got.histogram.len(), sizes.len());
                for bucket in &got.histogram {
                    self.count("histogram", bucket.count, &sizes[&bucket.from.to_string()]);
                }
            }
            assert_eq!(got.acks.is_some(), name == "tcp");
            if let Some(acks) = got.acks {
                self.count("pure acks", acks.pure_acks, &want["pure_acks"]);
                self.windowed("simple", acks.ack_coalescable_simple, &want["coal_simple"]);
                self.windowed("strict", acks.ack_coalescable_strict, &want["coal_strict"]);
                self.windowed("ack flags", acks.ack_flag_mean, &want["ackflag_mean"]);
            }
        }
    }

    fn report(&self, got: &Report, want: &Value) {
        self.count("records", got.records, &want["records"]);
        self.count("bytes", got.bytes, &want["bytes_wire"]);
        let seconds = got.duration_ns as f64 / 1e9;
        self.exact("duration", Some(seconds), &want["duration_s"]);
        let skipped = got.skipped;
        self.count("not IP", skipped.non_ip + skipped.truncated + skipped.malformed, &want["non_ip"]);
        self.count("link types", skipped.unsupported_link_type, &want["other_linktype"]);
        self.count("ipv6", got.ipv6, &want["ipv6"]);
        self.count("fragments", got.fragments, &want["fragments"]);
        self.count("both directions", got.flows_bidirectional, &want["flows_bidir"]);
        self.sequence("ip", &got.ip, &want["ip"]);
        if want["tcp"].is_null() {
            assert_eq!(got.tcp.packets, 0);
        } else {
            self.sequence("tcp", &got.tcp, &want["tcp"]);
        }
    }
}

/// Exact where the clock never runs backwards. Where it does, trains depend on how that is understood: here
/// time stands still, as it does in the reframe stage; in the expected figures each flow's times are sorted.
#[test]
fn every_capture_has_the_expected_locality() {
    let Some(dir) = traces() else { return };
    let expected = std::fs::read_to_string(dir.join("expected.jsonl")).unwrap();
    let mut files = 0;
    for line in expected.lines() {
        let want: Value = serde_json::from_str(line).unwrap();
        let file = want["file"].as_str().unwrap();
        let path =
            ["multi", "large"].map(|d| dir.join(d).join(file)).into_iter().find(|p| p.exists()).unwrap();
        let got = analyze(&path, 1);
        let window_tolerance = if got.clock_backwards == 0 { 1e-12 } else { 1e-3 };
        Check { file, window_tolerance }.report(&got, &want);
        assert_eq!(analyze(&path, 3), got, "{file}: threads change the result");
        files += 1;
    }
    assert!(files > 0, "nothing expected");
}
