use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use foldlog::filesystem::{
    ChangeKind, FilesystemSnapshot, HostFilesystem, HostFilesystemOptions, PartialCapture, SnapshotReader,
    escape_path, open_regular_file,
};
use foldlog::{Durability, Policy, Session, SessionOptions, SessionTypes, SliceOp, Store, StoreOptions};
use uuid::Uuid;

use crate::collection::REMOVED;
use crate::further_roots::CallReach;
use crate::ignored::{WITHHELD, excludes};
use crate::places::TimelinePlace;
use crate::step::{
    Call, Collections, Edge, FurtherRoots, Lane, Moment, Moments, Outcome, RootAdded, Step, StepChanged,
    StepKind, Steps,
};
use crate::transcripts::{TranscriptImported, Transcripts};
use crate::unreported::has_ended;
use crate::{Error, Result};

/// Longest text of arguments or of a result that is recorded, in bytes.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// A tool that starts this long after its call's capture was held up, usually by a dialog. Without
/// one, the start of a process and of its hook take a few tenths of a second.
const HELD_UP: TimeDelta = TimeDelta::milliseconds(1500);

/// The time of a tool's start is known to within this.
const START_ERROR: TimeDelta = TimeDelta::seconds(1);

/// Directories that are noted and never captured, in the form of a `.gitignore`.
const NOTED: [&str; 15] = [
    "node_modules/",
    "target/",
    ".venv/",
    "venv/",
    "__pycache__/",
    ".tox/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".gradle/",
    ".next/",
    ".nuxt/",
    ".turbo/",
    ".parcel-cache/",
    ".terraform/",
];

/// Configures a timeline.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TimelineOptions {
    /// How long to wait for another process that has the timeline open. Default: 8 s.
    pub wait: Duration,
    /// How long a capture may take. Default: 11 s.
    pub capture: Duration,
    /// Free bytes on the disk that a capture requires. Default: 2 GB.
    pub free_bytes_min: u64,
    /// Further patterns of paths that are only noted, in the form of a `.gitignore`. A pattern that
    /// begins with `!` captures paths that an earlier one, or the default, only notes.
    pub noted: Vec<String>,
    /// Patterns of ignored files in lists outside of projects, such as git's global one. The list
    /// `info/exclude` of the root's repository applies as well.
    pub ignored: Vec<String>,
    /// Sizes from which files are only noted. Default: 50 MB, or 2 GB where the file system can clone
    /// files, and 1 MiB for ignored files.
    pub sizes: PartialCapture,
}

impl Default for TimelineOptions {
    fn default() -> TimelineOptions {
        let sizes = PartialCapture {
            file_bytes_max: 50_000_000,
            ignored_file_bytes_max: 1 << 20,
            shared_file_bytes_max: 2_000_000_000,
        };
        let (wait, capture) = (Duration::from_secs(8), Duration::from_secs(11));
        TimelineOptions {
            wait,
            capture,
            free_bytes_min: 2_000_000_000,
            noted: Vec::new(),
            ignored: Vec::new(),
            sizes,
        }
    }
}

/// The calls of agents in one directory.
///
/// While a value is open for writing, no other process can write.
pub struct Timeline {
    pub(crate) place: TimelinePlace,
    pub(crate) session: Session,
    /// `None` if the root is no directory any more.
    files: Option<HostFilesystem>,
    /// Patterns of ignored files in lists outside of the root.
    pub(crate) ignored: Vec<String>,
    capture_time: Duration,
    free_bytes_min: u64,
    /// Locked while the timeline is open for writing.
    _lock: Option<File>,
}

/// The start of a call.
#[derive(Debug, Clone)]
pub struct NewCall {
    /// Agent that makes the call.
    pub lane: Lane,
    /// The program's id of the call.
    pub id: String,
    /// Name of the tool.
    pub tool: String,
    /// Arguments, as JSON.
    pub arguments: String,
    /// One line about the call.
    pub title: String,
    /// Files that a file tool names, absolute or relative to the root; `None` for other tools.
    pub paths: Option<Vec<PathBuf>>,
    /// Process of the program.
    pub process: Option<u32>,
    /// Whether the program runs several calls of its lane at a time. Otherwise open calls of the
    /// lane have ended.
    pub may_overlap: bool,
    /// Where the call can write.
    pub reach: CallReach,
}

/// The end of a call.
#[derive(Debug, Clone, Default)]
pub struct CallEnd {
    /// Whether the tool succeeded.
    pub succeeded: bool,
    /// Result or error.
    pub result: Option<String>,
    /// Exit code of a command.
    pub exit_code: Option<i64>,
    /// Duration of the tool in milliseconds, without the time before it was started.
    pub duration_ms: Option<u64>,
    /// Whether the command continues in the background.
    pub in_background: bool,
}

impl Timeline {
    /// Opens a timeline for writing, and creates it if there is none.
    ///
    /// # Errors
    ///
    /// - [`Error::Busy`] if another process has it open for longer than
    ///   [`TimelineOptions::wait`].
    /// - [`Error::Engine`] or [`Error::Filesystem`] if its log or root cannot be opened.
    pub fn open(place: &TimelinePlace, options: &TimelineOptions) -> Result<Timeline> {
        place.create_dir()?;
        let lock = lock(place, options.wait)?;
        place.record_repository();
        let session = open_or_create(place, place.session_id(), &types()?)?;
        // Readers expect a session where there is a root.
        place.record_root()?;
        let mut timeline = Timeline::with(place, session, options, Some(lock))?;
        timeline.close_killed_undo()?;
        Ok(timeline)
    }

    /// Opens a timeline for reading.
    ///
    /// # Errors
    ///
    /// - [`Error::NoTimeline`] if there is none.
    /// - [`Error::Engine`] or [`Error::Filesystem`] if its log or root cannot be opened.
    pub fn open_read_only(place: &TimelinePlace, options: &TimelineOptions) -> Result<Timeline> {
        let missing = || Error::NoTimeline { path: place.root.clone() };
        if !place.exists() {
            return Err(missing());
        }
        let store = open_store(place)?;
        let session = match store.open_read_only(place.session_id(), &types()?) {
            Err(foldlog::Error::NoSuchSession { .. }) => return Err(missing()),
            session => session?,
        };
        Timeline::with(place, session, options, None)
    }

    fn with(
        place: &TimelinePlace,
        session: Session,
        options: &TimelineOptions,
        lock: Option<File>,
    ) -> Result<Timeline> {
        let mut captured = HostFilesystemOptions::default().partial(options.sizes);
        captured.leave_out = NOTED.iter().map(ToString::to_string).chain(options.noted.clone()).collect();
        captured.pool = place.captures_of_repository();
        captured.ignored = [options.ignored.clone(), excludes(&place.root)].concat();
        let ignored = captured.ignored.clone();
        // Steps of a removed root are listed, shown and ended.
        let files = match place.root.is_dir() {
            true => Some(HostFilesystem::open(&place.root, place.captures(), captured)?),
            false => None,
        };
        let place = place.clone();
        let (capture_time, free_bytes_min) = (options.capture, options.free_bytes_min);
        Ok(Timeline { place, session, files, ignored, capture_time, free_bytes_min, _lock: lock })
    }

    /// Returns where the timeline is.
    pub fn place(&self) -> &TimelinePlace {
        &self.place
    }

    /// Returns the session that contains the timeline.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns all steps, in ascending order of their numbers.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the log cannot be read.
    pub fn steps(&self) -> Result<Vec<Step>> {
        let mut steps: Vec<Step> = self.session.view::<Steps>()?.iter().cloned().collect();
        steps.sort_by_key(|step| step.number);
        Ok(steps)
    }

    /// Captures the root, for the first calls to be faster.
    ///
    /// # Errors
    ///
    /// - [`Error::Filesystem`] if the root cannot be captured.
    /// - [`Error::LowSpace`] if less than [`TimelineOptions::free_bytes_min`] bytes are free.
    pub fn capture(&self) -> Result<FilesystemSnapshot> {
        let free_bytes = self.free_bytes();
        if free_bytes < self.free_bytes_min {
            return Err(Error::LowSpace { path: self.place.dir.clone(), free_bytes });
        }
        let until = Instant::now().checked_add(self.capture_time);
        Ok(self.files()?.snapshot_until(None, false, until)?)
    }

    pub(crate) fn files(&self) -> Result<&HostFilesystem> {
        self.files.as_ref().ok_or_else(|| Error::of_lost_root(&self.place.root))
    }

    /// Returns the free bytes on the disk of the captures; the greatest number if they are unknown.
    pub fn free_bytes(&self) -> u64 {
        let space = rustix::fs::statvfs(self.place.dir.as_path());
        space.map_or(u64::MAX, |space| space.f_bavail.saturating_mul(space.f_frsize))
    }

    /// Records the beginning of a call, with the state of the root before it, and returns its
    /// number. A call that is reported again is not recorded again. Open calls of the same lane
    /// (unless they [may overlap](NewCall::may_overlap)), and of programs that have ended, are closed
    /// as interrupted first.
    ///
    /// If the root cannot be captured, the call is recorded nevertheless, with the reason in
    /// [`Step::not_captured`].
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the log cannot be written.
    pub fn begin_call(&mut self, call: NewCall, now: DateTime<Utc>) -> Result<u64> {
        let steps = self.steps()?;
        // Hooks that are installed twice report each event twice.
        if let Some(step) = find_call(&steps, &call).filter(|step| step.is_open()) {
            return Ok(step.number);
        }
        let capture = self.capture();
        let reason = capture.as_ref().err().map(ToString::to_string);
        let capture = capture.ok();
        let has_ended =
            |open: &Call| (open.lane == call.lane && !call.may_overlap) || has_ended(open.process);
        let is_stale = |step: &Step| step.call().is_some_and(has_ended);
        self.close_unreported(&steps, is_stale, Outcome::Interrupted, capture.as_ref(), now)?;
        let number = steps.last().map_or(1, |step| step.number + 1);
        // Those that are outside of the root, too.
        let is_ignored = call.paths.iter().flatten().any(|path| self.ignores(path));
        let paths = call.paths.map(|paths| {
            let relative = paths.iter().filter_map(|path| self.relative(path));
            relative.collect()
        });
        let directory = call.reach.directory.as_deref();
        let working_tree = directory.and_then(|directory| self.linked_working_tree(directory));
        let head_logs = self.head_logs(capture.as_ref());
        let kind = StepKind::Call(Box::new(Call {
            lane: call.lane,
            id: call.id,
            tool: call.tool,
            arguments: if is_ignored { WITHHELD.to_owned() } else { shorten(call.arguments) },
            title: shorten(call.title),
            process: call.process,
            roots: call.reach.roots,
            outside: call.reach.outside,
            ..Call::default()
        }));
        let step =
            Step { paths, not_captured: reason, working_tree, head_logs, ..new_step(number, kind, now) };
        self.open_step(step, capture)?;
        Ok(number)
    }

    /// Records the end of a call, with the state of the root after it. A call whose beginning was
    /// not recorded becomes a step that was not captured. A call that was closed as interrupted, and
    /// is not undone, ends now. Returns its number.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the log cannot be written.
    pub fn end_call(&mut self, call: NewCall, end: CallEnd, now: DateTime<Utc>) -> Result<u64> {
        let steps = self.steps()?;
        let Some(step) = find_call(&steps, &call).cloned() else {
            let number = self.begin_call(call, now)?;
            let reason = "its beginning was not reported".to_owned();
            let Some(step) = self.steps()?.into_iter().rfind(|step| step.number == number) else {
                return Ok(number);
            };
            let step = Step { not_captured: Some(reason), ..step };
            self.close_call(step, end, None, now)?;
            return Ok(number);
        };
        let number = step.number;
        // A call is taken for interrupted when the next one of its lane begins. An end that is
        // reported later shows that both ran at the same time.
        let is_undone = steps.iter().filter_map(Step::undo).any(|undo| undo.of.contains(&number));
        if !step.is_open() && (step.outcome != Some(Outcome::Interrupted) || is_undone) {
            return Ok(number);
        }
        let capture = self.capture();
        let mut reason = capture.as_ref().err().map(ToString::to_string);
        // The captures between the interruption and the late end belong to the call as well.
        if !step.is_open() && self.has_lost_captures(number)? {
            reason = Some(REMOVED.to_owned());
        }
        let step = Step { not_captured: step.not_captured.clone().or(reason), ..step };
        self.close_call(step, end, capture.ok(), now)?;
        Ok(number)
    }

    fn close_call(
        &mut self,
        mut step: Step,
        end: CallEnd,
        capture: Option<FilesystemSnapshot>,
        now: DateTime<Utc>,
    ) -> Result<()> {
        if let Some(capture) = &capture {
            let ran =
                end.duration_ms.map(|ms| TimeDelta::milliseconds(i64::try_from(ms).unwrap_or(i64::MAX)));
            let started = ran.map(|ran| now.checked_sub_signed(ran).unwrap_or(now));
            self.set_users_changes(&mut step, capture, started)?;
        }
        if let StepKind::Call(call) = &mut step.kind {
            let is_withheld = self.withholds_result(call, step.paths.as_ref());
            call.result =
                end.result.map(|text| if is_withheld { WITHHELD.to_owned() } else { shorten(text) });
            call.exit_code = end.exit_code;
            call.duration_ms = end.duration_ms;
            call.in_background = end.in_background;
        }
        let outcome = if end.succeeded { Outcome::Succeeded } else { Outcome::Failed };
        self.close_step(step, outcome, capture, now)
    }

    /// Finds the changes that were made after a call began, and before its tool was started, if that
    /// took long enough for a person to change files. Without `started`, the time is unknown.
    pub(crate) fn set_users_changes(
        &self,
        step: &mut Step,
        capture: &FilesystemSnapshot,
        started: Option<DateTime<Utc>>,
    ) -> Result<()> {
        let was_asked_for = step.call().is_some_and(|call| call.was_asked_for);
        let was_held_up = started.map_or(was_asked_for, |started| started - step.opened_at > HELD_UP);
        if !was_held_up || step.paths.is_some() {
            return Ok(());
        }
        let Some(before) = self.latest_capture()? else { return Ok(()) };
        for change in self.reader().changes(Some(&before), capture)? {
            // The time of the last change of state is set by the system, and cannot be faked.
            let changed = fs::symlink_metadata(self.place.absolute(&change.path)).ok();
            let changed = changed.and_then(|found| {
                DateTime::from_timestamp(found.ctime(), u32::try_from(found.ctime_nsec()).unwrap_or(0))
            });
            match (change.kind, changed.zip(started)) {
                (ChangeKind::Removed, _) | (_, None) => step.possibly_yours.push(change.path),
                (_, Some((at, started))) if at + START_ERROR <= started => {
                    step.yours.push(change.path);
                }
                (_, Some(_)) => {}
            }
        }
        Ok(())
    }

    /// Records that the program asks the user for permission to run the open call of a lane.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the log cannot be written.
    pub fn ask_for(&mut self, lane: &Lane) -> Result<()> {
        let is_asked = |step: &Step| step.is_open() && step.call().is_some_and(|call| call.lane == *lane);
        let Some(mut step) = self.steps()?.into_iter().rfind(is_asked) else { return Ok(()) };
        if let StepKind::Call(call) = &mut step.kind {
            call.was_asked_for = true;
        }
        self.session.dispatch(StepChanged { step, moment: None })?;
        Ok(())
    }

    pub(crate) fn open_step(&mut self, step: Step, capture: Option<FilesystemSnapshot>) -> Result<()> {
        let moment = Some(Moment::new(step.number, Edge::Opened, capture));
        self.session.dispatch(StepChanged { step, moment })?;
        Ok(())
    }

    pub(crate) fn close_step(
        &mut self,
        mut step: Step,
        outcome: Outcome,
        capture: Option<FilesystemSnapshot>,
        now: DateTime<Utc>,
    ) -> Result<()> {
        if step.call().is_some() {
            step.head_changes = self.head_changes_since(&step);
            // The end of an interrupted call may still be reported.
            if outcome != Outcome::Interrupted {
                step.head_logs.clear();
            }
        }
        let moment = Some(Moment::new(step.number, Edge::Closed, capture));
        step.closed_at = Some(now);
        step.outcome = Some(outcome);
        step.pinned &= step.not_captured.is_none();
        self.session.dispatch(StepChanged { step, moment })?;
        Ok(())
    }

    /// Returns the latest capture, which is never removed.
    pub(crate) fn latest_capture(&self) -> Result<Option<FilesystemSnapshot>> {
        let moments = self.session.log().slice::<Moments>()?;
        for place in (0..moments.len()).rev() {
            if let Some(capture) = moments.get(place)?.and_then(|moment| moment.capture.clone()) {
                return Ok(Some(capture));
            }
        }
        Ok(None)
    }

    /// Returns all moments, without the captures that were removed.
    pub(crate) fn moments(&self) -> Result<Vec<Moment>> {
        let collections = self.session.view::<Collections>()?;
        let collected = collections.iter().next();
        let moments = self.session.log().slice::<Moments>()?;
        let all = (0..moments.len()).filter_map(|place| Some((place, moments.get(place).transpose()?)));
        let moments = all.map(|(place, moment)| {
            let moment = moment?;
            Ok(match collected.is_some_and(|collected| collected.contains(place)) {
                true => Moment { is_removed: true, ..Moment::new(moment.step, moment.edge, None) },
                false => (*moment).clone(),
            })
        });
        moments.collect()
    }

    /// Returns a reader of the captures.
    pub fn reader(&self) -> SnapshotReader {
        SnapshotReader::open(self.place.captures())
    }

    pub(crate) fn relative(&self, path: &Path) -> Option<String> {
        let resolved = self.resolved(path)?;
        let relative = resolved.strip_prefix(&self.place.root).ok()?;
        Some(escape_path(relative.as_os_str().as_bytes()))
    }

    /// Returns a path with all links resolved, as far as it exists.
    pub(crate) fn resolved(&self, path: &Path) -> Option<PathBuf> {
        // A tool may name a file through a link to it or to its directory.
        let absolute = self.place.root.join(path);
        let (parent, name) = (absolute.parent()?, absolute.file_name()?);
        let around =
            || fs::canonicalize(parent).map_or_else(|_| absolute.clone(), |parent| parent.join(name));
        Some(fs::canonicalize(&absolute).unwrap_or_else(|_| around()))
    }
}

pub(crate) fn new_step(number: u64, kind: StepKind, now: DateTime<Utc>) -> Step {
    Step {
        number,
        kind,
        opened_at: now,
        closed_at: None,
        outcome: None,
        paths: None,
        not_captured: None,
        pinned: false,
        yours: Vec::new(),
        possibly_yours: Vec::new(),
        working_tree: None,
        head_changes: Vec::new(),
        head_logs: BTreeMap::new(),
    }
}

fn find_call<'a>(steps: &'a [Step], call: &NewCall) -> Option<&'a Step> {
    let is_same = |known: &Call| known.id == call.id && known.lane == call.lane;
    steps.iter().rfind(|step| step.call().is_some_and(is_same))
}

/// Cuts a text after 64 KiB, the greatest recorded length.
pub fn shorten(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push('…');
        // Of a text of 100 MB, the rest would stay in memory.
        text.shrink_to_fit();
    }
    text
}

fn types() -> Result<SessionTypes> {
    let types = SessionTypes::builder()
        .slice::<Steps>()
        .keyed_by::<Steps, u64>(|step| step.number)
        .reducer::<Steps, StepChanged>(|_, changed, _| Ok(SliceOp::Upsert(changed.step.clone())))
        .slice::<FurtherRoots>()
        .reducer::<FurtherRoots, RootAdded>(|_, added, _| Ok(SliceOp::Extend(vec![added.clone()])))
        .slice::<Transcripts>()
        .keyed_by::<Transcripts, String>(|imported| imported.conversation.clone())
        .reducer::<Transcripts, TranscriptImported>(|_, imported, _| Ok(SliceOp::Upsert(imported.clone())))
        .slice::<Collections>()
        .replace_latest::<Collections>()
        .slice_with::<Moments>(Policy::Log)
        .reducer::<Moments, StepChanged>(|_, changed, _| {
            Ok(SliceOp::Extend(changed.moment.iter().cloned().collect()))
        })
        .build()?;
    Ok(types)
}

/// Opens a session of a timeline, and creates it if there is none.
pub(crate) fn open_or_create(place: &TimelinePlace, id: Uuid, types: &SessionTypes) -> Result<Session> {
    let store = open_store(place)?;
    // A process that was killed while it created the session leaves a part of it, which only another
    // creation replaces.
    let session = store.open_session(id, types).or_else(|error| {
        let options = SessionOptions { id: Some(id), ..SessionOptions::default() };
        store.create_with(types, options).map_err(|_| error)
    });
    Ok(session?)
}

fn open_store(place: &TimelinePlace) -> Result<Store> {
    // A call's record must survive a kill at once, and a power cut as well as the files it is about.
    let options = StoreOptions { durability: Durability::Process, ..StoreOptions::default() };
    Ok(Store::open_with(place.store(), options)?)
}

fn lock(place: &TimelinePlace, wait: Duration) -> Result<File> {
    let path = place.lock_file();
    let io = |action| Error::io(action, &path);
    // A pipe would block.
    if let Err(error) = open_regular_file(&path)
        && error.kind() == ErrorKind::InvalidInput
    {
        return Err(io("open")(error));
    }
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(io("open"))?;
    let private = fs::Permissions::from_mode(0o600);
    file.set_permissions(private).map_err(io("set the permissions of"))?;
    let end = Instant::now().checked_add(wait);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if end.is_some_and(|end| Instant::now() < end) => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(TryLockError::WouldBlock) => return Err(Error::Busy { path: place.dir.clone() }),
            Err(TryLockError::Error(error)) => return Err(io("lock")(error)),
        }
    }
}
