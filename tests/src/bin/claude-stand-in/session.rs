//! The file of a session, in the real program's format.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::host::emit;
use crate::new_id;
use crate::started::Started;

/// The program's text to the model for a call without a result.
const DANGLING: &str = "[Tool use interrupted]";

/// The reason for which the stand-in does not start.
pub struct Refusal {
    stderr: Option<String>,
    line: Option<Value>,
}

impl Refusal {
    /// Prints the reason as the program does, and exits with 1.
    pub fn end(self) -> ! {
        if let Some(line) = self.line {
            emit(&line);
        }
        if let Some(text) = self.stderr {
            eprintln!("{text}");
        }
        std::process::exit(1);
    }
}

/// The session's file, and its lines that were not mirrored yet.
pub struct Transcript {
    pub id: String,
    path: PathBuf,
    entries: Vec<Value>,
    unmirrored: Vec<Value>,
    is_mirrored: bool,
}

impl Transcript {
    /// Opens the session that the arguments name, or a new one.
    pub fn open(started: &Started) -> Result<Transcript, Refusal> {
        let projects = config_directory().join("projects");
        let chosen = started.value("--session-id").map(str::to_owned);
        let mangled = |char: char| if char.is_ascii_alphanumeric() { char } else { '-' };
        let directory: String = started.cwd.to_string_lossy().chars().map(mangled).collect();
        let path_of = |id: &str| projects.join(&directory).join(format!("{id}.jsonl"));
        let is_mirrored = started.has("--session-mirror");
        let new = |id: String, entries| {
            let path = path_of(&id);
            Transcript { id, path, entries, unmirrored: Vec::new(), is_mirrored }
        };
        if let Some(id) = &chosen
            && find(&projects, id).is_some()
        {
            let stderr = Some(format!("Error: Session ID {id} is already in use."));
            return Err(Refusal { stderr, line: None });
        }
        let fresh = || chosen.clone().unwrap_or_else(new_id);
        let Some(resumed) = started.value("--resume") else { return Ok(new(fresh(), Vec::new())) };
        let Some(path) = find(&projects, resumed) else {
            let error = format!("No conversation found with session ID: {resumed}");
            let line = json!({"type": "result", "subtype": "error_during_execution", "is_error": true,
                "errors": [error], "session_id": new_id(), "num_turns": 0});
            return Err(Refusal { stderr: None, line: Some(line) });
        };
        let text = fs::read_to_string(&path).expect("the session's file can be read");
        // A torn last line is tolerated.
        let mut entries: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if let Some(at) = started.value("--resume-session-at") {
            let last =
                entries.iter().position(|entry| entry["uuid"] == at).expect("the session has the message");
            entries.truncate(last + 1);
        }
        if !started.has("--fork-session") {
            let id = resumed.to_owned();
            return Ok(Transcript { id, path, entries, unmirrored: Vec::new(), is_mirrored });
        }
        let mut forked = new(fresh(), Vec::new());
        for mut entry in entries {
            entry["sessionId"] = forked.id.clone().into();
            forked.add_entry(entry);
        }
        Ok(forked)
    }

    /// Adds a message to the session's file. Returns its id.
    pub fn add(&mut self, kind: &str, message: &Value) -> String {
        let parent = self.entries.iter().rev().find_map(|entry| entry["uuid"].as_str()).map(str::to_owned);
        let uuid = new_id();
        self.add_entry(json!({"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": self.id,
            "isSidechain": false, "message": message}));
        uuid
    }

    /// Adds a message to the file of the sub-agent that a call started, and mirrors it at once.
    /// Returns its id.
    pub fn add_aside(&mut self, call: &str, kind: &str, message: &Value) -> String {
        let uuid = new_id();
        let entry = json!({"type": kind, "uuid": uuid, "parentUuid": null, "sessionId": self.id,
            "isSidechain": true, "message": message});
        let path = self.path.with_extension("").join("subagents").join(format!("agent-{call}.jsonl"));
        append(&path, &entry);
        if self.is_mirrored {
            emit(&json!({"type": "transcript_mirror", "filePath": path, "entries": [entry]}));
        }
        uuid
    }

    fn add_entry(&mut self, entry: Value) {
        append(&self.path, &entry);
        if self.is_mirrored {
            self.unmirrored.push(entry.clone());
        }
        self.entries.push(entry);
    }

    /// Sends the lines added since the last call.
    pub fn mirror(&mut self) {
        if !self.unmirrored.is_empty() {
            let entries = std::mem::take(&mut self.unmirrored);
            emit(&json!({"type": "transcript_mirror", "filePath": self.path, "entries": entries}));
        }
    }

    /// Saves a large output to a file, and returns the text for the model.
    pub fn save(&self, text: &str) -> String {
        let directory = self.path.with_extension("").join("tool-results");
        fs::create_dir_all(&directory).expect("a directory can be made");
        let path = directory.join("output.txt");
        fs::write(&path, text).expect("a file can be written");
        format!("<persisted-output>\nFull output saved to: {}\n</persisted-output>", path.display())
    }

    /// Ends the session's file at the end of the program.
    pub fn end(&mut self) {
        if !self.entries.is_empty() {
            let prompt = self.prompts().pop().unwrap_or_default();
            self.add_entry(json!({"type": "last-prompt", "lastPrompt": prompt, "sessionId": self.id}));
        }
        self.mirror();
    }

    fn blocks(&self, kind: &'static str) -> impl Iterator<Item = &Value> {
        let contents = self.entries.iter().filter_map(|entry| entry["message"]["content"].as_array());
        contents.flatten().filter(move |block| block["type"] == kind)
    }

    fn result_of(&self, call: &Value) -> Option<&Value> {
        self.blocks("tool_result").find(|result| result["tool_use_id"] == call["id"])
    }

    /// Returns the results of all calls of the session, `id: text` each, in the order of the calls.
    /// A call without a result has the program's text for that case.
    pub fn results(&self) -> Vec<String> {
        let text = |content: &Value| match content.as_str() {
            Some(text) => text.to_owned(),
            None => content[0]["text"].as_str().unwrap_or_default().to_owned(),
        };
        let of = |call: &Value| {
            let text = self.result_of(call).map_or(DANGLING.to_owned(), |result| text(&result["content"]));
            format!("{}: {text}", call["id"].as_str().unwrap_or_default())
        };
        self.blocks("tool_use").map(of).collect()
    }

    /// Returns name and input of each call of the session without a result, unless an equal call
    /// has one.
    pub fn calls_without_result(&self) -> Vec<(String, Value)> {
        let of = |call: &Value| (call["name"].as_str().unwrap_or_default().to_owned(), call["input"].clone());
        let (has, lacks): (Vec<_>, Vec<_>) =
            self.blocks("tool_use").partition(|call| self.result_of(call).is_some());
        let has: Vec<_> = has.into_iter().map(of).collect();
        lacks.into_iter().map(of).filter(|call| !has.contains(call)).collect()
    }

    /// Returns whether an answer of the session, or a conversation in a prompt's text, has a text.
    pub fn says(&self, text: &str) -> bool {
        let answers = self.entries.iter().filter(|entry| entry["type"] == "assistant");
        let mut blocks =
            answers.flat_map(|entry| entry["message"]["content"].as_array().into_iter().flatten());
        let in_words = |line: &str| {
            let rest = line.strip_prefix("you: ").and_then(|line| line.strip_prefix(text));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" [calls "))
        };
        blocks.any(|block| block["text"] == text)
            || self.prompts().iter().any(|prompt| prompt.lines().any(in_words))
    }

    pub fn prompts(&self) -> Vec<String> {
        let prompts = self.entries.iter().filter(|entry| entry["type"] == "user");
        prompts.filter_map(|entry| entry["message"]["content"].as_str().map(str::to_owned)).collect()
    }
}

fn append(path: &Path, entry: &Value) {
    fs::create_dir_all(path.parent().expect("the file is in a directory")).expect("a directory can be made");
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("the file opens");
    file.write_all(format!("{entry}\n").as_bytes()).expect("the file can be written");
}

/// Returns the parent directory of the program's files.
fn config_directory() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".claude");
    std::env::var_os("CLAUDE_CONFIG_DIR").map_or_else(home, PathBuf::from)
}

/// Returns the file of a session, from any working directory.
fn find(projects: &Path, id: &str) -> Option<PathBuf> {
    let name = format!("{id}.jsonl");
    let directories = fs::read_dir(projects).ok()?.flatten();
    directories.map(|directory| directory.path().join(&name)).find(|path| path.is_file())
}
