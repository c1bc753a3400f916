//! Scripts for the stand-in, and helpers of the tests that use it.
//! `tests/src/bin/claude-stand-in/main.rs` lists the steps.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldlog_claude::{
    Callbacks, ClaudeBlock, ClaudeMessage, ClaudeMessageBody, Client, ClientError, ClientOptions, NoCallbacks,
};
use serde_json::Value;
use tempfile::TempDir;

/// The limit of a wait for a message.
const LONG: Duration = Duration::from_secs(60);

/// A script, and the directories of the program that plays it.
pub(crate) struct StandIn {
    directory: TempDir,
}

impl StandIn {
    /// Writes a script; each element of the list is a step.
    pub(crate) fn new(steps: &Value) -> StandIn {
        let stand_in = StandIn { directory: TempDir::new().unwrap() };
        for directory in ["work", "home", "tmp", "config"] {
            fs::create_dir(stand_in.path(directory)).unwrap();
        }
        stand_in.play(steps);
        stand_in
    }

    /// Replaces the script, for programs that start later.
    pub(crate) fn play(&self, steps: &Value) {
        let lines: String = steps.as_array().unwrap().iter().map(|step| format!("{step}\n")).collect();
        fs::write(self.path("script"), lines).unwrap();
    }

    /// Returns the path of a file next to the script.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Opens a gate at which a script waits.
    pub(crate) fn open_gate(&self, name: &str) {
        fs::write(self.path(name), "").unwrap();
    }

    pub(crate) fn options(&self) -> ClientOptions {
        let mut options = ClientOptions::new(env!("CARGO_BIN_EXE_claude-stand-in"), self.path("work"));
        options.home = Some(self.path("home"));
        options.tmpdir = Some(self.path("tmp"));
        options.config_dir = Some(self.path("config"));
        options.variables.set("STAND_IN_SCRIPT", self.path("script"));
        options
    }

    pub(crate) fn start(&self) -> Result<Client, ClientError> {
        Client::start(&self.options(), Arc::new(NoCallbacks))
    }

    /// Starts a client with bridged tools of the server `wink`, all of them allowed.
    pub(crate) fn start_with(&self, callbacks: Arc<dyn Callbacks>) -> Client {
        let mut options = self.options();
        options.bridged_servers = vec!["wink".into()];
        options.allowed_tools = callbacks.tools().iter().map(|tool| tool.full_name()).collect();
        Client::start(&options, callbacks).unwrap()
    }

    /// Returns the host's lines, as the stand-in received them.
    pub(crate) fn heard(&self) -> Vec<Value> {
        self.lines("script.heard")
    }

    /// Returns how each stand-in was started: `arguments`, `environment`, `cwd`, `pid`.
    pub(crate) fn starts(&self) -> Vec<Value> {
        self.lines("script.starts")
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Returns a time that is only reached if a fault occurs.
pub(crate) fn late() -> Option<Instant> {
    Some(Instant::now() + LONG)
}

/// Sends a prompt, and returns the messages up to the result.
pub(crate) fn turn(client: &Client, prompt: &str) -> Vec<ClaudeMessage> {
    client.query(prompt).unwrap();
    up_to_result(client)
}

pub(crate) fn up_to_result(client: &Client) -> Vec<ClaudeMessage> {
    let mut messages = Vec::new();
    while let Some(message) = client.next_message(late()).unwrap() {
        let is_last = message.result().is_some();
        messages.push(message);
        if is_last {
            return messages;
        }
    }
    panic!("the program ended without a result, after {messages:?}");
}

/// Returns the text of the result that ends a list of messages.
pub(crate) fn result_text(messages: &[ClaudeMessage]) -> String {
    messages.last().unwrap().result().unwrap().result.clone().unwrap_or_default()
}

pub(crate) fn rest(client: &Client) -> Vec<ClaudeMessage> {
    std::iter::from_fn(|| client.next_message(late()).unwrap()).collect()
}

/// Returns the results of calls among messages: content, and whether the call failed.
pub(crate) fn call_results(messages: &[ClaudeMessage]) -> Vec<(String, bool)> {
    let mut results = Vec::new();
    for message in messages {
        let ClaudeMessageBody::User(user) = &message.body else { continue };
        for block in &user.content {
            if let ClaudeBlock::ToolResult { content, is_error, .. } = block {
                let text = content.as_str().or_else(|| content[0]["text"].as_str());
                results.push((text.unwrap_or_default().to_owned(), *is_error));
            }
        }
    }
    results
}

/// Returns the path and the text of a session's file, as the mirrored lines among messages give it.
pub(crate) fn mirrored(messages: &[ClaudeMessage]) -> (String, String) {
    let (mut path, mut text) = (String::new(), String::new());
    for message in messages {
        let ClaudeMessageBody::TranscriptMirror(mirror) = &message.body else { continue };
        path.clone_from(&mirror.file_path);
        mirror.entries.iter().for_each(|entry| text.push_str(&format!("{}\n", entry.get())));
    }
    (path, text)
}
