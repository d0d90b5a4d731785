//! The reframers of the arrangements. In front of the chain one is a configuration, since packets come
//! reframed already; in the chain it is a stage, which is built from text as a user's is.

use anyhow::Context;
use slipstream::pipeline::Plan;
use slipstream::reframe::{Budget, Class, ClassSettings, ReframeConfig};
use slipstream::rules::Rule;

use super::LARGE_DSCP;
use crate::bench::NamedStage;

/// Packets that a reframer holds at most.
const CAPACITY: u32 = 65_536;
/// The price of a packet that joins a train where a reframer says by itself when to hold: what the packet
/// saves the functions, in ns of their core's time. The fits of `nf-locality` say less than that for any
/// function.
const JOIN_NS: u64 = 100;

/// A reframer, by the packets that it holds. Times are in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reframer {
    /// It holds all packets for so long.
    All(u64),
    /// It holds packets for so long that are marked as of large flows.
    Large(u64),
    /// Its hold sets itself, from none up to this.
    Auto(u64),
}

impl Reframer {
    /// The configuration of one that stands in front.
    pub(crate) fn config(self) -> anyhow::Result<ReframeConfig> {
        let mut config =
            ReframeConfig { capacity: CAPACITY, bypass: Rule::never(), ..ReframeConfig::default() };
        match self {
            Self::All(hold) => config.default.hold_ns = hold,
            Self::Large(hold) => {
                config.default.hold_ns = 0;
                config.classes.push(Class {
                    name: "large".into(),
                    rule: Rule::parse(&format!("dscp {LARGE_DSCP}"))?,
                    top: None,
                    settings: ClassSettings { hold_ns: hold, ..config.default.clone() },
                });
            }
            Self::Auto(most) => {
                config.default.hold_ns = most;
                config.default.hold_min_ns = Some(0);
                config.budget = Some(Budget::Price(JOIN_NS));
            }
        }
        Ok(config)
    }

    /// The stage of one that is in the chain.
    pub(super) fn stage(self) -> anyhow::Result<NamedStage> {
        let hold = match self {
            Self::All(hold) => format!("hold={hold}ns"),
            Self::Large(hold) => format!("hold=0, class=[\"large: dscp {LARGE_DSCP} => hold={hold}ns\"]"),
            Self::Auto(most) => format!("hold=auto, hold_max={most}ns, budget=\"price={JOIN_NS}ns\""),
        };
        let graph = format!("in :: null -> reframe({hold}, capacity={CAPACITY}, bypass=none) -> out :: null");
        let stages = Plan::from_graph(&graph, None, None, "".as_ref())?.build(3)?.into_stages();
        stages.into_iter().find(|(name, _)| name == "reframe").context("the reframe stage was not built")
    }
}

#[cfg(test)]
mod tests {
    use slipstream::functions::firewall::generate::Kind;

    use super::*;
    use crate::bench;
    use crate::chain::{BURST, campus};

    /// In front and in the chain, each holds the same packets for as long.
    #[test]
    fn a_configuration_and_its_stage_hold_alike() {
        let keys = bench::keys(&bench::rules(Kind::Mixed, 100), 2000).unwrap();
        let traffic = campus(1, 4000, &keys).unwrap().traffic;
        let mut all = Vec::new();
        for reframer in [Reframer::All(64_000), Reframer::Large(64_000), Reframer::Auto(64_000)] {
            let mut pipeline = bench::pipeline(vec![reframer.stage().unwrap()]).unwrap();
            let (_, reports) = traffic.rehearse(&mut pipeline, 0, BURST).unwrap();
            let stats = reports.iter().find_map(|r| r.reframe.as_deref()).unwrap().total();
            let in_front = traffic.reframed(&reframer.config().unwrap()).unwrap();
            let delays = in_front.times().map(|(left, came)| left.since(came));
            let (packets, delay) = delays.fold((0, 0), |(n, sum), delay| (n + 1, sum + delay));
            assert_eq!((packets, u128::from(delay)), (stats.packets_out, stats.delay.sum()), "{reframer:?}");
            all.push(delay);
        }
        assert!(all[0] > all[1] && all[1] > 0 && all[0] > all[2], "{all:?}");
    }
}
