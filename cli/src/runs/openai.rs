//! Messages of OpenAI's chat completions: a JSON array, or one JSON object per line.
//!
//! The content of a message is preserved byte for byte, except that an unpaired surrogate in a text
//! becomes U+FFFD. A message whose content is an array of parts, or that has further fields, keeps
//! its own JSON too.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use foldlog::conversation::{ContentBlocks, Role, ToolCallRecord};
use foldlog_agent::pairing::MessageFormat;
use foldlog_codec::escape;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::malformed_error;
use crate::failure::{CommandError, Result};

/// Maximum size of a file in bytes: it is read into memory as a whole.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// A message of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatFileMessage {
    /// Role of the author; a developer counts as the system.
    pub role: Role,
    /// Text; `None` if the message has none.
    pub content: Option<String>,
    /// The content, or the whole message, in the file's own form if the fields here do not
    /// represent it completely.
    pub blocks: Option<ContentBlocks>,
    /// Name of the speaker or tool.
    pub name: Option<String>,
    /// Id of the call whose result the message is.
    pub call_id: Option<String>,
    /// Calls that the message makes.
    pub calls: Vec<ToolCallRecord>,
}

/// Reads the text of a file.
///
/// # Errors
///
/// [`Error::File`](foldlog_view::Error::File) if the file cannot be read,
/// [`CommandError::Malformed`] if it is not UTF-8, or too large.
pub fn read(path: &Path) -> Result<String> {
    let failed = |source| CommandError::file(path, source);
    let mut bytes = Vec::new();
    let mut file = File::open(path).map_err(failed)?.take(FILE_BYTES_MAX + 1);
    file.read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(malformed_error(path, None, format!("the file has more than {FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        malformed_error(path, None, format!("the file is not UTF-8 at byte {at}"))
    })
}

/// Passes the messages of a file's text to `visit`, in order, until it fails. Errors name `path`.
///
/// # Errors
///
/// [`CommandError::Malformed`] with the place of the message and the field if the text is not a
/// list of messages, or the error of `visit`.
pub fn each(path: &Path, text: &str, visit: &mut dyn FnMut(ChatFileMessage) -> Result<()>) -> Result<()> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut failure = None;
    if text.trim_start().starts_with('[') {
        let mut number = 0_usize;
        let mut element = |raw: &RawValue| {
            let said = parse_message(raw)
                .map_err(|reason| malformed_error(path, None, format!("message {number}, {reason}")));
            number += 1;
            visit(said?)
        };
        let elements = Elements { visit: &mut element, failure: &mut failure };
        let mut json = serde_json::Deserializer::from_str(text);
        let read = elements.deserialize(&mut json).and_then(|()| json.end());
        return match (failure, read) {
            (Some(failure), _) => Err(failure),
            (None, Err(error)) => Err(malformed_error(path, None, format!("the file is not JSON: {error}"))),
            (None, Ok(())) => Ok(()),
        };
    }
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |reason: String| malformed_error(path, None, format!("line {number}, {reason}"));
        let raw: &RawValue =
            serde_json::from_str(line).map_err(|error| wrong(format!("it is not JSON: {error}")))?;
        visit(parse_message(raw).map_err(wrong)?)?;
    }
    Ok(())
}

/// Visits the elements of an array one after the other, so that they are never in memory together.
struct Elements<'a, 'f> {
    visit: &'a mut dyn FnMut(&RawValue) -> Result<()>,
    failure: &'f mut Option<CommandError>,
}

impl<'de> DeserializeSeed<'de> for Elements<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Elements<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        while let Some(raw) = elements.next_element::<&RawValue>()? {
            if let Err(failure) = (self.visit)(raw) {
                *self.failure = Some(failure);
                return Err(A::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

/// Fields of a message, not yet parsed.
#[derive(Default)]
struct Fields<'a> {
    role: Option<&'a RawValue>,
    content: Option<&'a RawValue>,
    name: Option<&'a RawValue>,
    call_id: Option<&'a RawValue>,
    calls: Option<&'a RawValue>,
    function_call: Option<&'a RawValue>,
    /// Whether there are other fields that are not `null`.
    others: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'a>, D::Error> {
        deserializer.deserialize_map(FieldsVisitor(std::marker::PhantomData))
    }
}

struct FieldsVisitor<'a>(std::marker::PhantomData<&'a ()>);

impl<'de: 'a, 'a> Visitor<'de> for FieldsVisitor<'a> {
    type Value = Fields<'a>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a message: a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'a>, A::Error> {
        let mut fields = Fields::default();
        while let Some(name) = map.next_key::<String>()? {
            let value: &RawValue = map.next_value()?;
            let place = match name.as_str() {
                "role" => &mut fields.role,
                "content" => &mut fields.content,
                "name" => &mut fields.name,
                "tool_call_id" => &mut fields.call_id,
                "tool_calls" => &mut fields.calls,
                "function_call" => &mut fields.function_call,
                _ => {
                    fields.others |= value.get() != "null";
                    continue;
                }
            };
            if place.is_some() {
                return Err(A::Error::custom(format!("the field `{name}` occurs twice")));
            }
            *place = Some(value).filter(|value| value.get() != "null");
        }
        Ok(fields)
    }
}

/// Parses one message. The error names the wrong field.
fn parse_message(raw: &RawValue) -> Result<ChatFileMessage, String> {
    let fields: Fields<'_> = serde_json::from_str(raw.get()).map_err(|error| strip_position(&error))?;
    let role = text("role", fields.role)?.ok_or("field `role`: it is missing")?;
    let (role, developer) = match role.as_str() {
        "developer" => (Role::System, true),
        role => {
            (Role::from_name(role).ok_or_else(|| format!("field `role`: there is no role `{role}`"))?, false)
        }
    };
    if fields.function_call.is_some() {
        return Err("field `function_call`: it is obsolete; give the call in `tool_calls`".to_owned());
    }
    let calls = calls(fields.calls)?;
    if role != Role::Assistant && !calls.is_empty() {
        return Err(format!(
            "field `tool_calls`: a message of the role `{}` cannot contain calls",
            role.name()
        ));
    }
    let call_id = text("tool_call_id", fields.call_id)?;
    if role == Role::Tool && call_id.is_none() {
        return Err("field `tool_call_id`: it is missing".to_owned());
    }
    let (content, parts) = content(fields.content)?;
    // A result may answer its call under another id, so it keeps the own form of its content only.
    let whole = (fields.others || developer) && role != Role::Tool;
    let json = if whole { Some(raw.get()) } else { parts };
    let blocks = json
        .map(|json| ContentBlocks { format: MessageFormat::OpenAi.name().to_owned(), json: json.to_owned() });
    let call_id = call_id.filter(|_| role == Role::Tool);
    Ok(ChatFileMessage { role, content, blocks, name: text("name", fields.name)?, call_id, calls })
}

fn text(field: &str, raw: Option<&RawValue>) -> Result<Option<String>, String> {
    let Some(raw) = raw else { return Ok(None) };
    let read = escape::read_json(raw.get());
    read.map(Some).map_err(|error| format!("field `{field}`: it is not a string: {}", strip_position(&error)))
}

/// Returns the text of a content, or the JSON of its parts.
fn content(raw: Option<&RawValue>) -> Result<(Option<String>, Option<&str>), String> {
    let Some(raw) = raw else { return Ok((None, None)) };
    if !raw.get().starts_with('[') {
        return Ok((text("content", Some(raw))?, None));
    }
    #[derive(Deserialize)]
    struct Part {
        #[serde(rename = "type")]
        _type: IgnoredAny,
    }
    let parts: Result<Vec<Part>, _> = serde_json::from_str(raw.get());
    parts.map_err(|error| {
        format!("field `content`: a part is not an object with a `type`: {}", strip_position(&error))
    })?;
    Ok((None, Some(raw.get())))
}

#[derive(Deserialize)]
struct OpenAiCall<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    r#type: Option<&'a RawValue>,
    #[serde(borrow, default)]
    function: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

fn calls(raw: Option<&RawValue>) -> Result<Vec<ToolCallRecord>, String> {
    let Some(raw) = raw else { return Ok(Vec::new()) };
    let calls: Vec<OpenAiCall<'_>> = serde_json::from_str(raw.get()).map_err(|error| {
        format!("field `tool_calls`: it is not an array of calls: {}", strip_position(&error))
    })?;
    let calls = calls.into_iter().enumerate().map(|(ordinal, call)| {
        let field = |name: &str| format!("tool_calls[{ordinal}].{name}");
        let required = |name: &str, raw| {
            text(&field(name), raw)?.ok_or_else(|| format!("field `{}`: it is missing", field(name)))
        };
        if text(&field("type"), call.r#type)?.is_some_and(|kind| kind != "function") {
            return Err(format!("field `{}`: only calls of functions can be imported", field("type")));
        }
        let function =
            call.function.ok_or_else(|| format!("field `{}`: it is missing", field("function")))?;
        let function: Function<'_> = serde_json::from_str(function.get())
            .map_err(|error| format!("field `{}`: {}", field("function"), strip_position(&error)))?;
        Ok(ToolCallRecord {
            call_id: required("id", call.id)?,
            name: required("function.name", function.name)?,
            arguments: required("function.arguments", function.arguments)?,
        })
    });
    calls.collect()
}

/// Returns an error's text without line and column, which are relative to a part of the file.
fn strip_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rfind(" at line ").and_then(|at| text.get(..at)).unwrap_or(&text).to_owned()
}
