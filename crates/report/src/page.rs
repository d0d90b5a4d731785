//! Pages of HTML from a template.

use minijinja::{AutoEscape, Environment, UndefinedBehavior};
use serde::Serialize;

/// The style sheet of every page. Charts take their colours and type from it.
pub const STYLE: &str = include_str!("style.css");

/// The head of every page: its title, the style sheet, and the policy by which it loads and runs nothing.
const HEAD: &str = include_str!("head.html");

/// The tables of `sheets`, each a [`Sheet`](crate::Sheet).
const SHEETS: &str = include_str!("sheets.html");

/// The template has no place for a value that it is given, or asks for one that it isn't given.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct PageError(#[from] minijinja::Error);

/// The page that a template (Jinja2's language) makes of values. All text is escaped but for what the
/// template calls safe: the style sheet, and charts, which escape their own text. A whole page begins with
/// `{% set page_title = "…" %}{% include "head.html" %}`, and goes on with its body, in which
/// `{% set sheets = … %}{% include "sheets.html" %}` shows tables ([`Sheet`](crate::Sheet)).
///
/// ```
/// # #[derive(serde::Serialize)]
/// # struct Values { name: &'static str }
/// let page = slipstream_report::page("<p>{{ name }}</p>", Values { name: "a < b" })?;
/// assert_eq!(page, "<p>a &lt; b</p>");
/// # Ok::<(), slipstream_report::PageError>(())
/// ```
///
/// # Errors
/// [`PageError`] where the template doesn't fit the values.
pub fn page(template: &str, values: impl Serialize) -> Result<String, PageError> {
    let mut engine = Environment::new();
    engine.set_auto_escape_callback(|_| AutoEscape::Html);
    engine.set_undefined_behavior(UndefinedBehavior::Strict);
    engine.add_global("style", STYLE);
    engine.add_template("head.html", HEAD)?;
    engine.add_template("sheets.html", SHEETS)?;
    Ok(engine.template_from_str(template)?.render(minijinja::value::Serde(values))?)
}

#[cfg(test)]
mod tests {
    use super::page;

    #[test]
    fn pages_share_a_head() {
        let template = r#"{% set page_title = "a < " ~ name %}{% include "head.html" %}<body></body>"#;
        let page = page(template, std::collections::BTreeMap::from([("name", "b & c")])).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</head><body></body>"), "{page}");
        assert!(page.contains("<title>a &lt; b &amp; c</title>") && page.contains(super::STYLE), "{page}");
        assert!(page.contains("default-src 'none'"), "{page}");
    }

    #[test]
    fn a_value_that_is_missing_is_an_error() {
        let error = page("<p>{{ name }}</p>", std::collections::BTreeMap::<&str, &str>::new()).unwrap_err();
        assert!(error.to_string().contains("undefined"), "{error}");
    }
}
