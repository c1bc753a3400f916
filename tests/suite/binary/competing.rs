//! Commands that read a session for which processes compete.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use foldlog::Durability;
use foldlog_test_support::child::{self, Started};
use foldlog_test_support::competing::{store_at, take_turns};
use foldlog_test_support::host::{StepAdded, types};
use foldlog_tests::verbs::foldlog;

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_competes() {
    let Some(argument) = child::argument() else { return };
    take_turns(&argument);
}

/// Verifies and folds the session repeatedly until the writers end.
fn read_on(dir: &Path, writing: &AtomicBool) -> u64 {
    let mut looks = 0;
    loop {
        let last_look = !writing.load(Ordering::Acquire);
        for verb in ["verify", "state"] {
            let ran = foldlog([verb.as_ref(), dir.as_os_str(), "--json".as_ref()]);
            assert_eq!(ran.code, 0, "look {looks}, {verb}: {}{}", ran.stdout, ran.stderr);
        }
        looks += 1;
        if last_look {
            return looks;
        }
    }
}

/// Makes processes compete for a session while it is read. `kills` times one of them is killed, and
/// another replaces it.
fn compete(processes: u64, openings: u64, kills: u64) {
    let directory = tempfile::tempdir().unwrap();
    let session = store_at(directory.path(), Durability::Boundary).create(&types()).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.dispatch(StepAdded { title: "begun".to_owned(), part: 0 }).unwrap();
    session.close().unwrap();
    let start = |process: u64, first: u64| {
        let argument = format!("{} {id} {process} {first} {openings}", directory.path().display());
        child::start("binary::competing::part_of_a_child_that_competes", &argument)
    };
    let writing = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| read_on(&dir, &writing));
        let mut children: Vec<Started> = (0..processes).map(|process| start(process, 0)).collect();
        for kill in 0..kills {
            let process = kill % processes;
            let child = &mut children[process as usize];
            child.hear("kept");
            child.kill();
            children[process as usize] = start(process, (kill + 1) * 1000);
        }
        for child in &mut children {
            while child.hear("kept").is_some() {}
            assert!(child.passed(), "its output is above");
        }
        writing.store(false, Ordering::Release);
        assert!(reading.join().unwrap() > 1);
    });
}

#[test]
fn a_session_that_processes_compete_for_is_sound_whenever_it_is_verified() {
    compete(4, 6, 0);
}

#[test]
fn a_session_whose_competing_writers_are_killed_is_sound_whenever_it_is_verified() {
    compete(3, 6, 6);
}
