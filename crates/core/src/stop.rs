//! Waiting that can be ended from outside: for a stream that has nothing for a while, for a reader of a pipe.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// The flag that ends all waiting for streams once it is set, such as by a signal.
#[must_use]
pub fn stops_streams() -> Arc<AtomicBool> {
    Arc::clone(&STOP)
}

/// Waiting for a stream was ended by [`stops_streams`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it was asked to end")]
pub struct Stopped;

impl Stopped {
    /// This error, once [`stops_streams`] was set.
    ///
    /// # Errors
    /// Itself.
    pub fn check() -> Result<(), Self> {
        if STOP.load(Ordering::Relaxed) { Err(Self) } else { Ok(()) }
    }

    /// Returns true if this is why something was not read or written.
    #[must_use]
    pub fn is_why(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}
