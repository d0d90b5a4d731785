//! From text to tokens: words, operators, and the line breaks that separate rules.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::error::RuleError;

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A keyword, name, number, range or address.
    Word,
    And,
    Or,
    Not,
    Open,
    Close,
    Comma,
    /// `;`, or a line break at which no operator says that the rule goes on.
    Separator,
    End,
}

/// A token and where it is, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    pub(super) offset: usize,
}

/// The tokens of `text`, the last one being [`Kind::End`].
///
/// # Errors
/// A character that belongs to no token.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, RuleError> {
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let mut offset = 0;
    // A line break counts only once it is known what comes after it.
    let mut line_break: Option<Token<'_>> = None;
    while let Some(rest) = text.get(offset..).filter(|r| !r.is_empty()) {
        let (kind, len) = scan(rest).map_err(|(message, hint)| {
            let error = RuleError::new(text, offset, 1, message);
            if let Some(hint) = hint { error.hint(hint) } else { error }
        })?;
        let token = |kind| Token { kind, text: rest.get(..len).unwrap_or(rest), offset };
        match kind {
            Scan::Blank => {}
            Scan::LineBreak => line_break = line_break.or(Some(token(Kind::Separator))),
            Scan::Token(kind) => {
                if let Some(separator) = line_break.take()
                    && !continues(tokens.last().map(|t| t.kind), kind)
                {
                    tokens.push(separator);
                }
                tokens.push(token(kind));
            }
        }
        offset += len;
    }
    tokens.push(Token { kind: Kind::End, text: "", offset: text.len() });
    Ok(tokens)
}

/// Returns true if a rule goes on over a line break between these two tokens.
fn continues(before: Option<Kind>, after: Kind) -> bool {
    use Kind::{And, Close, Comma, Not, Open, Or, Separator};
    matches!(before, None | Some(And | Or | Not | Open | Comma | Separator))
        || matches!(after, And | Or | Close | Comma | Separator)
}

/// The item that the text begins with.
enum Scan {
    Blank,
    LineBreak,
    Token(Kind),
}

type Unexpected = (String, Option<&'static str>);

/// The first token of `rest`, which isn't empty, and its length in bytes.
fn scan(rest: &str) -> Result<(Scan, usize), Unexpected> {
    use Scan::{Blank, LineBreak, Token};
    let mut chars = rest.chars();
    let (first, second) = (chars.next().unwrap_or(' '), chars.next());
    Ok(match first {
        '\n' => (LineBreak, 1),
        ' ' | '\t' | '\r' => (Blank, 1),
        '#' => (Blank, rest.find('\n').unwrap_or(rest.len())),
        ';' => (Token(Kind::Separator), 1),
        '(' => (Token(Kind::Open), 1),
        ')' => (Token(Kind::Close), 1),
        ',' => (Token(Kind::Comma), 1),
        '!' if second != Some('=') => (Token(Kind::Not), 1),
        '&' if second == Some('&') => (Token(Kind::And), 2),
        '|' if second == Some('|') => (Token(Kind::Or), 2),
        c if in_word(c) => {
            let len = rest.find(|c| !in_word(c)).unwrap_or(rest.len());
            let word = rest.get(..len).unwrap_or(rest);
            let is = |name: &str| word.eq_ignore_ascii_case(name);
            let kind = match () {
                () if is("and") => Kind::And,
                () if is("or") => Kind::Or,
                () if is("not") => Kind::Not,
                () => Kind::Word,
            };
            (Token(kind), len)
        }
        c => return Err((format!("unexpected character `{}`", c.escape_debug()), hint_for_character(c))),
    })
}

/// Returns true if `c` can be part of a word: letters and digits, and what addresses, prefixes, ranges and
/// names hold besides.
fn in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '/' | '-' | '_')
}

fn hint_for_character(c: char) -> Option<&'static str> {
    Some(match c {
        '&' => "write `and` or `&&`",
        '|' => "write `or` or `||`",
        '=' | '!' => "a value follows its word: `port 80`, `not port 80`",
        '<' | '>' => "write ranges with `-`: `length 0-100`, `port 1024-65535`",
        '[' | ']' => "rules ask for TCP flags by name, `syn`, and can't ask for other bytes of a packet",
        '"' | '\'' => "rules need no quotes",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind> {
        tokens(text).unwrap().into_iter().map(|t| t.kind).collect()
    }

    #[test]
    fn tokens_know_where_they_are() {
        let got: Vec<_> =
            tokens("tcp && !port 80-90 # end").unwrap().iter().map(|t| (t.text, t.offset)).collect();
        assert_eq!(got, [("tcp", 0), ("&&", 4), ("!", 7), ("port", 8), ("80-90", 13), ("", 24)]);
    }

    #[test]
    fn a_line_break_separates_unless_an_operator_joins() {
        use Kind::{And, Close, Comma, End, Not, Open, Or, Separator, Word};
        for (text, expected) in [
            ("a\nb", vec![Word, Separator, Word, End]),
            ("a\r\n\r\n# note\nb", vec![Word, Separator, Word, End]),
            ("\n\na\n\n", vec![Word, End]),
            ("a;\nb", vec![Word, Separator, Word, End]),
            ("a\n;b", vec![Word, Separator, Word, End]),
            ("a and\nb", vec![Word, And, Word, End]),
            ("a\nor b", vec![Word, Or, Word, End]),
            ("a\nnot b", vec![Word, Separator, Not, Word, End]),
            ("not\nb", vec![Not, Word, End]),
            ("(\na\n)\nb", vec![Open, Word, Close, Separator, Word, End]),
            ("a,\nb", vec![Word, Comma, Word, End]),
        ] {
            assert_eq!(kinds(text), expected, "{text:?}");
        }
    }
}
