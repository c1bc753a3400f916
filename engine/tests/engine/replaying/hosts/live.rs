//! Hosts that go live after a replay, in a fork.

use foldlog::inspect::LogReader;
use foldlog::replay::Replay;
use foldlog::{Session, SessionOptions};
use foldlog_test_support::replayed_host::{Diary, Noted};

use super::host::{Stored, types};

/// Writes the lines that are missing, as a resuming host does.
fn say(session: &Session, to: u64) -> foldlog::Result<()> {
    let said = session.log().slice::<Diary>()?.len();
    (said..to).try_for_each(|number| session.dispatch(Noted::new(number, "said")).map(drop))
}

fn bodies(session: &Session) -> Vec<Vec<u8>> {
    let log = LogReader::open(session.dir()).unwrap();
    let mut bodies = Vec::new();
    let own = log.opened_sequence();
    log.records(0, log.records_len() - 1, |record| {
        if record.sequence != own && record.sequence.get() > 0 {
            bodies.push(record.body.to_vec());
        }
        Ok(())
    })
    .unwrap();
    bodies
}

#[test]
fn a_fork_that_goes_live_writes_what_a_live_run_would_have_written_and_leaves_its_parent_alone() {
    let stored = Stored::new();
    let store = stored.store();
    let session = store.create(&types()).unwrap();
    say(&session, 10).unwrap();
    let through = session.log().position().unwrap() - 4;
    let (dir, whole) = (session.dir().to_owned(), bodies(&session));
    session.close().unwrap();
    let before = stored.bytes();
    let log = LogReader::open(&dir).unwrap();
    let mut calls = 0;
    let host = |session: Session| {
        calls += 1;
        say(&session, 10).map(|()| session)
    };
    let replay = Replay::new(&log, &types()).through(through);
    let fork = replay.go_live(&store, SessionOptions::default(), host).unwrap().unwrap();
    assert_eq!((calls, fork.replays()), (2, false));
    assert_eq!(fork.log().slice::<Diary>().unwrap().len(), 10);
    assert_eq!(bodies(&fork), whole, "the fork holds other records");
    let after = stored.bytes();
    let changed: Vec<_> = before.iter().filter(|(path, bytes)| after.get(*path) != Some(bytes)).collect();
    assert!(changed.is_empty(), "the parent's files have changed: {:?}", changed.len());
}

#[test]
fn nothing_goes_live_behind_a_replay_that_diverges() {
    let stored = Stored::new();
    let store = stored.store();
    let session = store.create(&types()).unwrap();
    say(&session, 3).unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    let host = |session: Session| session.dispatch(Noted::new(7, "otherwise")).map(drop);
    for replay in [Replay::new(&log, &types()), Replay::new(&log, &types()).all()] {
        let error = replay.go_live(&store, SessionOptions::default(), host).unwrap_err();
        assert!(matches!(error, foldlog::Error::Diverged(_)), "{error}");
    }
    assert_eq!(store.sessions().unwrap().len(), 1);
}
