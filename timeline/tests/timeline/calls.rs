//! Recording calls.

use std::fs;
use std::time::Duration;

use chrono::TimeDelta;
use foldlog_timeline::{CallEnd, Error, Outcome, Timeline, TimelineOptions, TimelinePlace, WITHHELD};

use crate::world::{World, edit, ended, now, shell};

#[test]
fn a_call_without_an_end_is_closed_at_the_next_call_of_its_lane_and_its_changes_stay() {
    let world = World::new();
    let lost = world.open().begin_call(shell("lost", None), now()).unwrap();
    world.write("half", "x");
    let other = world.open().begin_call(shell("other", Some("1")), now()).unwrap();
    let step =
        |number: u64| world.open().steps().unwrap().into_iter().find(|step| step.number == number).unwrap();
    assert!(step(lost).is_open(), "another lane does not end it");
    world.open().begin_call(shell("next", None), now()).unwrap();
    assert_eq!(step(lost).outcome, Some(Outcome::Interrupted));
    assert!(step(other).is_open());
    assert_eq!(world.read("half").unwrap(), "x");
    world.undo(&[lost]);
    assert!(world.read("half").is_none());
}

#[test]
fn calls_that_may_overlap_stay_open_until_they_fail() {
    let world = World::new();
    let overlapping = |id: &str| foldlog_timeline::NewCall { may_overlap: true, ..shell(id, None) };
    let first = world.open().begin_call(overlapping("first"), now()).unwrap();
    let second = world.open().begin_call(overlapping("second"), now()).unwrap();
    let outcomes = || world.open().steps().unwrap().into_iter().map(|step| step.outcome).collect::<Vec<_>>();
    assert_eq!(outcomes(), [None, None]);
    let lane = shell("", Some("1")).lane;
    world.open().fail_calls(&lane, |_| false, now()).unwrap();
    assert_eq!(outcomes(), [None, None], "another lane does not end them");
    let lane = shell("", None).lane;
    world.open().fail_calls(&lane, |step| step.number == second, now()).unwrap();
    assert_eq!(outcomes(), [Some(Outcome::Failed), None]);
    world.write("late", "x");
    world.open().end_call(overlapping("second"), ended(), now()).unwrap();
    world.undo(&[first]);
    assert!(world.read("late").is_some(), "it was written after the first call");
    world.undo(&[second]);
    assert!(world.read("late").is_none());
}

#[test]
fn parallel_calls_of_one_lane_overlap_if_the_end_of_the_first_is_reported() {
    let world = World::new();
    let first = world.open().begin_call(shell("first", None), now()).unwrap();
    world.write("of the first", "x");
    let second = world.open().begin_call(shell("second", None), now()).unwrap();
    world.write("of both", "x");
    let outcome = |number: u64| {
        let steps = world.open().steps().unwrap();
        steps.into_iter().find(|step| step.number == number).unwrap().outcome
    };
    assert_eq!(outcome(first), Some(Outcome::Interrupted), "until its end is reported");
    world.open().end_call(shell("first", None), ended(), now()).unwrap();
    world.write("of the second", "x");
    world.open().end_call(shell("second", None), ended(), now()).unwrap();
    assert_eq!(outcome(first), Some(Outcome::Succeeded));
    let report = world.undo(&[first]);
    assert_eq!(report.changed, ["of the first"]);
    assert!(world.read("of both").is_some(), "it belongs to both");
    let report = world.undo(&[second]);
    assert_eq!(report.changed, ["of the second"]);
    world.try_undo(&[first, second], &["of both"]).unwrap();
    assert!(world.read("of both").is_none());
}

#[test]
fn the_late_end_of_a_call_that_was_undone_meanwhile_changes_nothing() {
    let world = World::new();
    let first = world.open().begin_call(shell("first", None), now()).unwrap();
    world.write("of the first", "x");
    world.open().begin_call(shell("second", None), now()).unwrap();
    world.undo(&[first]);
    world.write("of the second", "x");
    world.open().end_call(shell("first", None), ended(), now()).unwrap();
    assert_eq!(world.open().steps().unwrap()[0].outcome, Some(Outcome::Interrupted));
    world.open().end_call(shell("second", None), ended(), now()).unwrap();
    assert_eq!(world.open_changes(first).files.len(), 1);
}

#[test]
fn a_call_that_names_an_ignored_file_is_recorded_without_its_contents() {
    let world = World::new();
    world.write(".gitignore", "*.key\n");
    let is_withheld = |call: foldlog_timeline::NewCall| {
        let end = CallEnd { result: Some("result".to_owned()), ..ended() };
        let number = world.open().end_call(call, end, now()).unwrap();
        let steps = world.open().steps().unwrap();
        let call = steps.iter().find(|step| step.number == number).unwrap().call().unwrap().clone();
        (call.arguments == WITHHELD, call.result.as_deref() == Some(WITHHELD))
    };
    let of_file = |path: &str| is_withheld(edit(path, &world.root.join(path), None));
    assert_eq!(of_file("in/tls.key"), (true, true));
    assert_eq!(of_file("in/.env.local"), (true, true));
    assert_eq!(of_file(".env.example"), (false, false));
    let command = |title: &str| {
        is_withheld(foldlog_timeline::NewCall { title: title.to_owned(), ..shell(title, None) })
    };
    assert_eq!(command("cat in/.env|sort"), (false, true));
    assert_eq!(command("cp .env.example in; ls ./environment"), (false, false));
}

#[test]
fn a_session_that_ends_closes_its_open_calls() {
    let world = World::new();
    let main = world.open().begin_call(shell("main", None), now()).unwrap();
    let sub = world.open().begin_call(shell("sub", Some("1")), now()).unwrap();
    assert_eq!(world.open().interrupt_calls("claude", "another", false, now()).unwrap(), [0; 0]);
    assert_eq!(world.open().interrupt_calls("claude", "s", true, now()).unwrap(), [main]);
    assert_eq!(world.open().interrupt_calls("claude", "s", false, now()).unwrap(), [sub]);
}

#[test]
fn a_call_of_a_program_that_has_ended_is_closed_by_any_other_call() {
    let world = World::new();
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let lost = foldlog_timeline::NewCall { process: Some(ended.id()), ..shell("lost", None) };
    world.open().begin_call(lost, now()).unwrap();
    world.open().begin_call(shell("next", Some("1")), now()).unwrap();
    assert_eq!(world.open().steps().unwrap()[0].outcome, Some(Outcome::Interrupted));
}

#[test]
fn changes_before_the_tool_was_started_are_the_users() {
    let world = World::new();
    world.write("removed", "x");
    let start = chrono::DateTime::<chrono::Utc>::from(std::time::SystemTime::now()) - TimeDelta::seconds(60);
    let call = world.open().begin_call(shell("held up", None), start).unwrap();
    world.write("by hand", "x");
    world.remove("removed");
    // The dialog is open for a while, by the clock that the caller passes.
    let later = start + TimeDelta::seconds(600);
    let end = CallEnd { duration_ms: Some(1), ..ended() };
    world.open().end_call(shell("held up", None), end, later).unwrap();
    let step = world.open().steps().unwrap().pop().unwrap();
    assert_eq!(step.yours, ["by hand"]);
    assert_eq!(step.possibly_yours, ["removed"]);
    let report = world.undo(&[call]);
    assert!(report.changed.is_empty(), "{report:?}");
    assert!(world.read("by hand").is_some() && world.read("removed").is_none());
}

#[test]
fn changes_during_a_call_that_was_asked_for_and_never_ended_are_possibly_the_users() {
    let world = World::new();
    let call = world.open().begin_call(shell("refused", None), now()).unwrap();
    world.open().ask_for(&shell("refused", None).lane).unwrap();
    world.write("by hand", "x");
    assert_eq!(world.open().interrupt_calls("claude", "s", true, now()).unwrap(), [call]);
    let report = world.undo(&[call]);
    assert!(report.changed.is_empty() && world.read("by hand").is_some(), "{report:?}");
    world.undo(&[report.number]);
    world.try_undo(&[call], &[""]).unwrap();
    assert!(world.read("by hand").is_none(), "the user may name the file");
}

#[test]
fn a_file_tool_owns_only_the_file_that_it_names() {
    let world = World::new();
    world.write("named", "1");
    world.write("mine", "1");
    let named = world.root.join("named");
    let call = world.open().begin_call(edit("edit", &named, None), now()).unwrap();
    world.write("named", "2");
    world.write("mine", "2");
    world.open().end_call(edit("edit", &named, None), ended(), now()).unwrap();
    world.undo(&[call]);
    assert_eq!(world.read("named").unwrap(), "1");
    assert_eq!(world.read("mine").unwrap(), "2");
}

#[test]
fn a_timeline_that_another_process_has_open_is_waited_for_and_then_reported() {
    let world = World::new();
    let held = world.open();
    let mut options = TimelineOptions::default();
    options.wait = Duration::from_millis(20);
    assert!(matches!(Timeline::open(&world.place, &options), Err(Error::Busy { .. })));
    assert!(Timeline::open_read_only(&world.place, &options).is_ok());
    drop(held);
    assert!(Timeline::open(&world.place, &options).is_ok());
}

#[test]
fn nothing_is_captured_on_a_disk_with_little_space() {
    let mut world = World::new();
    world.options.free_bytes_min = u64::MAX;
    let call = world.call("call", || world.write("new", "x"));
    let refused = world.try_undo(&[call], &[]).unwrap_err().to_string();
    assert!(refused.contains("MB are free"), "{refused}");
}

#[test]
fn a_timeline_is_found_from_a_directory_below_its_root() {
    let world = World::new();
    world.write("src/deep/file", "x");
    let timelines = world.place.dir.parent().unwrap();
    let deep = world.root.join("src/deep");
    assert!(matches!(TimelinePlace::around(timelines, &deep), Err(Error::NoTimeline { .. })));
    drop(world.open());
    assert_eq!(TimelinePlace::around(timelines, &deep).unwrap(), world.place);
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&world.place.dir).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn an_id_that_is_used_again_is_another_call() {
    let world = World::new();
    let first = world.call("call_0", || world.write("a", "x"));
    let second = world.call("call_0", || world.write("b", "x"));
    assert_ne!(first, second);
    world.undo(&[second]);
    assert!(world.read("a").is_some() && world.read("b").is_none());
}

#[test]
fn a_file_tool_owns_its_file_by_any_name() {
    let world = World::new();
    let odd = "tab\t, escape \u{1b}, backslash \\";
    for name in ["AGENTS.md", odd] {
        world.write(name, "1\n");
    }
    world.link("AGENTS.md", "CLAUDE.md");
    for (id, name, file) in [("linked", "CLAUDE.md", "AGENTS.md"), ("odd", odd, odd)] {
        let path = world.root.join(name);
        let call = world.open().begin_call(edit(id, &path, None), now()).unwrap();
        world.write(file, "2\n");
        world.open().end_call(edit(id, &path, None), ended(), now()).unwrap();
        world.undo(&[call]);
        assert_eq!(world.read(file).unwrap(), "1\n", "{name:?}");
    }
}

#[test]
fn a_timeline_whose_creation_was_killed_is_created_again() {
    let world = World::new();
    drop(world.open());
    let sessions = world.place.dir.join("store/sessions");
    let session = fs::read_dir(&sessions).unwrap().next().unwrap().unwrap().path();
    for entry in fs::read_dir(&session).unwrap() {
        let path = entry.unwrap().path();
        // As after a kill between the creation of the first segment and the write of its header.
        if path.is_file() {
            fs::write(path, "").unwrap();
        }
    }
    world.call("call", || world.write("a", "x"));
    assert_eq!(world.open().steps().unwrap().len(), 1);
}
