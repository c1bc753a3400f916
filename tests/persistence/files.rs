//! Trees: a state as JSON files, written without loss, and read without accepting damaged data.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use foldlog::conversation::{ConversationMessage, Role};
use foldlog::{SequenceNumber, Session};
use foldlog_tasks::{
    AtomicPersistence, CheckpointFiles, CompressionAlgorithm, DamagedFile, Error, ExportReport, FileDamage,
    ImportedTree, SessionConfiguration, SessionIdentity, SessionState, SessionTree, StateComponent,
    StateCompression, StateUpdate, TaskTreeState, TreeContents, TreeLimits, TreeManifest, export_tree,
    import_tree,
};
use uuid::Uuid;

use super::agent::Agent;
use super::state::day;
use super::*;
use foldlog_test_support::killed::step;

/// The exported parts of a session.
pub(super) struct Told {
    pub(super) state: SessionState,
    position: SequenceNumber,
    updates: Vec<StateUpdate>,
    checkpoints: Vec<CheckpointFiles>,
}

impl Told {
    fn of(agent: &Agent) -> Told {
        let (state, updates, position) = (agent.read(), agent.updates(), agent.position());
        Told { state, position, updates, checkpoints: Vec::new() }
    }

    fn with_checkpoint(mut self, name: &str) -> Told {
        self.checkpoints.push(CheckpointFiles::new(&name, &self.state).unwrap());
        self
    }

    pub(super) fn contents(&self) -> TreeContents<'_> {
        let contents = TreeContents::new(&self.state).at(self.position, &self.updates);
        contents.with_checkpoints(&self.checkpoints)
    }

    pub(super) fn export(&self, to: &Path, compression: &StateCompression) -> ExportReport {
        export_tree(&self.contents(), to, compression).unwrap()
    }

    pub(super) fn is(&self, imported: &ImportedTree) -> bool {
        let Told { state, position, updates, checkpoints } = self;
        let ImportedTree { state: read, position: at, .. } = imported;
        (read, at, &imported.updates, &imported.checkpoints)
            == (state, &Some(*position), updates, checkpoints)
    }
}

/// Returns one session at two positions: between them each part has changed, and files were created
/// and removed.
pub(super) fn two_days() -> (Told, Told) {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    day(&agent);
    let before = Told::of(&agent).with_checkpoint("first").with_checkpoint("second");
    agent.finish("a");
    agent.start("c");
    assert!(agent.write("four", Some("4"), false));
    agent.converse("second", "five");
    let configuration =
        SessionConfiguration { requires_validation: true, ..before.state.configuration.clone() };
    let configured = foldlog_tasks::SessionConfigured { configuration };
    agent.session.dispatch(configured).unwrap();
    let after = Told::of(&agent).with_checkpoint("first");
    (before, after)
}

fn plain() -> StateCompression {
    StateCompression::default()
}

pub(super) fn by(algorithm: CompressionAlgorithm) -> StateCompression {
    StateCompression { threshold_bytes: 0, ..StateCompression::new(algorithm) }
}

pub(super) fn import(dir: &Path) -> Result<ImportedTree, Error> {
    import_tree(dir, TreeLimits::default())
}

/// Returns all files below a directory with their content.
pub(super) fn all(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut directories = vec![dir.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

pub(super) fn tree_of(to: &Path, session: Uuid) -> PathBuf {
    to.join(".aca/sessions").join(session.to_string())
}

fn damaged(imported: Result<ImportedTree, Error>) -> Vec<DamagedFile> {
    match imported {
        Err(Error::Damaged { files, .. }) => files,
        other => panic!("not damaged: {other:?}"),
    }
}

/// Every part, the updates and the checkpoints return, by every codec, on both sides of the
/// threshold.
#[test]
fn a_state_comes_back_part_for_part_whatever_it_was_compressed_by() {
    let (told, _) = two_days();
    for algorithm in CompressionAlgorithm::ALL {
        for threshold_bytes in [0, 700] {
            let directory = tempfile::tempdir().unwrap();
            let report =
                told.export(directory.path(), &StateCompression { threshold_bytes, ..by(algorithm) });
            assert_eq!(report.written, report.files);
            let dir = tree_of(directory.path(), told.state.session_id);
            assert_eq!(report.dir, dir);
            for named in [directory.path(), &directory.path().join(".aca"), &dir] {
                assert!(told.is(&import(named).unwrap()), "{algorithm:?} {threshold_bytes}");
            }
        }
    }
}

/// Names follow the specification, and files below the threshold are plain JSON.
#[test]
fn the_layout_is_the_one_of_the_specification() {
    let (told, _) = two_days();
    let directory = tempfile::tempdir().unwrap();
    told.export(directory.path(), &plain());
    let files = all(&tree_of(directory.path(), told.state.session_id));
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "checkpoints/checkpoint_001/manifest.json",
            "checkpoints/checkpoint_001/state_snapshot.json",
            "checkpoints/checkpoint_002/manifest.json",
            "checkpoints/checkpoint_002/state_snapshot.json",
            "claude/context_windows/window_001.json",
            "claude/conversation/current.json",
            "claude/rate_limit/current_limits.json",
            "claude/rate_limit/usage_history.json",
            "claude/session_config.json",
            "filesystem/build_artifacts/compilation_results.json",
            "filesystem/build_artifacts/test_results.json",
            "filesystem/git_state.json",
            "filesystem/modifications/changes_001.json",
            "filesystem/workspace_snapshot.json",
            "logs/claude_interactions/requests_001.json",
            "logs/claude_interactions/responses_001.json",
            "logs/errors/error_001.json",
            "logs/errors/recovery_actions.json",
            "logs/execution/system_events.json",
            "logs/execution/task_a.json",
            "logs/execution/task_b.json",
            "meta/checkpoint_manifest.json",
            "meta/recovery_info.json",
            "meta/session.json",
            "state/dependency_graph.json",
            "state/scheduling_state.json",
            "state/task_tree.json",
        ]
    );
    for (name, json) in &files {
        let read: Result<serde_json::Value, _> = serde_json::from_slice(json);
        assert!(read.is_ok(), "{name}: {read:?}");
    }
    let manifest = SessionTree::open(directory.path(), TreeLimits::default()).unwrap().manifest().clone();
    assert_eq!(manifest.session_id, told.state.session_id);
    for (name, file) in &manifest.files {
        assert_eq!(file.blake3, blake3::hash(&files[name]).to_hex().as_str());
        assert_eq!(file.bytes, files[name].len() as u64);
    }
    assert_eq!(manifest.files.len() + 1, files.len());
}

/// Returns a state whose conversations have these numbers of messages.
fn talkative(state: &SessionState, messages: &[usize]) -> SessionState {
    let mut state = state.clone();
    let conversation = state.claude_context.conversation_history.conversations.remove(0);
    for (number, messages) in messages.iter().enumerate() {
        let mut conversation = conversation.clone();
        conversation.evaluation_id = format!("evaluation {number}");
        conversation.messages = (0..*messages)
            .map(|place| ConversationMessage {
                message_id: Uuid::from_u64_pair(number as u64, place as u64),
                ..ConversationMessage::new(Role::User, format!("message {place}"))
            })
            .collect();
        state.claude_context.conversation_history.conversations.push(conversation);
    }
    state
}

/// A long conversation is split into chunks; when it continues, only the last file changes.
#[test]
fn a_conversation_that_goes_on_is_written_from_its_last_chunk_on() {
    let (told, _) = two_days();
    let directory = tempfile::tempdir().unwrap();
    let export = |messages: &[usize]| {
        let state = talkative(&told.state, messages);
        let report = export_tree(&TreeContents::new(&state), directory.path(), &plain()).unwrap();
        assert_eq!(import(directory.path()).unwrap().state, state);
        report
    };
    let dir = tree_of(directory.path(), told.state.session_id);
    export(&[600, 0, 256]);
    let chunks: Vec<String> =
        all(&dir.join("claude/conversation")).into_keys().filter(|name| name != "current.json").collect();
    assert_eq!(chunks, ["messages_001.json", "messages_002.json", "messages_003.json"]);
    assert_eq!(export(&[601, 0, 256]).written, 1, "current.json");
    assert_eq!(export(&[601, 0, 256]).written, 0);
    let report = export(&[100]);
    assert_eq!((report.written, report.removed), (1, 3), "current.json; all full chunks");
}

/// Equal states have equal trees, whatever existed before; and no file is written twice.
#[test]
fn an_export_over_an_older_one_writes_what_changed_and_ends_as_if_it_were_the_first() {
    let (before, after) = two_days();
    let algorithm = CompressionAlgorithm::Zstd;
    let directory = tempfile::tempdir().unwrap();
    before.export(directory.path(), &by(algorithm));
    let report = before.export(directory.path(), &by(algorithm));
    assert_eq!((report.written, report.removed), (0, 0));
    let report = after.export(directory.path(), &by(algorithm));
    assert!(report.written < report.files - 3, "{report:?}");
    assert_eq!(report.removed, 2, "the second checkpoint");
    assert!(after.is(&import(directory.path()).unwrap()));
    let fresh = tempfile::tempdir().unwrap();
    after.export(fresh.path(), &by(algorithm));
    assert_eq!(all(directory.path()), all(fresh.path()));
    let checkpoints = tree_of(directory.path(), after.state.session_id).join("checkpoints");
    assert_eq!(fs::read_dir(checkpoints).unwrap().count(), 1, "no empty directory stays");
    let report = after.export(directory.path(), &by(CompressionAlgorithm::Lz4));
    assert_eq!(report.written, report.files, "by another codec");
}

/// The file is rewritten although the manifest states that it did not change.
#[test]
fn a_damaged_file_is_written_anew_by_the_next_export() {
    let (told, _) = two_days();
    let directory = tempfile::tempdir().unwrap();
    told.export(directory.path(), &plain());
    let dir = tree_of(directory.path(), told.state.session_id);
    let sound = all(directory.path());
    let git = dir.join("filesystem/git_state.json");
    let mut bytes = fs::read(&git).unwrap();
    bytes[3] ^= 1;
    fs::write(&git, bytes).unwrap();
    fs::remove_file(dir.join("meta/session.json")).unwrap();
    fs::write(dir.join("state/task_tree.json.new"), "left behind").unwrap();
    fs::write(dir.join("logs/execution/task_z.json"), "{}").unwrap();
    let report = told.export(directory.path(), &plain());
    assert_eq!((report.written, report.removed), (2, 1));
    assert_eq!(all(directory.path()), sound);
    fs::write(dir.join("meta/checkpoint_manifest.json"), "{").unwrap();
    fs::write(dir.join("meta/checkpoint_manifest.json.next"), "{").unwrap();
    told.export(directory.path(), &plain());
    assert_eq!(all(directory.path()), sound, "without any manifest");
}

/// No loss may be silent: each byte of each file of a tree is damaged. Either the file is named, or
/// the state is exactly the same.
#[test]
fn every_wrong_byte_of_every_file_is_told_by_the_name_of_its_file() {
    let (told, _) = two_days();
    let directory = tempfile::tempdir().unwrap();
    told.export(directory.path(), &by(CompressionAlgorithm::Zstd));
    let dir = tree_of(directory.path(), told.state.session_id);
    let mut told_of = 0;
    for (name, bytes) in all(&dir) {
        for place in (0..bytes.len()).step_by(step(41)) {
            let mut wrong = bytes.clone();
            wrong[place] ^= 1 << (place % 8);
            fs::write(dir.join(&name), wrong).unwrap();
            match import(directory.path()) {
                Err(Error::Damaged { files, .. }) => {
                    assert!(files.iter().any(|file| file.path == name), "{name} {place}: {files:?}");
                    told_of += 1;
                }
                Ok(imported) => {
                    assert_eq!(name, "meta/checkpoint_manifest.json", "{place}");
                    assert!(told.is(&imported), "{place}");
                }
                Err(other) => panic!("{name} {place}: {other}"),
            }
        }
        fs::write(dir.join(&name), bytes).unwrap();
    }
    assert!(told_of > 100, "{told_of}");
    assert!(told.is(&import(directory.path()).unwrap()));
}

/// The report names all problems at once, with the expected and the found values.
#[test]
fn missing_other_longer_and_additional_files_are_named_together() {
    let (told, _) = two_days();
    let directory = tempfile::tempdir().unwrap();
    told.export(directory.path(), &plain());
    let dir = tree_of(directory.path(), told.state.session_id);
    let sound = fs::read(dir.join("meta/session.json")).unwrap();
    let other: Vec<u8> = sound.iter().map(|byte| byte ^ 1).collect();
    fs::write(dir.join("meta/session.json"), &other).unwrap();
    fs::remove_file(dir.join("state/task_tree.json")).unwrap();
    let shorter = fs::metadata(dir.join("state/dependency_graph.json")).unwrap().len();
    fs::write(dir.join("state/dependency_graph.json"), "").unwrap();
    fs::write(dir.join("logs/execution/task_z.json"), "{}").unwrap();
    fs::write(dir.join("logs/notes.txt"), "of somebody").unwrap();
    let hex = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
    let named = |path: &str, damage| DamagedFile { path: path.to_owned(), damage };
    let found = damaged(import(directory.path()));
    assert_eq!(
        found,
        [
            named("meta/session.json", FileDamage::Differs { expected: hex(&sound), found: hex(&other) }),
            named("state/dependency_graph.json", FileDamage::Length { expected: shorter, found: 0 }),
            named("state/task_tree.json", FileDamage::Missing),
            named("logs/execution/task_z.json", FileDamage::Extra),
            named("logs/notes.txt", FileDamage::Extra),
        ]
    );
    let report = told.export(directory.path(), &plain());
    assert_eq!(report.foreign, ["logs/notes.txt"], "somebody's file is left alone, and named");
    assert!(dir.join("logs/notes.txt").exists() && !dir.join("logs/execution/task_z.json").exists());
}

/// A foreign tree must not lead a reader out of the tree, or make it wait for a FIFO.
#[test]
fn links_and_pipes_are_refused_where_files_and_directories_are_to_be() {
    let (told, _) = two_days();
    let directory = tempfile::tempdir().unwrap();
    told.export(directory.path(), &plain());
    let dir = tree_of(directory.path(), told.state.session_id);
    let outside = directory.path().join("outside");
    fs::rename(dir.join("meta/session.json"), &outside).unwrap();
    symlink(&outside, dir.join("meta/session.json")).unwrap();
    let git = dir.join("filesystem/git_state.json");
    fs::remove_file(&git).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &git,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let named = |path: &str, kind| DamagedFile { path: path.to_owned(), damage: FileDamage::OtherKind(kind) };
    let expected = [named("filesystem/git_state.json", "FIFO"), named("meta/session.json", "link")];
    assert_eq!(damaged(import(directory.path())), expected);
    let kept = fs::read(&outside).unwrap();
    told.export(directory.path(), &plain());
    assert_eq!(fs::read(&outside).unwrap(), kept, "the link was replaced, not followed");
    assert!(told.is(&import(directory.path()).unwrap()));

    // A directory that is a link.
    let elsewhere = directory.path().join("elsewhere");
    fs::rename(dir.join("state"), &elsewhere).unwrap();
    symlink(&elsewhere, dir.join("state")).unwrap();
    let found = damaged(import(directory.path()));
    assert!(found.contains(&named("state/task_tree.json", "link")), "{found:?}");
    let contents = TreeContents::new(&told.state);
    let refused = export_tree(&contents, directory.path(), &plain());
    assert!(matches!(refused, Err(Error::OtherKind { found: "link", .. })), "{refused:?}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 3, "nothing was written through it");

    // The directory of all trees is a link.
    let other = tempfile::tempdir().unwrap();
    symlink(directory.path().join(".aca"), other.path().join(".aca")).unwrap();
    assert!(matches!(export_tree(&contents, other.path(), &plain()), Err(Error::OtherKind { .. })));
    assert!(matches!(import(other.path()), Err(Error::OtherKind { .. })));
}

/// Writes a manifest with another list of files and a correct digest.
fn forge(dir: &Path, change: impl FnOnce(&mut TreeManifest)) {
    let path = dir.join("meta/checkpoint_manifest.json");
    let sealed: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let mut manifest: TreeManifest = serde_json::from_value(sealed["manifest"].clone()).unwrap();
    change(&mut manifest);
    let blake3 = blake3::hash(serde_json::to_string(&manifest).unwrap().as_bytes()).to_hex().to_string();
    let sealed = serde_json::json!({ "manifest": manifest, "blake3": blake3 });
    fs::write(path, serde_json::to_vec(&sealed).unwrap()).unwrap();
}

/// A foreign manifest must not name files elsewhere, or cause allocations of the claimed size.
#[test]
fn a_forged_manifest_leads_nowhere_and_claims_in_vain() {
    let (told, _) = two_days();
    let directory = tempfile::tempdir().unwrap();
    told.export(directory.path(), &by(CompressionAlgorithm::Gzip));
    let dir = tree_of(directory.path(), told.state.session_id);
    let sound = fs::read(dir.join("meta/checkpoint_manifest.json")).unwrap();
    for path in ["../../../../secret", "/etc/passwd", "state/../../x.json", "logs/execution/task_../x.json"] {
        forge(&dir, |manifest| {
            let file = manifest.files["meta/session.json"].clone();
            manifest.files.insert(path.to_owned(), file);
        });
        let found = damaged(import(directory.path()));
        assert!(
            matches!(&found[..], [DamagedFile { damage: FileDamage::Unreadable(why), .. }] if why.contains("no tree contains"))
        );
    }
    fs::write(dir.join("meta/checkpoint_manifest.json"), &sound).unwrap();
    forge(&dir, |manifest| manifest.files.get_mut("state/task_tree.json").unwrap().bytes = 1 << 62);
    let found = damaged(import(directory.path()));
    assert!(
        found
            .iter()
            .any(|file| matches!(file.damage, FileDamage::Length { expected, .. } if expected == 1 << 62))
    );
    // A claim of the decompressed size.
    fs::write(dir.join("meta/checkpoint_manifest.json"), &sound).unwrap();
    forge(&dir, |manifest| {
        manifest.files.get_mut("state/task_tree.json").unwrap().content.as_mut().unwrap().bytes = 1 << 62;
    });
    let found = damaged(import(directory.path()));
    assert!(matches!(&found[..], [DamagedFile { damage: FileDamage::TooLong { .. }, .. }]), "{found:?}");
    // A decompression bomb with a small claim, and one beyond the reader's limit.
    fs::write(dir.join("meta/checkpoint_manifest.json"), &sound).unwrap();
    let bomb = by(CompressionAlgorithm::Gzip).compress(&vec![b' '; 4 << 20]).unwrap();
    fs::write(dir.join("state/task_tree.json"), &bomb).unwrap();
    forge(&dir, |manifest| {
        let file = manifest.files.get_mut("state/task_tree.json").unwrap();
        (file.bytes, file.blake3) = (bomb.len() as u64, blake3::hash(&bomb).to_hex().to_string());
    });
    let found = damaged(import(directory.path()));
    assert!(matches!(&found[..], [DamagedFile { damage: FileDamage::Unreadable(_), .. }]), "{found:?}");
    // A large text with a true claim: few bytes are stored for it.
    let long = vec![b' '; 65 << 20];
    let bomb = by(CompressionAlgorithm::Lz4).compress(&long).unwrap();
    fs::write(dir.join("meta/checkpoint_manifest.json"), &sound).unwrap();
    fs::write(dir.join("state/task_tree.json"), &bomb).unwrap();
    let digest = |bytes: &[u8]| (bytes.len() as u64, blake3::hash(bytes).to_hex().to_string());
    forge(&dir, |manifest| {
        let file = manifest.files.get_mut("state/task_tree.json").unwrap();
        (file.bytes, file.blake3) = digest(&bomb);
        let content = file.content.as_mut().unwrap();
        (content.bytes, content.blake3) = digest(&long);
    });
    let found = damaged(import(directory.path()));
    assert!(
        matches!(&found[..], [DamagedFile { damage: FileDamage::TooLong { bytes_max: 0x0400_0000 }, .. }]),
        "{found:?}"
    );
    // A reader with a higher limit reads it, and finds no tree of tasks.
    let found = damaged(import_tree(directory.path(), TreeLimits::of_bytes(128 << 20)));
    assert!(matches!(&found[..], [DamagedFile { damage: FileDamage::Unreadable(_), .. }]), "{found:?}");
    told.export(directory.path(), &by(CompressionAlgorithm::Gzip));
    let limits = TreeLimits { file_bytes_max: 100, ..TreeLimits::default() };
    assert!(damaged(import_tree(directory.path(), limits)).len() > 3);
    let limits = TreeLimits { tree_bytes_max: 5_000, ..TreeLimits::default() };
    assert!(!damaged(import_tree(directory.path(), limits)).is_empty());
}

#[test]
fn several_sessions_share_a_workspace_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let (told, _) = two_days();
    told.export(directory.path(), &plain());
    let mut other = SessionState::empty(Uuid::from_u128(7), told.state.created_at);
    other.configuration.name = "another".to_owned();
    export_tree(&TreeContents::new(&other), directory.path(), &plain()).unwrap();
    let both = import(directory.path()).unwrap_err().to_string();
    assert!(both.contains("several sessions") && both.contains(&other.session_id.to_string()), "{both}");
    assert!(told.is(&import(&tree_of(directory.path(), told.state.session_id)).unwrap()));
    assert_eq!(import(&tree_of(directory.path(), other.session_id)).unwrap().state, other);
    let nothing = tempfile::tempdir().unwrap();
    assert!(matches!(import(nothing.path()), Err(Error::NoTree { .. })));
    assert!(matches!(import(&nothing.path().join("none")), Err(Error::NoTree { .. })));
}

#[test]
fn updates_that_tell_of_other_modifications_are_refused() {
    let (before, after) = two_days();
    let directory = tempfile::tempdir().unwrap();
    let contents = TreeContents::new(&before.state).at(before.position, &after.updates);
    let refused = export_tree(&contents, directory.path(), &plain());
    assert!(matches!(refused, Err(Error::OtherUpdates(_))), "{refused:?}");
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none(), "nothing was written");
}

/// Returns every part of a state as JSON.
fn parts(state: &SessionState) -> [(StateComponent, serde_json::Value); 7] {
    StateComponent::ALL.map(|component| {
        let json = match component {
            StateComponent::Session => serde_json::to_value(SessionIdentity::from_state(state)),
            StateComponent::Configuration => serde_json::to_value(&state.configuration),
            StateComponent::TaskTree => serde_json::to_value(&state.task_tree),
            StateComponent::ClaudeContext => serde_json::to_value(&state.claude_context),
            StateComponent::FileSystem => serde_json::to_value(&state.file_system),
            StateComponent::ExecutionLogs => serde_json::to_value(&state.execution_logs),
            StateComponent::ResourceUsage => serde_json::to_value(state.resource_usage),
        };
        (component, json.unwrap())
    })
}

/// Parts that were not persisted are reported as missing, and all parts together are the tree.
#[test]
fn parts_are_persisted_one_by_one_and_make_a_tree_together() {
    let (before, after) = two_days();
    let directory = tempfile::tempdir().unwrap();
    let tree =
        AtomicPersistence::new(directory.path(), before.state.session_id, by(CompressionAlgorithm::Lz4));
    for (place, (component, part)) in parts(&before.state).iter().enumerate() {
        for missing in &StateComponent::ALL[place..] {
            let loaded = tree.load_state::<serde_json::Value>(*missing);
            let expected = *missing;
            assert!(matches!(loaded, Err(Error::ComponentNotFound(one)) if one == expected), "{loaded:?}");
        }
        tree.persist_state(*component, part).unwrap();
        assert_eq!(tree.load_state::<serde_json::Value>(*component).unwrap(), *part);
        if place < 6 {
            assert!(matches!(import(directory.path()), Err(Error::ComponentNotFound(_))));
        }
    }
    assert_eq!(import(directory.path()).unwrap().state, before.state);
    // Over a tree with updates, which remain as far as they are valid.
    before.export(directory.path(), &by(CompressionAlgorithm::Lz4));
    for ((component, part), (_, old)) in parts(&after.state).into_iter().zip(parts(&before.state)) {
        let report = tree.persist_state(component, &part).unwrap();
        assert_eq!(report.written > 0, part != old, "{component:?}");
        assert_eq!(tree.persist_state(component, &part).unwrap().written, 0);
    }
    let imported = import(directory.path()).unwrap();
    assert_eq!((imported.state, imported.position), (after.state, None));
    assert_eq!(imported.checkpoints, before.checkpoints);
    let messages = |updates: &[StateUpdate]| -> Vec<StateUpdate> {
        let is_file = |one: &&StateUpdate| one.component == StateComponent::FileSystem;
        updates.iter().filter(|one| !is_file(one)).cloned().collect()
    };
    assert_eq!(messages(&imported.updates), messages(&before.updates));
}

/// A tree can always be imported, whatever a host persists, and a host may have its own types.
#[test]
fn a_value_that_is_no_such_part_is_refused_and_changes_nothing() {
    let (told, _) = two_days();
    let directory = tempfile::tempdir().unwrap();
    told.export(directory.path(), &plain());
    let sound = all(directory.path());
    let tree = AtomicPersistence::new(directory.path(), told.state.session_id, plain());
    let mut tasks = serde_json::to_value(&told.state.task_tree).unwrap();
    tasks["more"] = 1.into();
    for other in [tasks, serde_json::json!([]), serde_json::json!({ "tasks": {} })] {
        let refused = tree.persist_state(StateComponent::TaskTree, &other);
        assert!(matches!(refused, Err(Error::NotAComponent { .. })), "{refused:?}");
    }
    assert_eq!(all(directory.path()), sound);

    #[derive(serde::Deserialize)]
    struct Counted {
        task_counter: u64,
    }
    let counted: Counted = tree.load_state(StateComponent::TaskTree).unwrap();
    assert_eq!(counted.task_counter, told.state.task_tree.task_counter);
    let typed: TaskTreeState = tree.load_state(StateComponent::TaskTree).unwrap();
    assert_eq!(typed, told.state.task_tree);
    let other = tree.load_state::<Vec<u8>>(StateComponent::TaskTree);
    assert!(matches!(other, Err(Error::NotAComponent { .. })), "{other:?}");
}

/// An export into the session's own workspace must not become part of its captures.
#[test]
fn a_session_is_exported_from_its_log_as_often_as_it_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::begin(directory.path());
    let step = |session: &Session, name: &str| create(session, task(name)).unwrap();
    for name in ["a", "b", "c"] {
        step(&agent.session, name);
        let told = Told::of(&agent);
        told.export(&agent.workspace(), &plain());
        assert!(told.is(&import(&agent.workspace()).unwrap()));
    }
}
