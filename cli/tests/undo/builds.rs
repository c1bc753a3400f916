//! Builds after an undo: their tools compare times of files.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use foldlog_test_support::skipped;

use crate::project::{Project, text};

/// Runs a program in the project, and returns what it prints.
fn run(project: &Project, program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    let ran = command.args(arguments).current_dir(&project.root).output().unwrap();
    assert!(ran.status.success(), "{program}: {}", text(&ran));
    String::from_utf8(ran.stdout).unwrap().trim().to_owned()
}

fn has(program: &str) -> bool {
    let has = Command::new(program).arg("--version").output().is_ok_and(|ran| ran.status.success());
    if !has {
        skipped(format!("there is no `{program}`"));
    }
    has
}

/// Makes a file older than everything that is built.
fn age(path: &Path) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
}

#[test]
fn make_builds_the_former_program_after_an_undo() {
    if !has("make") {
        return;
    }
    let project = Project::new();
    project.write("Makefile", "built: source\n\tcp source built\n");
    project.write("source", "old");
    project.write(".gitignore", "built\n");
    age(&project.root.join("source"));
    let built = || fs::read_to_string(project.root.join("built")).unwrap();
    run(&project, "make", &["-s"]);
    project.call("edit", |project| project.write("source", "new"));
    run(&project, "make", &["-s"]);
    assert_eq!(built(), "new");
    project.foldlog(&["undo", "--yes"]);
    run(&project, "make", &["-s"]);
    assert_eq!(built(), "old", "the source has a time before that of the build");
}

#[test]
fn cargo_builds_the_former_program_after_an_undo() {
    if !has("cargo") {
        return;
    }
    let project = Project::new();
    project.write(
        "Cargo.toml",
        "[package]\nname = \"p\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n",
    );
    project.write("src/main.rs", "fn main() { println!(\"old\") }\n");
    project.write(".gitignore", "target\n");
    age(&project.root.join("src/main.rs"));
    let target = format!("--target-dir={}", project.root.join("target").display());
    let built = || run(&project, "cargo", &["run", "-q", "--offline", &target]);
    assert_eq!(built(), "old");
    project.call("edit", |project| project.write("src/main.rs", "fn main() { println!(\"new\") }\n"));
    assert_eq!(built(), "new");
    project.foldlog(&["undo", "--yes"]);
    assert_eq!(built(), "old");
    project.foldlog(&["redo", "--yes"]);
    assert_eq!(built(), "new");
}

#[test]
fn exact_times_are_restored_by_undo_redo_and_oops() {
    let project = Project::new();
    let notes = project.root.join("notes");
    age(&notes);
    let time = || fs::metadata(&notes).map(|found| (found.mtime(), found.mtime_nsec())).unwrap();
    let before = time();
    project.call("edit", |project| project.write("notes", "changed\n"));
    let after = time();
    project.foldlog(&["undo", "--exact-times", "--yes"]);
    assert_eq!(time(), before);
    project.foldlog(&["redo", "--exact-times", "--yes"]);
    assert_eq!(time(), after);
    project.foldlog(&["oops", "--exact-times"]);
    assert_eq!(time(), before);
    project.foldlog(&["redo", "--yes"]);
    assert!(time() > after, "a build would not notice it");
}
