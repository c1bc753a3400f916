//! The conversation of an agent, imported from its transcript.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value as Json, json};

use crate::project::Project;

/// The transcript of an agent, in lines as Claude Code 2.1.332 writes them.
pub(crate) struct Transcript {
    path: PathBuf,
    lines: String,
    count: u32,
}

impl Transcript {
    pub(crate) fn new(project: &Project, name: &str) -> Transcript {
        let path = project.home().join(".claude/projects/-project").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        Transcript { path, lines: String::new(), count: 0 }
    }

    /// Adds a line with a message, and the lines that accompany it.
    fn message(&mut self, kind: &str, message: &Json) -> &mut Transcript {
        self.count += 1;
        let uuid = format!("00000000-0000-4000-8000-{:012}", self.count);
        let line = json!({
            "parentUuid": null, "isSidechain": false, "type": kind, "message": message, "uuid": uuid,
            "timestamp": format!("2026-11-30T02:59:{:02}.500Z", self.count % 60), "sessionId": "f483",
        });
        let attachment =
            json!({"attachment": {"type": "date"}, "type": "attachment", "uuid": format!("a{uuid}")});
        let other = json!({"type": "last-prompt", "lastPrompt": "text", "sessionId": "f483"});
        writeln!(self.lines, "{line}\n{attachment}\n{other}").unwrap();
        self
    }

    pub(crate) fn user(&mut self, content: &Json) -> &mut Transcript {
        self.message("user", &json!({"role": "user", "content": content}))
    }

    pub(crate) fn answer(&mut self, id: &str, block: &Json) -> &mut Transcript {
        let usage = json!({"input_tokens": 10, "output_tokens": 5});
        self.message("assistant", &json!({
            "id": id, "type": "message", "role": "assistant", "model": "claude-sonnet-5-5", "content": [block],
            "stop_reason": "tool_use", "usage": usage,
        }))
    }

    pub(crate) fn call(&mut self, id: &str, tool: &str, input: &Json) -> &mut Transcript {
        let block = json!({"type": "tool_use", "name": tool, "input": input, "id": id});
        self.answer(&format!("msg_{id}"), &block)
    }

    pub(crate) fn result(&mut self, id: &str, text: &str) -> &mut Transcript {
        self.user(&json!([{"tool_use_id": id, "type": "tool_result", "content": text, "is_error": false}]))
    }

    /// Writes the file, and ends the turn.
    pub(crate) fn stop(&self, project: &Project, event: &str) {
        fs::create_dir_all(self.path.parent().unwrap()).unwrap();
        fs::write(&self.path, &self.lines).unwrap();
        assert_eq!(project.hook(&self.input(project, event)), Json::Null);
    }

    fn input(&self, project: &Project, event: &str) -> Json {
        let mut input = project.input(event, &json!({}));
        input["transcript_path"] = json!(self.path);
        input
    }
}

/// Returns the messages of a conversation: role, text, and the ids of its calls.
fn messages(project: &Project, conversation: &str) -> Vec<String> {
    let sessions = fs::read_dir(project.sessions()).unwrap().map(|entry| entry.unwrap().path());
    let steps =
        |session: &PathBuf| project.foldlog(&["show", session.to_str().unwrap()]).contains("step_changed");
    let session = sessions.into_iter().find(|session| !steps(session)).unwrap();
    let arguments =
        ["--json", "transcript", session.to_str().unwrap(), "--as-recorded", "--evaluation", conversation];
    let printed = project.foldlog(&arguments);
    let line = |line: &str| {
        let message: Json = serde_json::from_str(line).unwrap();
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        let calls: String = calls.map(|call| format!(" ->{}", call["call_id"].as_str().unwrap())).collect();
        let of = message["tool_call_id"].as_str().map(|id| format!(" <-{id}")).unwrap_or_default();
        let text = message["content"].as_str().unwrap_or_default();
        format!("{}: {text}{calls}{of}", message["role"].as_str().unwrap())
    };
    printed.lines().map(line).collect()
}

#[test]
fn the_conversation_is_imported_at_the_end_of_each_turn_and_each_message_once() {
    let project = Project::new();
    let mut transcript = Transcript::new(&project, "f483.jsonl");
    let text = |text: &str| json!({"type": "text", "text": text});
    transcript.user(&json!("make it run"));
    transcript.answer("msg_1", &text("I look."));
    transcript.answer(
        "msg_1",
        &json!({"type": "tool_use", "name": "Bash", "input": {"command": "ls"}, "id": "toolu_1"}),
    );
    // Nothing is recorded for a directory without calls.
    transcript.stop(&project, "Stop");
    project.call("toolu_1", |project| project.write("new", "x"));
    transcript.result("toolu_1", "new").stop(&project, "Stop");
    let first = ["user: make it run", "assistant: I look. ->toolu_1", "tool: new <-toolu_1"];
    assert_eq!(messages(&project, "f483"), first);
    transcript.stop(&project, "Stop");
    assert_eq!(messages(&project, "f483"), first);

    // The last line is not complete yet.
    transcript.answer("msg_2", &text("It runs."));
    let whole = transcript.lines.clone();
    let cut = whole.find("It runs").unwrap();
    transcript.lines.truncate(cut);
    transcript.stop(&project, "Stop");
    assert_eq!(messages(&project, "f483"), first);
    transcript.lines = whole;
    transcript.user(&json!("x".repeat(100_000))).stop(&project, "SessionEnd");
    let all = messages(&project, "f483");
    assert_eq!((all.len(), all[3].as_str()), (5, "assistant: It runs."));
    assert!(all[4].ends_with('…') && all[4].len() < 70_000);

    // The program shortens the file, and then writes it anew, with a new line before the others.
    let whole = transcript.lines.clone();
    transcript.lines.truncate(100);
    transcript.stop(&project, "Stop");
    transcript.lines = format!("{}\n{whole}", json!({"type": "summary", "summary": "of it"}));
    transcript.answer("msg_3", &text("More.")).stop(&project, "Stop");
    let longer = messages(&project, "f483");
    assert_eq!((longer.len(), longer[5].as_str()), (6, "assistant: More."));
    assert_eq!(longer[..5], all[..]);

    let mut agent = Transcript::new(&project, "f483/subagents/agent-a1.jsonl");
    agent.user(&json!("be a sub-agent")).answer("msg_4", &text("done")).stop(&project, "SubagentStop");
    transcript.stop(&project, "Stop");
    assert_eq!(messages(&project, "a1"), ["user: be a sub-agent", "assistant: done"]);
}

#[test]
fn a_transcript_that_cannot_be_read_does_not_disturb_the_agent() {
    let project = Project::new();
    project.call("toolu_1", |project| project.write("new", "x"));
    let mut input = project.input("Stop", &json!({}));
    for path in [json!("/nowhere"), json!(project.root), json!(null)] {
        input["transcript_path"] = path;
        assert_eq!(project.hook(&input), Json::Null);
    }
    let mut transcript = Transcript::new(&project, "f483.jsonl");
    transcript.lines =
        "{\n\u{0}not JSON\n[1]\n{\"type\":\"user\"}\n{\"type\":\"user\",\"message\":3}\n".to_owned();
    transcript.user(&json!({"odd": true})).user(&json!(null)).stop(&project, "Stop");
    assert_eq!(messages(&project, "f483").len(), 2);
    assert_eq!(project.steps().len(), 1);
}

/// An import is killed at many moments, and repeated.
#[test]
fn an_import_that_is_killed_at_any_moment_loses_and_repeats_no_message() {
    let project = Project::new();
    project.call("toolu_1", |project| project.write("new", "x"));
    let mut transcript = Transcript::new(&project, "f483.jsonl");
    let mut expected = Vec::new();
    for round in 0..24_u32 {
        for part in 0..20 {
            let id = format!("toolu_{round}_{part}");
            transcript.call(&id, "Bash", &json!({"command": "ls"})).result(&id, "of it");
            expected.extend([format!("assistant:  ->{id}"), format!("tool: of it <-{id}")]);
        }
        fs::write(&transcript.path, &transcript.lines).unwrap();
        let mut hook = project.start_hook(&transcript.input(&project, "Stop"), &[]);
        for _ in 0..round * 700 {
            std::thread::yield_now();
        }
        hook.kill().unwrap();
        hook.wait().unwrap();
    }
    transcript.stop(&project, "SessionEnd");
    assert_eq!(messages(&project, "f483"), expected);
}
