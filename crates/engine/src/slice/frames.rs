//! Slicing of packets in a pool. The sliced packet goes on in a small buffer of its own. Where the payload stays in place, it
//! waits in the packet's old buffer, and the headers come back to it: no payload is copied unless a function has made
//! the headers longer or shorter. Where it is copied, the old buffer is free at once.

use slipstream_wire::{Headers, LinkType, classify};

use crate::frame::Frame;
use crate::pool::{Head, PacketMeta, Pool, SHORT};
use crate::time::Nanos;

use super::layout::set_dscp;
use super::payload_table::{Found, PayloadTable, Refusal};
use super::slicer::{Decision, Sliced, Slicer, Why, sliced};
use super::splicer::{Brought, Spliced, Splicer};
use super::token::{TOKEN_LEN, Token};
use super::usual::{UsualJoin, put_token};
use super::{layers::Layers, quote};

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
        pool.free(buf);
    }
}

impl Slicer {
    /// Slices a packet of the pool; `frame` becomes the sliced packet, whose meta data still tell the length of the whole one.
    /// When that packet is freed on its way, the pool remembers its token for `owner` (its table then gives the payload up).
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
        let quick = self.is_quick(link);
        if quick && self.is_short(frame.len as usize) {
            if self.passes(table, pool.data(frame.buf, frame.len)) {
                free_given_up(table, pool);
                return self.count(Sliced::Whole(Why::Small));
            }
        } else if quick && let Some(done) = self.slice_usual(table, pool, link, frame, now, owner) {
            return done;
        }
        self.slice_any_frame(table, pool, (link, false), frame, now, owner)
    }

    /// Slices a usual packet; `None` leaves all as it is, for the general way.
    #[inline(never)]
    fn slice_usual(
        &mut self,
        table: &mut PayloadTable,
        pool: &mut Pool,
        link: LinkType,
        frame: &mut Frame,
        now: Nanos,
        owner: u32,
    ) -> Option<Sliced> {
        let (meta, packet) = pool.head_and_data(frame.buf, frame.len)?;
        let cut = self.quick_cut(packet)?;
        let front: &[u8; SHORT] = packet.first_chunk()?;
        let Some(place) = table.place(now) else {
            return Some(self.slice_any_frame(table, pool, (link, true), frame, now, owner));
        };
        let token = table.token(&place);
        // Fields are read where they have long stood, and only written in the copy.
        let (fields, parked) = cut.headers(front, token);
        let (front, came) = (*front, (frame.buf, frame.len));
        if let Some(room) = table.room_mut(&place, cut.parked) {
            room.copy_from_slice(packet.get(cut.at..cut.at + cut.parked).unwrap_or_default());
            pool.free(frame.buf);
        }
        frame.buf = pool.insert_short(meta, &front, owner, token.0, |front| {
            if let Some(front) = front.first_chunk_mut() {
                fields.put(front);
            }
            put_token(front, cut.at, token);
        });
        frame.len = cut.sliced_len() as u32;
        table.park(place, token, now, parked, came);
        free_given_up(table, pool);
        Some(self.count(Sliced::Sliced { len: cut.sliced_len(), parked: cut.parked, token }))
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
        let headers = classify(link, packet).ok();
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
        let (meta, packet) = pool.meta_and_data(frame.buf, frame.len);
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
                let token = table.token(&place);
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
                let copied = match table.room_mut(&place, cut.parked) {
                    Some(room) => {
                        room.copy_from_slice(packet.get(cut.at..cut.end).unwrap_or_default());
                        true
                    }
                    None => false,
                };
                table.park(place, token, now, parked, (frame.buf, frame.len));
                if copied {
                    pool.free(frame.buf);
                }
                let longer = if cut.parked == 0 { TOKEN_LEN as u32 } else { 0 };
                let meta = PacketMeta { original_len: meta.original_len.saturating_add(longer), ..meta };
                frame.buf = pool.insert_sliced(meta, front, owner, token.0);
                frame.len = front.len() as u32;
                sliced(&cut, token)
            }
        }
    }
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
        if self.is_quick(link)
            && let Some(len) = self.splice_usual_frame(table, pool, frame, now)
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

    /// Splices a usual packet whose payload waits in its buffer, and whose headers fit where they stood; `None` leaves all
    /// as it is, for the general way.
    #[inline(always)]
    fn splice_usual_frame(
        &self,
        table: &mut PayloadTable,
        pool: &mut Pool,
        frame: &mut Frame,
        now: Nanos,
    ) -> Option<usize> {
        if table.entry_bytes() > 0 || pool.retains() {
            return None;
        }
        let (meta, packet) = pool.head_and_data(frame.buf, frame.len)?;
        let join = self.join_usual(table, packet, now)?;
        let (found, whole) = (&join.found, join.whole_len());
        match join.at {
            // Headers of a length that is known are copied at once: TCP without options or with time stamps, and UDP.
            54 => put_front::<54>(pool, packet.first_chunk().copied()?, meta, &join)?,
            66 => put_front::<66>(pool, packet.first_chunk().copied()?, meta, &join)?,
            42 => put_front::<42>(pool, packet.first_chunk().copied()?, meta, &join)?,
            at => {
                let mut front = [0; SHORT];
                front.get_mut(..at)?.copy_from_slice(packet.get(..at)?);
                let to = pool.replace_meta(found.buf, meta, whole as u32)?;
                to.get_mut(..at)?.copy_from_slice(front.get(..at)?);
                join.fields.put(to.first_chunk_mut()?);
            }
        }
        pool.free_short(frame.buf, meta);
        table.leave(found);
        (frame.buf, frame.len) = (found.buf, whole as u32);
        frame.info = frame.info.remarked(found.parked.dscp);
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
        let Ok(headers) = classify(link, packet) else { return Ok(Spliced::Untouched) };
        match self.brought(table, packet, &headers, now)? {
            Brought::Nothing => Ok(Spliced::Untouched),
            Brought::Error(end, token) => restore_quote(table, pool, &headers, frame, end, token),
            Brought::Payload(found, layers) => {
                self.join(table, pool, frame, &found, &layers);
                table.leave(&found);
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
        let parked = &found.parked;
        let (at, payload) = (layers.end - TOKEN_LEN, usize::from(parked.len));
        let packet = pool.data(frame.buf, frame.len);
        // As many bytes behind the IP packet as there were when it came; what pads it is no part of it.
        let trailer = (packet.len() - layers.end).min(usize::from(parked.trailer));
        self.scratch.clear();
        self.scratch.extend_from_slice(packet.get(..at).unwrap_or_default());
        self.scratch.extend_from_slice(packet.get(layers.end..layers.end + trailer).unwrap_or_default());
        let mut meta = pool.meta(frame.buf);
        if payload == 0 {
            meta.original_len = meta.original_len.saturating_sub(TOKEN_LEN as u32);
        }
        pool.free_spliced(frame.buf);
        if table.entry_bytes() > 0 {
            self.scratch.splice(at..at, table.payload(found).iter().copied());
            layers.repair(&mut self.scratch, parked);
            frame.len = self.scratch.len() as u32;
            frame.buf = pool.insert(meta, &self.scratch);
            return;
        }
        let Some((front, trailer)) = self.scratch.split_at_checked(at) else { return };
        let (mut buf, mut len) = (found.buf, found.buf_len);
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
}

/// Puts headers of `N` bytes in front of the payload where that waits.
#[inline(always)]
fn put_front<const N: usize>(pool: &mut Pool, front: [u8; N], meta: Head, join: &UsualJoin) -> Option<()> {
    let to = pool.replace_meta(join.found.buf, meta, join.whole_len() as u32)?;
    *to.first_chunk_mut()? = front;
    join.fields.put(to.first_chunk_mut()?);
    Some(())
}

fn restore_quote(
    table: &PayloadTable,
    pool: &mut Pool,
    headers: &Headers,
    frame: &mut Frame,
    end: usize,
    token: Token,
) -> Result<Spliced, Refusal> {
    let parked = table.recall(token).ok_or(Refusal::Stale)?;
    let len = quote::restore(pool.data_mut(frame.buf, frame.len), headers, end, &parked)?;
    let meta = pool.meta(frame.buf);
    let shorter = frame.len - len as u32;
    pool.set_meta(frame.buf, PacketMeta { original_len: meta.original_len.saturating_sub(shorter), ..meta });
    frame.len = len as u32;
    Ok(Spliced::Quote { len })
}
