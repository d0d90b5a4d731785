//! The groups of a trace, as tables show them.

use serde::Serialize;
use slipstream_report::{count, number};
use slipstream_trace::{Group, Groups};

use crate::units::Duration;

/// The table of a trace's groups.
#[derive(Serialize)]
pub(crate) struct GroupTable {
    /// It says by which key they are grouped, and how many of them are listed where that is not all.
    pub(crate) title: String,
    /// The names of the columns.
    pub(crate) head: Vec<String>,
    /// A row a group; the last one may have all others together.
    pub(crate) rows: Vec<Vec<String>>,
}

impl GroupTable {
    /// That of these groups.
    pub(crate) fn new(groups: &Groups) -> Self {
        let listed = groups.listed.len() as u64;
        let by = match groups.slice_ns {
            Some(ns) => format!("By slice of {}", Duration(ns)),
            None => format!("By {}", groups.by),
        };
        let title = if listed < groups.groups {
            format!("{by}: {} of {}", count(listed), count(groups.groups))
        } else {
            by
        };
        let mut head =
            vec![groups.by.clone(), "packets".into(), "bytes".into(), "flows".into(), "SLF".into()];
        let windows = groups.listed.first().or(groups.rest.as_ref()).map_or(&[][..], |g| &g.windows);
        head.extend(windows.iter().map(|w| format!("mean train, {}", Duration(w.window_ns))));
        let start = groups
            .listed
            .first()
            .and_then(|g| g.name.parse::<u64>().ok())
            .filter(|_| groups.slice_ns.is_some());
        let name = |group: &Group| match (start, group.name.parse::<u64>()) {
            (Some(start), Ok(at)) => format!("+{}", Duration(at - start)),
            _ => group.name.clone(),
        };
        let rows = groups.listed.iter().chain(&groups.rest).map(|group| row(name(group), group)).collect();
        Self { title, head, rows }
    }
}

fn row(name: String, group: &Group) -> Vec<String> {
    let mut row =
        vec![name, count(group.packets), count(group.bytes), count(group.flows), number(group.slf, 3)];
    row.extend(group.windows.iter().map(|w| number(w.mean_train, 3)));
    row
}
