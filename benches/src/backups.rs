//! Compares a session's first and later backup with `cp` of the same files, with and without making
//! the copy durable, as a backup does.

use std::cell::Cell;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use foldlog::{BackupOptions, Session, Store};

use crate::measure::{AtMost, BenchRow, Result, Round, take_turns, timed};
use crate::subject::{append_types, fill, settled, store_without_images};

/// Number of steps in a MiB of log.
const STEPS_IN_A_MIB: u64 = 4_450;

/// Number of steps between two backups.
const BETWEEN: u64 = 1_000;

const BACKUP_ROUNDS: usize = 3;

pub fn backup(dir: &Path, mib: u64) -> Result<Vec<BenchRow>> {
    let steps = mib * STEPS_IN_A_MIB;
    let store = store_without_images(&dir.join("store"))?;
    let session = settled(&store, &append_types()?, 0..steps)?;
    let param = format!("{} MiB, {steps} records", session.log().bytes() >> 20);
    let written = Cell::new(steps);
    let [first, later, plain, durable] = take_turns(
        BACKUP_ROUNDS,
        [
            &mut || first(&store, &session, &dir.join("copies")),
            &mut || later(&store, &session, &dir.join("copies"), &written),
            &mut || copied(&session, &dir.join("copied"), false),
            &mut || copied(&session, &dir.join("copied"), true),
        ],
    )?;
    let beside =
        |subject: &str, measured, limit| BenchRow::beside("backup", subject, &param, measured, limit);
    Ok(vec![
        beside("backup, beside cp", first, plain),
        beside("backup, beside cp and sync", first, durable).at_most(AtMost::Ratio(1.5)),
        beside("backup after 1,000 records more, beside the first", later, first)
            .at_most(AtMost::Ratio(1.0 / 20.0)),
    ])
}

fn first(store: &Store, session: &Session, to: &Path) -> Result<Round> {
    let _ = fs::remove_dir_all(to);
    timed(1, || {
        store.backup(session.id(), to, BackupOptions::default())?;
        Ok(())
    })
}

fn later(store: &Store, session: &Session, to: &Path, written: &Cell<u64>) -> Result<Round> {
    let from = written.replace(written.get() + BETWEEN);
    fill(session, from..from + BETWEEN)?;
    session.sync()?;
    timed(1, || {
        store.backup(session.id(), to, BackupOptions::default())?;
        Ok(())
    })
}

fn copied(session: &Session, to: &Path, durable: bool) -> Result<Round> {
    let _ = fs::remove_dir_all(to);
    let round = timed(1, || {
        let done = Command::new("cp").args(["-r", "--reflink=never"]).arg(session.dir()).arg(to).status()?;
        if !done.success() {
            return Err(format!("cp: {done}").into());
        }
        if durable {
            for entry in fs::read_dir(to)? {
                let path = entry?.path();
                File::open(&path)?.sync_all()?;
            }
        }
        Ok(())
    })?;
    fs::remove_dir_all(to)?;
    Ok(round)
}
