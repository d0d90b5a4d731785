//! Files that are read anew on a thread of their own, while packets go on by what was read before.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

/// Time after which to ask again whether something has been read, in ns.
pub(crate) const SOON: u64 = 10_000_000;

/// Something that is being read, or nothing.
#[derive(Debug)]
pub(crate) struct Reading<T>(Option<Receiver<Result<T, String>>>);

impl<T> Default for Reading<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Send + 'static> Reading<T> {
    /// Returns true if something is being read.
    pub(crate) fn is_under_way(&self) -> bool {
        self.0.is_some()
    }

    /// Reads on a thread that is called `name`, of which errors speak too.
    pub(crate) fn start(
        &mut self,
        name: &str,
        read: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<(), String> {
        let (send, receive) = channel();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || drop(send.send(read())))
            .map_err(|error| format!("no thread to read the {name}: {error}"))?;
        self.0 = Some(receive);
        Ok(())
    }

    /// The result, once there is one; nothing is being read any more then.
    pub(crate) fn poll(&mut self, name: &str) -> Option<Result<T, String>> {
        let read = match self.0.as_ref()?.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(format!("the thread that read the {name} ended early")),
            Ok(read) => read,
        };
        self.0 = None;
        Some(read)
    }
}
