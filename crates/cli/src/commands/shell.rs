//! `completions` and `man`.

use std::io::{self, Write};

use anyhow::bail;
use clap::CommandFactory;
use clap_complete::Shell;

use super::Outcome;
use crate::cli::Cli;

pub(super) fn completions(shell: Shell) -> anyhow::Result<Outcome> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "slipstream", &mut text);
    io::stdout().write_all(&text)?;
    Ok(Outcome::Done)
}

pub(super) fn man(verb: Option<&str>) -> anyhow::Result<Outcome> {
    let mut command = Cli::command();
    command.build();
    let command = match verb {
        None => command,
        Some(name) => match command.find_subcommand(name) {
            Some(found) => found.clone(),
            None => bail!("there is no verb {name:?}; `slipstream --help` lists them"),
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text)?;
    io::stdout().write_all(&text)?;
    Ok(Outcome::Done)
}
