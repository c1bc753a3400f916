//! Writes recorded runs of an agent, a durable record for each message: into sessions, as rows, and with each message's whole
//! history as a row, which is what a checkpoint of a conversation is.

use std::fs;
use std::path::Path;

use clap::ValueEnum;
use foldlog::{Durability, Policy, Store, StoreOptions};
use rusqlite::params;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::child::{Outcome, Task, bytes_below};
use crate::contestants::{Kept, Survives, connect, session_types};
use crate::measure::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Form {
    /// A session of foldlog for each run, and an event for each message.
    Sessions,
    /// A row of SQLite for each message.
    Rows,
    /// A row of SQLite for each message, which holds all messages so far.
    Checkpoints,
}

impl Form {
    pub const ALL: [Form; 3] = [Form::Sessions, Form::Rows, Form::Checkpoints];

    pub fn name(self) -> &'static str {
        match self {
            Form::Sessions => "foldlog, a session a run",
            Form::Rows => "SQLite (FULL), a row a message",
            Form::Checkpoints => "SQLite (FULL), the whole history as a row a message",
        }
    }
}

#[derive(Deserialize)]
struct Run {
    traj: Vec<Box<RawValue>>,
}

fn read(file: &Path) -> Result<Vec<Run>> {
    Ok(serde_json::from_str(&fs::read_to_string(file)?)?)
}

/// Runs the child's part.
pub fn write(task: &Task) -> Result<Outcome> {
    let runs = read(&task.file)?;
    let outcome = match task.form {
        Form::Sessions => sessions(&task.dir, &runs),
        Form::Rows => rows(&task.dir, &runs, false),
        Form::Checkpoints => rows(&task.dir, &runs, true),
    }?;
    let (long, allocated) = bytes_below(&task.dir)?;
    Ok(outcome.with("bytes long", long as f64).with("bytes on disk", allocated as f64))
}

fn sessions(dir: &Path, runs: &[Run]) -> Result<Outcome> {
    let types = session_types(Policy::Log)?;
    let options = StoreOptions { durability: Durability::Every, ..StoreOptions::default() };
    let store = Store::open_with(dir, options)?;
    let mut used = 0;
    let outcome = Outcome::timed(|| {
        let mut messages = 0;
        for run in runs {
            let session = store.create(&types)?;
            for message in &run.traj {
                session.dispatch(Kept(message.get().as_bytes().to_vec()))?;
                messages += 1;
            }
            used += session.log_bytes();
            session.close()?;
        }
        Ok(messages)
    })?;
    Ok(outcome.with("bytes used", used as f64))
}

fn rows(dir: &Path, runs: &[Run], whole: bool) -> Result<Outcome> {
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
