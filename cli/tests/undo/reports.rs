//! What an undo says about changes that it does not take back, and the list of the calls of a file.

use std::fs;

use serde_json::json;

use crate::project::{Project, read, text};

#[test]
fn an_undo_without_a_number_passes_over_a_call_that_only_committed() {
    let project = Project::new();
    project.call("edit", |project| project.write("notes", "changed\n"));
    // A repository is captured by its `HEAD`, refs and index.
    project.call("commit", |project| {
        for (path, content) in
            [("HEAD", "ref: refs/heads/main\n"), ("refs/heads/main", ""), ("objects/x", "")]
        {
            project.write(&format!(".git/{path}"), content);
        }
    });
    project.call("nothing", |_| {});
    let undone = project.command(&["undo", "--yes"]).output().unwrap();
    let printed = text(&undone);
    assert!(undone.status.success(), "{printed}");
    assert!(
        printed.contains("note: call 2 (Bash: command commit) changed only the repository, which stays"),
        "{printed}"
    );
    assert!(printed.contains("note: call 3 (Bash: command nothing) changed no file"), "{printed}");
    assert_eq!(read(&project.root.join("notes")), "keep\n");
}

#[test]
fn files_that_cannot_come_back_are_named_as_lost_and_the_call_is_partly_undone() {
    let project = Project::new();
    project.write(".gitignore", "*.log\n");
    project.write("large.log", &"x".repeat((1 << 20) + 1));
    project.call("remove", |project| {
        fs::remove_file(project.root.join("large.log")).unwrap();
        project.write("notes", "changed\n");
        project.write("new.log", &"x".repeat((1 << 20) + 1));
    });
    let undone = project.command(&["undo", "--yes"]).output().unwrap();
    let printed = text(&undone);
    assert_eq!(undone.status.code(), Some(1), "{printed}");
    assert!(printed.contains("  lost     large.log: its earlier content was not recorded"), "{printed}");
    assert!(printed.contains("  stays    new.log: created by the call"), "{printed}");
    assert!(printed.contains("partly undone as step 2: 1 file changed"), "{printed}");
    assert!(project.foldlog(&["log"]).contains("partly undone"));
}

#[test]
fn a_preview_names_the_directories_that_are_empty() {
    let project = Project::new();
    fs::create_dir(project.root.join("old")).unwrap();
    project.call("directories", |project| {
        fs::create_dir_all(project.root.join("new/inner")).unwrap();
        fs::remove_dir(project.root.join("old")).unwrap();
        project.write("with/file", "x");
    });
    let named =
        |change: &str, old: &str| format!("  {change:<8} new/\n  {change:<8} new/inner/\n  {old:<8} old/\n");
    let undone = project.foldlog(&["undo", "1", "--yes"]);
    let expected = format!("  remove   with/file\n{}", named("remove", "restore"));
    assert!(undone.contains(&expected), "{undone}");
    let redone = project.foldlog(&["redo", "--preview"]);
    let expected = format!("  restore  with/file\n{}", named("restore", "remove"));
    assert!(redone.contains(&expected), "{redone}");
}

/// An undo that changed nothing once became a step, and each redo met it first.
#[test]
fn an_undo_that_can_change_nothing_is_no_step() {
    let project = Project::new();
    project.call("make", |project| {
        fs::remove_file(project.root.join("notes")).unwrap();
        project.write("made/a", "a\n");
        project.write("made/b", "b\n");
    });
    let before = project.files();
    project.write("made/a", "a\nmine\n");
    for _ in 0..2 {
        let undone = project.command(&["undo", "1", "--yes"]).output().unwrap();
        assert_eq!(undone.status.code(), Some(1), "{}", text(&undone));
        assert_eq!(project.steps().len(), 2, "{}", text(&undone));
    }
    let preview = text(&project.command(&["undo", "1", "--preview"]).output().unwrap());
    let expected = "  stays    made/a: it was created by the call, and changed since, by you";
    assert!(preview.contains(expected), "{preview}");
    project.foldlog(&["redo", "--yes"]);
    fs::write(project.root.join("made/a"), "a\n").unwrap();
    assert_eq!(project.files(), before);
}

#[test]
fn a_conflict_names_the_later_call() {
    let project = Project::new();
    project.call("one", |project| project.write("notes", "one\n"));
    project.call("two", |project| project.write("notes", "two\n"));
    let refused = project.command(&["undo", "1", "--yes"]).output().unwrap();
    let printed = text(&refused);
    assert_eq!(refused.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("  stays    notes: the same lines were changed since, by step 2\n"),
        "{printed}"
    );
    project.foldlog(&["undo", "2", "--yes"]);
    let again = project.command(&["undo", "2", "--yes"]).output().unwrap();
    assert!(
        text(&again).contains("call 2 cannot be undone: it is undone already, by step 3"),
        "{}",
        text(&again)
    );
}

#[test]
fn the_list_shows_the_calls_of_a_file_or_a_directory() {
    let project = Project::new();
    project.call("first", |project| project.write("notes", "changed\n"));
    project.call("second", |project| project.write("src/main.rs", "fn main() { run() }\n"));
    project.call("third", |project| project.write("src/run.rs", "pub fn run() {}\n"));
    let listed = |paths: &[&str]| {
        let words: Vec<&str> = ["log"].iter().chain(paths).copied().collect();
        let printed = project.foldlog(&words);
        ["first", "second", "third"].map(|call| printed.contains(&format!("command {call}")))
    };
    assert_eq!(listed(&["notes"]), [true, false, false]);
    assert_eq!(listed(&["src"]), [false, true, true]);
    assert_eq!(listed(&["src/run.rs", "./notes"]), [true, false, true]);
    assert!(project.foldlog(&["log", "missing"]).contains("no call changed these paths"));
    let outside = project.command(&["log", "../other"]).output().unwrap();
    assert_eq!(outside.status.code(), Some(2), "{}", text(&outside));
}

#[test]
fn the_prompt_of_an_agent_accepts_the_words_of_the_terminal() {
    let project = Project::new();
    let time = |project: &Project| fs::metadata(project.root.join("notes")).unwrap().modified().unwrap();
    let before = time(&project);
    project.call("edit", |project| project.write("notes", "changed\n"));
    let ask = |prompt: &str| project.hook(&project.input("UserPromptSubmit", &json!({"prompt": prompt})));
    let preview = ask("/undo --exact-times");
    assert!(preview["reason"].as_str().unwrap().contains("Type `/undo 1 --exact-times yes`"), "{preview}");
    let reply = ask("/undo --exact-times --yes");
    let reason = reply["reason"].as_str().unwrap();
    assert!(reason.contains("undone as step 2: 1 file changed; `/redo` reverses it"), "{reason}");
    assert_eq!((read(&project.root.join("notes")).as_str(), time(&project)), ("keep\n", before));
}

#[test]
fn numbers_that_a_command_does_not_accept_are_answered_with_those_that_it_does() {
    let project = Project::new();
    for (words, next) in [
        (&["undo", "2", "7"][..], "`foldlog undo --to 2`"),
        (&["redo", "3"], "`foldlog redo` reverses the last undo"),
        (&["diff", "3", "4"], "`foldlog diff 3` shows call 3"),
    ] {
        let refused = project.command(words).output().unwrap();
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused).contains("  next: ") && text(&refused).contains(next), "{}", text(&refused));
    }
    let other = project.command(&["undo", "--nothing"]).output().unwrap();
    assert!(!text(&other).contains("next:"), "{}", text(&other));
}
