//! In place of adopted memory where there is no operating system: nobody has any.

use alloc::vec::Vec;

use super::memory::Memory;
use super::slabs::Slabs;

/// No pool has one.
#[derive(Debug)]
pub(super) enum Adopted {}

impl Adopted {
    pub(super) fn room(&self, _: u32) -> usize {
        match *self {}
    }

    pub(super) fn give_back(&self, _: &mut Vec<u32>) {
        match *self {}
    }

    pub(super) fn take(&self, _: usize, _: &mut Vec<u32>) -> Option<u32> {
        match *self {}
    }

    pub(super) fn more(&mut self, _: usize, _: usize, _: &mut Slabs, _: &mut Memory) -> u32 {
        match *self {}
    }

    pub(super) fn keep(&mut self, _: usize, _: u32) {
        match *self {}
    }
}
