//! The capture interface of packets that a router makes.

use super::fib::Fib;
use super::link_tests::{INTERFACES, address};
use super::tests::{datagram, framed};
use super::*;
use crate::routes::Routes;
use crate::{PerPacket, PerTrain};
use slipstream_core::batch::{Batch, Train};
use slipstream_core::frame::Info;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::stage::{Output, Stage};
use slipstream_wire::{LinkType, classify};

/// Packets of the router's own belong to the capture interface of the packet that they answer, also where it
/// is not the first one of its train; questions that are due later to that of the last packet of the router's
/// link type.
#[test]
fn packets_of_its_own_belong_to_the_interface_of_the_packet_before() {
    struct Interfaces(Vec<u32>);
    impl Output for Interfaces {
        fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
            for frame in &batch.frames {
                self.0.push(pool.meta(frame.buf).interface);
                pool.free(frame.buf);
            }
            batch.clear();
        }
    }
    let links = [LinkType::Ethernet, LinkType::Ethernet, LinkType::RawIp];
    let expired = framed(1, &datagram(address("198.51.100.9"), 1, b"x"));
    let unknown = framed(1, &datagram(address("203.0.113.9"), 9, b"x"));
    let waits = framed(1, &datagram(address("172.16.0.9"), 9, b"x"));
    let bare = datagram(address("172.16.0.9"), 9, b"x");
    // Capture interfaces of packets of one flow, and of what the router makes of them, now and later.
    for (frame, interfaces, made) in [
        (&expired, [0, 1, 0, 1], vec![0, 1, 0, 1]),
        (&unknown, [0, 1, 1, 0], vec![0, 1, 1, 0]),
        (&waits, [0, 0, 1, 1], vec![0, 1, 1]),
    ] {
        let router = || {
            let mut router = Router::with_defaults(super::interfaces(INTERFACES.into_iter()).unwrap(), 3);
            let routes = "172.16.0.0/12 port wan\n\
                198.51.100.0/24 via 10.0.0.7 mac 02:00:00:00:07:01\n\
                192.0.2.7 via 10.0.0.7 mac 02:00:00:00:07:01\n";
            let routes = Routes::parse(routes).unwrap();
            let fib = Fib::build(&router.interfaces, routes.routes()).unwrap();
            router.install(fib, Nanos(0));
            router
        };
        let (mut trains, mut packets) = (PerTrain::new(router()), PerPacket::new(router()));
        for stage in [&mut trains as &mut dyn Stage, &mut packets] {
            let (mut pool, mut out) = (Pool::new(), Interfaces(Vec::new()));
            for (packet, interfaces) in [(frame, &interfaces[..]), (&bare, &[2])] {
                let mut batch = Batch::new();
                for interface in interfaces {
                    let meta = PacketMeta {
                        original_len: packet.len() as u32,
                        interface: *interface,
                        time: Nanos(1),
                    };
                    let buf = pool.insert(meta, packet);
                    let info = Info::new(&classify(links[*interface as usize], packet).unwrap());
                    batch
                        .frames
                        .push(Frame { info, ..Frame::unclassified(Nanos(1), buf, packet.len() as u32) });
                }
                let len = interfaces.len() as u32;
                let release = Nanos(1);
                batch.trains.push(Train {
                    flow: 0,
                    start: 0,
                    len,
                    release,
                    order: 0,
                    sequence: 0,
                    continues: false,
                });
                let mut cx = Context { now: Nanos(1), pool: &mut pool, input: 0, links: &links };
                stage.process(&mut cx, &mut batch, &mut out);
            }
            for _ in 0..2 {
                let now = stage.next_deadline();
                if now < Nanos::MAX {
                    let mut cx = Context { now, pool: &mut pool, input: 0, links: &links };
                    stage.on_deadline(&mut cx, &mut out);
                }
            }
            assert_eq!(out.0, made);
            stage.drain(&mut Context { now: Nanos(2), pool: &mut pool, input: 0, links: &links }, &mut out);
            assert_eq!(pool.live(), 0);
        }
    }
}
