//! Checks of a takeover before it claims a session, and records that its writer appends meanwhile.

use std::fmt;

use foldlog::inspect::LogReader;
use foldlog::replication::{CapturePacks, HeldPart, ReplicaError, ReplicaStatus, Replication, Replicator};
use foldlog::storage::Storage;
use foldlog::{
    Durability, Error, ObjectId, Policy, Record, RecordKind, SequenceNumber, Session, Slice, Store,
    StoreOptions,
};
use foldlog_codec::body::{Action, Dispatch, Payload, Rollback};
use foldlog_test_support::crash::{Machine, count, large_note, write_steps};
use foldlog_test_support::host::{Noted, StepAdded, types};
use foldlog_test_support::replica::MemoryReplica;
use parking_lot::Mutex;
use uuid::Uuid;

fn store_over(machine: &Machine, replication: Option<Replication>) -> Store {
    let options = StoreOptions { replication, ..machine.options(Durability::Boundary) };
    Store::open_with("/home/store", options).unwrap()
}

/// Audits a session, and returns the digest and number of its records, and its slices.
fn audited(machine: &Machine, id: Uuid) -> ([u8; 32], u64, String) {
    let log: LogReader = machine.audit(id).unwrap();
    log.check_seals().unwrap();
    (
        log.digest_through(log.last_position()).unwrap(),
        log.records_len(),
        format!("{:?}", log.state().unwrap().slices),
    )
}

/// Asserts that a store has no session, and no unfinished one.
fn assert_nothing_left(machine: &Machine, store: &Store) {
    assert!(store.session_ids().unwrap().is_empty());
    let left = machine.disk.list("/home/store/sessions".as_ref()).unwrap();
    assert!(left.is_empty(), "{left:?}");
}

/// The claim came before the check: any attempt to take over an unreadable session took it from its
/// writer.
#[test]
fn a_session_that_is_not_sound_is_refused_before_it_is_claimed() {
    let data = Payload::new(b"\xc0");
    let undeclared = Dispatch { action: Action::Event { event: 999, data }, effects: None }.encode();
    let ahead = Rollback { to: SequenceNumber::new(77), preserve_logs: true }.encode();
    for (kind, body) in [(RecordKind::Dispatch, undeclared), (RecordKind::Rollback, ahead)] {
        let replica = MemoryReplica::new("one");
        let machine = Machine::default();
        let session = store_over(&machine, replica.option()).create(&types()).unwrap();
        let id = session.id();
        write_steps(&session, 6);
        session.dispatch(large_note(1)).unwrap();
        session.close().unwrap();
        let held = replica.read(id, &mut |_| {}).unwrap();
        let append = |sequence: SequenceNumber, kind: RecordKind, body: &[u8]| {
            let record = Record { sequence, kind, time_us: 1, body };
            replica.append(id, held.epoch, None, &[record])
        };
        append(held.next, kind, &body).unwrap();

        let other = Machine::default();
        let second = store_over(&other, replica.named("two").option());
        let refused = [
            second.take_over(id, &types()).map(drop),
            second.take_over_to_recover(id, "a person", "a test").map(drop),
            second.pull(id).map(drop),
        ];
        for refused in refused {
            let Err(Error::ReplicaFailed { reason, .. }) = &refused else { panic!("{kind:?}: {refused:?}") };
            assert!(reason.contains("not intact"), "{kind:?}: {reason}");
        }
        assert_nothing_left(&other, &second);
        // No writer was fenced.
        append(held.next + 1, RecordKind::Snapshot, &[]).unwrap();
        assert_eq!(replica.read(id, &mut |_| {}).unwrap().epoch, held.epoch);
    }
}

/// The notes, as STATE instead of LOG.
struct NotesOfState;

impl Slice for NotesOfState {
    const NAME: &'static str = "notes";
    type Item = Noted;
}

#[test]
fn a_session_that_the_hosts_types_do_not_fit_is_refused_before_it_is_claimed() {
    let replica = MemoryReplica::new("one");
    let machine = Machine::default();
    let session = store_over(&machine, replica.option()).create(&types()).unwrap();
    let id = session.id();
    session.dispatch(Noted { text: "before".to_owned() }).unwrap();
    session.sync().unwrap();
    let others = foldlog::SessionTypes::builder()
        .slice_with::<NotesOfState>(Policy::State)
        .append_all::<NotesOfState>()
        .build()
        .unwrap();
    let other = Machine::default();
    let second = store_over(&other, replica.named("two").option());
    let refused = second.take_over(id, &others);
    assert!(matches!(refused, Err(Error::PolicyMismatch { .. } | Error::NotRegistered(_))), "{refused:?}");
    assert_nothing_left(&other, &second);
    session.dispatch(Noted { text: "behind".to_owned() }).unwrap();
    session.sync().unwrap();
    session.close().unwrap();
}

/// Runs one of the given actions before each claim.
struct Meanwhile {
    replica: MemoryReplica,
    left: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.replica.fmt(f)
    }
}

impl Replicator for Meanwhile {
    fn place(&self) -> String {
        self.replica.place()
    }

    fn name(&self) -> String {
        self.replica.name()
    }

    fn read(
        &self,
        session: Uuid,
        visit: &mut dyn FnMut(HeldPart<'_>),
    ) -> Result<ReplicaStatus, ReplicaError> {
        self.replica.read(session, visit)
    }

    fn claim(&self, session: Uuid, expected: SequenceNumber) -> Result<u64, ReplicaError> {
        let next = self.left.lock().pop();
        next.into_iter().for_each(|next| next());
        self.replica.claim(session, expected)
    }

    fn put_object(&self, session: Uuid, object: ObjectId, bytes: &[u8]) -> Result<(), ReplicaError> {
        self.replica.put_object(session, object, bytes)
    }

    fn get_object(&self, session: Uuid, object: ObjectId) -> Result<Vec<u8>, ReplicaError> {
        self.replica.get_object(session, object)
    }

    fn append(
        &self,
        session: Uuid,
        epoch: u64,
        captures: Option<CapturePacks<'_>>,
        records: &[Record<'_>],
    ) -> Result<(), ReplicaError> {
        self.replica.append(session, epoch, captures, records)
    }

    fn is_confirmed(&self, session: Uuid, epoch: u64) -> bool {
        self.replica.is_confirmed(session, epoch)
    }

    fn confirm(&self, session: Uuid, epoch: u64) -> Result<(), ReplicaError> {
        self.replica.confirm(session, epoch)
    }

    fn holds_captures(&self) -> bool {
        self.replica.holds_captures()
    }

    fn release(&self, session: Uuid, epoch: u64) {
        self.replica.release(session, epoch);
    }
}

#[test]
fn what_its_writer_appends_while_a_session_is_read_back_is_there_too() {
    let replica = MemoryReplica::new("one");
    let machine = Machine::default();
    let session = store_over(&machine, replica.option()).create(&types()).unwrap();
    let id = session.id();
    write_steps(&session, 300);
    session.sync().unwrap();
    type Act = Box<dyn Fn(&Session) + Send>;
    let acts: Vec<Act> = vec![
        // More than fits into the last segment.
        Box::new(|session| write_steps(session, 900)),
        // To a position that was not kept.
        Box::new(|session| drop(session.rollback_to(40).unwrap())),
        Box::new(|session| assert!(session.dispatch(large_note(2)).is_ok())),
        Box::new(|session| write_steps(session, 1)),
    ];
    let left = acts.into_iter().rev().map(|act| -> Box<dyn FnOnce() + Send> {
        let session = session.clone();
        Box::new(move || {
            act(&session);
            session.sync().unwrap();
        })
    });
    let replicator = Meanwhile { replica: replica.named("two"), left: Mutex::new(left.collect()) };
    let other = Machine::default();
    let second = store_over(&other, Some(Replication::new(std::sync::Arc::new(replicator))));
    let taken = second.take_over(id, &types()).unwrap();
    assert_eq!(audited(&other, id), audited(&machine, id));
    assert_eq!(count(&taken), count(&session));
    assert_eq!(taken.log().recovery().records, count(&session));
    assert!(taken.log().recovery().torn.is_none() && taken.log().recovery().unattested == 0);
    // It continues, and the other does not.
    taken.dispatch(StepAdded { title: "one more".to_owned(), part: 1 }).unwrap();
    taken.sync().unwrap();
    assert!(matches!(
        session.dispatch(large_note(3)).and_then(|_| session.sync()),
        Err(Error::Fenced { .. })
    ));
    taken.close().unwrap();
    let records = audited(&other, id).1;
    let again = store_over(&other, replica.named("two").option()).open_session(id, &types()).unwrap();
    assert_eq!(count(&again), records);
}
