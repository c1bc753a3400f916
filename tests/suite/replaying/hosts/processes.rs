//! Hosts of several processes, each of which is killed or closes its session.

use std::sync::Arc;

use foldlog::audit::LogReader;
use foldlog::replay::Replay;
use foldlog::{Session, SessionOptions, SystemClock};
use tempfile::TempDir;
use uuid::Uuid;

use super::host::{Noted, copy, store_in, types};

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Close,
    Kill,
}
use End::{Close, Kill};

/// Learns its process's number, and notes it three times.
fn three(session: &Session, process: u64) -> foldlog::Result<()> {
    let process: u64 = session.observe("process", || process)?;
    (0..3).try_for_each(|place| session.dispatch(Noted::new(10 * process + place, "in turn")).map(drop))
}

/// Runs one process after the other over one session, and returns the folder of its store, and its id.
fn lives(ends: &[End], host: &dyn Fn(&Session, u64) -> foldlog::Result<()>) -> (TempDir, Uuid) {
    let mut folder = tempfile::tempdir().unwrap();
    let mut id = None;
    for (process, end) in (0..).zip(ends) {
        let store = store_in(folder.path(), Arc::new(SystemClock));
        let session = match id {
            None => store.create(&types()).unwrap(),
            Some(id) => store.open_session(id, &types()).unwrap(),
        };
        id = Some(session.id());
        host(&session, process).unwrap();
        match end {
            Close => session.close().unwrap(),
            Kill => {
                let left = tempfile::tempdir().unwrap();
                let to = store_in(left.path(), Arc::new(SystemClock)).session_dir(session.id());
                copy(session.dir(), &to);
                folder = left;
            }
        }
    }
    (folder, id.unwrap())
}

/// A recovery rewrote what the killed process before it had written, and left the frame behind that said where that process began:
/// the host was called once too few, and what it had written as another process counted as missing.
#[test]
fn a_host_is_called_for_each_process_however_many_were_killed_one_after_the_other() {
    let stories: [&[End]; 6] = [
        &[Close, Kill, Close],
        &[Kill, Kill, Close],
        &[Kill, Kill, Kill, Kill],
        &[Close, Kill, Kill, Close, Kill],
        &[Close, Close, Kill],
        &[Kill, Close, Close],
    ];
    for ends in stories {
        let (folder, id) = lives(ends, &three);
        let log = LogReader::open(store_in(folder.path(), Arc::new(SystemClock)).session_dir(id)).unwrap();
        let replay = Replay::of(&log, &types()).run(|session| three(&session, 77));
        let report = replay.unwrap_or_else(|error| panic!("{ends:?}: {error}"));
        let all = ends.len() as u64;
        assert_eq!((report.processes, report.compared), (all, 4 * all), "{ends:?}");
    }
}

/// A process that recovered a session and wrote nothing else may itself be killed before its segment counts: the next recovery
/// learns from it alone where the others began.
#[test]
fn a_recovery_that_wrote_nothing_else_passes_on_where_the_processes_before_it_began() {
    let host = |session: &Session, process: u64| match process {
        2 | 3 => session.sync(),
        _ => three(session, process),
    };
    let (folder, id) = lives(&[Close, Kill, Kill, Kill, Kill, Close], &host);
    let log = LogReader::open(store_in(folder.path(), Arc::new(SystemClock)).session_dir(id)).unwrap();
    let report = Replay::of(&log, &types()).run(|session| three(&session, 77)).unwrap();
    assert_eq!((report.processes, report.compared), (4, 16));
}

/// The frames with which the parent's processes began, in the segments that a fork shares, passed for the fork's: their numbers are
/// those of the parent's log, and the fork's host was called for processes that never were.
#[test]
fn the_processes_of_a_forks_parent_are_not_the_forks() {
    let (folder, id) = lives(&[Kill, Close], &three);
    let store = store_in(folder.path(), Arc::new(SystemClock));
    let fork = store.fork(id, 1, &types(), SessionOptions::default()).unwrap();
    let host = |session: &Session| -> foldlog::Result<()> {
        (0..12).try_for_each(|number| session.dispatch(Noted::new(number, "in the fork")).map(drop))
    };
    host(&fork).unwrap();
    let dir = fork.dir().to_owned();
    fork.close().unwrap();
    let log = LogReader::open(dir).unwrap();
    let report = Replay::of(&log, &types()).run(|session| host(&session)).unwrap();
    assert_eq!((report.processes, report.compared), (1, 12));
}
