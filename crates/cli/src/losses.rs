//! Warnings of losses that a user can remedy.

use slipstream::runtime::{RunReport, SourceReport, StageReport};
use tracing::warn;

use crate::types;

/// Warns of everything in a run's report that should not be, and can be mended.
pub(crate) fn warn_of(report: &RunReport) {
    for source in &report.sources {
        of_source(source).for_each(|loss| warn!("{}: {loss}", source.name));
    }
    for stage in &report.stages {
        of_stage(stage).chain(payloads(stage)).for_each(|loss| warn!("{}: {loss}", stage.name));
    }
}

/// The losses that the counters of a source tell of: each is a number of things, what became of these, and a
/// remedy.
fn of_source(source: &SourceReport) -> impl Iterator<Item = String> {
    let in_kernel = match source.kind {
        "tap_interface" => {
            "packets found the queue of the interface full and are lost; a longer one (ip link set dev INTERFACE \
             txqueuelen N) takes longer bursts"
        }
        _ => {
            "packets found the ring full, or no buffer free, and are lost; a larger `ring` takes longer bursts"
        }
    };
    let losses = [
        (
            "too_long",
            "packets were longer than the interface's MTU was when the port was opened, and are lost. If the MTU was \
             raised since, start anew. Else its neighbour leaves segmentation to the card, or this side merges packets; \
             switch that off: ethtool -K INTERFACE gro off lro off (here), tso off gso off tx off (there)",
        ),
        (
            "mempool_empty",
            "polls found no free mbuf, and packets had to wait or were lost: the pipeline holds as many as there are; set \
             more `mbufs`, or hold for a shorter time",
        ),
        (
            "missed",
            "packets found the ring of the device full and are lost; a larger `ring` takes longer bursts",
        ),
        ("dropped_by_kernel", in_kernel),
    ];
    losses.into_iter().filter_map(|(counter, loss)| told(source.counter(counter), loss))
}

/// As [`of_source`], of a stage.
fn of_stage(stage: &StageReport) -> impl Iterator<Item = String> {
    let losses = [
        (
            "captured_in_part",
            "packets left as short as they were captured, and who receives them may drop them; capture whole packets \
             (tcpdump -s 0)",
        ),
        (
            "long_probes",
            "flows collided in its table as chance doesn't make them: somebody chose them and knows the seed; leave out \
             --seed, so that it is secret",
        ),
        (
            "whole_full",
            "packets went whole because the entry whose turn it was still waited for its packet; more `entries`, or a \
             smaller `ttl`, let more be sliced",
        ),
        (
            "too_long",
            "packets did not leave, since they are longer than the interface's MTU says, or shorter than an Ethernet \
             header",
        ),
        (
            "refused",
            "packets could not be sent; was the interface down, or are they shorter than an Ethernet header?",
        ),
    ];
    // To a process beside this one, it is the ring that packets are too long for.
    let beside = types::stage_type(stage.kind).is_some_and(|kind| kind.properties.faces_a_process);
    let means = move |counter: &str| counter != "too_long" || !beside;
    let losses = losses.into_iter().filter(move |(counter, _)| means(counter));
    losses.filter_map(|(counter, loss)| told(stage.counter(counter), loss))
}

/// The payloads that a slice stage has given up.
fn payloads(stage: &StageReport) -> Option<String> {
    let given_up = ["payloads_expired", "payloads_overdue", "payloads_left_at_end"];
    let [turns, time, end] = given_up.map(|counter| stage.counter(counter).unwrap_or(0));
    let loss = format!(
        "payloads were given up because their packets did not come back ({turns} after `ttl` turns, {time} after a time, \
         {end} at the end): the functions dropped them, or had them for too long"
    );
    told(Some(turns + time + end), &loss)
}

/// A loss with its number, unless that is 0.
fn told(count: Option<u64>, loss: &str) -> Option<String> {
    count.filter(|n| *n > 0).map(|n| format!("{n} {loss}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(kind: &'static str, counters: &[(&'static str, u64)]) -> SourceReport {
        let counters = counters.to_vec();
        SourceReport { name: "in".to_owned(), kind, packets: 9, clock_backwards: 0, counters }
    }

    #[test]
    fn a_loss_comes_with_its_number_and_a_remedy() {
        let of = |kind, counters: &[_]| of_source(&source(kind, counters)).collect::<Vec<_>>();
        assert_eq!(of("af_packet", &[("missed", 0), ("unknown", 7)]), [""; 0]);
        let lost = of("af_packet", &[("dropped_by_kernel", 5), ("missed", 3)]);
        assert!(lost[0].starts_with("3 packets found the ring of the device full"), "{lost:?}");
        assert!(
            lost[1].starts_with("5 packets found the ring full") && lost[1].contains("`ring`"),
            "{lost:?}"
        );
        let lost = of("tap_interface", &[("dropped_by_kernel", 5)]);
        assert!(lost[0].contains("txqueuelen") && !lost[0].contains("`ring`"), "{lost:?}");
    }
}
