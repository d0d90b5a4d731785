//! A scan of addresses that nobody has, beside neighbours in use (RFC 6583).

use std::net::Ipv4Addr;

use slipstream_wire::LinkType;

use super::tests::{Collect, datagram, framed, has};
use super::*;
use crate::PerTrain;
use slipstream_core::batch::{Batch, Train};
use slipstream_core::frame::Info;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::stage::{Observe, Stage};

const MILLISECOND: u64 = 1_000_000;
const HOSTS: u8 = 10;

/// The router of a wide network on `lan` and another one on `wan`.
fn wide() -> Router {
    let texts = ["lan 10.0.0.1/8 02:00:00:00:00:01", "wan 192.0.2.1/24 02:00:00:00:00:02"];
    Router::with_defaults(interfaces(texts.into_iter()).unwrap(), 7)
}

/// Runs one packet and what is due before it; the frames that left by the port `lan`.
fn send(stage: &mut dyn Stage, pool: &mut Pool, time: u64, input: u8, data: &[u8]) -> Vec<Vec<u8>> {
    let (links, mut out) = ([LinkType::Ethernet], Collect::default());
    while stage.next_deadline() <= Nanos(time) {
        let now = stage.next_deadline();
        stage.on_deadline(&mut Context { now, pool, input: 0, links: &links }, &mut out);
    }
    let now = Nanos(time);
    let buf = pool.insert(PacketMeta { original_len: data.len() as u32, interface: 0, time: now }, data);
    let info = slipstream_wire::classify(LinkType::Ethernet, data).map_or(Info::default(), |h| Info::new(&h));
    let mut batch = Batch::new();
    batch.frames.push(Frame { info, ..Frame::unclassified(now, buf, data.len() as u32) });
    batch.trains.push(Train {
        flow: 0,
        start: 0,
        len: 1,
        release: now,
        order: 0,
        sequence: 0,
        continues: false,
    });
    stage.process(&mut Context { now, pool, input, links: &links }, &mut batch, &mut out);
    out.0.into_iter().filter(|(port, ..)| *port == 0).map(|(_, _, frame)| frame).collect()
}

/// The answer of a host to an ARP request that left by the port `lan`, if it is for one of the hosts.
fn answer(frame: &[u8]) -> Option<Vec<u8>> {
    let host = *frame.get(41).filter(|_| frame[12..14] == [8, 6] && frame[38..41] == [10, 0, 1])?;
    let mut arp =
        vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 7, host, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 7, host];
    arp.extend([10, 0, 1, host, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
    (host <= HOSTS).then_some(arp)
}

/// Ten hosts get a packet each every 100 ms, while somebody outside sends one to another address without a
/// host every millisecond, for 70 s: long enough for hosts to be asked again. All packets for hosts arrive.
#[test]
fn a_scan_costs_neighbours_in_use_nothing() {
    let (mut stage, mut pool) = (PerTrain::new(wide()), Pool::new());
    let (mut sent, mut arrived) = (0, 0);
    let mut now = 0;
    for tick in 0..70_000_u32 {
        let mut packets = vec![(0x0a02_0000 + tick % 60_000, false)];
        if tick % 10 == 0 {
            packets.push((0x0a00_0101 + tick / 10 % u32::from(HOSTS), true));
            sent += 1;
        }
        for (to, wanted) in packets {
            now += MILLISECOND / 2;
            let packet = framed(2, &datagram(Ipv4Addr::from_bits(to).into(), 9, b"x"));
            let mut left = send(&mut stage, &mut pool, now, 1, &packet);
            let answers: Vec<_> = left.iter().filter_map(|f| answer(f)).collect();
            for arp in answers {
                left.extend(send(&mut stage, &mut pool, now + 1000, 0, &arp));
            }
            let host = |f: &&Vec<u8>| f[12..14] == [8, 0] && f[30..33] == [10, 0, 1];
            arrived += left.iter().filter(host).count();
            assert!(!wanted || arrived == sent, "packet {sent} was lost after {now} ns");
        }
    }
    assert_eq!((arrived, sent), (7_000, 7_000));
    assert!(has("neighbour_questions_displaced", &stage) > 60_000);
    assert_eq!(has("neighbours_full", &stage), 0);
    assert!(pool.live() == stage.held() && stage.held() <= 256);
}
