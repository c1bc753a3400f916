//! Writes talks into sessions: messages as inputs and answers, calls as operations, rewinds as
//! rollbacks, and sub-agents as child sessions of the operations.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use foldlog::conversation::{ContentBlocks, NewAnswer, NewInput, Role, ToolCallRecord};
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{
    CallOrigin, ExecutionState, ResourceRegistry, SequenceNumber, Session, SessionTypes, SmolStr, Snapshot,
    SnapshotOptions, Value,
};
use foldlog_agent::pairing::MessageFormat;

use super::agents::Talks;
use super::findings::FindingKind;
use super::graph::{Graph, NodeFinding, SiblingUnits};
use super::import::Imported;
use super::line::{
    BlockContent, LineFields, MessageBlock, MessageContent, MessageFields, content, field, texts,
};
use super::scan::{CallPlace, NodeKind, Reread, TranscriptNode, TranscriptScan};
use crate::failure::Result;
use crate::runs::import::close_session;

/// Text at the end of a call that started a sub-agent and has no result.
const NO_RESULT: &str = "The transcript holds no result of this call.";

/// Writes the talks of one session.
pub(super) struct TranscriptWriter<'a> {
    pub(super) scan: &'a TranscriptScan,
    pub(super) talks: &'a Talks,
    /// Declarations of the sub-agents' sessions, which have no slices.
    pub(super) types_of_agents: SessionTypes,
    pub(super) reread: Reread,
    pub(super) imported: &'a mut Imported,
    pub(super) found: Vec<NodeFinding>,
    /// Sessions that were created. After an error their contents are useless.
    pub(super) begun: Vec<uuid::Uuid>,
}

/// The calls of an answer, which are open or closed.
#[derive(Default)]
struct TranscriptCalls {
    records: Vec<ToolCallRecord>,
    places: Vec<CallPlace>,
    /// Ordinals by id, which several calls may share.
    ordinals: HashMap<String, Vec<usize>>,
    /// Whether a result follows the line of its call.
    is_exact: bool,
    /// Ordinals of the closed calls, as a set and in the order in which they were closed.
    closed: RefCell<(HashSet<usize>, Vec<usize>)>,
}

#[derive(Clone, Default)]
struct LastAnswer {
    answer: Option<SequenceNumber>,
    calls: Rc<TranscriptCalls>,
}

impl TranscriptCalls {
    /// Adds a call and returns true, unless its line repeats an earlier line. In that case the id,
    /// name and arguments are equal, and there is no further result of the id: `results` of them
    /// follow.
    fn add(&mut self, call: ToolCallRecord, at: CallPlace, results: usize) -> bool {
        let same_id = self.ordinals.entry(call.call_id.clone()).or_default();
        let is_same = |ordinal: &usize| {
            self.records.get(*ordinal) == Some(&call)
                && self.places.get(*ordinal).map(|it| it.node) != Some(at.node)
        };
        if same_id.iter().any(is_same) && same_id.len() >= results {
            return false;
        }
        same_id.push(self.records.len());
        self.records.push(call);
        self.places.push(at);
        true
    }
}

impl LastAnswer {
    /// Returns the ordinal of the open call with this id that a result answers. Of several, takes
    /// the one in the line that the result names or follows, or else the first.
    fn open(&self, id: &str, scan: &TranscriptScan, node: &TranscriptNode) -> Option<usize> {
        let (closed, _) = &*self.calls.closed.borrow();
        let mut open =
            self.calls.ordinals.get(id)?.iter().copied().filter(|ordinal| !closed.contains(ordinal));
        let named = node.source_of_result.as_ref().and_then(|uuid| scan.by_uuid.get(uuid)).copied();
        let line = named.or_else(|| scan.parent_of(node).filter(|_| self.calls.is_exact));
        let is_there = |ordinal: &usize| {
            line.is_some() && self.calls.places.get(*ordinal).map(|place| place.node) == line
        };
        open.clone().find(is_there).or_else(|| open.next())
    }

    fn close(&self, ordinal: usize) {
        let (closed, order) = &mut *self.calls.closed.borrow_mut();
        if closed.insert(ordinal) {
            order.push(ordinal);
        }
    }

    fn closed_count(&self) -> usize {
        self.calls.closed.borrow().1.len()
    }

    /// Reopens all closed calls but the first `count`.
    fn reopen(&self, count: usize) {
        let (closed, order) = &mut *self.calls.closed.borrow_mut();
        for ordinal in order.drain(count.min(order.len())..) {
            closed.remove(&ordinal);
        }
    }
}

struct TalkWriter<'w, 'a> {
    writer: &'w mut TranscriptWriter<'a>,
    session: &'w Session,
    runner: ToolRunner,
    talk: usize,
    evaluation: String,
    asked: LastAnswer,
    answered: ResultIndex<'a>,
}

/// Index of the results of a talk's calls.
#[derive(Default)]
struct ResultIndex<'a> {
    /// First node of each message, by the message's id.
    first: HashMap<&'a str, usize>,
    /// Number of results for an id, by the first node of the last message with a call of this id.
    counts: HashMap<(usize, &'a str), usize>,
    /// Nodes that a result follows.
    followed: HashSet<usize>,
}

impl<'a> ResultIndex<'a> {
    fn new(scan: &'a TranscriptScan, nodes: &[usize]) -> ResultIndex<'a> {
        let mut answered = ResultIndex::default();
        let mut asked: HashMap<&str, usize> = HashMap::new();
        for (place, node) in nodes.iter().filter_map(|place| Some((*place, scan.nodes.get(*place)?))) {
            let first = match &node.message {
                Some(message) => *answered.first.entry(message).or_insert(place),
                None => place,
            };
            asked.extend(node.calls.iter().map(|(call, _)| (call.as_str(), first)));
            for call in &node.results {
                if let Some(first) = asked.get(call.as_str()) {
                    *answered.counts.entry((*first, call.as_str())).or_default() += 1;
                }
                answered.followed.extend(scan.parent_of(node));
            }
        }
        answered
    }

    /// Returns the number of results for the calls with this id in the message with this first
    /// node.
    fn count(&self, first: usize, call: &str) -> usize {
        self.counts.get(&(first, call)).copied().unwrap_or_default()
    }
}

/// Branches that remain to be written after a unit.
struct Fork {
    branches: std::vec::IntoIter<SiblingUnits>,
    snapshot: Snapshot,
    asked: LastAnswer,
    closed_count: usize,
}

impl<'a> TranscriptWriter<'a> {
    /// Writes a talk into a session, as the conversation of `evaluation`.
    pub(super) fn write_talk(&mut self, session: &Session, talk: usize, evaluation: &str) -> Result<()> {
        let Some(nodes) = self.talks.all.get(talk).map(|talk| &talk.nodes) else { return Ok(()) };
        let mut graph = Graph::new(self.scan, nodes);
        self.found.append(&mut graph.found);
        let scan = self.scan;
        let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
        let mut writer = TalkWriter {
            session,
            runner: ToolRunner::new(state, ToolRegistry::new()),
            talk,
            evaluation: evaluation.to_owned(),
            asked: LastAnswer::default(),
            answered: ResultIndex::new(scan, nodes),
            writer: self,
        };
        writer.graph(&graph)
    }
}

impl TalkWriter<'_, '_> {
    /// Writes all branches. After every branch of a fork but the last, the session is rolled back
    /// to the fork.
    fn graph(&mut self, graph: &Graph) -> Result<()> {
        let scan = self.writer.scan;
        let mut step: SiblingUnits = graph.root.into_iter().collect();
        let mut forks: Vec<Fork> = Vec::new();
        loop {
            for unit in &step {
                if let Some(unit) = graph.units.get(*unit).filter(|unit| unit.is_message) {
                    self.message(&unit.nodes)?;
                }
            }
            let mut branches = graph.branches(scan, &step);
            if branches.len() == 1 {
                step = branches.pop().unwrap_or_default();
                continue;
            }
            let mut branches = branches.into_iter();
            if let Some(first) = branches.next() {
                // A rollback to a snapshot does not need to fold the log.
                let snapshot = self.session.snapshot(SnapshotOptions::default())?;
                let (asked, closed_count) = (self.asked.clone(), self.asked.closed_count());
                forks.push(Fork { branches, snapshot, asked, closed_count });
                step = first;
                continue;
            }
            // This branch is complete; the next one starts at the same fork.
            while forks.last().is_some_and(|fork| fork.branches.len() == 0) {
                forks.pop();
            }
            let Some(fork) = forks.last_mut() else { return Ok(()) };
            step = fork.branches.next().unwrap_or_default();
            self.session.rollback(&fork.snapshot)?;
            self.asked = fork.asked.clone();
            self.asked.reopen(fork.closed_count);
            self.writer.imported.rewinds += 1;
        }
    }

    fn message(&mut self, places: &[usize]) -> Result<()> {
        let scan = self.writer.scan;
        let nodes: Vec<&TranscriptNode> = places.iter().filter_map(|node| scan.nodes.get(*node)).collect();
        let Some(first) = nodes.first() else { return Ok(()) };
        let lines: Result<Vec<Vec<u8>>> =
            nodes.iter().map(|node| self.writer.reread.line(scan, node)).collect();
        let lines = lines?;
        let messages: Vec<(usize, MessageFields<'_>)> = places
            .iter()
            .zip(&lines)
            .filter_map(|(place, line)| Some((*place, LineFields::read(line)?.message()?)))
            .collect();
        match (first.kind, messages.first()) {
            (NodeKind::Assistant, _) => self.answer(&messages),
            (_, Some((_, message))) => self.user(first, message),
            (_, None) => Ok(()),
        }
    }

    /// Writes the lines of an answer as one, and the sub-agents of calls that have no result.
    fn answer(&mut self, messages: &[(usize, MessageFields<'_>)]) -> Result<()> {
        let mut blocks: Vec<MessageBlock<'_>> = Vec::new();
        let mut whole = None;
        let mut made = TranscriptCalls::default();
        let first = messages.first().map_or(0, |(first, _)| *first);
        for (node, message) in messages {
            let mut place = 0;
            match content(message.content) {
                MessageContent::None => {}
                MessageContent::Text(text) => {
                    let all: &mut String = whole.get_or_insert_default();
                    if !all.is_empty() {
                        all.push('\n');
                    }
                    all.push_str(&text);
                }
                MessageContent::Blocks(said) => {
                    for block in said {
                        let mut is_new = true;
                        if let BlockContent::Call { id, name, input } = &block.content {
                            let (call_id, name, arguments) = (id.clone(), name.clone(), (*input).to_owned());
                            let call = ToolCallRecord { call_id, name, arguments };
                            let results = self.answered.count(first, id);
                            is_new = made.add(call, CallPlace { node: *node, place }, results);
                            place += 1;
                        }
                        blocks.extend(Some(block).filter(|_| is_new));
                    }
                }
            }
        }
        let latest = || messages.iter().rev().map(|(_, message)| message);
        let answer = NewAnswer {
            evaluation_id: self.evaluation.clone(),
            content: whole.or_else(|| texts(blocks.iter())),
            blocks: in_own_form(&blocks),
            stop: latest().find_map(|message| field(message.stop_reason)),
            model: latest().find_map(|message| field(message.model)),
            usage: latest().find_map(|message| message.usage()),
            calls: made.records,
            ..NewAnswer::default()
        };
        let sequence = self.session.conversation().record_answer(&answer)?;
        self.writer.imported.written.messages += 1;
        let followed = messages.iter().filter(|(node, _)| self.answered.followed.contains(node)).count();
        let calls = TranscriptCalls { records: answer.calls, is_exact: followed > 1, ..made };
        self.asked = LastAnswer { answer: Some(sequence), calls: Rc::new(calls) };
        self.end_turn()?;
        self.end_unanswered()
    }

    /// Ends, as failed, the calls that started a sub-agent and have no result.
    fn end_unanswered(&mut self) -> Result<()> {
        let started = self.writer.talks.all.get(self.talk).map(|talk| &talk.started);
        let Some(started) = started.filter(|started| !started.is_empty()) else { return Ok(()) };
        let calls = Rc::clone(&self.asked.calls);
        let first = calls.places.first().map_or(0, |place| self.first_of(place.node));
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (ordinal, (call, place)) in calls.records.iter().zip(&calls.places).enumerate() {
            let id = call.call_id.as_str();
            let number = seen.entry(id).or_default();
            *number += 1;
            if let Some(agents) = started.get(place).filter(|_| *number > self.answered.count(first, id)) {
                let place = agents.first().and_then(|agent| self.writer.talks.all.get(*agent)?.nodes.first());
                let place = place.copied().unwrap_or_default();
                self.writer.found.push((place, FindingKind::CallWithoutResult, Some(id.into())));
                self.end_call(ordinal, NO_RESULT.to_owned(), true)?;
            }
        }
        Ok(())
    }

    /// Returns the first node of a node's message.
    fn first_of(&self, node: usize) -> usize {
        let message = self.writer.scan.nodes.get(node).and_then(|node| node.message.as_deref());
        message.and_then(|message| self.answered.first.get(message)).copied().unwrap_or(node)
    }

    /// Writes a user's message, and the results that it contains.
    fn user(&mut self, node: &TranscriptNode, message: &MessageFields<'_>) -> Result<()> {
        let mut id = node.uuid.as_deref();
        match content(message.content) {
            MessageContent::Blocks(blocks) => {
                let is_result =
                    |block: &MessageBlock<'_>| matches!(block.content, BlockContent::Result { .. });
                let (results, said): (Vec<_>, Vec<_>) = blocks.into_iter().partition(is_result);
                for block in &results {
                    if let BlockContent::Result { id, content, failed } = &block.content {
                        self.result(node, id, *content, *failed)?;
                    }
                }
                if said.is_empty() && !results.is_empty() {
                    return Ok(());
                }
                self.input(Role::User, texts(said.iter()), in_own_form(&said), id.take())
            }
            content => self.input(Role::User, content.text(), None, id.take()),
        }
    }

    fn input(
        &mut self,
        role: Role,
        content: Option<String>,
        blocks: Option<ContentBlocks>,
        id: Option<&str>,
    ) -> Result<()> {
        let input = NewInput::new(&self.evaluation, role, "");
        self.session.conversation().record_input(&NewInput {
            content,
            blocks,
            id: id.map(str::to_owned),
            ..input
        })?;
        self.writer.imported.written.messages += 1;
        Ok(())
    }

    /// Writes the result of a call: as the end of its operation, or as a message if no such call is
    /// open.
    fn result(
        &mut self,
        node: &TranscriptNode,
        id: &str,
        raw: Option<&serde_json::value::RawValue>,
        failed: bool,
    ) -> Result<()> {
        let result = content(raw);
        let text = result.text().unwrap_or_else(|| match result {
            MessageContent::None => String::new(),
            _ => raw.map(|raw| raw.get().to_owned()).unwrap_or_default(),
        });
        self.writer.imported.written.messages += 1;
        if let Some(ordinal) = self.asked.open(id, self.writer.scan, node) {
            return self.end_call(ordinal, text, failed);
        }
        let input = NewInput::new(&self.evaluation, Role::Tool, text);
        self.session.conversation().record_input(&NewInput {
            call_id: Some(id.to_owned()),
            is_error: failed,
            ..input
        })?;
        Ok(())
    }

    /// Writes a call of the last answer as an operation, with the sub-agents that it started.
    fn end_call(&mut self, ordinal: usize, message: String, failed: bool) -> Result<()> {
        let calls = Rc::clone(&self.asked.calls);
        let Some(call) = calls.records.get(ordinal) else { return Ok(()) };
        let origin = self.asked.answer.zip(u32::try_from(ordinal).ok());
        let asked = ToolCall {
            call_id: Some(SmolStr::new(&call.call_id)),
            origin: origin.map(|(answer, ordinal)| CallOrigin { answer, ordinal }),
            ..ToolCall::new(&call.name, &call.arguments)
        };
        let operation = self.runner.begin(&asked, &ExecuteOptions::default())?;
        let started = calls.places.get(ordinal);
        let started = started.and_then(|place| self.writer.talks.all.get(self.talk)?.started.get(place));
        for (number, agent) in (0..).zip(started.into_iter().flatten()) {
            let child = operation.context().child_session(number, &self.writer.types_of_agents)?;
            self.agent(child, *agent)?;
        }
        let result = ToolResult::<Value> { success: !failed, ..ToolResult::unsuccessful(message) };
        let report = operation.end(result)?;
        self.writer.imported.written.rollbacks += u64::from(!report.success);
        self.asked.close(ordinal);
        self.end_turn()
    }

    /// Writes a sub-agent into its session.
    fn agent(&mut self, session: Session, agent: usize) -> Result<()> {
        self.writer.begun.push(session.id());
        let evaluation = self.writer.talks.all.get(agent).and_then(|talk| talk.agent.clone());
        self.writer.write_talk(&session, agent, &evaluation.unwrap_or_default())?;
        self.writer.imported.agents += 1;
        self.writer.imported.written += close_session(session)?;
        Ok(())
    }

    /// Ends the turn if all calls of the last answer have a result.
    fn end_turn(&self) -> Result<()> {
        if self.asked.closed_count() == self.asked.calls.records.len() {
            self.session.conversation().record_turn(&self.evaluation, false)?;
        }
        Ok(())
    }
}

/// Returns blocks in their own form; `None` if they are a single text, which represents them
/// completely.
fn in_own_form(blocks: &[MessageBlock<'_>]) -> Option<ContentBlocks> {
    let is_text = matches!(blocks, [MessageBlock { content: BlockContent::Text(_), .. }] | []);
    let json = || format!("[{}]", blocks.iter().map(|block| block.raw).collect::<Vec<_>>().join(","));
    (!is_text).then(|| ContentBlocks { format: MessageFormat::Anthropic.name().to_owned(), json: json() })
}
