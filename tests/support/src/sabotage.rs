//! The tests detect faults: foldlog is broken deliberately, one way at a time, and the tests that
//! `docs/internals/breakages.md` lists for each way have to fail. Each runs in its own process,
//! since a breakage applies to a whole process.
//!
//! Tests whose names start with `engine::` or `persistence::` are those of the runner of that name,
//! all others those of the suite. Each runner runs its own tests.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// The heading above the table of breakages.
const HEADING: &str = "## Table";

/// The time limit of one process. A breakage that makes a test wait forever is not detected by it.
const PROCESS_MAX: Duration = Duration::from_secs(300);

/// Enough seeds for the crash simulator to reach the faults that only it can detect.
const CRASH_SEEDS: &str = "150";

/// A runner of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    Engine,
    Suite,
    /// The tests of long-running work.
    Persistence,
}

impl Runner {
    /// Returns the name of a listed test in this runner, or `None` if it belongs to another one.
    fn own_name(self, name: &str) -> Option<&str> {
        let (engine, persistence) = (name.strip_prefix("engine::"), name.strip_prefix("persistence::"));
        match self {
            Runner::Engine => engine,
            Runner::Persistence => persistence,
            Runner::Suite => engine.or(persistence).is_none().then_some(name),
        }
    }
}

#[derive(Debug)]
pub struct Row<'a> {
    /// The name that enables the breakage.
    pub breakage: &'a str,
    /// A description of the breakage.
    pub what: &'a str,
    tests: Vec<&'a str>,
}

pub fn table(page: &str) -> Vec<Row<'_>> {
    let section = page.split_once(HEADING).expect("the page has a table of breakages").1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [breakage, what, tests] = cells[..] else { panic!("a row has three cells: {line}") };
        let unquoted = |text: &'_ str| text.len() - text.trim_matches('`').len() == 2;
        assert!(tests.split(", ").chain([breakage]).all(unquoted), "names stand in backticks: {line}");
        let tests = tests.split(", ").map(|name| name.trim_matches('`')).collect();
        Row { breakage: breakage.trim_matches('`'), what, tests }
    })
    .collect()
}

/// Returns the rows that list tests of a runner, with only these tests, by their names in the
/// runner.
fn rows_of(page: &str, runner: Runner) -> Vec<Row<'_>> {
    let rows = table(page).into_iter().map(|row| {
        let tests = row.tests.into_iter().filter_map(|name| runner.own_name(name));
        Row { tests: tests.collect(), ..row }
    });
    rows.filter(|row| !row.tests.is_empty()).collect()
}

/// Returns the page with the table of breakages.
pub fn read_page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals/breakages.md");
    std::fs::read_to_string(path).expect("the docs have a page of breakages")
}

/// Runs each of these tests in its own process, and returns whether it passed, and its output. A
/// test that this machine cannot run proves nothing, and counts as failed with a breakage.
fn run(tests: &[&str], breakage: Option<&str>) -> (BTreeMap<String, bool>, String) {
    let skipped = tempfile::NamedTempFile::new().expect("a file can be made");
    let this = std::env::current_exe().expect("a test knows its binary");
    let mut command = Command::new(this);
    command.arg("--exact").args(tests).env_remove("FOLDLOG_SABOTAGE").env("RUST_BACKTRACE", "0");
    command.env("FOLDLOG_SKIPPED", skipped.path());
    command.env("FOLDLOG_CRASH_SEEDS", CRASH_SEEDS).stdout(Stdio::piped()).stderr(Stdio::null());
    breakage.map(|breakage| command.env("FOLDLOG_SABOTAGE", breakage));
    let mut process = command.spawn().expect("a process starts");
    let mut stdout = process.stdout.take().expect("its output is piped");
    let (ended, end) = mpsc::channel();
    let reading = std::thread::spawn(move || {
        let mut printed = Vec::new();
        let _ = stdout.read_to_end(&mut printed);
        let _ = ended.send(());
        String::from_utf8_lossy(&printed).into_owned()
    });
    let in_time = end.recv_timeout(PROCESS_MAX).is_ok();
    if !in_time {
        process.kill().expect("a child can be killed");
    }
    process.wait().expect("a child can be waited for");
    let printed = reading.join().expect("reading does not panic");
    assert!(in_time, "{breakage:?}: {tests:?} have not ended after {PROCESS_MAX:?}: {printed}");
    let ended = printed.lines().filter_map(|line| {
        let (name, how) = line.strip_prefix("test ")?.split_once(" ... ")?;
        Some((name.to_owned(), how == "ok"))
    });
    let mut ended: BTreeMap<String, bool> = ended.collect();
    if breakage.is_some() {
        let skipped = std::fs::read_to_string(skipped.path()).expect("the file of skipped tests is read");
        let names = skipped.lines().filter_map(|line| line.split_once(": "));
        ended.extend(names.map(|(name, _)| (name.to_owned(), false)));
    }
    (ended, printed)
}

/// Checks that the tests of a runner that detect breakages pass without a breakage, so that each
/// fails only because of its breakage.
pub fn assert_passing(runner: Runner) {
    let page = read_page();
    let rows = rows_of(&page, runner);
    let tests: BTreeSet<&str> = rows.iter().flat_map(|row| row.tests.iter().copied()).collect();
    let tests = Vec::from_iter(tests);
    // In chunks, each of which has its own time limit.
    for tests in tests.chunks(12) {
        let (ended, printed) = run(tests, None);
        for test in tests {
            assert_eq!(ended.get(*test), Some(&true), "{test}: {printed}");
        }
    }
}

/// Checks that the listed tests of a runner detect each breakage.
pub fn assert_caught(runner: Runner) {
    let page = read_page();
    let rows = rows_of(&page, runner);
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let missed = std::thread::scope(|scope| {
        let look =
            || {
                let mut missed = Vec::new();
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (ended, printed) = run(&row.tests, Some(row.breakage));
                    let caught = |test: &&str| ended.get(*test) == Some(&false);
                    missed.extend(row.tests.iter().filter(|test| !caught(test)).map(|test| {
                        format!("{}: {test} ended {:?}\n{printed}", row.breakage, ended.get(*test))
                    }));
                }
                missed
            };
        let looking: Vec<_> = (0..threads).map(|_| scope.spawn(look)).collect();
        let missed = looking.into_iter().flat_map(|looking| looking.join().expect("looking does not panic"));
        missed.collect::<Vec<String>>()
    });
    assert!(missed.is_empty(), "not caught:\n{}", missed.join("\n"));
}
