//! The reframer with heavy flows that are found by the aggregator of the sketches: neither of the two members
//! knows the other.

use slipstream_core::operate::Reloading;
use slipstream_core::registry::{Properties, StageType};
use slipstream_measure::Elephants;
use slipstream_reframe::{self as reframe, ReframeConfig};

/// The stage type.
pub(super) const REFRAME: StageType = StageType {
    properties: Properties { reload: RELOAD, ..reframe::REFRAME.properties },
    build: |settings, site| reframe::build_with(settings, site, Some(Elephants::boxed)),
    ..reframe::REFRAME
};

const RELOAD: Option<Reloading> = match reframe::REFRAME.properties.reload {
    Some(reloading) => Some(Reloading {
        make: |settings, site| reframe::update_with(settings, site, Some(Elephants::boxed)),
        ..reloading
    }),
    None => None,
};

/// The settings, with what finds heavy flows where they don't say.
pub(crate) fn with_heavy_flows(config: &ReframeConfig) -> ReframeConfig {
    ReframeConfig { heavy_flows: config.heavy_flows.or(Some(Elephants::boxed)), ..config.clone() }
}
