//! The object behind a C program's pointer: a [`Shell`], whose memory is never given back to the
//! system.
//!
//! A shell says by a word whether its object is there. [`Shells::free`] takes the object out and keeps the
//! shell, so that a pointer that was freed, and is used or freed again, still leads to that word and not to
//! memory of somebody else. A shell serves anew only after [`REST`] others were freed; what can't be told is
//! a pointer that is older than that, and one that never was an object's.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

use crate::error::{Failure, SLIP_E_INTERNAL, SLIP_E_NULL, SLIP_E_OBJECT, SLIP_OK};

/// Shells that are freed after one before it serves anew.
const REST: usize = 1024;

/// Bytes of an error's text, its end included.
const TEXT: usize = 256;

/// Set in [`Shell::state`] where a panic went through the object.
const BROKEN: u64 = 1;

/// The memory that a pointer of C leads to.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Shell<T> {
    /// The magic number of the type while the object is there, that number and [`BROKEN`], or 0.
    state: u64,
    object: Option<Box<T>>,
    /// The last error in words; ends with a 0.
    text: [u8; TEXT],
}

/// An address of a shell that rests.
#[derive(Debug)]
struct Resting<T>(*mut Shell<T>);

// SAFETY: nobody has what the address leads to while it is here, but to read its state.
unsafe impl<T: Send> Send for Resting<T> {}

/// The shells of one type that were freed.
#[derive(Debug)]
pub(crate) struct Shells<T>(Mutex<VecDeque<Resting<T>>>);

/// A type that C programs have objects of.
pub(crate) trait Object: Sized + Send + 'static {
    /// Its magic number; even.
    const MAGIC: u64;

    fn shells() -> &'static Shells<Self>;
}

impl<T: Object> Shells<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    /// A shell with this object in it.
    pub(crate) fn wrap(&self, object: T) -> *mut Shell<T> {
        let shell = Shell { state: T::MAGIC, object: Some(Box::new(object)), text: [0; TEXT] };
        let mut resting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rested = if resting.len() > REST { resting.pop_front() } else { None };
        match rested {
            Some(Resting(address)) => {
                // SAFETY: the address is that of a shell made below, which is never freed, and nobody else
                // has it: its object was taken out before it came here.
                unsafe { address.write(shell) };
                address
            }
            None => Box::into_raw(Box::new(shell)),
        }
    }

    /// Takes the object out of a shell and lets it rest.
    ///
    /// # Safety
    /// As [`with`].
    unsafe fn free(&self, address: *mut Shell<T>) -> Result<Box<T>, i32> {
        // SAFETY: the caller's promise.
        let shell = unsafe { live(address) }?;
        shell.state = 0;
        let object = shell.object.take().ok_or(SLIP_E_OBJECT)?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(Resting(address));
        Ok(object)
    }
}

/// The shell at an address, if its object is there, whether broken or not.
///
/// # Safety
/// As [`with`].
unsafe fn live<'a, T: Object>(address: *mut Shell<T>) -> Result<&'a mut Shell<T>, i32> {
    if address.is_null() {
        return Err(SLIP_E_NULL);
    }
    if !address.is_aligned() {
        return Err(SLIP_E_OBJECT);
    }
    // SAFETY: the caller promises that the address is one that `wrap` returned: there is a shell, whose
    // memory is never given back, and nobody else uses it at this time.
    let shell = unsafe { &mut *address };
    if shell.state & !BROKEN == T::MAGIC { Ok(shell) } else { Err(SLIP_E_OBJECT) }
}

/// Calls `work` with the object at an address. Its failure becomes a code, and a text that [`text`] gives.
///
/// # Safety
/// The address is NULL, or one that [`Shells::wrap`] of this type returned, and no other thread uses the
/// object at the same time.
#[inline(always)]
pub(crate) unsafe fn with<T: Object>(
    address: *mut Shell<T>,
    work: impl FnOnce(&mut T) -> Result<i32, Failure>,
) -> i32 {
    // SAFETY: the caller's promise.
    let shell = match unsafe { live(address) } {
        Ok(shell) => shell,
        Err(code) => return code,
    };
    let Some(object) = shell.object.as_deref_mut().filter(|_| shell.state & BROKEN == 0) else {
        return SLIP_E_INTERNAL;
    };
    match catch_unwind(AssertUnwindSafe(|| work(object))) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => note(&mut shell.text, failure),
        Err(_) => {
            shell.state |= BROKEN;
            note(&mut shell.text, SLIP_E_INTERNAL.into())
        }
    }
}

/// As [`with`], with the objects at two addresses, which differ. A panic leaves neither to be used: what was
/// to pass from one to the other may have got half the way. A failure of either is noted at the first one.
///
/// # Safety
/// As [`with`], of both.
pub(crate) unsafe fn with_both<T: Object>(
    first: *mut Shell<T>,
    second: *mut Shell<T>,
    work: impl FnOnce(&mut T, &mut T) -> Result<i32, Failure>,
) -> i32 {
    let ended = Cell::new(true);
    let outer = |one: &mut T| {
        let inner = |other: &mut T| {
            ended.set(false);
            let result = work(one, other);
            ended.set(true);
            result
        };
        // SAFETY: the caller's promise; the two are different objects.
        match unsafe { with(second, inner) } {
            code @ 0.. => Ok(code),
            // It has gone through the second one, and goes on.
            _ if !ended.get() => resume_unwind(Box::new(())),
            code => {
                // SAFETY: the caller's promise.
                let text = unsafe { core::ffi::CStr::from_ptr(text(second)) };
                Err(Failure::new(code, text.to_string_lossy()))
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { with(first, outer) }
}

#[cold]
fn note(place: &mut [u8; TEXT], Failure { code, text }: Failure) -> i32 {
    let text = text.unwrap_or_else(|| crate::error::text_of(code).to_string_lossy().into_owned());
    write_text(place, &text);
    code
}

/// An object's last error in words, as C reads it.
///
/// # Safety
/// As [`with`].
pub(crate) unsafe fn text<T: Object>(address: *mut Shell<T>) -> *const core::ffi::c_char {
    // SAFETY: the caller's promise.
    match unsafe { live(address) } {
        Ok(shell) => shell.text.as_ptr().cast(),
        Err(code) => crate::error::text_of(code).as_ptr(),
    }
}

/// Frees an object; nothing happens for NULL.
///
/// # Safety
/// As [`with`].
pub(crate) unsafe fn free<T: Object>(address: *mut Shell<T>) -> i32 {
    if address.is_null() {
        return SLIP_OK;
    }
    // SAFETY: the caller's promise.
    match unsafe { T::shells().free(address) } {
        Ok(object) => match catch_unwind(AssertUnwindSafe(|| drop(object))) {
            Ok(()) => SLIP_OK,
            Err(_) => SLIP_E_INTERNAL,
        },
        Err(code) => code,
    }
}

/// Makes an object; where that can't be, writes why to `error` and returns NULL.
///
/// # Safety
/// `error` is NULL, or there are `size` bytes to be written.
pub(crate) unsafe fn make<T: Object>(
    error: *mut core::ffi::c_char,
    size: usize,
    work: impl FnOnce() -> Result<T, Failure>,
) -> *mut Shell<T> {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(object)) => return T::shells().wrap(object),
        Ok(Err(failure)) => failure,
        Err(_) => SLIP_E_INTERNAL.into(),
    };
    if !error.is_null() && size > 0 {
        let mut text = [0; TEXT];
        note(&mut text, failure);
        let n = size.min(TEXT);
        if let Some(last) = text.get_mut(n - 1) {
            *last = 0;
        }
        // SAFETY: the caller's promise; `n` is no more than either has.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), error.cast::<u8>(), n) };
    }
    core::ptr::null_mut()
}

/// Writes text with a 0 behind it, cut where a character ends.
fn write_text(place: &mut [u8; TEXT], text: &str) {
    let end = (0..=text.len().min(TEXT - 1)).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    place.fill(0);
    for (to, from) in place.iter_mut().zip(text.as_bytes().iter().take(end)) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Thing(u32);

    static THINGS: Shells<Thing> = Shells::new();

    impl Object for Thing {
        const MAGIC: u64 = 0x7468_696e_6773_2100;

        fn shells() -> &'static Shells<Self> {
            &THINGS
        }
    }

    /// Of which other tests free none: each of those would count as one of those below.
    #[derive(Debug)]
    struct Counted(u32);

    static COUNTED: Shells<Counted> = Shells::new();

    impl Object for Counted {
        const MAGIC: u64 = 0x636f_756e_7465_6400;

        fn shells() -> &'static Shells<Self> {
            &COUNTED
        }
    }

    #[test]
    fn what_was_freed_is_told_as_long_as_shells_rest() {
        let many = if cfg!(miri) { 3 } else { REST };
        let first = COUNTED.wrap(Counted(7));
        // SAFETY: the address is of a shell.
        unsafe {
            assert_eq!(with(first, |t| Ok(t.0 as i32)), 7);
            assert_eq!(free(first), SLIP_OK);
            assert_eq!(free(first), SLIP_E_OBJECT);
            for _ in 0..many {
                let other = COUNTED.wrap(Counted(8));
                assert_ne!(other, first);
                assert_eq!(free(other), SLIP_OK);
                assert_eq!((with(first, |_| Ok(1)), free(first)), (SLIP_E_OBJECT, SLIP_E_OBJECT));
            }
            assert_eq!(free::<Counted>(core::ptr::null_mut()), SLIP_OK);
            assert_eq!(with::<Counted>(core::ptr::null_mut(), |_| Ok(1)), SLIP_E_NULL);
        }
    }

    #[test]
    fn a_panic_stays_inside_and_leaves_nothing_to_use() {
        let thing = THINGS.wrap(Thing(1));
        let broken = std::hint::black_box(true);
        // SAFETY: the address is of a shell.
        unsafe {
            assert_eq!(
                with(thing, |_| if broken { std::panic::panic_any("!") } else { Ok(0) }),
                SLIP_E_INTERNAL
            );
            assert_eq!(with(thing, |_| Ok(1)), SLIP_E_INTERNAL);
            assert!(
                core::ffi::CStr::from_ptr(text(thing)).to_str().unwrap().contains("a bug in the library")
            );
            assert_eq!(free(thing), SLIP_OK);
        }
    }

    #[test]
    fn a_panic_between_two_leaves_neither_to_be_used() {
        let [one, other] = [1, 2].map(|n| THINGS.wrap(Thing(n)));
        let broken = std::hint::black_box(true);
        // SAFETY: the addresses are of shells.
        unsafe {
            let swap = |a: &mut Thing, b: &mut Thing| {
                std::mem::swap(a, b);
                Ok(0)
            };
            assert_eq!(with_both(one, other, swap), 0);
            assert_eq!((with(one, |t| Ok(t.0 as i32)), with(other, |t| Ok(t.0 as i32))), (2, 1));
            let failing = |_: &mut Thing, _: &mut Thing| Err(Failure::new(SLIP_E_NULL, "they don't fit"));
            assert_eq!(with_both(one, other, failing), SLIP_E_NULL);
            assert_eq!(core::ffi::CStr::from_ptr(text(one)).to_str(), Ok("they don't fit"));
            // Half of it is done.
            let half = |a: &mut Thing, b: &mut Thing| {
                a.0 += b.0;
                if broken { std::panic::panic_any("!") } else { Ok(0) }
            };
            assert_eq!(with_both(one, other, half), SLIP_E_INTERNAL);
            for thing in [one, other] {
                assert_eq!(with(thing, |_| Ok(1)), SLIP_E_INTERNAL);
            }
            // One that was broken before breaks no other.
            let third = THINGS.wrap(Thing(3));
            assert_eq!(with_both(third, one, swap), SLIP_E_INTERNAL);
            assert_eq!(with(third, |t| Ok(t.0 as i32)), 3);
            for thing in [one, other, third] {
                assert_eq!(free(thing), SLIP_OK);
            }
        }
    }

    #[test]
    fn texts_are_cut_to_their_places() {
        let failing = || Err::<Thing, _>(Failure::new(SLIP_E_NULL, "é".repeat(200)));
        let mut place = [1_i8; 8];
        // SAFETY: the place is as long as is said.
        unsafe {
            assert!(make(place.as_mut_ptr().cast(), 8, failing).is_null());
            assert_eq!(place[7], 0);
            assert!(make(place.as_mut_ptr().cast(), 0, failing).is_null());
            assert!(make(core::ptr::null_mut(), 8, failing).is_null());
        }
        let mut text = [1; TEXT];
        write_text(&mut text, &"é".repeat(200));
        assert_eq!((text[253], text[254], text[255]), (0xa9, 0, 0));
    }
}
