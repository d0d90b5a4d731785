//! IPFIX messages as others read them: the crate `netflow_parser`, and tshark where it is installed.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use netflow_parser::variable_versions::ipfix::FlowSetBody;
use netflow_parser::{NetflowPacket, NetflowParser};
use proptest::prelude::*;
use slipstream::functions::flow_stats::{EndReason, FlowRecord};
use slipstream::functions::ipfix::{Exporter, IpfixConfig};
use slipstream::pipeline::Plan;
use slipstream::time::Nanos;
use slipstream_wire::checksum::{fill_ip, fill_transport};
use slipstream_wire::{FlowKey, LinkType, classify};

const NOW: Nanos = Nanos(1_700_000_000_000_000_000);

fn record(n: u64, v6: bool) -> FlowRecord {
    let (src, dst) = if v6 {
        (format!("2001:db8::{:x}", n % 0xffff).parse().unwrap(), "2001:db8:ffff::1".parse().unwrap())
    } else {
        (format!("10.0.{}.{}", n / 256 % 256, n % 256).parse().unwrap(), "192.0.2.7".parse().unwrap())
    };
    let vlans: &[u16] = if n.is_multiple_of(3) { &[42] } else { &[] };
    let reasons = [EndReason::Idle, EndReason::Active, EndReason::Forced, EndReason::Resources];
    FlowRecord {
        key: FlowKey::new(vlans, src, dst, 6, 1024 + n as u16 % 1000, 443).unwrap(),
        packets: n + 1,
        bytes: n * 1000 + 40,
        first: Nanos(NOW.0 - 5_000_000_000 + n * 1_000_000),
        last: Nanos(NOW.0 - n * 1_000_000),
        tcp_flags: 0x1b,
        tos: 0xb8,
        reason: reasons[n as usize % 4],
    }
}

fn export(records: &[FlowRecord], config: &IpfixConfig, gap: u64) -> Vec<Vec<u8>> {
    let mut messages = vec![];
    let mut exporter = Exporter::new(config);
    let mut now = NOW;
    let mut write = |message: &[u8]| {
        messages.push(message.to_vec());
        Ok(())
    };
    for record in records {
        exporter.push(record, now, &mut write).unwrap();
        now = now.after(gap);
    }
    exporter.flush(now, &mut write).unwrap();
    exporter.flush(now, &mut write).unwrap();
    let counters = *exporter.counters();
    assert_eq!((counters.messages, counters.records), (messages.len() as u64, records.len() as u64));
    assert_eq!(counters.bytes, messages.iter().map(|m| m.len() as u64).sum::<u64>());
    messages
}

/// A record on the wire, field by field.
fn expected(r: &FlowRecord) -> Vec<Vec<u8>> {
    let address = |a: std::net::IpAddr| match a {
        std::net::IpAddr::V4(a) => a.octets().to_vec(),
        std::net::IpAddr::V6(a) => a.octets().to_vec(),
    };
    vec![
        address(r.key.src()),
        address(r.key.dst()),
        r.key.src_port().to_be_bytes().to_vec(),
        r.key.dst_port().to_be_bytes().to_vec(),
        vec![r.key.protocol()],
        vec![r.tos],
        vec![r.tcp_flags],
        r.key.vlans().next().unwrap_or(0).to_be_bytes().to_vec(),
        r.packets.to_be_bytes().to_vec(),
        r.bytes.to_be_bytes().to_vec(),
        (r.first.0 / 1_000_000).to_be_bytes().to_vec(),
        (r.last.0 / 1_000_000).to_be_bytes().to_vec(),
        vec![r.reason as u8],
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_parser_reads_what_was_written(
        versions in proptest::collection::vec(any::<bool>(), 1..200),
        max_message in prop_oneof![Just(256_u16), 300..9000_u16], domain: u32,
        interval in prop_oneof![Just(None), Just(Some(1_000_000_000_u64))],
    ) {
        let records: Vec<FlowRecord> = versions.iter().enumerate().map(|(n, v6)| record(n as u64, *v6)).collect();
        let config = IpfixConfig { domain, max_message, template_interval: interval };
        let messages = export(&records, &config, 100_000_000);
        let mut parser = NetflowParser::default();
        let mut seen = vec![];
        let mut templates = 0;
        for message in &messages {
            prop_assert!(message.len() <= usize::from(max_message));
            let before = seen.len() as u32;
            let result = parser.parse_bytes(message);
            prop_assert!(result.error.is_none());
            for packet in result.packets {
                let NetflowPacket::IPFix(packet) = packet else { panic!("not IPFIX") };
                prop_assert_eq!(packet.header.sequence_number, before);
                prop_assert_eq!(packet.header.observation_domain_id, domain);
                prop_assert!(packet.header.export_time >= 1_700_000_000);
                for set in packet.flowsets {
                    match set.body {
                        FlowSetBody::Data(data) => {
                            for fields in data.fields {
                                let bytes = |value: &netflow_parser::variable_versions::field_value::FieldValue| {
                                    let mut bytes = vec![];
                                    value.write_be_bytes(&mut bytes).unwrap();
                                    bytes
                                };
                                seen.push(fields.iter().map(|(_, value)| bytes(value)).collect::<Vec<_>>());
                            }
                        }
                        FlowSetBody::Template(_) | FlowSetBody::Templates(_) => templates += 1,
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        prop_assert_eq!(seen, records.iter().map(expected).collect::<Vec<_>>());
        let seconds = records.len() / 10;
        let most = if interval.is_some() { seconds + 1 } else { 1 };
        prop_assert!((1..=most).contains(&templates));
    }
}

#[test]
fn a_message_that_can_t_be_written_shows_in_the_sequence() {
    let mut exporter = Exporter::new(&IpfixConfig::default());
    exporter.push(&record(1, false), NOW, &mut |_| Ok(())).unwrap();
    assert!(exporter.flush(NOW, &mut |_| Err(std::io::Error::other("gone"))).is_err());
    exporter.push(&record(2, false), NOW, &mut |_| Ok(())).unwrap();
    let mut sequence = 0;
    let mut write = |message: &[u8]| {
        sequence = message[11];
        Ok(())
    };
    exporter.flush(NOW, &mut write).unwrap();
    assert_eq!(sequence, 1);
}

/// A pcap file (LINKTYPE_IPV4, 228) of UDP datagrams to the port of IPFIX.
fn pcap(messages: &[Vec<u8>]) -> Vec<u8> {
    let mut file = vec![];
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 228] {
        file.extend(word.to_le_bytes());
    }
    for message in messages {
        let udp = (8 + message.len()) as u16;
        let mut packet = [
            &[0x45, 0][..],
            &(udp + 20).to_be_bytes(),
            &[0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2],
        ]
        .concat();
        packet.extend(
            [&4739_u16.to_be_bytes()[..], &4739_u16.to_be_bytes(), &udp.to_be_bytes(), &[0, 0], message]
                .concat(),
        );
        let headers = classify(LinkType::RawIp, &packet).unwrap();
        assert!(fill_ip(&mut packet, &headers) && fill_transport(&mut packet, &headers));
        for word in [1_700_000_000, 0, packet.len() as u32, packet.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(packet);
    }
    file
}

#[test]
fn tshark_reads_what_was_written() {
    if Command::new("tshark").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "tshark is needed");
        eprintln!("tshark is not installed: left out");
        return;
    }
    let records: Vec<FlowRecord> = (0..100).map(|n| record(n, n % 5 == 4)).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), pcap(&export(&records, &IpfixConfig::default(), 0))).unwrap();
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file.path()).args([
        "-d",
        "udp.port==4739,cflow",
        "-T",
        "fields",
        "-E",
        "occurrence=a",
    ]);
    for field in [
        "cflow.packets",
        "cflow.octets",
        "cflow.srcport",
        "cflow.srcaddr",
        "cflow.srcaddrv6",
        "_ws.expert.message",
        "_ws.malformed",
    ] {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let column = |n: usize| -> Vec<String> {
        text.lines()
            .filter_map(|line| line.split('\t').nth(n))
            .flat_map(|cell| cell.split(',').filter(|c| !c.is_empty()).map(str::to_owned))
            .collect()
    };
    let mut faults = String::new();
    for n in [5, 6] {
        write!(faults, "{}", column(n).join("; ")).unwrap();
    }
    assert_eq!(faults, "");
    assert_eq!(column(0), records.iter().map(|r| r.packets.to_string()).collect::<Vec<_>>());
    assert_eq!(column(1), records.iter().map(|r| r.bytes.to_string()).collect::<Vec<_>>());
    assert_eq!(column(2), records.iter().map(|r| r.key.src_port().to_string()).collect::<Vec<_>>());
    let sources = |v6: bool| -> Vec<String> {
        records.iter().filter(|r| r.key.is_ipv6() == v6).map(|r| r.key.src().to_string()).collect()
    };
    assert_eq!((column(3), column(4)), (sources(false), sources(true)));
}

/// Records that are to go to port 0 would all be lost.
#[test]
fn no_collector_is_at_port_0() {
    let graph = "in :: null -> flow_stats(export=\"udp:127.0.0.1:0\") -> null";
    let built = Plan::from_graph(graph, None, None, Path::new("")).and_then(|plan| plan.build(1));
    let said = built.unwrap_err().to_string();
    assert!(said.contains("127.0.0.1:0: nobody listens at port 0"), "{said}");
}
