//! The stage types that a program has.

use std::path::Path;

use super::StageType;

/// The reason why a stage type can't be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Another type has its name.
    #[error("there is a stage type `{0}` already")]
    Taken(&'static str),
    /// The name of the type or of one of its settings couldn't be written in a graph.
    #[error("`{0}` can't be the name of a stage type or setting: a-z, then a-z, 0-9 and _")]
    Name(&'static str),
    /// Two of its settings have one name.
    #[error("stage type `{kind}` has two settings `{setting}`")]
    TwoSettings {
        /// The type.
        kind: &'static str,
        /// The setting.
        setting: &'static str,
    },
    /// `type` says in a configuration which type is meant.
    #[error("stage type `{0}` can't have a setting `type`")]
    SettingType(&'static str),
    /// The default of a setting can't be read.
    #[error("the default of setting `{setting}` of stage type `{kind}` can't be read: {why}")]
    Default {
        /// The type.
        kind: &'static str,
        /// The setting.
        setting: &'static str,
        /// The reason, in words.
        why: String,
    },
    /// A setting that must be written has no use for a default.
    #[error("setting `{setting}` of stage type `{kind}` has a default, and yet it is required")]
    RequiredDefault {
        /// The type.
        kind: &'static str,
        /// The setting.
        setting: &'static str,
    },
}

/// The stage types that a configuration may name, in the order of a list of them.
///
/// ```
/// use slipstream_core::batch::Batch;
/// use slipstream_core::registry::{
///     Group, IN, Made, Meets, Ports, Properties, RegisterError, Registry, StageType,
/// };
/// use slipstream_core::settings::{Kind, Setting};
/// use slipstream_core::stage::{Context, Observe, Output, Stage};
///
/// /// Frees every packet.
/// struct Sink;
///
/// impl Observe for Sink {}
///
/// impl Stage for Sink {
///     fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, _: &mut dyn Output) {
///         batch.frames.iter().for_each(|frame| cx.pool.free(frame.buf));
///         batch.clear();
///     }
/// }
///
/// const SINK: StageType = StageType {
///     name: "sink",
///     group: Group::Plumbing,
///     summary: "Swallows packets",
///     example: "in -> sink(every=2)",
///     inputs: IN,
///     outputs: Ports::None,
///     settings: &[Setting::new("every", Kind::Count(1, 1000), "Packets of which one is looked at").or("1")],
///     properties: Properties::new(|_| Meets::Nothing),
///     build: |_, _| Ok(Made::Stage(Box::new(Sink))),
/// };
///
/// let mut registry = Registry::default();
/// registry.register(SINK)?;
/// assert_eq!(registry.get("sink").map(|kind| kind.settings[0].default), Some(Some("1")));
/// assert_eq!(registry.register(SINK), Err(RegisterError::Taken("sink")));
/// # Ok::<(), RegisterError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Registry {
    types: Vec<StageType>,
    /// Names of the types whose stages may run beside others, on several threads.
    shared: Vec<&'static str>,
}

impl Registry {
    /// These and no others. Pipelines of them run on one thread.
    #[must_use]
    pub fn of(types: &[StageType]) -> Self {
        Self { types: types.to_vec(), shared: Vec::new() }
    }

    /// A registry of these types and no others, whose stages may all run on several threads.
    ///
    /// # Safety
    /// As for [`register_shared`](Self::register_shared), of every one of them.
    #[allow(unsafe_code)]
    #[must_use]
    pub unsafe fn of_shared(types: &[StageType]) -> Self {
        Self { types: types.to_vec(), shared: types.iter().map(|t| t.name).collect() }
    }

    /// Adds a type whose stages may run while other threads are at work on other packets in the same memory,
    /// as `--workers` asks for.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    ///
    /// # Safety
    /// Stages and sources of this type use a [`BufId`](crate::pool::BufId) only while they have its packet:
    /// from when they were given it, or stored it, until they hand it on or free it; with the length that
    /// came with it, or less. One who used another thread's packet would have a data race. Alone in memory of
    /// the engine's own, such a stage reads wrong bytes, and does no other harm; so those that nobody vouches
    /// for run on one thread, and what a port has in memory of its own is copied for them.
    #[allow(unsafe_code)]
    pub unsafe fn register_shared(&mut self, kind: StageType) -> Result<(), RegisterError> {
        self.register(kind)?;
        self.shared.push(kind.name);
        Ok(())
    }

    /// Returns true if stages of this type may run on several threads: it is one that was registered so.
    #[must_use]
    pub fn is_shared(&self, kind: &StageType) -> bool {
        self.shared.contains(&kind.name)
            && self.get(kind.name).is_some_and(|mine| std::ptr::fn_addr_eq(mine.build, kind.build))
    }

    /// Adds a type. Pipelines with a stage of it run on one thread; see
    /// [`register_shared`](Self::register_shared).
    ///
    /// # Errors
    /// [`RegisterError`] where it has the name of another, or its definitions contradict themselves.
    pub fn register(&mut self, kind: StageType) -> Result<(), RegisterError> {
        if !is_name(kind.name) {
            return Err(RegisterError::Name(kind.name));
        }
        if self.get(kind.name).is_some() {
            return Err(RegisterError::Taken(kind.name));
        }
        for (i, setting) in kind.settings.iter().enumerate() {
            let (kind_name, name) = (kind.name, setting.name);
            if !is_name(name) {
                return Err(RegisterError::Name(name));
            }
            if name == "type" {
                return Err(RegisterError::SettingType(kind_name));
            }
            if kind.settings.iter().take(i).any(|s| s.name == name) {
                return Err(RegisterError::TwoSettings { kind: kind_name, setting: name });
            }
            if setting.required && setting.default.is_some() {
                return Err(RegisterError::RequiredDefault { kind: kind_name, setting: name });
            }
            if let Err(why) = setting.default_value(Path::new("")) {
                return Err(RegisterError::Default { kind: kind_name, setting: name, why });
            }
        }
        self.types.push(kind);
        Ok(())
    }

    /// The type of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&StageType> {
        self.types.iter().find(|t| t.name == name)
    }

    /// All types.
    #[must_use]
    pub fn types(&self) -> &[StageType] {
        &self.types
    }
}

/// Says that a graph and a table can name it.
fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}
