//! `measure merge` and `measure query`: saved states, added up and asked.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use slipstream::measure::{
    Answer, Ask, EpochResult, Keying, Promise, Saved, SavedEpoch, StateAnswer, Task, ask_state,
};
use tracing::warn;

use super::state::{self, check_state, emptied};
use super::{Report, ask, show};
use crate::check;
use crate::cli::measure as cli;
use crate::commands::Outcome;
use crate::replace::Replacement;

pub(super) fn merge(
    states: &[PathBuf],
    save: Option<&Path>,
    task: Option<Task>,
    answers: &cli::Answers,
) -> anyhow::Result<Outcome> {
    let save = save.map(|p| Replacement::create("--save", p)).transpose()?;
    let (mut all, mut parts) = (states.iter(), state::Parts::default());
    let Some(first) = all.next() else { bail!("no state was named") };
    let mut whole = parts.read(first)?;
    for path in all {
        state::merge(&mut whole, parts.read(path)?).with_context(|| path.display().to_string())?;
    }
    super::tell_of_lists(&[task.unwrap_or(whole.about.task)], answers);
    let outcome = answer(&whole, task, answers)?;
    super::tell_of_full(&outcome, "epoch", "--epoch");
    for (i, epoch) in outcome.epochs.iter().enumerate() {
        let Answer::Keys { rows, unlisted: Some(most), .. } = &epoch.answer else { continue };
        if rows.last().is_some_and(|row| row.size.estimate < *most) {
            warn!(
                "epoch {i}: a flow that no state kept may weigh up to {most}, more than the last of the list; \
                 measure with more --memory to be sure of the list"
            );
        }
    }
    if let Some(file) = save {
        state::write(&whole, file)?;
    }
    show::finish(&[outcome], answers.format, &check::parse_all(&answers.fail_if)?)
}

pub(super) fn query(path: &Path, task: Option<Task>, answers: &cli::Answers) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&answers.fail_if)?;
    let state = state::read(path)?;
    super::tell_of_lists(&[task.unwrap_or(state.about.task)], answers);
    let report = answer(&state, task, answers).with_context(|| path.display().to_string())?;
    super::tell_of_full(&report, "epoch", "--epoch");
    show::finish(&[report], answers.format, &checks)
}

/// Answers the task from saved states.
pub(super) fn answer(saved: &Saved, task: Option<Task>, answers: &cli::Answers) -> anyhow::Result<Report> {
    let about = &saved.about;
    let task = task.unwrap_or(about.task);
    let keying = about.keying()?;
    if (task.counts_pairs() || about.pairs) && task != about.task {
        bail!("the state was made for {}; it can't answer {}", about.task, task);
    }
    let ask = ask(task, keying, answers)?;
    let mut report = Report {
        task,
        sketch: about.sketch.clone(),
        key: about.key.to_string(),
        weight: about.weight.clone(),
        aggregate: about.aggregate.clone(),
        epoch: about.epoch.clone(),
        windows: false,
        tunnel: about.tunnel.clone(),
        seed: about.seed,
        memory_bytes: 0,
        aggregator_bytes: None,
        packets: saved.epochs.iter().map(|e| e.span.packets).sum(),
        skipped: None,
        gaps: None,
        clock_backwards: None,
        spent_ns: None,
        truncated_at_byte: None,
        compared: false,
        epochs: Vec::with_capacity(saved.epochs.len()),
        failed: Vec::new(),
    };
    let mut before: Option<&SavedEpoch> = None;
    for epoch in &saved.epochs {
        let (result, bytes) = one(epoch, before, &about.sketch, keying, &ask)?;
        report.memory_bytes = report.memory_bytes.max(bytes);
        report.epochs.push(result);
        before = Some(epoch);
    }
    Ok(report)
}

fn one(
    epoch: &SavedEpoch,
    before: Option<&SavedEpoch>,
    sketch: &str,
    keying: Keying,
    ask: &Ask,
) -> anyhow::Result<(EpochResult, usize)> {
    let mut parts = [None, None];
    for (side, (part, len)) in parts.iter_mut().zip(keying.lens()).enumerate() {
        let state = |e: &SavedEpoch| e.states.get(side).filter(|s| !s.is_empty()).cloned();
        // An epoch without packets of this IP version may have no sketch of it. Where the one before has, its
        // flows are gone, which is a change of each.
        let before = before.map(|epoch| state(epoch).unwrap_or_default());
        let gone = before.as_deref().filter(|state| ask.task == Task::HeavyChanges && !state.is_empty());
        let Some(now) = state(epoch).map(Ok).or_else(|| gone.map(|state| emptied(state, len))) else {
            continue;
        };
        let now = now?;
        check_state(&now, sketch, len)?;
        *part = Some(ask_state(len, &now, before.as_deref(), ask)?);
    }
    let weight = |p: &Option<StateAnswer>| p.as_ref().map_or(0, |p| p.weight);
    let [a, b] = &parts;
    let weights = (weight(a), weight(b));
    let saturated = parts.iter().flatten().any(|p| p.saturated);
    let bytes = parts.iter().flatten().map(|p| p.memory_bytes).sum();
    let promise = parts.iter().flatten().map(|p| p.promise).reduce(Promise::and);
    let answers = parts.into_iter().flatten().map(|p| p.answer);
    let (Some(answer), Some(promise)) = (answers.reduce(|a, b| a.join(b, weights, ask)), promise) else {
        bail!("the state is damaged: an epoch has no sketch");
    };
    let result = EpochResult {
        span: epoch.span,
        weight: weights.0.saturating_add(weights.1),
        flows: None,
        saturated,
        answer,
        promise: promise.of_epoch(&epoch.span),
    };
    Ok((result, bytes))
}
