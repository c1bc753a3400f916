//! Compares snapshots and restores of workspaces with a bare walk and with git.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions, InMemoryFilesystem};

use crate::measure::{AtMost, BenchRow, ROUNDS, Result, Round, take_turns, timed};

/// Number of rounds of git, which takes long.
const ROUNDS_GIT: usize = 7;

const FILES_IN_A_DIRECTORY: u64 = 100;

const FEW: u64 = 10;
const MANY: u64 = 10_000;

/// Number of snapshots in memory that are timed together, since one is very quick.
const SNAPSHOTS: u64 = 10_000;

fn file_of(root: &Path, number: u64) -> PathBuf {
    root.join(format!("directory {}", number / FILES_IN_A_DIRECTORY)).join(format!("file {number}"))
}

fn fill(root: &Path, files: u64) -> Result<()> {
    for number in 0..files {
        let path = file_of(root, number);
        if number % FILES_IN_A_DIRECTORY == 0 {
            fs::create_dir_all(path.parent().unwrap_or(root))?;
        }
        fs::write(path, format!("what stands in file {number}\n").repeat(20))?;
    }
    Ok(())
}

/// Changes `files` files, with other contents each time.
fn change(root: &Path, files: u64, time: u64) -> Result<()> {
    // The files are far apart, so that many directories change.
    (0..files).try_for_each(|number| {
        Ok(fs::write(file_of(root, number * 97 % MANY), format!("changed {number} for the {time}th time"))?)
    })
}

/// Runs the limit of a snapshot without changes: `lstat` of everything, by two threads.
fn walk(root: &Path) -> Result<u64> {
    let directories = Mutex::new(vec![root.to_owned()]);
    let work = || -> std::io::Result<u64> {
        let mut sum = 0;
        let next = || directories.lock().ok().and_then(|mut directories| directories.pop());
        while let Some(directory) = next() {
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                let found = fs::symlink_metadata(entry.path())?;
                sum += found.size();
                if found.is_dir()
                    && let Ok(mut directories) = directories.lock()
                {
                    directories.push(entry.path());
                }
            }
        }
        Ok(sum)
    };
    // The root's own entries first, so that both threads have work.
    let mut own = 0;
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        own += fs::symlink_metadata(entry.path())?.size();
        if let Ok(mut directories) = directories.lock() {
            directories.push(entry.path());
        }
    }
    if let Ok(mut directories) = directories.lock() {
        directories.retain(|directory| directory != root);
    }
    let sums = thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.map(|thread| thread.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())))
    });
    sums.into_iter().try_fold(own, |sum, one| Ok(sum + one?))
}

/// Contains a shadow repository of git, which agents often use for checkpoints.
struct Shadow<'a> {
    root: &'a Path,
    store: PathBuf,
}

impl Shadow<'_> {
    fn git(&self, arguments: &[&str]) -> Result<()> {
        let mut git = Command::new("git");
        git.arg("--git-dir").arg(&self.store).arg("--work-tree").arg(self.root);
        git.args(["-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "gc.auto=0"]).args(arguments);
        let output = git.output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
    }

    fn commit(&self) -> Result<()> {
        self.git(&["add", "-A"])?;
        self.git(&["commit", "-q", "--allow-empty", "-m", "x"])
    }
}

fn once(run: impl FnOnce() -> Result<()>) -> Result<Round> {
    timed(1, run)
}

fn unchanged(dir: &Path, files: u64, param: &str) -> Result<BenchRow> {
    let root = dir.join(param);
    fs::create_dir(&root)?;
    fill(&root, files)?;
    let workspace =
        HostFilesystem::open(&root, dir.join(format!("{param}.git")), HostFilesystemOptions::default())?;
    // Twice, since files that were written just before the first snapshot are within the clock's
    // resolution.
    workspace.snapshot(None, false)?;
    workspace.snapshot(None, false)?;
    let mut snapshot = || once(|| Ok(workspace.snapshot(None, false).map(drop)?));
    let mut walked = || once(|| walk(&root).map(drop));
    let [subject, limit] = take_turns(ROUNDS, [&mut snapshot, &mut walked])?;
    let row = BenchRow::beside("workspace", "snapshot, nothing changed", param, subject, limit);
    Ok(row.at_most(AtMost::Ratio(1.5)))
}

fn changed(dir: &Path) -> Result<Vec<BenchRow>> {
    let root = dir.join("changed");
    fs::create_dir(&root)?;
    fill(&root, MANY)?;
    let workspace = HostFilesystem::open(&root, dir.join("changed.git"), HostFilesystemOptions::default())?;
    let first = workspace.snapshot(None, false)?;
    let shadow = Shadow { root: &root, store: dir.join("shadow.git") };
    if shadow.git(&["init", "-q"]).and_then(|()| shadow.commit()).is_err() {
        println!("workspace: skipped beside git, which is not there");
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    let time = std::cell::Cell::new(0);
    for files in [1, 100] {
        let alter = || {
            time.set(time.get() + 1);
            change(&root, files, time.get())
        };
        let mut snapshot = || {
            alter()?;
            once(|| Ok(workspace.snapshot(None, false).map(drop)?))
        };
        let mut commit = || {
            alter()?;
            once(|| shadow.commit())
        };
        let [subject, limit] = take_turns(ROUNDS_GIT, [&mut snapshot, &mut commit])?;
        let param = format!("{files} of 10000 files changed");
        rows.push(
            BenchRow::beside("workspace", "snapshot", &param, subject, limit).at_most(AtMost::Ratio(0.2)),
        );
        workspace.restore(&first)?;
        shadow.commit()?;
        let mut restore = || {
            alter()?;
            once(|| Ok(workspace.restore(&first).map(drop)?))
        };
        let mut reset = || {
            alter()?;
            once(|| {
                shadow.git(&["reset", "-q", "--hard"])?;
                shadow.git(&["clean", "-qfd"])
            })
        };
        let [subject, limit] = take_turns(ROUNDS_GIT, [&mut restore, &mut reset])?;
        rows.push(
            BenchRow::beside("workspace", "restore", &param, subject, limit).at_most(AtMost::Ratio(0.2)),
        );
    }
    Ok(rows)
}

fn in_memory() -> Result<Vec<BenchRow>> {
    let filled = |files: u64| -> Result<InMemoryFilesystem> {
        let workspace = InMemoryFilesystem::new();
        (0..files).try_for_each(|number| {
            workspace.write(&format!("directory {}/{number}", number / 100), b"bytes")
        })?;
        Ok(workspace)
    };
    let (small, large) = (filled(FEW)?, filled(MANY)?);
    let both = |workspace: &InMemoryFilesystem| {
        timed(SNAPSHOTS, || {
            (0..SNAPSHOTS).for_each(|_| workspace.restore(&workspace.snapshot()));
            Ok(())
        })
    };
    let [few, many] = take_turns(ROUNDS, [&mut || both(&small), &mut || both(&large)])?;
    let subject = "snapshot and restore in memory";
    Ok(vec![
        BenchRow::alone("workspace", subject, FEW, few).at_most(AtMost::Ns(2_000.0)),
        BenchRow::alone("workspace", subject, MANY, many).at_most(AtMost::Ns(2_000.0)),
        BenchRow::pair("workspace", subject, "many to few", many, few).at_most(AtMost::Ratio(2.0)),
    ])
}

pub fn workspace(dir: &Path) -> Result<Vec<BenchRow>> {
    let mut rows = vec![unchanged(dir, MANY, "10000 files")?];
    rows.extend(changed(dir)?);
    rows.push(unchanged(dir, 10 * MANY, "100000 files")?);
    rows.extend(in_memory()?);
    Ok(rows)
}
