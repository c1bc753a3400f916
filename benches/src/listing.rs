//! Measures listing the sessions of a store, as a person does who looks for one of them.

use std::path::Path;

use foldlog::{SessionOptions, Store};
use foldlog_cli::Output;
use uuid::Uuid;

use crate::measure::{AtMost, BenchRow, Result, Round, take_turns, timed};
use crate::subject::{append_types, fill, store};

/// Number of steps of each session.
const STEPS: u64 = 20;

const LIST_ROUNDS: usize = 5;

pub fn sessions(dir: &Path, count: u64) -> Result<Vec<BenchRow>> {
    let (store, types) = (store(dir)?, append_types()?);
    for number in 0..count {
        let options = SessionOptions::default().tag("number", number.to_string());
        let session = store.create_with(&types, options)?;
        fill(&session, 0..STEPS)?;
        session.close()?;
    }
    // The first listing reads every log, and caches the results.
    let [first] = take_turns(1, [&mut || listed(&store)])?;
    let [listed] = take_turns(LIST_ROUNDS, [&mut || listed(&store)])?;
    let row =
        |subject: &str, measured| BenchRow::alone("sessions", subject, format!("{count} sessions"), measured);
    Ok(vec![
        row("foldlog sessions, for the first time", first),
        row("foldlog sessions", listed).at_most(AtMost::Ns(1e9)),
    ])
}

/// Runs the verb in this process.
fn listed(store: &Store) -> Result<Round> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let child = |_: &Path, _: Uuid| Err(std::io::Error::other("nothing here runs a child"));
    let round = timed(1, || {
        let mut output = Output::new(&mut stdout, &mut stderr, &child);
        match foldlog_cli::run(["foldlog".into(), "sessions".into(), store.path().into()], &mut output) {
            0 => Ok(()),
            code => Err(format!("`sessions` ended with {code}").into()),
        }
    });
    round.map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&stderr)).into())
}
