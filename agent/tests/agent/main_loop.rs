//! Requests that are executed in sessions of their own, and their checkpoints: the examples of the
//! conversation specification, kills of the process, and refusals.

use crate::story;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use foldlog::conversation::Role;
use foldlog::{ExecutionState, Export, Idempotency, ResourceRegistry, Session, Store};
use foldlog_agent::checkpoint::{
    import_session, load_checkpoint, recover_session, resume_evaluation, save_checkpoint,
};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::provider::{ProviderAnswer, ProviderErrorKind};
use foldlog_agent::{
    Checkpoint, CheckpointHandler, Deadline, Error, EvaluateOptions, FileCheckpointHandler, MainLoop, Prompt,
    ProviderAdapter, ResumeFrom,
};
use story::{Line, Page, Ran, Script, prompt_of, tools, types};
use uuid::Uuid;

/// A request for a review, as in the specification's example.
struct ReviewRequest {
    id: String,
}

fn request() -> ReviewRequest {
    ReviewRequest { id: "review-1".to_owned() }
}

fn no_resources() -> ResourceRegistry {
    ResourceRegistry::builder().build().unwrap()
}

/// The specification's `CodeReviewLoop`.
struct CodeReviewLoop {
    store: Store,
    adapter: ProviderAdapter<ScriptedProvider>,
    checkpoints: FileCheckpointHandler<ReviewRequest>,
    ran: Ran,
}

impl CodeReviewLoop {
    fn new(directory: &Path, script: &Script, ran: &Ran) -> CodeReviewLoop {
        CodeReviewLoop {
            store: Store::open(directory.join("store")).unwrap(),
            adapter: script.adapter(),
            checkpoints: handler(directory),
            ran: ran.clone(),
        }
    }
}

fn handler(directory: &Path) -> FileCheckpointHandler<ReviewRequest> {
    FileCheckpointHandler::new(directory.join("checkpoints"), |request: &ReviewRequest| request.id.clone())
}

impl MainLoop for CodeReviewLoop {
    type Request = ReviewRequest;
    type Output = String;
    type Provider = ScriptedProvider;

    fn adapter(&self) -> &ProviderAdapter<ScriptedProvider> {
        &self.adapter
    }

    fn create_session(&self, _: &ReviewRequest) -> Result<ExecutionState, Error> {
        Ok(ExecutionState::new(self.store.create(&types())?, no_resources()))
    }

    fn open_session(&self, _: &ReviewRequest, session: Uuid) -> Result<ExecutionState, Error> {
        Ok(ExecutionState::new(self.store.open_session(session, &types())?, no_resources()))
    }

    fn create_prompt(&self, _: &ReviewRequest) -> Result<Prompt<String>, Error> {
        Ok(prompt_of(tools(&self.ran, Idempotency::Natural)))
    }

    fn checkpoints(&self) -> Option<&dyn CheckpointHandler<ReviewRequest>> {
        Some(&self.checkpoints)
    }
}

fn script() -> Script {
    Script::new(vec![
        ("one", vec![("a", "look", "a"), ("b", "add", "x")]),
        ("two", vec![("a", "add", "y")]),
        ("done", vec![]),
    ])
}

/// Simulates a process that ends after a number of turns: their checkpoints are saved, and later
/// requests fail.
fn cut_after(turns: usize, directory: &Path, ran: &Ran) -> Script {
    cut_with(handler(directory), turns, directory, ran)
}

/// Simulates such a process with this checkpoint handler.
fn cut_with(
    checkpoints: FileCheckpointHandler<ReviewRequest>,
    turns: usize,
    directory: &Path,
    ran: &Ran,
) -> Script {
    let short = Script::of(script().answers.iter().take(turns).cloned().collect());
    let (whole, asked) = (script(), Arc::clone(&short.asked));
    let adapter = ProviderAdapter::new(ScriptedProvider::from_fn(move |request| {
        let at = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
        if at >= turns {
            return ScriptedReply::fail(ProviderErrorKind::BadRequest, "the process ends here");
        }
        asked.lock().unwrap().push(at);
        let calls = whole.answers[at].1.clone();
        ScriptedReply::Answer(ProviderAnswer { calls, ..ProviderAnswer::default() })
    }));
    let host = CodeReviewLoop { adapter, checkpoints, ..CodeReviewLoop::new(directory, &short, ran) };
    host.execute(&request()).unwrap_err();
    short
}

/// The specification's example with a main loop and a `FileCheckpointHandler`.
#[test]
fn a_request_is_executed_with_checkpoints_that_end_with_its_success() {
    let (directory, script, ran) = (tempfile::tempdir().unwrap(), script(), Ran::new());
    let host = CodeReviewLoop::new(directory.path(), &script, &ran);
    let response = host.execute(&request()).unwrap();
    assert!(response.text.starts_with("done"));
    assert_eq!((response.prompt_name.as_str(), script.asked()), ("story:page", vec![0, 1, 2]));
    assert!(host.checkpoints.load(&request()).unwrap().is_none(), "it is cleared on success");
    // Without a checkpoint, the request is a new one.
    host.execute(&request()).unwrap();
    assert_eq!((host.store.session_ids().unwrap().len(), script.asked().len()), (2, 6));
}

/// However many turns the first process did, the next one requests only the others, in the same
/// session, even if the first one ended during a turn. Each turn saves its checkpoint.
#[test]
fn a_request_that_another_process_left_goes_on_in_its_session() {
    let mut saved = Vec::new();
    for turns in 0..3 {
        let (directory, ran) = (tempfile::tempdir().unwrap(), Ran::new());
        cut_after(turns, directory.path(), &ran);
        let script = script();
        let host = CodeReviewLoop::new(directory.path(), &script, &ran);
        let checkpoint = host.checkpoints.load(&request()).unwrap().unwrap();
        saved.push(checkpoint.position);
        let response = host.execute(&request()).unwrap();
        assert_eq!(script.asked(), (turns..3).collect::<Vec<_>>());
        assert_eq!((ran.times("look a"), ran.times("add x"), ran.times("add y")), (1, 1, 1));
        assert_eq!(host.store.session_ids().unwrap(), [checkpoint.session]);
        assert_eq!(response.evaluation_id, checkpoint.session.to_string());
        assert!(host.checkpoints.load(&request()).unwrap().is_none());
    }
    assert!(saved.is_sorted_by(|earlier, later| earlier < later), "{saved:?}");
}

/// The checkpoint is of the first turn, the log has two. Loading it rolls nothing back, so no
/// answer is paid for twice.
#[test]
fn an_old_checkpoint_only_finds_the_session() {
    let (directory, ran) = (tempfile::tempdir().unwrap(), Ran::new());
    cut_after(1, directory.path(), &ran);
    let old = handler(directory.path()).load(&request()).unwrap().unwrap();
    let script = script();
    let host = CodeReviewLoop::new(directory.path(), &script, &ran);
    host.execute(&request()).unwrap();
    host.checkpoints.save(&request(), &old).unwrap();
    let response = host.execute(&request()).unwrap();
    assert!(response.text.starts_with("done"));
    assert_eq!((script.asked(), ran.times("add x")), (vec![1, 2], 1));
}

/// A failed resume silently started a new session (github/app#2309).
#[test]
fn a_resume_that_fails_begins_no_other_session() {
    let (directory, ran) = (tempfile::tempdir().unwrap(), Ran::new());
    cut_after(1, directory.path(), &ran);
    let script = script();
    let host = CodeReviewLoop::new(directory.path(), &script, &ran);
    let checkpoint = host.checkpoints.load(&request()).unwrap().unwrap();
    let open = host.store.open_session(checkpoint.session, &types()).unwrap();
    let locked = host.execute(&request());
    assert!(matches!(locked, Err(Error::Engine(foldlog::Error::Locked { .. }))), "{locked:?}");
    open.close().unwrap();
    fs::rename(host.store.session_dir(checkpoint.session), directory.path().join("elsewhere")).unwrap();
    let missing = host.execute(&request());
    assert!(missing.is_err(), "{missing:?}");
    assert_eq!((host.store.session_ids().unwrap().len(), script.asked().len()), (0, 0));
    assert!(host.checkpoints.load(&request()).unwrap().is_some(), "the checkpoint stays");
    fs::rename(directory.path().join("elsewhere"), host.store.session_dir(checkpoint.session)).unwrap();
    host.execute(&request()).unwrap();
}

#[test]
fn a_request_with_a_deadline_can_be_executed_again() {
    let (directory, script, ran) = (tempfile::tempdir().unwrap(), script(), Ran::new());
    let host = CodeReviewLoop::new(directory.path(), &script, &ran);
    let late = host.request(&request(), Deadline::after(Duration::ZERO));
    assert!(matches!(late, Err(Error::DeadlineExceeded { .. })), "{late:?}");
    host.request(&request(), Deadline::after(Duration::from_secs(600))).unwrap();
    assert_eq!(host.store.session_ids().unwrap().len(), 1);
}

fn evaluated(directory: &Path, turns: usize, ran: &Ran) -> (Store, Checkpoint) {
    cut_after(turns, directory, ran);
    let checkpoint = handler(directory).load(&request()).unwrap().unwrap();
    (Store::open(directory.join("store")).unwrap(), checkpoint)
}

/// The specification's basic example: a checkpoint is saved into a file, and another process
/// resumes the evaluation from it.
#[test]
fn a_checkpoint_is_saved_into_a_file_and_its_evaluation_resumed() {
    let (directory, ran) = (tempfile::tempdir().unwrap(), Ran::new());
    let (store, checkpoint) = evaluated(directory.path(), 1, &ran);
    let path = directory.path().join("checkpoint.json");
    let session = recover_session(&store, &types(), &checkpoint).unwrap();
    let saved = save_checkpoint(&session, &path).unwrap();
    session.close().unwrap();
    let loaded = load_checkpoint(&path).unwrap().unwrap();
    assert_eq!(
        (loaded.session, loaded.position, loaded.digest),
        (saved.session, saved.position, saved.digest)
    );
    // The file contains the whole snapshot, as JSON that can be imported as a session.
    let export = Export::from_json(loaded.snapshot.as_deref().unwrap()).unwrap();
    assert!(export.slices.iter().any(|slice| slice.slice_type == "page"));
    let (script, prompt) = (script(), prompt_of(tools(&ran, Idempotency::Natural)));
    let (types, options) = (types(), EvaluateOptions::default());
    let resumed =
        resume_evaluation(&script.adapter(), &prompt, &loaded, &store, &types, no_resources(), options)
            .unwrap();
    assert!(resumed.text.starts_with("done"));
    assert_eq!(script.asked(), [1, 2]);
}

/// The session is lost, and only the checkpoint's file is left.
#[test]
fn a_checkpoint_with_a_snapshot_resumes_without_its_session() {
    let (directory, ran) = (tempfile::tempdir().unwrap(), Ran::new());
    let (store, checkpoint) = evaluated(directory.path(), 1, &ran);
    let path = directory.path().join("checkpoint.json");
    let session = recover_session(&store, &types(), &checkpoint).unwrap();
    save_checkpoint(&session, &path).unwrap();
    let page = |session: &Session| -> Vec<Line> { session.view::<Page>().unwrap().iter().cloned().collect() };
    let written = page(&session);
    session.close().unwrap();
    drop(store);
    fs::remove_dir_all(directory.path().join("store")).unwrap();

    let store = Store::open(directory.path().join("elsewhere")).unwrap();
    let loaded = load_checkpoint(&path).unwrap().unwrap();
    assert!(refusal(recover_session(&store, &types(), &loaded)).contains("cannot be opened"));
    let imported = import_session(&store, &types(), &loaded).unwrap();
    assert_eq!((page(&imported), written.len()), (written, 1));
    let (script, before) = (script(), ran.lines().len());
    let state = ExecutionState::new(imported, no_resources());
    let prompt = prompt_of(tools(&ran, Idempotency::Natural));
    let resumed = script.adapter().evaluate(&prompt, &state, EvaluateOptions::default()).unwrap();
    assert!(resumed.text.starts_with("done"), "{}", resumed.text);
    assert_eq!(script.asked(), [1, 2], "the first answer is in the checkpoint");
    assert!(ran.lines().len() > before && before > 0);

    // A checkpoint without a snapshot reports that it lacks one.
    let text = refusal(import_session(&store, &types(), &Checkpoint { snapshot: None, ..loaded }));
    assert!(text.contains("it contains no snapshot"), "{text}");
}

#[test]
fn a_handler_says_whether_the_checkpoints_of_a_loop_hold_snapshots() {
    for wants in [false, true] {
        let (directory, ran) = (tempfile::tempdir().unwrap(), Ran::new());
        let handler = || match wants {
            true => handler(directory.path()).with_snapshots(),
            false => handler(directory.path()),
        };
        cut_with(handler(), 1, directory.path(), &ran);
        assert_eq!(handler().load(&request()).unwrap().unwrap().snapshot.is_some(), wants);
    }
}

#[test]
fn a_checkpoint_without_a_conversation_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let (store, ran) = (Store::open(directory.path()).unwrap(), Ran::new());
    let session = store.create(&types()).unwrap();
    let checkpoint = save_checkpoint(&session, directory.path().join("checkpoint.json")).unwrap();
    session.close().unwrap();
    let (script, prompt) = (script(), prompt_of(tools(&ran, Idempotency::Natural)));
    let (types, options) = (types(), EvaluateOptions::default());
    let refused =
        resume_evaluation(&script.adapter(), &prompt, &checkpoint, &store, &types, no_resources(), options);
    let Err(refused) = refused else { panic!("it went on") };
    assert!(
        matches!(refused, Error::NoConversationState)
            && refused.to_string().starts_with("No conversation state in checkpoint")
    );
}

/// The specification's resume flow: the session's state is passed to the adapter.
#[test]
fn the_state_of_the_session_is_what_an_evaluation_resumes_from() {
    let (directory, ran) = (tempfile::tempdir().unwrap(), Ran::new());
    let (store, checkpoint) = evaluated(directory.path(), 2, &ran);
    let session = recover_session(&store, &types(), &checkpoint).unwrap();
    let evaluation = session.conversation().evaluations().pop().unwrap();
    let state = session.conversation().read(&evaluation).unwrap().unwrap().state().unwrap();
    assert_eq!(
        (state.prompt_ns.as_str(), state.prompt_key.as_str(), state.turns.len()),
        ("story", "page", 2)
    );
    let (script, prompt) = (script(), prompt_of(tools(&ran, Idempotency::Natural)));
    let execution = ExecutionState::new(session, no_resources());
    let mut other = state.clone();
    other.turns[0].assistant_message.content = Some("something else".to_owned());
    let from = |state| EvaluateOptions {
        resume_from: ResumeFrom::Conversation(Box::new(state)),
        ..EvaluateOptions::default()
    };
    let refused = script.adapter().evaluate(&prompt, &execution, from(other));
    assert!(matches!(refused, Err(Error::InvalidHistory { .. })), "{refused:?}");
    let response = script.adapter().evaluate(&prompt, &execution, from(state)).unwrap();
    assert_eq!((response.evaluation_id, script.asked()), (evaluation.to_string(), vec![2]));
}

fn refusal(result: Result<impl std::fmt::Debug, Error>) -> String {
    match result {
        Err(error @ Error::SnapshotRestore { .. }) => {
            let text = error.to_string();
            assert!(text.ends_with("clear the checkpoint and restart"), "{text}");
            text
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_damaged_checkpoint_says_what_is_wrong_with_it() {
    let (directory, ran) = (tempfile::tempdir().unwrap(), Ran::new());
    let (store, checkpoint) = evaluated(directory.path(), 1, &ran);
    let handler = handler(directory.path());
    let path = handler.path(&request()).unwrap();
    let whole = fs::read_to_string(&path).unwrap();
    for cut in 0..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let text = refusal(handler.load(&request()));
        assert!(text.contains("it is truncated"), "{cut}: {text}");
    }
    fs::write(&path, whole.replace("\"version\": 1", "\"version\": 2")).unwrap();
    assert!(
        refusal(handler.load(&request())).contains("version is 2, and this program reads versions up to 1")
    );
    fs::write(&path, [0xff, 0xfe]).unwrap();
    assert!(refusal(handler.load(&request())).contains("cannot be read"));
    // A checkpoint of another session, of a later position, and of another copy of the session.
    let other = store.create(&types()).unwrap();
    let text = refusal(checkpoint.check(&other));
    assert!(text.contains(&format!("it belongs to session {}", checkpoint.session)), "{text}");
    other.close().unwrap();
    let ahead = Checkpoint { position: (checkpoint.position.get() + 1_000).into(), ..checkpoint.clone() };
    assert!(refusal(recover_session(&store, &types(), &ahead)).contains("the session is an older copy"));
    let changed = Checkpoint { digest: [7; 32], ..checkpoint.clone() };
    assert!(
        refusal(recover_session(&store, &types(), &changed))
            .contains("differs from the one in the checkpoint")
    );
    let missing = Checkpoint { session: Uuid::new_v4(), ..checkpoint };
    assert!(refusal(recover_session(&store, &types(), &missing)).contains("cannot be opened"));
}

#[test]
fn a_checkpoint_stays_within_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    let session: Session = Store::open(directory.path().join("store")).unwrap().create(&types()).unwrap();
    let checkpoint = Checkpoint::from_session(&session, false).unwrap();
    let handler = handler(directory.path());
    let long = "x".repeat(201);
    for id in ["", ".", "..", "../out", "a/b", "/etc/x", "a\\b", "a\0b", "a\nb", ".hidden", long.as_str()] {
        let request = ReviewRequest { id: id.to_owned() };
        assert!(matches!(handler.save(&request, &checkpoint), Err(Error::Checkpoint { .. })), "{id:?}");
        assert!(matches!(handler.load(&request), Err(Error::Checkpoint { .. })), "{id:?}");
        assert!(matches!(handler.clear(&request), Err(Error::Checkpoint { .. })), "{id:?}");
    }
    assert!(!directory.path().join("checkpoints").exists());
}

#[test]
fn checkpoints_are_replaced_whole_and_cleared_as_often_as_one_likes() {
    let directory = tempfile::tempdir().unwrap();
    let session = Store::open(directory.path().join("store")).unwrap().create(&types()).unwrap();
    let handler = Arc::new(handler(directory.path()).with_snapshots());
    assert_eq!((handler.load(&request()).unwrap(), handler.wants_snapshots()), (None, true));
    handler.clear(&request()).unwrap();
    let first = Checkpoint::from_session(&session, true).unwrap();
    handler.save(&request(), &first).unwrap();
    // A reader during concurrent saves finds one complete checkpoint.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..50).for_each(|_| handler.save(&request(), &first).unwrap()));
        }
        for _ in 0..100 {
            assert_eq!(handler.load(&request()).unwrap().unwrap().position, first.position);
        }
    });
    // A process that was killed while saving has left a partial file.
    fs::write(directory.path().join("checkpoints/.review-1.json.1234"), "{").unwrap();
    assert!(handler.load(&request()).unwrap().is_some());
    handler.clear(&request()).unwrap();
    handler.clear(&request()).unwrap();
    assert_eq!(fs::read_dir(directory.path().join("checkpoints")).unwrap().count(), 0);
}
