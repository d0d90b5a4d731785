//! Points that the papers' authors published, to be drawn beside ours: small CSV files, each of which says
//! where its numbers are from. No other number of a paper is drawn.

use anyhow::{Context, bail};

use crate::figure::Mark;

/// A file of points.
struct Points {
    /// The source, as a caption says it.
    source: &'static str,
    text: &'static str,
}

/// A paper whose points there are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Paper {
    /// Packet Order Matters! (NSDI'22).
    Reframer,
    /// Accelerating Network Measurement in Software (CCR'18).
    AggEvict,
    /// NFSlicer.
    Nfslicer,
}

impl Paper {
    fn points(self) -> Points {
        match self {
            Self::Reframer => Points {
                source: "the authors' data (github.com/hamidgh09/Reframer, MIT)",
                text: include_str!("paper/reframer.csv"),
            },
            Self::AggEvict => {
                Points { source: "numbers in the paper's text", text: include_str!("paper/agg_evict.csv") }
            }
            Self::Nfslicer => {
                Points { source: "numbers in the paper's text", text: include_str!("paper/nfslicer.csv") }
            }
        }
    }

    /// The sentence of a caption that says where the paper's points are from.
    pub(crate) fn caption(self) -> String {
        format!("Paper's points: {}.", self.points().source)
    }

    /// The points of a series of a figure, in ascending order of x.
    ///
    /// # Errors
    /// The file has no such points.
    pub(crate) fn series(self, figure: &str, series: &str) -> anyhow::Result<Vec<Mark>> {
        let all = parse(self.points().text)?;
        let these = |p: &Point| p.figure == figure && p.series == series;
        let mut marks: Vec<Mark> = all.into_iter().filter(these).map(|p| p.mark).collect();
        if marks.is_empty() {
            bail!("{self:?} has no points of figure {figure}, series {series}");
        }
        marks.sort_by(|a, b| a.x.total_cmp(&b.x));
        Ok(marks)
    }

    /// The points of a series over those of another one at the same x.
    ///
    /// # Errors
    /// The file has no such points.
    pub(crate) fn over(self, figure: &str, series: &str, other: &str) -> anyhow::Result<Vec<Mark>> {
        let base = self.series(figure, other)?;
        let of = |mark: Mark| {
            let at = base.iter().find(|b| b.x.total_cmp(&mark.x).is_eq())?;
            Some(mark.over(at.y))
        };
        Ok(self.series(figure, series)?.into_iter().filter_map(of).collect())
    }
}

/// A line of a file.
#[derive(Debug, PartialEq)]
struct Point<'a> {
    figure: &'a str,
    series: &'a str,
    mark: Mark,
}

const HEAD: &str = "figure,series,x,y,low,high";

/// The points of a file: comments after `#`, a head, then a point a line; its range may be left out.
fn parse(text: &str) -> anyhow::Result<Vec<Point<'_>>> {
    let mut lines = text.lines().zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    if lines.next().map(|(line, _)| line) != Some(HEAD) {
        bail!("points begin with the line {HEAD:?}");
    }
    lines.map(|(line, n)| point(line).with_context(|| format!("line {n}: {line:?}"))).collect()
}

fn point(line: &str) -> anyhow::Result<Point<'_>> {
    let fields: Vec<&str> = line.split(',').collect();
    let [figure, series, x, y, low, high] = fields.as_slice() else {
        bail!("{} fields, not those of {HEAD:?}", fields.len());
    };
    let number = |text: &str| {
        let number = text.parse::<f64>().ok().filter(|n| n.is_finite());
        number.with_context(|| format!("{text:?} is no number"))
    };
    let range = match (*low, *high) {
        ("", "") => None,
        (low, high) => Some((number(low)?, number(high)?)),
    };
    Ok(Point { figure, series, mark: Mark { x: number(x)?, y: number(y)?, range } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_read_with_their_ranges() {
        let text = format!("# a source\n{HEAD}\n\n4b,nat,1,1427.41,1425,1429\n2b,source,8192,2.23,,\n");
        let nat = Mark { x: 1.0, y: 1427.41, range: Some((1425.0, 1429.0)) };
        let source = Mark { x: 8192.0, y: 2.23, range: None };
        assert_eq!(
            parse(&text).unwrap(),
            [
                Point { figure: "4b", series: "nat", mark: nat },
                Point { figure: "2b", series: "source", mark: source }
            ]
        );
    }

    #[test]
    fn a_damaged_line_is_named() {
        for (line, why) in [
            ("4b,nat,1,2", "4 fields"),
            ("4b,nat,one,2,,", "\"one\" is no number"),
            ("4b,nat,1,inf,,", "\"inf\" is no number"),
            ("4b,nat,1,2,3,", "\"\" is no number"),
        ] {
            let error = format!("{:#}", parse(&format!("{HEAD}\n{line}")).unwrap_err());
            assert!(error.contains("line 2") && error.contains(why), "{error}");
        }
        assert!(parse("4b,nat,1,2,,\n").unwrap_err().to_string().contains("begin with the line"));
    }

    /// Numbers that the papers' texts print for the same figures.
    #[test]
    fn the_files_are_whole_and_agree_with_the_texts() {
        for (paper, points) in [(Paper::Reframer, 484), (Paper::AggEvict, 3), (Paper::Nfslicer, 11)] {
            assert_eq!(parse(paper.points().text).unwrap().len(), points, "{paper:?}");
            assert!(paper.points().text.starts_with("# "), "{paper:?} says where its numbers are from");
        }
        let at = |marks: Vec<Mark>, x: f64| marks.iter().find(|m| (m.x - x).abs() < 1e-9).unwrap().y.round();
        let of = |figure, series| Paper::Reframer.series(figure, series).unwrap();
        assert_eq!((at(of("12a", "baseline"), 30.0), at(of("12a", "reframer 64us"), 30.0)), (6527.0, 3481.0));
        assert_eq!(at(of("14b", "reframer"), 1.0), 29.0);
        let gain = Paper::Reframer.over("15b", "reframer in-chain", "baseline").unwrap();
        let at_64 = gain.iter().find(|m| (m.x - 64.0).abs() < 1e-9).unwrap();
        assert!((at_64.y - 1.6).abs() < 0.01, "+60 % in the text, {at_64:?} here");
        assert!(Paper::Reframer.series("4b", "router").is_err());
    }
}
