//! Conditions of iptables' rules besides addresses, ports and flags: interfaces, types of ICMP,
//! limits, sets.

use ipnet::IpNet;
use slipstream_wire::protocol;

use super::conjunction::{Conjunction, SetTest};
use super::expand::complement;
use super::iptables::Word;
use super::iptables_icmp;
use super::iptables_match::{Options, Read, unsupported};
use super::limit::Limit;
use crate::text::short;
use slipstream_core::rules::expr::{ByteSet, Ranges};
use slipstream_core::rules::names::nearest;

/// Modules whose options are understood.
const MODULES: [&str; 14] = [
    "tcp",
    "udp",
    "sctp",
    "icmp",
    "icmp6",
    "multiport",
    "dscp",
    "conntrack",
    "state",
    "comment",
    "iprange",
    "limit",
    "set",
    "addrtype",
];

/// Modules that people use and that ask for what isn't here, and why.
const FOREIGN: [(&str, &str); 10] = [
    ("mark", "packets have no marks here, which are set in other tables"),
    ("connmark", "connections have no marks here"),
    ("mac", "rules don't look into Ethernet headers"),
    ("length", "iptables counts the IP packet; write `length` in our own syntax, which counts the frame"),
    ("hashlimit", "use a `meter` stage with `per = \"flow\"`"),
    ("physdev", "ports of a bridge aren't known; use `-i` and `-o` with the settings `in` and `out`"),
    ("owner", "packets that are forwarded have no owner"),
    ("pkttype", "rules don't look into Ethernet headers"),
    ("udplite", "ports of UDP-Lite aren't read"),
    ("dccp", "ports of DCCP aren't read"),
];

impl<'a> Options<'a> {
    /// Compares an interface with the one that packets come or go by, which is known before there is any
    /// packet.
    pub(super) fn interface(&mut self, ours: Option<&str>, setting: &str, what: &str) -> Read {
        let at = self.at;
        let word = self.value()?;
        let Some(ours) = ours else {
            let message = format!("which interface packets {what} is not known");
            let hint = format!("say it in the stage's settings: `{setting} = \"{}\"`", short(&word.text));
            return Err(unsupported(at.error(self.text, message).hint(hint)));
        };
        let is = match word.text.strip_suffix('+') {
            Some(start) => ours.starts_with(start),
            None => ours == word.text,
        };
        if is == self.not {
            self.read.first.push(Vec::new());
        }
        Ok(())
    }

    pub(super) fn icmp(&mut self, six: bool) -> Read {
        let word = self.value()?;
        let Some((first, last)) = iptables_icmp::types(six, &word.text) else {
            let near = nearest(&word.text, iptables_icmp::names(six));
            let hint = near.map_or_else(
                || {
                    "write a name like `echo-request`, a type like `8`, or type and code like `3/4`"
                        .to_owned()
                },
                |near| format!("did you mean `{near}`?"),
            );
            return Err(self.wrong(word, "type of ICMP", &hint).into());
        };
        let types = Ranges::new(vec![(first, last)]);
        // A packet without an ICMP header matches neither the type nor its opposite.
        let types = if self.not { Ranges::new(complement(&types, 0xffff)) } else { types };
        if six {
            self.read.six = self.read.six.take().or_else(|| Some((true, word.clone())));
        }
        let mut protocol = ByteSet::default();
        protocol.insert(if six { protocol::ICMPV6 } else { protocol::ICMP });
        let parts = Conjunction::rest(|r| {
            r.protocols = protocol;
            r.icmp.push(types);
        });
        self.add(parts.normal().into_iter().collect());
        Ok(())
    }

    pub(super) fn limit(&mut self) -> Read {
        let burst = self.at.text == "--limit-burst";
        let word = self.value()?;
        let Some((_, limit)) = &mut self.read.limit else { return Ok(()) };
        if burst {
            match word.text.parse().ok().filter(|n| (1..=10_000).contains(n)) {
                Some(burst) => limit.burst = burst,
                None => return Err(self.wrong(word, "burst", "a burst is 1 to 10000").into()),
            }
        } else {
            match Limit::interval(&word.text) {
                Some(interval) => limit.interval = interval,
                None => {
                    return Err(self.wrong(word, "rate", "write `5/minute`; up to 10000 a second").into());
                }
            }
        }
        Ok(())
    }

    /// `--match-set NAME src,dst`.
    pub(super) fn set(&mut self) -> Read {
        let word = self.value()?;
        let sides = self.value()?;
        let Some(sets) = self.how.sets else {
            let message = format!("the set `{}` is not known", short(&word.text));
            let hint = "give the file of `ipset save` in the stage's settings: `sets = \"FILE\"`";
            return Err(unsupported(word.error(self.text, message).hint(hint)));
        };
        let Some(set) = sets.get(&word.text) else {
            let error = word.error(self.text, format!("there is no set `{}`", short(&word.text)));
            return Err(match nearest(&word.text, sets.names()) {
                Some(near) => error.hint(format!("did you mean `{near}`?")).into(),
                None => error.hint("the file of sets doesn't have it").into(),
            });
        };
        let known = |word: &str| match word {
            "src" => Some(true),
            "dst" => Some(false),
            _ => None,
        };
        let all: Option<Vec<bool>> = sides.text.split(',').map(known).collect();
        let [first, second] = match all.as_deref() {
            Some([first, rest @ ..]) if rest.len() + 1 >= set.dimensions() => {
                [*first, rest.first().copied().unwrap_or(*first)]
            }
            _ => {
                let hint = "write `src` or `dst` for each part of the set's entries, with commas between";
                return Err(self.wrong(sides, "list of sides for this set", hint).into());
            }
        };
        let wanted = !self.not;
        let test = SetTest { set: set.clone(), sides: [first, second], wanted };
        self.add(vec![Conjunction::rest(|r| r.sets.push(test))]);
        Ok(())
    }

    /// `--dst-type MULTICAST`: the one type that doesn't depend on addresses and routes of a host.
    pub(super) fn address_type(&mut self, src: bool) -> Read {
        let word = self.value()?;
        if word.text != "MULTICAST" {
            let message = format!("the address type `{}` is not supported", short(&word.text));
            let hint = "it depends on the addresses and routes of a host; MULTICAST alone is supported, write prefixes for others";
            return Err(unsupported(word.error(self.text, message).hint(hint)));
        }
        let nets = ["224.0.0.0/4", "ff00::/8"].into_iter().filter_map(|net| net.parse().ok());
        let nets: Vec<IpNet> = nets.collect();
        self.add(if self.not {
            vec![Conjunction::rest(|r| if src { r.not_src = nets } else { r.not_dst = nets })]
        } else {
            nets.into_iter().map(|net| Conjunction::net(src, net)).collect()
        });
        Ok(())
    }

    pub(super) fn module(&mut self) -> Read {
        let word: &'a Word = self.value()?;
        if MODULES.contains(&word.text.as_str()) {
            self.begins_module(word);
            if word.text != "limit" {
                return Ok(());
            }
            if self.read.limit.is_some() {
                return Err(unsupported(
                    word.error(self.text, "a rule has one limit").hint("write two rules"),
                ));
            }
            self.read.limit = Some((self.read.factors.len(), Limit::default()));
            return Ok(());
        }
        let error = word.error(self.text, format!("the match `{}` is not supported", short(&word.text)));
        let why = FOREIGN.iter().find(|(name, _)| *name == word.text).map(|(_, why)| (*why).to_owned());
        let hint = why
            .or_else(|| {
                nearest(&word.text, MODULES.into_iter()).map(|near| format!("did you mean `{near}`?"))
            })
            .unwrap_or_else(|| format!("supported are {}", MODULES.join(", ")));
        Err(unsupported(error.hint(hint)))
    }
}
