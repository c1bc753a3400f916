//! Shared by the tests of conversations: a session on a disk in memory, tools, and a provider's
//! script.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use foldlog::conversation::{ConversationMessage, Role, ToolCallRecord};
use foldlog::storage::{CrashKind, MemoryStorage};
use foldlog::tools::{
    ExecuteOptions, Question, Tool, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    BackgroundSync, Durability, Event, ExecutionState, FixedClock, Idempotency, RecordKind, ResourceRegistry,
    Session, SessionTypes, Slice, Store, StoreOptions,
};
use foldlog_agent::events;
use foldlog_agent::pairing::{MessageFormat, PairingRule, validate};
use foldlog_agent::provider::ProviderAnswer;
use foldlog_agent::provider::retry::RetryPolicy;
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply, ScriptedRequest};
use foldlog_agent::{LoopLimits, MarkdownSection, Prompt, ProviderAdapter, SectionVisibility};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Line {
    pub(crate) text: String,
}

impl Event for Line {
    const NAME: &'static str = "line";
}

/// The lines that the tool `add` has added: STATE.
pub(crate) struct Page;

impl Slice for Page {
    const NAME: &'static str = "page";
    type Item = Line;
}

pub(crate) fn types() -> SessionTypes {
    let builder = SessionTypes::builder().slice::<Page>().append_all::<Page>();
    events::declare(builder).build().unwrap()
}

/// Counts the runs of tools in a file outside of every session.
#[derive(Clone)]
pub(crate) struct Ran(pub(crate) Arc<tempfile::NamedTempFile>);

impl Ran {
    pub(crate) fn new() -> Ran {
        Ran(Arc::new(tempfile::NamedTempFile::new().unwrap()))
    }

    fn note(&self, what: &str) {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new().append(true).open(self.path()).unwrap();
        file.write_all(format!("{what}\n").as_bytes()).unwrap();
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        std::fs::read_to_string(self.path()).unwrap().lines().map(str::to_owned).collect()
    }

    pub(crate) fn times(&self, what: &str) -> usize {
        self.lines().iter().filter(|line| *line == what).count()
    }
}

pub(crate) struct Add(pub(crate) Ran, pub(crate) Idempotency);

impl Tool for Add {
    const NAME: &'static str = "add";
    type Parameters = Line;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        self.1
    }

    fn call(&self, line: Line, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        self.0.note(&format!("add {}", line.text.escape_debug()));
        let message = format!("added {}", line.text);
        context.session().dispatch(line)?;
        Ok(ToolResult::ok(message, ()))
    }
}

pub(crate) struct Look(pub(crate) Ran);

impl Tool for Look {
    const NAME: &'static str = "look";
    type Parameters = Line;
    type Output = ();

    fn reads_only(&self) -> bool {
        true
    }

    fn call(&self, line: Line, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        self.0.note(&format!("look {}", line.text.escape_debug()));
        Ok(ToolResult::ok(format!("saw {}", line.text), ()))
    }
}

/// Adds a line, and fails.
pub(crate) struct Break(pub(crate) Ran);

impl Tool for Break {
    const NAME: &'static str = "break";
    type Parameters = Line;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, line: Line, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        self.0.note(&format!("break {}", line.text.escape_debug()));
        context.session().dispatch(line)?;
        Err(ToolError::failed("it broke"))
    }
}

/// Requests the details of the prompt.
pub(crate) struct More(pub(crate) Ran);

impl Tool for More {
    const NAME: &'static str = "more";
    type Parameters = Line;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, line: Line, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        self.0.note(&format!("more {}", line.text.escape_debug()));
        let overrides = serde_json::json!({ line.text: "full" });
        Err(ToolError::VisibilityExpansion { overrides, reason: "the details are needed".to_owned() })
    }
}

/// Adds a line once it is approved.
pub(crate) struct Ask(pub(crate) Ran);

impl Tool for Ask {
    const NAME: &'static str = "ask";
    type Parameters = Line;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, line: Line, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        context.session().dispatch(line.clone())?;
        let Some(approval) = context.approval() else {
            return Err(ToolError::Ask(Question::new(format!("Add {}?", line.text))));
        };
        self.0.note(&format!("ask {}", line.text.escape_debug()));
        Ok(ToolResult::ok(format!("added {}, as {} agreed", line.text, approval.by), ()))
    }
}

/// Adds a line, and leaves its result to a person.
pub(crate) struct Hand(pub(crate) Ran);

impl Tool for Hand {
    const NAME: &'static str = "hand";
    type Parameters = Line;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, line: Line, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        self.0.note(&format!("hand {}", line.text.escape_debug()));
        let question = Question::new(format!("Read {}.", line.text));
        context.session().dispatch(line)?;
        Ok(ToolResult::awaits(question))
    }
}

pub(crate) fn tools(ran: &Ran, idempotency: Idempotency) -> ToolRegistry {
    ToolRegistry::new()
        .with(Add(ran.clone(), idempotency))
        .with(Look(ran.clone()))
        .with(Break(ran.clone()))
        .with(More(ran.clone()))
        .with(Ask(ran.clone()))
        .with(Hand(ran.clone()))
}

pub(crate) fn prompt_of(tools: ToolRegistry) -> Prompt<String> {
    prompt_in("story", tools)
}

/// The same prompt in another namespace.
pub(crate) fn prompt_in(namespace: &str, tools: ToolRegistry) -> Prompt<String> {
    Prompt::text(namespace, "page")
        .with_section(MarkdownSection::new("task", "Write the page."))
        .with_section(
            MarkdownSection::new("details", "All the details.")
                .with_summary("There are details.")
                .with_visibility(SectionVisibility::Summary),
        )
        .with_tools(tools)
}

/// A disk with one session, whose processes can be killed.
pub(crate) struct Desk {
    pub(crate) disk: MemoryStorage,
    pub(crate) id: Uuid,
    pub(crate) state: ExecutionState,
    pub(crate) ran: Ran,
    pub(crate) idempotency: Idempotency,
    pub(crate) durability: Durability,
}

fn store_of(disk: &MemoryStorage, durability: Durability) -> Store {
    let options = StoreOptions {
        storage: Arc::new(disk.process()),
        clock: Arc::new(FixedClock::with_step(1_767_322_800_000_000, 1_000)) as _,
        seed: Some(1),
        durability,
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    Store::open_with("/store", options).unwrap()
}

pub(crate) fn state_of(session: Session) -> ExecutionState {
    ExecutionState::new(session, ResourceRegistry::builder().build().unwrap())
}

impl Desk {
    pub(crate) fn new() -> Desk {
        Desk::with(Idempotency::Natural)
    }

    pub(crate) fn with(idempotency: Idempotency) -> Desk {
        Desk::at(idempotency, Durability::Process)
    }

    pub(crate) fn at(idempotency: Idempotency, durability: Durability) -> Desk {
        let disk = MemoryStorage::new();
        let session = store_of(&disk, durability).create(&types()).unwrap();
        Desk { id: session.id(), disk, state: state_of(session), ran: Ran::new(), idempotency, durability }
    }

    pub(crate) fn session(&self) -> &Session {
        self.state.session()
    }

    /// The store, in the present process.
    pub(crate) fn store(&self) -> Store {
        store_of(&self.disk, self.durability)
    }

    pub(crate) fn tools(&self) -> ToolRegistry {
        tools(&self.ran, self.idempotency)
    }

    pub(crate) fn prompt(&self) -> Prompt<String> {
        prompt_of(self.tools())
    }

    pub(crate) fn runner(&self) -> ToolRunner {
        ToolRunner::new(self.state.clone(), self.tools())
    }

    /// Opens the session in a new process, and recovers its open calls.
    pub(crate) fn reopen(&mut self) {
        self.open();
        let recovered = self.runner().recover(&ExecuteOptions::default()).unwrap();
        drop(recovered);
    }

    /// Opens the session in a new process.
    pub(crate) fn open(&mut self) {
        self.disk.crash(CrashKind::Process);
        self.state = state_of(store_of(&self.disk, self.durability).open_session(self.id, &types()).unwrap());
    }

    /// Kills the process after `records` more records.
    pub(crate) fn kill_behind(&self, records: u64) {
        self.crash_behind(records, CrashKind::Process);
    }

    /// Ends the process, or the power, after `records` more records.
    pub(crate) fn crash_behind(&self, records: u64, crash: CrashKind) {
        let (disk, left) = (self.disk.clone(), AtomicU64::new(records));
        let _ = self.session().log().subscribe(move |_| {
            if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                disk.crash(crash);
            }
        });
    }

    pub(crate) fn page(&self) -> Vec<String> {
        self.session().view::<Page>().unwrap().iter().map(|line| line.text.clone()).collect()
    }

    /// Returns the names of the records' kinds, from the first record of a conversation on.
    pub(crate) fn kinds(&self) -> Vec<&'static str> {
        let mut kinds = Vec::new();
        let last = self.session().log().position().unwrap();
        self.session()
            .log()
            .records(0, last, |record| {
                kinds.push(record.kind.name());
                Ok(())
            })
            .unwrap();
        let first = kinds.iter().position(|kind| *kind == RecordKind::Input.name()).unwrap_or(kinds.len());
        kinds.drain(first..).filter(|kind| *kind != "declare" && *kind != "dispatch").collect()
    }

    pub(crate) fn sent(&self, evaluation: &str) -> Vec<Said> {
        self.session()
            .conversation()
            .read(evaluation)
            .unwrap()
            .unwrap()
            .sent_messages()
            .iter()
            .map(Said::of)
            .collect()
    }
}

/// A message without its time, its id and its answer's nonce.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Said {
    pub(crate) role: Role,
    pub(crate) content: Option<String>,
    pub(crate) calls: Vec<ToolCallRecord>,
    pub(crate) call_id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) is_error: bool,
}

impl Said {
    pub(crate) fn of(message: &ConversationMessage) -> Said {
        let plain = |text: &String| text.split(" nonce ").next().unwrap_or_default().to_owned();
        Said {
            role: message.role,
            content: message.content.as_ref().map(plain),
            calls: message.tool_calls.clone(),
            call_id: message.tool_call_id.clone(),
            name: message.name.clone(),
            is_error: message.is_error,
        }
    }
}

/// Returns the note that a tool writes when it runs for this call. Line breaks would split the
/// note.
pub(crate) fn noted(call: &ToolCallRecord) -> String {
    let arguments: Line = serde_json::from_str(&call.arguments).unwrap();
    format!("{} {}", call.name, arguments.text.escape_debug())
}

/// One answer of a script: a text, and calls by id, tool and the tool's argument `text`.
pub(crate) type Scripted = (&'static str, Vec<(&'static str, &'static str, &'static str)>);

/// Answers by the number of answers in the conversation, so that a new process needs no memory of
/// the old one. Each answer has a nonce, and is noted.
#[derive(Clone, Default)]
pub(crate) struct Script {
    pub(crate) answers: Arc<Vec<(String, Vec<ToolCallRecord>)>>,
    pub(crate) asked: Arc<Mutex<Vec<usize>>>,
    /// Whether OpenAI and Anthropic would have to accept every request.
    pub(crate) checks: bool,
}

impl Script {
    pub(crate) fn new(answers: Vec<Scripted>) -> Script {
        let call = |(id, name, text): (&str, &str, &str)| ToolCallRecord {
            call_id: id.to_owned(),
            name: name.to_owned(),
            arguments: serde_json::json!({ "text": text }).to_string(),
        };
        let answer = |(text, calls): Scripted| (text.to_owned(), calls.into_iter().map(call).collect());
        Script::of(answers.into_iter().map(answer).collect())
    }

    pub(crate) fn of(answers: Vec<(String, Vec<ToolCallRecord>)>) -> Script {
        Script { answers: Arc::new(answers), ..Script::default() }
    }

    pub(crate) fn checked(self) -> Script {
        Script { checks: true, ..self }
    }

    pub(crate) fn asked(&self) -> Vec<usize> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn provider(&self) -> ScriptedProvider {
        let script = self.clone();
        ScriptedProvider::from_fn(move |request| script.reply(request))
    }

    pub(crate) fn adapter(&self) -> ProviderAdapter<ScriptedProvider> {
        ProviderAdapter::new(self.provider()).with_limits(limits())
    }

    fn reply(&self, request: &ScriptedRequest) -> ScriptedReply {
        let at = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
        self.asked.lock().unwrap().push(at);
        for format in [MessageFormat::OpenAi, MessageFormat::Anthropic].into_iter().filter(|_| self.checks) {
            // Ids are made unique when the messages are rendered.
            let mut violations = validate(format, &request.messages).err().unwrap_or_default();
            violations.retain(|violation| violation.rule != PairingRule::RepeatedId);
            assert!(violations.is_empty(), "{format:?} refuses request {at}: {violations:?}");
        }
        let (text, calls) = &self.answers[at];
        ScriptedReply::Answer(ProviderAnswer {
            content: Some(format!("{text} nonce {}", Uuid::new_v4())),
            calls: calls.clone(),
            usage: Some(foldlog::conversation::TokenUsage { input: 10, output: 5, ..Default::default() }),
            model: Some("scripted".to_owned()),
            stop: Some("stop".to_owned()),
            ..ProviderAnswer::default()
        })
    }
}

/// The default limits, without a wait before a retry.
pub(crate) fn limits() -> LoopLimits {
    let retry = RetryPolicy { base: std::time::Duration::ZERO, ..RetryPolicy::default() };
    LoopLimits { retry, ..LoopLimits::default() }
}
