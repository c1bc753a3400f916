//! The law of histories: after any history, a session's state at any position equals a naive model,
//! and returns from a tree and from an imported session, part for part.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use foldlog::conversation::{NewAnswer, NewInput, Role};
use foldlog::inspect::LogReader;
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolRunner};
use foldlog::{ExecutionState, ResourceRegistry, SequenceNumber, SessionOptions, Store, StoreOptions};
use foldlog_tasks::{
    Checkpoint, CheckpointManager, RestoreOptions, SessionState, StateUpdate, StateValidator, TaskTreeState,
    TreeContents, TreeLimits, UpdateOperation, WorkspaceStores, export_session, export_tree, import_session,
    import_tree,
};
use proptest::prelude::*;
use proptest::sample::Index;
use tempfile::TempDir;

use crate::agent::{self, Write, Written};
use crate::files::by;
use crate::laws::{self, Model, World, assert_is};
use crate::quick_directory;
use foldlog_tasks::CompressionAlgorithm;

/// An action of a host.
#[derive(Clone, Debug)]
enum Action {
    /// An action on tasks or on the session as a whole.
    Task(laws::Action),
    /// Makes a tool write or remove a file, and perhaps fail afterwards.
    Write {
        path: u8,
        text: Option<u8>,
        fails: bool,
    },
    /// Adds a prompt to one of two conversations, and records the answer, which ends the turn.
    Converse {
        conversation: bool,
        word: u8,
    },
    Checkpoint,
    Restore {
        checkpoint: Index,
        apply_later_updates: bool,
    },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        24 => laws::action().prop_map(Action::Task),
        2 => (0..3_u8, prop::option::weighted(0.8, any::<u8>()), prop::bool::weighted(0.2))
            .prop_map(|(path, text, fails)| Action::Write { path, text, fails }),
        4 => (any::<bool>(), any::<u8>()).prop_map(|(conversation, word)| Action::Converse { conversation, word }),
        2 => Just(Action::Checkpoint),
        2 => (any::<Index>(), any::<bool>())
            .prop_map(|(checkpoint, apply_later_updates)| Action::Restore { checkpoint, apply_later_updates }),
    ];
    prop::collection::vec(action, 1..60)
}

/// The model's state at a position, besides tasks.
#[derive(Clone, Debug, Default)]
struct Told {
    /// Live events of tasks, each with its record.
    events: Vec<(u64, laws::Action)>,
    /// The messages of each conversation.
    said: BTreeMap<String, Vec<String>>,
    /// Changes by tools: path, and the file's new content.
    written: Vec<(String, Option<String>)>,
    /// The files in the workspace, by path.
    files: BTreeMap<String, String>,
}

/// A session with a workspace, and its model.
struct History {
    world: World,
    told: Told,
    past: BTreeMap<u64, Told>,
    checkpoints: Vec<Checkpoint>,
    directory: TempDir,
    resources: ResourceRegistry,
}

impl History {
    fn new(images: bool) -> History {
        let directory = quick_directory();
        let workspace = directory.path().join("workspace");
        fs::create_dir(&workspace).unwrap();
        let captures = directory.path().join("captures");
        let resources = agent::resources(&workspace, &captures, false);
        let (world, told, checkpoints) = (World::new(images), Told::default(), Vec::new());
        let mut history = History { world, told, past: BTreeMap::new(), checkpoints, directory, resources };
        history.note();
        history
    }

    fn stores(&self) -> WorkspaceStores {
        WorkspaceStores::none().with("workspace", self.directory.path().join("captures"))
    }

    fn run(&self) -> ExecutionState {
        ExecutionState::new(self.world.session().clone(), self.resources.clone())
    }

    fn manager(&self) -> CheckpointManager {
        let manager = CheckpointManager::new(self.world.session().clone());
        manager.with_resources(self.run()).with_stores(self.stores())
    }

    fn position(&self) -> u64 {
        self.world.session().log().position().unwrap().get()
    }

    fn note(&mut self) {
        self.world.note();
        self.past.insert(self.position(), self.told.clone());
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Task(action) => self.act_on_tasks(action),
            Action::Write { path, text, fails } => {
                let (path, text) = (format!("{path}.txt"), text.map(|text| text.to_string()));
                let is_there = self.told.files.contains_key(&path);
                let arguments = Written { path: path.clone(), text: text.clone(), fails: *fails };
                let arguments = serde_json::to_string(&arguments).unwrap();
                let call = ToolCall::new("write", arguments).with_id(format!("call_{}", self.position()));
                let runner = ToolRunner::new(self.run(), ToolRegistry::new().with(Write));
                let report = runner.execute(&call, &ExecuteOptions::default()).unwrap();
                // Removing a missing file fails.
                assert_eq!(report.success, !fails && (is_there || text.is_some()), "{report:?}");
                if report.success && self.told.files.get(&path) != text.as_ref() {
                    self.told.written.push((path.clone(), text.clone()));
                    match text {
                        Some(text) => self.told.files.insert(path, text),
                        None => self.told.files.remove(&path),
                    };
                }
            }
            Action::Converse { conversation, word } => {
                let (id, session) = (format!("talk_{conversation}"), self.world.session());
                let (asked, answered) = (format!("{word}?"), format!("{word}."));
                session.conversation().record_input(&NewInput::new(&id, Role::User, &asked)).unwrap();
                let answer = NewAnswer {
                    evaluation_id: id.clone(),
                    content: Some(answered.clone()),
                    ..NewAnswer::default()
                };
                session.conversation().record_answer(&answer).unwrap();
                session.conversation().record_turn(&id, true).unwrap();
                self.told.said.entry(id).or_default().extend([asked, answered]);
            }
            Action::Checkpoint => {
                let created = self.manager().create(None).unwrap();
                self.checkpointed(created);
            }
            Action::Restore { checkpoint, apply_later_updates } => {
                if !self.checkpoints.is_empty() {
                    let checkpoint = checkpoint.get(&self.checkpoints).clone();
                    self.restore(&checkpoint, *apply_later_updates);
                }
            }
        }
        self.note();
    }

    /// Stores the model at a checkpoint.
    fn checkpointed(&mut self, checkpoint: Checkpoint) {
        let position = checkpoint.position.get();
        self.past.insert(position, self.told.clone());
        self.world.past.insert(position, self.world.model.clone());
        self.checkpoints.push(checkpoint);
    }

    fn act_on_tasks(&mut self, action: &laws::Action) {
        use laws::Action::{Fork, Reopen, RollBack};
        let before = self.position();
        match action {
            RollBack(index) => {
                let to = self.world.position(*index);
                // A host with a workspace rolls the files back too.
                let snapshot = self.past[&to].clone();
                self.world.act(action);
                self.bring_back(&snapshot.files);
                self.told = snapshot;
            }
            Fork(index) => {
                let at = self.world.position(*index);
                self.world.act(action);
                self.told = self.past[&at].clone();
                self.bring_back(&self.told.files);
                self.past.retain(|position, _| *position <= at);
                let shared = self.manager().list().unwrap();
                self.checkpoints.retain(|one| shared.contains(one));
                assert_eq!(self.checkpoints, shared);
            }
            Reopen => self.world.act(action),
            event => {
                let resolved = match event.clone() {
                    laws::Action::Change { task, to, from: None } => {
                        let from = self.world.model.get(task).map(|entry| entry.status);
                        laws::Action::Change { task, to, from }
                    }
                    other => other,
                };
                self.world.act(event);
                if self.position() > before {
                    self.told.events.push((self.position(), resolved));
                }
            }
        }
    }

    /// Restores files outside of the session.
    fn bring_back(&self, files: &BTreeMap<String, String>) {
        let workspace = self.directory.path().join("workspace");
        for entry in fs::read_dir(&workspace).unwrap().map(|entry| entry.unwrap()) {
            if !files.contains_key(entry.file_name().to_str().unwrap()) {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        for (path, text) in files {
            if fs::read_to_string(workspace.join(path)).ok().as_ref() != Some(text) {
                fs::write(workspace.join(path), text).unwrap();
            }
        }
    }

    fn restore(&mut self, checkpoint: &Checkpoint, apply_later_updates: bool) {
        let later: Vec<_> =
            self.told.events.iter().filter(|(at, _)| *at > checkpoint.position.get()).cloned().collect();
        let (was_told, was) = (self.told.clone(), self.world.model.clone());
        let (by, reason) = ("ada".to_owned(), "it went wrong".to_owned());
        let options = RestoreOptions { by, reason, apply_later_updates, with_resources: true };
        let manager = self.manager();
        let report = manager.restore_from_checkpoint(checkpoint.id, &options).unwrap();
        let undo = manager.get(report.undo).unwrap();
        self.past.insert(undo.position.get(), was_told);
        self.world.past.insert(undo.position.get(), was);
        self.checkpoints.push(undo);
        self.told = self.past[&checkpoint.position.get()].clone();
        self.world.model = self.world.past[&checkpoint.position.get()].clone();
        let mut applied = report.applied.iter();
        for (at, event) in later.iter().filter(|_| apply_later_updates) {
            if self.world.model.take(event) {
                let (from, again) = applied.next().expect("what is legal is applied");
                assert_eq!(from.get(), *at);
                self.told.events.push((again.get(), event.clone()));
            } else {
                assert!(report.refused.iter().any(|one| one.sequence.get() == *at), "{event:?}");
            }
        }
        assert_eq!(applied.next(), None);
    }

    /// Compares the state at a position with the model, and with the import of its tree.
    fn check(&self, position: u64) {
        let dir = self.world.session().dir();
        let log = LogReader::open_on(Arc::new(self.world.disk.clone()), dir).unwrap();
        let (stores, at) = (self.stores(), SequenceNumber::from(position));
        let state = SessionState::at(&log, at, &stores).unwrap();
        let updates = StateUpdate::list(&log, at, &stores).unwrap();
        self.assert_told(position, &state, &updates);

        let tree = self.directory.path().join(format!("tree-{position}"));
        let _ = fs::remove_dir_all(&tree);
        fs::create_dir(&tree).unwrap();
        let compression = by(CompressionAlgorithm::None);
        export_tree(&TreeContents::new(&state).at(at, &updates), &tree, &compression).unwrap();
        let imported = import_tree(&tree, TreeLimits::default()).unwrap();
        assert_eq!(imported.state, state);
        assert_eq!((imported.updates, imported.position), (updates, Some(at)));

        export_session(&log, at, &stores, &tree, &compression).unwrap();
        let options = StoreOptions { background: foldlog::BackgroundSync::Inline, ..StoreOptions::default() };
        let store = Store::open_with(self.directory.path().join("imports"), options).unwrap();
        let options = SessionOptions::default();
        let made = import_session(&tree, &store, &crate::types(), options, TreeLimits::default()).unwrap();
        if !made.differing.is_empty() {
            let log = LogReader::open(made.session.dir()).unwrap();
            let read = SessionState::at(&log, log.records_len() - 1, &WorkspaceStores::none()).unwrap();
            let same_id = SessionState { session_id: state.session_id, ..read };
            assert_eq!(same_id, state, "{:?} differ at {position}", made.differing);
        }
        assert_eq!(made.exported, state);
        // The new session has its own checkpoints.
        let manager = CheckpointManager::new(made.session.clone());
        let created = manager.create(None).unwrap();
        let tasks = TaskTreeState::from_session(&made.session).unwrap();
        let report = manager.restore_from_checkpoint(created.id, &RestoreOptions::default()).unwrap();
        assert_eq!(
            (report.checkpoint, TaskTreeState::from_session(&made.session).unwrap()),
            (created, tasks)
        );
    }

    fn assert_told(&self, position: u64, state: &SessionState, updates: &[StateUpdate]) {
        let (model, told): (&Model, &Told) = (&self.world.past[&position], &self.past[&position]);
        assert_is(&state.task_tree, model);
        let said = state.claude_context.conversation_history.conversations.iter();
        let said = said.filter(|one| !one.messages.is_empty()).map(|one| {
            let texts = one.messages.iter().map(|message| message.content.clone().unwrap_or_default());
            (one.evaluation_id.clone(), texts.collect::<Vec<_>>())
        });
        assert_eq!(said.collect::<BTreeMap<_, _>>(), told.said, "{position}");
        let by_tools = state.file_system.file_modifications.iter().filter(|one| one.tool.is_some());
        let paths: Vec<_> = by_tools.map(|one| (one.path.clone(), one.after.is_some())).collect();
        let written = told.written.iter().map(|(path, text)| (path.clone(), text.is_some()));
        assert_eq!(paths, written.collect::<Vec<_>>(), "{position}");

        let numbers: Vec<u64> = updates.iter().map(|one| one.sequence_number).collect();
        assert_eq!(numbers, (1..=updates.len() as u64).collect::<Vec<_>>(), "no gaps");
        let is_of_tasks = |one: &&StateUpdate| {
            !matches!(
                one.operation,
                UpdateOperation::FileModified { .. } | UpdateOperation::ConversationExtended { .. }
            )
        };
        let of_tasks: Vec<u64> = updates.iter().filter(is_of_tasks).map(|one| one.position.get()).collect();
        assert_eq!(of_tasks, told.events.iter().map(|(at, _)| *at).collect::<Vec<_>>(), "{position}");
        assert_eq!(state.last_checkpoint, updates.last().map_or(state.created_at, |one| one.timestamp));
        let found = StateValidator::new().validate(state);
        assert!(found.is_valid && found.issues.is_empty() && found.repair_plan.steps.is_empty(), "{found:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn a_state_is_after_any_history_what_a_model_says_and_comes_back_from_its_tree(
        actions in actions(), images in any::<bool>(), at in any::<Index>()
    ) {
        let mut history = History::new(images);
        actions.iter().for_each(|action| history.act(action));
        let earlier = *history.past.keys().nth(at.index(history.past.len())).unwrap();
        history.check(earlier);
        history.check(history.position());
    }
}
