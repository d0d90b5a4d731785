//! From tokens to a tree: recursive descent, one function per line of the grammar in the book.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use ipnet::IpNet;

use super::error::RuleError;
use super::expr::{ByteSet, Expr, Ranges, Side, Test, host};
use super::names;
use super::syntax::{Kind, Token, tokens};

/// Parentheses and `not`s within one another, at most.
pub(super) const MAX_DEPTH: usize = 64;
/// Bytes of a rule's text, at most.
pub(super) const MAX_LENGTH: usize = 64 * 1024;

/// The tree of a rule; the error says where and why `text` isn't one.
pub(super) fn parse(text: &str) -> Result<Expr, RuleError> {
    if text.len() > MAX_LENGTH {
        let message = format!("the rule is longer than {MAX_LENGTH} bytes");
        return Err(RuleError::new(text, MAX_LENGTH, 1, message));
    }
    let tokens = tokens(text)?;
    let end = Token { kind: Kind::End, text: "", offset: text.len() };
    let mut parser = Parser { text, tokens: tokens.iter(), here: end, end: 0 };
    parser.advance();
    if parser.here.kind == Kind::End {
        return Err(parser
            .error("there is no rule here")
            .hint("write `any` for every packet, `none` for no packet"));
    }
    let expr = parser.rules(0)?;
    match parser.here.kind {
        Kind::End => Ok(expr),
        Kind::Close => Err(parser.error("this parenthesis was never opened")),
        _ => Err(parser.unexpected()),
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: core::slice::Iter<'a, Token<'a>>,
    /// The next token.
    here: Token<'a>,
    /// End of the token before it.
    end: usize,
}

impl<'a> Parser<'a> {
    /// Takes the next token.
    fn advance(&mut self) -> Token<'a> {
        let taken = self.here;
        self.end = taken.offset + taken.text.len();
        let end = Token { kind: Kind::End, text: "", offset: self.text.len() };
        self.here = self.tokens.next().copied().unwrap_or(end);
        taken
    }

    /// Takes the next token if it is of `kind`.
    fn take(&mut self, kind: Kind) -> bool {
        let found = self.here.kind == kind;
        if found {
            self.advance();
        }
        found
    }

    /// Takes the next token if it is the word `word`.
    fn take_word(&mut self, word: &str) -> bool {
        let found = self.here.kind == Kind::Word && self.here.text.eq_ignore_ascii_case(word);
        if found {
            self.advance();
        }
        found
    }

    /// Rules separated by `;` or line breaks: some of them matches.
    fn rules(&mut self, depth: usize) -> Result<Expr, RuleError> {
        while self.take(Kind::Separator) {}
        let mut parts = vec![self.alternatives(depth)?];
        while self.take(Kind::Separator) {
            if !matches!(self.here.kind, Kind::Separator | Kind::End | Kind::Close) {
                parts.push(self.alternatives(depth)?);
            }
        }
        Ok(Expr::or(parts))
    }

    /// Terms joined by `or`.
    fn alternatives(&mut self, depth: usize) -> Result<Expr, RuleError> {
        let mut parts = vec![self.conjunction(depth)?];
        while self.take(Kind::Or) {
            parts.push(self.conjunction(depth)?);
        }
        Ok(Expr::or(parts))
    }

    /// Factors joined by `and`, or by nothing.
    fn conjunction(&mut self, depth: usize) -> Result<Expr, RuleError> {
        let mut parts = vec![self.factor(depth)?];
        while self.take(Kind::And) || matches!(self.here.kind, Kind::Word | Kind::Not | Kind::Open) {
            parts.push(self.factor(depth)?);
        }
        Ok(Expr::and(parts))
    }

    /// A primitive, its negation, or a rule in parentheses.
    fn factor(&mut self, depth: usize) -> Result<Expr, RuleError> {
        if matches!(self.here.kind, Kind::Not | Kind::Open) && depth >= MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} parentheses and `not`s within one another");
            return Err(self.error(message));
        }
        match self.here.kind {
            Kind::Not => {
                self.advance();
                Ok(self.factor(depth + 1)?.not())
            }
            Kind::Open => {
                let open = self.advance();
                let expr = self.rules(depth + 1)?;
                match self.here.kind {
                    Kind::Close => {
                        self.advance();
                        Ok(expr)
                    }
                    Kind::End => Err(self.error_at(open, "this parenthesis is never closed")),
                    _ => Err(self.unexpected()),
                }
            }
            Kind::Word => self.primitive(),
            _ => Err(self.unexpected()),
        }
    }

    /// A word, with the values that it takes.
    fn primitive(&mut self) -> Result<Expr, RuleError> {
        let word = self.advance();
        let lower = word.text.to_ascii_lowercase();
        Ok(Expr::Test(match lower.as_str() {
            "any" => return Ok(Expr::Any),
            "none" => return Ok(Expr::None),
            "ip" => Test::Ip6(false),
            "ip6" => Test::Ip6(true),
            "proto" => Test::Proto(self.protocols()?),
            "src" => self.side(Side::Src)?,
            "dst" => self.side(Side::Dst)?,
            "host" | "net" => Test::Net(Side::Either, self.list(Self::prefix)?),
            "port" => Test::Port(Side::Either, self.ranges("port", 65_535)?),
            "dscp" => Test::Dscp(self.dscp()?),
            "ecn" => Test::Ecn(self.ecn()?),
            "flags" => self.flags()?,
            "vlan"
                if self.here.kind == Kind::Word
                    && self.here.text.starts_with(|c: char| c.is_ascii_digit()) =>
            {
                Test::Vlan(Some(self.ranges("VLAN id", 4095)?))
            }
            "vlan" => Test::Vlan(None),
            "fragment" => Test::Fragment,
            "length" => Test::Length(self.ranges("length", u32::MAX)?),
            name => {
                if let Some(bit) = names::number(names::TCP_FLAGS, name) {
                    Test::Flags { mask: bit, value: bit }
                } else if let Some(number) = names::number(names::PROTOCOLS, name) {
                    let mut set = ByteSet::default();
                    set.insert(number);
                    Test::Proto(set)
                } else {
                    return Err(self.unknown(word));
                }
            }
        }))
    }

    /// Parses the words behind `src` or `dst`.
    fn side(&mut self, side: Side) -> Result<Test, RuleError> {
        if self.take_word("port") {
            return Ok(Test::Port(side, self.ranges("port", 65_535)?));
        }
        if !self.take_word("host") {
            self.take_word("net");
        }
        Ok(Test::Net(side, self.list(Self::prefix)?))
    }

    /// Values separated by commas, at least one.
    fn list<T>(&mut self, item: fn(&Self, Token<'a>) -> Result<T, RuleError>) -> Result<Vec<T>, RuleError> {
        let mut items = Vec::new();
        loop {
            let token = self.here;
            items.push(item(self, token)?);
            self.advance();
            if !self.take(Kind::Comma) {
                return Ok(items);
            }
        }
    }

    /// An address or a prefix.
    fn prefix(&self, token: Token<'a>) -> Result<IpNet, RuleError> {
        const EXAMPLES: &str = "write `10.0.0.1`, `10.0.0.0/8` or `2001:db8::/32`";
        if token.kind != Kind::Word {
            let hint =
                if token.kind == Kind::Or { "write `host` or `port` for either side" } else { EXAMPLES };
            return Err(self.missing("an address").hint(hint));
        }
        if let Ok(address) = token.text.parse::<IpAddr>() {
            return Ok(host(address));
        }
        match token.text.parse::<IpNet>() {
            Ok(net) if net.trunc() == net => Ok(net),
            Ok(net) => {
                let message = format!("`{net}` has bits set beyond its prefix");
                let hint =
                    format!("write `{}` for the network, `{}` for the address", net.trunc(), net.addr());
                Err(self.error_at(token, message).hint(hint))
            }
            Err(_) => {
                let hint = match token.text.split_once('/').map(|(a, _)| a.parse::<IpAddr>()) {
                    Some(Ok(IpAddr::V4(_))) => "the prefix of an IPv4 address is 0 to 32 bits",
                    Some(Ok(IpAddr::V6(_))) => "the prefix of an IPv6 address is 0 to 128 bits",
                    _ if token.text.starts_with(|c: char| c.is_ascii_alphabetic())
                        && !token.text.contains(':') =>
                    {
                        "names aren't looked up; write `10.0.0.1`, `10.0.0.0/8` or `2001:db8::/32`"
                    }
                    _ => EXAMPLES,
                };
                Err(self.error_at(token, format!("`{}` is no address", shorten(token.text))).hint(hint))
            }
        }
    }

    /// Numbers and ranges of a quantity called `what`.
    fn ranges(&mut self, what: &'static str, max: u32) -> Result<Ranges, RuleError> {
        let mut ranges = Vec::new();
        loop {
            ranges.push(self.range(what, max, &[])?);
            if !self.take(Kind::Comma) {
                return Ok(Ranges::new(ranges));
            }
        }
    }

    /// `7`, `0-7`, `7-`, or a name of `names`.
    fn range(&mut self, what: &str, max: u32, names: &[(&str, u8)]) -> Result<(u32, u32), RuleError> {
        let token = self.here;
        let a_what = format!("{} {what}", if what.starts_with('E') { "an" } else { "a" });
        let valid = match max {
            u32::MAX => format!("write {a_what} like `64`, `64-128` or `64-`"),
            _ if names.is_empty() => format!("{a_what} is 0 to {max}; a range `1-3`, a list `1,3`"),
            _ => format!("{a_what} is 0 to {max} or a name; a range `1-3`, a list `1,3`"),
        };
        if token.kind != Kind::Word {
            return Err(self.missing(&a_what).hint(valid));
        }
        self.advance();
        if let Some(n) = names::number(names, token.text) {
            return Ok((u32::from(n), u32::from(n)));
        }
        let number = |text: &str| {
            text.parse::<u32>().ok().filter(|&n| n <= max && text.starts_with(|c: char| c.is_ascii_digit()))
        };
        let (lo, hi) = match token.text.split_once('-') {
            None => (number(token.text), number(token.text)),
            Some((lo, "")) => (number(lo), Some(max)),
            Some((lo, hi)) => (number(lo), number(hi)),
        };
        match (lo, hi) {
            (Some(lo), Some(hi)) if lo <= hi => Ok((lo, hi)),
            (Some(lo), Some(hi)) => {
                Err(self.error_at(token, "the range runs backwards").hint(format!("write `{hi}-{lo}`")))
            }
            _ => {
                let nearest = names::nearest(token.text, names.iter().map(|&(n, _)| n));
                let hint = nearest.map_or(valid, |n| format!("did you mean `{n}`?"));
                Err(self.error_at(token, format!("`{}` is no {what}", shorten(token.text))).hint(hint))
            }
        }
    }

    /// Values of a byte or a part of one, with names.
    fn named(&mut self, what: &str, max: u32, names: &[(&str, u8)]) -> Result<ByteSet, RuleError> {
        let mut set = ByteSet::default();
        loop {
            let (lo, hi) = self.range(what, max, names)?;
            (lo..=hi).filter_map(|v| u8::try_from(v).ok()).for_each(|v| set.insert(v));
            if !self.take(Kind::Comma) {
                return Ok(set);
            }
        }
    }

    fn protocols(&mut self) -> Result<ByteSet, RuleError> {
        self.named("protocol", 255, &names::all_protocols())
    }

    fn dscp(&mut self) -> Result<u64, RuleError> {
        Ok(self.named("DSCP", 63, names::DSCP)?.iter().fold(0, |set, n| set | 1 << n))
    }

    fn ecn(&mut self) -> Result<u8, RuleError> {
        Ok(self.named("ECN code point", 3, names::ECN)?.iter().fold(0, |set, n| set | 1 << n))
    }

    /// `syn,!ack`: which flags are set, and which are clear.
    fn flags(&mut self) -> Result<Test, RuleError> {
        let (mut mask, mut value) = (0, 0);
        loop {
            let clear = self.take(Kind::Not);
            let token = self.here;
            if token.kind != Kind::Word {
                return Err(self.missing("a TCP flag").hint("write `flags syn,!ack`"));
            }
            let Some(bit) = names::number(names::TCP_FLAGS, token.text) else {
                let nearest = names::nearest(token.text, names::TCP_FLAGS.iter().map(|&(n, _)| n));
                let list = || names::TCP_FLAGS.iter().map(|&(n, _)| n).collect::<Vec<_>>().join(", ");
                let hint = nearest
                    .map_or_else(|| format!("flags are {}", list()), |n| format!("did you mean `{n}`?"));
                return Err(self
                    .error_at(token, format!("`{}` is no TCP flag", shorten(token.text)))
                    .hint(hint));
            };
            if mask & bit != 0 && (value & bit == 0) != clear {
                return Err(self.error_at(token, format!("`{}` can't be both set and clear", token.text)));
            }
            mask |= bit;
            value |= if clear { 0 } else { bit };
            self.advance();
            if !self.take(Kind::Comma) {
                return Ok(Test::Flags { mask, value });
            }
        }
    }

    /// An error at the next token.
    fn error(&self, message: impl Into<String>) -> RuleError {
        self.error_at(self.here, message)
    }

    fn error_at(&self, token: Token<'_>, message: impl Into<String>) -> RuleError {
        RuleError::new(self.text, token.offset, token.text.len(), message)
    }

    /// `what` should come after the token before the next one.
    fn missing(&self, what: &str) -> RuleError {
        match self.here.kind {
            Kind::End | Kind::Separator => {
                RuleError::new(self.text, self.end, 1, format!("the rule ends where {what} is missing"))
            }
            _ => self.error(format!("expected {what}, found `{}`", self.here.text)),
        }
    }

    /// The next token can't be here.
    fn unexpected(&self) -> RuleError {
        match self.here.kind {
            Kind::Comma => {
                self.error("unexpected `,`").hint("lists are for values: `port 80,443`; join rules with `or`")
            }
            Kind::Close => self.error("unexpected `)`: a rule is missing before it"),
            Kind::And | Kind::Or => self.error(format!("a rule is missing before `{}`", self.here.text)),
            _ => self.missing("a rule"),
        }
    }

    /// `word` begins no primitive.
    fn unknown(&self, word: Token<'_>) -> RuleError {
        let text = shorten(word.text);
        if word.text.parse::<IpAddr>().is_ok() || word.text.parse::<IpNet>().is_ok() {
            let hint =
                format!("write `host {text}`, `src {text}` or `dst {text}`; lists: `host 10.0.0.1,10.0.0.2`");
            return self.error_at(word, format!("the address `{text}` has no word before it")).hint(hint);
        }
        if word.text.starts_with(|c: char| c.is_ascii_digit()) {
            let hint = format!("write `port {text}` or `vlan {text}`, say; lists: `port 80,443`");
            return self.error_at(word, format!("the value `{text}` has no word before it")).hint(hint);
        }
        let error = self.error_at(word, format!("unknown word `{text}`"));
        match names::hint_for_word(word.text) {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

/// A word short enough for a message.
fn shorten(word: &str) -> String {
    match word.char_indices().nth(40) {
        Some((i, _)) => format!("{}…", word.get(..i).unwrap_or("")),
        None => word.to_owned(),
    }
}
