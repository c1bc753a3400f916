//! Writes recorded runs of an agent, a durable record for each message: into sessions, as rows, and
//! with each message's whole history as a row, like a checkpoint of a conversation.

use std::fs;
use std::path::Path;

use clap::ValueEnum;
use foldlog::{Durability, Policy, Store, StoreOptions};
use rusqlite::params;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::child::{ChildTask, Outcome, bytes_below};
use crate::contestants::{PayloadEvent, Survives, connect, session_types};
use crate::measure::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum TauBenchForm {
    /// A session of foldlog for each run, and an event for each message.
    Sessions,
    /// A row of SQLite for each message.
    Rows,
    /// A row of SQLite for each message, which contains all messages so far.
    Checkpoints,
}

impl TauBenchForm {
    pub const ALL: [TauBenchForm; 3] =
        [TauBenchForm::Sessions, TauBenchForm::Rows, TauBenchForm::Checkpoints];

    pub fn name(self) -> &'static str {
        match self {
            TauBenchForm::Sessions => "foldlog, a session a run",
            TauBenchForm::Rows => "SQLite (FULL), a row a message",
            TauBenchForm::Checkpoints => "SQLite (FULL), the whole history as a row a message",
        }
    }
}

#[derive(Deserialize)]
struct RecordedRun {
    traj: Vec<Box<RawValue>>,
}

fn read(file: &Path) -> Result<Vec<RecordedRun>> {
    Ok(serde_json::from_str(&fs::read_to_string(file)?)?)
}

/// Runs the child's part.
pub fn write(task: &ChildTask) -> Result<Outcome> {
    let runs = read(&task.file)?;
    let outcome = match task.form {
        TauBenchForm::Sessions => sessions(&task.dir, &runs),
        TauBenchForm::Rows => rows(&task.dir, &runs, false),
        TauBenchForm::Checkpoints => rows(&task.dir, &runs, true),
    }?;
    let (long, allocated) = bytes_below(&task.dir)?;
    Ok(outcome.with("bytes long", long as f64).with("bytes on disk", allocated as f64))
}

fn sessions(dir: &Path, runs: &[RecordedRun]) -> Result<Outcome> {
    let types = session_types(Policy::Log)?;
    let options = StoreOptions { durability: Durability::Every, ..StoreOptions::default() };
    let store = Store::open_with(dir, options)?;
    let mut used = 0;
    let outcome = Outcome::timed(|| {
        let mut messages = 0;
        for run in runs {
            let session = store.create(&types)?;
            for message in &run.traj {
                session.dispatch(PayloadEvent(message.get().as_bytes().to_vec()))?;
                messages += 1;
            }
            used += session.log().bytes();
            session.close()?;
        }
        Ok(messages)
    })?;
    Ok(outcome.with("bytes used", used as f64))
}

fn rows(dir: &Path, runs: &[RecordedRun], whole: bool) -> Result<Outcome> {
    let connection = connect(&dir.join("runs.sqlite"), Survives::PowerCut)?;
    connection.execute_batch(
        "CREATE TABLE message (run INTEGER, number INTEGER, body TEXT NOT NULL, PRIMARY KEY (run, number))",
    )?;
    let outcome = Outcome::timed(|| {
        let mut messages = 0;
        for (number, run) in runs.iter().enumerate() {
            let mut history = String::from("[");
            for (place, message) in run.traj.iter().enumerate() {
                if whole {
                    history.truncate(history.len() - usize::from(place > 0));
                    history.push_str(if place > 0 { "," } else { "" });
                    history.push_str(message.get());
                    history.push(']');
                }
                let body = if whole { &history } else { message.get() };
                let mut insert = connection.prepare_cached("INSERT INTO message VALUES (?1, ?2, ?3)")?;
                insert.execute(params![number as i64, place as i64, body])?;
                messages += 1;
            }
        }
        Ok(messages)
    })?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(outcome)
}
