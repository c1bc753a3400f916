//! `foldlog task validate`: checks the state of a session, and with `--repair` dispatches the
//! events that repair it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::inspect::{LogReader, ReadOptions};
use foldlog::storage::FileStorage;
use foldlog::{Error, Event, SequenceNumber, Session, SessionTypes};
use foldlog_codec::escape;
use foldlog_tasks::{
    RecoveryAction, RepairObstacle, RepairPlan, RepairReport, SessionState, StateValidator, ValidationIssue,
    ValidationResult, ValidationSeverity, WorkspaceStores, declare, open_without_host,
};
use foldlog_view::document;
use foldlog_view::positions::{Position, position};
use foldlog_view::text::count_text;

use crate::command::{Access, Argument, Command, Group};
use crate::failure::{CommandError, DOES_NOT_HOLD, HOLDS, Result};
use crate::output::Output;
use crate::readers::{WriteArgs, in_store, open_session};

/// Describes the fields of `task validate --json`.
const VALIDATE_JSON: &str = "\
The exit code is 1 if a critical issue remains. With --json one object:
  position     position whose state was checked; is_valid: whether it has no critical issue
  issues       rule (name, component, rule_type, severity), error (its kind and facts),
               suggested_repair (steps)
  repair_plan  steps (rule, step and the event's fields) in order; unrepairable (issue, why)
  repair       with --repair: done (rule, step, record), refused, result (is_valid, issues,
               repair_plan) after the repair";

/// Check the state of long-running work, and repair it.
///
/// Lists each issue with its severity, its rule, its facts and the event that would repair
/// it. --repair dispatches these events, each recorded with its author, and checks again.
/// It removes no task. Reducers of the host do not see these events.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = VALIDATE_JSON)]
pub struct Args {
    /// Directory of the session
    pub session: PathBuf,
    /// Position whose state is checked [default: the last one]
    #[arg(long, value_name = "POSITION", conflicts_with = "repair")]
    pub at: Option<Position>,
    /// Dispatch events that repair the issues
    #[arg(long, requires = "by")]
    pub repair: bool,
    /// Name of the person who repairs the session
    #[arg(long, value_name = "WHO", value_parser = crate::value_parsers::parse_nonblank, requires = "repair")]
    pub by: Option<String>,
    /// Reason for the repair
    #[arg(long, value_name = "WHY", value_parser = crate::value_parsers::parse_nonblank, requires = "repair", default_value = "it did not hold")]
    pub reason: String,
    /// Whether a replicated session is written.
    #[command(flatten)]
    pub writing: WriteArgs,
}

impl Command for Args {
    const GROUP: Group = Group::Tasks;
    const ACCESS: Access = Access::ChangesWith("--repair");
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog task validate SESSION";

    /// Prints the issues at a position, and repairs them if `--by` names an author.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if there is no such position. For a repair,
    ///   also if the session is in no store, or if its host's own slices receive events of the
    ///   repair.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if the session is corrupt or cannot be
    ///   read. For a repair, also if another process has it open for writing, or if it was
    ///   interrupted and not recovered.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let reader = open_session(&self.session, output)?;
        let position = position(&reader, self.at.clone())?;
        let validator = StateValidator::new();
        let stores = WorkspaceStores::from_session_dir(&self.session);
        let result = validator.validate_log(&reader, position, &stores)?;
        drop(reader);
        if !output.json() {
            print(position, &result, output)?;
        }
        let by = self.by.as_deref();
        let report = by.map(|by| repair(&self, by, &validator, &result, output)).transpose()?;
        if output.json() {
            let repair = report.as_ref().map(|repair| document! { repair });
            output.value(
                &document! { position, #[serde(flatten)] result: &result, #[serde(flatten)] repair },
            )?;
        }
        let is_valid = report.map_or(result.is_valid, |report| report.result.is_valid);
        Ok(if is_valid { HOLDS } else { DOES_NOT_HOLD })
    }
}

fn print(position: SequenceNumber, result: &ValidationResult, output: &mut Output<'_>) -> Result<()> {
    let verdict = if result.is_valid { "valid" } else { "not valid" };
    output.line(format_args!("position {position}: {verdict}{}", counts(&result.issues)))?;
    for issue in &result.issues {
        let left = result.repair_plan.unrepairable.iter().find(|left| left.issue.error == issue.error);
        let repair = match (&issue.suggested_repair, left) {
            (_, Some(left)) => format!("no repair: {}", left.why.text()),
            (Some(repair), None) => format!("repair: {repair}"),
            (None, None) => "repaired with others".to_owned(),
        };
        output.line(format_args!("{issue}  ({repair})"))?;
    }
    Ok(())
}

/// Returns the number of issues of each severity.
fn counts(issues: &[ValidationIssue]) -> String {
    let mut text = String::new();
    for severity in ValidationSeverity::ALL.into_iter().rev() {
        let count = issues.iter().filter(|issue| issue.rule.severity == severity).count();
        if count > 0 {
            let between = if text.is_empty() { ": " } else { ", " };
            text += &match severity {
                ValidationSeverity::Critical => format!("{between}{count} critical"),
                other => format!("{between}{}", count_text(count as u64, &other.to_string())),
            };
        }
    }
    text
}

fn repair(
    asked: &Args,
    by: &str,
    validator: &StateValidator,
    result: &ValidationResult,
    output: &mut Output<'_>,
) -> Result<RepairReport> {
    let (directory, plan) = (asked.session.as_path(), &result.repair_plan);
    let stores = WorkspaceStores::from_session_dir(directory);
    let options = ReadOptions { memory_bytes: output.memory_bytes, ..ReadOptions::default() };
    let read = move || {
        let log = LogReader::open_with(Arc::new(FileStorage::new()), directory, options)?;
        SessionState::at(&log, log.last_position(), &stores)
    };
    let report = if plan.steps.is_empty() {
        RepairReport { done: Vec::new(), refused: None, result: result.clone() }
    } else {
        let opened = open_for(plan, directory, asked.writing, output);
        if matches!(opened, Err(CommandError::View(foldlog_view::Error::Engine(Error::Locked { .. })))) {
            output.note(format_args!(
                "note: only the process that has the session open can repair it, by `StateValidator::apply`"
            ));
        }
        let session = opened?;
        let report = validator.apply(&session, plan, by, &asked.reason, read)?;
        session.close()?;
        report
    };
    if output.json() {
        return Ok(report);
    }
    for done in &report.done {
        let record = done.record.map(|record| format!("  (record {record})")).unwrap_or_default();
        output.line(format_args!("repaired {}: {}{record}", done.step.rule, done.step.step))?;
    }
    if let Some((step, reason)) = &report.refused {
        let reason = escape::text(reason);
        output.line(format_args!("refused {}: {}: {reason}", step.rule, step.step))?;
    }
    if report.done.is_empty() && report.refused.is_none() {
        let nothing = if result.issues.is_empty() { "" } else { " by an event" };
        output.line(format_args!("nothing to repair{nothing}"))?;
    } else {
        let verdict = if report.result.is_valid { "valid" } else { "not valid" };
        output.line(format_args!("now {verdict}{}", counts(&report.result.issues)))?;
        for issue in &report.result.issues {
            output.line(format_args!("{issue}  (no repair: {})", obstacle_text(issue, &report.result)))?;
        }
    }
    Ok(report)
}

/// Opens a session for a repair, without its host.
///
/// # Errors
///
/// [`Error::Usage`](foldlog_view::Error::Usage) if an event of the repair goes into a slice of the
/// host's own, which would miss the repair. Then nothing is written. Otherwise those of
/// [`open_without_host`].
fn open_for(plan: &RepairPlan, directory: &Path, writing: WriteArgs, output: &Output<'_>) -> Result<Session> {
    let (root, id) = in_store(directory)?;
    let store = writing.open(&root, output)?;
    let missing = match store.open_session(id, &declare(SessionTypes::builder()).build()?) {
        Err(Error::NotRegistered(missing)) => missing,
        opened => return Ok(opened?),
    };
    let steps = plan.steps.iter().filter_map(|planned| planned.step.event_name());
    let dispatched: BTreeSet<&str> = steps.chain([RecoveryAction::NAME]).collect();
    match missing.iter().find(|one| dispatched.contains(one.event.as_str())) {
        None => Ok(open_without_host(&store, id)?.0),
        Some(taken) => {
            let slices: Vec<String> =
                taken.slices.iter().map(|slice| format!("`{}`", escape::text(slice))).collect();
            let (event, slices) = (escape::text(&taken.event), slices.join(", "));
            let what = format!(
                "the session's host also applies `{event}` to {slices}, which a repair without the host cannot do"
            );
            Err(CommandError::usage(
                what,
                "nothing was changed; let the host repair the session, by `StateValidator::apply`",
            ))
        }
    }
}

fn obstacle_text(issue: &ValidationIssue, result: &ValidationResult) -> &'static str {
    let left = result.repair_plan.unrepairable.iter().find(|left| left.issue.error == issue.error);
    left.map_or(RepairObstacle::StillThere, |left| left.why).text()
}
