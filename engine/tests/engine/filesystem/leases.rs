//! One process at a time holds the lease of a workspace.

use std::time::{Duration, Instant};

use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions};
use foldlog_test_support::child;

use super::Bench;

const SOON: Duration = Duration::from_millis(30);
const LATER: Duration = Duration::from_secs(30);

#[test]
fn a_second_lease_waits_for_the_first_one_until_its_deadline() {
    let bench = Bench::new();
    let (one, other) = (bench.open(), bench.open());
    let lease = one.lease(Instant::now()).unwrap().unwrap();
    let begun = Instant::now();
    assert!(other.lease(begun + SOON).unwrap().is_none());
    assert!(begun.elapsed() >= SOON);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| other.lease(Instant::now() + LATER).unwrap().is_some());
        drop(lease);
        assert!(waiting.join().unwrap());
    });
    // Another workspace is not affected.
    let elsewhere = Bench::new();
    let _held = one.lease(Instant::now()).unwrap().unwrap();
    assert!(elsewhere.open().lease(Instant::now()).unwrap().is_some());
}

#[test]
fn another_process_holds_a_workspace_until_it_ends() {
    let bench = Bench::new();
    let mut holder =
        child::start("filesystem::leases::part_of_the_holder", &bench.directory.path().display().to_string());
    assert!(holder.hear("held").is_some());
    let files = bench.open();
    assert!(files.lease(Instant::now() + SOON).unwrap().is_none());
    holder.kill();
    assert!(files.lease(Instant::now() + LATER).unwrap().is_some());
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_the_holder() {
    let Some(directory) = child::argument() else { return };
    let directory = std::path::Path::new(&directory);
    let options = HostFilesystemOptions::default();
    let files = HostFilesystem::open(directory.join("workspace"), directory.join("store"), options).unwrap();
    let _lease = files.lease(Instant::now()).unwrap().unwrap();
    child::tell("held", "");
    // The parent kills this process while it waits for a line that never comes.
    let _ = std::io::stdin().read_line(&mut String::new());
}
