//! The timelines of this user: where they are, which directories have one, and their texts.

mod command_words;
pub(crate) mod elsewhere;
pub(crate) mod hook;
mod reach;
pub(crate) mod records;
pub(crate) mod text;

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use chrono::{DateTime, Utc};
use foldlog::filesystem::{escape_path, read_regular_file};
use foldlog_timeline::{Timeline, TimelineOptions, TimelinePlace, read_patterns};
use foldlog_view::clock::now;

use crate::failure::{CommandError, Result};

/// A root with more files is recorded only after the user has allowed it.
pub(crate) const FILES_MAX: usize = 200_000;

/// Longest configuration of git that is read, in bytes.
const GIT_CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Greatest number of recorded directories in an error.
const ROOTS_MAX: usize = 5;

/// File in a timeline's directory by which the user has allowed to record the root.
const ALLOWED_FILE: &str = "allowed";

/// Environment of the process, as far as it determines where timelines are.
pub(crate) struct UserDirs {
    state: Option<PathBuf>,
    config: Option<PathBuf>,
    home: Option<PathBuf>,
}

impl UserDirs {
    pub(crate) fn from_variables() -> UserDirs {
        let absolute =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = absolute("HOME");
        let below_home = |path: &str| home.as_ref().map(|home| home.join(path));
        UserDirs {
            state: absolute("XDG_STATE_HOME").or_else(|| below_home(".local/state")),
            config: absolute("XDG_CONFIG_HOME").or_else(|| below_home(".config")),
            home,
        }
    }

    /// Returns the directory of all timelines.
    ///
    /// # Errors
    ///
    /// [`CommandError::View`] if neither `XDG_STATE_HOME` nor `HOME` is set.
    pub(crate) fn timelines(&self) -> Result<PathBuf> {
        let state = self.state.as_ref().ok_or_else(|| {
            CommandError::usage("neither XDG_STATE_HOME nor HOME is set", "set one to a directory of yours")
        })?;
        Ok(state.join("foldlog/timelines"))
    }

    /// Returns the options of timelines, with the patterns of `foldlog/noted` in the directory of
    /// configuration, and those of git's list of ignored files for all projects.
    pub(crate) fn options(&self) -> TimelineOptions {
        let mut options = TimelineOptions::default();
        if let Some(config) = &self.config {
            options.noted = read_patterns(&config.join("foldlog/noted"));
            let ignored = self.excludes_file().unwrap_or_else(|| config.join("git/ignore"));
            options.ignored = read_patterns(&ignored);
        }
        options
    }

    /// Returns the list of ignored files that git's configuration of the user names.
    fn excludes_file(&self) -> Option<PathBuf> {
        let (home, config) = (self.home.as_ref()?, self.config.as_ref()?);
        let files = [home.join(".gitconfig"), config.join("git/config")];
        files.iter().find_map(|file| {
            let text = read_regular_file(file, GIT_CONFIG_BYTES_MAX).ok()?;
            let (mut is_core, mut found) = (false, None);
            for line in String::from_utf8_lossy(&text).lines().map(str::trim) {
                if line.starts_with('[') {
                    is_core = line.eq_ignore_ascii_case("[core]");
                } else if let Some((name, value)) = line.split_once('=').filter(|_| is_core)
                    && name.trim().eq_ignore_ascii_case("excludesFile")
                {
                    let value = value.trim().trim_matches('"');
                    found =
                        Some(value.strip_prefix("~/").map_or_else(|| value.into(), |path| home.join(path)));
                }
            }
            found
        })
    }

    /// Returns why a root is recorded only after the user has allowed it; `None` if it is recorded.
    pub(crate) fn needs_consent(&self, place: &TimelinePlace) -> Option<String> {
        if place.dir.join(ALLOWED_FILE).exists() {
            return None;
        }
        let is_home = self.home.as_ref().and_then(|home| fs::canonicalize(home).ok());
        if place.root == Path::new("/") || is_home.as_ref() == Some(&place.root) {
            return Some("it is a root or home directory".to_owned());
        }
        let is_large = !place.exists() && has_more_files(&place.root, FILES_MAX);
        is_large.then(|| format!("it contains more than {FILES_MAX} files"))
    }
}

/// Allows to record a root that needs consent.
pub(crate) fn allow(place: &TimelinePlace) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&place.dir);
    made.map_err(|error| CommandError::file(&place.dir, error))?;
    let file = place.dir.join(ALLOWED_FILE);
    fs::write(&file, "").map_err(|error| CommandError::file(&file, error))
}

/// Reverses [`allow`].
pub(crate) fn disallow(place: &TimelinePlace) -> Result<()> {
    let file = place.dir.join(ALLOWED_FILE);
    match fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CommandError::file(&file, error)),
        _ => {
            // It contains records otherwise.
            let _ = fs::remove_dir(&place.dir);
            Ok(())
        }
    }
}

/// The directory whose calls a command is about.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RootArgs {
    /// Directory of the calls, which may have been removed [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

impl RootArgs {
    /// Opens the timeline around the directory for reading.
    pub(crate) fn open_read_only(&self) -> Result<Timeline> {
        let (place, options) = self.place()?;
        Ok(Timeline::open_read_only(&place, &options)?)
    }

    /// Opens the timeline around the directory for writing. The calls of a killed agent count as
    /// ended. A removed root is created as an empty directory.
    pub(crate) fn open(&self) -> Result<Timeline> {
        let (place, options) = self.place()?;
        let now = foldlog_view::clock::now();
        if !place.root.exists() {
            return Ok(Timeline::open_removed(&place, &options, now)?.0);
        }
        let mut timeline = Timeline::open(&place, &options)?;
        timeline.close_ended_calls(now)?;
        Ok(timeline)
    }

    /// Converts paths of the command line to paths relative to the timeline's root. They are relative to
    /// the current directory or to that of `--root`.
    ///
    /// # Errors
    ///
    /// [`CommandError::View`] if a path is outside of the root.
    pub(crate) fn paths(&self, timeline: &Timeline, paths: &[String]) -> Result<Vec<String>> {
        if paths.is_empty() {
            return Ok(Vec::new());
        }
        let from = self.root.as_deref().map_or_else(std::env::current_dir, std::path::absolute);
        let from = from.and_then(fs::canonicalize).or_else(|error| match self.root {
            // A removed root.
            Some(_) => Ok(timeline.place().root.clone()),
            None => Err(error),
        });
        let from = from.map_err(|error| CommandError::file(Path::new("."), error))?;
        paths.iter().map(|path| relative(timeline, &from, path)).collect()
    }

    /// Returns the root of the timeline if it was removed.
    pub(crate) fn removed_root(&self) -> Result<Option<PathBuf>> {
        Ok(Some(self.place()?.0.root).filter(|root| !root.exists()))
    }

    fn place(&self) -> Result<(TimelinePlace, TimelineOptions)> {
        place_around(self.root.as_deref())
    }
}

/// Returns a path of the command line relative to the root.
fn relative(timeline: &Timeline, from: &Path, path: &str) -> Result<String> {
    let root = &timeline.place().root;
    let outside = || {
        let root = foldlog_codec::escape::path(root);
        CommandError::usage(format!("`{path}` is not in {root}"), "give a path in that directory")
    };
    if path.is_empty() {
        return Err(CommandError::usage("a path is empty", "give `.` for the directory itself"));
    }
    let absolute = without_parents(&from.join(path));
    let relative = absolute.strip_prefix(root).map_err(|_| outside())?;
    Ok(escape_path(relative.as_os_str().as_bytes()))
}

/// Returns an absolute path without `..`, as if no part of it were a link.
fn without_parents(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

fn place_around(directory: Option<&Path>) -> Result<(TimelinePlace, TimelineOptions)> {
    let dirs = UserDirs::from_variables();
    let directory = match directory {
        Some(directory) => directory.to_owned(),
        None => std::env::current_dir().map_err(|error| CommandError::file(Path::new("."), error))?,
    };
    let timelines = dirs.timelines()?;
    match TimelinePlace::around(&timelines, &directory) {
        Err(error @ foldlog_timeline::Error::NoTimeline { .. }) => {
            Err(CommandError::usage(error.to_string(), recorded_directories(&timelines, &directory)))
        }
        place => Ok((place?, dirs.options())),
    }
}

/// Returns the next step in a directory without records.
fn recorded_directories(timelines: &Path, here: &Path) -> String {
    let roots = TimelinePlace::roots(timelines);
    let (below, others): (Vec<_>, Vec<_>) = roots.iter().partition(|root| root.starts_with(here));
    let shown = below.into_iter().chain(others).take(ROOTS_MAX).map(|root| foldlog_codec::escape::path(root));
    let shown = shown.collect::<Vec<_>>().join(", ");
    let more = match roots.len().saturating_sub(ROOTS_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match roots.is_empty() {
        true => "`foldlog hook install claude` records the calls of Claude Code from its next start on; for other agents, see `foldlog hook install --help`"
            .to_owned(),
        false => format!(
            "calls are recorded for the directory in which the agent was started, such as {shown}{more}; `foldlog hook status AGENT` tests the hooks"
        ),
    }
}

/// Returns whether a directory contains more files than a limit, without directories that are
/// usually only noted.
fn has_more_files(root: &Path, limit: usize) -> bool {
    let (mut count, mut left) = (0, vec![root.to_owned()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if ![".git", "node_modules", "target"].iter().any(|other| name == *other) {
                    left.push(entry.path());
                }
            } else {
                count += 1;
                if count > limit {
                    return true;
                }
            }
        }
    }
    false
}

/// Returns the call of an agent within which this process runs, if there is one: a process around
/// this one made a call that has not ended.
pub(crate) fn call_around(timeline: &Timeline) -> Result<Option<u64>> {
    let mut open = open_calls(timeline)?;
    // The call may be recorded for the current directory alone.
    if let Ok((place, options)) = place_around(None)
        && place.root != timeline.place().root
    {
        open.extend(open_calls(&Timeline::open_read_only(&place, &options)?)?);
    }
    let mut process = std::process::id();
    while let Some(parent) = parent_of(process) {
        if let Some((number, _)) = open.iter().find(|(_, open)| *open == parent) {
            return Ok(Some(*number));
        }
        process = parent;
    }
    Ok(None)
}

/// Returns the numbers of open calls, with the processes of their programs.
fn open_calls(timeline: &Timeline) -> Result<Vec<(u64, u32)>> {
    let steps = timeline.steps()?;
    let open = steps.iter().filter(|step| step.is_open());
    Ok(open.filter_map(|step| Some((step.number, step.call()?.process?))).collect())
}

/// Returns the parent of a process; `None` of the first one.
pub(crate) fn parent_of(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name is in parentheses, and may contain any characters.
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    (parent > 0).then_some(parent)
}

/// Returns whether a process has a child that was started since a time, and before this hook.
pub(crate) fn runs_child_since(process: u32, since: DateTime<Utc>) -> bool {
    let Some(uptime) = uptime_ticks() else { return false };
    let age = now().signed_duration_since(since).num_milliseconds() / MILLISECONDS_PER_TICK;
    let earliest = uptime - age;
    // Other hooks of the same event are started with this one.
    let latest = started_at(std::process::id()).unwrap_or(uptime) - START_TOGETHER_TICKS;
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.any(|child| {
        parent_of(child) == Some(process)
            && started_at(child).is_some_and(|started| (earliest..latest).contains(&started))
    })
}

/// Milliseconds of the unit in which Linux reports the start of a process.
const MILLISECONDS_PER_TICK: i64 = 10;

/// Hooks that are started within this time belong to the same event.
const START_TOGETHER_TICKS: i64 = 15;

/// Returns the time since the start of the system.
fn uptime_ticks() -> Option<i64> {
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let (seconds, rest) = uptime.split_whitespace().next()?.split_once('.')?;
    let hundredths: i64 = rest.parse().ok()?;
    seconds.parse::<i64>().ok()?.checked_mul(100)?.checked_add(hundredths)
}

/// Returns the time of a process's start since that of the system.
fn started_at(process: u32) -> Option<i64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}
