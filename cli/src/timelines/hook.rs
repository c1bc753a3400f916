//! One event of an agent: recording it, and the reply.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use foldlog_timeline::{CallEnd, Lane, NewCall, Step, Timeline, TimelinePlace};
use foldlog_view::clock::now;

use super::{UserDirs, runs_child_since, text};
use crate::agents::PromptCommand;
use crate::failure::Result;

/// Greatest size of a timeline's captures on the disk, in bytes.
const CAPTURES_BYTES_MAX: u64 = 5_000_000_000;

/// An event, in the form that all programs have in common.
pub(crate) struct HookInput {
    pub(crate) lane: Lane,
    /// Current directory of the agent.
    pub(crate) directory: PathBuf,
    /// The program's name of the event.
    pub(crate) name: String,
    pub(crate) event: HookEvent,
}

pub(crate) enum HookEvent {
    /// A session was started or resumed; `is_new` if no call of it can be running.
    SessionStarted { is_new: bool },
    /// The user has sent a prompt; without a text, the program has.
    Prompted { text: Option<String> },
    /// A tool that may change files is about to run.
    CallBegins(NewCall),
    /// The user is asked whether the call may run.
    PermissionAsked,
    /// The model gets the results of calls. Calls of this lane that have not ended by now failed, or
    /// their commands run on.
    CallsReturned,
    /// A tool has ended.
    CallEnds(NewCall, CallEnd),
    /// The main agent waits for the user. Sub-agents may continue.
    TurnEnded,
    /// The session ended.
    SessionEnded,
    /// An event without a record.
    Other,
}

/// Reply to the program.
#[derive(Default)]
pub(crate) struct HookReply {
    /// Lines for the user.
    pub(crate) messages: Vec<String>,
    /// Text for the model.
    pub(crate) context: Option<String>,
    /// The prompt was a command, and this is its result; the model does not see the prompt.
    pub(crate) answered_prompt: Option<String>,
    /// The tool must not run, for this reason.
    pub(crate) refused: Option<String>,
}

/// Records an event. With `is_strict`, a call that cannot be captured is refused.
pub(crate) fn record(
    input: HookInput,
    root: PathBuf,
    is_strict: bool,
    prompt_command: Option<PromptCommand<'_>>,
) -> Result<HookReply> {
    // The time of the program's report. The record may have to wait for another hook.
    let arrived_at = now();
    let dirs = UserDirs::from_variables();
    let place = TimelinePlace::of_root(&dirs.timelines()?, &root)?;
    let mut reply = HookReply::default();
    let has_no_record = match input.event {
        HookEvent::Other => true,
        // It precedes each request to the model, so it must be fast.
        HookEvent::CallsReturned => !place.exists(),
        _ => false,
    };
    if has_no_record {
        return Ok(reply);
    }
    if let Some(reason) = dirs.needs_consent(&place) {
        if matches!(input.event, HookEvent::SessionStarted { .. }) {
            let root = foldlog_codec::escape::path(&place.root);
            reply.messages.push(format!(
                "foldlog does not record {root}: {reason}. `foldlog hook allow {root}` allows it."
            ));
        }
        reply.answered_prompt =
            prompt_command.map(|_| format!("foldlog does not record this directory: {reason}."));
        if is_strict && matches!(input.event, HookEvent::CallBegins(_)) {
            reply.refused = Some(format!("foldlog does not record this directory: {reason}"));
        }
        return Ok(reply);
    }
    let HookInput { lane, event, .. } = input;
    let open = || Timeline::open(&place, &dirs.options());
    match event {
        HookEvent::SessionStarted { is_new } => {
            if place.exists() {
                let mut timeline = open()?;
                interrupt(&mut timeline, &lane, !is_new, &mut reply)?;
                report_undos(&mut timeline, &lane, &mut reply)?;
            }
            // The test of hooks starts them in an empty directory.
            if std::fs::read_dir(&place.root).is_ok_and(|mut entries| entries.next().is_some()) {
                start_preparation(&place);
            }
        }
        HookEvent::CallBegins(mut call) => {
            call.title = relative_title(call.title, &place);
            begin_call(&mut open()?, call, is_strict, &mut reply)?;
        }
        HookEvent::CallEnds(mut call, end) => {
            call.title = relative_title(call.title, &place);
            let mut timeline = open()?;
            timeline.end_call(call, end, arrived_at)?;
            report_undos(&mut timeline, &lane, &mut reply)?;
        }
        // All other events are about earlier calls.
        _ if !place.exists() => {
            reply.answered_prompt =
                prompt_command.map(|_| "foldlog has recorded no call in this directory yet.".to_owned());
        }
        HookEvent::Prompted { text } => {
            let mut timeline = open()?;
            if text.is_some() {
                interrupt(&mut timeline, &lane, true, &mut reply)?;
            }
            match prompt_command {
                Some(command) => reply.answered_prompt = Some(text::answer(&mut timeline, &command)?),
                None => report_undos(&mut timeline, &lane, &mut reply)?,
            }
        }
        HookEvent::CallsReturned => {
            if has_open_call(&place, &dirs)? {
                let runs = |step: &Step| {
                    let process = step.call().and_then(|call| call.process).filter(|_| step.paths.is_none());
                    process.is_some_and(|process| runs_child_since(process, step.opened_at))
                };
                open()?.fail_calls(&lane, runs, arrived_at)?;
            }
        }
        HookEvent::PermissionAsked => open()?.ask_for(&lane)?,
        HookEvent::TurnEnded => interrupt(&mut open()?, &lane, true, &mut reply)?,
        HookEvent::SessionEnded => interrupt(&mut open()?, &lane, false, &mut reply)?,
        HookEvent::Other => {}
    }
    Ok(reply)
}

/// Returns whether a call is open. Reading is faster than opening for writing.
fn has_open_call(place: &TimelinePlace, dirs: &UserDirs) -> Result<bool> {
    let timeline = Timeline::open_read_only(place, &dirs.options())?;
    Ok(timeline.steps()?.iter().any(|step| step.is_open() && step.call().is_some()))
}

/// Records the beginning of a call, and reports one that cannot be undone.
fn begin_call(timeline: &mut Timeline, call: NewCall, is_strict: bool, reply: &mut HookReply) -> Result<()> {
    let title = text::call_title(&call.tool, &call.title);
    let number = timeline.begin_call(call, now())?;
    let steps = timeline.steps()?;
    let step = steps.iter().find(|step| step.number == number);
    if let Some(reason) = step.and_then(|step| step.not_captured.as_ref()) {
        reply.messages.push(format!("foldlog: call {number} ({title}) is not undoable: {reason}"));
        reply.refused = is_strict.then(|| format!("foldlog could not capture the files: {reason}"));
    }
    Ok(())
}

/// Shortens the title of a call that names a file in the root.
fn relative_title(title: String, place: &TimelinePlace) -> String {
    let relative = Path::new(&title).strip_prefix(&place.root);
    relative.ok().and_then(|path| path.to_str()).map_or(title.clone(), str::to_owned)
}

/// Closes calls without a reported end, and names the command that undoes them.
fn interrupt(timeline: &mut Timeline, lane: &Lane, only_main: bool, reply: &mut HookReply) -> Result<()> {
    for number in timeline.interrupt_calls(&lane.program, &lane.session, only_main, now())? {
        // A call that was refused has no end either.
        if timeline.changes(number)?.is_empty() {
            continue;
        }
        reply.messages.push(format!(
            "foldlog: call {number} was interrupted, and its changes stay; `foldlog undo {number}` undoes them."
        ));
    }
    Ok(())
}

/// Adds the undone calls to the text for the model.
fn report_undos(timeline: &mut Timeline, lane: &Lane, reply: &mut HookReply) -> Result<()> {
    let undos = timeline.take_unreported_undos(lane)?;
    if !undos.is_empty() {
        reply.context = Some(text::undos_for_model(&undos, timeline)?);
    }
    Ok(())
}

/// Starts a process that [prepares](prepare) the root, which may take a while.
fn start_preparation(place: &TimelinePlace) {
    let Ok(program) = std::env::current_exe() else { return };
    let mut command = Command::new(program);
    command.args(["hook", "prepare"]).arg(&place.root).stdin(Stdio::null()).stdout(Stdio::null());
    // The first call captures, too, if this process cannot be started.
    let _ = std::os::unix::process::CommandExt::process_group(&mut command, 0).stderr(Stdio::null()).spawn();
}

/// Captures a root for the first time, and removes the earliest captures if all take more than 5 GB
/// or a tenth of the free space.
pub(crate) fn prepare(root: &Path) -> Result<()> {
    let dirs = UserDirs::from_variables();
    let place = TimelinePlace::of_root(&dirs.timelines()?, root)?;
    if dirs.needs_consent(&place).is_some() {
        return Ok(());
    }
    let mut options = dirs.options();
    // This process runs in the background. Calls during its capture are not captured.
    options.capture = Duration::from_secs(600);
    let is_new = !place.exists();
    let mut timeline = Timeline::open(&place, &options)?;
    if is_new {
        timeline.capture()?;
    }
    let bytes_max = CAPTURES_BYTES_MAX.min(timeline.free_bytes() / 10);
    timeline.collect(bytes_max)?;
    Ok(())
}
