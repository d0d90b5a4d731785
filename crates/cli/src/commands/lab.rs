//! `slipstream lab`: figures of the papers, reproduced, each beside what the paper says.

use std::io::Write;

use slipstream_lab::{Bench, Error, Lab, Results};

use super::Outcome;
use crate::check;
use crate::cli;
use crate::replace::Replacement;
use crate::ui::{self, Progress};

pub(super) fn run(args: &cli::Lab) -> anyhow::Result<Outcome> {
    let Some(name) = &args.name else { return list(args.format) };
    let lab = Lab::find(name)?;
    let checks = check::parse_all(&args.fail_if)?;
    let file = args.report.as_deref().map(|p| Replacement::create("--report", p)).transpose()?;
    let results = measure(lab, args.quick)?;
    let result = results.json();
    if let Some(mut file) = file {
        file.write_all(results.html()?.as_bytes())?;
        file.commit()?;
    }
    match args.format {
        cli::Format::Json => ui::print(serde_json::to_string_pretty(&result)?)?,
        cli::Format::Table => ui::print(results.table().render(ui::columns()))?,
    }
    Ok(match check::failed(&checks, &result)? {
        Some(what) => Outcome::CheckFailed(what),
        None => Outcome::Done,
    })
}

/// Runs a lab, with a bar that says how far it is.
pub(super) fn measure(lab: &'static Lab, quick: bool) -> anyhow::Result<Results> {
    let (progress, interrupted) = (Progress::new(lab.name), ui::interrupts()?);
    let bench = Bench {
        quick,
        program: std::env::current_exe()?,
        progress: &|share| progress.at(Some(share)),
        interrupted: &interrupted,
    };
    lab.measure(&bench).map_err(|error| match error {
        Error::Interrupted => ui::Interrupted.into(),
        Error::Failed(cause) => cause,
        other => other.into(),
    })
}

/// Prints the list of labs.
fn list(format: cli::Format) -> anyhow::Result<Outcome> {
    match format {
        cli::Format::Json => ui::print(serde_json::to_string_pretty(&slipstream_lab::list_json())?)?,
        cli::Format::Table => ui::print(slipstream_lab::list_table().render(ui::columns()))?,
    }
    Ok(Outcome::Done)
}
