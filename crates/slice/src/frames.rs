//! Slicing of packets in a pool. Where payloads stay in place, the sliced packet does so too, in the same
//! buffer before its payload, whose first bytes make room for the token and are kept with it. If it then
//! moves, as it does when a function makes its headers longer, it finds its payload in the old buffer: no
//! payload is copied unless headers don't fit before it, or there is still another packet. Where payloads are
//! copied, the old buffer is free at once, and the sliced packet goes on in a small one; so does a packet
//! that has bytes behind its payload, or a buffer with no room for a sliced packet's end.

use slipstream_wire::{Headers, LinkType};

use slipstream_core::frame::Frame;
use slipstream_core::pool::{BufId, PacketMeta, Pool, SHORT};
use slipstream_core::time::Nanos;

use super::fast_path::{FastCut, FastJoin, put_back, put_token};
use super::hidden::read;
use super::layers::Layers;
use super::layout::{Cut, set_dscp};
use super::parked::Held;
use super::payload_table::{Found, PayloadTable, Place, Refusal};
use super::quote::{self, Quote};
use super::slicer::{Decision, Sliced, Slicer, Why, sliced};
use super::splicer::{Brought, Spliced, Splicer};
use super::token::{TOKEN_LEN, Token};

/// Bytes of a sliced packet that the general way handles at once.
const FRONT: usize = 128;

/// Gives back the buffers of payloads that were given up.
#[inline]
pub(crate) fn free_given_up(table: &mut PayloadTable, pool: &mut Pool) {
    if !table.given_up().is_empty() {
        free_all(table, pool);
    }
}

#[cold]
fn free_all(table: &mut PayloadTable, pool: &mut Pool) {
    while let Some(buf) = table.given_up().pop() {
        pool.free_payload(buf);
    }
}

impl Slicer {
    /// Slices a packet of the pool; `frame` becomes the sliced packet, whose meta data still tell the length
    /// of the whole one. When that packet is freed on its way, the pool remembers its token for `owner` (its
    /// table then gives the payload up).
    #[inline(always)]
    pub fn slice_frame(
        &mut self,
        table: &mut PayloadTable,
        pool: &mut Pool,
        link: LinkType,
        frame: &mut Frame,
        now: Nanos,
        owner: u32,
    ) -> Sliced {
        let fast = self.takes_fast_path(link);
        if fast && self.is_short(frame.len as usize) {
            if self.passes(table, pool.data(frame.buf, frame.len)) {
                free_given_up(table, pool);
                return self.count(Sliced::Whole(Why::Small));
            }
        } else if fast && let Some(done) = self.slice_fast(table, pool, link, frame, now, owner) {
            return done;
        }
        self.slice_any_frame(table, pool, (link, false), frame, now, owner)
    }

    /// Slices a packet on the fast path; `None` leaves all as it is, for the general one.
    #[inline(always)]
    fn slice_fast(
        &mut self,
        table: &mut PayloadTable,
        pool: &mut Pool,
        link: LinkType,
        frame: &mut Frame,
        now: Nanos,
        owner: u32,
    ) -> Option<Sliced> {
        if table.entry_bytes() > 0 {
            return self.copy_fast(table, pool, link, frame, now, owner);
        }
        let slot = pool.sliceable(frame.buf, frame.len)?;
        let cut = self.cut_on_fast_path(slot.packet)?;
        let front: &mut [u8; SHORT] = slot.packet.first_chunk_mut()?;
        let Some(place) = table.place(now) else {
            return Some(self.slice_any_frame(table, pool, (link, true), frame, now, owner));
        };
        let token = table.token(&place);
        let (fields, parked) = cut.headers(front, token);
        let start = put_token(front, cut.at, token);
        fields.put(front.first_chunk_mut()?);
        slot.slice(owner, token.0);
        let held = Held { buf: frame.buf, len: frame.len, in_place: true, start };
        table.park(place, now, parked, held);
        Some(self.parked_fast(table, pool, frame, &cut, token))
    }

    /// The same, where payloads are copied.
    #[inline(never)]
    fn copy_fast(
        &mut self,
        table: &mut PayloadTable,
        pool: &mut Pool,
        link: LinkType,
        frame: &mut Frame,
        now: Nanos,
        owner: u32,
    ) -> Option<Sliced> {
        let (meta, packet) = pool.head_and_data(frame.buf, frame.len)?;
        let cut = self.cut_on_fast_path(packet)?;
        let front: &[u8; SHORT] = packet.first_chunk()?;
        let Some(place) = table.place(now) else {
            return Some(self.slice_any_frame(table, pool, (link, true), frame, now, owner));
        };
        let token = table.token(&place);
        // Fields are read where they have long stood, and only written in the copy.
        let (fields, parked) = cut.headers(front, token);
        let front = *front;
        if let Some(room) = table.room_mut(&place, cut.parked) {
            room.copy_from_slice(packet.get(cut.at..cut.at + cut.parked).unwrap_or_default());
        }
        pool.free(frame.buf);
        frame.buf = pool.insert_short(meta, &front, owner, token.0, |front| {
            if let Some(front) = front.first_chunk_mut() {
                fields.put(front);
            }
            put_token(front, cut.at, token);
        });
        table.park(place, now, parked, Held::default());
        Some(self.parked_fast(table, pool, frame, &cut, token))
    }

    /// Parks the payload of a packet on the fast path.
    #[inline(always)]
    fn parked_fast(
        &mut self,
        table: &mut PayloadTable,
        pool: &mut Pool,
        frame: &mut Frame,
        cut: &FastCut,
        token: Token,
    ) -> Sliced {
        frame.len = cut.sliced_len() as u32;
        free_given_up(table, pool);
        self.count(Sliced::Sliced { len: cut.sliced_len(), parked: cut.parked, token })
    }

    /// The general way; `met_full` as [`Slicer::decide`] takes it.
    #[inline(never)]
    fn slice_any_frame(
        &mut self,
        table: &mut PayloadTable,
        pool: &mut Pool,
        (link, met_full): (LinkType, bool),
        frame: &mut Frame,
        now: Nanos,
        owner: u32,
    ) -> Sliced {
        let (meta, packet) = pool.meta_and_data(frame.buf, frame.len);
        let headers = read(link, packet);
        let decision = self.decide(table, (link, met_full), packet, headers.as_ref(), meta.original_len, now);
        let done = self.carry_out_frame(table, pool, frame, (headers.as_ref(), decision), now, owner);
        free_given_up(table, pool);
        self.count(done)
    }

    fn carry_out_frame(
        &mut self,
        table: &mut PayloadTable,
        pool: &mut Pool,
        frame: &mut Frame,
        (headers, decision): (Option<&Headers>, Decision),
        now: Nanos,
        owner: u32,
    ) -> Sliced {
        match decision {
            Decision::Whole(why) => Sliced::Whole(why),
            Decision::Drop => Sliced::Dropped,
            Decision::Remark(dscp) => {
                if let Some(headers) = headers {
                    set_dscp(pool.data_mut(frame.buf, frame.len), headers, dscp);
                    frame.info = frame.info.remarked(dscp);
                }
                Sliced::Remarked
            }
            Decision::Cut(cut, place) => {
                if self.may_stay(table, &cut)
                    && let Some(slot) = pool.sliceable(frame.buf, frame.len)
                {
                    let token = table.token(&place);
                    cut_in_place(table, slot.packet, frame, (&cut, place), now);
                    slot.slice(owner, token.0);
                    return sliced(&cut, token);
                }
                self.cut_apart(table, pool, frame, (&cut, place), now, owner)
            }
        }
    }

    /// Cuts a packet whose front goes on in another buffer; its payload stays in this one, or is copied into
    /// the table.
    #[inline]
    fn cut_apart(
        &mut self,
        table: &mut PayloadTable,
        pool: &mut Pool,
        frame: &mut Frame,
        (cut, place): (&Cut, Place),
        now: Nanos,
        owner: u32,
    ) -> Sliced {
        let token = table.token(&place);
        let (meta, packet) = pool.meta_and_data(frame.buf, frame.len);
        let mut short;
        let front = match packet.first_chunk::<FRONT>() {
            // Almost every sliced packet is a cache line long, or a little more.
            Some(&start) if cut.trailer == 0 && cut.sliced_len() <= FRONT => {
                short = start;
                short.get_mut(..cut.sliced_len()).unwrap_or_default()
            }
            _ => {
                self.scratch.clear();
                self.scratch.extend_from_slice(packet.get(..cut.at).unwrap_or_default());
                self.scratch.extend_from_slice(&token.to_bytes());
                self.scratch.extend_from_slice(packet.get(cut.end..).unwrap_or_default());
                &mut self.scratch
            }
        };
        let parked = cut.write(front, token);
        table.bind(&place, front, cut);
        let copied = match table.room_mut(&place, cut.parked) {
            Some(room) => {
                room.copy_from_slice(packet.get(cut.at..cut.end).unwrap_or_default());
                true
            }
            None => false,
        };
        let held = Held { buf: frame.buf, len: frame.len, ..Held::default() };
        table.park_any(place, now, parked, held);
        if copied {
            pool.free(frame.buf);
        }
        frame.buf = pool.insert_sliced(meta, front, owner, token.0);
        frame.len = front.len() as u32;
        sliced(cut, token)
    }
}

/// Cuts a packet that goes on in its buffer, before its payload.
#[inline]
fn cut_in_place(
    table: &mut PayloadTable,
    packet: &mut [u8],
    frame: &mut Frame,
    (cut, place): (&Cut, Place),
    now: Nanos,
) {
    let token = table.token(&place);
    // `write` puts the token there again.
    let start = put_token(packet, cut.at, token);
    let parked = cut.write(packet.get_mut(..cut.sliced_len()).unwrap_or_default(), token);
    table.bind(&place, packet, cut);
    let held = Held { buf: frame.buf, len: frame.len, in_place: true, start };
    table.park_any(place, now, parked, held);
    frame.len = cut.sliced_len() as u32;
}

impl Splicer {
    /// Splices a packet of the pool: `frame` becomes the whole packet.
    ///
    /// # Errors
    /// Why the packet is to be dropped, or [`Refusal::Elsewhere`]. `frame` stays as it is.
    #[inline]
    pub fn splice_frame(
        &mut self,
        table: &mut PayloadTable,
        pool: &mut Pool,
        link: LinkType,
        frame: &mut Frame,
        now: Nanos,
    ) -> Result<Spliced, Refusal> {
        if self.takes_fast_path(link)
            && let Some(len) = self.splice_frame_fast(table, pool, frame, now)
        {
            let done = Ok(Spliced::Whole { len });
            self.count(&done);
            return done;
        }
        let done = self.try_splice_frame(table, pool, link, frame, now);
        if done.is_err() {
            free_given_up(table, pool);
        }
        self.count(&done);
        done
    }

    /// Splices, on the fast path, a packet whose payload waits in a buffer, and whose headers fit where they
    /// stood; `None` leaves all as it is, for the general way.
    #[inline(always)]
    fn splice_frame_fast(
        &self,
        table: &mut PayloadTable,
        pool: &mut Pool,
        frame: &mut Frame,
        now: Nanos,
    ) -> Option<usize> {
        if table.entry_bytes() > 0 {
            return None;
        }
        let mut slot = pool.sliced_slot(frame.buf);
        let join = self.join_fast(table, slot.packet(frame.len as usize)?, now)?;
        let whole = join.whole_len();
        let held = table.held(join.entry)?;
        if held.in_place && held.buf == frame.buf {
            let packet = slot.packet(whole)?;
            put_back(packet, join.at, held.start);
            join.fields.put(packet.first_chunk_mut()?);
            slot.make_whole();
        } else {
            move_fast(pool, frame.buf, frame.len, &join, &held)?;
        }
        table.leave(join.entry);
        (frame.buf, frame.len) = (held.buf, whole as u32);
        frame.info = frame.info.remarked(join.dscp);
        Some(whole)
    }

    #[inline(never)]
    fn try_splice_frame(
        &mut self,
        table: &mut PayloadTable,
        pool: &mut Pool,
        link: LinkType,
        frame: &mut Frame,
        now: Nanos,
    ) -> Result<Spliced, Refusal> {
        let packet = pool.data(frame.buf, frame.len);
        let Some(headers) = self.read(table, link, packet)? else { return Ok(Spliced::Untouched) };
        match self.brought(table, packet, &headers, now)? {
            Brought::Nothing => Ok(Spliced::Untouched),
            Brought::Error(quote) => restore_quote(pool, &headers, frame, &quote),
            Brought::Payload(found, layers) => {
                self.join(table, pool, frame, &found, &layers);
                table.leave_any(found.entry);
                let dscp = layers.dscp(pool.data(frame.buf, frame.len));
                frame.info = frame.info.remarked(dscp);
                Ok(Spliced::Whole { len: frame.len as usize })
            }
        }
    }

    /// Puts the headers in front of the payload where that waits.
    #[inline]
    fn join(
        &mut self,
        table: &PayloadTable,
        pool: &mut Pool,
        frame: &mut Frame,
        found: &Found,
        layers: &Layers,
    ) {
        let (parked, held) = (&found.parked, &found.held);
        let (at, payload) = (layers.end - TOKEN_LEN, usize::from(parked.len));
        if held.in_place
            && held.buf == frame.buf
            && at == usize::from(parked.at)
            && let mut slot = pool.sliced_slot(frame.buf)
            && let Some(packet) = slot.packet(at + payload)
        {
            // Bytes behind the IP packet are padding that a port added: the slice carried none.
            frame.len = packet.len() as u32;
            put_back(packet, at, held.start);
            layers.repair(packet, parked);
            slot.make_whole();
            return;
        }
        let packet = pool.data(frame.buf, frame.len);
        // As many bytes behind the IP packet as there were when it came; what pads it is no part of it.
        let trailer = (packet.len() - layers.end).min(usize::from(parked.trailer));
        self.scratch.clear();
        self.scratch.extend_from_slice(packet.get(..at).unwrap_or_default());
        self.scratch.extend_from_slice(packet.get(layers.end..layers.end + trailer).unwrap_or_default());
        let meta = pool.meta(frame.buf);
        pool.free_spliced(frame.buf);
        if table.entry_bytes() > 0 {
            self.scratch.splice(at..at, table.payload(found.entry, parked.len).iter().copied());
            return self.join_copied(pool, frame, meta, found, layers);
        }
        if !take_back(pool, held, usize::from(parked.at)) {
            let waits = pool.data(held.buf, held.len).get(usize::from(parked.at)..).unwrap_or_default();
            self.scratch.splice(at..at, waits.iter().take(payload).copied());
            put_back(&mut self.scratch, at, held.start);
            pool.free_payload(held.buf);
            return self.join_copied(pool, frame, meta, found, layers);
        }
        let Some((front, trailer)) = self.scratch.split_at_checked(at) else { return };
        let (mut buf, mut len) = (held.buf, held.len);
        if at == usize::from(parked.at) && !pool.retains() {
            if let Some(to) = pool.data_mut(buf, at as u32).get_mut(..at) {
                to.copy_from_slice(front);
            }
        } else {
            (buf, len) = pool.replace_front(buf, len, u32::from(parked.at), front);
        }
        let whole = (at + payload + trailer.len()).min(len as usize);
        let packet = pool.data_mut(buf, whole as u32);
        if let Some(to) = packet.get_mut(at + payload..).and_then(|to| to.get_mut(..trailer.len())) {
            to.copy_from_slice(trailer);
        }
        layers.repair(packet, parked);
        pool.set_meta(buf, meta);
        (frame.buf, frame.len) = (buf, whole as u32);
    }

    /// The packet is what was put together out of it and a copy of its payload.
    fn join_copied(
        &mut self,
        pool: &mut Pool,
        frame: &mut Frame,
        meta: PacketMeta,
        found: &Found,
        layers: &Layers,
    ) {
        layers.repair(&mut self.scratch, &found.parked);
        frame.len = self.scratch.len() as u32;
        frame.buf = pool.insert(meta, &self.scratch);
    }
}

/// Takes over the buffer of a payload whose sliced packet is no longer there; `false` where it is.
fn take_back(pool: &mut Pool, held: &Held, at: usize) -> bool {
    if !held.in_place {
        return true;
    }
    let gone = pool.take_back(held.buf);
    if gone {
        put_back(pool.data_mut(held.buf, held.len), at, held.start);
    }
    gone
}

/// Puts the headers of a packet in front of its payload, which waits in another buffer, and gives back that
/// of the sliced packet.
#[inline(never)]
fn move_fast(pool: &mut Pool, from: BufId, len: u32, join: &FastJoin, held: &Held) -> Option<()> {
    if pool.retains() || !take_back(pool, held, join.at) {
        return None;
    }
    let (meta, packet) = pool.head_and_data(from, len)?;
    let mut front = [0; SHORT];
    let front = front.get_mut(..join.at)?;
    front.copy_from_slice(packet.get(..join.at)?);
    let to = pool.replace_meta(held.buf, meta, join.whole_len() as u32)?;
    to.get_mut(..join.at)?.copy_from_slice(front);
    join.fields.put(to.first_chunk_mut()?);
    pool.free_short(from, meta);
    Some(())
}

fn restore_quote(
    pool: &mut Pool,
    headers: &Headers,
    frame: &mut Frame,
    quote: &Quote,
) -> Result<Spliced, Refusal> {
    let len = quote::restore(pool.data_mut(frame.buf, frame.len), headers, quote)?;
    let meta = pool.meta(frame.buf);
    let shorter = frame.len - len as u32;
    pool.set_meta(frame.buf, PacketMeta { original_len: meta.original_len.saturating_sub(shorter), ..meta });
    frame.len = len as u32;
    Ok(Spliced::Quote { len })
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
