//! Measures appends to the log alone, and dispatches, which consist of the log and the fold.

use std::any::Any;
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use foldlog::testkit::RawLog;
use foldlog::{Clock, Durability, StoreOptions, SystemClock};
use foldlog_codec::msgpack;

use crate::limits::{self, LIMIT_TWICE, Mapped};
use crate::measure::{AtMost, BenchRow, ROUNDS, Result, Round, at_once, take_turns, timed};
use crate::subject::{BenchStep, append_types, step, store};

const BODY: [u8; 256] = [0x5a; 256];

/// Number of bodies in a round: 64 MiB, and 1 GiB.
const OPS: u64 = (64 << 20) / BODY.len() as u64;
const OPS_LONG: u64 = (1 << 30) / BODY.len() as u64;

/// Number of rounds that write a gigabyte, which takes seconds to reach the disk.
const ROUNDS_LONG: usize = 3;

const OPS_EVERY: u64 = 1_000;

const EVENTS: u64 = 100_000;

/// Length of a limit's file, which is rewritten from its beginning once it is full.
const LIMIT_BYTES: u64 = 80 << 20;

/// Replaces the store, whose background thread its logs share.
fn store_of_logs(dir: &Path) -> Result<RawLog> {
    Ok(RawLog::create(dir.join("store"), &StoreOptions::default())?)
}

/// Passes a new log to `run`, and then closes and deletes it.
fn with_log<T>(store: &RawLog, dir: &Path, run: impl FnOnce(&RawLog) -> Result<T>) -> Result<T> {
    let path = dir.join("log");
    let log = store.create_beside(&path)?;
    let result = run(&log)?;
    log.close()?;
    std::fs::remove_dir_all(&path)?;
    Ok(result)
}

fn appended(store: &RawLog, dir: &Path, ops: u64, durability: Durability) -> Result<Round> {
    with_log(store, dir, |log| {
        timed(ops, || Ok((0..ops).try_for_each(|_| log.append(&BODY, durability).map(drop))?))
    })
}

pub fn append(dir: &Path) -> Result<Vec<BenchRow>> {
    let mut rows = Vec::new();
    let store = store_of_logs(dir)?;
    let mapped = RefCell::new(Mapped::new(&dir.join("limit"), LIMIT_BYTES)?);
    let written = |ops, now_us: fn() -> i64| {
        let mut mapped = mapped.borrow_mut();
        mapped.fault_in()?;
        timed(ops, || (0..ops).try_for_each(|sequence| mapped.append(sequence, now_us(), &BODY)))
    };
    for (ops, rounds, param, at_most) in
        [(OPS, ROUNDS, "Process 64 MiB", 1.5), (OPS_LONG, ROUNDS_LONG, "Process 1 GiB", 2.5)]
    {
        let [subject, limit, carried] = take_turns(
            rounds,
            [
                &mut || appended(&store, dir, ops, Durability::Process),
                &mut || written(ops, limits::now_us),
                &mut || written(ops, || SystemClock.now_us()),
            ],
        )?;
        rows.push(BenchRow::beside("append", "256 B", param, subject, limit).at_most(AtMost::Ratio(at_most)));
        rows.push(BenchRow::beside(
            "append",
            "256 B beside a limit with the log's clock",
            param,
            subject,
            carried,
        ));
    }
    drop(mapped);
    std::fs::remove_file(dir.join("limit"))?;
    rows.extend(slowest(&store, dir)?);
    rows.push(append_every(&store, dir)?);
    Ok(rows)
}

/// Times every single append in a separate pass, since each takes two more readings of a clock.
fn slowest(store: &RawLog, dir: &Path) -> Result<[BenchRow; 2]> {
    let mut all = with_log(store, dir, |log| {
        let mut all = Vec::with_capacity(OPS_LONG as usize);
        for _ in 0..OPS_LONG {
            let start = Instant::now();
            log.append(&BODY, Durability::Process)?;
            all.push(start.elapsed().as_nanos() as u64);
        }
        Ok(all)
    })?;
    all.sort_unstable();
    let at = |place: usize| all.get(place).copied().unwrap_or_default() as f64;
    Ok([
        BenchRow::once("append", "256 B p99.9", "Process 1 GiB", at(all.len() / 1000 * 999)),
        BenchRow::once("append", "256 B slowest", "Process 1 GiB", at(all.len() - 1)),
    ])
}

fn append_every(store: &RawLog, dir: &Path) -> Result<BenchRow> {
    let path = dir.join("limit");
    let mut frame = Vec::new();
    limits::write_frame(0, limits::now_us(), &BODY, &mut frame)?;
    let len = frame.len() as u64;
    let file = limits::filled(&path, OPS_EVERY * len)?;
    let [subject, limit] = take_turns(
        ROUNDS,
        [&mut || appended(store, dir, OPS_EVERY, Durability::Every), &mut || {
            timed(OPS_EVERY, || {
                let mut places = (0..OPS_EVERY).map(|place| place * len);
                Ok(places.try_for_each(|offset| limits::write_and_sync(&file, &frame, offset))?)
            })
        }],
    )?;
    std::fs::remove_file(&path)?;
    Ok(BenchRow::beside("append", "256 B", "Every", subject, limit).at_most(AtMost::Ratio(1.1)))
}

/// Contains events in the simplest form.
type KeptEvents = Vec<Arc<dyn Any>>;

/// Writes events like the limit of a dispatch.
fn write_all(mapped: &mut Mapped, steps: &[BenchStep]) -> Result<()> {
    (0..).zip(steps).try_for_each(|(sequence, step)| mapped.append_event(sequence, limits::now_us(), step))
}

/// Writes an event into a log without a session.
fn log_event(log: &RawLog, body: &mut Vec<u8>, step: &BenchStep) -> Result<()> {
    body.clear();
    msgpack::append(step, body)?;
    log.append(body, Durability::Process)?;
    Ok(())
}

/// Measures dispatches. Further rows show the shares of the time: the log without a session, the
/// limit with each event kept in the simplest form, and both.
pub fn dispatch(dir: &Path) -> Result<Vec<BenchRow>> {
    let types = append_types()?;
    let store = store(dir)?;
    let mapped = RefCell::new(Mapped::new(&dir.join("limit"), LIMIT_BYTES)?);
    let steps: Vec<BenchStep> = (0..EVENTS).map(step).collect();
    let mut dispatched = || {
        let session = store.create(&types)?;
        let steps = steps.clone();
        let ns =
            timed(EVENTS, || Ok(steps.into_iter().try_for_each(|step| session.dispatch(step).map(drop))?));
        let id = session.id();
        session.close()?;
        store.delete(id)?;
        ns
    };
    let mut written = || {
        let mut mapped = mapped.borrow_mut();
        mapped.fault_in()?;
        timed(EVENTS, || write_all(&mut mapped, &steps))
    };
    let mut other = Mapped::new(&dir.join("other limit"), LIMIT_BYTES)?;
    let mut twice = || {
        let mut mapped = mapped.borrow_mut();
        mapped.fault_in()?;
        other.fault_in()?;
        let (one, other) = (&mut *mapped, &mut other);
        timed(EVENTS, || at_once([&mut || write_all(one, &steps), &mut || write_all(other, &steps)]))
    };
    let logs = store_of_logs(&dir.join("logs"))?;
    let mut logged = || {
        with_log(&logs, dir, |log| {
            let mut body = Vec::new();
            timed(EVENTS, || steps.iter().try_for_each(|step| log_event(log, &mut body, step)))
        })
    };
    let mut logged_and_kept = || {
        with_log(&logs, dir, |log| {
            let (steps, mut body, mut kept) = (steps.clone(), Vec::new(), KeptEvents::new());
            timed(EVENTS, || {
                steps.into_iter().try_for_each(|step| {
                    log_event(log, &mut body, &step)?;
                    kept.push(Arc::new(step));
                    Ok(())
                })
            })
        })
    };
    let mut kept = || {
        let (steps, mut kept) = (steps.clone(), KeptEvents::new());
        mapped.borrow_mut().fault_in()?;
        timed(EVENTS, || {
            (0..).zip(steps).try_for_each(|(sequence, step)| {
                mapped.borrow_mut().append_event(sequence, limits::now_us(), &step)?;
                kept.push(Arc::new(step));
                Ok(())
            })
        })
    };
    let [subject, limit, twice, logged, kept, both] = take_turns(
        ROUNDS,
        [&mut dispatched, &mut written, &mut twice, &mut logged, &mut kept, &mut logged_and_kept],
    )?;
    let row = |subject, measured| BenchRow::beside("dispatch", subject, "Process", measured, limit);
    Ok(vec![
        row("append_all", subject).at_most(AtMost::Ratio(1.6)),
        row(LIMIT_TWICE, twice),
        row("encoding and the log, no session", logged),
        row("the limit, and each event kept", kept),
        row("encoding and the log, no session, and each event kept", both),
    ])
}
