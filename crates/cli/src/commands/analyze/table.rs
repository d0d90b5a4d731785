//! The tables of `analyze`.

use slipstream_report::{Table, bit_rate, count, number, packet_rate, plural, share, time};
use slipstream_trace::{EndpointSide, Groups, Report, Sequence};
use tracing::warn;

use super::Failed;
use crate::report::{GroupTable, Taken};
use crate::units::Duration;

/// The report of one trace, or of several together; with the byte at which it is damaged, and the packets
/// that the user's selection left out.
pub(super) fn report(
    t: &mut Table,
    name: &str,
    (damaged, left_out): (Option<u64>, Option<u64>),
    (r, taken): (&Report, Taken),
) {
    t.title(name.to_owned());
    totals(t, (damaged, left_out), (r, taken));
    locality(t, r);
    holding(t, "What holding would gain: all IP", &r.ip);
    holding(t, "What holding would gain: TCP", &r.tcp);
    if !r.ip.flow_switches.is_empty() {
        t.title("Flow switches in a batch");
        t.row(["batch", "as they come", "sorted by flow"]);
        for s in &r.ip.flow_switches {
            t.row([s.batch.to_string(), format!("{:.1}", s.unordered), format!("{:.1}", s.ordered)]);
        }
    }
    endpoints(t, r);
    if r.clock_backwards > 0 {
        warn!(
            "{name}: the times of {} ran backwards; windows take them to come with the one before",
            plural(r.clock_backwards, "packet")
        );
    }
}

/// The amounts: what came, and what of it counts.
fn totals(t: &mut Table, (damaged, left_out): (Option<u64>, Option<u64>), (r, taken): (&Report, Taken)) {
    let (ns, what) = taken.told();
    t.row(["packets", &count(r.records)]);
    if let Some(n) = left_out {
        t.row(["not selected", &count(n)]);
    }
    t.row(["bytes on the wire", &count(r.bytes)]);
    t.row([what, &time(Some(ns as f64))]);
    if ns > 0 {
        t.row(["rate", &bit_rate(r.bytes, ns)]);
        t.row(["packets a second", &packet_rate(r.records, ns)]);
    }
    let skipped = [
        ("not IP", r.skipped.non_ip),
        ("of an unsupported link type", r.skipped.unsupported_link_type),
        ("cut off in the headers", r.skipped.truncated),
        ("malformed", r.skipped.malformed),
    ];
    for (what, n) in skipped.into_iter().filter(|s| s.1 > 0) {
        t.row([&format!("left out: {what}"), &count(n)]);
    }
    t.row(["IPv6 packets", &count(r.ipv6)]);
    t.row(["fragments", &count(r.fragments)]);
    t.row(["flows, both directions as one", &count(r.flows_bidirectional)]);
    if r.clock_backwards > 0 {
        t.row(["times that ran backwards", &count(r.clock_backwards)]);
    }
    if let Some(byte) = damaged {
        t.row(["damaged at byte", &count(byte)]);
    }
}

fn locality(t: &mut Table, r: &Report) {
    t.title("Locality");
    t.row(["", "all IP", "TCP"]);
    let both =
        |t: &mut Table, label: &str, f: &dyn Fn(&Sequence) -> String| t.row([label, &f(&r.ip), &f(&r.tcp)]);
    both(t, "packets", &|s| count(s.packets));
    both(t, "flows, each direction", &|s| count(s.flows));
    both(t, "... of a single packet", &|s| count(s.single_packet_flows));
    both(t, "packets a flow, mean", &|s| number(s.flow_size.distribution.mean, 1));
    both(t, "spatial locality factor (SLF)", &|s| number(s.slf, 3));
    both(t, "pairs with another flow between", &|s| share(s.share_spatial_distance_gt_1));
    both(t, "spatial distance, median", &|s| number(s.spatial_distance.p50, 0));
    both(t, "temporal distance, median", &|s| time(s.temporal_distance_ns.p50));
}

/// The trains that each window would make of packets.
fn holding(t: &mut Table, title: &str, s: &Sequence) {
    if s.packets == 0 {
        return;
    }
    t.title(title);
    t.row(["hold", "SLF after", "mean train", "in trains of 2+", "p75", "p90", "ACKs coalescable"]);
    for w in &s.windows {
        t.row([
            Duration(w.window_ns).to_string(),
            number(w.slf_after, 3),
            number(w.mean_train, 3),
            share(w.share_packets_in_trains),
            number(w.p75, 0),
            number(w.p90, 0),
            w.acks.map_or_else(String::new, |a| share(a.ack_coalescable_strict)),
        ]);
    }
}

fn endpoints(t: &mut Table, r: &Report) {
    if r.top_endpoints.is_empty() {
        return;
    }
    t.title("Addresses with the most flows");
    t.row([
        "",
        "flows sent",
        "received",
        "packets a flow sent, mean",
        "largest",
        "received, mean",
        "largest",
    ]);
    for e in &r.top_endpoints {
        let side = |s: &EndpointSide| [number(s.mean, 1), s.max.map_or_else(|| "–".to_owned(), count)];
        let flows = [e.address.to_string(), count(e.tx.flows), count(e.rx.flows)];
        t.row(flows.into_iter().chain(side(&e.tx)).chain(side(&e.rx)));
    }
}

/// The groups of a trace.
pub(super) fn groups(t: &mut Table, groups: &Groups) {
    let GroupTable { title, head, rows } = GroupTable::new(groups);
    t.title(title);
    t.row(head);
    rows.into_iter().for_each(|row| t.row(row));
}

/// The traces that could not be read.
pub(super) fn failed(t: &mut Table, failed: &[Failed]) {
    if failed.is_empty() {
        return;
    }
    t.title("Not analysed");
    for one in failed {
        t.row([&one.file, &one.error]);
    }
}
