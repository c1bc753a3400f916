//! Records the exchange between the program and its model as a conversation: `Input`, `Request`,
//! `Answer` and `Turn`, as every other adapter does.
//!
//! The program sends an answer block by block, and its tools may start before the answer is
//! complete. So blocks are gathered until one of their calls is about to run, and then recorded.
//! Later blocks of the same answer become a separate answer, which is recorded after the calls
//! before it are closed.
//!
//! | event of the program | records |
//! |---|---|
//! | blocks of an answer | none yet; if another answer precedes them, that answer and its turn |
//! | a call of a tool, in any form | the answer so far, and then the call |
//! | the result of a call that ran, was refused or never started | an input with the program's text that closes the call, if it is open. It waits while a sub-agent of the answer before is running |
//! | the first call of a sub-agent, before its answer | none yet: the call waits for the answer |
//! | the result of a sub-agent | the last answer of its conversation and its turn |
//! | the result of a call that was closed with another text | an input with the program's text, which the model reads: the end record retains the result itself |
//! | the result of the run | the last answer, with the usage of the run that was not recorded before, and its turn |
//!
//! # Sub-agents
//!
//! A sub-agent has its own conversation, named after the call that started it. The owner of a call
//! follows from the `agent_id` of its `PreToolUse` hook and from `system/task_started`, which names
//! the call that started the agent. Since 2.1.197 the hook arrives 1 to 4 ms before the answer with
//! the call, and the program sends that answer without waiting for the hook's reply. A sub-agent
//! started by another sub-agent sends no answers, only hooks. 2.1.100 sends no `task_started`, but
//! each answer before its hooks.
//!
//! An answer that starts sub-agents is recorded with their results. If the process ends before
//! that, the next evaluation [records it](super::sub_agents) from the arrivals.
//!
//! # Invariants
//!
//! 1. An answer is recorded before a call of it starts, except for calls that start sub-agents.
//! 2. A turn is recorded when each call of its answer is closed.
//! 3. The usage of all answers of a run adds up to the usage that the program reports for the run.
//! 4. Calls of a sub-agent are never recorded in the conversation of the run.

use std::collections::{BTreeMap, BTreeSet};

use foldlog::conversation::{ContentBlocks, PromptIdentity, TokenUsage, ToolCallRecord};
use foldlog::tools::ToolRunner;
use foldlog::{CallOrigin, Cause, SequenceNumber, Session};
use serde_json::{Value, json};

use super::asked_calls::{AskedCalls, CallNumber, MeantCall};
use super::calls::begins_sub_agent;
use crate::{Assistant, ClaudeBlock, ClaudeUsage};
use foldlog_agent::error::Result;
use foldlog_agent::evaluation::{Journal, Outcome, Used, asked_call};
use foldlog_agent::provider::{PreparedRequest, ProviderAnswer, ProviderError};

/// Format of blocks that are stored unchanged.
const BLOCKS: &str = "anthropic";

/// Text of a call for which the program sent no result.
const UNTOLD: &str = "The program told no result of this call.";

/// Records one conversation: that of the run, or that of a sub-agent.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) journal: Journal,
    prompt: PromptIdentity,
    model: String,
    /// Request of the next answer.
    request: Option<SequenceNumber>,
    is_asked: bool,
    /// Blocks that are not recorded yet.
    gathered: Option<PartialAnswer>,
    /// Answer whose turn is not recorded.
    open: Option<OpenAnswer>,
    /// Calls of both.
    pub(super) asked: AskedCalls,
    /// Results of calls that wait until the sub-agents of the open answer have ended.
    told_early: Vec<EarlyCallResult>,
    /// Usage in the recorded answers of this run.
    told: TokenUsage,
    /// Outcome of the run so far.
    pub(super) outcome: Outcome,
}

#[derive(Debug, Default)]
struct PartialAnswer {
    id: Option<String>,
    model: Option<String>,
    text: Option<String>,
    blocks: Vec<Value>,
    /// Whether there are blocks other than texts and calls.
    has_others: bool,
    usage: Option<ClaudeUsage>,
}

/// Contains a result that the program passed to the model.
#[derive(Debug)]
struct EarlyCallResult {
    call: CallNumber,
    text: String,
    is_error: bool,
}

/// Identifies a call that starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct BegunCall {
    pub(super) number: CallNumber,
    /// Origin of the call; `None` if the conversation is not recorded.
    pub(super) origin: Option<CallOrigin>,
}

#[derive(Debug)]
struct OpenAnswer {
    /// Id of the program's answer, of which this may be a part. `None` if a call arrived without
    /// its answer.
    id: Option<String>,
    /// Record; `None` if the conversation is not recorded.
    answer: Option<SequenceNumber>,
}

/// Converts the tokens into the engine's terms.
pub(super) fn token_usage(usage: &ClaudeUsage) -> TokenUsage {
    TokenUsage {
        input: usage.input_tokens,
        output: usage.output_tokens,
        cache_read: usage.cache_read_input_tokens,
        cache_write: usage.cache_creation_input_tokens,
        reasoning: 0,
    }
}

impl Recorder {
    pub(super) fn new(journal: Journal, prompt: PromptIdentity, model: &str) -> Recorder {
        Recorder {
            journal,
            prompt,
            model: model.to_owned(),
            request: None,
            is_asked: false,
            gathered: None,
            open: None,
            asked: AskedCalls::default(),
            told_early: Vec::new(),
            told: TokenUsage::default(),
            outcome: Outcome::default(),
        }
    }

    /// Records a prompt that was rendered again.
    pub(super) fn system(&mut self, text: &str) -> Result<Option<SequenceNumber>> {
        self.journal.system(text, self.prompt.clone(), None)
    }

    /// Records a request to the model, at the start of a run or after a turn.
    pub(super) fn ask(&mut self, attempt: u64, parameters: Value) -> Result<()> {
        let (model, body) = (self.model.clone(), Vec::new());
        let prepared = PreparedRequest { model, parameters, body, stream: true };
        self.request = self.journal.request(attempt, self.prompt.digest, &prepared)?;
        self.is_asked = true;
        Ok(())
    }

    /// Processes a message of the model.
    pub(super) fn hear(&mut self, said: &Assistant, runner: &ToolRunner) -> Result<()> {
        if self.gathered.as_ref().is_some_and(|gathered| gathered.id != said.id) {
            self.flush(None, None, runner)?;
        }
        let is_announced = self.asked.is_announced_by(said);
        if let Some(open) = self.open.as_mut().filter(|open| open.id.is_none() && is_announced) {
            open.id.clone_from(&said.id);
            self.asked.announce_open(said.id.as_ref());
        }
        let blocks = self.asked.hear(said);
        if blocks.is_empty() && !said.content.is_empty() {
            return Ok(());
        }
        let is_same = self.open.as_ref().is_some_and(|open| open.id.is_some() && open.id == said.id);
        let gathered = self.gathered.get_or_insert_with(|| PartialAnswer {
            id: said.id.clone(),
            // The other part of the answer contains the usage.
            usage: said.usage.filter(|_| !is_same),
            ..PartialAnswer::default()
        });
        gathered.model = said.model.clone().or(gathered.model.take());
        blocks.into_iter().for_each(|block| gathered.add(block));
        Ok(())
    }

    /// Records an answer that an earlier process received. `request` is its request, if that is
    /// recorded.
    pub(super) fn record_received(
        &mut self,
        answer: &[Assistant],
        request: Option<SequenceNumber>,
        runner: &ToolRunner,
    ) -> Result<()> {
        (self.request, self.is_asked) = (request, request.is_some());
        answer.iter().try_for_each(|said| self.hear(said, runner))?;
        self.flush(None, None, runner)
    }

    /// Starts the next call out of those that match. Its answer is recorded before this returns. A
    /// call without a block becomes an answer of its own.
    pub(super) fn begin(
        &mut self,
        call: &ToolCallRecord,
        input: &Value,
        runner: &ToolRunner,
    ) -> Result<BegunCall> {
        let meant = MeantCall { id: &call.call_id, tool: &call.name, input };
        let number = match self.asked.next(meant) {
            Some(number) => number,
            None => {
                let gathered = self.gathered.get_or_insert_default();
                gathered.blocks.push(block_of(meant));
                self.asked.add_unannounced(call.clone(), gathered.id.clone())
            }
        };
        if self.asked.is_gathered(number) {
            self.flush(None, None, runner)?;
        }
        self.asked.begin(number);
        Ok(BegunCall { number, origin: self.origin(number).flatten() })
    }

    /// Returns whether a call belongs to another answer than the open one while a call of the open
    /// one is running: then the turn of the open one comes first.
    fn is_behind(&self, meant: MeantCall<'_>, runs: impl Fn(CallNumber) -> bool) -> bool {
        let is_running = self.asked.open().any(|(number, _)| runs(number)) || self.has_sub_agent();
        is_running && !self.asked.next(meant).is_some_and(|number| self.asked.is_open(number))
    }

    /// Returns whether a sub-agent of the open answer is running.
    fn has_sub_agent(&self) -> bool {
        self.asked.open().any(|(_, call)| !call.is_closed && begins_sub_agent(&call.record.name))
    }

    /// Returns whether there is an unclosed call, recorded or not.
    fn has_unclosed_call(&self) -> bool {
        self.has_open_call() || self.asked.has_gathered()
    }

    /// Returns whether the open answer has an unclosed call.
    fn has_open_call(&self) -> bool {
        self.asked.open().any(|(_, call)| !call.is_closed)
    }

    /// Returns the origin of a call of the open answer. The inner `None` means that the answer is
    /// not recorded.
    fn origin(&self, number: CallNumber) -> Option<Option<CallOrigin>> {
        let place = self.asked.open().position(|(open, _)| open == number)?;
        let answer = self.open.as_ref()?.answer;
        Some(answer.and_then(|answer| Some(CallOrigin { answer, ordinal: u32::try_from(place).ok()? })))
    }

    /// Processes a result that the program passed to the model, and closes the call with it, unless
    /// it is closed. `shown` is the text for the model in the call's end record, and whether it is
    /// an error. If the program's result differs, it is recorded too.
    pub(super) fn take_result(
        &mut self,
        call: CallNumber,
        text: &str,
        is_error: bool,
        shown: Option<(String, bool)>,
        runner: &ToolRunner,
    ) -> Result<()> {
        self.asked.tell(call);
        if self.asked.is_gathered(call) {
            if self.has_sub_agent() {
                self.told_early.push(EarlyCallResult { call, text: text.to_owned(), is_error });
                return Ok(());
            }
            self.flush(None, None, runner)?;
        }
        // The program may send the result of a call only after the start of the next one, which
        // ends the turn.
        let past = || self.asked.calls.get(&call)?.past.map(Some);
        let Some(origin) = self.origin(call).or_else(past) else { return Ok(()) };
        let differs = shown.is_some_and(|(shown, was_error)| shown != text || was_error != is_error);
        if let Some(open) = self.asked.calls.get(&call).filter(|open| !open.is_closed || differs) {
            self.journal.record_shown_result(&open.record, origin, text, is_error)?;
        }
        self.asked.close(call);
        if !self.has_sub_agent() {
            for EarlyCallResult { call, text, is_error } in std::mem::take(&mut self.told_early) {
                self.take_result(call, &text, is_error, None, runner)?;
            }
        }
        Ok(())
    }

    /// Records the gathered blocks as an answer. `all` is the usage of the run, once that is known.
    fn flush(&mut self, all: Option<TokenUsage>, stop: Option<String>, runner: &ToolRunner) -> Result<()> {
        let Some(gathered) = self.gathered.take() else { return Ok(()) };
        let is_same = gathered.id.is_some() && self.open.as_ref().is_some_and(|open| open.id == gathered.id);
        self.end_turn(false, runner)?;
        if !self.is_asked && !is_same {
            self.ask(1, Value::Null)?;
        }
        let own = gathered.usage.as_ref().map(token_usage).unwrap_or_default();
        let usage = all.map_or(own, |all| all.minus(self.told));
        self.told = self.told.plus(usage);
        let PartialAnswer { id, model, text, blocks, has_others, .. } = gathered;
        let calls = self.asked.record();
        self.outcome.last.text = text.clone().unwrap_or_default();
        self.outcome.model = model.clone().or(self.outcome.model.take());
        self.outcome.requests += 1;
        self.outcome.tool_calls += calls.len() as u64;
        let answer = ProviderAnswer {
            content: text,
            calls,
            blocks: has_others
                .then(|| ContentBlocks { format: BLOCKS.to_owned(), json: Value::Array(blocks).to_string() }),
            stop,
            model,
            request_id: id.clone(),
            usage: Some(usage),
            ..ProviderAnswer::default()
        };
        let answer = self.journal.answer(self.request.take(), answer)?;
        self.is_asked = false;
        self.outcome.answer = answer.or(self.outcome.answer);
        self.open = Some(OpenAnswer { id, answer });
        Ok(())
    }

    /// Records the turn of the open answer. Calls that are still open never ran.
    fn end_turn(&mut self, complete: bool, runner: &ToolRunner) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        for (ordinal, (_, call)) in (0..).zip(self.asked.open()) {
            if let Some(answer) = open.answer.filter(|_| !call.is_closed) {
                let made = asked_call(&call.record, Some(CallOrigin { answer, ordinal }));
                runner.close(&made, Cause::Skipped, UNTOLD)?;
            }
        }
        self.asked.end_turn(open.answer);
        self.journal.turn(complete)?;
        Ok(())
    }

    /// Records the last answer with the usage of the run, and its turn. If the output was not given
    /// as text, `output` is recorded as the answer's text.
    pub(super) fn end(
        &mut self,
        usage: Option<TokenUsage>,
        stop: Option<String>,
        output: Option<String>,
        runner: &ToolRunner,
    ) -> Result<()> {
        let differs = |output: &String| {
            let text = self.gathered.as_ref().and_then(|gathered| gathered.text.as_ref());
            text != Some(output)
        };
        if let Some(output) = output.filter(differs) {
            if self.asked.has_gathered() {
                self.flush(None, None, runner)?;
            }
            self.gathered = Some(PartialAnswer { text: Some(output), ..PartialAnswer::default() });
        }
        // The run may end without a final text, for example after a hook.
        self.gathered.get_or_insert_default();
        self.flush(usage, stop, runner)?;
        self.end_turn(true, runner)
    }

    /// Records the gathered blocks, unless a call of the answer before is open. In that case the
    /// next evaluation closes the call first, and then [records](super::sub_agents) the blocks from
    /// the arrivals.
    fn leave(&mut self, runner: &ToolRunner) -> Result<()> {
        if self.has_open_call() { Ok(()) } else { self.flush(None, None, runner) }
    }

    /// Records the model's blocks so far, and that the run returned no output. Open calls remain
    /// open.
    pub(super) fn fail(&mut self, mut error: ProviderError, runner: &ToolRunner) -> Result<()> {
        self.leave(runner)?;
        error.usage = error.usage.map(|all| all.minus(self.told));
        if !self.is_asked && !self.has_open_call() {
            self.end_turn(false, runner)?;
            self.ask(1, Value::Null)?;
        }
        if self.is_asked {
            self.journal.failure(1, self.request.take(), &error)?;
            self.is_asked = false;
        }
        Ok(())
    }
}

impl PartialAnswer {
    fn add(&mut self, block: &ClaudeBlock) {
        self.has_others |= !matches!(block, ClaudeBlock::Text(_) | ClaudeBlock::ToolUse { .. });
        self.blocks.push(match block {
            ClaudeBlock::Text(text) => {
                self.text.get_or_insert_default().push_str(text);
                json!({"type": "text", "text": text})
            }
            ClaudeBlock::ToolUse { id, name, input } => block_of(MeantCall { id, tool: name, input }),
            ClaudeBlock::Thinking { thinking, signature } => {
                json!({"type": "thinking", "thinking": thinking, "signature": signature})
            }
            ClaudeBlock::ToolResult { tool_use_id: id, content, is_error } => {
                json!({"type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error})
            }
            ClaudeBlock::Other(other) => other.clone(),
        });
    }
}

fn block_of(MeantCall { id, tool, input }: MeantCall<'_>) -> Value {
    json!({"type": "tool_use", "id": id, "name": tool, "input": input})
}

/// Returns the id of the conversation of the sub-agent that a call of an evaluation started.
pub(super) fn of_sub_agent(evaluation: &str, call_id: &str) -> String {
    format!("{evaluation}/{call_id}")
}

/// Contains the conversations of a run: its own, and those of its sub-agents, by the call that
/// started each.
#[derive(Debug)]
pub(super) struct Recorders<'a> {
    pub(super) own: Recorder,
    pub(super) session: &'a Session,
    children: BTreeMap<String, Recorder>,
    /// Calls that started sub-agents, by the ids of the sub-agents.
    pub(super) agents: BTreeMap<String, String>,
    /// Calls that started sub-agents, by the ids of the calls that these sub-agents make.
    parents: BTreeMap<String, String>,
    /// Calls of sub-agents whose answers are no longer awaited.
    pub(super) unannounced: BTreeSet<String>,
    /// Last texts of sub-agents, by the calls that started them. The program may send no answers
    /// with them.
    pub(super) last_texts: BTreeMap<String, String>,
    /// Calls that started sub-agents which have ended, but whose conversations have open calls.
    ended: BTreeSet<String>,
}

impl<'a> Recorders<'a> {
    pub(super) fn new(session: &'a Session, own: Recorder) -> Recorders<'a> {
        Recorders {
            own,
            session,
            children: BTreeMap::new(),
            agents: BTreeMap::new(),
            parents: BTreeMap::new(),
            unannounced: BTreeSet::new(),
            last_texts: BTreeMap::new(),
            ended: BTreeSet::new(),
        }
    }

    /// Notes that a call belongs to the sub-agent `agent`, or to the run itself if there is none.
    pub(super) fn call_is_of(&mut self, call_id: &str, agent: Option<&str>) {
        let Some(agent) = agent else {
            self.parents.remove(call_id);
            return;
        };
        let known = self.agents.get(agent).cloned().or_else(|| self.child_asking(call_id));
        // A sub-agent of a sub-agent, for which 2.1.100 sends no other information.
        let parent = known.unwrap_or_else(|| agent.to_owned());
        self.agents.insert(agent.to_owned(), parent.clone());
        self.parents.insert(call_id.to_owned(), parent);
    }

    /// Returns the conversation of the sub-agent that the call `parent` started; that of the run if
    /// there is no call.
    pub(super) fn recorder_of_parent(&mut self, parent: Option<&str>) -> &mut Recorder {
        let Some(parent) = parent else { return &mut self.own };
        let (own, session) = (&self.own, self.session);
        self.children.entry(parent.to_owned()).or_insert_with(|| {
            let evaluation = of_sub_agent(own.journal.evaluation(), parent);
            let journal = match own.journal.session() {
                Some(_) => {
                    let followed = session.conversation().follow(&evaluation);
                    Journal::in_session(session.clone(), followed, Used::default(), None)
                }
                None => Journal::in_memory(evaluation),
            };
            Recorder {
                asked: own.asked.of_same_run(),
                ..Recorder::new(journal, own.prompt.clone(), &own.model)
            }
        })
    }

    /// Returns the conversation of a call; that of the run if no other is known.
    pub(super) fn recorder_of_call(&mut self, call_id: &str) -> &mut Recorder {
        let parent = self.parent_of(call_id);
        self.recorder_of_parent(parent.as_deref())
    }

    /// Returns the call that started the sub-agent to which a call belongs; `None` if it belongs to
    /// the run itself.
    pub(super) fn parent_of(&self, call_id: &str) -> Option<String> {
        self.parents.get(call_id).cloned().or_else(|| self.child_asking(call_id))
    }

    /// Returns the call that started the sub-agent whose conversation contains a call; `None` if
    /// there is none.
    fn child_asking(&self, call_id: &str) -> Option<String> {
        let asks = |(_, recorder): &(&String, &Recorder)| recorder.asked.asks_for(call_id);
        let found = self.children.iter().find(asks).filter(|_| !self.own.asked.asks_for(call_id));
        found.map(|(parent, _)| parent.clone())
    }

    /// Returns whether the answer with the call is still to arrive: the call belongs to a sub-agent
    /// that the run itself started.
    pub(super) fn is_unannounced(&self, call_id: &str) -> bool {
        let Some(parent) = self.parents.get(call_id) else { return false };
        let asks = |recorder: &Recorder| recorder.asked.asks_for(call_id);
        self.own.asked.asks_for(parent)
            && !self.children.get(parent).is_some_and(asks)
            && !self.unannounced.contains(call_id)
    }

    /// Returns whether a call has to wait for calls of the answer before it. `runs` returns whether
    /// a call is running.
    pub(super) fn is_behind(&self, meant: MeantCall<'_>, runs: impl Fn(CallNumber) -> bool) -> bool {
        self.asked_with(meant.id).is_some_and(|recorder| recorder.is_behind(meant, runs))
    }

    /// Returns the conversation of a call: that of the run if no other is known, and `None` if it
    /// belongs to a sub-agent without records.
    pub(super) fn asked_with(&self, call_id: &str) -> Option<&Recorder> {
        match self.parent_of(call_id) {
            Some(parent) => self.children.get(&parent),
            None => Some(&self.own),
        }
    }

    /// Ends the conversation of the sub-agent that a call started. If the conversation has unclosed
    /// calls while another call is running, it ends later, in
    /// [`end_children`](Recorders::end_children): closing a call writes its start record too, and
    /// no call may start beside a running one.
    pub(super) fn child_ended(
        &mut self,
        call_id: &str,
        runs_something: bool,
        runner: &ToolRunner,
    ) -> Result<()> {
        if runs_something && self.children.get(call_id).is_some_and(Recorder::has_unclosed_call) {
            self.ended.insert(call_id.to_owned());
            return Ok(());
        }
        self.end_child(call_id, runner)
    }

    /// Ends the conversations of sub-agents that have ended. Nothing may be running.
    pub(super) fn end_children(&mut self, runner: &ToolRunner) -> Result<()> {
        while let Some(call_id) = self.ended.pop_first() {
            self.end_child(&call_id, runner)?;
        }
        Ok(())
    }

    fn end_child(&mut self, call_id: &str, runner: &ToolRunner) -> Result<()> {
        let Some(mut child) = self.children.remove(call_id) else { return Ok(()) };
        let text = self.last_texts.remove(call_id).filter(|_| child.gathered.is_none());
        child.end(None, None, text, runner)
    }

    /// Records the blocks so far of the sub-agents that are still active. Nothing may be running.
    pub(super) fn leave_children(&mut self, runner: &ToolRunner) -> Result<()> {
        self.end_children(runner)?;
        self.children.values_mut().try_for_each(|child| child.leave(runner))
    }
}
