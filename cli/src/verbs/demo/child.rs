//! The demo's child process, which is killed within a tool call.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use clap::Args;
use foldlog::{Durability, SequenceNumber, Store};
use uuid::Uuid;

use super::agent::{self, StepState};
use super::conversation::{self, ASKED};
use super::tools::{self, INSIDE};
use crate::command::{Access, Command, Group, Target};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;

/// Run the demo's child process, which writes until it is killed.
#[derive(Clone, Debug, Args)]
pub struct ChildArguments {
    /// The store's directory.
    pub store: PathBuf,
    /// The session's id.
    pub session: Uuid,
}

impl Command for ChildArguments {
    const GROUP: Group = Group::Internal;
    const ACCESS: Access = Access::Changes;
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "";

    /// Runs the child: writes records and prints the sequence number of each acknowledged one, and
    /// then starts a conversation. The parent kills this process within a tool call of that
    /// conversation.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`](foldlog_view::Error::Engine) if the session cannot be written,
    /// [`Error::Output`](foldlog_view::Error::Output) if the parent has ended.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let store = self.store.as_path();
        let session =
            Store::open(store)?.open_session_at(self.session, &agent::types()?, Durability::Process)?;
        for number in 0..RECORDS {
            let step = StepState { step: "write the fix".to_owned(), status: format!("line {number}") };
            let sequence = session.dispatch(step)?;
            output.line(format_args!("{KEPT}{sequence}"))?;
            output.stdout.flush()?;
        }
        // The parent kills this process within a call of the first answer, so the second one is
        // never received.
        conversation::begin(&tools::runner(store, &session)?)?;
        Ok(HOLDS)
    }
}

/// Number of records that the child writes before it starts the conversation in which it is killed.
const RECORDS: u64 = 40;

/// Text before the sequence number of each acknowledged record in the child's output.
const KEPT: &str = "kept ";

/// Acknowledged records and requests of the child before it was killed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChildProgress {
    /// Number of its own records.
    pub(super) count: u64,
    /// Sequence number of the last of them.
    pub(super) last: SequenceNumber,
    /// Number of answers that it requested from the model.
    pub(super) asked: u64,
}

/// Starts the child, kills it within its call, and returns the records that were acknowledged to
/// it.
pub(super) fn kill_within_a_call(store: &Path, session: Uuid, output: &Output<'_>) -> Result<ChildProgress> {
    let mut command = (output.child)(store, session).map_err(CommandError::Child)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(CommandError::Child)?;
    let acknowledged = read_and_kill(&mut child);
    // In every case the child must end before the demo does.
    let _ = child.kill();
    let _ = child.wait();
    acknowledged
}

fn read_and_kill(child: &mut Child) -> Result<ChildProgress> {
    let gone = || CommandError::Child(std::io::Error::other("it ended before it was killed"));
    let stdout = child.stdout.take().ok_or_else(gone)?;
    let (mut acknowledged, mut inside) =
        (ChildProgress { count: 0, last: SequenceNumber::MIN, asked: 0 }, false);
    for line in BufReader::new(stdout).lines() {
        let line = line.map_err(CommandError::Child)?;
        if line.starts_with(INSIDE) {
            inside = true;
            child.kill().map_err(CommandError::Child)?;
        }
        acknowledged.asked += u64::from(line.starts_with(ASKED));
        // In a test, the child prints other lines too.
        let Some(sequence) = line.strip_prefix(KEPT).and_then(|text| text.parse().ok()) else { continue };
        acknowledged = ChildProgress { count: acknowledged.count + 1, last: sequence, ..acknowledged };
    }
    // Lines that the child printed before it was killed are still in the pipe, and count.
    if !inside || acknowledged.count == 0 { Err(gone()) } else { Ok(acknowledged) }
}
