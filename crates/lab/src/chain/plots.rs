//! The chain's figures with the paper's points in them (Figs. 12a, 14, 15, and the locality of §5.1).

use serde_json::{Map, Value};

use super::{Arrangement, HOLDS};
use crate::{Curve, Findings, Paper, Plot, Scale};

/// A number of a row.
fn number(row: &Map<String, Value>, key: &str) -> Option<f64> {
    row.get(key).and_then(Value::as_f64)
}

/// Two numbers of every row of an arrangement with the mixed rules.
fn points(findings: &Findings, arrangement: Arrangement, [x, y]: [&str; 2]) -> Vec<(f64, f64)> {
    let is = |row: &&Map<String, Value>| {
        let text = |key: &str| row.get(key).and_then(Value::as_str);
        let hold = row.get("hold_ns").and_then(Value::as_u64);
        text("rules") == Some(super::MIXED)
            && text("way") == Some(arrangement.name())
            && hold == arrangement.hold()
    };
    findings.rows.iter().filter(is).filter_map(|row| Some((number(row, x)?, number(row, y)?))).collect()
}

/// Fig. 12a, and the locality behind the reframer: by load.
pub(super) fn by_load(findings: &mut Findings) -> anyhow::Result<()> {
    let (mut cost, mut slf) = (Vec::new(), Vec::new());
    for hold in HOLDS {
        let (name, series) = (format!("{} us", hold / 1000), format!("reframer {}us", hold / 1000));
        let front = Arrangement::FrontPackets(hold);
        let gains = points(findings, front, ["copies", "gain_median"]);
        cost.push(Curve::ours(&name, gains.into_iter().map(|(x, gain)| (x, 1.0 / gain))));
        cost.push(Curve::paper(&name, Paper::Reframer.over("12a", &series, "baseline")?));
        slf.push(Curve::ours(&name, points(findings, front, ["copies", "slf"])));
        slf.push(Curve::paper(&name, Paper::Reframer.series("5.1 slf", &series)?));
    }
    slf.insert(0, Curve::ours("baseline", points(findings, Arrangement::Baseline, ["copies", "slf"])));
    slf.insert(1, Curve::paper("baseline", Paper::Reframer.series("5.1 slf", "baseline")?));
    findings.draw(Plot {
        title: "Fig. 12a: cost of a packet behind a reframer, over the baseline's, by load".into(),
        caption: format!(
            "The reframer stands in front, its own cost is not counted, and functions decide for every packet. \
             Paper: useful cycles by parallel segments of a trace; ours: time by copies of synthetic campus \
             traffic. {}",
            Paper::Reframer.caption()
        ),
        x: Scale::linear("segments of the trace, or campuses"),
        y: Scale::linear("over the baseline"),
        curves: cost,
    });
    findings.draw(Plot {
        title: "Locality behind the reframer, by load (§5.1)".into(),
        caption: format!(
            "Packets a run of one flow, of the paper's trace and of synthetic campus traffic. {}",
            Paper::Reframer.caption()
        ),
        x: Scale::linear("segments of the trace, or campuses"),
        y: Scale::linear("SLF"),
        curves: slf,
    });
    Ok(())
}

/// Figs. 15a and 15b: a reframer in the chain by its hold, at eight campuses.
pub(super) fn by_hold(findings: &mut Findings) -> anyhow::Result<()> {
    let measured = HOLDS.into_iter().flat_map(|hold| {
        let gains = points(findings, Arrangement::InChain(hold), ["copies", "gain_median"]);
        let at_8 = gains.into_iter().find(|(copies, _)| *copies == 8.0);
        at_8.map(|(_, gain)| (hold as f64 / 1e3, gain))
    });
    let gains: Vec<(f64, f64)> = measured.collect();
    let caption = |what: &str| {
        format!(
            "The reframer's own cost is counted. Paper: {what}, functions decide for every packet; ours: time of \
             eight campuses, functions decide for every train. {}",
            Paper::Reframer.caption()
        )
    };
    let costs = gains.iter().map(|(hold, gain)| (*hold, 1.0 / gain));
    findings.draw(Plot {
        title: "Fig. 15a: cost of a packet with a reframer in the chain, over the baseline's".into(),
        caption: caption("useful cycles"),
        x: Scale::linear("hold, µs"),
        y: Scale::linear("over the baseline"),
        curves: vec![
            Curve::ours("", costs),
            Curve::paper("", Paper::Reframer.over("15a", "reframer in-chain", "baseline")?),
        ],
    });
    findings.draw(Plot {
        title: "Fig. 15b: throughput with a reframer in the chain, over the baseline's".into(),
        caption: caption("Gbit/s"),
        x: Scale::linear("hold, µs"),
        y: Scale::linear("over the baseline"),
        curves: vec![
            Curve::ours("", gains),
            Curve::paper("", Paper::Reframer.over("15b", "reframer in-chain", "baseline")?),
        ],
    });
    Ok(())
}

/// Figs. 14a and 14b: throughput by number of workers, over that of one.
pub(super) fn by_workers(findings: &mut Findings) -> anyhow::Result<()> {
    let scaling = |arrangement: Arrangement| {
        let is =
            |row: &&Map<String, Value>| row.get("way").and_then(Value::as_str) == Some(arrangement.name());
        let point = |row| Some((number(row, "workers")?, number(row, "scaling")?));
        findings.rows.iter().filter(is).filter_map(point).collect::<Vec<_>>()
    };
    let [baseline, inside, alone] =
        [Arrangement::Baseline, Arrangement::InChain(128_000), Arrangement::Alone(128_000)].map(scaling);
    let paper = |figure: &str, series: &str| Paper::Reframer.series(figure, series);
    let plot = |title: &str, caption: &str, curves| Plot {
        title: title.into(),
        caption: format!("{caption} {}", Paper::Reframer.caption()),
        x: Scale::linear("cores"),
        y: Scale::linear("over one core"),
        curves,
    };
    let chain = plot(
        "Fig. 14a: throughput of the chain by cores, over one core",
        "Each core has its share of the flows. The paper's reframer is a machine in front, ours is in the chain.",
        vec![
            Curve::ours("baseline", baseline),
            Curve::ours("reframer 128 us", inside),
            Curve::paper("baseline", paper("14a", "baseline")?).over_first(),
            Curve::paper("reframer 128 us", paper("14a", "reframer 128us")?).over_first(),
        ],
    );
    let reframer = plot(
        "Fig. 14b: throughput of a reframer by cores, over one core",
        "The reframer alone, 128 us; each core has its share of the flows.",
        vec![Curve::ours("", alone), Curve::paper("", paper("14b", "reframer")?).over_first()],
    );
    findings.draw(chain);
    findings.draw(reframer);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Each figure has the points of its rows, beside the paper's.
    #[test]
    fn figures_are_drawn_from_the_rows() {
        let mut findings = Findings::default();
        let mut row = |value: Value| findings.row(value);
        for (way, hold, slf, gain) in [
            (Arrangement::Baseline, None, 1.25, 1.0),
            (Arrangement::FrontPackets(64_000), Some(64_000), 2.875, 1.6),
            (Arrangement::InChain(64_000), Some(64_000), 2.875, 1.25),
        ] {
            row(
                json!({ "rules": "10k mixed", "copies": 8, "way": way.name(), "hold_ns": hold, "slf": slf, "gain_median": gain }),
            );
            row(
                json!({ "rules": "10k hosts", "copies": 8, "way": way.name(), "hold_ns": hold, "slf": 9.0, "gain_median": 9.0 }),
            );
        }
        row(json!({ "workers": 2, "way": Arrangement::Alone(128_000).name(), "scaling": 1.875 }));
        row(json!({ "workers": 2, "way": Arrangement::Baseline.name(), "scaling": 1.5 }));
        by_load(&mut findings).unwrap();
        by_hold(&mut findings).unwrap();
        by_workers(&mut findings).unwrap();
        let csv: Vec<String> = findings.figures.iter().map(crate::Figure::csv).collect();
        for (figure, line) in [
            (0, "64 us,ours,8,0.625,,"),
            (1, "64 us,ours,8,2.875,,"),
            (1, "baseline,ours,8,1.25,,"),
            (2, ",ours,64,0.8,,"),
            (3, ",ours,64,1.25,,"),
            (4, "baseline,paper,1,1,,"),
            (5, ",ours,2,1.875,,"),
        ] {
            assert!(csv[figure].lines().any(|l| l == line), "figure {figure}, {line}: {}", csv[figure]);
        }
        assert!(csv.iter().all(|csv| csv.contains("paper") && !csv.contains("ours,8,9,")), "{csv:?}");
    }
}
