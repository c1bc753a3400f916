//! Forks and compacted sessions rebuilt from a replica: killed at every step, and with missing
//! parts. What happens to them afterwards is tested in the crate `foldlog-remote`.

use foldlog::replication::Replicator;
use foldlog::storage::{CrashKind, Fault, Op};
use foldlog::{CompactOptions, Durability, Error, RecordKind, Session, SessionOptions, Store, StoreOptions};
use foldlog_codec::body::{DROPPED_BODIES, Observed};
use foldlog_test_support::crash::{BOOT, Machine, count, large_note, write_steps};
use foldlog_test_support::host::{Notes, Plan, StepAdded, types};
use foldlog_test_support::replica::MemoryReplica;
use uuid::Uuid;

fn store_of(machine: &Machine, replica: Option<&MemoryReplica>) -> Result<Store, Error> {
    let replication = replica.and_then(MemoryReplica::option);
    let options = StoreOptions { replication, ..machine.options(Durability::Boundary) };
    Store::open_with("/home/store", options)
}

fn store(machine: &Machine, replica: Option<&MemoryReplica>) -> Store {
    store_of(machine, replica).unwrap()
}

/// Records steps and rolls some back, so that a compaction drops their bodies.
fn write(session: &Session) {
    for part in 0..4 {
        session.dispatch(StepAdded { title: "stays".repeat(40), part }).unwrap();
        let before = session.log().position().unwrap();
        for _ in 0..5 {
            session.dispatch(StepAdded { title: "goes".repeat(50), part }).unwrap();
        }
        session.rollback_to(before).unwrap();
    }
    session.dispatch(large_note(1)).unwrap();
}

/// Returns a machine with a completely replicated session: a fork of a fork, whose first was
/// compacted, or one compacted session.
fn held(replica: &MemoryReplica, forks: bool) -> (Machine, Uuid) {
    let machine = Machine::default();
    let first = store(&machine, None).create(&types()).unwrap();
    write(&first);
    let mut id = first.id();
    first.close().unwrap();
    let report = store(&machine, None).compact(id, &CompactOptions::default()).unwrap();
    assert!(report.dropped >= 15, "{report:?}");
    if forks {
        for _ in 0..2 {
            let last = machine.audit(id).unwrap().last_position();
            let fork = store(&machine, None).fork(id, last, &types(), SessionOptions::default()).unwrap();
            write_steps(&fork, 2);
            id = fork.id();
            fork.close().unwrap();
        }
    }
    let session = store(&machine, Some(replica)).open_session(id, &types()).unwrap();
    write_steps(&session, 2);
    session.close().unwrap();
    (machine, id)
}

/// Returns the content of a log: its records, its origin, and its state at the end and at each
/// known position.
fn content(machine: &Machine, id: Uuid) -> (u64, [u8; 32], Vec<Option<[u8; 32]>>) {
    let log = machine.audit(id).unwrap();
    log.check_seals().unwrap();
    let last = log.last_position();
    let states = (0..=last.get()).map(|at| log.state_reader_at(at).ok().map(|state| state.digest().unwrap()));
    (log.records_len(), log.digest_through(last).unwrap(), states.collect())
}

#[test]
fn a_session_of_any_lineage_that_is_made_anew_and_killed_is_whole_or_not_there() {
    for forks in [true, false] {
        let replica = MemoryReplica::new("one");
        let (machine, id) = held(&replica, forks);
        let (records, digest, known) = content(&machine, id);
        let other = replica.named("two");
        let mut kills = 0;
        Machine::default().killed_at_each_step(
            |_| vec![CrashKind::Process, CrashKind::PowerLosingAll],
            |machine| store_of(machine, Some(&other))?.take_over(id, &types())?.close(),
            |machine, how| {
                kills += 1;
                let session = match machine.audit(id) {
                    Ok(_) => store(machine, Some(&other)).open_session(id, &types()),
                    Err(_) => store(machine, Some(&other)).take_over(id, &types()),
                };
                let session = session.unwrap_or_else(|error| panic!("{forks}, {how}: {error}"));
                assert_eq!(
                    (count(&session), session.log().slice::<Notes>().unwrap().len()),
                    (records, 1),
                    "{how}"
                );
                session.close().unwrap();
                let (_, made, states) = content(machine, id);
                assert_eq!(made, digest, "{forks}, {how}");
                // Before the first missing body, more positions are known than in the original.
                let differs = known.iter().zip(&states).any(|(own, made)| own.is_some() && own != made);
                assert!(!differs && states.iter().any(Option::is_none), "{forks}, {how}");
            },
        );
        assert!(kills > 20, "{kills}");
    }
}

/// The `opened` record of a fork without other records started a segment twice, before the record
/// and with it, and the segment between was empty. The replica of a fork of such a fork could not
/// be read back.
#[test]
fn a_fork_of_a_fork_that_has_no_record_but_its_first_is_made_anew() {
    for (is_compacted, forks, is_salvaged) in
        [(false, 2, false), (false, 3, false), (false, 1, true), (false, 3, true), (true, 3, false)]
    {
        let case = format!("{is_compacted}, {forks}, {is_salvaged}");
        let (machine, replica) = (Machine::default(), MemoryReplica::new("one"));
        let plain = store(&machine, None);
        let first = plain.create(&types()).unwrap();
        write(&first);
        let mut id = first.id();
        first.close().unwrap();
        if is_compacted {
            plain.compact(id, &CompactOptions::default()).unwrap();
        }
        for _ in 0..forks {
            let last = machine.audit(id).unwrap().last_position();
            let fork = plain.fork(id, last, &types(), SessionOptions::default()).unwrap();
            id = fork.id();
            fork.close().unwrap();
        }
        if is_salvaged {
            id = plain.salvage(plain.session_dir(id), SessionOptions::default()).unwrap().session;
        }
        drop(plain);
        store(&machine, Some(&replica)).open_session(id, &types()).unwrap().close().unwrap();
        let own = content(&machine, id);

        let (reader, two, three) = (Machine::default(), Machine::default(), Machine::default());
        let pulled = store(&reader, Some(&replica.named("reader"))).pull(id);
        assert_eq!(
            pulled.map(|report| report.records).map_err(|error| error.to_string()),
            Ok(own.0),
            "{case}"
        );
        let made = content(&reader, id);
        assert_eq!((made.0, made.1), (own.0, own.1), "{case}");
        assert!(is_compacted || made.2 == own.2, "{case}");
        for (machine, name) in [(&two, "two"), (&three, "three")] {
            let taken = store(machine, Some(&replica.named(name))).take_over(id, &types()).unwrap();
            write_steps(&taken, 2);
            taken.close().unwrap();
        }
        let last = content(&three, id);
        assert_eq!((last.0, &last.2[..own.2.len()]), (replica.records_len(id), &made.2[..]), "{case}");
    }
}

#[test]
fn a_compacted_session_of_which_not_all_is_held_is_not_made_of_it() {
    let replica = MemoryReplica::new("one");
    let (_, id) = held(&replica, false);
    let whole = Machine::default();
    let session = store(&whole, Some(&replica.named("two"))).take_over(id, &types()).unwrap();
    let kept = session.view::<Plan>().unwrap().len();
    assert_eq!(kept, 6);
    session.close().unwrap();
    // A machine was lost while it replicated the session, within the compacted range.
    let all = replica.records_len(id);
    let compacted = whole.audit(id).unwrap().compacted_ranges();
    let [range] = &compacted[..] else { panic!("{compacted:?}") };
    for held in [range.from.get() + 1, range.through.get()] {
        let part = replica.cut(id, held);
        let other = Machine::default();
        let refused = store(&other, Some(&part.named("two"))).take_over(id, &types()).unwrap_err();
        assert!(
            matches!(&refused, Error::ReplicaFailed { reason, .. } if reason.contains("only part of")),
            "{refused:?}"
        );
        assert!(store(&other, None).session_ids().unwrap().is_empty());
        // If its writer lives, it continues.
        assert_eq!(part.read(id, &mut |_| {}).unwrap().epoch, 0);
    }
    for held in [range.from.get(), range.through.get() + 1, all] {
        let part = replica.cut(id, held);
        let other = Machine::default();
        let taken = store(&other, Some(&part.named("two"))).take_over(id, &types()).unwrap();
        taken.close().unwrap();
        assert_eq!(
            other.audit(id).unwrap().check_seals().map(drop).map_err(|error| error.to_string()),
            Ok(())
        );
    }
    // As an earlier version replicated it.
    let other = Machine::default();
    let refused = store(&other, Some(&replica.without_objects(id).named("two"))).take_over(id, &types());
    assert!(matches!(&refused, Err(Error::ReplicaFailed { .. })), "{refused:?}");
}

/// The preallocation of a segment raced with the cleanup of a failed takeover, and the directory
/// stayed.
#[test]
fn nothing_is_made_any_more_in_the_directory_of_a_takeover_that_failed() {
    let mut made = 0;
    for steps in 1..60 {
        let (machine, replica) = (Machine::default(), MemoryReplica::new("one"));
        let session = store(&machine, Some(&replica)).create(&types()).unwrap();
        let id = session.id();
        write_steps(&session, steps);
        session.dispatch(large_note(1)).unwrap();
        session.close().unwrap();
        let other = Machine::default();
        let taker = store(&other, Some(&replica.without_objects(id).named("two")));
        // Lets the cleanup fail, so that its directory can be inspected.
        other.disk.inject(Fault::FailNth { op: Op::RemoveDirAll, nth: 1, error: std::io::ErrorKind::Other });
        assert!(matches!(taker.take_over(id, &types()), Err(Error::ReplicaFailed { .. })));
        other.disk.clear_faults();
        let building =
            other.disk.files().into_iter().filter(|path| path.extension().is_some_and(|end| end == "seg"));
        for path in building {
            made += 1;
            assert!(other.disk.read_file(&path).unwrap().starts_with(b"FOLDLOG\n"), "{steps}: {path:?}");
        }
        // The next takeover removes it.
        store(&other, Some(&replica.named("two"))).take_over(id, &types()).unwrap().close().unwrap();
        assert_eq!(other.copied(BOOT).audit(id).unwrap().records_len(), replica.records_len(id));
    }
    assert!(made > 60, "{made}");
}

/// Returns the names of a log's observations, and the records whose bodies are missing.
fn said_and_dropped(machine: &Machine, id: Uuid) -> (Vec<String>, Vec<u64>) {
    let (mut said, mut dropped) = (Vec::new(), Vec::new());
    let log = machine.audit(id).unwrap();
    log.records(0, log.last_position(), |record| {
        match record.kind {
            RecordKind::Observed => said.push(Observed::decode(record.body).unwrap().name),
            RecordKind::Dropped => dropped.push(record.sequence.get()),
            _ => {}
        }
        Ok(())
    })
    .unwrap();
    said.retain(|name| name == DROPPED_BODIES);
    (said, dropped)
}

#[test]
fn what_a_compaction_dropped_of_what_is_held_is_said_and_nobody_goes_back_behind_it() {
    for is_open in [false, true] {
        let (machine, replica) = (Machine::default(), MemoryReplica::new("one"));
        let here = store(&machine, Some(&replica));
        let session = here.create(&types()).unwrap();
        write(&session);
        let id = session.id();
        let compacted = match is_open {
            true => {
                session.sync().unwrap();
                let report = session.log().compact(&CompactOptions::default()).unwrap();
                session.close().unwrap();
                report
            }
            false => {
                session.close().unwrap();
                here.compact(id, &CompactOptions::default()).unwrap()
            }
        };
        assert!(compacted.dropped >= 15, "{compacted:?}");
        let (said, dropped) = said_and_dropped(&machine, id);
        assert_eq!((said.len(), dropped.len() as u64), (1, compacted.dropped), "{is_open}");
        // It is recorded once only.
        here.open_session(id, &types()).unwrap().close().unwrap();
        assert_eq!(said_and_dropped(&machine, id).0.len(), 1, "{is_open}");

        // The replica still has the bodies, and so has a session that is taken over now.
        let other = Machine::default();
        let there = store(&other, Some(&replica.named("two")));
        let session = there.take_over(id, &types()).unwrap();
        assert_eq!(said_and_dropped(&other, id).1, Vec::<u64>::new());
        let through = compacted.through.unwrap();
        for position in dropped[0]..=through.get() {
            let gone = session.rollback_to(position);
            match compacted.kept.contains(&position.into()) {
                true => assert!(gone.is_ok(), "{position}: {gone:?}"),
                false => {
                    let earliest = match gone {
                        Err(Error::Compacted { earliest, .. }) => earliest,
                        gone => panic!("{is_open}, {position}: {gone:?}"),
                    };
                    assert_eq!(earliest, through);
                }
            }
        }
        session.rollback_to(dropped[0] - 1).unwrap();
        session.close().unwrap();
        // The next takeover knows it too, and so does reopening its session.
        let session = there.open_session(id, &types()).unwrap();
        assert!(matches!(session.rollback_to(dropped[0]), Err(Error::Compacted { .. })));
        session.close().unwrap();
    }
}
