//! Undos that are killed at each system call that changes something.
//!
//! `FOLDLOG_MATRIX=all` tries every call, otherwise a sample is tried.

use std::fs;
use std::path::Path;

use foldlog_test_support::{child, killed};
use foldlog_timeline::{Timeline, TimelineOptions, TimelinePlace};

use crate::world::{Manifest, World, now};

const PART: &str = "kills::part_that_undoes_the_first_call";

#[test]
#[ignore = "part of another test, in a process of its own"]
fn part_that_undoes_the_first_call() {
    let Some(argument) = child::argument() else { return };
    let (timelines, root) = argument.split_once('\n').unwrap();
    let place = TimelinePlace::of_root(Path::new(timelines), Path::new(root)).unwrap();
    let mut timeline = Timeline::open(&place, &TimelineOptions::default()).unwrap();
    let plan = timeline.plan_undo(&[1], &[]).unwrap();
    timeline.apply_undo(&plan, now()).unwrap();
    killed::tell_done();
}

#[test]
fn an_undo_that_is_killed_at_any_moment_is_completed_and_reversed_by_one_redo() {
    if !child::is_traced_here() {
        return;
    }
    let world = World::in_directory(killed::quick_directory());
    world.write("changed", "1\n");
    world.write("removed/deep/file", "x");
    world.set_mode("removed/deep", 0o750);
    world.write("merged", "1\n2\n3\n4\n5\n");
    world.link("changed", "link");
    world.write("replaced", "a file");
    fs::create_dir(world.root.join("removed/empty")).unwrap();
    fs::create_dir(world.root.join("elsewhere")).unwrap();
    let unwritten = world.manifest();
    let call = world.call("call", || {
        world.write("changed", "2\n");
        world.write("merged", "one\n2\n3\n4\n5\n");
        fs::remove_dir_all(world.root.join("removed")).unwrap();
        world.remove("link");
        world.write("new/file", "x");
        world.write("link", "a file");
        world.remove("replaced");
        world.write("replaced/by/this", "x");
    });
    world.write("merged", "one\n2\n3\n4\nfive\n");
    let after = world.manifest();
    // From now on, all contents are stored, so that each round makes the same calls.
    let report = world.undo(&[call]);
    let before = world.manifest();
    assert_eq!(before.len(), unwritten.len());
    world.undo(&[report.number]);
    let argument = format!("{}\n{}", world.place.dir.parent().unwrap().display(), world.root.display());
    let calls = killed::calls(PART, &argument, world.root.parent().unwrap());
    let last = world.open().last_undo().unwrap();
    world.undo(&[last]);

    let with_line = |manifest: &Manifest, line: &str| {
        let mut manifest = manifest.clone();
        manifest.get_mut("merged").unwrap().1.extend_from_slice(line.as_bytes());
        if !line.is_empty() {
            manifest.insert("elsewhere/mine".to_owned(), manifest["elsewhere"].clone());
        }
        manifest
    };
    let mut left = 0;
    for (nth, call) in calls.iter().step_by(killed::step(11)).enumerate() {
        killed::kill_at(call, PART, &argument);
        left += fs::read_dir(&world.root)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".foldlog"))
            .count();
        // A line that the user then adds stays, and is no reason to take the file for undone. So does
        // an empty directory.
        let mine = if nth % 2 == 0 { "6\n" } else { "" };
        if !mine.is_empty() {
            fs::create_dir(world.root.join("elsewhere/mine")).unwrap();
        }
        world.write("merged", &(world.read("merged").unwrap() + mine));
        // The next command of any kind removes what is left.
        drop(world.open());
        let manifest = world.manifest();
        assert!(manifest.keys().all(|path| !path.contains(".foldlog")), "{call:?}: {:?}", manifest.keys());
        let undone = world.open().undone().unwrap();
        if !undone.wholly.contains(&1) {
            world.undo(&[1]);
        }
        assert_eq!(world.manifest(), with_line(&before, mine), "{call:?}");
        let last = world.open().last_undo().unwrap();
        let redo = world.undo(&[last]);
        assert!(redo.conflicts.is_empty(), "{call:?}: {redo:?}");
        if !mine.is_empty() {
            assert!(world.read("merged").unwrap().ends_with(mine), "{call:?}");
            world.write("merged", "one\n2\n3\n4\nfive\n");
            fs::remove_dir(world.root.join("elsewhere/mine")).unwrap();
        }
        assert_eq!(world.manifest(), after, "{call:?}");
        assert!(world.open().last_undo().is_err(), "{call:?}: one redo reverses all of it");
    }
    println!("{} calls, {left} leftovers", calls.len());
}
