//! `slipstream slice size`: how many payloads wait, and what room they take.

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use slipstream::slice::{MAX_PLACES, generation_wraps_ns, residence_ns, unsliced_share, waiting};
use slipstream::units::Rate;
use slipstream_model::data_movement::sram::{Demand, Room};
use slipstream_report::{Table, count, share, time};

use super::super::Outcome;
use super::finish;
use crate::check;
use crate::cli::slice::SliceSize;

/// Bits of the generation in a keyed token.
const GENERATION_BITS: u32 = 24;

/// The results of the arithmetic.
struct Sizes {
    room: Room,
    /// Payloads that wait at a time, and whether there is an entry for each.
    needed: f64,
    enough: bool,
    unsliced: f64,
    residence_ns: f64,
    wraps_ns: f64,
}

pub(super) fn run(args: &SliceSize) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.reporting.fail_if)?;
    let demand = demand(args)?;
    let sizes = Sizes::of(args, &demand);
    finish(&args.reporting, &checks, &sizes.to_json(args), || {
        let mut t = Table::default();
        if args.explain {
            explain(&mut t, args, &demand, sizes.needed);
        }
        sizes.tell(&mut t, args);
        t
    })
}

/// The demand that the options describe.
fn demand(args: &SliceSize) -> anyhow::Result<Demand> {
    ensure!(
        args.headroom.is_finite() && args.headroom >= 1.0,
        "--headroom {}: 1 or more is possible",
        args.headroom
    );
    ensure!(
        (0.0..=1.0).contains(&args.dropped),
        "--dropped {}: a share from 0 to 1 is possible",
        args.dropped
    );
    ensure!(
        args.threshold <= args.largest,
        "--threshold {} is above --largest {}",
        args.threshold,
        args.largest
    );
    let bits_a_frame = 8.0 * f64::from(args.threshold + args.framing);
    let link = match args.link {
        Rate::Bits(bits) if bits > 0 => bits as f64,
        Rate::Packets(packets) if packets > 0 => packets as f64 * bits_a_frame,
        _ => bail!("--link: nothing comes at this rate"),
    };
    Ok(Demand {
        link,
        smallest: args.threshold,
        largest: args.largest,
        framing: args.framing,
        service_ns: args.service.0,
        headroom: args.headroom,
        most_entries: MAX_PLACES,
        ..Demand::default()
    })
}

impl Sizes {
    fn of(args: &SliceSize, demand: &Demand) -> Self {
        let room = demand.room();
        let needed = waiting(room.rate, args.service.0);
        Self {
            needed,
            enough: f64::from(room.entries) >= needed,
            unsliced: unsliced_share(args.dropped, args.ttl),
            residence_ns: residence_ns(room.rate, room.entries, args.ttl),
            wraps_ns: generation_wraps_ns(room.rate, room.entries, GENERATION_BITS),
            room,
        }
    }

    fn to_json(&self, args: &SliceSize) -> Value {
        let room = &self.room;
        json!({
            "schema": 1,
            "rate_pps": room.rate,
            "service_ns": args.service.0,
            "waiting": self.needed,
            "headroom": args.headroom,
            "entries": room.entries,
            "enough": self.enough,
            "entry_bytes": room.entry_bytes,
            "payload_bytes": room.payload_bytes,
            "metadata_bytes": room.all_bytes - room.payload_bytes,
            "bytes": room.all_bytes,
            "ttl": args.ttl,
            "longest_stay_ns": self.residence_ns.round() as u64,
            "unsliced_share": self.unsliced,
            "generation_wraps_ns": self.wraps_ns.round() as u64,
        })
    }

    fn tell(&self, t: &mut Table, args: &SliceSize) {
        let Self { room, needed, enough, .. } = self;
        t.title("Room for payloads");
        t.row(["packets worth slicing, a second", &count(room.rate.round() as u64)]);
        t.row(["wait at a time", &format!("{needed:.1}")]);
        t.row(["entries (N)", &count(room.entries.into())]);
        if !*enough {
            t.row(["", "no more can be named by a token: what finds no entry goes whole"]);
        } else if f64::from(room.entries) < needed * args.headroom {
            let times = f64::from(room.entries) / needed;
            t.row(["", &format!("no more can be named by a token: {times:.1} times those that wait")]);
        }
        t.row(["bytes of an entry (M)", &count(room.entry_bytes.into())]);
        let kib = |bytes: u64| format!("{} ({:.1} KiB)", count(bytes), bytes as f64 / 1024.0);
        t.row(["bytes of all payloads", &kib(room.payload_bytes)]);
        t.row(["with what is kept beside them", &kib(room.all_bytes)]);
        t.row(["longest stay of a dropped packet's payload", &time(Some(self.residence_ns))]);
        t.row(["share not sliced because of drops", &share(Some(self.unsliced))]);
        t.row(["a generation comes round after", &time(Some(self.wraps_ns))]);
    }
}

/// Every step, with its numbers.
fn explain(t: &mut Table, args: &SliceSize, demand: &Demand, needed: f64) {
    let room = demand.room();
    let gap = if args.framing > 0 { format!(" + {} between frames", args.framing) } else { String::new() };
    let all = f64::from(args.threshold + args.framing);
    for (title, lines) in [
        (
            "How often a payload comes",
            vec![format!(
                "at most {:.4} Gbit/s / (8 x ({} bytes{gap})) = {:.4} million a second, one each {:.1} ns",
                demand.link / 1e9,
                args.threshold,
                room.rate / 1e6,
                all * 8e9 / demand.link
            )],
        ),
        (
            "How many wait (Little's law: those that come in a second x the seconds that each stays)",
            vec![
                format!("{:.4} million x {} = {needed:.1}", room.rate / 1e6, args.service),
                match needed * args.headroom {
                    all if all > f64::from(MAX_PLACES) => format!(
                        "x {} for bursts: more than the {} that a token can name, which are N",
                        args.headroom,
                        count(MAX_PLACES.into())
                    ),
                    _ => format!("x {} for bursts, rounded up: N = {}", args.headroom, room.entries),
                },
            ],
        ),
        (
            "What room that is",
            vec![
                format!(
                    "M = {} bytes of the largest frame - 64 that go on = {}",
                    args.largest, room.entry_bytes
                ),
                format!("N x M = {} bytes", room.payload_bytes),
                format!("{} bytes beside each: generation, TTL, length, checksum, DSCP", demand.metadata),
            ],
        ),
        (
            "What dropped packets take (d = share dropped, T = TTL)",
            vec![
                format!("N x T / rate: the index passes an entry {} times before it is free again", args.ttl),
                format!(
                    "d T / (1 + d T) = {0} x {1} / (1 + {0} x {1}) go whole, none with explicit drops",
                    args.dropped, args.ttl
                ),
            ],
        ),
    ] {
        t.title(title);
        lines.into_iter().for_each(|line| t.row([line]));
    }
}

#[cfg(test)]
mod tests {
    use slipstream::slice::entries_for;

    use super::*;

    /// The table that `slice` sizes by `rate` and `service` has the entries that are calculated here.
    #[test]
    fn the_engine_makes_the_same_number_of_entries() {
        for (service_ns, headroom) in [(0, 1.0), (10_000, 1.0), (25_000, 2.0), (333, 1.5), (u64::MAX, 9.0)] {
            let demand = Demand { service_ns, headroom, most_entries: MAX_PLACES, ..Demand::default() };
            let room = demand.room();
            assert_eq!(room.entries, entries_for(room.rate, service_ns, headroom), "{service_ns} ns");
        }
    }
}
