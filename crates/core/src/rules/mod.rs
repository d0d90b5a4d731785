//! The one language that selects packets: what reframe passes by, which class a packet belongs to, what a
//! stage looks at.
//!
//! A [`Rule`] is parsed once, from text in the words of tcpdump's filters, and then asked about packets whose
//! headers are classified already:
//!
//! ```
//! use slipstream_core::rules::Rule;
//! use slipstream_wire::{LinkType, classify};
//!
//! let rule = Rule::parse("udp dst port 53,5353; tcp syn !ack")?;
//! let dns = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 0, 8, 0, 0];
//! let headers = classify(LinkType::RawIp, &dns).unwrap();
//! assert!(rule.matches(&headers, 28));
//! assert_eq!(rule.to_string(), "udp and dst port 53,5353 or tcp and syn and not ack");
//! # Ok::<(), slipstream_core::rules::RuleError>(())
//! ```
//!
//! The way of a rule: `syntax` makes tokens of the text, `parse` a tree (`expr`) of the tokens, `compile` a
//! program of the tree. A rule about fixed header bits alone, such as `tcp syn`, ends as one masked
//! comparison. The grammar and every primitive are in the book's chapter on rules.

mod compile;
mod error;
pub mod expr;
pub mod names;
mod parse;
pub mod protocols;
mod syntax;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use slipstream_wire::Headers;

use crate::reads::Reads;
use compile::Compiled;
pub use error::RuleError;
#[cfg(feature = "std")]
pub use error::RuleFileError;
use expr::Expr;

/// A predicate on packets.
///
/// Two rules are equal when they are written alike: `tcp syn` equals `tcp and syn`, but not `syn`, though
/// both match the same packets. What `Display` prints parses to an equal rule (unless the printout, which
/// spells out every `and` and `or`, is longer than a rule may be).
#[derive(Clone, Debug)]
#[cfg_attr(
    feature = "std",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "String", into = "String")
)]
pub struct Rule {
    expr: Expr,
    compiled: Compiled,
}

impl Rule {
    /// A rule from its text, of at most 64 KiB, with at most 64 parentheses and `not`s within one another.
    ///
    /// # Errors
    /// [`RuleError`] says where and why the text isn't a rule. Text without any rule in it (blank, or
    /// comments alone) is an error too: it could be meant as every packet or as none.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        parse::parse(text).map(Self::new)
    }

    /// A rule from a file of rules, separated by line breaks: the packet matches if one of them does.
    ///
    /// # Errors
    /// [`RuleFileError`] where the file can't be read, isn't UTF-8, or isn't a rule.
    #[cfg(feature = "std")]
    pub fn parse_file(path: impl AsRef<std::path::Path>) -> Result<Self, RuleFileError> {
        let path = path.as_ref();
        // One byte more than a rule may have is enough to say that there are too many.
        let most = parse::MAX_LENGTH as u64 + 1;
        let text = crate::text_file::read_at_most(path, most)
            .map_err(|source| RuleFileError::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|error| RuleFileError::Syntax { path: path.to_owned(), error })
    }

    /// A rule from its text, or from the file that it names: `tcp syn`, `@FILE`. The name is relative to
    /// `base`; `@-` is stdin.
    ///
    /// # Errors
    /// Text that is no rule, or a file that can't be read or has none, in words.
    #[cfg(feature = "std")]
    pub fn parse_or_read(text: &str, base: &std::path::Path) -> Result<Self, String> {
        match text.strip_prefix('@') {
            Some(file) => Self::parse_file(crate::settings::file_at(base, file)).map_err(|e| e.to_string()),
            None => Self::parse(text).map_err(|e| e.to_string()),
        }
    }

    /// `none`: matches no packet.
    #[must_use]
    pub fn never() -> Self {
        Self::new(Expr::None)
    }

    /// `any`: matches every packet.
    #[must_use]
    pub fn always() -> Self {
        Self::new(Expr::Any)
    }

    fn new(expr: Expr) -> Self {
        let compiled = Compiled::new(&expr);
        Self { expr, compiled }
    }

    /// The rule as a tree.
    pub fn expr(&self) -> &Expr {
        &self.expr
    }

    /// Returns true if the rule is known to match no packet, so that nobody need ask it: `none`,
    /// `syn and udp`.
    #[inline]
    #[must_use]
    pub fn is_never(&self) -> bool {
        matches!(self.compiled, Compiled::Never)
    }

    /// Returns true if the rule is known to match every packet: `any`, `none or any`.
    #[inline]
    #[must_use]
    pub fn is_always(&self) -> bool {
        matches!(self.compiled, Compiled::Always)
    }

    /// Mask and value where the rule is about TCP flags alone, as `tcp syn` is: it matches the packets that
    /// have [`Flags::TCP`](slipstream_wire::Flags::TCP) and `tcp_flags & mask == value`, and no others.
    #[must_use]
    pub fn tcp_flags_only(&self) -> Option<(u8, u8)> {
        match &self.compiled {
            Compiled::Word(word) => word.tcp_flags_only(),
            _ => None,
        }
    }

    /// The fields that the rule reads of a packet beyond its flow key.
    #[must_use]
    pub fn reads(&self) -> Reads {
        self.expr.reads()
    }

    /// Returns true if a packet matches. `packet_len` is its length on the wire in bytes, link-layer header
    /// included, also where fewer bytes were captured.
    #[inline]
    #[must_use]
    pub fn matches(&self, headers: &Headers, packet_len: u32) -> bool {
        match &self.compiled {
            Compiled::Never => false,
            Compiled::Always => true,
            Compiled::Word(word) => word.holds(headers),
            Compiled::Program(program) => program.matches(headers, packet_len),
        }
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.expr == other.expr
    }
}

impl Eq for Rule {}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expr.fmt(f)
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Rule {
    type Error = RuleError;

    fn try_from(text: String) -> Result<Self, RuleError> {
        Self::parse(&text)
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.to_string()
    }
}
