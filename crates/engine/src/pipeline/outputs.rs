//! Files that stages write: each is one stage's own, or the last to end would replace what the others wrote;
//! and none is one that is read, which would be lost.

use std::path::{Path, PathBuf};

use slipstream_core::new_file::place;
use slipstream_core::registry::Role;

use super::config::{Plan, PlannedStage};
use super::diagnostics::Finding;

/// What a stage writes, unless packets come from it.
struct Written<'a> {
    stage: &'a PlannedStage,
    /// The setting that names it.
    setting: &'static str,
    path: PathBuf,
}

impl<'a> Written<'a> {
    /// What the stage writes, if it does. A text may name something else than a file.
    fn by(stage: &'a PlannedStage, base: &Path) -> Option<Self> {
        let setting = stage.kind.properties.writes.filter(|_| stage.role != Role::Source)?;
        let text = stage.settings.text(setting);
        let of_text = (!["", "none"].contains(&text) && !text.starts_with("udp:")).then(|| base.join(text));
        let path = stage.settings.file(setting).map(Path::to_owned).or(of_text)?;
        (path.as_os_str() != "-").then_some(Self { stage, setting, path })
    }

    /// Returns true if it may take the place of what `source` reads: a capture takes its name at the end.
    fn may_replace(&self, source: &PlannedStage) -> bool {
        source.role == Role::Source && source.kind.name == self.stage.kind.name
    }

    fn finding(&self, plan: &Plan, message: &str, hint: &str) -> Finding {
        let span = plan.setting_span(self.stage, Some(self.setting));
        let message = format!("`{}` writes {}{message}", self.stage.name, self.path.display());
        Finding::new(&span, message).hint(hint)
    }
}

/// The files that a stage reads.
fn read(stage: &PlannedStage, base: &Path) -> impl Iterator<Item = PathBuf> {
    let written = stage.kind.properties.writes.filter(|_| stage.role != Role::Source);
    stage.settings.files(base).filter(move |(name, _)| Some(*name) != written).map(|(_, path)| path)
}

impl Plan {
    /// The files that stages read, and those that they write.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let written = self.stages.iter().filter_map(|stage| Some(Written::by(stage, &self.base)?.path));
        self.stages.iter().flat_map(|stage| read(stage, &self.base)).chain(written).collect()
    }

    /// Adds to `findings` the stages that write to one place, and those that write to where something is read
    /// from, each where it names it.
    pub(super) fn check_outputs(&self, findings: &mut Vec<Finding>) {
        let all: Vec<_> = self.stages.iter().filter_map(|stage| Written::by(stage, &self.base)).collect();
        let mut taken: Vec<(PathBuf, &Written<'_>)> = Vec::new();
        for one in &all {
            let Some(place) = place(&one.path) else { continue };
            let Some((_, other)) = taken.iter().find(|(known, _)| *known == place) else {
                taken.push((place, one));
                continue;
            };
            for (one, other) in [(*other, one), (one, *other)] {
                let message = format!(", and so does `{}`: one would replace the other", other.stage.name);
                findings.push(one.finding(self, &message, "give each a name of its own"));
            }
        }
        let readers = self
            .stages
            .iter()
            .flat_map(|stage| read(stage, &self.base).filter_map(move |path| Some((place(&path)?, stage))));
        for (place, reader) in readers {
            for (_, one) in taken.iter().filter(|(known, one)| *known == place && !one.may_replace(reader)) {
                let message = format!(", which `{}` reads: it would be replaced", reader.name);
                findings.push(one.finding(self, &message, "name another file"));
            }
        }
        self.check_own_file(&taken, findings);
    }

    /// Adds the stages that write to where the configuration itself is.
    fn check_own_file(&self, taken: &[(PathBuf, &Written<'_>)], findings: &mut Vec<Finding>) {
        let Some(own) = self.path.as_deref().and_then(place) else { return };
        for (_, one) in taken.iter().filter(|(known, _)| *known == own) {
            let message = ", which is this configuration: it would be replaced";
            findings.push(one.finding(self, message, "name another file"));
        }
    }
}
