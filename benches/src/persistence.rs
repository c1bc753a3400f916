//! Measures long-running work: changes of tasks, checkpoints, exports as trees of files, and
//! validation, with few tasks and with many.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foldlog::conversation::{NewAnswer, NewInput};
use foldlog::inspect::LogReader;
use foldlog::{SequenceNumber, Session, SessionTypes, Store};
use foldlog_tasks::{
    CheckpointManager, Dependency, DependencyType, NewTask, SessionState, StateCompression, StateUpdate,
    StateValidator, TaskCreated, TaskId, TaskStatus, TaskStatusChanged, TreeContents, TreeExporter,
    WorkspaceStores, declare, export_session, export_tree,
};

use crate::measure::{AtMost, BenchRow, Measurement, ROUNDS, Result, Round, take_turns, timed};
use crate::subject::{append_types, settled, step, store};

const FEW: u64 = 1_000;
const FEWEST: u64 = 10;
const MANY: u64 = 100_000;

/// Number of changes of a round.
const CHANGES: u64 = 2_000;

/// Number of checkpoints of a round, with one change before each.
const CHECKPOINTS: u64 = 50;

/// Number of exported tasks, and of exported messages.
const EXPORTED: u64 = 10_000;

const EXPORT_ROUNDS: usize = 5;
const VALIDATION_ROUNDS: usize = 7;

pub fn persistence(dir: &Path) -> Result<Vec<BenchRow>> {
    let mut rows = status_changes(&dir.join("changes"))?;
    rows.extend(checkpoints(&dir.join("checkpoints"))?);
    rows.push(validation(&dir.join("validation"))?);
    rows.extend(exports(&dir.join("exports"))?);
    Ok(rows)
}

fn id(number: u64) -> Result<TaskId> {
    Ok(TaskId::new(format!("task-{number:06}"))?)
}

/// Makes a task of a tree with ten parts to each, which requires an earlier task and prefers
/// another.
fn new_task(number: u64) -> Result<NewTask> {
    let mut task = NewTask::new(id(number)?, format!("Task number {number} of a long plan"));
    task.description =
        "What is to be done is described here in a sentence or two, as agents like to do.".into();
    task.priority = (number % 7) as i64;
    if number > 0 {
        task.parent = Some(id(number / 10)?);
    }
    // Neither dependency is above the task in the tree.
    if number > 100 {
        task.dependencies = vec![
            Dependency { on: id(number - 3)?, kind: DependencyType::Requires },
            Dependency { on: id(number - 7)?, kind: DependencyType::Prefers },
        ];
    }
    Ok(task)
}

fn types() -> Result<SessionTypes> {
    Ok(declare(SessionTypes::builder()).build()?)
}

/// Makes an open session with this many tasks, and no remaining work in the background.
fn with_tasks(store: &Store, tasks: u64) -> Result<Session> {
    let session = store.create(&types()?)?;
    (0..tasks).try_for_each(|number| -> Result<()> {
        session.dispatch(TaskCreated { task: new_task(number)? })?;
        Ok(())
    })?;
    let id = session.id();
    session.close()?;
    Ok(store.open_session(id, &types()?)?)
}

/// Blocks tasks, and makes them pending again in the next pass. Successive tasks are far from each
/// other.
struct TaskStatusCycle {
    tasks: u64,
    made: u64,
}

impl TaskStatusCycle {
    fn of(tasks: u64) -> TaskStatusCycle {
        TaskStatusCycle { tasks, made: 0 }
    }

    fn next(&mut self) -> Result<TaskStatusChanged> {
        // 7,919 is odd and no multiple of 5, so each pass changes every task once.
        let (around, place) = (self.made / self.tasks, self.made % self.tasks);
        self.made += 1;
        let (old_status, new_status) = match around % 2 {
            0 => (TaskStatus::Pending, TaskStatus::Blocked),
            _ => (TaskStatus::Blocked, TaskStatus::Pending),
        };
        let task_id = id(place * 7_919 % self.tasks)?;
        Ok(TaskStatusChanged { task_id, old_status, new_status, reason: None })
    }
}

fn change(session: &Session, changes: &mut TaskStatusCycle) -> Result<Round> {
    let events = (0..CHANGES).map(|_| changes.next()).collect::<Result<Vec<_>>>()?;
    timed(CHANGES, || {
        for event in events {
            session.dispatch(event)?;
        }
        Ok(())
    })
}

fn status_changes(dir: &Path) -> Result<Vec<BenchRow>> {
    let store = store(dir)?;
    let (few, many) = (with_tasks(&store, FEW)?, with_tasks(&store, MANY)?);
    let plain = settled(&store, &append_types()?, 0..FEW)?;
    let (mut of_few, mut of_many, mut number) = (TaskStatusCycle::of(FEW), TaskStatusCycle::of(MANY), 0);
    let mut dispatched = || {
        let steps: Vec<_> = (0..CHANGES).map(|place| step(number + place)).collect();
        number += CHANGES;
        timed(CHANGES, || {
            for step in steps {
                plain.dispatch(step)?;
            }
            Ok(())
        })
    };
    // The first write after opening prepares the log.
    change(&few, &mut of_few)?;
    change(&many, &mut of_many)?;
    dispatched()?;
    let [few, many, plain] = take_turns(
        ROUNDS,
        [&mut || change(&few, &mut of_few), &mut || change(&many, &mut of_many), &mut dispatched],
    )?;
    let name = "status change beside a plain dispatch";
    Ok(vec![
        BenchRow::beside("persistence", name, tasks(FEW), few, plain).at_most(AtMost::Ratio(3.0)),
        BenchRow::beside("persistence", name, tasks(MANY), many, plain).at_most(AtMost::Ratio(3.0)),
        BenchRow::pair("persistence", "status change", "many tasks to few", many, few)
            .at_most(AtMost::Ratio(2.0)),
    ])
}

fn tasks(count: u64) -> String {
    format!("{count} tasks")
}

fn checkpoints(dir: &Path) -> Result<Vec<BenchRow>> {
    let store = store(dir)?;
    let (few, many) = (with_tasks(&store, FEWEST)?, with_tasks(&store, MANY)?);
    let (few, many) = (CheckpointManager::new(few), CheckpointManager::new(many));
    // The first checkpoint of a log reads all of it.
    let (_, first_many) = (first(&few)?, first(&many)?);
    let (mut of_few, mut of_many) = (TaskStatusCycle::of(FEWEST), TaskStatusCycle::of(MANY));
    let [few, many] = take_turns(
        ROUNDS,
        [&mut || created(&few, CHECKPOINTS, &mut of_few), &mut || created(&many, CHECKPOINTS, &mut of_many)],
    )?;
    let name = "checkpoint after one change";
    Ok(vec![
        BenchRow::alone("persistence", name, tasks(FEWEST), few),
        BenchRow::alone("persistence", name, tasks(MANY), many),
        BenchRow::pair("persistence", name, "many tasks to few", many, few).at_most(AtMost::Ratio(2.0)),
        BenchRow::alone("persistence", "first checkpoint of a log", tasks(MANY), first_many),
    ])
}

/// Creates the first checkpoint of a log.
fn first(manager: &CheckpointManager) -> Result<Measurement> {
    let [first] = take_turns(1, [&mut || timed(1, || Ok(manager.create(None).map(drop)?))])?;
    Ok(first)
}

/// Creates checkpoints, each after one change, which is not timed.
fn created(manager: &CheckpointManager, count: u64, changes: &mut TaskStatusCycle) -> Result<Round> {
    let mut elapsed = Duration::ZERO;
    for _ in 0..count {
        manager.session().dispatch(changes.next()?)?;
        let start = Instant::now();
        manager.create(None)?;
        elapsed += start.elapsed();
    }
    Ok(Round::of(elapsed.as_nanos() as f64 / count as f64))
}

/// Completes the first quarter of the tasks, in the order of their dependencies.
fn complete(session: &Session, tasks: u64) -> Result<()> {
    use TaskStatus::{Completed, InProgress, Pending};
    for number in 0..tasks / 4 {
        for (old_status, new_status) in [(Pending, InProgress), (InProgress, Completed)] {
            session.dispatch(TaskStatusChanged {
                task_id: id(number)?,
                old_status,
                new_status,
                reason: None,
            })?;
        }
    }
    Ok(())
}

fn validation(dir: &Path) -> Result<BenchRow> {
    let session = with_tasks(&store(dir)?, MANY)?;
    complete(&session, MANY)?;
    let position = session.log().position().unwrap_or_default();
    let state = SessionState::at(&LogReader::open(session.dir())?, position, &WorkspaceStores::none())?;
    let validator = StateValidator::new();
    let mut validated = || {
        timed(1, || match validator.validate(&state).issues.first() {
            None => Ok(()),
            Some(issue) => Err(format!("there is an issue: {issue}").into()),
        })
    };
    let [validated] = take_turns(VALIDATION_ROUNDS, [&mut validated])?;
    Ok(BenchRow::alone("persistence", "validation", tasks(MANY), validated).at_most(AtMost::Ns(0.5e9)))
}

/// Makes a session with tasks and messages.
fn exported(dir: &Path) -> Result<Session> {
    let session = with_tasks(&store(dir)?, EXPORTED)?;
    for number in 0..EXPORTED / 2 {
        session
            .conversation()
            .record_input(&NewInput::user("measured", format!("What about number {number}, and why?")))?;
        session.conversation().record_answer(&NewAnswer {
            evaluation_id: "measured".to_owned(),
            content: Some(format!("Number {number} is as it should be, since nothing speaks against it.")),
            ..NewAnswer::default()
        })?;
    }
    Ok(session)
}

/// Exports a session, into a directory of its own for each round.
struct ExportRounds<'a> {
    session: &'a Session,
    dir: &'a Path,
    changes: TaskStatusCycle,
    round: u64,
    /// Remembers the files that it has written in this round.
    exporter: TreeExporter,
}

impl ExportRounds<'_> {
    fn to(&self) -> PathBuf {
        self.dir.join(format!("to-{}", self.round))
    }

    /// Starts a round with an empty directory.
    fn begin(&mut self) -> Result<()> {
        if self.round > 0 {
            std::fs::remove_dir_all(self.to())?;
        }
        self.round += 1;
        self.exporter = exporter(&self.to());
        Ok(std::fs::create_dir_all(self.to())?)
    }

    fn change(&mut self) -> Result<()> {
        self.session.dispatch(self.changes.next()?)?;
        Ok(())
    }
}

fn exporter(to: &Path) -> TreeExporter {
    TreeExporter::new(to, StateCompression::default())
}

type Export = fn(&mut ExportRounds<'_>) -> Result<Round>;

/// Exports as the verb does: from the log, which is opened for that.
fn from_log(exporting: &mut ExportRounds<'_>) -> Result<Round> {
    timed(1, || {
        let log = LogReader::open(exporting.session.dir())?;
        let position = exporting.session.log().position().unwrap_or_default();
        export_session(
            &log,
            position,
            &WorkspaceStores::none(),
            &exporting.to(),
            &StateCompression::default(),
        )?;
        Ok(())
    })
}

/// Exports from the log with an exporter that remembers its files.
fn from_log_again(exporting: &mut ExportRounds<'_>) -> Result<Round> {
    timed(1, || {
        let log = LogReader::open(exporting.session.dir())?;
        let position = exporting.session.log().position().unwrap_or_default();
        exporting.exporter.export_session(&log, position, &WorkspaceStores::none())?;
        Ok(())
    })
}

/// Reads the input of an export.
fn read(exporting: &ExportRounds<'_>) -> Result<(SequenceNumber, SessionState, Vec<StateUpdate>)> {
    let (log, stores) = (LogReader::open(exporting.session.dir())?, WorkspaceStores::none());
    let position = exporting.session.log().position().unwrap_or_default();
    let state = SessionState::at(&log, position, &stores)?;
    Ok((position, state, StateUpdate::list(&log, position, &stores)?))
}

/// Exports a state that was read before.
fn from_state(exporting: &mut ExportRounds<'_>) -> Result<Round> {
    let (position, state, updates) = read(exporting)?;
    let contents = TreeContents::new(&state).at(position, &updates);
    timed(1, || Ok(export_tree(&contents, &exporting.to(), &StateCompression::default()).map(drop)?))
}

/// Exports such a state with an exporter that remembers its files.
fn from_state_again(exporting: &mut ExportRounds<'_>) -> Result<Round> {
    let (position, state, updates) = read(exporting)?;
    let contents = TreeContents::new(&state).at(position, &updates);
    timed(1, || Ok(exporting.exporter.export(&contents).map(drop)?))
}

/// Measures the reading part of an export.
fn readings(session: &Session, param: &str) -> Result<Vec<BenchRow>> {
    let (log, stores) = (LogReader::open(session.dir())?, WorkspaceStores::none());
    let position = session.log().position().unwrap_or_default();
    let [opened, state, updates] = take_turns(
        EXPORT_ROUNDS,
        [
            &mut || timed(1, || Ok(LogReader::open(session.dir()).map(drop)?)),
            &mut || timed(1, || Ok(SessionState::at(&log, position, &stores).map(drop)?)),
            &mut || timed(1, || Ok(StateUpdate::list(&log, position, &stores).map(drop)?)),
        ],
    )?;
    let row = |subject, measured| BenchRow::alone("persistence", subject, param, measured);
    Ok(vec![row("opening a log", opened), row("its state", state), row("its updates", updates)])
}

fn exports(dir: &Path) -> Result<Vec<BenchRow>> {
    let session = exported(&dir.join("store"))?;
    let param = format!("{EXPORTED} tasks, {EXPORTED} messages");
    let mut rows = readings(&session, &param)?;
    let mut changes = TaskStatusCycle::of(EXPORTED);
    for (name, export) in [
        ("from a log", from_log as Export),
        ("from a log by an exporter", from_log_again),
        ("of a state", from_state),
        ("of a state by an exporter", from_state_again),
    ] {
        let dir = dir.join(name.replace(' ', "-"));
        let exporting =
            ExportRounds { session: &session, dir: &dir, changes, round: 0, exporter: exporter(&dir) };
        let exporting = std::cell::RefCell::new(exporting);
        let [first, second] = take_turns(
            EXPORT_ROUNDS,
            [
                &mut || {
                    exporting.borrow_mut().begin()?;
                    export(&mut exporting.borrow_mut())
                },
                &mut || {
                    exporting.borrow_mut().change()?;
                    export(&mut exporting.borrow_mut())
                },
            ],
        )?;
        changes = exporting.into_inner().changes;
        rows.push(
            BenchRow::alone("persistence", &format!("export {name}"), &param, first).at_most(AtMost::Ns(1e9)),
        );
        rows.push(
            BenchRow::beside(
                "persistence",
                &format!("export {name} after one change, beside the first"),
                &param,
                second,
                first,
            )
            .at_most(AtMost::Ratio(0.05)),
        );
    }
    Ok(rows)
}
