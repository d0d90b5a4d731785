//! Cost of asking a rule about a packet: 256 packets, of TCP and UDP in turn, one in sixteen of them a SYN.

#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use slipstream::rules::Rule;
use slipstream_wire::{Flags, FlowKey, Headers};

fn packets() -> Vec<Headers> {
    (0..256_u32)
        .map(|i| {
            let tcp = i % 2 == 0;
            let (src, dst) = ((0x0a00_0000 + i).to_be_bytes().into(), [192, 168, 0, 1].into());
            let flags = Flags::PORTS | if tcp { Flags::TCP } else { 0 };
            let tcp_flags = match i % 32 {
                0 => 0x02,
                16 => 0x12,
                _ if tcp => 0x10,
                _ => 0,
            };
            let key = FlowKey::new(&[], src, dst, if tcp { 6 } else { 17 }, 1024 + i as u16, 443).unwrap();
            Headers { key, l3: 14, l4: 34, flags: Flags(flags), tcp_flags, tos: 0 }
        })
        .collect()
}

fn rules(c: &mut Criterion) {
    let packets = packets();
    let many: Vec<_> = (0..100).map(|i| format!("tcp dst 10.{i}.0.0/16 port {},443", i + 1)).collect();
    let mut group = c.benchmark_group("rules");
    group.throughput(Throughput::Elements(packets.len() as u64));
    for (name, text) in [
        ("never", "none"),
        ("tcp syn", "tcp syn"),
        ("tcp", "tcp"),
        ("prefix and ports", "src 10.0.0.0/8 dst port 80,443,8000-8080"),
        ("either of three", "udp port 53; icmp; tcp syn"),
        ("a hundred rules", &many.join("\n")),
    ] {
        let rule = Rule::parse(text).unwrap();
        group.bench_function(name, |b| {
            b.iter(|| {
                let rule = black_box(&rule);
                black_box(&packets).iter().filter(|h| rule.matches(h, 64)).count()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, rules);
criterion_main!(benches);
