//! Opens a session or a store at a path, walks its records, and names them.

use foldlog::SequenceNumber;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use foldlog::inspect::{self, LogReader, ReadOptions, SessionFence, SoundEnd};
use foldlog::log::TornTail;
use foldlog::storage::{Access, FileStorage, Storage};
use foldlog::{
    Error, FileExposure, OpenOperation, Record, RecordKind, Store, StoreOptions, UnsettledOperation,
};
use foldlog_codec::body::{
    Action, AdapterState, AnswerBody, Declare, Dispatch, Import, Input, Lane, Observed, Parent,
    PromptAccepted, Replicated, Request, Rollback, SessionOpening, Settle, Shortened, SnapshotBody,
    ToolBegin, ToolEnd, Turn,
};
use foldlog_codec::record::RecordNames;
use foldlog_codec::segment::HEADER_LEN;
use uuid::Uuid;

use foldlog_codec::escape;

use crate::failure::{CommandError, DOES_NOT_HOLD, HOLDS, Result};
use crate::output::Output;
use crate::remote;
use crate::verbs::run::quoted;

/// Returns whether any segment in the folder `dir` may hold a record: one that cannot be read, or that holds more than zeros
/// behind its header and more than a crash leaves there before the first record.
pub(crate) fn holds_anything(dir: &Path) -> bool {
    if inspect::is_leftover(dir).unwrap_or_default() {
        return false;
    }
    segments(dir).is_none_or(|segments| segments.iter().any(|path| holds_data(path).unwrap_or(true)))
}

fn holds_data(path: &Path) -> io::Result<bool> {
    // Links are not followed and pipes not waited for, as when a log is read. Holes are skipped.
    let file = FileStorage::new().open(path, Access::Read)?;
    let mut bytes = vec![0; 64 << 10];
    let mut offset = HEADER_LEN as u64;
    loop {
        offset = file.next_data(offset)?;
        match file.read_at(&mut bytes, offset)? {
            0 => return Ok(false),
            read if bytes.iter().take(read).any(|byte| *byte != 0) => return Ok(true),
            read => offset += read as u64,
        }
    }
}

/// Returns the segment files of a folder in the order of their ordinals, or `None` if the folder cannot be read.
pub(crate) fn segments(dir: &Path) -> Option<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut segments: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "seg")).collect();
    segments.sort();
    Some(segments)
}

/// Notes that a session's folder is passed over. A crash while a session is begun leaves a folder that
/// [holds nothing](holds_anything), of a session that was never acknowledged. The note names what else is in the folder, which
/// proves neither that there were records nor that there were none.
pub(crate) fn pass_over(dir: &Path, output: &mut Output<'_>) {
    let segments = segments(dir).unwrap_or_default();
    let mut beside: Vec<PathBuf> = entries(dir).filter(|path| !segments.contains(path)).collect();
    // A writer names itself before it writes its first record, and removes that file when it closes.
    beside.extend(word_of_writer(dir));
    beside.sort();
    let names: Vec<String> = beside.iter().map(|path| escape::path(path)).collect();
    let names = match names.is_empty() {
        true => String::new(),
        false => format!("; nobody can tell whether it held some from what is left: {}", names.join(", ")),
    };
    output.note(format_args!("note: {} is passed over: it holds no records{names}", escape::path(dir)));
}

/// Returns the file in which a writer of the session says who it is, if there is one.
fn word_of_writer(dir: &Path) -> Option<PathBuf> {
    let id = dir.file_name()?.to_str()?;
    let word = dir.parent()?.parent()?.join("writers").join(format!("{id}.json"));
    word.symlink_metadata().is_ok().then_some(word)
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

/// Returns the reason for which the session in a folder has lost its segments, if it has: the folder has no segment, but holds
/// what is only made after a first record. A crash while a session is begun leaves nothing of that:
///
/// | what is there | when it is made |
/// |---|---|
/// | `objects` | beside the segment whose records name them |
/// | `recovery.spare` | while a tool call is open |
/// | `snapshots`, of images | of a log |
/// | any folder that holds a folder `objects` | with the first capture of a workspace |
///
/// A writer's file in the store's folder `writers` is made before there is a record, and is no sign of one.
pub(crate) fn lost_segments(dir: &Path) -> Option<String> {
    let id = dir.canonicalize().ok()?;
    Uuid::try_parse(id.file_name()?.to_str()?).ok()?;
    if !segments(dir)?.is_empty() {
        return None;
    }
    let is_folder = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let is_sign = |path: &PathBuf| match path.file_name().and_then(|name| name.to_str()) {
        Some("recovery.spare") => path.symlink_metadata().is_ok_and(|found| found.is_file()),
        Some("objects" | "snapshots") => is_folder(path),
        _ => is_folder(path) && is_folder(&path.join("objects")),
    };
    let mut names: Vec<String> = entries(dir)
        .filter(is_sign)
        .filter_map(|path| Some(format!("`{}`", escape::path(path.file_name()?.as_ref()))))
        .collect();
    names.sort();
    (!names.is_empty())
        .then(|| format!("its segments are missing: it holds {}, which only records bring", names.join(", ")))
}

/// Opens the store at a path, without creating one.
///
/// # Errors
///
/// [`CommandError::Usage`] if there is no store at `path`, [`CommandError::Engine`] if it cannot be opened.
pub fn open_store(path: &Path, output: &Output<'_>) -> Result<Store> {
    check_store(path)?;
    Ok(Store::open_with(path, output.store_options())?)
}

/// Checks that there is a store at a path.
///
/// # Errors
///
/// [`CommandError::Usage`] if there is none.
pub(crate) fn check_store(path: &Path) -> Result<()> {
    if let Some(url) = remote::bucket_at(path) {
        let what = format!("{} is no store: a bucket is in that folder", escape::path(path));
        return Err(CommandError::usage(what, format!("give its URL: {}", quoted(url.as_ref()))));
    }
    if inspect::is_store(path) {
        return Ok(());
    }
    let what = format!("{} is not a store: it has no folder `sessions`", escape::path(path));
    Err(CommandError::usage(what, "give the folder that holds the folder `sessions`"))
}

/// Says whether a session is written that a replica holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct WriteArgs {
    /// Write although a replica holds the session. What is written counts only if no other worker has gone on with the session,
    /// which this machine cannot tell.
    #[arg(long)]
    pub unreplicated: bool,
}

impl WriteArgs {
    /// Opens the store at a path, of which a session is to be written.
    ///
    /// # Errors
    ///
    /// [`CommandError::Engine`] if it cannot be opened.
    pub(crate) fn open(self, store: &Path, output: &Output<'_>) -> Result<Store> {
        let WriteArgs { unreplicated } = self;
        Ok(Store::open_with(store, StoreOptions { unreplicated, ..output.store_options() })?)
    }
}

/// Returns the store that holds a session's folder, and the session's id; `None` if the folder is in no store.
pub fn store_of(session: &Path) -> Option<(PathBuf, Uuid)> {
    let store = inspect::store_around(session)?;
    let session = session.canonicalize().ok()?;
    Some((store, Uuid::try_parse(session.file_name()?.to_str()?).ok()?))
}

/// Returns the store that holds a session's folder, and the session's id.
///
/// # Errors
///
/// [`CommandError::Usage`] if the folder is in no store.
pub fn in_store(session: &Path) -> Result<(PathBuf, Uuid)> {
    store_of(session).ok_or_else(|| {
        let what = format!("{} is not the folder of a session in a store", escape::path(session));
        CommandError::usage(what, "give the folder of a session: STORE/sessions/ID")
    })
}

/// Opens a session for reading, and notes on standard error what a reader should know of its log: that others may read it,
/// that its end is torn, which calls are open or unsettled, and which records cannot be folded.
///
/// # Errors
///
/// [`CommandError::Engine`] if the folder holds no session, or its log is corrupt or cannot be read.
pub fn open_session(path: &Path, output: &mut Output<'_>) -> Result<LogReader> {
    open_as(path, false, output)
}

/// Opens a session as [`open_session`] does, for a verb that asks for no slices: the contents of their items are not read.
///
/// # Errors
///
/// [`CommandError::Engine`] if the folder holds no session, or its log is corrupt or cannot be read.
pub fn open_outline(path: &Path, output: &mut Output<'_>) -> Result<LogReader> {
    open_as(path, true, output)
}

/// Opens what is sound of a session as [`open_session`] does: all of it, or what stands before its first damage.
/// [`code_of`] says so at the end.
///
/// # Errors
///
/// [`CommandError::Engine`] if the folder holds no session, nothing in it is sound, or it cannot be read.
pub fn open_sound(path: &Path, output: &mut Output<'_>) -> Result<LogReader> {
    let options = ReadOptions { outline: false, memory_bytes: output.memory_bytes };
    noted(LogReader::open_sound(Arc::new(FileStorage::new()), path, options)?, output)
}

/// Opens what is sound of a session as [`open_outline`] does.
///
/// # Errors
///
/// Those of [`open_sound`].
pub fn open_sound_outline(path: &Path, output: &mut Output<'_>) -> Result<LogReader> {
    let options = ReadOptions { outline: true, memory_bytes: output.memory_bytes };
    noted(LogReader::open_sound(Arc::new(FileStorage::new()), path, options)?, output)
}

/// Returns the exit code of a verb that has printed what it read. If damage ended what was read, reports the damage and where
/// the sound part ends.
pub fn code_of(reader: &LogReader, output: &mut Output<'_>) -> u8 {
    let Some(end) = reader.sound_end() else { return HOLDS };
    let SoundEnd { segment, offset, sequence, damage, .. } = end;
    let failure = CommandError::from(damage.clone());
    output.error(&failure);
    output.note(format_args!(
        "  what was read ends before record {sequence}, at byte {offset} of {}; `foldlog show SESSION --beyond-damage` lists \
         the sound records behind it",
        escape::path(segment)
    ));
    if let Some(next) = failure.next() {
        output.note(format_args!("  next: {next}"));
    }
    DOES_NOT_HOLD
}

fn open_as(path: &Path, outline: bool, output: &mut Output<'_>) -> Result<LogReader> {
    let options = ReadOptions { outline, memory_bytes: output.memory_bytes };
    noted(LogReader::open_with(Arc::new(FileStorage::new()), path, options)?, output)
}

/// Notes what a reader should know of a log.
fn noted(reader: LogReader, output: &mut Output<'_>) -> Result<LogReader> {
    let report = reader.report();
    note_exposed(report.exposed.as_ref(), output);
    note_torn(report.torn.as_ref(), output);
    match reader.replicated() {
        None => note_interrupted(&report.interrupted, &report.unsettled, output),
        Some(replicated) => {
            // Of what the place itself says now, nothing else has to be feared.
            if !output.is_held {
                match inspect::fenced(reader.dir()) {
                    Some(fenced) => note_fenced(&fenced, output),
                    None => note_replicated(replicated, output),
                }
            }
            note_held_calls(&report.interrupted, &report.unsettled, output);
        }
    }
    if let Some((sequence, kind)) = report.unsupported {
        output.note(format_args!(
            "note: record {sequence} is of kind {kind}, which this version shows but cannot fold"
        ));
    }
    Ok(reader)
}

/// Notes that others may read a session's files, if they may.
pub(crate) fn note_exposed(exposed: Option<&FileExposure>, output: &mut Output<'_>) {
    if let Some(exposed) = exposed {
        output.note(format_args!("note: {exposed}; `chmod -R go= STORE` keeps them out"));
    }
}

/// Notes which calls are open, and which wait to be settled.
pub(crate) fn note_interrupted(
    open: &[OpenOperation],
    unsettled: &[UnsettledOperation],
    output: &mut Output<'_>,
) {
    for open in open {
        output.note(format_args!(
            "note: operation {} (`{}`) has not ended: it runs, or its process is gone and the session has to be recovered, \
             by its host or `foldlog recover`; STATE is shown as it is within the call",
            open.operation,
            escape::text(&open.tool)
        ));
    }
    for unsettled in unsettled {
        output.note(format_args!(
            "note: operation {} (`{}`) was interrupted: its host (or `foldlog run --resume`) runs it again if it may, or `foldlog settle` decides",
            unsettled.operation,
            escape::text(&unsettled.tool)
        ));
    }
}

/// Says that a replica holds a session's records, and where.
pub(crate) fn held_text(replicated: &Replicated) -> String {
    let (at, by) = (escape::text(&replicated.at), escape::text(&replicated.by));
    format!("a replica holds this session's records ({at}, first claimed by `{by}`)")
}

/// Notes that a replica holds a session.
fn note_replicated(replicated: &Replicated, output: &mut Output<'_>) {
    output.note(format_args!(
        "note: {}: another worker may have gone on with it, which this log does not tell",
        held_text(replicated)
    ));
}

/// Notes from which record on a session's log counts nowhere.
fn note_fenced(fenced: &SessionFence, output: &mut Output<'_>) {
    output.note(format_args!(
        "note: another worker ({}, epoch {}) has claimed this session: records from {} on were never acknowledged, so what they say, \
         the end of a call too, counts nowhere; the session goes on where that worker writes it",
        escape::text(&fenced.by),
        fenced.epoch,
        fenced.from
    ));
}

/// Notes which calls of a held session's log are for whoever writes it there.
fn note_held_calls(open: &[OpenOperation], unsettled: &[UnsettledOperation], output: &mut Output<'_>) {
    let open = open.iter().map(|open| (open.operation, &open.tool, "has not ended in this log"));
    let unsettled = unsettled.iter().map(|one| (one.operation, &one.tool, "was interrupted"));
    for (operation, tool, what) in open.chain(unsettled) {
        output.note(format_args!(
            "note: operation {operation} (`{}`) {what}: what becomes of it is for the host that has claimed the session",
            escape::text(tool)
        ));
    }
}

/// Notes a torn tail, if the log has one.
pub(crate) fn note_torn(torn: Option<&TornTail>, output: &mut Output<'_>) {
    if let Some(torn) = torn {
        output.note(format_args!(
            "note: the tail of the log is torn: record {} and what follows, {} bytes that were never acknowledged as \
             durable, are left out",
            torn.sequence, torn.bytes
        ));
    }
}

/// Names a position: by its number, or by the tag of a snapshot. `tag:NAME` is a tag also where NAME is a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// Sequence number.
    At(SequenceNumber),
    /// Tag of a snapshot; the latest one that has it counts.
    Tagged(String),
}

impl FromStr for Position {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Position, Infallible> {
        let number = || text.parse().ok().map(Position::At);
        let tagged = || Position::Tagged(text.strip_prefix("tag:").unwrap_or(text).to_owned());
        Ok(number().unwrap_or_else(tagged))
    }
}

/// Returns the position that was asked for, or the last one if none was.
///
/// # Errors
///
/// - [`CommandError::Usage`] if the position is beyond the log's end, or no snapshot has the tag.
/// - [`CommandError::Engine`] if the log cannot be read.
pub fn position(reader: &LogReader, asked: Option<Position>) -> Result<SequenceNumber> {
    let tag = match asked {
        None => return Ok(reader.last_position()),
        Some(Position::At(at)) => return position_at(reader, Some(at)),
        Some(Position::Tagged(tag)) => tag,
    };
    let snapshots = reader.snapshots()?;
    if let Some(found) = snapshots.iter().rfind(|snapshot| snapshot.tag.as_deref() == Some(&*tag)) {
        return Ok(found.position);
    }
    let tags: BTreeSet<&str> = snapshots.iter().filter_map(|snapshot| snapshot.tag.as_deref()).collect();
    let last = reader.last_position();
    let next = match tags.is_empty() {
        true => format!("no snapshot has a tag: give a position from 0 to {last}"),
        false => {
            let tags: Vec<_> = tags.into_iter().map(|tag| format!("`{}`", escape::text(tag))).collect();
            format!("the tags are {}; or give a position from 0 to {last}", tags.join(", "))
        }
    };
    Err(CommandError::usage(format!("no snapshot has the tag `{}`", escape::text(&tag)), next))
}

/// Returns the number of the record that was asked for, which need not be there, or be sound; `None` if none was.
///
/// # Errors
///
/// Those of [`position`] that concern a tag.
pub fn record_at(reader: &LogReader, asked: Option<&Position>) -> Result<Option<SequenceNumber>> {
    match asked {
        None => Ok(None),
        Some(Position::At(at)) => Ok(Some(*at)),
        Some(tagged) => position(reader, Some(tagged.clone())).map(Some),
    }
}

/// Returns the position that was asked for, or the last one if none was.
///
/// # Errors
///
/// [`CommandError::Usage`] if the position is beyond the log's end, [`CommandError::Engine`] with the damage if it is beyond the end of
/// the sound part.
pub fn position_at(reader: &LogReader, asked: Option<SequenceNumber>) -> Result<SequenceNumber> {
    match (reader.sound_end(), asked) {
        (Some(end), Some(asked)) if asked >= end.sequence => Err(end.damage.clone().into()),
        _ => position_of(reader.last_position(), asked),
    }
}

/// Returns the position that was asked for, or `last` if none was.
///
/// # Errors
///
/// [`CommandError::Usage`] if the position is beyond `last`.
pub fn position_of(last: SequenceNumber, asked: Option<SequenceNumber>) -> Result<SequenceNumber> {
    match asked {
        Some(asked) if asked > last => {
            let what = format!("there is no position {asked}: the last one is {last}");
            Err(CommandError::usage(what, format!("give a position from 0 to {last}")))
        }
        asked => Ok(asked.unwrap_or(last)),
    }
}

/// Turns the result of a function of the engine that writes to the output into the verb's: an error of the output is
/// [`CommandError::Output`], since it says nothing of the log.
///
/// # Errors
///
/// [`CommandError::Output`] if the output cannot be written, [`CommandError::Engine`] for any other error.
pub(crate) fn written(result: foldlog::Result<()>) -> Result<()> {
    result.map_err(|error| match error {
        Error::Io { op: "write", source, .. } => {
            CommandError::Output(io::Error::new(source.kind(), source.to_string()))
        }
        error => error.into(),
    })
}

/// Hands the records of a range to `visit`, in order, until it fails.
///
/// # Errors
///
/// The error of `visit`, or [`CommandError::Engine`] if a record cannot be read.
pub fn each_record(
    reader: &LogReader,
    range: RangeInclusive<SequenceNumber>,
    mut visit: impl FnMut(&Record<'_>) -> Result<()>,
) -> Result<()> {
    let mut failure = None;
    let read = reader.records(*range.start(), *range.end(), |record| {
        visit(record).map_err(|error| {
            failure = Some(error);
            stopped(reader.dir())
        })
    });
    match failure {
        Some(failure) => Err(failure),
        None => Ok(read?),
    }
}

/// Makes the error with which a visitor ends a walk. It is replaced before anybody sees it.
pub(crate) fn stopped(path: &Path) -> Error {
    let source = Arc::new(io::Error::from(io::ErrorKind::Interrupted));
    Error::Io { op: "read", path: path.to_owned(), source }
}

/// Names a record in a listing: by its event, a snapshot's tag, the target of a rollback, the tool of a call, the
/// evaluation of a conversation; and by its lane, if the host named one. The name is as the log has it: [`escape::text`]
/// makes it fit for a terminal.
pub fn record_name(record: &Record<'_>, names: &RecordNames) -> String {
    let name = own_name(record, names);
    match Lane::of(record.kind, record.body).unwrap_or_default().name {
        Some(lane) if name.is_empty() => format!("lane {lane}"),
        Some(lane) => format!("{name}, lane {lane}"),
        None => name,
    }
}

/// Names a record by what its body says.
fn own_name(record: &Record<'_>, names: &RecordNames) -> String {
    let name = match record.kind {
        RecordKind::OPENED => SessionOpening::decode(record.body).map(|opened| opened_name(&opened)),
        RecordKind::DECLARE => Declare::decode(record.body).map(|declare| {
            let mut declared: Vec<&str> = declare.events.iter().map(|event| event.name.as_str()).collect();
            let events: BTreeSet<&str> = declared.iter().copied().collect();
            // The implicit slice of an undeclared event has the event's name, which is listed once.
            let slices = declare.slices.iter().map(|slice| slice.name.as_str());
            declared.extend(slices.filter(|slice| !events.contains(slice)));
            declared.join(", ")
        }),
        RecordKind::DISPATCH => Dispatch::decode(record.body).map(|dispatch| dispatch_name(&dispatch, names)),
        RecordKind::SNAPSHOT => {
            SnapshotBody::decode(record.body).map(|snapshot| snapshot.tag.unwrap_or_default())
        }
        RecordKind::ROLLBACK => Rollback::decode(record.body).map(|rollback| format!("to {}", rollback.to)),
        RecordKind::IMPORT => Import::decode(record.body)
            .map(|import| import.from.map_or_else(String::new, |from| format!("of {from}"))),
        RecordKind::TOOL_BEGIN => ToolBegin::decode(record.body).map(|begin| begin_name(&begin)),
        RecordKind::TOOL_END => ToolEnd::decode(record.body).map(|end| {
            let cause = end.cause.map(|cause| format!(": {}", cause.name())).unwrap_or_default();
            let form = end.suspension.map(|it| format!(": {}", it.form.name())).unwrap_or_default();
            let exit = end.exit_code.filter(|code| *code != 0);
            let exit = exit.map(|code| format!(": exit code {code}")).unwrap_or_default();
            let ended = if end.has_unknown_end() { ": ended unknown" } else { "" };
            format!("{} of {} {}{cause}{form}{exit}{ended}", end.tool, end.begin, end.outcome.name())
        }),
        RecordKind::OBSERVED => Observed::decode(record.body).map(|observed| observed.name),
        RecordKind::REPLICATED => Replicated::decode(record.body)
            .map(|Replicated { at, by, epoch }| format!("{at}, epoch {epoch} of {by}")),
        RecordKind::SETTLE => Settle::decode(record.body).map(|settle| {
            let arguments = settle.arguments.map(|digest| {
                let digits: String = digest_text(&digest).chars().take(DIGEST_DIGITS).collect();
                format!(", arguments {digits}")
            });
            let (operation, decision) = (settle.operation, settle.decision_name());
            format!("operation {operation}: {decision} by {}{}", settle.by, arguments.unwrap_or_default())
        }),
        _ => return conversation_name(record).unwrap_or_default(),
    };
    name.unwrap_or_default()
}

/// Names a record of a conversation: by what it says, and by its evaluation.
fn conversation_name(record: &Record<'_>) -> std::result::Result<String, foldlog_codec::Error> {
    let (said, scope) = match record.kind {
        RecordKind::INPUT => {
            let input = Input::decode(record.body)?;
            let call_id = input.call_id.map(|call_id| format!(" {call_id}")).unwrap_or_default();
            (format!("{}{call_id}", input.role.name()), input.scope)
        }
        RecordKind::REQUEST => {
            let request = Request::decode(record.body)?;
            let said = match &request.failure {
                Some(failure) => format!("{} failed: {}", failure.request, failure.cause),
                None => format!("attempt {}", request.attempt),
            };
            (said, request.scope)
        }
        RecordKind::ANSWER => {
            let answer = AnswerBody::decode(record.body)?;
            let stop = answer.stop.map(|stop| format!(", {stop}")).unwrap_or_default();
            (format!("{}{stop}", counted(answer.calls.len() as u64, "call")), answer.scope)
        }
        RecordKind::TURN => {
            let turn = Turn::decode(record.body)?;
            let complete = if turn.complete { ", complete" } else { "" };
            (format!("turn {}{complete}", turn.number), turn.scope)
        }
        RecordKind::SHORTENED => {
            let shortened = Shortened::decode(record.body)?;
            (format!("{} to {}", shortened.from, shortened.to), shortened.scope)
        }
        RecordKind::PROMPT_ACCEPTED => {
            let accepted = PromptAccepted::decode(record.body)?;
            (format!("{}:{} by {}", accepted.now.namespace, accepted.now.key, accepted.by), accepted.scope)
        }
        RecordKind::ADAPTER_STATE => {
            let state = AdapterState::decode(record.body)?;
            let spent = if state.resumable { "" } else { ", not resumable" };
            (format!("{} {}{spent}", state.adapter, state.occasion), state.scope)
        }
        _ => return Ok(String::new()),
    };
    Ok(format!("{said} in {}", scope.evaluation))
}

fn begin_name(begin: &ToolBegin<'_>) -> String {
    let mut name = begin.tool.clone().into_owned();
    if let Some(call_id) = &begin.call_id {
        name.push_str(&format!(" {call_id}"));
    }
    let others = [
        ("within", begin.parent),
        ("again", begin.again),
        ("undoes", begin.undoes),
        ("verifies", begin.verifies),
    ];
    for (what, operation) in others {
        if let Some(operation) = operation {
            name.push_str(&format!(", {what} {operation}"));
        }
    }
    name
}

fn opened_name(opened: &SessionOpening) -> String {
    match opened.parent {
        Some(Parent::Fork { session, position, .. }) => format!("fork of {session} at {position}"),
        Some(Parent::Child { session, operation: Some(operation) }) => {
            // The operation comes first, since the column is too narrow for a session's id.
            format!("child of operation {operation} of {session}")
        }
        Some(Parent::Child { session, operation: None }) => format!("child of {session}"),
        None => String::new(),
    }
}

fn dispatch_name(dispatch: &Dispatch<'_>, names: &RecordNames) -> String {
    let operation = match &dispatch.action {
        Action::Event { event, .. } => {
            return names
                .events
                .get(event)
                .map_or_else(|| format!("event-{event}"), |(name, _)| name.clone());
        }
        Action::Tag { key, .. } => return format!("tag {key}"),
        Action::Seed => "seed",
        Action::Clear => "clear",
        Action::Reset => "reset",
    };
    let slices = dispatch.effects.iter().flatten().map(|effect| {
        names.slices.get(&effect.slice).cloned().unwrap_or_else(|| format!("slice-{}", effect.slice))
    });
    std::iter::once(operation.to_owned()).chain(slices).collect::<Vec<_>>().join(" ")
}

/// Number of digits of a digest that a person is shown in a row and copies into a command, and the fewest that name arguments.
pub const DIGEST_DIGITS: usize = 12;

/// Returns a digest in hexadecimal digits.
pub fn digest_text(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Cuts a text for a person to at most `max` characters, the last of which is then `…`. `--json` prints it whole.
pub fn shortened(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    let head: String = text.chars().take(max.saturating_sub(1)).collect();
    format!("{head}…")
}

/// Writes a number of things: `1 session`, `2 sessions`.
pub fn counted(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}
