//! Writes the program's transcript of a session back from the log.
//!
//! The program keeps a session in a file of JSON lines, and mirrors each line that it adds (`transcript_mirror`). The mirrored
//! lines are arrivals of the log; together they are the file, byte for byte. So a folder that was lost is written again, and a
//! session goes on where only the log is left.
//!
//! | what is missing in the mirrored lines | what is written |
//! |---|---|
//! | nothing | the lines, in their order |
//! | answers and results that the program told of, since it was killed before it mirrored them | lines with what it told |
//! | the result of a call that ended, since the program was killed before it mirrored it | a line with the result that the log holds |
//! | the call too | a line with the call, and one with the result |
//! | the beginning, which belongs to the session that was forked | the lines of that session, through the entry at which it was forked |
//! | all | nothing: the session cannot be resumed, and a fresh one is given the conversation |
//!
//! The place of the file below the program's folder follows from the working folder:
//! `projects/<cwd, each character that is no letter or digit as ->/<session id>.jsonl`.
//!
//! # Invariants
//!
//! 1. A file that is there is not written over. What it lacks is added to it.
//! 2. No call that the log says committed is missing in what is written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use chrono::{DateTime, SecondsFormat, TimeDelta};
use foldlog::Session;
use foldlog::conversation::ToolCallRecord;
use serde_json::{Value, json};
use uuid::Uuid;

use super::DEFAULT_MODEL;
use super::arrival::{ARRIVED, Arrival, Stamped, message_of};
use crate::claude::{Body, TranscriptMirror};
use crate::error::{Error, Phase, Result};

/// Longest name of a project's folder that the program does not cut and hash.
const PROJECT_NAME_MAX: usize = 200;

/// Holds the mirrored lines of one session of the program.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    entries: Vec<Entry>,
    /// What the program told of the conversation and has not mirrored.
    said: Vec<Entry>,
}

/// Holds the transcripts of the program's sessions, by their ids.
pub(super) type Transcripts = BTreeMap<String, Transcript>;

/// Holds one mirrored line.
#[derive(Clone, Debug)]
struct Entry {
    line: String,
    /// What the line says; null if it is no JSON.
    json: Value,
}

impl Entry {
    fn new(line: String) -> Entry {
        let json = serde_json::from_str(&line).unwrap_or_default();
        Entry { line, json }
    }

    /// Returns what the blocks of a kind say under `name`.
    fn ids(&self, kind: &str, name: &str) -> Vec<String> {
        let content = self.json.get("message").and_then(|message| message.get("content"));
        let blocks = content.and_then(Value::as_array).into_iter().flatten();
        let id = |block: &Value| {
            let is_one = block.get("type")?.as_str()? == kind;
            is_one.then(|| block.get(name)?.as_str().map(str::to_owned)).flatten()
        };
        blocks.filter_map(id).collect()
    }

    /// Returns the entry's own id; `None` if it has none.
    fn uuid(&self) -> Option<&str> {
        uuid_of(&self.json)
    }
}

/// Returns the mirrored lines that an arrival holds, with the id of the session that they belong to. Lines of sub-agents,
/// whose files lie in folders of their own, are left out.
fn mirrored(line: &str) -> Option<(String, Vec<String>)> {
    if !line.contains("transcript_mirror") {
        return None;
    }
    let Body::TranscriptMirror(TranscriptMirror { file_path, entries }) = message_of(line)?.body else {
        return None;
    };
    let path = Path::new(&file_path);
    if path.extension().is_none_or(|extension| extension != "jsonl") {
        return None;
    }
    let id = Uuid::parse_str(path.file_stem()?.to_str()?).ok()?.to_string();
    Some((id, entries.iter().map(|entry| entry.get().to_owned()).collect()))
}

/// Returns what an arrival tells of the program's own conversation, with the id of the session: an answer of the model or the
/// results of calls.
fn said(line: &str) -> Option<(String, Entry)> {
    let mut json: Value = serde_json::from_str(line).ok()?;
    let id = json.get("session_id")?.as_str()?.to_owned();
    let told = json.as_object_mut()?;
    let is_own = told.remove("parent_tool_use_id").is_none_or(|parent| parent.is_null());
    let kind = told.get("type")?.as_str()?.to_owned();
    let (uuid, message) = (told.remove("uuid")?, told.remove("message")?);
    let entry = json!({"type": kind, "message": message, "uuid": uuid});
    let entry = Entry { line: String::new(), json: entry };
    let is_message = match kind.as_str() {
        "assistant" => message_model(&entry.json) != Some(SYNTHETIC),
        "user" => !entry.ids("tool_result", "tool_use_id").is_empty(),
        _ => false,
    };
    (is_own && is_message).then_some((id, entry))
}

/// Model of what the program says itself in place of the model.
const SYNTHETIC: &str = "<synthetic>";

fn message_model(entry: &Value) -> Option<&str> {
    entry.get("message")?.get("model")?.as_str()
}

/// Removes what is mirrored from what was told.
fn without(said: &mut Vec<Entry>, mirrored: &[Entry]) {
    let ids: BTreeSet<&str> = mirrored.iter().filter_map(Entry::uuid).collect();
    said.retain(|one| one.uuid().is_none_or(|uuid| !ids.contains(uuid)));
}

/// Reads the transcripts of all the program's sessions that the log holds, by their ids.
pub(super) fn transcripts(session: &Session) -> Result<Transcripts> {
    let mut found = Transcripts::new();
    session.observations(ARRIVED, &mut |_, stamped: Stamped| {
        let Arrival::Message(line) = stamped.arrival else { return Ok(()) };
        if let Some((id, lines)) = mirrored(&line) {
            let transcript = found.entry(id).or_default();
            let lines: Vec<Entry> = lines.into_iter().map(Entry::new).collect();
            without(&mut transcript.said, &lines);
            transcript.entries.extend(lines);
        } else if let Some((id, entry)) = said(&line) {
            found.entry(id).or_default().said.push(entry);
        }
        Ok(())
    })?;
    found.retain(|_, transcript| !transcript.entries.is_empty());
    Ok(found)
}

/// Returns the id of the last entry of the session `id` that a mirrored line holds; `None` if the line mirrors none of it, but,
/// say, what a sub-agent adds to a file of its own.
pub(super) fn last_entry(mirror: &TranscriptMirror, id: &str) -> Option<String> {
    if Path::new(&mirror.file_path).file_stem().is_none_or(|stem| stem != id) {
        return None;
    }
    mirror.entries.iter().rev().find_map(|entry| Some(Entry::new(entry.get().to_owned()).uuid()?.to_owned()))
}

/// Returns the ids of the calls for which the entries ask that a mirrored line holds.
pub(super) fn calls_in(mirror: &TranscriptMirror) -> Vec<String> {
    let entries = mirror.entries.iter().map(|entry| Entry::new(entry.get().to_owned()));
    entries.flat_map(|entry| entry.ids("tool_use", "id")).collect()
}

fn uuid_of(entry: &Value) -> Option<&str> {
    entry.get("uuid")?.as_str()
}

/// Holds the result of a call, as the log has it.
#[derive(Clone, Debug)]
pub(super) struct CallResult {
    pub(super) call_id: String,
    pub(super) text: String,
    pub(super) is_error: bool,
}

/// Holds what the log says of the calls of an evaluation.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Calls for which the model asked in the runs of each session of the program, in their order.
    pub(super) calls: BTreeMap<String, Vec<ToolCallRecord>>,
    pub(super) results: Vec<CallResult>,
}

impl Transcript {
    /// Adds what is missing behind the last line: what the program told, then results of calls, and calls of the session `id`
    /// with their results.
    fn complete(&mut self, id: &str, told: &Told) {
        without(&mut self.said, &self.entries);
        for said in std::mem::take(&mut self.said) {
            let text = |name: &str| said.json.get(name).and_then(Value::as_str).unwrap_or_default();
            let mut message = said.json.get("message").cloned().unwrap_or_default();
            let stop = message.get_mut("stop_reason").filter(|stop| stop.is_null());
            // While an answer streams, the program tells no reason for its end.
            match stop {
                Some(stop) if said.ids("tool_use", "id").is_empty() => *stop = "end_turn".into(),
                Some(stop) => *stop = "tool_use".into(),
                None => {}
            }
            let follows = said.ids("tool_result", "tool_use_id").first().and_then(|call| self.asking(call));
            self.add(text("uuid").to_owned(), text("type"), (&message, follows));
        }
        let ids = |kind, name| self.entries.iter().flat_map(|entry| entry.ids(kind, name)).collect();
        let (asked, closed): (BTreeSet<String>, BTreeSet<String>) =
            (ids("tool_use", "id"), ids("tool_result", "tool_use_id"));
        for result in &told.results {
            if asked.contains(&result.call_id) && !closed.contains(&result.call_id) {
                self.add_result(result);
            }
        }
        // The program leaves out answers of a model that it takes for none.
        let model = |entry: &Entry| Some(entry.json.get("message")?.get("model")?.as_str()?.to_owned());
        let model = self.entries.iter().rev().find_map(model).unwrap_or_else(|| DEFAULT_MODEL.to_owned());
        for call in told.calls.get(id).into_iter().flatten() {
            let result = told.results.iter().find(|result| result.call_id == call.call_id);
            if let Some(result) = result.filter(|_| !asked.contains(&call.call_id)) {
                let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
                let block =
                    json!({"type": "tool_use", "id": call.call_id, "name": call.name, "input": input});
                let message = json!({
                    "id": format!("msg_{}", call.call_id),
                    "type": "message",
                    "role": "assistant",
                    "model": model,
                    "content": [block],
                    "stop_reason": "tool_use",
                    "stop_sequence": null,
                    "usage": {"input_tokens": 0, "output_tokens": 0},
                });
                self.add(name_of(&format!("call {}", call.call_id)), "assistant", (&message, None));
                self.add_result(result);
            }
        }
    }

    fn add_result(&mut self, result: &CallResult) {
        let block = json!({
            "type": "tool_result",
            "tool_use_id": result.call_id,
            "content": [{"type": "text", "text": result.text}],
            "is_error": result.is_error,
        });
        let call = self.asking(&result.call_id);
        self.add(name_of(&result.call_id), "user", (&json!({"role": "user", "content": [block]}), call));
    }

    /// Returns the id of the entry that asks for a call. The program has the result follow it, although others of the same
    /// answer may stand behind it.
    fn asking(&self, call_id: &str) -> Option<String> {
        let asks = |entry: &&Entry| entry.ids("tool_use", "id").iter().any(|id| id == call_id);
        self.entries.iter().rfind(asks).and_then(|entry| Some(entry.uuid()?.to_owned()))
    }

    /// Adds a message behind the last line, which it follows unless it follows another one. A transcript without lines stays
    /// so.
    fn add(&mut self, uuid: String, kind: &str, (message, follows): (&Value, Option<String>)) {
        let last = self.entries.iter().rev().find(|entry| entry.uuid().is_some());
        let Some(last) = last.map(|entry| entry.json.clone()) else { return };
        let mut entry = json!({
            "parentUuid": follows.as_deref().or(uuid_of(&last)),
            "isSidechain": false,
            "userType": "external",
            "type": kind,
            "message": message,
            "uuid": uuid,
        });
        if let Some(entry) = entry.as_object_mut() {
            for name in ["cwd", "sessionId", "version", "gitBranch"] {
                entry.extend(last.get(name).map(|value| (name.to_owned(), value.clone())));
            }
            entry.extend(later(&last).map(|time| ("timestamp".to_owned(), time.into())));
        }
        self.entries.push(Entry { line: entry.to_string(), json: entry });
    }

    /// Returns where the entry of an id stands.
    fn place_of(&self, uuid: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.uuid() == Some(uuid))
    }

    /// Returns the id of the entry that the first one follows, if the transcript does not hold it.
    fn follows(&self) -> Option<&str> {
        let first = self.entries.iter().find(|entry| entry.json.get("uuid").is_some())?;
        let parent = first.json.get("parentUuid")?.as_str()?;
        self.place_of(parent).is_none().then_some(parent)
    }
}

/// Returns a time just behind that of an entry: the program goes on behind the first of its latest entries.
fn later(entry: &Value) -> Option<String> {
    let time = DateTime::parse_from_rfc3339(entry.get("timestamp")?.as_str()?).ok()?;
    let later = time.to_utc().checked_add_signed(TimeDelta::milliseconds(1))?;
    Some(later.to_rfc3339_opts(SecondsFormat::Millis, true))
}

/// Makes the id of an entry that stands for what the log tells: the same each time.
fn name_of(told: &str) -> String {
    let digest = blake3::hash(told.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(digest.as_bytes().split_at(16).0);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

/// Returns the lines of the whole transcript of a session as the log has it, with all that the log tells of its calls; `None` if
/// the log has none, or lacks the beginning.
pub(super) fn whole(mut all: Transcripts, id: &str, told: &Told) -> Option<Vec<String>> {
    // What a session that was forked lacked was added to it then, and the fork follows that.
    for (id, transcript) in &mut all {
        transcript.complete(id, told);
    }
    let mut whole = all.remove(id).filter(|own| !own.entries.is_empty())?;
    while let Some(parent) = whole.follows().map(str::to_owned) {
        let place = all.iter().find_map(|(id, before)| Some((id.clone(), before.place_of(&parent)?)));
        let (id, place) = place?;
        let mut before = all.remove(&id)?;
        before.entries.truncate(place + 1);
        before.entries.append(&mut whole.entries);
        whole = before;
    }
    Some(whole.entries.into_iter().map(|entry| entry.line).collect())
}

/// Returns where the program keeps the transcript of a session below its folder `config`, if it runs in `cwd`.
pub(super) fn file_of(config: &Path, cwd: &Path, id: &str) -> PathBuf {
    let name: String = cwd
        .to_string_lossy()
        .chars()
        .map(|character| if character.is_ascii_alphanumeric() { character } else { '-' })
        .collect();
    let cut: String = name.chars().take(PROJECT_NAME_MAX).collect();
    config.join("projects").join(cut).join(format!("{id}.jsonl"))
}

/// Adds to the file of the transcript of a session what it lacks: the program was killed before it wrote that.
fn add_missing(file: &Path, id: &str, told: &Told) -> io::Result<()> {
    let text = String::from_utf8_lossy(&fs::read(file)?).into_owned();
    let entries = text.lines().map(|line| Entry::new(line.to_owned())).collect();
    let mut held = Transcript { entries, ..Transcript::default() };
    let before = held.entries.len();
    held.complete(id, told);
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

/// Writes the transcript of a session to its file, or what that lacks, if it is there. `lines` is `None` if the log holds no
/// transcript.
pub(super) fn write(
    file: &Path,
    lines: Option<&[String]>,
    (id, told): (&str, &Told),
    prompt: &str,
) -> Result<()> {
    let written = || -> io::Result<()> {
        let Some(lines) = lines.filter(|_| !file.exists()) else {
            return if file.exists() { add_missing(file, id, told) } else { Ok(()) };
        };
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = io::BufWriter::new(fs::File::create_new(file)?);
        for line in lines {
            file.write_all(line.as_bytes())?;
            file.write_all(b"\n")?;
        }
        file.flush()
    };
    written().map_err(|error| Error::PromptEvaluation {
        phase: Phase::Request,
        prompt: prompt.to_owned(),
        reason: format!("the transcript cannot be written back to {}: {error}", file.display()),
        source: Some(Box::new(error)),
    })
}
