//! A root with files, and its timeline.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use chrono::{DateTime, TimeDelta, Utc};
use foldlog_timeline::{
    CallEnd, CallReach, Lane, NewCall, Result, Timeline, TimelineOptions, TimelinePlace, UndoReport,
};
use tempfile::TempDir;

/// Name, kind with permissions, and content of each entry.
pub(crate) type Manifest = BTreeMap<String, (u32, Vec<u8>)>;

pub(crate) struct World {
    _dir: TempDir,
    pub(crate) root: PathBuf,
    pub(crate) place: TimelinePlace,
    pub(crate) options: TimelineOptions,
}

impl World {
    pub(crate) fn new() -> World {
        World::in_directory(tempfile::tempdir().unwrap())
    }

    pub(crate) fn in_directory(dir: TempDir) -> World {
        let root = dir.path().join("project");
        fs::create_dir(&root).unwrap();
        let place = TimelinePlace::of_root(&dir.path().join("timelines"), &root).unwrap();
        World { _dir: dir, root: place.root.clone(), place, options: TimelineOptions::default() }
    }

    pub(crate) fn open(&self) -> Timeline {
        Timeline::open(&self.place, &self.options).unwrap()
    }

    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.root.join(path)).unwrap();
    }

    pub(crate) fn link(&self, target: &str, path: &str) {
        symlink(target, self.root.join(path)).unwrap();
    }

    pub(crate) fn set_mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.root.join(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn manifest(&self) -> Manifest {
        let mut manifest = Manifest::new();
        list(&self.root, &self.root, &mut manifest);
        manifest
    }

    /// Returns the time of the last change of each entry, and of the root, in nanoseconds.
    pub(crate) fn times(&self) -> BTreeMap<String, i128> {
        let time = |path: &Path| {
            let found = fs::symlink_metadata(path).unwrap();
            i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec())
        };
        let paths = self.manifest().into_keys().chain([String::new()]);
        paths.map(|path| (path.clone(), time(&self.root.join(path)))).collect()
    }

    /// Sets the time of the last change of a file or a directory, in seconds.
    pub(crate) fn set_time(&self, path: &str, seconds: u64) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        fs::File::open(self.root.join(path)).unwrap().set_modified(time).unwrap();
    }

    /// Undoes steps with their times.
    pub(crate) fn undo_with_times(&self, steps: &[u64]) -> UndoReport {
        let mut timeline = self.open();
        let plan = timeline.plan_undo_with_times(steps, &[]).unwrap();
        timeline.apply_undo(&plan, now()).unwrap()
    }

    /// Runs a call of the main agent that changes files, with a process for each hook.
    pub(crate) fn call(&self, id: &str, change: impl FnOnce()) -> u64 {
        let number = self.open().begin_call(shell(id, None), now()).unwrap();
        change();
        assert_eq!(self.open().end_call(shell(id, None), ended(), now()).unwrap(), number);
        number
    }

    pub(crate) fn open_changes(&self, number: u64) -> foldlog_timeline::StepChanges {
        self.open().changes(number).unwrap()
    }

    pub(crate) fn undo(&self, steps: &[u64]) -> UndoReport {
        self.try_undo(steps, &[]).unwrap()
    }

    pub(crate) fn try_undo(&self, steps: &[u64], paths: &[&str]) -> Result<UndoReport> {
        let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
        let mut timeline = self.open();
        let plan = timeline.plan_undo(steps, &paths)?;
        timeline.apply_undo(&plan, now())
    }
}

/// A call that may change any file, by the main agent or by a sub-agent.
pub(crate) fn shell(id: &str, agent: Option<&str>) -> NewCall {
    NewCall {
        lane: Lane { program: "claude".to_owned(), session: "s".to_owned(), agent: agent.map(str::to_owned) },
        id: id.to_owned(),
        tool: "Bash".to_owned(),
        arguments: "{}".to_owned(),
        title: id.to_owned(),
        paths: None,
        process: None,
        may_overlap: false,
        reach: CallReach::default(),
    }
}

/// A call that changes one file.
pub(crate) fn edit(id: &str, path: &Path, agent: Option<&str>) -> NewCall {
    NewCall { tool: "Edit".to_owned(), paths: Some(vec![path.to_owned()]), ..shell(id, agent) }
}

pub(crate) fn ended() -> CallEnd {
    CallEnd { succeeded: true, ..CallEnd::default() }
}

pub(crate) fn now() -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_000)
}

fn list(root: &Path, directory: &Path, manifest: &mut Manifest) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let found = fs::symlink_metadata(&path).unwrap();
        let content = if found.is_symlink() {
            fs::read_link(&path).unwrap().to_string_lossy().into_owned().into_bytes()
        } else if found.is_dir() {
            list(root, &path, manifest);
            Vec::new()
        } else {
            fs::read(&path).unwrap()
        };
        let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        manifest.insert(name, (found.mode(), content));
    }
}
