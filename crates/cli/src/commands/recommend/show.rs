//! The results of `recommend` as a table, as JSON and as a page with charts.

use serde_json::{Value, json};
use slipstream::reframe::ReframeConfig;
use slipstream_lab::frontier::Point;
use slipstream_model::Outlook;
use slipstream_report::{Table, count, per_second, time, with_error};

use super::super::frontier;
use super::costs::From;
use super::{Answer, USUAL_SLOT_NS};
use crate::cli::recommend::{Aim, Recommend};
use crate::report::model::{Curves, Page};
use crate::units::Duration;

impl Answer {
    /// The outlook without holding.
    fn none(&self) -> &Outlook {
        self.outlooks.first().unwrap_or(&self.best)
    }

    /// Packets that a core can serve with the recommended hold, for each that it can without.
    fn gain(&self) -> f64 {
        self.best.capacity_pps / self.none().capacity_pps
    }
}

/// The price of the recommended hold's trains, in a sentence or two: what packets wait for them, and what
/// they would with an adaptive hold, or if the future were known.
fn price(args: &Recommend, a: &Answer) -> Option<String> {
    let beside = a.frontier.holds.iter().find(|b| b.fixed.hold_ns == a.best.hold_ns as u64)?;
    let wait = |p: &Point| {
        let (all, futile) = (time(Some(p.mean_delay_ns)), time(Some(p.futile_wait_ns)));
        format!("{all} on average, of which {futile} in vain, alone in a train")
    };
    let mut text = format!(
        "The price of its trains, if every packet is held (bypass=none): packets wait {}.",
        wait(&beside.fixed)
    );
    if let Some(knowing) = beside.clairvoyant {
        let least = time(Some(knowing.mean_delay_ns));
        text += &format!(" The same trains would cost {least} if the future were known.");
    }
    let adaptive = beside.adaptive;
    if let Some(price) = adaptive.price_ns.filter(|_| !beside.is_fixed()) {
        let share = 100.0 * adaptive.mean_delay_ns / beside.fixed.mean_delay_ns.max(1e-9);
        let burst = Some(args.burst).filter(|n| *n != ReframeConfig::default().default.burst);
        text += &format!(
            " With the adaptive hold they wait {} ({share:.0} %): --hold {} --admit adaptive --budget price={}{}.",
            wait(&adaptive),
            Duration(adaptive.hold_ns),
            Duration(price),
            burst.map(|n| format!(" --burst {n}")).unwrap_or_default()
        );
    } else {
        text += " Nothing that an adaptive hold learns makes them wait less.";
    }
    Some(text)
}

/// The reasons for this hold, in a sentence or two.
fn reason(args: &Recommend, a: &Answer) -> String {
    let (best, none) = (&a.best, a.none());
    let kept = |o: &&Outlook| args.p99.is_none_or(|most| o.p99_latency_ns <= most.0);
    let longer = a.outlooks.iter().find(|o| o.hold_ns > best.hold_ns);
    let bounded = longer.filter(|o| !kept(o)).map(|o| {
        format!(
            " The next longer one, {}, would keep 99 of 100 packets for up to {}.",
            time(Some(o.hold_ns)),
            time(Some(o.p99_latency_ns))
        )
    });
    let text = match args.aim {
        Aim::Throughput if best.hold_ns == 0.0 && best.p_loss < 1e-3 => format!(
            "At this load ({}) nothing is lost without holding, which would only add latency.",
            load(none.load)
        ),
        _ if best.hold_ns == 0.0 => {
            "No hold that may be chosen does better than none: what trains save is less than what holding costs."
                .to_owned()
        }
        Aim::Throughput if best.p_loss < 1e-9 && none.p_loss < 1e-9 => {
            "Nothing is lost at this load, with or without; of the holds it has the shortest mean latency."
                .to_owned()
        }
        Aim::Throughput => format!(
            "It serves the most packets at this load (loss {} instead of {}); of the holds that serve as many it has the \
             shortest mean latency.",
            loss(best.p_loss),
            loss(none.p_loss)
        ),
        Aim::Capacity => {
            "It is the shortest hold within a hundredth of the most packets that a core can serve.".to_owned()
        }
        Aim::Latency => "It has the shortest mean latency at this load.".to_owned(),
    };
    text + &bounded.unwrap_or_default()
}

/// A load as a decimal with three digits that say something, three behind the point at least; below a
/// billionth with an exponent, as small rates are written.
fn load(load: f64) -> String {
    if load > 0.0 && load < 1e-9 {
        return format!("{load:.2e}");
    }
    let decimals = (2.0 - load.log10().floor()).clamp(3.0, 12.0) as usize;
    format!("{load:.decimals$}")
}

/// A share lost; what will not happen in the life of the machine is none.
fn loss(p: f64) -> String {
    super::super::model::loss(if p < 1e-15 { 0.0 } else { p })
}

pub(super) fn json(args: &Recommend, a: &Answer) -> Value {
    let hold = |o: &Outlook| {
        let mut value = json!(o);
        if let Some(map) = value.as_object_mut() {
            map.insert("hold_ns".into(), (o.hold_ns as u64).into());
        }
        value
    };
    let mut best = hold(&a.best);
    if let Some(map) = best.as_object_mut() {
        map.insert("capacity_gain".into(), a.gain().into());
        map.insert("reason".into(), reason(args, a).into());
        map.insert("price".into(), price(args, a).into());
    }
    let mut frontier = json!(a.frontier);
    if let Some(map) = frontier.as_object_mut() {
        map.insert("packets".into(), a.frontier_packets.into());
    }
    json!({
        "schema": 1,
        "file": args.trace.display().to_string(),
        "packets": a.packets,
        "duration_ns": a.duration_ns,
        "trace_pps": a.trace_pps,
        "offered_pps": a.offered_pps,
        "queue": args.ring.queue,
        "batch": args.ring.batch,
        "burst": args.burst,
        "interarrival": {
            "process": a.interarrival.name(), "mean_slots": a.interarrival.mean(), "cv": a.interarrival.cv(),
        },
        "costs": a.costs,
        "costs_from": a.costs_from.name(),
        "slot_ns": a.slot_ns,
        "hold_cost_measured": a.measured,
        "aim": format!("{:?}", args.aim).to_lowercase(),
        "max_p99_ns": args.p99.map(|t| t.0),
        "recommended": best,
        "curve": a.curve,
        "holds": a.outlooks.iter().map(hold).collect::<Vec<_>>(),
        "frontier": frontier,
    })
}

pub(super) fn table(args: &Recommend, a: &Answer) -> Table {
    let mut t = Table::default();
    let (best, none) = (&a.best, a.none());
    t.title(match best.hold_ns {
        0.0 => "Recommended hold: none".to_owned(),
        ns => format!("Recommended hold: {}", Duration(ns as u64)),
    });
    t.prose([reason(args, a)]);
    if let Some(price) = price(args, a) {
        t.prose([price]);
    }
    t.title("Without a hold, and with it");
    t.row(["", "without", "with"]);
    let both = |t: &mut Table, name: &str, f: &dyn Fn(&Outlook) -> String| t.row([name, &f(none), &f(best)]);
    both(&mut t, "SLF", &|o| format!("{:.3}", o.slf));
    both(&mut t, "a packet costs", &|o| with_error(o.packet_ns, o.packet_error_ns));
    both(&mut t, "a core can serve", &|o| per_second(o.capacity_pps));
    both(&mut t, "load", &|o| load(o.load));
    both(&mut t, "loss", &|o| loss(o.p_loss));
    both(&mut t, "mean latency", &|o| time(Some(o.mean_latency_ns)));
    both(&mut t, "99 of 100 packets within", &|o| time(Some(o.p99_latency_ns)));
    t.title("What this rests on");
    t.row(["packets in the trace", &count(a.packets)]);
    t.row(["they come at, by the mean gap", &per_second(a.trace_pps)]);
    t.row(["load is taken at", &per_second(a.offered_pps)]);
    t.row(["gaps between packets", &format!("{}, CV {:.2}", a.interarrival.name(), a.interarrival.cv())]);
    if let Some(told) = slot(a) {
        t.row(["times of the model", &told]);
    }
    let c = &a.costs;
    t.row(["a train costs (α)", &with_error(c.per_train_ns, c.per_train_error_ns)]);
    t.row(["each packet (β′)", &with_error(c.per_packet_ns, c.per_packet_error_ns)]);
    if let Some(told) = assumed(a) {
        t.row(["these costs are", told]);
    }
    let source = if a.measured { " (measured here)" } else { "" };
    t.row(["holding a packet", &format!("{:.0} ns{source}", c.per_held_packet_ns)]);
    t.title("Holds");
    t.row(["hold", "SLF", "ns a packet", "a full batch", "can serve", "loss", "mean latency", "p99", ""]);
    for o in &a.outlooks {
        t.row([
            Duration(o.hold_ns as u64).to_string(),
            format!("{:.3}", o.slf),
            format!("{:.0}", o.packet_ns),
            time(Some(o.batch_ns)),
            per_second(o.capacity_pps),
            loss(o.p_loss),
            time(Some(o.mean_latency_ns)),
            time(Some(o.p99_latency_ns)),
            if o.hold_ns == best.hold_ns { "recommended" } else { "" }.to_owned(),
        ]);
    }
    frontier::as_table(&mut t, &a.frontier);
    if a.packets as usize > a.frontier_packets {
        t.row(["of the first", &format!("{} packets with a flow", count(a.frontier_packets as u64))]);
    }
    t
}

/// A remark on slots that are longer than usual; with those that a packet takes less than, times say little.
fn slot(a: &Answer) -> Option<String> {
    let slot = time(Some(a.slot_ns));
    let packet_ns = a.costs.per_batch_ns + a.none().packet_ns;
    match a.slot_ns {
        short if short <= USUAL_SLOT_NS => None,
        long if long <= packet_ns => Some(format!("whole numbers of {slot} (--slot)")),
        _ => Some(format!("whole numbers of {slot} (--slot), longer than a packet takes: rough")),
    }
}

/// A remark on costs that no file has.
fn assumed(a: &Answer) -> Option<&'static str> {
    match a.costs_from {
        From::File => None,
        From::Here => Some("measured here"),
        From::Typical => Some("assumed: --costs has yours, --measure measures them"),
    }
}

pub(super) fn page(args: &Recommend, a: &Answer) -> Page {
    let best = &a.best;
    let mark = format!("recommended: {}", Duration(best.hold_ns as u64));
    let through = format!("99 of 100 packets are through within {}.", time(Some(best.p99_latency_ns)));
    let costs = assumed(a).map(|told| format!(" The costs of packets are {told}.")).unwrap_or_default();
    let (title, gain) = if best.hold_ns == 0.0 {
        let serves = per_second(best.capacity_pps);
        ("Don't hold packets".to_owned(), format!("A core can serve {serves}, and {through}"))
    } else {
        let [with, without] = [best, a.none()].map(|o| per_second(o.capacity_pps));
        let title = format!("Hold packets for {}", Duration(best.hold_ns as u64));
        (title, format!("A core can serve {with} instead of {without}, and {through}"))
    };
    let verdict = format!("{} {gain} {}{costs}", reason(args, a), price(args, a).unwrap_or_default());
    let mut page = Page::new(&title, &verdict);
    figures(&mut page, a, &mark);
    frontier(&mut page, a, &mark);
    page.figures_of(&table(args, a));
    page
}

/// Draws the outlook by hold; `mark` names the hold that is recommended.
fn figures(page: &mut Page, a: &Answer, mark: &str) {
    let line = |name: &str, f: &dyn Fn(&Outlook) -> f64| {
        (name.to_owned(), a.outlooks.iter().map(|o| (o.hold_ns / 1e3, f(o))).collect::<Vec<_>>())
    };
    let curves = |y: &'static str, lines: Vec<(String, Vec<(f64, f64)>)>| {
        Curves::from(lines).named("hold, µs", y).marked(a.best.hold_ns / 1e3, mark)
    };
    page.figure(
        "slf",
        "Locality",
        "Packets of a flow back to back behind the reframer.",
        curves("SLF", vec![line("SLF", &|o| o.slf)]),
    );
    page.figure(
        "cost",
        "Cost",
        "What a packet costs, holding included.",
        curves("ns a packet", vec![line("predicted", &|o| o.packet_ns)]),
    );
    page.figure(
        "capacity",
        "Throughput",
        "What a core can serve, and what it serves at this load.",
        curves(
            "Mpps",
            vec![line("can serve", &|o| o.capacity_pps / 1e6), line("serves", &|o| o.throughput_pps / 1e6)],
        ),
    );
    page.figure(
        "loss",
        "Loss",
        "The share of packets that find the queue full at this load; where an axis begins at 0, a point there stands for \
         less than 1e-9.",
        curves("share lost", vec![line("lost", &|o| o.p_loss)]).log(),
    );
    page.figure(
        "latency",
        "Latency",
        "From arrival to the end of service, holding included.",
        curves(
            "µs",
            vec![
                line("mean", &|o| o.mean_latency_ns / 1e3),
                line("99 of 100 packets", &|o| o.p99_latency_ns / 1e3),
            ],
        )
        .log(),
    );
}

/// Draws the delay that trains cost.
fn frontier(page: &mut Page, a: &Answer, mark: &str) {
    let points = |of: &[Point]| {
        let mut points: Vec<_> = of
            .iter()
            .filter(|p| p.mean_delay_ns >= 100.0)
            .map(|p| (p.mean_train, p.mean_delay_ns / 1e3))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let fixed: Vec<_> = a.frontier.holds.iter().map(|b| b.fixed).collect();
    let mut curves = Curves::from(vec![
        ("fixed hold".to_owned(), points(&fixed)),
        ("adaptive hold".to_owned(), points(&a.frontier.adaptive)),
        ("future known".to_owned(), points(&a.frontier.clairvoyant)),
    ])
    .named("packets a train, mean", "mean delay, µs")
    .log();
    if let Some(held) = fixed.iter().find(|p| p.hold_ns == a.best.hold_ns as u64) {
        curves = curves.marked(held.mean_train, mark);
    }
    page.figure(
        "frontier",
        "What trains cost",
        "Mean train against mean added delay: the lower a line, the less delay packets pay for trains of that length. A \
         fixed hold waits for every train alike; the adaptive one stops where the next packet is not worth its delay any \
         more; nothing can be below what knowing the future would give.",
        curves,
    );
}

#[cfg(test)]
mod tests {
    use super::load;

    #[test]
    fn loads_are_plain_decimals() {
        let loads = [12.0, 1.2, 0.512_34, 0.051_34, 0.000_123_4, 1.234e-9].map(load);
        assert_eq!(loads, ["12.000", "1.200", "0.512", "0.0513", "0.000123", "0.00000000123"]);
    }

    /// Of a trace whose packets come once in days no digit of a plain decimal would say anything.
    #[test]
    fn the_least_loads_have_an_exponent() {
        assert_eq!([4e-13, 9.876e-10].map(load), ["4.00e-13", "9.88e-10"]);
    }
}
