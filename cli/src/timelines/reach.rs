//! The roots in whose timelines an event of a session is recorded.
//!
//! The session's own root is the project directory of its agent. Further ones:
//!
//! | named by | becomes a root |
//! |---|---|
//! | a directory that the user has added, or that is the agent's current one | the repository around it, or else the directory itself |
//! | `cd DIR` or `git -C DIR` in a command, the path of a file tool, a `cd` that was reset | the repository around it, if there is one |
//! | a project directory that is a working tree within a recorded main working tree | that one |
//!
//! Without the condition of a repository, `cd /usr` would capture all programs. A directory in
//! another root is covered by that one. A root that needs consent, and has none, is no root.

use std::path::{Component, Path, PathBuf};

use foldlog_timeline::{CallReach, NewCall, Timeline, TimelineOptions, TimelinePlace, WorkingTree};

use super::command_words::{CommandPart, CommandWord, command_parts};
use super::{UserDirs, without_parents};
use crate::agents::{HookEvent, HookInput};
use crate::failure::Result;

/// Greatest number of further roots of a session.
const ROOTS_MAX: usize = 8;

/// Greatest number of paths outside that a call records.
const OUTSIDE_MAX: usize = 8;

/// Where an event is recorded, besides the session's own timeline.
#[derive(Default)]
pub(super) struct Reach {
    pub(super) further: Vec<TimelinePlace>,
    /// Those of the roots that the session did not have before.
    pub(super) new: Vec<TimelinePlace>,
    /// Directories and files outside of all roots that the event names.
    pub(super) outside: Vec<PathBuf>,
}

impl Reach {
    pub(super) fn of(
        dirs: &UserDirs,
        options: &TimelineOptions,
        own: &TimelinePlace,
        input: &HookInput,
    ) -> Result<Reach> {
        let timelines = dirs.timelines()?;
        // Another hook may be creating it.
        let timeline = Timeline::open_read_only(own, options).ok();
        let mut reach = Reach::default();
        // The calls of a removed root end, too. None begins there.
        let begins = matches!(input.event, HookEvent::CallBegins(_));
        let add = |reach: &mut Reach, root: &Path| {
            let place = TimelinePlace::of_root(&timelines, root).ok().filter(|place| place.root.is_dir());
            let place =
                place.or_else(|| TimelinePlace::of_recorded_root(&timelines, root).filter(|_| !begins));
            reach.further.extend(place.filter(|place| place.root != own.root));
        };
        if let HookEvent::CallEnds(call, _) = &input.event {
            // The call is a step where its beginning was recorded.
            let step =
                timeline.map(|timeline| timeline.call_step(&call.lane, &call.id)).transpose()?.flatten();
            let roots = step.and_then(|step| Some(step.call()?.roots.clone())).unwrap_or_default();
            roots.iter().for_each(|root| add(&mut reach, Path::new(root)));
            return Ok(reach);
        }
        let known = timeline.map(|timeline| timeline.further_roots(&input.lane)).transpose()?;
        known.unwrap_or_default().iter().for_each(|root| add(&mut reach, root));
        for named in named_directories(input, dirs.home.as_deref()) {
            reach.add_named(dirs, own, &timelines, named);
        }
        let tree = WorkingTree::around(&own.root).filter(WorkingTree::is_linked);
        if let Some(main) = tree.as_ref().and_then(WorkingTree::main_top)
            && own.root.starts_with(main)
        {
            let place = TimelinePlace::of_root(&timelines, main);
            reach.further.extend(place.ok().filter(TimelinePlace::exists));
        }
        Ok(reach)
    }

    /// Adds the root for a directory, unless a root covers it.
    fn add_named(&mut self, dirs: &UserDirs, own: &TimelinePlace, timelines: &Path, named: NamedDirectory) {
        let NamedDirectory { directory, path, is_allowed } = named;
        let Some(directory) = existing(&directory) else { return };
        let is_covered = |place: &TimelinePlace| directory.starts_with(&place.root);
        if is_covered(own) || self.further.iter().any(is_covered) {
            return;
        }
        let tree = WorkingTree::around(&directory).map(|tree| tree.top);
        let root = match tree {
            Some(top) if own.root.starts_with(&top) => below_common(&directory, &own.root),
            Some(top) => Some(top),
            None => Some(directory.clone()).filter(|_| is_allowed && !own.root.starts_with(&directory)),
        };
        let place = root.and_then(|root| TimelinePlace::of_root(timelines, &root).ok());
        let place = place.filter(|place| {
            place.root.to_str().is_some()
                && self.further.len() < ROOTS_MAX
                && dirs.needs_consent(place).is_none()
        });
        match place {
            Some(place) => {
                self.new.push(place.clone());
                self.further.push(place);
            }
            None if self.outside.len() < OUTSIDE_MAX && !self.outside.contains(&path) => {
                self.outside.push(path);
            }
            None => {}
        }
    }

    /// Completes a call that begins. A file tool is recorded only in roots that contain its files.
    pub(super) fn complete(&mut self, call: &mut NewCall, own: &TimelinePlace, directory: PathBuf) {
        if let Some(paths) = &call.paths {
            let paths: Vec<PathBuf> = paths.iter().map(|path| directory.join(path)).collect();
            let is_in = |root: &Path| {
                paths.iter().filter_map(|path| existing(path)).any(|path| path.starts_with(root))
            };
            self.further.retain(|place| is_in(&place.root));
        }
        let roots = [own].into_iter().chain(&self.further).filter_map(|place| place.root.to_str());
        let roots: Vec<String> = roots.map(str::to_owned).collect();
        call.reach = CallReach {
            directory: Some(directory),
            roots: if roots.len() > 1 { roots } else { Vec::new() },
            outside: self.outside.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
        };
    }
}

/// A directory that an event names.
struct NamedDirectory {
    directory: PathBuf,
    /// The path as it is shown, if the directory is outside of all roots.
    path: PathBuf,
    /// Whether the user has allowed the agent to work in it.
    is_allowed: bool,
}

fn named_directories(input: &HookInput, home: Option<&Path>) -> Vec<NamedDirectory> {
    let mut named = Vec::new();
    let mut add = |directory: PathBuf, path: Option<PathBuf>, is_allowed| {
        let path = without_dots(path.unwrap_or_else(|| directory.clone()));
        named.push(NamedDirectory { directory, path, is_allowed });
    };
    match &input.event {
        HookEvent::DirectoryAdded(directory) => add(directory.clone(), None, true),
        HookEvent::DirectoryChanged { to, is_reset } => add(to.clone(), None, !is_reset),
        HookEvent::CallBegins(call) => {
            for path in call.paths.iter().flatten() {
                let path = input.directory.join(path);
                if let Some(around) = path.parent() {
                    add(around.to_owned(), Some(path.clone()), false);
                }
            }
            let command = input.command.as_deref().unwrap_or_default();
            for directory in command_directories(command, &input.directory, home) {
                // A missing one is made inside of a known one, or not at all.
                if directory.is_dir() {
                    add(directory, None, false);
                }
            }
        }
        _ => {}
    }
    if input.directory.is_dir() {
        add(input.directory.clone(), None, true);
    }
    named
}

/// Returns the directories to which a shell command changes, as far as its words show.
fn command_directories(command: &str, current: &Path, home: Option<&Path>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut current = current.to_owned();
    let parts = command_parts(command);
    let word_at = |place: usize| match parts.get(place) {
        Some(CommandPart::Word(word)) => Some(word),
        _ => None,
    };
    let mut is_first = true;
    for (place, part) in parts.iter().enumerate() {
        let CommandPart::Word(CommandWord { text: word, .. }) = part else {
            is_first = true;
            continue;
        };
        let next = |by: usize| word_at(place + by);
        let target = match word.as_str() {
            "cd" | "pushd" if is_first => next(1).filter(|word| word.text != "--").or_else(|| next(2)),
            "git" if is_first && next(1).is_some_and(|word| word.text == "-C") => next(2),
            _ => None,
        };
        is_first = ["{", "then", "do", "else", "env", "sudo"].contains(&word.as_str());
        let Some(target) = target.filter(|target| target.is_certain && !target.text.starts_with('-')) else {
            continue;
        };
        let path = match (target.text.strip_prefix('~').filter(|_| target.has_tilde), home) {
            (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
                home.join(rest.trim_start_matches('/'))
            }
            (Some(_), _) => continue,
            (None, _) => current.join(&target.text),
        };
        if word != "git" {
            current.clone_from(&path);
        }
        found.push(path);
    }
    found
}

/// Returns a path that is shown, without `..` if its directory exists.
fn without_dots(path: PathBuf) -> PathBuf {
    if !path.components().any(|part| part == Component::ParentDir) {
        return path;
    }
    let whole = || std::fs::canonicalize(&path).ok();
    let of_file = || Some(std::fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?));
    of_file().or_else(whole).unwrap_or_else(|| path.clone())
}

/// Returns a path with all links resolved, or the nearest directory around it that exists.
fn existing(path: &Path) -> Option<PathBuf> {
    let plain = without_parents(path);
    // A link followed by `..` leads elsewhere: the system resolves it if the path exists.
    std::fs::canonicalize(path)
        .ok()
        .or_else(|| plain.ancestors().find_map(|around| std::fs::canonicalize(around).ok()))
}

/// Returns the uppermost directory around one path that does not contain another one.
fn below_common(path: &Path, other: &Path) -> Option<PathBuf> {
    let outside = path.ancestors().filter(|around| !other.starts_with(around));
    outside.last().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_a_command_are_found_in_its_words() {
        let found = |command: &str| -> Vec<String> {
            let found = command_directories(command, Path::new("/p"), Some(Path::new("/home/a")));
            found.iter().map(|path| path.components().collect::<PathBuf>().display().to_string()).collect()
        };
        assert_eq!(found("cd ../other && touch x"), ["/p/../other"]);
        assert_eq!(found("(cd '/a b'; ls)\ncd c"), ["/a b", "/a b/c"]);
        assert_eq!(found("cd a && cd b; git -C /r commit -m 'cd x'"), ["/p/a", "/p/a/b", "/r"]);
        assert_eq!(found(r"cd 'a;b'; cd $'/new\nline'; cd '~'"), ["/p/a;b", "/new\nline", "/new\nline/~"]);
        assert_eq!(found("cd '/*' # it's\necho 'open"), ["/*"]);
        assert_eq!(found("cd ~/x; cd ~; cd -- /y"), ["/home/a/x", "/home/a", "/y"]);
        for none in [
            "echo cd /x",
            "cd",
            "cd -",
            "cd $HOME/x",
            "cd ~bob",
            "make 'cd /x'",
            "cd 'unclosed",
            "cd --",
            "cd a*",
        ] {
            assert_eq!(found(none), [""; 0], "{none}");
        }
    }

    #[test]
    fn a_neighbour_in_one_repository_is_the_uppermost_directory_without_the_project() {
        let below = |path, other| below_common(Path::new(path), Path::new(other));
        assert_eq!(below("/mono/b/src", "/mono/a"), Some(PathBuf::from("/mono/b")));
        assert_eq!(below("/mono", "/mono/a"), None);
    }
}
