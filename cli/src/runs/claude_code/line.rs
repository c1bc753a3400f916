//! Reads one line: the fields that determine its place, and the content of a message.
//!
//! A field of an unexpected type counts as missing. Nested values are parsed only on demand, so a
//! line may be nested arbitrarily deep.

use foldlog::conversation::TokenUsage;
use foldlog_codec::escape;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// A field that is not parsed yet.
pub(super) type Field<'a> = Option<&'a RawValue>;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct LineFields<'a> {
    #[serde(rename = "type")]
    pub(super) kind: Field<'a>,
    pub(super) uuid: Field<'a>,
    pub(super) parent_uuid: Field<'a>,
    pub(super) logical_parent_uuid: Field<'a>,
    timestamp: Field<'a>,
    pub(super) is_sidechain: Field<'a>,
    pub(super) agent_id: Field<'a>,
    message: Field<'a>,
    tool_use_result: Field<'a>,
    data: Field<'a>,
    #[serde(rename = "parentToolUseID")]
    parent_call: Field<'a>,
    #[serde(rename = "parent_tool_use_id")]
    parent_call_of_stream: Field<'a>,
    /// `uuid` of the line whose call this line answers.
    #[serde(rename = "sourceToolAssistantUUID")]
    pub(super) source_of_result: Field<'a>,
    /// Id to which a snapshot of the file history belongs.
    pub(super) message_id: Field<'a>,
    snapshot: Field<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(bound(deserialize = "'de: 'a"))]
struct AgentIdField<'a> {
    agent_id: Field<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct MessageFields<'a> {
    pub(super) id: Field<'a>,
    role: Field<'a>,
    pub(super) model: Field<'a>,
    pub(super) content: Field<'a>,
    usage: Field<'a>,
    pub(super) stop_reason: Field<'a>,
}

/// Fields of a block, and the block in its own form.
#[derive(Debug)]
pub(super) struct MessageBlock<'a> {
    pub(super) raw: &'a str,
    pub(super) content: BlockContent<'a>,
}

#[derive(Debug)]
pub(super) enum BlockContent<'a> {
    Text(String),
    Call {
        id: String,
        name: String,
        /// Arguments: JSON.
        input: &'a str,
    },
    /// The result of a call.
    Result {
        id: String,
        /// The result: JSON.
        content: Field<'a>,
        failed: bool,
    },
    Other,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct BlockFields<'a> {
    #[serde(rename = "type")]
    kind: Field<'a>,
    text: Field<'a>,
    id: Field<'a>,
    name: Field<'a>,
    input: Field<'a>,
    tool_use_id: Field<'a>,
    content: Field<'a>,
    is_error: Field<'a>,
}

#[derive(Debug)]
pub(super) enum MessageContent<'a> {
    /// `null`, or nothing.
    None,
    Text(String),
    Blocks(Vec<MessageBlock<'a>>),
}

/// The field of a call's arguments that contains a sub-agent's prompt.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct PromptField<'a> {
    prompt: Field<'a>,
}

/// The files of a snapshot.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(bound(deserialize = "'de: 'a"))]
struct FileHistoryFields<'a> {
    tracked_file_backups: Field<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(bound(deserialize = "'de: 'a"))]
struct Backup<'a> {
    backup_file_name: Field<'a>,
}

/// Parses a field as a type; `None` if it has another type. An unpaired surrogate in a text becomes
/// U+FFFD.
pub(super) fn field<T: DeserializeOwned>(field: Field<'_>) -> Option<T> {
    escape::read_json(field?.get()).ok()
}

/// Parses the fields of an object; `None` if the field is not an object.
pub(super) fn fields<'a, T: Deserialize<'a>>(field: Field<'a>) -> Option<T> {
    let raw = field?.get();
    if raw.starts_with('{') { serde_json::from_str(raw).ok() } else { None }
}

impl<'a> LineFields<'a> {
    /// Parses a line; `None` if it is not a JSON object.
    pub(super) fn read(bytes: &'a [u8]) -> Option<LineFields<'a>> {
        let text = std::str::from_utf8(bytes).ok()?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).trim();
        if text.starts_with('{') { serde_json::from_str(text).ok() } else { None }
    }

    pub(super) fn time_us(&self) -> Option<i64> {
        let text: String = field(self.timestamp)?;
        chrono::DateTime::parse_from_rfc3339(&text).ok().map(|time| time.timestamp_micros())
    }

    /// Returns the agents that the line names without belonging to them: by its result, or by its
    /// progress.
    pub(super) fn agents_named(&self) -> impl Iterator<Item = String> {
        let named = [self.tool_use_result, self.data].map(|part| {
            let named: AgentIdField<'_> = fields(part)?;
            field(named.agent_id)
        });
        named.into_iter().flatten()
    }

    /// Returns the call for which the line was written, according to the line.
    pub(super) fn parent_call(&self) -> Option<String> {
        field(self.parent_call).or_else(|| field(self.parent_call_of_stream))
    }

    /// Returns the message; `None` if the line is not an object with one.
    pub(super) fn message(&self) -> Option<MessageFields<'a>> {
        fields(self.message)
    }

    /// Returns the path of each file in a snapshot of the file history, with the name of its backup
    /// if it existed.
    pub(super) fn backups(&self) -> impl Iterator<Item = (String, Option<String>)> {
        let snapshot: Option<FileHistoryFields<'_>> = fields(self.snapshot);
        let backups = snapshot.and_then(|snapshot| snapshot.tracked_file_backups);
        let backups: std::collections::BTreeMap<String, &RawValue> = fields(backups).unwrap_or_default();
        backups.into_iter().map(|(path, backup)| {
            let backup: Option<Backup<'_>> = fields(Some(backup));
            (path, backup.and_then(|backup| field(backup.backup_file_name)))
        })
    }
}

impl<'a> MessageFields<'a> {
    /// Returns whether the message states that a model wrote it.
    pub(super) fn is_assistants(&self) -> Option<bool> {
        let role: String = field(self.role)?;
        Some(role == "assistant")
    }

    pub(super) fn usage(&self) -> Option<TokenUsage> {
        #[derive(Deserialize)]
        #[serde(bound(deserialize = "'de: 'a"))]
        struct Used<'a> {
            input_tokens: Field<'a>,
            output_tokens: Field<'a>,
            cache_read_input_tokens: Field<'a>,
            cache_creation_input_tokens: Field<'a>,
        }
        let used: Used<'_> = fields(self.usage)?;
        let number = |part| field(part).unwrap_or_default();
        Some(TokenUsage {
            input: number(used.input_tokens),
            output: number(used.output_tokens),
            cache_read: number(used.cache_read_input_tokens),
            cache_write: number(used.cache_creation_input_tokens),
            ..TokenUsage::default()
        })
    }
}

/// Parses the content of a message or of a result. A value that is neither a text nor an array is
/// one block.
pub(super) fn content(raw: Field<'_>) -> MessageContent<'_> {
    let Some(raw) = raw.filter(|raw| raw.get() != "null") else { return MessageContent::None };
    if let Some(text) = field(Some(raw)) {
        return MessageContent::Text(text);
    }
    let blocks: Vec<&RawValue> = serde_json::from_str(raw.get()).unwrap_or_else(|_| vec![raw]);
    MessageContent::Blocks(
        blocks.into_iter().map(|raw| MessageBlock { raw: raw.get(), content: block(raw) }).collect(),
    )
}

fn block(raw: &RawValue) -> BlockContent<'_> {
    let Some(block) = fields::<BlockFields<'_>>(Some(raw)) else { return BlockContent::Other };
    let text = |part| field::<String>(part).unwrap_or_default();
    match text(block.kind).as_str() {
        "text" => BlockContent::Text(text(block.text)),
        "tool_use" => {
            let (id, name) = (text(block.id), text(block.name));
            BlockContent::Call { id, name, input: block.input.map_or("{}", RawValue::get) }
        }
        "tool_result" => {
            let (id, failed) = (text(block.tool_use_id), field(block.is_error).unwrap_or_default());
            BlockContent::Result { id, content: block.content, failed }
        }
        _ => BlockContent::Other,
    }
}

/// Returns the `prompt` of a call's arguments, if they are an object with such a text.
pub(super) fn prompt(input: &str) -> Option<String> {
    let raw: &RawValue = serde_json::from_str(input).ok()?;
    let prompted: PromptField<'_> = fields(Some(raw))?;
    field(prompted.prompt)
}

impl MessageContent<'_> {
    /// Returns the texts of the content, one after the other; `None` if there are none.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            MessageContent::None => None,
            MessageContent::Text(text) => Some(text.clone()),
            MessageContent::Blocks(blocks) => texts(blocks.iter()),
        }
    }
}

/// Returns the texts among blocks, each on its own lines; `None` if there are none.
pub(super) fn texts<'b, 'a: 'b>(blocks: impl Iterator<Item = &'b MessageBlock<'a>>) -> Option<String> {
    let mut texts = blocks.filter_map(|block| match &block.content {
        BlockContent::Text(text) => Some(text.as_str()),
        _ => None,
    });
    let mut all = texts.next()?.to_owned();
    for text in texts {
        all.push('\n');
        all.push_str(text);
    }
    Some(all)
}
