//! Differential tests: what another library builds is read here as it was meant, checksums included.

use etherparse::{
    IpFragOffset, Ipv4Extensions, Ipv6FlowLabel, Ipv6FragmentHeader, Ipv6RawExtHeader, TcpOptionElement,
};
use etherparse::{
    IpHeaders, IpNumber, Ipv4Header, Ipv6Extensions, Ipv6Header, PacketBuilder, PacketBuilderStep, VlanId,
};
use proptest::prelude::*;
use slipstream_wire::checksum::{Verdict, fill_ip, fill_transport, verify_ip, verify_transport};
use slipstream_wire::view::{Ipv4, Tcp, TcpOption, Udp};
use slipstream_wire::{Flags, FlowKey, LinkType, classify, classify_with, tcp_segment};

#[derive(Clone, Debug)]
struct Packet {
    vlans: Vec<u16>,
    v6: bool,
    src: [u8; 16],
    dst: [u8; 16],
    tos: u8,
    extension: Option<u8>,
    fragment: bool,
    transport: Transport,
    ports: (u16, u16),
    payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Transport {
    Tcp { seq: u32, ack: u32, timestamps: bool },
    Udp,
    Echo,
}

fn transport() -> impl Strategy<Value = Transport> {
    prop_oneof![
        any::<(u32, u32, bool)>().prop_map(|(seq, ack, timestamps)| Transport::Tcp { seq, ack, timestamps }),
        Just(Transport::Udp),
        Just(Transport::Echo),
    ]
}

fn packet() -> impl Strategy<Value = Packet> {
    let first = (proptest::collection::vec(0_u16..4096, 0..3), any::<(bool, [u8; 16], [u8; 16], u8)>());
    let second =
        (proptest::option::of(0_u8..4), proptest::bool::weighted(0.2), transport(), any::<(u16, u16)>());
    (first, second, proptest::collection::vec(any::<u8>(), 0..80)).prop_map(
        |((vlans, (v6, src, dst, tos)), (extension, fragment, transport, ports), payload)| Packet {
            vlans,
            v6,
            src,
            dst,
            tos,
            extension,
            fragment,
            transport,
            ports,
            payload,
        },
    )
}

fn four(address: [u8; 16]) -> [u8; 4] {
    [address[0], address[1], address[2], address[3]]
}

impl Packet {
    fn protocol(&self) -> u8 {
        match (self.transport, self.v6) {
            (Transport::Tcp { .. }, _) => 6,
            (Transport::Udp, _) => 17,
            (Transport::Echo, false) => 1,
            (Transport::Echo, true) => 58,
        }
    }

    fn ip(&self) -> IpHeaders {
        let fragment = |offset| (IpFragOffset::try_new(offset).unwrap(), self.fragment);
        if self.v6 {
            let header = Ipv6Header {
                traffic_class: self.tos,
                flow_label: Ipv6FlowLabel::ZERO,
                source: self.src,
                destination: self.dst,
                hop_limit: 64,
                ..Default::default()
            };
            let raw = |words: u8| {
                Ipv6RawExtHeader::new_raw(IpNumber::TCP, &vec![0; 6 + 8 * usize::from(words)]).unwrap()
            };
            let mut extensions =
                Ipv6Extensions { hop_by_hop_options: self.extension.map(raw), ..Default::default() };
            if self.extension.is_some() || self.fragment {
                let (offset, more) = fragment(0);
                extensions.fragment = Some(Ipv6FragmentHeader::new(IpNumber::TCP, offset, more, 9));
            }
            IpHeaders::Ipv6(header, extensions)
        } else {
            let mut header =
                Ipv4Header::new(0, 64, IpNumber(self.protocol()), four(self.src), four(self.dst)).unwrap();
            header.dscp = etherparse::IpDscp::try_new(self.tos >> 2).unwrap();
            header.ecn = etherparse::IpEcn::try_new(self.tos & 3).unwrap();
            header.more_fragments = self.fragment;
            let words = usize::from(self.extension.unwrap_or(0));
            header.options = etherparse::Ipv4Options::try_from(&vec![1; words * 4][..]).unwrap();
            IpHeaders::Ipv4(header, Ipv4Extensions::default())
        }
    }

    fn frame(&self) -> Vec<u8> {
        let start = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let id = |n: usize| VlanId::try_new(self.vlans[n]).unwrap();
        match self.vlans.len() {
            0 => self.finish(start.ip(self.ip())),
            1 => self.finish(start.single_vlan(id(0)).ip(self.ip())),
            _ => self.finish(start.double_vlan(id(0), id(1)).ip(self.ip())),
        }
    }

    fn finish(&self, step: PacketBuilderStep<IpHeaders>) -> Vec<u8> {
        let mut out = Vec::new();
        let (sp, dp) = self.ports;
        match self.transport {
            Transport::Tcp { seq, ack, timestamps } => {
                let options: &[_] = if timestamps {
                    &[
                        TcpOptionElement::Noop,
                        TcpOptionElement::Timestamp(seq, ack),
                        TcpOptionElement::MaximumSegmentSize(1400),
                    ]
                } else {
                    &[]
                };
                let step = step.tcp(sp, dp, seq, 777).ack(ack).psh().options(options).unwrap();
                step.write(&mut out, &self.payload).unwrap();
            }
            Transport::Udp => step.udp(sp, dp).write(&mut out, &self.payload).unwrap(),
            Transport::Echo if self.v6 => {
                step.icmpv6_echo_request(sp, dp).write(&mut out, &self.payload).unwrap()
            }
            Transport::Echo => step.icmpv4_echo_request(sp, dp).write(&mut out, &self.payload).unwrap(),
        }
        out
    }

    fn key(&self) -> FlowKey {
        let (src, dst) = if self.v6 {
            (self.src.into(), self.dst.into())
        } else {
            (four(self.src).into(), four(self.dst).into())
        };
        let (sp, dp) = if self.fragment { (0, 0) } else { self.ports };
        FlowKey::new(&self.vlans, src, dst, self.protocol(), sp, dp).unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn read_as_it_was_meant(packet in packet()) {
        let frame = packet.frame();
        let headers = classify(LinkType::Ethernet, &frame).unwrap();
        prop_assert_eq!(headers.key, packet.key());
        prop_assert_eq!(headers.tos, packet.tos);
        prop_assert_eq!(headers.flags.has(Flags::FRAGMENT), packet.fragment);
        prop_assert_eq!(headers.flags.has(Flags::IPV6), packet.v6);
        prop_assert_eq!(&frame[frame.len() - packet.payload.len()..], &packet.payload[..]);
        let tcp = matches!(packet.transport, Transport::Tcp { .. }) && !packet.fragment;
        prop_assert_eq!(headers.flags.has(Flags::TCP), tcp);
        if let (Transport::Tcp { seq, ack, timestamps }, false) = (packet.transport, packet.fragment) {
            let segment = tcp_segment(&frame, &headers).unwrap();
            prop_assert_eq!((segment.seq, segment.ack, segment.flags, segment.window), (seq, ack, 0x018, 777));
            prop_assert_eq!(segment.payload_len as usize, packet.payload.len());
            let options: Vec<_> = segment.options(&frame).map(Result::unwrap).collect();
            if timestamps {
                prop_assert_eq!(options[1], TcpOption::Timestamps { value: seq, echo: ack });
                prop_assert_eq!(options[2], TcpOption::MaxSegmentSize(1400));
            } else {
                prop_assert_eq!(options, []);
            }
        }
    }

    #[test]
    fn checksums_agree(packet in packet()) {
        let built = packet.frame();
        let headers = classify(LinkType::Ethernet, &built).unwrap();
        prop_assert_eq!(verify_ip(&built, &headers), if packet.v6 { Verdict::Absent } else { Verdict::Right });
        let expected = if packet.fragment { Verdict::Unknown } else { Verdict::Right };
        prop_assert_eq!(verify_transport(&built, &headers), expected);
        let mut filled = built.clone();
        prop_assert_eq!(fill_ip(&mut filled, &headers), !packet.v6);
        prop_assert_eq!(fill_transport(&mut filled, &headers), !packet.fragment);
        prop_assert_eq!(filled, built);
    }

    /// Another library's packet in another library's packet.
    #[test]
    fn inside_vxlan(outer in packet(), inner in packet()) {
        let mut payload = vec![8, 0, 0, 0, 0, 0, 1, 0];
        payload.extend(inner.frame());
        let outer = Packet { transport: Transport::Udp, ports: (1, 4789), payload, ..outer };
        let headers = classify_with(LinkType::Ethernet, &outer.frame(), slipstream_wire::Encapsulation::Inner).unwrap();
        let key = if outer.fragment {
            outer.key()
        } else {
            let key = inner.key();
            let vlans = [outer.vlans, inner.vlans.clone()].concat();
            FlowKey::new(&vlans, key.src(), key.dst(), key.protocol(), key.src_port(), key.dst_port()).unwrap()
        };
        prop_assert_eq!(headers.key, key);
    }

    /// The views agree with what the builder was given.
    #[test]
    fn views_agree(packet in packet().prop_filter("whole, IPv4", |p| !p.v6 && !p.fragment)) {
        let frame = packet.frame();
        let headers = classify(LinkType::Ethernet, &frame).unwrap();
        let ip = Ipv4::new_checked(&frame[usize::from(headers.l3)..]).unwrap();
        prop_assert_eq!((ip.src(), ip.dst()), (four(packet.src).into(), four(packet.dst).into()));
        prop_assert_eq!((ip.ttl(), ip.protocol(), ip.tos()), (64, packet.protocol(), packet.tos));
        prop_assert_eq!(ip.options().count(), usize::from(packet.extension.unwrap_or(0)) * 4);
        match packet.transport {
            Transport::Tcp { seq, ack, .. } => {
                let tcp = Tcp::new_checked(ip.payload()).unwrap();
                prop_assert_eq!((tcp.src_port(), tcp.dst_port(), tcp.seq(), tcp.ack()), (packet.ports.0, packet.ports.1, seq, ack));
                prop_assert_eq!(tcp.payload(), &packet.payload[..]);
            }
            Transport::Udp => {
                let udp = Udp::new_checked(ip.payload()).unwrap();
                prop_assert_eq!((udp.src_port(), udp.dst_port()), packet.ports);
                prop_assert_eq!(udp.payload(), &packet.payload[..]);
            }
            Transport::Echo => prop_assert_eq!(ip.payload().len(), packet.payload.len() + 8),
        }
    }
}
