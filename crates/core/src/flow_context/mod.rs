//! One look-up for a whole chain of functions: a flow context is a few words in one place per flow, side by
//! side, where every function keeps what it decided about the flow.
//!
//! A pipeline lays the words out when it is built ([`Layout`]): every stage asks for as many as it wants
//! ([`FlowUse`]). Before the first stage that uses them the flows of a batch are looked up, all at once, and
//! [`Train::flow`](crate::batch::Train::flow) says which context each train has from then on. A context
//! belongs to the key that it was found by: behind a stage that changes addresses flows are looked up again,
//! by their new keys, and packets that are let go later than they came have none.
//!
//! A context is memory of what was decided, and nothing else: a stage that finds none decides as without, so
//! that results don't depend on how many flows there is room for. Who keeps a decision keeps beside it the
//! generation of what it follows from (rules, routes) and the bits beyond the key that it was read from. The
//! entry of a table is kept by its number; whether the entry is still the flow's is for the table to say,
//! which compares the key.
//!
//! A stage that makes trains anew, such as the reframer, has found the flow of each already, and numbers it
//! in a way of its own. The contexts remember which of them such a number led to: the next train with the
//! number is compared with that one's key, and neither hashed nor searched for. A number that means another
//! flow by now costs a search, and nothing else.
//!
//! A new context is all zeros. One that makes room for another flow is never of a train that is under way.
//!
//! If stages of one pipeline are at work on several threads, those that look flows up stay where they are,
//! and stages behind them, elsewhere, have contexts of the same numbers with words of their own
//! ([`FlowContexts::following`]). They are told which contexts begin anew, in the order in which that
//! happens beside the packets, so that a number means the same flow to all of them.

mod layout;

use alloc::vec::Vec;
use core::fmt;

use slipstream_wire::{FlowKey, NarrowKey, WideKey};

use crate::batch::{Batch, Train};
use crate::frame::Frame;
use crate::huge;
use crate::keys::StoredKey;
use crate::packet::{any_key_of, fast_key_of, key_of};
use crate::prefetch::prefetch_at;
use crate::stage::Context;
use crate::table::{Index, NONE};

use self::layout::WORDS;
pub use self::layout::{FlowUse, Layout, Place, Trains};

/// Flows that are looked up together.
const AHEAD: usize = 32;
/// Contexts of which the one that was used least lately makes room.
const PROBES: u32 = 4;

/// Counts of what happened to contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextCounts {
    /// Trains whose flow was looked up.
    pub lookups: u64,
    /// Those of them that had a number of their own, by which their context was found.
    pub by_number: u64,
    /// Contexts that began.
    pub begun: u64,
    /// Contexts that made room for another flow's.
    pub evicted: u64,
    /// Trains that went without, since all contexts that could have made room were under way.
    pub without: u64,
}

impl core::ops::Add for ContextCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            lookups: self.lookups + other.lookups,
            by_number: self.by_number + other.by_number,
            begun: self.begun + other.begun,
            evicted: self.evicted + other.evicted,
            without: self.without + other.without,
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u32; WORDS]);

const EMPTY: Line = Line([0; WORDS]);

/// The key of a line.
const fn key_in(line: &Line) -> StoredKey {
    let Line([a, b, c, d, ..]) = *line;
    StoredKey::from_words([a as u64 | (b as u64) << 32, c as u64 | (d as u64) << 32])
}

/// A flow that is looked for.
#[derive(Clone, Copy, Default)]
struct Asked {
    /// [`StoredKey::NONE`] where there is no flow.
    key: StoredKey,
    hash: u64,
    id: u32,
}

/// A context that began: its number, and the flow that it is of.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    id: u32,
    key: StoredKey,
}

/// The flow contexts of one worker.
pub struct FlowContexts {
    index: Index,
    /// A context is so many of them back to back.
    lines: Vec<Line>,
    stride: usize,
    /// Long keys, by number.
    wide: Vec<WideKey>,
    /// Of each place where flows are looked up: the context that a number which trains come with led to last,
    /// plus one.
    hints: Vec<Vec<u32>>,
    limit: u32,
    used: u32,
    /// Place at which the next context that makes room is looked for.
    hand: u32,
    /// Counts the look-ups that are not within another.
    turn: u32,
    depth: u32,
    seed: u64,
    /// First line of the context at hand, and the place in it of the stage at hand.
    at: usize,
    place: Place,
    counts: ContextCounts,
    /// Contexts that began since somebody asked, where anybody does.
    begun: Option<Vec<Begun>>,
}

impl fmt::Debug for FlowContexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowContexts")
            .field("flows", &self.used)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl FlowContexts {
    /// Contexts of `flows` flows at most (1 to 2³⁰), hashed with `seed`. Their memory is taken and touched
    /// now.
    #[must_use]
    pub fn new(layout: &Layout, flows: u32, seed: u64) -> Self {
        let limit = flows.clamp(1, 1 << 30);
        let mut this =
            Self { wide: Vec::with_capacity(limit as usize), seed, ..Self::following(layout, limit) };
        this.index = Index::new(limit);
        this.index.touch();
        this
    }

    /// Contexts that have the numbers of others, of as many flows, with words of their own: flows are looked
    /// up there, and [`follow`](Self::follow) says here whose they are. Their memory is taken and touched
    /// now.
    #[must_use]
    pub fn following(layout: &Layout, flows: u32) -> Self {
        let limit = flows.clamp(1, 1 << 30);
        let stride = layout.lines.len();
        let mut lines = huge::with_capacity(limit as usize * stride);
        lines.resize(limit as usize * stride, EMPTY);
        Self {
            index: Index::new(1),
            lines,
            stride,
            wide: Vec::new(),
            hints: Vec::new(),
            limit,
            used: 0,
            hand: 0,
            turn: 0,
            depth: 0,
            seed: 0,
            at: usize::MAX,
            place: Place::NONE,
            counts: ContextCounts::default(),
            begun: None,
        }
    }

    /// With a list of the contexts that begin, for those that follow them.
    #[must_use]
    pub fn listing(mut self) -> Self {
        self.begun = Some(Vec::new());
        self
    }

    /// Returns true if contexts have begun since their list was taken.
    #[inline]
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.begun.as_ref().is_some_and(|begun| !begun.is_empty())
    }

    /// Takes the list of the contexts that began, in their order, in place of an empty one.
    pub fn take_begun(&mut self, list: &mut Vec<Begun>) {
        list.clear();
        if let Some(begun) = &mut self.begun {
            core::mem::swap(begun, list);
        }
    }

    /// Begins the contexts that began where flows are looked up.
    pub fn follow(&mut self, begun: &[Begun]) {
        for begun in begun {
            self.clear(begun.id, begun.key);
        }
    }

    /// All zeros, but for the key.
    #[inline]
    fn clear(&mut self, id: u32, key: StoredKey) {
        let first = id as usize * self.stride;
        let Some(lines) = self.lines.get_mut(first..first + self.stride) else { return };
        lines.fill(EMPTY);
        let [a, b] = key.words();
        if let Some(Line([k0, k1, k2, k3, ..])) = lines.first_mut() {
            (*k0, *k1, *k2, *k3) = (a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32);
        }
    }

    /// With so many places where flows are looked up, one behind the other: at each, trains may come with
    /// numbers of their flows below this, from a stage that makes trains, or those of their contexts before a
    /// stage that changes keys.
    #[must_use]
    pub fn with_numbers(mut self, places: impl IntoIterator<Item = u32>) -> Self {
        self.hints = places.into_iter().map(|numbers| huge::zeros(numbers as usize)).collect();
        self
    }

    /// Flows that have a context.
    #[must_use]
    pub fn flows(&self) -> u32 {
        self.used
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> ContextCounts {
        self.counts
    }

    /// From now on the words at `place` are meant; returns the place that was meant before.
    #[inline(always)]
    pub fn turn_to(&mut self, place: Place) -> Place {
        core::mem::replace(&mut self.place, place)
    }

    /// From now on the context of this flow is meant, by its number; of [`Frame::NO_FLOW`] none.
    #[inline(always)]
    pub fn meet(&mut self, flow: u32) {
        // That of `NO_FLOW` lies beyond all that there are.
        self.at = (flow as usize).wrapping_mul(self.stride);
    }

    /// Asks for the context of a flow ahead of use.
    #[inline(always)]
    pub fn prefetch(&self, flow: u32) {
        let first = (flow as usize).wrapping_mul(self.stride);
        (0..self.stride).for_each(|line| prefetch_at(&self.lines, first.wrapping_add(line)));
    }

    #[inline(always)]
    fn words<const N: usize>(&self) -> Option<&[u32; N]> {
        let Line(line) = self.lines.get(self.at.wrapping_add(usize::from(self.place.line)))?;
        line.get(usize::from(self.place.word)..)?.first_chunk()
    }

    /// The words of the stage at hand about the flow at hand; none where there are none.
    #[inline(always)]
    #[must_use]
    pub fn read<const N: usize>(&self) -> Option<[u32; N]> {
        self.words().copied()
    }

    /// Keeps these words.
    #[inline(always)]
    pub fn write<const N: usize>(&mut self, words: [u32; N]) {
        let Place { line, word } = self.place;
        if let Some(Line(line)) = self.lines.get_mut(self.at.wrapping_add(usize::from(line)))
            && let Some(place) = line.get_mut(usize::from(word)..).and_then(<[u32]>::first_chunk_mut)
        {
            *place = words;
        }
    }

    /// The key of the flow at hand, if it is a short one.
    #[inline(always)]
    #[must_use]
    pub fn key(&self) -> Option<NarrowKey> {
        key_in(self.lines.get(self.at)?).narrow()
    }

    /// Looks up the flows of a batch's trains, and notes the numbers of their contexts in them.
    /// [`leave`](Self::leave) is to be called when the batch has gone through. `place` is the number of the
    /// place where that is, of those that [`with_numbers`](Self::with_numbers) tells of.
    pub fn look_up(&mut self, cx: &Context<'_>, batch: &mut Batch, place: usize) {
        if self.depth == 0 {
            self.turn = self.turn.wrapping_add(1);
        }
        self.depth += 1;
        let Batch { frames, trains, .. } = batch;
        self.counts.lookups += trains.len() as u64;
        let mut hints = self.hints.get_mut(place).map(core::mem::take).unwrap_or_default();
        let mut asked = [Asked::default(); AHEAD];
        for trains in trains.chunks_mut(AHEAD) {
            if hints.is_empty() || !self.by_numbers(cx, frames, trains, &mut hints) {
                self.look_up_some(cx, frames, trains, &mut asked);
            }
        }
        if let Some(place) = self.hints.get_mut(place) {
            *place = hints;
        }
    }

    /// Looks up a few flows by their keys: all hashes first, then the index, then the contexts.
    #[inline(always)]
    fn look_up_some(
        &mut self,
        cx: &Context<'_>,
        frames: &[Frame],
        trains: &mut [Train],
        asked: &mut [Asked; AHEAD],
    ) {
        for (train, asked) in trains.iter().zip(asked.iter_mut()) {
            let Some(first) = frames.get(train.start as usize) else { continue };
            match fast_key_of(cx, first) {
                Some(key) => self.ask(FlowKey::Narrow(key), asked),
                None => self.ask_any(cx, first, asked),
            }
        }
        for asked in asked.iter_mut().take(trains.len()) {
            asked.id = self.index.candidate(asked.hash);
            prefetch_at(&self.lines, (asked.id as usize).wrapping_mul(self.stride));
        }
        for (train, asked) in trains.iter_mut().zip(asked.iter()) {
            train.flow = self.number(cx, frames.get(train.start as usize), asked);
        }
    }

    /// Finds the contexts of trains by the numbers that they came with, and those of the others by key, one
    /// by one. Returns false, and changes nothing, where none has a number.
    #[inline(always)]
    fn by_numbers(
        &mut self,
        cx: &Context<'_>,
        frames: &[Frame],
        trains: &mut [Train],
        hints: &mut [u32],
    ) -> bool {
        let mut ids = [NONE; AHEAD];
        let mut numbered = false;
        for (train, id) in trains.iter().zip(&mut ids) {
            if let Some(hint) = hints.get(train.flow as usize) {
                // One that leads nowhere becomes `NONE`.
                *id = hint.wrapping_sub(1);
                prefetch_at(&self.lines, (*id as usize).wrapping_mul(self.stride));
                numbered = true;
            }
        }
        if !numbered {
            return false;
        }
        // Packets that were held are in no near cache any more.
        let of = |train: Option<&Train>| train.map_or(0..0, |t| t.start as usize..(t.start + t.len) as usize);
        let packets = of(trains.first()).start..of(trains.last()).end;
        for frame in frames.get(packets).unwrap_or_default() {
            cx.pool.prefetch(frame.buf);
        }
        let turn = self.turn;
        let mut found = 0;
        for (train, &id) in trains.iter_mut().zip(&ids) {
            let first = frames.get(train.start as usize);
            let line = self.lines.get_mut((id as usize).wrapping_mul(self.stride)).filter(|_| id != NONE);
            if let (Some(line), Some(key)) = (line, first.and_then(|f| fast_key_of(cx, f)))
                && key_in(line) == StoredKey::of_narrow(key)
            {
                let Line([_, _, _, _, used, ..]) = line;
                *used = turn;
                train.flow = id;
                found += 1;
            } else {
                found += u64::from(self.by_key(cx, first, id, train, hints));
            }
        }
        self.counts.by_number += found;
        true
    }

    /// Finds the context of one flow: the one with this number, if it has the flow's long key, or else by
    /// search, and then it is remembered what the train's own number leads to. Returns true for the former.
    #[inline(never)]
    fn by_key(
        &mut self,
        cx: &Context<'_>,
        first: Option<&Frame>,
        id: u32,
        train: &mut Train,
        hints: &mut [u32],
    ) -> bool {
        let number = core::mem::replace(&mut train.flow, Frame::NO_FLOW);
        let Some((frame, key)) = first.and_then(|frame| Some((frame, key_of(cx, frame)?))) else {
            return false;
        };
        if let FlowKey::Wide(key) = key
            && id != NONE
            && self.wide.get(id as usize) == Some(&key)
            && let Some(line) = self.lines.get_mut(id as usize * self.stride)
            && key_in(line).is_wide()
        {
            let Line([_, _, _, _, used, ..]) = line;
            *used = self.turn;
            train.flow = id;
            return true;
        }
        let mut asked = Asked::default();
        self.ask(key, &mut asked);
        asked.id = self.index.candidate(asked.hash);
        train.flow = self.number(cx, Some(frame), &asked);
        if train.flow != Frame::NO_FLOW
            && let Some(hint) = hints.get_mut(number as usize)
        {
            *hint = train.flow + 1;
        }
        false
    }

    /// A batch whose flows were looked up has gone through.
    pub fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    #[inline(always)]
    fn ask(&self, key: FlowKey, asked: &mut Asked) {
        asked.hash = key.hash64(self.seed);
        asked.key = StoredKey::of(&key, asked.hash);
        self.index.prefetch(asked.hash);
    }

    #[inline(never)]
    fn ask_any(&self, cx: &Context<'_>, frame: &Frame, asked: &mut Asked) {
        match any_key_of(cx, frame) {
            Some(key) => self.ask(key, asked),
            None => *asked = Asked::default(),
        }
    }

    /// The number of a flow's context, which begins if it must.
    #[inline(always)]
    fn number(&mut self, cx: &Context<'_>, frame: Option<&Frame>, asked: &Asked) -> u32 {
        let turn = self.turn;
        let line = self.lines.get_mut((asked.id as usize).wrapping_mul(self.stride));
        if let Some(line) = line.filter(|_| asked.id != NONE)
            && key_in(line) == asked.key
            && !asked.key.is_wide()
        {
            let Line([_, _, _, _, used, ..]) = line;
            *used = turn;
            return asked.id;
        }
        self.number_of_any(cx, frame, asked)
    }

    #[inline(never)]
    fn number_of_any(&mut self, cx: &Context<'_>, frame: Option<&Frame>, asked: &Asked) -> u32 {
        if !asked.key.is_some() {
            return Frame::NO_FLOW;
        }
        let wide = if asked.key.is_wide() {
            match frame.and_then(|frame| any_key_of(cx, frame)) {
                Some(FlowKey::Wide(key)) => Some(key),
                _ => return Frame::NO_FLOW,
            }
        } else {
            None
        };
        let is = |id: u32| {
            self.lines.get(id as usize * self.stride).is_some_and(|line| key_in(line) == asked.key)
                && (wide.is_none() || self.wide.get(id as usize) == wide.as_ref())
        };
        let id = match self.index.find(asked.hash, is) {
            Some(id) => id,
            None => match self.begin(asked, wide) {
                Some(id) => id,
                None => {
                    self.counts.without += 1;
                    return Frame::NO_FLOW;
                }
            },
        };
        if let Some(Line([_, _, _, _, used, ..])) = self.lines.get_mut(id as usize * self.stride) {
            *used = self.turn;
        }
        id
    }

    /// A context for a flow that has none; none where no other can make room.
    fn begin(&mut self, asked: &Asked, wide: Option<WideKey>) -> Option<u32> {
        let id = if self.used < self.limit {
            self.used += 1;
            self.used - 1
        } else {
            self.evict()?
        };
        self.counts.begun += 1;
        self.clear(id, asked.key);
        if let Some(begun) = &mut self.begun {
            begun.push(Begun { id, key: asked.key });
        }
        if let Some(wide) = wide {
            if self.wide.len() <= id as usize {
                self.wide.resize(id as usize + 1, WideKey([0; 7]));
            }
            if let Some(place) = self.wide.get_mut(id as usize) {
                *place = wide;
            }
        }
        self.index.insert(asked.hash, id);
        Some(id)
    }

    /// Takes a context away: of a few neighbours the one that was used least lately, unless all of them are
    /// under way.
    fn evict(&mut self) -> Option<u32> {
        let mut oldest = (0, NONE);
        for _ in 0..PROBES.min(self.limit) {
            let id = self.hand;
            self.hand = (self.hand + 1) % self.limit;
            let Some(Line([_, _, _, _, used, ..])) = self.lines.get(id as usize * self.stride) else {
                continue;
            };
            oldest = oldest.max((self.turn.wrapping_sub(*used), id));
        }
        let (age, id) = oldest;
        if age == 0 {
            return None;
        }
        let key = key_in(self.lines.get(id as usize * self.stride)?);
        self.index.remove(key.hash(self.seed), id);
        self.counts.evicted += 1;
        Some(id)
    }
}

#[cfg(test)]
mod tests;
