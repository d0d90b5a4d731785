//! Stages that are called when something is due.

use std::sync::{Arc, Mutex};

use slipstream_core::stage::Observe;

use super::*;

/// Has something to do every 100 ns, and notes when it was called.
struct Slices {
    catches_up: bool,
    next: Nanos,
    calls: Arc<Mutex<Vec<u64>>>,
}

impl Stage for Slices {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        out.emit(cx.pool, batch);
    }

    fn next_deadline(&self) -> Nanos {
        self.next
    }

    fn catches_up(&self) -> bool {
        self.catches_up
    }

    fn on_deadline(&mut self, cx: &mut Context<'_>, _: &mut dyn Output) {
        self.calls.lock().unwrap().push(cx.now.0);
        self.next = cx.now.after(100);
    }
}

impl Observe for Slices {}

/// Slices of a stage's work are not made up for where the time for several has passed, as while packets or a
/// slice took longer; deadlines of other stages are met one by one.
#[test]
fn slices_are_not_made_up_for() {
    let calls = || Arc::new(Mutex::new(Vec::new()));
    let (slices, deadlines) = (calls(), calls());
    let stage = |catches_up, calls: &Arc<_>| -> Box<dyn Stage + Send> {
        Box::new(Slices { catches_up, next: Nanos(100), calls: Arc::clone(calls) })
    };
    let stages = [("slices", stage(false, &slices)), ("deadlines", stage(true, &deadlines))];
    let mut pipeline = Pipeline::chain(stages.map(|(name, stage)| (name.to_owned(), stage)).into());
    let mut pool = Pool::new();
    for now in [50, 100, 450, 500, 560] {
        pipeline.run_to(&mut pool, Nanos(now));
    }
    assert_eq!(*slices.lock().unwrap(), [100, 450, 560]);
    assert_eq!(*deadlines.lock().unwrap(), [100, 200, 300, 400, 500]);
}
