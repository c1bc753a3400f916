//! Opening a timeline next to entries that are no files.

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use foldlog_timeline::Timeline;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::world::World;

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
