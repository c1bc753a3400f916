//! Copies a session while it is written. A copy that takes the newest segment first is always
//! valid. A copy in any other order is valid too, or is reported as a copy taken during writes, and
//! never as damaged.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use foldlog::log::SegmentSizes;
use foldlog::{Durability, Store, StoreOptions};
use uuid::Uuid;

use crate::chance::Chance;
use crate::child::{self, Heard};
use crate::host::{self, Talk};
use crate::report::{Report, Result};
use crate::verbs::Foldlog;
use crate::{Plan, place};

/// Small segments, so that a copy meets the start and the seal of many.
const SEGMENT_BYTES: u64 = 64 << 10;

/// Copies of one session, records at most before each copy, and records at most while each file is
/// copied.
const COPIES: u64 = 8;
const WRITTEN: u64 = 800;
const MEANWHILE: u64 = 80;

/// Limits how often a copying program reads the directory again.
const AGAIN_MAX: u64 = 3;

const ORDERS: [&str; 4] = ["newest first", "oldest first", "as listed", "at random"];

pub(crate) fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new("copies");
    let directory = place::directory(&plan.dir)?;
    let foldlog = Foldlog::new(plan.foldlog.as_deref(), directory.path());
    let mut chance = Chance::new(plan.seed);
    let copies = plan.rounds(40, 400);
    let mut writer = None;
    for number in 0..copies {
        // A new session for every few copies, so that none grows without limit.
        if number % COPIES == 0 {
            writer = Some(Writer::start(directory.path(), number)?);
        }
        let Some(writer) = writer.as_mut() else { continue };
        writer.writes(1 + chance.below(WRITTEN), || Ok(()))?;
        let order = ORDERS[usize::try_from(number).unwrap_or_default() % ORDERS.len()];
        let to = directory.path().join("taken").join(writer.id.to_string());
        let known = writer.known;
        copy(writer, &to, order, &mut chance)?;
        judge(&mut report, &foldlog, &to, order, known)?;
        fs::remove_dir_all(&to)?;
    }
    report.count("copies", copies);
    Ok(report)
}

struct Writer {
    heard: Heard,
    dir: std::path::PathBuf,
    id: Uuid,
    /// Number of acknowledged records.
    known: u64,
}

impl Writer {
    fn start(directory: &Path, number: u64) -> Result<Writer> {
        let store = directory.join(format!("store-{number}"));
        let session = store_of(&store)?.create(&host::types()?)?;
        let (id, dir) = (session.id(), session.dir().to_owned());
        session.close()?;
        let heard = Heard::start(child::part("copies", &[&store, &id.to_string()])?)?;
        Ok(Writer { heard, dir, id, known: 0 })
    }

    /// Has this many records written, and runs `meanwhile` during that.
    fn writes(&mut self, more: u64, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        self.heard.tell(more)?;
        meanwhile()?;
        for _ in 0..more {
            let said = self.heard.word("ack")?.ok_or("the writer ended")?;
            self.known = said.parse::<u64>()? + 1;
        }
        Ok(())
    }
}

/// Copies a session's directory file by file, in some order, while records are written.
fn copy(writer: &mut Writer, to: &Path, order: &str, chance: &mut Chance) -> Result<()> {
    fs::create_dir_all(to)?;
    let from = &writer.dir.clone();
    let listed = || -> Result<Vec<OsString>> {
        Ok(fs::read_dir(from)?
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<std::io::Result<_>>()?)
    };
    let mut names = listed()?;
    match order {
        // As documented: segments from the newest to the oldest, then the files that they name.
        "newest first" => {
            names.sort_by(|one, other| is_segment(other).cmp(&is_segment(one)).then(other.cmp(one)))
        }
        "oldest first" => names.sort(),
        "at random" => {
            names.sort();
            let count = names.len() as u64;
            (0..names.len())
                .for_each(|at| names.swap(at, usize::try_from(chance.below(count)).unwrap_or_default()));
        }
        _ => {}
    }
    let mut again = 0;
    loop {
        for name in &names {
            let (source, target) = (from.join(name), to.join(name));
            writer.writes(1 + chance.below(MEANWHILE), || match fs::symlink_metadata(&source) {
                Ok(found) if found.is_dir() => place::copy_all(&source, &target),
                // A file that has disappeared was an image, or a temporary file.
                Ok(_) if fs::copy(&source, &target).is_err() && source.exists() => {
                    Err(format!("{} cannot be copied", source.display()).into())
                }
                _ => Ok(()),
            })?;
        }
        if order == ORDERS[0] {
            return Ok(());
        }
        // A program that reads the directory while it copies sees new files.
        names = listed()?;
        names.retain(|name| !to.join(name).exists() && is_segment(name));
        names.sort();
        if names.is_empty() {
            return Ok(());
        }
        // It does not read it forever.
        again += 1;
        if again > AGAIN_MAX {
            return Ok(());
        }
    }
}

fn is_segment(name: &OsString) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "seg")
}

fn judge(report: &mut Report, foldlog: &Foldlog, copy: &Path, order: &str, known: u64) -> Result<()> {
    let ended = foldlog.plain(&[&"verify", &copy])?;
    if let Some(wrong) = ended.wrong() {
        report.broken(format!("{order}: verify: {wrong}"));
        return Ok(());
    }
    let said = format!("{}{}", ended.stdout.text, ended.stderr.text);
    if ended.code == Some(0) {
        report.count(format!("held, {order}"), 1);
        match host::heard(copy) {
            Ok(heard) => {
                let whole = heard.iter().zip(0..).all(|(said, n)| *said == host::said(0, n));
                report.check(whole, || format!("{order}: the copy holds other records"));
                // A copy that takes the newest segment first contains all records that were
                // acknowledged before it began.
                let enough = order != ORDERS[0] || heard.len() as u64 >= known;
                report.check(enough, || format!("{order}: {} records of {known}", heard.len()));
            }
            Err(error) => report.broken(format!("{order}: verify holds, but it does not open: {error}")),
        }
        return Ok(());
    }
    if order == ORDERS[0] {
        report.broken(format!("{order}: the copy does not hold: {}", said.trim()));
        return Ok(());
    }
    // The advice may mention copies in any case.
    let first: Vec<_> = said.lines().filter(|line| !line.contains("next:")).collect();
    let lowered = first.join(" ").to_lowercase();
    let told = lowered.contains("incomplete") && !lowered.contains("corrupt");
    if told && report.counted(&format!("told, {order}")) == 0 {
        report.fact(format!("{order}: {}", said.trim()));
    }
    report.count(format!("told, {order}"), u64::from(told));
    report.check(told, || {
        format!("{order}: told as damage, not as a copy taken during writes: {}", said.trim())
    });
    Ok(())
}

fn store_of(directory: &Path) -> Result<Store> {
    let segments = SegmentSizes { max_bytes: SEGMENT_BYTES, ..SegmentSizes::default() };
    let options = StoreOptions { durability: Durability::Process, segments, ..StoreOptions::default() };
    Ok(Store::open_with(directory, options)?)
}

/// Writes as many records as each line of its input states.
pub(crate) fn part(arguments: &[String]) -> Result<()> {
    let [store, id] = arguments else { return Err("store, session".into()) };
    let session = store_of(Path::new(store))?.open_session(id.parse()?, &host::types()?)?;
    let mut out = std::io::stdout().lock();
    let mut next = session.view::<Talk>()?.len();
    for line in std::io::stdin().lines() {
        let more: u64 = line?.parse()?;
        for n in next..next + more {
            session.dispatch(host::said(0, n))?;
            writeln!(out, "ack {n}")?;
        }
        next += more;
    }
    Ok(())
}
