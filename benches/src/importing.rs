//! Measures the import of recorded runs as conversations: many short sessions.

use std::path::Path;

use foldlog_replay::runs::{import, read_tau_bench, types};

use crate::measure::{AtMost, ROUNDS, Result, Row, take_turns, timed};

/// Finds the recorded runs beside the checkout, where the tests look for them too.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/tau-bench/gpt-4o-airline.json");

pub fn tau_bench(dir: &Path) -> Result<Vec<Row>> {
    let file = Path::new(FILE);
    if !file.is_file() {
        eprintln!("tau-bench: skipped, there is no file of recorded runs beside the checkout ({FILE})");
        return Ok(Vec::new());
    }
    let types = types()?;
    let runs = read_tau_bench(file)?;
    let messages: u64 = runs.iter().map(|run| run.steps.len() as u64).sum();
    let root = dir.join("store");
    let mut written = || {
        let ns = timed(messages, || {
            Ok(runs.iter().try_for_each(|run| import::run(&root, &types, run).map(drop))?)
        });
        std::fs::remove_dir_all(&root)?;
        ns
    };
    let mut read = || {
        timed(messages, || {
            read_tau_bench(file)?;
            Ok(())
        })
    };
    let [written, read] = take_turns(ROUNDS, [&mut written, &mut read])?;
    let param = format!("{messages} messages in {} sessions", runs.len());
    Ok(vec![
        Row::alone("tau-bench", "import as conversations, a message", &param, written)
            .at_most(AtMost::Ns(40_000.0)),
        Row::alone("tau-bench", "reading the file before that", &param, read),
    ])
}
