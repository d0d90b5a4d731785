//! The output of a stage that made its trains by the inner headers of tunnels: the stages behind it handle
//! packets by their outermost headers, as they do anywhere else.

use slipstream_wire::{Flags, FlowKey, LinkType, classify};

use slipstream_core::batch::{Batch, Train};
use slipstream_core::frame::{Frame, Info};
use slipstream_core::pool::Pool;
use slipstream_core::stage::Output;
use slipstream_core::stage::link_type;

/// Regroups the packets that a stage emits into trains of one flow by the outermost headers.
pub(super) struct Regroup<'a, 'b> {
    pub(super) links: &'a [LinkType],
    /// Scratch, which takes no memory while no tunnel comes.
    pub(super) trains: &'a mut Vec<Train>,
    pub(super) out: &'b mut dyn Output,
}

impl Output for Regroup<'_, '_> {
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        if batch.frames.iter().any(is_inner) {
            self.split(pool, batch);
        }
        self.out.emit(pool, batch);
    }
}

fn is_inner(frame: &Frame) -> bool {
    frame.info.classified() && Flags(frame.info.flags()).has(Flags::INNER)
}

impl Regroup<'_, '_> {
    /// Notes where the outermost headers stand; a train becomes as many as have one flow by them.
    fn split(&mut self, pool: &Pool, batch: &mut Batch) {
        let Batch { frames, trains, .. } = batch;
        self.trains.clear();
        for train in trains.drain(..) {
            let of_train = train.start as usize..(train.start + train.len) as usize;
            let frames = frames.get_mut(of_train).unwrap_or_default();
            if !frames.iter().any(is_inner) {
                self.trains.push(train);
                continue;
            }
            let (mut part, mut last) = (Train { len: 0, ..train }, None);
            for frame in frames {
                let key = self.outermost(pool, frame);
                if part.len > 0 && last != key {
                    self.trains.push(part);
                    part = Train { start: part.start + part.len, len: 0, continues: true, ..train };
                }
                (part.len, last) = (part.len + 1, key);
            }
            self.trains.push(part);
        }
        core::mem::swap(trains, self.trains);
    }

    /// The key of a packet by its outermost headers, whose places the frame says from now on.
    fn outermost(&self, pool: &Pool, frame: &mut Frame) -> Option<FlowKey> {
        let headers = classify(link_type(self.links, pool, frame), pool.data(frame.buf, frame.len)).ok()?;
        frame.info = Info::new(&headers);
        Some(headers.key)
    }
}
