//! The bridge in a pipeline.

use super::Bridge;
use crate::mac_table::{MacTable, Station};
use crate::{DECIDE, stage_of};
use slipstream_core::registry::{BuildError, Group, Made, Ports, Site, StageType};
use slipstream_core::registry::{Meets, Need, Partner, Properties, need};
use slipstream_core::settings::{Kind, Setting, Settings, Value};
use slipstream_core::stage::DropReason;
use slipstream_core::time::SECOND;

/// Ports that a bridge may have.
const MAX_PORTS: usize = 64;

/// The stage type.
pub const L2FWD: StageType = StageType {
    name: "l2fwd",
    group: Group::Function,
    summary: "Forwards Ethernet frames to where their destination was seen (IEEE 802.1Q), or as the settings say",
    example: "a -> [a]br :: l2fwd(ports=[a, b]); b -> [b]br; br[a] -> to_a; br[b] -> to_b",
    inputs: Ports::AsSet("as `ports` names them"),
    outputs: Ports::AsSet("as `ports` names them"),
    settings: &[
        Setting {
            name: "ports",
            kind: Kind::List(&Kind::Text("NAME")),
            default: None,
            required: true,
            help: "Names of the ports, 2 to 64",
        },
        Setting {
            name: "learn",
            kind: Kind::Bool,
            default: Some("true"),
            required: false,
            help: "Whether stations are learned from the frames that they send",
        },
        Setting {
            name: "ageing",
            kind: Kind::Time(SECOND, 1_000_000 * SECOND),
            default: Some("300s"),
            required: false,
            help: "After which a silent station is forgotten",
        },
        Setting {
            name: "stations",
            kind: Kind::Count(16, 1 << 26),
            default: Some("16384"),
            required: false,
            help: "Stations remembered at most; frames to others go to all ports",
        },
        Setting {
            name: "static",
            kind: Kind::List(&Kind::Text("[vlan ID] ETHERNET ADDRESS PORT")),
            default: None,
            required: false,
            help: "Stations that are always there",
        },
        Setting {
            name: "map",
            kind: Kind::List(&Kind::Text("PORT > PORT")),
            default: None,
            required: false,
            help: "All frames of the one port leave by the other, whatever their addresses; nothing is learned from them",
        },
        Setting {
            name: "unknown",
            kind: Kind::Choice(&["flood", "drop"]),
            default: Some("flood"),
            required: false,
            help: "What becomes of frames to unknown stations: they go to all ports, or nowhere",
        },
        Setting {
            name: "reserved",
            kind: Kind::Bool,
            default: Some("false"),
            required: false,
            help: "Whether frames to 01:80:c2:00:00:00 to 0f (LLDP, spanning tree) are forwarded",
        },
        DECIDE,
    ],
    properties: Properties {
        copies: true,
        partners: &[Partner { of: &["ageing"], need: Need::Is("learn", &["true"]) }],
        without_meeting: Some("with learn=false the ports of stations are those that are set"),
        drops: &[
            DropReason::Malformed,
            DropReason::Martian,
            DropReason::NoRoute,
            DropReason::SamePort,
            DropReason::Unsupported,
        ],
        ..Properties::new(meets)
    },
    build,
};

fn texts<'a>(settings: &'a Settings, name: &str) -> impl Iterator<Item = &'a str> {
    settings.list(name).iter().filter_map(|value| match value {
        Value::Text(text) => Some(text.as_str()),
        _ => None,
    })
}

/// Any frame may tell where the station is that any other is for. Without learning the table stays as it is.
fn meets(settings: &Settings) -> Meets {
    if settings.flag("learn") { Meets::Everything } else { Meets::Nothing }
}

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let names: Vec<String> = texts(settings, "ports").map(|name| name.trim().to_owned()).collect();
    if !(2..=MAX_PORTS).contains(&names.len()) {
        let message = format!("a bridge has 2 to {MAX_PORTS} ports, not {}", names.len());
        return Err(BuildError::setting("ports", message).hint("as in ports = [\"lan\", \"wan\"]"));
    }
    if let Some((_, name)) =
        names.iter().enumerate().find(|(i, n)| n.is_empty() || names.iter().take(*i).any(|m| m == *n))
    {
        return Err(BuildError::setting("ports", format!("`{name}` is no name, or that of two ports")));
    }
    let stations = settings.number("stations") as u32;
    need("stations", MacTable::memory(stations))?;
    let table = MacTable::new(stations, settings.number("ageing"), site.seed);
    let mut bridge = Bridge::new(names.len() as u8, table);
    bridge.learns = settings.flag("learn");
    bridge.floods = settings.text("unknown") != "drop";
    bridge.reserved = settings.flag("reserved");
    for text in texts(settings, "static") {
        let (station, port) = fixed(text, &names).map_err(|why| {
            BuildError::setting("static", why)
                .hint("as in \"02:00:00:00:00:05 lan\" or \"vlan 7 02:00:00:00:00:05 lan\"")
        })?;
        if !bridge.table.fix(station, port.into()) {
            return Err(BuildError::setting("static", format!("{text:?}: more than `stations` allows")));
        }
    }
    for text in texts(settings, "map") {
        let (from, to) = mapped(text, &names).map_err(|why| {
            BuildError::setting("map", why).hint("as in map = [\"lan > wan\", \"wan > lan\"]")
        })?;
        if let Some(place) = bridge.map.get_mut(usize::from(from)) {
            *place = Some(to);
        }
    }
    Ok(Made::Between(stage_of(bridge, settings), names))
}

fn port(name: &str, names: &[String]) -> Result<u8, String> {
    let found = names.iter().position(|n| n == name.trim());
    found.map(|n| n as u8).ok_or_else(|| format!("no port is called {:?}", name.trim()))
}

fn mapped(text: &str, names: &[String]) -> Result<(u8, u8), String> {
    let (from, to) = text.split_once('>').ok_or_else(|| format!("{text:?} is no pair of ports"))?;
    let (from, to) = (port(from, names)?, port(to, names)?);
    if from == to {
        return Err(format!("{text:?}: frames never leave by the port that they came in by"));
    }
    Ok((from, to))
}

fn fixed(text: &str, names: &[String]) -> Result<(Station, u8), String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (vlan, at, name) = match *words.as_slice() {
        [at, name] => (0, at, name),
        ["vlan", id, at, name] => {
            let id = id.parse().ok().filter(|id| (1..4095).contains(id));
            (id.ok_or_else(|| format!("{text:?}: VLAN ids are 1 to 4094"))?, at, name)
        }
        _ => return Err(format!("{text:?} is no station")),
    };
    let mac = crate::text::mac(at).ok_or_else(|| format!("{at:?} is no Ethernet address"))?;
    let station = Station { vlan, mac };
    if station.is_group() {
        return Err(format!("{at} is a group address: no station has it"));
    }
    Ok((station, port(name, names)?))
}
