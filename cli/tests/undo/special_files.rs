//! Pipes and devices in the place of files that hooks read. A hook that waits for one is ended by its
//! own deadline, and then has a message.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::{Value as Json, json};

use crate::project::{Project, read};

#[test]
fn a_transcript_that_is_a_pipe_delays_no_hook() {
    let project = Project::new();
    let (pipe, link) = (project.home().join("pipe.jsonl"), project.home().join("link.jsonl"));
    make_pipe(&pipe);
    symlink(&pipe, &link).unwrap();
    for (agent, transcript) in [("codex", &pipe), ("codex", &link), ("claude", &link)] {
        let hook = |event: &str| {
            let fields = json!({
                // A session of its own is not informed about earlier undos.
                "session_id": format!("{agent} {}", transcript.display()),
                "transcript_path": transcript, "tool_name": "Bash", "tool_input": {"command": "make"},
                "tool_use_id": format!("{agent} {}", transcript.display()), "tool_response": "",
            });
            assert_eq!(project.hook_of(agent, &project.input(event, &fields)), Json::Null, "{agent} {event}");
        };
        hook("PreToolUse");
        project.write("made", "x");
        hook("PostToolUse");
        hook("Stop");
        project.foldlog(&["undo", "--yes"]);
        assert!(!project.root.join("made").exists());
    }
}

#[test]
fn a_list_of_patterns_that_is_a_pipe_or_a_device_is_no_list() {
    let project = Project::new();
    let noted = project.home().join(".config/foldlog/noted");
    fs::create_dir_all(noted.parent().unwrap()).unwrap();
    for is_pipe in [true, false] {
        let _ = fs::remove_file(&noted);
        if is_pipe {
            make_pipe(&noted);
        } else {
            symlink("/dev/zero", &noted).unwrap();
        }
        let id = if is_pipe { "pipe" } else { "device" };
        for event in ["PreToolUse", "PostToolUse"] {
            assert_eq!(project.hook(&project.shell(event, id))["systemMessage"], Json::Null);
            project.write("notes", "x");
        }
        project.foldlog(&["undo", "--yes"]);
        assert_eq!(read(&project.root.join("notes")), "keep\n");
    }
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}
