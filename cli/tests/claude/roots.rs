//! Sessions in several directories, and several sessions in one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::calls::bash;
use crate::foldlog;
use crate::model::Model;
use crate::program::Program;
use crate::project::Project;

fn recorded() -> Project {
    Project::new(&[&format!("'{}' hook event claude", env!("CARGO_BIN_EXE_foldlog"))])
}

/// Starts a session with one prompt, in which no call is asked about.
fn start(project: &Project, model: &Model, prompt: &str) -> Child {
    let program = Program::named().unwrap().words();
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).args(["-p", prompt, "--model", "sonnet"]);
    command.args(["--permission-mode", "bypassPermissions"]).current_dir(project.root());
    command.env_clear().envs(project.environment(&model.url())).env("IS_SANDBOX", "1");
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

fn run(project: &Project, model: &Model, prompt: &str) {
    assert!(start(project, model, prompt).wait().unwrap().success());
}

/// Returns the steps of a root, the first one first.
fn steps(project: &Project, root: &Path) -> Vec<Value> {
    let log = foldlog(project, &["--json", "log", "-n", "100", "--root", root.to_str().unwrap()]);
    let mut steps: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    steps.reverse();
    steps
}

#[test]
fn a_cd_into_another_repository_is_undone_there() {
    if Program::named().is_none() {
        return;
    }
    let (project, model) = (recorded(), Model::start());
    let other = project.path("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("lib"), "one\n").unwrap();
    project.git(&["init", "-q", other.to_str().unwrap()]);
    let mut tools = bash("cd ../other && echo two >> lib && echo x > ../project/x");
    // The program has reset the `cd`, and foldlog knows the root.
    tools.extend(bash("echo three > ../other/more"));
    model.teach("Work elsewhere.", tools);
    run(&project, &model, "Work elsewhere.");

    assert_eq!(fs::read_to_string(other.join("lib")).unwrap(), "one\ntwo\n");
    let found = steps(&project, &other);
    assert_eq!(found.len(), 2, "{found:?}");
    foldlog(&project, &["undo", "1", "--yes", "--root", other.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(other.join("lib")).unwrap(), "one\n");
    assert!(other.join("more").exists());
    foldlog(&project, &["undo", "1", "--yes"]);
    assert!(!project.root().join("x").exists());
}

#[test]
fn sub_agents_in_working_trees_of_their_own_are_undone_one_by_one() {
    if Program::named().is_none() {
        return;
    }
    let (project, model) = (recorded(), Model::start());
    let agent = |prompt: &str| {
        let isolated = json!({"description": "d", "prompt": prompt, "subagent_type": "general-purpose", "isolation": "worktree"});
        ("Agent", isolated)
    };
    model.teach("Start both.", vec![agent("Work as the first."), agent("Work as the second.")]);
    // Both commands run at the same time.
    for (prompt, name) in [("Work as the first.", "first"), ("Work as the second.", "second")] {
        model.teach(prompt, bash(&format!("echo {name} >> README.md; echo x > {name}; sleep 1")));
    }
    run(&project, &model, "Start both.");

    let trees: Vec<PathBuf> = fs::read_dir(project.root().join(".claude/worktrees"))
        .unwrap()
        .map(|tree| tree.unwrap().path())
        .collect();
    let tree = |name: &str| trees.iter().find(|tree| tree.join(name).exists()).unwrap();
    let (first, second) = (tree("first"), tree("second"));
    let found = steps(&project, &project.root());
    let number = |name: &str| {
        let of = |step: &&Value| step["call"]["title"].as_str().unwrap().contains(name);
        found.iter().find(of).unwrap()["number"].to_string()
    };
    foldlog(&project, &["undo", &number("first"), "--yes"]);
    assert_eq!(fs::read_to_string(first.join("README.md")).unwrap(), "# A project\n");
    assert!(!first.join("first").exists());
    assert_eq!(fs::read_to_string(second.join("README.md")).unwrap(), "# A project\nsecond\n");
    foldlog(&project, &["undo", &number("second"), "--yes"]);
    assert!(!second.join("second").exists());
}

#[test]
fn two_sessions_in_one_directory_are_lanes_of_one_timeline() {
    if Program::named().is_none() {
        return;
    }
    let (project, model) = (recorded(), Model::start());
    let names = ["left", "right"];
    for name in names {
        // Each file is of one session alone; the commands overlap.
        let file = project.root().join(format!("{name}.txt"));
        let mut tools = vec![("Write", json!({"file_path": file, "content": "written\n"}))];
        tools.extend(bash(&format!("sleep 0.3; mkdir -p {name} && echo {name} > {name}/shell; sleep 0.3")));
        model.teach(&format!("Work {name}."), tools);
    }
    let before = project.manifest();
    let running = names.map(|name| start(&project, &model, &format!("Work {name}.")));
    for mut session in running {
        assert!(session.wait().unwrap().success());
    }
    let found = steps(&project, &project.root());
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found.iter().all(|step| step["outcome"] == "succeeded"), "{found:?}");
    let sessions: std::collections::BTreeSet<&str> =
        found.iter().map(|step| step["call"]["lane"]["session"].as_str().unwrap()).collect();
    assert_eq!(sessions.len(), 2);
    // The file tool's call of one session is undone, and the other session keeps its work.
    let is_left = |step: &&Value| step["call"]["title"] == "left.txt";
    let left = found.iter().find(is_left).unwrap()["number"].to_string();
    foldlog(&project, &["undo", &left, "--yes"]);
    assert!(!project.root().join("left.txt").exists() && project.root().join("right.txt").exists());
    foldlog(&project, &["undo", "--to", "1", "--yes"]);
    assert_eq!(project.manifest(), before);
}
