//! One event of an agent: recording it, and the reply.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use foldlog_timeline::{Lane, NewCall, Step, Timeline, TimelineOptions, TimelinePlace};
use foldlog_view::clock::now;

use super::reach::Reach;
use super::{UserDirs, runs_child_since, text};
use crate::agents::{HookEvent, HookInput, HookReply, PromptCommand};
use crate::failure::{CommandError, Result};
use crate::runs::claude_code::import_new_lines;

/// Greatest size of a timeline's captures on the disk, in bytes.
const CAPTURES_BYTES_MAX: u64 = 5_000_000_000;

/// How long an import of a conversation may take. Other hooks wait for it.
const IMPORT_TIME: Duration = Duration::from_secs(2);

/// Records an event. With `is_strict`, a call that cannot be captured is refused.
pub(crate) fn record(
    mut input: HookInput,
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
            reply.messages.push(explain_refusal(&place, &reason));
        }
        reply.answered_prompt =
            prompt_command.map(|_| format!("foldlog does not record this directory: {reason}."));
        if is_strict && matches!(input.event, HookEvent::CallBegins(_)) {
            reply.refused = Some(format!("foldlog does not record this directory: {reason}"));
        }
        return Ok(reply);
    }
    let options = dirs.options();
    let mut reach = Reach::of(&dirs, &options, &place, &input)?;
    if let HookEvent::CallBegins(call) = &mut input.event {
        reach.complete(call, &place, input.directory.clone());
    }
    let recorder =
        Recorder { options: &options, input: &input, project: &root, arrived_at, is_strict, prompt_command };
    // Each timeline is locked by one thread, which waits for no other lock.
    std::thread::scope(|scope| {
        let record = |place: &TimelinePlace| {
            let recorded = recorder.record(place, None);
            recorded.map_err(|error| (place.root.clone(), failure_text(&error, &place.root, true)))
        };
        let further: Vec<_> = reach.further.iter().map(|place| scope.spawn(move || record(place))).collect();
        let own = recorder.record(&place, Some(&reach));
        let further: Vec<_> = further.into_iter().filter_map(|thread| thread.join().ok()).collect();
        let mut reply = own?;
        further.into_iter().for_each(|other| reply.merge(other, &input.event));
        Ok(reply)
    })
}

/// Returns an error of [`record`] with its consequence and its remedy.
pub(crate) fn failure_text(error: &CommandError, root: &Path, is_call: bool) -> String {
    let timelines = UserDirs::from_variables().timelines();
    let place = timelines.ok().and_then(|timelines| TimelinePlace::of_root(&timelines, root).ok());
    let remedy = place.and_then(|TimelinePlace { dir, .. }| {
        let directory = foldlog_codec::escape::path(&dir);
        let text = error.to_string();
        let is_in_state = dir.parent().is_some_and(|state| text.contains(&*state.to_string_lossy()));
        if matches!(error, CommandError::View(foldlog_view::Error::Engine(error)) if error.is_damage()) {
            Some(format!("to start anew, without the calls until now, move {directory} away"))
        } else if is_denied(error) && is_in_state {
            Some(format!("make {directory} writable for you, or set XDG_STATE_HOME to another directory"))
        } else {
            None
        }
    });
    let consequence = is_call.then(|| "this call cannot be undone".to_owned());
    [Some(error.to_string()), consequence, remedy].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn is_denied(error: &CommandError) -> bool {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    let mut kinds = causes.filter_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    kinds.any(|kind| [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem].contains(&kind))
}

/// Returns why a root is not recorded, and the command that allows it; `None` if it is recorded.
pub(crate) fn refusal(root: &Path) -> Option<String> {
    let dirs = UserDirs::from_variables();
    let place = TimelinePlace::of_root(&dirs.timelines().ok()?, root).ok()?;
    Some(explain_refusal(&place, &dirs.needs_consent(&place)?))
}

fn explain_refusal(place: &TimelinePlace, reason: &str) -> String {
    let root = foldlog_codec::escape::path(&place.root);
    format!("foldlog does not record {root}: {reason}. `foldlog hook allow {root}` allows it.")
}

impl HookReply {
    /// Adds the reply of a further root, or the error with which it could not be recorded.
    fn merge(&mut self, other: Result<HookReply, (PathBuf, String)>, event: &HookEvent) {
        match other {
            Ok(other) => {
                self.messages.extend(other.messages);
                self.refused = self.refused.take().or(other.refused);
                let contexts: Vec<String> = self.context.take().into_iter().chain(other.context).collect();
                self.context = (!contexts.is_empty()).then(|| contexts.join("\n"));
            }
            Err((root, error)) if matches!(event, HookEvent::CallBegins(_)) => self.messages.push(format!(
                "foldlog could not record the call in {}: {error}",
                foldlog_codec::escape::path(&root)
            )),
            // The call was not recorded there either.
            Err(_) => {}
        }
    }
}

/// An event, to be recorded in the timelines of one or several roots.
struct Recorder<'a> {
    options: &'a TimelineOptions,
    input: &'a HookInput,
    /// Project directory, as the program names it.
    project: &'a Path,
    arrived_at: DateTime<Utc>,
    is_strict: bool,
    prompt_command: Option<PromptCommand<'a>>,
}

impl Recorder<'_> {
    /// Records the event in the timeline of a root. `reach` is that of the session's own root, and
    /// `None` for a further one.
    fn record(&self, place: &TimelinePlace, reach: Option<&Reach>) -> Result<HookReply> {
        let mut reply = HookReply::default();
        let lane = &self.input.lane;
        let open = || Timeline::open(place, self.options);
        let elsewhere = if reach.is_none() { Some(place.root.as_path()) } else { None };
        let prompt_command = self.prompt_command.filter(|_| reach.is_some());
        match &self.input.event {
            HookEvent::SessionStarted { is_new } => {
                if place.exists() {
                    let mut timeline = open()?;
                    interrupt(&mut timeline, lane, !is_new, elsewhere, &mut reply)?;
                    report_undos(&mut timeline, lane, elsewhere, &mut reply)?;
                }
                // The test of hooks starts them in an empty directory.
                let is_empty =
                    !std::fs::read_dir(&place.root).is_ok_and(|mut entries| entries.next().is_some());
                if reach.is_some() && !is_empty {
                    start_preparation(place);
                }
            }
            HookEvent::CallBegins(call) => {
                let call = NewCall { title: self.relative_title(&call.title, place), ..call.clone() };
                let mut timeline = open()?;
                add_roots(&mut timeline, lane, reach)?;
                begin_call(&mut timeline, call, self.is_strict, elsewhere, &mut reply)?;
            }
            HookEvent::CallEnds(call, end) => {
                let call = NewCall { title: self.relative_title(&call.title, place), ..call.clone() };
                let mut timeline = open()?;
                timeline.end_call(call, end.clone(), self.arrived_at)?;
                report_undos(&mut timeline, lane, elsewhere, &mut reply)?;
            }
            HookEvent::DirectoryAdded(_) | HookEvent::DirectoryChanged { .. } => {
                if let Some(reach) = reach.filter(|reach| place.exists() || !reach.new.is_empty()) {
                    self.change_directory(&mut open()?, reach)?;
                }
            }
            // All other events are about earlier calls.
            _ if !place.exists() => {
                reply.answered_prompt =
                    prompt_command.map(|_| "foldlog has recorded no call in this directory yet.".to_owned());
            }
            HookEvent::Prompted { text } => {
                let mut timeline = open()?;
                if text.is_some() {
                    interrupt(&mut timeline, lane, true, elsewhere, &mut reply)?;
                }
                match (prompt_command, self.prompt_command) {
                    (Some(command), _) => {
                        reply.answered_prompt = Some(text::answer(&mut timeline, command, self.arrived_at)?);
                    }
                    // The model does not see the prompt, nor anything else of the reply.
                    (None, Some(_)) => {}
                    (None, None) => report_undos(&mut timeline, lane, elsewhere, &mut reply)?,
                }
            }
            HookEvent::CallsReturned => {
                if has_open_call(place, self.options)? {
                    let runs = |step: &Step| {
                        let process =
                            step.call().and_then(|call| call.process).filter(|_| step.paths.is_none());
                        process.is_some_and(|process| runs_child_since(process, step.opened_at))
                    };
                    open()?.fail_calls(lane, runs, self.arrived_at)?;
                }
            }
            HookEvent::PermissionAsked => open()?.ask_for(lane)?,
            HookEvent::TurnEnded | HookEvent::SessionEnded => {
                let mut timeline = open()?;
                let only_main = matches!(self.input.event, HookEvent::TurnEnded);
                interrupt(&mut timeline, lane, only_main, elsewhere, &mut reply)?;
                if let Some(transcript) = self.input.transcript.as_ref().filter(|_| reach.is_some()) {
                    // The viewer shows the conversation as far as it is imported; nothing else needs it.
                    let until = Instant::now() + IMPORT_TIME;
                    let _ = import_new_lines(&timeline, &lane.session, transcript, until);
                }
            }
            HookEvent::Other => {}
        }
        Ok(reply)
    }

    /// Adds the roots that an event between calls names, and captures them in the background.
    fn change_directory(&self, timeline: &mut Timeline, reach: &Reach) -> Result<()> {
        add_roots(timeline, &self.input.lane, Some(reach))?;
        if let HookEvent::DirectoryChanged { to, .. } = &self.input.event {
            // The call that is over, or about to be, may have written there.
            let directory = std::fs::canonicalize(to).unwrap_or_else(|_| to.clone());
            if !directory.starts_with(&timeline.place().root) {
                timeline.note_outside(&self.input.lane, &directory.to_string_lossy())?;
            }
        }
        reach.new.iter().filter(|place| !place.exists()).for_each(start_preparation);
        Ok(())
    }

    /// Shortens the title of a call that names a file in the root.
    fn relative_title(&self, title: &str, place: &TimelinePlace) -> String {
        // The program names files by the path of the project, which may contain links.
        let is_own = std::fs::canonicalize(self.project).is_ok_and(|project| project == place.root);
        let roots = [Some(place.root.as_path()), Some(self.project).filter(|_| is_own)];
        let path = Path::new(title);
        let relative = roots.into_iter().flatten().find_map(|root| path.strip_prefix(root).ok());
        relative.and_then(Path::to_str).map_or_else(|| title.to_owned(), str::to_owned)
    }
}

fn add_roots(timeline: &mut Timeline, lane: &Lane, reach: Option<&Reach>) -> Result<()> {
    for root in reach.iter().flat_map(|reach| &reach.new).filter_map(|place| place.root.to_str()) {
        timeline.add_root(lane, root)?;
    }
    Ok(())
}

/// Returns whether a call is open. Reading is faster than opening for writing.
fn has_open_call(place: &TimelinePlace, options: &TimelineOptions) -> Result<bool> {
    let timeline = Timeline::open_read_only(place, options)?;
    Ok(timeline.steps()?.iter().any(|step| step.is_open() && step.call().is_some()))
}

/// Records the beginning of a call, and reports one that cannot be undone.
fn begin_call(
    timeline: &mut Timeline,
    call: NewCall,
    is_strict: bool,
    elsewhere: Option<&Path>,
    reply: &mut HookReply,
) -> Result<()> {
    let title = text::call_title(&call.tool, &call.title);
    let number = timeline.begin_call(call, now())?;
    let steps = timeline.steps()?;
    let step = steps.iter().find(|step| step.number == number);
    if let Some(reason) = step.and_then(|step| step.not_captured.as_ref()) {
        let root = elsewhere.map(|root| format!(" in {}", foldlog_codec::escape::path(root)));
        let root = root.unwrap_or_default();
        reply.messages.push(format!("foldlog: call {number} ({title}) is not undoable{root}: {reason}"));
        reply.refused = is_strict.then(|| format!("foldlog could not capture the files{root}: {reason}"));
    }
    Ok(())
}

/// Closes calls without a reported end, and names the command that undoes them.
fn interrupt(
    timeline: &mut Timeline,
    lane: &Lane,
    only_main: bool,
    elsewhere: Option<&Path>,
    reply: &mut HookReply,
) -> Result<()> {
    for number in timeline.interrupt_calls(&lane.program, &lane.session, only_main, now())? {
        // A call that was refused has no end either.
        if timeline.changes(number)?.is_empty() {
            continue;
        }
        let command = text::undo_command(number, elsewhere);
        reply.messages.push(format!(
            "foldlog: call {number} was interrupted, and its changes stay; `{command}` undoes them."
        ));
    }
    Ok(())
}

/// Adds the undone calls to the text for the model.
fn report_undos(
    timeline: &mut Timeline,
    lane: &Lane,
    elsewhere: Option<&Path>,
    reply: &mut HookReply,
) -> Result<()> {
    let undos = timeline.take_unreported_undos(lane)?;
    if !undos.is_empty() {
        reply.context = Some(text::undos_for_model(&undos, timeline, elsewhere)?);
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

/// Captures a root for the first time, and [removes](collect) captures.
pub(crate) fn prepare(root: &Path) -> Result<()> {
    let dirs = UserDirs::from_variables();
    let place = TimelinePlace::of_root(&dirs.timelines()?, root)?;
    if dirs.needs_consent(&place).is_some() {
        return Ok(());
    }
    let mut options = dirs.options();
    // This process runs in the background. Calls during its capture are not captured.
    options.capture = Duration::from_secs(600);
    if !place.exists() {
        Timeline::open(&place, &options)?.capture()?;
    }
    collect(root)
}

/// Removes the earliest captures of a recorded root if all take more than 5 GB or a tenth of the free
/// space.
pub(crate) fn collect(root: &Path) -> Result<()> {
    let dirs = UserDirs::from_variables();
    let place = TimelinePlace::of_root(&dirs.timelines()?, root)?;
    if place.exists() {
        let mut timeline = Timeline::open(&place, &dirs.options())?;
        let bytes_max = CAPTURES_BYTES_MAX.min(timeline.free_bytes() / 10);
        timeline.collect(bytes_max, now())?;
        TimelinePlace::collect_removed(&dirs.timelines()?, std::time::SystemTime::now())?;
    }
    Ok(())
}
