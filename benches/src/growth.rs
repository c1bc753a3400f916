//! Measures readers whose time must grow no faster than their log: each at one size, and at four
//! times that size.

use std::path::{Path, PathBuf};

use foldlog::log::SegmentSizes;
use foldlog::{SessionOptions, Store, StoreOptions};
use foldlog_codec::RecordKind;
use foldlog_codec::body::{Outcome, Payload, Rollback, ToolBegin, ToolEnd};
use foldlog_tests::forge::ForgedLog;
use foldlog_tests::verbs::foldlog;

use crate::measure::{AtMost, BenchRow, Result, Round, take_turns, timed};
use crate::subject::{append_types, fill};

const FEW: u64 = 2_000;
const MANY: u64 = 4 * FEW;

const FEW_SEGMENTS: u64 = 64;
const MANY_SEGMENTS: u64 = 4 * FEW_SEGMENTS;

const ROUNDS: usize = 3;

/// Allows twice the growth of the log, for each.
const GROWTH: AtMost = AtMost::Ratio(2.0);

pub fn growth(dir: &Path) -> Result<Vec<BenchRow>> {
    let at = |name: &str, size: u64| dir.join(format!("{name} {size}"));
    let undone = [FEW, MANY].map(|steps| undone(&at("undone", steps), steps));
    let unsettled = [FEW, MANY].map(|calls| unsettled(&at("unsettled", calls), calls));
    let [few, many] = [FEW_SEGMENTS, MANY_SEGMENTS].map(|count| segmented(&at("segments", count), count));
    let segmented = [few?, many?];
    let copies = dir.join("copies").display().to_string();
    Ok(vec![
        row(
            "replay --thorough, of rollbacks one step further back each",
            &undone,
            "replay",
            &["--thorough"],
        )?,
        row("recover, of calls that wait for a decision", &unsettled, "recover", &[])?,
        row("recover --strategies, of segments", &segmented, "recover", &["--strategies"])?,
        row("salvage, of segments", &segmented, "salvage", &["--to", &copies])?,
    ])
}

/// A session, and its size.
struct SizedSession {
    dir: PathBuf,
    size: u64,
}

/// Runs a verb over two sessions, of which the second is four times as long.
fn row(name: &str, [few, many]: &[SizedSession; 2], verb: &str, options: &[&str]) -> Result<BenchRow> {
    let run = |session: &SizedSession| -> Result<Round> {
        let (dir, size) = (session.dir.display().to_string(), session.size);
        let words = [verb, &dir].into_iter().chain(options.iter().copied());
        timed(size, || match foldlog(words) {
            ran if ran.code == 0 => Ok(()),
            ran => Err(format!("exit code {}: {}", ran.code, ran.stderr).into()),
        })
    };
    let [smaller, larger] = take_turns(ROUNDS, [&mut || run(few), &mut || run(many)])?;
    Ok(BenchRow::beside("growth", name, many.size, larger, smaller).at_most(GROWTH))
}

/// Makes a log with successive rollbacks from its last step on, each to one step before the
/// previous one.
fn undone(dir: &Path, steps: u64) -> SizedSession {
    let mut log = ForgedLog::new(dir);
    let data = foldlog::Value::from("step").encode();
    let first = log.next();
    for _ in 0..steps {
        log.event(&data);
    }
    for to in (first..first + steps - 1).rev() {
        log.record(RecordKind::Rollback, &Rollback { to: to.into(), preserve_logs: true }.encode());
    }
    log.flush();
    SizedSession { dir: log.dir().to_owned(), size: steps }
}

/// Makes a log of interrupted calls without a decision.
fn unsettled(dir: &Path, calls: u64) -> SizedSession {
    let mut log = ForgedLog::new(dir);
    let arguments = foldlog::Value::from("{}").encode();
    for _ in 0..calls {
        let begin =
            log.record(RecordKind::ToolBegin, &ToolBegin::new("tool", Payload::new(&arguments)).encode());
        let end = ToolEnd { rolls_back: true, ..ToolEnd::new(begin.into(), "tool", Outcome::Interrupted) };
        log.record(RecordKind::ToolEnd, &end.encode());
    }
    log.flush();
    SizedSession { dir: log.dir().to_owned(), size: calls }
}

/// Makes a session of this many small segments.
fn segmented(dir: &Path, segments: u64) -> Result<SizedSession> {
    let options = StoreOptions {
        segments: SegmentSizes { first_bytes: 64 << 10, max_bytes: 64 << 10, ..SegmentSizes::default() },
        ..StoreOptions::default()
    };
    let store = Store::open_with(dir, options)?;
    let session = store.create_with(&append_types()?, SessionOptions::default())?;
    fill(&session, 0..segments * 256)?;
    let dir = session.dir().to_owned();
    session.close()?;
    let found = std::fs::read_dir(&dir)?
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|ext| ext == "seg"));
    Ok(SizedSession { dir, size: found.count() as u64 })
}
