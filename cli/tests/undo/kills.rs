use serde_json::{Value as Json, json};

use crate::project::Project;

/// Kills the hook after a number of turns of the scheduler that grows from round to round, so that
/// the kill hits it at many moments from its start to its end.
#[test]
fn a_hook_that_is_killed_at_any_moment_loses_no_acknowledged_call_and_no_file() {
    let project = Project::new();
    let before = project.files();
    let (mut acknowledged, mut killed) = (Vec::new(), 0);
    for round in 0..40_u32 {
        let id = format!("call {round}");
        for event in ["PreToolUse", "PostToolUse"] {
            let mut hook = project.start_hook(&project.shell(event, &id), &[]);
            let is_killed = round % 2 == u32::from(event == "PostToolUse");
            if is_killed {
                for _ in 0..round * 400 {
                    std::thread::yield_now();
                }
                hook.kill().unwrap();
            }
            let ended = hook.wait_with_output().unwrap();
            killed += u32::from(!ended.status.success());
            if event == "PreToolUse" {
                project.write(&format!("file {round}"), "x");
            } else if ended.status.success() && !is_killed {
                acknowledged.push(id.clone());
            }
        }
    }
    assert!(killed > 0, "no hook was killed while it ran");
    project.hook(&project.input("SessionEnd", &json!({"reason": "other"})));
    let steps = project.steps();
    let ids: Vec<&Json> = steps.iter().map(|step| &step["call"]["id"]).collect();
    for id in &acknowledged {
        assert!(ids.contains(&&json!(id)), "{id} is missing of {ids:?}");
    }
    // Calls without a captured beginning stay, and are named; all others are undone.
    project.foldlog(&["undo", "--to", "1", "--yes"]);
    let left: Vec<_> = project.files().into_keys().filter(|path| !before.contains_key(path)).collect();
    for path in left {
        let round = path.to_str().unwrap().rsplit_once("file ").unwrap().1.to_owned();
        let step = steps.iter().find(|step| step["call"]["id"] == format!("call {round}"));
        let is_captured = step.is_some_and(|step| step["not_captured"].is_null());
        assert!(!is_captured, "{} stays although its call was captured: {step:?}", path.display());
    }
    assert!(before.iter().all(|(path, content)| project.files().get(path) == Some(content)));
}

/// An undo of many files is killed at many moments, and repeated.
#[test]
fn an_undo_that_is_killed_at_any_moment_is_completed_by_the_next_one() {
    let project = Project::new();
    let files = || project.files();
    for round in 0..12_u32 {
        let before = files();
        let id = format!("call {round}");
        project.hook(&project.shell("PreToolUse", &id));
        for file in 0..40 {
            project.write(&format!("directory {}/file {file}", file % 4), &format!("of round {round}"));
        }
        project.hook(&project.shell("PostToolUse", &id));
        let mut undo =
            project.command(&["undo", "--yes"]).stdout(std::process::Stdio::null()).spawn().unwrap();
        for _ in 0..round * 700 {
            std::thread::yield_now();
        }
        undo.kill().unwrap();
        undo.wait().unwrap();
        // If the killed one had ended, there is nothing left to do.
        let steps = project.steps();
        let last = steps.last().unwrap();
        if last["undo"].is_null() || last["outcome"] != "succeeded" {
            project.foldlog(&["undo", "--yes"]);
        }
        assert_eq!(files(), before, "round {round}: {last}");
    }
}
