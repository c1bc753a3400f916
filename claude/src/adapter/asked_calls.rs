//! The calls of the model's last answer, and the assignment of ids to them.
//!
//! A provider's id of a call is only data: two calls of one answer may have the same id, and the
//! program runs both. Hooks and results identify a call only by that id. Each call of a run has a
//! [`CallNumber`], which is found as follows:
//!
//! | the program sends | assigned call with that id |
//! |---|---|
//! | a block | a new call, unless only a hook has named it so far, or the block was sent before |
//! | a hook before a tool runs | the first that has not started |
//! | a hook after a tool ran | the first that is running |
//! | a result | the one that ended first of those without a result; else the first without a result |
//!
//! Among several calls that have not started, or that are running, one with the same tool and
//! arguments has priority. A block was sent before if its message and its line have the same ids.
//! If a line has no id, the same tool and arguments count instead.
//!
//! Measured with 2.1.100 and 2.1.332: each block has its own line with a unique id. The results of
//! two reading calls arrived in the order in which the calls ended, which was not that of the
//! answer. 2.1.332 sends the hook before the second call earlier than the result of the first.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use foldlog::conversation::ToolCallRecord;
use foldlog::{CallOrigin, SequenceNumber};
use serde_json::Value;

use super::calls::hosts_tool;
use crate::{Assistant, ClaudeBlock};

/// Identifies a call of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CallNumber(u64);

/// Contains the program's description of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeantCall<'a> {
    pub(super) id: &'a str,
    pub(super) tool: &'a str,
    pub(super) input: &'a Value,
}

impl MeantCall<'_> {
    /// Returns whether a call has this tool and these arguments.
    fn is_like(&self, call: &ToolCallRecord) -> bool {
        own_name(&call.name) == own_name(self.tool)
            && serde_json::from_str::<Value>(&call.arguments).is_ok_and(|arguments| arguments == *self.input)
    }

    /// Returns the first of some calls that has this tool and these arguments; if there is none,
    /// the first call.
    pub(super) fn first_of<'c>(
        &self,
        calls: impl Iterator<Item = (CallNumber, &'c ToolCallRecord)> + Clone,
    ) -> Option<CallNumber> {
        let (first, _) = calls.clone().next()?;
        let is_alone = calls.clone().nth(1).is_none();
        let like = || calls.clone().find(|(_, call)| self.is_like(call));
        if is_alone { Some(first) } else { Some(like().map_or(first, |(number, _)| number)) }
    }
}

/// Returns the name of a tool without the prefix of the host's server.
fn own_name(tool: &str) -> &str {
    hosts_tool(tool).unwrap_or(tool)
}

/// Place of a call in the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerPart {
    /// In a part of the answer whose turn is recorded.
    Past,
    /// In the recorded answer whose turn is not recorded.
    Open,
    /// In blocks that are not recorded.
    Gathered,
}

/// Identifies a block that the program sent.
#[derive(Clone, Debug)]
struct SentBlock {
    /// Id of the line; `None` if it has none.
    line: Option<String>,
    /// Index of the block in the line.
    place: usize,
}

/// Contains a call of the model.
#[derive(Debug)]
pub(super) struct AskedCall {
    pub(super) record: ToolCallRecord,
    /// Id of the program's answer; `None` if it is unknown.
    message: Option<String>,
    part: AnswerPart,
    /// Block of the call; `None` if only a hook named it.
    block: Option<SentBlock>,
    pub(super) has_begun: bool,
    pub(super) is_denied: bool,
    pub(super) is_closed: bool,
    /// Number of calls that ended before this one; `None` if it has not ended.
    ended: Option<u64>,
    /// Origin of the call, if its answer and the answer's turn are recorded.
    pub(super) past: Option<CallOrigin>,
    is_told: bool,
}

/// Contains the calls of one conversation's last answer.
#[derive(Debug, Default)]
pub(super) struct AskedCalls {
    /// In the order in which they were named.
    pub(super) calls: BTreeMap<CallNumber, AskedCall>,
    ended: u64,
    /// Number of calls of the run, in all its conversations.
    numbers: Rc<Cell<u64>>,
}

impl AskedCalls {
    /// Creates an empty list for another conversation of the same run.
    pub(super) fn of_same_run(&self) -> AskedCalls {
        AskedCalls { numbers: Rc::clone(&self.numbers), ..AskedCalls::default() }
    }

    /// Returns the calls of the open answer.
    pub(super) fn open(&self) -> impl Iterator<Item = (CallNumber, &AskedCall)> {
        let calls = self.calls.iter().filter(|(_, call)| call.part == AnswerPart::Open);
        calls.map(|(number, call)| (*number, call))
    }

    /// Returns whether a call belongs to the open answer.
    pub(super) fn is_open(&self, number: CallNumber) -> bool {
        self.open().any(|(open, _)| open == number)
    }

    /// Returns whether a call belongs to blocks that are not recorded.
    pub(super) fn is_gathered(&self, number: CallNumber) -> bool {
        self.calls.get(&number).is_some_and(|call| call.part == AnswerPart::Gathered)
    }

    pub(super) fn has_gathered(&self) -> bool {
        self.calls.values().any(|call| call.part == AnswerPart::Gathered)
    }

    fn of_id<'a>(&'a self, id: &'a str) -> impl Iterator<Item = (CallNumber, &'a AskedCall)> + Clone {
        let calls = self.calls.iter().map(|(number, call)| (*number, call));
        calls.filter(move |(_, call)| call.record.call_id == id)
    }

    /// Returns whether the open answer or the gathered blocks contain a call with an id.
    pub(super) fn asks_for(&self, id: &str) -> bool {
        self.of_id(id).any(|(_, call)| call.part != AnswerPart::Past)
    }

    /// Returns the call to start next, out of those that match.
    pub(super) fn next(&self, meant: MeantCall<'_>) -> Option<CallNumber> {
        let waiting = self.of_id(meant.id).filter(|(_, call)| call.is_waiting());
        meant.first_of(waiting.map(|(number, call)| (number, &call.record)))
    }

    /// Returns the number of calls with an id that have not started.
    pub(super) fn count_waiting(&self, id: &str) -> usize {
        self.of_id(id).filter(|(_, call)| call.is_waiting()).count()
    }

    /// Returns whether a call with an id was denied and has no result.
    pub(super) fn has_denied(&self, id: &str) -> bool {
        self.of_id(id).any(|(_, call)| call.is_denied && !call.is_told)
    }

    /// Returns the call to which a result with this id belongs; `None` if it is unknown.
    pub(super) fn result_of(&self, id: &str, is_error: bool) -> Option<CallNumber> {
        let (_, last) = self.of_id(id).last()?;
        // The model receives all results of an answer before it sends the next one.
        let is_same = |call: &AskedCall| {
            call.message.is_none() || last.message.is_none() || call.message == last.message
        };
        let without = self.of_id(id).filter(|(_, call)| !call.is_told && is_same(call));
        let ended =
            without.clone().filter(|(_, call)| call.ended.is_some()).min_by_key(|(_, call)| call.ended);
        let mut current = without.filter(|(_, call)| call.part != AnswerPart::Past);
        // Only a running call can succeed.
        let running = current.clone().find(|(_, call)| call.has_begun && !is_error);
        ended.or(running).or_else(|| current.next()).map(|(number, _)| number)
    }

    /// Adds a call to the gathered blocks.
    fn add(
        &mut self,
        record: ToolCallRecord,
        message: Option<String>,
        block: Option<SentBlock>,
    ) -> CallNumber {
        let number = CallNumber(self.numbers.get());
        self.numbers.set(number.0 + 1);
        let call = AskedCall {
            record,
            message,
            part: AnswerPart::Gathered,
            block,
            has_begun: false,
            is_denied: false,
            is_closed: false,
            ended: None,
            past: None,
            is_told: false,
        };
        self.calls.insert(number, call);
        number
    }

    /// Adds a call without a block to the gathered blocks, which belong to the answer `message`.
    pub(super) fn add_unannounced(&mut self, record: ToolCallRecord, message: Option<String>) -> CallNumber {
        self.add(record, message, None)
    }

    /// Adds the calls of a line that were not named before. Returns the blocks of the line that
    /// were not sent before.
    pub(super) fn hear<'a>(&mut self, said: &'a Assistant) -> Vec<&'a ClaudeBlock> {
        // The calls of an earlier answer have their results.
        let message = said.id.as_ref();
        self.calls.retain(|_, call| {
            let is_same = call.message.is_none() || call.message.as_ref() == message;
            call.part != AnswerPart::Past || (message.is_some() && is_same)
        });
        let mut known = Vec::new();
        let mut new = Vec::new();
        let mut added = Vec::new();
        for (place, block) in said.content.iter().enumerate() {
            if let ClaudeBlock::ToolUse { id, name, input } = block {
                let (sent, meant) =
                    (SentBlock { line: said.uuid.clone(), place }, MeantCall { id, tool: name, input });
                if let Some(number) = self.named_by(meant, &sent, message, &known) {
                    if let Some(call) = self.calls.get_mut(&number) {
                        call.block.get_or_insert(sent);
                        call.message.clone_from(&said.id);
                    }
                    known.push(number);
                    continue;
                }
                added.push((record_of(meant), sent));
            }
            new.push(block);
        }
        for (record, sent) in added {
            self.add(record, said.id.clone(), Some(sent));
        }
        new
    }

    /// Returns the call of a block, unless it is a new one. `known` are the calls of earlier blocks
    /// of the line.
    fn named_by(
        &self,
        meant: MeantCall<'_>,
        sent: &SentBlock,
        message: Option<&String>,
        known: &[CallNumber],
    ) -> Option<CallNumber> {
        let calls = self.of_id(meant.id).filter(|(number, call)| {
            let is_of_answer = message.is_some() && call.message.as_ref() == message;
            let is_of_hook = call.message.is_none() && call.block.is_none();
            (is_of_answer || is_of_hook || call.part == AnswerPart::Gathered) && !known.contains(number)
        });
        let sent_as = |is: fn(&SentBlock, &SentBlock) -> bool| {
            calls.clone().filter(move |(_, call)| call.block.as_ref().is_some_and(|block| is(block, sent)))
        };
        let unannounced = calls.clone().filter(|(_, call)| call.block.is_none());
        let same_line = sent_as(SentBlock::is).next().map(|(number, _)| number);
        let of_hook = || meant.first_of(unannounced.map(|(number, call)| (number, &call.record)));
        let alike = || sent_as(SentBlock::may_be).find(|(_, call)| meant.is_like(&call.record));
        same_line.or_else(of_hook).or_else(|| alike().map(|(number, _)| number))
    }

    /// Notes the id of the open answer, which only a hook had named so far.
    pub(super) fn announce_open(&mut self, message: Option<&String>) {
        for call in self.calls.values_mut().filter(|call| call.part == AnswerPart::Open) {
            call.message = message.cloned();
        }
    }

    /// Returns whether a line names a call of the open answer that only a hook had named so far.
    pub(super) fn is_announced_by(&self, said: &Assistant) -> bool {
        let unannounced = || self.open().filter(|(_, call)| call.block.is_none());
        said.content.iter().any(|block| {
            let ClaudeBlock::ToolUse { id, .. } = block else { return false };
            unannounced().any(|(_, call)| call.record.call_id == *id)
        })
    }

    /// Marks the gathered blocks as recorded: they become the open answer.
    pub(super) fn record(&mut self) -> Vec<ToolCallRecord> {
        let gathered = self.calls.values_mut().filter(|call| call.part == AnswerPart::Gathered);
        let recorded = gathered.map(|call| {
            call.part = AnswerPart::Open;
            call.record.clone()
        });
        recorded.collect()
    }

    /// Marks the turn of the open answer as recorded.
    pub(super) fn end_turn(&mut self, answer: Option<SequenceNumber>) {
        let open = self.calls.values_mut().filter(|call| call.part == AnswerPart::Open);
        for (ordinal, call) in (0..).zip(open) {
            call.part = AnswerPart::Past;
            call.is_closed = true;
            call.past = answer.map(|answer| CallOrigin { answer, ordinal });
        }
    }

    /// Marks a call as started, or as closed before that.
    pub(super) fn begin(&mut self, number: CallNumber) {
        if let Some(call) = self.calls.get_mut(&number) {
            call.has_begun = true;
        }
    }

    /// Marks a call as denied and closed.
    pub(super) fn deny(&mut self, number: CallNumber) {
        if let Some(call) = self.calls.get_mut(&number) {
            (call.has_begun, call.is_denied) = (false, true);
        }
        self.close(number);
    }

    /// Marks a call as having its result.
    pub(super) fn tell(&mut self, number: CallNumber) {
        if let Some(call) = self.calls.get_mut(&number) {
            call.is_told = true;
        }
    }

    /// Marks a call as closed.
    pub(super) fn close(&mut self, number: CallNumber) {
        let ended = self.ended;
        if let Some(call) = self.calls.get_mut(&number) {
            call.is_closed = true;
            call.ended.get_or_insert(ended);
            self.ended += 1;
        }
    }
}

impl AskedCall {
    /// Returns whether the call has neither started nor been closed.
    fn is_waiting(&self) -> bool {
        !(self.has_begun || self.is_denied || self.is_closed || self.is_told)
    }
}

impl SentBlock {
    /// Returns whether both are certainly the same block.
    fn is(&self, other: &SentBlock) -> bool {
        self.line.is_some() && self.line == other.line && self.place == other.place
    }

    /// Returns whether both may be the same block, because a line has no id.
    fn may_be(&self, other: &SentBlock) -> bool {
        self.line.is_none() || other.line.is_none()
    }
}

/// Returns a call in its recorded form.
fn record_of(MeantCall { id, tool, input }: MeantCall<'_>) -> ToolCallRecord {
    ToolCallRecord { call_id: id.to_owned(), name: tool.to_owned(), arguments: input.to_string() }
}
