//! In place of siblings where there is no operating system: no threads, and so no pools over one memory.

use alloc::vec::Vec;

use super::Pool;
use crate::frame::Frame;

/// Sliced packets that were dropped, of which other threads are told at once.
pub(super) const MAIL: usize = usize::MAX;

/// No pool has one.
#[derive(Debug)]
pub(super) enum Sibling {}

impl Sibling {
    pub(super) fn live(&self, _: i64) -> i64 {
        match *self {}
    }

    pub(super) fn slabs(&self) -> usize {
        match *self {}
    }

    pub(super) fn more(&mut self, _: usize, _: usize, _: &mut Vec<u32>) -> u32 {
        match *self {}
    }

    pub(super) fn make_room(&self, _: usize, _: &mut Vec<u32>) {
        match *self {}
    }

    pub(super) fn leave(&mut self, _: u32) {
        match *self {}
    }

    pub(super) fn leave_all_of(&mut self, _: &[Frame]) {
        match *self {}
    }

    pub(super) fn take_left(&mut self) -> bool {
        match *self {}
    }

    pub(super) fn take_unsorted(&mut self, _: &mut [u32], _: impl FnMut(u32)) -> usize {
        match *self {}
    }

    pub(super) fn oversize(&self, _: usize) -> u32 {
        match *self {}
    }

    pub(super) fn free_oversize(&self, _: u32) {
        match *self {}
    }

    pub(super) fn mail(&self, _: &mut Vec<(u32, u64)>, _: usize) {
        match *self {}
    }

    pub(super) fn has_mail(&self) -> bool {
        match *self {}
    }

    pub(super) fn take_mail(&self, _: impl FnMut(&(u32, u64)) -> bool) {
        match *self {}
    }
}

impl Pool {
    /// Nobody has to be told of anything.
    pub fn settle(&mut self) {}
}
