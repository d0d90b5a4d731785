//! The router in a pipeline: its ports are its interfaces, on the way in as on the way out.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;

use super::fib::Fib;
use super::interface::{Interface, InterfaceError, Mac, interfaces, is_link_local};
use super::listener::QUERIES;
use super::neighbours::{self, Neighbours};
use super::reverse::ReversePath;
use super::watch::Watch;
use super::{Counters, Router, proxy};
use crate::text::mac;
use crate::{DECIDE, RateLimiter, stage_of};
use slipstream_core::operate::{Operate, Reloading, Update};
use slipstream_core::registry::{Attachment, Meets, Need, Partner, Properties, need};
use slipstream_core::registry::{BuildError, Group, Made, Ports, Site, StageType};
use slipstream_core::settings::{Kind, Setting, Settings, Value};
use slipstream_core::stage::{DropReason, Drops};
use slipstream_core::time::{Nanos, SECOND};

const INTERFACE: &str = "NAME ADDRESS/LENGTH… [ETHERNET ADDRESS] [mtu BYTES]";

/// The stage type.
pub const ROUTER: StageType = StageType {
    name: "router",
    group: Group::Function,
    summary: "Routes IPv4 and IPv6 between its interfaces, which are its ports (RFC 1812)",
    example: "lan -> [lan]r :: router(interfaces=[\"lan 10.0.0.1/24\", \"wan 192.0.2.1/24\"]); r[wan] -> to_wan",
    inputs: Ports::AsSet("one for each interface, by its name"),
    outputs: Ports::AsSet("one for each interface, by its name"),
    settings: &[
        Setting {
            name: "interfaces",
            kind: Kind::List(&Kind::Text(INTERFACE)),
            default: None,
            required: true,
            help: "Interfaces in the order of their ports, all with an Ethernet address or none; MTU 1500 unless said",
        },
        Setting {
            name: "routes",
            kind: Kind::File,
            default: None,
            required: false,
            help: "Routes beyond the networks of the interfaces, one a line: `10.0.0.0/8 via 192.0.2.254`",
        },
        Setting {
            name: "reload",
            kind: Kind::Time(1_000_000, 86_400 * SECOND),
            default: Some("1s"),
            required: false,
            help: "How often to look whether the file of routes has changed, while packets come",
        },
        Setting {
            name: "neighbours",
            kind: Kind::List(&Kind::Text("[PORT] ADDRESS ETHERNET ADDRESS")),
            default: None,
            required: false,
            help: "Neighbours that needn't be asked for",
        },
        Setting {
            name: "proxy",
            kind: Kind::List(&Kind::Text("PORT ADDRESS[/LENGTH]")),
            default: None,
            required: false,
            help: "Addresses that something behind a port translates: the router answers for them there and sends packets \
                   to them by it. Those of a `nat` stage in the same graph count without being named",
        },
        Setting {
            name: "reverse_path",
            kind: Kind::Choice(ReversePath::NAMES),
            default: Some("off"),
            required: false,
            help: "Drop packets from sources that no route leads back to by the port that they came by (strict), or by \
                   any port (loose)",
        },
        Setting {
            name: "neighbour_table",
            kind: Kind::Count(16, 1 << 22),
            default: Some("4096"),
            required: false,
            help: "Known neighbours remembered at most; each interface may ask for 256 unknown ones beside them",
        },
        Setting {
            name: "neighbour_rate",
            kind: Kind::Count(1, 1_000_000),
            default: Some("2000"),
            required: false,
            help: "Unknown neighbours asked for a second, on each interface; packets to others are dropped meanwhile",
        },
        Setting {
            name: "neighbour_timeout",
            kind: Kind::Time(SECOND, 86_400 * SECOND),
            default: Some("60s"),
            required: false,
            help: "After which a neighbour that is used is asked whether it is still there",
        },
        Setting {
            name: "neighbour_hold",
            kind: Kind::Count(1, 1024),
            default: Some("16"),
            required: false,
            help: "Packets that wait for one neighbour to answer; where there are more, the oldest is dropped",
        },
        Setting {
            name: "icmp_rate",
            kind: Kind::Count(0, 1_000_000),
            default: Some("1000"),
            required: false,
            help: "ICMP errors a second; 0: none",
        },
        Setting {
            name: "icmp_burst",
            kind: Kind::Count(1, 1_000_000),
            default: Some("50"),
            required: false,
            help: "ICMP errors at once after a pause",
        },
        DECIDE,
    ],
    properties: Properties {
        counts_hops: true,
        changes_frames: |_| true,
        drops: &[
            DropReason::Blackhole,
            DropReason::HopLimit,
            DropReason::Local,
            DropReason::Malformed,
            DropReason::Martian,
            DropReason::NoRoute,
            DropReason::OtherStation,
            DropReason::TableFull,
            DropReason::TooBig,
            DropReason::Unresolved,
            DropReason::Unsupported,
        ],
        attachments,
        asks_neighbours,
        reload: Some(RELOAD),
        partners: &[
            Partner { of: &["reload"], need: Need::Given(&["routes"]) },
            Partner { of: &["icmp_burst"], need: Need::IsNot("icmp_rate", "0") },
        ],
        ..Properties::new(meets)
    },
    build,
};

/// On links with Ethernet addresses packets wait for their neighbour's answer, which any core might get:
/// shards all hear what neighbours say. Elsewhere routes alone decide, by a packet's own destination.
fn meets(settings: &Settings) -> Meets {
    if asks_neighbours(settings) { Meets::Everything } else { Meets::Nothing }
}

fn asks_neighbours(settings: &Settings) -> bool {
    attachments(settings).is_none_or(|all| all.iter().any(|one| one.answers))
}

/// The interfaces, by the numbers of their ports.
fn attachments(settings: &Settings) -> Option<Vec<Attachment>> {
    let all = interfaces(settings.texts("interfaces")).ok()?;
    // On links without Ethernet addresses nobody asks.
    let one = |i: Interface| {
        let answers = i.mac.is_some();
        Attachment { name: i.name, addresses: i.addresses, answers, mtu: i.mtu }
    };
    Some(all.into_iter().map(one).collect())
}

/// The settings that can change while a router runs. The addresses that it answers for, too, where stages
/// behind it translate others than before.
const RELOAD: Reloading = Reloading {
    settings: &["routes", "reload", "proxy", "reverse_path", "icmp_rate", "icmp_burst"],
    ports: Reloading::NO_PORTS,
    reads_files: |_| true,
    make: |settings, site| {
        let interfaces: Arc<[Interface]> = all_interfaces(settings, site)?.into();
        let limiter = limiter(settings);
        let reverse_path = ReversePath::named(settings.text("reverse_path"));
        let (watch, fib) = match settings.file("routes") {
            Some(path) => {
                let started = Watch::start(
                    path,
                    Arc::clone(&interfaces),
                    room_for(settings),
                    settings.number("reload"),
                );
                let (watch, fib) = started.map_err(|e| BuildError::setting("routes", e))?;
                (Some(watch), fib)
            }
            None => (None, Fib::build(&interfaces, &[]).unwrap_or_default()),
        };
        let announces = announces(site);
        Ok(Box::new(RouterUpdate { interfaces, watch, fib, limiter, reverse_path, announces }))
    },
};

/// Other settings for a router that runs.
struct RouterUpdate {
    interfaces: Arc<[Interface]>,
    watch: Option<Watch>,
    fib: Fib,
    limiter: RateLimiter,
    reverse_path: ReversePath,
    /// The links are told of addresses that are new.
    announces: bool,
}

/// Other settings with these routes, which no file has.
#[cfg(test)]
pub(super) fn update_of(interfaces: Arc<[Interface]>, fib: Fib) -> Update {
    let (limiter, reverse_path) = (RateLimiter::new(1000, 50), ReversePath::Off);
    Box::new(RouterUpdate { interfaces, watch: None, fib, limiter, reverse_path, announces: true })
}

impl Operate for Router {
    fn update(&mut self, new: Update, now: Nanos) -> Update {
        match new.downcast::<RouterUpdate>() {
            Ok(mut update) => {
                let RouterUpdate { interfaces, watch, fib, limiter, reverse_path, announces } = &mut *update;
                std::mem::swap(&mut self.interfaces, interfaces);
                if *announces {
                    self.announce_new(interfaces);
                }
                std::mem::swap(&mut self.watch, watch);
                std::mem::swap(&mut self.limiter, limiter);
                std::mem::swap(&mut self.reverse_path, reverse_path);
                let fib = std::mem::take(fib);
                update.fib = self.install(fib, now);
                self.counters.reloads += 1;
                self.last_error = None;
                update
            }
            Err(other) => other,
        }
    }
}

fn limiter(settings: &Settings) -> RateLimiter {
    RateLimiter::or_none(settings.number("icmp_rate"), settings.number("icmp_burst"))
}

/// The interfaces, with the addresses that the router answers for there.
fn all_interfaces(settings: &Settings, site: &Site<'_>) -> Result<Vec<Interface>, BuildError> {
    let texts = texts(settings, "interfaces");
    let mut interfaces = interfaces(texts.iter().copied()).map_err(|e| {
        let hint = match &e {
            InterfaceError::Mtu(_) => "576 to 65535 bytes are possible, with IPv6 from 1280 on".to_owned(),
            _ => format!("an interface is written {INTERFACE}, as in \"lan 10.0.0.1/24 02:00:00:00:00:01\""),
        };
        BuildError::setting("interfaces", e.to_string()).hint(hint)
    })?;
    for text in settings.texts("proxy") {
        let (port, net) = proxied(&interfaces, text).map_err(|why| {
            BuildError::setting("proxy", why).hint("as in \"wan 192.0.2.8/29\" or \"wan 2001:db8::7\"")
        })?;
        add_proxied(&mut interfaces, port, net);
    }
    for (port, net) in site.proxied {
        add_proxied(&mut interfaces, *port, *net);
    }
    Ok(interfaces)
}

/// Neighbours that the table has room for.
fn room_for(settings: &Settings) -> u32 {
    settings.number("neighbour_table") as u32
}

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let interfaces = all_interfaces(settings, site)?;
    let names = interfaces.iter().map(|i| i.name.clone()).collect();
    let bounds = neighbours::Settings {
        capacity: room_for(settings),
        links: interfaces.len() as u32,
        rate: settings.number("neighbour_rate"),
        hold: settings.number("neighbour_hold") as usize,
        confirm: settings.number("neighbour_timeout"),
        retry: SECOND,
    };
    need("neighbour_table", Neighbours::memory(&bounds))?;
    let mut router = Router::new(interfaces, bounds, site.seed);
    router.answers = site.shard.number == 0;
    if announces(site) {
        router.unannounced = proxy::to_announce(&router.interfaces, None);
    }
    router.limiter = limiter(settings);
    router.reverse_path = ReversePath::named(settings.text("reverse_path"));
    for text in self::texts(settings, "neighbours") {
        router.fix(text).map_err(|why| {
            BuildError::setting("neighbours", why)
                .hint("as in \"192.0.2.254 02:00:00:00:00:09\" or \"wan fe80::1 02:00:00:00:00:09\"")
        })?;
    }
    if let Some(path) = settings.file("routes") {
        router.watch(path, settings.number("reload")).map_err(|e| BuildError::setting("routes", e))?;
    }
    Ok(Made::Between(stage_of(router, settings), names))
}

/// A prefix that something behind a port translates, from its text.
fn proxied(interfaces: &[Interface], text: &str) -> Result<(usize, IpNet), String> {
    let (name, net) =
        text.split_once(char::is_whitespace).ok_or_else(|| format!("{text:?} names no port"))?;
    let port = interfaces.iter().position(|i| i.name == name);
    let port = port.ok_or_else(|| format!("no interface is called `{name}`"))?;
    let net = net.trim();
    let net: Result<IpNet, _> = net.parse().or_else(|_| net.parse::<IpAddr>().map(IpNet::from));
    net.map(|net| (port, net.trunc())).map_err(|_| format!("{text:?} has no address behind the port"))
}

fn add_proxied(interfaces: &mut [Interface], port: usize, net: IpNet) {
    if let Some(interface) = interfaces.get_mut(port) {
        interface.proxied.push(net);
    }
}

fn texts<'a>(settings: &'a Settings, name: &str) -> Vec<&'a str> {
    let text = |value: &'a Value| match value {
        Value::Text(text) => Some(text.as_str()),
        _ => None,
    };
    settings.list(name).iter().filter_map(text).collect()
}

/// Says that a router tells the links which addresses are here: one at work, and of several shards the first.
fn announces(site: &Site<'_>) -> bool {
    site.live && site.shard.number == 0
}

impl Router {
    /// A router that knows the networks of its interfaces, with the bounds and times that the settings have
    /// by default.
    #[must_use]
    pub fn with_defaults(interfaces: Vec<Interface>, seed: u64) -> Self {
        let links = interfaces.len() as u32;
        let bounds = neighbours::Settings {
            capacity: 4096,
            links,
            rate: 2000,
            hold: 16,
            confirm: 60 * SECOND,
            retry: SECOND,
        };
        Self::new(interfaces, bounds, seed)
    }

    /// A router that knows the networks of its interfaces, and no other route.
    pub(super) fn new(interfaces: Vec<Interface>, bounds: neighbours::Settings, seed: u64) -> Self {
        let own: Vec<IpAddr> = interfaces.iter().flat_map(|i| i.addresses.iter().map(IpNet::addr)).collect();
        let four = |address: &IpAddr| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        };
        let broadcasts = interfaces.iter().flat_map(Interface::broadcasts);
        Self {
            reserved: own.iter().filter_map(four).chain(broadcasts).map(Ipv4Addr::to_bits).collect(),
            own,
            // Without routes there is nothing that could be wrong with them.
            fib: Fib::build(&interfaces, &[]).unwrap_or_default(),
            interfaces: interfaces.into(),
            gateways: Vec::new(),
            generation: 1,
            neighbours: Neighbours::new(bounds, seed),
            watch: None,
            limiter: RateLimiter::new(1000, 50),
            queries: RateLimiter::new(QUERIES, QUERIES),
            counters: Counters::default(),
            drops: Drops::default(),
            capture: 0,
            own_capture: 0,
            last_error: None,
            towards: None,
            unannounced: Vec::new(),
            reports_again: Nanos::MAX,
            reverse_path: ReversePath::Off,
            answers: true,
            scratch: Vec::new(),
            message: Vec::new(),
        }
    }

    /// Takes the routes of a file, now and whenever it changes.
    pub(super) fn watch(&mut self, path: &Path, every: u64) -> Result<(), String> {
        let (watch, fib) =
            Watch::start(path, Arc::clone(&self.interfaces), self.neighbours.capacity(), every)?;
        drop(self.install(fib, Nanos(0)));
        self.watch = Some(watch);
        Ok(())
    }

    /// Takes a neighbour, `[PORT] ADDRESS MAC`, as known for good.
    fn fix(&mut self, text: &str) -> Result<(), String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (port, address, at) = match *words.as_slice() {
            [address, at] => (None, address, at),
            [port, address, at] => (Some(port), address, at),
            _ => return Err(format!("{text:?} is no neighbour")),
        };
        let address: IpAddr = address.parse().map_err(|_| format!("{address:?} is no address"))?;
        let wrong = || format!("{at:?} is no station's Ethernet address");
        let at: Mac = mac(at).filter(|mac| mac[0] & 1 == 0).ok_or_else(wrong)?;
        let port = match port {
            Some(name) => self.interfaces.iter().position(|i| i.name == name),
            None if is_link_local(address) => return Err(format!("{address} is link-local: name its port")),
            None => self.interfaces.iter().position(|i| i.reaches(address)),
        };
        let port = port.ok_or_else(|| format!("no interface has a network with {address}"))?;
        let fixed = self.neighbours.fix(port as u8, address, at);
        fixed.then_some(()).ok_or_else(|| "more neighbours than `neighbour_table` allows".to_owned())
    }
}
