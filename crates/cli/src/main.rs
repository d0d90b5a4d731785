//! The `slipstream` command: one file per verb under `commands`.
//!
//! Results go to stdout, everything else to stderr. Exit 0: done; 1: done, but a check that the user asked
//! for (`--fail-if`) failed; 2: usage, configuration or input/output error; 130: interrupted.

#![cfg_attr(not(feature = "dpdk"), forbid(unsafe_code))]
#![deny(unsafe_code)]

mod check;
mod cli;
mod commands;
mod connections;
mod counters;
mod live;
mod log;
mod losses;
mod metrics;
mod operate;
mod port;
mod replace;
mod report;
mod selection;
mod traces;
mod types;
mod ui;
mod units;
mod watch;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

fn main() -> ExitCode {
    ui::outlive_file_limit();
    let cli = match parse() {
        Ok(Ok(cli)) => cli,
        Ok(Err(asked)) => return tell(&asked),
        Err(error) => {
            let interrupted = ui::is_interrupt(&error);
            ui::complain(&ui::in_words(&error));
            return ExitCode::from(if interrupted { ui::INTERRUPTED } else { 2 });
        }
    };
    log::to_stderr(cli.verbose, cli.log_level, cli.log_format);
    let since = slipstream::clock::now();
    let ended = commands::run(cli);
    // A run that an error ended has left this to others.
    types::close();
    tracing::info!("{}", ui::effort(since.elapsed()));
    let status = match ended {
        Ok(commands::Outcome::Done) => ExitCode::SUCCESS,
        Ok(commands::Outcome::Interrupted) => {
            ui::complain("interrupted: this is what was done until then");
            ExitCode::from(ui::INTERRUPTED)
        }
        Ok(commands::Outcome::CheckFailed(what)) => {
            ui::complain(&what);
            ExitCode::from(1)
        }
        Err(error) if ui::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if ui::is_interrupt(&error) => {
            ui::complain("interrupted");
            ExitCode::from(ui::INTERRUPTED)
        }
        Err(error) => {
            ui::complain(&ui::in_words(&error));
            ExitCode::from(2)
        }
    };
    log::drain();
    status
}

/// The command line. Rules that an option has in a file, `@FILE`, are read with it.
fn parse() -> anyhow::Result<Result<cli::Cli, clap::Error>> {
    let names_file = std::env::args_os().any(|word| word.as_encoded_bytes().contains(&b'@'));
    if names_file { ui::reading(|| anyhow::Ok(cli::Cli::try_parse())) } else { Ok(cli::Cli::try_parse()) }
}

/// Prints help, the version, or what is wrong with the arguments.
fn tell(asked: &clap::Error) -> ExitCode {
    if let Some((option, value)) = negative(asked) {
        ui::complain(&format!("{option} {value}: no value of this option is negative"));
        return ExitCode::from(2);
    }
    if lacks_only_inputs(asked) {
        // Of one name the parser takes it for the output.
        ui::complain("OUT is missing: where packets go; a capture to write, `-` for stdout, or `null`");
        return ExitCode::from(2);
    }
    let printed = asked.print().and_then(|()| std::io::stdout().flush());
    match printed {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            ui::complain(&format!("cannot write to stdout: {error}"));
            ExitCode::from(2)
        }
        _ => ExitCode::from(u8::try_from(asked.exit_code()).unwrap_or(2)),
    }
}

/// True where `reframe` was given one name, and lacks another one.
fn lacks_only_inputs(asked: &clap::Error) -> bool {
    let Some(ContextValue::Strings(missing)) = asked.get(ContextKind::InvalidArg) else { return false };
    asked.kind() == ErrorKind::MissingRequiredArgument && *missing == ["<IN>..."]
}

/// A value like `-1us`, which looks like an option of its own, and the option that it stands behind.
fn negative(asked: &clap::Error) -> Option<(String, String)> {
    let Some(ContextValue::String(value)) = asked.get(ContextKind::InvalidArg) else { return None };
    let begins = value.strip_prefix('-')?.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    // Of several letters behind one dash only the first is told. Names of files may be any bytes.
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let at = words.iter().position(|word| begins && word.starts_with(value.as_str()))?;
    let option = words.get(at.checked_sub(1)?)?;
    let named = option.starts_with("--") && !option.contains('=');
    named.then(|| (option.clone(), words.get(at).cloned().unwrap_or_default()))
}
