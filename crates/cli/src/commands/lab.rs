//! `slipstream lab`: figures of the papers, reproduced, each beside what the paper says.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use slipstream_lab::{Bench, Collection, Error, Lab, Results};

use super::{Outcome, checked};
use crate::check::{self, Check};
use crate::cli;
use crate::replace::Replacement;
use crate::ui::{self, Progress};

pub(super) fn run(args: &cli::Lab) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.fail_if)?;
    match args.names.as_slice() {
        [] if !args.all => list(args.format),
        [name] => one(Lab::find(name)?, args, &checks),
        names => several(names, args, &checks),
    }
}

/// Runs one lab, whose report is a file.
fn one(lab: &'static Lab, args: &cli::Lab, checks: &[Check]) -> anyhow::Result<Outcome> {
    let file = args.report.as_deref().map(|p| Replacement::create("--report", p)).transpose()?;
    let results = measure(lab, args.quick)?;
    let result = results.json();
    // The result is shown in any case.
    let written = file.map_or(Ok(()), |file| file.commit_with(results.html()?.as_bytes()));
    match args.format {
        cli::Format::Json => ui::print(serde_json::to_string_pretty(&result)?)?,
        cli::Format::Table => ui::print(results.table().render(ui::columns()))?,
    }
    written?;
    checked(checks, &result)
}

/// Runs the labs of these names, or all, whose report is a folder. One that fails keeps no other from being
/// run and shown.
fn several(names: &[String], args: &cli::Lab, checks: &[Check]) -> anyhow::Result<Outcome> {
    let labs = if args.all { Collection::labs().collect() } else { named(names)? };
    let site = args.report.as_deref().map(Site::begin).transpose()?;
    let (mut all, mut written) = (Collection::new(args.quick, args.all), Ok(()));
    for lab in labs {
        let outcome = match measure(lab, args.quick) {
            Err(error) if ui::is_interrupt(&error) => return Err(error),
            Err(error) => {
                let error = ui::in_words(&error);
                ui::complain(&format!("lab {}: {error}", lab.name));
                Err(error)
            }
            Ok(results) => {
                // The result is shown in any case, and so are those that others will have.
                written = written.and_then(|()| site.as_ref().map_or(Ok(()), |site| site.add(&results)));
                Ok(results)
            }
        };
        all.add(lab, outcome);
    }
    written = written.and_then(|()| site.map_or(Ok(()), |site| site.finish(&all)));
    let result = all.json();
    match args.format {
        cli::Format::Json => ui::print(serde_json::to_string_pretty(&result)?)?,
        cli::Format::Table => {
            let tables: Vec<String> = all.tables().iter().map(|t| t.render(ui::columns())).collect();
            ui::print(tables.join("\n\n"))?;
        }
    }
    written?;
    let failed = all.failed();
    if !failed.is_empty() {
        return Ok(Outcome::CheckFailed(format!("labs that failed: {}", failed.join(", "))));
    }
    checked(checks, &result)
}

fn named(names: &[String]) -> anyhow::Result<Vec<&'static Lab>> {
    let labs: Vec<&'static Lab> = names.iter().map(|name| Lab::find(name)).collect::<Result<_, _>>()?;
    let twice = labs.iter().enumerate().find(|(i, lab)| labs.iter().take(*i).any(|l| l.name == lab.name));
    if let Some((_, lab)) = twice {
        bail!("lab {} is named twice; name each once", lab.name);
    }
    Ok(labs)
}

/// The report of several labs: a folder of pages, of which every file is whole or not there.
struct Site {
    folder: PathBuf,
    /// The index, which is there once all pages are.
    index: Replacement,
}

impl Site {
    /// Makes the folder if there is none, and finds out whether it can be written to. What is in it stays,
    /// but for files of the same names.
    fn begin(folder: &Path) -> anyhow::Result<Self> {
        let shown = folder.display();
        if folder.as_os_str() == "-" {
            bail!("--report -: stdout is taken by the result; name a folder");
        }
        if folder.exists() && !folder.is_dir() {
            bail!("--report {shown}: is no folder; the pages of several labs need one");
        }
        fs::create_dir_all(folder).with_context(|| format!("--report {shown}: this folder can't be made"))?;
        let index = Replacement::create("--report", &folder.join("index.html"))?;
        Ok(Self { folder: folder.to_owned(), index })
    }

    /// Writes a lab's page and figures.
    fn add(&self, results: &Results) -> anyhow::Result<()> {
        let mut written = Vec::new();
        for (name, text) in results.files()? {
            let mut file = Replacement::create("--report", &self.folder.join(name))?;
            file.write_all(text.as_bytes())?;
            written.push(file);
        }
        Replacement::commit_all(written)
    }

    fn finish(self, all: &Collection) -> anyhow::Result<()> {
        self.index.commit_with(all.index()?.as_bytes())
    }
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
