//! Checks values against a JSON schema, to the extent that the schemas of Rust types require.
//!
//! The check covers `$ref` to `$defs`, `type`, `enum`, `const`, `properties`, `required`,
//! `additionalProperties`, `items`, `prefixItems`, `allOf`, `anyOf`, `oneOf`, and the limits of
//! numbers, texts and lists. Other keywords, including `pattern` and `format`, accept everything.

use serde_json::{Map, Value};

/// Greatest depth to which a schema is followed. Deeper parts are accepted, and left to the type.
const DEPTH_MAX: usize = 256;

/// Makes each object of a schema refuse fields that it does not name, unless the schema states
/// otherwise.
pub(super) fn close(schema: &mut Value) {
    let Some(keywords) = schema.as_object_mut() else { return };
    let is_combined = ["allOf", "anyOf", "oneOf", "$ref", "unevaluatedProperties", "additionalProperties"]
        .iter()
        .any(|keyword| keywords.contains_key(*keyword));
    let has_fields =
        keywords.get("type").is_some_and(|kind| kind == "object") && keywords.contains_key("properties");
    if has_fields && !is_combined {
        keywords.insert("additionalProperties".to_owned(), false.into());
    }
    for keyword in ["properties", "$defs"] {
        if let Some(Value::Object(schemas)) = keywords.get_mut(keyword) {
            schemas.values_mut().for_each(close);
        }
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(schema) = keywords.get_mut(keyword) {
            close(schema);
        }
    }
    // Fields next to `anyOf` belong to each alternative, so the alternatives must accept them.
    let alternatives: &[&str] =
        if has_fields { &["prefixItems"] } else { &["prefixItems", "anyOf", "oneOf"] };
    for keyword in alternatives {
        if let Some(Value::Array(schemas)) = keywords.get_mut(*keyword) {
            schemas.iter_mut().for_each(close);
        }
    }
}

/// Checks a value against a schema.
///
/// # Errors
///
/// Describes the problem and its place in the value, in words for the model.
pub(super) fn check(schema: &Value, value: &Value) -> Result<(), String> {
    Checker { root: schema }.check(schema, value, "", 0)
}

struct Checker<'a> {
    root: &'a Value,
}

type SchemaCheckResult = Result<(), String>;

impl<'a> Checker<'a> {
    fn check(&self, schema: &'a Value, value: &Value, at: &str, depth: usize) -> SchemaCheckResult {
        let keywords = match schema {
            Value::Bool(false) => return Err(format!("{} is not allowed", place(at))),
            Value::Object(keywords) if depth < DEPTH_MAX => keywords,
            _ => return Ok(()),
        };
        if let Some(schema) = keywords.get("$ref").and_then(|reference| self.find(reference)) {
            self.check(schema, value, at, depth + 1)?;
        }
        check_kind(keywords, value, at)?;
        check_limits(keywords, value, at)?;
        match value {
            Value::Object(fields) => self.check_fields(keywords, fields, at, depth)?,
            Value::Array(items) => self.check_items(keywords, items, at, depth)?,
            _ => {}
        }
        self.check_combined(keywords, value, at, depth)
    }

    fn find(&self, reference: &Value) -> Option<&'a Value> {
        self.root.pointer(reference.as_str()?.strip_prefix('#')?)
    }

    fn check_fields(
        &self,
        keywords: &'a Map<String, Value>,
        fields: &Map<String, Value>,
        at: &str,
        depth: usize,
    ) -> SchemaCheckResult {
        let required = keywords.get("required").and_then(Value::as_array).into_iter().flatten();
        if let Some(missing) = required.filter_map(Value::as_str).find(|name| !fields.contains_key(*name)) {
            return Err(format!("{} lacks the field `{missing}`", place(at)));
        }
        let properties = keywords.get("properties").and_then(Value::as_object);
        let others = keywords.get("additionalProperties");
        for (name, value) in fields {
            let at = format!("{at}/{name}");
            match (properties.and_then(|properties| properties.get(name)), others) {
                (Some(schema), _) => self.check(schema, value, &at, depth + 1)?,
                (None, Some(Value::Bool(false))) => {
                    let known: Vec<_> =
                        properties.into_iter().flat_map(Map::keys).map(String::as_str).collect();
                    return Err(format!("the field `{at}` is unknown; known are: {}", known.join(", ")));
                }
                (None, Some(schema)) => self.check(schema, value, &at, depth + 1)?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    fn check_items(
        &self,
        keywords: &'a Map<String, Value>,
        items: &[Value],
        at: &str,
        depth: usize,
    ) -> SchemaCheckResult {
        let first = keywords.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let rest = keywords.get("items");
        for (index, item) in items.iter().enumerate() {
            if let Some(schema) = first.get(index).or(rest) {
                self.check(schema, item, &format!("{at}/{index}"), depth + 1)?;
            }
        }
        Ok(())
    }

    fn check_combined(
        &self,
        keywords: &'a Map<String, Value>,
        value: &Value,
        at: &str,
        depth: usize,
    ) -> SchemaCheckResult {
        for schema in keywords.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            self.check(schema, value, at, depth + 1)?;
        }
        for keyword in ["anyOf", "oneOf"] {
            let Some(schemas) = keywords.get(keyword).and_then(Value::as_array) else { continue };
            let mut errors = Vec::new();
            for schema in schemas {
                match self.check(schema, value, at, depth + 1) {
                    Ok(()) => {
                        errors.clear();
                        break;
                    }
                    Err(error) => errors.push(error),
                }
            }
            if !errors.is_empty() {
                return Err(format!("{} is none of what is allowed: {}", place(at), errors.join(", or ")));
            }
        }
        Ok(())
    }
}

fn place(at: &str) -> String {
    if at.is_empty() { "the value".to_owned() } else { format!("`{at}`") }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn check_kind(keywords: &Map<String, Value>, value: &Value, at: &str) -> SchemaCheckResult {
    let is_kind = |expected: &Value| match expected.as_str() {
        Some("integer") => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
        }
        Some(expected) => expected == kind(value),
        None => true,
    };
    let fits = match keywords.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(is_kind),
        Some(expected) => is_kind(expected),
    };
    if !fits {
        let expected = keywords.get("type").map(Value::to_string).unwrap_or_default();
        return Err(format!("{} has the type \"{}\" in place of {expected}", place(at), kind(value)));
    }
    let allowed = keywords.get("enum").and_then(Value::as_array);
    if allowed.is_some_and(|allowed| !allowed.contains(value)) {
        let allowed: Vec<_> = allowed.into_iter().flatten().map(Value::to_string).collect();
        return Err(format!("{} is none of {}", place(at), allowed.join(", ")));
    }
    match keywords.get("const") {
        Some(expected) if expected != value => Err(format!("{} is not {expected}", place(at))),
        _ => Ok(()),
    }
}

fn check_limits(keywords: &Map<String, Value>, value: &Value, at: &str) -> SchemaCheckResult {
    let (found, limits): (f64, &[(&str, bool, bool)]) = match value {
        Value::Number(number) => (
            number.as_f64().unwrap_or_default(),
            &[
                ("minimum", true, true),
                ("exclusiveMinimum", true, false),
                ("maximum", false, true),
                ("exclusiveMaximum", false, false),
            ],
        ),
        Value::String(text) => {
            (text.chars().count() as f64, &[("minLength", true, true), ("maxLength", false, true)])
        }
        Value::Array(items) => (items.len() as f64, &[("minItems", true, true), ("maxItems", false, true)]),
        _ => return Ok(()),
    };
    for (keyword, is_lower, is_inclusive) in limits {
        let Some(limit) = keywords.get(*keyword).and_then(Value::as_f64) else { continue };
        let is_within = if *is_lower { found > limit } else { found < limit };
        let is_at_limit = *is_inclusive && found == limit;
        if !is_within && !is_at_limit {
            return Err(format!("{} breaks the rule \"{keyword}\": {limit}", place(at)));
        }
    }
    Ok(())
}
