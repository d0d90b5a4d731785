//! Functions whose cores know no frames, as stages.

mod balancer;
mod meter;

pub(crate) use balancer::BALANCER;
pub use balancer::{BalancerStage, Mode};
pub(crate) use meter::METER;
pub use meter::MeterStage;
