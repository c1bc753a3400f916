//! Exports that are killed, one after the other, at each system call by which they change something; and writers beside each
//! other.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use foldlog_agent::persistence::{
    AtomicPersistence, CompressionAlgorithm, Error, SessionConfiguration, SessionState, StateComponent,
    StateCompression, Tree, TreeContents, TreeLimits, export_tree,
};
use foldlog_tests::child;
use uuid::Uuid;

use super::files::{all, by, import, tree_of};
use super::*;

/// The system calls that change a file system, or say that it is to be durable.
const CALLS: [&str; 9] =
    ["write", "rename", "renameat", "renameat2", "unlinkat", "mkdirat", "fsync", "fdatasync", "syncfs"];

/// In a normal run every so-manieth of these calls is killed at.
const EVERY: usize = 4;

/// A state with so many tasks' logs and so many windows, so that files come and go from one to the next.
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

/// Exports a version in a process of its own, traced; returns whether that came to its end.
fn exports_under(tracing: &[&str], version: u64, to: &Path) -> bool {
    let tracer = ["strace", "-f", "-qq"].iter().chain(tracing);
    let tracer: Vec<String> = tracer.map(|word| (*word).to_owned()).collect();
    let part = "files_killed::part_of_a_child_that_exports";
    child::start_under(&tracer, part, &format!("{version} {}", to.display())).passed()
}

/// Lists the calls by which an export over an older one changes something: by name and the how many-th it is, in order.
fn calls() -> Vec<(String, usize, String)> {
    let folder = tempfile::tempdir().unwrap();
    export(1, folder.path()).unwrap();
    let told = folder.path().join("traced");
    let trace = format!("trace={}", CALLS.map(|call| format!("?{call}")).join(","));
    assert!(exports_under(&["-y", "-o", told.to_str().unwrap(), "-e", &trace], 2, folder.path()));
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    let traced = fs::read_to_string(told).unwrap();
    let calls = traced.lines().filter_map(|line| {
        let (thread, rest) = line.split_once(' ')?;
        let (name, rest) = rest.trim_start().split_once('(')?;
        let count = counts.entry((thread.to_owned(), name.to_owned())).or_default();
        *count += 1;
        // What the harness itself writes is none of the export's.
        rest.contains(".aca").then(|| (name.to_owned(), *count, rest.to_owned()))
    });
    calls.collect()
}

/// Protects: whenever an export is killed, the tree before or the tree after is read, and the next export ends as if nothing had
/// happened. `FOLDLOG_EXPORTS=all` kills at every call.
#[test]
fn an_export_that_is_killed_at_any_call_leaves_the_old_tree_or_the_new_one() {
    if !child::is_traced_here() {
        return;
    }
    let calls = calls();
    assert!(calls.len() > 15, "{calls:?}");
    let sound = tempfile::tempdir().unwrap();
    export(2, sound.path()).unwrap();
    let every = if std::env::var_os("FOLDLOG_EXPORTS").is_some() { 1 } else { EVERY };
    let (mut old, mut new, mut finished) = (0, 0, 0);
    for (call, nth, _) in calls.iter().step_by(every) {
        let folder = tempfile::tempdir().unwrap();
        export(1, folder.path()).unwrap();
        let (trace, inject) = (format!("trace={call}"), format!("inject={call}:signal=KILL:when={nth}"));
        assert!(!exports_under(&["-o", "/dev/null", "-e", &trace, "-e", &inject], 2, folder.path()));
        let read = import(folder.path()).unwrap_or_else(|error| panic!("{call} {nth}: {error}")).state;
        match read.resource_usage.records {
            1 => old += usize::from(read == state(1)),
            _ => new += usize::from(read == state(2)),
        }
        let was_unfinished = Tree::open(folder.path(), TreeLimits::default()).unwrap().is_unfinished();
        finished += usize::from(was_unfinished);
        // Whoever comes next, with whatever it has.
        export(if nth % 2 == 0 { 1 } else { 2 }, folder.path()).unwrap();
        export(2, folder.path()).unwrap();
        assert_eq!(all(folder.path()), all(sound.path()), "{call} {nth}");
    }
    println!(
        "{old} old trees, {new} new ones, of which {finished} were to be finished, of {} calls",
        calls.len()
    );
    assert_eq!(old + new, calls.len().div_ceil(every));
    assert!(old > 0 && new > 0);
}

/// Protects: a power cut keeps the order. What the next manifest vouches for is synced before that manifest has its name, that
/// name is durable before any file takes its place, and all places before the manifest takes its own.
#[test]
fn files_are_durable_before_the_manifest_that_names_them() {
    if !child::is_traced_here() {
        return;
    }
    let calls = calls();
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
    for folder in ["logs/execution>", "/meta>"] {
        let of_folder = |rest: &str| rest.contains(folder);
        let change = last(&|call, rest| !is_sync(call) && of_folder(rest) && !manifest(rest)).unwrap();
        let synced = calls[change..own].iter().any(|(call, _, rest)| is_sync(call) && of_folder(rest));
        assert!(change < own && synced, "{folder}");
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

/// Protects: two processes that write one tree take turns, and none undoes what the other did elsewhere in it.
#[test]
fn one_process_writes_a_tree_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    export(1, folder.path()).unwrap();
    let argument = format!("{} {}", Uuid::from_u128(1), folder.path().display());
    let part = "files_killed::part_of_a_child_that_persists_often";
    let mut children = [child::start(part, &argument), child::start(part, &argument)];
    children.iter_mut().for_each(|child| drop(child.hear("begins")));
    let tree = AtomicPersistence::new(folder.path(), Uuid::from_u128(1), StateCompression::default());
    for version in 1..=10 {
        tree.persist_state(StateComponent::ResourceUsage, &state(version).resource_usage).unwrap();
        let read = import(folder.path()).unwrap().state;
        assert_eq!(read.resource_usage.records, version);
    }
    assert!(children.iter_mut().all(|child| child.passed()));
    let read = import(folder.path()).unwrap().state;
    assert_eq!((read.resource_usage.records, read.configuration.description.as_str()), (10, "24"));
    assert_eq!(read.execution_logs, state(1).execution_logs);
}

/// Protects: a session that dies in an export does not harm the one beside it, nor is it waited for.
#[test]
fn a_session_that_dies_in_an_export_does_not_disturb_the_one_beside_it() {
    if !child::is_traced_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut other = state(1);
    other.session_id = Uuid::from_u128(2);
    export_tree(&TreeContents::new(&other), folder.path(), &by(CompressionAlgorithm::None)).unwrap();
    let tracing = ["-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:signal=KILL:when=3"];
    assert!(!exports_under(&tracing, 1, folder.path()));
    let dir = tree_of(folder.path(), other.session_id);
    assert_eq!(import(&dir).unwrap().state, other);
    other.resource_usage.records = 9;
    export_tree(&TreeContents::new(&other), folder.path(), &by(CompressionAlgorithm::None)).unwrap();
    assert_eq!(import(&dir).unwrap().state, other);
    let dead = tree_of(folder.path(), Uuid::from_u128(1));
    assert!(matches!(import(&dead), Err(Error::NoTree { .. })), "its first tree never came to be");
    export(1, folder.path()).unwrap();
    assert_eq!(import(&dead).unwrap().state, state(1));
}
