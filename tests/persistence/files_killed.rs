//! Exports that are killed at each system call that changes something, one after the other; and
//! concurrent writers.

use std::path::Path;

use foldlog_tasks::{
    AtomicPersistence, CompressionAlgorithm, Error, SessionConfiguration, SessionState, SessionTree,
    StateComponent, StateCompression, TreeContents, TreeLimits, export_tree,
};
use foldlog_test_support::child;
use uuid::Uuid;

use super::files::{all, by, import, tree_of};
use super::*;
use foldlog_test_support::killed::{Call, calls, kill_at, step};

/// A normal run kills at every `EVERY`-th call of an export.
const EVERY: usize = 4;
const EVERY_FIRST: usize = 6;

const PART: &str = "files_killed::part_of_a_child_that_exports";

/// Returns a state whose numbers of tasks' logs and windows vary, so that files are created and
/// removed between versions.
fn state(version: u64) -> SessionState {
    let at = serde_json::from_value(format!("2026-01-02T03:00:{version:02}Z").into()).unwrap();
    let mut state = SessionState::empty(Uuid::from_u128(1), at);
    state.configuration.name = format!("version {version}");
    state.resource_usage.records = version;
    for number in version..version + 3 {
        state.execution_logs.tasks.insert(id(&format!("t{number}")), Vec::new());
    }
    state
}

fn export(version: u64, to: &Path) -> Result<(), Error> {
    let state = state(version);
    export_tree(&TreeContents::new(&state), to, &by(CompressionAlgorithm::None)).map(drop)
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_exports() {
    let Some(argument) = child::argument() else { return };
    let (version, to) = argument.split_once(' ').unwrap();
    export(version.parse().unwrap(), Path::new(to)).unwrap();
}

fn argument(version: u64, to: &Path) -> String {
    format!("{version} {}", to.display())
}

/// Returns the calls that change something in an export over an older one, or in a first one.
fn calls_of_export(before: Option<u64>) -> Vec<Call> {
    let directory = quick_directory();
    before.into_iter().for_each(|version| export(version, directory.path()).unwrap());
    calls(PART, &argument(2, directory.path()), directory.path())
}

/// After a kill, either the old or the new tree is read, and the next export ends as if nothing had
/// happened.
#[test]
fn an_export_that_is_killed_at_any_call_leaves_the_old_tree_or_the_new_one() {
    if !child::is_traced_here() {
        return;
    }
    let calls = calls_of_export(Some(1));
    assert!(calls.len() > 15, "{calls:?}");
    let sound = quick_directory();
    export(2, sound.path()).unwrap();
    let tried: Vec<&Call> = calls.iter().step_by(step(EVERY)).collect();
    let (mut old, mut new, mut finished) = (0, 0, 0);
    for call in &tried {
        let directory = quick_directory();
        export(1, directory.path()).unwrap();
        assert!(kill_at(call, PART, &argument(2, directory.path())).was_killed, "{call:?}");
        let read = import(directory.path()).unwrap_or_else(|error| panic!("{call:?}: {error}")).state;
        match read.resource_usage.records {
            1 => old += usize::from(read == state(1)),
            _ => new += usize::from(read == state(2)),
        }
        let was_unfinished =
            SessionTree::open(directory.path(), TreeLimits::default()).unwrap().is_unfinished();
        finished += usize::from(was_unfinished);
        // The next export, with either state.
        export(if call.nth % 2 == 0 { 1 } else { 2 }, directory.path()).unwrap();
        export(2, directory.path()).unwrap();
        assert_eq!(all(directory.path()), all(sound.path()), "{call:?}");
    }
    println!(
        "{} exports killed at {} calls: {old} old trees, {new} new ones, of which {finished} were to be finished",
        tried.len(),
        calls.len()
    );
    assert_eq!(old + new, tried.len());
    assert!(old > 0 && new > 0);
}

/// After a kill of a first export, the tree is either whole, or reported as missing.
#[test]
fn a_first_export_that_is_killed_at_any_call_leaves_no_tree_or_the_whole_one() {
    if !child::is_traced_here() {
        return;
    }
    let calls = calls_of_export(None);
    assert!(calls.len() > 15, "{calls:?}");
    let sound = quick_directory();
    export(2, sound.path()).unwrap();
    let tried: Vec<&Call> = calls.iter().step_by(step(EVERY_FIRST)).collect();
    let (mut none, mut whole) = (0, 0);
    for call in &tried {
        let directory = quick_directory();
        assert!(kill_at(call, PART, &argument(2, directory.path())).was_killed, "{call:?}");
        match import(directory.path()) {
            Err(Error::NoTree { .. }) => none += 1,
            Ok(read) => whole += usize::from(read.state == state(2)),
            Err(error) => panic!("{call:?}: {error}"),
        }
        export(2, directory.path()).unwrap();
        assert_eq!(all(directory.path()), all(sound.path()), "{call:?}");
    }
    println!(
        "{} first exports killed at {} calls: {none} times no tree, {whole} whole ones",
        tried.len(),
        calls.len()
    );
    assert_eq!(none + whole, tried.len());
    assert!(none > 0 && whole > 0);
}

/// A power cut must keep the order. Files named by the next manifest are synced before that
/// manifest has its name. That name is durable before any file is put in place, and all files are
/// in place before the manifest is.
#[test]
fn files_are_durable_before_the_manifest_that_names_them() {
    if !child::is_traced_here() {
        return;
    }
    let calls: Vec<(String, usize, String)> =
        calls_of_export(Some(1)).into_iter().map(|call| (call.name, call.nth, call.text)).collect();
    let place = |what: &str, is: &dyn Fn(&str, &str) -> bool| {
        let found = calls.iter().position(|(call, _, rest)| is(call, rest));
        found.unwrap_or_else(|| panic!("{what}: {calls:#?}"))
    };
    let last = |is: &dyn Fn(&str, &str) -> bool| calls.iter().rposition(|(call, _, rest)| is(call, rest));
    let is_sync = |call: &str| ["fsync", "fdatasync", "syncfs"].contains(&call);
    let is_rename = |call: &str| call.starts_with("rename");
    let manifest = |rest: &str| rest.contains("checkpoint_manifest");
    let next = place("the next manifest", &|call, rest| is_rename(call) && rest.contains(".json.next"));
    let staged_write = last(&|call, rest| call == "write" && rest.contains(".json.new>") && !manifest(rest));
    let written: Vec<&str> = calls
        .iter()
        .filter(|(call, _, rest)| call == "write" && rest.contains(".json.new>"))
        .map(|(_, _, rest)| rest.split_once('<').unwrap().1.split_once('>').unwrap().0)
        .collect();
    for path in written {
        let synced = place(path, &|call, rest| is_sync(call) && rest.contains(path));
        assert!(synced < next, "{path}");
    }
    assert!(staged_write.unwrap() < next);
    let taken =
        place("a file", &|call, rest| is_rename(call) && rest.contains(".json.new") && !manifest(rest));
    let removed = place("a file that leaves", &|call, rest| call == "unlinkat" && rest.contains("task_t1"));
    let named = calls[next..taken].iter().any(|(call, _, rest)| is_sync(call) && rest.contains("/meta>"));
    assert!(named && next < taken && next < removed, "the name of the next manifest is durable first");
    let own = last(&|call, rest| is_rename(call) && rest.contains(".json.next")).unwrap();
    for directory in ["logs/execution>", "/meta>"] {
        let of_directory = |rest: &str| rest.contains(directory);
        let change = last(&|call, rest| !is_sync(call) && of_directory(rest) && !manifest(rest)).unwrap();
        let synced = calls[change..own].iter().any(|(call, _, rest)| is_sync(call) && of_directory(rest));
        assert!(change < own && synced, "{directory}");
    }
    assert!(is_sync(&calls.last().unwrap().0), "and so is the manifest's own, at the end");
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_persists_often() {
    let Some(argument) = child::argument() else { return };
    let (session, to) = argument.split_once(' ').unwrap();
    let tree = AtomicPersistence::new(to, session.parse().unwrap(), StateCompression::default());
    child::tell("begins", "now");
    let name = format!("of process {}", std::process::id());
    for number in 0..25 {
        let description = number.to_string();
        let name = name.clone();
        let configuration = SessionConfiguration { name, description, ..SessionConfiguration::default() };
        tree.persist_state(StateComponent::Configuration, &configuration).unwrap();
    }
}

/// Neither process may undo the other's changes elsewhere in the tree.
#[test]
fn one_process_writes_a_tree_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    export(1, directory.path()).unwrap();
    let argument = format!("{} {}", Uuid::from_u128(1), directory.path().display());
    let part = "files_killed::part_of_a_child_that_persists_often";
    let mut children = [child::start(part, &argument), child::start(part, &argument)];
    children.iter_mut().for_each(|child| drop(child.hear("begins")));
    let tree = AtomicPersistence::new(directory.path(), Uuid::from_u128(1), StateCompression::default());
    for version in 1..=10 {
        tree.persist_state(StateComponent::ResourceUsage, &state(version).resource_usage).unwrap();
        let read = import(directory.path()).unwrap().state;
        assert_eq!(read.resource_usage.records, version);
    }
    assert!(children.iter_mut().all(|child| child.passed()));
    let read = import(directory.path()).unwrap().state;
    assert_eq!((read.resource_usage.records, read.configuration.description.as_str()), (10, "24"));
    assert_eq!(read.execution_logs, state(1).execution_logs);
}

/// The other session is neither damaged nor delayed.
#[test]
fn a_session_that_dies_in_an_export_does_not_disturb_the_one_beside_it() {
    if !child::is_traced_here() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut other = state(1);
    other.session_id = Uuid::from_u128(2);
    export_tree(&TreeContents::new(&other), directory.path(), &by(CompressionAlgorithm::None)).unwrap();
    let third = Call { name: "fsync".to_owned(), nth: 3, text: String::new() };
    assert!(kill_at(&third, PART, &argument(1, directory.path())).was_killed);
    let dir = tree_of(directory.path(), other.session_id);
    assert_eq!(import(&dir).unwrap().state, other);
    other.resource_usage.records = 9;
    export_tree(&TreeContents::new(&other), directory.path(), &by(CompressionAlgorithm::None)).unwrap();
    assert_eq!(import(&dir).unwrap().state, other);
    let dead = tree_of(directory.path(), Uuid::from_u128(1));
    assert!(matches!(import(&dead), Err(Error::NoTree { .. })), "its first tree never came to be");
    export(1, directory.path()).unwrap();
    assert_eq!(import(&dead).unwrap().state, state(1));
}
