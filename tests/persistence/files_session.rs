//! Export of a session's log as a tree, and import of the tree as a session that continues.

use std::collections::BTreeSet;
use std::path::Path;

use foldlog::inspect::{self, LogReader};
use foldlog::{
    CompactOptions, Export, ImportOptions, KeptSnapshots, Policy, SequenceNumber, SessionOptions, Store,
};
use foldlog_tasks::{
    Checkpoint, CheckpointManager, CompressionAlgorithm, CrashRecoveryManager, Error, ImportedSession,
    IncompleteWrite, RetentionPolicy, SessionState, SessionTree, StateCompression, TaskTreeState,
    TreeContents, TreeLimits, WorkspaceStores, export_session, export_tree, import_session,
    unfinished_imports,
};

use super::agent::{Agent, types};
use super::checkpoints::kills::copy;
use super::files::{all, by, import, tree_of};
use super::state::day;
use super::*;

fn export(agent: &Agent, to: &Path) {
    let (log, stores) = (agent.log(), agent.stores());
    let compression = by(CompressionAlgorithm::Zstd);
    export_session(&log, agent.position(), &stores, to, &compression).unwrap();
}

fn imported(tree: &Path, store: &Store) -> ImportedSession {
    import_session(tree, store, &types(), SessionOptions::default(), TreeLimits::default()).unwrap()
}

fn state(session: &Session) -> SessionState {
    let log = LogReader::open(session.dir()).unwrap();
    SessionState::at(&log, session.log().position().unwrap(), &WorkspaceStores::none()).unwrap()
}

/// Returns the checkpoints in a session's tree, except the last one, which contains the engine's
/// export.
fn history(to: &Path, log: &LogReader, position: SequenceNumber) -> Vec<Checkpoint> {
    std::fs::create_dir(to).unwrap();
    let compression = by(CompressionAlgorithm::None);
    export_session(log, position, &WorkspaceStores::none(), to, &compression).unwrap();
    let (_, checkpoints) = import(to)
        .unwrap()
        .checkpoints
        .split_last()
        .map(|(last, rest)| (last.clone(), rest.to_vec()))
        .unwrap();
    checkpoints.iter().map(|files| files.manifest().unwrap()).collect()
}

/// Checkpoints of the session were left out of its tree.
#[test]
fn a_tree_has_the_checkpoints_that_are_kept_with_their_counts_and_hashes() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    let retention = RetentionPolicy { count: Some(2), ..RetentionPolicy::default() };
    let manager = CheckpointManager::new(agent.session.clone()).with_retention(retention);
    agent.start("a");
    manager.create(Some("begun")).unwrap();
    agent.write("one", Some("1"), false);
    manager.create(None).unwrap();
    agent.finish("a");
    let before = agent.position();
    manager.create(None).unwrap();
    manager.create(None).unwrap();
    let kept = manager.list().unwrap();
    assert_eq!(kept.iter().map(|one| one.id.0).collect::<Vec<_>>(), [1, 3, 4]);
    let exported = history(&directory.path().join("now"), &agent.log(), agent.position());
    assert_eq!(exported, kept, "with true counts and their hashes");
    let earlier = history(&directory.path().join("before"), &agent.log(), before);
    assert_eq!(
        earlier.iter().map(|one| one.id.0).collect::<Vec<_>>(),
        [1, 2],
        "as they were at the position"
    );
}

/// The snapshot of a checkpoint only named a position of the log, so a tree alone could not restore
/// an earlier state.
#[test]
fn a_tree_has_the_state_of_each_checkpoint_that_is_kept_and_the_history_of_all() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    let retention = RetentionPolicy { count: Some(2), ..RetentionPolicy::default() };
    let manager = CheckpointManager::new(agent.session.clone()).with_retention(retention);
    let mut at_each = Vec::new();
    for name in ["a", "b", "c"] {
        agent.start(name);
        agent.converse(name, name);
        at_each.push((manager.create(None).unwrap().id, agent.read()));
        agent.finish(name);
    }
    export(&agent, directory.path());
    let tree = import(directory.path()).unwrap();
    let (kept, of_kept) = (manager.list().unwrap(), at_each.iter().skip(1));
    assert_eq!(tree.checkpoints.len(), kept.len() + 1);
    let (store, _) = crate::store(false);
    for (files, (id, state)) in tree.checkpoints.iter().zip(of_kept) {
        assert_eq!(files.manifest::<Checkpoint>().unwrap().id, *id);
        let snapshot: serde_json::Value = files.state_snapshot().unwrap();
        let export = Export::from_json(&snapshot.to_string()).unwrap();
        let options = ImportOptions { keep_unknown: true, ..ImportOptions::default() };
        let session = store.import(&export, &types(), options).unwrap();
        let log = store.read_log(session.id()).unwrap();
        let there =
            SessionState::at(&log, session.log().position().unwrap(), &WorkspaceStores::none()).unwrap();
        assert_eq!(there.task_tree, state.task_tree);
        assert_eq!(
            there.claude_context.conversation_history.messages_len(),
            state.claude_context.conversation_history.messages_len()
        );
    }
    let opened = SessionTree::open(directory.path(), TreeLimits::default()).unwrap();
    let history = &opened.manifest().history;
    let listed: Vec<_> = history.iter().map(|one| (one.id, one.directory, one.removed.is_some())).collect();
    let ids: Vec<_> = at_each.iter().map(|(id, _)| *id).collect();
    assert_eq!(listed, [(ids[0], None, true), (ids[1], Some(1), false), (ids[2], Some(2), false)]);
    let hashes = kept.iter().map(|one| (one.position, &one.validation_hash));
    assert!(history.iter().skip(1).map(|one| (one.position, &one.validation_hash)).eq(hashes));

    // A session imported from this tree exports them as the history of another log, without their
    // states.
    let (other, _) = crate::store(false);
    let session = imported(directory.path(), &other).session;
    let (log, to) = (other.read_log(session.id()).unwrap(), directory.path().join("again"));
    std::fs::create_dir(&to).unwrap();
    let compression = by(CompressionAlgorithm::None);
    export_session(&log, session.log().position().unwrap(), &WorkspaceStores::none(), &to, &compression)
        .unwrap();
    let again = import(&to).unwrap();
    let snapshot: serde_json::Value = again.checkpoints[0].state_snapshot().unwrap();
    assert_eq!(snapshot["state"], "log");
    assert_eq!(snapshot["session_id"], agent.session.id().to_string());
    let opened = SessionTree::open(&to, TreeLimits::default()).unwrap();
    assert_eq!(opened.manifest().history.iter().map(|one| one.id).collect::<Vec<_>>(), ids[1..]);
}

/// A tree lists all updates, which are read from records that a compaction drops. The states of
/// checkpoints were said to be left out then, but no export got that far.
#[test]
fn a_log_that_was_compacted_has_no_tree_any_more_and_the_one_before_stays() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    let manager = CheckpointManager::new(agent.session.clone());
    let created = ["a", "b"].map(|name| {
        agent.start(name);
        agent.converse(name, name);
        agent.finish(name);
        manager.create(Some(name)).unwrap()
    });
    agent.start("c");
    let (store, id) = (agent.store.clone(), agent.session.id());
    drop(manager);
    agent.session.clone().close().unwrap();
    let (to, compression) = (directory.path().join("tree"), by(CompressionAlgorithm::Zstd));
    std::fs::create_dir(&to).unwrap();
    let export = || {
        let log = store.read_log(id).unwrap();
        export_session(&log, log.last_position(), &agent.stores(), &to, &compression)
    };
    export().unwrap();
    let before = all(&to);
    let (snapshots, positions) = (KeptSnapshots::None, [created[1].position].into());
    let options = CompactOptions { snapshots, positions, ..CompactOptions::default() };
    assert!(store.compact(id, &options).unwrap().dropped > 0);
    let refused = export().unwrap_err();
    assert!(matches!(refused, Error::Engine(foldlog::Error::Compacted { .. })), "{refused}");
    assert_eq!(all(&to), before);
    assert_eq!(import(&to).unwrap().checkpoints.len(), 3);
}

/// The keys of each file that the specification names. If the specification has a type for the
/// file's content, these are the type's fields: those of `SessionState`, `TaskTreeState`,
/// `ClaudeContextState`, `FileSystemState`, `StateUpdate`, `Checkpoint` and `CheckpointManifest`.
const KEYS: &[(&str, &str, &str)] = &[
    (
        "checkpoints/checkpoint_001/manifest.json",
        "",
        "created_at id manifest occasion position session_id validation_hash workspaces",
    ),
    (
        "checkpoints/checkpoint_001/manifest.json",
        "/manifest",
        "active_tasks completed_tasks conversation_messages_count dependencies file_modifications_count storage_size_bytes total_tasks",
    ),
    (
        "checkpoints/checkpoint_001/state_snapshot.json",
        "",
        "children_ids created_at parent_id policies slices tags values version",
    ),
    ("checkpoints/checkpoint_002/manifest.json", "", "position snapshot"),
    (
        "checkpoints/checkpoint_002/state_snapshot.json",
        "",
        "children_ids created_at parent_id policies slices tags values version",
    ),
    ("claude/context_windows/window_001.json", "", "evaluation_id messages shortened tokens"),
    ("claude/conversation/current.json", "", "conversations"),
    (
        "claude/conversation/current.json",
        "/conversations/0",
        "chunks evaluation_id is_complete messages prompt turns",
    ),
    ("claude/conversation/current.json", "/conversations/0/messages/0", "content created_at message_id role"),
    ("claude/rate_limit/current_limits.json", "", "current refused told_by"),
    ("claude/rate_limit/usage_history.json", "", "by_model history"),
    ("claude/rate_limit/usage_history.json", "/history/0", "at model sequence usage"),
    ("claude/session_config.json", "", "model_configuration session_id"),
    ("claude/session_config.json", "/model_configuration", "model parameters"),
    ("filesystem/build_artifacts/compilation_results.json", "", "results"),
    ("filesystem/build_artifacts/test_results.json", "", "results"),
    ("filesystem/build_artifacts/test_results.json", "/results/unit", "kind name success summary task"),
    (
        "filesystem/git_state.json",
        "",
        "branch branches branches_left_out git_dir head index operations reference",
    ),
    ("filesystem/modifications/changes_001.json", "", "changes"),
    ("filesystem/modifications/changes_001.json", "/changes/0", "update"),
    (
        "filesystem/modifications/changes_001.json",
        "/changes/0/update",
        "checksum component operation position sequence_number timestamp",
    ),
    ("filesystem/workspace_snapshot.json", "", "dependency_resolution not_compared workspaces"),
    ("logs/claude_interactions/requests_001.json", "", "interactions"),
    (
        "logs/claude_interactions/requests_001.json",
        "/interactions/0",
        "interaction messages messages_before place",
    ),
    ("logs/claude_interactions/responses_001.json", "", "interactions"),
    ("logs/errors/error_001.json", "", "errors"),
    ("logs/errors/error_001.json", "/errors/0", "at cause message sequence task tool"),
    ("logs/errors/recovery_actions.json", "", "[action by reason]"),
    ("logs/execution/system_events.json", "", "entries"),
    ("logs/execution/task_a.json", "", "entries"),
    ("logs/execution/task_a.json", "/entries/0", "at is_live sequence what"),
    ("logs/execution/task_b.json", "", "entries"),
    ("meta/checkpoint_manifest.json", "", "blake3 manifest"),
    (
        "meta/checkpoint_manifest.json",
        "/manifest",
        "checkpoints compression files format history position session_id updates",
    ),
    ("meta/recovery_info.json", "", "instructions requires_validation session validation_reason"),
    ("meta/session.json", "", "configuration resource_usage session"),
    ("meta/session.json", "/configuration", "description name requires_validation"),
    (
        "meta/session.json",
        "/resource_usage",
        "cost_micros elapsed_us failed_requests failed_tool_runs log_bytes records requests tokens tool_runs tool_time_us",
    ),
    ("meta/session.json", "/session", "created_at last_checkpoint session_id"),
    ("state/dependency_graph.json", "", "b"),
    ("state/scheduling_state.json", "", "blocked failed in_progress ready"),
    ("state/task_tree.json", "", "active_task children root_tasks task_counter tasks"),
    (
        "state/task_tree.json",
        "/tasks/a",
        "attempts created_at failures id number priority status status_at title updated_at",
    ),
];

/// Returns the keys of a JSON object in their order; for a list those of its first item.
fn keys(json: &serde_json::Value) -> String {
    match json {
        serde_json::Value::Object(fields) => fields.keys().map(String::as_str).collect::<Vec<_>>().join(" "),
        serde_json::Value::Array(items) => format!("[{}]", items.first().map(keys).unwrap_or_default()),
        other => other.to_string(),
    }
}

/// Programs that read the specification's tree must find each value in its file, under its name.
#[test]
fn each_file_of_a_tree_has_the_keys_of_the_specification() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    day(&agent);
    CheckpointManager::new(agent.session.clone()).create(None).unwrap();
    let compression = StateCompression::default();
    let (log, to) = (agent.log(), directory.path());
    export_session(&log, agent.position(), &agent.stores(), to, &compression).unwrap();
    let files = all(&tree_of(to, agent.session.id()));
    let found: Vec<_> = KEYS
        .iter()
        .map(|(path, pointer, _)| {
            let file: serde_json::Value = serde_json::from_slice(&files[*path]).unwrap();
            let at = file.pointer(pointer).unwrap_or_else(|| panic!("{path} has no {pointer}"));
            (*path, *pointer, keys(at))
        })
        .collect();
    let expected: Vec<_> =
        KEYS.iter().map(|(path, pointer, keys)| (*path, *pointer, (*keys).to_owned())).collect();
    assert_eq!(found, expected);
    let named: BTreeSet<&str> = KEYS.iter().map(|(path, ..)| *path).collect();
    assert_eq!(named, files.keys().map(String::as_str).collect());
}

/// Trees from before the manifest had a history can be read, and keep their digests.
#[test]
fn a_manifest_without_a_history_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let id = "014417e2-088b-4e39-825e-7d031e0f8187";
    let older = format!(
        "{{\"format\":1,\"session_id\":\"{id}\",\"position\":7,\"updates\":2,\"compression\":{{\"algorithm\":\"none\",\
         \"level\":3,\"threshold_bytes\":1024}},\"checkpoints\":0,\"files\":{{}}}}"
    );
    let digest = blake3::hash(older.as_bytes()).to_hex();
    let meta = directory.path().join(format!(".aca/sessions/{id}/meta"));
    std::fs::create_dir_all(&meta).unwrap();
    let sealed = format!("{{\"manifest\":{older},\"blake3\":\"{digest}\"}}");
    std::fs::write(meta.join("checkpoint_manifest.json"), sealed).unwrap();
    let tree = SessionTree::open(directory.path(), TreeLimits::default()).unwrap();
    assert_eq!((tree.manifest().updates, tree.manifest().history.len()), (2, 0));
    assert_eq!(tree.damage().unwrap(), []);
}

/// Only the conversation contained the messages, without the request that had sent each.
#[test]
fn requests_and_replies_have_their_messages() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    day(&agent);
    export_session(
        &agent.log(),
        agent.position(),
        &agent.stores(),
        directory.path(),
        &by(CompressionAlgorithm::None),
    )
    .unwrap();
    let tree = crate::files::tree_of(directory.path(), agent.session.id());
    let read = |name: &str| {
        let bytes = std::fs::read(tree.join("logs/claude_interactions").join(name)).unwrap();
        let file: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        file["interactions"].as_array().unwrap().clone()
    };
    let (requests, responses) = (read("requests_001.json"), read("responses_001.json"));
    let state = agent.read();
    let messages = &state.claude_context.conversation_history.conversations[0].messages;
    let messages: Vec<_> = messages.iter().map(|one| serde_json::to_value(one).unwrap()).collect();
    let mut sent = Vec::new();
    for (request, response) in requests.iter().zip(&responses) {
        assert_eq!(request["messages_before"], sent.len());
        sent.extend(request["messages"].as_array().unwrap().clone());
        sent.extend(response["messages"].as_array().unwrap().clone());
    }
    assert_eq!((requests.len(), responses.len()), (2, 2));
    assert_eq!(sent, messages, "each message once, where it was sent first or came");
    assert_eq!(responses[1]["messages"][0]["content"], "It is written.");
    assert_eq!(import(directory.path()).unwrap().state, state);
}

/// The import read the new session's log from the file system, so it failed with any other storage.
#[test]
fn a_tree_is_imported_into_a_store_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    day(&agent);
    export(&agent, directory.path());
    let (store, _) = crate::store(false);
    let imported = imported(directory.path(), &store);
    assert_eq!(imported.differing, []);
    assert_eq!(store.session_ids().unwrap(), [imported.session.id()]);
}

/// A process that was killed between the import and the record of the past left a session that
/// looked whole.
#[test]
fn an_import_that_was_killed_before_the_session_had_its_past_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    day(&agent);
    export(&agent, directory.path());
    let whole = Store::open(directory.path().join("whole")).unwrap();
    let session = imported(directory.path(), &whole).session;
    let (id, from) = (session.id(), agent.session.id().to_string());
    assert_eq!(unfinished_imports(&whole).unwrap(), []);
    // From the record of the past on.
    let last = LogReader::open(session.dir()).unwrap().last_position();
    let mut past = None;
    inspect::walk(session.dir(), &mut |frame| {
        if frame.record.sequence == last && past.is_none() {
            past = Some((frame.segment.to_owned(), frame.offset));
        }
        Ok(())
    })
    .unwrap();
    let (file, begin) = past.unwrap();
    let killed = directory.path().join("killed");
    copy(session.dir(), &killed.join("sessions").join(id.to_string()));
    let file = killed.join("sessions").join(id.to_string()).join(file.file_name().unwrap());
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[usize::try_from(begin).unwrap()..].fill(0);
    std::fs::write(&file, bytes).unwrap();
    let killed = Store::open(&killed).unwrap();
    eprintln!(
        "{:?} {:?} {:?}",
        killed.summary(id),
        killed.open_to_recover(id).map(drop),
        killed.read_log(id).map(|log| (log.records_len(), log.tags().clone()))
    );
    assert_eq!(unfinished_imports(&killed).unwrap(), [(id, from.clone())]);
    let now = serde_json::from_str("\"2026-01-02T03:00:00Z\"").unwrap();
    let crash = CrashRecoveryManager::new(killed.clone(), id).detect_crash_state(now).unwrap().unwrap();
    assert!(crash.incomplete_writes.contains(&IncompleteWrite::Import { from }), "{crash:?}");
    // The next import creates a whole session; the remains can be removed.
    assert_eq!(imported(directory.path(), &killed).differing, []);
    killed.delete(id).unwrap();
    assert_eq!(unfinished_imports(&killed).unwrap(), []);
    session.close().unwrap();
}

/// The new session's state equals the exported one, except for its id; it continues, is rolled back
/// and exported again like any other.
#[test]
fn a_session_that_is_made_of_a_tree_has_the_same_state_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    day(&agent);
    CheckpointManager::new(agent.session.clone()).create(Some("evening")).unwrap();
    export(&agent, directory.path());
    let store = Store::open(directory.path().join("other")).unwrap();
    let ImportedSession { session, exported, differing } = imported(directory.path(), &store);
    assert_eq!(differing, []);
    assert_eq!(exported, agent.read());
    let read = state(&session);
    let same_id = SessionState { session_id: exported.session_id, ..read.clone() };
    assert_eq!(same_id, exported);

    // Checkpoints are positions in their own log; the new session starts its own.
    let checkpoints = CheckpointManager::new(session.clone());
    assert_eq!(checkpoints.list().unwrap(), []);

    // The imported ones are history, and are exported as such.
    let log = store.read_log(session.id()).unwrap();
    let had = history(&directory.path().join("had"), &log, session.log().position().unwrap());
    assert_eq!(had.iter().map(|one| one.session_id).collect::<Vec<_>>(), [agent.session.id()]);
    checkpoints.create(None).unwrap();
    let log = store.read_log(session.id()).unwrap();
    let both = history(&directory.path().join("both"), &log, session.log().position().unwrap());
    let sessions: Vec<_> = both.iter().map(|one| (one.session_id, one.id.0)).collect();
    assert_eq!(sessions, [(agent.session.id(), 1), (session.id(), 1)]);

    // New records come after the imported ones.
    change(&session, "a", TaskStatus::InProgress, TaskStatus::Completed).unwrap();
    let after = state(&session);
    assert_eq!(after.task_tree.tasks[&id("a")].status, TaskStatus::Completed);
    let (before, entries) = (&exported.execution_logs.tasks[&id("a")], &after.execution_logs.tasks[&id("a")]);
    assert_eq!((&entries[..before.len()], entries.len()), (&before[..], before.len() + 1));
    assert!(after.resource_usage.records > exported.resource_usage.records);
    assert!(after.last_checkpoint > exported.last_checkpoint);
    assert_eq!(after.claude_context, exported.claude_context);
    assert_eq!(TaskTreeState::from_session(&session).unwrap(), after.task_tree);

    // A second export and import.
    let log = LogReader::open(session.dir()).unwrap();
    let again = directory.path().join("again");
    std::fs::create_dir(&again).unwrap();
    let position = session.log().position().unwrap();
    let compression = by(CompressionAlgorithm::None);
    export_session(&log, position, &WorkspaceStores::none(), &again, &compression).unwrap();
    let twice = imported(&again, &store);
    assert_eq!((twice.differing, twice.exported), (Vec::new(), after));
    // Both sessions are reported as imported.
    assert_eq!(unfinished_imports(&store).unwrap(), []);
    let slices = twice
        .session
        .log()
        .export_at(twice.session.log().position().unwrap(), &BTreeSet::from([Policy::Log]));
    let slices = slices.unwrap().slices;
    let states = slices.iter().find(|slice| slice.slice_type == "imported_states").unwrap();
    assert_eq!(states.items.len(), 1, "a state is not carried along with each import");
}

#[test]
fn nothing_is_made_of_a_tree_that_is_damaged_or_of_a_state_alone() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    agent.start("a");
    let store = Store::open(directory.path().join("other")).unwrap();
    let refused = |to: &Path| {
        let options = SessionOptions::default();
        import_session(to, &store, &types(), options, TreeLimits::default()).unwrap_err()
    };
    let alone = directory.path().join("alone");
    std::fs::create_dir(&alone).unwrap();
    export_tree(&TreeContents::new(&agent.read()), &alone, &by(CompressionAlgorithm::None)).unwrap();
    assert!(matches!(refused(&alone), Error::NoTree { .. }));
    export(&agent, directory.path());
    let dir = import(directory.path()).unwrap().state.session_id.to_string();
    let file = directory
        .path()
        .join(".aca/sessions")
        .join(dir)
        .join("checkpoints/checkpoint_001/state_snapshot.json");
    std::fs::write(file, "").unwrap();
    assert!(matches!(refused(directory.path()), Error::Damaged { .. }));
    assert!(store.session_ids().unwrap().is_empty());
}
