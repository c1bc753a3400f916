//! Imports the lines that were appended to a transcript into the conversations of a timeline.
//!
//! The conversation follows the lines of the file: after a rewind within the agent, it contains all
//! branches, one after the other.
//!
//! # Kills and changed files
//!
//! The timeline records up to which byte a transcript is imported ([`TranscriptImported`]), after the
//! messages of these bytes. If the process is killed in between, or if the file does not contain
//! these bytes any more, its lines are read again, and those with a recorded message are skipped:
//! inputs have ids, and an answer names its lines.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use chrono::DateTime;
use foldlog::conversation::{
    ContentBlocks, EntryContent, NewAnswer, NewInput, OriginalMessage, Role, ToolCallRecord,
};
use foldlog::{SequenceNumber, Session};
use foldlog_agent::pairing::MessageFormat;
use foldlog_timeline::{Timeline, TranscriptImported, WITHHELD, names_secrets, shorten};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::line::{
    BlockContent, Field, LineFields, MessageBlock, MessageContent, MessageFields, content, field, fields,
    texts,
};
use super::scan::{open, subagents};
use crate::failure::{CommandError, Result};

/// Longer lines are named, and not shown.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Longer blocks in the provider's form, such as images, are not shown.
const BLOCKS_BYTES_MAX: usize = 64 << 10;

/// Number of bytes before the end of the imported ones by which a file is recognized.
const DIGEST_BYTES: u64 = 4096;

/// Fields of a call's arguments that determine which files its result shows.
#[derive(Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct CallFields<'a> {
    file_path: Field<'a>,
    notebook_path: Field<'a>,
    path: Field<'a>,
    command: Field<'a>,
}

/// Imports the new lines of a transcript and of its sub-agents, until the moment `until`. Further
/// lines are imported by the next call.
///
/// # Errors
///
/// - [`Error::File`](foldlog_view::Error::File) if a file cannot be read.
/// - The errors of the timeline if its log cannot be written.
pub(crate) fn import_new_lines(
    timeline: &Timeline,
    session: &str,
    transcript: &Path,
    until: Instant,
) -> Result<()> {
    let records = timeline.conversations()?;
    import_file(timeline, &records, session, transcript, until)?;
    for (path, _, agent) in subagents(transcript)? {
        import_file(timeline, &records, &agent, &path, until)?;
    }
    Ok(())
}

fn import_file(
    timeline: &Timeline,
    records: &Session,
    conversation: &str,
    path: &Path,
    until: Instant,
) -> Result<()> {
    let io = |source| CommandError::file(path, source);
    let mut file = open(path)?;
    let len = file.metadata().map_err(io)?.len();
    let imported = timeline.imported(conversation)?;
    let imported = imported.filter(|imported| {
        imported.bytes <= len && digest(&file, imported.bytes).is_ok_and(|found| found == imported.digest)
    });
    let begin = imported.as_ref().map_or(0, |imported| imported.bytes);
    if begin == len {
        return Ok(());
    }
    let after = imported.as_ref().map(|imported| imported.position);
    let mut writer = ConversationWriter {
        timeline,
        records,
        conversation,
        is_agent: conversation != session_of(path),
        recorded: recorded_lines(records, conversation, after)?,
        withheld: imported.into_iter().flat_map(|imported| imported.withheld).collect(),
        answer: Vec::new(),
    };
    file.seek(SeekFrom::Start(begin)).map_err(io)?;
    let mut reader = BufReader::with_capacity(1 << 16, file.try_clone().map_err(io)?.take(len - begin));
    let (mut end, mut line) = (begin, Vec::new());
    while Instant::now() < until {
        line.clear();
        let read = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(io)?;
        let mut bytes = u64::try_from(read).unwrap_or(u64::MAX);
        let mut is_whole = line.last() == Some(&b'\n');
        if !is_whole && bytes == LINE_BYTES_MAX {
            let Some(rest) = skip_line(&mut reader, until).map_err(io)? else { break };
            bytes += rest;
            line = json!({"type": "user", "message": {"content": format!("(A line of {bytes} bytes.)")}})
                .to_string()
                .into_bytes();
            is_whole = end + bytes < len;
        }
        // The end of the last line may not be written yet.
        if !is_whole {
            break;
        }
        writer.take(&line, end)?;
        end += bytes;
    }
    writer.end_answer()?;
    if end > begin {
        timeline.set_imported(TranscriptImported {
            conversation: conversation.to_owned(),
            bytes: end,
            digest: digest(&file, end).map_err(io)?,
            position: records.log().position().unwrap_or(SequenceNumber::MIN),
            withheld: writer.withheld.into_iter().collect(),
        })?;
    }
    Ok(())
}

fn session_of(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
}

/// Returns the digest of the last bytes before a place in a file.
fn digest(file: &File, end: u64) -> std::io::Result<String> {
    let begin = end.saturating_sub(DIGEST_BYTES);
    let mut bytes = vec![0; usize::try_from(end - begin).unwrap_or(0)];
    file.read_exact_at(&mut bytes, begin)?;
    Ok(blake3::hash(&bytes).to_hex().to_string())
}

/// Returns the lines with recorded answers after a record, or in the whole conversation.
fn recorded_lines(
    records: &Session,
    conversation: &str,
    after: Option<SequenceNumber>,
) -> Result<HashSet<String>> {
    let records = records.conversation();
    let behind = |after| records.read_behind(conversation, after, SequenceNumber::MAX);
    let read = match after.map(behind).transpose()?.flatten() {
        Some(read) => Some(read),
        None => records.read(conversation)?,
    };
    let entries = read.iter().flat_map(|conversation| conversation.entries());
    let payloads = entries.filter_map(|entry| match &entry.content {
        EntryContent::Answer { payload, .. } => serde_json::from_str(payload.as_deref()?).ok(),
        _ => None,
    });
    Ok(payloads.flat_map(|AnswerLines { lines }| lines).collect())
}

/// Data of a recorded answer: the ids of its lines.
#[derive(Deserialize)]
struct AnswerLines {
    lines: Vec<String>,
}

/// Writes the messages of a transcript's lines.
struct ConversationWriter<'a> {
    timeline: &'a Timeline,
    /// Session with the conversations.
    records: &'a Session,
    conversation: &'a str,
    /// Whether the file is that of a sub-agent.
    is_agent: bool,
    /// Lines with recorded answers.
    recorded: HashSet<String>,
    /// Calls whose results are not recorded.
    withheld: BTreeSet<String>,
    /// Lines of the answer that is read: the id of each, and the line.
    answer: Vec<(String, Vec<u8>)>,
}

impl ConversationWriter<'_> {
    /// Takes the line at an offset of the file.
    fn take(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        let Some(line) = LineFields::read(bytes) else { return Ok(()) };
        let kind: String = field(line.kind).unwrap_or_default();
        // Earlier versions wrote the lines of sub-agents between those of the agent.
        let is_sidechain = field(line.is_sidechain).unwrap_or(false) && !self.is_agent;
        if !["user", "assistant"].contains(&kind.as_str()) || is_sidechain {
            return Ok(());
        }
        let Some(message) = line.message() else { return Ok(()) };
        let id = field(line.uuid).unwrap_or_else(|| format!("{}:{offset}", blake3::hash(bytes).to_hex()));
        if message.is_assistants().unwrap_or(kind == "assistant") {
            if self.answer.last().is_some_and(|(_, last)| !is_same_answer(last, &message)) {
                self.end_answer()?;
            }
            self.answer.push((id, bytes.to_owned()));
            return Ok(());
        }
        self.end_answer()?;
        self.user(&id, &line, &message)
    }

    /// Records a user's message, and the results that it contains.
    fn user(&mut self, id: &str, line: &LineFields<'_>, message: &MessageFields<'_>) -> Result<()> {
        let blocks = match content(message.content) {
            MessageContent::Blocks(blocks) => blocks,
            content => {
                let text = content.text();
                return self
                    .input(NewInput { id: Some(id.to_owned()), ..self.new_input(Role::User, text) }, line);
            }
        };
        let (mut said, mut has_results) = (Vec::new(), false);
        for block in blocks {
            let BlockContent::Result { id: call, content: raw, failed } = &block.content else {
                said.push(block);
                continue;
            };
            has_results = true;
            let result = content(*raw);
            let text = match (self.withheld.contains(call), result.text()) {
                (true, _) => Some(WITHHELD.to_owned()),
                (false, None) if matches!(result, MessageContent::None) => None,
                (false, text) => text.or_else(|| raw.map(|raw| raw.get().to_owned())),
            };
            let input = NewInput {
                id: Some(format!("{id}/{call}")),
                call_id: Some(call.clone()),
                is_error: *failed,
                ..self.new_input(Role::Tool, text)
            };
            self.input(input, line)?;
        }
        if has_results && said.is_empty() {
            return Ok(());
        }
        let input = NewInput {
            id: Some(id.to_owned()),
            blocks: own_form(&said),
            ..self.new_input(Role::User, texts(said.iter()))
        };
        self.input(input, line)
    }

    fn new_input(&self, role: Role, text: Option<String>) -> NewInput {
        NewInput { content: text.map(shorten), ..NewInput::new(self.conversation, role, "") }
    }

    fn input(&self, input: NewInput, line: &LineFields<'_>) -> Result<()> {
        let original = input.id.as_deref().and_then(|id| original(id, line));
        self.records.conversation().record_input(&NewInput { original, ..input })?;
        Ok(())
    }

    /// Records the answer that was read, without the lines that are recorded.
    fn end_answer(&mut self) -> Result<()> {
        let lines = std::mem::take(&mut self.answer);
        let read: Vec<(&String, LineFields<'_>)> =
            lines.iter().filter_map(|(id, line)| Some((id, LineFields::read(line)?))).collect();
        let messages: Vec<(&String, &LineFields<'_>, MessageFields<'_>)> =
            read.iter().filter_map(|(id, line)| Some((*id, line, line.message()?))).collect();
        let mut answer = NewAnswer { evaluation_id: self.conversation.to_owned(), ..NewAnswer::default() };
        let (mut texts_said, mut others, mut new) = (Vec::new(), Vec::new(), Vec::new());
        for (id, line, message) in &messages {
            let is_new = !self.recorded.contains(*id);
            if is_new {
                new.push((*id).clone());
                answer.original = answer.original.or_else(|| original(id, line));
                answer.stop = field(message.stop_reason).or(answer.stop);
                answer.model = field(message.model).or(answer.model);
                answer.usage = message.usage().or(answer.usage);
            }
            let blocks = match content(message.content) {
                MessageContent::Blocks(blocks) => blocks,
                content => {
                    texts_said.extend(content.text().filter(|_| is_new));
                    continue;
                }
            };
            // Calls of recorded lines count, too: their results may follow.
            let calls = blocks.iter().filter_map(|block| self.call(block)).collect::<Vec<_>>();
            if is_new {
                texts_said.extend(texts(blocks.iter()));
                answer.calls.extend(calls);
                others
                    .extend(blocks.into_iter().filter(|block| matches!(block.content, BlockContent::Other)));
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        answer.content = (!texts_said.is_empty()).then(|| shorten(texts_said.join("\n")));
        answer.blocks = own_form(&others);
        answer.payload = Some(json!({ "lines": new }));
        self.records.conversation().record_answer(&answer)?;
        self.recorded.extend(new);
        Ok(())
    }

    /// Returns a block's call. If the call names an ignored file, its arguments are left out, and
    /// its result will be.
    fn call(&mut self, block: &MessageBlock<'_>) -> Option<ToolCallRecord> {
        let BlockContent::Call { id, name, input } = &block.content else { return None };
        let raw: Option<&RawValue> = serde_json::from_str(input).ok();
        let given: CallFields<'_> = fields(raw).unwrap_or_default();
        let path: Option<String> = field(given.file_path).or_else(|| field(given.notebook_path));
        let path = path.or_else(|| field(given.path));
        let is_ignored = path.is_some_and(|path| self.timeline.ignores(Path::new(&path)));
        if is_ignored || field(given.command).is_some_and(|command: String| names_secrets(&command)) {
            self.withheld.insert(id.clone());
        }
        let arguments = if is_ignored { WITHHELD.to_owned() } else { short_arguments(input) };
        Some(ToolCallRecord { call_id: id.clone(), name: name.clone(), arguments })
    }
}

/// Skips the rest of a line. Returns its length; `None` if that takes longer than until a moment.
fn skip_line(reader: &mut impl BufRead, until: Instant) -> io::Result<Option<u64>> {
    let mut bytes = 0;
    while Instant::now() < until {
        let part = reader.fill_buf()?;
        let end = part.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
        let length = end.unwrap_or(part.len());
        let is_over = end.is_some() || length == 0;
        reader.consume(length);
        bytes += u64::try_from(length).unwrap_or(u64::MAX);
        if is_over {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

/// Returns whether a line belongs to the answer of another one.
fn is_same_answer(line: &[u8], message: &MessageFields<'_>) -> bool {
    let last = LineFields::read(line).and_then(|line| field::<String>(line.message()?.id));
    last.is_some() && last == field::<String>(message.id)
}

/// Returns the id and the time of the line from which a message is imported.
fn original(id: &str, line: &LineFields<'_>) -> Option<OriginalMessage> {
    let hash = || {
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(blake3::hash(id.as_bytes()).as_bytes()).for_each(|(to, from)| *to = *from);
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    };
    let created_at = DateTime::from_timestamp_micros(line.time_us()?)?;
    Some(OriginalMessage {
        message_id: Uuid::parse_str(id).unwrap_or_else(|_| hash()),
        created_at,
        state: None,
    })
}

/// Returns blocks that are more than text, in their own form, unless they are too long.
fn own_form(blocks: &[MessageBlock<'_>]) -> Option<ContentBlocks> {
    if !blocks.iter().any(|block| matches!(block.content, BlockContent::Other)) {
        return None;
    }
    let json = format!("[{}]", blocks.iter().map(|block| block.raw).collect::<Vec<_>>().join(","));
    let format = MessageFormat::Anthropic.name().to_owned();
    (json.len() <= BLOCKS_BYTES_MAX).then_some(ContentBlocks { format, json })
}

/// Shortens arguments, which are JSON.
fn short_arguments(input: &str) -> String {
    let shorter = shorten(input.to_owned());
    if shorter == input { shorter } else { Json::String(shorter).to_string() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_long_line_is_skipped_up_to_its_end_or_for_a_short_time() {
        let until = Instant::now() + Duration::from_secs(60);
        let mut reader = BufReader::with_capacity(3, &b"long line\nnext"[..]);
        assert_eq!(skip_line(&mut reader, until).unwrap(), Some(10));
        assert_eq!(skip_line(&mut reader, until).unwrap(), Some(4));
        // As of a sparse file of 20 GB.
        let until = Instant::now() + Duration::from_millis(20);
        assert_eq!(skip_line(&mut BufReader::new(io::repeat(0)), until).unwrap(), None);
    }
}
