//! Inputs as Codex 0.171.0 and Gemini CLI 0.61.0 write them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use crate::project::Project;

/// An agent that runs a project's hooks.
struct Agent<'a> {
    name: &'static str,
    project: &'a Project,
}

impl Agent<'_> {
    fn hook(&self, event: &str, fields: &Json) -> Json {
        let common = json!({"session_id": "01a22b24", "transcript_path": self.project.home().join("rollout.jsonl"), "cwd": self.project.root, "hook_event_name": event});
        let mut input = common.as_object().unwrap().clone();
        input.extend(fields.as_object().unwrap().clone());
        self.project.hook_of(self.name, &Json::Object(input))
    }

    fn outcomes(&self) -> Vec<(String, String)> {
        let text = |value: &Json| value.as_str().unwrap_or("open").to_owned();
        let steps = self.project.steps();
        steps.iter().map(|step| (text(&step["call"]["title"]), text(&step["outcome"]))).collect()
    }
}

fn codex(project: &Project) -> Agent<'_> {
    Agent { name: "codex", project }
}

fn patch(id: &str, lines: &str) -> Json {
    let patch = format!("*** Begin Patch\n{lines}\n*** End Patch\n");
    json!({"turn_id": "t", "model": "gpt-5.5", "permission_mode": "default", "tool_name": "apply_patch", "tool_input": {"command": patch}, "tool_use_id": id})
}

fn shell(id: &str, command: &str) -> Json {
    json!({"turn_id": "t", "permission_mode": "default", "tool_name": "Bash", "tool_input": {"command": command}, "tool_use_id": id, "tool_response": ""})
}

#[test]
fn a_patch_owns_the_files_that_it_names_even_while_a_command_of_the_same_agent_runs() {
    let project = Project::new();
    let agent = codex(&project);
    agent.hook("PreToolUse", &shell("call_1", "make"));
    agent.hook("PreToolUse", &patch("call_2", "*** Update File: notes\n@@\n-keep\n+kept"));
    project.write("notes", "kept\n");
    project.write("made", "x");
    agent.hook("PostToolUse", &patch("call_2", "*** Update File: notes\n@@\n-keep\n+kept"));
    agent.hook("PostToolUse", &shell("call_1", "make"));
    agent.hook("Stop", &json!({"turn_id": "t", "stop_hook_active": false}));
    assert_eq!(
        agent.outcomes(),
        [("make", "succeeded"), ("notes", "succeeded")]
            .map(|(title, how)| (title.to_owned(), how.to_owned()))
    );
    project.foldlog(&["undo", "1", "--yes"]);
    assert!(!project.root.join("made").exists());
    assert_eq!(fs::read_to_string(project.root.join("notes")).unwrap(), "kept\n");
    project.foldlog(&["undo", "2", "--yes"]);
    assert_eq!(fs::read_to_string(project.root.join("notes")).unwrap(), "keep\n");
}

#[test]
fn a_failed_patch_ends_with_the_next_request_to_the_model_and_owns_no_later_change() {
    let project = Project::new();
    let agent = codex(&project);
    let request = json!({"turn_id": "t", "kind": "sampling", "thread_id": "01a22b24"});
    agent.hook("PreModelRequest", &request);
    let wrong = patch("call_1", "*** Update File: notes\n@@\n-nothing\n+kept");
    agent.hook("PreToolUse", &wrong);
    agent.hook("PreModelRequest", &request);
    let right = patch("call_2", "*** Update File: notes\n@@\n-keep\n+kept");
    agent.hook("PreToolUse", &right);
    project.write("notes", "kept\n");
    agent.hook("PostToolUse", &right);
    let titles = agent.outcomes();
    assert_eq!(
        titles.iter().map(|(_, outcome)| outcome.as_str()).collect::<Vec<_>>(),
        ["failed", "succeeded"]
    );
    project.foldlog(&["undo", "2", "--yes"]);
    assert_eq!(fs::read_to_string(project.root.join("notes")).unwrap(), "keep\n");
}

#[test]
fn a_command_that_runs_on_stays_open_when_the_model_is_asked_again() {
    let project = Project::new();
    // The agent is a script, which starts hooks and a command like Codex does. It is not called by the
    // name of a shell, which agents start hooks through.
    let input = |event: &str, fields: Json| {
        let common = json!({"session_id": "s", "cwd": project.root, "hook_event_name": event});
        let mut input = common.as_object().unwrap().clone();
        input.extend(fields.as_object().unwrap().clone());
        Json::Object(input).to_string()
    };
    let script = r#"#!/bin/bash
        hook() { printf %s "$1" | "$FOLDLOG" hook event codex; }
        hook "$BEGIN"; cat <"$FIFO" >late & command=$!; sleep 0.3; hook "$REQUEST"; "$FOLDLOG" --json log >running
        echo text >"$FIFO"; wait $command; hook "$REQUEST"; "$FOLDLOG" --json log >ended"#;
    let fifo = project.home().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let program = project.home().join("codex");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut agent = std::process::Command::new(&program);
    let environment = project.command(&[]);
    agent.envs(environment.get_envs().filter_map(|(name, value)| Some((name, value?))));
    agent.current_dir(&project.root).env("FIFO", &fifo);
    agent.env("FOLDLOG", env!("CARGO_BIN_EXE_foldlog"));
    agent.env("BEGIN", input("PreToolUse", shell("call_1", "make")));
    agent.env("REQUEST", input("PreModelRequest", json!({"turn_id": "t"})));
    let begun = Instant::now();
    assert!(agent.status().unwrap().success());
    assert!(begun.elapsed() < Duration::from_secs(30));
    let outcome = |file: &str| {
        let text = fs::read_to_string(project.root.join(file)).unwrap();
        serde_json::from_str::<Json>(&text).unwrap()["outcome"].clone()
    };
    assert_eq!((outcome("running"), outcome("ended")), (Json::Null, json!("failed")));
}

#[test]
fn the_exit_code_and_the_start_of_a_command_are_in_the_transcript_of_codex() {
    let project = Project::new();
    let agent = codex(&project);
    agent.hook("PreToolUse", &shell("call_1", "exit 3"));
    agent.hook("PermissionRequest", &shell("call_1", "exit 3"));
    project.write("half", "x");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let item = json!({"type": "CommandExecution", "id": "call_1", "command": ["/bin/bash", "-lc", "exit 3"], "status": "failed", "aggregated_output": "", "exit_code": 3, "duration": {"secs": 0, "nanos": 3455}});
    let payload = json!({"type": "item_completed", "item": item, "started_at_ms": 1, "completed_at_ms": u64::try_from(now.as_millis()).unwrap()});
    let record = json!({"timestamp": "2026-11-30T06:28:46.383Z", "ordinal": 21, "type": "event_msg", "payload": payload});
    fs::write(project.home().join("rollout.jsonl"), format!("{record}\n")).unwrap();
    agent.hook("PostToolUse", &shell("call_1", "exit 3"));
    let step = &project.steps()[0];
    assert_eq!((&step["outcome"], &step["call"]["exit_code"]), (&json!("failed"), &json!(3)), "{step}");
    // The call was asked for, and was started at once: its changes are its own.
    project.foldlog(&["undo", "--yes"]);
    assert!(!project.root.join("half").exists());
}

#[test]
fn codex_learns_of_an_interruption_and_of_an_undo() {
    let project = Project::new();
    let agent = codex(&project);
    agent.hook("PreToolUse", &shell("call_1", "make"));
    project.write("made", "x");
    let told = agent.hook("Interrupt", &json!({"turn_id": "t"}));
    assert!(told["systemMessage"].as_str().unwrap().contains("`foldlog undo 1`"), "{told}");
    let prompt = |text: &str| agent.hook("UserPromptSubmit", &json!({"turn_id": "t", "prompt": text}));
    let preview = prompt("foldlog undo");
    assert_eq!(preview["decision"], "block");
    assert!(preview["reason"].as_str().unwrap().ends_with("Type `foldlog undo 1 yes` to carry it out."));
    // Codex refuses an answer with fields that it does not know.
    assert_eq!(preview.as_object().unwrap().len(), 2, "{preview}");
    assert_eq!(prompt("foldlog undo fails, why?"), Json::Null);
    assert!(prompt("foldlog undo 1 --yes")["reason"].as_str().unwrap().contains("undone as step 2"));
    let told = prompt("go on");
    let context = told["hookSpecificOutput"]["additionalContext"].as_str().unwrap();
    assert!(context.contains("Undone calls: Bash: make. Removed files: made."), "{context}");
}

fn gemini(project: &Project) -> Agent<'_> {
    Agent { name: "gemini", project }
}

#[test]
fn calls_of_gemini_cli_are_paired_without_an_id() {
    let project = Project::new();
    let agent = gemini(&project);
    let edit = |new: &str| json!({"tool_name": "replace", "tool_input": {"file_path": "notes", "old_string": "keep", "new_string": new, "instruction": "i"}});
    let shell = |command: &str| json!({"tool_name": "run_shell_command", "tool_input": {"command": command}});
    let with = |mut call: Json, response: Json| {
        call["tool_response"] = response;
        call
    };
    // Two commands of one agent run at the same time.
    agent.hook("BeforeTool", &shell("one"));
    agent.hook("BeforeTool", &shell("two"));
    project.write("one", "x");
    let output = |text: &str| json!({"llmContent": format!("<untrusted_context>\nOutput: {text}\nProcess Group PGID: 14729\n</untrusted_context>"), "returnDisplay": "part"});
    agent.hook("AfterTool", &with(shell("one"), output("(empty)")));
    agent.hook("AfterTool", &with(shell("two"), output("part\nExit Code: 3")));
    agent.hook("BeforeTool", &edit("kept"));
    project.write("notes", "kept\n");
    agent.hook(
        "AfterTool",
        &with(edit("kept"), json!({"llmContent": "Successfully modified file", "returnDisplay": {}})),
    );
    agent.hook("BeforeTool", &edit("lost"));
    let missing = "Could not find an exact match for 'old_string' in 'notes'.";
    agent.hook(
        "AfterTool",
        &with(
            edit("lost"),
            json!({"llmContent": missing, "error": {"message": missing, "type": "edit_no_occurrence_found"}}),
        ),
    );
    // The same call again, which the user refuses.
    agent.hook("BeforeTool", &shell("one"));
    agent.hook("BeforeAgent", &json!({"prompt": "why?"}));
    let outcomes: Vec<String> = agent.outcomes().into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, ["succeeded", "failed", "succeeded", "failed", "interrupted"]);
    assert_eq!(project.steps()[1]["call"]["exit_code"], 3);
    project.foldlog(&["undo", "3", "--yes"]);
    assert_eq!(fs::read_to_string(project.root.join("notes")).unwrap(), "keep\n");
}

#[test]
fn a_command_of_the_user_of_gemini_cli_is_answered() {
    let project = Project::new();
    let agent = gemini(&project);
    let shell = json!({"tool_name": "run_shell_command", "tool_input": {"command": "make"}, "tool_response": {"llmContent": "Output: (empty)"}});
    agent.hook("BeforeTool", &shell);
    project.write("made", "x");
    agent.hook("AfterTool", &shell);
    let command = include_str!("../../plugin/gemini/commands/undo.toml");
    let prompt = command.split("\"\"\"").nth(1).unwrap().trim_start().replace("{{args}}", "yes");
    let answer = agent.hook("BeforeAgent", &json!({"prompt": prompt}));
    assert_eq!(answer["decision"], "deny");
    assert!(answer["reason"].as_str().unwrap().contains("undone as step 2"), "{answer}");
    assert!(!project.root.join("made").exists());
}

/// Their arguments and results were recorded in full, since the files are in no recorded directory.
#[test]
fn secrets_in_files_outside_of_the_project_are_not_recorded() {
    let project = Project::new();
    let home = project.home();
    fs::write(home.join(".env"), "A=1\n").unwrap();
    symlink(home.join(".env"), home.join("settings")).unwrap();
    let library = home.join("library");
    fs::create_dir_all(library.join(".git")).unwrap();
    fs::write(library.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(library.join(".gitignore"), "*.key\n").unwrap();
    let secrets = [home.join(".env"), home.join("gone/.envrc"), home.join("settings"), library.join("a.key")];
    let public = home.join("plain");
    for (agent, begin, end) in
        [("claude", "PreToolUse", "PostToolUse"), ("gemini", "BeforeTool", "AfterTool")]
    {
        for path in secrets.iter().chain([&public]) {
            let content = if *path == public { "PUBLIC" } else { "SECRET" };
            let tool = if agent == "claude" { "Write" } else { "write_file" };
            let fields = json!({
                "tool_name": tool, "tool_input": {"file_path": path, "content": content},
                "tool_use_id": path, "tool_response": {"originalFile": content},
            });
            let agent = Agent { name: agent, project: &project };
            agent.hook(begin, &fields);
            agent.hook(end, &fields);
        }
    }
    let agent = codex(&project);
    for (id, lines) in
        ["*** Update File: ../home/.env", " *** Add File: ../.env", "\t*** Add File: .env"].iter().enumerate()
    {
        let call = patch(&id.to_string(), &format!("{lines}\n+SECRET"));
        agent.hook("PreToolUse", &call);
        agent.hook("PostToolUse", &call);
    }
    let timelines = fs::read_dir(project.state().join("foldlog/timelines")).unwrap();
    let sessions = timelines.map(|timeline| timeline.unwrap().path().join("store/sessions"));
    let (mut recorded, mut left) = (String::new(), sessions.collect::<Vec<_>>());
    while let Some(path) = left.pop() {
        match path.is_dir() {
            true => left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path())),
            false => recorded.push_str(&String::from_utf8_lossy(&fs::read(path).unwrap())),
        }
    }
    assert!(recorded.contains("PUBLIC"));
    assert_eq!(recorded.matches("SECRET").count(), 0);
}
