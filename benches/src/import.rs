//! Measures recorded runs of an agent as conversations, in many short sessions: their import, and
//! the replay of a host that ran them.

use std::path::Path;
use std::sync::Arc;

use foldlog::inspect::{LogReader, ReadOptions};
use foldlog::replay::Replay;
use foldlog::storage::{FileStorage, Storage};
use foldlog::{BackgroundSync, Durability, Store, StoreOptions};
use foldlog_cli::runs::{import, read_tau_bench, types};

use foldlog_tests::held;

use crate::measure::{AtMost, BenchRow, ROUNDS, Result, take_turns, timed};

/// Finds the recorded runs next to the checkout, where the tests look for them too.
pub const FILE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/tau-bench/gpt-4o-airline.json");

pub fn tau_bench(dir: &Path) -> Result<Vec<BenchRow>> {
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
    let mut rows = vec![
        BenchRow::alone("tau-bench", "import as conversations, a message", &param, written)
            .at_most(AtMost::Ns(40_000.0)),
        BenchRow::alone("tau-bench", "reading the file before that", &param, read),
    ];
    rows.push(replayed(&root, file)?);
    Ok(rows)
}

/// Longest replay of a record, in nanoseconds: 50,000 records a second.
const REPLAYED_NS: f64 = 20_000.0;

/// Runs the conversations with a scripted provider, and measures the replay of each from its own
/// log, including opening it.
fn replayed(root: &Path, file: &Path) -> Result<BenchRow> {
    let types = held::types(None);
    let runs = held::runs(file);
    let options = StoreOptions {
        durability: Durability::Process,
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    let store = Store::open_with(root, options)?;
    let mut dirs = Vec::new();
    for run in &runs {
        let session = store.create(&types)?;
        run.hold(&session, None)?;
        dirs.push(session.dir().to_owned());
        session.close()?;
    }
    let storage: Arc<dyn Storage> = Arc::new(FileStorage::new());
    let outline = ReadOptions { outline: true, ..ReadOptions::default() };
    let replay = || -> Result<(u64, u64)> {
        let mut counts = (0, 0);
        for (dir, run) in dirs.iter().zip(&runs) {
            let log = LogReader::open_with(Arc::clone(&storage), dir, outline)?;
            let mut held = Ok(());
            let report = Replay::new(&log, &types).run(|session| held = run.hold(&session, None))?;
            held?;
            counts = (counts.0 + report.records, counts.1 + report.compared);
        }
        Ok(counts)
    };
    let (records, compared) = replay()?;
    let mut measured = || timed(records, || replay().map(drop));
    let [measured] = take_turns(ROUNDS, [&mut measured])?;
    let param = format!("{records} records in {} sessions, {compared} of them compared", runs.len());
    let row = BenchRow::alone("tau-bench", "replay of the host, a record", param, measured);
    Ok(row.at_most(AtMost::Ns(REPLAYED_NS)))
}
