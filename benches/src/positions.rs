//! Measures rollbacks and forks of short and of long sessions, which should hardly differ.

use std::path::Path;

use foldlog::{Session, SessionOptions, SnapshotOptions};

use crate::measure::{AtMost, BenchRow, ROUNDS, Result, Round, take_turns, timed};
use crate::subject::{append_types, settled, step, store, upsert_types};

const FEW: u64 = 1_000;
const MANY: u64 = 1_000_000;

const ROLLBACKS: u64 = 500;

fn roll_back(session: &Session) -> Result<Round> {
    timed(ROLLBACKS, || {
        for number in 0..ROLLBACKS {
            let snapshot = session.snapshot(SnapshotOptions::default())?;
            session.dispatch(step(number))?;
            session.rollback(&snapshot)?;
        }
        Ok(())
    })
}

pub fn rollback(dir: &Path) -> Result<Vec<BenchRow>> {
    let mut rows = Vec::new();
    for (name, types) in [("append_all", append_types()?), ("upsert_by", upsert_types()?)] {
        let store = store(&dir.join(name))?;
        let short = settled(&store, &types, 0..FEW)?;
        let long = settled(&store, &types, 0..MANY)?;
        // The first write after opening prepares the log.
        for session in [&short, &long] {
            roll_back(session)?;
        }
        let [few, many] = take_turns(ROUNDS, [&mut || roll_back(&short), &mut || roll_back(&long)])?;
        rows.push(BenchRow::alone("rollback", name, FEW, few).at_most(AtMost::Ns(10_000.0)));
        rows.push(BenchRow::alone("rollback", name, MANY, many).at_most(AtMost::Ns(20_000.0)));
        rows.push(BenchRow::pair("rollback", name, "many to few", many, few).at_most(AtMost::Ratio(2.0)));
    }
    Ok(rows)
}

pub fn fork(dir: &Path) -> Result<Vec<BenchRow>> {
    let types = append_types()?;
    let store = store(dir)?;
    let short = settled(&store, &types, 0..FEW)?;
    let long = settled(&store, &types, 0..MANY)?;
    let forked = |parent: &Session| {
        let last = parent.log().position().unwrap_or_default();
        let mut fork = None;
        let ns = timed(1, || {
            fork = Some(store.fork(parent.id(), last, &types, SessionOptions::default())?);
            Ok(())
        })?;
        if let Some(fork) = fork {
            let id = fork.id();
            fork.close()?;
            store.delete(id)?;
        }
        Ok(ns)
    };
    let [few, many] = take_turns(ROUNDS, [&mut || forked(&short), &mut || forked(&long)])?;
    Ok(vec![
        BenchRow::alone("fork", "at the last record", FEW, few),
        BenchRow::alone("fork", "at the last record", MANY, many),
        BenchRow::pair("fork", "at the last record", "many to few", many, few).at_most(AtMost::Ratio(3.0)),
    ])
}
