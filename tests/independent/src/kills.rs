//! Kills writers at any moment. Each record is acknowledged over a pipe once its call has returned.
//! After the kill every acknowledged record is there, in order, with its bytes, and in addition at
//! most the one that was being written. The next life continues in the same session.
//!
//! Hosts that call tools are killed too. After a recovery STATE and the workspace are as the last
//! committed call left them, and both are of the same call.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use foldlog::SnapshotOptions;
use uuid::Uuid;

use crate::chance::Chance;
use crate::child::{self, Heard};
use crate::host::{self, Desk, LEVELS, Level, Talk};
use crate::report::{Report, Result};
use crate::tree::{Compared, Tree};
use crate::verbs::Foldlog;
use crate::{Plan, place};

/// Lives of one session: few enough that reading it back stays quick.
const LIVES: u64 = 40;

/// One in this many sessions is also verified by the binary after each kill, not only at its end.
const VERIFIED: u64 = 5;

pub(crate) fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new("kills");
    let directory = place::directory(&plan.dir)?;
    let foldlog = Foldlog::new(plan.foldlog.as_deref(), directory.path());
    let kills = plan.rounds(90, 3_000).div_ceil(LEVELS.len() as u64);
    for level in LEVELS {
        let (mut killed, mut sessions) = (0, 0);
        while killed < kills {
            let lives = LIVES.min(kills - killed);
            let mut chance = Chance::of(plan.seed, sessions ^ (level.durability as u64) << 32);
            let often = sessions % VERIFIED == 0;
            of_one_session(&mut report, directory.path(), level, lives, &mut chance, &foldlog, often)?;
            killed += lives;
            sessions += 1;
        }
        report.count(format!("kills at {}", level.word), killed);
    }
    let mut chance = Chance::new(plan.seed);
    let called = plan.rounds(30, 600);
    for (which, level) in LEVELS.into_iter().enumerate() {
        let base = directory.path().join(format!("desk-{which}"));
        of_one_desk(&mut report, &base, level, called.div_ceil(3), &mut chance)?;
    }
    Ok(report)
}

/// Runs a host that calls tools one after the other, from life to life.
fn of_one_desk(
    report: &mut Report,
    base: &Path,
    level: Level,
    lives: u64,
    chance: &mut Chance,
) -> Result<()> {
    let Level { word, durability } = level;
    let root = base.join("workspace");
    fs::create_dir_all(&root)?;
    let desk = Desk::at(base, &root, durability, None)?;
    let (id, session) = (desk.session.id().to_string(), desk.session.clone());
    drop(desk);
    session.close()?;
    let mut committed = 0;
    for life in 0..lives {
        let mut host = Heard::start(child::part("kills", &[&"desk", &base, &id, &word])?)?;
        let (calls, mut said) = (chance.below(8), Vec::new());
        while (said.len() as u64) < calls {
            let Some(line) = host.line()? else { break };
            said.push(line);
        }
        thread::sleep(chance.moment(Duration::from_millis(12)));
        host.kill()?;
        said.extend(host.rest());
        let (_, errors) = host.ended()?;
        report.check(errors.is_empty(), || format!("{word}, host {life}: it said {errors}"));
        let told = said.iter().filter_map(|line| line.strip_prefix("committed ")?.parse::<u64>().ok()).max();
        let known = told.unwrap_or_default().max(committed);
        // Another process recovers it.
        let desk = Desk::at(base, &root, durability, Some(id.parse()?))?;
        if desk.session.calls().is_interrupted() {
            report.count("hosts killed within a call", 1);
        }
        if let Err(error) = desk.recover() {
            report.broken(format!("{word}, host {life}: not recovered: {error}"));
            return Ok(());
        }
        let talk = desk.session.view::<Talk>()?;
        let found = talk.latest().map_or(0, |said| said.n);
        report.check(found >= known && found <= known + 1, || {
            format!("{word}, host {life}: STATE is of call {found}, and {known} was committed last")
        });
        let whole = talk.iter().zip(1..).all(|(said, n)| *said == host::said_briefly(n));
        report.check(whole, || format!("{word}, host {life}: STATE holds other records"));
        let now = Tree::of(&root)?;
        let wanted = base.join("wanted");
        fs::create_dir_all(&wanted)?;
        for n in 1..=found {
            write_call(&wanted, n)?;
        }
        let differs = Tree::of(&wanted)?.compare(&now, Compared::CONTENT);
        report.check(differs.is_none(), || {
            format!(
                "{word}, host {life}: the workspace is not of call {found}: {}",
                differs.unwrap_or_default()
            )
        });
        fs::remove_dir_all(&wanted)?;
        committed = found;
        let session = desk.session.clone();
        drop((talk, desk));
        session.close()?;
    }
    report.count(format!("hosts killed at {word}"), lives);
    report.count("calls committed", committed);
    Ok(())
}

/// Writes the files of the call with this number into a workspace.
fn write_call(root: &Path, n: u64) -> std::io::Result<()> {
    let mut chance = Chance::of(n, 99);
    fs::create_dir_all(root.join("inner"))?;
    for _ in 0..4 {
        let path = root.join(["", "inner"][usize::from(chance.once_in(2))]).join(chance.below(9).to_string());
        if chance.once_in(4) && path.exists() {
            fs::remove_file(path)?;
        } else {
            let len = usize::try_from(chance.below(3_000)).unwrap_or_default();
            fs::write(path, chance.bytes(len))?;
        }
    }
    fs::write(root.join("number"), n.to_string())
}

/// Calls tools until it is killed. Every third call fails.
fn call_tools(base: &Path, id: &str, word: &str) -> Result<()> {
    let root = base.join("workspace");
    let desk = Desk::at(base, &root, host::durability(word)?, Some(id.parse()?))?;
    let mut out = std::io::stdout().lock();
    let mut next = desk.session.view::<Talk>()?.latest().map_or(1, |said| said.n + 1);
    for call in 0_u64.. {
        let (root, fails) = (root.clone(), call % 3 == 1);
        let report = desk.call(move |context| {
            context.session().dispatch(host::said_briefly(next))?;
            write_call(&root, next)?;
            if fails { Err(host::fails()) } else { Ok(()) }
        })?;
        if report.success {
            writeln!(out, "committed {next}")?;
            next += 1;
        } else {
            writeln!(out, "failed {next}")?;
        }
    }
    Ok(())
}

fn of_one_session(
    report: &mut Report,
    directory: &Path,
    level: Level,
    lives: u64,
    chance: &mut Chance,
    foldlog: &Foldlog,
    often: bool,
) -> Result<()> {
    let Level { word, durability } = level;
    let store = host::store(&directory.join("store"), durability)?;
    let session = store.create(&host::types()?)?;
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close()?;
    let seed = chance.number();
    // All numbers below this were acknowledged. The record with this number was perhaps being
    // written.
    let mut acknowledged = 0;
    for life in 0..lives {
        let arguments = [&store.path() as &dyn AsRef<_>, &id.to_string(), &word, &seed.to_string()];
        let mut writer = Heard::start(child::part("kills", &arguments)?)?;
        let killed_after = chance.below(120);
        let mut said = Vec::new();
        if !chance.once_in(6) {
            while (said.len() as u64) < killed_after {
                let Some(line) = writer.line()? else { break };
                said.push(line);
            }
            thread::sleep(chance.moment(Duration::from_millis(3)));
        } else {
            thread::sleep(chance.moment(Duration::from_millis(40)));
        }
        writer.kill()?;
        said.extend(writer.rest());
        let (_, errors) = writer.ended()?;
        report.check(errors.is_empty(), || format!("{word}, life {life}: the writer said {errors}"));
        for line in &said {
            match line.split_once(' ') {
                Some(("open", found)) => {
                    let found: u64 = found.parse()?;
                    report.check(found >= acknowledged && found <= acknowledged + 1, || {
                        format!(
                            "{word}, life {life}: opened at {found} where {acknowledged} were acknowledged"
                        )
                    });
                }
                Some(("ack", n)) => acknowledged = n.parse::<u64>()? + 1,
                _ => report.broken(format!("{word}: the writer said {line}")),
            }
        }
        report.count("acknowledged", said.len() as u64);
        acknowledged = read_back(report, &dir, word, life, seed, acknowledged);
        if often || life + 1 == lives {
            let ended = foldlog.plain(&[&"verify", &dir])?;
            let wrong = ended.wrong().or_else(|| (ended.code != Some(0)).then(|| ended.stderr.text.clone()));
            report.check(wrong.is_none(), || {
                format!("{word}, life {life}: verify: {}", wrong.unwrap_or_default())
            });
        }
    }
    store.delete(id)?;
    Ok(())
}

/// Compares an audit's records with the acknowledged ones. Returns the number of records.
fn read_back(report: &mut Report, dir: &Path, word: &str, life: u64, seed: u64, acknowledged: u64) -> u64 {
    let heard = match host::heard(dir) {
        Ok(heard) => heard,
        Err(error) => {
            report.broken(format!(
                "{word}, life {life}: {acknowledged} acknowledged, and it does not open: {error}"
            ));
            return acknowledged;
        }
    };
    let found = heard.len() as u64;
    report.check(found >= acknowledged && found <= acknowledged + 1, || {
        format!("{word}, life {life}: {found} records where {acknowledged} were acknowledged")
    });
    let wrong = heard.iter().zip(0..).find(|(said, n)| **said != host::said(seed, *n));
    report.check(wrong.is_none(), || {
        format!("{word}, life {life}: record {:?} is another", wrong.map(|(_, n)| n))
    });
    found.max(acknowledged)
}

/// Opens the session and writes, or calls tools, until it is killed.
pub(crate) fn part(arguments: &[String]) -> Result<()> {
    if let [mode, base, id, word] = arguments
        && mode == "desk"
    {
        return call_tools(Path::new(base), id, word);
    }
    let [store, id, word, seed] = arguments else { return Err("store, session, level, seed".into()) };
    let durability = host::durability(word)?;
    let seed: u64 = seed.parse()?;
    let store = host::store(Path::new(store), durability)?;
    let session = store.open_session_at(id.parse::<Uuid>()?, &host::types()?, durability)?;
    let first = session.view::<Talk>()?.len();
    let mut out = std::io::stdout().lock();
    writeln!(out, "open {first}")?;
    for n in first.. {
        session.dispatch(host::said(seed, n))?;
        writeln!(out, "ack {n}")?;
        if n % 50 == 49 {
            session.snapshot(SnapshotOptions::default())?;
        }
    }
    Ok(())
}
