//! Disks that are full, and directories that cannot be written.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use foldlog_test_support::loop_disk::LoopDisk;
use foldlog_test_support::skipped;
use serde_json::Value as Json;

use crate::project::{Project, read, text};

fn disk() -> Option<LoopDisk> {
    LoopDisk::mounted(48 << 20).map_err(|reason| skipped(format!("no disk can be mounted: {reason}"))).ok()
}

#[test]
fn an_undo_on_a_full_disk_loses_nothing_and_is_completed_later() {
    let Some(disk) = disk() else { return };
    let project = Project::on(&disk);
    project.write("big", &"x".repeat(1 << 20));
    let before = project.files();
    project.call("call", |project| {
        fs::remove_file(project.root.join("big")).unwrap();
        project.write("notes", "changed\n");
        project.write("new", "x");
    });
    let after = project.files();
    let filling = disk.fill("filling");
    let ran = project.command(&["undo", "--yes"]).output().unwrap();
    let printed = text(&ran);
    assert_eq!(ran.status.code(), Some(1), "{printed}");
    assert!(printed.contains("  stays    big: No space left on device"), "{printed}");
    assert!(printed.contains("partly undone"), "{printed}");
    let partly = project.files();
    for (path, content) in &after {
        let is_whole = partly
            .get(path)
            .map_or(*path == project.root.join("new"), |now| now == content || before.get(path) == Some(now));
        assert!(is_whole, "{} is in neither of its states", path.display());
    }
    assert!(partly.keys().all(|path| !path.to_str().unwrap().contains(".foldlog")), "{partly:?}");
    fs::remove_file(filling).unwrap();
    project.foldlog(&["undo", "1", "--yes"]);
    assert_eq!(project.files(), before);
    for _ in 0..2 {
        project.foldlog(&["redo", "--yes"]);
    }
    assert_eq!(project.files(), after);
}

#[test]
fn a_hook_on_a_full_disk_reports_that_the_call_is_not_undoable_and_earlier_calls_stay() {
    let Some(disk) = disk() else { return };
    let project = Project::new();
    let before = project.files();
    project.call("first", |project| project.write("new", "x"));
    // The records move to a small disk, which is filled.
    fs::rename(project.state(), project.home().join("state")).unwrap();
    let copied = Command::new("cp").arg("-a").arg(project.home().join("state")).arg(disk.root()).status();
    assert!(copied.unwrap().success());
    std::os::unix::fs::symlink(disk.root().join("state"), project.state()).unwrap();
    let filling = disk.fill("filling");
    for id in ["second", "third"] {
        let begin = project.start_hook(&project.shell("PreToolUse", id), &[]).wait_with_output().unwrap();
        let printed = text(&begin);
        assert_eq!(begin.status.code(), Some(0), "{printed}");
        assert!(
            printed.contains("not undoable: only 0 MB are free in") || printed.contains("could not record"),
            "{printed}"
        );
        let strict = project.start_hook(&project.shell("PreToolUse", id), &["--strict"]);
        assert_eq!(strict.wait_with_output().unwrap().status.code(), Some(2), "the tool is refused");
        project.write(id, "x");
        let end = project.start_hook(&project.shell("PostToolUse", id), &[]).wait_with_output().unwrap();
        assert_eq!(end.status.code(), Some(0), "{}", text(&end));
    }
    fs::remove_file(filling).unwrap();
    let listed = project.steps();
    assert_eq!(listed[0]["outcome"], "succeeded");
    for step in &listed[1..] {
        assert_ne!(step["not_captured"], Json::Null, "{step}");
    }
    // Back on a disk with space.
    fs::remove_file(project.state()).unwrap();
    let copied = Command::new("cp").arg("-a").arg(disk.root().join("state")).arg(project.state()).status();
    assert!(copied.unwrap().success());
    let refused = project.command(&["undo", "2", "--yes"]).output().unwrap();
    assert!(listed.len() == 1 || text(&refused).contains("were not captured"), "{}", text(&refused));
    project.foldlog(&["undo", "1", "--yes"]);
    assert!(!project.root.join("new").exists() && project.root.join("third").exists());
    project.hook(&project.shell("PreToolUse", "later"));
    project.write("notes", "changed\n");
    project.hook(&project.shell("PostToolUse", "later"));
    project.foldlog(&["undo", "--yes"]);
    assert!(before.iter().all(|(path, content)| project.files().get(path) == Some(content)));
}

#[test]
fn a_pinned_call_stays_undoable_when_captures_of_later_calls_are_removed() {
    let Some(disk) = disk() else { return };
    let project = Project::new();
    let noise = |seed: u32| {
        let hash = |part: u32| blake3::hash(format!("{seed} {part}").as_bytes()).to_hex().to_string();
        (0..80_000).map(hash).collect::<String>()
    };
    project.call("pinned", |project| project.write("notes", "changed\n"));
    for number in 0..3 {
        project.call(&format!("call {number}"), |project| project.write("noise", &noise(number)));
    }
    assert_eq!(project.foldlog(&["pin", "1"]), "call 1 is pinned\n");
    assert_eq!(project.foldlog(&["--json", "pin", "1"]), "{\"number\":1,\"pinned\":true}\n");
    assert!(project.foldlog(&["log"]).contains("Bash  command pinned  1 changed; pinned"));
    assert!(project.foldlog(&["diff", "1"]).starts_with("1  Bash: command pinned\npinned\n"));
    assert_eq!(project.steps()[0]["pinned"], true);
    // On a disk with little space, the captures may take a tenth of it.
    fs::rename(project.state(), project.home().join("state")).unwrap();
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
    };
    copy(&project.home().join("state"), &disk.root());
    std::os::unix::fs::symlink(disk.root().join("state"), project.state()).unwrap();
    project.foldlog(&["hook", "prepare", project.root.to_str().unwrap()]);
    fs::remove_file(project.state()).unwrap();
    copy(&disk.root().join("state"), &project.state());
    let refused = project.command(&["pin", "2"]).output().unwrap();
    let printed = text(&refused);
    assert!(
        printed.contains("call 2 cannot be pinned: its captures were removed to free space"),
        "{printed}"
    );
    assert_eq!(refused.status.code(), Some(2));
    assert!(project.foldlog(&["diff", "2"]).contains("\nnot undoable: its captures were removed"));
    project.foldlog(&["undo", "1", "--yes"]);
    assert_eq!(read(&project.root.join("notes")), "keep\n");
    assert_eq!(project.foldlog(&["pin", "1", "--remove"]), "call 1 is not pinned\n");
    assert_eq!(project.steps()[0]["pinned"], Json::Null);
}

#[test]
fn a_directory_that_cannot_be_written_stays_and_is_reported() {
    let mut project = Project::new();
    project.write("closed/file", "1\n");
    project.write("open/file", "1\n");
    project.give_away();
    project.call("call", |project| {
        fs::write(project.root.join("closed/file"), "2\n").unwrap();
        fs::write(project.root.join("open/file"), "2\n").unwrap();
    });
    let closed = project.root.join("closed");
    let set_mode = |mode| fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o555);
    let ran = project.command(&["undo", "--yes"]).output().unwrap();
    let printed = text(&ran);
    assert_eq!(ran.status.code(), Some(1), "{printed}");
    assert!(printed.contains("  stays    closed/file: Permission denied"), "{printed}");
    assert_eq!(read(&project.root.join("open/file")), "1\n");
    assert_eq!(read(&closed.join("file")), "2\n");
    set_mode(0o755);
    project.foldlog(&["undo", "1", "--yes"]);
    assert_eq!(read(&closed.join("file")), "1\n");
}

#[test]
fn read_only_directories_that_a_call_creates_and_removes_are_undone_and_redone() {
    let mut project = Project::new();
    project.write("old/inner/file", "1\n");
    project.give_away();
    project.run("chmod 555 old/inner old");
    let before = project.files();
    project.call("call", |project| {
        project.run("chmod -R u+w old && rm -r old && mkdir -p new/inner");
        project.run("echo 1 >new/inner/file && chmod 500 new/inner && chmod 555 new");
    });
    let after = project.files();
    let modes = |paths: [&str; 2]| {
        let mode =
            |path| fs::metadata(project.root.join(path)).map(|found| found.permissions().mode() & 0o7777);
        paths.map(|path| mode(path).ok())
    };
    for _ in 0..2 {
        project.foldlog(&["undo", "--yes"]);
        assert_eq!(project.files(), before);
        assert_eq!(modes(["old", "old/inner"]), [Some(0o555); 2]);
        assert_eq!(modes(["new", "new/inner"]), [None; 2]);
        project.foldlog(&["redo", "--yes"]);
        assert_eq!(project.files(), after);
        assert_eq!(modes(["old", "old/inner"]), [None; 2]);
        assert_eq!(modes(["new", "new/inner"]), [Some(0o555), Some(0o500)]);
    }
}

/// One such directory anywhere, and no call of the project was undoable.
#[test]
fn a_directory_that_can_be_listed_but_not_entered_is_not_recorded_and_others_are() {
    let mut project = Project::new();
    project.write("closed/file", "1\n");
    project.give_away();
    project.run("mkdir empty && chmod 444 empty && chmod 644 closed");
    project.call("call", |project| project.run("echo 2 >notes"));
    project.call("opens", |project| project.run("chmod 755 closed && echo 3 >notes"));
    for (number, content) in [("2", "2\n"), ("1", "keep\n")] {
        let ran = project.command(&["undo", number, "--yes"]).output().unwrap();
        assert!(text(&ran).contains("  change   notes\n"), "{}", text(&ran));
        assert_eq!(read(&project.root.join("notes")), content);
        assert_eq!(read(&project.root.join("closed/file")), "1\n");
    }
}

/// They had the permissions of directories that are created on the way to a file.
#[test]
fn removed_directories_get_their_permissions_back_whatever_is_undone_or_in_their_place() {
    let project = Project::new();
    project.write("around/kept", "1\n");
    project.write("secret/key", "1\n");
    project.write("other/file", "1\n");
    project.run("mkdir around/empty && chmod 700 around secret");
    project.call("call", |project| {
        project.run("rm -r around secret && ln -s other secret");
    });
    let mode = |path| fs::metadata(project.root.join(path)).unwrap().permissions().mode() & 0o7777;
    project.foldlog(&["undo", "1", "--file", "around/empty", "--yes"]);
    assert_eq!((mode("around"), mode("around/empty")), (0o700, 0o755));
    project.foldlog(&["undo", "1", "--yes"]);
    assert_eq!((mode("around"), mode("secret")), (0o700, 0o700));
    assert_eq!(read(&project.root.join("secret/key")), "1\n");
}

#[test]
fn a_project_on_a_read_only_disk_is_recorded_and_its_undo_changes_nothing() {
    let Some(disk) = disk() else { return };
    let project = Project::on(&disk);
    let before = project.files();
    project.call("call", |project| project.write("notes", "changed\n"));
    let after = project.files();
    let remount = |mode: &str| {
        let mode = format!("remount,{mode}");
        assert!(Command::new("mount").args(["-o", &mode]).arg(disk.root()).status().unwrap().success());
    };
    remount("ro");
    project.call("reads", |_| {});
    let ran = project.command(&["undo", "1", "--yes"]).output().unwrap();
    let printed = text(&ran);
    assert_eq!(ran.status.code(), Some(1), "{printed}");
    assert!(printed.contains("  stays    notes: Read-only file system"), "{printed}");
    assert_eq!(project.files(), after);
    remount("rw");
    project.foldlog(&["undo", "1", "--yes"]);
    assert_eq!(project.files(), before);
}
