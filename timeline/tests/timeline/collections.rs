//! Removing captures to free space.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use chrono::{DateTime, TimeDelta, Utc};
use foldlog_timeline::{Error, Outcome, StepChanged};

use crate::world::{World, edit, ended, now, shell};

const REMOVED: &str = "its captures were removed to free space";

impl World {
    /// Runs a call that writes a file of 100 KB, at a time.
    fn writes(&self, name: &str, at: DateTime<Utc>) -> u64 {
        let number = self.open().begin_call(shell(name, None), at).unwrap();
        self.write(name, &random_text(number));
        self.open().end_call(shell(name, None), ended(), at).unwrap();
        number
    }

    pub(crate) fn pin(&self, number: u64) {
        self.open().set_pinned(number, true).unwrap();
    }

    pub(crate) fn captured_bytes(&self) -> u64 {
        bytes_in(&self.place.captures())
    }

    /// Removes as few captures as possible. Returns whether any was removed.
    fn remove_some(&self) -> bool {
        // The cache, which is written again when the timeline is closed, takes 4 KB.
        let bytes_max = || self.captured_bytes().saturating_sub(8192);
        // The first time, objects that no capture needs may suffice.
        (0..2).any(|_| self.open().collect(bytes_max(), now()).unwrap())
    }

    /// Removes captures until only those of these steps are left.
    fn collect_all_but(&self, steps: &[u64]) {
        // One of the captures to be removed is large, so that none of the others has to be.
        self.write("large", &random_text(0));
        self.call("removes", || self.remove("large"));
        while self.captured().iter().any(|step| !steps.contains(step)) {
            assert!(self.remove_some());
        }
        assert!(self.captured().iter().eq(steps));
    }

    /// Returns the steps whose captures are kept.
    pub(crate) fn captured(&self) -> BTreeSet<u64> {
        let steps = self.open().steps().unwrap().into_iter();
        steps.filter(|step| step.not_captured.is_none()).map(|step| step.number).collect()
    }
}

#[test]
fn captures_are_removed_from_the_earliest_on_and_their_calls_stay_in_the_list() {
    let world = World::new();
    let calls: Vec<u64> = (0..8).map(|n| world.writes(&format!("f{n}"), now())).collect();
    assert!(!world.open().collect(u64::MAX, now()).unwrap());
    let bytes = world.captured_bytes();
    assert!(world.open().collect(bytes - 100_000, now()).unwrap());
    assert!(world.captured_bytes() < bytes);
    let refused = world.try_undo(&calls[..1], &[]).unwrap_err().to_string();
    assert!(refused.contains(REMOVED), "{refused}");
    assert!(world.open_changes(calls[0]).files.is_empty());
    assert_eq!(world.open().steps().unwrap().len(), 8);
    world.undo(&calls[7..]);
    assert!(world.read("f7").is_none() && world.read("f0").is_some());
    world.open().collect(0, now()).unwrap();
    world.call("later", || world.write("later", "x"));
    let last = world.open().last_call().unwrap();
    world.undo(&[last]);
    assert!(world.read("later").is_none());
}

#[test]
fn captures_of_pinned_calls_are_removed_last() {
    let world = World::new();
    let calls: Vec<u64> = (0..8).map(|n| world.writes(&format!("f{n}"), now())).collect();
    world.pin(calls[1]);
    world.pin(calls[5]);
    world.pin(calls[4]);
    world.open().set_pinned(calls[4], false).unwrap();
    let mut removed = Vec::new();
    loop {
        let before = world.captured();
        let is_any = world.remove_some();
        removed.extend(before.difference(&world.captured()).copied());
        if !is_any {
            break;
        }
    }
    assert_eq!(removed, [1, 3, 4, 5, 7, 8, 2, 6]);
    assert!(!world.open().steps().unwrap().iter().any(|step| step.pinned));
}

#[test]
fn after_a_kill_before_objects_were_removed_no_further_captures_are_removed() {
    let world = World::new();
    let _: Vec<u64> = (0..8).map(|n| world.writes(&format!("f{n}"), now())).collect();
    let (captures, copy) = (world.place.captures(), world.place.dir.join("copy"));
    let copied = Command::new("cp").arg("-a").args([&captures, &copy]).status().unwrap();
    assert!(copied.success() && world.remove_some());
    let (kept, bytes) = (world.captured(), world.captured_bytes());
    fs::remove_dir_all(&captures).unwrap();
    fs::rename(copy, &captures).unwrap();
    assert!(world.captured_bytes() > bytes);
    assert!(!world.open().collect(bytes, now()).unwrap());
    assert_eq!(world.captured(), kept);
    world.undo(&[*kept.first().unwrap()]);
}

#[test]
fn calls_of_the_last_24_hours_keep_their_captures_if_enough_can_be_removed_otherwise() {
    let world = World::new();
    let old = world.writes("old", now() - TimeDelta::hours(25));
    let recent: BTreeSet<u64> =
        (0..12).map(|n| world.writes(&format!("f{n}"), now() - TimeDelta::hours(23))).collect();
    assert!(world.remove_some());
    assert!(!world.captured().contains(&old));
    assert_eq!(world.captured(), recent);
}

#[test]
fn a_pinned_call_is_undone_exactly_when_the_captures_around_it_are_gone() {
    let world = World::new();
    world.write("kept", "1\n2\n3\n");
    world.writes("before", now());
    let pinned = world.call("pinned", || {
        world.write("kept", "1\ntwo\n3\n");
        world.write("made/by", "x");
        world.set_mode("before", 0o600);
    });
    world.call("after", || world.write("kept", "1\ntwo\n3\n4\n"));
    let manifest = world.manifest();
    let undo = world.undo(&[pinned]);
    let expected = world.manifest();
    let redo = world.undo(&[undo.number]);
    world.pin(pinned);
    world.collect_all_but(&[pinned, undo.number, redo.number]);
    let undo = world.undo(&[pinned]);
    assert_eq!(world.manifest(), expected);
    assert_eq!(world.read("kept").unwrap(), "1\n2\n3\n4\n");
    world.undo(&[undo.number]);
    assert_eq!(world.manifest(), manifest);
}

#[test]
fn changes_between_removed_captures_get_no_author() {
    let world = World::new();
    let pinned = world.call("pinned", || world.write("pinned", "1"));
    world.write("mine", "1");
    world.call("gone", || world.write("gone", "1"));
    world.write("mine", "2");
    let last = world.call("last", || world.write("last", "1"));
    world.pin(pinned);
    world.pin(last);
    world.collect_all_but(&[pinned, last]);
    let timeline = world.open();
    let steps = timeline.steps().unwrap();
    let mut reader = timeline.changes_reader(&steps).unwrap();
    let mut files = |number: u64| {
        let paths = reader.changes(number).unwrap().files.into_iter();
        paths.map(|change| change.path).collect::<Vec<_>>()
    };
    assert_eq!([files(1), files(2), files(3)], [vec!["pinned".to_owned()], vec![], vec!["last".to_owned()]]);
    let users = (1..=3).flat_map(|number| reader.users_changes_after(number).unwrap());
    assert!(users.map(|change| change.path).all(|path| path == "mine"));
}

#[test]
fn overlapping_calls_share_changes_also_when_the_captures_of_one_are_gone() {
    let world = World::new();
    let other = world.open().begin_call(shell("other", Some("1")), now()).unwrap();
    world.write("others", "x");
    let pinned = world.call("pinned", || world.write("shared", "x"));
    world.open().end_call(shell("other", Some("1")), ended(), now()).unwrap();
    world.pin(pinned);
    world.collect_all_but(&[pinned]);
    assert!(!world.captured().contains(&other));
    let plan = world.open().plan_undo(&[pinned], &[]).unwrap();
    assert_eq!((plan.shared, plan.files.len()), (vec!["shared".to_owned()], 0));
}

#[test]
fn a_call_that_has_lost_a_capture_between_its_beginning_and_its_end_is_not_undoable() {
    let world = World::new();
    let begin = |id, agent| world.open().begin_call(shell(id, agent), now()).unwrap();
    let end = |id, agent| world.open().end_call(shell(id, agent), ended(), now()).unwrap();
    let pinned = begin("pinned", Some("1"));
    let around = begin("around", None);
    end("pinned", Some("1"));
    world.write("large", &random_text(0));
    let within = begin("within", Some("2"));
    world.remove("large");
    end("within", Some("2"));
    end("around", None);
    world.pin(pinned);
    assert_eq!(world.captured(), BTreeSet::from([pinned, around, within]));
    assert!(world.remove_some());
    assert_eq!(world.captured(), BTreeSet::from([pinned]));
}

#[test]
fn a_call_whose_late_end_is_reported_after_captures_within_it_were_removed_is_not_undoable() {
    let world = World::new();
    let pinned = world.open().begin_call(shell("pinned", None), now()).unwrap();
    world.write("pinned", "x");
    // The next call of the lane interrupts it.
    world.writes("other", now());
    world.pin(pinned);
    world.collect_all_but(&[pinned]);
    world.open().end_call(shell("pinned", None), ended(), now()).unwrap();
    assert!(!world.open().steps().unwrap().iter().any(|step| step.pinned));
    let refused = world.try_undo(&[pinned], &[]).unwrap_err().to_string();
    assert!(refused.contains(REMOVED), "{refused}");
}

#[test]
fn a_pinned_undo_keeps_also_the_captures_of_its_failed_attempt() {
    let world = World::new();
    let call = world.call("call", || ["f", "g"].iter().for_each(|path| world.write(path, "x")));
    let attempt = world.try_undo(&[call], &["f"]).unwrap().number;
    let mut step = world.open().steps().unwrap().into_iter().find(|step| step.number == attempt).unwrap();
    step.outcome = Some(Outcome::Failed);
    world.open().session().dispatch(StepChanged { step, moment: None }).unwrap();
    world.writes("between", now());
    let undo = world.undo(&[call]).number;
    world.pin(undo);
    world.collect_all_but(&[attempt, undo]);
    world.undo(&[undo]);
    assert!(world.read("f").is_some() && world.read("g").is_some());
}

#[test]
fn only_a_call_that_can_be_undone_is_pinned() {
    let world = World::new();
    let gone = world.writes("gone", now());
    let open = world.open().begin_call(edit("edit", &world.root.join("gone"), None), now()).unwrap();
    world.pin(open);
    world.pin(open);
    let records = world.open().session().log().position();
    world.pin(open);
    assert_eq!(world.open().session().log().position(), records, "pinning twice changes nothing");
    assert!(world.remove_some() && world.captured().contains(&open));
    let refused = world.open().set_pinned(gone, true).unwrap_err();
    assert_eq!(refused.to_string(), format!("call {gone} cannot be pinned: {REMOVED}"));
    world.open().set_pinned(gone, false).unwrap();
    assert!(matches!(world.open().set_pinned(7, true), Err(Error::NoStep { number: 7 })));
}

/// Returns the bytes that the files in a directory take on the disk.
fn bytes_in(directory: &Path) -> u64 {
    let bytes = |entry: fs::DirEntry| {
        let found = entry.metadata().unwrap();
        if found.is_dir() { bytes_in(&entry.path()) } else { found.blocks() * 512 }
    };
    fs::read_dir(directory).into_iter().flatten().map(|entry| bytes(entry.unwrap())).sum()
}

/// Text of 100 KB that cannot be compressed.
fn random_text(seed: u64) -> String {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..6250).map(|_| format!("{:016x}", next())).collect()
}
