//! Lines on their way to a log that somebody may have stopped reading. Whoever has something to say puts it
//! into a queue of bounded length, without waiting; a thread writes. What finds no room is left out and
//! counted.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Pieces of text that may wait.
const ROOM: usize = 256;

/// The queue, between those who have something to say and the thread that writes.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    /// The thread has taken something and not written all of it.
    writing: bool,
    /// Pieces that found no room, in all, and how many of them the log has told of.
    left_out: u64,
    told: u64,
    /// Somebody waited in vain for all to be written; the next one doesn't wait again.
    given_up: bool,
}

impl Queue {
    /// Starts the thread that writes `into`. Each time it has written everything and more was left out
    /// meanwhile, `tell` is called with the number of pieces that were left out since the beginning.
    ///
    /// # Errors
    /// No thread is to be had.
    pub(super) fn start(
        mut into: impl Write + Send + 'static,
        tell: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self::default());
        let read = Arc::clone(&queue);
        let write = move || {
            loop {
                let next = read.next();
                // No other place is left to report errors of the log itself.
                let _ = into.write_all(&next);
                if let Some(left_out) = read.written() {
                    tell(left_out);
                }
            }
        };
        thread::Builder::new().name("log".into()).spawn(write)?;
        Ok(queue)
    }

    /// Takes a text that is to be written, or counts it where too many are waiting.
    pub(super) fn offer(&self, text: &[u8]) {
        let mut state = self.lock();
        if state.waiting.len() < ROOM {
            state.waiting.push_back(text.to_vec());
            self.changed.notify_all();
        } else {
            state.left_out += 1;
        }
    }

    /// Waits until everything is written, for a time at most; for none where somebody has waited in vain.
    pub(super) fn drain(&self, patience: Duration) {
        let state = self.lock();
        let patience = if state.given_up { Duration::ZERO } else { patience };
        let busy = |state: &mut State| state.writing || !state.waiting.is_empty();
        let ended = self.changed.wait_timeout_while(state, patience, busy);
        let (mut state, result) = ended.unwrap_or_else(PoisonError::into_inner);
        state.given_up = result.timed_out();
    }

    /// The thread waits for something to write.
    fn next(&self) -> Vec<u8> {
        let mut state = self.lock();
        loop {
            if let Some(next) = state.waiting.pop_front() {
                state.writing = true;
                return next;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The thread has written what it took; the number of pieces that were left out, if the log is to tell.
    fn written(&self) -> Option<u64> {
        let mut state = self.lock();
        state.writing = false;
        self.changed.notify_all();
        (state.waiting.is_empty() && state.left_out > state.told).then(|| {
            state.told = state.left_out;
            state.left_out
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn what_nobody_reads_is_left_out_and_counted() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (sender, told) = channel();
        let queue = Queue::start(writer, move |left_out| sender.send(left_out).unwrap()).unwrap();
        let line = [b'.'; 1024];
        let since = slipstream::clock::now();
        for _ in 0..2000 {
            queue.offer(&line);
        }
        queue.drain(Duration::from_millis(20));
        queue.drain(LONG);
        assert!(since.elapsed() < LONG, "it waited for a reader that doesn't read");
        let left_out = queue.lock().left_out;
        assert!(left_out > 1000, "{left_out} of 2000 were left out");
        // Then somebody reads.
        let mut read = vec![0; (2000 - left_out as usize) * line.len()];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(told.recv_timeout(LONG), Ok(left_out));
        queue.offer(b"again");
        let mut again = [0; 5];
        reader.read_exact(&mut again).unwrap();
        assert_eq!(&again, b"again");
        assert!(told.try_recv().is_err(), "nothing more was left out");
    }

    #[test]
    fn what_is_read_comes_whole_and_in_order() {
        let (mut reader, writer) = io::pipe().unwrap();
        let queue = Queue::start(writer, |left_out| panic!("{left_out} were left out")).unwrap();
        for round in 0..20_u8 {
            for number in 0..100 {
                queue.offer(&[round, number]);
            }
            let mut read = [0; 200];
            reader.read_exact(&mut read).unwrap();
            assert!(read.chunks(2).zip(0..).all(|(pair, number)| pair == [round, number]));
        }
        queue.drain(LONG);
        assert!(!queue.lock().given_up);
    }
}
