//! Restores the program's transcript of a session from the log.
//!
//! The program stores a session in a file of JSON lines, and mirrors each line that it adds
//! (`transcript_mirror`). The mirrored lines are arrivals in the log; together they are the file,
//! byte for byte. So a lost directory can be written again, and a session can continue from the log
//! alone.
//!
//! | missing in the mirrored lines | written |
//! |---|---|
//! | nothing | the lines, in their order |
//! | answers and results in messages of the program: it mirrors their lines up to some 100 ms later | lines with the contents of the messages |
//! | the result of a committed call, because the program was killed before it sent it | a line with the result in the log |
//! | the call too | a line with the call, and one with its result |
//! | nothing, but a line states that the user rejected a call which the host stopped | the line, with the result in the log |
//! | a part of the history, in a copy whose program was killed before it had mirrored all of it | the lines of the copied session, through the entry after which it was copied |
//! | each message | nothing: the session cannot be resumed, and a fresh one gets the conversation |
//!
//! The path of the file below the program's directory follows from the working directory:
//! `projects/<cwd, with - for each character that is not a letter or digit>/<session id>.jsonl`.
//!
//! # Invariants
//!
//! 1. An existing file is not overwritten. Missing lines are appended to it. Only if a line states
//!    that a call which the host stopped was rejected, the file is replaced by one in which that
//!    line contains the call's actual outcome.
//! 2. No call that is committed according to the log is missing in the written file.
//! 3. Each written line that was not mirrored is later than those before it, and a result follows
//!    its call. The reason: the program continues at the latest end of the history, and ignores
//!    entries that do not lead there.
//! 4. No written answer looks incomplete: each contains the reason for its end, and a model.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use chrono::{DateTime, SecondsFormat, TimeDelta};
use foldlog::Session;
use foldlog::conversation::{Conversation, EntryContent, ToolCallRecord};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::DEFAULT_MODEL;
use super::arrival::{ARRIVED, Arrival, TimedArrival, message_of};
use super::own_tools::text_of;
use crate::{ClaudeMessageBody, TranscriptMirror};
use foldlog_agent::error::{Error, EvaluationPhase, Result};

/// Start of the text with which the program reports a call that the host stopped to the model. In
/// fact it was not rejected.
const REJECTED: &str = "The user doesn't want to proceed with this tool use.";

/// Start of another text for such a call, and for the turn that ended with it.
const BY_USER: &str = "[Request interrupted by user";

/// Replacement for [`BY_USER`].
const STOPPED: &str = "[The run stopped here.]";

/// Longest name of a project's directory that the program does not cut and hash.
const PROJECT_NAME_MAX: usize = 200;

/// Contains the mirrored lines of one session of the program.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    entries: Vec<TranscriptEntry>,
    /// Messages of the program that it has not mirrored.
    said: Vec<TranscriptEntry>,
}

/// Transcripts of the program's sessions, by id.
pub(super) type Transcripts = BTreeMap<String, Transcript>;

/// Contains one mirrored line.
#[derive(Clone, Debug)]
struct TranscriptEntry {
    line: String,
    /// Parsed line; null if it is not JSON.
    json: Value,
}

impl TranscriptEntry {
    fn new(line: String) -> TranscriptEntry {
        let json = foldlog::escape::read_json(&line).unwrap_or_default();
        TranscriptEntry { line, json }
    }

    /// Returns the values of the field `name` in the blocks of a kind.
    fn ids(&self, kind: &str, name: &str) -> Vec<String> {
        let content = self.json.get("message").and_then(|message| message.get("content"));
        let blocks = content.and_then(Value::as_array).into_iter().flatten();
        let id = |block: &Value| {
            let is_one = block.get("type")?.as_str()? == kind;
            is_one.then(|| block.get(name)?.as_str().map(str::to_owned)).flatten()
        };
        blocks.filter_map(id).collect()
    }

    /// Corrects the program's statement to the model that the user rejected calls which the host
    /// stopped. `earlier` counts the results of each call so far. Returns whether something was
    /// corrected.
    fn correct(&mut self, results: &[CallResult], earlier: &mut BTreeMap<String, usize>) -> bool {
        let mut told = None;
        let mut is_corrected = false;
        let content = self.json.get_mut("message").and_then(|message| message.get_mut("content"));
        for block in content.and_then(Value::as_array_mut).into_iter().flatten() {
            let text = |name: &str| block.get(name).and_then(Value::as_str).unwrap_or_default();
            match text("type") {
                "text" if text("text").starts_with(BY_USER) => {
                    is_corrected = true;
                    block["text"] = STOPPED.into();
                }
                "tool_result" => {
                    let id = text("tool_use_id").to_owned();
                    let nth = earlier.entry(id.clone()).or_default();
                    let result = results.iter().filter(|one| one.call_id == id).nth(*nth);
                    *nth += 1;
                    let said = text_of(block.get("content").unwrap_or(&Value::Null));
                    let is_by_user = said.starts_with(REJECTED) || said.contains(BY_USER);
                    if let Some(result) = result.filter(|_| is_by_user) {
                        block["content"] = result.text.clone().into();
                        told = Some(format!("Error: {}", result.text));
                    }
                }
                _ => {}
            }
        }
        if let Some(entry) = self.json.as_object_mut()
            && let Some(told) = told
        {
            is_corrected = true;
            entry.remove("toolDenialKind");
            entry.insert("toolUseResult".to_owned(), told.into());
        }
        if is_corrected {
            self.line = self.json.to_string();
        }
        is_corrected
    }

    /// Returns whether the entry is a message of the user or of the model, or a result of a tool.
    fn is_message(&self) -> bool {
        matches!(self.json.get("type").and_then(Value::as_str), Some("user" | "assistant"))
    }

    /// Returns the time of the entry, as text; `None` if it has none.
    fn time(&self) -> Option<&str> {
        self.json.get("timestamp")?.as_str()
    }

    /// Returns the entry's own id; `None` if it has none.
    fn uuid(&self) -> Option<&str> {
        self.json.get("uuid")?.as_str()
    }
}

/// Returns the mirrored lines of an arrival, with the id of their session. Lines of sub-agents,
/// whose files are in separate directories, are left out.
fn parse_mirrored_lines(line: &str) -> Option<(String, Vec<String>)> {
    if !line.contains("transcript_mirror") {
        return None;
    }
    let ClaudeMessageBody::TranscriptMirror(TranscriptMirror { file_path, entries }) = message_of(line)?.body
    else {
        return None;
    };
    let path = Path::new(&file_path);
    if path.extension().is_none_or(|extension| extension != "jsonl") {
        return None;
    }
    let id = Uuid::parse_str(path.file_stem()?.to_str()?).ok()?.to_string();
    Some((id, entries.iter().map(|entry| entry.get().to_owned()).collect()))
}

/// Model of messages that the program itself generates.
pub(super) const SYNTHETIC: &str = "<synthetic>";

fn model_of(entry: &Value) -> Option<&str> {
    entry.get("message")?.get("model")?.as_str()
}

/// Returns the message of an arrival in the program's own conversation, with the id of the session:
/// an answer of the model or the results of calls.
fn parse_message(line: &str) -> Option<(String, TranscriptEntry)> {
    let mut json: Value = foldlog::escape::read_json(line).ok()?;
    let id = json.get("session_id")?.as_str()?.to_owned();
    let told = json.as_object_mut()?;
    let is_own = told.remove("parent_tool_use_id").is_none_or(|parent| parent.is_null());
    let kind = told.get("type")?.as_str()?.to_owned();
    let (uuid, message) = (told.remove("uuid")?, told.remove("message")?);
    let entry = TranscriptEntry {
        line: String::new(),
        json: json!({"type": kind, "message": message, "uuid": uuid}),
    };
    let is_message = match kind.as_str() {
        "assistant" => model_of(&entry.json) != Some(SYNTHETIC),
        "user" => !entry.ids("tool_result", "tool_use_id").is_empty(),
        _ => false,
    };
    (is_own && is_message).then_some((id, entry))
}

/// Removes mirrored entries from messages: the program gives both the same id.
fn without(said: &mut Vec<TranscriptEntry>, mirrored: &[TranscriptEntry]) {
    let ids: BTreeSet<&str> = mirrored.iter().filter_map(TranscriptEntry::uuid).collect();
    said.retain(|one| one.uuid().is_none_or(|uuid| !ids.contains(uuid)));
}

/// Reads the transcripts of all the program's sessions in the log, by id.
pub(super) fn transcripts(session: &Session) -> Result<Transcripts> {
    let mut found = Transcripts::new();
    session.inputs().observations(ARRIVED, &mut |_, stamped: TimedArrival| {
        let Arrival::Message(line) = stamped.arrival else { return Ok(()) };
        if let Some((id, lines)) = parse_mirrored_lines(&line) {
            let transcript = found.entry(id).or_default();
            let lines: Vec<TranscriptEntry> = lines.into_iter().map(TranscriptEntry::new).collect();
            without(&mut transcript.said, &lines);
            transcript.entries.extend(lines);
        } else if let Some((id, entry)) = parse_message(&line) {
            found.entry(id).or_default().said.push(entry);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Returns the id of the last entry of the session `id` in a mirrored line; `None` if the line
/// mirrors none of it, for example if it belongs to a sub-agent's own file.
pub(super) fn last_entry(mirror: &TranscriptMirror, id: &str) -> Option<String> {
    if Path::new(&mirror.file_path).file_stem().is_none_or(|stem| stem != id) {
        return None;
    }
    mirror.entries.iter().rev().find_map(|entry| uuid_in(entry.get()))
}

/// Returns the id of an entry, without parsing the rest.
fn uuid_in(entry: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct EntryUuid {
        uuid: Option<String>,
    }
    serde_json::from_str::<EntryUuid>(entry).ok()?.uuid
}

/// Returns the ids of the calls in the entries of a mirrored line.
pub(super) fn calls_in(mirror: &TranscriptMirror) -> Vec<String> {
    // Most entries contain no call, and need not be parsed.
    let asking = mirror.entries.iter().filter(|entry| entry.get().contains("\"tool_use\""));
    let entries = asking.map(|entry| TranscriptEntry::new(entry.get().to_owned()));
    entries.flat_map(|entry| entry.ids("tool_use", "id")).collect()
}

/// Contains the result of a call, according to the log.
#[derive(Clone, Debug)]
pub(super) struct CallResult {
    pub(super) call_id: String,
    pub(super) text: String,
    pub(super) is_error: bool,
}

/// Contains a call of the model.
#[derive(Clone, Debug)]
struct LineageCall {
    /// Id of the program's session of the call.
    session: String,
    call: ToolCallRecord,
    model: Option<String>,
}

/// Contains the history of the program's sessions according to a conversation.
#[derive(Clone, Debug, Default)]
pub(super) struct Lineage {
    /// Source session of each copy, and the entry after which it was copied; `None` for its end.
    copies: BTreeMap<String, (String, Option<String>)>,
    /// Calls, in order.
    asked: Vec<LineageCall>,
}

impl Lineage {
    /// Reads the sessions of the program from the requests that started its runs. `bridged` returns
    /// the program's name of a tool of the host, and any other name unchanged.
    pub(super) fn from_conversation(
        conversation: Option<&Conversation>,
        bridged: impl Fn(&str) -> String,
    ) -> Lineage {
        let (mut lineage, mut session) = (Lineage::default(), String::new());
        for entry in conversation.iter().flat_map(|conversation| conversation.entries()) {
            match &entry.content {
                EntryContent::Request { parameters: Some(parameters), .. } => {
                    let named: Value = serde_json::from_str(parameters).unwrap_or_default();
                    let text = |name: &str| named.get(name).and_then(Value::as_str).map(str::to_owned);
                    let from = text("resume");
                    if let (Some(copy), Some(from)) = (text("session_id"), from.clone()) {
                        lineage.copies.insert(copy, (from, text("resume_session_at")));
                    }
                    session = text("session_id").or(from).unwrap_or(session);
                }
                EntryContent::Answer { message, model, .. } => {
                    let asked = message.tool_calls.iter().map(|call| LineageCall {
                        session: session.clone(),
                        call: ToolCallRecord { name: bridged(&call.name), ..call.clone() },
                        model: model.clone(),
                    });
                    lineage.asked.extend(asked);
                }
                _ => {}
            }
        }
        lineage
    }

    /// Returns a session and its ancestors by copying, the oldest first. Each is returned with the
    /// entry of its predecessor after which it was copied.
    fn chain(&self, id: &str) -> Vec<(String, Option<String>)> {
        let mut chain = vec![(id.to_owned(), None)];
        let mut last = id;
        // A log from elsewhere may contain a cycle.
        while let Some((from, at)) = self.copies.get(last).filter(|_| chain.len() <= self.copies.len()) {
            if let Some((_, copied_at)) = chain.last_mut() {
                copied_at.clone_from(at);
            }
            chain.push((from.clone(), None));
            last = from;
        }
        chain.reverse();
        chain
    }
}

impl Transcript {
    /// Returns whether the transcript contains a message. The program treats a transcript without
    /// messages as missing.
    pub(super) fn holds_messages(&self) -> bool {
        self.entries.iter().any(TranscriptEntry::is_message)
    }

    /// Appends missing entries: messages of the program, the results of calls, and calls of `asked`
    /// with their results.
    fn complete<'a>(&mut self, asked: impl Iterator<Item = &'a LineageCall>, results: &[CallResult]) {
        let Some(like) = self.end().map(|entry| entry.json.clone()) else { return };
        // Messages that were mirrored before they were sent exist already.
        without(&mut self.said, &self.entries);
        for said in std::mem::take(&mut self.said) {
            let text =
                |name: &str| said.json.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            let mut message = said.json.get("message").cloned().unwrap_or_default();
            if let Some(reason) = message.get_mut("stop_reason").filter(|reason| reason.is_null()) {
                let asks = !said.ids("tool_use", "id").is_empty();
                *reason = if asks { "tool_use" } else { "end_turn" }.into();
            }
            self.add(&text("type"), message, text("uuid"), &like);
        }
        let ids = |kind, name| self.entries.iter().flat_map(|entry| entry.ids(kind, name)).collect();
        let (held, told): (BTreeSet<String>, BTreeSet<String>) =
            (ids("tool_use", "id"), ids("tool_result", "tool_use_id"));
        let missing = || results.iter().filter(|one| !told.contains(&one.call_id));
        for result in missing().filter(|one| held.contains(&one.call_id)) {
            self.add_result(result, &like);
        }
        let model = self.entries.iter().rev().find_map(|entry| model_of(&entry.json)).map(str::to_owned);
        for LineageCall { call, model: of_call, .. } in
            asked.filter(|asked| !held.contains(&asked.call.call_id))
        {
            let Some(result) = missing().find(|one| one.call_id == call.call_id) else { continue };
            let input = serde_json::from_str::<Value>(&call.arguments).unwrap_or_default();
            let uuid = name_of(&format!("call {}", call.call_id));
            let message = json!({
                "id": format!("msg_{uuid}"),
                "type": "message",
                "role": "assistant",
                "model": of_call.as_deref().or(model.as_deref()).unwrap_or(DEFAULT_MODEL),
                "content": [{"type": "tool_use", "id": call.call_id, "name": call.name, "input": input}],
                "stop_reason": "tool_use",
                "stop_sequence": null,
                "usage": {"input_tokens": 0, "output_tokens": 0},
            });
            self.add("assistant", message, uuid, &like);
            self.add_result(result, &like);
        }
    }

    fn add_result(&mut self, result: &CallResult, like: &Value) {
        let block = json!({
            "type": "tool_result",
            "tool_use_id": result.call_id,
            "content": [{"type": "text", "text": result.text}],
            "is_error": result.is_error,
        });
        self.add("user", json!({"role": "user", "content": [block]}), name_of(&result.call_id), like);
    }

    /// Adds an entry. A result follows its call, other entries follow the end of the history.
    /// Fields that are the same in all entries are copied from `like`.
    fn add(&mut self, kind: &str, message: Value, uuid: String, like: &Value) {
        let mut entry = json!({
            "isSidechain": false,
            "userType": "external",
            "type": kind,
            "message": message,
            "uuid": uuid,
        });
        let closes =
            TranscriptEntry { line: String::new(), json: entry.clone() }.ids("tool_result", "tool_use_id");
        let asks =
            |entry: &&TranscriptEntry| entry.ids("tool_use", "id").iter().any(|id| closes.contains(id));
        let call = self.entries.iter().rfind(asks).and_then(TranscriptEntry::uuid);
        let parent = call.or_else(|| self.end().and_then(TranscriptEntry::uuid)).map(str::to_owned);
        if let Some(entry) = entry.as_object_mut() {
            entry.insert("parentUuid".to_owned(), parent.into());
            for name in ["cwd", "sessionId", "version", "gitBranch"] {
                entry.extend(like.get(name).map(|value| (name.to_owned(), value.clone())));
            }
            entry.extend(self.next_time().map(|time| ("timestamp".to_owned(), time.into())));
        }
        self.entries.push(TranscriptEntry { line: entry.to_string(), json: entry });
    }

    /// Returns the end of the history: the latest entry without a successor. Mirrored lines may
    /// arrive in another order than that of the history.
    fn end(&self) -> Option<&TranscriptEntry> {
        let parents = self.entries.iter().filter_map(|entry| entry.json.get("parentUuid")?.as_str());
        let followed: BTreeSet<&str> = parents.collect();
        let is_end = |entry: &&TranscriptEntry| entry.uuid().is_some_and(|uuid| !followed.contains(uuid));
        // All times have the same format, so they compare as texts. Of equal ones the last counts.
        self.entries.iter().filter(is_end).max_by_key(|entry| entry.time())
    }

    /// Returns a time after that of the last entry: the program continues at the latest end of the
    /// history, and ignores other ends.
    fn next_time(&self) -> Option<String> {
        let last = self.end()?.time()?;
        let last = DateTime::parse_from_rfc3339(last).ok()?.to_utc();
        let next = last.checked_add_signed(TimeDelta::milliseconds(1))?;
        Some(next.to_rfc3339_opts(SecondsFormat::Millis, true))
    }

    /// Continues with the mirrored lines of a copy. The program writes the whole history into a
    /// copy again. If it was killed before all of it was mirrored, lines of this transcript that
    /// are missing there remain.
    fn merge_copy(&mut self, copy: Transcript) {
        let of_copy: BTreeSet<&str> = copy.entries.iter().filter_map(TranscriptEntry::uuid).collect();
        let mut messages =
            self.entries.iter().filter(|entry| entry.is_message()).filter_map(TranscriptEntry::uuid);
        if messages.all(|uuid| of_copy.contains(uuid)) {
            *self = copy;
            return;
        }
        self.said = copy.said;
        let held: BTreeSet<String> =
            self.entries.iter().filter_map(TranscriptEntry::uuid).map(str::to_owned).collect();
        let is_new = |entry: &TranscriptEntry| entry.uuid().is_none_or(|uuid| !held.contains(uuid));
        self.entries.extend(copy.entries.into_iter().filter(is_new));
    }

    /// Corrects the program's statements about calls that the host stopped. Returns whether
    /// something was corrected.
    fn correct(&mut self, results: &[CallResult]) -> bool {
        let mut earlier = BTreeMap::new();
        let corrected =
            self.entries.iter_mut().filter_map(|entry| entry.correct(results, &mut earlier).then_some(()));
        corrected.count() > 0
    }

    /// Returns the lines, each with its newline.
    fn into_lines(self) -> String {
        self.entries.into_iter().map(|entry| entry.line + "\n").collect()
    }

    fn place_of(&self, uuid: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.uuid() == Some(uuid))
    }

    /// Returns the parent of the first entry, if it is not in the transcript.
    fn follows(&self) -> Option<&str> {
        let first = self.entries.iter().find(|entry| entry.json.get("uuid").is_some())?;
        let parent = first.json.get("parentUuid")?.as_str()?;
        self.place_of(parent).is_none().then_some(parent)
    }
}

/// Derives the id of an entry for the result of a call, always the same.
fn name_of(call_id: &str) -> String {
    let digest = blake3::hash(call_id.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(digest.as_bytes().split_at(16).0);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

/// Returns the whole transcript of a session according to the log, with all calls and their
/// results; `None` if the log has none.
fn whole_transcript(
    mut all: Transcripts,
    id: &str,
    lineage: &Lineage,
    results: &[CallResult],
) -> Option<String> {
    let mut whole = Transcript::default();
    for (session, copied_at) in lineage.chain(id) {
        if let Some(place) = copied_at.and_then(|at| whole.place_of(&at)) {
            whole.entries.truncate(place + 1);
        }
        whole.merge_copy(all.remove(&session).unwrap_or_default());
        whole.complete(lineage.asked.iter().filter(|asked| asked.session == session), results);
    }
    if let Some(parent) = whole.follows() {
        // It was copied from a session of another evaluation.
        let before = all.into_values().find_map(|before| Some((before.place_of(parent)?, before)));
        let (place, mut before) = before?;
        before.entries.truncate(place + 1);
        before.entries.append(&mut whole.entries);
        whole = before;
    }
    whole.correct(results);
    whole.holds_messages().then(|| whole.into_lines())
}

/// Returns the path of a session's transcript below the program's directory `config`, if the
/// program runs in `cwd`.
pub(super) fn file_of(config: &Path, cwd: &Path, id: &str) -> PathBuf {
    let name: String = cwd
        .to_string_lossy()
        .chars()
        .map(|character| if character.is_ascii_alphanumeric() { character } else { '-' })
        .collect();
    let cut: String = name.chars().take(PROJECT_NAME_MAX).collect();
    config.join("projects").join(cut).join(format!("{id}.jsonl"))
}

/// Adds missing entries to the file of a transcript, after the program was killed before it wrote
/// them.
fn add_missing<'a>(
    file: &Path,
    said: Vec<TranscriptEntry>,
    asked: impl Iterator<Item = &'a LineageCall>,
    results: &[CallResult],
) -> io::Result<()> {
    let text = String::from_utf8_lossy(&fs::read(file)?).into_owned();
    let entries = text.lines().map(|line| TranscriptEntry::new(line.to_owned())).collect();
    let mut held = Transcript { entries, said };
    let before = held.entries.len();
    held.complete(asked, results);
    if held.correct(results) {
        let corrected = file.with_extension("corrected");
        fs::write(&corrected, held.into_lines())?;
        return fs::rename(corrected, file);
    }
    // The last line may be torn.
    let mut added = if text.is_empty() || text.ends_with('\n') { String::new() } else { "\n".to_owned() };
    for entry in held.entries.iter().skip(before) {
        added += &entry.line;
        added.push('\n');
    }
    if held.entries.len() == before {
        return Ok(());
    }
    fs::File::options().append(true).open(file)?.write_all(added.as_bytes())
}

/// Writes the transcript of a session to its file, or appends missing lines to an existing file.
/// Writes nothing if the log contains no transcript.
pub(super) fn write_back(
    file: &Path,
    mut all: Transcripts,
    id: &str,
    lineage: &Lineage,
    results: &[CallResult],
    prompt: &str,
) -> Result<()> {
    let written = || -> io::Result<()> {
        if file.exists() {
            let said = all.remove(id).unwrap_or_default().said;
            let asked = lineage.asked.iter().filter(|asked| asked.session == id);
            return add_missing(file, said, asked, results);
        }
        let Some(whole) = whole_transcript(all, id, lineage, results) else { return Ok(()) };
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::File::create_new(file)?.write_all(whole.as_bytes())
    };
    written().map_err(|error| Error::PromptEvaluation {
        phase: EvaluationPhase::Request,
        prompt: prompt.to_owned(),
        reason: format!("the transcript cannot be written back to {}: {error}", file.display()),
        source: Some(Box::new(error)),
    })
}
