//! The real program in `foldlog run`.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::foldlog;
use crate::model::Model;
use crate::program::Program;
use crate::project::Project;

const PROMPT: &str = "Change the project.";

/// The project's settings have hooks, too, which record nothing within the run.
#[test]
fn calls_of_foldlog_run_are_listed_once_and_undone() {
    let Some(program) = Program::named() else { return };
    let project = Project::new(&[]);
    let root = project.root();
    let command = format!("'{}' hook event claude", env!("CARGO_BIN_EXE_foldlog"));
    let hook = json!([{"hooks": [{"type": "command", "command": command, "timeout": 30}]}]);
    let hooks = json!({"hooks": {"PreToolUse": hook, "PostToolUse": hook, "SessionEnd": hook}});
    fs::create_dir(root.join(".claude")).unwrap();
    fs::write(root.join(".claude/settings.local.json"), hooks.to_string()).unwrap();
    fs::write(project.path("task.md"), PROMPT).unwrap();
    let model = Model::start();
    let readme = root.join("README.md");
    model.teach(
        PROMPT,
        vec![
            ("Read", json!({"file_path": readme})),
            ("Edit", json!({"file_path": readme, "old_string": "project", "new_string": "library"})),
            (
                "Bash",
                json!({"command": "mkdir built && echo x > built/x && rm src/old.txt", "description": "b"}),
            ),
            ("Bash", json!({"command": "echo partial > report; exit 3", "description": "t"})),
            ("Write", json!({"file_path": root.join("new.txt"), "content": "new\n"})),
        ],
    );
    let before = project.manifest();
    let ran = Command::new(env!("CARGO_BIN_EXE_foldlog"))
        .args(["run", "--adapter", "claude", "--tool", "Read,Edit,Write,Bash", "--project-settings"])
        .arg("--program")
        .arg(program.words().last().unwrap())
        .args(["--workspace", "project", "--store", "runs", "--prompt", "task.md", "--model", "sonnet"])
        .arg(format!("--env=XDG_STATE_HOME={}", project.path("home/.local/state").display()))
        .current_dir(project.path(""))
        .env_clear()
        .envs(project.environment(&model.url()))
        .output();
    let ran = ran.unwrap();
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && !stderr.contains("foldlog undo"), "{stderr}");
    let after = project.manifest();
    let log = foldlog(&project, &["--json", "log"]);
    let steps: Vec<Value> = log.lines().rev().map(|line| serde_json::from_str(line).unwrap()).collect();
    let text = |step: &Value, name: &str| step[name].as_str().unwrap_or_default().to_owned();
    let listed: Vec<(String, String)> =
        steps.iter().map(|step| (text(&step["call"], "tool"), text(step, "outcome"))).collect();
    let pair = |tool: &str, outcome: &str| (tool.to_owned(), outcome.to_owned());
    let expected = [
        pair("Edit", "succeeded"),
        pair("Bash", "succeeded"),
        pair("Bash", "failed"),
        pair("Write", "succeeded"),
    ];
    assert_eq!(listed, expected, "{log}");
    assert_eq!(steps[2]["call"]["exit_code"], 3, "{log}");
    for number in ["4", "3", "2", "1"] {
        foldlog(&project, &["undo", number, "--yes"]);
    }
    assert_eq!(project.manifest(), before);
    for _ in 0..4 {
        foldlog(&project, &["redo", "--yes"]);
    }
    assert_eq!(project.manifest(), after);
}
