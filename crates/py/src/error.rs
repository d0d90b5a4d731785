//! Errors as exceptions. What the system says becomes an `OSError` of the fitting class with errno and file
//! name; what is wrong with a file, a `CaptureError` or `StateError`; anything else, a `ValueError`.

use std::io::{self, ErrorKind};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use slipstream::io::capture::CaptureError as ReadError;
use slipstream::runtime::RunError;

pyo3::create_exception!(
    slipstream,
    CaptureError,
    PyValueError,
    "A capture that can't be read: it is empty, damaged, or something else. `file` names it (`<bytes>` for bytes), and \
     `byte` is where it is wrong, or None where that is not one place."
);
pyo3::create_exception!(
    slipstream,
    StateError,
    PyValueError,
    "A saved state that can't be read: it is damaged, of another version, or something else."
);

pyo3::create_exception!(
    slipstream,
    PartialError,
    PyValueError,
    "Parts of a trace that don't join. `reason` is unresolved, gap, settings, opens, other trace \
     or missing."
);

/// A capture that is damaged, where that was not to be borne.
#[derive(Debug, thiserror::Error)]
#[error("{file}: damaged at byte {byte}: {what}")]
pub(crate) struct Damaged {
    pub(crate) file: String,
    pub(crate) byte: u64,
    pub(crate) what: String,
}

/// The exception that says it.
pub(crate) fn exception(error: anyhow::Error) -> PyErr {
    // Python's own: an interrupt, or what a callback raised.
    let error = match error.downcast::<PyErr>() {
        Ok(error) => return error,
        Err(error) => error,
    };
    for cause in error.chain() {
        if let Some(e) = cause.downcast_ref::<ReadError>() {
            return of_capture(e);
        }
        if let Some(e) = cause.downcast_ref::<Damaged>() {
            return at(&e.file, Some(e.byte), e.to_string());
        }
        let of_run = match cause.downcast_ref::<RunError>() {
            Some(RunError::Damaged { file, byte, .. }) => Some(at(file, Some(*byte), cause.to_string())),
            Some(RunError::Source(error)) => error.downcast_ref::<ReadError>().map(of_capture),
            Some(RunError::Stage(error)) => error.downcast_ref::<ReadError>().map(of_capture),
            _ => None,
        };
        if let Some(exception) = of_run {
            return exception;
        }
    }
    PyValueError::new_err(format!("{error:#}"))
}

fn of_capture(error: &ReadError) -> PyErr {
    let text = error.to_string();
    match error {
        ReadError::NotFound { file } | ReadError::NoFolder { file, .. } => system(file, 2, text),
        ReadError::PermissionDenied { file } => system(file, 13, text),
        ReadError::IsDirectory { file } => system(file, 21, text),
        ReadError::Open { file, source }
        | ReadError::Create { file, source }
        | ReadError::Write { file, source }
        | ReadError::Read { file, source, .. } => system(file, number(source), text),
        ReadError::Empty { file } | ReadError::UnknownFormat { file, .. } => at(file, Some(0), text),
        ReadError::UnsupportedVersion { file, .. } => at(file, Some(4), text),
        ReadError::HeaderTruncated { file, found, .. } => at(file, Some(*found as u64), text),
        ReadError::BadHeader { file, byte, .. } | ReadError::NotThere { file, byte, .. } => {
            at(file, Some(*byte), text)
        }
        ReadError::TooManyLayers { file, .. }
        | ReadError::BadCompression { file, .. }
        | ReadError::NoParts { file } => at(file, None, text),
        _ => PyValueError::new_err(text),
    }
}

/// The system's number of an error; where it has none, since the system was not asked or said something else,
/// the one that fits it.
fn number(error: &io::Error) -> i32 {
    const EIO: i32 = 5;
    const EINVAL: i32 = 22;
    const ENOTSUP: i32 = 95;
    error.raw_os_error().unwrap_or_else(|| match error.kind() {
        ErrorKind::InvalidInput => EINVAL,
        ErrorKind::Unsupported => ENOTSUP,
        _ => EIO,
    })
}

/// Python chooses the class by the number: 2 is `FileNotFoundError`. It adds the name of the file, with which
/// the text begins.
fn system(file: &str, number: i32, text: String) -> PyErr {
    let what = text.strip_prefix(file).and_then(|text| text.strip_prefix(": ")).unwrap_or(&text);
    PyOSError::new_err((number, what.to_owned(), file.to_owned()))
}

fn at(file: &str, byte: Option<u64>, text: String) -> PyErr {
    let error = CaptureError::new_err(text);
    let told = Python::attach(|py| {
        let value = error.value(py);
        value.setattr("file", file)?;
        value.setattr("byte", byte)
    });
    told.err().unwrap_or(error)
}
