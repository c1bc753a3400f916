//! Real processes killed by SIGKILL at random moments, one after the other on the same session.
//!
//! [`deed`] computes each action from a seed and its place, so both processes know it. The child
//! performs the deeds in order and reports which are acknowledged. The parent kills it, reads the
//! rest of its output, and compares the session with a model: all acknowledged deeds, and at most a
//! part of the next one.

use std::path::Path;

use foldlog::log::SegmentSizes;
use foldlog::tools::{ExecuteOptions, ToolCall, ToolError, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{
    Durability, ExecutionState, RecordKind, ResourceRegistry, Result, Session, SessionOptions, Store,
    StoreOptions, ToolInvocations,
};
use foldlog_test_support::child;
use foldlog_test_support::crash::{Chance, Change, Remembered, Slices};
use foldlog_test_support::host::{DraftEdited, Noted, StepAdded, Undeclared, types};
use uuid::Uuid;

use super::{LEVELS, number_from};

const KILLS: u64 = 40;

/// After this many lives another session is started.
const LIVES: u64 = 8;

/// Maximum number of deeds of a child before it waits to be killed.
const DEEDS_MAX: u64 = 300;

#[derive(Clone, Debug)]
enum Deed {
    Change(Change),
    /// A rollback to the position after this many deeds of this life, if there are as many.
    Back(u64),
    Sync,
    Reopen,
    /// A tool call with these changes, which succeeds or fails.
    Call(Vec<Change>, bool),
}

/// Returns the deed of a place; the same in every process.
fn deed(seed: u64, place: u64) -> Deed {
    let mut chance = Chance::new(seed.wrapping_mul(0x1_0000).wrapping_add(place));
    match chance.below(100) {
        0..=4 => Deed::Sync,
        5 => Deed::Reopen,
        6..=9 => Deed::Back(chance.below(20)),
        10..=21 => {
            let changes = (0..1 + chance.below(5)).map(|_| change(&mut chance)).collect();
            Deed::Call(changes, chance.percent(60))
        }
        22..=24 => Deed::Change(Change::Snapshot),
        _ => Deed::Change(change(&mut chance)),
    }
}

/// A change whose effect is independent of the state before.
fn change(chance: &mut Chance) -> Change {
    let text = |chance: &mut Chance| {
        let most = if chance.percent(10) { 3000 } else { 200 };
        let len = chance.below(most);
        chance.text(len)
    };
    match chance.below(10) {
        0..=3 => Change::Step(StepAdded { title: text(chance), part: chance.below(4) as u8 }),
        4..=6 => Change::Note(Noted { text: text(chance) }),
        7 => Change::Edit(DraftEdited { place: 1 << 20, line: format!("{}.", text(chance)) }),
        8 => Change::Undeclared(Undeclared { value: chance.below(1000) as i64 }),
        _ => Change::Tag(chance.text(1), text(chance)),
    }
}

fn store_at(path: &Path, durability: Durability) -> Store {
    let options = StoreOptions {
        durability,
        segments: SegmentSizes { first_bytes: 4096, max_bytes: 32 << 10, ahead_bytes_min: 8 << 10 },
        object_bytes_min: 1500,
        image_bytes_min: 16 << 10,
        ..StoreOptions::default()
    };
    Store::open_with(path, options).unwrap()
}

fn runner(session: &Session) -> ToolRunner {
    let resources = ResourceRegistry::builder().build().unwrap();
    ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new())
}

/// The arguments of a child: store, session, durability, seed and first place.
struct Life {
    path: String,
    id: Uuid,
    durability: Durability,
    seed: u64,
    first: u64,
}

impl Life {
    fn argument(&self) -> String {
        let Life { path, id, durability, seed, first } = self;
        format!("{path} {id} {durability:?} {seed} {first}")
    }

    fn parse(argument: &str) -> Life {
        let words: Vec<&str> = argument.split(' ').collect();
        let durability = *LEVELS.iter().find(|durability| format!("{durability:?}") == words[2]).unwrap();
        Life {
            path: words[0].to_owned(),
            id: words[1].parse().unwrap(),
            durability,
            seed: words[3].parse().unwrap(),
            first: words[4].parse().unwrap(),
        }
    }
}

/// If a call fails, the child exits at once, as if it were killed: nothing is closed or rolled
/// back.
fn or_end<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| {
        child::tell("failed", error);
        std::process::exit(3)
    })
}

/// The child: opens the session, recovers it, and does deeds until it is killed.
#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_is_killed_at_any_moment() {
    let Some(argument) = child::argument() else { return };
    let life = Life::parse(&argument);
    let store = store_at(Path::new(&life.path), life.durability);
    let mut session = match life.first {
        0 => {
            let options = SessionOptions { id: Some(life.id), ..SessionOptions::default() };
            or_end(store.create_with(&types(), options))
        }
        _ => or_end(store.open_session(life.id, &types())),
    };
    child::tell("open", session.log().recovery().interrupted.len());
    or_end(runner(&session).recover(&ExecuteOptions::default()));
    child::tell("recovered", session.log().position().unwrap());
    // The position after each deed of this life.
    let mut ends = vec![session.log().position().unwrap()];
    for place in life.first..life.first + DEEDS_MAX {
        match deed(life.seed, place) {
            Deed::Change(change) => drop(or_end(change.perform(&session))),
            Deed::Back(by) => {
                let to = ends[ends.len() - 1 - (by as usize).min(ends.len() - 1)];
                or_end(session.rollback_to(to));
            }
            Deed::Sync => or_end(session.sync()),
            Deed::Reopen => {
                or_end(session.close());
                session = or_end(store.open_session(life.id, &types()));
                // It is closed unless this life had written nothing before.
                assert!(session.log().recovery().closed || session.log().recovery().interrupted.is_empty());
            }
            Deed::Call(changes, well) => {
                let runner = runner(&session);
                let operation =
                    or_end(runner.begin(&ToolCall::new("write", "{}"), &ExecuteOptions::default()));
                child::tell("begun", operation.id());
                for change in changes {
                    child::tell("within", or_end(change.perform(operation.context().session())));
                }
                match well {
                    true => drop(or_end(operation.end(ToolResult::ok("done", 1)))),
                    false => drop(or_end(operation.fail(ToolError::failed("out of ink")))),
                }
            }
        }
        ends.push(session.log().position().unwrap());
        child::tell("done", session.log().position().unwrap());
    }
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// The output of a child until it was killed.
#[derive(Debug, Default)]
struct Heard {
    /// Number of open calls that it found, if it opened the session.
    open: Option<u64>,
    recovered: bool,
    done: u64,
    /// The call that had begun, and how many of its changes were acknowledged.
    begun: Option<u64>,
    within: u64,
    last: Option<u64>,
    /// Why the child exited on its own.
    failed: Option<String>,
}

impl Heard {
    fn take(&mut self, line: &str) {
        let Some((word, value)) = line.strip_prefix('@').and_then(|line| line.split_once(' ')) else {
            return;
        };
        if word == "failed" {
            self.failed = Some(value.to_owned());
            return;
        }
        let number: u64 = value.parse().unwrap_or_else(|error| panic!("{line:?}: {error}"));
        match word {
            "open" => self.open = Some(number),
            "recovered" => self.recovered = true,
            "begun" => self.begun = Some(number),
            "within" => self.within += 1,
            "done" => (self.done, self.begun, self.within) = (self.done + 1, None, 0),
            _ => return,
        }
        if word != "open" {
            self.last = Some(number);
        }
    }
}

/// The parent's model of a session.
struct Known {
    life: Life,
    now: Slices,
    open: bool,
    calls: u64,
    records: Vec<Remembered>,
}

/// A possible content of a session after a kill.
#[derive(Clone, Debug)]
struct Possible {
    slices: Slices,
    /// Number of calls that have ended in addition.
    calls: u64,
    open: bool,
    deeds: u64,
}

fn back(now: &Slices, then: &Slices) -> Slices {
    now.after(&Change::Rollback(0, Box::new(then.clone())))
}

impl Known {
    fn new(life: Life) -> Known {
        Known { life, now: Slices::default(), open: false, calls: 0, records: Vec::new() }
    }

    /// Returns all possible contents of the session after the kill: the acknowledged deeds, and
    /// parts of the next one.
    fn possible(&self, heard: &Heard) -> Vec<Possible> {
        let mut now = Possible { slices: self.now.clone(), calls: 0, open: self.open, deeds: 0 };
        let recovered = Possible { calls: u64::from(self.open), open: false, ..now.clone() };
        if !heard.recovered {
            return vec![now, recovered];
        }
        now = recovered;
        let mut ends = vec![now.slices.clone()];
        for place in self.life.first..self.life.first + heard.done {
            now = self.whole(now, place, &ends);
            ends.push(now.slices.clone());
        }
        let next = self.life.first + heard.done;
        let mut possible = vec![now.clone()];
        if heard.done < DEEDS_MAX {
            if let Deed::Call(changes, _) = deed(self.life.seed, next) {
                // The state while the call is open, for each part of it that may have been written.
                let mut inside = now.slices.clone();
                let mut parts = vec![inside.clone()];
                for change in &changes {
                    inside = inside.after(change);
                    parts.push(inside.clone());
                }
                let least = heard.within as usize;
                let parts = parts.into_iter().skip(least).map(|part| back(&part, &now.slices));
                let open = parts.map(|slices| Possible { slices, open: true, ..now.clone() });
                if heard.begun.is_some() {
                    possible.clear();
                }
                possible.extend(open);
            }
            possible.push(self.whole(now, next, &ends));
        }
        possible
    }

    fn whole(&self, now: Possible, place: u64, ends: &[Slices]) -> Possible {
        let Possible { mut slices, mut calls, deeds, .. } = now;
        match deed(self.life.seed, place) {
            Deed::Change(change) => slices = slices.after(&change),
            Deed::Back(by) => {
                slices = back(&slices, &ends[ends.len() - 1 - (by as usize).min(ends.len() - 1)])
            }
            Deed::Sync | Deed::Reopen => {}
            Deed::Call(changes, well) => {
                let then = slices.clone();
                slices = changes.iter().fold(slices, |slices, change| slices.after(change));
                calls += 1;
                if !well {
                    slices = back(&slices, &then);
                }
            }
        }
        Possible { slices, calls, open: false, deeds: deeds + 1 }
    }

    /// Compares the session of a killed child with the possible contents, and continues from the
    /// one found.
    fn check(&mut self, heard: &Heard) {
        let store = store_at(Path::new(&self.life.path), self.life.durability);
        let session = match store.open_session(self.life.id, &types()) {
            Ok(session) => session,
            Err(error) if heard.last.is_none() && self.life.first == 0 && heard.open.is_none() => {
                // The child was killed before it reported the session.
                assert!(store.summary(self.life.id).is_err(), "{error}");
                std::fs::remove_dir_all(store.session_dir(self.life.id)).unwrap_or_default();
                return;
            }
            Err(error) => panic!("{error}"),
        };
        if let Some(open) = heard.open {
            assert_eq!(open > 0, self.open, "the child finds what the parent found");
        }
        let last = session.log().position().unwrap();
        assert!(
            heard.last.is_none_or(|heard| heard <= last.get()),
            "{heard:?}, and there are records to {last}"
        );
        let slices = Slices::of(&session).unwrap();
        let calls = session.log().slice::<ToolInvocations>().unwrap().len();
        let possible = self.possible(heard);
        let found = possible.iter().find(|possible| {
            possible.slices == slices
                && self.calls + possible.calls == calls
                && possible.open == session.calls().is_interrupted()
        });
        let found = found.unwrap_or_else(|| {
            panic!("{heard:?}: {} are possible, and none has {calls} calls and {slices:?}", possible.len())
        });
        assert_eq!(session.calls().open_operations().len(), usize::from(found.open));
        if let (Some(begun), [open]) = (heard.begun, &session.calls().open_operations()[..]) {
            assert_eq!(open.operation, begun);
        }
        let found = found.clone();
        self.check_records(&session);
        let audit = foldlog::inspect::LogReader::open(session.dir()).unwrap();
        assert_eq!(audit.records_len(), last + 1);
        audit.check_seals().unwrap();
        (self.now, self.open, self.calls) = (found.slices, found.open, calls);
        self.life.first += found.deeds.max(u64::from(self.life.first == 0));
    }

    /// Checks that no record found before has changed or is missing.
    fn check_records(&mut self, session: &Session) {
        let mut sequence = 0;
        session
            .log()
            .records(0, u64::MAX, |record| {
                assert_eq!(record.sequence, sequence, "sequence numbers have no gaps");
                let (kind, time_us, body) = (record.kind, record.time_us, record.body.to_vec());
                let found = Remembered { kind, time_us, body };
                match self.records.get(sequence as usize) {
                    Some(known) => assert_eq!(*known, found, "record {sequence}"),
                    None => self.records.push(found),
                }
                sequence += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(sequence as usize, self.records.len(), "records that were there are gone");
        assert_eq!(self.records[0].kind, RecordKind::Opened);
    }
}

/// Runs a child to its end under `strace`, which makes some of its system calls fail.
fn live_traced(known: &mut Known, inject: &[String]) -> Heard {
    let tracer = ["strace", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null"].map(str::to_owned);
    let mut program: Vec<String> = tracer.into_iter().chain(inject.iter().cloned()).collect();
    if inject.is_empty() {
        program.clear();
    }
    let name = "failing::kills::part_of_a_child_that_is_killed_at_any_moment";
    let mut process = child::start_under(&program, name, &known.life.argument());
    let mut heard = Heard::default();
    while heard.done < DEEDS_MAX
        && let Some(line) = process.line()
    {
        heard.take(&line);
    }
    // The child waits for its input to end, unless it has exited on its own.
    process.passed();
    while let Some(line) = process.line() {
        heard.take(&line);
    }
    known.check(&heard);
    heard
}

/// Returns the options of `strace` that make a system call fail.
fn traced(call: &str, error: &str) -> [String; 4] {
    ["-e".to_owned(), format!("trace={call}"), "-e".to_owned(), format!("inject={call}:error={error}")]
}

/// Interruptible calls of the real file system are repeated: `EINTR` fails no call of a session.
#[test]
fn system_calls_that_are_interrupted_are_made_again() {
    if !child::is_traced_here() {
        return;
    }
    for (n, call) in
        ["fallocate", "msync", "fdatasync", "fsync", "pwrite64", "pread64"].into_iter().enumerate()
    {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display().to_string();
        let (id, durability) = (Uuid::from_u128(1), LEVELS[2 - n % 2]);
        let mut known = Known::new(Life { path, id, durability, seed: n as u64, first: 0 });
        let inject = traced(call, "EINTR:when=20+3");
        let heard = live_traced(&mut known, &inject);
        assert_eq!((heard.failed, heard.done), (None, DEEDS_MAX), "{call}");
    }
}

/// System calls of a real process on the real file system fail. A segment that cannot be mapped is
/// written all the same.
#[test]
fn system_calls_that_fail_cost_nothing_that_was_acknowledged() {
    if !child::is_traced_here() {
        return;
    }
    let calls = ["fallocate", "msync", "fdatasync", "fsync", "pwrite64", "rename", "mkdir"];
    let errors = ["EIO", "ENOSPC"];
    let cases: Vec<_> =
        calls.iter().flat_map(|call| errors.map(|error| (*call, error))).enumerate().collect();
    // An odd step, so that both errors are tried.
    let cases: Vec<_> = cases.into_iter().step_by(super::step(3)).collect();
    let mut failed = 0;
    for &(n, (call, error)) in &cases {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display().to_string();
        let (id, durability) = (Uuid::from_u128(1), LEVELS[n % 3]);
        let mut known = Known::new(Life { path, id, durability, seed: n as u64, first: 0 });
        // The same session, process after process, until one completes.
        for nth in [2, 5, 9, 1] {
            let inject = traced(call, &format!("{error}:when={nth}"));
            failed += usize::from(live_traced(&mut known, &inject).failed.is_some());
        }
        assert_eq!(live_traced(&mut known, &[]).done, DEEDS_MAX, "{call} {error}");
    }
    assert!(3 * failed > 2 * cases.len(), "{failed} of {}", cases.len());

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display().to_string();
    let id = Uuid::from_u128(1);
    let segment = |ordinal| format!("{path}/sessions/{id}/{ordinal:010}.seg");
    let segments = (0..40).flat_map(|ordinal| ["-P".to_owned(), segment(ordinal)]);
    let inject = traced("mmap", "ENOMEM");
    let mut known = Known::new(Life { path: path.clone(), id, durability: LEVELS[1], seed: 99, first: 0 });
    let heard = live_traced(&mut known, &segments.chain(inject).collect::<Vec<_>>());
    assert_eq!((heard.failed, heard.done), (None, DEEDS_MAX), "without a mapping");
}

/// `FOLDLOG_KILLS=count` sets the number of kills.
#[test]
fn processes_killed_at_any_moment_lose_nothing_that_they_acknowledged() {
    let kills = number_from("FOLDLOG_KILLS").unwrap_or(KILLS);
    let mut chance = Chance::new(kills);
    let directory = tempfile::tempdir().unwrap();
    let (mut known, mut acknowledged, mut open, mut unsaid) = (None::<Known>, 0, 0, 0);
    for kill in 0..kills {
        if kill % LIVES == 0 {
            let life = Life {
                path: directory.path().display().to_string(),
                id: Uuid::from_u128(u128::from(kill) + 1),
                durability: LEVELS[(kill / LIVES) as usize % 3],
                seed: kill,
                first: 0,
            };
            known = Some(Known::new(life));
        }
        let known = known.as_mut().unwrap();
        // Few lines: the child is killed while it opens or recovers. Many: after it has written
        // several segments.
        let lines = match chance.below(10) {
            0 => 0,
            1 | 2 => chance.below(8),
            3..=5 => chance.below(60),
            _ => chance.below(700),
        };
        let mut process = child::start(
            "failing::kills::part_of_a_child_that_is_killed_at_any_moment",
            &known.life.argument(),
        );
        let mut heard = Heard::default();
        for _ in 0..lines {
            let Some(line) = process.line() else { panic!("the child ended by itself: {heard:?}") };
            heard.take(&line);
            if heard.done == DEEDS_MAX {
                break;
            }
        }
        process.kill();
        while let Some(line) = process.line() {
            heard.take(&line);
        }
        known.check(&heard);
        acknowledged += heard.done;
        open += u64::from(known.open);
        unsaid += u64::from(heard.open.is_none());
    }
    println!(
        "{kills} killed: {acknowledged} deeds acknowledged, {open} within a call, {unsaid} before they had opened"
    );
    assert!(acknowledged > kills * 10, "{acknowledged}");
    assert!(open > kills / 40, "some are killed within a call: {open}");
}
