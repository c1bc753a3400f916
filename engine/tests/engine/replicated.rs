//! Replicated sessions: killed at each step that records replication, restored after a loss of
//! records, or rebuilt from the replica. Buckets are tested in the crate `foldlog-remote`.

use foldlog::storage::{CrashKind, Storage};
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{
    Durability, Error, ExecutionState, ResourceRegistry, Session, SessionOptions, SnapshotOptions, Store,
    StoreOptions,
};
use foldlog_test_support::crash::{BOOT, Machine, count, large_note, write_steps};
use foldlog_test_support::host::{Noted, types};
use foldlog_test_support::replica::MemoryReplica;
use uuid::Uuid;

const CRASHES: [CrashKind; 3] = [CrashKind::Process, CrashKind::PowerLosingAll, CrashKind::Power { seed: 7 }];

fn store(machine: &Machine, replica: &MemoryReplica) -> Store {
    let options = StoreOptions { replication: replica.option(), ..machine.options(Durability::Boundary) };
    Store::open_with("/home/store", options).unwrap()
}

fn plain(machine: &Machine) -> Store {
    let options = StoreOptions { unreplicated: false, ..machine.options(Durability::Boundary) };
    Store::open_with("/home/store", options).unwrap()
}

fn digest(machine: &Machine, id: Uuid) -> ([u8; 32], u64) {
    let log = machine.audit(id).unwrap();
    log.check_seals().unwrap();
    (log.digest_through(log.last_position()).unwrap(), log.records_len())
}

/// Returns a session on one machine, and on another a copy from before its last records.
fn lost(replica: &MemoryReplica) -> (Machine, Machine, Uuid) {
    let machine = Machine::default();
    let session = store(&machine, replica).create(&types()).unwrap();
    let id = session.id();
    write_steps(&session, 5);
    session.close().unwrap();
    let older = machine.copied(BOOT);
    let session = store(&machine, replica).open_session(id, &types()).unwrap();
    write_steps(&session, 20);
    session.dispatch(large_note(1)).unwrap();
    write_steps(&session, 20);
    session.close().unwrap();
    assert_eq!(replica.records_len(id), machine.audit(id).unwrap().records_len());
    (machine, older, id)
}

#[test]
fn a_log_that_gets_back_what_it_lost_holds_a_part_of_it_wherever_it_is_killed() {
    let replica = MemoryReplica::new("one");
    let (machine, older, id) = lost(&replica);
    let (all, before) = (digest(&machine, id), older.audit(id).unwrap().records_len());
    let mut kills = 0;
    older.killed_at_each_step(
        |_| CRASHES.to_vec(),
        |machine| {
            let session = store_of(machine, &replica)?.open_session(id, &types())?;
            session.close()
        },
        |machine, how| {
            kills += 1;
            let (_, records) = digest(machine, id);
            assert!(records >= before && records <= all.1, "{how}: {records}");
            // An opening without a replicator is refused throughout.
            let refused = plain(machine).open_session(id, &types());
            assert!(matches!(refused, Err(Error::Replicated { .. })), "{how}: {refused:?}");
            let session = store(machine, &replica).open_session(id, &types()).unwrap();
            assert_eq!(count(&session), all.1, "{how}");
            session.close().unwrap();
            assert_eq!(digest(machine, id), all, "{how}");
        },
    );
    assert!(kills > 20, "{kills}");
}

/// The state read for resuming a log omits most positions. A rollback to one of them was reported
/// as corruption, and the log kept part of the fetched records.
#[test]
fn a_log_gets_back_rollbacks_to_before_what_it_lost() {
    let replica = MemoryReplica::new("one");
    let machine = Machine::default();
    let session = store(&machine, &replica).create(&types()).unwrap();
    let id = session.id();
    write_steps(&session, 9);
    session.close().unwrap();
    let (older, copy) = (machine.copied(BOOT), machine.copied(BOOT));
    let before = older.audit(id).unwrap().records_len();
    let session = store(&machine, &replica).open_session(id, &types()).unwrap();
    for to in [5, 4, 7] {
        session.rollback_to(to).unwrap();
        write_steps(&session, 3);
    }
    session.close().unwrap();
    let all = digest(&machine, id);

    let pulled = store(&copy, &replica.named("another")).pull(id).unwrap();
    assert_eq!((pulled.records, digest(&copy, id)), (all.1, all));
    let session = store(&older, &replica).open_session(id, &types()).unwrap();
    assert_eq!(session.log().recovery().fetched, all.1 - before);
    session.close().unwrap();
    assert_eq!(digest(&older, id), all);
}

/// With a mistyped bucket or prefix, a superseded session continued in an empty one: a second
/// writer, whose epochs started again.
#[test]
fn a_session_goes_on_in_no_other_place_than_the_one_that_holds_it() {
    let (machine, first, other) = (Machine::default(), MemoryReplica::new("one"), MemoryReplica::new("one"));
    let session = store(&machine, &first).create(&types()).unwrap();
    let id = session.id();
    write_steps(&session, 5);
    session.close().unwrap();
    let before = digest(&machine, id);

    let asks = |replica: &MemoryReplica| {
        let (replication, unreplicated) = (replica.option(), false);
        let options = StoreOptions { replication, unreplicated, ..machine.options(Durability::Boundary) };
        Store::open_with("/home/store", options).unwrap()
    };
    let refused = asks(&other).open_session(id, &types()).unwrap_err();
    assert!(
        matches!(&refused, Error::ReplicaElsewhere { epoch: 1, held: 0, by, .. } if by == "one"),
        "{refused:?}"
    );
    assert_eq!((digest(&machine, id), other.records_len(id)), (before, 0));
    asks(&first).open_session(id, &types()).unwrap().close().unwrap();

    // An explicit option moves it, as the options of these machines do.
    store(&machine, &other).open_session(id, &types()).unwrap().close().unwrap();
    assert_eq!(other.records_len(id), machine.audit(id).unwrap().records_len());
    asks(&other).open_session(id, &types()).unwrap().close().unwrap();
}

#[test]
fn a_session_that_is_held_from_now_on_is_refused_from_the_moment_that_somebody_was_told() {
    let machine = Machine::default();
    let session = plain(&machine).create(&types()).unwrap();
    let id = session.id();
    write_steps(&session, 5);
    session.close().unwrap();
    let (_, before) = digest(&machine, id);
    let mut kills = 0;
    machine.killed_at_each_step(
        |_| CRASHES.to_vec(),
        |machine| {
            let session = store_of(machine, &MemoryReplica::new("one"))?.open_session(id, &types())?;
            // The replica has acknowledged: a power cut takes nothing back.
            machine.crash(CrashKind::PowerLosingAll);
            drop(session);
            let refused = plain(machine).open_session(id, &types());
            assert!(matches!(refused, Err(Error::Replicated { .. })), "{refused:?}");
            Ok(())
        },
        |machine, how| {
            kills += 1;
            let (_, records) = digest(machine, id);
            assert!(records == before || records == before + 1, "{how}: {records}");
            let opened = plain(machine).open_session(id, &types());
            assert_eq!(opened.is_err(), records > before, "{how}: {opened:?}");
        },
    );
    assert!(kills > 2, "{kills}");
}

#[test]
fn a_takeover_or_a_copy_that_is_killed_leaves_nothing_or_the_whole_session() {
    let replica = MemoryReplica::new("one");
    let (machine, _, id) = lost(&replica);
    let all = digest(&machine, id);
    let other = replica.named("two");
    for takes_over in [true, false] {
        let act = |store: &Store| match takes_over {
            true => store.take_over(id, &types()).and_then(Session::close),
            false => store.pull(id).map(|report| assert_eq!((report.records, report.new), (all.1, all.1))),
        };
        let mut whole = 0;
        Machine::default().killed_at_each_step(
            |_| CRASHES.to_vec(),
            |machine| act(&store_of(machine, &other)?),
            |machine, how| {
                let there = machine.audit(id);
                whole += u64::from(there.is_ok());
                if there.is_ok() {
                    assert_eq!(digest(machine, id).1, all.1, "{how}");
                    let session = store(machine, &other).open_session(id, &types()).unwrap();
                    assert_eq!(count(&session), all.1, "{how}");
                } else {
                    let session = store(machine, &other).take_over(id, &types()).unwrap();
                    assert_eq!(count(&session), all.1, "{how}");
                }
            },
        );
        assert!(whole > 0);
    }
}

#[test]
fn a_copy_is_brought_up_to_what_is_held_and_another_history_is_left_alone() {
    let replica = MemoryReplica::new("one");
    let (machine, older, id) = lost(&replica);
    let all = digest(&machine, id);
    let copy = Machine::default();
    let puller = store(&copy, &replica.named("a reader"));
    assert_eq!(puller.pull(id).unwrap().new, all.1);
    assert_eq!((digest(&copy, id), puller.pull(id).unwrap().new), (all, 0));
    // No writer was fenced by that.
    let session = store(&machine, &replica).open_session(id, &types()).unwrap();
    write_steps(&session, 3);
    session.close().unwrap();
    assert_eq!(puller.pull(id).unwrap().new, 3);
    assert_eq!(digest(&copy, id), digest(&machine, id));
    let refused = plain(&copy).open_session(id, &types());
    assert!(matches!(refused, Err(Error::Replicated { .. })), "{refused:?}");

    let session = older.open(id, Durability::Boundary).unwrap();
    write_steps(&session, 1);
    session.close().unwrap();
    let otherwise = digest(&older, id);
    let refused = store(&older, &replica.named("a reader")).pull(id);
    assert!(matches!(refused, Err(Error::Superseded { .. })), "{refused:?}");
    assert_eq!(digest(&older, id), otherwise);
}

fn store_of(machine: &Machine, replica: &MemoryReplica) -> Result<Store, Error> {
    let options = StoreOptions { replication: replica.option(), ..machine.options(Durability::Boundary) };
    Store::open_with("/home/store", options)
}

#[test]
fn records_of_another_writer_are_not_fetched() {
    let replica = MemoryReplica::new("one");
    let (_, older, id) = lost(&replica);
    let elsewhere = Machine::default();
    let other = store(&elsewhere, &replica.named("two")).take_over(id, &types()).unwrap();
    write_steps(&other, 1);
    other.close().unwrap();
    let before = digest(&older, id);
    let refused = store(&older, &replica).open_session(id, &types());
    assert!(matches!(refused, Err(Error::ReplicaAhead { .. })), "{refused:?}");
    assert_eq!(digest(&older, id), before);
}

#[test]
fn a_rollback_to_before_a_session_was_held_leaves_it_held() {
    let (machine, replica) = (Machine::default().with_images(), MemoryReplica::new("one"));
    let session = plain(&machine).create(&types()).unwrap();
    let id = session.id();
    write_steps(&session, 3);
    let before = session.snapshot(SnapshotOptions::default()).unwrap();
    session.close().unwrap();
    let session = store(&machine, &replica).open_session(id, &types()).unwrap();
    write_steps(&session, 3);
    session.rollback(&before).unwrap();
    write_steps(&session, 3);
    assert!(session.log().replicated_record().is_some());
    session.close().unwrap();
    let last = machine.audit(id).unwrap().last_position();
    // Read from an image, from all records, and along the live path.
    for images in [true, false] {
        let machine = machine.copied(BOOT);
        if !images {
            let dir = machine.dir(id).join("snapshots");
            let written: Vec<_> =
                machine.disk.files().into_iter().filter(|path| path.starts_with(&dir)).collect();
            assert!(!written.is_empty());
            written.iter().for_each(|path| machine.disk.remove_file(path).unwrap());
        }
        let refused = plain(&machine).open_session(id, &types());
        assert!(matches!(refused, Err(Error::Replicated { .. })), "{images}: {refused:?}");
    }
    let log = machine.audit(id).unwrap();
    assert!(log.replicated_record().is_some());
    let fork = store(&machine, &replica).fork(id, last, &types(), SessionOptions::default()).unwrap();
    assert!(fork.log().replicated_record().is_some());
}

#[test]
fn a_handler_runs_behind_a_begin_that_is_held() {
    let (machine, replica) = (Machine::default(), MemoryReplica::new("one"));
    let session = store(&machine, &replica).create(&types()).unwrap();
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    let runner = ToolRunner::new(state, ToolRegistry::new());
    let open = runner.begin(&ToolCall::new("send", "{}"), &ExecuteOptions::default()).unwrap();
    assert_eq!(replica.records_len(session.id()), count(&session));
    assert_eq!(open.context().fencing_token().epoch, Some(1));
    open.end(ToolResult::ok("sent", 1)).unwrap();
    assert_eq!(replica.records_len(session.id()), count(&session));
}

/// A host that notes two things in each of its processes.
fn host(session: &Session) -> foldlog::Result<()> {
    session.dispatch(Noted { text: "one".to_owned() })?;
    session.snapshot(SnapshotOptions::default())?;
    session.dispatch(Noted { text: "two".to_owned() })?;
    Ok(())
}

#[test]
fn a_host_is_run_again_over_a_log_that_says_that_it_is_held() {
    let (directory, replica) = (tempfile::tempdir().unwrap(), MemoryReplica::new("one"));
    let plain = Store::open(directory.path()).unwrap();
    let session = plain.create(&types()).unwrap();
    host(&session).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let options = StoreOptions { replication: replica.option(), ..StoreOptions::default() };
    let held = Store::open_with(directory.path(), options).unwrap();
    for _ in 0..2 {
        let session = held.open_session(id, &types()).unwrap();
        host(&session).unwrap();
        session.close().unwrap();
    }
    let session = held.create(&types()).unwrap();
    host(&session).unwrap();
    let other = session.dir().to_owned();
    session.close().unwrap();
    let replayed = foldlog_replay::assert_host_replays(&dir, &types(), |session| host(&session));
    assert_eq!(replayed.processes, 3);
    foldlog_replay::assert_host_replays(&other, &types(), |session| host(&session));
}

#[test]
fn who_holds_two_sessions_is_no_difference_between_them() {
    let machine = Machine::default();
    let logs = ["one", "two"].map(|name| {
        let session = store(&machine, &MemoryReplica::new(name)).create(&types()).unwrap();
        write_steps(&session, 2);
        let id = session.id();
        session.close().unwrap();
        machine.audit(id).unwrap()
    });
    let parting = logs[0].find_divergence(&logs[1]).unwrap();
    assert_eq!(parting.alike, logs[0].records_len());
}
