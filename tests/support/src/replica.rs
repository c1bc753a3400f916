//! A replicator in memory: records of sessions, and their claims. It shares no code with
//! `foldlog-remote`.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog::replication::{CapturePacks, HeldPart, ReplicaError, ReplicaStatus, Replication, Replicator};
use foldlog::{ObjectId, Record, RecordKind, SequenceNumber};
use parking_lot::Mutex;
use uuid::Uuid;

/// A replicated record: kind, time, body, and the name of the writer that appended it.
type HeldRecord = (RecordKind, i64, Vec<u8>, String);

#[derive(Debug, Default)]
struct Sessions {
    records: BTreeMap<Uuid, Vec<HeldRecord>>,
    /// The epoch of the last claim of each session, and its name.
    claims: BTreeMap<Uuid, (u64, String)>,
    objects: BTreeMap<(Uuid, ObjectId), Vec<u8>>,
    /// The captures of each append, by the session and the append's first record.
    captures: BTreeMap<(Uuid, u64), HeldCaptures>,
}

/// Captures of an append: its number of records, names of packs, and one new pack.
type HeldCaptures = (u64, Vec<ObjectId>, Vec<u8>);

/// Replicates sessions for writers of one name. [`named`](MemoryReplica::named) returns a
/// replicator for another name.
#[derive(Clone, Debug)]
pub struct MemoryReplica {
    name: String,
    sessions: Arc<Mutex<Sessions>>,
}

impl MemoryReplica {
    /// Creates an empty replicator.
    pub fn new(name: &str) -> MemoryReplica {
        MemoryReplica { name: name.to_owned(), sessions: Arc::default() }
    }

    /// Returns a replicator of the same sessions, for writers of another name.
    #[must_use]
    pub fn named(&self, name: &str) -> MemoryReplica {
        MemoryReplica { name: name.to_owned(), ..self.clone() }
    }

    pub fn option(&self) -> Option<Replication> {
        Some(Replication::new(Arc::new(self.clone())))
    }

    /// Returns a replicator with only the first records of a session, as if its writer had reached
    /// no further.
    #[must_use]
    pub fn cut(&self, session: Uuid, records: u64) -> MemoryReplica {
        let all = self.sessions.lock();
        let records = usize::try_from(records).unwrap_or(usize::MAX);
        let held = all.records.get(&session).map(|all| all.iter().take(records).cloned().collect());
        let cut = Sessions {
            records: held.map(|held| (session, held)).into_iter().collect(),
            objects: all.objects.clone(),
            ..Sessions::default()
        };
        MemoryReplica { name: self.name.clone(), sessions: Arc::new(Mutex::new(cut)) }
    }

    /// Returns a replicator with the records of a session, but without the objects that they name.
    #[must_use]
    pub fn without_objects(&self, session: Uuid) -> MemoryReplica {
        let cut = self.cut(session, u64::MAX);
        cut.sessions.lock().objects.clear();
        cut
    }

    /// Returns the number of replicated records of a session.
    pub fn records_len(&self, session: Uuid) -> u64 {
        self.sessions.lock().records.get(&session).map_or(0, |records| records.len() as u64)
    }
}

impl Replicator for MemoryReplica {
    fn place(&self) -> String {
        "memory".to_owned()
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn holds_captures(&self) -> bool {
        true
    }

    fn read(
        &self,
        session: Uuid,
        visit: &mut dyn FnMut(HeldPart<'_>),
    ) -> Result<ReplicaStatus, ReplicaError> {
        // The engine processes records without this lock.
        let records = self.sessions.lock().records.get(&session).cloned().unwrap_or_default();
        let mut others_end = 0;
        for (sequence, (kind, time_us, body, by)) in (0..).zip(&records) {
            if *by != self.name {
                others_end = sequence + 1;
            }
            let captures = self.sessions.lock().captures.get(&(session, sequence)).cloned();
            if let Some((records, packs, inlined)) = captures {
                let captures = CapturePacks { packs: &packs, inlined: &inlined };
                visit(HeldPart::Captures { next: SequenceNumber::new(sequence + records), captures });
            }
            let sequence = SequenceNumber::new(sequence);
            visit(HeldPart::Record(Record { sequence, kind: *kind, time_us: *time_us, body }));
        }
        let claim = self.sessions.lock().claims.get(&session).cloned();
        let (epoch, by) = claim.unwrap_or_default();
        Ok(ReplicaStatus {
            next: (records.len() as u64).into(),
            epoch,
            is_ours: by == self.name,
            others_end: others_end.into(),
        })
    }

    fn claim(&self, session: Uuid, expected: SequenceNumber) -> Result<u64, ReplicaError> {
        let mut sessions = self.sessions.lock();
        let len = sessions.records.get(&session).map_or(0, Vec::len) as u64;
        let (epoch, by) = sessions.claims.get(&session).cloned().unwrap_or_default();
        if expected != len {
            return Err(ReplicaError::Fenced { epoch, by });
        }
        sessions.claims.insert(session, (epoch + 1, self.name.clone()));
        Ok(epoch + 1)
    }

    fn put_object(&self, session: Uuid, object: ObjectId, bytes: &[u8]) -> Result<(), ReplicaError> {
        self.sessions.lock().objects.insert((session, object), bytes.to_vec());
        Ok(())
    }

    fn get_object(&self, session: Uuid, object: ObjectId) -> Result<Vec<u8>, ReplicaError> {
        let found = self.sessions.lock().objects.get(&(session, object)).cloned();
        found.ok_or_else(|| ReplicaError::Failed { reason: "the payload is missing".to_owned() })
    }

    fn append(
        &self,
        session: Uuid,
        epoch: u64,
        captures: Option<CapturePacks<'_>>,
        records: &[Record<'_>],
    ) -> Result<(), ReplicaError> {
        let mut sessions = self.sessions.lock();
        let (last, by) = sessions.claims.get(&session).cloned().unwrap_or_default();
        if last != epoch {
            return Err(ReplicaError::Fenced { epoch: last, by });
        }
        if let (Some(CapturePacks { packs, inlined }), Some(first)) = (captures, records.first()) {
            let captures = (records.len() as u64, packs.to_vec(), inlined.to_vec());
            sessions.captures.insert((session, first.sequence.get()), captures);
        }
        let held = sessions.records.entry(session).or_default();
        for record in records {
            assert_eq!(record.sequence, held.len() as u64, "records come in their order");
            held.push((record.kind, record.time_us, record.body.to_vec(), self.name.clone()));
        }
        Ok(())
    }

    fn is_confirmed(&self, session: Uuid, epoch: u64) -> bool {
        self.confirm(session, epoch).is_ok()
    }

    fn confirm(&self, session: Uuid, epoch: u64) -> Result<(), ReplicaError> {
        let (last, by) = self.sessions.lock().claims.get(&session).cloned().unwrap_or_default();
        if last == epoch { Ok(()) } else { Err(ReplicaError::Fenced { epoch: last, by }) }
    }

    fn release(&self, _: Uuid, _: u64) {}
}
