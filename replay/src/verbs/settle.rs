//! `foldlog settle`: a person's decision about an interrupted tool call. `settle` and `recover` are the verbs that write into
//! a session that exists.

use std::path::Path;

use clap::ValueEnum;
use foldlog::{OperationId, SequenceNumber, Settlement, Store, Value};
use serde::Serialize;

use foldlog_codec::escape;

use crate::failure::{Failure, HOLDS, Result};
use crate::output::Output;
use crate::reading::store_of;

/// Names what a person says became of an interrupted call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Settled {
    /// The call had done its work.
    Committed,
    /// The call had not done its work, and is not run again.
    Failed,
    /// The next recovery by the host runs the call again.
    RunAgain,
}

/// Holds a person's decision about an operation.
#[derive(Debug)]
pub struct Decided<'a> {
    /// Operation id: the sequence number of the operation's first begin.
    pub operation: OperationId,
    /// What became of the operation.
    pub decision: Settled,
    /// Who decided.
    pub by: &'a str,
    /// Why that was decided.
    pub reason: &'a str,
}

#[derive(Serialize)]
struct Document {
    operation: OperationId,
    sequence: SequenceNumber,
}

/// Records a decision about an interrupted operation, with the result, as JSON, of a committed one. The decision is durable
/// when this returns.
///
/// # Errors
///
/// - [`Failure::Usage`] if the session is in no store, or `result` is not JSON or given for a call that was not committed.
/// - [`Failure::Engine`] if another process has the session open for writing, or no such operation waits to be settled.
pub fn run(
    session: &Path,
    decided: &Decided<'_>,
    result: Option<&str>,
    output: &mut Output<'_>,
) -> Result<u8> {
    let Some((root, id)) = store_of(session) else {
        let what = format!("{} is not the folder of a session in a store", escape::path(session));
        return Err(Failure::usage(what, "give the folder of a session: STORE/sessions/ID"));
    };
    let result: Option<Value> = result.map(serde_json::from_str).transpose().map_err(|error| {
        Failure::usage(format!("the result is not JSON: {error}"), "give JSON, such as '{\"sent\": true}'")
    })?;
    let settlement = match decided.decision {
        Settled::Committed => Settlement::Committed(result),
        other if result.is_some() => {
            let decision = if other == Settled::Failed { "failed" } else { "run-again" };
            let what = format!("a call that is settled as `{decision}` has no result");
            return Err(Failure::usage(what, "leave out --result, or settle the call as `committed`"));
        }
        Settled::Failed => Settlement::Failed,
        Settled::RunAgain => Settlement::RunAgain,
    };
    let Decided { operation, by, reason, .. } = *decided;
    let sequence = Store::open(&root)?.settle(id, operation, &settlement, by, reason)?;
    if output.json() {
        output.value(&Document { operation, sequence })?;
    } else {
        let next = match settlement {
            Settlement::RunAgain => "; its host runs the call again when it recovers the session",
            _ => "",
        };
        output.line(format_args!("operation {operation} is settled by record {sequence}{next}"))?;
    }
    Ok(HOLDS)
}
