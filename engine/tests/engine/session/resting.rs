//! Idle open sessions: the resources that each of them keeps, and how they continue.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use foldlog::log::SegmentSizes;
use foldlog::tools::{DynTool, ExecuteOptions, ToolCall, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{Durability, Error, ExecutionState, ResourceRegistry};
use serde_json::json;

use super::*;

const SESSIONS: usize = 150;

/// Returns the files and directories below a directory that this process has open, once per handle.
fn open_below(directory: &Path) -> Vec<PathBuf> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let paths = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    paths.filter(|path| path.starts_with(directory)).collect()
}

fn mapped_below(directory: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(directory.to_str().unwrap())).count()
}

fn small_segments(background: BackgroundSync) -> StoreOptions {
    StoreOptions {
        durability: Durability::Process,
        segments: SegmentSizes { first_bytes: 4096, max_bytes: 64 << 10, ahead_bytes_min: 0 },
        object_bytes_min: 3000,
        background,
        ..StoreOptions::default()
    }
}

/// Calls a tool, for which the session reserves the space that a recovery would need.
fn call(session: &Session) {
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build().unwrap());
    let put = DynTool::new("put", json!({"type": "object"}), |_, _| Ok(ToolResult::ok("put", ())));
    let runner = ToolRunner::new(state, ToolRegistry::new().with_dynamic(put));
    assert!(runner.execute(&ToolCall::new("put", "{}"), &ExecuteOptions::default()).unwrap().success);
}

/// An idle session once kept its last segment open and mapped, the space for a recovery, and each
/// seal written after the last sync: two handles or more for each of ten thousand sessions.
#[test]
fn each_of_many_sessions_that_rest_holds_one_handle_and_goes_on() {
    for background in [BackgroundSync::Inline, BackgroundSync::Thread] {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open_with(directory.path(), small_segments(background)).unwrap();
        let sessions: Vec<Session> = (0..SESSIONS).map(|_| store.create(&types()).unwrap()).collect();
        let write = |round: usize| {
            for (nth, session) in sessions.iter().enumerate() {
                session.dispatch(step(&format!("{nth}, {round}"))).unwrap();
                // Some have earlier segments, some an object, some a call.
                match nth % 4 {
                    1 => {
                        for _ in 0..5 {
                            session.dispatch(step(&"x".repeat(2000))).unwrap();
                        }
                    }
                    2 => {
                        session.dispatch(step(&"x".repeat(4000))).unwrap();
                    }
                    3 => call(session),
                    _ => {}
                }
            }
        };
        for round in 0..2 {
            write(round);
            for session in &sessions {
                session.rest().unwrap();
                assert!(!session.rest().unwrap(), "it rests already");
                assert_eq!(session.log().synced_end(), session.log().position().unwrap() + 1);
            }
            let open = open_below(directory.path());
            let directories: BTreeSet<&Path> = sessions.iter().map(Session::dir).collect();
            let others: Vec<&PathBuf> =
                open.iter().filter(|path| !directories.contains(path.as_path())).collect();
            assert_eq!((open.len() - others.len(), mapped_below(directory.path())), (SESSIONS, 0));
            // All sessions are locked through one file.
            assert_eq!(others.len(), 1, "{others:?}");
        }
        write(2);
        let known: Vec<_> = sessions.iter().map(|one| (one.id(), one.dynamic().state().unwrap())).collect();
        for (nth, session) in sessions.into_iter().enumerate() {
            if nth % 3 == 0 {
                session.rest().unwrap();
            }
            session.close().unwrap();
        }
        assert_eq!(open_below(directory.path()), Vec::<PathBuf>::new());
        for (id, state) in known {
            let session = store.open_session(id, &types()).unwrap();
            assert_eq!(session.dynamic().state().unwrap(), state);
            assert!(session.log().recovery().closed);
        }
    }
}

/// The background releases the handles of an idle session.
#[test]
fn a_session_that_nobody_writes_rests_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), small_segments(BackgroundSync::Thread)).unwrap();
    let session = store.create(&types()).unwrap();
    let open = || open_below(session.dir()).len();
    for round in 0..2 {
        session.dispatch(step(&format!("round {round}"))).unwrap();
        assert!(open() > 1, "it writes");
        while open() > 1 {
            std::thread::yield_now();
        }
    }
    assert_eq!(session.log().synced_end(), session.log().position().unwrap() + 1);
    let id = session.id();
    session.close().unwrap();
    let session = store.open_session(id, &types()).unwrap();
    assert_eq!(titles::<foldlog_test_support::host::Plan>(&session), ["round 0", "round 1"]);
}

#[test]
fn only_a_session_that_was_written_rests() {
    let home = home();
    let session = home.session();
    session.dispatch(step("written")).unwrap();
    let session = home.reopened(session, &types());
    assert!(!session.rest().unwrap(), "opening writes nothing");
    session.dispatch(step("and again")).unwrap();
    assert!(session.rest().unwrap());
    let other = session.clone();
    session.close().unwrap();
    assert!(matches!(other.rest(), Err(Error::Closed { .. })));
}
