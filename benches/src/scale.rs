//! Measures growth: many sessions at once, a long log, and the same step many times, at the
//! beginning and at the end.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use clap::Args;
use foldlog::{Session, SessionTypes, SnapshotOptions, Store};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::listing;
use crate::measure::{AtMost, BenchRow, Measurement, Result, Round, take_turns, timed};
use crate::open::{ANONYMOUS, FILE_PAGES, Images, held, resident_kib};
use crate::subject::{append_types, fill, journal_types, step, store, upsert_types};

/// Numbers of repetitions, and sizes.
#[derive(Args, Clone, Copy)]
#[group(skip)]
pub struct Sizes {
    /// `scale`: a thirtieth or less of everything, which takes seconds.
    #[arg(long)]
    short: bool,
    /// `scale`: number of sessions open at once.
    #[arg(long, default_value_t = 10_000)]
    open: u64,
    /// `scale`: number of sessions of the store that is listed.
    #[arg(long, default_value_t = 100_000)]
    listed: u64,
    /// `scale`: MiB of the log that is opened with an image.
    #[arg(long, default_value_t = 1_024)]
    opened_mib: u64,
    /// `scale`: number of rollbacks.
    #[arg(long, default_value_t = 100_000)]
    rollbacks: u64,
    /// `scale`: number of snapshots.
    #[arg(long, default_value_t = 1_000_000)]
    snapshots: u64,
    /// `scale`: number of crashes, with a reopening after each.
    #[arg(long, default_value_t = 1_000)]
    crashes: u64,
    /// `scale`: number of items of a slice.
    #[arg(long, default_value_t = 5_000_000)]
    items: u64,
}

impl Sizes {
    /// Returns the chosen sizes: those of the options, or small ones.
    fn chosen(self) -> Sizes {
        if !self.short {
            return self;
        }
        Sizes {
            open: self.open.min(300),
            listed: self.listed.min(300),
            opened_mib: self.opened_mib.min(16),
            rollbacks: self.rollbacks.min(3_000),
            snapshots: self.snapshots.min(30_000),
            crashes: self.crashes.min(30),
            items: self.items.min(100_000),
            ..self
        }
    }
}

/// Number of steps of each open session.
const STEPS: u64 = 20;

/// Number of steps in a MiB of log, with the rows of their journal.
const STEPS_IN_A_MIB: u64 = 4_450;

/// Number of live items in STATE of the long log: about 1 MiB.
const LIVE: u64 = 4_450;

/// Number of records after the image of the long log.
const BEHIND: u64 = 10_000;

/// Number of steps between two crashes.
const BETWEEN_CRASHES: u64 = 100;

/// Number of parts of a long run; the second is compared with the last.
const PARTS: u64 = 100;

/// Number of rounds of a part.
const ROUNDS_OF_A_PART: u64 = 10;

const OPENINGS: usize = 9;

const KIB: f64 = 1024.0;

pub fn scale(dir: &Path, sizes: Sizes) -> Result<Vec<BenchRow>> {
    let sizes = sizes.chosen();
    let mut rows = held_open(&dir.join("open"), sizes.open)?;
    rows.extend(listing::sessions(&dir.join("listed"), sizes.listed)?);
    fs::remove_dir_all(dir.join("listed"))?;
    rows.extend(long_log(&dir.join("long"), sizes.opened_mib)?);
    fs::remove_dir_all(dir.join("long"))?;
    rows.push(rollbacks(&dir.join("rollbacks"), sizes.rollbacks)?);
    rows.push(snapshots(&dir.join("snapshots"), sizes.snapshots)?);
    rows.extend(crashes(&dir.join("crashes"), sizes.crashes)?);
    rows.extend(items(&dir.join("items"), sizes.items)?);
    Ok(rows)
}

/// Resources of each open session, beyond the used bytes of its log.
#[derive(Serialize, Deserialize)]
struct SessionFootprint {
    disk: f64,
    memory: f64,
    file_pages: f64,
    files: f64,
    mappings: f64,
    data: f64,
    /// Number of sessions that were open at once, and the reason why there were not more.
    count: u64,
    stopped: Option<String>,
}

fn held_open(dir: &Path, count: u64) -> Result<Vec<BenchRow>> {
    let said = run_self("--held-open", &[dir.as_os_str(), count.to_string().as_ref()])?;
    let taken: SessionFootprint = serde_json::from_str(&said)?;
    let SessionFootprint { disk, memory, file_pages, files, mappings, data, count: open, stopped } = taken;
    if let Some(why) = stopped {
        eprintln!("scale: {open} of {count} sessions were open at once; the next one: {why}");
    }
    let row = |subject: &str, unit: &str, value: f64| {
        let param = format!("{open} sessions of {:.1} KiB, {unit} each", data / KIB);
        BenchRow::once("scale", subject, param, value)
    };
    Ok(vec![
        row("disk of an open session beyond its data", "bytes", disk).at_most(AtMost::Amount(64.0 * KIB)),
        row("memory of an open session beyond its data", "bytes", memory).at_most(AtMost::Amount(32.0 * KIB)),
        row("pages of its files in memory", "bytes", file_pages),
        row("open files of an idle session", "files", files).at_most(AtMost::Amount(1.0)),
        row("mappings of an idle session", "mappings", mappings),
    ])
}

/// Number of sessions that are closed again if the system lets this process open no more.
const SPARE: usize = 10;

fn open_idle(store: &Store, types: &SessionTypes) -> foldlog::Result<Session> {
    let session = store.create(types)?;
    fill(&session, 0..STEPS)?;
    session.rest()?;
    Ok(session)
}

/// Runs the child's part: creates sessions, leaves them idle and prints the resources of each.
pub fn print_held_open(path: &str, count: &str) -> Result<()> {
    let (path, count) = (Path::new(path), count.parse::<u64>()?);
    let (types, store) = (append_types()?, store(path)?);
    // All sessions are locked through one file, which the first of them opens.
    let _first = open_idle(&store, &types)?;
    let before = (resident_kib(ANONYMOUS)?, resident_kib(FILE_PAGES)?, open_files()?, mappings()?);
    let mut sessions = Vec::with_capacity(count as usize);
    let mut stopped = None;
    for _ in 0..count {
        match open_idle(&store, &types) {
            Ok(session) => sessions.push(session),
            // The queries below need a few files too.
            Err(error) if sessions.len() > SPARE => {
                sessions.truncate(sessions.len() - SPARE);
                stopped = Some(error.to_string());
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let count = sessions.len() as u64;
    let [anonymous, file_pages] = [resident_kib(ANONYMOUS)?, resident_kib(FILE_PAGES)?];
    let each = |after: u64, before: u64| after.saturating_sub(before) as f64 / count as f64;
    let data = sessions.iter().map(|session| session.log().bytes()).sum::<u64>() as f64 / count as f64;
    let taken = SessionFootprint {
        disk: allocated(path)? as f64 / count as f64 - data,
        memory: each(anonymous, before.0) * KIB - data,
        file_pages: each(file_pages, before.1) * KIB,
        files: each(open_files()?, before.2),
        mappings: each(mappings()?, before.3),
        data,
        count,
        stopped,
    };
    println!("{}", serde_json::to_string(&taken)?);
    // The kernel closes them faster than ten thousand calls of `close`.
    std::process::exit(0);
}

fn open_files() -> Result<u64> {
    Ok(fs::read_dir("/proc/self/fd")?.count() as u64)
}

fn mappings() -> Result<u64> {
    Ok(fs::read_to_string("/proc/self/maps")?.lines().count() as u64)
}

/// Returns the allocated bytes of a directory, including the directories themselves.
fn allocated(dir: &Path) -> Result<u64> {
    let mut bytes = fs::metadata(dir)?.blocks() * 512;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        bytes += match entry.metadata()? {
            metadata if metadata.is_dir() => allocated(&entry.path())?,
            metadata => metadata.blocks() * 512,
        };
    }
    Ok(bytes)
}

/// Runs this program for a part of its own, and returns its output.
fn run_self(option: &str, arguments: &[&std::ffi::OsStr]) -> Result<String> {
    let child = Command::new(std::env::current_exe()?).arg(option).args(arguments).output()?;
    if !child.status.success() {
        return Err(String::from_utf8_lossy(&child.stderr).into());
    }
    Ok(String::from_utf8_lossy(&child.stdout).into_owned())
}

/// Makes a closed session with a journal of this many steps.
fn closed_log(store: &Store, types: &SessionTypes, steps: u64) -> Result<Uuid> {
    let session = store.create(types)?;
    let id = session.id();
    fill(&session, (0..steps).map(|number| number % LIVE))?;
    session.close()?;
    Ok(id)
}

/// Opens a long log with an image of its end, and with one of an earlier position, and compares
/// that with a log of only the records after that position.
fn long_log(dir: &Path, mib: u64) -> Result<Vec<BenchRow>> {
    let (types, store) = (journal_types()?, store(dir)?);
    let id = closed_log(&store, &types, mib * STEPS_IN_A_MIB)?;
    let at_end = Images::keep(&store.session_dir(id), dir.join("images"))?;
    let tail = closed_log(&store, &types, BEHIND)?;
    let tail_images = Images::keep(&store.session_dir(tail), dir.join("tail images"))?;
    let opened = |id: Uuid| {
        let mut session = None;
        let round = timed(1, || {
            session = Some(store.open_session(id, &types)?);
            Ok(())
        });
        drop(session);
        round
    };
    let [sound] = take_turns(
        OPENINGS,
        [&mut || {
            at_end.put()?;
            opened(id)
        }],
    )?;
    let session = store.open_session(id, &types)?;
    let log_bytes = session.log().bytes() as f64;
    fill(&session, (0..BEHIND).map(|number| number % LIVE))?;
    session.close()?;
    let [behind, tail] = take_turns(
        OPENINGS,
        [
            &mut || {
                at_end.put()?;
                opened(id)
            },
            &mut || {
                tail_images.take_away()?;
                opened(tail)
            },
        ],
    )?;
    let [memory] = take_turns(1, [&mut || held(&store, id)])?;
    let param = format!("{:.0} MiB, STATE of 1 MiB", log_bytes / KIB / KIB);
    let beyond = behind.less(tail);
    let row = |subject: &str, measured| BenchRow::alone("scale", subject, &param, measured);
    let share = memory.median * KIB / log_bytes * 100.0;
    let of_log = format!("{param}, {share:.3} % of the log, bytes");
    Ok(vec![
        row("open with an image of the end", sound).at_most(AtMost::Ns(20e6)),
        row("open with an image and 10,000 records behind it", behind),
        row("open a log of these 10,000 records by folding", tail),
        row("the one beyond the other", beyond).at_most(AtMost::Ns(20e6)),
        BenchRow::once("scale", "memory of the open session", of_log, memory.median * KIB)
            .at_most(AtMost::Amount(log_bytes / 1_000.0)),
    ])
}

/// Makes this many steps, and returns the cost of one in the second of a hundred parts, and in the
/// last. The first part is skipped, since its log is new.
fn first_and_last(
    steps: u64,
    mut some: impl FnMut(Range<u64>) -> Result<Round>,
) -> Result<(Measurement, Measurement)> {
    let part = (steps / PARTS).max(1);
    let in_round = (part / ROUNDS_OF_A_PART).max(1);
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let mut done = 0;
    while done < steps {
        let next = (done + in_round).min(steps);
        let round = some(done..next)?;
        if (part..2 * part).contains(&done) {
            first.push(round);
        } else if done >= steps - part {
            last.push(round);
        }
        done = next;
    }
    Ok((Measurement::of(first), Measurement::of(last)))
}

/// Makes a row of a repeated step. Its cost at the end may grow with the logarithm of the number.
fn growth(subject: &str, steps: u64, first: Measurement, last: Measurement) -> BenchRow {
    let begins_at = (steps / PARTS).max(2) as f64;
    let most = (steps as f64).ln() / begins_at.ln();
    let param = format!("{steps}, {:.0} ns to {:.0} ns", first.median, last.median);
    BenchRow::pair("scale", subject, param, last, first).at_most(AtMost::Ratio(most))
}

/// Repeats a step in a session with some items.
fn repeated(
    dir: &Path,
    subject: &str,
    steps: u64,
    mut once: impl FnMut(&Session, u64) -> Result<()>,
) -> Result<BenchRow> {
    let store = store(dir)?;
    let session = store.create(&upsert_types()?)?;
    fill(&session, 0..LIVE)?;
    let (first, last) = first_and_last(steps, |mut numbers| {
        timed(numbers.end - numbers.start, || numbers.try_for_each(|number| once(&session, number % LIVE)))
    })?;
    session.close()?;
    Ok(growth(subject, steps, first, last))
}

fn rollbacks(dir: &Path, steps: u64) -> Result<BenchRow> {
    repeated(dir, "a snapshot, a dispatch and a rollback", steps, |session, number| {
        let snapshot = session.snapshot(SnapshotOptions::default())?;
        session.dispatch(step(number))?;
        session.rollback(&snapshot)?;
        Ok(())
    })
}

fn snapshots(dir: &Path, steps: u64) -> Result<BenchRow> {
    repeated(dir, "a dispatch and a snapshot", steps, |session, number| {
        session.dispatch(step(number))?;
        session.snapshot(SnapshotOptions::default())?;
        Ok(())
    })
}

/// Opens a session in a process that crashes after some steps, again and again.
fn crashes(dir: &Path, steps: u64) -> Result<Vec<BenchRow>> {
    let (types, store) = (upsert_types()?, store(dir)?);
    let session = store.create(&types)?;
    let id = session.id();
    fill(&session, 0..LIVE)?;
    session.close()?;
    let text = id.to_string();
    let before = allocated(dir)?;
    let (first, last) = first_and_last(steps, |numbers| {
        let (count, mut ns) = ((numbers.end - numbers.start) as f64, 0.0);
        for _ in numbers {
            ns += crashed(dir, &text)?;
        }
        Ok(Round::of(ns / count))
    })?;
    let each = allocated(dir)?.saturating_sub(before) as f64 / steps as f64;
    let session = store.open_session(id, &types)?;
    let records = session.log().position().map_or(0, u64::from) + 1;
    if records < LIVE + steps * BETWEEN_CRASHES {
        return Err(format!("only {records} records are left after {steps} crashes").into());
    }
    let param = format!("{BETWEEN_CRASHES} records each, {steps} crashes, bytes each");
    Ok(vec![
        growth("opening after a crash", steps, first, last),
        BenchRow::once("scale", "disk that a crash and its records take", param, each),
    ])
}

/// Runs the child's part once, and returns the duration of its opening in nanoseconds.
fn crashed(dir: &Path, session: &str) -> Result<f64> {
    let child = Command::new(std::env::current_exe()?).arg("--crash").arg(dir).arg(session).output()?;
    let said = String::from_utf8_lossy(&child.stdout).trim().parse::<f64>();
    said.map_err(|_| String::from_utf8_lossy(&child.stderr).into())
}

/// Runs the child's part: opens the session, prints the duration, writes, and crashes.
pub fn crash(path: &str, session: &str) -> Result<()> {
    let (types, store) = (upsert_types()?, store(Path::new(path))?);
    let id = Uuid::try_parse(session)?;
    let start = Instant::now();
    let session = store.open_session(id, &types)?;
    println!("{}", start.elapsed().as_nanos());
    fill(&session, 0..BETWEEN_CRASHES)?;
    std::process::abort();
}

/// Adds items to a slice, one by one: at its end, and by key.
fn items(dir: &Path, steps: u64) -> Result<Vec<BenchRow>> {
    let mut rows = Vec::new();
    for (name, types) in [("append_all", append_types()?), ("upsert_by", upsert_types()?)] {
        let store = store(&dir.join(name))?;
        let session = store.create(&types)?;
        let (first, last) = first_and_last(steps, |numbers| {
            let steps: Vec<_> = numbers.map(step).collect();
            timed(steps.len() as u64, || {
                Ok(steps.into_iter().try_for_each(|step| session.dispatch(step).map(drop))?)
            })
        })?;
        rows.push(growth(&format!("an item more, {name}"), steps, first, last));
        session.close()?;
        drop(store);
        fs::remove_dir_all(dir.join(name))?;
    }
    Ok(rows)
}
