//! `foldlog task list`: the tasks of a session at a position, as a tree.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

use foldlog_codec::escape;
use foldlog_tasks::{BlockedTask, Task, TaskId, TaskStatus, TaskTreeState, Waits};
use foldlog_view::documents::tasks::waits_text;
use foldlog_view::positions::{Position, position};
use foldlog_view::text::count_text;

use crate::command::{Argument, Command, Group, Urls};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::readers::open_session;

/// Describes the marks of the states, and the fields of `task list --json`.
const TASKS_JSON: &str = "\
[ ] pending, [#] blocked, [>] in progress, [x] completed, [!] failed, [-] skipped, [/] cancelled

With --json one object:
  tasks             by id: id, number, parent, title, description, status, reason, status_at,
                    priority, dependencies (on, kind), attempts, failures, created_at, updated_at,
                    fields
  root_tasks        ids of the tasks without a parent
  children          ids of the subtasks, of each task that has any
  active_task       id of the task that was started last and is in progress
  task_counter      number of tasks that were created
  dependency_graph  dependencies, of each task that has any
  scheduling_state  ready, blocked (task, waits), in_progress, failed";

/// Print the tree of tasks.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = TASKS_JSON)]
pub struct Args {
    /// Directory of the session, or URL/sessions/ID in a bucket or database
    pub session: PathBuf,
    /// Position whose tasks are drawn [default: the last one]
    #[arg(long, value_name = "POSITION")]
    pub at: Option<Position>,
}

impl Command for Args {
    const GROUP: Group = Group::Tasks;
    const URLS: Urls = Urls::Copied;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog task list SESSION";

    /// Prints the tasks at position `at`, or at the last one.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if there is no such position, or the session
    ///   has no tasks there.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if the session is corrupt or cannot be
    ///   read.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let reader = open_session(&self.session, output)?;
        let at = position(&reader, self.at)?;
        let tree = TaskTreeState::at(&reader, at)?;
        if output.json() {
            output.value(&tree)?;
            return Ok(HOLDS);
        }
        if tree.tasks.is_empty() {
            let next = "`foldlog state SESSION` shows its slices".to_owned();
            return Err(CommandError::usage(format!("the session has no tasks at position {at}"), next));
        }
        output.line(format_args!("position {at} of {}: {}", reader.last_position(), counts(&tree)))?;
        TaskTreePrinter::new(&tree).draw(output)?;
        let ready: Vec<&str> = tree.scheduling_state.ready.iter().map(TaskId::as_str).collect();
        let next = if ready.is_empty() { "nothing".to_owned() } else { ready.join(", ") };
        output.line(format_args!("next: {next}"))?;
        Ok(HOLDS)
    }
}

/// Indentation per level in bytes, up to the level [`LEVELS_MAX`].
const INDENT: usize = 2;
const LEVELS_MAX: usize = 40;

/// Returns the number of tasks in each state.
fn counts(tree: &TaskTreeState) -> String {
    let mut text = count_text(tree.tasks.len() as u64, "task");
    let mut between = ": ";
    for status in TaskStatus::ALL {
        let count = tree.count(status);
        if count > 0 {
            let _ = write!(text, "{between}{count} {}", status.to_string().replace('_', " "));
            between = ", ";
        }
    }
    text
}

fn mark(status: TaskStatus) -> char {
    match status {
        TaskStatus::Pending => ' ',
        TaskStatus::Blocked => '#',
        TaskStatus::InProgress => '>',
        TaskStatus::Completed => 'x',
        TaskStatus::Failed => '!',
        TaskStatus::Skipped => '-',
        TaskStatus::Cancelled => '/',
    }
}

struct TaskTreePrinter<'a> {
    tree: &'a TaskTreeState,
    children: BTreeMap<&'a TaskId, Vec<&'a Task>>,
    waits: BTreeMap<&'a TaskId, &'a Waits>,
}

impl<'a> TaskTreePrinter<'a> {
    fn new(tree: &'a TaskTreeState) -> TaskTreePrinter<'a> {
        let waits = tree.scheduling_state.blocked.iter().map(|BlockedTask { task, waits }| (task, waits));
        TaskTreePrinter { tree, children: tree.children(), waits: waits.collect() }
    }

    fn draw(&self, output: &mut Output<'_>) -> Result<()> {
        // The last one is popped first.
        let roots = self.tree.root_tasks.iter().rev().filter_map(|id| self.tree.tasks.get(id));
        let mut next: Vec<(usize, &Task)> = roots.map(|task| (0, task)).collect();
        let mut drawn = BTreeSet::new();
        while let Some((level, task)) = next.pop() {
            drawn.insert(&task.id);
            output.line(self.line(level, task))?;
            let parts = self.children.get(&task.id).into_iter().flatten().rev();
            next.extend(parts.map(|part| (level + 1, *part)));
        }
        let rest: Vec<&Task> = self.tree.tasks.values().filter(|task| !drawn.contains(&task.id)).collect();
        if !rest.is_empty() {
            output.line("below no root (`foldlog task validate` reports the reason):")?;
        }
        rest.into_iter().try_for_each(|task| output.line(self.line(1, task)))
    }

    fn line(&self, level: usize, task: &Task) -> String {
        let indent = " ".repeat(INDENT * level.min(LEVELS_MAX));
        let (mark, id, title) = (mark(task.status), &task.id, escape::text(&task.title));
        let mut facts = Vec::new();
        if let Some(waits) = self.waits.get(&task.id) {
            facts.push(waits_text(waits));
        } else if let Some(reason) = &task.reason {
            facts.push(escape::text(reason).into_owned());
        }
        if task.retries() > 0 || task.failures > 0 {
            facts.push(format!("started {} times, failed {}", task.attempts, task.failures));
        }
        if task.priority != 0 {
            facts.push(format!("priority {}", task.priority));
        }
        let facts = if facts.is_empty() { String::new() } else { format!("  ({})", facts.join("; ")) };
        let active = if self.tree.active_task.as_ref() == Some(id) { "  <- active" } else { "" };
        format!("{indent}[{mark}] {id}  {title}{facts}{active}")
    }
}
