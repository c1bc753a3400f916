//! What the log says of a call that was begun for the same model answer before.

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{CallOrigin, Outcome};
use foldlog_codec::msgpack::Value;

use super::call::{ToolCall, ToolReport};
use super::runner::ToolRunner;
use crate::error::Result;
use crate::operation::UnsettledOperation;
use crate::sabotage::{self, Breakage};
use crate::session::Settlement;
use crate::types::{Item, ToolInvocations, ToolInvoked};

impl ToolRunner {
    /// What is recorded of a call that was run for the same answer before: what it committed, or what somebody decided
    /// about it. The tool is not called.
    ///
    /// # Errors
    ///
    /// What reading the log says.
    pub fn recorded(&self, call: &ToolCall) -> Result<Option<ToolReport>> {
        Ok(self.known(call)?.and_then(|known| match known {
            Known::Recorded(report) => Some(*report),
            Known::Unsettled(_) => None,
        }))
    }

    /// What is known of a call that was begun for the same answer before.
    pub(super) fn known(&self, call: &ToolCall) -> Result<Option<Known>> {
        let Some(CallOrigin { answer, .. }) =
            call.origin.filter(|_| !sabotage::is(Breakage::CommittedRunAgain))
        else {
            return Ok(None);
        };
        let own = |item: &Item<ToolInvoked>| item.origin == call.origin && item.undoes.is_none();
        // None that is asked for by an answer ends before it.
        let mut latest = None;
        for item in self.session.log::<ToolInvocations>()?.behind(answer) {
            latest = Some(item?).filter(own).or(latest);
        }
        let Some(item) = latest else { return Ok(None) };
        let path = self.session.live_path();
        let position = self.session.position().unwrap_or_default();
        let invoked: &ToolInvoked = &item;
        let (end, _) = item.position().unwrap_or_default();
        match invoked.outcome {
            Outcome::Committed if path.is_live(end, position) => {
                let (value, message) = self.session.read_end(end)?;
                Ok(Some(Known::recorded(invoked, end, (true, message, value))))
            }
            Outcome::Interrupted => self.of_interrupted(invoked, end),
            // What failed, or was taken back since, is run as if it were new.
            Outcome::Committed | Outcome::Failed => Ok(None),
        }
    }

    fn of_interrupted(&self, invoked: &ToolInvoked, end: SequenceNumber) -> Result<Option<Known>> {
        let unsettled = self.session.unsettled_operations();
        if let Some(unsettled) = unsettled.into_iter().find(|one| one.operation == invoked.operation) {
            return Ok(Some(Known::Unsettled(unsettled)));
        }
        Ok(self.session.read_settlement(invoked.operation, end)?.and_then(|settlement| match settlement {
            Settlement::Committed(value) => {
                Some(Known::recorded(invoked, end, (true, "settled as committed".to_owned(), value)))
            }
            Settlement::Failed => {
                Some(Known::recorded(invoked, end, (false, "settled as failed".to_owned(), None)))
            }
            Settlement::RunAgain => None,
        }))
    }
}

/// What is known of a call of an answer.
pub(super) enum Known {
    Recorded(Box<ToolReport>),
    Unsettled(UnsettledOperation),
}

impl Known {
    fn recorded(
        invoked: &ToolInvoked,
        end: SequenceNumber,
        (success, message, value): (bool, String, Option<Value>),
    ) -> Known {
        Known::Recorded(Box::new(ToolReport {
            operation: invoked.operation,
            begin: invoked.begin,
            end,
            tool: invoked.tool.clone(),
            call_id: invoked.call_id.clone(),
            outcome: invoked.outcome,
            cause: None,
            success,
            message,
            value,
            outside: invoked.outside,
            not_undone: Vec::new(),
            elapsed_us: invoked.elapsed_us,
            recorded: true,
        }))
    }
}
