//! Processes that compact, compress or collect a session on a real file system are killed one after
//! the other, at each system call that changes something.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use foldlog::inspect::LogReader;
use foldlog::log::SegmentSizes;
use foldlog::storage::FileStorage;
use foldlog::tools::RewindOptions;
use foldlog::{
    BackgroundSync, CollectOptions, CompactOptions, Compression, Durability, SequenceNumber, SliceState,
};
use foldlog_test_support::child;
use foldlog_test_support::host::{Draft, DraftEdited};
use foldlog_test_support::killed::{Call, calls, kill_at, quick_directory, step, tell_done};
use foldlog_test_support::room::{root, runner_in};

use super::*;

const PART: &str = "tools::old_logs_killed::part_of_a_child_that_makes_room";

/// A normal run kills at every n-th call.
const EVERY: usize = 7;

/// The operation during which a process is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Compact,
    Compress,
    Collect,
}

impl Act {
    const ALL: [Act; 3] = [Act::Compact, Act::Compress, Act::Collect];

    fn act(self, directory: &Path, id: Uuid) {
        let store = store_in(directory);
        let compression = Some(Compression::Zstd);
        match self {
            Act::Compact => drop(store.compact(id, &CompactOptions::default()).unwrap()),
            Act::Compress => {
                let compress = CompactOptions {
                    compression,
                    compress_bytes_min: Some(1024),
                    keep_bodies: true,
                    ..CompactOptions::default()
                };
                store.compact(id, &compress).unwrap();
            }
            Act::Collect => {
                let report = store.collect(&keeping()).unwrap();
                assert_eq!(report.skipped, BTreeMap::new());
            }
        }
    }
}

fn keeping() -> CollectOptions {
    CollectOptions { calls: 2, ..CollectOptions::default() }
}

fn store_in(directory: &Path) -> Store {
    let options = StoreOptions {
        durability: Durability::Process,
        // Every run has to make the same calls.
        storage: Arc::new(FileStorage::with_positioned_writes()),
        segments: SegmentSizes { first_bytes: 4096, max_bytes: 4096, ahead_bytes_min: 0 },
        object_bytes_min: 600,
        seed: Some(7),
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    Store::open_with(directory.join("store"), options).unwrap()
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_makes_room() {
    let Some(argument) = child::argument() else { return };
    let mut words = argument.splitn(3, ' ');
    let (name, id) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
    let act = Act::ALL.into_iter().find(|act| format!("{act:?}") == name).unwrap();
    act.act(Path::new(words.next().unwrap()), id);
    tell_done();
}

/// An old session, and its expected content.
struct Old {
    /// Directory of the workspace, and of the store during an act.
    now: PathBuf,
    /// The store before the act.
    kept: PathBuf,
    id: Uuid,
    /// Positions after its last calls, with the workspace's contents there.
    calls: Vec<(SequenceNumber, BTreeMap<String, String>)>,
    last: SequenceNumber,
    digest: [u8; 32],
    slices: BTreeMap<String, SliceState>,
}

fn files(directory: &Path) -> BTreeMap<String, String> {
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap())
    };
    fs::read_dir(root(directory)).unwrap().map(read).collect()
}

impl Old {
    /// A closed session of some calls and many edits; already compacted if its objects and captures
    /// are to be collected.
    fn before(act: Act, beneath: &Path) -> Old {
        let (now, kept) = (beneath.join("now"), beneath.join("kept"));
        fs::create_dir_all(root(&now)).unwrap();
        let session = store_in(&now).create(&types()).unwrap();
        let id = session.id();
        let runner = runner_in(&now, session.clone());
        let mut calls = Vec::new();
        for n in 0..6 {
            for edit in 0..12 {
                let line = format!("{n}, {edit}: {}", "and so on, ".repeat(if edit == 3 { 90 } else { 12 }));
                session.dispatch(DraftEdited { place: edit % 3, line }).unwrap();
            }
            let script = format!("printf {n} > page; printf {n} > only-{n}; rm -f only-{}", n - 1);
            let arguments = serde_json::json!({ "script": script, "fails": false }).to_string();
            runner.execute(&ToolCall::new("shell", arguments), &ExecuteOptions::default()).unwrap();
            calls.push((session.log().position().unwrap(), files(&now)));
        }
        drop(runner);
        session.close().unwrap();
        let calls = calls.split_off(4);
        if act == Act::Collect {
            let positions = calls.iter().map(|(position, _)| *position).collect();
            store_in(&now).compact(id, &CompactOptions { positions, ..CompactOptions::default() }).unwrap();
        }
        let audit = audit(&now, id);
        let (last, digest) = (audit.last_position(), audit.digest_through(audit.last_position()).unwrap());
        let slices = audit.state().unwrap().slices;
        fs::rename(now.join("store"), &kept).unwrap();
        Old { now, kept, id, calls, last, digest, slices }
    }

    /// Restores the store from before the act. The workspace must not be replaced, and has not
    /// changed.
    fn renewed(&self) {
        let store = self.now.join("store");
        let _ = fs::remove_dir_all(&store);
        // With the hard links.
        let copied = Command::new("cp").arg("-a").args([&self.kept, &store]).status().unwrap();
        assert!(copied.success());
    }

    fn argument(&self, act: Act) -> String {
        format!("{act:?} {} {}", self.id, self.now.display())
    }

    /// Checks that nothing is lost: with an auditor, with a process that continues, and with the
    /// act itself, which completes the interrupted one.
    fn look(&self, act: Act, call: &str) {
        self.is_whole(call);
        act.act(&self.now, self.id);
        self.is_whole(call);
        let left = names_beneath(&self.now.join("store"));
        let left: Vec<_> = left.iter().filter(|path| path.ends_with(".new")).collect();
        assert!(left.is_empty(), "{call}: {left:?}");
        if act == Act::Collect {
            let again = store_in(&self.now).collect(&CollectOptions { dry_run: true, ..keeping() }).unwrap();
            assert_eq!(
                (again.all.objects, again.all.captures, again.all.bytes),
                (0, 0, 0),
                "{call}: {again:?}"
            );
        }
        let session = store_in(&self.now).open_session(self.id, &types()).unwrap();
        let runner = runner_in(&self.now, session);
        if act == Act::Collect {
            let there = files(&self.now);
            for (at, files_then) in &self.calls {
                runner
                    .state()
                    .rewind(*at, &RewindOptions::default())
                    .unwrap_or_else(|error| panic!("{call}: {error}"));
                assert_eq!(&files(&self.now), files_then, "{call}");
                runner.state().undo_rewind(&RewindOptions::default()).unwrap();
                assert_eq!(files(&self.now), there, "{call}");
            }
        }
        let session = runner.state().session().clone();
        session.dispatch(DraftEdited { place: 0, line: "and on".to_owned() }).unwrap();
        session.close().unwrap();
    }

    fn is_whole(&self, call: &str) {
        let audit = audit(&self.now, self.id);
        assert_eq!(audit.digest_through(self.last).unwrap(), self.digest, "{call}");
        assert_eq!(audit.state().unwrap().slices, self.slices, "{call}");
        audit.check_seals().unwrap_or_else(|error| panic!("{call}: {error}"));
        // Reads the items that are objects.
        let draft = store_in(&self.now).open_read_only(self.id, &types()).unwrap();
        assert_eq!(draft.view::<Draft>().unwrap().len(), 3, "{call}");
    }
}

fn audit(directory: &Path, id: Uuid) -> LogReader {
    LogReader::open(directory.join("store/sessions").join(id.to_string())).unwrap()
}

fn names_beneath(directory: &Path) -> Vec<String> {
    let found = Command::new("find").arg(directory).output().unwrap();
    String::from_utf8(found.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn whatever_makes_room_and_is_killed_at_any_call_has_lost_nothing() {
    if !child::is_traced_here() {
        return;
    }
    for act in Act::ALL {
        let beneath = quick_directory();
        let old = Old::before(act, beneath.path());
        old.renewed();
        let calls: Vec<Call> = calls(PART, &old.argument(act), &old.now);
        assert!(calls.len() > 20, "{act:?}: {calls:?}");
        old.look(act, "whole");
        let tried: Vec<&Call> = calls.iter().step_by(step(EVERY)).collect();
        for call in &tried {
            old.renewed();
            assert!(kill_at(call, PART, &old.argument(act)).was_killed, "{act:?}: {call:?}");
            old.look(act, &format!("{act:?}, killed at {call:?}"));
        }
        println!("{act:?}: {} of {} calls", tried.len(), calls.len());
    }
}
