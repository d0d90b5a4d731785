//! Files that stages write: each is one stage's own, or the last to end would replace what the others wrote;
//! and none is one that is read, which would be lost.

use std::path::{Path, PathBuf};

use slipstream_core::new_file::{is_stdout, named, place};
use slipstream_core::registry::Role;
use slipstream_io::ports::limits;
use slipstream_io::rotation::Rotation;

use super::config::{Plan, PlannedStage};
use super::diagnostics::Finding;

/// The place of something that is read or written, by which two names of one are told.
enum Place {
    /// A file or folder, and its name, which may be a link to it.
    One(PathBuf, PathBuf),
    /// A capture in several files: the name that theirs are made of.
    Several(PathBuf),
}

impl Place {
    fn of(path: &Path) -> Option<Self> {
        let place = place(path)?;
        // Only a folder has none, such as `..`.
        let name = named(path).unwrap_or_else(|| place.clone());
        Some(Self::One(place, name))
    }

    /// Returns true if a file may be of both.
    fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::One(one, _), Self::One(other, _)) | (Self::Several(one), Self::Several(other)) => {
                one == other
            }
            (Self::Several(all), Self::One(place, name)) | (Self::One(place, name), Self::Several(all)) => {
                let may_be = |file: &Path| {
                    let name = file.file_name().filter(|_| file.parent() == all.parent());
                    name.is_some_and(|name| Rotation::may_write(all, name))
                };
                may_be(place) || may_be(name)
            }
        }
    }
}

/// The output of a stage, unless packets come from it.
struct Written<'a> {
    stage: &'a PlannedStage,
    /// The setting that names it.
    setting: &'static str,
    path: PathBuf,
}

impl<'a> Written<'a> {
    /// The output of a stage that has one. A text may name something else than a file.
    fn by(stage: &'a PlannedStage, base: &Path) -> Option<Self> {
        let setting = stage.kind.properties.writes.filter(|_| stage.role != Role::Source)?;
        let text = stage.settings.text(setting);
        // A text stands for a file in its own way.
        let named = !["", "none"].contains(&text) && !text.starts_with("udp:");
        let of_text = named.then(|| if text == "-" { text.into() } else { base.join(text) });
        let path = stage.settings.file(setting).map(Path::to_owned).or(of_text)?;
        Some(Self { stage, setting, path })
    }

    fn is_several(&self) -> bool {
        limits(&self.stage.settings).any()
    }

    fn place(&self) -> Option<Place> {
        if self.is_several() { named(&self.path).map(Place::Several) } else { Place::of(&self.path) }
    }

    /// Returns true if it may take the place of what `source` reads: a capture takes its name at the end.
    fn may_replace(&self, source: &PlannedStage) -> bool {
        source.role == Role::Source && source.kind.name == self.stage.kind.name && !self.is_several()
    }

    fn finding(&self, plan: &Plan, message: &str, hint: &str) -> Finding {
        let span = plan.setting_span(self.stage, Some(self.setting));
        let several = if self.is_several() { " in files with numbers" } else { "" };
        let message = format!("`{}` writes {}{several}{message}", self.stage.name, self.path.display());
        Finding::new(&span, message).hint(hint)
    }
}

/// The files that a stage reads.
fn read(stage: &PlannedStage, base: &Path) -> impl Iterator<Item = PathBuf> {
    let written = stage.kind.properties.writes.filter(|_| stage.role != Role::Source);
    stage.settings.files(base).filter(move |(name, _)| Some(*name) != written).map(|(_, path)| path)
}

impl Plan {
    /// The outputs of stages, each with its place.
    fn all_written(&self) -> impl Iterator<Item = (Place, Written<'_>)> {
        self.stages.iter().filter_map(|stage| {
            let written = Written::by(stage, &self.base)?;
            Some((written.place()?, written))
        })
    }

    /// The files that stages read, each with its place.
    fn all_read(&self) -> impl Iterator<Item = (Place, &PlannedStage, PathBuf)> {
        self.stages.iter().flat_map(|stage| {
            read(stage, &self.base).filter_map(move |path| Some((Place::of(&path)?, stage, path)))
        })
    }

    /// Returns true if a stage writes to stdout, by whatever name, so that nothing else may.
    #[must_use]
    pub fn writes_stdout(&self) -> bool {
        self.all_written().any(|(_, written)| is_stdout(&written.path))
    }

    /// The file of a stage, read or written, that would be lost if `path` were written, or `path` with it.
    #[must_use]
    pub fn in_use(&self, path: &Path) -> Option<PathBuf> {
        let here = Place::of(path)?;
        let read = self.all_read().map(|(place, _, path)| (place, path));
        let written = self.all_written().map(|(place, written)| (place, written.path));
        read.chain(written).find(|(place, _)| place.meets(&here)).map(|(_, path)| path)
    }

    /// Adds to `findings` the stages that write to one place, and those that write to where something is read
    /// from, each where it names it.
    pub(super) fn check_outputs(&self, findings: &mut Vec<Finding>) {
        let mut taken: Vec<(Place, Written<'_>)> = Vec::new();
        for (place, one) in self.all_written() {
            let Some((_, other)) = taken.iter().find(|(known, _)| known.meets(&place)) else {
                taken.push((place, one));
                continue;
            };
            for (one, other) in [(other, &one), (&one, other)] {
                let (then, hint) = if is_stdout(&one.path) {
                    ("both would be mixed there", "only one can have stdout; name a file for the other")
                } else {
                    ("one would replace the other", "give each a name of its own")
                };
                let message = format!(", and so does `{}`: {then}", other.stage.name);
                findings.push(one.finding(self, &message, hint));
            }
        }
        for (place, reader, path) in self.all_read() {
            let replaces = |one: &Written<'_>| !one.may_replace(reader);
            for (_, one) in taken.iter().filter(|(known, one)| known.meets(&place) && replaces(one)) {
                let message =
                    format!(", and `{}` reads {}: it would be replaced", reader.name, path.display());
                findings.push(one.finding(self, &message, "name another file"));
            }
        }
        let own = self.path.as_deref().and_then(Place::of);
        for (_, one) in taken.iter().filter(|(known, _)| own.as_ref().is_some_and(|own| known.meets(own))) {
            let message = ", and this configuration is there: it would be replaced";
            findings.push(one.finding(self, message, "name another file"));
        }
    }
}
