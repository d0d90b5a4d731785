//! Settings of a firewall in a pipeline.

use std::path::Path;

use super::cache::DecisionCache;
use super::reload::{Files, Loaded};
use super::stage::{Checksums, FirewallUpdate};
use super::{Firewall, FirewallStage, IpSets, IptablesOptions, Method, RuleSet};
use crate::conntrack::{CONNECTIONS, Conntrack, ConntrackConfig, EARLY_DROP, STATE};
use crate::reassembly::{FRAGMENT_BYTES, FRAGMENT_TIMEOUT, FRAGMENTS, limits};
use crate::{DECIDE, FragmentLimits, MAX_TOKENS, RateLimiter, stage_of};
use slipstream_core::operate::Reloading;
use slipstream_core::registry::{BuildError, Group, Made, PortType, Ports, Site, StageType};
use slipstream_core::registry::{EventKind, Meets, Need, Partner, Properties, lonely, need};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::DropReason;
use slipstream_core::text_file;

/// The stage type.
pub const FIREWALL: StageType = StageType {
    name: "firewall",
    group: Group::Function,
    summary: "Filters packets by ordered rules: the first that allows, denies or resets decides",
    example: "in -> firewall(rules=\"acl.txt\") -> out",
    inputs: Ports::These(&[
        PortType { name: "in", help: "packets", unconnected: None },
        PortType { name: "back", help: "packets of the other direction", unconnected: None },
    ]),
    outputs: Ports::These(&[
        PortType {
            name: "out",
            help: "packets that came by `in` and may pass, and replies to senders of the other direction",
            unconnected: None,
        },
        PortType { name: "denied", help: "packets that may not", unconnected: Some(DropReason::Denied) },
        PortType {
            name: "replies",
            help: "TCP resets and ICMP errors for the senders of packets that a rule resets",
            unconnected: Some(DropReason::Unconnected),
        },
        PortType {
            name: "back",
            help: "packets that came by `back` and may pass",
            unconnected: Some(DropReason::Unconnected),
        },
    ]),
    settings: &[
        Setting {
            name: "rules",
            kind: Kind::File,
            default: None,
            required: true,
            help: "File of rules, one a line behind its action (allow, deny, reset, count, log 1/N), or of iptables-save",
        },
        Setting {
            name: "format",
            kind: Kind::Choice(&["auto", "rules", "iptables"]),
            default: Some("auto"),
            required: false,
            help: "What the file is; auto: iptables-save where it has a line `*filter`",
        },
        Setting {
            name: "chain",
            kind: Kind::Text("name of a chain"),
            default: Some("FORWARD"),
            required: false,
            help: "Of iptables-save: the chain that decides",
        },
        Setting {
            name: "in",
            kind: Kind::Text("name of an interface"),
            default: None,
            required: false,
            help: "Of iptables-save: the interface that packets come in by, for rules with -i",
        },
        Setting {
            name: "out",
            kind: Kind::Text("name of an interface"),
            default: None,
            required: false,
            help: "Of iptables-save: the interface that packets go out by, for rules with -o",
        },
        Setting {
            name: "sets",
            kind: Kind::File,
            default: None,
            required: false,
            help: "Of iptables-save: file of `ipset save` with the sets of rules with -m set",
        },
        Setting {
            name: "unsupported",
            kind: Kind::Choice(&["error", "leave_out"]),
            default: Some("error"),
            required: false,
            help: "Of iptables-save: what becomes of rules that ask for what isn't known here, such as marks",
        },
        Setting {
            name: "classifier",
            kind: Kind::Choice(&["fast", "linear"]),
            default: Some("fast"),
            required: false,
            help: "Decision trees, or one rule after the other (the obvious twin, for comparison)",
        },
        Setting {
            name: "cache",
            kind: Kind::Count(0, 1 << 26),
            default: Some("0"),
            required: false,
            help: "Flows whose decision is remembered, by whole flow key; 0: none",
        },
        Setting {
            name: "track",
            kind: Kind::Choice(&["auto", "on", "off"]),
            default: Some("auto"),
            required: false,
            help: "Track connections; auto: where a rule asks for a state",
        },
        CONNECTIONS,
        EARLY_DROP,
        Setting {
            name: "checksum",
            kind: Kind::Choice(&["off", "state", "all"]),
            default: Some("off"),
            required: false,
            help: "Whose checksums the tracker verifies (a wrong one: invalid): state: those of packets that begin a connection, \
                   and of SYN, FIN and RST",
        },
        Setting {
            name: "replies",
            kind: Kind::Count(1, 1_000_000_000),
            default: Some("1000"),
            required: false,
            help: "Resets and ICMP errors made a second at most",
        },
        Setting {
            name: "other",
            kind: Kind::Choice(&["allow", "deny"]),
            default: Some("allow"),
            required: false,
            help: "What becomes of packets that are not IP, such as ARP",
        },
        Setting {
            kind: Kind::Count(0, 1 << 20),
            help: "Fragments that wait for their datagram to be complete, at most; the oldest datagrams give way. 0: each fragment \
                   is decided about by itself",
            ..FRAGMENTS
        },
        FRAGMENT_BYTES,
        FRAGMENT_TIMEOUT,
        DECIDE,
    ],
    properties: Properties {
        // Resets and ICMP errors are made here.
        changes_frames: |_| true,
        drops: &[DropReason::Denied, DropReason::TableFull],
        reload: Some(RELOAD),
        tables: &[STATE],
        events: Some(EventKind::Denials),
        paired: true,
        needs_payload,
        partners: &[
            Partner { of: &["connections", "early_drop", "checksum"], need: Need::IsNot("track", "off") },
            Partner { of: &["fragment_bytes", "fragment_timeout"], need: Need::IsNot("fragments", "0") },
            Partner { of: OF_IPTABLES, need: Need::IsNot("format", "rules") },
        ],
        ..Properties::new(meets)
    },
    build,
};

/// The settings that are about files of iptables-save alone.
const OF_IPTABLES: &[&str] = &["chain", "in", "out", "sets", "unsupported"];

/// The settings that can change while a firewall runs.
const RELOAD: Reloading = Reloading {
    settings: &[
        "rules",
        "chain",
        "in",
        "out",
        "sets",
        "unsupported",
        "classifier",
        "track",
        "checksum",
        "replies",
        "other",
    ],
    ports: Reloading::NO_PORTS,
    reads_files: |_| true,
    make: |settings, _| {
        let (rules, iptables) = read(settings)?;
        // The seed of the tables is the stage's own.
        let loaded = loaded(settings, 0, rules);
        Ok(Box::new(FirewallUpdate {
            loaded: Some(loaded),
            files: Some(Box::new(files(settings, iptables, 0))),
            iptables,
            allow_other: settings.text("other") == "allow",
            checksums: checksums(settings),
            limiter: limiter(settings),
        }))
    },
};

/// A checksum over a payload that waits elsewhere can't be told from a right one.
fn needs_payload(settings: &Settings) -> Option<&'static str> {
    (checksums(settings) != Checksums::Off).then_some("`checksum` adds up payloads")
}

fn checksums(settings: &Settings) -> Checksums {
    match settings.text("checksum") {
        "state" => Checksums::State,
        "all" => Checksums::All,
        _ => Checksums::Off,
    }
}

fn limiter(settings: &Settings) -> RateLimiter {
    RateLimiter::new(settings.number("replies"), settings.number("replies").min(MAX_TOKENS))
}

/// The files that these settings name, to be read anew.
fn files(settings: &Settings, iptables: bool, seed: u64) -> Files {
    let settings = settings.clone();
    Files::new(move || match read(&settings) {
        Ok((_, now)) if now != iptables => {
            Err("the file has become one of another format; start anew".to_owned())
        }
        Ok((rules, _)) => Ok(loaded(&settings, seed, rules)),
        Err(error) => Err(error.message),
    })
}

/// The tracker remembers connections, and the rules' file decides with `auto` whether there is one. Fragments
/// wait for their datagram. Rules alone read a packet's own headers; what they count adds up.
fn meets(settings: &Settings) -> Meets {
    match settings.text("track") {
        "off" if settings.number("fragments") == 0 => Meets::Nothing,
        "off" => Meets::Flow,
        _ => Meets::Connection,
    }
}

fn text_of(setting: &'static str, path: &Path) -> Result<String, BuildError> {
    text_file::read(path)
        .map_err(|e| BuildError::setting(setting, format!("{} can't be read: {e}", path.display())))
}

/// The sets that rules name, where there is a file of them.
fn sets(settings: &Settings) -> Result<Option<IpSets>, BuildError> {
    let Some(path) = settings.file("sets") else { return Ok(None) };
    let sets = IpSets::parse(&text_of("sets", path)?);
    sets.map(Some).map_err(|e| BuildError::setting("sets", e.in_file(path).to_string()))
}

/// The rules that the settings name, and whether they are of iptables-save.
fn read(settings: &Settings) -> Result<(RuleSet, bool), BuildError> {
    let path = settings.file("rules").unwrap_or(Path::new(""));
    let text = text_of("rules", path)?;
    let iptables = match settings.text("format") {
        "auto" => text.lines().any(|l| l.trim() == "*filter"),
        format => format == "iptables",
    };
    let sets = sets(settings)?;
    let given = |name: &str| Some(settings.text(name)).filter(|text| !text.is_empty());
    let rules = if iptables {
        RuleSet::parse_iptables_with(
            &text,
            &IptablesOptions {
                chain: settings.text("chain"),
                input: given("in"),
                output: given("out"),
                sets: sets.as_ref(),
                leave_out_unsupported: settings.text("unsupported") == "leave_out",
            },
        )
    } else {
        let partners = Partner { of: OF_IPTABLES, need: Need::Is("format", &["iptables"]) };
        if let Some(error) = lonely(&[partners], FIREWALL.settings, settings).next() {
            let name = error.setting.unwrap_or_default();
            let what = format!("`{name}` is about files of iptables-save, and {} is none", path.display());
            return Err(BuildError::setting(name, what).hint("leave it out, or write format = iptables"));
        }
        RuleSet::parse(&text)
    };
    let rules = rules.map_err(|e| BuildError::setting("rules", e.in_file(path).to_string()))?;
    Ok((rules, iptables))
}

/// A classifier of these rules, and the tracking of connections that they need.
fn loaded(settings: &Settings, seed: u64, rules: RuleSet) -> Loaded {
    let track = match settings.text("track") {
        "auto" => rules.reads().state,
        track => track == "on",
    };
    let method = if settings.text("classifier") == "linear" { Method::Linear } else { Method::Fast };
    let track = track.then(|| ConntrackConfig::from_settings(settings, seed));
    Loaded { firewall: Firewall::new(rules, method), track }
}

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let (rules, iptables) = read(settings)?;
    let seed = site.seed;
    let Loaded { firewall, track } = loaded(settings, seed, rules);
    let (cache, allow_other) = (settings.number("cache") as usize, settings.text("other") == "allow");
    need("cache", DecisionCache::memory_for(cache))?;
    let mut stage = FirewallStage::new(firewall, cache, allow_other, seed);
    // To iptables a reassembled datagram is no fragment.
    stage.reassemble(FragmentLimits { marked: !iptables, ..limits(settings, seed) });
    if let Some(config) = track {
        need("connections", Conntrack::memory(&config))?;
        stage.track(&config);
    }
    stage.checksums = checksums(settings);
    stage.limiter = limiter(settings);
    stage.iptables = iptables;
    if site.live && !site.dry {
        stage = stage.with_files(files(settings, iptables, seed));
    }
    Ok(Made::Stage(stage_of(stage, settings)))
}
