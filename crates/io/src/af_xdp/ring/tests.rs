use std::alloc::{alloc_zeroed, dealloc};
use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const LAYOUT: Layout = Layout { producer: 0, consumer: 64, flags: 128, entries: 192 };

/// Memory of a ring as a kernel would have it.
struct Memory(NonNull<u8>, std::alloc::Layout);

impl Memory {
    fn new(size: u32, begin: u32) -> Self {
        let layout = std::alloc::Layout::from_size_align(192 + 8 * size as usize, 64).unwrap();
        // SAFETY: the layout is not empty; the words lie in it.
        let memory = unsafe {
            let memory = NonNull::new(alloc_zeroed(layout)).unwrap();
            memory.add(LAYOUT.producer).cast::<u32>().write(begin);
            memory.add(LAYOUT.consumer).cast::<u32>().write(begin);
            memory
        };
        Self(memory, layout)
    }

    fn side(&self, side: Side, size: u32) -> Ring<u64> {
        // SAFETY: it was laid out so, and each side is taken once; the rings of a test are gone before it.
        unsafe { Ring::over(self.0, LAYOUT, side, size) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { dealloc(self.0.as_ptr(), self.1) };
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push(u32),
    ShowWritten,
    Pop(u32),
    GiveBack,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1u32..40).prop_map(Step::Push),
        Just(Step::ShowWritten),
        (1u32..40).prop_map(Step::Pop),
        Just(Step::GiveBack),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest! {
    /// Both sides against their obvious twin, queues of numbers, across the end of the counts.
    #[test]
    fn both_sides_are_a_queue(bits in 0u32..6, begin in any::<u32>(), near_end in any::<bool>(), steps in steps()) {
        let size = 1 << bits;
        let begin = if near_end { begin | 0xffff_ffe0 } else { begin };
        let memory = Memory::new(size, begin);
        let (mut writer, mut reader) = (memory.side(Side::Writes, size), memory.side(Side::Reads, size));
        // Written and not shown; shown and not read; read and not given back.
        let (mut hidden, mut shown, mut read) = (VecDeque::new(), VecDeque::new(), 0);
        let mut next = 0u64;
        for step in steps {
            match step {
                Step::Push(n) => {
                    let room = size - (hidden.len() + shown.len() + read) as u32;
                    prop_assert_eq!(writer.usable(n), room.min(n));
                    for _ in 0..n {
                        let has_room = hidden.len() + shown.len() + read < size as usize;
                        prop_assert_eq!(writer.push(next), has_room);
                        if has_room {
                            hidden.push_back(next);
                            next += 1;
                        }
                    }
                }
                Step::ShowWritten => {
                    writer.publish();
                    shown.append(&mut hidden);
                }
                Step::Pop(n) => {
                    prop_assert_eq!(reader.usable(n), (shown.len() as u32).min(n));
                    for (entries, value) in shown.iter().take(n as usize).enumerate() {
                        prop_assert_eq!(reader.peek(entries as u32), Some(*value));
                    }
                    prop_assert_eq!(reader.peek(shown.len() as u32), None);
                    for _ in 0..n {
                        let got = reader.pop();
                        prop_assert_eq!(got, shown.pop_front());
                        read += usize::from(got.is_some());
                    }
                }
                Step::GiveBack => {
                    reader.publish();
                    read = 0;
                }
            }
            prop_assert_eq!(writer.unread() as usize, hidden.len() + shown.len() + read);
            prop_assert_eq!(reader.waiting() as usize, shown.len());
        }
    }
}

/// Entries that were written can be read again, whether the other side has read it or not, as long as their
/// places have nothing else.
#[test]
fn what_was_written_is_still_there() {
    let memory = Memory::new(4, u32::MAX - 2);
    let (mut near, mut far) = (memory.side(Side::Writes, 4), memory.side(Side::Reads, 4));
    (1..=3).for_each(|n| assert!(near.push(n)));
    near.publish();
    assert_eq!((far.usable(9), far.pop(), far.pop()), (3, Some(1), Some(2)));
    far.publish();
    assert_eq!(near.usable(9), 3);
    (4..=6).for_each(|n| assert!(near.push(n)));
    assert_eq!([0, 1, 2, 4, 5].map(|ago| near.written(ago)), [None, Some(6), Some(5), Some(3), None]);
    assert_eq!(far.written(1), None);
}
