//! Times of the last change of undone files.

use std::fs;

use crate::world::World;

/// Times of long ago, a different one for each entry.
fn set_times(world: &World) {
    for (seconds, path) in world.manifest().into_keys().rev().chain([String::new()]).enumerate() {
        if !world.root.join(&path).is_symlink() {
            world.set_time(&path, 1_000_000_000 + u64::try_from(seconds).unwrap());
        }
    }
}

fn world() -> World {
    let world = World::new();
    world.write("src/main.rs", "fn main() {}\n");
    world.write("src/deep/other.rs", "");
    world.write("tool.sh", "#!/bin/sh\n");
    // A directory that is left out of captures does not keep the times of the others out.
    world.write("node_modules/x", "x");
    world.link("src/main.rs", "link");
    set_times(&world);
    world
}

#[test]
fn each_call_is_undone_and_redone_with_the_times_of_files_and_directories() {
    let world = world();
    let replace = |path: &str, content: &str| {
        world.write(&format!("{path}.new"), content);
        fs::rename(world.root.join(format!("{path}.new")), world.root.join(path)).unwrap();
    };
    let changes: [&dyn Fn(); 8] = [
        &|| world.write("src/main.rs", "fn main() { run() }\n"),
        &|| replace("src/deep/other.rs", "x"),
        &|| world.set_time("tool.sh", 5),
        &|| {
            world.remove("link");
            world.link("tool.sh", "link");
            world.set_mode("tool.sh", 0o755);
        },
        &|| world.write("new/deep/file", "x"),
        &|| {
            fs::remove_dir_all(world.root.join("src")).unwrap();
            world.write("src", "a file in place of the directory");
        },
        &|| fs::create_dir(world.root.join("empty")).unwrap(),
        &|| {
            world.write("passing", "x");
            world.remove("passing");
        },
    ];
    let state = || (world.manifest(), world.times());
    let mut states = vec![state()];
    let mut calls = Vec::new();
    for (n, change) in changes.iter().enumerate() {
        calls.push(world.call(&format!("call {n}"), change));
        states.push(state());
    }
    let mut undos = Vec::new();
    for (n, call) in calls.iter().enumerate().rev() {
        let report = world.undo_with_times(&[*call]);
        assert!(report.conflicts.is_empty(), "{report:?}");
        assert_eq!(state(), states[n], "undo of call {n}");
        undos.push(report.number);
    }
    for (n, undo) in undos.iter().rev().enumerate() {
        world.undo_with_times(&[*undo]);
        assert_eq!(state(), states[n + 1], "redo of call {n}");
    }
    let report = world.undo_with_times(&calls);
    assert_eq!(state(), states[0], "{report:?}");
}

#[test]
fn without_exact_times_changed_files_get_the_present_time_and_others_keep_theirs() {
    let world = world();
    let before = world.times();
    let call = world.call("call", || {
        world.write("src/main.rs", "changed");
        world.set_time("src/main.rs", 7);
    });
    world.undo(&[call]);
    let after = world.times();
    let changed = |path: &str| after[path] > before["tool.sh"] + 100_000_000_000_000_000;
    assert!(changed("src/main.rs"), "a build would not notice it");
    for path in after.keys().filter(|path| !["src", "src/main.rs"].contains(&path.as_str())) {
        assert_eq!(after[path], before[path], "{path}");
    }
}

#[test]
fn a_later_change_of_others_keeps_its_time() {
    let world = world();
    let before = world.times();
    let first = world.call("first", || {
        world.write("src/a", "x");
        world.write("tool.sh", "1\n");
        world.set_time("src/deep/other.rs", 5);
    });
    let second = world.call("second", || world.write("src/b", "x"));
    world.set_time("src/deep/other.rs", 9);
    let times = world.times();
    world.undo_with_times(&[first]);
    let after = world.times();
    assert!(after["src"] > times["src"], "its names are those of no earlier time");
    assert_eq!(after["src/deep/other.rs"], 9_000_000_000);
    assert_eq!(after["tool.sh"], before["tool.sh"]);
    assert_eq!(after["src/b"], times["src/b"]);
    world.undo_with_times(&[second]);
    assert!(world.read("src/b").is_none());
}

/// Such times were set to the last moment that can be recorded, without a report.
#[test]
fn times_after_2262_are_left_and_reported() {
    const YEAR_2271: u64 = 9_500_000_000;
    let world = world();
    for file in ["tool.sh", "src/deep/other.rs"] {
        world.set_time(file, YEAR_2271);
    }
    if world.times()["tool.sh"] != i128::from(YEAR_2271) * 1_000_000_000 {
        foldlog_test_support::skipped("the disk has no such times");
        return;
    }
    let before = world.read("tool.sh");
    let call = world.call("call", || {
        world.write("tool.sh", "changed\n");
        world.set_time("src/deep/other.rs", 5);
    });
    let changed = world.times()["tool.sh"];
    let report = world.undo_with_times(&[call]);
    let conflicts: Vec<&str> = report.conflicts.iter().map(|conflict| conflict.path.as_str()).collect();
    assert_eq!(conflicts, ["tool.sh", "src/deep/other.rs"]);
    assert!(report.conflicts[0].reason.contains("after 2262"), "{report:?}");
    let after = world.times();
    assert_eq!((world.read("tool.sh"), after["src/deep/other.rs"]), (before, 5_000_000_000));
    let second = 1_000_000_000;
    assert!((changed - second..changed + 3600 * second).contains(&after["tool.sh"]), "{}", after["tool.sh"]);
}
