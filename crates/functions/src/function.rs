//! A network function decides about a packet, and applies the decision. Two wrappers make a stage of it:
//! [`PerTrain`] decides once for a whole train, [`PerPacket`] for every packet, as other packet processors
//! do, and is the baseline that every benchmark compares with (paper: "Packet Order Matters!", §2.4).

use std::fmt;

use slipstream_core::batch::Batch;
use slipstream_core::flow_context::FlowUse;
use slipstream_core::frame::Frame;
use slipstream_core::operate::Operate;
use slipstream_core::reads::Reads;
use slipstream_core::stage::Output;
use slipstream_core::stage::{Context, DraftReport, Drops, Egress, Observe, Stage, StageError, Verdict};
use slipstream_core::time::Nanos;

use super::reassembly::FragmentLimits;
use super::runner::Runner;

/// A packet that a function made, such as an ICMP error, and the port that it leaves by.
#[derive(Clone, Copy, Debug)]
pub struct NewPacket {
    /// The packet.
    pub frame: Frame,
    /// Its port.
    pub port: u8,
    /// So many of the packets that the decision is applied to leave before it; all where there are fewer.
    pub behind: usize,
}

impl NewPacket {
    /// A packet that leaves behind all that the decision is applied to.
    #[must_use]
    pub const fn new(frame: Frame, port: u8) -> Self {
        Self { frame, port, behind: usize::MAX }
    }
}

/// The context that a function decides in, besides the packets.
#[derive(Debug)]
pub struct FunctionContext<'a, 'b> {
    /// Time, bytes, input port.
    pub cx: &'a mut Context<'b>,
    /// Packets that the function makes or lets go. They leave right behind the packets that it is asked
    /// about, or [among them](NewPacket::behind), in this order.
    pub made: &'a mut Vec<NewPacket>,
}

impl FunctionContext<'_, '_> {
    /// Has what was made, but for the first `before` packets, leave right behind the packet at `at` of those
    /// that the decision is applied to, as it does where that packet comes alone.
    pub(crate) fn made_by(&mut self, before: usize, at: usize) {
        self.made.iter_mut().skip(before).for_each(|made| made.behind = at + 1);
    }
}

/// A network function.
///
/// Packets that it [keeps](Verdict::KEPT) are those that it [holds](Observe::held). Its own
/// [drops](Observe::drops) are those of packets that it had kept.
///
/// ```
/// use slipstream_core::batch::{Batch, Train};
/// use slipstream_core::frame::{Frame, Info};
/// use slipstream_core::pool::{PacketMeta, Pool};
/// use slipstream_core::stage::{Context, DropReason, Observe, Output, Stage, Verdict};
/// use slipstream_core::time::Nanos;
/// use slipstream_functions::{NetworkFunction, PerTrain, FunctionContext};
/// use slipstream_wire::{LinkType, classify};
///
/// /// Denies IPv4 packets to one host. A flow has one destination, so that one decision does for a train.
/// struct Deny([u8; 4]);
///
/// impl NetworkFunction for Deny {
///     type Decision = Verdict;
///     type Lookahead = ();
///
///     fn look_ahead(&mut self, _: &Context<'_>, _: &Frame, _: &mut ()) {}
///
///     fn decide(&mut self, fx: &mut FunctionContext<'_, '_>, first: &Frame, _: &()) -> Verdict {
///         let destination = usize::from(first.info.l3()) + 16;
///         let denied = fx.cx.data(first).get(destination..destination + 4) == Some(&self.0);
///         if denied { Verdict::drop(DropReason::Denied) } else { Verdict::PASS }
///     }
///
///     fn apply(&mut self, _: &mut FunctionContext<'_, '_>, verdict: &Verdict, _: &mut [Frame], all: &mut [Verdict]) {
///         all.fill(*verdict);
///     }
/// }
///
/// impl Observe for Deny {}
///
/// struct Nowhere;
///
/// impl Output for Nowhere {
///     fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
///         batch.frames.iter().for_each(|frame| pool.free(frame.buf));
///         batch.clear();
///     }
/// }
///
/// let dns = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 0, 8, 0, 0];
/// let (mut pool, mut batch) = (Pool::new(), Batch::new());
/// for _ in 0..3 {
///     let buf = pool.insert(PacketMeta::default(), &dns);
///     let info = Info::new(&classify(LinkType::RawIp, &dns).unwrap());
///     batch.frames.push(Frame { info, flow: 0, ..Frame::unclassified(Nanos(1), buf, 28) });
/// }
/// let train = Train { flow: 0, start: 0, len: 3, release: Nanos(1), order: 0, sequence: 0, continues: false };
/// batch.trains.push(train);
///
/// let mut stage = PerTrain::new(Deny([10, 0, 0, 2]));
/// let mut cx = Context { now: Nanos(1), pool: &mut pool, input: 0, links: &[LinkType::RawIp] };
/// stage.process(&mut cx, &mut batch, &mut Nowhere);
/// assert_eq!((stage.decisions(), pool.live()), (1, 0));
/// ```
pub trait NetworkFunction: Observe {
    /// A decision about a packet.
    type Decision;

    /// The result of reading a packet ahead of its decision.
    type Lookahead: Default + fmt::Debug + Send;

    /// The fields beyond the flow key that [`decide`](NetworkFunction::decide) reads.
    fn reads(&self) -> Reads {
        Reads::KEY
    }

    /// For a function that decides about whole datagrams: the bounds within which their fragments wait for
    /// each other. It is then asked about a datagram as about one packet, which stands for all of its
    /// fragments, and every fragment is treated by that decision. Fragments of other functions are packets
    /// like others.
    fn fragments(&self) -> Option<FragmentLimits> {
        None
    }

    /// The use that it makes of flow contexts: where it keeps words of a flow, it reads and writes them by
    /// [`Pool::flow_words`](slipstream_core::pool::Pool::flow_words) and
    /// [`Pool::keep_flow_words`](slipstream_core::pool::Pool::keep_flow_words) while it looks ahead and
    /// decides.
    fn flow_use(&self) -> FlowUse {
        FlowUse::default()
    }

    /// True if packets may leave with another flow key than they came with; [`leaves_as`](Self::leaves_as)
    /// says which. A train then is cut where the keys differ, so that each has one.
    const CHANGES_KEYS: bool = false;

    /// Says what becomes of the flow key of packets by a decision.
    #[inline(always)]
    fn leaves_as(&self, _decision: &Self::Decision) -> LeavesAs {
        LeavesAs::Before
    }

    /// Returns true if the decision about `first` holds for `other`, a later packet of its flow.
    #[inline]
    fn shares(&self, cx: &Context<'_>, first: &Frame, other: &Frame) -> bool {
        self.reads().agree(cx.pool, first, other)
    }

    /// Counts the packets at the start of `others`, those behind `first` in its train, for which the decision
    /// about `first` holds too.
    #[inline]
    fn sharing(&self, cx: &Context<'_>, first: &Frame, others: &[Frame]) -> usize {
        others.iter().position(|other| !self.shares(cx, first, other)).unwrap_or(others.len())
    }

    /// The time up to which the decision that was just made at `now` holds: a packet of the train that comes
    /// then or later is decided about anew. It is no later than the end of anything that the decision was
    /// made from, such as the timeout of an entry that was found or made, or the next question to a
    /// neighbour. It is [`Nanos::MAX`] if time doesn't matter, and `now` if a second packet may get another
    /// answer.
    #[inline(always)]
    fn holds_until(&self, _decision: &Self::Decision, _now: Nanos) -> Nanos {
        Nanos::MAX
    }

    /// Reads a packet a few decisions before its own, and prefetches the memory that the decision will read.
    /// The result must depend on the packet alone, since decisions are made in between. It replaces the
    /// contents of `found`, which are those of another packet.
    fn look_ahead(&mut self, cx: &Context<'_>, first: &Frame, found: &mut Self::Lookahead);

    /// Prefetches more for packets that [`look_ahead`](NetworkFunction::look_ahead) has read one behind the
    /// other, from the memory that it asked for: the accesses of several packets overlap. The result must
    /// depend on the packets alone.
    #[inline(always)]
    fn prefetch(&mut self, _cx: &Context<'_>, _found: &mut [Self::Lookahead]) {}

    /// Decides about a packet, of which `ahead` is the result of [`look_ahead`](NetworkFunction::look_ahead).
    fn decide(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        first: &Frame,
        ahead: &Self::Lookahead,
    ) -> Self::Decision;

    /// Applies the decision to packets that share it. `verdicts`, one a packet, say
    /// [`Verdict::PASS`] until this says otherwise.
    fn apply(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        decision: &Self::Decision,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    );

    /// See [`Stage::next_deadline`].
    fn next_deadline(&self) -> Nanos {
        Nanos::MAX
    }

    /// See [`Stage::catches_up`].
    fn catches_up(&self) -> bool {
        true
    }

    /// The first time at which packets may leave by themselves, should packets come from `first` on: a batch
    /// that lasts until then is given to the function in parts, and what is due between them happens at its
    /// own time. It is [`Nanos::MAX`] of a function of which nothing leaves by itself, or no packet can tell
    /// when.
    #[inline(always)]
    fn leaves_by_itself(&self, _first: Nanos) -> Nanos {
        Nanos::MAX
    }

    /// Does what is due.
    fn on_deadline(&mut self, _fx: &mut FunctionContext<'_, '_>) {}

    /// Lets go of everything that it keeps: nothing more will come.
    fn drain(&mut self, _fx: &mut FunctionContext<'_, '_>) {}

    /// See [`Stage::reloads`].
    fn reloads(&self) -> Option<&'static str> {
        None
    }

    /// See [`Stage::reload`].
    fn reload(&mut self, _now: Nanos) {}

    /// See [`Stage::operate`].
    fn operate(&mut self) -> Option<&mut dyn Operate> {
        None
    }

    /// See [`Egress::flush`].
    ///
    /// # Errors
    /// Its output can't be written.
    fn flush(&mut self, _now: Nanos) -> Result<(), StageError> {
        Ok(())
    }

    /// See [`Egress::finish`].
    ///
    /// # Errors
    /// Its output can't be written.
    fn finish(&mut self, _now: Nanos) -> Result<(), StageError> {
        Ok(())
    }
}

/// Flow key of packets behind a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeavesAs {
    /// It stays as it was.
    Before,
    /// It is another one, which follows from these words and the key before.
    Changed([u64; 2]),
    /// Nobody says: another packet of the train may get another one.
    Unknown,
}

macro_rules! wrapper {
    ($(#[$doc:meta])* $name:ident, $per_train:literal) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<F: NetworkFunction>(Runner<F>);

        impl<F: NetworkFunction> $name<F> {
            /// A stage of this function.
            #[must_use]
            pub fn new(function: F) -> Self {
                Self(Runner::new(function))
            }

            /// The function.
            #[must_use]
            pub fn function(&self) -> &F {
                &self.0.function
            }

            /// Decisions made so far.
            #[must_use]
            pub fn decisions(&self) -> u64 {
                self.0.decisions
            }
        }

        impl<F: NetworkFunction> Stage for $name<F> {
            fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
                self.0.process::<$per_train>(cx, batch, out);
            }

            fn next_deadline(&self) -> Nanos {
                self.0.next_deadline()
            }

            fn catches_up(&self) -> bool {
                self.0.function.catches_up()
            }

            fn on_deadline(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
                self.0.on_deadline(cx, out);
            }

            fn drain(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
                self.0.drain(cx, out);
            }

            fn flow_use(&self) -> FlowUse {
                self.0.function.flow_use()
            }

            fn reloads(&self) -> Option<&'static str> {
                self.0.function.reloads()
            }

            fn reload(&mut self, now: Nanos) {
                self.0.function.reload(now);
            }

            fn operate(&mut self) -> Option<&mut dyn Operate> {
                self.0.function.operate()
            }

            fn egress(&mut self) -> Option<&mut dyn Egress> {
                Some(self)
            }
        }

        impl<F: NetworkFunction> Observe for $name<F> {
            fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
                self.0.counters(visit);
            }

            fn held(&self) -> u64 {
                self.0.held()
            }

            fn drops(&self) -> Drops {
                self.0.drops()
            }

            fn report(&self) -> Option<serde_json::Value> {
                self.0.function.report()
            }

            fn draft_report(&self) -> DraftReport {
                self.0.function.draft_report()
            }

            fn notes(&self) -> Vec<String> {
                self.0.function.notes()
            }

            fn trouble(&self) -> Option<String> {
                self.0.function.trouble()
            }
        }

        impl<F: NetworkFunction> Egress for $name<F> {
            fn flush(&mut self) -> Result<(), StageError> {
                let now = self.0.now;
                self.0.function.flush(now)
            }

            fn finish(&mut self) -> Result<(), StageError> {
                let now = self.0.now;
                self.0.function.finish(now)
            }
        }
    };
}

wrapper! {
    /// Decides once for all packets of a train that share the decision.
    PerTrain, true
}
wrapper! {
    /// Decides for every packet.
    PerPacket, false
}
