//! Pages of HTML from a template.

use minijinja::{AutoEscape, Environment, UndefinedBehavior};
use serde::Serialize;

/// The style sheet of every page. Charts take their colours and type from it.
pub const STYLE: &str = include_str!("style.css");

/// The template has no place for a value that it is given, or asks for one that it isn't given.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct PageError(#[from] minijinja::Error);

/// The page that a template (Jinja2's language) makes of values. All text is escaped but for what the
/// template calls safe: the style sheet, and charts, which escape their own text.
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
    Ok(engine.template_from_str(template)?.render(minijinja::value::Serde(values))?)
}

#[cfg(test)]
mod tests {
    use super::page;

    #[test]
    fn a_value_that_is_missing_is_an_error() {
        let error = page("<p>{{ name }}</p>", std::collections::BTreeMap::<&str, &str>::new()).unwrap_err();
        assert!(error.to_string().contains("undefined"), "{error}");
    }
}
