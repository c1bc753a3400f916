//! Full disks, and limits of descriptors, file lengths and memory: no acknowledged record is lost,
//! the error names the missing resource, and everything works again once it is available.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread;
use std::time::Duration;

use foldlog::Durability;
use nix::sys::signal::{Signal, raise};
use nix::sys::statvfs::statvfs;

use crate::Plan;
use crate::chance::Chance;
use crate::child::{self, Heard, Limits};
use crate::host::{self, Desk, LEVELS, Level, Talk};
use crate::place::{self, Disk, Kind};
use crate::report::{Report, Result};
use crate::tree::{Compared, Tree};

/// Largest free space on a full disk: a segment of the least size, the directory entries, and
/// ext4's reserve.
const LEFT_OVER: u64 = 600 << 10;

pub(crate) fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new("exhausted");
    let directory = place::directory(&plan.dir)?;
    let mut chance = Chance::new(plan.seed);
    let rounds = plan.rounds(1, 12);
    for round in 0..rounds {
        for (kind, bytes) in [(Kind::Tmpfs, 10 << 20), (Kind::Ext4, 24 << 20)] {
            match Disk::new(&plan.dir, kind, bytes)? {
                Ok(disk) => full(&mut report, &disk, kind, round, &mut chance)?,
                Err(reason) => report.skip(format!("no {kind:?} can be mounted here: {reason}")),
            }
        }
        for files in [8, 12, 16, 20, 28, 40] {
            let limits = Limits { files: Some(files + chance.below(3)), ..Limits::default() };
            limited(&mut report, directory.path(), "descriptors", limits, round)?;
        }
        for file_kib in [16, 64, 256, 2_048] {
            let limits = Limits { file_kib: Some(file_kib + chance.below(8)), ..Limits::default() };
            limited(&mut report, directory.path(), "file length", limits, round)?;
        }
        for memory_kib in [48 << 10, 96 << 10, 256 << 10] {
            let limits = Limits { memory_kib: Some(memory_kib), ..Limits::default() };
            limited(&mut report, directory.path(), "memory", limits, round)?;
        }
    }
    report.count("rounds", rounds);
    Ok(report)
}

/// Runs all tests on one small disk.
fn full(report: &mut Report, disk: &Disk, kind: Kind, round: u64, chance: &mut Chance) -> Result<()> {
    for level in LEVELS {
        log_on_full_disk(report, disk, kind, level, chance)?;
    }
    tool_on_full_disk(report, disk, kind, round, false)?;
    tool_on_full_disk(report, disk, kind, round, true)
}

/// A writer fills the disk, is refused, and continues once there is room.
fn log_on_full_disk(
    report: &mut Report,
    disk: &Disk,
    kind: Kind,
    level: Level,
    chance: &mut Chance,
) -> Result<()> {
    let Level { word, durability } = level;
    let what = format!("{kind:?} at {word}");
    let base = disk.root().join(word);
    let session = host::store(&base.join("store"), durability)?.create(&host::types()?)?;
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close()?;
    let filler = disk.root().join("filler");
    // This file uses some of the room, and is removed later.
    fs::write(&filler, vec![1; usize::try_from((3 << 20) + chance.below(2 << 20)).unwrap_or_default()])?;
    let arguments = [&"write" as &dyn AsRef<_>, &base, &id.to_string(), &word];
    let mut writer = Heard::start(child::part("exhausted", &arguments)?)?;
    let (mut known, mut refused) = (0, None);
    while let Some(line) = writer.line()? {
        match line.split_once(' ') {
            Some(("ack", n)) => known = n.parse::<u64>()? + 1,
            Some(("refused", error)) => {
                refused = Some(error.to_owned());
                break;
            }
            _ => {}
        }
    }
    let left = statvfs(&disk.root())?;
    let left = left.blocks_available() * left.fragment_size();
    match &refused {
        Some(error) => {
            report.check(says_full(error), || {
                format!("{what}: the error does not say that the disk is full: {error}")
            });
            report.check(left <= LEFT_OVER, || {
                format!("{what}: refused although {left} bytes are free: {error}")
            });
        }
        None => {
            report.broken(format!("{what}: the writer was not refused, and ended: {:?}", writer.ended()?))
        }
    }
    // The log can be read while the disk is full.
    read_back(report, &dir, known, &format!("{what}, full"));
    fs::remove_file(&filler)?;
    // At the end of its input the writer continues: in the same session, or after opening it again.
    let (status, errors) = writer.ended()?;
    report.check(status.success(), || format!("{what}: with room again: {errors}"));
    for line in writer.rest() {
        if let Some(n) = line.strip_prefix("ack ") {
            known = n.parse::<u64>()? + 1;
        } else if let Some(how) = line.strip_prefix("goes on ") {
            report.count(format!("full disks, went on {how}"), 1);
        }
    }
    read_back(report, &dir, known, &format!("{what}, with room again"));
    fs::remove_dir_all(&base)?;
    Ok(())
}

fn says_full(error: &str) -> bool {
    let error = error.to_lowercase();
    error.contains("no space") || error.contains("full")
}

/// A tool fills the disk of its workspace and the store. It fails, or its process is killed and
/// recovered.
fn tool_on_full_disk(report: &mut Report, disk: &Disk, kind: Kind, round: u64, killed: bool) -> Result<()> {
    let what =
        format!("{kind:?}, a tool that fills the disk and {}", if killed { "is killed" } else { "fails" });
    let base = disk.root().join(format!("desk-{round}-{killed}"));
    let root = base.join("workspace");
    furnish(&root)?;
    let before = Tree::of(&root)?;
    let mode = if killed { "fill-killed" } else { "fill" };
    let mut host = Heard::start(child::part("exhausted", &[&mode, &base])?)?;
    let id = host.word("session")?.ok_or("the host ended early")?;
    let (status, errors) = host.ended()?;
    report.count("tools that filled a disk", 1);
    // The tool's own files fill the disk. If they can neither be captured nor be moved aside, they
    // stay until a person gives them up.
    let stays = |said: &str| said.contains("nothing was rolled back") && root.join("filler").exists();
    if !killed {
        report.check(status.success() || stays(&errors), || format!("{what}: not rolled back: {errors}"));
    }
    let recover = |mode: &str| child::run(child::part("exhausted", &[&mode, &base, &id])?);
    if (killed || !status.success())
        && let Err(error) = recover("recover")?
    {
        report.count("calls that were left open on a full disk", 1);
        report.check(stays(&error.to_string()), || format!("{what}: not recovered: {error}"));
        if let Err(error) = recover("give-up")? {
            report.broken(format!("{what}: not recovered without a capture: {error}"));
            return Ok(());
        }
    }
    place::clear_aside(report, &root)?;
    let found = before.compare(&Tree::of(&root)?, Compared::CONTENT);
    report.check(found.is_none(), || format!("{what}: {}", found.unwrap_or_default()));
    fs::remove_dir_all(&base)?;
    Ok(())
}

/// A host under limits writes, and calls a tool that fails. Afterwards, without limits, all records
/// and files are there.
fn limited(report: &mut Report, directory: &Path, what: &str, limits: Limits, round: u64) -> Result<()> {
    let what = format!("{what} limited to {limits:?}");
    let base = tempfile::tempdir_in(directory)?;
    let base = base.path();
    let root = base.join("workspace");
    furnish(&root)?;
    let before = Tree::of(&root)?;
    // The session is created before the limits apply.
    let desk = Desk::at(base, &root, Durability::Boundary, None)?;
    let (id, dir) = (desk.session.id(), desk.session.dir().to_owned());
    let session = desk.session.clone();
    drop(desk);
    session.close()?;
    let seed = round.to_string();
    let command = child::part("exhausted", &[&"limited", &base, &id.to_string(), &seed])?;
    let mut host = Heard::start(child::limited(limits, &command))?;
    let (status, errors) = host.ended()?;
    let said = host.rest();
    let known = said.iter().rev().find_map(|line| line.strip_prefix("ack ")?.parse::<u64>().ok());
    let known = known.map_or(0, |n| n + 1);
    report.count("hosts under limits", 1);
    let ends = ["refused", "rolled back", "not rolled back", "cannot open"];
    let ended = said.iter().filter(|line| ends.iter().any(|end| line.starts_with(end))).count();
    // Without memory a Rust program aborts, and may not report anything.
    if limits.memory_kib.is_none() {
        report.check(status.success() && ended > 0, || format!("{what}: {status}: {errors}"));
    }
    if errors.contains("panicked") {
        report.broken(format!("{what}: it panicked: {errors}"));
    }
    for line in &said {
        if let Some(error) = line.strip_prefix("not rolled back ") {
            report.count("calls that were left open", 1);
            report.check(!error.is_empty(), || format!("{what}: no error"));
        }
    }
    read_back(report, &dir, known, &what);
    if let Err(error) = child::run(child::part("exhausted", &[&"recover", &base, &id.to_string()])?)? {
        report.broken(format!("{what}: without limits it is not recovered: {error}"));
        return Ok(());
    }
    let found = before.compare(&Tree::of(&root)?, Compared::CONTENT);
    report.check(found.is_none(), || format!("{what}: {}", found.unwrap_or_default()));
    Ok(())
}

fn furnish(root: &Path) -> Result<()> {
    let mut deep = root.to_owned();
    for depth in 0..30 {
        deep.push("deep");
        fs::create_dir_all(&deep)?;
        fs::write(deep.join("file"), format!("at {depth}"))?;
    }
    for n in 0..40 {
        fs::write(root.join(format!("{n}")), vec![b'a'; 500 + 100 * n])?;
    }
    symlink("nowhere", root.join("link"))?;
    Ok(())
}

/// Changes the workspace as a failing tool.
fn upset(root: &Path) -> io::Result<()> {
    fs::remove_dir_all(root.join("deep/deep/deep"))?;
    for n in 0..20 {
        fs::remove_file(root.join(format!("{n}")))?;
        fs::write(root.join(format!("new {n}")), "by the tool")?;
    }
    fs::rename(root.join("30"), root.join("elsewhere"))
}

fn read_back(report: &mut Report, dir: &Path, known: u64, what: &str) {
    match host::heard(dir) {
        Ok(heard) => {
            let found = heard.len() as u64;
            report.check(found >= known && found <= known + 1, || {
                format!("{what}: {found} records where {known} were acknowledged")
            });
            let whole = heard.iter().zip(0..).all(|(said, n)| *said == host::said(0, n));
            report.check(whole, || format!("{what}: other records"));
            report.count("acknowledged", known);
        }
        Err(error) => report.broken(format!("{what}: {known} acknowledged, and it does not open: {error}")),
    }
}

/// Runs a writer or a host.
pub(crate) fn part(arguments: &[String]) -> Result<()> {
    match arguments {
        [mode, base, id, word] if mode == "write" => write(Path::new(base), id, word),
        [mode, base] => fill(Path::new(base), mode == "fill-killed"),
        [mode, base, id, _] if mode == "limited" => under_limits(Path::new(base), id),
        [mode, base, id] if mode == "recover" || mode == "give-up" => {
            let base = Path::new(base);
            let desk = Desk::at(base, &base.join("workspace"), Durability::Boundary, Some(id.parse()?))?;
            let desk = if mode == "give-up" { desk.without_capture() } else { desk };
            desk.recover()?;
            let next = desk.session.view::<Talk>()?.len();
            desk.session.dispatch(host::said(0, next))?;
            let session = desk.session.clone();
            drop(desk);
            Ok(session.close()?)
        }
        _ => Err("mode, and what it needs".into()),
    }
}

/// Writes until it is refused, and waits for the end of its input. Then it continues in the same
/// session, or after opening it again.
fn write(base: &Path, id: &str, word: &str) -> Result<()> {
    let durability = host::durability(word)?;
    let store = host::store(&base.join("store"), durability)?;
    let (id, types) = (id.parse()?, host::types()?);
    let session = store.open_session_at(id, &types, durability)?;
    let mut out = io::stdout().lock();
    let mut next = session.view::<Talk>()?.len();
    loop {
        match session.dispatch(host::said(0, next)) {
            Ok(_) => writeln!(out, "ack {next}")?,
            Err(error) => {
                writeln!(out, "refused {error}")?;
                break;
            }
        }
        next += 1;
    }
    io::stdin().read_line(&mut String::new())?;
    let again = session.dispatch(host::said(0, next));
    let session = match again {
        Ok(_) => {
            writeln!(out, "goes on in the same session\nack {next}")?;
            next += 1;
            session
        }
        Err(_) => {
            // The session accepts no more writes, and its close reports that.
            let _ = session.close();
            writeln!(out, "goes on in another opening")?;
            let session = store.open_session_at(id, &types, durability)?;
            next = session.view::<Talk>()?.len();
            session
        }
    };
    for n in next..next + 20 {
        session.dispatch(host::said(0, n))?;
        writeln!(out, "ack {n}")?;
    }
    Ok(session.close()?)
}

fn fill(base: &Path, killed: bool) -> Result<()> {
    let root = base.join("workspace");
    let desk = Desk::at(base, &root, Durability::Boundary, None)?;
    writeln!(io::stdout().lock(), "session {}", desk.session.id())?;
    desk.call(move |_| {
        upset(&root)?;
        let mut file = fs::File::create(root.join("filler"))?;
        let mut piece = vec![7; 1 << 20];
        while !piece.is_empty() {
            if file.write_all(&piece).is_err() {
                let _ = file.sync_all();
                piece.truncate(piece.len() / 2);
            }
        }
        if killed {
            raise(Signal::SIGKILL).map_err(io::Error::from)?;
        }
        Err(host::fails())
    })?;
    Ok(())
}

fn under_limits(base: &Path, id: &str) -> Result<()> {
    let root = base.join("workspace");
    let mut out = io::stdout().lock();
    let desk = match Desk::at(base, &root, Durability::Boundary, Some(id.parse()?)) {
        Ok(desk) => desk,
        Err(error) => {
            writeln!(out, "cannot open {error}")?;
            return Ok(());
        }
    };
    for n in 0..400 {
        if let Err(error) = desk.session.dispatch(host::said(0, n)) {
            writeln!(out, "refused {error}")?;
            break;
        }
        writeln!(out, "ack {n}")?;
    }
    let called = desk.call(move |_| {
        upset(&root)?;
        Err(host::fails())
    });
    match called {
        Ok(_) => writeln!(out, "rolled back")?,
        Err(error) => writeln!(out, "not rolled back {error}")?,
    }
    // Lets the background thread finish its last work.
    thread::sleep(Duration::from_millis(1));
    Ok(())
}
