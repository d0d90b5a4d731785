//! Functions whose cores know no frames, as stages.

mod balancer;
mod flow_stats;
mod meter;

pub(crate) use balancer::BALANCER;
pub use balancer::{BalancerStage, Mode};
pub(crate) use flow_stats::FLOW_STATS;
pub use flow_stats::{FlowStatsStage, Target};
pub(crate) use meter::METER;
pub use meter::MeterStage;
