//! A host that plays a recorded run of tau-bench as a conversation: with a provider that returns
//! the run's answers, and tools that return its results.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldlog::conversation::ToolCallRecord;
use foldlog::tools::{Tool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog::{Event, ExecutionState, Idempotency, ResourceRegistry, Session, SessionTypes, Slice, SliceOp};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::provider::{
    CancelToken, LlmConfig, PreparedRequest, Provider, ProviderAnswer, ProviderError, ProviderRequest,
    SendOptions,
};
use foldlog_agent::{Error, EvaluateOptions, MarkdownSection, Prompt, ProviderAdapter, UserMessage};
use serde::{Deserialize, Serialize};

/// The name of the evaluation.
pub const HELD: &str = "held";

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Called {
    tool: String,
}

impl Event for Called {
    const NAME: &'static str = "called";
}

/// Calls of tools that did not fail: STATE.
struct Calls;

impl Slice for Calls {
    const NAME: &'static str = "calls";
    type Item = Called;
}

/// A turn is over.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Turned {
    number: u64,
}

impl Event for Turned {
    const NAME: &'static str = "turned";
}

/// The number of each turn: STATE.
struct Turns;

impl Slice for Turns {
    const NAME: &'static str = "turns";
    type Item = u64;
}

/// Returns the host's types. If `changed` names a turn, the reducer of turns counts that turn
/// differently.
pub fn types(changed: Option<u64>) -> SessionTypes {
    let builder = SessionTypes::builder()
        .slice::<Calls>()
        .append_all::<Calls>()
        .slice::<Turns>()
        .reducer::<Turns, Turned>(move |_, turned, _| {
            Ok(SliceOp::Append(if changed == Some(turned.number) { 0 } else { turned.number }))
        });
    foldlog_agent::events::declare(builder).build().unwrap()
}

/// A message of the file.
#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    content: Option<String>,
    tool_calls: Option<Vec<Call>>,
}

#[derive(Debug, Deserialize)]
struct Call {
    id: String,
    function: Function,
}

#[derive(Debug, Deserialize)]
struct Function {
    name: String,
    arguments: String,
}

#[derive(Debug, Deserialize)]
struct Recorded {
    traj: Vec<Message>,
}

/// A user's text, and the messages until the next one.
#[derive(Clone, Debug)]
pub struct Part {
    pub said: String,
    /// The number of the following answers.
    pub answers: usize,
}

/// One run of the file.
#[derive(Debug)]
pub struct Run {
    policy: String,
    /// The user's texts, in order.
    pub parts: Vec<Part>,
    /// The model's answers, in order.
    pub answers: Vec<ProviderAnswer>,
    results: Vec<String>,
    /// Role and text of each message after the policy.
    pub said: Vec<(String, Option<String>)>,
    /// The number of requests to the provider.
    pub asked: AtomicU64,
    /// The number of tool runs.
    pub ran: AtomicU64,
}

/// Reads the runs of a file of tau-bench.
///
/// # Panics
///
/// If the file cannot be read, or has other content.
pub fn runs(file: &Path) -> Vec<Arc<Run>> {
    let recorded: Vec<Recorded> = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    recorded.into_iter().map(|recorded| Arc::new(Run::of(recorded))).collect()
}

impl Run {
    fn of(recorded: Recorded) -> Run {
        let mut run = Run {
            policy: String::new(),
            parts: Vec::new(),
            answers: Vec::new(),
            results: Vec::new(),
            said: Vec::new(),
            asked: AtomicU64::new(0),
            ran: AtomicU64::new(0),
        };
        for Message { role, content, tool_calls } in recorded.traj {
            if role == "system" {
                run.policy = content.unwrap();
                continue;
            }
            run.said.push((role.clone(), content.clone()));
            match role.as_str() {
                "user" => run.parts.push(Part { said: content.unwrap(), answers: 0 }),
                "tool" => run.results.push(content.unwrap()),
                _ => {
                    let calls = tool_calls.unwrap_or_default().into_iter().map(|call| ToolCallRecord {
                        call_id: call.id,
                        name: call.function.name,
                        arguments: call.function.arguments,
                    });
                    let calls = calls.collect();
                    run.answers.push(ProviderAnswer { content, calls, ..ProviderAnswer::default() });
                    run.parts.last_mut().unwrap().answers += 1;
                }
            }
        }
        run
    }

    /// Returns the names of the called tools, in the order of their calls.
    pub fn tools(&self) -> Vec<&str> {
        self.answers.iter().flat_map(|answer| &answer.calls).map(|call| call.name.as_str()).collect()
    }
}

/// The tools of the file's airline.
const NAMES: [&str; 14] = [
    "book_reservation",
    "calculate",
    "cancel_reservation",
    "get_reservation_details",
    "get_user_details",
    "list_all_airports",
    "search_direct_flight",
    "search_onestop_flight",
    "send_certificate",
    "think",
    "transfer_to_human_agents",
    "update_reservation_baggages",
    "update_reservation_flights",
    "update_reservation_passengers",
];

/// A tool that returns the next result of the run.
struct Gives<const NAME: usize> {
    run: Arc<Run>,
    idempotency: Idempotency,
}

impl<const NAME: usize> Tool for Gives<NAME> {
    const NAME: &'static str = NAMES[NAME];
    type Parameters = serde_json::Value;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        self.idempotency
    }

    fn call(&self, _: serde_json::Value, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let number = self.run.ran.fetch_add(1, Ordering::Relaxed);
        context.session().dispatch(Called { tool: Self::NAME.to_owned() })?;
        let result = &self.run.results[number as usize];
        match result.starts_with("Error") {
            true => Err(ToolError::failed(result)),
            false => Ok(ToolResult::ok(result, ())),
        }
    }
}

/// A provider that claims to request another model.
struct Model(ScriptedProvider, &'static str);

impl Provider for Model {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> {
        Ok(PreparedRequest { model: self.1.to_owned(), ..self.0.prepare(request)? })
    }

    fn send(
        &self,
        prepared: &PreparedRequest,
        options: &mut SendOptions<'_>,
    ) -> Result<ProviderAnswer, Box<ProviderError>> {
        self.0.send(prepared, options)
    }
}

/// A change of the host's code. The number is the part of the run at which, or from which on, it
/// applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Policy,
    Title,
    /// Leaves out a tool that the run does not call.
    ToolSet,
    /// All tools may run again.
    Idempotency,
    /// Requests another temperature.
    Temperature(usize),
    /// Requests another model.
    Model(usize),
    /// The user's text differs.
    Said(usize),
    /// The user's text is missing.
    Unsaid(usize),
    /// The user says something more.
    SaidMore(usize),
    /// This text of the user and the next one are exchanged.
    Swapped(usize),
    /// The clock is read once more.
    ClockRead(usize),
    Tagged(usize),
    /// The conversation is abandoned after the first answer.
    GivesUp(usize),
    /// A reducer counts the last turn differently. Only the [types] change.
    Reducer,
}

impl Run {
    fn tools_of(self: &Arc<Run>, change: Option<&Change>) -> ToolRegistry {
        let idempotency = match change {
            Some(Change::Idempotency) => Idempotency::Natural,
            _ => Idempotency::Manual,
        };
        let called = self.tools();
        let left_out = NAMES.iter().find(|name| change == Some(&Change::ToolSet) && !called.contains(name));
        let mut tools = ToolRegistry::new();
        macro_rules! add {
            ($($name:literal)*) => {
                $(if left_out != Some(&NAMES[$name]) {
                    tools = tools.with(Gives::<$name> { run: Arc::clone(self), idempotency });
                })*
            };
        }
        add!(0 1 2 3 4 5 6 7 8 9 10 11 12 13);
        tools
    }

    fn prompt(self: &Arc<Run>, change: Option<&Change>) -> Prompt {
        let title = if change == Some(&Change::Title) { "Policies" } else { "Policy" };
        let policy = match change {
            Some(Change::Policy) => format!("{} Be kind.", self.policy),
            _ => self.policy.clone(),
        };
        let section = MarkdownSection::new("policy", "${policy}").with_title(title);
        Prompt::text("tau", "airline")
            .with_section(section.with_parameter("policy", policy))
            .with_tools(self.tools_of(change))
    }

    fn adapter(self: &Arc<Run>, part: usize, change: Option<&Change>) -> ProviderAdapter<Model> {
        let run = Arc::clone(self);
        let provider = ScriptedProvider::from_fn(move |_| {
            let number = run.asked.fetch_add(1, Ordering::Relaxed);
            ScriptedReply::Answer(run.answers[number as usize].clone())
        });
        let is_since = |from: &usize| part >= *from;
        let model = match change {
            Some(Change::Model(from)) if is_since(from) => "another",
            _ => "scripted",
        };
        let temperature = match change {
            Some(Change::Temperature(from)) if is_since(from) => Some(0.7),
            _ => Some(0.0),
        };
        let config = LlmConfig { temperature, ..LlmConfig::default() };
        ProviderAdapter::new(Model(provider, model)).with_config(config)
    }

    /// Returns the numbers of the parts whose texts the user says before the answers of this one.
    fn order(&self, part: usize, change: Option<&Change>) -> Vec<usize> {
        match change {
            Some(Change::Unsaid(at)) if part == *at => vec![],
            Some(Change::Swapped(at)) if part == *at => vec![part + 1],
            Some(Change::Swapped(at)) if part == at + 1 => vec![part - 1],
            _ => vec![part],
        }
    }

    /// Runs the conversation, with one change of the host's code, if any. Stops at the first error.
    ///
    /// # Errors
    ///
    /// The error of the evaluation or of the session.
    pub fn hold(self: &Arc<Run>, session: &Session, change: Option<&Change>) -> Result<(), Error> {
        let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
        let prompt = self.prompt(change);
        let mut turned = 0;
        for (number, part) in self.parts.iter().enumerate() {
            match change {
                Some(Change::ClockRead(at)) if number == *at => drop(session.inputs().now()?),
                Some(Change::Tagged(at)) if number == *at => drop(session.set_tag("part", "here")?),
                _ => {}
            }
            let said = |number: usize| {
                let mut text = self.parts[number].said.clone();
                if change == Some(&Change::Said(number)) {
                    text.push_str(" Please.");
                }
                UserMessage { id: format!("said {number}"), text }
            };
            let mut messages: Vec<UserMessage> = self.order(number, change).into_iter().map(said).collect();
            if change == Some(&Change::SaidMore(number)) {
                messages.push(UserMessage { id: "more".to_owned(), text: "And thank you.".to_owned() });
            }
            // A run may end with the user's text or with a result: then the provider is not called.
            let cancel = CancelToken::new();
            if part.answers == 0 {
                cancel.cancel();
            }
            let (ends, mut turns) = (cancel.clone(), 0);
            let last = if change == Some(&Change::GivesUp(number)) { 1 } else { part.answers };
            let on_turn = |session: &Session| {
                (turned, turns) = (turned + 1, turns + 1);
                session.dispatch(Turned { number: turned })?;
                if turns == last {
                    ends.cancel();
                }
                Ok(())
            };
            let options = EvaluateOptions {
                evaluation_id: Some(HELD.to_owned()),
                messages,
                cancel,
                on_turn: Some(Box::new(on_turn)),
                ..EvaluateOptions::default()
            };
            match self.adapter(number, change).evaluate(&prompt, &state, options) {
                Ok(_) | Err(Error::Cancelled) if change == Some(&Change::GivesUp(number)) => break,
                Ok(_) | Err(Error::Cancelled) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
