//! `slipstream slice model`: what moves, whole and sliced.

use anyhow::ensure;
use serde_json::{Value, json};
use slipstream::slice::TOKEN_LEN;
use slipstream_model::data_movement::latency::{Path, Predicted, predict};
use slipstream_model::data_movement::memory::Cache;
use slipstream_model::data_movement::pcie::{Card, Link, Queues};
use slipstream_model::data_movement::sliced_frame;
use slipstream_report::{Table, number, share, time};

use super::super::Outcome;
use super::finish;
use crate::check;
use crate::cli::slice::SliceModel;

/// Everything that is assumed.
struct Assumed {
    card: Card,
    cache: Cache,
    path: Path,
}

/// One size at one rate, whole or sliced.
struct Point {
    size: u32,
    rate: f64,
    sliced: bool,
    /// Bytes of the frame that goes to the host.
    frame: u32,
    predicted: Predicted,
}

pub(super) fn run(args: &SliceModel) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.reporting.fail_if)?;
    let assumed = assumed(args)?;
    let mut points = Vec::new();
    for rate in &args.rate {
        for size in &args.size {
            let short = if *size >= args.threshold {
                sliced_frame(args.headers, TOKEN_LEN as u32).min(*size)
            } else {
                *size
            };
            for (sliced, frame) in [(false, *size), (true, short)] {
                let predicted = predict(&assumed.card, &assumed.path, frame, rate.0);
                points.push(Point { size: *size, rate: rate.0, sliced, frame, predicted });
            }
        }
    }
    let rows: Vec<Value> = points.iter().map(|p| row(&assumed, p)).collect();
    let result = json!({ "schema": 1, "model": true, "assumed": assumptions(args), "rows": rows });
    finish(&args.reporting, &checks, &result, || table(args, &assumed, &points))
}

fn assumed(args: &SliceModel) -> anyhow::Result<Assumed> {
    ensure!(
        args.transaction_share > 0.0 && args.transaction_share <= 1.0,
        "--transaction-share {}: more than 0 and at most 1 is possible",
        args.transaction_share
    );
    ensure!(args.burst.is_finite() && args.burst >= 1.0, "--burst {}: 1 or more is possible", args.burst);
    ensure!(args.io_ways <= args.ways, "--io-ways {} is more than --ways {}", args.io_ways, args.ways);
    ensure!(
        args.cache.0 > 0,
        "--cache 0: there is no such cache; --io-ways 0 is one that the card can't use"
    );
    let link = Link {
        generation: args.generation,
        lanes: args.lanes,
        max_payload: args.max_payload,
        max_read: args.max_read,
        transaction_share: args.transaction_share,
        ..Link::default()
    };
    let queues = Queues {
        receive_descriptor: args.receive_descriptor,
        receive_completion: args.completion,
        send_descriptor: args.send_descriptor,
        send_completion: args.completion,
        packets_a_send_completion: args.packets_a_send_completion,
        packets_a_doorbell: args.packets_a_doorbell,
        ..Queues::default()
    };
    let cache = Cache {
        bytes: args.cache.0 as f64,
        ways: args.ways,
        io_ways: args.io_ways,
        buffers: args.buffers,
        ..Cache::default()
    };
    Ok(Assumed { card: Card { link, queues }, cache, path: Path { base_ns: args.base.0, burst: args.burst } })
}

fn assumptions(args: &SliceModel) -> Value {
    let (link, queues) = (Link::default(), Queues::default());
    json!({
        "generation": args.generation,
        "lanes": args.lanes,
        "max_payload": args.max_payload,
        "max_read": args.max_read,
        "write_header": link.write_header,
        "read_header": link.read_header,
        "completion_header": link.completion_header,
        "transaction_share": args.transaction_share,
        "receive_descriptor": args.receive_descriptor,
        "receive_descriptors_a_read": queues.receive_descriptors_a_read,
        "send_descriptor": args.send_descriptor,
        "send_descriptors_a_read": queues.send_descriptors_a_read,
        "completion": args.completion,
        "packets_a_send_completion": args.packets_a_send_completion,
        "doorbell": queues.doorbell,
        "packets_a_doorbell": args.packets_a_doorbell,
        "line": queues.line,
        "headers": args.headers,
        "threshold": args.threshold,
        "cache": args.cache.0,
        "ways": args.ways,
        "io_ways": args.io_ways,
        "buffers": args.buffers,
        "base_ns": args.base.0,
        "burst": args.burst,
    })
}

fn row(assumed: &Assumed, point: &Point) -> Value {
    let bytes = assumed.card.per_packet(point.frame);
    let [to_host, from_host] = bytes.utilization(&assumed.card.link, point.rate);
    let memory = assumed.cache.per_packet(point.frame);
    let ns = |v: Option<f64>| v.map(|v| v.round() as u64);
    json!({
        "size": point.size,
        "rate_pps": point.rate,
        "sliced": point.sliced,
        "frame_to_host": point.frame,
        "memory_lines_bytes": bytes.memory_lines,
        "bookkeeping_bytes": bytes.bookkeeping,
        "memory_lines_bytes_per_second": bytes.memory_lines * point.rate,
        "share_of_peak": bytes.share_of_peak(&assumed.card.link, point.rate),
        "to_host_bytes": bytes.to_host,
        "from_host_bytes": bytes.from_host,
        "to_host_utilization": to_host,
        "from_host_utilization": from_host,
        "memory_bytes_per_second": memory.total() * point.rate,
        "spilled_share": assumed.cache.spilled(point.frame),
        "predicted_wait_ns": ns(point.predicted.waits_ns.map(|[a, b]| a + b)),
        "predicted_mean_ns": ns(point.predicted.mean_ns),
    })
}

fn table(args: &SliceModel, assumed: &Assumed, points: &[Point]) -> Table {
    let mut t = Table::default();
    if args.explain {
        explain(&mut t, args, assumed);
    }
    t.title("Model (nothing is measured): PCI Express, memory, and what packets wait for");
    t.row([
        "frame",
        "Mpps",
        "sent to host",
        "GB/s",
        "of peak",
        "busy to host",
        "from host",
        "memory GB/s",
        "predicted mean",
    ]);
    for p in points {
        let bytes = assumed.card.per_packet(p.frame);
        let [to_host, from_host] = bytes.utilization(&assumed.card.link, p.rate);
        let giga = |v: f64| number(Some(v / 1e9), 2);
        t.row([
            format!("{} {}", p.size, if p.sliced { "sliced" } else { "whole" }),
            number(Some(p.rate / 1e6), 2),
            p.frame.to_string(),
            giga(bytes.memory_lines * p.rate),
            share(Some(bytes.share_of_peak(&assumed.card.link, p.rate))),
            share(Some(to_host)),
            share(Some(from_host)),
            giga(assumed.cache.per_packet(p.frame).total() * p.rate),
            p.predicted.mean_ns.map_or_else(|| "no room".to_owned(), |ns| time(Some(ns.round()))),
        ]);
    }
    t
}

fn explain(t: &mut Table, args: &SliceModel, assumed: &Assumed) {
    let (link, q) = (&assumed.card.link, &assumed.card.queues);
    t.title("What is counted");
    for line in [
        format!(
            "GB/s, of peak: bytes that the card reads and writes in memory, packets in lines of {} bytes (what a \
             processor's counters and the paper's Fig. 15 show), against {:.2} GB/s both ways",
            q.line,
            2.0 * link.bytes_per_second() / 1e9
        ),
        format!(
            "busy: all bytes of the transaction layer, against {:.2} GB/s each way: generation {}, {} lanes, of which {} for \
             transactions",
            link.transaction_bytes_per_second() / 1e9,
            link.generation,
            link.lanes,
            share(Some(link.transaction_share))
        ),
    ] {
        t.row([line]);
    }
    t.title("What is assumed, for each packet that is received and sent again");
    for line in [
        format!(
            "a packet: writes of at most {} bytes, {} around each; reads of at most {}, {} to ask, {} around what comes",
            link.max_payload, link.write_header, link.max_read, link.read_header, link.completion_header
        ),
        format!(
            "receiving: a descriptor of {} bytes, read {} at a time; a completion of {}",
            q.receive_descriptor, q.receive_descriptors_a_read, q.receive_completion
        ),
        format!(
            "sending: a descriptor of {} bytes; a completion of {} for {} packets",
            q.send_descriptor, q.send_completion, q.packets_a_send_completion
        ),
        format!("doorbells of {} bytes, one for {} packets each way", q.doorbell, q.packets_a_doorbell),
        format!(
            "sliced: {} bytes of headers, 8 of token, 4 of frame check; frames from {} bytes on",
            args.headers, args.threshold
        ),
        format!(
            "memory: {} of {} ways of {:.1} MiB take packets in, {} buffers in turn",
            args.io_ways,
            args.ways,
            assumed.cache.bytes / f64::from(1 << 20),
            args.buffers
        ),
        format!(
            "predicted mean: {} and two queues M^X/D/1, bursts of {}",
            time(Some(assumed.path.base_ns)),
            args.burst
        ),
    ] {
        t.row([line]);
    }
}
