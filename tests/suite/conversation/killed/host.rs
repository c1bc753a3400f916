//! The host of these conversations: its tools, which record outside of any session that they ran,
//! and its provider.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use foldlog::conversation::ConversationMessage;
use foldlog::conversation::{Conversation, ResumePoint, Role};
use foldlog::tools::{
    ExecuteOptions, Question, Tool, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    Event, ExecutionState, Idempotency, ResourceRegistry, Session, SessionTypes, Settlement, Slice,
    SuspensionForm,
};
use foldlog_agent::pairing::{MessageFormat, PairingRule};
use foldlog_agent::pairing::{repair, validate};
use foldlog_agent::provider::ProviderAnswer;
use foldlog_agent::provider::rendering::{render_anthropic, render_openai};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply, ScriptedRequest};
use foldlog_agent::{
    Error, EvaluateOptions, MarkdownSection, Prompt, PromptResponse, ProviderAdapter, SectionVisibility,
    UserMessage,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::generated::Generated;
use super::rules::{self, Protocol};

pub(super) const EVALUATION: &str = "the evaluation";

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct Line {
    pub(super) text: String,
}

impl Event for Line {
    const NAME: &'static str = "line";
}

/// The lines that the tools have added: STATE.
pub(super) struct Page;

impl Slice for Page {
    const NAME: &'static str = "page";
    type Item = Line;
}

pub(super) fn types() -> SessionTypes {
    let builder = SessionTypes::builder().slice::<Page>().append_all::<Page>();
    foldlog_agent::events::declare(builder).build().unwrap()
}

/// Records requests and the work of tools in a file outside of any session.
#[derive(Clone, Debug)]
pub(super) struct Outside(pub(super) PathBuf);

impl Outside {
    fn note(&self, what: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0).unwrap();
        // A single write, so that a kill leaves all of it or nothing.
        file.write_all(format!("{}\n", what.escape_debug()).as_bytes()).unwrap();
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(&self.0).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    pub(super) fn times(&self, what: &str) -> usize {
        let what = what.escape_debug().to_string();
        self.lines().iter().filter(|line| **line == what).count()
    }

    /// Returns the numbers of the requested answers.
    pub(super) fn asked(&self) -> Vec<usize> {
        let asked = |line: &String| line.strip_prefix("asked ").map(|number| number.parse().unwrap());
        self.lines().iter().filter_map(asked).collect()
    }
}

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub(super) struct Asked {
    text: String,
    #[serde(default)]
    size: u64,
}

/// A tool that does what its name states.
struct Does<const WHAT: usize> {
    outside: Outside,
    /// Runs the calls of `delegate`.
    within: Option<ToolRunner>,
}

const LOOK: usize = 0;
const ADD: usize = 1;
const BREAK: usize = 2;
const MORE: usize = 3;
const BLANK: usize = 4;
const FETCH: usize = 5;
const DELEGATE: usize = 6;
const ASK: usize = 7;
const HAND: usize = 8;
const NAMES: [&str; 9] = ["look", "add", "break", "more", "blank", "fetch", "delegate", "ask", "hand"];

impl<const WHAT: usize> Tool for Does<WHAT> {
    const NAME: &'static str = NAMES[WHAT];
    type Parameters = Asked;
    type Output = ();

    fn reads_only(&self) -> bool {
        matches!(WHAT, LOOK | FETCH)
    }

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, asked: Asked, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        if WHAT == ASK && context.approval().is_none() {
            return Err(ToolError::Ask(Question::new(asked.text)));
        }
        self.outside.note(&format!("{} {}", Self::NAME, asked.text));
        let text = asked.text.clone();
        match WHAT {
            ADD | ASK => context.session().dispatch(Line { text: asked.text }).map(drop)?,
            BREAK => {
                context.session().dispatch(Line { text: asked.text })?;
                return Err(ToolError::failed(["it broke", ""][text.len() % 2]));
            }
            MORE => {
                let overrides = json!({ asked.text: "full" });
                return Err(ToolError::VisibilityExpansion {
                    overrides,
                    reason: "they are needed".to_owned(),
                });
            }
            HAND => {
                context.session().dispatch(Line { text: asked.text })?;
                return Ok(ToolResult::awaits(Question::new(text)));
            }
            DELEGATE => {
                let runner = self.within.as_ref().unwrap().within(context);
                for (number, tool) in (0..asked.size).zip(["add", "break", "look"]) {
                    let arguments = json!({ "text": format!("{text}/{number}") }).to_string();
                    runner.execute(
                        &foldlog::tools::ToolCall::new(tool, arguments),
                        &ExecuteOptions::default(),
                    )?;
                }
                context.session().dispatch(Line { text: asked.text }).map(drop)?;
            }
            _ => {}
        }
        let message = match WHAT {
            BLANK => String::new(),
            FETCH => "é".repeat(usize::try_from(asked.size).unwrap() / 2),
            _ => format!("done {text}"),
        };
        Ok(ToolResult::ok(message, ()))
    }
}

/// The output that the prompt demands.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Finding {
    pub(super) finding: String,
}

/// One process's view of a session, and the file outside of all processes.
pub(super) struct Host {
    pub(super) state: ExecutionState,
    pub(super) outside: Outside,
    pub(super) says: Arc<Generated>,
}

impl Host {
    pub(super) fn new(session: Session, outside: Outside, says: Arc<Generated>) -> Host {
        let state = ExecutionState::new(session, ResourceRegistry::builder().build().unwrap());
        Host { state, outside, says }
    }

    pub(super) fn session(&self) -> &Session {
        self.state.session()
    }

    fn tools(&self) -> ToolRegistry {
        let outside = || self.outside.clone();
        let inner = ToolRegistry::new()
            .with(Does::<LOOK> { outside: outside(), within: None })
            .with(Does::<ADD> { outside: outside(), within: None })
            .with(Does::<BREAK> { outside: outside(), within: None })
            .with(Does::<MORE> { outside: outside(), within: None })
            .with(Does::<BLANK> { outside: outside(), within: None })
            .with(Does::<FETCH> { outside: outside(), within: None })
            .with(Does::<ASK> { outside: outside(), within: None })
            .with(Does::<HAND> { outside: outside(), within: None });
        let within = Some(ToolRunner::new(self.state.clone(), inner.clone()));
        inner.with(Does::<DELEGATE> { outside: outside(), within })
    }

    pub(super) fn prompt(&self) -> Prompt<Finding> {
        Prompt::structured("story", "page")
            .with_section(MarkdownSection::new("task", "Write the page."))
            .with_section(
                MarkdownSection::new("details", "All the details.")
                    .with_summary("There are details.")
                    .with_visibility(SectionVisibility::Summary),
            )
            .with_tools(self.tools())
    }

    /// Recovers the session after the last process: with the host's tools, which run calls again,
    /// or without, like the binary. Returns whether that succeeded.
    pub(super) fn recover(&self, has_tools: bool) -> bool {
        let tools = if has_tools { self.tools() } else { ToolRegistry::new() };
        ToolRunner::new(self.state.clone(), tools).recover(&ExecuteOptions::default()).is_ok()
    }

    /// Evaluates until completion, and answers the tools' questions on the way, as a person would.
    pub(super) fn evaluate(&self, options: EvaluateOptions<'_>) -> Result<PromptResponse<Finding>, Error> {
        let cancel = options.cancel.clone();
        let mut done = self.evaluate_on(options);
        while let Err(Error::Suspended { .. }) = done {
            for asked in self.session().calls().pending_questions()? {
                let settlement = match asked.form {
                    SuspensionForm::Awaits => {
                        Settlement::committed(None).showing(format!("read {}", asked.question))
                    }
                    _ if asked.question.len() % 3 == 0 => Settlement::failed().showing("no"),
                    _ => Settlement::approved(asked.digest),
                };
                self.session().calls().settle(asked.operation, &settlement, "a person", "")?;
            }
            done = self.evaluate_on(EvaluateOptions { cancel: cancel.clone(), ..EvaluateOptions::default() });
        }
        done
    }

    fn evaluate_on(&self, options: EvaluateOptions<'_>) -> Result<PromptResponse<Finding>, Error> {
        let messages = vec![UserMessage { id: "task".to_owned(), text: "Write the page.".to_owned() }];
        let options = EvaluateOptions { evaluation_id: Some(EVALUATION.to_owned()), messages, ..options };
        let (says, outside) = (Arc::clone(&self.says), self.outside.clone());
        let provider = ScriptedProvider::from_fn(move |request| reply(&says, &outside, request));
        ProviderAdapter::new(provider).evaluate(&self.prompt(), &self.state, options)
    }

    pub(super) fn conversation(&self) -> Option<Conversation> {
        self.session().conversation().read(EVALUATION).unwrap()
    }

    pub(super) fn page(&self) -> Vec<String> {
        self.session().view::<Page>().unwrap().iter().map(|line| line.text.clone()).collect()
    }

    pub(super) fn point(&self) -> ResumePoint {
        self.session().conversation().resume(Some(EVALUATION)).unwrap().point
    }
}

/// Answers according to the number of answers in the conversation, so that a new process needs no
/// memory of an old one. Each answer has a nonce, and is counted outside.
fn reply(says: &Generated, outside: &Outside, request: &ScriptedRequest) -> ScriptedReply {
    let number = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
    check_valid(&request.messages, &format!("request {number}"));
    outside.note(&format!("asked {number}"));
    let nonce = Uuid::new_v4();
    let answer = &says.answers[number];
    let is_last = number + 1 == says.answers.len();
    let text = answer.text.clone().map(|text| match text.trim() {
        "" => text,
        _ if is_last => format!("{text} nonce {nonce}\"}}"),
        _ => format!("{text} nonce {nonce}"),
    });
    ScriptedReply::Answer(ProviderAnswer {
        content: text,
        calls: answer.calls.clone(),
        request_id: Some(nonce.to_string()),
        model: Some("scripted".to_owned()),
        ..ProviderAnswer::default()
    })
}

/// Checks that both providers would accept these messages: with the engine's validator, and with
/// independent rules for the rendered form.
pub(super) fn check_valid(messages: &[ConversationMessage], at: &str) {
    for dialect in [MessageFormat::OpenAi, MessageFormat::Anthropic] {
        // Rendering makes ids unique and leaves out texts without a character.
        let mut violations = validate(dialect, messages).err().unwrap_or_default();
        violations.retain(|violation| {
            !matches!(violation.rule, PairingRule::RepeatedId | PairingRule::EmptyContent)
        });
        assert!(violations.is_empty(), "{at}: {dialect:?} refuses {violations:?}");
    }
    check_rendered(messages, at);
}

fn check_rendered(messages: &[ConversationMessage], at: &str) {
    let openai: Value = serde_json::from_str(&render_openai(messages)).unwrap();
    let refused = rules::broken(Protocol::OpenAi, &json!({ "messages": openai }));
    assert_eq!(refused, None, "{at}: OpenAI's rules");
    let anthropic: Value = serde_json::from_str(&render_anthropic(messages)).unwrap();
    let refused = rules::broken(Protocol::Anthropic, &json!({ "max_tokens": 1, "messages": anthropic }));
    assert_eq!(refused, None, "{at}: Anthropic's rules");
}

/// Checks that any part of a conversation can be sent: unchanged if the provider is to be asked,
/// otherwise after a repair.
pub(super) fn check_sendable(conversation: &Conversation, point: &ResumePoint, at: &str) {
    let sent = conversation.sent_messages();
    if matches!(point, ResumePoint::AwaitProvider | ResumePoint::Complete) {
        check_valid(&sent, at);
    }
    for dialect in [MessageFormat::OpenAi, MessageFormat::Anthropic] {
        check_rendered(&repair(dialect, &sent).messages, at);
    }
}
