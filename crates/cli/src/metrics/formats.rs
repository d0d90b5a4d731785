//! The formats of `/metrics`: OpenMetrics, and the text format that Prometheus had before, for programs that
//! read no other one and for people with a browser, which would save a page of OpenMetrics as a file.

use std::collections::BTreeSet;
use std::fmt::Write;

/// The format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus's text format 0.0.4.
    Text,
}

impl Format {
    /// The format for a client that accepts these types of media (RFC 9110, 12.5.1). OpenMetrics, unless it
    /// would rather have text.
    pub(super) fn of<'a>(accept: impl Iterator<Item = &'a str>) -> Self {
        let (mut open, mut text, mut any) = (None, None, None);
        for range in accept.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default().to_ascii_lowercase();
            let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f64>().ok()).unwrap_or(1.0);
            let of = match name.as_str() {
                "application/openmetrics-text" => &mut open,
                "text/plain" | "text/html" | "text/*" => &mut text,
                "*/*" => &mut any,
                _ => continue,
            };
            *of = Some(of.map_or(quality, |before: f64| before.max(quality)));
        }
        let quality = |named: Option<f64>| named.or(any).unwrap_or(0.0);
        if quality(text) > quality(open) { Self::Text } else { Self::OpenMetrics }
    }

    /// Its type of media.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// A page of OpenMetrics in this format.
    pub(super) fn of_text(self, open: &str) -> String {
        match self {
            Self::OpenMetrics => open.to_owned(),
            Self::Text => without_families(open),
        }
    }
}

/// The text format has neither units nor an end, and calls a counter by the name of its series.
fn without_families(open: &str) -> String {
    let kinds = open.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let counters: BTreeSet<&str> =
        kinds.filter(|(_, kind)| *kind == "counter").map(|(name, _)| name).collect();
    let mut out = String::with_capacity(open.len());
    for line in open.lines().filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF") {
        let about = ["# HELP ", "# TYPE "].into_iter().find_map(|what| {
            let (name, rest) = line.strip_prefix(what)?.split_once(' ')?;
            counters.contains(name).then_some((what, name, rest))
        });
        let _ = match about {
            Some((what, name, rest)) => writeln!(out, "{what}{name}_total {rest}"),
            None => writeln!(out, "{line}"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_what_it_reads() {
        let of = |accept: &[&str]| Format::of(accept.iter().copied());
        // Prometheus, curl, and who says nothing.
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for accept in [&[prometheus][..], &["*/*"], &[], &["application/json"], &["text/plain;q=0.5, */*"]] {
            assert_eq!(of(accept), Format::OpenMetrics, "{accept:?}");
        }
        // An agent that knows the old format alone, an old Prometheus, a browser, and two headers.
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        let old = "text/plain;version=0.0.4;q=1,*/*;q=0.1";
        let refused = "application/openmetrics-text;q=0, Text/Plain; q=0.2";
        for accept in
            [&["text/plain"][..], &[old], &[browser], &["text/*"], &[refused], &["a/b", "text/plain"]]
        {
            assert_eq!(of(accept), Format::Text, "{accept:?}");
        }
    }

    #[test]
    fn counters_have_the_names_of_their_series() {
        let open = "# HELP a_seconds Time.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total 1.0\n\
                    # HELP b Now.\n# TYPE b gauge\nb{x=\"# UNIT \"} 2.0\n# EOF\n";
        let text = "# HELP a_seconds_total Time.\n# TYPE a_seconds_total counter\na_seconds_total 1.0\n\
                    # HELP b Now.\n# TYPE b gauge\nb{x=\"# UNIT \"} 2.0\n";
        assert_eq!(Format::Text.of_text(open), text);
        assert_eq!(Format::OpenMetrics.of_text(open), open);
    }
}
