//! Parses and checks a model's output.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::schema;
use crate::json_size::{self, VALUES_MAX};
use crate::provider::OutputSpec;

/// Reports why a text is not the output that the prompt expects. Its message states the problem and
/// the expectation, and may be shown to the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "The answer is not a valid `{output}`: {}. Answer with one JSON value that matches the schema of `{output}`, and with \
     nothing else.",
    foldlog::escape::text(.reason)
)]
pub struct OutputError {
    /// Name of the output's type.
    pub output: String,
    /// Problem of the text.
    pub reason: String,
}

type Parse<O> = fn(&OutputSpec, &str) -> Result<O, OutputError>;

/// Removes from a JSON value the fields that its type does not have.
type Prune = fn(&mut Value);

/// Describes the output of a prompt, and parses it.
pub(super) enum Output<O> {
    /// The text itself. The function returns its argument.
    Text(fn(&str) -> O),
    /// JSON of a type.
    Json { spec: OutputSpec, parse: Parse<O>, prune: Prune },
}

impl Output<String> {
    pub(super) fn text() -> Output<String> {
        Output::Text(str::to_owned)
    }
}

impl<O: DeserializeOwned + JsonSchema> Output<O> {
    pub(super) fn json() -> Output<O> {
        let mut schema = schemars::schema_for!(O).to_value();
        schema::close(&mut schema);
        let spec = OutputSpec { name: O::schema_name().into_owned(), schema };
        Output::Json { spec, parse: parse::<O>, prune: prune::<O> }
    }
}

impl<O> Output<O> {
    pub(super) fn spec(&self) -> Option<&OutputSpec> {
        match self {
            Output::Text(_) => None,
            Output::Json { spec, .. } => Some(spec),
        }
    }

    pub(super) fn parse(&self, text: &str) -> Result<O, OutputError> {
        match self {
            Output::Text(read) => Ok(read(text)),
            Output::Json { spec, parse, .. } => parse(spec, text),
        }
    }

    pub(super) fn without_unknown(&self, text: &str) -> String {
        match (self, find_json(text)) {
            (Output::Json { prune, .. }, Ok((_, mut value))) => {
                prune(&mut value);
                value.to_string()
            }
            _ => text.to_owned(),
        }
    }
}

/// Removes the fields that a type does not have.
fn prune<O: DeserializeOwned>(value: &mut Value) {
    let mut unknown = Vec::new();
    // Errors in known fields are reported by the later parse.
    let _ = serde_ignored::deserialize::<_, _, O>(&*value, |path| unknown.extend(pointer(&path)));
    for (parent, field) in unknown {
        if let Some(object) = value.pointer_mut(&parent).and_then(Value::as_object_mut) {
            object.remove(&field);
        }
    }
}

/// Returns the JSON pointer of a field's object, and the field's name; `None` for anything but a
/// field.
fn pointer(path: &serde_ignored::Path<'_>) -> Option<(String, String)> {
    use serde_ignored::Path;
    fn pointer_to(path: &Path<'_>) -> String {
        match path {
            Path::Root => String::new(),
            Path::Seq { parent, index } => format!("{}/{index}", pointer_to(parent)),
            Path::Map { parent, key } => {
                format!("{}/{}", pointer_to(parent), key.replace('~', "~0").replace('/', "~1"))
            }
            Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
                pointer_to(parent)
            }
        }
    }
    match path {
        Path::Map { parent, key } => Some((pointer_to(parent), key.clone())),
        _ => None,
    }
}

fn parse<O: DeserializeOwned>(spec: &OutputSpec, text: &str) -> Result<O, OutputError> {
    let invalid = |reason: String| OutputError { output: spec.name.clone(), reason };
    let (json, value) = find_json(text).map_err(invalid)?;
    schema::check(&spec.schema, &value).map_err(invalid)?;
    let mut unknown = Vec::new();
    let mut reader = serde_json::Deserializer::from_str(json);
    let output = serde_ignored::deserialize(&mut reader, |path| unknown.push(path.to_string()))
        .map_err(|error| invalid(error.to_string()))?;
    if unknown.is_empty() {
        Ok(output)
    } else {
        Err(invalid(format!("unknown fields: {}", unknown.join(", "))))
    }
}

/// Finds the JSON in a text: the text itself or, if it is not JSON, its only fenced code block.
fn find_json(text: &str) -> Result<(&str, Value), String> {
    let text = text.trim();
    if !json_size::is_moderate(text.as_bytes()) {
        return Err(format!("it has more than {VALUES_MAX} values"));
    }
    let error = match serde_json::from_str(text) {
        Ok(value) => return Ok((text, value)),
        Err(error) => error,
    };
    match fenced_blocks(text).as_slice() {
        [] if text.is_empty() => Err("the answer is empty".to_owned()),
        [] => Err(format!("it is no JSON: {error}")),
        [block] => match serde_json::from_str(block) {
            Ok(value) => Ok((block, value)),
            Err(error) => Err(format!("its code block is no JSON: {error}")),
        },
        blocks => Err(format!("it has {} code blocks, and one is expected", blocks.len())),
    }
}

/// Returns the contents of all fenced code blocks of a text. An unclosed block ends with the text.
fn fenced_blocks(text: &str) -> Vec<&str> {
    let mut blocks = Vec::new();
    let mut begun: Option<(&str, usize)> = None;
    let mut position = 0;
    for line in text.split_inclusive('\n') {
        let marks = line.trim_start();
        let marks = marks.get(..marks.len() - marks.trim_start_matches('`').len()).unwrap_or_default();
        let next = position + line.len();
        match begun {
            None if marks.len() >= 3 => begun = Some((marks, next)),
            Some((fence, from)) if marks.len() >= fence.len() && line.trim() == marks => {
                blocks.extend(text.get(from..position));
                begun = None;
            }
            _ => {}
        }
        position = next;
    }
    blocks.extend(begun.and_then(|(_, from)| text.get(from..)));
    blocks
}
