//! Functions whose cores know no frames, as stages.

mod balancer;
mod flow_export;
mod flow_stats;
mod meter;
mod nptv6;

pub use balancer::BALANCER;
pub use balancer::{BalancerStage, Mode};
pub use flow_export::Target;
pub use flow_stats::FLOW_STATS;
pub use flow_stats::FlowStatsStage;
pub use meter::METER;
pub use meter::MeterStage;
pub use nptv6::NPTV6;
pub use nptv6::Nptv6Stage;
