//! Runs every verb of the binary on logs of any shape, under a limit of memory and of time. Each
//! ends with 0, 1 or 2, without a panic or a signal, and prints nothing that acts on a terminal.

mod forge;
mod forged;
mod named;
mod shapes;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::child::Limits;
use crate::report::{Report, Result};
use crate::verbs::Foldlog;
use crate::{Plan, place};

/// Memory limit of a verb: this multiple of a session's stored bytes, plus this constant.
const MEMORY_TIMES: u64 = 3;
const MEMORY_BESIDE: u64 = 64 << 20;

/// Address space exceeds memory: stacks of threads, and the allocator's reserve for each.
const ADDRESSES_BESIDE: u64 = 768 << 20;

/// Time limit of a verb, on a machine that does other things too.
const WITHIN: Duration = Duration::from_secs(30);

/// The short form runs one in this many verbs on each shape, other ones for each shape.
const SHORT_EACH: usize = 5;

/// A hostile session in a store.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) store: PathBuf,
    pub(super) session: PathBuf,
    /// A position for verbs that need one.
    pub(super) last: u64,
}

/// Makes such a session in a directory of its own.
pub(super) type Make = Box<dyn Fn(&Path) -> Result<Made>>;

pub(crate) fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new("hostile");
    let directory = place::directory(&plan.dir)?;
    let foldlog = Foldlog::new(plan.foldlog.as_deref(), directory.path());
    let mut shapes = forged::shapes(plan.seed, plan.long);
    shapes.extend(named::shapes());
    shapes.extend(shapes::shapes(plan.seed, plan.long));
    shapes.retain(|(name, _)| plan.only.as_ref().is_none_or(|only| name.contains(only)));
    let mut largest: Vec<(u64, String)> = Vec::new();
    for (number, (name, make)) in shapes.iter().enumerate() {
        let base = directory.path().join("shape");
        let made = make(&base).map_err(|error| format!("{name}: {error}"))?;
        let stored = stored(&made.session)?;
        let bound = MEMORY_TIMES * stored + MEMORY_BESIDE;
        let limits = Limits { memory_kib: Some((bound + ADDRESSES_BESIDE) >> 10), ..Limits::default() };
        for (which, verb) in verbs(&made, &base).into_iter().enumerate() {
            if !plan.long && (which + number) % SHORT_EACH != 0 {
                continue;
            }
            let ended = foldlog.run(&verb, limits, WITHIN)?;
            report.count("verbs run", 1);
            report.count(format!("exit {}", ended.code.unwrap_or(-1)), 1);
            let said = || {
                let words: Vec<_> = verb.iter().map(|word| shown(word, &base)).collect();
                format!("{name}: `{}`", words.join(" "))
            };
            let wrong = ended.wrong();
            if wrong.is_some() {
                report.count(format!("broken by `{name}`"), 1);
            }
            report.check(wrong.is_none(), || format!("{}: {}", said(), wrong.unwrap_or_default()));
            let peak = ended.peak_kib.unwrap_or_default() << 10;
            if peak > bound {
                report.count(format!("over its memory by `{name}`"), 1);
            }
            report.check(peak <= bound, || {
                format!("{}: {} MiB for {} KiB stored", said(), peak >> 20, stored >> 10)
            });
            report.largest("largest memory in MiB", peak >> 20);
            report.largest("longest in ms", u64::try_from(ended.elapsed.as_millis()).unwrap_or_default());
            if plan.verbose {
                let note = ended
                    .stderr
                    .text
                    .lines()
                    .find(|line| line.contains("error") || line.contains("because"))
                    .unwrap_or_default();
                println!(
                    "{} = {:?}, {} MiB, {} ms: {}",
                    said(),
                    ended.code,
                    peak >> 20,
                    ended.elapsed.as_millis(),
                    note.escape_debug()
                );
            }
            largest.push((peak, said()));
        }
        fs::remove_dir_all(&base)?;
    }
    largest.sort();
    for (peak, said) in largest.iter().rev().take(5) {
        report.fact(format!("{} MiB: {said}", peak >> 20));
    }
    report.count("shapes", shapes.len() as u64);
    Ok(report)
}

fn shown(word: &OsString, base: &Path) -> String {
    let word = word.to_string_lossy().into_owned();
    let base = base.display().to_string();
    word.replace(&base, "").escape_debug().to_string()
}

/// Returns all verbs that read a session or a store, in all their forms.
fn verbs(made: &Made, base: &Path) -> Vec<Vec<OsString>> {
    let last = made.last.to_string();
    let middle = (made.last / 2).to_string();
    let (session, store, to) = (made.session.as_path(), made.store.as_path(), base.join("salvaged"));
    let session = session.as_os_str();
    let mut verbs: Vec<Vec<OsString>> = Vec::new();
    let mut verb = |words: &[&dyn AsRef<std::ffi::OsStr>]| {
        verbs.push(words.iter().map(|word| word.as_ref().to_owned()).collect());
    };
    for json in [&[][..], &["--json"][..]] {
        let mut both = |words: &[&dyn AsRef<std::ffi::OsStr>]| {
            let json = json.iter().map(|json| json as &dyn AsRef<std::ffi::OsStr>);
            verb(&words.iter().copied().chain(json).collect::<Vec<_>>());
        };
        both(&[&"sessions", &store]);
        both(&[&"show", &session]);
        both(&[&"show", &session, &"--to", &"3"]);
        both(&[&"tail", &session, &"-n", &"1000000"]);
        both(&[&"state", &session]);
        both(&[&"state", &session, &"--at", &middle]);
        both(&[&"diff", &session, &"0", &last]);
        both(&[&"verify", &session]);
        both(&[&"verify", &store]);
        both(&[&"replay", &session, &"--thorough"]);
        both(&[&"stats", &session]);
        both(&[&"ledger", &session]);
        both(&[&"salvage", &session, &"--to", &to]);
        both(&[&"export", &session, &"--format", &"snapshot-json"]);
        both(&[&"export", &session, &"--format", &"jsonl"]);
        both(&[
            &"settle",
            &session,
            &"2",
            &"failed",
            &"--by",
            &"a\u{1b}[31m",
            &"--reason",
            &"\u{202e}because",
        ]);
    }
    verbs
}

/// Returns the stored bytes of a session: the allocated size of its segments, and each of its
/// objects once, with its length.
fn stored(session: &Path) -> Result<u64> {
    let mut bytes = 0;
    let Ok(entries) = fs::read_dir(session) else { return Ok(0) };
    for entry in entries {
        let found = entry?.metadata()?;
        // Some are devices, pipes and links.
        if found.is_file() {
            bytes += found.len().min(found.blocks() * 512);
        }
    }
    let Ok(objects) = fs::read_dir(session.join("objects")) else { return Ok(bytes) };
    for object in objects {
        let found = object?.metadata()?;
        if found.is_file() {
            bytes += found.len();
        }
    }
    Ok(bytes)
}
