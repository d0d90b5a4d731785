//! Files that stages write: each is one stage's own, or the last to end would replace what the others wrote.

use std::path::{Path, PathBuf};

use slipstream_core::new_file::place;
use slipstream_core::registry::Role;

use super::config::{Plan, PlannedStage};
use super::diagnostics::Finding;

/// The setting of a stage that names what it writes, and the path. A text may name something else than a
/// file.
fn written(stage: &PlannedStage, base: &Path) -> Option<(&'static str, PathBuf)> {
    let setting = stage.kind.properties.writes.filter(|_| stage.role != Role::Source)?;
    let text = stage.settings.text(setting);
    let of_text = (!["", "none"].contains(&text) && !text.starts_with("udp:")).then(|| base.join(text));
    let path = stage.settings.file(setting).map(Path::to_owned).or(of_text)?;
    (path.as_os_str() != "-").then_some((setting, path))
}

impl Plan {
    /// Adds to `findings` the stages that write to one place, each where it names it.
    pub(super) fn check_outputs(&self, findings: &mut Vec<Finding>) {
        let mut taken: Vec<(PathBuf, &PlannedStage)> = Vec::new();
        for stage in &self.stages {
            let Some(place) = written(stage, &self.base).and_then(|(_, path)| place(&path)) else { continue };
            let Some((_, other)) = taken.iter().find(|(known, _)| *known == place) else {
                taken.push((place, stage));
                continue;
            };
            for (one, other) in [(*other, stage), (stage, *other)] {
                let Some((setting, path)) = written(one, &self.base) else { continue };
                let (name, path, other) = (&one.name, path.display(), &other.name);
                let message =
                    format!("`{name}` writes {path}, and so does `{other}`: one would replace the other");
                let span = self.setting_span(one, Some(setting));
                findings.push(Finding::new(&span, message).hint("give each a name of its own"));
            }
        }
    }
}
