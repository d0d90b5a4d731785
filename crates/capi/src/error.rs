//! Errors, as numbers and in words.

use core::ffi::{c_char, c_int};

/// It worked. Functions that count return the count instead, which is not negative.
pub const SLIP_OK: i32 = 0;
/// A pointer that must not be NULL is.
pub const SLIP_E_NULL: i32 = -1;
/// The object was freed already, or is none of this library's.
pub const SLIP_E_OBJECT: i32 = -2;
/// An argument is out of range.
pub const SLIP_E_ARGUMENT: i32 = -3;
/// The time is before that of an earlier packet.
pub const SLIP_E_TIME: i32 = -4;
/// More packets in a burst than SLIP_BURST.
pub const SLIP_E_TOO_MANY: i32 = -5;
/// Trains wait to be polled, and there is no room for more.
pub const SLIP_E_UNPOLLED: i32 = -6;
/// A buffer is too small for what could come.
pub const SLIP_E_BUFFER: i32 = -7;
/// The setting can't be had.
pub const SLIP_E_CONFIG: i32 = -8;
/// This kind of sketch does not answer this question, or the two do not fit together.
pub const SLIP_E_UNSUPPORTED: i32 = -9;
/// A bug in the library. The object can only be freed.
pub const SLIP_E_INTERNAL: i32 = -10;

/// A code, and text beyond what it says by itself.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) text: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: i32, text: impl Into<String>) -> Self {
        Self { code, text: Some(text.into()) }
    }
}

impl From<i32> for Failure {
    fn from(code: i32) -> Self {
        Self { code, text: None }
    }
}

/// The meaning of a code.
pub(crate) const fn text_of(code: i32) -> &'static core::ffi::CStr {
    match code {
        SLIP_OK => c"no error",
        SLIP_E_NULL => c"a pointer that must not be NULL is NULL",
        SLIP_E_OBJECT => c"the object was freed already, or is none of this library's",
        SLIP_E_ARGUMENT => c"an argument is out of range",
        SLIP_E_TIME => c"the time is before that of an earlier packet",
        SLIP_E_TOO_MANY => c"more packets in a burst than SLIP_BURST",
        SLIP_E_UNPOLLED => c"trains wait to be polled, and there is no room for more",
        SLIP_E_BUFFER => c"a buffer is too small for what could come",
        SLIP_E_CONFIG => c"the setting can't be had",
        SLIP_E_UNSUPPORTED => {
            c"this kind of sketch does not answer this question, or the two do not fit together"
        }
        SLIP_E_INTERNAL => c"a bug in the library; the object can only be freed",
        _ => c"no code of this library",
    }
}

/// Returns the meaning of a code, in words. The text is there as long as the program runs.
#[unsafe(no_mangle)]
pub extern "C" fn slip_error_text(code: c_int) -> *const c_char {
    text_of(code).as_ptr()
}

/// The version of the library, such as "0.1.0". The text is there as long as the program runs.
#[unsafe(no_mangle)]
pub extern "C" fn slip_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
