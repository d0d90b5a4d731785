//! The half of a port that packets go to: mbufs are handed over as they are, and their driver frees them.

#![allow(unsafe_code)]

use std::any::Any;
use std::sync::{Arc, PoisonError};

use slipstream_core::batch::Batch;
use slipstream_core::pool::Pool;
use slipstream_core::port::Transmit;
use slipstream_core::stage::{Context, DropReason, Drops};

use crate::device::{Device, Share};
use crate::mempool::unit;
use crate::sys::{self, BURST, ELSEWHERE, Mbuf, Place, Relayed};

/// Sends.
#[derive(Debug)]
pub struct Sender {
    device: Arc<Device>,
    share: Share,
    /// Longest wait for room, in cycles.
    wait: u64,
    mbufs: Box<[Mbuf; BURST]>,
    places: Box<[Place; BURST]>,
    packets: u64,
    bytes: u64,
    copied: u64,
    /// Packets for which there was no room in the ring.
    no_room: u64,
    /// Packets that had to be copied, for which there was no mbuf.
    no_mbuf: u64,
}

impl Sender {
    pub(crate) fn new(device: Arc<Device>, wait: u64, share: Share) -> Self {
        Self {
            device,
            share,
            wait: sys::cycles(wait),
            mbufs: Box::new([Mbuf::NONE; BURST]),
            places: Box::new([Place::default(); BURST]),
            packets: 0,
            bytes: 0,
            copied: 0,
            no_room: 0,
            no_mbuf: 0,
        }
    }

    /// Hands the first `n` packets of the lists over.
    fn hand_over(&mut self, n: usize) {
        let (Some(places), Some(mbufs)) = (self.places.get(..n), self.mbufs.get_mut(..n)) else { return };
        let (queue, turns) = self.device.way_out(self.share);
        let _turn = turns.map(|turns| turns.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: the device is open as long as this half has it, which is the only one that sends to this
        // queue, or it is this one's turn. The pool let each of these packets go, or they were copied into
        // new mbufs.
        let sent =
            unsafe { sys::send(self.device.port, queue, &self.device.memory, places, mbufs, self.wait) };
        self.packets += sent as u64;
        self.no_room += (n - sent) as u64;
        self.bytes += places.iter().take(sent).map(|place| u64::from(place.len)).sum::<u64>();
    }

    /// Sends up to `max` packets that a queue of another device, or of this one, has. Returns how many that
    /// had, and their bytes.
    ///
    /// # Safety
    /// That device is open with this queue, which no other thread receives from.
    pub(crate) unsafe fn relay(&mut self, from: (u16, u16), max: usize) -> Relayed {
        let (queue, turns) = self.device.way_out(self.share);
        let _turn = turns.map(|turns| turns.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: the caller's promise; as in `hand_over`.
        let relayed = unsafe { sys::relay(from, (self.device.port, queue), max, self.wait) };
        self.packets += u64::from(relayed.sent);
        self.no_room += u64::from(relayed.received - relayed.sent);
        self.bytes += relayed.bytes_sent;
        relayed
    }

    /// Copies a packet that doesn't lie in an mbuf into one, or several.
    #[cold]
    fn copy_in(&mut self, data: &[u8]) -> Option<Mbuf> {
        let mbuf = self.device.memory.copy_in(data);
        match mbuf {
            Some(_) => self.copied += 1,
            None => self.no_mbuf += 1,
        }
        mbuf
    }
}

impl Transmit for Sender {
    fn takes_unread(&self) -> bool {
        true
    }

    fn ethernet_only(&self) -> bool {
        true
    }

    fn relay(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    fn tx(&mut self, cx: &mut Context<'_>, batch: &mut Batch) {
        let mut n = 0;
        for part in batch.frames.chunks(BURST) {
            let mut lens = part.iter().map(|frame| frame.len);
            cx.pool.let_all_go(part.iter().map(|frame| frame.buf), |pool, buf, offset| {
                let len = lens.next().unwrap_or_default();
                let place = match offset {
                    Some(offset) => Place { unit: unit(offset), len },
                    None => {
                        let mbuf = self.copy_in(pool.data(buf, len));
                        pool.free(buf);
                        let (Some(mbuf), Some(to)) = (mbuf, self.mbufs.get_mut(n)) else { return };
                        *to = mbuf;
                        Place { unit: ELSEWHERE, len }
                    }
                };
                if let Some(to) = self.places.get_mut(n) {
                    *to = place;
                    n += 1;
                }
            });
            if n > 0 {
                self.hand_over(n);
                n = 0;
            }
        }
        batch.clear();
    }

    /// Drivers free what they have sent when they send more; at the end they are asked to.
    fn drain(&mut self, _: &mut Context<'_>) {
        let (queue, turns) = self.device.way_out(self.share);
        let _turn = turns.map(|turns| turns.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: as in `hand_over`.
        unsafe { sys::complete(self.device.port, queue) };
    }

    fn complete(&mut self, _: &mut Pool) -> u64 {
        0
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("packets_sent", self.packets);
        visit("bytes_sent", self.bytes);
        visit("copied", self.copied);
        visit("no_room", self.no_room);
        visit("no_mbuf", self.no_mbuf);
        visit("errors", self.device.stats(self.share).send_errors);
    }

    fn drops(&self) -> Drops {
        let mut drops = Drops::default();
        drops.add(DropReason::NotSent, self.no_room + self.no_mbuf);
        drops
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.device.sends.leave(self.share.number);
    }
}
