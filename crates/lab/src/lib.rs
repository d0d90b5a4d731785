//! The papers' experiments: each lab measures what some figures of a paper show, and puts every claim of the
//! paper beside what came out, with a verdict and the criterion for it.
//!
//! A lab is one module: a function that measures and returns [`Findings`], and its line in [`LABS`]. Labs
//! drive the engine's own data path, the sketches and the queueing model; they draw with `slipstream-report`
//! and know nothing of the command line. [`Lab::measure`] runs one, [`Results`] gives JSON, a table and a
//! page of HTML, [`Collection`] does for several labs. Points that the authors published are drawn beside
//! ours; they stand in `src/paper`, with their sources.
//!
//! All that an experiment is built of may fail in its own way, and nobody but the reader of the message can
//! do anything about it: [`Error::Failed`] has it all.
//!
//! Read [`Lab`] and [`LABS`] first, then `hold`, the shortest experiment. There is no feature; it needs Rust
//! 1.95.

#![forbid(unsafe_code)]

mod ablation;
mod adaptive;
mod bench;
mod chain;
mod claim;
mod collection;
mod figure;
pub mod frontier;
mod gro;
mod hold;
mod live;
mod measure;
mod model;
mod nf_locality;
mod page;
mod paper;
mod random;
mod results;
mod slice;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value, json};
use slipstream_report::Table;

use claim::Claim;
pub use collection::Collection;
use figure::{Chart, Curve, Figure, Plot, Scale};
use paper::Paper;
pub use results::Results;

/// An experiment, and the figures that it reproduces.
pub struct Lab {
    /// Its name on the command line.
    pub name: &'static str,
    /// Paper and figures.
    pub source: &'static str,
    /// Its subject, in one line.
    pub what: &'static str,
    /// The reason why it is left out where all labs are run: what it needs beyond this machine's processor.
    pub needs: Option<&'static str>,
    /// Measures. The errors are those of the measurement itself; a claim that doesn't hold is no error.
    run: fn(&Bench<'_>) -> anyhow::Result<Findings>,
}

impl fmt::Debug for Lab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lab").field("name", &self.name).finish_non_exhaustive()
    }
}

/// All labs, in the order of the list.
pub static LABS: [Lab; 9] = [
    nf_locality::LAB,
    chain::LAB,
    hold::LAB,
    adaptive::LAB,
    gro::LAB,
    measure::LAB,
    model::LAB,
    slice::LAB,
    live::LAB,
];

/// A reason for which a lab gives no results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No lab has this name.
    #[error("there is no lab {name:?}; there are: {}", names())]
    Unknown {
        /// The name that was asked for.
        name: String,
    },
    /// [`Bench::interrupted`] was set.
    #[error("interrupted")]
    Interrupted,
    /// The experiment could not be made: a stage can't be built, a process can't be started, a disk is full.
    #[error(transparent)]
    Failed(anyhow::Error),
}

fn names() -> String {
    LABS.iter().map(|lab| lab.name).collect::<Vec<_>>().join(", ")
}

/// The error that ends the steps of an experiment which the user interrupts.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
struct Interrupted;

/// The conditions under which a lab is run.
pub struct Bench<'a> {
    /// Inputs small enough to end within a minute.
    pub quick: bool,
    /// The `slipstream` binary. Some labs start it as a process of its own: for functions behind shared
    /// memory, and for a point that Callgrind counts.
    pub program: PathBuf,
    /// Is called after each step, with the share of the work that is done, 0 to 1.
    pub progress: &'a dyn Fn(f64),
    /// Is set to true by whoever wants the lab to end at its next step.
    pub interrupted: &'a AtomicBool,
}

impl fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quick, program, progress: _, interrupted } = self;
        f.debug_struct("Bench")
            .field("quick", quick)
            .field("program", program)
            .field("interrupted", interrupted)
            .finish_non_exhaustive()
    }
}

impl Bench<'_> {
    /// Ends a step, after which `share` of the work is done.
    ///
    /// # Errors
    /// When the user interrupted.
    fn step(&self, share: f64) -> anyhow::Result<()> {
        (self.progress)(share);
        self.check()
    }

    /// Ends a step of work whose length is not known.
    ///
    /// # Errors
    /// When the user interrupted.
    fn check(&self) -> anyhow::Result<()> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        Ok(())
    }
}

/// The measurements of a lab.
#[derive(Debug, Default)]
struct Findings {
    /// The points of the figures, one object each.
    rows: Vec<Map<String, Value>>,
    /// The paper's claims, each with the measurement beside it.
    claims: Vec<Claim>,
    /// The figures to draw.
    figures: Vec<Figure>,
}

impl Findings {
    /// Adds a point: `json!({ … })`, which has a name for each of its figures.
    fn row(&mut self, point: Value) {
        debug_assert!(point.is_object(), "{point}");
        if let Value::Object(row) = point {
            self.rows.push(row);
        }
    }

    /// Adds a figure, if it shows anything of ours: what this machine can't measure has no axes either.
    fn draw(&mut self, figure: impl Into<Figure>) {
        let figure = figure.into();
        if figure.has_ours() {
            self.figures.push(figure);
        }
    }
}

impl Lab {
    /// The lab of this name.
    ///
    /// # Errors
    /// [`Error::Unknown`], which lists the names that there are.
    pub fn find(name: &str) -> Result<&'static Self, Error> {
        LABS.iter().find(|lab| lab.name == name).ok_or_else(|| Error::Unknown { name: name.to_owned() })
    }

    /// Runs the experiment. It takes about a minute where [`Bench::quick`] is set, else several.
    ///
    /// # Errors
    /// [`Error::Interrupted`] and [`Error::Failed`]. A claim that doesn't hold is no error.
    pub fn measure(&'static self, bench: &Bench<'_>) -> Result<Results, Error> {
        match (self.run)(bench) {
            Ok(findings) => Ok(Results { lab: self, quick: bench.quick, findings }),
            Err(error) if error.is::<Interrupted>() => Err(Error::Interrupted),
            Err(error) => Err(Error::Failed(error)),
        }
    }
}

/// The list of labs, for programs.
#[must_use]
pub fn list_json() -> Value {
    let one = |l: &Lab| json!({ "name": l.name, "source": l.source, "what": l.what });
    json!({ "schema": 1, "labs": LABS.iter().map(one).collect::<Vec<_>>() })
}

/// The list of labs, for people.
#[must_use]
pub fn list_table() -> Table {
    let mut t = Table::default();
    t.title("Labs (slipstream lab NAME)");
    for lab in &LABS {
        t.prose([lab.name, lab.what, lab.source]);
    }
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_labs() {
        for lab in &LABS {
            assert_eq!(Lab::find(lab.name).unwrap().source, lab.source);
        }
        let error = Lab::find("nope").unwrap_err().to_string();
        assert!(error.contains("no lab \"nope\"") && error.ends_with("model, slice, live"), "{error}");
    }

    #[test]
    fn an_interrupt_ends_a_lab_and_is_told_from_failures() {
        static STEPS: Lab = Lab {
            name: "steps",
            source: "",
            what: "",
            needs: None,
            run: |bench| {
                bench.step(0.5)?;
                anyhow::bail!("the second step failed")
            },
        };
        for (interrupted, text) in [(true, "interrupted"), (false, "the second step failed")] {
            let interrupted = AtomicBool::new(interrupted);
            let shares = std::cell::Cell::new(0.0);
            let bench = Bench {
                quick: true,
                program: PathBuf::new(),
                progress: &|share| shares.set(share),
                interrupted: &interrupted,
            };
            let error = STEPS.measure(&bench).unwrap_err();
            assert_eq!(error.to_string(), text);
            assert_eq!(matches!(error, Error::Interrupted), text == "interrupted");
            assert!((shares.get() - 0.5).abs() < 1e-9);
        }
    }
}
