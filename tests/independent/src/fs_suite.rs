//! A file-system test suite that runs inside of a tool: it creates and changes hundreds of files,
//! directories, links, holes, permissions, owners and attributes at random. Then the tool fails,
//! and the tree is restored. Also tests programs that leave their process group and continue to
//! write, and a file to which another thread appends all the time.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use foldlog::Durability;

use crate::chance::Chance;
use crate::host::{self, Desk};
use crate::report::{Report, Result};
use crate::tree::{self, Compared, Tree};
use crate::{Plan, place};

/// Depth of nested directories.
const DEPTH: usize = 40;

/// Names that a file system accepts and that confuse some programs.
const NAMES: [&str; 10] =
    ["a", "b", "c", "with space", "-dash", "*", "new\nline", "\u{e4}\u{1f600}", "back\\slash", ".hidden"];

pub(crate) fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new("fs-suite");
    let directory = place::directory(&plan.dir)?;
    let (suites, operations) = (plan.rounds(3, 60), if plan.long { 5_000 } else { 1_000 });
    if !place::is_root() {
        report.skip("owners are not changed, since this is not root");
    }
    for suite in 0..suites {
        let base = directory.path().join(format!("{suite}"));
        let root = base.join("workspace");
        fs::create_dir_all(&root)?;
        let mut chance = Chance::of(plan.seed, suite);
        let mut made = Suite { root: root.clone(), chance: chance.clone(), done: 0 };
        // The initial files are of the same kinds.
        made.operations(300);
        if suite == 0 && tree::set_attribute(&root, "user.probe", b"1").is_err() {
            report.skip("this file system has no extended attributes");
        }
        let before = Tree::of(&root)?;
        let desk = Desk::at(&base, &root, Durability::Boundary, None)?;
        let seed = chance.number();
        let within = root.clone();
        let called = desk.call(move |_| {
            let mut suite = Suite { root: within.clone(), chance: Chance::new(seed), done: 0 };
            suite.operations(operations);
            Err(host::fails())
        });
        report.count("operations", operations);
        report.count("entries before", before.len() as u64);
        match called {
            Ok(ended) => report.check(!ended.success, || "a tool that failed was committed".to_owned()),
            Err(error) => report.broken(format!("suite {suite}: the call was not rolled back: {error}")),
        }
        judge(&mut report, suite, &before, &Tree::of(&root)?);
        drop(desk);
        fs::remove_dir_all(&base)?;
    }
    report.count("suites", suites);
    for (number, (name, script)) in PROGRAMS.into_iter().enumerate() {
        programs(&mut report, &directory.path().join(format!("programs-{number}")), name, script)?;
    }
    appended(&mut report, &directory.path().join("appended"))?;
    Ok(report)
}

/// Programs of a tool that try to outlive it. Each writes into the workspace all the time, and ends
/// by itself after a while.
const WRITES: &str = "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo $i >> written; sleep 0.005; done";
const PROGRAMS: [(&str, &str); 4] = [
    ("a program beside the tool", "WRITES"),
    ("a program in a session of its own", "setsid sh -c 'WRITES' & wait"),
    ("a program whose parent is gone", "(setsid sh -c '(WRITES) & exit 0' &); sleep 10"),
    (
        "a program that ignores signals",
        "trap '' TERM INT HUP; setsid sh -c 'trap \"\" TERM INT HUP; WRITES' & wait",
    ),
];

/// Length of the file before another thread appends to it.
const LOG_BYTES: usize = 6 << 20;

/// A tool starts a program and fails: no process of it continues in the workspace.
fn programs(report: &mut Report, base: &Path, name: &str, script: &str) -> Result<()> {
    let root = base.join("workspace");
    fs::create_dir_all(&root)?;
    fs::write(root.join("kept"), "kept")?;
    let before = Tree::of(&root)?;
    let desk = Desk::at(base, &root, Durability::Boundary, None)?;
    let (within, script) = (root.clone(), script.replace("WRITES", WRITES));
    let called = desk.call(move |context| {
        context.command("sh").arg("-c").arg(&script).current_dir(&within).start()?;
        let until = Instant::now() + Duration::from_secs(10);
        while !within.join("written").exists() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        Err(host::fails())
    });
    report.count("programs", 1);
    report.check(called.is_ok(), || format!("{name}: not rolled back: {called:?}"));
    let soon = before.compare(&Tree::of(&root)?, Compared::CONTENT);
    report.check(soon.is_none(), || format!("{name}: {}", soon.unwrap_or_default()));
    // Ten times as long as a program waits between two writes.
    thread::sleep(Duration::from_millis(60));
    let later = before.compare(&Tree::of(&root)?, Compared::CONTENT);
    report.check(later.is_none(), || format!("{name}: it goes on: {}", later.unwrap_or_default()));
    Ok(())
}

/// Another thread appends to a log all the time. Tools work, those that fail are rolled back, and
/// no line is lost.
fn appended(report: &mut Report, base: &Path) -> Result<()> {
    let root = base.join("workspace");
    fs::create_dir_all(&root)?;
    fs::write(root.join("changed"), "as it was")?;
    let log = root.join("log");
    // Long enough that it always changes while it is read.
    fs::write(&log, "an old line\n".repeat(LOG_BYTES / 12))?;
    let before = fs::metadata(&log)?.len();
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, path) = (Arc::clone(&stop), log.clone());
    let appending = thread::spawn(move || -> std::io::Result<u64> {
        let mut file = OpenOptions::new().append(true).open(path)?;
        let mut lines = 0;
        while !stopped.load(Ordering::Relaxed) {
            file.write_all(format!("line {lines}\n").as_bytes())?;
            lines += 1;
            thread::sleep(Duration::from_micros(300));
        }
        Ok(lines)
    });
    let desk = Desk::at(base, &root, Durability::Boundary, None)?;
    for call in 0..6 {
        let within = root.clone();
        let fails = call % 2 == 0;
        let called = desk.call(move |_| {
            fs::write(within.join("changed"), if fails { "by the tool" } else { "as it was" })?;
            if fails { Err(host::fails()) } else { Ok(()) }
        });
        report.count("calls beside an appended file", 1);
        report.check(called.is_ok(), || format!("call {call} beside an appended file: {called:?}"));
        let now = fs::read_to_string(root.join("changed"))?;
        report.check(now == "as it was", || format!("call {call} beside an appended file: `{now}`"));
    }
    stop.store(true, Ordering::Relaxed);
    let lines = appending.join().map_err(|_| "the appending thread panicked")??;
    let text = fs::read_to_string(&log)?;
    let new: Vec<_> = text.lines().filter(|line| *line != "an old line").collect();
    let whole = new.iter().zip(0..).all(|(line, n)| **line == format!("line {n}"));
    report.check(whole && new.len() as u64 == lines && text.len() as u64 > before, || {
        format!("{lines} lines were appended beside calls, and {} are there", new.len())
    });
    Ok(())
}

/// Reports each kind of difference separately, so that one does not hide another.
fn judge(report: &mut Report, suite: u64, before: &Tree, after: &Tree) {
    let none = Compared { modes: false, owners: false, times: false, links: false, attributes: false };
    let kinds = [
        ("contents and names", none),
        ("modes", Compared { modes: true, ..none }),
        ("owners", Compared { owners: true, ..none }),
        ("hard links", Compared { links: true, ..none }),
        ("extended attributes", Compared { attributes: true, ..none }),
        ("times", Compared { times: true, ..none }),
    ];
    let contents = before.differences(after, none);
    for (kind, compared) in kinds {
        let mut found = before.differences(after, compared);
        if kind != kinds[0].0 {
            found.retain(|difference| !contents.contains(difference));
        }
        report.check(found.is_empty(), || {
            let first: Vec<_> = found.iter().take(3).map(String::as_str).collect();
            format!("suite {suite}: {kind}: {} differ: {}", found.len(), first.join("; "))
        });
    }
}

struct Suite {
    root: PathBuf,
    chance: Chance,
    done: u64,
}

impl Suite {
    /// Tries this many operations. Many are refused, which is fine: a tool can do only what the
    /// system allows.
    fn operations(&mut self, count: u64) {
        for _ in 0..count {
            self.done += 1;
            let _ = self.operation();
        }
    }

    /// Returns a path from few enough names that operations meet.
    fn path(&mut self) -> PathBuf {
        let mut path = self.root.clone();
        for _ in 0..=self.chance.below(3) {
            let name = self.chance.one_of(&NAMES).copied().unwrap_or("a");
            path.push(if self.chance.once_in(3) {
                format!("{name}{}", self.chance.below(8))
            } else {
                name.to_owned()
            });
        }
        path
    }

    fn operation(&mut self) -> std::io::Result<()> {
        let path = self.path();
        match self.chance.below(20) {
            0..=4 => self.write(&path),
            5 => fs::create_dir_all(&path),
            6 => fs::create_dir(&path),
            7 => fs::rename(&path, self.path()),
            8 => fs::hard_link(&path, self.path()),
            9 => {
                let target = self.path();
                let target = target.strip_prefix(&self.root).unwrap_or(&target).to_owned();
                symlink(if self.chance.once_in(4) { PathBuf::from("/nowhere/at/all") } else { target }, &path)
            }
            10 => fs::remove_file(&path),
            11 if self.chance.once_in(4) => fs::remove_dir_all(&path),
            11 => fs::remove_dir(&path),
            12 => {
                let len = self.chance.below(20_000);
                open(&path)?.set_len(len)
            }
            13 => {
                let piece = self.bytes(2_000);
                OpenOptions::new().append(true).open(&path)?.write_all(&piece)
            }
            14 => {
                let mode = u32::try_from(self.chance.below(0o10_000)).unwrap_or_default();
                not_through_a_link(&path)?;
                fs::set_permissions(&path, Permissions::from_mode(mode))
            }
            15 => {
                let owner = Some(u32::try_from(1_000 + self.chance.below(3)).unwrap_or_default());
                if self.chance.once_in(2) {
                    lchown(&path, owner, owner)
                } else {
                    not_through_a_link(&path).and_then(|()| chown(&path, None, owner))
                }
            }
            16 => {
                let name = format!("user.independent{}", self.chance.below(4));
                let value = self.bytes(200);
                not_through_a_link(&path)?;
                tree::set_attribute(&path, &name, &value)
            }
            17 => self.hole(&path),
            18 => {
                let back = Duration::from_secs(self.chance.below(1_000_000_000));
                not_through_a_link(&path)?;
                File::open(&path)?.set_modified(SystemTime::UNIX_EPOCH + back)
            }
            _ => self.deep(&path),
        }
    }

    fn bytes(&mut self, below: u64) -> Vec<u8> {
        let len = usize::try_from(self.chance.below(below)).unwrap_or_default();
        self.chance.bytes(len)
    }

    fn write(&mut self, path: &Path) -> std::io::Result<()> {
        not_through_a_link(path)?;
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let bytes = self.bytes(if self.chance.clone().once_in(20) { 200_000 } else { 4_000 });
        fs::write(path, bytes)
    }

    /// Writes a file with a hole, and a little data after it.
    fn hole(&mut self, path: &Path) -> std::io::Result<()> {
        not_through_a_link(path)?;
        let at = self.chance.below(1 << 20);
        let piece = self.bytes(3_000);
        OpenOptions::new().write(true).create(true).truncate(false).open(path)?.write_all_at(&piece, at)
    }

    fn deep(&mut self, path: &Path) -> std::io::Result<()> {
        let mut deep = path.to_owned();
        deep.extend((0..DEPTH).map(|_| "d"));
        fs::create_dir_all(&deep)?;
        fs::write(deep.join("at the bottom"), self.bytes(100))
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    not_through_a_link(path)?;
    OpenOptions::new().write(true).open(path)
}

/// Fails for a link, which may lead out of the workspace.
fn not_through_a_link(path: &Path) -> std::io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Err(std::io::ErrorKind::InvalidInput.into()),
        _ => Ok(()),
    }
}
