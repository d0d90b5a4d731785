//! The charts of a trace, each with a sentence on how to read it. Figures are those of the Reframer paper.

use slipstream_lab::frontier::{Frontier, Point};
use slipstream_report::svg::{About, Axis, Bar, BarChart, Join, Line, LineChart};
use slipstream_report::{count, number, plural, share, tick};

use slipstream_stats::Bucket;
use slipstream_trace::{Distribution, Report, Sequence, Window};

use super::{Figure, short_time};

/// All charts that a trace has data for. `id` begins the ids of elements.
pub(super) fn all(id: &str, report: &Report, frontier: Option<&Frontier>) -> Vec<Figure> {
    let (ip, tcp) = (&report.ip, &report.tcp);
    [
        slf(id, report),
        frontier.and_then(|f| frontier_lines(id, f)),
        temporal(id, report),
        trains(id, "all IP", "trains-ip", ip),
        trains(id, "TCP", "trains-tcp", tcp),
        spatial(id, report),
        flow_sizes(id, report),
        switches(id, "all IP", "switches-ip", ip),
        switches(id, "TCP", "switches-tcp", tcp),
        acks(id, tcp),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The sequences that have packets, by name.
fn sequences(report: &Report) -> Vec<(&'static str, &Sequence)> {
    [("all IP", &report.ip), ("TCP", &report.tcp)].into_iter().filter(|(_, s)| s.packets > 0).collect()
}

fn about(id: &str, name: &str, title: &str, description: &str) -> About {
    About { id: format!("{id}-{name}"), title: title.to_owned(), description: description.to_owned() }
}

fn figure(about: About, svg: String, source: &'static str) -> Figure {
    Figure { title: about.title, svg, caption: about.description, source }
}

fn windows_label(s: &Sequence) -> Vec<String> {
    s.windows.iter().map(|w| short_time(w.window_ns as f64)).collect()
}

fn slf(id: &str, report: &Report) -> Option<Figure> {
    let sequences = sequences(report);
    let (name, first) = *sequences.first()?;
    let best = super::best_window(first)?;
    let about = about(
        id,
        "slf",
        "Locality before and after holding",
        &format!(
            "The spatial locality factor (SLF) is how many packets of one flow come back to back, on average; 1 means that no \
             two do. Left as captured, then as it would be after holding every packet for at most the time below the bars. \
             Holding for {} takes it from {} to {} ({name}).",
            short_time(best.window_ns as f64),
            number(first.slf, 2),
            number(best.slf_after, 2),
        ),
    );
    let bar = |v: Option<f64>| -> Bar { v.map(|v| (v, number(Some(v), 2))) };
    let bars = |s: &Sequence| -> Vec<Bar> {
        std::iter::once(bar(s.slf)).chain(s.windows.iter().map(|w| bar(w.slf_after))).collect()
    };
    let series: Vec<(String, Vec<Bar>)> = sequences.iter().map(|(n, s)| ((*n).to_owned(), bars(s))).collect();
    let chart = BarChart {
        y: Axis::linear("packets back to back", highest(&series), tick),
        x_label: "holding time".into(),
        groups: std::iter::once("as captured".to_owned()).chain(windows_label(first)).collect(),
        series,
        about: about.clone(),
    };
    Some(figure(about, chart.render(), ""))
}

fn frontier_lines(id: &str, frontier: &Frontier) -> Option<Figure> {
    let line = |name: &str, mut points: Vec<(f64, f64)>| {
        points.retain(|p| p.1 >= 1.0);
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { name: name.to_owned(), points, join: Join::Straight }
    };
    let points = |of: &[Point]| of.iter().map(|p| (p.mean_train, p.mean_delay_ns)).collect::<Vec<_>>();
    let fixed = frontier.holds.iter().map(|b| (b.fixed.mean_train, b.fixed.mean_delay_ns)).collect();
    let lines = vec![
        line("fixed hold", fixed),
        line("adaptive hold", points(&frontier.adaptive)),
        line("future known", points(&frontier.clairvoyant)),
    ];
    let values = |of: fn(&(f64, f64)) -> f64| lines.iter().flat_map(|l| &l.points).map(of);
    let (low, high) = (values(|p| p.1).fold(f64::INFINITY, f64::min), values(|p| p.1).fold(1.0, f64::max));
    let longest = values(|p| p.0).fold(1.0, f64::max);
    if !low.is_finite() {
        return None;
    }
    let about = about(
        id,
        "frontier",
        "What trains cost: mean train against mean delay",
        &format!(
            "The lower a line, the less delay packets pay for trains of that length. A fixed hold waits for every train alike; the \
             adaptive hold (at most {}) stops where the next packet is not worth its delay any more; nothing can be below what \
             knowing the future would give.",
            short_time(frontier.longest_ns as f64)
        ),
    );
    let chart = LineChart {
        about: about.clone(),
        x: Axis::linear("packets a train, mean", longest, tick),
        y: Axis::log("added delay, mean", 10.0, (low, high.max(low * 10.0)), short_time),
        lines,
        marks: Vec::new(),
    };
    Some(figure(about, chart.render(), ""))
}

fn switches(id: &str, name: &str, slug: &str, s: &Sequence) -> Option<Figure> {
    let first = s.flow_switches.first()?;
    let about = about(
        id,
        slug,
        &format!("Flow switches in a batch: {name}"),
        &format!(
            "How often a packet of a batch belongs to another flow than the one before it, so that its state must be \
             fetched anew. The height is the share of packets, the number on a bar the switches in a batch. Batches as \
             Linux and DPDK (32, 64), VPP (256), GPUs and smart NICs (1024) use them. Sorting by flow would \
             turn {:.1} switches in {} packets into {:.1}.",
            first.unordered, first.batch, first.ordered
        ),
    );
    let bar =
        |batch: u32, switches: f64| Some((switches / f64::from(batch.max(1)), format!("{switches:.1}")));
    let series = vec![
        ("as they come".to_owned(), s.flow_switches.iter().map(|f| bar(f.batch, f.unordered)).collect()),
        ("sorted by flow".to_owned(), s.flow_switches.iter().map(|f| bar(f.batch, f.ordered)).collect()),
    ];
    let chart = BarChart {
        about: about.clone(),
        x_label: "packets in a batch".into(),
        y: Axis::linear("share of packets that switch flows", 1.0, percent),
        groups: s.flow_switches.iter().map(|f| f.batch.to_string()).collect(),
        series,
    };
    Some(figure(about, chart.render(), "Fig. 8"))
}

fn acks(id: &str, tcp: &Sequence) -> Option<Figure> {
    let pure = tcp.windows.iter().find_map(|w| w.acks).map(|a| a.pure_acks).filter(|n| *n > 0)?;
    let best = tcp
        .windows
        .iter()
        .filter_map(|w| Some((w.acks?.ack_coalescable_strict?, w)))
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    let about = about(
        id,
        "acks",
        "Acknowledgements that need not be sent on",
        &format!(
            "Of {} TCP packets that only acknowledge, the share that would leave in one train with others of their flow. \
             Directly superseded: the packet before it is a pure acknowledgement too, and acknowledged less, so one of the \
             two suffices; at best {}, with {}. Same train: an upper bound, whatever lies between.",
            count(pure),
            share(Some(best.0)),
            short_time(best.1.window_ns as f64),
        ),
    );
    let bars = |of: fn(&slipstream_trace::Acks) -> Option<f64>| -> Vec<Bar> {
        tcp.windows.iter().map(|w| w.acks.as_ref().and_then(of).map(|v| (v, share(Some(v))))).collect()
    };
    let series = vec![
        ("directly superseded".to_owned(), bars(|a| a.ack_coalescable_strict)),
        ("same train".to_owned(), bars(|a| a.ack_coalescable_simple)),
    ];
    let chart = BarChart {
        about: about.clone(),
        x_label: "holding time".into(),
        y: Axis::linear("share of pure acknowledgements", highest(&series), percent),
        groups: windows_label(tcp),
        series,
    };
    Some(figure(about, chart.render(), "Fig. 22"))
}

fn flow_sizes(id: &str, report: &Report) -> Option<Figure> {
    let sequences = sequences(report);
    let (name, s) = *sequences.last()?;
    let about = about(
        id,
        "flow-sizes",
        "Flow sizes",
        &format!(
            "At each number of packets, the line shows the share of flows that have no more. {} {}",
            sizes(name, s),
            alone(s.single_packet_flows),
        ),
    );
    let of = |s: &Sequence| cumulative(&s.flow_size.distribution.histogram);
    cdf(about, "packets a flow", "share of flows", amount, &lines(&sequences, of), &[], "Fig. 6")
}

/// The sizes of the flows of a sequence, in words.
fn sizes(name: &str, s: &Sequence) -> String {
    let largest = s.flow_size.max.map_or_else(String::new, |most| plural(most, "packet"));
    match s.flows {
        1 => format!("The one flow ({name}) has {largest}."),
        flows => format!(
            "Of the {} flows ({name}), half have no more packets than {}, and the largest has {largest}.",
            count(flows),
            number(s.flow_size.distribution.p50.map(f64::ceil), 0),
        ),
    }
}

/// The flows that have a single packet, in words.
fn alone(flows: u64) -> String {
    match flows {
        0 => "No flow has a single packet.".to_owned(),
        1 => "The one flow of a single packet can't be made into a train.".to_owned(),
        flows => format!("The {} flows of a single packet can't be made into trains.", count(flows)),
    }
}

fn spatial(id: &str, report: &Report) -> Option<Figure> {
    let sequences = sequences(report);
    let (name, s) = *sequences.first()?;
    let about = about(
        id,
        "spatial",
        "Spatial distance",
        &format!(
            "How many places a packet is behind the one before it of its flow; 1 is back to back. The line shows the share \
             of such pairs that are no farther apart: the steeper it begins, the better the locality. Of {} pairs ({name}), \
             {} have packets of other flows in between; half have a distance of {} or less.",
            count(s.pairs),
            share(s.share_spatial_distance_gt_1),
            number(s.spatial_distance.p50.map(f64::ceil), 0),
        ),
    );
    let of = |s: &Sequence| cumulative(&s.spatial_distance.histogram);
    cdf(about, "distance in packets", "share of pairs", amount, &lines(&sequences, of), &[], "Fig. 7a")
}

fn temporal(id: &str, report: &Report) -> Option<Figure> {
    let sequences = sequences(report);
    let (name, s) = *sequences.first()?;
    let within = s.windows.last().map(|w| {
        let near = near(&s.temporal_distance_ns, w.window_ns);
        format!(" Within {} it is {} ({name}).", short_time(w.window_ns as f64), share(near))
    });
    let about = about(
        id,
        "temporal",
        "Temporal distance",
        &format!(
            "How long after the one before it of its flow a packet comes. Where a line crosses a dashed mark, a holding time, \
             is the share of packets that come soon enough to be caught by it; flat stretches are times that \
             gain nothing over a shorter one.{}",
            within.unwrap_or_default()
        ),
    );
    let marks: Vec<(f64, String)> =
        s.windows.iter().map(|w| (w.window_ns as f64, short_time(w.window_ns as f64))).collect();
    let of = |s: &Sequence| cumulative(&s.temporal_distance_ns.histogram);
    cdf(
        about,
        "time between two packets of a flow",
        "share of pairs",
        short_time,
        &lines(&sequences, of),
        &marks,
        "Fig. 7b",
    )
}

/// Share of packets by the length of the train that they are in.
fn trains(id: &str, name: &str, slug: &str, s: &Sequence) -> Option<Figure> {
    let best = super::best_window(s)?;
    let about = about(
        id,
        slug,
        &format!("Length of trains: {name}"),
        &format!(
            "One line a holding time: the share of packets that would leave in a train of no more packets than below. The \
             lower a line, the longer the trains; where it begins, at 1, is the share of packets that stay alone. With {}, {} \
             of packets travel in trains of two and more; a train has {} packets on average.",
            short_time(best.window_ns as f64),
            share(best.share_packets_in_trains),
            number(best.mean_train, 2),
        ),
    );
    let weighted = |w: &Window| {
        let weigh = |b: &Bucket| Bucket { count: b.count * b.to.unsigned_abs(), ..*b };
        cumulative(&w.histogram.iter().map(weigh).collect::<Vec<_>>())
    };
    let line =
        |w: &Window| Line { name: short_time(w.window_ns as f64), points: weighted(w), join: Join::Steps };
    let longest = f64::from(s.windows.iter().map(|w| w.burst).max().unwrap_or(2)).max(2.0);
    let chart = LineChart {
        about: about.clone(),
        x: Axis::log("packets in the train", 2.0, (1.0, longest), amount),
        y: Axis::linear("share of packets", 1.0, percent),
        lines: s.windows.iter().map(line).collect(),
        marks: Vec::new(),
    };
    Some(figure(about, chart.render(), "Fig. 9"))
}

fn lines(sequences: &[(&str, &Sequence)], of: impl Fn(&Sequence) -> Vec<(f64, f64)>) -> Vec<Line> {
    sequences
        .iter()
        .map(|(name, s)| Line { name: (*name).to_owned(), points: of(s), join: Join::Steps })
        .collect()
}

/// A chart of cumulative shares over a logarithmic axis; nothing where there are no values.
fn cdf(
    about: About,
    x: &str,
    y: &str,
    tick: fn(f64) -> String,
    lines: &[Line],
    marks: &[(f64, String)],
    source: &'static str,
) -> Option<Figure> {
    let values = || lines.iter().flat_map(|l| &l.points).map(|p| p.0).chain(marks.iter().map(|m| m.0));
    lines.iter().find(|l| !l.points.is_empty())?;
    let high = values().fold(1.0, f64::max);
    // A stray value far below all others would take half of the chart: the axis begins where the lines leave
    // the floor.
    let rises = |p: &&(f64, f64)| p.0 >= 1.0 && p.1 >= 0.005;
    let low = lines.iter().filter_map(|l| l.points.iter().find(rises)).map(|p| p.0);
    let low = low.chain(marks.iter().map(|m| m.0)).filter(|v| *v >= 1.0).fold(high, f64::min);
    let chart = LineChart {
        about: about.clone(),
        x: Axis::log(x, 10.0, (low, high), tick),
        y: Axis::linear(y, 1.0, percent),
        lines: lines.to_vec(),
        marks: marks.to_vec(),
    };
    Some(figure(about, chart.render(), source))
}

/// The share of values at or below each bucket's end.
fn cumulative(buckets: &[Bucket]) -> Vec<(f64, f64)> {
    let total: u64 = buckets.iter().map(|b| b.count).sum();
    let mut seen = 0;
    let point = |b: &Bucket| {
        seen += b.count;
        (b.to as f64, seen as f64 / total.max(1) as f64)
    };
    buckets.iter().map(point).collect()
}

/// The share of values below `limit`, to the resolution of the buckets.
fn near(d: &Distribution, limit: u64) -> Option<f64> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let total: u64 = d.histogram.iter().map(|b| b.count).sum();
    let below: u64 = d.histogram.iter().filter(|b| b.to < limit).map(|b| b.count).sum();
    (total > 0).then(|| below as f64 / total as f64)
}

fn highest(series: &[(String, Vec<Bar>)]) -> f64 {
    series.iter().flat_map(|s| &s.1).flatten().map(|b| b.0).fold(0.0, f64::max)
}

fn percent(v: f64) -> String {
    format!("{} %", tick(v * 100.0))
}

/// A round count, short: 1, 10, 1k, 10M.
fn amount(v: f64) -> String {
    match v {
        ..1e3 => tick(v),
        1e3..1e6 => format!("{}k", tick(v / 1e3)),
        1e6..1e9 => format!("{}M", tick(v / 1e6)),
        _ => format!("{}G", tick(v / 1e9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_one() {
        let bucket = |from, to, count| Bucket { from, to, count };
        let all = [bucket(-5, -4, 1), bucket(3, 3, 2), bucket(8, 9, 1)];
        assert_eq!(cumulative(&all), [(-4.0, 0.25), (3.0, 0.75), (9.0, 1.0)]);
        assert_eq!(cumulative(&[]), []);
        let d = Distribution { histogram: all.to_vec(), ..Distribution::default() };
        assert_eq!(near(&d, 9), Some(0.75));
        assert_eq!(near(&d, 10), Some(1.0));
        assert_eq!(near(&Distribution::default(), 10), None);
    }

    #[test]
    fn ticks_for_people() {
        assert_eq!([1.0, 1e3, 2e4, 1e7, 1e12].map(amount), ["1", "1k", "20k", "10M", "1000G"]);
        assert_eq!([0.0, 0.25, 0.005, 2e-6].map(percent), ["0 %", "25 %", "0.5 %", "2e-4 %"]);
    }
}
