//! Measures foldlog, and beside it, in the same run, the least that the machine has to do.
//!
//! `cargo run --release -p foldlog-benches -- [dispatch|replay|rollback|fork]... [--json]` prints one row a
//! line: `bench, subject, param, ns_per_op, ratio_to_limit`. Each number is the median of several rounds, in
//! which subject and limit take turns; a row whose limit's median is over 1.5 times its own minimum is marked
//! as void, since the machine was busy then. `README.md` beside the sources says what was learnt.

mod limits;
mod subject;

use std::path::Path;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use foldlog::{Level, Result, SessionOptions, SnapshotOptions};
use serde::Serialize;

use crate::subject::{append_types, step, store, upsert_types};

const ROUNDS: usize = 7;

#[derive(Parser)]
#[command(about = "Measures foldlog beside its limits")]
struct Arguments {
    /// What to measure; all where nothing is said.
    benches: Vec<Bench>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum, PartialEq)]
enum Bench {
    Dispatch,
    Replay,
    Rollback,
    Fork,
}

#[derive(Serialize)]
struct Row {
    bench: &'static str,
    subject: String,
    param: String,
    ns_per_op: f64,
    ratio_to_limit: Option<f64>,
    void: bool,
}

/// Nanoseconds an operation, of `ops` operations.
fn timed(ops: u64, run: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_nanos() as f64 / ops as f64)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Lets subject and limit take turns.
fn compare(
    bench: &'static str,
    subject: &str,
    param: String,
    mut run: impl FnMut(usize) -> Result<f64>,
    mut limit: impl FnMut() -> Result<f64>,
) -> Result<Row> {
    let (mut subjects, mut limits) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        subjects.push(run(round)?);
        limits.push(limit()?);
    }
    let (ns_per_op, limit) = (median(&mut subjects), median(&mut limits));
    let void = limits.first().is_some_and(|least| limit > 1.5 * least);
    let ratio_to_limit = Some(ns_per_op / limit);
    Ok(Row { bench, subject: subject.to_owned(), param, ns_per_op, ratio_to_limit, void })
}

fn dispatch(path: &Path) -> Result<Vec<Row>> {
    let types = append_types()?;
    let mut rows = Vec::new();
    for (level, name, ops) in [(Level::Process, "Process", 20_000), (Level::Every, "Every", 300)] {
        let store = store(&path.join(name), level)?;
        let row = compare(
            "dispatch",
            "append_all",
            name.to_owned(),
            |_| {
                let session = store.create(&types)?;
                let steps: Vec<_> = (0..ops).map(step).collect();
                timed(ops, || steps.into_iter().try_for_each(|step| session.dispatch(step).map(drop)))
            },
            || {
                let steps: Vec<_> = (0..ops).map(step).collect();
                let mut out = Vec::with_capacity(ops as usize * 512);
                timed(ops, || {
                    (0..).zip(&steps).for_each(|(number, step)| limits::write_event(number, step, &mut out));
                    Ok(())
                })
            },
        )?;
        rows.push(row);
    }
    Ok(rows)
}

fn replay(path: &Path) -> Result<Vec<Row>> {
    const EVENTS: u64 = 100_000;
    let types = append_types()?;
    let store = store(&path.join("replay"), Level::Process)?;
    let session = store.create(&types)?;
    let mut frames = Vec::new();
    for number in 0..EVENTS {
        session.dispatch(step(number))?;
        limits::write_event(number, &step(number), &mut frames);
    }
    let id = session.id();
    session.close()?;
    let row = compare(
        "replay",
        "open",
        EVENTS.to_string(),
        |_| timed(EVENTS, || store.open_session(id, &types).map(drop)),
        || timed(EVENTS, || if limits::read_events(&frames) == EVENTS { Ok(()) } else { unread() }),
    )?;
    Ok(vec![row])
}

fn unread() -> Result<()> {
    Err(foldlog::Error::Export("the limit's own frames did not read".to_owned()))
}

fn rollback(path: &Path) -> Result<Vec<Row>> {
    const OPS: u64 = 200;
    let mut rows = Vec::new();
    for (name, types) in [("append_all", append_types()?), ("upsert_by", upsert_types()?)] {
        for items in [1_000, 100_000] {
            let store = store(&path.join(format!("rollback-{name}-{items}")), Level::Process)?;
            let session = store.create(&types)?;
            for number in 0..items {
                session.dispatch(step(number))?;
            }
            let mut rounds = Vec::new();
            for _ in 0..ROUNDS {
                rounds.push(timed(OPS, || {
                    for number in 0..OPS {
                        let snapshot = session.snapshot(SnapshotOptions::default())?;
                        session.dispatch(step(number))?;
                        session.rollback(&snapshot)?;
                    }
                    Ok(())
                })?);
            }
            let (ns_per_op, subject) = (median(&mut rounds), name.to_owned());
            let param = items.to_string();
            rows.push(Row {
                bench: "rollback",
                subject,
                param,
                ns_per_op,
                ratio_to_limit: None,
                void: false,
            });
        }
    }
    Ok(rows)
}

fn fork(path: &Path) -> Result<Vec<Row>> {
    let types = append_types()?;
    let mut rows = Vec::new();
    for records in [1_000, 50_000] {
        let store = store(&path.join(format!("fork-{records}")), Level::Process)?;
        let session = store.create(&types)?;
        for number in 0..records {
            session.dispatch(step(number))?;
        }
        session.sync()?;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(timed(1, || {
                store.fork(session.id(), records / 2, &types, SessionOptions::default()).map(drop)
            })?);
        }
        let (ns_per_op, param) = (median(&mut rounds), records.to_string());
        let subject = "half of the records".to_owned();
        rows.push(Row { bench: "fork", subject, param, ns_per_op, ratio_to_limit: None, void: false });
    }
    Ok(rows)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let folder = tempfile::tempdir()?;
    let all = [Bench::Dispatch, Bench::Replay, Bench::Rollback, Bench::Fork];
    for bench in all {
        if !arguments.benches.is_empty() && !arguments.benches.contains(&bench) {
            continue;
        }
        let rows = match bench {
            Bench::Dispatch => dispatch(folder.path())?,
            Bench::Replay => replay(folder.path())?,
            Bench::Rollback => rollback(folder.path())?,
            Bench::Fork => fork(folder.path())?,
        };
        for row in rows {
            print_row(&row, arguments.json)?;
        }
    }
    Ok(())
}

fn print_row(row: &Row, json: bool) -> Result<(), serde_json::Error> {
    if json {
        println!("{}", serde_json::to_string(row)?);
        return Ok(());
    }
    let ratio = row.ratio_to_limit.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
    let void = if row.void { " (void: the machine was busy)" } else { "" };
    println!("{}, {}, {}, {:.0}, {ratio}{void}", row.bench, row.subject, row.param, row.ns_per_op);
    Ok(())
}
