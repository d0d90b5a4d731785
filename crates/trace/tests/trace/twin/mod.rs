//! The analysis against its slow twin, on random streams with ties in time, small bursts and small windows.

pub(crate) mod slow;

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use slipstream_stats::Bucket;
use slipstream_trace::{Analyzer, EndpointSide};
use slipstream_trace::{Config, ConfigError, Distribution, MergeError, Report, Sequence, Window};
use slipstream_wire::LinkType;
use slow::{Packet, Seen};

/// The kinds from which a packet is drawn.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Tcp {
        flags: u8,
        ack: u32,
        payload: u8,
    },
    /// TCP that ends before its ports do; it shares its key with fragments.
    TcpTruncated,
    /// TCP with both ports 0: likewise.
    TcpPortless {
        ack: u32,
    },
    TcpFragment,
    Udp,
    Arp,
}

fn kind() -> impl Strategy<Value = Kind> {
    let flags = prop_oneof![4 => Just(0x10u8), 1 => Just(0x18), 1 => Just(0x02), 1 => Just(0x11)];
    let ack = prop_oneof![0u32..6, Just(u32::MAX), Just(0x8000_0002)];
    prop_oneof![
        8 => (flags, ack.clone(), prop_oneof![3 => Just(0u8), 1 => Just(20)])
            .prop_map(|(flags, ack, payload)| Kind::Tcp { flags, ack, payload }),
        1 => Just(Kind::TcpTruncated),
        1 => ack.prop_map(|ack| Kind::TcpPortless { ack }),
        1 => Just(Kind::TcpFragment),
        3 => Just(Kind::Udp),
        1 => Just(Kind::Arp),
    ]
}

fn bytes(kind: Kind, flow: u8, ipv6: bool) -> Vec<u8> {
    let (protocol, port, fragment) = match kind {
        Kind::Tcp { .. } | Kind::TcpTruncated => (6, 1000, false),
        Kind::TcpPortless { .. } => (6, 0, false),
        Kind::TcpFragment => (6, 1000, true),
        Kind::Udp => (17, 53, false),
        Kind::Arp => return vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 6, 0, 1],
    };
    // The flows are both directions between few hosts.
    let (src, dst) = (flow >> 1, flow & 1);
    let (src, dst) = if flow & 4 == 0 { (src, dst) } else { (dst, src) };
    let (flags, ack, payload) = match kind {
        Kind::Tcp { flags, ack, payload } => (flags, ack, payload),
        Kind::TcpPortless { ack } => (0x10, ack, 0),
        _ => (0, 0, 0),
    };
    let mut segment = vec![0; 20 + usize::from(payload)];
    segment[0..2].copy_from_slice(&if port == 0 { 0u16 } else { port + u16::from(src) }.to_be_bytes());
    segment[2..4].copy_from_slice(&if port == 0 { 0u16 } else { port + u16::from(dst) }.to_be_bytes());
    segment[8..12].copy_from_slice(&ack.to_be_bytes());
    segment[12] = 0x50;
    segment[13] = flags;
    let length = segment.len() as u16;
    if matches!(kind, Kind::TcpTruncated) {
        segment.truncate(3);
    }
    let mut frame = vec![0; 12];
    if ipv6 && !fragment {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([protocol, 64]);
        frame.extend([[0; 15].as_slice(), &[src], &[0; 15], &[dst]].concat());
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + length).to_be_bytes());
        frame.extend([
            0,
            0,
            if fragment { 0x20 } else { 0 },
            0,
            64,
            protocol,
            0,
            0,
            10,
            0,
            0,
            src,
            10,
            0,
            0,
            dst,
        ]);
    }
    frame.extend(segment);
    frame
}

/// A stream: gaps are often 0, now and then long, now and then backwards.
pub(crate) fn stream(max: usize) -> impl Strategy<Value = Vec<Packet>> {
    let gap = prop_oneof![4 => Just(0i64), 4 => 1i64..4, 2 => 4i64..30, 1 => -12i64..0];
    vec((kind(), 0u8..8, prop::bool::weighted(0.2), gap), 0..max).prop_map(|drawn| {
        let mut time = 1000i64;
        let packet = |(kind, flow, ipv6, gap): (Kind, u8, bool, i64)| {
            time = (time + gap).max(0);
            Packet { time: time as u64, link: LinkType::Ethernet, bytes: bytes(kind, flow, ipv6) }
        };
        drawn.into_iter().map(packet).collect()
    })
}

pub(crate) fn config() -> impl Strategy<Value = Config> {
    (vec(0u64..12, 0..4), 1u32..6, vec(1u32..9, 0..3)).prop_map(|(windows_ns, burst, switch_batches)| {
        Config { windows_ns, burst, switch_batches, top: 3, ..Config::default() }
    })
}

fn histogram(sizes: &BTreeMap<u64, u64>) -> Vec<Bucket> {
    sizes.iter().map(|(&s, &count)| Bucket { from: s as i64, to: s as i64, count }).collect()
}

fn ratio(a: u64, b: u64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}

fn assert_close(got: Option<f64>, want: Option<f64>, what: &str) {
    match (got, want) {
        (None, None) => {}
        (Some(g), Some(w)) if (g - w).abs() <= 1e-12 * w.abs().max(1.0) => {}
        _ => panic!("{what}: {got:?} instead of {want:?}"),
    }
}

/// Small values have buckets of their own, so that quantiles are exact too.
fn check_distribution(got: &Distribution, values: &[i64], what: &str) {
    let floats: Vec<f64> = values.iter().map(|v| *v as f64).collect();
    let mean = (!floats.is_empty()).then(|| floats.iter().sum::<f64>() / floats.len() as f64);
    assert_close(got.mean, mean, what);
    for (got, q) in [(got.p25, 0.25), (got.p50, 0.5), (got.p75, 0.75), (got.p90, 0.9), (got.p99, 0.99)] {
        let want = slow::quantile(floats.clone(), q);
        assert!(
            got.zip(want).map_or(got == want, |(g, w)| (g - w).abs() <= 0.02 * w.abs() + 1e-9),
            "{what} at {q}: {got:?} instead of {want:?}"
        );
    }
    assert_eq!(got.histogram.iter().map(|b| b.count).sum::<u64>(), values.len() as u64);
    for bucket in &got.histogram {
        let inside = values.iter().filter(|v| (bucket.from..=bucket.to).contains(*v)).count();
        assert_eq!(bucket.count, inside as u64, "{what}: {bucket:?}");
    }
}

fn check_window(got: &Window, sequence: &[Seen], window: u64, config: &Config, tcp: bool) {
    let held = slow::held(sequence, window, config.burst as usize);
    let n = sequence.len() as u64;
    let batches = held.sizes.values().sum();
    assert_eq!((got.window_ns, got.burst, got.batches), (window, config.burst, batches));
    assert_eq!(got.histogram, histogram(&held.sizes));
    assert_close(got.mean_train, ratio(n, batches), "mean train");
    let alone = held.sizes.get(&1).copied().unwrap_or(0);
    assert_close(got.share_packets_in_trains, ratio(n - alone, n), "share in trains");
    assert_close(got.slf_after, ratio(n, held.runs_after), "slf after");
    let sizes: Vec<f64> =
        held.sizes.iter().flat_map(|(s, c)| std::iter::repeat_n(*s as f64, *c as usize)).collect();
    for (got, q) in [(got.p25, 0.25), (got.p50, 0.5), (got.p75, 0.75), (got.p90, 0.9)] {
        assert_close(got, slow::quantile(sizes.clone(), q), "train quantile");
    }
    assert_eq!(got.acks.is_some(), tcp);
    if let Some(acks) = got.acks {
        let pure = sequence.iter().filter(|p| p.pure.is_some()).count() as u64;
        let flagged = sequence.iter().filter(|p| p.ack_flag).count() as u64;
        assert_eq!(acks.pure_acks, pure);
        assert_close(acks.ack_coalescable_simple, ratio(pure - held.batches_with_pure, pure), "simple");
        assert_close(acks.ack_coalescable_strict, ratio(held.strict, pure), "strict");
        assert_close(acks.ack_flag_mean, ratio(flagged, held.batches_with_ack), "ack flag mean");
    }
}

fn check_sequence(got: &Sequence, sequence: &[Seen], config: &Config, tcp: bool) {
    let n = sequence.len() as u64;
    let flows = slow::flows(sequence);
    let runs = slow::runs(&sequence.iter().map(|p| p.key).collect::<Vec<_>>());
    let sizes: Vec<i64> = flows.values().map(|f| f.len() as i64).collect();
    let (spatial, temporal): (Vec<i64>, Vec<i64>) =
        slow::distances(sequence).into_iter().map(|(s, t)| (s as i64, t)).unzip();
    assert_eq!((got.packets, got.flows, got.runs), (n, flows.len() as u64, runs));
    assert_eq!(got.single_packet_flows, sizes.iter().filter(|s| **s == 1).count() as u64);
    assert_close(got.slf, ratio(n, runs), "slf");
    assert_eq!(got.pairs, spatial.len() as u64);
    let apart = spatial.iter().filter(|s| **s > 1).count() as u64;
    assert_close(got.share_spatial_distance_gt_1, ratio(apart, got.pairs), "share apart");
    check_distribution(&got.spatial_distance, &spatial, "spatial");
    check_distribution(&got.temporal_distance_ns, &temporal, "temporal");
    check_distribution(&got.flow_size.distribution, &sizes, "flow size");
    assert_eq!(got.flow_size.min.map(|v| v as i64), sizes.iter().min().copied());
    assert_eq!(got.flow_size.max.map(|v| v as i64), sizes.iter().max().copied());
    assert_eq!(got.windows.len(), config.windows_ns.len());
    for (got, &window) in got.windows.iter().zip(&config.windows_ns) {
        check_window(got, sequence, window, config, tcp);
    }
    let wanted = config.switch_batches.iter().map(|&b| (b, slow::switches(sequence, b as usize)));
    let wanted: Vec<_> = wanted.filter(|(_, (batches, ..))| *batches > 0).collect();
    assert_eq!(got.flow_switches.len(), wanted.len());
    for (got, (batch, (batches, unordered, ordered))) in got.flow_switches.iter().zip(wanted) {
        assert_eq!((got.batch, got.batches), (batch, batches));
        assert_close(Some(got.unordered), ratio(unordered, batches), "unordered");
        assert_close(Some(got.ordered), ratio(ordered, batches), "ordered");
    }
}

fn check(report: &Report, packets: &[Packet], config: &Config) {
    let ip = slow::seen(packets);
    let tcp: Vec<Seen> = ip.iter().filter(|p| p.tcp).cloned().collect();
    assert_eq!(report.records, packets.len() as u64);
    assert_eq!(report.bytes, packets.iter().map(|p| p.bytes.len() as u64).sum::<u64>());
    let times = || packets.iter().map(|p| p.time);
    assert_eq!(report.duration_ns, times().max().unwrap_or(0) - times().min().unwrap_or(0));
    let mut latest = 0;
    let backwards = times().filter(|&time| {
        latest = latest.max(time);
        time < latest
    });
    assert_eq!(report.clock_backwards, backwards.count() as u64);
    assert_eq!(report.skipped.non_ip, (packets.len() - ip.len()) as u64);
    assert_eq!(report.flows_bidirectional, slow::bidirectional(&ip));
    check_sequence(&report.ip, &ip, config, false);
    check_sequence(&report.tcp, &tcp, config, true);
    let endpoints = slow::endpoints(&tcp);
    assert_eq!(report.top_endpoints.len(), endpoints.len().min(config.top));
    for (got, (address, tx, rx)) in report.top_endpoints.iter().zip(endpoints) {
        assert_eq!(got.address, address);
        for (got, sizes) in [(got.tx, tx), (got.rx, rx)] {
            let floats: Vec<f64> = sizes.iter().map(|s| *s as f64).collect();
            let want = EndpointSide {
                flows: sizes.len() as u64,
                min: sizes.first().copied(),
                mean: ratio(sizes.iter().sum(), sizes.len() as u64),
                median: slow::quantile(floats, 0.5),
                max: sizes.last().copied(),
            };
            assert_eq!(got, want);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn follows_the_definitions(packets in stream(160), config in config()) {
        let report = slow::partial(&config, &packets).report();
        check(&report, &packets, &config);
    }

    #[test]
    fn merging_is_commutative_and_associative(
        a in stream(40), b in stream(40), c in stream(40), config in config(),
    ) {
        let [a, b, c] = [&a, &b, &c].map(|packets| slow::partial(&config, packets));
        let mut left = a.clone();
        left.merge(&b).unwrap();
        left.merge(&c).unwrap();
        let mut right = c.clone();
        right.merge(&b).unwrap();
        let mut right_of_a = a.clone();
        right_of_a.merge(&right).unwrap();
        right.merge(&a).unwrap();
        prop_assert_eq!(left.report(), right.report());
        prop_assert_eq!(left.report(), right_of_a.report());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Long enough for several blocks, for rings that grow, and for many instants with several full batches.
    #[test]
    fn threads_change_nothing(packets in stream(9_000), burst in 1u32..6) {
        let config = Config { windows_ns: vec![0, 3, 500, 40_000], burst, ..Config::default() };
        let alone = slow::partial(&config, &packets).report();
        for threads in [2, 3, 4, 7, 9] {
            let shared = slow::partial(&Config { threads, ..config.clone() }, &packets).report();
            prop_assert_eq!(&shared, &alone);
        }
        check(&alone, &packets, &config);
    }
}

/// More flows held open at once than the ring has room for at first, and more than the flow table.
#[test]
fn many_flows_at_once() {
    let packet = |n: u32| {
        let mut bytes = bytes(Kind::Tcp { flags: 0x10, ack: n, payload: 0 }, 1, n.is_multiple_of(3));
        let flow = n % 1700;
        let at = bytes.len() - 20;
        bytes[at..at + 2].copy_from_slice(&(flow as u16).to_be_bytes());
        Packet { time: u64::from(n), link: LinkType::Ethernet, bytes }
    };
    let packets: Vec<Packet> = (0..20_000).map(packet).collect();
    let config = Config { windows_ns: vec![100, 5000, 9000], burst: 3, top: 3, ..Config::default() };
    check(&slow::partial(&config, &packets).report(), &packets, &config);
}

/// A flow that occurs in both halves of a rotated capture is one flow.
#[test]
fn merging_unites_the_flows() {
    let config = Config::default();
    let tcp = |time, flow| Packet {
        time,
        link: LinkType::Ethernet,
        bytes: bytes(Kind::Tcp { flags: 0x10, ack: 1, payload: 0 }, flow, false),
    };
    let first = [tcp(100, 1), tcp(200, 2)];
    let second = [tcp(500, 1), tcp(900, 1)];
    let mut total = slow::partial(&config, &first);
    total.merge(&slow::partial(&config, &second)).unwrap();
    let report = total.report();
    assert_eq!((report.duration_ns, report.records), (800, 4));
    for sequence in [&report.ip, &report.tcp] {
        assert_eq!((sequence.packets, sequence.flows, sequence.single_packet_flows), (4, 2, 1));
        assert_eq!((sequence.runs, sequence.pairs), (3, 1));
        assert_eq!(sequence.flow_size.max, Some(3));
    }
}

#[test]
fn merging_different_settings_is_refused() {
    let mut a = slow::partial(&Config::default(), &[]);
    let b = slow::partial(&Config { burst: 8, ..Config::default() }, &[]);
    assert_eq!(a.merge(&b), Err(MergeError::Settings));
    let threads = slow::partial(&Config { threads: 3, ..Config::default() }, &[]);
    assert_eq!(a.merge(&threads), Ok(()));
}

#[test]
fn an_invalid_configuration_is_refused() {
    let error = Analyzer::new(Config { burst: 0, ..Config::default() }).unwrap_err();
    assert_eq!(error, ConfigError::Burst(0));
}

#[test]
fn an_empty_trace_has_every_key_and_no_number_that_is_none() {
    let report = slow::partial(&Config::default(), &[]).report();
    let json = serde_json::to_value(&report).unwrap();
    for key in
        ["records", "bytes", "duration_ns", "ipv6", "fragments", "flows_bidirectional", "clock_backwards"]
    {
        assert_eq!(json[key], 0, "{key}");
    }
    for key in ["non_ip", "unsupported_link_type", "truncated", "malformed"] {
        assert_eq!(json["skipped"][key], 0, "{key}");
    }
    assert_eq!(json["top_endpoints"], serde_json::json!([]));
    let nothing = serde_json::json!({
        "mean": null, "p25": null, "p50": null, "p75": null, "p90": null, "p99": null, "histogram": []
    });
    for (name, tcp) in [("ip", false), ("tcp", true)] {
        let s = &json[name];
        for key in ["packets", "flows", "single_packet_flows", "runs", "pairs"] {
            assert_eq!(s[key], 0, "{key}");
        }
        assert!(s["slf"].is_null() && s["share_spatial_distance_gt_1"].is_null());
        assert_eq!(s["spatial_distance"], nothing);
        assert_eq!(s["temporal_distance_ns"], nothing);
        let mut sizes = nothing.clone();
        sizes["min"] = serde_json::Value::Null;
        sizes["max"] = serde_json::Value::Null;
        assert_eq!(s["flow_size"], sizes);
        assert_eq!(s["flow_switches"], serde_json::json!([]));
        let mut window = serde_json::json!({
            "window_ns": 16_000, "burst": 32, "batches": 0, "mean_train": null, "share_packets_in_trains": null,
            "p25": null, "p50": null, "p75": null, "p90": null, "histogram": [], "slf_after": null
        });
        if tcp {
            window["pure_acks"] = 0.into();
            for key in ["ack_coalescable_simple", "ack_coalescable_strict", "ack_flag_mean"] {
                window[key] = serde_json::Value::Null;
            }
        }
        assert_eq!(s["windows"][0], window);
        assert_eq!(s["windows"].as_array().map(Vec::len), Some(3));
    }
}
