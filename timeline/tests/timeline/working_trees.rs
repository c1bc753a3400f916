//! Linked working trees of git within a root, and roots that were removed.

use std::fs;
use std::path::PathBuf;

use foldlog::filesystem::FileChange;
use foldlog_timeline::{CallReach, NewCall, StepChanges, Timeline, TimelinePlace};

use crate::world::{World, ended, now, shell};

/// Makes a linked working tree of the root's repository, as far as foldlog looks at it.
fn linked(world: &World, name: &str) -> PathBuf {
    let tree = world.root.join("trees").join(name);
    let of_tree = format!(".git/worktrees/{name}");
    world.write(".git/HEAD", "ref: refs/heads/main\n");
    world.write(&format!("{of_tree}/HEAD"), "ref: refs/heads/tree\n");
    world.write(&format!("{of_tree}/commondir"), "../..\n");
    world.write(&format!("trees/{name}/.git"), &format!("gitdir: {}\n", world.root.join(of_tree).display()));
    tree
}

/// A call of a sub-agent in a directory.
fn call_in(directory: PathBuf, id: &str) -> NewCall {
    let reach = CallReach { directory: Some(directory), ..CallReach::default() };
    NewCall { reach, ..shell(id, Some(id)) }
}

fn paths(changes: &StepChanges) -> (Vec<&str>, Vec<&str>) {
    (listed(&changes.files), listed(&changes.shared))
}

fn listed(changes: &[FileChange]) -> Vec<&str> {
    changes.iter().map(|change| change.path.as_str()).collect()
}

#[test]
fn overlapping_calls_in_working_trees_of_their_own_share_no_changes() {
    let world = World::new();
    let (one, two) = (call_in(linked(&world, "one"), "one"), call_in(linked(&world, "two"), "two"));
    let main = shell("main", None);
    let calls = [&one, &two, &main];
    let numbers = calls.map(|call| world.open().begin_call(call.clone(), now()).unwrap());
    for path in ["trees/one/a", "trees/two/a", "a"] {
        world.write(path, "x");
    }
    for call in calls {
        world.open().end_call(call.clone(), ended(), now()).unwrap();
    }
    for (number, path) in numbers.into_iter().zip(["trees/one/a", "trees/two/a", "a"]) {
        assert_eq!(paths(&world.open_changes(number)), (vec![path], vec![]), "call {number}");
    }
}

#[test]
fn a_working_tree_that_appears_during_the_call_of_another_one_is_not_its_change() {
    let world = World::new();
    let one = call_in(linked(&world, "one"), "one");
    let number = world.open().begin_call(one.clone(), now()).unwrap();
    world.write("trees/one/a", "x");
    world.write("main", "x");
    linked(&world, "two");
    world.write("trees/two/a", "x");
    world.open().end_call(one, ended(), now()).unwrap();
    assert_eq!(paths(&world.open_changes(number)), (vec!["main", "trees/one/a"], vec![]));
    world.undo(&[number]);
    assert_eq!((world.read("trees/one/a"), world.read("trees/two/a")), (None, Some("x".to_owned())));
}

#[test]
fn a_call_whose_end_is_reported_late_keeps_its_commits() {
    let world = World::new();
    world.write(".git/HEAD", "ref: refs/heads/main\n");
    let log = std::cell::RefCell::new(String::new());
    let commit = |letter: &str| {
        let (none, id) = ("0".repeat(40), letter.repeat(40));
        log.borrow_mut().push_str(&format!("{none} {id} A <a@b> 0 +0000\tcommit: {letter}\n"));
        world.write(".git/logs/HEAD", &log.borrow());
    };
    let commits = || -> Vec<String> {
        let plan = world.open().plan_undo(&[1], &[]).unwrap();
        let subject = |change: &foldlog_timeline::HeadChange| change.committed_subject().unwrap().to_owned();
        plan.head_changes.iter().map(subject).collect()
    };
    world.open().begin_call(shell("first", None), now()).unwrap();
    commit("a");
    // It counts as interrupted until its end is reported.
    world.open().begin_call(shell("second", None), now()).unwrap();
    assert_eq!(commits(), ["a"]);
    commit("b");
    world.open().end_call(shell("first", None), ended(), now()).unwrap();
    assert_eq!(commits(), ["a", "b"]);
}

#[test]
fn the_last_state_of_a_removed_root_is_restored() {
    let world = World::new();
    world.write("kept", "before");
    let number = world.call("call", || world.write("directory/made", "by the call"));
    let before = world.manifest();
    fs::remove_dir_all(&world.root).unwrap();
    let open = || Timeline::open_removed(&world.place, &world.options, now()).unwrap();
    let timelines = world.place.dir.parent().unwrap();
    assert_eq!(TimelinePlace::around(timelines, &world.root.join("directory")).unwrap(), world.place);
    let readable = Timeline::open_read_only(&world.place, &world.options).unwrap();
    assert_eq!(paths(&readable.changes(number).unwrap()).0, ["directory/made"]);

    // The undo of the removal was not confirmed: the removal is no second step.
    let removal = open().1;
    fs::remove_dir(&world.root).unwrap();
    assert_eq!(open().1, removal);
    assert_eq!(world.open().last_call().unwrap(), removal);
    world.undo(&[removal]);
    assert_eq!(world.manifest(), before);
    // Once more.
    fs::remove_dir_all(&world.root).unwrap();
    let again = open().1;
    assert!(again > removal);
    world.undo(&[again]);
    assert_eq!(world.manifest(), before);
}
