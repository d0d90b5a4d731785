//! The operator's side of a running pipeline: [requests](Request) by a line of JSON each, the
//! [state](StateFile) that survives a restart, and [stages](Operate) as they appear to an operator.

mod request;
mod state;

pub use request::{LONGEST_LINE, MOST_ROWS, Request, RequestError, Selection};
pub use slipstream_core::operate::{
    Apart, Denial, EntryEnds, Events, Fields, Operate, Preparation, Reloading, SessionEvent, StateTable,
    Update, put_address,
};
pub use state::{SavedTable, StateError, StateFile, StateWriter};
