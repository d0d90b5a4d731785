//! The stage types that this program knows: the engine's, and those that it was built with besides.

use serde_json::Value;
use slipstream::pipeline::{RegisterError, Registry, StageType, built_in};
use slipstream::runtime::{Driver, Pipeline};

/// All of them.
pub(crate) fn registry() -> Registry {
    let mut registry = built_in();
    if let Err(error) = more::register(&mut registry) {
        tracing::error!("{error}");
    }
    registry
}

/// The type of this name.
pub(crate) fn stage_type(name: &str) -> Option<StageType> {
    registry().get(name).copied()
}

/// The driver of a pipeline, with the packet memory that its ports have.
pub(crate) fn driver(pipeline: Pipeline) -> Driver {
    more::driver(pipeline)
}

/// Closes what ports left open, once the driver is gone; the state in which they left it.
pub(crate) fn close() -> Option<Value> {
    more::close()
}

#[cfg(not(feature = "dpdk"))]
mod more {
    use super::{Driver, Pipeline, RegisterError, Registry, Value};

    pub(super) fn register(_: &mut Registry) -> Result<(), RegisterError> {
        Ok(())
    }

    pub(super) fn driver(pipeline: Pipeline) -> Driver {
        Driver::new(pipeline)
    }

    pub(super) fn close() -> Option<Value> {
        None
    }
}

#[cfg(feature = "dpdk")]
mod more {
    use serde_json::json;

    use super::{Driver, Pipeline, RegisterError, Registry, Value};

    #[allow(unsafe_code)]
    pub(super) fn register(registry: &mut Registry) -> Result<(), RegisterError> {
        // SAFETY: its ports leave packets alone that they gave away, or let go to be sent.
        unsafe { registry.register_shared(slipstream_dpdk::DPDK) }
    }

    #[allow(unsafe_code)]
    pub(super) fn driver(pipeline: Pipeline) -> Driver {
        let driver = Driver::new(pipeline);
        // SAFETY: the driver hands the pool to stages and ports, which use packets that it gave them, with
        // their lengths.
        match unsafe { slipstream_dpdk::take_pool() } {
            Some(pool) => driver.pool(pool),
            None => driver,
        }
    }

    pub(super) fn close() -> Option<Value> {
        let closed = slipstream_dpdk::close();
        slipstream_dpdk::eal::stop();
        let closed = closed?;
        if closed.mbufs_left > 0 {
            tracing::warn!(
                "{} of {} mbufs did not come back: this is a fault of the program or of a driver; please report it",
                closed.mbufs_left,
                closed.mbufs
            );
        }
        Some(json!({ "mbufs": closed.mbufs, "mbufs_left": closed.mbufs_left }))
    }
}
