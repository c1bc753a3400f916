//! Several sessions in one directory, and a directory with several names.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value as Json, json};

use crate::project::{Project, read, text};

fn of_session(mut input: Json, session: &str) -> Json {
    input["session_id"] = json!(session);
    input
}

#[test]
fn sessions_in_one_directory_are_lanes_and_only_overlapping_calls_share_changes() {
    let project = Project::new();
    let begin = |session: &str, id: &str| project.hook(&of_session(project.shell("PreToolUse", id), session));
    let end = |session: &str, id: &str| project.hook(&of_session(project.shell("PostToolUse", id), session));
    begin("one", "a");
    project.write("a", "x");
    begin("two", "b");
    project.write("both", "x");
    // The turn of one session, and its next prompt, are not about the other one's call.
    end("one", "a");
    project.hook(&of_session(project.input("Stop", &json!({})), "one"));
    project.hook(&of_session(project.input("SessionEnd", &json!({})), "one"));
    project.hook(&of_session(project.input("SessionStart", &json!({"source": "startup"})), "three"));
    project.write("b", "x");
    assert_eq!(end("two", "b"), Json::Null);
    let steps = project.steps();
    let outcomes: Vec<&Json> = steps.iter().map(|step| &step["outcome"]).collect();
    assert_eq!(outcomes, ["succeeded", "succeeded"]);

    let preview = project.command(&["undo", "1", "--preview", "--json"]).output().unwrap();
    let preview: Json = serde_json::from_slice(&preview.stdout).unwrap();
    assert_eq!(preview["shared"], json!(["both"]));
    let undone = project.command(&["undo", "1", "--yes"]).output().unwrap();
    assert!(
        text(&undone).contains("  stays    both: overlapping calls may have changed it"),
        "{}",
        text(&undone)
    );
    let exist = |paths: [&str; 3]| paths.map(|path| project.root.join(path).exists());
    assert_eq!(exist(["a", "b", "both"]), [false, true, true]);
    // Only the session whose call was undone is informed.
    let prompt = |session| {
        project.hook(&of_session(project.input("UserPromptSubmit", &json!({"prompt": "go on"})), session))
    };
    assert_eq!(prompt("two"), Json::Null);
    assert!(prompt("one")["hookSpecificOutput"]["additionalContext"].to_string().contains("Bash: command a"));
    project.foldlog(&["undo", "--to", "1", "--yes"]);
    assert_eq!(exist(["a", "b", "both"]), [false; 3]);
}

#[test]
fn a_directory_with_several_names_has_one_timeline() {
    let project = Project::new();
    let link = project.root.parent().unwrap().join("link");
    symlink(&project.root, &link).unwrap();
    let file = link.join("src/main.rs");
    // The program names the project, its current directory and the file by the link.
    let hook = |event: &str, tool: &str, id: &str, input: Json| {
        let fields = json!({"tool_name": tool, "tool_input": input, "tool_use_id": id});
        let mut input = project.input(event, &fields);
        input["cwd"] = json!(link);
        let mut command = project.command(&["hook", "event", "claude"]);
        command.current_dir(&link).env("CLAUDE_PROJECT_DIR", &link).env("PWD", &link).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        writeln!(child.stdin.take().unwrap(), "{input}").unwrap();
        assert!(child.wait().unwrap().success());
    };
    let call = |tool: &str, id: &str, input: Json, change: &dyn Fn()| {
        hook("PreToolUse", tool, id, input.clone());
        change();
        hook("PostToolUse", tool, id, input);
    };
    call("Edit", "1", json!({"file_path": file}), &|| fs::write(&file, "fn main() { run() }\n").unwrap());
    let command = json!({"command": format!("cd {} && ls", link.display())});
    call("Bash", "2", command, &|| fs::write(link.join("new"), "x").unwrap());
    let steps = project.steps();
    assert_eq!(steps[0]["call"]["title"], "src/main.rs");
    assert_eq!(steps[0]["paths"], json!(["src/main.rs"]));
    assert_eq!((&steps[1]["call"]["roots"], &steps[1]["call"]["outside"]), (&Json::Null, &Json::Null));
    let run = |directory: &Path, words: &[&str]| {
        let ran = project.command(words).current_dir(directory).env("PWD", directory).output().unwrap();
        assert!(ran.status.success(), "{}", text(&ran));
    };
    run(&link, &["undo", "2", "--file", "new", "--yes"]);
    assert!(!project.root.join("new").exists());
    run(&project.root, &["undo", "1", "--root", link.to_str().unwrap(), "--file", "src", "--yes"]);
    assert_eq!(read(&project.root.join("src/main.rs")), "fn main() {}\n");
}
