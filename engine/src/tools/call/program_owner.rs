//! The programs of a tool call: the call as their owner, and their errors as the tool sees them.

use std::process::{Child, Command, ExitStatus};

use foldlog_codec::SequenceNumber;

use super::answer::ToolError;
use super::run::RunningCall;
use crate::error::{Error, Result as EngineResult};
use crate::operation::PROGRAMS;
use crate::process::programs::{ProgramError, ProgramGroup, ProgramOwner};
use crate::session::Session;
use crate::session::operations::ActiveCall;

impl ProgramOwner for ActiveCall {
    fn label(&self) -> String {
        format!("{}:{}", self.handle().id(), self.begin)
    }

    fn is_cancelled(&self) -> bool {
        self.within.is_cancelled()
    }

    fn record(&self, group: &ProgramGroup) -> EngineResult<()> {
        self.handle().calls().record_fact(PROGRAMS, group).map(drop)
    }
}

/// Returns the program groups that the session's log records from the sequence number `from` on.
///
/// # Errors
///
/// Those of reading the log.
pub(in crate::tools) fn recorded_groups(
    session: &Session,
    from: SequenceNumber,
) -> EngineResult<Vec<ProgramGroup>> {
    session.calls().observed_from(PROGRAMS, from)
}

impl RunningCall {
    /// Starts a program of the call.
    ///
    /// # Errors
    ///
    /// - [`ToolError::Cancelled`] if the call is cancelled or over.
    /// - [`ToolError::Engine`] with [`Error::DeadlineExceeded`] if its deadline has passed; with
    ///   the log's error if the programs cannot be recorded.
    /// - [`ToolError::Failed`] if the program or its leader cannot be started, or if a program of a
    ///   leader that has died does not end.
    pub(super) fn spawn_program(&self, command: &mut Command) -> Result<Child, ToolError> {
        self.programs.spawn(&self.begun, command).map_err(|error| self.program_error(error))
    }

    /// Starts a program that runs in the background until the call ends.
    ///
    /// # Errors
    ///
    /// Those of [`spawn_program`](RunningCall::spawn_program).
    pub(super) fn start_background_program(&self, command: &mut Command) -> Result<(), ToolError> {
        self.programs.start_in_background(&self.begun, command).map_err(|error| self.program_error(error))
    }

    /// Waits for a program of the call, and calls `pause` between two checks of its status. If the
    /// call is cancelled or late before the program ends, terminates all programs of the call.
    ///
    /// # Errors
    ///
    /// - [`ToolError::Cancelled`] if the call is cancelled or over.
    /// - [`ToolError::Engine`] with [`Error::DeadlineExceeded`] if its deadline passes.
    /// - [`ToolError::Failed`] if the system does not report the status.
    pub(super) fn wait_for_program(
        &self,
        child: &mut Child,
        pause: impl FnMut(),
    ) -> Result<ExitStatus, ToolError> {
        self.programs.wait(&self.begun, child, pause).map_err(|error| self.program_error(error))
    }

    fn program_error(&self, error: ProgramError) -> ToolError {
        let call = &self.begun.within;
        match error {
            ProgramError::Stopped if call.is_late() => {
                ToolError::Engine(Error::DeadlineExceeded { operation: Some(call.operation()) })
            }
            ProgramError::Stopped => ToolError::Cancelled,
            ProgramError::Remains => ToolError::failed("a program that the tool started does not end"),
            ProgramError::GroupId => {
                ToolError::failed("the process id of the programs' group is over 31 bits")
            }
            ProgramError::Io(error) => error.into(),
            ProgramError::Record(error) => error.into(),
        }
    }
}
