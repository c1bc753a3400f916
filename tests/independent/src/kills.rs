//! Writers that are killed at any moment. Each record is acknowledged over a pipe once its call has returned; after the
//! kill every acknowledged record is there, in order, with its bytes, and at most the one that was being written beside
//! them. The next life goes on in the same session.

use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use foldlog::{Level, SnapshotOptions};
use uuid::Uuid;

use crate::chance::Chance;
use crate::child::{self, Heard};
use crate::host::{self, LEVELS, Talk};
use crate::report::{Report, Result};
use crate::verbs::Foldlog;
use crate::{Plan, place};

/// A session is written by so many lives, so that reading it back stays quick.
const LIVES: u64 = 40;

/// Every so-manieth session is also verified by the binary after each kill, not only at its end.
const VERIFIED: u64 = 5;

pub(crate) fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new("kills");
    let folder = place::folder(&plan.dir)?;
    let foldlog = Foldlog::new(plan.foldlog.as_deref(), folder.path());
    let kills = plan.rounds(90, 3_000).div_ceil(LEVELS.len() as u64);
    for (word, level) in LEVELS {
        let (mut killed, mut sessions) = (0, 0);
        while killed < kills {
            let lives = LIVES.min(kills - killed);
            let mut chance = Chance::of(plan.seed, sessions ^ (level as u64) << 32);
            let often = sessions % VERIFIED == 0;
            of_one_session(&mut report, folder.path(), (word, level), lives, &mut chance, (&foldlog, often))?;
            killed += lives;
            sessions += 1;
        }
        report.count(format!("kills at {word}"), killed);
    }
    Ok(report)
}

fn of_one_session(
    report: &mut Report,
    folder: &Path,
    (word, level): (&str, Level),
    lives: u64,
    chance: &mut Chance,
    (foldlog, often): (&Foldlog, bool),
) -> Result<()> {
    let store = host::store(&folder.join("store"), level)?;
    let session = store.create(&host::types()?)?;
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close()?;
    let seed = chance.number();
    // All below this were acknowledged, and the one at it was perhaps being written.
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
        acknowledged = read_back(report, &dir, (word, life), seed, acknowledged);
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

/// Compares what an audit reads with what was acknowledged, and returns how many records there are.
fn read_back(
    report: &mut Report,
    dir: &Path,
    (word, life): (&str, u64),
    seed: u64,
    acknowledged: u64,
) -> u64 {
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

/// Opens the session and writes, until it is killed.
pub(crate) fn part(arguments: &[String]) -> Result<()> {
    let [store, id, word, seed] = arguments else { return Err("store, session, level, seed".into()) };
    let level = host::level(word)?;
    let seed: u64 = seed.parse()?;
    let store = host::store(Path::new(store), level)?;
    let session = store.open_session_at(id.parse::<Uuid>()?, &host::types()?, level)?;
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
