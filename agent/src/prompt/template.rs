//! Substitutes the placeholders of templates.
//!
//! `${name}` is replaced with the parameter of that name. A name is an ASCII letter or `_`,
//! followed by letters, digits and `_`. Before `{`, two dollars produce one dollar that starts no
//! placeholder: `$${name}` becomes the text `${name}`, and `$$${name}` a dollar and a parameter.
//! Any other dollar is literal, so `$5`, `$HOME` and `$$` need no escape. The value of a parameter
//! is never parsed as a template.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{PromptError, SectionPath};

/// Number of characters of a malformed placeholder that an error shows.
const SHOWN: usize = 24;

pub(super) fn fill(
    template: &str,
    parameters: &BTreeMap<String, Value>,
    section: &SectionPath,
) -> Result<String, PromptError> {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(brace) = rest.find("${") {
        let (before, from_brace) = rest.split_at(brace + 1);
        let plain = before.trim_end_matches('$');
        let dollars = before.len() - plain.len();
        text.push_str(plain);
        text.extend(std::iter::repeat_n('$', dollars / 2));
        rest = from_brace.strip_prefix('{').unwrap_or(from_brace);
        if dollars % 2 == 0 {
            text.push('{');
            continue;
        }
        let invalid = || PromptError::InvalidTemplate {
            section: section.clone(),
            found: format!("${{{}", rest.chars().take(SHOWN).collect::<String>()),
        };
        let (name, behind) = rest.split_once('}').filter(|(name, _)| is_name(name)).ok_or_else(invalid)?;
        append(&mut text, parameters.get(name)).ok_or_else(|| PromptError::MissingParameter {
            section: section.clone(),
            parameter: name.to_owned(),
        })?;
        rest = behind;
    }
    text.push_str(rest);
    Ok(text)
}

/// Appends a parameter's value: text unchanged, any other value as JSON. Returns `None` if there is
/// no value.
fn append(text: &mut String, value: Option<&Value>) -> Option<()> {
    match value? {
        Value::Null => return None,
        Value::String(value) => text.push_str(value),
        value => text.push_str(&value.to_string()),
    }
    Some(())
}

fn is_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
}
