//! `foldlog settle`: a person's decision about an interrupted tool call. With `recover` the one verb that writes into a
//! session.

use std::path::Path;

use foldlog::{OperationId, SequenceNumber, Settlement, Store, Value};
use serde::Serialize;

use crate::cli::Settled;
use foldlog_codec::escape;

use crate::failure::{Failure, HOLDS, Result};
use crate::output::Output;
use crate::reading::store_of;

/// What was decided, by whom and why.
#[derive(Debug)]
pub struct Decided<'a> {
    /// The operation.
    pub operation: OperationId,
    /// What became of it.
    pub decision: Settled,
    /// Who decided.
    pub by: &'a str,
    /// Why.
    pub reason: &'a str,
}

#[derive(Serialize)]
struct Document {
    operation: OperationId,
    sequence: SequenceNumber,
}

/// Records what was decided about an interrupted operation.
///
/// # Errors
///
/// Where the session stands in no store, is open for writing, or has no such operation that waits for it.
pub fn run(
    session: &Path,
    decided: &Decided<'_>,
    result: Option<&str>,
    output: &mut Output<'_>,
) -> Result<u8> {
    let Some((root, id)) = store_of(session) else {
        let what = format!("{} is no session in a store", escape::path(session));
        return Err(Failure::usage(what, "give the folder of a session: STORE/sessions/ID"));
    };
    let result: Option<Value> = result.map(serde_json::from_str).transpose().map_err(|error| {
        Failure::usage(format!("the result is no JSON: {error}"), "give JSON, such as '{\"sent\": true}'")
    })?;
    let settlement = match decided.decision {
        Settled::Committed => Settlement::Committed(result),
        other if result.is_some() => {
            let what = format!("a call that is {other:?} has no result").to_lowercase();
            return Err(Failure::usage(what, "leave out --result, or say `committed`"));
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
            Settlement::RunAgain => "; it is run again when its host recovers the session",
            _ => "",
        };
        output.line(format_args!("operation {operation} is settled by record {sequence}{next}"))?;
    }
    Ok(HOLDS)
}
