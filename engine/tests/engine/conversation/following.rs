//! Reading a conversation while it is written.
//!
//! The loop used to read the whole conversation from the log for each request, so a turn cost as
//! much as all turns before it. Now it reads only new records. At each moment the result equals a
//! reading of the whole log.

use std::sync::{Arc, Mutex};

use foldlog::conversation::{NewAnswer, NewInput, NewRequest, PromptIdentity, Role, ToolCallRecord};
use foldlog::storage::{CrashKind, MemoryStorage, Op};
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    BackgroundSync, ConversationFollower, Durability, ExecutionState, Idempotency, ResourceRegistry,
    SequenceNumber, Session, SessionTypes, Settlement, Store, StoreOptions,
};
use proptest::prelude::*;
use proptest::sample::Index;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

const EVALUATIONS: [&str; 2] = ["one", "another"];

/// The actions of a call: it says something through its own handle, runs other calls, and ends.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Act {
    says: Option<usize>,
    within: Vec<Act>,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
enum End {
    Commit,
    Fail,
    Die,
}

struct Actor {
    disk: MemoryStorage,
    runner: Arc<Mutex<Option<ToolRunner>>>,
}

impl Tool for Actor {
    const NAME: &'static str = "act";
    type Parameters = Act;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Manual
    }

    fn call(&self, act: Act, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        if let Some(evaluation) = act.says {
            context
                .session()
                .conversation()
                .record_input(&NewInput::user(EVALUATIONS[evaluation], "said within a call"))?;
        }
        let runner = self.runner.lock().unwrap().clone().unwrap().within(context);
        for inner in &act.within {
            let inner = ToolCall::new(Actor::NAME, serde_json::to_string(inner).unwrap());
            runner.execute(&inner, &ExecuteOptions::default())?;
        }
        match act.end {
            End::Commit => Ok(ToolResult::ok("it is done", ())),
            End::Fail => Err(ToolError::failed("it is broken")),
            End::Die => {
                self.disk.crash(CrashKind::Process);
                Err(ToolError::failed("nobody hears of it"))
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Say { evaluation: usize, id: Option<u8> },
    Ask { evaluation: usize },
    Answer { evaluation: usize, calls: u32 },
    Run { evaluation: usize, call: Index, act: Act },
    Close { evaluation: usize, call: Index },
    Turn { evaluation: usize, complete: bool },
    Shorten { evaluation: usize, from: Index, to: Index },
    Accept { evaluation: usize },
    RollBack { to: Index },
    Settle { which: Index, how: u8 },
    Recover,
    Read,
}

fn acts() -> impl Strategy<Value = Act> {
    let end = || prop_oneof![4 => Just(End::Commit), 3 => Just(End::Fail), 1 => Just(End::Die)];
    let says = || prop::option::of(0..2usize);
    let leaf = (says(), end()).prop_map(|(says, end)| Act { says, within: Vec::new(), end });
    leaf.prop_recursive(3, 6, 2, move |inner| {
        (says(), prop::collection::vec(inner, 0..2), end()).prop_map(|(says, within, end)| Act {
            says,
            within,
            end,
        })
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let of = || prop_oneof![3 => Just(0), 1 => Just(1usize)];
    let call = any::<Index>;
    let step = prop_oneof![
        4 => (of(), prop::option::of(0..3u8)).prop_map(|(evaluation, id)| Step::Say { evaluation, id }),
        1 => of().prop_map(|evaluation| Step::Ask { evaluation }),
        4 => (of(), 0..4u32).prop_map(|(evaluation, calls)| Step::Answer { evaluation, calls }),
        6 => (of(), call(), acts()).prop_map(|(evaluation, call, act)| Step::Run { evaluation, call, act }),
        1 => (of(), call()).prop_map(|(evaluation, call)| Step::Close { evaluation, call }),
        2 => (of(), any::<bool>()).prop_map(|(evaluation, complete)| Step::Turn { evaluation, complete }),
        1 => (of(), call(), call()).prop_map(|(evaluation, from, to)| Step::Shorten { evaluation, from, to }),
        1 => of().prop_map(|evaluation| Step::Accept { evaluation }),
        3 => call().prop_map(|to| Step::RollBack { to }),
        3 => (call(), 0..3u8).prop_map(|(which, how)| Step::Settle { which, how }),
        1 => Just(Step::Recover),
        6 => Just(Step::Read),
    ];
    prop::collection::vec(step, 1..40)
}

/// A session that takes random steps, and the followers of its conversations.
struct Life {
    disk: MemoryStorage,
    id: Uuid,
    runner: ToolRunner,
    /// Read after every step.
    near: Vec<ConversationFollower>,
    /// Read now and then, so that much has changed in between.
    far: Vec<ConversationFollower>,
    answers: Vec<(usize, SequenceNumber, u32)>,
}

fn prompt(digest: u8) -> PromptIdentity {
    PromptIdentity { namespace: "reviews".to_owned(), key: "code".to_owned(), digest: [digest; 32] }
}

fn store(disk: &MemoryStorage) -> Store {
    let options = StoreOptions {
        storage: Arc::new(disk.process()),
        durability: Durability::Process,
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    Store::open_with("/store", options).unwrap()
}

fn types() -> SessionTypes {
    SessionTypes::builder().build().unwrap()
}

impl Life {
    fn begin() -> Life {
        let disk = MemoryStorage::new();
        let session = store(&disk).create(&types()).unwrap();
        for evaluation in EVALUATIONS {
            session.conversation().record_input(&NewInput::system(evaluation, "Review.", prompt(1))).unwrap();
        }
        Life::of(disk, &session)
    }

    fn of(disk: MemoryStorage, session: &Session) -> Life {
        let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build().unwrap());
        let own = Arc::default();
        let actor = Actor { disk: disk.clone(), runner: Arc::clone(&own) };
        let runner = ToolRunner::new(state, ToolRegistry::new().with(actor));
        *own.lock().unwrap() = Some(runner.clone());
        let followers = || EVALUATIONS.map(|one| session.conversation().follow(one)).into();
        Life { disk, id: session.id(), runner, near: followers(), far: followers(), answers: Vec::new() }
    }

    fn session(&self) -> &Session {
        self.runner.state().session()
    }

    /// Starts the next process, which recovers the session.
    fn reborn(&mut self) {
        let answers = std::mem::take(&mut self.answers);
        let session = store(&self.disk).open_session(self.id, &types()).unwrap();
        *self = Life { answers, ..Life::of(self.disk.clone(), &session) };
        self.check(true);
        let _ = self.runner.recover(&ExecuteOptions::default());
    }

    /// Whether the process lives, and its session takes records.
    fn lives(&self) -> bool {
        let evaluation_id = EVALUATIONS[1].to_owned();
        self.session()
            .conversation()
            .record_request(&NewRequest { evaluation_id, ..NewRequest::default() })
            .is_ok()
    }

    fn call(&self, evaluation: usize, call: Index) -> Option<(SequenceNumber, u32)> {
        let own = self.answers.iter().filter(|(of, ..)| *of == evaluation);
        let calls: Vec<_> =
            own.flat_map(|(_, answer, calls)| (0..*calls).map(|ordinal| (*answer, ordinal))).collect();
        (!calls.is_empty()).then(|| calls[call.index(calls.len())])
    }

    fn take(&mut self, step: Step) {
        let session = self.session().clone();
        let name = |evaluation: usize| EVALUATIONS[evaluation].to_owned();
        let next = session.log().position().unwrap().get() + 1;
        match step {
            Step::Say { evaluation, id } => {
                let input = NewInput::user(name(evaluation), "Go on.");
                let input = match id {
                    Some(id) => input.with_id(format!("id {id}")),
                    None => input,
                };
                session.conversation().record_input(&input).unwrap();
            }
            Step::Ask { evaluation } => {
                let evaluation_id = name(evaluation);
                session
                    .conversation()
                    .record_request(&NewRequest { evaluation_id, ..NewRequest::default() })
                    .unwrap();
            }
            Step::Answer { evaluation, calls } => {
                let call = |ordinal| ToolCallRecord {
                    call_id: format!("call {}", ordinal % 2),
                    name: Actor::NAME.to_owned(),
                    arguments: "{}".to_owned(),
                };
                let answer = session.conversation().record_answer(&NewAnswer {
                    evaluation_id: name(evaluation),
                    content: Some("Let me see.".to_owned()),
                    calls: (0..calls).map(call).collect(),
                    ..NewAnswer::default()
                });
                self.answers.push((evaluation, answer.unwrap(), calls));
            }
            Step::Run { evaluation, call, act } => {
                let Some((answer, ordinal)) = self.call(evaluation, call) else { return };
                let arguments = serde_json::to_string(&act).unwrap();
                let call = ToolCall::new(Actor::NAME, arguments).with_origin(answer, ordinal);
                let _ = self.runner.execute(&call, &ExecuteOptions::default());
            }
            Step::Close { evaluation, call } => {
                let Some((answer, ordinal)) = self.call(evaluation, call) else { return };
                let origin = foldlog::CallOrigin { answer, ordinal };
                let result = NewInput::tool_result(name(evaluation), origin, "call 0", "it ran elsewhere");
                session.conversation().record_input(&result).unwrap();
            }
            Step::Turn { evaluation, complete } => {
                let _ = session.conversation().record_turn(&name(evaluation), complete);
            }
            Step::Shorten { evaluation, from, to } => {
                let (from, to) = (from.index(next as usize) as u64, to.index(next as usize) as u64);
                let (from, to) = (from.min(to).into(), from.max(to).into());
                let messages = [(Role::User, "What was said before.".to_owned())];
                session
                    .conversation()
                    .record_shortened(&name(evaluation), from, to, &messages, "it is long")
                    .unwrap();
            }
            Step::Accept { evaluation } => {
                session
                    .conversation()
                    .accept_prompt(&name(evaluation), &prompt(1), &prompt(2), "a person", "so")
                    .unwrap();
            }
            Step::RollBack { to } => {
                // A rollback into a call is refused.
                let _ = session.rollback_to(to.index(next as usize) as u64);
            }
            Step::Settle { which, how } => {
                let unsettled = session.calls().unsettled_operations();
                if !unsettled.is_empty() {
                    let operation = unsettled[which.index(unsettled.len())].operation;
                    let how = match how {
                        0 => Settlement::failed(),
                        1 => Settlement::run_again(),
                        _ => Settlement::committed(None),
                    };
                    session.calls().settle(operation, &how, "a person", "so it is").unwrap();
                }
            }
            Step::Recover => {
                let _ = self.runner.recover(&ExecuteOptions::default());
            }
            Step::Read => self.check(true),
        }
        drop(session);
        // A process may also die during recovery, in a call that runs again.
        while !self.lives() {
            self.reborn();
        }
    }

    fn check(&mut self, far: bool) {
        let session = self.session().clone();
        let followers = self.near.iter_mut().chain(self.far.iter_mut().filter(|_| far));
        for follower in followers {
            let whole = session.conversation().read(follower.evaluation_id()).unwrap();
            assert_eq!(follower.read().unwrap(), whole.as_ref());
        }
    }
}

proptest! {
    #[test]
    fn what_a_follower_reads_is_at_each_moment_what_the_whole_log_says(steps in steps()) {
        let mut life = Life::begin();
        for step in steps {
            life.take(step);
            life.check(false);
        }
        life.check(true);
        // Another process finds the same from the records alone.
        let held = EVALUATIONS.map(|one| life.session().conversation().read(one).unwrap());
        let (disk, id) = (life.disk.clone(), life.id);
        drop(life);
        disk.crash(CrashKind::Process);
        let opened = store(&disk).open_session(id, &types()).unwrap();
        prop_assert_eq!(EVALUATIONS.map(|one| opened.conversation().read(one).unwrap()), held);
    }
}

/// Returns how often the disk was read for the messages of the last of these turns.
fn reads_of_a_request(turns: u32) -> usize {
    let mut life = Life::begin();
    let session = life.session().clone();
    let mut reads = 0;
    for _ in 0..turns {
        let evaluation_id = EVALUATIONS[0].to_owned();
        session.conversation().record_input(&NewInput::user(EVALUATIONS[0], "x".repeat(2_000))).unwrap();
        life.disk.take_trace();
        let held = life.near[0].read().unwrap().unwrap();
        reads = life.disk.take_trace().iter().filter(|(op, _)| *op == Op::Read).count();
        assert!(held.sent_messages().last().is_some_and(|last| last.role == Role::User));
        let content = Some("y".repeat(2_000));
        session
            .conversation()
            .record_answer(&NewAnswer { evaluation_id, content, ..NewAnswer::default() })
            .unwrap();
    }
    reads
}

/// A request after a thousand turns read 4 MB of log again.
#[test]
fn a_request_reads_what_its_turn_recorded_however_long_the_conversation_is() {
    let (early, late) = (reads_of_a_request(5), reads_of_a_request(1_000));
    assert!(late <= early + 2, "{early} reads in turn 5, {late} in turn 1,000");
}
