//! The state of a session at a position, read from its log alone, and the updates that changed it.

use std::fs;
use std::path::Path;
use std::process::Command;

use foldlog::filesystem::ChangeKind;
use foldlog::inspect::LogReader;
use foldlog::{Outcome, SessionOptions, SnapshotOptions};
use foldlog_tasks::{
    ArtifactBuilt, ArtifactKind, BuildArtifact, DependenciesResolved, DependencyResolution, ExecutionEvent,
    ExecutionLogged, GitObserved, GitState, InteractionKind, LogLevel, RecoveryAction, ResolvedDependency,
    SessionConfiguration, SessionConfigured, SessionState, StateComponent, TaskStatus, UpdateOperation,
    WorkspaceStores,
};

use super::agent::Agent;
use super::*;

fn artifact(name: &str, success: bool) -> ArtifactBuilt {
    let (kind, summary) = (ArtifactKind::Test, "3 tests".to_owned());
    let artifact = BuildArtifact {
        name: name.to_owned(),
        kind,
        success,
        summary,
        path: None,
        digest: None,
        bytes: None,
        task: Some(id("a")),
    };
    ArtifactBuilt { artifact }
}

/// An agent's day, which contains something for each part.
pub(super) fn day(agent: &Agent) {
    let session = &agent.session;
    let configuration = SessionConfiguration { name: "a day".to_owned(), ..SessionConfiguration::default() };
    session.dispatch(SessionConfigured { configuration }).unwrap();
    create(session, task("b").requires(id("a"))).unwrap_err();
    agent.start("a");
    create(session, task("b").requires(id("a"))).unwrap();
    assert!(agent.write("one", Some("1"), false));
    assert!(!agent.write("two", Some("2"), true));
    agent.clock.advance_us(60_000_000);
    assert_eq!(agent.converse("first", "three"), "It is written.");
    session.dispatch(artifact("unit", false)).unwrap();
    session.dispatch(artifact("unit", true)).unwrap();
    let version = "1.0".to_owned();
    let dependency = ResolvedDependency { version, source: None, digest: None };
    let dependencies = [("serde".to_owned(), dependency)].into();
    session.dispatch(DependenciesResolved { resolution: DependencyResolution { dependencies } }).unwrap();
    session.dispatch(GitObserved { git: GitState::default() }).unwrap();
    let message = "halfway".to_owned();
    session.dispatch(ExecutionLogged { task: Some(id("a")), level: LogLevel::Info, message }).unwrap();
    let message = "no room".to_owned();
    session.dispatch(ExecutionLogged { task: None, level: LogLevel::Error, message }).unwrap();
    let (action, by, reason) = ("restore".to_owned(), "alice".to_owned(), "why not".to_owned());
    session.dispatch(RecoveryAction { action, by, reason, subject: None, lost: Vec::new() }).unwrap();
}

#[test]
fn nine_parts_are_read_from_the_log_alone_and_come_back_from_their_json() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    day(&agent);
    let state = agent.read();
    assert_eq!(state.session_id, agent.session.id());
    assert_eq!(state.created_at.timestamp_micros(), BEGIN_US);
    assert_eq!(state.configuration.name, "a day");
    assert_eq!(state.task_tree.active_task, Some(id("a")));
    assert_eq!(state.task_tree.scheduling_state.blocked[0].task, id("b"));

    let context = &state.claude_context;
    assert_eq!(context.conversation_history.messages_len(), 5);
    let conversation = &context.conversation_history.conversations[0];
    assert!(conversation.is_complete && conversation.turns == 2);
    assert_eq!(context.context_windows[0].messages.len(), 5);
    assert_eq!(context.context_windows[0].tokens, Some(1));
    assert_eq!(context.usage_tracking.history.len(), 2);

    let files = &state.file_system;
    let changed: Vec<_> = files.file_modifications.iter().map(|one| (one.path.as_str(), one.kind)).collect();
    assert_eq!(changed, [("one", ChangeKind::Created), ("three", ChangeKind::Created)]);
    let by: Vec<_> = files.file_modifications.iter().map(|one| (one.tool.as_deref(), &one.task)).collect();
    assert_eq!(by, [(Some("write"), &Some(id("a"))); 2]);
    assert_eq!(files.workspace_snapshot.values().next().unwrap().snapshot.files, 2);
    assert!(files.not_compared.is_empty());
    assert!(files.build_artifacts["unit"].success);
    assert_eq!(files.dependency_resolution.dependencies["serde"].version, "1.0");
    assert_eq!(files.git_state, Some(GitState::default()));

    let logs = &state.execution_logs;
    let of_a: Vec<_> = logs.tasks[&id("a")].iter().map(|entry| &entry.what).collect();
    let ended = |outcome| {
        let is = |what: &&&ExecutionEvent| matches!(what, ExecutionEvent::ToolEnded { outcome: one, .. } if *one == outcome);
        of_a.iter().filter(is).count()
    };
    assert_eq!((ended(Outcome::Committed), ended(Outcome::Failed)), (2, 1));
    assert!(
        of_a.contains(&&ExecutionEvent::Message { level: LogLevel::Info, message: "halfway".to_owned() })
    );
    let kinds: Vec<_> = logs.interactions.iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [InteractionKind::Request, InteractionKind::Answer].repeat(2));
    let errors: Vec<_> = logs.errors.iter().map(|one| (one.tool.as_deref(), one.message.as_str())).collect();
    assert_eq!(errors, [(Some("write"), "the disk is on fire"), (None, "no room")]);
    assert_eq!(logs.recovery_actions[0].by, "alice");

    let usage = &state.resource_usage;
    assert_eq!((usage.requests, usage.tool_runs, usage.failed_tool_runs), (2, 3, 1));
    assert_eq!((usage.tokens.input, usage.tokens.output), (2, 2));
    assert_eq!(usage.elapsed_us, 60_000_000);

    let json = serde_json::to_string_pretty(&state).unwrap();
    assert_eq!(serde_json::from_str::<SessionState>(&json).unwrap(), state);
    assert_eq!(serde_json::to_string_pretty(&agent.read()).unwrap(), json, "equal logs, equal bytes");
}

#[test]
fn what_a_rollback_takes_back_is_gone_from_every_part_but_the_logs_and_what_was_paid() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    agent.start("a");
    assert!(agent.write("one", Some("1"), false));
    let snapshot = agent.session.snapshot(SnapshotOptions::default()).unwrap();
    let before = agent.read();
    agent.finish("a");
    assert!(agent.write("one", Some("2"), false));
    agent.converse("first", "three");
    agent.session.dispatch(artifact("unit", true)).unwrap();
    let spent = agent.read();
    assert_ne!(spent.file_system, before.file_system);
    agent.session.rollback(&snapshot).unwrap();

    let after = agent.read();
    assert_eq!(after.task_tree, before.task_tree);
    assert_eq!(after.file_system, before.file_system);
    assert_eq!(after.last_checkpoint, before.last_checkpoint);
    assert_eq!(after.claude_context.conversation_history, before.claude_context.conversation_history);
    assert_eq!(after.resource_usage.tokens, spent.resource_usage.tokens, "they were paid for");
    let entries = &after.execution_logs.tasks[&id("a")];
    assert!(entries.iter().any(|entry| entry.is_live) && entries.iter().any(|entry| !entry.is_live));
    // After the rollback the task is active again, and tools work for it.
    assert!(agent.write("four", Some("4"), false));
    assert_eq!(agent.read().file_system.file_modifications.last().unwrap().task, Some(id("a")));
}

#[test]
fn updates_are_numbered_without_gaps_and_name_the_records_that_hold_them() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    day(&agent);
    let updates = agent.updates();
    let numbers: Vec<u64> = updates.iter().map(|update| update.sequence_number).collect();
    assert_eq!(numbers, (1..=updates.len() as u64).collect::<Vec<_>>());
    assert!(updates.windows(2).all(|two| two[0].position <= two[1].position));
    let of = |component| updates.iter().filter(|update| update.component == component).count();
    assert_eq!(of(StateComponent::TaskTree), 3);
    assert_eq!(of(StateComponent::FileSystem), 2);
    let said: usize = updates
        .iter()
        .map(|update| match &update.operation {
            UpdateOperation::ConversationExtended { messages, .. } => messages.len(),
            _ => 0,
        })
        .sum();
    assert_eq!(said, 5);
    assert_eq!(agent.read().last_checkpoint, updates.last().unwrap().timestamp);
    // The checksum depends on the record: equal records have equal checksums, and different ones
    // have different ones.
    let checksums: BTreeSet<_> = updates.iter().map(|one| (one.position, &one.checksum)).collect();
    let positions: BTreeSet<_> = updates.iter().map(|one| one.position).collect();
    assert_eq!(checksums.len(), positions.len());
    let checksums: BTreeSet<_> = updates.iter().map(|one| &one.checksum).collect();
    assert_eq!(checksums.len(), positions.len());
}

#[test]
fn what_somebody_changes_beside_the_session_is_nobodys_and_keeps_the_chain_of_contents_whole() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    assert!(agent.write("one", Some("1"), false));
    fs::write(agent.workspace().join("one"), "by a person").unwrap();
    fs::write(agent.workspace().join("other"), "by a person").unwrap();
    assert!(agent.write("one", Some("2"), false));
    assert!(agent.write("one", None, false));
    let modifications = agent.read().file_system.file_modifications;
    let told: Vec<_> =
        modifications.iter().map(|one| (one.path.as_str(), one.kind, one.tool.is_some())).collect();
    assert_eq!(
        told,
        [
            ("one", ChangeKind::Created, true),
            ("one", ChangeKind::Modified, false),
            ("other", ChangeKind::Created, false),
            ("one", ChangeKind::Modified, true),
            ("one", ChangeKind::Removed, true),
        ]
    );
    let mut last = None;
    for one in modifications.iter().filter(|one| one.path == "one") {
        assert_eq!(one.before, last);
        last = one.after.clone();
    }
}

#[test]
fn captures_whose_store_is_gone_are_named_and_everything_else_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    day(&agent);
    let whole = agent.read();
    let without = SessionState::at(&agent.log(), agent.position(), &WorkspaceStores::none()).unwrap();
    assert!(without.file_system.file_modifications.is_empty());
    let named: Vec<_> = without.file_system.not_compared.iter().map(|one| one.sequence).collect();
    let found: Vec<_> = whole.file_system.file_modifications.iter().map(|one| one.sequence).collect();
    assert_eq!(named, found);
    assert_eq!(without.task_tree, whole.task_tree);
    assert_eq!(without.claude_context, whole.claude_context);
    fs::remove_dir_all(agent.session.dir().join("files")).unwrap();
    let gone = agent.read().file_system.not_compared;
    assert_eq!(gone.len(), named.len());
    assert!(gone[0].reason.contains("files"), "{}", gone[0].reason);
}

#[test]
fn a_session_that_declares_nothing_of_this_has_an_empty_state() {
    let disk = MemoryStorage::new();
    let (store, _) = store_on(&disk, false);
    let session = store.create(&SessionTypes::builder().build().unwrap()).unwrap();
    let log = LogReader::open_on(Arc::new(disk.clone()), session.dir()).unwrap();
    let state = SessionState::at(&log, session.log().position().unwrap(), &WorkspaceStores::none()).unwrap();
    let mut empty = SessionState::empty(session.id(), state.created_at);
    empty.resource_usage = state.resource_usage;
    assert_eq!(state, empty);
    assert_eq!(state.resource_usage.records, 1);
}

/// The states of the tasks at each position determine the expected result.
#[test]
fn the_state_of_an_earlier_position_is_as_it_was_then() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    let mut then = Vec::new();
    for name in ["a", "b", "c"] {
        agent.start(name);
        then.push((agent.position(), agent.read()));
        agent.write(name, Some(name), false);
        then.push((agent.position(), agent.read()));
        agent.finish(name);
        then.push((agent.position(), agent.read()));
    }
    let log = agent.log();
    for (position, state) in then {
        assert_eq!(SessionState::at(&log, position, &agent.stores()).unwrap(), state, "at {position}");
    }
    assert_eq!(agent.read().task_tree.count(TaskStatus::Completed), 3);
}

/// Another machine has only the directory; a fork has the records that it shares.
#[test]
fn a_copied_directory_and_a_fork_are_what_the_session_is() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    day(&agent);
    let state = agent.read();
    let fork = agent
        .store
        .fork(agent.session.id(), agent.position(), &super::agent::types(), SessionOptions::default())
        .unwrap();
    let log = LogReader::open(fork.dir()).unwrap();
    let forked = SessionState::at(&log, agent.position(), &agent.stores()).unwrap();
    let said = |state: &SessionState| {
        let messages = &state.claude_context.conversation_history.conversations[0].messages;
        messages.iter().map(|message| (message.role, message.content.clone())).collect::<Vec<_>>()
    };
    assert_eq!(said(&forked), said(&state), "a fork's messages have ids of their own");
    let SessionState { session_id, ref claude_context, .. } = state;
    let mut forked = SessionState { session_id, claude_context: claude_context.clone(), ..forked };
    let logs = (&mut forked.execution_logs.interactions, &state.execution_logs.interactions);
    for (of_fork, one) in logs.0.iter_mut().zip(logs.1) {
        assert_eq!(of_fork.message_id.is_some(), one.message_id.is_some());
        of_fork.message_id = one.message_id;
    }
    assert_eq!(forked, state);
    drop(agent);
    let other = tempfile::tempdir().unwrap();
    copy(&directory.path().join("workspace"), &other.path().join("workspace"));
    copy(&directory.path().join("store/sessions"), &other.path().join("store/sessions"));
    fs::remove_dir_all(other.path().join("store/sessions").join(fork.id().to_string())).unwrap();
    drop(fork);
    fs::remove_dir_all(directory.path()).unwrap();
    let resumed = Agent::resume(other.path());
    assert_eq!(resumed.read(), state);
    resumed.finish("a");
    assert_eq!(resumed.read().task_tree.scheduling_state.ready, [id("b")]);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}
