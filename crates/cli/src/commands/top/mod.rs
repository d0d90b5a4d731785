//! `slipstream top`: watches a pipeline that runs with `--metrics`.

mod rates;
mod screen;

use std::io::{IsTerminal, stdout};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde_json::Value;
use slipstream::clock;

use self::rates::Rates;
use self::screen::Screen;
use super::{Outcome, finish};
use crate::check;
use crate::cli::top::Top;
use crate::ui::{self, Kept};
use crate::units;

/// Longest wait for a pipeline to start, and for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two attempts to reach a pipeline that hasn't started, and between two looks for a signal.
const AGAIN: Duration = Duration::from_millis(100);
/// Rows of a page.
const PAGE: usize = 10;
/// Looks that the chart remembers.
const HISTORY: usize = 1000;

pub(super) fn run(args: &Top) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.reporting.fail_if)?;
    let interval = Duration::from_nanos(args.interval.0);
    if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&interval) {
        bail!("--interval must lie between 100ms and 60s");
    }
    let address = units::with_host(&args.address);
    check_address(&address)?;
    let client = Client::new(&address);
    let first = client.wait()?;
    if args.once || args.reporting.json() || !checks.is_empty() || !stdout().is_terminal() {
        std::thread::sleep(interval);
        let second = client.fetch().context("the pipeline has ended")?;
        let rates = Rates::between(&first, &second)?;
        return finish(&args.reporting, &checks, &rates.as_json(), || rates.as_table());
    }
    let interrupted = ui::interrupts()?;
    let mut terminal = ratatui::try_init().context("the screen can't be taken")?;
    let _taken = Kept::new(Taken);
    watch(&mut terminal, &client, interval, first, &interrupted).map(|()| Outcome::Done)
}

/// The terminal, which is given back as it was when this goes.
struct Taken;

impl Drop for Taken {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Refuses an address at which no pipeline could ever be.
fn check_address(address: &str) -> anyhow::Result<()> {
    let port =
        address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(1..)) => Ok(()),
        _ => bail!("{address}: no ADDRESS:PORT, such as 127.0.0.1:9464; ports are 1 to 65535"),
    }
}

/// A pipeline's address.
struct Client<'a> {
    address: &'a str,
    agent: ureq::Agent,
}

impl<'a> Client<'a> {
    fn new(address: &'a str) -> Self {
        let agent = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build().into();
        Self { address, agent }
    }

    /// Fetches the report of the run.
    fn fetch(&self) -> anyhow::Result<Value> {
        let mut answer = self.agent.get(format!("http://{}/report", self.address)).call()?;
        Ok(serde_json::from_str(&answer.body_mut().read_to_string()?)?)
    }

    /// As [`Client::fetch`], once it is there.
    fn wait(&self) -> anyhow::Result<Value> {
        let until = clock::now() + PATIENCE;
        loop {
            match self.fetch() {
                Ok(report) => return Ok(report),
                Err(error) if clock::now() >= until => {
                    let what = format!(
                        "no pipeline answers at {}: start one with `slipstream run --metrics {0}`",
                        self.address
                    );
                    return Err(error.context(what));
                }
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
    }
}

/// Shows how it goes until the user has seen enough.
fn watch(
    terminal: &mut DefaultTerminal,
    client: &Client<'_>,
    interval: Duration,
    first: Value,
    interrupted: &AtomicBool,
) -> anyhow::Result<()> {
    let mut before = first;
    let mut rates = None;
    let mut history: Vec<u64> = Vec::new();
    let mut trouble = None;
    let mut due = clock::now() + interval;
    let mut skipped: usize = 0;
    loop {
        let rows = rates.as_ref().map_or(0, |r: &Rates| r.rows.len());
        skipped = skipped.min(rows.saturating_sub(1));
        let screen = Screen {
            address: client.address,
            rates: rates.as_ref(),
            history: &history,
            trouble: trouble.as_deref(),
            skipped,
        };
        terminal.draw(|frame| screen.draw(frame))?;
        if has_event(due, interrupted)? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press && ends(key.code, key.modifiers) => {
                    return Ok(());
                }
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    skipped = scrolled(skipped, key.code);
                    continue;
                }
                // A screen of another size is drawn anew.
                _ => continue,
            }
        }
        due = clock::now() + interval;
        match client.fetch().map(|after| (Rates::between(&before, &after), after)) {
            Ok((new, after)) => {
                trouble = new.as_ref().err().map(ToString::to_string);
                if let Ok(new) = new {
                    if history.len() >= HISTORY {
                        history.remove(0);
                    }
                    history.push(new.came as u64);
                    rates = Some(new);
                }
                before = after;
            }
            Err(_) => trouble = Some("the pipeline has ended, or doesn't answer; q: end".to_owned()),
        }
    }
}

/// Waits until something happens on the terminal; false if nothing does until `due`.
///
/// # Errors
/// A signal asks the program to end, or the terminal is gone.
fn has_event(due: Instant, interrupted: &AtomicBool) -> anyhow::Result<bool> {
    loop {
        ui::unless(interrupted)?;
        let left = due.saturating_duration_since(clock::now());
        if event::poll(left.min(AGAIN))? {
            return Ok(true);
        }
        if left <= AGAIN {
            return Ok(false);
        }
    }
}

/// Rows that are skipped after a key.
fn scrolled(skipped: usize, key: KeyCode) -> usize {
    match key {
        KeyCode::Up => skipped.saturating_sub(1),
        KeyCode::Down => skipped + 1,
        KeyCode::PageUp => skipped.saturating_sub(PAGE),
        KeyCode::PageDown => skipped + PAGE,
        KeyCode::Home => 0,
        _ => skipped,
    }
}

/// True for a key that ends the screen.
fn ends(key: KeyCode, modifiers: KeyModifiers) -> bool {
    matches!(key, KeyCode::Char('q') | KeyCode::Esc)
        || key == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL)
}
