//! The `slice` and `splice` stages in a pipeline: what there is to set.

use crate::payload_table::PayloadTable;
use crate::reasons::{DUPLICATE_TOKEN, FORGED_TOKEN, LATE_TOKEN, MANGLED_SLICE, MARKED, STALE_TOKEN};
use crate::stages::{Shared, SliceStage, SpliceStage};
use crate::{
    Amount, Bind, ConfigError, MAX_PLACES, MOST_TAG_BITS, Marked, SliceConfig, Storage, TAG_BITS, TokenKey,
    TokenMode, entries_for,
};
use slipstream_core::batch::BATCH;
use slipstream_core::registry::{
    BuildError, Group, Made, Meets, Need, Partner, Payload, Ports, Properties, Site, StageType, need,
};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::{DropReason, Verdict};
use slipstream_core::units::Rate;

/// Entries where nothing says how many.
const ENTRIES: u32 = 1024;

/// Entries for twice the payloads that wait on average: traffic comes in bursts.
const HEADROOM: f64 = 2.0;

const PORTS_HELP: &str =
    "one, or those that `ports` names: what comes in by one goes out by the one of the same name";

/// Names of ports, if the functions between have several: all packets share one table.
const PORTS: Setting = Setting {
    name: "ports",
    kind: Kind::List(&Kind::Text("name")),
    default: None,
    required: false,
    help: "Names of ports, each a way in and a way out",
};

fn ports(settings: &Settings) -> Result<Vec<String>, BuildError> {
    let names: Vec<String> = settings.texts("ports").map(str::to_owned).collect();
    if names.len() > usize::from(Verdict::MAX_PORTS) {
        return Err(BuildError::setting(
            "ports",
            format!("{} ports: {} are possible", names.len(), Verdict::MAX_PORTS),
        ));
    }
    match (1..names.len()).find(|i| names.iter().take(*i).any(|n| names.get(*i) == Some(n))) {
        Some(i) => {
            let name = names.get(i).map_or("", String::as_str);
            Err(BuildError::setting("ports", format!("two ports are named `{name}`")))
        }
        None if names.is_empty() => Ok(vec!["0".to_owned()]),
        None => Ok(names),
    }
}

const fn setting(
    name: &'static str,
    kind: Kind,
    default: Option<&'static str>,
    help: &'static str,
) -> Setting {
    Setting { name, kind, default, required: false, help }
}

/// The stage type.
pub const SLICE: StageType = StageType {
    name: "slice",
    group: Group::Plumbing,
    summary: "Parks payloads, so that only headers travel to functions that read only headers; `splice` brings them back",
    example: "in -> slice -> firewall(rules=acl.txt) -> splice -> out",
    inputs: Ports::AsSet(PORTS_HELP),
    outputs: Ports::AsSet(PORTS_HELP),
    settings: &[
        PORTS,
        setting(
            "entries",
            Kind::Count(1, MAX_PLACES as u64),
            None,
            "Payloads that can wait at a time; by default what `rate` and `service` ask for and a batch, 256, else 1024",
        ),
        setting(
            "rate",
            Kind::Rate,
            None,
            "Packets a second that are worth slicing, to reckon `entries` from",
        ),
        setting(
            "service",
            Kind::Time(1, 10_000_000_000),
            None,
            "How long the functions have a packet on average, to reckon `entries` from",
        ),
        setting("threshold", Kind::Bytes(0, 65_535), Some("500"), "Shortest frame that is sliced"),
        setting(
            "mtu",
            Kind::Bytes(68, 65_535),
            Some("65535"),
            "Longest IP packet that functions take: a longer one goes whole, none gets a token that makes it longer",
        ),
        setting("rules", Kind::Rules, Some("any"), "Packets that are sliced"),
        setting(
            "keep_bytes",
            Kind::Bytes(0, 65_535),
            Some("0"),
            "Bytes of payload that stay with the headers",
        ),
        setting(
            "fraction",
            Kind::Share,
            Some("1"),
            "Share of the rest of the payload that is parked, its end",
        ),
        setting("part", Kind::Bytes(9, 65_535), None, "Bytes of payload that are parked at most, its end"),
        setting("ttl", Kind::Count(1, 65_535), Some("10"), "Turns of the table that a payload may wait"),
        setting("max_age", Kind::Time(1, u64::MAX / 2), None, "Time that a payload may wait"),
        setting(
            "min_age",
            Kind::Time(0, u64::MAX / 2),
            None,
            "Time that it waits at least, however many turns there are; by default ten times `service`",
        ),
        setting(
            "explicit_drop",
            Kind::Bool,
            Some("true"),
            "Give a payload up at once when its packet is dropped",
        ),
        setting(
            "mode",
            Kind::Choice(&["keyed", "paper"]),
            Some("keyed"),
            "Tokens with a keyed tag, or as in the paper: an index and a generation",
        ),
        setting(
            "tag_bits",
            Kind::Count(TAG_BITS as u64, MOST_TAG_BITS as u64),
            Some("24"),
            "Bits of a keyed tag; what it has more than 24, the generation has fewer",
        ),
        setting(
            "bind",
            Kind::Choice(&["nothing", "flow"]),
            Some("nothing"),
            "What a token is bound to: `flow` where no function between changes addresses or ports",
        ),
        setting(
            "marked",
            Kind::Choice(&["slice", "remark", "drop"]),
            Some("slice"),
            "Packets that come with DSCP 63 and can't be sliced: a token without a payload, another DSCP, or drop",
        ),
        setting("remark", Kind::Count(0, 62), Some("0"), "The DSCP of `marked=remark`"),
        setting(
            "storage",
            Kind::Choice(&["in-place", "copy"]),
            Some("in-place"),
            "Payloads wait in the buffers that they came in, or are copied into the table",
        ),
        setting(
            "entry_bytes",
            Kind::Bytes(1, 65_535),
            Some("2048"),
            "Room of an entry of `storage=copy`; what has more to park passes whole",
        ),
    ],
    properties: Properties {
        payload: Payload::Parks,
        changes_frames: |settings| settings.text("marked") == "remark",
        drops: &[MARKED],
        partners: &[
            Partner { of: &["remark"], need: Need::Is("marked", &["remark"]) },
            Partner { of: &["entry_bytes"], need: Need::Is("storage", &["copy"]) },
            Partner { of: &["tag_bits"], need: Need::Is("mode", &["keyed"]) },
        ],
        ..Properties::new(
            // A packet is sliced or not by its own headers and length; its payload waits in the table of the
            // core that it came to.
            |_| Meets::Nothing,
        )
    },
    build: slice,
};

/// The stage type.
pub const SPLICE: StageType = StageType {
    name: "splice",
    group: Group::Plumbing,
    summary: "Gives packets their payloads back that `slice` parked",
    example: "in -> slice -> nat(pool=192.0.2.1) -> splice -> out",
    inputs: Ports::AsSet(PORTS_HELP),
    outputs: Ports::AsSet(PORTS_HELP),
    settings: &[
        PORTS,
        setting(
            "of",
            Kind::Text("name of a slice stage"),
            None,
            "Whose payloads; by default the only slice stage's",
        ),
        setting(
            "mtu",
            Kind::Bytes(68, 65_535),
            Some("65535"),
            "Longest IP packet that may leave; a function before can only check the headers' length",
        ),
    ],
    properties: Properties {
        payload: Payload::Returns,
        drops: &[FORGED_TOKEN, STALE_TOKEN, LATE_TOKEN, DUPLICATE_TOKEN, MANGLED_SLICE, DropReason::TooBig],
        ..Properties::new(
            // A payload comes back only on the core that parked it. Functions behind a port at both ends may
            // send packets back with other addresses, by which nobody can tell that core.
            |_| Meets::Everything,
        )
    },
    build: splice,
};

/// A configuration error as one of the setting that it comes from.
fn of_setting(error: ConfigError) -> BuildError {
    let setting = match error {
        ConfigError::Entries { .. } | ConfigError::Worker { .. } => "entries",
        ConfigError::EntryBytes(_) => "entry_bytes",
        ConfigError::Ttl => "ttl",
        ConfigError::Share(_) => "fraction",
        ConfigError::Remark(_) => "remark",
        ConfigError::Mtu(_) => "mtu",
        ConfigError::TagBits(_) => "tag_bits",
        ConfigError::MinAge { .. } => "min_age",
    };
    BuildError::setting(setting, error.to_string())
}

fn entries(settings: &Settings) -> Result<u32, BuildError> {
    let rate = settings.rate("rate");
    let service = settings.optional_number("service");
    match (settings.optional_number("entries"), rate, service) {
        (Some(entries), None, None) => Ok(entries as u32),
        (Some(_), ..) => {
            Err(BuildError::setting("entries", "both `entries` and what to reckon it from are given")
                .hint("leave out `entries`, or `rate` and `service`"))
        }
        (None, None, None) => Ok(ENTRIES),
        (None, Some(Rate::Packets(rate)), Some(service)) => {
            // Functions get the first packet of a batch when all of it is sliced.
            let waiting = entries_for(rate as f64, service, HEADROOM);
            Ok((waiting + BATCH as u32).min(MAX_PLACES))
        }
        (None, Some(Rate::Bits(_)), _) => Err(BuildError::setting("rate", "packets a second are asked for")
            .hint("divide the bits by those of a packet, as in 8mpps")),
        (None, Some(_), None) => {
            Err(BuildError::setting("rate", "without `service` it says nothing about `entries`"))
        }
        (None, None, Some(_)) => {
            Err(BuildError::setting("service", "without `rate` it says nothing about `entries`"))
        }
    }
}

/// Functions that have packets for so many times longer than on average still find their payloads, whatever
/// comes meanwhile.
const PATIENCE: u64 = 10;

/// Shortest time that a payload waits, in ns.
fn min_age(settings: &Settings) -> u64 {
    let most = settings.optional_number("max_age").unwrap_or(u64::MAX);
    let reckoned = || settings.optional_number("service").unwrap_or(0).saturating_mul(PATIENCE).min(most);
    settings.optional_number("min_age").unwrap_or_else(reckoned)
}

fn config(settings: &Settings, site: &Site<'_>) -> Result<SliceConfig, BuildError> {
    if settings.optional_number("part").is_some() && settings.share("fraction").is_some_and(|s| s < 1.0) {
        return Err(
            BuildError::setting("part", "both `fraction` and `part` are given").hint("write one of them")
        );
    }
    // A replay gives the same bytes again, also where a tap sees tokens; live nobody may guess the key.
    let name = site.name.bytes().fold(site.seed, |n, b| n.wrapping_mul(31).wrapping_add(u64::from(b)));
    let key = if site.live { TokenKey::random() } else { TokenKey::from_seed(name) };
    Ok(SliceConfig { entries: entries(settings)?, key, ..of(settings) })
}

/// The configuration that these values make, but for the number of entries, with a random key.
fn of(settings: &Settings) -> SliceConfig {
    let copied = Storage::Copied { entry_bytes: settings.number("entry_bytes") as u32 };
    let share = || Amount::Share(settings.share("fraction").unwrap_or(1.0));
    SliceConfig {
        entries: ENTRIES,
        storage: if settings.text("storage") == "copy" { copied } else { Storage::InPlace },
        workers: 1,
        mode: if settings.text("mode") == "paper" { TokenMode::Paper } else { TokenMode::Keyed },
        key: TokenKey::random(),
        ttl: settings.number("ttl") as u16,
        max_age_ns: settings.optional_number("max_age"),
        min_age_ns: min_age(settings),
        tag_bits: settings.number("tag_bits") as u32,
        bind: if settings.text("bind") == "flow" { Bind::Flow } else { Bind::Nothing },
        threshold: settings.number("threshold") as u32,
        keep_bytes: settings.number("keep_bytes") as u16,
        amount: settings.optional_number("part").map_or_else(share, |part| Amount::Bytes(part as u16)),
        rules: settings.rules("rules"),
        marked: match settings.text("marked") {
            "remark" => Marked::Remark(settings.number("remark") as u8),
            "drop" => Marked::Drop,
            _ => Marked::Slice,
        },
        functions_mtu: settings.number("mtu") as u32,
        // `splice` has a setting for it.
        mtu: Settings::defaults(SPLICE.settings).number("mtu") as u32,
    }
}

impl Default for SliceConfig {
    /// 1024 payloads in place, tokens with a random key, 10 turns, 500 bytes: everything that can be sliced
    /// is.
    fn default() -> Self {
        of(&Settings::defaults(SLICE.settings))
    }
}

fn slice(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let made = slice_as_set(settings, site);
    let instead = || {
        let usual = config(&Settings::defaults(SLICE.settings), site).ok()?;
        Shared::new(SliceConfig { entries: 1, ..usual }, 0, false).ok()
    };
    if made.is_err()
        && let Some(shared) = instead()
    {
        // The stage is there: its splicer has nothing to complain of.
        site.common.add(site.name, shared);
    }
    made
}

fn slice_as_set(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let mut config = config(settings, site)?;
    config.validate().map_err(of_setting)?;
    let entries = config.entries;
    if site.dry {
        // Its table may be large.
        config.entries = 1;
    }
    need("entries", PayloadTable::memory_for(&config))?;
    let owner = site.common.count::<Shared>() as u32;
    let shared = Shared::new(config, owner, settings.flag("explicit_drop")).map_err(of_setting)?;
    let stage = SliceStage::new(&shared, entries).map_err(of_setting)?;
    site.common.add(site.name, shared);
    Ok(Made::Between(Box::new(stage), ports(settings)?))
}

fn splice(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let name = Some(settings.text("of")).filter(|name| !name.is_empty());
    let Some(shared) = site.common.find::<Shared>(name) else {
        return Err(match name {
            Some(name) => {
                BuildError::setting("of", format!("no slice stage `{name}` stands before this one"))
            }
            None if site.common.count::<Shared>() > 1 => BuildError::stage("there are several slice stages")
                .hint("say whose payloads it brings back: splice(of=NAME)"),
            None => {
                BuildError::stage("no slice stage stands before this one").hint("in -> slice -> … -> splice")
            }
        });
    };
    let stage = SpliceStage::new(&shared, settings.number("mtu") as u32).map_err(of_setting)?;
    Ok(Made::Between(Box::new(stage), ports(settings)?))
}
