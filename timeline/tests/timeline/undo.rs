//! Undoing calls.

use std::fs;

use foldlog::filesystem::PartialCapture;
use foldlog_timeline::Error;

use crate::world::{World, edit, ended, now, shell};

#[test]
fn each_call_is_undone_exactly_from_the_last_to_the_first_and_redone() {
    let world = World::new();
    world.write("src/main.rs", "fn main() {}\n");
    world.write("tool.sh", "#!/bin/sh\n");
    world.set_mode("tool.sh", 0o755);
    world.link("src/main.rs", "link");
    let mut manifests = vec![world.manifest()];
    let changes: [&dyn Fn(); 5] = [
        &|| world.write("src/main.rs", "fn main() { run() }\n"),
        &|| {
            world.remove("link");
            world.link("tool.sh", "link");
            world.set_mode("tool.sh", 0o644);
        },
        &|| world.write("new/deep/file", "x"),
        &|| {
            fs::remove_dir_all(world.root.join("src")).unwrap();
            world.write("src", "a file in place of the directory");
        },
        &|| fs::create_dir(world.root.join("empty")).unwrap(),
    ];
    let calls: Vec<u64> = changes
        .iter()
        .enumerate()
        .map(|(n, change)| {
            let number = world.call(&format!("call {n}"), change);
            manifests.push(world.manifest());
            number
        })
        .collect();
    let mut undos = Vec::new();
    for (n, call) in calls.iter().enumerate().rev() {
        let report = world.undo(&[*call]);
        assert!(report.conflicts.is_empty(), "{report:?}");
        assert_eq!(world.manifest(), manifests[n], "undo of call {n}");
        undos.push(report.number);
    }
    for (n, undo) in undos.iter().rev().enumerate() {
        assert_eq!(world.open().last_undo().unwrap(), *undo);
        let report = world.undo(&[*undo]);
        assert!(report.conflicts.is_empty(), "{report:?}");
        assert_eq!(world.manifest(), manifests[n + 1], "redo of call {n}");
    }
}

#[test]
fn undoing_several_calls_at_once_returns_to_the_state_before_the_first() {
    let world = World::new();
    world.write("a", "1\n");
    let before = world.manifest();
    let calls: Vec<u64> =
        (0..4).map(|n| world.call(&format!("{n}"), || world.write("a", &format!("{n}\n")))).collect();
    let after = world.manifest();
    let report = world.undo(&calls);
    assert_eq!(world.manifest(), before);
    world.undo(&[report.number]);
    assert_eq!(world.manifest(), after);
}

#[test]
fn later_changes_of_the_user_and_of_other_calls_stay() {
    let world = World::new();
    world.write("a", "1\n2\n3\n4\n5\n");
    world.write("b", "b\n");
    let first = world.call("first", || {
        world.write("a", "one\n2\n3\n4\n5\n");
        world.write("b", "of the first\n");
        world.write("c", "created\n");
    });
    world.write("mine", "by hand");
    world.write("a", "one\n2\n3\n4\nfive\n");
    world.call("second", || world.write("b", "of the second\n"));
    world.write("c", "created\nand changed by hand\n");
    let report = world.undo(&[first]);
    assert_eq!(world.read("a").unwrap(), "1\n2\n3\n4\nfive\n");
    assert_eq!(world.read("mine").unwrap(), "by hand");
    assert_eq!(world.read("b").unwrap(), "of the second\n");
    assert_eq!(world.read("c").unwrap(), "created\nand changed by hand\n");
    let conflicts: Vec<&str> = report.conflicts.iter().map(|conflict| conflict.path.as_str()).collect();
    assert_eq!(conflicts, ["b", "c"]);
    assert_eq!(report.changed, ["a"]);
}

#[test]
fn a_change_between_the_plan_and_the_undo_is_not_overwritten() {
    let world = World::new();
    world.write("a", "before");
    let call = world.call("call", || {
        world.write("a", "after");
        world.write("b", "new");
    });
    let mut timeline = world.open();
    let plan = timeline.plan_undo(&[call], &[]).unwrap();
    world.write("a", "by hand meanwhile");
    world.remove("b");
    world.write("b", "mine");
    let report = timeline.apply_undo(&plan, now()).unwrap();
    assert_eq!(report.conflicts.len(), 2, "{report:?}");
    assert_eq!(world.read("a").unwrap(), "by hand meanwhile");
    assert_eq!(world.read("b").unwrap(), "mine");
}

#[test]
fn overlapping_calls_share_changes_except_those_of_file_tools() {
    let world = World::new();
    world.write("a", "a\n");
    let main = world.open().begin_call(shell("main", None), now()).unwrap();
    world.write("early", "x");
    let sub = world.open().begin_call(shell("sub", Some("1")), now()).unwrap();
    let named = world.root.join("a");
    let file = world.open().begin_call(edit("edit", &named, Some("2")), now()).unwrap();
    world.write("a", "edited\n");
    world.write("both", "x");
    world.open().end_call(edit("edit", &named, Some("2")), ended(), now()).unwrap();
    world.open().end_call(shell("sub", Some("1")), ended(), now()).unwrap();
    world.write("late", "x");
    world.open().end_call(shell("main", None), ended(), now()).unwrap();

    let mut timeline = world.open();
    let paths = |number| -> Vec<String> {
        world.open_changes(number).files.into_iter().map(|change| change.path).collect()
    };
    drop(timeline);
    assert_eq!(paths(main), ["early", "late"]);
    assert_eq!(paths(sub), Vec::<String>::new());
    assert_eq!(paths(file), ["a"]);
    timeline = world.open();
    assert_eq!(timeline.plan_undo(&[sub], &[]).unwrap().shared, ["both"]);
    drop(timeline);
    world.undo(&[file]);
    assert_eq!(world.read("a").unwrap(), "a\n");
    assert!(world.read("both").is_some());
    world.try_undo(&[sub], &["both"]).unwrap();
    assert!(world.read("both").is_none() && world.read("early").is_some());
    world.write("both", "x");
    world.undo(&[main, sub]);
    assert!(world.read("early").is_none() && world.read("late").is_none());
}

#[test]
fn files_that_are_only_noted_are_neither_removed_nor_overwritten() {
    let mut world = World::new();
    world.options.sizes =
        PartialCapture { file_bytes_max: 100, ignored_file_bytes_max: 10, shared_file_bytes_max: 0 };
    world.write(".gitignore", "*.log\n");
    world.write("node_modules/x/index.js", "module");
    world.write("big", &"x".repeat(101));
    world.write("small.log", "12345");
    world.write("large.log", "12345678901");
    let call = world.call("call", || {
        world.write("node_modules/x/index.js", "changed");
        world.remove("big");
        world.write("small.log", "1");
        world.write("large.log", "1");
        world.write(".gitignore", "");
        world.write("also.log", "123456789012");
    });
    let changes = world.open_changes(call);
    assert_eq!(changes.not_kept.len(), 2, "{changes:?}");
    let report = world.undo(&[call]);
    assert_eq!(world.read("small.log").unwrap(), "12345");
    assert_eq!(world.read(".gitignore").unwrap(), "*.log\n");
    assert_eq!(world.read("node_modules/x/index.js").unwrap(), "changed");
    // It was noted before and captured after the call: it is not taken for a created file.
    assert_eq!(world.read("large.log").unwrap(), "1");
    assert!(world.read("big").is_none() && world.read("also.log").is_none(), "{report:?}");
}

#[test]
fn steps_that_cannot_be_undone_are_refused_with_the_reason() {
    let world = World::new();
    world.write("a", "1");
    let refused = |steps: &[u64]| world.try_undo(steps, &[]).unwrap_err().to_string();
    assert!(matches!(world.try_undo(&[7], &[]), Err(Error::NoStep { number: 7 })));
    assert!(world.open().last_call().is_err() && world.open().last_undo().is_err());
    let open = world.call("call", || world.write("a", "2"));
    let unknown = world.open().end_call(shell("unknown", None), ended(), now()).unwrap();
    assert!(refused(&[unknown]).contains("its beginning was not reported"));
    world.undo(&[open]);
    assert_eq!(refused(&[open]), "call 1 cannot be undone: it is undone already, by step 3");
}

#[test]
fn a_call_that_is_open_is_closed_by_its_undo() {
    let world = World::new();
    world.write("a", "1");
    let open = world.open().begin_call(shell("open", None), now()).unwrap();
    world.write("a", "2");
    assert!(world.open().last_call().is_err(), "only its number undoes it");
    world.undo(&[open]);
    assert_eq!(world.read("a").unwrap(), "1");
    world.open().end_call(shell("open", None), ended(), now()).unwrap();
    let step = world.open().steps().unwrap().remove(0);
    assert_eq!(step.outcome, Some(foldlog_timeline::Outcome::Interrupted));
}

#[test]
fn a_call_without_changes_is_passed_over_and_one_with_conflicts_is_partly_undone() {
    let world = World::new();
    world.write("a", "1\n");
    let first = world.call("first", || world.write("b", "2\n"));
    let conflicting = world.call("conflicting", || {
        world.write("a", "2\n");
        world.write("c", "x\n");
    });
    world.call("no change", || {});
    world.write("a", "3\n");
    assert_eq!(world.open().last_call().unwrap(), conflicting);
    let report = world.undo(&[conflicting]);
    assert_eq!((report.changed.len(), report.conflicts.len()), (1, 1), "{report:?}");
    let undone = world.open().undone().unwrap();
    assert!(undone.partly.contains(&conflicting) && undone.wholly.is_empty(), "{undone:?}");
    assert_eq!(world.open().last_call().unwrap(), first, "a conflict does not block earlier calls");
    // Once the conflict is resolved, the rest can be undone.
    world.write("a", "2\n");
    world.undo(&[conflicting]);
    assert_eq!(world.read("a").unwrap(), "1\n");
}

#[test]
fn what_an_undo_restored_and_the_user_removed_does_not_come_back_by_a_second_undo() {
    let world = World::new();
    let files = ["gone", "d/gone", "a"];
    files.iter().for_each(|path| world.write(path, "1\n"));
    let remove_restored = || {
        world.remove("gone");
        fs::remove_dir_all(world.root.join("d")).unwrap();
    };
    let call = world.call("call", || {
        remove_restored();
        world.write("a", "2\n");
    });
    let next = world.call("next", || world.write("a", "3\n"));
    for steps in [&[call][..], &[call, next]] {
        world.write("a", "in the way\n");
        assert_eq!(world.undo(steps).conflicts.len(), 1);
        if steps.len() == 1 {
            assert_eq!(world.read("gone").unwrap() + &world.read("d/gone").unwrap(), "1\n1\n");
            remove_restored();
        }
        assert!(world.read("gone").is_none() && !world.root.join("d").exists(), "{steps:?}");
    }
    world.write("a", "3\n");
    assert!(world.undo(&[call, next]).conflicts.is_empty());
    assert!(world.read("gone").is_none() && !world.root.join("d").exists());
    assert_eq!(world.read("a").unwrap(), "1\n");
    assert_eq!(world.open().undone().unwrap().wholly.len(), 2);
}

#[test]
fn a_redone_call_is_undone_as_far_as_the_redo_brought_it_back() {
    let world = World::new();
    let lines = |kept: &str| kept.chars().map(|line| format!("{line}\n")).collect::<String>();
    world.write("a", &lines("1234567"));
    let call = world.call("call", || world.write("a", &lines("13457")));
    let undo = world.undo(&[call]);
    world.write("a", &lines("134567"));
    let redo = world.undo(&[undo.number]);
    assert_eq!(world.read("a").unwrap(), lines("13457"));
    for _ in 0..2 {
        // The user has removed line 2, and the redo line 6.
        let undo = world.undo(&[call]);
        assert_eq!(world.read("a").unwrap(), lines("134567"));
        world.undo(&[undo.number]);
        assert_eq!(world.read("a").unwrap(), lines("13457"));
    }
    // The redo itself is undone and redone.
    let undo = world.undo(&[redo.number]);
    assert_eq!(world.read("a").unwrap(), lines("134567"));
    world.undo(&[undo.number]);
    assert_eq!(world.read("a").unwrap(), lines("13457"));
}

#[test]
fn a_call_that_was_undone_and_redone_together_with_another_one_is_undone_alone() {
    let world = World::new();
    world.write("a", "1\n2\n3\n4\n5\n");
    let first = world.call("first", || world.write("a", "one\n2\n3\n4\n5\n"));
    let second = world.call("second", || world.write("a", "one\n2\n3\n4\nfive\n"));
    let undo = world.undo(&[first, second]);
    world.undo(&[undo.number]);
    world.undo(&[first]);
    assert_eq!(world.read("a").unwrap(), "1\n2\n3\n4\nfive\n");
    world.undo(&[second]);
    assert_eq!(world.read("a").unwrap(), "1\n2\n3\n4\n5\n");
}

#[test]
fn a_file_that_became_a_directory_and_then_nothing_is_restored_by_one_undo_of_both_calls() {
    let world = World::new();
    world.write("g", "a file\n");
    let before = world.manifest();
    let first = world.call("first", || {
        world.remove("g");
        world.write("g/in", "x");
    });
    let second = world.call("second", || fs::remove_dir_all(world.root.join("g")).unwrap());
    let after = world.manifest();
    let report = world.undo(&[first, second]);
    assert!(report.conflicts.is_empty(), "{report:?}");
    assert_eq!(world.manifest(), before);
    world.undo(&[report.number]);
    assert_eq!(world.manifest(), after);
}

/// The undo of a path left an empty directory in place of the file.
#[test]
fn a_file_that_became_a_directory_is_restored_by_an_undo_of_its_path() {
    let world = World::new();
    world.write("g", "a file\n");
    world.write("other", "1\n");
    let before = world.manifest();
    let call = world.call("call", || {
        world.remove("g");
        world.write("g/deep/in", "x");
        fs::create_dir(world.root.join("elsewhere")).unwrap();
        world.write("other", "2\n");
    });
    let after = world.manifest();
    let report = world.try_undo(&[call], &["g"]).unwrap();
    assert!(report.conflicts.is_empty(), "{report:?}");
    assert_eq!(world.read("g").unwrap(), "a file\n");
    assert_eq!(world.read("other").unwrap(), "2\n");
    assert!(world.root.join("elsewhere").is_dir());
    // The rest of the call, all of it again, and nothing of it.
    let rest = world.undo(&[call]);
    assert_eq!(world.manifest(), before);
    world.undo(&[rest.number]);
    world.undo(&[report.number]);
    assert_eq!(world.manifest(), after);
    world.undo(&[call]);
    assert_eq!(world.manifest(), before);
}

/// It was created with 755, so that others could read what was private.
#[test]
fn a_directory_around_a_path_of_an_undo_gets_its_permissions_back() {
    let world = World::new();
    world.write("private/deep/key", "x");
    world.write("private/other/key", "y");
    world.set_mode("private", 0o700);
    world.set_mode("private/deep", 0o710);
    let before = world.manifest();
    let call = world.call("call", || fs::remove_dir_all(world.root.join("private")).unwrap());
    let nothing = world.manifest();
    assert!(world.open().plan_undo(&[call], &["private/none".to_owned()]).unwrap().is_empty());
    let undo = world.try_undo(&[call], &["private/deep/key"]).unwrap();
    let manifest = world.manifest();
    assert_eq!(manifest.keys().collect::<Vec<_>>(), ["private", "private/deep", "private/deep/key"]);
    assert!(manifest.iter().all(|(path, entry)| before[path] == *entry), "{manifest:?}");
    world.undo(&[call]);
    assert_eq!(world.manifest(), before);
    let last = world.open().last_undo().unwrap();
    world.undo(&[last]);
    world.undo(&[undo.number]);
    assert_eq!(world.manifest(), nothing);
}

/// The next undo without a number chose it again, and changed nothing.
#[test]
fn a_call_whose_files_were_all_undone_by_their_paths_is_passed_over() {
    let world = World::new();
    let first = world.call("first", || world.write("one", "1"));
    let second = world.call("second", || {
        world.write("two", "2");
        world.write("three", "3");
    });
    let undo = world.try_undo(&[second], &["two"]).unwrap();
    assert_eq!(world.open().last_call().unwrap(), second);
    world.try_undo(&[second], &["three"]).unwrap();
    assert_eq!(world.open().last_call().unwrap(), first);
    world.undo(&[undo.number]);
    assert_eq!(world.open().last_call().unwrap(), second);
}

/// Such a directory stayed, empty, or was not created again.
#[test]
fn a_directory_whose_name_needs_an_escape_is_undone_like_others() {
    let world = World::new();
    let names = ["line\nbreak", "back\\slash", "tab\t/in\r"];
    for name in names {
        world.write(&format!("{name}/old/in"), "x");
    }
    let before = world.manifest();
    let call = world.call("call", || {
        for name in names {
            fs::remove_dir_all(world.root.join(name).join("old")).unwrap();
            fs::create_dir_all(world.root.join(name).join("new\n/empty")).unwrap();
            world.write(&format!("{name}/new\n/file"), "y");
        }
    });
    let after = world.manifest();
    let undo = world.undo(&[call]);
    assert_eq!(world.manifest(), before);
    world.undo(&[undo.number]);
    assert_eq!(world.manifest(), after);
}

#[test]
fn an_undo_of_a_redone_call_undoes_the_redo_too() {
    let world = World::new();
    world.write("gone", "1\n");
    let call = world.call("call", || world.remove("gone"));
    let undo = world.undo(&[call]);
    let redo = world.undo(&[undo.number]);
    let again = world.undo(&[call]);
    world.remove("gone");
    assert!(world.open().undone().unwrap().wholly.contains(&redo.number));
    assert!(matches!(world.try_undo(&[redo.number], &[]), Err(Error::NotUndoable { .. })));
    assert!(world.read("gone").is_none());
    // It is redone itself, and then the first redo is in effect again.
    world.write("gone", "1\n");
    assert_eq!(world.open().last_undo().unwrap(), again.number);
    world.undo(&[again.number]);
    let undone = world.open().undone().unwrap().wholly;
    assert_eq!(undone.into_iter().collect::<Vec<_>>(), [undo.number, again.number]);
    // The undo of a redo is an undo, which is redone like others.
    let by_number = world.undo(&[redo.number]);
    assert_eq!(world.read("gone").unwrap(), "1\n");
    assert_eq!(world.open().last_undo().unwrap(), by_number.number);
}

#[test]
fn a_redo_that_stays_incomplete_leaves_the_call_partly_undone() {
    let world = World::new();
    world.write("a", "1\n");
    world.write("b", "1\n");
    let call = world.call("call", || ["a", "b"].iter().for_each(|path| world.write(path, "2\n")));
    let undo = world.undo(&[call]);
    world.write("a", "mine\n");
    assert_eq!(world.undo(&[undo.number]).conflicts.len(), 1);
    assert_eq!(world.read("b").unwrap(), "2\n");
    assert!(world.open().undone().unwrap().partly.contains(&call));
    assert!(world.undo(&[call]).conflicts.is_empty());
    assert_eq!((world.read("a").unwrap(), world.read("b").unwrap()), ("mine\n".to_owned(), "1\n".to_owned()));
}

#[test]
fn what_is_in_the_place_of_a_restored_file_or_directory_is_a_conflict_of_the_plan() {
    let world = World::new();
    world.write("file", "1");
    world.write("d/deep/in", "1");
    fs::create_dir(world.root.join("d/empty")).unwrap();
    let call = world.call("call", || {
        world.remove("file");
        fs::remove_dir_all(world.root.join("d")).unwrap();
    });
    world.write("file/mine", "x");
    world.write("d", "mine");
    let manifest = world.manifest();
    let plan = world.open().plan_undo(&[call], &[]).unwrap();
    let conflicts: Vec<_> =
        plan.conflicts.iter().map(|conflict| (conflict.path.as_str(), conflict.reason.as_str())).collect();
    let expected =
        [("d/deep/in", "a file is in the place of its directory"), ("file", "a directory is in its place")];
    assert_eq!(conflicts, expected);
    assert!(plan.is_empty());
    assert_eq!(world.manifest(), manifest);
}

#[test]
fn an_undo_without_a_remaining_effect_is_neither_made_nor_redone() {
    let world = World::new();
    world.write("a", "1\n2\n3\n");
    let first = world.call("first", || world.write("a", "one\n2\n3\n"));
    let second = world.call("second", || world.write("b", "x"));
    let undo_of_second = world.undo(&[second]);
    // The user has removed the change, and made another one.
    world.write("a", "1\n2\n3\n4\n");
    assert!(world.open().plan_undo(&[first], &[]).unwrap().is_empty());
    // The user restores what the last undo has undone: a redo of it would change nothing.
    world.write("a", "one\n2\n3\n4\n");
    world.undo(&[first]);
    world.write("a", "one\n2\n3\n4\n");
    assert_eq!(world.open().last_undo().unwrap(), undo_of_second.number);
}
