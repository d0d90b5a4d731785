//! The options of one rule of iptables: what it asks of packets, and where it sends them.

use std::net::IpAddr;

use ipnet::IpNet;

use super::conjunction::Conjunction;
use super::expand::{complement, in_ranges};
use super::fields::ConnState;
use super::iptables::{IptablesOptions, Word};
use super::limit::Limit;
use super::rules::Verdict;
use crate::text::short;
use slipstream_core::rules::RuleError;
use slipstream_core::rules::expr::{ByteSet, Ranges};
use slipstream_core::rules::names;
use slipstream_core::rules::names::nearest;
use slipstream_core::rules::protocols;
use slipstream_wire::protocol;

/// The target of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Decide(Verdict),
    Count,
    Log,
    Return,
    Jump(String),
    Goto(String),
}

/// One rule: conjunctions of which some match, for each of its conditions, and its target.
#[derive(Debug)]
pub(super) struct Match {
    /// Conditions on the IP header and on interfaces, which come before all modules.
    pub(super) first: Vec<Vec<Conjunction>>,
    /// Conditions of the modules, in their order.
    pub(super) factors: Vec<Vec<Conjunction>>,
    /// A limit, and how many of the factors are asked before it.
    pub(super) limit: Option<(usize, Limit)>,
    pub(super) target: Target,
    pub(super) target_at: Option<Word>,
    /// True if addresses are IPv6, with the last word that told.
    pub(super) six: Option<(bool, Word)>,
}

/// The reason why a rule can't be used.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) error: RuleError,
    /// True if it is right, but asks for what isn't supported.
    pub(super) unsupported: bool,
}

impl From<RuleError> for Refusal {
    fn from(error: RuleError) -> Self {
        Self { error, unsupported: false }
    }
}

/// The error about what is right in iptables but not supported here.
pub(super) fn unsupported(error: RuleError) -> Refusal {
    Refusal { error, unsupported: true }
}

pub(super) type Read = Result<(), Refusal>;

/// Options that are known, for the nearest to a misspelt one.
const OPTIONS: [&str; 28] = [
    "--sport",
    "--dport",
    "--sports",
    "--dports",
    "--ports",
    "--tcp-flags",
    "--syn",
    "--dscp",
    "--dscp-class",
    "--ctstate",
    "--state",
    "--comment",
    "--jump",
    "--goto",
    "--protocol",
    "--source",
    "--destination",
    "--match",
    "--src-range",
    "--dst-range",
    "--in-interface",
    "--out-interface",
    "--icmp-type",
    "--icmpv6-type",
    "--limit",
    "--limit-burst",
    "--match-set",
    "--dst-type",
];

/// Targets that are no chains and aren't supported.
const TARGETS: [&str; 29] = [
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "CLUSTERIP",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "DNAT",
    "DNPT",
    "DSCP",
    "ECN",
    "HL",
    "HMARK",
    "IDLETIMER",
    "LED",
    "MARK",
    "MASQUERADE",
    "NETMAP",
    "NFQUEUE",
    "NOTRACK",
    "QUEUE",
    "REDIRECT",
    "SECMARK",
    "SET",
    "SNAT",
    "TCPMSS",
    "TEE",
    "TOS",
    "TTL",
];

/// Protocols with ports that are read.
pub(super) const WITH_PORTS: &[u8] = &[protocol::TCP, protocol::UDP, protocol::SCTP];

/// The one name of an option that has several, its module, or none for those of the IP header, and the
/// protocols that it is about, or none for all. None of an option that may stand more than once.
fn kind(option: &str) -> Option<(&'static str, &'static str, &'static [u8])> {
    Some(match option {
        "-s" | "--source" | "--src" => ("--source", "", &[]),
        "-d" | "--destination" | "--dst" => ("--destination", "", &[]),
        "-p" | "--protocol" | "--proto" => ("--protocol", "", &[]),
        "-i" | "--in-interface" => ("--in-interface", "", &[]),
        "-o" | "--out-interface" => ("--out-interface", "", &[]),
        "--sport" | "--source-port" => ("--sport", "tcp", WITH_PORTS),
        "--dport" | "--destination-port" => ("--dport", "tcp", WITH_PORTS),
        "--tcp-flags" | "--syn" => ("--tcp-flags", "tcp", &[protocol::TCP]),
        "--sports" | "--source-ports" => ("--sports", "multiport", WITH_PORTS),
        "--dports" | "--destination-ports" => ("--dports", "multiport", WITH_PORTS),
        "--ports" => ("--ports", "multiport", WITH_PORTS),
        "--icmp-type" => ("--icmp-type", "icmp", &[protocol::ICMP]),
        "--icmpv6-type" => ("--icmpv6-type", "icmp6", &[protocol::ICMPV6]),
        "--src-range" => ("--src-range", "iprange", &[]),
        "--dst-range" => ("--dst-range", "iprange", &[]),
        "--src-type" => ("--src-type", "addrtype", &[]),
        "--dst-type" => ("--dst-type", "addrtype", &[]),
        "--dscp" | "--dscp-class" => ("--dscp", "dscp", &[]),
        "--ctstate" => ("--ctstate", "conntrack", &[]),
        "--state" => ("--state", "state", &[]),
        "--match-set" => ("--match-set", "set", &[]),
        "--limit" => ("--limit", "limit", &[]),
        "--limit-burst" => ("--limit-burst", "limit", &[]),
        _ => return None,
    })
}

pub(super) struct Options<'a> {
    pub(super) text: &'a str,
    pub(super) how: &'a IptablesOptions<'a>,
    words: std::slice::Iter<'a, Word>,
    /// Options that were there, with their modules: `-m` names a module anew, for more of the same.
    seen: Vec<(&'static str, &'static str)>,
    /// The one protocol that the rule is about, without a `!`.
    protocol: Option<u8>,
    /// Words that are about certain protocols only.
    about: Vec<(&'a Word, &'static [u8])>,
    /// The option that is being read.
    pub(super) at: &'a Word,
    pub(super) not: bool,
    pub(super) read: Match,
}

impl Match {
    /// Reads what follows the name of the chain.
    pub(super) fn read(text: &str, words: &[Word], how: &IptablesOptions<'_>) -> Result<Self, Refusal> {
        let read = Self {
            first: Vec::new(),
            factors: Vec::new(),
            limit: None,
            target: Target::Count,
            target_at: None,
            six: None,
        };
        let Some(first) = words.first() else { return Ok(read) };
        let mut options = Options {
            text,
            how,
            words: words.iter(),
            seen: Vec::new(),
            protocol: None,
            about: Vec::new(),
            at: first,
            not: false,
            read,
        };
        while let Some(word) = options.words.next() {
            if word.text == "!" && !options.not {
                (options.not, options.at) = (true, word);
                continue;
            }
            options.at = word;
            options.note()?;
            options.option()?;
            options.not = false;
        }
        if options.not {
            return Err(options.at.error(text, "nothing follows this `!`").into());
        }
        options.fit_the_protocol()?;
        Ok(options.read)
    }
}

impl<'a> Options<'a> {
    /// Refuses a second option of the same kind: which of them iptables would go by, or whether it would take
    /// the rule at all, isn't what it says.
    fn note(&mut self) -> Read {
        let Some((name, module, protocols)) = kind(&self.at.text) else { return Ok(()) };
        if self.seen.iter().any(|(seen, _)| *seen == name) {
            let error = self.at.error(self.text, format!("`{}` is there twice", short(&self.at.text)));
            let hint = match module {
                "" => "a list has commas between its parts".to_owned(),
                module => format!("`-m {module}` before it makes it one more condition"),
            };
            return Err(error.hint(hint).into());
        }
        self.seen.push((name, module));
        self.only_for(self.at, protocols);
        Ok(())
    }

    /// Says that a word is about these protocols only, if there are some.
    fn only_for(&mut self, word: &'a Word, protocols: &'static [u8]) {
        if !protocols.is_empty() {
            self.about.push((word, protocols));
        }
    }

    /// The options of this module may come once more.
    pub(super) fn begins_module(&mut self, word: &'a Word) {
        let (module, protocols): (_, &[u8]) = match word.text.as_str() {
            "tcp" => ("tcp", &[protocol::TCP]),
            "udp" => ("tcp", &[protocol::UDP]),
            "sctp" => ("tcp", &[protocol::SCTP]),
            "icmp" => ("icmp", &[protocol::ICMP]),
            "icmp6" => ("icmp6", &[protocol::ICMPV6]),
            "multiport" => ("multiport", WITH_PORTS),
            other => (other, &[]),
        };
        self.seen.retain(|(_, of)| *of != module);
        self.only_for(word, protocols);
    }

    /// Refuses what is about other protocols than the rule: without its protocol, a condition on ports would
    /// be one on all protocols with ports.
    fn fit_the_protocol(&self) -> Read {
        let fits = |protocols: &[u8]| self.protocol.is_some_and(|protocol| protocols.contains(&protocol));
        let Some((word, protocols)) = self.about.iter().find(|(_, protocols)| !fits(protocols)) else {
            return Ok(());
        };
        let options = protocols.iter().map(|number| match (*number, protocol::name(*number)) {
            (protocol::ICMPV6, _) => "`-p ipv6-icmp`".to_owned(),
            (_, Some(name)) => format!("`-p {name}`"),
            (number, None) => format!("`-p {number}`"),
        });
        let needed = options.collect::<Vec<_>>().join(" or ");
        let error = word.error(self.text, format!("`{}` needs its protocol", short(&word.text)));
        Err(error.hint(format!("write {needed}, without `!`, in the rule")).into())
    }

    fn option(&mut self) -> Read {
        let not = self.not;
        match self.at.text.as_str() {
            "-s" | "--source" | "--src" => self.net(true),
            "-d" | "--destination" | "--dst" => self.net(false),
            "--src-range" => self.address_range(true),
            "--dst-range" => self.address_range(false),
            "-p" | "--protocol" | "--proto" => self.protocol(),
            "-i" | "--in-interface" => self.interface(self.how.input, "in", "come in by"),
            "-o" | "--out-interface" => self.interface(self.how.output, "out", "go out by"),
            "--icmp-type" => self.icmp(false),
            "--icmpv6-type" => self.icmp(true),
            "--limit" | "--limit-burst" if !not && self.read.limit.is_some() => self.limit(),
            "--match-set" => self.set(),
            "--src-type" => self.address_type(true),
            "--dst-type" => self.address_type(false),
            "--sport" | "--source-port" | "--sports" | "--source-ports" => self.ports(&[true]),
            "--dport" | "--destination-port" | "--dports" | "--destination-ports" => self.ports(&[false]),
            "--ports" => self.ports(&[true, false]),
            "--tcp-flags" => {
                let (mask, value) = (self.tcp_flags()?, self.tcp_flags()?);
                if value & !mask != 0 {
                    let message = "flags must be set that aren't looked at";
                    return Err(self.at.error(self.text, message).into());
                }
                self.flags(mask, value);
                Ok(())
            }
            "--syn" => {
                self.flags(0x17, 0x02);
                Ok(())
            }
            "--dscp" | "--dscp-class" => self.dscp(),
            "--ctstate" | "--state" => self.states(),
            "-m" | "--match" if !not => self.module(),
            "--comment" | "--reject-with" | "--log-prefix" | "--log-level" | "--nflog-prefix"
            | "--nflog-group" | "--nflog-size" | "--nflog-threshold" | "--nflog-range"
                if !not =>
            {
                self.value()?;
                Ok(())
            }
            "--log-tcp-sequence" | "--log-tcp-options" | "--log-ip-options" | "--log-uid"
            | "--log-macdecode"
                if !not =>
            {
                Ok(())
            }
            "-j" | "--jump" if !not => self.target(false),
            "-g" | "--goto" if !not => self.target(true),
            _ => Err(self.unknown()),
        }
    }

    fn unknown(&self) -> Refusal {
        let name = self.at.text.as_str();
        let why = match name {
            "-f" | "--fragment" => {
                "iptables means all fragments but the first of a datagram; write `fragment`, which means all, in our own syntax"
            }
            "--limit" | "--limit-burst" => "write `-m limit` before it",
            _ => "",
        };
        let error = self.at.error(self.text, format!("`{}` is not supported", short(name)));
        unsupported(match nearest(name, OPTIONS.into_iter()) {
            _ if !why.is_empty() => error.hint(why),
            Some(near) if near != name => error.hint(format!("did you mean `{near}`?")),
            _ => error.hint("leave the rule out, or write it in our own syntax"),
        })
    }

    /// The word behind the option.
    pub(super) fn value(&mut self) -> Result<&'a Word, RuleError> {
        match self.words.next() {
            Some(word) if word.text == "!" && !self.not => {
                // As old versions print it.
                self.not = true;
                self.value()
            }
            Some(word) => Ok(word),
            None => Err(self.at.error(self.text, format!("`{}` lacks its value", short(&self.at.text)))),
        }
    }

    pub(super) fn wrong(&self, word: &Word, what: &str, hint: &str) -> RuleError {
        word.error(self.text, format!("`{}` is no {what}", short(&word.text))).hint(hint)
    }

    /// Adds a condition: those of the IP header come before all modules.
    pub(super) fn add(&mut self, parts: Vec<Conjunction>) {
        let of_ip = matches!(
            self.at.text.as_str(),
            "-s" | "--source" | "--src" | "-d" | "--destination" | "--dst" | "-p" | "--protocol" | "--proto"
        );
        if of_ip { self.read.first.push(parts) } else { self.read.factors.push(parts) }
    }

    fn net(&mut self, src: bool) -> Read {
        let word = self.value()?;
        let mut nets = Vec::new();
        for item in word.text.split(',') {
            let Some(net) = prefix(item) else {
                return Err(self
                    .wrong(word, "address", "write `10.0.0.0/8`, `10.0.0.0/255.0.0.0` or `2001:db8::/32`")
                    .into());
            };
            nets.push(net);
        }
        self.nets(src, nets, word)
    }

    fn nets(&mut self, src: bool, nets: Vec<IpNet>, word: &'a Word) -> Read {
        for net in &nets {
            let six = matches!(net, IpNet::V6(_));
            if self.read.six.as_ref().is_some_and(|(before, _)| *before != six) {
                return Err(word.error(self.text, "addresses of both IP versions in one rule").into());
            }
            self.read.six = Some((six, word.clone()));
        }
        let parts = if self.not {
            vec![Conjunction::rest(|r| if src { r.not_src = nets } else { r.not_dst = nets })]
        } else {
            nets.into_iter().map(|net| Conjunction::net(src, net)).collect()
        };
        self.add(parts);
        Ok(())
    }

    fn address_range(&mut self, src: bool) -> Read {
        let word = self.value()?;
        let (first, last) = word.text.split_once('-').unwrap_or((&word.text, &word.text));
        let nets: Option<Vec<IpNet>> = match (first.parse::<IpAddr>(), last.parse::<IpAddr>()) {
            (Ok(IpAddr::V4(a)), Ok(IpAddr::V4(b))) if a <= b => {
                Some(ipnet::Ipv4Subnets::new(a, b, 0).map(IpNet::V4).collect())
            }
            (Ok(IpAddr::V6(a)), Ok(IpAddr::V6(b))) if a <= b => {
                Some(ipnet::Ipv6Subnets::new(a, b, 0).map(IpNet::V6).collect())
            }
            _ => None,
        };
        match nets {
            Some(nets) => self.nets(src, nets, word),
            None => Err(self.wrong(word, "range of addresses", "write `10.0.0.1-10.0.0.9`").into()),
        }
    }

    fn protocol(&mut self) -> Read {
        let word = self.value()?;
        let name = word.text.to_ascii_lowercase();
        let number = name.parse().ok().or_else(|| protocols::number(&name));
        let mut set = ByteSet::default();
        match (name.as_str(), number) {
            // iptables means all by 0 as well, whatever its name.
            ("all", _) | (_, Some(0)) => set = set.complement(),
            (_, Some(number)) => set.insert(number),
            _ => {
                return Err(self.wrong(
                    word,
                    "protocol",
                    "write a name of /etc/protocols, such as `tcp` or `ipencap`, or a number from 0 to 255",
                )
                .into());
            }
        }
        self.protocol = number.filter(|number| *number != 0 && !self.not);
        let set = if self.not { set.complement() } else { set };
        self.add(Conjunction::rest(|r| r.protocols = set).normal().into_iter().collect());
        Ok(())
    }

    fn ports(&mut self, sides: &[bool]) -> Read {
        let word = self.value()?;
        let mut ranges = Vec::new();
        for item in word.text.split(',') {
            let number = |text: &str, open: u32| if text.is_empty() { Some(open) } else { port(text) };
            let range = match item.split_once(':') {
                None => port(item).map(|n| (n, n)),
                Some((first, last)) => number(first, 0).zip(number(last, 65_535)),
            };
            match range.filter(|(first, last)| first <= last) {
                Some(range) => ranges.push(range),
                None => {
                    let hint = "a port is 0 to 65535; a range `1024:65535`, a list (with multiport) `80,443`";
                    return Err(self.wrong(word, "port", hint).into());
                }
            }
        }
        let ranges = Ranges::new(ranges);
        if self.not {
            // None of the sides; and packets whose ports can't be seen don't match.
            let others = complement(&ranges, 65_535);
            sides.iter().for_each(|&src| self.add(in_ranges(src, &others)));
        } else {
            let parts = sides.iter().flat_map(|&src| in_ranges(src, ranges.pairs())).collect();
            self.add(parts);
        }
        Ok(())
    }

    fn tcp_flags(&mut self) -> Result<u8, RuleError> {
        let word = self.value()?;
        let mut flags = 0;
        for name in word.text.split(',') {
            flags |= match name {
                "ALL" => 0x3f,
                "NONE" => 0,
                name => {
                    names::number(names::TCP_FLAGS, name).filter(|&bit| bit <= 0x20).ok_or_else(|| {
                        self.wrong(
                            word,
                            "list of TCP flags",
                            "flags are SYN, ACK, FIN, RST, URG, PSH, ALL, NONE",
                        )
                    })?
                }
            };
        }
        Ok(flags)
    }

    fn flags(&mut self, mask: u8, value: u8) {
        let parts = if self.not {
            let bits = (0..8).map(|n| 1_u8 << n).filter(|bit| mask & bit != 0);
            bits.map(|bit| Conjunction::tcp_flags(bit, !value)).collect()
        } else {
            vec![Conjunction::tcp_flags(mask, value)]
        };
        self.add(parts);
    }

    fn dscp(&mut self) -> Read {
        let word = self.value()?;
        let digits = word.text.strip_prefix("0x");
        let number = digits.map_or_else(
            || word.text.parse().ok().or_else(|| names::number(names::DSCP, &word.text)),
            |digits| u8::from_str_radix(digits, 16).ok(),
        );
        let Some(number) = number.filter(|&n| n < 64) else {
            return Err(self.wrong(word, "DSCP", "a DSCP is 0 to 63, `0x2e`, or a class like `EF`").into());
        };
        let set = 1_u64 << number;
        let set = if self.not { !set } else { set };
        self.add(Conjunction::rest(|r| r.dscp = set).normal().into_iter().collect());
        Ok(())
    }

    fn states(&mut self) -> Read {
        let word = self.value()?;
        let mut states = 0;
        for name in word.text.split(',') {
            let known = ConnState::NAMES.iter().find(|(n, _)| name.eq_ignore_ascii_case(n));
            let Some((_, state)) = known else {
                let hint = "states are NEW, ESTABLISHED, RELATED, INVALID and UNTRACKED";
                if matches!(name, "DNAT" | "SNAT") {
                    let error = word.error(self.text, format!("the state `{name}` is not supported"));
                    return Err(unsupported(error.hint("what was translated is not known here")));
                }
                return Err(self.wrong(word, "list of connection states", hint).into());
            };
            states |= *state as u8;
        }
        let states = if self.not { ConnState::ALL & !states } else { states };
        self.add(Conjunction::rest(|r| r.states = states).normal().into_iter().collect());
        Ok(())
    }

    fn target(&mut self, goto: bool) -> Read {
        let word = self.value()?;
        if self.read.target_at.is_some() {
            return Err(word.error(self.text, "a rule has one target").into());
        }
        self.read.target_at = Some(word.clone());
        self.read.target = match word.text.as_str() {
            name if goto => Target::Goto(name.to_owned()),
            "ACCEPT" => Target::Decide(Verdict::Allow),
            "DROP" => Target::Decide(Verdict::Deny),
            "REJECT" => Target::Decide(Verdict::Reset),
            "LOG" | "NFLOG" => Target::Log,
            "RETURN" => Target::Return,
            name if TARGETS.contains(&name) => {
                let error = word.error(self.text, format!("the target `{name}` is not supported"));
                let hint =
                    "rules allow, deny, reset, log and count; marks and translation are for other stages";
                return Err(unsupported(error.hint(hint)));
            }
            name => Target::Jump(name.to_owned()),
        };
        Ok(())
    }
}

/// `10.0.0.1`, `10.0.0.0/8`, `10.0.0.0/255.0.0.0`; bits beyond the prefix don't count.
fn prefix(text: &str) -> Option<IpNet> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.into());
    }
    if let Ok(net) = text.parse::<IpNet>() {
        return Some(net.trunc());
    }
    let (address, mask) = text.split_once('/')?;
    IpNet::with_netmask(address.parse().ok()?, mask.parse().ok()?).ok().map(|net| net.trunc())
}

fn port(text: &str) -> Option<u32> {
    let digits = text.starts_with(|c: char| c.is_ascii_digit());
    text.parse::<u16>().ok().filter(|_| digits).map(u32::from)
}
