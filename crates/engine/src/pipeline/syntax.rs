//! The graph of a pipeline in Click's arrows: from text to stages and wires, every error with its place.
//!
//! ```text
//! fw :: firewall(rules = "acl.txt")    // declares a stage
//! in -> reframe -> fw -> out           // wires stages, port 0 to port 0
//! fw[denied] -> discard                // a port by name or number; [1]nat is an input port
//! ```
//!
//! Statements end at `;` or at the end of a line, unless an arrow says that they go on.

use super::diagnostics::MOST_TOLD;
use slipstream_core::rules::RuleError;
use slipstream_core::settings::Literal;

/// A setting written in the graph itself.
#[derive(Clone, Debug)]
pub(crate) struct Argument {
    pub(crate) key: String,
    pub(crate) value: Literal,
    /// Offset and length of key and of value, in bytes.
    pub(crate) key_at: (usize, usize),
    pub(crate) value_at: (usize, usize),
}

/// A stage as it was mentioned.
#[derive(Clone, Debug)]
pub(crate) struct Mention {
    /// The name: of the stage, or of its type where `arguments` follow it directly.
    pub(crate) name: String,
    /// The type behind `::`.
    pub(crate) kind: Option<(String, (usize, usize))>,
    /// The arguments in parentheses.
    pub(crate) arguments: Option<Vec<Argument>>,
    pub(crate) at: (usize, usize),
}

/// A port as it was written, and where.
#[derive(Clone, Debug)]
pub(crate) struct PortName {
    pub(crate) name: String,
    pub(crate) at: (usize, usize),
}

/// One stage of a chain, with the ports written on either side.
#[derive(Clone, Debug)]
pub(crate) struct Hop {
    pub(crate) input: Option<PortName>,
    pub(crate) stage: Mention,
    pub(crate) output: Option<PortName>,
}

/// Stages joined by arrows; a single one is a declaration.
pub(crate) type Chain = Vec<Hop>;

/// Longest text of a graph, in bytes.
const MAX_LENGTH: usize = 1 << 20;
/// Lists within lists.
const MAX_DEPTH: usize = 16;

/// The chains of a graph. Goes on after an error at the next statement; all errors come back together, as far
/// as they are told, and one more.
pub(crate) fn parse(text: &str) -> Result<Vec<Chain>, Vec<RuleError>> {
    if text.len() > MAX_LENGTH {
        return Err(vec![RuleError::new(text, 0, 1, "the graph is longer than 1 MiB")]);
    }
    let mut parser = Parser { text, at: 0, unclosed: None };
    let mut chains = Vec::new();
    let mut errors = Vec::new();
    loop {
        parser.skip(true);
        if parser.rest().is_empty() || errors.len() > MOST_TOLD {
            break;
        }
        match parser.statement() {
            Ok(chain) => chains.push(chain),
            // The rest is missing then because it is in the comment.
            Err(_) if parser.unclosed.is_some() => {}
            Err(error) => {
                errors.push(*error);
                parser.recover();
            }
        }
    }
    if let Some(at) = parser.unclosed {
        let error = parser.error(at, 2, "this comment is never closed");
        errors.push(error.hint("write `*/` behind it; `#` and `//` begin a comment that ends with its line"));
    }
    if errors.is_empty() { Ok(chains) } else { Err(errors) }
}

type Parsed<T> = Result<T, Box<RuleError>>;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// The beginning of a comment that never ends. The parser stands at the end of the text then.
    unclosed: Option<usize>,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn error(&self, at: usize, len: usize, message: impl Into<String>) -> Box<RuleError> {
        Box::new(RuleError::new(self.text, at, len, message))
    }

    /// Passes over blanks and comments, line ends and `;` too where they mean nothing.
    fn skip(&mut self, lines: bool) {
        self.skip_comments(|c| c == ' ' || c == '\t' || c == '\r' || lines && (c == '\n' || c == ';'));
    }

    /// Passes over comments and what is blank.
    fn skip_comments(&mut self, blank: impl Fn(char) -> bool) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start_matches(&blank);
            self.at += rest.len() - trimmed.len();
            if trimmed.starts_with('#') || trimmed.starts_with("//") {
                self.at += trimmed.find('\n').unwrap_or(trimmed.len());
            } else if trimmed.starts_with("/*") {
                // The end is behind the start: `/*/` is a start alone.
                let end = trimmed.get(2..).and_then(|inside| inside.find("*/"));
                if end.is_none() {
                    self.unclosed = Some(self.at);
                }
                self.at += end.map_or(trimmed.len(), |n| n + 4);
            } else {
                return;
            }
        }
    }

    fn eat(&mut self, what: &str) -> bool {
        let found = self.rest().starts_with(what);
        self.at += if found { what.len() } else { 0 };
        found
    }

    /// Goes on behind the statement that is wrong.
    fn recover(&mut self) {
        let rest = self.rest();
        self.at += rest.find(['\n', ';']).map_or(rest.len(), |n| n + 1);
    }

    fn statement(&mut self) -> Parsed<Chain> {
        let mut chain = vec![self.hop()?];
        loop {
            self.skip(false);
            let end = self.at;
            // An arrow at the start of the next line goes on with this one.
            self.skip(true);
            if self.eat("->") {
                self.skip(true);
                chain.push(self.hop()?);
                continue;
            }
            self.at = end;
            let rest = self.rest();
            if rest.is_empty() || rest.starts_with(['\n', ';']) {
                return Ok(chain);
            }
            let what = rest.chars().next().unwrap_or(' ');
            let error =
                self.error(end, what.len_utf8(), format!("`{}` is not expected here", what.escape_debug()));
            let hint = match what {
                '-' | '=' | '>' => "an arrow is written `->`",
                ',' => "one statement a line: `a -> b`",
                _ => "write `->` between stages, and each statement on a line of its own or behind `;`",
            };
            return Err(Box::new(error.hint(hint)));
        }
    }

    fn hop(&mut self) -> Parsed<Hop> {
        let input = self.port()?;
        self.skip(false);
        let stage = self.mention()?;
        let before = self.at;
        self.skip(false);
        let output = self.port()?;
        if output.is_none() {
            self.at = before;
        }
        Ok(Hop { input, stage, output })
    }

    fn port(&mut self) -> Parsed<Option<PortName>> {
        let open = self.at;
        if !self.eat("[") {
            return Ok(None);
        }
        self.skip(false);
        let (name, at) = self.name().ok_or_else(|| {
            Box::new(
                self.error(open, 1, "a port is missing behind `[`")
                    .hint("write its name or number: `fw[denied]`, `[1]nat`"),
            )
        })?;
        self.skip(false);
        if !self.eat("]") {
            let error = match self.rest().chars().next() {
                None | Some('\n') => self.error(open, 1, "`[` is never closed"),
                Some(c) => {
                    let what = format!("`]` is expected here, not `{}`", c.escape_debug());
                    self.error(self.at, c.len_utf8(), what)
                }
            };
            return Err(Box::new(error.hint("write `]` behind the port")));
        }
        Ok(Some(PortName { name, at }))
    }

    fn word(&mut self) -> Option<(String, (usize, usize))> {
        let rest = self.rest();
        let len =
            rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '@' | '.'))).unwrap_or(rest.len());
        let word = rest.get(..len).filter(|w| !w.is_empty())?;
        let at = (self.at, len);
        self.at += len;
        Some((word.to_owned(), at))
    }

    /// As [`Parser::word`], also with the dashes that names of stages, ports and settings may have inside.
    fn name(&mut self) -> Option<(String, (usize, usize))> {
        let start = self.at;
        self.word()?;
        while self.rest().starts_with('-') && !self.rest().starts_with("->") {
            self.at += 1;
            self.word();
        }
        let name = self.text.get(start..self.at).unwrap_or_default().to_owned();
        Some((name, (start, self.at - start)))
    }

    fn mention(&mut self) -> Parsed<Mention> {
        let Some((name, at)) = self.name() else {
            let what = self.rest().chars().next();
            let said = what.map_or("the end of the graph".to_owned(), |c| format!("`{}`", c.escape_debug()));
            let error = self.error(self.at, 1, format!("a stage is expected here, not {said}"));
            return Err(Box::new(error.hint("write a stage's name, or its type as in `reframe(hold=64us)`")));
        };
        let mut kind = None;
        let before = self.at;
        self.skip(false);
        if self.eat("::") {
            self.skip(false);
            kind = Some(self.name().ok_or_else(|| {
                Box::new(
                    self.error(self.at, 1, "a type is expected behind `::`").hint("as in `fw :: firewall`"),
                )
            })?);
        } else {
            self.at = before;
        }
        let arguments = if self.rest().starts_with('(') { Some(self.arguments()?) } else { None };
        Ok(Mention { name, kind, arguments, at })
    }

    fn arguments(&mut self) -> Parsed<Vec<Argument>> {
        let open = self.at;
        self.at += 1;
        let mut all = Vec::new();
        loop {
            self.skip_in_parentheses();
            if self.eat(")") {
                return Ok(all);
            }
            if self.rest().is_empty() {
                return Err(Box::new(
                    self.error(open, 1, "`(` is never closed").hint("write `)` behind the settings"),
                ));
            }
            // A value that can't be a name is that of the stage's one setting that must be written.
            if all.is_empty()
                && self.rest().starts_with(|c: char| c.is_ascii_digit() || matches!(c, '"' | '\''))
            {
                let before = self.at;
                let value = self.value(0)?;
                let value_at = (before, self.at - before);
                self.skip_in_parentheses();
                if self.eat(",") || self.rest().starts_with(')') {
                    all.push(Argument { key: String::new(), value, key_at: value_at, value_at });
                    continue;
                }
                self.at = before;
            }
            let Some((key, key_at)) = self.name() else {
                let error = self.error(self.at, 1, "a setting is expected here");
                return Err(Box::new(error.hint("write settings as `key=value, key=value`")));
            };
            self.skip_in_parentheses();
            if !self.eat("=") {
                let error = self.error(key_at.0, key_at.1, format!("setting `{key}` has no value"));
                let hint = format!("write `{key}=value`, or `\"{key}\"` if it is the value itself");
                return Err(Box::new(error.hint(hint)));
            }
            self.skip_blanks();
            let start = self.at;
            let value = self.value(0)?;
            all.push(Argument { key, value, key_at, value_at: (start, self.at - start) });
            self.skip_in_parentheses();
            if !self.eat(",") && !self.rest().starts_with(')') {
                if self.rest().is_empty() {
                    continue;
                }
                let error = self.error(self.at, 1, "`,` or `)` is expected here");
                return Err(Box::new(
                    error.hint("put text with blanks or commas in quotes: rules=\"tcp port 80\""),
                ));
            }
        }
    }

    /// Passes over blanks, line ends and comments between settings and between the values of a list.
    fn skip_in_parentheses(&mut self) {
        self.skip_comments(char::is_whitespace);
    }

    /// Passes over blanks and line ends, behind which a value may begin with `//`.
    fn skip_blanks(&mut self) {
        let rest = self.rest();
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
    }

    fn value(&mut self, depth: usize) -> Parsed<Literal> {
        let start = self.at;
        if self.eat("[") {
            if depth == MAX_DEPTH {
                return Err(self.error(start, 1, "lists within lists, too deep"));
            }
            let mut all = Vec::new();
            loop {
                self.skip_in_parentheses();
                if self.eat("]") {
                    return Ok(Literal::List(all));
                }
                if self.rest().is_empty() {
                    return Err(Box::new(
                        self.error(start, 1, "`[` is never closed").hint("write `]` behind the list"),
                    ));
                }
                all.push(self.value(depth + 1)?);
                self.skip_in_parentheses();
                if !self.eat(",") && !self.rest().starts_with(']') && !self.rest().is_empty() {
                    return Err(self.error(self.at, 1, "`,` or `]` is expected here"));
                }
            }
        }
        if let Some(quote) = self.rest().chars().next().filter(|c| *c == '"' || *c == '\'') {
            self.at += 1;
            return self.quoted(start, quote);
        }
        let rest = self.rest();
        let len = rest.find([',', ')', ']', '\n', '"', '\'', '(', ';']).unwrap_or(rest.len());
        let text = before_comment(rest.get(..len).unwrap_or_default()).trim_end();
        if text.is_empty() {
            return Err(Box::new(
                self.error(start, 1, "a value is missing behind `=`")
                    .hint("write it, in quotes where it has blanks"),
            ));
        }
        self.at += text.len();
        Ok(Literal::Text(text.to_owned()))
    }

    fn quoted(&mut self, start: usize, quote: char) -> Parsed<Literal> {
        let mut value = String::new();
        let mut chars = self.rest().char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.at += i + c.len_utf8();
                    return Ok(Literal::Text(value));
                }
                '\\' if quote == '"' => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, 't')) => value.push('\t'),
                    Some((_, c @ ('"' | '\\'))) => value.push(c),
                    Some((_, c)) => value.extend(['\\', c]),
                    None => break,
                },
                c => value.push(c),
            }
        }
        Err(Box::new(
            self.error(start, 1, "a quote is never closed").hint(format!("write {quote} behind the text")),
        ))
    }
}

/// The part of a text without quotes that is no comment. One begins behind a blank: `#` and `//` are parts of
/// words, too.
fn before_comment(text: &str) -> &str {
    let begins = |rest: &str| ["#", "//", "/*"].iter().any(|mark| rest.starts_with(mark));
    let mut blanks = text.char_indices().filter(|(_, c)| c.is_whitespace());
    let end = blanks.find(|(at, c)| text.get(at + c.len_utf8()..).is_some_and(begins));
    end.and_then(|(at, _)| text.get(..at)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chains as text again, to compare with.
    fn shown(text: &str) -> Vec<String> {
        let hop = |h: &Hop| {
            let port = |p: &Option<PortName>| p.as_ref().map_or(String::new(), |p| format!("[{}]", p.name));
            let kind = h.stage.kind.as_ref().map_or(String::new(), |k| format!(" :: {}", k.0));
            let arguments = h.stage.arguments.as_ref().map_or(String::new(), |all| {
                let all: Vec<_> = all.iter().map(|a| format!("{}={:?}", a.key, a.value)).collect();
                format!("({})", all.join(", "))
            });
            format!("{}{}{kind}{arguments}{}", port(&h.input), h.stage.name, port(&h.output))
        };
        let chain = |c: &Chain| c.iter().map(hop).collect::<Vec<_>>().join(" -> ");
        parse(text).unwrap().iter().map(chain).collect()
    }

    #[test]
    fn chains_ports_and_declarations() {
        let text = "in -> reframe // to trains\n  -> fw -> out; fw [denied] -> discard # gone\n\n\
                    fw :: firewall(rules = \"a, b\", size=10)\na[1] -> [in-2x] b-c /* x\n*/ -> d";
        assert_eq!(
            shown(text),
            [
                "in -> reframe -> fw -> out",
                "fw[denied] -> discard",
                "fw :: firewall(rules=Text(\"a, b\"), size=Text(\"10\"))",
                "a[1] -> [in-2x]b-c -> d",
            ]
        );
    }

    #[test]
    fn values() {
        assert_eq!(
            shown("x(a=64us, b='it\"s', c=[1, [2,3], \"q\\\"\"], d=tcp port 80 )"),
            [
                r#"x(a=Text("64us"), b=Text("it\"s"), c=List([Text("1"), List([Text("2"), Text("3")]), Text("q\"")]), d=Text("tcp port 80"))"#
            ]
        );
        assert_eq!(shown("x(10ms, a=1)"), [r#"x(=Text("10ms"), a=Text("1"))"#]);
        assert_eq!(shown("x('a b')"), [r#"x(=Text("a b"))"#]);
        assert_eq!(shown("x(\n a = 1,\n b = 2,\n) -> y"), [r#"x(a=Text("1"), b=Text("2")) -> y"#]);
    }

    #[test]
    fn comments_may_stand_between_settings() {
        for text in [
            "x(a=64us, # the hold\n b=3)",
            "x(a=64us # the hold\n , b=3)",
            "x( // both\n a=64us, b /* one */ = 3 /* ) */ )",
            "x(a=64us,\n # c=4,\n b=3 // three\n)",
            "x(a=64us, b=3 /* x\n */)",
        ] {
            assert_eq!(shown(text), [r#"x(a=Text("64us"), b=Text("3"))"#], "{text}");
        }
    }

    /// Comments begin behind a blank there; right behind `=` a value begins.
    #[test]
    fn values_may_have_the_marks_of_comments() {
        assert_eq!(
            shown("x(a=//srv/a.txt, b=/a#1//b/*, c=\"1 # 2\")"),
            [r##"x(a=Text("//srv/a.txt"), b=Text("/a#1//b/*"), c=Text("1 # 2"))"##]
        );
        assert_eq!(
            shown("x(a=[1, # one\n 2 // two\n, # three\n])"),
            [r#"x(a=List([Text("1"), Text("2")]))"#]
        );
        assert_eq!(parse("x(a=1, /* b=2)").unwrap_err()[0].message, "this comment is never closed");
    }

    #[test]
    fn every_error_has_its_place() {
        let text = "in -> \n -> x\na => b\nf(x) -> g\na[b -> c] -> g\na[b\nf(a=\"b) -> g\nok -> fine";
        let errors: Vec<_> =
            parse(text).unwrap_err().into_iter().map(|e| (e.line, e.column, e.message)).collect();
        let expected = [
            (2, 2, "a stage is expected here, not `-`"),
            (3, 3, "`=` is not expected here"),
            (4, 3, "setting `x` has no value"),
            (5, 5, "`]` is expected here, not `-`"),
            (6, 2, "`[` is never closed"),
            (7, 5, "a quote is never closed"),
        ];
        for (got, want) in errors.iter().zip(expected) {
            assert_eq!((got.0, got.1, got.2.as_str()), want);
        }
        assert_eq!(errors.len(), expected.len());
    }

    #[test]
    fn a_comment_that_is_never_closed_is_an_error_and_leaves_nothing_out() {
        for (text, line, column) in [
            ("in -> out /* the rest\nfw :: firewall", 1, 11),
            ("/*", 1, 1),
            ("in -> out\n /*/ x", 2, 2),
            ("in -> /* x\n -> out", 1, 7),
            ("in /* x */ -> out; /*", 1, 20),
            ("a :: /* b", 1, 6),
            ("a[ /* 1] -> b", 1, 4),
        ] {
            let errors = parse(text).unwrap_err();
            let [error] = errors.as_slice() else { panic!("{text:?}: {errors:?}") };
            assert_eq!((error.line, error.column), (line, column), "{text:?}");
            assert_eq!(error.message, "this comment is never closed");
        }
        assert_eq!(parse("=> x\nin -> out /*").unwrap_err().len(), 2);
        assert_eq!(shown("in /**/ -> out /*/*/"), ["in -> out"]);
    }
}
