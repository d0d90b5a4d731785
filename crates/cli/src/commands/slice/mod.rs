//! `slipstream slice`: the middlebox that parks payloads, and the arithmetic around it.

mod model;
mod run;
mod size;
mod switch;

use super::Outcome;
use super::model::finish;
use crate::cli::slice::SliceVerb;

pub(super) fn run(verb: &SliceVerb) -> anyhow::Result<Outcome> {
    match verb {
        SliceVerb::Run(args) => run::run(args),
        SliceVerb::Model(args) => model::run(args),
        SliceVerb::Size(args) => size::run(args),
        SliceVerb::Switch(args) => switch::run(args),
    }
}
