//! Shows which state is found, and from where its session is resumed.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use foldlog::{Export, ImportOptions, Session};
use foldlog_agent::Error;
use foldlog_agent::adapter_state::*;
use serde_json::{Value, json};

use super::world::*;

/// Names the directory of the store to a process that a test starts.
const STORE: &str = "FOLDLOG_TEST_STORE";

#[test]
fn a_worker_that_crashed_is_resumed_by_the_id_that_it_captured_first() {
    let world = World::new();
    let session = world.session();
    assert_eq!(recover(&session), None, "without a state the recovery begins afresh");
    let mut capture = world.capture(&session, "one", &AdapterStateOptions::default());
    capture.offer(&claude("abc123"), None, CaptureOccasion::Init).unwrap();
    let session = world.reopened(session);
    assert_eq!(recover(&session).as_deref(), Some("abc123"));
}

/// Runs in a process of its own. Captures a state as soon as the provider's session is known, and
/// works until it is killed.
#[test]
#[ignore = "a part of the test below"]
fn part_of_the_killed_worker() {
    let Some(directory) = std::env::var_os(STORE) else { return };
    let world = World::at(Path::new(&directory));
    let session = world.session();
    let mut capture = world.capture(&session, "one", &AdapterStateOptions::default());
    capture.offer(&claude("abc123"), None, CaptureOccasion::Init).unwrap();
    println!("\ncaptured {}", session.id());
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn a_second_process_resumes_the_session_of_a_worker_that_was_killed() {
    let directory = tempfile::tempdir().unwrap();
    let mut worker = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "adapter_state::resuming::part_of_the_killed_worker"])
        .env(STORE, directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(worker.stdout.take().unwrap()).lines().map_while(Result::ok);
    let id = said.into_iter().find_map(|line| line.strip_prefix("captured ").map(str::to_owned)).unwrap();
    worker.kill().unwrap();
    assert_eq!(worker.wait().unwrap().signal(), Some(9));

    let world = World::at(directory.path());
    let session = world.store.open_session(id.parse().unwrap(), &world.types).unwrap();
    assert_eq!(recover(&session).as_deref(), Some("abc123"));
    let plan = plan_resume(&session, "two", CLAUDE, &AdapterStateOptions::default(), &context()).unwrap();
    assert!(matches!(plan, ResumePlan::Resume(resume) if resume.mode == ResumeMode::Fork));
}

#[test]
fn the_latest_resumable_state_of_the_adapter_is_found() {
    let world = World::new();
    let session = world.session();
    for (evaluation, id) in [("one", "a"), ("two", "b"), ("three", "c")] {
        let mut capture = world.capture(&session, evaluation, &AdapterStateOptions::default());
        capture.offer(&claude(id), None, CaptureOccasion::Init).unwrap();
        if evaluation == "three" {
            capture.offer(&complete(id), None, CaptureOccasion::Complete).unwrap();
        }
    }
    record(&session, "threads", json!({"thread": 7}), None);
    assert_eq!(recover(&session).as_deref(), Some("b"), "the latest that did not complete");
    assert_eq!(find_resumable_state(&session, "nobody").unwrap(), None);
    let thread = find_resumable_state(&session, "threads").unwrap().unwrap();
    assert_eq!(thread.state.read::<Thread>().unwrap(), Some(Thread { thread: 7 }));
}

#[test]
fn a_completed_session_is_not_resumed_through_an_older_capture_of_it() {
    let world = World::new();
    let session = world.session();
    let mut capture = world.capture(&session, "one", &on_every_occasion());
    for occasion in [CaptureOccasion::Init, CaptureOccasion::Tool] {
        capture.offer(&claude("abc123"), None, occasion).unwrap();
    }
    assert_eq!(recover(&session).as_deref(), Some("abc123"));
    capture.offer(&complete("abc123"), None, CaptureOccasion::Complete).unwrap();
    assert_eq!(recover(&session), None);
    assert_eq!(recover(&world.reopened(session)), None);
}

#[test]
fn an_evaluation_that_resumed_a_session_replaces_its_capture_also_in_a_copy_of_it() {
    let world = World::new();
    let session = world.session();
    let mut capture = world.capture(&session, "one", &AdapterStateOptions::default());
    capture.offer(&claude("original"), None, CaptureOccasion::Init).unwrap();
    let found = find_resumable_state(&session, CLAUDE).unwrap().unwrap();

    let mut resumed = world.capture(&session, "two", &AdapterStateOptions::default()).resuming(&found);
    resumed.offer(&claude("copy"), None, CaptureOccasion::Init).unwrap();
    assert_eq!(recover(&session).as_deref(), Some("copy"));
    resumed.offer(&complete("copy"), None, CaptureOccasion::Complete).unwrap();
    assert_eq!(recover(&session), None, "the original is not begun again behind its own copy");
}

#[test]
fn a_record_that_claims_to_replace_itself_or_a_later_one_replaces_nothing() {
    let world = World::new();
    let session = world.session();
    let first = record(&session, "threads", json!({"thread": 1}), Some(99.into()));
    let second = first + 1;
    assert_eq!(record(&session, "threads", json!({"thread": 2}), Some(second)), second);
    let found = find_resumable_state(&session, "threads").unwrap().unwrap();
    assert_eq!(found.sequence, second);
}

fn captured(world: &World, entries: &[&str]) -> Session {
    let session = world.session();
    let mut capture = world.capture(&session, "one", &on_every_occasion());
    for entry in entries {
        capture.offer(&claude("abc123"), Some(entry), CaptureOccasion::Message).unwrap();
    }
    session
}

#[test]
fn a_session_is_copied_by_default_and_changed_only_where_the_host_says_so() {
    let world = World::new();
    let session = captured(&world, &["m1", "m2"]);
    let plan =
        |options: &AdapterStateOptions| plan_resume(&session, "two", CLAUDE, options, &context()).unwrap();
    let ResumePlan::Resume(resume) = plan(&AdapterStateOptions::default()) else { panic!() };
    assert_eq!(
        (resume.snapshot.entry.as_deref(), resume.mode, resume.at_entry),
        (Some("m2"), ResumeMode::Fork, None)
    );
    let options = AdapterStateOptions { resume_mode: ResumeMode::Continue, ..Default::default() };
    assert!(matches!(plan(&options), ResumePlan::Resume(resume) if resume.mode == ResumeMode::Continue));
}

#[test]
fn a_resume_that_is_refused_is_an_error_and_begins_nothing_afresh() {
    let world = World::new();
    let session = captured(&world, &["m1"]);
    let elsewhere = ResumeContext { workspace_path: None, ..context() };
    let error = plan_resume(&session, "two", CLAUDE, &Default::default(), &elsewhere).unwrap_err();
    let Error::ResumeRefused(refusal) = &error else { panic!("{error}") };
    assert_eq!(refusal.check, ResumeCheck::WorkspacePath);
    assert_eq!(states(&session).len(), 1, "and nothing is recorded");
    assert_eq!(recover(&session).as_deref(), Some("abc123"), "it can be resumed where it belongs");
}

/// A failed resume that silently starts a new session loses the conversation (github/app#2309).
/// Here the log records it.
#[test]
fn an_expired_session_is_begun_afresh_and_the_log_says_why() {
    let world = World::new();
    let session = captured(&world, &["m1"]);
    let day_later = ResumeContext { now: at(86_401), ..context() };
    let plan = plan_resume(&session, "two", CLAUDE, &Default::default(), &day_later).unwrap();
    let ResumePlan::Fresh { refusal: Some(refusal) } = plan else { panic!("{plan:?}") };
    assert_eq!(refusal.check, ResumeCheck::Recency);

    let session = world.reopened(session);
    let read = states(&session);
    let expired = read.last().unwrap();
    assert_eq!((expired.occasion.as_str(), expired.supersedes), ("expired", Some(read[0].sequence)));
    assert_eq!((expired.evaluation_id.as_str(), expired.state.resumable()), ("two", false));
    assert_eq!(expired.state.state(), read[0].state.state(), "what was expired stays to be read");
    let again = plan_resume(&session, "two", CLAUDE, &Default::default(), &context()).unwrap();
    assert_eq!(again, ResumePlan::Fresh { refusal: None });
}

#[test]
fn a_session_that_the_provider_says_is_expired_is_not_tried_again() {
    let world = World::new();
    let session = captured(&world, &["m1"]);
    let found = find_resumable_state(&session, CLAUDE).unwrap().unwrap();
    let error = Error::SessionExpired { adapter: CLAUDE.into(), session_id: "abc123".into() };
    assert!(error.to_string().contains("no longer has session `abc123`: record that it expired"), "{error}");

    let mut capture = world.capture(&session, "two", &AdapterStateOptions::default()).resuming(&found);
    capture.record_expiry(&found).unwrap();
    assert_eq!(recover(&session), None);
    capture.offer(&claude("fresh"), None, CaptureOccasion::Init).unwrap();
    assert_eq!(states(&session).last().unwrap().supersedes, None, "the fresh session has a chain of its own");
    assert_eq!(recover(&session).as_deref(), Some("fresh"));
}

#[test]
fn a_capture_that_a_rollback_abandoned_is_refused_strictly_and_else_copied_where_the_log_went_back_to() {
    let world = World::new();
    let session = captured(&world, &["m1"]);
    let before = session.snapshot(Default::default()).unwrap();
    let mut capture = world.capture(&session, "one", &on_every_occasion());
    capture.offer(&claude("abc123"), Some("m2"), CaptureOccasion::Message).unwrap();
    session.rollback(&before).unwrap();

    let error = plan_resume(&session, "two", CLAUDE, &Default::default(), &context()).unwrap_err();
    let Error::ResumeRefused(refusal) = &error else { panic!("{error}") };
    assert_eq!(refusal.check, ResumeCheck::LivePath);
    let relaxed = AdapterStateOptions {
        resume_validation: ResumeValidation::Relaxed,
        resume_mode: ResumeMode::Continue,
        ..Default::default()
    };
    let plan = plan_resume(&session, "two", CLAUDE, &relaxed, &context()).unwrap();
    let ResumePlan::Resume(resume) = plan else { panic!("{plan:?}") };
    assert_eq!(
        (resume.at_entry.as_deref(), resume.mode),
        (Some("m1"), ResumeMode::Fork),
        "going on would repeat what was rolled back"
    );
    assert!(resume.snapshot.is_live);
}

/// A rollback had led back to a session that the provider had lost. Each evaluation tried it again,
/// since the abandoned capture still counted as resumable.
#[test]
fn a_session_that_expired_is_not_tried_again_because_of_a_capture_that_was_abandoned() {
    let world = World::new();
    let session = captured(&world, &["m1"]);
    let before = session.snapshot(Default::default()).unwrap();
    let mut capture = world.capture(&session, "one", &on_every_occasion());
    capture.offer(&claude("abc123"), Some("m2"), CaptureOccasion::Message).unwrap();
    session.rollback(&before).unwrap();
    let relaxed = AdapterStateOptions { resume_validation: ResumeValidation::Relaxed, ..Default::default() };
    let plan = plan_resume(&session, "two", CLAUDE, &relaxed, &context()).unwrap();
    let ResumePlan::Resume(resume) = plan else { panic!("{plan:?}") };
    world.capture(&session, "two", &relaxed).record_expiry(&resume.snapshot).unwrap();
    let plan = plan_resume(&session, "three", CLAUDE, &relaxed, &context()).unwrap();
    assert!(matches!(plan, ResumePlan::Fresh { refusal: None }), "{plan:?}");
}

#[test]
fn an_abandoned_session_without_an_entry_to_go_back_to_is_begun_afresh_and_the_log_says_why() {
    let world = World::new();
    let session = world.session();
    let before = session.snapshot(Default::default()).unwrap();
    let mut capture = world.capture(&session, "one", &on_every_occasion());
    capture.offer(&claude("abc123"), Some("m1"), CaptureOccasion::Message).unwrap();
    session.rollback(&before).unwrap();

    let relaxed = AdapterStateOptions { resume_validation: ResumeValidation::Relaxed, ..Default::default() };
    let plan = plan_resume(&session, "two", CLAUDE, &relaxed, &context()).unwrap();
    let ResumePlan::Fresh { refusal: Some(refusal) } = plan else { panic!("{plan:?}") };
    assert_eq!(refusal.check, ResumeCheck::LivePath);
    assert_eq!(states(&session).last().unwrap().occasion, "abandoned");
    assert_eq!(recover(&session), None);
}

/// The specification's recovery starts from a session's snapshot JSON, which lacked the adapter's
/// state.
#[test]
fn a_session_that_was_imported_from_its_snapshot_json_is_resumed_in_the_providers_session() {
    let world = World::new();
    let session = captured(&world, &["m1", "m2"]);
    record(&session, "unknown", json!({ "of": ["any", 1.5, null] }), None);
    let json = session.log().export().unwrap().to_json().unwrap();
    let import = |json: &str| {
        let export = Export::from_json(json).unwrap();
        world.store.import(&export, &world.types, ImportOptions::default()).unwrap()
    };
    let imported = import(&json);
    let plain = |session: &Session| -> Vec<_> {
        let of = |one: AdapterStateSnapshot| (one.state, one.evaluation_id, one.entry, one.occasion);
        states(session).into_iter().map(of).collect()
    };
    assert_eq!(plain(&imported), plain(&session));
    let chain = |session: &Session| -> Vec<_> {
        let states = states(session);
        let place = |sequence| states.iter().position(|one| one.sequence == sequence);
        states.iter().map(|one| one.supersedes.and_then(place)).collect()
    };
    assert_eq!(chain(&imported), chain(&session));
    assert_eq!((recover(&imported), recover(&session)), (Some("abc123".into()), Some("abc123".into())));

    // A state from before a rollback is not resumed there, since that log does not record how far
    // the provider's session went beyond it.
    let before = session.snapshot(Default::default()).unwrap();
    let mut capture = world.capture(&session, "one", &on_every_occasion());
    capture.offer(&claude("abc123"), Some("m3"), CaptureOccasion::Message).unwrap();
    session.rollback(&before).unwrap();
    let imported = import(&session.log().export().unwrap().to_json().unwrap());
    assert_eq!(recover(&imported), None);
}

/// The specification's snapshot has none of the fields that this library adds to the records of
/// states.
#[test]
fn states_that_the_specifications_program_exported_are_read_and_resumed() {
    let world = World::new();
    let state = json!({
        "session_id": "abc123", "created_at": "2026-01-01T12:00:00+00:00",
        "last_activity_at": "2026-01-01T12:00:01.5+00:00", "workspace_path": null, "prompt_name": "demo:review",
        "later_field": [1],
    });
    let item = |state: &Value, evaluation: &str, more: Value| {
        let mut item = json!({ "state": state, "captured_at": "2026-01-01T12:00:02+00:00", "evaluation_id": evaluation });
        let fields = item.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        item
    };
    let import = |items: &[Value]| {
        let name = "weakincentives.runtime.adapter_state:AdapterStateSnapshot";
        let snapshot = json!({
            "version": "1", "created_at": "2026-01-01T12:00:03+00:00", "parent_id": null, "children_ids": [], "tags": {},
            "policies": { name: "log" }, "slices": [{ "slice_type": name, "item_type": name, "items": items }],
        });
        let export = Export::from_json(&snapshot.to_string()).unwrap();
        world.store.import(&export, &world.types, ImportOptions::default()).unwrap()
    };
    let one = item(&state, "one", json!({ "a_field_of_a_later_version": 1 }));
    let session = import(std::slice::from_ref(&one));
    let found = find_resumable_state(&session, CLAUDE).unwrap().unwrap();
    assert_eq!((&found.state.state()["later_field"], found.supersedes), (&json!([1]), None));
    let read = found.state.read::<ClaudeAgentSDKState>().unwrap().unwrap();
    assert_eq!((read.session_id.as_str(), read.workspace_path, read.message_count), ("abc123", None, 0));
    assert!(!read.is_complete);

    // The session is complete, and its predecessor is not resumed either.
    let mut complete = state;
    complete["is_complete"] = true.into();
    let session = import(&[one.clone(), item(&complete, "two", json!({ "supersedes": "one" }))]);
    assert_eq!(recover(&session), None);
    assert_eq!(states(&session)[1].supersedes, Some(states(&session)[0].sequence));

    let other = json!({ "adapter_type": "another", "resumable": true, "of": "whatever" });
    let session = import(&[one, item(&other, "three", json!({ "supersedes": null }))]);
    assert_eq!(recover(&session).as_deref(), Some("abc123"));
    let found = find_resumable_state(&session, "another").unwrap().unwrap();
    assert_eq!(found.state.state(), &other, "the state stays as it was");
}

/// The session of another evaluation, which had worked since, was resumed with the messages of this
/// one.
#[test]
fn an_evaluation_resumes_its_own_session_and_without_validation_a_completed_one_too() {
    let world = World::new();
    let session = world.session();
    for evaluation in ["one", "two"] {
        let mut capture = world.capture(&session, evaluation, &AdapterStateOptions::default());
        capture.offer(&claude(evaluation), None, CaptureOccasion::Init).unwrap();
    }
    let resumed = |evaluation: &str, resume_validation| {
        let options = AdapterStateOptions { resume_validation, ..Default::default() };
        match plan_resume(&session, evaluation, CLAUDE, &options, &context()).unwrap() {
            ResumePlan::Resume(resume) => Some(resume.snapshot.evaluation_id),
            ResumePlan::Fresh { .. } => None,
        }
    };
    for evaluation in ["one", "two"] {
        assert_eq!(resumed(evaluation, ResumeValidation::Strict).as_deref(), Some(evaluation));
    }
    assert_eq!(resumed("three", ResumeValidation::Strict).as_deref(), Some("two"), "the latest");
    let mut capture = world.capture(&session, "one", &AdapterStateOptions::default());
    capture.offer(&complete("one"), None, CaptureOccasion::Complete).unwrap();
    assert_eq!(resumed("one", ResumeValidation::Relaxed), None);
    assert_eq!(resumed("one", ResumeValidation::None).as_deref(), Some("one"));
    let head = states(&session).pop().unwrap();
    world.capture(&session, "one", &AdapterStateOptions::default()).record_expiry(&head).unwrap();
    assert_eq!(resumed("one", ResumeValidation::None), None, "the provider no longer has it");
}

#[test]
fn a_diff_names_each_field_that_changed() {
    let before = snapshot(CapturedState::from_state(&claude("abc123")).unwrap());
    let end = ClaudeAgentSDKState { message_count: 4, last_activity_at: at(5), ..complete("abc123") };
    let after = snapshot(CapturedState::from_state(&end).unwrap());
    assert!(diff_states(&before, &before).is_empty());
    assert_eq!(
        diff_states(&before, &after).to_string(),
        "/resumable: true -> false\n\
         /state/is_complete: false -> true\n\
         /state/last_activity_at: \"2026-01-01T12:00:00Z\" -> \"2026-01-01T12:00:05Z\"\n\
         /state/message_count: 0 -> 4"
    );
    let nested = |state: Value| snapshot(CapturedState::from_json("x", true, state));
    let diff =
        diff_states(&nested(json!({"a": {"b/c": 1, "~": 2}})), &nested(json!({"a": {"~": 3}, "n": null})));
    let paths: Vec<_> = diff.changes.iter().map(|change| change.path.as_str()).collect();
    assert_eq!(paths, ["/state/a/b~1c", "/state/a/~0", "/state/n"]);
    assert_eq!((&diff.changes[0].after, &diff.changes[2].before), (&None, &None));
    assert_eq!(diff.changes[2].after, Some(Value::Null), "null is a value");
}
