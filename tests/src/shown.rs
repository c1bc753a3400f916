//! Sessions for the tests of pages: a long history with everything, and one whose texts try to be
//! markup.

use foldlog::conversation::{
    ContentBlocks, NewAnswer, NewInput, NewRequest, NewRequestFailure, Role, ToolCallRecord,
};
use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions};
use foldlog::log::SegmentSizes;
use foldlog::tools::resources::BudgetTracker;
use foldlog::tools::{ExecuteOptions, ToolCall, ToolError, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{
    Durability, Error, Event, ExecutionState, FixedClock, ResourceRegistry, SequenceNumber, Session,
    SessionOptions, SessionTypes, SnapshotOptions, Store, StoreOptions,
};
use foldlog_agent::events::{self, PromptExecuted};
use foldlog_codec::body::TokenUsage;
use foldlog_tasks::{NewTask, TaskCreated, TaskId, TaskStatus, TaskStatusChanged, declare};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_test_support::host::{DraftEdited, Noted, StepAdded, types};

/// Text that runs if a page interprets it as markup anywhere: it sets `window.ran`.
pub const HOSTILE: &str = "</script><script>window.ran=1</script><img src=x onerror=\"window.ran=2\"><style>*{display:none}</style><!--";

/// Text that reverses the direction of the following text, and other invisible marks.
pub const UNSEEN: &str = "invoice\u{202e}fdp.exe\u{2066}\u{200b}\u{7}\u{2028}";

/// Part of a file's name that tries to be markup.
pub const HOSTILE_NAME: &str = "<img src=x onerror=window.ran=5>";

/// Text that no page without payloads may contain.
pub const SECRET: &str = "correct-horse-battery-staple";

/// An event whose name tries to be markup.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct Hostile {
    pub said: serde_json::Value,
}

impl Event for Hostile {
    const NAME: &'static str = "</script><script>window.ran=3</script>";
}

/// Draws numbers from a seed.
#[derive(Debug)]
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }
}

/// Opens the store in a directory, whose records have times a millisecond apart.
pub fn store(directory: &Path) -> Store {
    let options = StoreOptions {
        clock: Arc::new(FixedClock::with_step(1_767_323_045_000_006, 1_000)),
        seed: Some(7),
        durability: Durability::Process,
        // Several segments even for a short session, so that some of them are finished.
        segments: SegmentSizes { first_bytes: 16 << 10, max_bytes: 1 << 20, ahead_bytes_min: 0 },
        ..StoreOptions::default()
    };
    Store::open_with(directory, options).unwrap()
}

fn runner(session: &Session) -> ToolRunner {
    ToolRunner::new(ExecutionState::new(session.clone(), ResourceRegistry::default()), ToolRegistry::new())
}

/// Writes a session of `records` records and a few more, without rollbacks: steps, notes and lines
/// of a draft, with a snapshot after each thousand. Returns its directory.
pub fn long(store: &Store, records: u64) -> PathBuf {
    let session = store.create_with(&types(), SessionOptions::default().tag("task", "long")).unwrap();
    for number in 0..records {
        match number % 10 {
            0..6 => {
                session.dispatch(StepAdded { title: format!("step {number}"), part: (number % 100) as u8 })
            }
            6..9 => session.dispatch(Noted { text: format!("note {number}") }),
            _ => session
                .dispatch(DraftEdited { place: (number % 24) as usize, line: format!("line {number}") }),
        }
        .unwrap();
        if number % 1000 == 999 {
            session.snapshot(SnapshotOptions::default()).unwrap();
        }
    }
    let dir = session.dir().to_owned();
    session.close().unwrap();
    dir
}

/// Writes a session of at least `records` records: slices of every policy, a conversation with
/// calls that commit and fail, snapshots, and rollbacks, some of them to abandoned records. Returns
/// its directory.
pub fn history(store: &Store, records: u64, seed: u64) -> PathBuf {
    let session = store.create_with(&types(), SessionOptions::default().tag("task", "show")).unwrap();
    let runner = runner(&session);
    let mut numbers = Numbers(seed);
    let mut turn = 0;
    while session.log().position().map_or(0, |position| position.get()) < records {
        let number = numbers.below(1000);
        match number % 100 {
            0..45 => {
                let part = numbers.below(120) as u8;
                session.dispatch(StepAdded { title: format!("step {number}"), part }).unwrap();
            }
            45..70 => {
                session.dispatch(Noted { text: format!("note {number}: {SECRET}") }).unwrap();
            }
            70..90 => {
                let place = numbers.below(24) as usize;
                // Long enough to be worth dropping by a compaction.
                let line = if number.is_multiple_of(7) {
                    String::new()
                } else {
                    format!("line {number}{}", ", and on".repeat(20))
                };
                session.dispatch(DraftEdited { place, line }).unwrap();
            }
            90..97 => {
                turn += 1;
                talk(&session, &runner, turn, &mut numbers);
            }
            97 => {
                session.snapshot(SnapshotOptions::with_tag(format!("at {number}"))).unwrap();
            }
            98 => session.set_tag("mood", ["calm", "busy"][numbers.below(2) as usize]).map(drop).unwrap(),
            _ => {
                let position = session.log().position().unwrap().get();
                match session.rollback_to(position.saturating_sub(numbers.below(60))) {
                    // A rollback to a position within a call is refused.
                    Ok(_) | Err(Error::InsideTransaction { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
    let dir = session.dir().to_owned();
    session.close().unwrap();
    dir
}

fn talk(session: &Session, runner: &ToolRunner, turn: u64, numbers: &mut Numbers) {
    let asked = format!("Question {turn}: {SECRET}");
    session.conversation().record_input(&NewInput::new("talk", Role::User, asked)).unwrap();
    let call = |name: &str| ToolCallRecord {
        call_id: format!("call_{turn}_{name}"),
        name: name.to_owned(),
        arguments: format!(r#"{{"path": "{turn}.txt", "why": "{SECRET}"}}"#),
    };
    let answer = NewAnswer {
        evaluation_id: "talk".to_owned(),
        content: Some(format!("**I look** at `{turn}`.\n\n- one\n- two\n\n```rust\nfn main() {{}}\n```")),
        calls: vec![call("read"), call("write")],
        ..NewAnswer::default()
    };
    let answer = session.conversation().record_answer(&answer).unwrap();
    for (ordinal, name) in (0..).zip(["read", "write"]) {
        let call = ToolCall::new(name, format!(r#"{{"path": "{turn}.txt", "why": "{SECRET}"}}"#))
            .with_id(format!("call_{turn}_{name}"))
            .with_origin(answer, ordinal);
        let call = runner.begin(&call, &ExecuteOptions::default()).unwrap();
        call.context().session().dispatch(StepAdded { title: format!("{name} {turn}"), part: 121 }).unwrap();
        if numbers.below(6) == 0 {
            call.fail(ToolError::failed(format!("no such file: {SECRET}"))).unwrap();
        } else {
            call.end(ToolResult::ok(format!("the text: {SECRET}"), turn)).unwrap();
        }
    }
    session.conversation().record_turn("talk", false).unwrap();
}

/// The content of a workspace: texts by path.
pub type Files = BTreeMap<String, String>;

/// Writes a session whose calls change the files of a workspace in `directory`, some of them in
/// vain, and that is rolled back in between. Returns its directory, and the workspace's content at
/// each position, as far as captures show it.
pub fn edits(store: &Store, directory: &Path) -> (PathBuf, BTreeMap<u64, Files>) {
    std::fs::create_dir_all(directory.join("src")).unwrap();
    let session = store.create(&types()).unwrap();
    let files =
        HostFilesystem::open(directory, session.log().captures_dir(), HostFilesystemOptions::default())
            .unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    let runner = ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new());
    let mut numbers = Numbers(5);
    let (mut now, mut at, mut ends) = (Files::new(), BTreeMap::new(), Vec::new());
    for number in 0..14_u64 {
        let call = runner.begin(&ToolCall::new("edit", "{}"), &ExecuteOptions::default()).unwrap();
        let begin = session.log().position().unwrap().get();
        at.insert(begin, now.clone());
        let mut changed = now.clone();
        for _ in 0..2 {
            let path = format!("src/{}{HOSTILE_NAME}.txt", numbers.below(4));
            if numbers.below(4) == 0 {
                if changed.remove(&path).is_some() {
                    std::fs::remove_file(directory.join(&path)).unwrap();
                }
            } else {
                let text = format!("fn main() {{}}\n{number}: {SECRET}\n");
                std::fs::write(directory.join(&path), &text).unwrap();
                changed.insert(path, text);
            }
        }
        if number % 4 == 3 {
            call.fail(ToolError::failed("in vain")).unwrap();
        } else {
            call.end(ToolResult::ok("done", number)).unwrap();
            now = changed;
        }
        let end = session.log().position().unwrap().get();
        at.insert(end, now.clone());
        ends.push(end);
        if number == 9 {
            // The log goes back to an earlier capture; the directory stays, and the next call
            // captures it.
            let target = ends[ends.len() - 4];
            session.rollback_to(target).unwrap();
            let then = at.range(..=target).next_back().map(|(_, then)| then.clone()).unwrap_or_default();
            assert_ne!(then, now, "the rollback shows");
            at.insert(session.log().position().unwrap().get(), then);
        }
    }
    let dir = session.dir().to_owned();
    session.close().unwrap();
    (dir, at)
}

/// Writes a session whose names and texts try to be markup, to reverse the direction of writing, or
/// to be too large. Returns its directory.
pub fn hostile(store: &Store) -> PathBuf {
    let session = store.create_with(&types(), SessionOptions::default().tag(HOSTILE, HOSTILE)).unwrap();
    session.dispatch(Noted { text: HOSTILE.to_owned() }).unwrap();
    session.dispatch(Noted { text: UNSEEN.to_owned() }).unwrap();
    session
        .dispatch(Hostile { said: serde_json::json!({ HOSTILE: HOSTILE, "__proto__": { "polluted": 1 } }) })
        .unwrap();
    session.dispatch(DraftEdited { place: 0, line: "x".repeat(10 << 20) }).unwrap();
    let keys = (0..10_000).map(|key| (format!("key {key}"), serde_json::json!(key)));
    session.dispatch(Hostile { said: keys.collect::<serde_json::Map<_, _>>().into() }).unwrap();
    let blocks = serde_json::json!([
        { "type": "text", "text": HOSTILE },
        { "type": "image", "source": { "type": "url", "url": "https://example.com/tracker.png" } },
        { "type": "image", "source": { "media_type": "image/svg+xml", "data": "PHN2Zy8+" } },
    ]);
    let said = format!(
        "# {HOSTILE}\n\n[click](javascript:window.ran=4) ![x](https://example.com/x.png)\n\n{UNSEEN}"
    );
    let input = NewInput {
        blocks: Some(ContentBlocks { format: "anthropic".to_owned(), json: blocks.to_string() }),
        ..NewInput::new(HOSTILE, Role::User, said)
    };
    session.conversation().record_input(&input).unwrap();
    let runner = runner(&session);
    let call = ToolCall::new(HOSTILE, format!("{{\"{UNSEEN}\": 1}}")).with_id(HOSTILE);
    let call = runner.begin(&call, &ExecuteOptions::default()).unwrap();
    call.end(ToolResult::ok(HOSTILE, HOSTILE)).unwrap();
    session.snapshot(SnapshotOptions::with_tag(HOSTILE)).unwrap();
    let dir = session.dir().to_owned();
    session.close().unwrap();
    dir
}

/// Writes a session of tasks, some with parts, that are worked on, fail, and are rolled back; a
/// conversation that used tokens and whose first messages a summary replaces for the provider; and
/// a fork with its own records. Returns the two directories.
pub fn work(store: &Store) -> (PathBuf, PathBuf) {
    let types = declare(SessionTypes::builder()).build().unwrap();
    let session = store.create(&types).unwrap();
    let id = |name: &str| TaskId::new(name).unwrap();
    let create = |task: NewTask| session.dispatch(TaskCreated { task }).unwrap();
    let change = |name: &str, old_status, new_status, reason: Option<&str>| {
        let reason = reason.map(str::to_owned);
        session.dispatch(TaskStatusChanged { task_id: id(name), old_status, new_status, reason }).unwrap()
    };
    use TaskStatus::{Blocked, Completed, Failed, InProgress, Pending};
    create(NewTask::new(id("site"), format!("Build the site {SECRET}")));
    create(NewTask::new(id("pages"), "Write the pages").with_parent(id("site")));
    let (first_input, _) = say(&session, 1);
    create(NewTask::new(id("front"), HOSTILE).with_parent(id("pages")));
    create(NewTask::new(id("logo"), UNSEEN).with_parent(id("site")));
    create(NewTask { priority: 3, ..NewTask::new(id("ship"), "Ship it").requires(id("pages")) });
    create(NewTask::new(id("bill"), "Send the bill"));
    change("bill", Pending, Blocked, Some("nobody knows the price"));
    change("site", Pending, InProgress, None);
    change("pages", Pending, InProgress, None);
    let (_, second_turn) = say(&session, 2);
    let summary = (Role::User, format!("Twice it was asked. {SECRET}"));
    session
        .conversation()
        .record_shortened("talk", first_input, second_turn, &[summary], "it was long")
        .unwrap();
    let (_, kept) = say(&session, 3);
    change("pages", InProgress, Failed, Some("the disk is full"));
    session.rollback_to(kept).unwrap();
    change("front", Pending, InProgress, None);
    change("front", InProgress, Completed, None);
    let summary = (Role::User, "Nothing of it counts.".to_owned());
    let (third_input, third_turn) = say(&session, 4);
    session
        .conversation()
        .record_shortened("talk", third_input, third_turn, &[summary], "it was wrong")
        .unwrap();
    session.rollback_to(third_input.saturating_sub(1)).unwrap();
    change("pages", InProgress, Completed, None);
    say(&session, 5);
    let (dir, parent, at) = (session.dir().to_owned(), session.id(), session.log().position().unwrap());
    session.close().unwrap();
    let fork = store.fork(parent, at.saturating_sub(4), &types, SessionOptions::default()).unwrap();
    fork.dispatch(TaskStatusChanged {
        task_id: id("logo"),
        old_status: Pending,
        new_status: InProgress,
        reason: None,
    })
    .unwrap();
    let own = fork.dir().to_owned();
    fork.close().unwrap();
    (dir, own)
}

/// Writes a session whose providers report their usage, and one of them its cost, and whose calls
/// spend more, as their tracker records. It has answers of two models, a failed request, calls that
/// make requests (one of them nested), a failed call, an evaluation without a recorded
/// conversation, and an abandoned one. Returns its directory.
pub fn spending(store: &Store) -> PathBuf {
    let session = store.create(&events::declare(SessionTypes::builder()).build().unwrap()).unwrap();
    let budget = Arc::new(BudgetTracker::default());
    let resources = ResourceRegistry::builder().snapshotable(Arc::clone(&budget)).build().unwrap();
    let runner = ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new());
    let asked = |model: &str| {
        let (evaluation_id, model) = ("main".to_owned(), Some(model.to_owned()));
        session
            .conversation()
            .record_request(&NewRequest { evaluation_id, attempt: 1, model, ..NewRequest::default() })
            .unwrap()
    };
    let answered = |session: &Session, evaluation: &str, request, model: Option<&str>, usage: TokenUsage| {
        let (evaluation_id, model) = (evaluation.to_owned(), model.map(str::to_owned));
        let content = Some(format!("It is {SECRET}."));
        let (usage, rest) = (Some(usage), NewAnswer::default());
        session
            .conversation()
            .record_answer(&NewAnswer { evaluation_id, request, content, model, usage, ..rest })
            .unwrap()
    };
    let used = |input, output| TokenUsage { input, output, ..TokenUsage::default() };
    session.conversation().record_input(&NewInput::new("main", Role::User, "How much is it?")).unwrap();
    let cached = TokenUsage { cache_read: 5, cache_write: 1, ..used(100, 10) };
    answered(&session, "main", Some(asked("small")), None, cached);
    let failure = NewRequestFailure::new("main", asked("large"), "cut", "the line broke");
    session
        .conversation()
        .record_request_failure(&NewRequestFailure { usage: Some(used(50, 0)), ..failure })
        .unwrap();
    let answer = answered(&session, "main", Some(asked("large")), Some("large-2"), used(200, 20));
    let begin = |runner: &ToolRunner, tool: &str| {
        runner.begin(&ToolCall::new(tool, r#"{"of": "it"}"#), &ExecuteOptions::default()).unwrap()
    };
    let spend = |input_tokens, output_tokens, cost_micros| {
        budget
            .record("helper", foldlog::tools::resources::Usage { input_tokens, output_tokens, cost_micros });
    };
    let call = begin(&runner, "research");
    answered(call.context().session(), "helper", None, Some("small"), used(900, 90));
    spend(1000, 100, 2500);
    call.end(ToolResult::ok("much", 1)).unwrap();
    let call = begin(&runner, "research");
    let within = begin(&runner.within(call.context()), "lookup");
    answered(within.context().session(), "helper", None, Some("small"), used(7, 3));
    spend(10, 1, 700);
    within.end(ToolResult::ok("more", 2)).unwrap();
    call.end(ToolResult::ok("most", 3)).unwrap();
    begin(&runner, "read").fail(ToolError::failed("no such file")).unwrap();
    let executed = |evaluation: &str, answer, model: Option<&str>, (input, output), cost| PromptExecuted {
        evaluation_id: evaluation.to_owned(),
        prompt_ns: "shown".to_owned(),
        prompt_key: "spending".to_owned(),
        adapter: "stand-in".to_owned(),
        model: model.map(str::to_owned),
        answer,
        text: answer.is_none().then(|| SECRET.to_owned()),
        requests: 1,
        tool_calls: 0,
        input_tokens: input,
        output_tokens: output,
        cache_read_tokens: 0,
        cost_micros: cost,
        elapsed_us: 9,
        is_resume: false,
    };
    session.dispatch(executed("main", Some(answer), Some("large-2"), (350, 30), Some(12_500))).unwrap();
    let kept = session.log().position().unwrap();
    session.dispatch(executed("unrecorded", None, None, (30, 3), None)).unwrap();
    session.rollback_to(kept).unwrap();
    let dir = session.dir().to_owned();
    session.close().unwrap();
    dir
}

/// Writes two sessions that are equal until each records a large text, stored in an object, of
/// whose lines one differs. Returns the directory of the first.
pub fn parting(store: &Store) -> PathBuf {
    let dirs = ["here", "there"].map(|end| {
        let session = store.create(&types()).unwrap();
        session.dispatch(StepAdded { title: "read".to_owned(), part: 1 }).unwrap();
        let line = |number| format!("line {number}{}", ", and on".repeat(20));
        let lines: Vec<String> =
            (0..600).map(|at| if at == 300 { end.to_owned() } else { line(at) }).collect();
        session.dispatch(Noted { text: lines.join("\n") }).unwrap();
        let dir = session.dir().to_owned();
        session.close().unwrap();
        dir
    });
    let [first, _] = dirs;
    first
}

/// Records a question and its answer, which used tokens. Returns the two records.
fn say(session: &Session, turn: u64) -> (SequenceNumber, SequenceNumber) {
    let asked = session
        .conversation()
        .record_input(&NewInput::new("talk", Role::User, format!("Question {turn}")))
        .unwrap();
    let answer = NewAnswer {
        evaluation_id: "talk".to_owned(),
        content: Some(format!("Answer {turn}: {SECRET}")),
        usage: Some(TokenUsage {
            input: 1000 * turn,
            output: 70 * turn,
            cache_read: 10,
            ..TokenUsage::default()
        }),
        ..NewAnswer::default()
    };
    (asked, session.conversation().record_answer(&answer).unwrap())
}
