//! Stage types: their ports, settings and properties, and registries of them. `list`, `--help`, the JSON
//! Schema and the checks all read these definitions.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::path::Path;

use ipnet::IpNet;

use crate::operate::{Reloading, StateTable};
use crate::settings::{Setting, Settings};
use crate::source::Source;
use crate::stage::{DropReason, Stage};

mod memory;
mod partners;
mod types;

pub use memory::need;
pub use partners::{Need, Partner, lonely};
pub use types::{RegisterError, Registry};

/// A port of a stage type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortType {
    /// Its name.
    pub name: &'static str,
    /// The packets that come or go by it.
    pub help: &'static str,
    /// The drop reason of packets that leave by it if it leads nowhere; none: it must lead somewhere.
    pub unconnected: Option<DropReason>,
}

/// The ports on one side of a stage type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// None.
    None,
    /// These, numbered in this order.
    These(&'static [PortType]),
    /// As the settings name them; the text says how.
    AsSet(&'static str),
}

impl Ports {
    /// The ports that the type itself gives, in the order of their numbers; empty where the settings name
    /// them.
    #[must_use]
    pub const fn of_type(self) -> &'static [PortType] {
        match self {
            Self::These(ports) => ports,
            Self::None | Self::AsSet(_) => &[],
        }
    }

    /// The names of the ports that the type itself gives, in the order of their numbers.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        self.of_type().iter().map(|port| port.name.to_owned()).collect()
    }
}

/// The purpose of a stage type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Sources and destinations of packets.
    Port,
    /// Stages that make trains.
    Locality,
    /// Network functions: they decide about packets.
    Function,
    /// Stages that lead, count and copy packets.
    Plumbing,
}

impl Group {
    /// All groups.
    pub const ALL: [Self; 4] = [Self::Port, Self::Locality, Self::Function, Self::Plumbing];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Port => "ports",
            Self::Locality => "locality",
            Self::Function => "functions",
            Self::Plumbing => "plumbing",
        }
    }
}

/// The place of a stage in the graph, by which a port is a source or a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Packets come from it.
    Source,
    /// Packets go to it.
    Sink,
    /// Both.
    Inner,
    /// A port at both ends: packets come from it, and go to it.
    TwoWay,
}

/// The surroundings that a stage is built in, besides its settings.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// Its name in the graph.
    pub name: &'a str,
    /// Its place in the graph.
    pub role: Role,
    /// Only check: create no file, open no port.
    pub dry: bool,
    /// Directory that relative paths start from.
    pub base: &'a Path,
    /// Seed of hashes: secret where packets come from a network.
    pub seed: u64,
    /// Seed of choices that others can see, such as ports: where seeds are secret, it says nothing about
    /// `seed`.
    pub choices: u64,
    /// True if packets come or go by the wall clock somewhere in the pipeline.
    pub live: bool,
    /// Of a router: addresses that stages behind its ports, by number, translate.
    pub proxied: &'a [(usize, IpNet)],
    /// Things that the stages share which were built before.
    pub common: &'a Common,
    /// The shard that this is for, if the pipeline runs several times side by side.
    pub shard: Shard<'a>,
}

/// One of several copies of a pipeline that run side by side, each with a share of what its ports receive.
#[derive(Clone, Copy, Debug)]
pub struct Shard<'a> {
    /// Its number, from 0 on. They are built in this order.
    pub number: u32,
    /// The number of all, at least 1.
    pub of: u32,
    /// Things that stages of all shards share, to be found by [`Common::find_shared`]; none where there is
    /// one shard only.
    pub common: Option<&'a Common>,
}

impl Shard<'static> {
    /// The only one.
    pub const ALONE: Self = Self { number: 0, of: 1, common: None };
}

impl Shard<'_> {
    /// Says that no other one is built after this one.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.number + 1 >= self.of
    }
}

/// Things that stages of one pipeline share, such as a table that one fills and another empties: each thing
/// by the name of the stage that made it, and by its type, so that only who knows the type finds it.
#[derive(Default)]
pub struct Common(RefCell<Vec<(String, Box<dyn Any>)>>, Cell<u64>);

impl Common {
    /// The number of things of this type.
    #[must_use]
    pub fn count<T: Any>(&self) -> usize {
        self.0.borrow().iter().filter(|(_, thing)| thing.is::<T>()).count()
    }

    /// Number of times that something was added or looked for: if that changes while a stage is built, the
    /// stage shares something, and has to run on the same thread as those that it shares it with.
    #[must_use]
    pub fn uses(&self) -> u64 {
        self.1.get()
    }

    /// Adds what the stage `name` shares with those that are built after it.
    pub fn add<T: Any>(&self, name: &str, thing: T) {
        self.1.set(self.1.get() + 1);
        self.0.borrow_mut().push((name.to_owned(), Box::new(thing)));
    }

    /// Adds what stages may share from any thread, so that it doesn't keep them on the same one: it is found
    /// by [`Common::find_shared`].
    pub fn add_shared<T: Any + Send + Sync>(&self, name: &str, thing: T) {
        self.0.borrow_mut().push((name.to_owned(), Box::new(thing)));
    }

    /// The first thing of this type that was added by [`Common::add_shared`].
    #[must_use]
    pub fn find_shared<T: Any + Clone + Send + Sync>(&self) -> Option<T> {
        self.0.borrow().iter().find_map(|(_, thing)| thing.downcast_ref::<T>()).cloned()
    }

    /// The thing that the stage `name` shares; where no name is given, the only thing of this type that there
    /// is.
    #[must_use]
    pub fn find<T: Any + Clone>(&self, name: Option<&str>) -> Option<T> {
        self.1.set(self.1.get() + 1);
        let all = self.0.borrow();
        let mut of_type = all.iter().filter_map(|(by, thing)| Some((by, thing.downcast_ref::<T>()?)));
        match name {
            Some(name) => of_type.find(|(by, _)| *by == name).map(|(_, thing)| thing.clone()),
            None => {
                let (_, only) = of_type.next()?;
                of_type.next().is_none().then(|| only.clone())
            }
        }
    }
}

impl fmt::Debug for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.borrow().iter().map(|(name, _)| name)).finish()
    }
}

/// The result of building a stage type.
pub enum Made {
    /// A stage.
    Stage(Box<dyn Stage + Send>),
    /// A stage with these output ports.
    WithPorts(Box<dyn Stage + Send>, Vec<String>),
    /// A stage whose ports have these names, on the way in as on the way out.
    Between(Box<dyn Stage + Send>, Vec<String>),
    /// A source of packets.
    Source(Box<dyn Source + Send>),
    /// A source of packets and a destination.
    TwoWay(Box<dyn Source + Send>, Box<dyn Stage + Send>),
    /// Nothing, since it is only a check.
    Checked,
}

/// The reason why a stage can't be built, and the setting that is to blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BuildError {
    /// The setting, where it is one.
    pub setting: Option<&'static str>,
    /// The mistake, in words.
    pub message: String,
    /// A way to mend it, in words.
    pub hint: Option<String>,
}

impl BuildError {
    /// About a setting.
    #[must_use]
    pub fn setting(name: &'static str, message: impl Into<String>) -> Self {
        Self { setting: Some(name), message: message.into(), hint: None }
    }

    /// About the stage as a whole.
    #[must_use]
    pub fn stage(message: impl Into<String>) -> Self {
        Self { setting: None, message: message.into(), hint: None }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A type of stages.
#[derive(Clone, Copy, Debug)]
pub struct StageType {
    /// Its name, as written behind `type =` and in graphs.
    pub name: &'static str,
    /// Its purpose.
    pub group: Group,
    /// A summary in one line.
    pub summary: &'static str,
    /// An example of a graph with it.
    pub example: &'static str,
    /// Input ports.
    pub inputs: Ports,
    /// Output ports.
    pub outputs: Ports,
    /// Its settings.
    pub settings: &'static [Setting],
    /// Facts about its stages that others must know.
    pub properties: Properties,
    /// Makes one.
    pub build: fn(&Settings, &Site<'_>) -> Result<Made, BuildError>,
}

/// The packets that must come to the same core, where a pipeline runs on several, each with stages and tables
/// of its own. The fragments of a datagram count as packets of its flow, and ICMP errors as packets of the
/// connection that they are about.
///
/// Bounds don't count, such as the places of a table or the answers given a second: each core has its share
/// of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Meets {
    /// None: a packet, or a train, is decided about from itself alone.
    Nothing,
    /// Those of a flow, in one direction.
    Flow,
    /// Those of a connection, in both directions.
    Connection,
    /// All.
    Everything,
}

/// The way in which several copies of a pipeline (shards) have one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// They can't have it.
    Not,
    /// The first one receives and hands over what belongs to others; to send, each has one of its own.
    First,
    /// Each opens it, and the kernel spreads what comes by the hash that leads packets to shards.
    Kernel,
    /// Each opens it, and has some of its queues, over which the device spreads what comes in a way of its
    /// own: packets of other shards are handed over, unless the setting `steer` says that this isn't needed.
    Queues,
    /// The same, where devices that can spread by the Toeplitz hash with its symmetric key.
    Rss,
}

/// The way in which a port receives packets from a network interface of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receives {
    /// It gets copies: the system's own network stack gets every packet, too.
    Copies,
    /// Packets come to it instead of to the system's network stack.
    Packets,
}

/// The kind of events that stages note for who [asks](crate::operate::Operate::events) for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Sessions that begin and end.
    Sessions,
    /// Packets that are denied.
    Denials,
}

/// The reason why a live pipeline can't be divided among threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneThread {
    /// A stage has room for so many packets only.
    Room,
    /// Packets come by the time that the work of the pipeline takes.
    OwnTime,
}

impl OneThread {
    /// The same in words.
    #[must_use]
    pub fn why(self) -> &'static str {
        match self {
            Self::Room => {
                "a stage takes only so many packets at a time, which the sources have to know before they bring more"
            }
            Self::OwnTime => "a run in service time counts what one thread takes",
        }
    }
}

/// The fate of payloads in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// They go with their packets, or stay where they wait.
    Passes,
    /// They are parked: packets leave without.
    Parks,
    /// Packets get those back that another stage parked.
    Returns,
}

/// An interface to a link, as far as others have to know it that lead packets there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Name of its port.
    pub name: String,
    /// Addresses, each with the length of its network's prefix.
    pub addresses: Vec<IpNet>,
    /// Stations on the link ask for its addresses (ARP, neighbour discovery), and it answers.
    pub answers: bool,
    /// Bytes of the longest IP packet that leaves by it.
    pub mtu: u32,
}

/// Endpoints that packets to the outside get for their own. Where a packet from outside belongs, its external
/// port alone says, so that each of several shards has a part of them, and packets from inside are led by
/// their host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// Number of the input to which packets come from outside.
    pub outside: usize,
    /// The setting with the prefixes of the hosts inside; none: all.
    pub inside: &'static str,
    /// The settings with ranges of external ports, as `FIRST-LAST`.
    pub ports: &'static [&'static str],
    /// The setting with the range of identifiers of ICMP queries.
    pub identifiers: &'static str,
}

/// A reason why several shards can't have a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hindrance {
    /// The reason, as a sentence goes on behind the stage's name.
    pub reason: &'static str,
    /// A remedy, as an imperative.
    pub remedy: &'static str,
}

/// A port that several shards have together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The part of the stage in the pipeline.
    pub role: Role,
    /// A number for what the kernel spreads over them, 1 to 65535; no other stage or process has it.
    pub group: u64,
}

/// Facts about the stages of a type that others must know: who puts a pipeline together, checks it, or
/// spreads it over cores. Those that depend on settings are functions of them.
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// Packets come or go by the wall clock here, so that the pipeline runs live. One that has inputs and
    /// outputs may stand at both ends.
    pub live: bool,
    /// Packets may leave later than they came, in trains that were made here.
    pub holds: bool,
    /// More packets may leave than came.
    pub copies: bool,
    /// The reason why a live pipeline with it runs on one thread, where it does.
    pub one_thread: fn(&Settings, Role) -> Option<OneThread>,
    /// Packets that come by again and again are dropped in the end.
    pub counts_hops: bool,
    /// Packets that leave come to a link, where stations ask each other for addresses.
    pub faces_a_link: bool,
    /// Of a port: how it receives packets from the system's network interface that its setting `interface`
    /// names, if it has one.
    pub receives: Option<Receives>,
    /// Of a port: a process beside this one is on its other side, from which packets may come back.
    pub faces_a_process: bool,
    /// Of a port: nobody gets what leaves by it.
    pub leads_nowhere: bool,
    /// The events that its stages note for who asks for them, if any.
    pub events: Option<EventKind>,
    /// The fate of payloads.
    pub payload: Payload,
    /// The reasons for which packets are dropped here, as far as they are known beforehand; those of output
    /// ports that may lead nowhere aside. A stage may still count others, which its report then has.
    pub drops: &'static [DropReason],
    /// The reason why it can't do with packets whose payload waits elsewhere, if it can't.
    pub needs_payload: fn(&Settings) -> Option<&'static str>,
    /// Frames may leave with other bytes than they came with, or are made here, so that a frame check
    /// sequence at their end is not theirs any more.
    pub changes_frames: fn(&Settings) -> bool,
    /// Packets get other addresses or ports.
    pub rewrites_flows: fn(&Settings) -> bool,
    /// Packets get another code point (DSCP).
    pub rewrites_dscp: fn(&Settings) -> bool,
    /// Addresses that packets are given on their way out, which somebody has to answer for.
    pub external: fn(&Settings) -> Vec<IpNet>,
    /// Interfaces to links, by the numbers of its ports; none where they can't be read, or there are none.
    pub attachments: fn(&Settings) -> Option<Vec<Attachment>>,
    /// The packets that must come to the same core.
    pub meets: fn(&Settings) -> Meets,
    /// The settings that can change while stages run, if any can.
    pub reload: Option<Reloading>,
    /// Tables that can be listed, saved and restored.
    pub tables: &'static [StateTable],
    /// Of a port: how shards have it.
    pub sharing: fn(&Settings) -> Sharing,
    /// Of a port: the settings with which each shard opens it.
    pub shared: fn(&Settings, Shared) -> Settings,
    /// The reason why shards can't have it, where the packets that must meet aren't the reason.
    pub hindrance: fn(&Settings) -> Option<Hindrance>,
    /// Settings with which fewer packets must meet, in words, where all have to with others.
    pub without_meeting: Option<&'static str>,
    /// Packets to the outside get endpoints that are divided among shards: all of what must meet is led
    /// together by them.
    pub translation: Option<Translation>,
    /// It asks stations on its links for their addresses, which the stages of all shards have to hear.
    pub asks_neighbours: fn(&Settings) -> bool,
    /// Packets leave by the output with the number of the input that they came to, but for those that are
    /// made here.
    pub paired: bool,
    /// The setting that names the file or folder that is written, unless packets come from it. Where it is a
    /// text, `none` and what begins with `udp:` are no files.
    pub writes: Option<&'static str>,
    /// Settings that have an effect only where another one is as it has to be; without, they are refused.
    pub partners: &'static [Partner],
    /// Outputs, by name, by which packets leave only where a setting is as it has to be; otherwise a wire
    /// there is refused.
    pub output_needs: &'static [(&'static str, Need)],
}

impl Properties {
    /// Those of a stage that lets packets pass as they are, or drops them, and that is not live. Which
    /// packets must meet has to be said of every type, since a wrong answer gives wrong verdicts.
    #[must_use]
    pub const fn new(meets: fn(&Settings) -> Meets) -> Self {
        Self {
            live: false,
            holds: false,
            copies: false,
            one_thread: |_, _| None,
            counts_hops: false,
            faces_a_link: false,
            receives: None,
            faces_a_process: false,
            leads_nowhere: false,
            events: None,
            payload: Payload::Passes,
            drops: &[],
            needs_payload: |_| None,
            changes_frames: |_| false,
            rewrites_flows: |_| false,
            rewrites_dscp: |_| false,
            external: |_| Vec::new(),
            attachments: |_| None,
            meets,
            reload: None,
            tables: &[],
            sharing: |_| Sharing::Not,
            shared: |settings, _| settings.clone(),
            hindrance: |_| None,
            without_meeting: None,
            translation: None,
            asks_neighbours: |_| false,
            paired: false,
            writes: None,
            partners: &[],
            output_needs: &[],
        }
    }
}

impl StageType {
    /// Returns true if packets come or go by the wall clock here, so that the pipeline runs live.
    #[must_use]
    pub fn live(&self) -> bool {
        self.properties.live
    }

    /// The reasons for which its stages drop packets, as far as they are known beforehand, in the order of
    /// their numbers: those of the stage itself, and those of output ports that may lead nowhere.
    #[must_use]
    pub fn drop_reasons(&self) -> Vec<DropReason> {
        let mut all = self.properties.drops.to_vec();
        all.extend(self.outputs.of_type().iter().filter_map(|port| port.unconnected));
        all.sort_unstable_by_key(|r| r.number());
        all.dedup();
        all
    }

    /// The reason why it can't do with packets whose payload waits elsewhere, if it can't with these
    /// settings.
    #[must_use]
    pub fn needs_payload(&self, settings: &Settings) -> Option<&'static str> {
        (self.properties.needs_payload)(settings)
    }

    /// The packets that must come to the same core with these settings.
    #[must_use]
    pub fn meets(&self, settings: &Settings) -> Meets {
        (self.properties.meets)(settings)
    }
}

/// The one input of most stages.
pub const IN: Ports = Ports::These(&[PortType { name: "in", help: "packets", unconnected: None }]);
/// The one output of most stages.
pub const OUT: Ports = Ports::These(&[PortType { name: "out", help: "packets", unconnected: None }]);
