//! Random interleavings of the user, calls that may overlap, and undos, against a model that knows
//! to whom each line belongs.
//!
//! A file is a list of lines, and each line is written once. The user and calls may write at any
//! time, also at the same time. A line belongs to
//!
//! - the file tool that is open for the file, if there is one;
//! - otherwise all open calls of a shell, regardless of who wrote it;
//! - the user if none of them is open.
//!
//! So the model decides without the timeline which lines an undo may touch:
//!
//! 1. A line that is present before an undo, and does not belong to the undone call alone, stays in
//!    its file.
//! 2. A line that belongs to the undone call alone is gone, unless its file is reported as a conflict.
//! 3. A line that the user has removed while no call was responsible does not come back.
//! 4. Undoing the undo brings every file back as it was.
//! 5. The content of a file before an undo changes it is in a capture.
//! 6. Every capture has all files as they were at that moment.
//! 7. After captures were removed, the undo of each step that has kept its captures has the same
//!    result as before, and that of each other one is refused.
//!
//! `FOLDLOG_TIMELINE_CASES` sets the number of cases.

use std::collections::{BTreeMap, BTreeSet};

use foldlog::filesystem::FileFacts;
use foldlog_timeline::{Conflict, NewCall, Step, UndoReport};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::world::{Manifest, World, edit, ended, now, shell};

const PATHS: [&str; 4] = ["a", "b", "d/a", "d/e/b"];
const LANES: [Option<&str>; 3] = [None, Some("1"), Some("2")];

#[derive(Clone, Debug)]
enum Act {
    /// Inserts a line; the place is a fraction of the file's length, in 256ths.
    Insert { path: usize, place: u8 },
    /// Removes a line.
    Remove { path: usize, place: u8 },
    /// Removes a file.
    Delete { path: usize },
}

#[derive(Clone, Debug)]
enum Op {
    /// The user acts, or a call that is open in a lane.
    Act {
        lane: Option<usize>,
        act: Act,
    },
    /// A call begins: of a shell, or of a tool for one file.
    Begin {
        lane: usize,
        file: Option<usize>,
    },
    End {
        lane: usize,
    },
    Undo {
        which: u8,
    },
    Redo,
}

fn act() -> impl Strategy<Value = Act> {
    let path = 0..PATHS.len();
    prop_oneof![
        6 => (path.clone(), any::<u8>()).prop_map(|(path, place)| Act::Insert { path, place }),
        2 => (path.clone(), any::<u8>()).prop_map(|(path, place)| Act::Remove { path, place }),
        1 => path.prop_map(|path| Act::Delete { path }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let lane = 0..LANES.len();
    let file = prop_oneof![2 => Just(None), 1 => (0..PATHS.len()).prop_map(Some)];
    prop_oneof![
        4 => act().prop_map(|act| Op::Act { lane: None, act }),
        6 => (lane.clone(), act()).prop_map(|(lane, act)| Op::Act { lane: Some(lane), act }),
        3 => (lane.clone(), file).prop_map(|(lane, file)| Op::Begin { lane, file }),
        3 => lane.prop_map(|lane| Op::End { lane }),
        2 => any::<u8>().prop_map(|which| Op::Undo { which }),
        1 => Just(Op::Redo),
    ]
}

type Files = BTreeMap<&'static str, Vec<String>>;

/// The calls to which a line belongs; the empty set is the user.
type Authors = BTreeSet<u64>;

#[derive(Clone, Copy)]
struct OpenCall {
    number: u64,
    /// The file of a file tool.
    file: Option<usize>,
}

struct Model {
    world: World,
    lines: u64,
    authors: BTreeMap<String, Authors>,
    /// Lines that the user removed.
    removed_by_user: BTreeSet<String>,
    open: [Option<OpenCall>; LANES.len()],
    closed: Vec<u64>,
    /// The files at each moment that is captured.
    captured: Vec<Files>,
}

impl Model {
    fn new() -> Model {
        let mut model = Model {
            world: World::new(),
            lines: 0,
            authors: BTreeMap::new(),
            removed_by_user: BTreeSet::new(),
            open: [None; LANES.len()],
            closed: Vec::new(),
            captured: Vec::new(),
        };
        for path in 0..PATHS.len() - 1 {
            (0..6).for_each(|_| model.act(&Act::Insert { path, place: 255 }));
        }
        model
    }

    fn files(&self) -> Files {
        let read = |path: &&'static str| {
            Some((*path, self.world.read(path)?.lines().map(str::to_owned).collect::<Vec<_>>()))
        };
        PATHS.iter().filter_map(read).collect()
    }

    fn authors_now(&self, path: usize) -> Authors {
        let open = || self.open.iter().flatten();
        match open().filter(|call| call.file == Some(path)).map(|call| call.number).min() {
            Some(tool) => Authors::from([tool]),
            None => open().filter(|call| call.file.is_none()).map(|call| call.number).collect(),
        }
    }

    fn act(&mut self, act: &Act) {
        let mut files = self.files();
        let at = |len: usize, place: u8| len * usize::from(place) / 256;
        let (Act::Insert { path, .. } | Act::Remove { path, .. } | Act::Delete { path }) = *act;
        let (authors, name) = (self.authors_now(path), PATHS[path]);
        match *act {
            Act::Insert { place, .. } => {
                self.lines += 1;
                let line = format!("line {} of {authors:?}", self.lines);
                let lines = files.entry(name).or_default();
                lines.insert(at(lines.len() + 1, place), line.clone());
                self.authors.insert(line, authors);
            }
            Act::Remove { place, .. } => {
                let Some(lines) = files.get_mut(name).filter(|lines| !lines.is_empty()) else {
                    return;
                };
                let line = lines.remove(at(lines.len(), place));
                if authors.is_empty() {
                    self.removed_by_user.insert(line);
                }
            }
            Act::Delete { .. } => {
                let Some(lines) = files.remove(name) else { return };
                if authors.is_empty() {
                    self.removed_by_user.extend(lines);
                }
                self.world.remove(name);
                return;
            }
        }
        self.world.write(name, &text(&files[name]));
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Act { lane: None, act } => self.act(act),
            Op::Act { lane: Some(lane), act } => match self.open[*lane] {
                Some(OpenCall { file: None, .. }) => self.act(act),
                Some(OpenCall { file: Some(path), .. }) => self.act(&act.of(path)),
                None => {}
            },
            Op::Begin { lane, file } if self.open[*lane].is_none() => {
                self.captured.push(self.files());
                let number = self.world.open().begin_call(self.call(*lane, *file), now()).unwrap();
                self.open[*lane] = Some(OpenCall { number, file: *file });
            }
            Op::Begin { .. } => {}
            Op::End { lane } => {
                if let Some(OpenCall { number, file }) = self.open[*lane].take() {
                    self.captured.push(self.files());
                    let ended = self.world.open().end_call(self.call(*lane, file), ended(), now());
                    assert_eq!(ended.unwrap(), number);
                    self.closed.push(number);
                }
            }
            Op::Undo { which } => {
                let undoable = self.undoable();
                let calls: Vec<u64> =
                    self.closed.iter().copied().filter(|call| undoable.contains(call)).collect();
                if !calls.is_empty() {
                    self.check_undo(calls[usize::from(*which) % calls.len()]);
                }
            }
            Op::Redo => {
                let last = self.world.open().last_undo();
                if let Ok(undo) = last
                    && self.undoable().contains(&undo)
                {
                    self.undo(undo);
                }
            }
        }
    }

    fn call(&self, lane: usize, file: Option<usize>) -> NewCall {
        match file {
            Some(path) => edit("call", &self.world.root.join(PATHS[path]), LANES[lane]),
            None => shell("call", LANES[lane]),
        }
    }

    /// Returns the closed steps that are not undone and have kept their captures.
    fn undoable(&self) -> Vec<u64> {
        let timeline = self.world.open();
        let undone = timeline.undone().unwrap();
        let is_undoable = |step: &Step| {
            !step.is_open() && step.not_captured.is_none() && !undone.wholly.contains(&step.number)
        };
        let steps = timeline.steps().unwrap().into_iter();
        steps.filter(is_undoable).map(|step| step.number).collect()
    }

    /// Undoes a step, reverses the undo, and returns the files in between, and the conflicts without
    /// the later authors, which only captures tell.
    fn undone_files(&self, step: u64) -> (Manifest, Vec<(String, String)>) {
        let before = self.world.manifest();
        let report = self.world.undo(&[step]);
        let reason = |conflict: &Conflict| conflict.reason.split(", by ").next().unwrap().to_owned();
        let conflicts = report.conflicts.iter().map(|conflict| (conflict.path.clone(), reason(conflict)));
        let found = (self.world.manifest(), conflicts.collect());
        self.world.undo(&[report.number]);
        assert_eq!(self.world.manifest(), before, "redo of {step}");
        found
    }

    /// Pins some steps, and removes captures until they take a part of their space, in 256ths.
    fn check_collection(&self, pins: u64, part: u8) {
        let undoable = self.undoable();
        let results: BTreeMap<u64, _> =
            undoable.iter().map(|step| (*step, self.undone_files(*step))).collect();
        for step in undoable.iter().filter(|step| pins >> (*step % 64) & 1 == 1) {
            self.world.pin(*step);
        }
        let bytes_max = self.world.captured_bytes() / 256 * u64::from(part);
        self.world.open().collect(bytes_max, now()).unwrap();
        let kept = self.world.captured();
        for (step, result) in results {
            match kept.contains(&step) {
                true => assert_eq!(self.undone_files(step), result, "undo of {step}"),
                false => {
                    let refused = self.world.try_undo(&[step], &[]).unwrap_err().to_string();
                    assert!(refused.ends_with("its captures were removed to free space"), "{refused}");
                }
            }
        }
    }

    /// Undoes a step. The content of each changed file before the undo is in a capture.
    fn undo(&mut self, step: u64) -> UndoReport {
        let before = self.files();
        let report = self.world.undo(&[step]);
        let after = self.files();
        let changes = self.world.open_changes(report.number).files;
        let mut reader = self.world.open().reader();
        for (path, lines) in before.iter().filter(|(path, lines)| after.get(*path) != Some(lines)) {
            let change = changes.iter().find(|change| change.path == *path);
            let facts = change.and_then(|change| change.before.as_ref());
            let facts = facts.unwrap_or_else(|| panic!("{path} was changed by {report:?}"));
            assert_eq!(reader.content(facts, 1 << 20).unwrap(), text(lines).into_bytes());
        }
        self.captured.extend([before, after]);
        report
    }

    fn check_undo(&mut self, call: u64) {
        let before = self.files();
        let manifest = self.world.manifest();
        let report = self.undo(call);
        let after = self.files();
        let is_conflict = |path: &str| report.conflicts.iter().any(|conflict| conflict.path == path);
        for (path, lines) in &before {
            for line in lines {
                let stays = after.get(path).is_some_and(|after| after.contains(line));
                if self.authors[line] != Authors::from([call]) {
                    assert!(stays, "undo of {call} removed `{line}` from {path}: {report:?}");
                } else if !is_conflict(path) {
                    assert!(!stays, "undo of {call} left `{line}` in {path}: {report:?}");
                }
            }
        }
        for (path, lines) in &after {
            for line in lines {
                let was = before.get(path).is_some_and(|before| before.contains(line));
                let is_back = !was && self.removed_by_user.contains(line);
                assert!(!is_back, "undo of {call} brought back `{line}` in {path}: {report:?}");
            }
        }
        // It is undone and done again, and done once more for the operations that follow.
        let redo = self.undo(report.number);
        assert!(redo.conflicts.is_empty(), "{redo:?}");
        assert_eq!(self.world.manifest(), manifest, "redo of {call}");
        self.undo(call);
        assert_eq!(self.files(), after, "second undo of {call}");
    }

    /// Checks that each capture has all files as they were.
    fn check_captures(&self) {
        let timeline = self.world.open();
        let (captures, mut reader) = (timeline.captures().unwrap(), timeline.reader());
        assert_eq!(captures.len(), self.captured.len());
        for (capture, expected) in captures.iter().zip(&self.captured) {
            let mut facts = Vec::new();
            reader
                .files(capture, |path, found| {
                    facts.push((path.to_owned(), found.clone()));
                    Ok(())
                })
                .unwrap();
            let content = |(path, facts): (String, FileFacts)| {
                (path, String::from_utf8(reader.content(&facts, 1 << 20).unwrap()).unwrap())
            };
            let found: BTreeMap<String, String> = facts.into_iter().map(content).collect();
            let expected = expected.iter().map(|(path, lines)| ((*path).to_owned(), text(lines)));
            assert_eq!(found, expected.collect());
        }
    }
}

impl Act {
    /// Returns the same act on another file.
    fn of(&self, path: usize) -> Act {
        match *self {
            Act::Insert { place, .. } => Act::Insert { path, place },
            Act::Remove { place, .. } => Act::Remove { path, place },
            Act::Delete { .. } => Act::Delete { path },
        }
    }
}

fn text(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn check<S: Strategy>(cases: u32, strategy: &S, check: impl Fn(S::Value)) {
    let cases =
        std::env::var("FOLDLOG_TIMELINE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let run = runner.run(strategy, |value| {
        check(value);
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn no_interleaving_loses_a_line_of_the_user_or_of_another_call() {
    check(24, &proptest::collection::vec(op(), 1..40), |ops| {
        let mut model = Model::new();
        ops.iter().for_each(|op| model.step(op));
        model.check_captures();
    });
}

#[test]
fn no_removal_of_captures_changes_the_undo_of_a_call_that_stays_undoable() {
    let ops = || proptest::collection::vec(op(), 1..24);
    check(12, &(ops(), any::<u64>(), 64..=255_u8, ops()), |(before, pins, part, after)| {
        let mut model = Model::new();
        before.iter().for_each(|op| model.step(op));
        model.check_collection(pins, part);
        after.iter().for_each(|op| model.step(op));
    });
}
