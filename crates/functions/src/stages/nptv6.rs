//! Network prefix translation in a pipeline (NPTv6, RFC 6296): port 0 is inside, port 1 outside, on the way
//! in as on the way out.

use std::net::Ipv6Addr;

use ipnet::{IpNet, Ipv6Net};
use slipstream_core::flow_context::{FlowUse, Trains};
use slipstream_core::frame::Frame;
use slipstream_core::operate::{Operate, Reloading, Update};
use slipstream_core::registry::{BuildError, Group, Made, Meets, Properties, Site, StageType};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::{Context, DropReason, Observe, Verdict};
use slipstream_core::time::Nanos;
use slipstream_wire::protocol::ICMPV6;
use slipstream_wire::{Flags, Skip, classify};

use crate::answer::{link_of, send_back};
use crate::bytes::{be16, be128, put};
use crate::icmp::{self, Message, is_first_fragment};
use crate::nat::nptv6::{Nptv6, Nptv6Error};
use crate::nat::{SIDES_IN, SIDES_OUT};
use crate::{DECIDE, FunctionContext, LeavesAs, NetworkFunction, RateLimiter, stage_of};

/// The stage type.
pub const NPTV6: StageType = StageType {
    name: "nptv6",
    group: Group::Function,
    summary: "Translates one IPv6 prefix to another and back, without state (NPTv6, RFC 6296)",
    example: "lan -> nptv6(inside=fd01:203:405::/48, external=2001:db8:1::/48) -> wan_out; wan -> [outside]nptv6[inside] -> lan_out",
    inputs: SIDES_IN,
    outputs: SIDES_OUT,
    settings: &[
        Setting {
            name: "inside",
            kind: Kind::Prefix,
            default: None,
            required: true,
            help: "Prefix of the hosts inside, of at most 64 bits",
        },
        Setting {
            name: "external",
            kind: Kind::Prefix,
            default: None,
            required: true,
            help: "Prefix that stands for it outside, of at most 64 bits; others route it here",
        },
        DECIDE,
    ],
    properties: Properties {
        changes_frames: |_| true,
        rewrites_flows: |_| true,
        // A router before it leads packets to these addresses here, where they come back in to inside hosts.
        external: |settings| settings.prefix("external").into_iter().collect(),
        paired: true,
        drops: &[DropReason::Malformed, DropReason::NoMapping],
        reload: Some(RELOAD),
        // An address alone says what stands for it.
        ..Properties::new(|_| Meets::Nothing)
    },
    build,
};

/// Both prefixes can change while it runs: providers give others.
const RELOAD: Reloading = Reloading {
    settings: &["inside", "external"],
    ports: Reloading::NO_PORTS,
    reads_files: |_| false,
    make: |settings, _| Ok(Box::new(translation(settings)?)),
};

/// Answers to inside hosts, a second and at once.
const ANSWERS: u64 = 1000;

fn translation(settings: &Settings) -> Result<Nptv6, BuildError> {
    let prefix = |name: &'static str| -> Result<Ipv6Net, BuildError> {
        match settings.prefix(name) {
            Some(IpNet::V6(net)) => Ok(net),
            Some(net) => Err(BuildError::setting(name, format!("{net} is not IPv6"))),
            None => Err(BuildError::setting(name, "there is no prefix")),
        }
    };
    let (inside, external) = (prefix("inside")?, prefix("external")?);
    Nptv6::new(inside, external).map_err(|error| {
        let setting = match error {
            Nptv6Error::TooLong(length) if length == inside.prefix_len() => "inside",
            Nptv6Error::Link(net) if net == inside => "inside",
            Nptv6Error::TooLong(_) | Nptv6Error::Link(_) | Nptv6Error::Overlap(..) => "external",
        };
        BuildError::setting(setting, error.to_string())
    })
}

fn build(settings: &Settings, _: &Site<'_>) -> Result<Made, BuildError> {
    Ok(Made::Stage(stage_of(Nptv6Stage::new(translation(settings)?), settings)))
}

/// Prefix translation as a network function.
#[derive(Debug)]
pub struct Nptv6Stage {
    translation: Nptv6,
    limiter: RateLimiter,
    /// The answer being made.
    answer: Vec<u8>,
    translated: u64,
    hairpinned: u64,
    /// IPv6 packets of neither prefix.
    passed: u64,
    not_ipv6: u64,
    answers: u64,
}

/// The decision about packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translated {
    fate: Fate,
    /// The flow key is that of a header in a tunnel, which stays as it is.
    inner: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Gets these addresses; one alone where the other stays.
    Rewrite { source: Option<Ipv6Addr>, destination: Option<Ipv6Addr> },
    /// Goes on as it is.
    Pass { ipv6: bool },
    /// An address of the inside or the external prefix has no counterpart.
    NoCounterpart,
    /// It may be IPv6, from whatever address, and doesn't pass as something else.
    Unreadable,
}

/// Places in an IPv6 packet, in bytes from the start of its frame.
struct Places {
    l3: usize,
    /// The header of an ICMPv6 error that begins here, and the end of the packet.
    error: Option<(usize, usize)>,
}

impl Nptv6Stage {
    /// Around a translation.
    #[must_use]
    pub fn new(translation: Nptv6) -> Self {
        Self {
            translation,
            limiter: RateLimiter::new(ANSWERS, ANSWERS),
            answer: Vec::new(),
            translated: 0,
            hairpinned: 0,
            passed: 0,
            not_ipv6: 0,
            answers: 0,
        }
    }

    fn fate(&self, cx: &Context<'_>, first: &Frame) -> Fate {
        let l3 = match places(cx, first) {
            Ok(Some(places)) => places.l3,
            Ok(None) => return Fate::Pass { ipv6: false },
            Err(_) => return Fate::Unreadable,
        };
        let address = |at| be128(cx.data(first), l3 + at).map(Ipv6Addr::from);
        let (Some(from), Some(to)) = (address(8), address(24)) else { return Fate::Unreadable };
        let npt = &self.translation;
        let (source, destination) = (cx.input == 0 && npt.is_inside(from), npt.is_external(to));
        let new = (
            if source { npt.outbound(from).map(Some) } else { Some(None) },
            if destination { npt.inbound(to).map(Some) } else { Some(None) },
        );
        match new {
            (Some(None), Some(None)) => Fate::Pass { ipv6: true },
            (Some(source), Some(destination)) => Fate::Rewrite { source, destination },
            _ => Fate::NoCounterpart,
        }
    }

    /// Writes the new addresses, and those that an error quotes. An error from a router inside may have a
    /// source of its own that is of no prefix.
    fn rewrite(&self, cx: &mut Context<'_>, frame: &Frame, new: [Option<Ipv6Addr>; 2]) {
        let Ok(Some(Places { l3, error })) = places(cx, frame) else { return };
        let from_inside = cx.input == 0;
        let data = cx.data_mut(frame);
        for (at, new) in [8, 24].into_iter().zip(new) {
            if let Some(new) = new {
                put(data, l3 + at, &new.octets());
            }
        }
        if let Some((icmp, end)) = error {
            if from_inside {
                self.translation.quoted_outbound(data, icmp, end);
            }
            if let [_, Some(_)] = new {
                self.translation.quoted_inbound(data, icmp, end);
            }
        }
    }

    /// Tells an inside host that its packet can't leave (RFC 6296 §3.4), or that there is no such host.
    fn reply(&mut self, fx: &mut FunctionContext<'_, '_>, frame: &Frame) {
        if fx.cx.input != 0 || !self.limiter.would_allow(1, fx.cx.now) {
            return;
        }
        let Ok(Some(Places { l3, .. })) = places(fx.cx, frame) else { return };
        let packet = fx.cx.data(frame).get(l3..).unwrap_or_default();
        let address = |at| be128(packet, at).map(Ipv6Addr::from);
        let (Some(from), Some(to)) = (address(8), address(24)) else { return };
        let npt = &self.translation;
        let stays = npt.is_inside(from) && npt.outbound(from).is_none();
        let message = if stays { Message::SourcePolicy } else { Message::NetUnreachable };
        let link = link_of(fx.cx, frame);
        let made = icmp::answer(message, packet, link, to.into(), &mut self.answer);
        if made.is_ok() && self.limiter.allow(1, fx.cx.now) {
            self.answers += 1;
            send_back(fx, frame, &self.answer, 1);
        }
    }
}

/// Finds the outermost header, if that is IPv6.
///
/// # Errors
/// [`Skip`] where nobody can say, since it ends before.
#[inline]
fn places(cx: &Context<'_>, frame: &Frame) -> Result<Option<Places>, Skip> {
    let (info, flags) = (frame.info, Flags(frame.info.flags()));
    if info.classified() && !flags.has(Flags::INNER) {
        if !flags.has(Flags::IPV6) {
            return Ok(None);
        }
        if flags.has(Flags::PORTS) {
            return Ok(Some(Places { l3: usize::from(info.l3()), error: None }));
        }
    }
    unusual_places(cx, frame)
}

/// The same of packets in tunnels, of those that may be ICMPv6, and of those without a flow key.
#[inline(never)]
fn unusual_places(cx: &Context<'_>, frame: &Frame) -> Result<Option<Places>, Skip> {
    let data = cx.data(frame);
    let headers = match classify(cx.link(frame), data) {
        Ok(headers) if headers.flags.has(Flags::IPV6) => headers,
        Ok(_) | Err(Skip::NonIp | Skip::UnsupportedLinkType) => return Ok(None),
        Err(skip) => return Err(skip),
    };
    let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
    let packet = data.get(l3..).unwrap_or_default();
    let begins = !headers.flags.has(Flags::FRAGMENT) || is_first_fragment(packet, &headers);
    let is_error = headers.key.protocol() == ICMPV6 && begins && data.get(l4).is_some_and(|kind| *kind < 128);
    let end = l3 + 40 + be16(packet, 4).map_or(0, usize::from);
    Ok(Some(Places { l3, error: is_error.then_some((l4, end)) }))
}

impl NetworkFunction for Nptv6Stage {
    type Decision = Translated;
    type Lookahead = ();

    /// Packets may leave with another flow key.
    fn flow_use(&self) -> FlowUse {
        FlowUse { words: 0, alone: false, trains: Trains::Changed }
    }

    const CHANGES_KEYS: bool = true;

    fn leaves_as(&self, decided: &Translated) -> LeavesAs {
        let halves = |address: Ipv6Addr| [(address.to_bits() >> 64) as u64, address.to_bits() as u64];
        match decided.fate {
            _ if decided.inner => LeavesAs::Before,
            // Both follow from the key before.
            Fate::Rewrite { source: Some(new), .. } | Fate::Rewrite { destination: Some(new), .. } => {
                LeavesAs::Changed(halves(new))
            }
            Fate::Rewrite { .. } | Fate::Pass { .. } => LeavesAs::Before,
            Fate::NoCounterpart | Fate::Unreadable => LeavesAs::Unknown,
        }
    }

    /// The flow key has the addresses, unless it is that of a header in a tunnel, or there is none.
    fn shares(&self, cx: &Context<'_>, first: &Frame, other: &Frame) -> bool {
        self.sharing(cx, first, std::slice::from_ref(other)) == 1
    }

    #[inline]
    fn sharing(&self, cx: &Context<'_>, first: &Frame, others: &[Frame]) -> usize {
        if Flags(first.info.flags()).has(Flags::INNER) || !first.info.classified() {
            return 0;
        }
        self.reads().agreeing(cx.pool, first, others)
    }

    fn look_ahead(&mut self, _: &Context<'_>, _: &Frame, (): &mut ()) {}

    fn decide(&mut self, fx: &mut FunctionContext<'_, '_>, first: &Frame, (): &()) -> Translated {
        let inner = Flags(first.info.flags()).has(Flags::INNER);
        Translated { fate: self.fate(fx.cx, first), inner }
    }

    fn apply(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        decided: &Translated,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) {
        let (number, from_inside) = (frames.len() as u64, fx.cx.input == 0);
        let mut to = Verdict::port(u8::from(!from_inside));
        match decided.fate {
            Fate::Rewrite { source, destination } => {
                self.translated += number;
                if from_inside && destination.is_some() {
                    self.hairpinned += number;
                    to = Verdict::port(1);
                }
                frames.iter().for_each(|frame| self.rewrite(fx.cx, frame, [source, destination]));
            }
            Fate::Pass { ipv6: true } => {
                self.passed += number;
                frames.iter().for_each(|frame| self.rewrite(fx.cx, frame, [None, None]));
            }
            Fate::Pass { ipv6: false } => self.not_ipv6 += number,
            Fate::Unreadable => to = Verdict::drop(DropReason::Malformed),
            Fate::NoCounterpart => {
                to = Verdict::drop(DropReason::NoMapping);
                for (at, frame) in frames.iter().enumerate() {
                    let before = fx.made.len();
                    self.reply(fx, frame);
                    fx.made_by(before, at);
                }
            }
        }
        verdicts.fill(to);
    }

    fn operate(&mut self) -> Option<&mut dyn Operate> {
        Some(self)
    }
}

impl Operate for Nptv6Stage {
    fn update(&mut self, new: Update, _: Nanos) -> Update {
        match new.downcast::<Nptv6>() {
            Ok(mut new) => {
                std::mem::swap(&mut self.translation, &mut new);
                new
            }
            Err(other) => other,
        }
    }
}

impl Observe for Nptv6Stage {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("translated", self.translated);
        visit("hairpinned", self.hairpinned);
        visit("passed", self.passed);
        visit("not_ipv6", self.not_ipv6);
        visit("answers", self.answers);
    }

    fn notes(&self) -> Vec<String> {
        let left_out = self.translation.left_out();
        let note = |(of, only): (Ipv6Net, Ipv6Net)| {
            format!(
                "of {of} only {only} has counterparts, since the other prefix is longer: packets of its other \
                 addresses are dropped as no_mapping"
            )
        };
        left_out.map(note).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reassembly::stage_tests::run_with;
    use crate::test_packets::{error, ipv6, is_right, udp};
    use crate::{PerPacket, PerTrain};
    use slipstream_core::stage::Stage;

    fn npt(inside: &str, external: &str) -> Nptv6 {
        Nptv6::new(inside.parse().unwrap(), external.parse().unwrap()).unwrap()
    }

    fn address(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn left(stage: &mut dyn Stage, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        run_with(stage, packets, &[100], &mut None).0.into_iter().map(|(_, bytes, _)| bytes).collect()
    }

    #[test]
    fn prefixes_of_two_lengths_are_noted() {
        let notes = |inside, external| Nptv6Stage::new(npt(inside, external)).notes();
        assert_eq!(notes("fd01::/56", "2001:db8:1::/56"), Vec::<String>::new());
        let [inside] = &notes("fd01::/48", "2001:db8:1::/56")[..] else { panic!("one note") };
        assert!(inside.starts_with("of fd01::/48 only fd01::/56 has counterparts"), "{inside}");
        let [outside] = &notes("fd01::/64", "2001:db8:1::/48")[..] else { panic!("one note") };
        assert!(outside.starts_with("of 2001:db8:1::/48 only 2001:db8:1::/64 has"), "{outside}");
    }

    /// A provider gives another prefix: packets get it from then on.
    #[test]
    fn prefixes_change_while_it_runs() {
        let packet = ipv6(17, address("fd01::1"), address("2001:db8:9::1"), &udp(1, 2, b"x"));
        let mut stage = PerTrain::new(Nptv6Stage::new(npt("fd01::/48", "2001:db8:1::/48")));
        let source = |all: &[Vec<u8>]| Ipv6Addr::from(<[u8; 16]>::try_from(&all[0][8..24]).unwrap());
        let before = left(&mut stage, std::slice::from_ref(&packet));
        let gone = stage.operate().unwrap().update(Box::new(npt("fd01::/48", "2001:db8:2::/48")), Nanos(1));
        assert_eq!(gone.downcast_ref(), Some(&npt("fd01::/48", "2001:db8:1::/48")));
        let after = left(&mut stage, &[packet]);
        assert!(npt("fd01::/48", "2001:db8:1::/48").is_external(source(&before)), "{before:?}");
        assert!(npt("fd01::/48", "2001:db8:2::/48").is_external(source(&after)), "{after:?}");
        assert!(is_right(&before[0]) && is_right(&after[0]));
        // Settings of another stage come back.
        let mut other = stage.operate().unwrap().update(Box::new(7_u8), Nanos(2));
        assert_eq!(other.downcast_mut(), Some(&mut 7_u8));
    }

    /// A later fragment of an ICMPv6 error holds anything; it begins no message.
    #[test]
    fn a_later_fragment_quotes_nothing() {
        let (inside, remote) = (address("fd01::1"), address("2001:db8:9::1"));
        let quote = ipv6(17, remote, inside, &udp(1, 2, b"x"));
        let message = error(1, 4, &quote);
        let fragment = |offset: u16| {
            let header = [&[58, 0][..], &(offset << 3 | 1).to_be_bytes(), &[0, 0, 0, 9]].concat();
            ipv6(44, inside, remote, &[&header, &message[..]].concat())
        };
        let at = 40 + 8 + 8 + 24;
        for (offset, translated) in [(0, true), (4, false)] {
            let packets = [fragment(offset)];
            let npt = npt("fd01::/48", "2001:db8:1::/48");
            let by_train = left(&mut PerTrain::new(Nptv6Stage::new(npt)), &packets);
            assert_eq!(by_train, left(&mut PerPacket::new(Nptv6Stage::new(npt)), &packets));
            assert_eq!(by_train[0][at..at + 16] != inside.octets(), translated, "{offset}");
        }
    }
}
