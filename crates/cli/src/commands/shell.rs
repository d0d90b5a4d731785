//! `completions` and `man`.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use super::Outcome;
use crate::cli::{self, Cli};
use crate::{types, ui};

pub(super) fn completions(shell: Shell) -> anyhow::Result<Outcome> {
    // Names that parsing leaves to the verbs, which say what there is instead of a wrong one.
    let labs = PossibleValuesParser::new(slipstream_lab::LABS.iter().map(|lab| lab.name));
    let types = PossibleValuesParser::new(types::registry().types().iter().map(|kind| kind.name));
    let mut command = Cli::command()
        .mut_subcommand("lab", |lab| lab.mut_arg("names", |name| name.value_parser(labs)))
        .mut_subcommand("list", |list| list.mut_arg("types", |names| names.value_parser(types)));
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "slipstream", &mut text);
    ui::write_out(&text)?;
    Ok(Outcome::Done)
}

pub(super) fn man(args: &cli::Man) -> anyhow::Result<Outcome> {
    // Pages name those of their verbs; `help` has none, as `--help` of a verb says it all.
    let mut command = without_help(Cli::command());
    command.build();
    if let Some(folder) = &args.into {
        if !folder.exists() {
            bail!("--into: there is no folder {}; make it first", folder.display());
        }
        pages(&command, folder)?;
        return Ok(Outcome::Done);
    }
    let mut of = &command;
    for (n, word) in args.verbs.iter().enumerate() {
        let Some(found) = of.find_subcommand(word) else {
            let verbs = args.verbs.get(..=n).unwrap_or_default().join(" ");
            bail!(
                "there is no verb {verbs:?}; `{} --help` lists them",
                of.get_bin_name().unwrap_or("slipstream")
            );
        };
        of = found;
    }
    let mut text = Vec::new();
    Man::new(of.clone()).render(&mut text)?;
    ui::write_out(&text)?;
    Ok(Outcome::Done)
}

fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

/// Writes the pages of a command and of its verbs.
fn pages(command: &Command, folder: &Path) -> anyhow::Result<()> {
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    let file = folder.join(page.get_filename());
    fs::write(&file, text).with_context(|| format!("--into: {}", file.display()))?;
    command.get_subcommands().filter(|verb| !verb.is_hide_set()).try_for_each(|verb| pages(verb, folder))
}
