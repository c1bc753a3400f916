use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use serde_json::{Value as Json, json};

use crate::project::{Project, read, text};

#[test]
fn calls_are_listed_shown_undone_and_redone() {
    let project = Project::new();
    let before = project.files();
    project.call("first", |project| {
        project.write("src/main.rs", "fn main() { run() }\n");
        project.write("new/file", "x");
    });
    project.call("second", |project| fs::remove_file(project.root.join("notes")).unwrap());
    let after = project.files();
    let listed = project.foldlog(&["log"]);
    assert!(
        listed.contains("Bash  command second  1 removed") && listed.contains("1 changed, 1 created"),
        "{listed}"
    );
    assert!(project.foldlog(&["diff", "1"]).contains("  +fn main() { run() }"));
    assert!(project.foldlog(&["diff"]).starts_with("2  Bash: command second\nremoved notes\n"));

    let preview = project.foldlog(&["undo", "--to", "1", "--preview"]);
    assert!(preview.contains("restore  notes") && project.files() == after, "{preview}");
    project.foldlog(&["undo", "--to", "1", "--yes"]);
    assert_eq!(project.files(), before);
    project.foldlog(&["redo", "--yes"]);
    assert_eq!(project.files(), after);
    project.foldlog(&["oops"]);
    assert_eq!(read(&project.root.join("notes")), "keep\n");
    project.foldlog(&["undo", "1", "--file", "src", "-y"]);
    assert!(project.root.join("new/file").exists());
    assert_eq!(read(&project.root.join("src/main.rs")), "fn main() {}\n");
    let steps = project.steps();
    assert_eq!(steps.len(), 6, "{steps:?}");
    assert_eq!(steps[0]["kind"], Json::Null);
    assert_eq!(steps[1]["call"]["title"], "command second");
}

/// `foldlog run` records the calls of its program itself, with their rollbacks.
#[test]
fn a_hook_within_a_run_records_nothing() {
    use std::io::Write as _;
    let project = Project::new();
    for event in ["PreToolUse", "PostToolUse"] {
        let mut command = project.command(&["hook", "event", "claude"]);
        command.env("FOLDLOG_RUN", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut hook = command.spawn().unwrap();
        // The hook does not read its input.
        let _ = writeln!(hook.stdin.take().unwrap(), "{}", project.shell(event, "call"));
        let ran = hook.wait_with_output().unwrap();
        assert!(ran.status.success() && ran.stdout.is_empty(), "{}", text(&ran));
    }
    assert_eq!(fs::read_dir(project.state()).unwrap().count(), 0);
}

#[test]
fn without_a_terminal_and_without_yes_nothing_is_changed() {
    let project = Project::new();
    project.call("call", |project| project.write("new", "x"));
    let ran = project.command(&["undo"]).output().unwrap();
    let printed = text(&ran);
    assert!(printed.contains("remove   new") && printed.contains("no terminal can ask"), "{printed}");
    assert_eq!(ran.status.code(), Some(2));
    assert!(project.root.join("new").exists());
}

#[test]
fn an_agent_gets_a_preview_and_cannot_confirm() {
    let project = Project::new();
    project.call("call", |project| project.write("new", "x"));
    let begin = project.shell("PreToolUse", "within").to_string();
    let foldlog = env!("CARGO_BIN_EXE_foldlog");
    // The shell is the agent, whose call runs the command.
    let script = format!(
        "export CLAUDE_PID=$$; printf %s \"$INPUT\" | {foldlog} hook event claude; (sh -c '{foldlog} undo; {foldlog} undo --yes; true'); true"
    );
    let mut agent = project.command(&[]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]).current_dir(&project.root).env("INPUT", begin).stdin(Stdio::null());
    shell.envs(agent.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = shell.output().unwrap();
    let printed = text(&ran);
    assert!(printed.contains("remove   new") && printed.contains("nothing was changed"), "{printed}");
    assert!(
        printed.contains("error: this command runs within call 2 of an agent, which cannot confirm"),
        "{printed}"
    );
    assert!(project.root.join("new").exists());
    drop(agent.output());
}

#[test]
fn a_command_at_the_prompt_is_answered_without_the_model_and_the_model_is_informed_later() {
    let project = Project::new();
    project.call("call", |project| project.write("new", "x"));
    let prompt = |text: &str| project.hook(&project.input("UserPromptSubmit", &json!({"prompt": text})));
    let preview = prompt("/undo");
    assert_eq!(preview["decision"], "block");
    assert!(
        preview["reason"].as_str().unwrap().ends_with("Type `/undo 1 yes` to carry it out."),
        "{preview}"
    );
    assert!(project.root.join("new").exists());
    assert!(prompt("/undo 7")["reason"].as_str().unwrap().contains("there is no call 7"));
    assert!(prompt("/foldlog:undo yes")["reason"].as_str().unwrap().contains("undone as step 2"));
    assert!(!project.root.join("new").exists());
    let told = prompt("go on");
    let context = told["hookSpecificOutput"]["additionalContext"].as_str().unwrap();
    assert!(context.contains("Undone calls: Bash: command call. Removed files: new."), "{context}");
    assert_eq!(prompt("go on"), Json::Null, "it is informed once");
    assert!(prompt("/redo yes")["reason"].as_str().unwrap().contains("redone as step 3"));
    let told = prompt("/undone")["hookSpecificOutput"]["additionalContext"].to_string();
    assert!(told.contains("Calls that are in effect again: Bash: command call."), "{told}");
}

#[test]
fn a_command_at_the_prompt_undoes_one_call_if_hooks_are_installed_twice() {
    let project = Project::new();
    project.call("first", |project| project.write("first", "x"));
    project.call("second", |project| project.write("second", "x"));
    let input = project.input("UserPromptSubmit", &json!({"prompt": "/undo yes"}));
    let hooks = [project.start_hook(&input, &[]), project.start_hook(&input, &[])];
    let reasons = hooks.map(|hook| text(&hook.wait_with_output().unwrap()));
    assert!(reasons.iter().any(|reason| reason.contains("undone as step 3")), "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.contains("carried out as step 3")), "{reasons:?}");
    assert!(project.root.join("first").exists() && !project.root.join("second").exists());
}

#[test]
fn an_interrupted_call_is_closed_at_the_next_prompt_and_the_user_learns_how_to_undo_it() {
    let project = Project::new();
    project.hook(&project.shell("PreToolUse", "lost"));
    project.write("half", "x");
    // A background task of the program ends, which interrupts nothing.
    let task = json!({"prompt": "\n<task-notification>\n<task-id>1</task-id>"});
    assert_eq!(project.hook(&project.input("UserPromptSubmit", &task)), Json::Null);
    let told = project.hook(&project.input("UserPromptSubmit", &json!({"prompt": "what happened?"})));
    assert!(told["systemMessage"].as_str().unwrap().contains("`foldlog undo 1`"), "{told}");
    assert!(project.root.join("half").exists());
    assert_eq!(project.steps()[0]["outcome"], "interrupted");
    project.foldlog(&["undo", "1", "-y"]);
    assert!(!project.root.join("half").exists());
}

#[test]
fn a_failed_command_keeps_its_exit_code_and_its_changes() {
    let project = Project::new();
    project.hook(&project.shell("PreToolUse", "failing"));
    project.write("half", "x");
    let mut end = project.shell("PostToolUseFailure", "failing");
    end["error"] = json!("Exit code 3\npart\nbad");
    end["duration_ms"] = json!(10);
    project.hook(&end);
    let step = &project.steps()[0];
    assert_eq!((&step["outcome"], &step["call"]["exit_code"]), (&json!("failed"), &json!(3)), "{step}");
    assert!(project.foldlog(&["log"]).contains("1 created; failed"));
}

#[test]
fn tools_that_only_read_are_not_recorded() {
    let project = Project::new();
    let read =
        project.input("PreToolUse", &json!({"tool_name": "Read", "tool_input": {}, "tool_use_id": "r"}));
    assert_eq!(project.hook(&read), Json::Null);
    assert!(!project.command(&["log"]).output().unwrap().status.success());
}

#[test]
fn a_home_directory_is_recorded_only_after_it_was_allowed() {
    let project = Project::new();
    let home = project.home().canonicalize().unwrap();
    let start = |source: &str| {
        let mut input = project.input("SessionStart", &json!({"source": source}));
        input["cwd"] = json!(home);
        project.hook(&input)
    };
    let told = start("startup");
    assert!(told["systemMessage"].as_str().unwrap().contains("foldlog hook allow"), "{told}");
    let mut begin = project.shell("PreToolUse", "1");
    begin["cwd"] = json!(home);
    assert_eq!(project.hook(&begin), Json::Null);
    assert!(!project.command(&["log"]).current_dir(&home).output().unwrap().status.success());
    project.foldlog(&["hook", "allow", home.to_str().unwrap()]);
    assert_eq!(project.hook(&begin), Json::Null);
    assert!(project.command(&["log"]).current_dir(&home).output().unwrap().status.success());
    let removed = project.foldlog(&["hook", "allow", "--remove", home.to_str().unwrap()]);
    assert!(removed.starts_with("hooks do not record ") && removed.contains("home directory"), "{removed}");
    assert!(start("startup")["systemMessage"].as_str().unwrap().contains("foldlog hook allow"));
    let root = project.foldlog(&["hook", "allow", "--remove", "."]);
    assert!(root.ends_with(": it needs no permission\n"), "{root}");
}

#[test]
fn a_call_that_cannot_be_recorded_runs_unless_the_hook_is_strict() {
    let project = Project::new();
    // The records would be in the directory that they are about.
    let begin = project.shell("PreToolUse", "1");
    let hook = |options: &[&str]| {
        let arguments: Vec<&str> = ["hook", "event", "claude"].iter().chain(options).copied().collect();
        let mut command = project.command(&arguments);
        let child = command.env("XDG_STATE_HOME", project.root.join("state")).stdin(Stdio::piped());
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        use std::io::Write as _;
        writeln!(child.stdin.take().unwrap(), "{begin}").unwrap();
        child.wait_with_output().unwrap()
    };
    let lenient = hook(&[]);
    assert_eq!(lenient.status.code(), Some(0));
    assert!(text(&lenient).contains("foldlog could not record PreToolUse"), "{}", text(&lenient));
    let strict = hook(&["--strict"]);
    assert_eq!(strict.status.code(), Some(2), "{}", text(&strict));
    assert!(text(&strict).contains("the store is inside the workspace"), "{}", text(&strict));
}

#[test]
fn a_failed_record_is_reported_with_its_consequence_and_its_remedy() {
    let mut project = Project::new();
    project.call("1", |project| project.write("notes", "changed\n"));
    let sessions = project.sessions();
    let timeline = sessions.ancestors().nth(2).unwrap().to_owned();
    let begin = |project: &Project, id: &str| {
        let told = project.hook(&project.shell("PreToolUse", id));
        told["systemMessage"].as_str().unwrap().to_owned()
    };
    project.give_away();
    let mode = |mode| fs::set_permissions(&timeline, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o500);
    fs::remove_file(timeline.join("lock")).ok();
    let told = begin(&project, "2");
    let remedy = format!("; this call cannot be undone; make {} writable for you", timeline.display());
    assert!(told.contains(&remedy), "{told}");
    mode(0o700);

    let session = fs::read_dir(&sessions).unwrap().next().unwrap().unwrap().path();
    let segment = session.join("0000000000.seg");
    let mut bytes = fs::read(&segment).unwrap();
    bytes[450] ^= 0xff;
    fs::write(&segment, bytes).unwrap();
    let told = begin(&project, "3");
    let remedy = format!(
        "; this call cannot be undone; to start anew, without the calls until now, move {} away",
        timeline.display()
    );
    assert!(told.contains("could not record PreToolUse") && told.contains(&remedy), "{told}");
}

#[test]
fn an_input_that_is_no_event_stops_no_agent() {
    let project = Project::new();
    for input in
        [json!(null), json!({"hook_event_name": 1}), project.input("AnEventOfALaterVersion", &json!({}))]
    {
        let ran = project.start_hook(&input, &[]).wait_with_output().unwrap();
        assert_eq!(ran.status.code(), Some(0), "{input}");
    }
    let hook = |options: &[&str]| {
        let arguments: Vec<&str> = ["hook", "event", "claude"].iter().chain(options).copied().collect();
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut child = project.command(&arguments).stdin(Stdio::piped()).stdout(full).spawn().unwrap();
        use std::io::Write as _;
        child.stdin.take().unwrap().write_all(b"{\"session_id\":\"\xff\"").unwrap();
        child.wait().unwrap().code()
    };
    assert_eq!(hook(&[]), Some(0));
    assert_eq!(hook(&["--strict"]), Some(2), "it may be about a tool that is about to run");
}

#[test]
fn the_user_learns_of_the_call_of_a_killed_agent_when_the_session_is_resumed() {
    let mut project = Project::new();
    project.hook(&project.shell("PreToolUse", "killed"));
    project.write("half", "x");
    project.kill_agent();
    let told = project.hook(&project.input("SessionStart", &json!({"source": "resume"})));
    assert!(told["systemMessage"].as_str().unwrap().contains("`foldlog undo 1`"), "{told}");
    assert!(project.root.join("half").exists());
}

#[test]
fn the_call_of_an_agent_that_was_killed_is_undone_like_any_other() {
    let mut project = Project::new();
    project.hook(&project.shell("PreToolUse", "killed"));
    project.write("half", "x");
    project.kill_agent();
    project.foldlog(&["undo", "--yes"]);
    assert!(!project.root.join("half").exists());
}

#[test]
fn a_call_that_has_not_ended_is_undone_only_by_its_number() {
    let project = Project::new();
    project.call("first", |project| project.write("one", "x"));
    project.hook(&project.shell("PreToolUse", "running"));
    project.write("two", "x");
    let ran = project.command(&["undo", "--yes"]).output().unwrap();
    assert_eq!(ran.status.code(), Some(2));
    assert!(text(&ran).contains("call 2 (Bash: command running) has not ended"), "{}", text(&ran));
    let preview = project.command(&["undo", "--preview"]).output().unwrap();
    assert!(
        text(&preview).contains("note: call 2 (Bash: command running) has not ended"),
        "{}",
        text(&preview)
    );
    project.foldlog(&["undo", "2", "--yes"]);
    assert!(!project.root.join("two").exists() && project.root.join("one").exists());
    let elsewhere = project.command(&["undo"]).current_dir(project.home()).output().unwrap();
    assert!(text(&elsewhere).contains(project.root.to_str().unwrap()), "{}", text(&elsewhere));
}
