//! The works. Each runs its contestants in turn, round by round, and prints a row for each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Args;
use crate::child::{ChildTask, Outcome, Workload};
use crate::contestants::{Contestant, Survives};
use crate::measure::{PeerRow, Result, median, print, shown};
use crate::steady::QUANTILES;
use crate::tau_bench::TauBenchForm;

/// Contestants whose records survive a kill, and logdb, which loses its ring.
const SURVIVORS: [Contestant; 11] = [
    Contestant::FoldlogLog,
    Contestant::Foldlog,
    Contestant::FoldlogState,
    Contestant::RaftEngine,
    Contestant::WalrusFd,
    Contestant::WalrusMmap,
    Contestant::CommitLog,
    Contestant::Sqlite,
    Contestant::Fjall,
    Contestant::Redb,
    Contestant::LogDb,
];

/// Contestants that make each record durable.
const DURABLE: [Contestant; 9] = [
    Contestant::FoldlogLog,
    Contestant::Foldlog,
    Contestant::RaftEngine,
    Contestant::OkayWal,
    Contestant::OpenWal,
    Contestant::Sqlite,
    Contestant::Fjall,
    Contestant::Redb,
    Contestant::LogDb,
];

/// Time after which a process that appends is killed.
const UNTIL_KILLED: Duration = Duration::from_millis(1_500);

const RECORD: usize = 256;

/// Runs tasks in a directory.
pub struct Works<'a> {
    pub arguments: &'a Args,
    pub dir: PathBuf,
}

impl Works<'_> {
    fn task(&self, work: Workload, contestant: Contestant) -> ChildTask {
        ChildTask {
            work,
            contestant,
            dir: self.dir.join("log"),
            size: RECORD,
            ops: 0,
            writers: 1,
            survives: Survives::Kill,
            seconds: f64::MAX,
            file: self.arguments.file.clone(),
            form: TauBenchForm::Sessions,
        }
    }

    fn chosen(&self, contestants: &[Contestant]) -> Vec<Contestant> {
        let only = &self.arguments.only;
        contestants.iter().copied().filter(|one| only.is_empty() || only.contains(one)).collect()
    }

    /// Runs each task once a round, in a directory that is empty before and after, with no
    /// unwritten data.
    fn rounds(&self, tasks: &[ChildTask]) -> Result<Vec<Vec<Outcome>>> {
        let mut outcomes = vec![Vec::new(); tasks.len()];
        for _ in 0..self.arguments.rounds {
            for (task, outcomes) in tasks.iter().zip(&mut outcomes) {
                fresh(&task.dir)?;
                // A contestant that fails has no row; the others do.
                match task.run() {
                    Ok(outcome) => outcomes.push(outcome),
                    Err(error) => eprintln!("{error}"),
                }
                fresh(&task.dir)?;
                settled(&self.dir)?;
            }
        }
        Ok(outcomes)
    }

    fn print(
        &self,
        work: &str,
        tasks: &[ChildTask],
        outcomes: &[Vec<Outcome>],
        ours: Contestant,
    ) -> Result<()> {
        let mut rows = Vec::new();
        for (task, outcomes) in tasks.iter().zip(outcomes) {
            let times: Vec<f64> = outcomes.iter().map(Outcome::ns_per_op).collect();
            let waited: Vec<f64> = outcomes.iter().map(|outcome| outcome.waited).collect();
            let mut row = PeerRow::of(work, task.contestant.name(), "ns a record", &times);
            if task.writers == 1 {
                row = row.waited(&times, &waited);
            }
            let least = outcomes.iter().map(|outcome| outcome.ops).min().unwrap_or_default();
            if least < task.ops / task.writers as u64 * task.writers as u64 {
                let mib = (least * task.size as u64) >> 20;
                row.note(&format!("cut short after {} s, {mib} MiB", self.arguments.seconds));
            }
            rows.push(row);
        }
        print(rows, ours.name(), self.arguments.json)
    }

    /// Measures appends that survive a kill.
    pub fn append(&self) -> Result<()> {
        for size in [64, 256, 4_096] {
            let ops = (self.arguments.mib << 20) / size as u64;
            let task = |contestant| ChildTask {
                size,
                ops,
                seconds: self.arguments.seconds,
                ..self.task(Workload::Append, contestant)
            };
            let tasks: Vec<ChildTask> = self.chosen(&SURVIVORS).into_iter().map(task).collect();
            let work = format!("append {} B, {} MiB", shown(size as f64), self.arguments.mib);
            self.print(&work, &tasks, &self.rounds(&tasks)?, Contestant::FoldlogLog)?;
        }
        Ok(())
    }

    /// Measures durable appends of one writer, and of several at once.
    pub fn durable(&self, writers: usize) -> Result<()> {
        // Each of several writers writes a quarter of one writer's records.
        let ops =
            if writers == 1 { self.arguments.durable } else { self.arguments.durable / 4 * writers as u64 };
        let task = |contestant| ChildTask {
            ops,
            writers,
            survives: Survives::PowerCut,
            ..self.task(Workload::Append, contestant)
        };
        let tasks: Vec<ChildTask> = self.chosen(&DURABLE).into_iter().map(task).collect();
        let work = match writers {
            1 => "durable append, one writer".to_owned(),
            writers => format!("durable, {writers} sessions"),
        };
        self.print(&work, &tasks, &self.rounds(&tasks)?, Contestant::Foldlog)
    }

    /// Has each contestant fill a directory of its own, and returns the tasks for these
    /// directories.
    fn filled(
        &self,
        contestants: &[Contestant],
        first: Workload,
        then: Workload,
        fill: impl Fn(&ChildTask) -> Result<()>,
    ) -> Result<Vec<ChildTask>> {
        let mut tasks = Vec::new();
        for contestant in self.chosen(contestants) {
            let mut task = self.task(first, contestant);
            task.dir = self.dir.join(format!("{contestant:?}"));
            (task.ops, task.survives) = (self.arguments.records, Survives::KillOnceSettled);
            fresh(&task.dir)?;
            fill(&task)?;
            tasks.push(ChildTask { work: then, ..task });
        }
        Ok(tasks)
    }

    /// Measures reading all records of a closed log, each checked.
    pub fn scan(&self) -> Result<()> {
        let contestants =
            [Contestant::Foldlog, Contestant::LogDb, Contestant::RaftEngine, Contestant::Sqlite];
        let tasks = self.filled(&contestants, Workload::Fill, Workload::Scan, |task| task.run().map(drop))?;
        let outcomes = self.in_place(&tasks, |_| Ok(()))?;
        self.print(&format!("scan, {}", self.of_records()), &tasks, &outcomes, Contestant::Foldlog)?;
        tasks.iter().try_for_each(|task| remove(&task.dir))
    }

    /// Measures opening a log whose writer was killed, until all values are in memory.
    pub fn reopen(&self) -> Result<()> {
        let ours = Contestant::FoldlogState;
        let contestants = [ours, Contestant::RaftEngine, Contestant::Sqlite, Contestant::Redb];
        let tasks = self.filled(&contestants, Workload::FillAndWait, Workload::Reopen, |task| {
            task.run_until_it_waits()?;
            Ok(fs::rename(&task.dir, left_by_kill(&task.dir))?)
        })?;
        // Opening may write, so each round has a copy of the killed log, which is in memory.
        let outcomes = self.in_place(&tasks, |task| copy(&left_by_kill(&task.dir), &task.dir))?;
        self.print(&format!("reopen, {}", self.of_records()), &tasks, &outcomes, ours)?;
        let memory = |(task, outcomes): (&ChildTask, &Vec<Outcome>)| {
            let mib: Vec<f64> =
                outcomes.iter().map(|outcome| outcome.number("resident KiB") / 1024.0).collect();
            PeerRow::of("reopen, memory", task.contestant.name(), "MiB", &mib)
        };
        print(tasks.iter().zip(&outcomes).map(memory).collect(), ours.name(), self.arguments.json)?;
        for task in &tasks {
            remove(&task.dir)?;
            remove(&left_by_kill(&task.dir))?;
        }
        Ok(())
    }

    fn of_records(&self) -> String {
        format!("{} records of {RECORD} B", shown(self.arguments.records as f64))
    }

    /// Runs each task once a round over its existing directory.
    fn in_place(
        &self,
        tasks: &[ChildTask],
        prepare: impl Fn(&ChildTask) -> Result<()>,
    ) -> Result<Vec<Vec<Outcome>>> {
        let mut outcomes = vec![Vec::new(); tasks.len()];
        for _ in 0..self.arguments.rounds {
            for (task, outcomes) in tasks.iter().zip(&mut outcomes) {
                prepare(task)?;
                settled(&self.dir)?;
                outcomes.push(task.run()?);
            }
        }
        Ok(outcomes)
    }

    /// Measures every single append of a long run.
    pub fn steady(&self) -> Result<()> {
        let ops = (self.arguments.steady_mib << 20) / RECORD as u64;
        let task = |contestant| ChildTask { ops, ..self.task(Workload::Steady, contestant) };
        let contestants = self.chosen(&[Contestant::Foldlog, Contestant::RaftEngine]);
        let tasks: Vec<ChildTask> = contestants.into_iter().map(task).collect();
        let outcomes = self.rounds(&tasks)?;
        let work = format!("steady, {} MiB of {RECORD} B", self.arguments.steady_mib);
        let others = [
            ("rollovers", "files"),
            ("rollover median", "ns"),
            ("rollover slowest", "ns"),
            ("piece slowest", "records a second"),
            ("piece median", "records a second"),
            ("piece fastest", "records a second"),
        ];
        let units = QUANTILES.iter().map(|(name, _)| (*name, "ns")).chain(others);
        for (name, unit) in units {
            let row = |(task, outcomes): (&ChildTask, &Vec<Outcome>)| {
                let numbers: Vec<f64> = outcomes.iter().map(|outcome| outcome.number(name)).collect();
                PeerRow::of(&format!("{work}: {name}"), task.contestant.name(), unit, &numbers)
            };
            let rows = tasks.iter().zip(&outcomes).map(row).collect();
            print(rows, Contestant::Foldlog.name(), self.arguments.json)?;
        }
        Ok(())
    }

    /// Measures recorded runs of an agent.
    pub fn tau_bench(&self) -> Result<()> {
        if !self.arguments.file.is_file() {
            eprintln!("tau-bench: skipped, there is no file {}", self.arguments.file.display());
            return Ok(());
        }
        let tasks = TauBenchForm::ALL
            .map(|form| ChildTask { form, ..self.task(Workload::TauBench, Contestant::Foldlog) });
        let outcomes = self.rounds(&tasks)?;
        let numbers: [(&str, fn(&Outcome) -> f64); 4] = [
            ("ns a message", Outcome::ns_per_op),
            ("KiB of files", |outcome| outcome.number("bytes long") / 1024.0),
            ("KiB on disk", |outcome| outcome.number("bytes on disk") / 1024.0),
            ("KiB used within", |outcome| outcome.number("bytes used") / 1024.0),
        ];
        for (unit, number) in numbers {
            let row = |(task, outcomes): (&ChildTask, &Vec<Outcome>)| {
                let numbers: Vec<f64> = outcomes.iter().map(number).collect();
                let messages = outcomes.first().map_or(0, |outcome| outcome.ops);
                let work = format!("tau-bench, {} messages", shown(messages as f64));
                let row = PeerRow::of(&work, task.form.name(), unit, &numbers);
                let waited: Vec<f64> = outcomes.iter().map(|outcome| outcome.waited).collect();
                if unit.starts_with("ns") { row.waited(&numbers, &waited) } else { row }
            };
            let rows = tasks.iter().zip(&outcomes).map(row).collect();
            print(rows, TauBenchForm::Sessions.name(), self.arguments.json)?;
        }
        Ok(())
    }

    /// Shows the surviving records of each contestant after a kill.
    pub fn kill(&self) -> Result<()> {
        let after_kill = SURVIVORS.into_iter().chain([Contestant::RedbUnsynced]);
        let asked = after_kill
            .map(|contestant| (contestant, Survives::Kill))
            .chain(DURABLE.map(|contestant| (contestant, Survives::PowerCut)));
        for (contestant, survives) in asked {
            let is_asked = self.arguments.only.is_empty() || self.arguments.only.contains(&contestant);
            if !is_asked || contestant == Contestant::FoldlogLog {
                continue;
            }
            let task = ChildTask { survives, ..self.task(Workload::AppendUntilKilled, contestant) };
            let mut lost = Vec::new();
            let mut note = String::new();
            for _ in 0..self.arguments.rounds {
                fresh(&task.dir)?;
                let returned = task.run_and_kill(UNTIL_KILLED)?;
                match (ChildTask { work: Workload::Count, ..task.clone() }).run() {
                    Ok(found) => lost.push(returned.saturating_sub(found.ops) as f64),
                    Err(error) => note = error.to_string(),
                }
                if returned == 0 {
                    note = "no append returned".to_owned();
                }
            }
            remove(&task.dir)?;
            let work = if survives == Survives::Kill { "killed" } else { "killed, durable appends" };
            let mut row = PeerRow::of(work, contestant.name(), "records lost", &lost);
            if median(&lost) > 0.0 {
                row.note("does not survive a kill");
            }
            row.note(&note);
            print(vec![row], Contestant::Foldlog.name(), self.arguments.json)?;
        }
        Ok(())
    }
}

fn left_by_kill(dir: &Path) -> PathBuf {
    dir.with_extension("left")
}

fn remove(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    Ok(())
}

fn fresh(dir: &Path) -> Result<()> {
    remove(dir)?;
    Ok(fs::create_dir_all(dir)?)
}

fn ran(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}

/// Waits until the file system has written all earlier data.
fn settled(dir: &Path) -> Result<()> {
    ran(Command::new("sync").arg("-f").arg(dir))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    remove(to)?;
    ran(Command::new("cp").args(["-r", "--reflink=never"]).arg(from).arg(to))
}
