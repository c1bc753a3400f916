//! Random interleavings of the user, calls that may overlap, and undos, against a model that knows
//! which line was written by whom.
//!
//! A file is a list of lines, and each line is written once, by one author. So the model decides
//! without the timeline which lines an undo may touch:
//!
//! 1. A line that is present before an undo, and was not written by an undone call, stays in its
//!    file.
//! 2. A line that an undone call wrote alone is gone, unless its file is reported as a conflict.
//! 3. A line of the user that the user has removed does not come back.
//! 4. Undoing the undo brings every file back as it was.
//!
//! `FOLDLOG_TIMELINE_CASES` sets the number of cases.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::world::{World, ended, now, shell};

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
    Begin {
        lane: usize,
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
    prop_oneof![
        3 => act().prop_map(|act| Op::Act { lane: None, act }),
        6 => (lane.clone(), act()).prop_map(|(lane, act)| Op::Act { lane: Some(lane), act }),
        3 => lane.clone().prop_map(|lane| Op::Begin { lane }),
        3 => lane.prop_map(|lane| Op::End { lane }),
        2 => any::<u8>().prop_map(|which| Op::Undo { which }),
        1 => Just(Op::Redo),
    ]
}

type Files = BTreeMap<&'static str, Vec<String>>;

/// Who wrote a line; `None` is the user.
type Author = Option<u64>;

struct Model {
    world: World,
    lines: u64,
    authors: BTreeMap<String, Author>,
    /// Lines that the user removed.
    removed_by_user: BTreeSet<String>,
    open: [Option<u64>; LANES.len()],
    /// Calls that overlapped others.
    overlapped: BTreeSet<u64>,
    closed: Vec<u64>,
}

impl Model {
    fn new() -> Model {
        let mut model = Model {
            world: World::new(),
            lines: 0,
            authors: BTreeMap::new(),
            removed_by_user: BTreeSet::new(),
            open: [None; LANES.len()],
            overlapped: BTreeSet::new(),
            closed: Vec::new(),
        };
        for path in 0..PATHS.len() - 1 {
            (0..6).for_each(|_| model.act(None, &Act::Insert { path, place: 255 }));
        }
        model
    }

    fn files(&self) -> Files {
        let read = |path: &&'static str| {
            Some((*path, self.world.read(path)?.lines().map(str::to_owned).collect::<Vec<_>>()))
        };
        PATHS.iter().filter_map(read).collect()
    }

    fn act(&mut self, author: Author, act: &Act) {
        let mut files = self.files();
        let at = |len: usize, place: u8| len * usize::from(place) / 256;
        let path = match *act {
            Act::Insert { path, place } => {
                self.lines += 1;
                let line = format!("line {} of {author:?}", self.lines);
                let lines = files.entry(PATHS[path]).or_default();
                lines.insert(at(lines.len() + 1, place), line.clone());
                self.authors.insert(line, author);
                PATHS[path]
            }
            Act::Remove { path, place } => {
                let Some(lines) = files.get_mut(PATHS[path]).filter(|lines| !lines.is_empty()) else {
                    return;
                };
                let line = lines.remove(at(lines.len(), place));
                if author.is_none() {
                    self.removed_by_user.insert(line);
                }
                PATHS[path]
            }
            Act::Delete { path } => {
                let Some(lines) = files.remove(PATHS[path]) else { return };
                if author.is_none() {
                    self.removed_by_user.extend(lines);
                }
                self.world.remove(PATHS[path]);
                return;
            }
        };
        let text: String = files[path].iter().map(|line| format!("{line}\n")).collect();
        self.world.write(path, &text);
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Act { lane: None, act } if self.open.iter().all(Option::is_none) => self.act(None, act),
            // While a call runs, nobody can tell who writes.
            Op::Act { lane: None, .. } => {}
            Op::Act { lane: Some(lane), act } => {
                if let Some(call) = self.open[*lane] {
                    self.act(Some(call), act);
                }
            }
            Op::Begin { lane } if self.open[*lane].is_none() => {
                let call = self.world.open().begin_call(shell("call", LANES[*lane]), now()).unwrap();
                self.open[*lane] = Some(call);
                let open: Vec<u64> = self.open.iter().flatten().copied().collect();
                if open.len() > 1 {
                    self.overlapped.extend(open);
                }
            }
            Op::Begin { .. } => {}
            Op::End { lane } => {
                if let Some(call) = self.open[*lane].take() {
                    let ended = self.world.open().end_call(shell("call", LANES[*lane]), ended(), now());
                    assert_eq!(ended.unwrap(), call);
                    self.closed.push(call);
                }
            }
            Op::Undo { which } if self.open.iter().all(Option::is_none) => {
                let undone = self.world.open().undone().unwrap();
                let calls: Vec<u64> =
                    self.closed.iter().copied().filter(|call| !undone.wholly.contains(call)).collect();
                if !calls.is_empty() {
                    self.undo(calls[usize::from(*which) % calls.len()]);
                }
            }
            Op::Redo if self.open.iter().all(Option::is_none) => {
                let last = self.world.open().last_undo();
                if let Ok(undo) = last {
                    self.world.undo(&[undo]);
                }
            }
            Op::Undo { .. } | Op::Redo => {}
        }
    }

    fn undo(&self, call: u64) {
        let before = self.files();
        let manifest = self.world.manifest();
        let report = self.world.undo(&[call]);
        let after = self.files();
        let is_conflict = |path: &str| report.conflicts.iter().any(|conflict| conflict.path == path);
        for (path, lines) in &before {
            for line in lines {
                let stays = after.get(path).is_some_and(|after| after.contains(line));
                if self.authors[line] != Some(call) {
                    assert!(stays, "undo of {call} removed `{line}` from {path}: {report:?}");
                } else if !self.overlapped.contains(&call) && !is_conflict(path) {
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
        let redo = self.world.undo(&[report.number]);
        assert!(redo.conflicts.is_empty(), "{redo:?}");
        assert_eq!(self.world.manifest(), manifest, "redo of {call}");
        self.world.undo(&[call]);
        assert_eq!(self.files(), after, "second undo of {call}");
    }
}

#[test]
fn no_interleaving_loses_a_line_of_the_user_or_of_another_call() {
    let cases =
        std::env::var("FOLDLOG_TIMELINE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(24);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let ops = proptest::collection::vec(op(), 1..40);
    let run = runner.run(&ops, |ops| {
        let mut model = Model::new();
        ops.iter().for_each(|op| model.step(op));
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}
