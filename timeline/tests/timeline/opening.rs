//! Opening a timeline for the first time, and next to entries that are no files.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use foldlog_timeline::{Result, Timeline, TimelinePlace};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::world::{World, ended, now, shell};

/// The hook in the background at a session's start and that of the first call created the timeline
/// with the same temporary file. The call was not recorded if the other one had renamed it.
#[test]
fn first_openings_at_the_same_time_succeed() {
    const THREADS: usize = 4;
    let world = World::new();
    for round in 0..25 {
        let root = world.root.join(round.to_string());
        fs::create_dir(&root).unwrap();
        let place = TimelinePlace::of_root(world.place.dir.parent().unwrap(), &root).unwrap();
        let barrier = Arc::new(Barrier::new(THREADS));
        let threads = (0..THREADS).map(|_| {
            let (place, barrier, options) = (place.clone(), Arc::clone(&barrier), world.options.clone());
            std::thread::spawn(move || {
                barrier.wait();
                // A reader finds either no timeline, or a whole one.
                let read = place.exists().then(|| Timeline::open_read_only(&place, &options).map(drop));
                Timeline::open(&place, &options).map(drop).and(read.unwrap_or(Ok(())))
            })
        });
        let threads: Vec<_> = threads.collect();
        let opened: Result<Vec<()>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        opened.unwrap();
        let left = fs::read_dir(&place.dir)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".new"));
        assert_eq!(left.count(), 0, "a temporary file remains");
    }
}

#[test]
fn a_pipe_instead_of_a_file_of_git_blocks_no_call() {
    for pipe in [".git", ".git/logs/HEAD", ".git/HEAD", "nested/.git"] {
        let world = World::new();
        let path = world.root.join(pipe);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if pipe == ".git/logs/HEAD" {
            world.write(".git/HEAD", "ref: refs/heads/main\n");
        }
        make_pipe(&path);
        in_time(pipe, move || {
            world.call("call", || world.write("new", "x"));
            world.undo(&[1]);
            assert_eq!(world.read("new"), None);
        });
    }
}

#[test]
fn a_pipe_instead_of_the_lock_is_an_error() {
    let world = World::new();
    drop(world.open());
    let lock = world.place.dir.join("lock");
    fs::remove_file(&lock).unwrap();
    make_pipe(&lock);
    in_time("lock", move || {
        let refused = Timeline::open(&world.place, &world.options).map(drop).unwrap_err().to_string();
        assert!(refused.contains("it is a pipe, not a regular file: move it away"), "{refused}");
    });
}

#[test]
fn a_root_that_was_killed_before_its_record_is_recorded_by_the_next_call() {
    let world = World::new();
    drop(world.open());
    // As after a kill between the creation of the session and the record of the root.
    fs::rename(world.place.dir.join("root"), world.place.dir.join("root.new")).unwrap();
    assert!(!world.place.exists());
    world.open().begin_call(shell("call", None), now()).unwrap();
    world.write("new", "x");
    world.open().end_call(shell("call", None), ended(), now()).unwrap();
    assert!(world.place.exists());
    world.undo(&[1]);
    assert_eq!(world.read("new"), None);
}

fn make_pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
}

/// Runs a part of a test that would wait forever if it opened a pipe.
fn in_time(name: &str, part: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        part();
        sender.send(()).unwrap();
    });
    match receiver.recv_timeout(Duration::from_secs(30)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{name} blocks"),
        _ => thread.join().unwrap(),
    }
}
