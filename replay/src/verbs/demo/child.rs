//! The child process that is killed while it writes.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use foldlog::{Level, Store};
use uuid::Uuid;

use super::agent::{self, StepState};
use crate::failure::{Failure, HOLDS, Result};
use crate::output::Output;

/// How many acknowledged records the parent waits for before it kills.
const KILL_AFTER: u64 = 40;

/// How many records the child writes at most, should nobody kill it.
const RECORDS_MAX: u64 = 100_000;

/// What the child says before the sequence number of each record that it was told is kept.
const KEPT: &str = "kept ";

/// What the child was told is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledged {
    pub(super) count: u64,
    pub(super) last: u64,
}

/// The child's part: writes records and says of each that it is kept, until it is killed.
///
/// # Errors
///
/// Where the session cannot be written, or the parent is gone.
pub fn write_until_killed(store: &Path, session: Uuid, output: &mut Output<'_>) -> Result<u8> {
    let session = Store::open(store)?.open_session_at(session, &agent::types()?, Level::Process)?;
    for number in 0..RECORDS_MAX {
        let step = StepState { step: "write the fix".to_owned(), status: format!("line {number}") };
        let sequence = session.dispatch(step)?;
        output.line(format_args!("{KEPT}{sequence}"))?;
        output.stdout.flush()?;
        // An agent does something between its records; without a pause the timeline would be of the child.
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(HOLDS)
}

/// Starts the child, kills it once it has written for a while, and says what it was told.
pub(super) fn kill_while_writing(store: &Path, session: Uuid, output: &Output<'_>) -> Result<Acknowledged> {
    let mut command = (output.child)(store, session).map_err(Failure::Child)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(Failure::Child)?;
    let acknowledged = read_and_kill(&mut child);
    // Whatever happened, the child is not to outlive the demo, nor to stay as a zombie.
    let _ = child.kill();
    let _ = child.wait();
    acknowledged
}

fn read_and_kill(child: &mut Child) -> Result<Acknowledged> {
    let gone = || Failure::Child(std::io::Error::other("it ended before it was killed"));
    let stdout = child.stdout.take().ok_or_else(gone)?;
    let mut acknowledged = Acknowledged { count: 0, last: 0 };
    for line in BufReader::new(stdout).lines() {
        let line = line.map_err(Failure::Child)?;
        // A test's child says other things too.
        let Some(sequence) = line.strip_prefix(KEPT).and_then(|text| text.parse().ok()) else { continue };
        acknowledged = Acknowledged { count: acknowledged.count + 1, last: sequence };
        if acknowledged.count == KILL_AFTER {
            child.kill().map_err(Failure::Child)?;
        }
    }
    // What the child had said before it died was still in the pipe, and counts.
    if acknowledged.count < KILL_AFTER { Err(gone()) } else { Ok(acknowledged) }
}
