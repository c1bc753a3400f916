//! Hosts that run again over their logs. With the same code nothing differs; with changed code the
//! record, lane and path of the first difference are reported.

mod calls;
mod contexts;
mod damaged;
mod host;
mod large;
mod limits;
mod live;
mod planted;
mod processes;
mod raised;
mod refused;
mod subscribers;
mod workspaces;

use foldlog::SequenceNumber;
use foldlog::inspect::LogReader;
use foldlog::replay::Replay;
use foldlog_test_support::replayed_host::{Diary, Noted, Notes};

use self::host::{Host, Stored, types};

/// Returns the number of hosts to replay, which an environment variable can set.
fn seeds(default: u64) -> u64 {
    std::env::var("FOLDLOG_REPLAYS").ok().and_then(|count| count.parse().ok()).unwrap_or(default)
}

/// The lanes of a host run on separate threads, which yield at random: no two replays have the same
/// schedule.
#[test]
fn a_threaded_host_does_the_same_again_however_its_threads_are_scheduled() {
    let mut compared = 0;
    for seed in 0..seeds(16) {
        let host = Host::from_seed(seed);
        let stored = Stored::new();
        let session = stored.store().create(&types()).unwrap();
        host.run(&session, seed).unwrap();
        let log = LogReader::open(session.dir()).unwrap();
        for schedule in 1..=3 {
            let replay = Replay::new(&log, &types()).run(|session| host.run(&session, seed + schedule));
            let report = replay.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!((report.divergences.len(), report.processes), (0, 1), "seed {seed}");
            assert!(report.compared < report.records, "seed {seed}: what tools did comes from the log");
            compared += report.compared;
        }
    }
    println!("{compared} records compared");
}

#[test]
fn a_replay_reads_no_input_and_runs_no_tool_and_writes_nothing() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let host = Host::from_seed(5);
    host.run(&session, 1).unwrap();
    // Closed, so that none of its syncs writes meanwhile.
    let dir = session.dir().to_owned();
    session.close().unwrap();
    let before = stored.bytes();
    let (mail, ran) = (host.mail_read(), host.tools_run());
    assert!(mail > 0 && ran > 0, "the live host read {mail} letters and ran {ran} tools");
    let log = LogReader::open(dir).unwrap();
    Replay::new(&log, &types()).run(|session| host.run(&session, 2)).unwrap();
    assert_eq!((host.mail_read(), host.tools_run()), (mail, ran));
    assert!(stored.bytes() == before, "the store's files have changed");
}

#[test]
fn a_replay_sees_state_clock_and_numbers_as_the_live_host_did() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let look = |session: &foldlog::Session| -> foldlog::Result<Vec<String>> {
        let mut seen = Vec::new();
        for number in 0..4 {
            seen.push(session.inputs().now()?.to_rfc3339());
            seen.push(session.inputs().draw()?.to_string());
            session.dispatch(Noted::new(number, &format!("{number}")))?;
            if number == 1 {
                session.rollback_to(session.log().position().unwrap() - 3)?;
            }
            let notes = session.view::<Notes>()?;
            seen.push(notes.iter().map(|note| note.text.clone()).collect::<Vec<_>>().join(" "));
            seen.push(session.log().slice::<Diary>()?.len().to_string());
            seen.push(session.log().position().unwrap().to_string());
        }
        Ok(seen)
    };
    let live = look(&session).unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    let mut again = Vec::new();
    Replay::new(&log, &types()).run(|session| again = look(&session).unwrap()).unwrap();
    assert_eq!(again, live);
}

/// A position and the host's actions from there suffice: the start of a long log need not run
/// again.
#[test]
fn a_replay_begins_at_a_snapshot_and_ends_where_it_is_told_to() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let say = |session: &foldlog::Session, from: u64, to: u64| -> foldlog::Result<()> {
        (from..to).try_for_each(|number| session.dispatch(Noted::new(number, "n")).map(drop))
    };
    say(&session, 0, 10).unwrap();
    let snapshot = session.snapshot(foldlog::SnapshotOptions::with_tag("ten")).unwrap();
    say(&session, 10, 20).unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    let replay = Replay::new(&log, &types()).from(snapshot.position);
    let report = replay.clone().run(|session| say(&session, 10, 20)).unwrap();
    assert_eq!(report.compared, 10);
    let ended = std::cell::RefCell::new(Vec::new());
    let through = snapshot.position + 4;
    let report =
        replay.through(through).run(|session| ended.borrow_mut().push(say(&session, 10, 20))).unwrap();
    assert_eq!(report.compared, 4);
    let ended = ended.into_inner().pop().unwrap().unwrap_err();
    assert!(matches!(ended, foldlog::Error::ReplayEnded { position } if position == through), "{ended}");
    assert_eq!(SequenceNumber::from(log.records_len()), through + 7);
}

/// A rollback to a position that was not kept folds the log from its start: hundreds of them would
/// never end.
#[test]
fn a_replay_keeps_the_positions_to_which_the_host_will_roll_back() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let host = |session: &foldlog::Session| -> foldlog::Result<u64> {
        let mut seen = 0;
        for round in 0..60_u64 {
            let to = session.dispatch(Noted::new(round * 2, "kept"))?;
            (0..4).try_for_each(|number| session.dispatch(Noted::new(number * 2, "gone")).map(drop))?;
            session.rollback_to(to)?;
            seen += session.view::<Notes>()?.len();
        }
        Ok(seen)
    };
    let live = host(&session).unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    let mut again = 0;
    let report = Replay::new(&log, &types()).run(|session| again = host(&session).unwrap()).unwrap();
    assert_eq!((again, report.compared), (live, 360));
}
