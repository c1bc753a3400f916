//! Whole sessions.

use foldlog::SequenceNumber;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use foldlog::inspect::{Follower, LogReader, LogUpdate};
use foldlog::storage::Storage;
use foldlog::{Durability, Error, Policy, RecoveryReport, SessionOptions, Store};
use foldlog_codec::Record;

use super::files::Set;
use foldlog_test_support::crash::{BOOT, Machine, OTHER_BOOT, step};

/// Reads the bytes as a session's files or records, in the form of [`Set`].
///
/// # Panics
///
/// If a property is violated.
pub fn segments(bytes: &[u8]) {
    let set = Set::of(bytes);
    if set.files.is_empty() {
        return;
    }
    let ground = Ground::of(&set);
    let before = ground.files();
    let audited = ground.audit();
    match &audited {
        Ok(reader) => ground.audited(reader),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    ground.followed(&audited);
    ground.opened_untyped(&set, &audited);
    let writable = ground.opened(&set, &audited);
    ground.salvaged(&set, &audited);
    assert!(before == ground.files(), "reading changed what was there");
    if writable {
        ground.goes_on(&set);
    }
}

struct Ground {
    machine: Machine,
    id: uuid::Uuid,
}

impl Ground {
    fn of(set: &Set) -> Ground {
        let machine = Machine::booted(if set.other_boot { OTHER_BOOT } else { BOOT });
        let dir = machine.dir(set.session);
        for (path, bytes) in &set.files {
            machine.disk.write_file(dir.join(path), bytes).expect("the disk takes it");
        }
        Ground { machine, id: set.session }
    }

    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let dir = self.machine.dir(self.id);
        self.machine.disk.dump().into_iter().filter(|(path, _)| path.starts_with(&dir)).collect()
    }

    fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(self.machine.disk.clone())
    }

    fn audit(&self) -> Result<LogReader, Error> {
        self.machine.audit(self.id)
    }

    /// Calls everything that an auditor offers.
    fn audited(&self, reader: &LogReader) {
        let len = reader.records_len();
        assert_eq!(reader.report().records, len);
        assert!(len > 0, "a log that opens has a record that opened it");
        let names = reader.names();
        let mut next = 0;
        let visit = |record: &Record<'_>| {
            assert_eq!(record.sequence, next);
            next += 1;
            // A record may be too large for its JSON form, or its time may be outside of every
            // calendar.
            if let Ok(shown) = record.to_json(&names) {
                serde_json::to_string(&shown).expect("a record has a JSON form");
            }
            Ok(())
        };
        reader.records(0, u64::MAX, visit).expect("what was folded can be read");
        assert_eq!(next, len);
        let mut framed = 0;
        let frames = reader.frames(|frame| {
            framed += u64::from(!frame.record.kind.is_envelope());
            Ok(())
        });
        frames.expect("what was folded can be walked");
        // A recovery's segment repeats records of earlier ones.
        assert!(framed >= len, "{framed} of {len}");
        reader.segments().expect("its segments can be listed");
        let now = reader.state().expect("it is read");
        assert_eq!(now.position, Some(SequenceNumber::new(len - 1)));
        let last = reader.state_at(len - 1).expect("the last position is one");
        assert_eq!(last.slices, now.slices);
        for position in [0, len / 2, len - 1] {
            match reader.state_at(position) {
                Err(Error::Compacted { earliest, .. }) => {
                    assert!(position < earliest.get());
                    reader.state_at(earliest).expect("that much is known");
                }
                at => drop(at.expect("a position of the log")),
            }
            // A path may lead back to where a tool was open, which is an error and no panic.
            let _ = reader.state_along(position);
            let all = [Policy::State, Policy::Log, Policy::Cache].into();
            if let Ok(text) = reader.export_at(position, &all).and_then(|export| export.to_json()) {
                super::snapshot_json(text.as_bytes());
            }
        }
        assert!(matches!(reader.state_at(len), Err(Error::NoSuchPosition { .. })));
        let _ = (reader.ledger(), reader.check_seals(), reader.digest_through(len - 1));
    }

    /// Checks that a follower sees the records of a log that opens, each once.
    fn followed(&self, audited: &Result<LogReader, Error>) {
        let mut records = 0;
        let progress =
            Follower::open_on(self.storage(), self.machine.dir(self.id), 0).and_then(|mut follower| {
                follower.poll(|met| {
                    if let LogUpdate::Record { record, .. } = met {
                        assert_eq!(record.sequence, records);
                        records += 1;
                    }
                    Ok(())
                })
            });
        if let Ok(reader) = audited {
            let progress = progress.unwrap_or_else(|error| panic!("a log that opens is followed: {error}"));
            assert_eq!(progress.records, records);
            // It does not read the objects that a torn end may lack.
            assert!(records >= reader.records_len(), "{records} of {}", reader.records_len());
        }
    }

    fn opened_untyped(&self, set: &Set, audited: &Result<LogReader, Error>) {
        let opened = self.machine.process(Durability::Boundary).open_untyped(self.id);
        match (audited, opened) {
            _ if set.images_lie => {}
            (Ok(reader), Ok(session)) => {
                assert_eq!(
                    session.dynamic().state().expect("it has a state"),
                    reader.state().expect("it is read")
                );
                assert_eq!(&without_images(session.log().recovery()), reader.report());
            }
            // Only an auditor reads the log below an image.
            (Err(_), _) if set.images => {}
            (Err(audit), Err(opened)) => assert_eq!(audit.to_string(), opened.to_string()),
            (Err(audit), Ok(_)) => panic!("opening opens it, and an auditor says: {audit}"),
            (Ok(_), Err(error)) => panic!("an auditor opens it, and opening says: {error}"),
        }
    }

    /// Whether it opens with a host's types, for writing.
    fn opened(&self, set: &Set, audited: &Result<LogReader, Error>) -> bool {
        match (audited, self.machine.open(self.id, Durability::Boundary)) {
            (_, opened) if set.images_lie => opened.is_ok(),
            (Err(_), _) if set.images => false,
            (Ok(reader), Ok(session)) => {
                assert_eq!(
                    session.dynamic().state().expect("it has a state"),
                    reader.state().expect("it is read")
                );
                true
            }
            (audit, Err(error)) => {
                let same = audit.as_ref().err().is_some_and(|audit| audit.to_string() == error.to_string());
                // A host's types may cause an error earlier, or the only one.
                let of_types = matches!(
                    error,
                    Error::NotRegistered(_)
                        | Error::PolicyMismatch { .. }
                        | Error::NewerVersion { .. }
                        | Error::Decode { .. }
                        | Error::Encode { .. }
                );
                assert!(
                    same || of_types,
                    "a host is told: {error}, and an auditor: {:?}",
                    audit.as_ref().err()
                );
                false
            }
            (Err(audit), Ok(_)) => panic!("opening opens it, and an auditor says: {audit}"),
        }
    }

    /// Checks that a salvaged session opens.
    fn salvaged(&self, set: &Set, audited: &Result<LogReader, Error>) {
        let elsewhere = Store::open_with("/home/salvaged", self.machine.options(Durability::Boundary));
        let elsewhere = elsewhere.expect("the store opens");
        let Ok(salvaged) = elsewhere.salvage(self.machine.dir(self.id), SessionOptions::default()) else {
            return;
        };
        let reader = LogReader::open_on(self.storage(), &salvaged.dir);
        let reader = reader.unwrap_or_else(|error| panic!("what was salvaged does not open: {error}"));
        assert_eq!(reader.records_len(), salvaged.records + 2);
        // It may contain more than opening shows, since a salvage reads further into a torn end. It
        // contains less only if objects are missing, which opening does not read, or if a frame
        // that opening need not read is invalid.
        if let Ok(whole) = audited {
            let all = salvaged.records >= whole.records_len();
            assert!(all || set.fitted || !salvaged.missing_objects.is_empty(), "{salvaged:?}");
        }
    }

    /// A session that accepts an event has it after the next opening, with all its effects.
    fn goes_on(&self, set: &Set) {
        let Ok(session) = self.machine.open(self.id, Durability::Boundary) else { return };
        if session.dispatch(step(1)).is_err() {
            return;
        }
        let (position, state) = (session.log().position(), session.dynamic().state());
        session.close().expect("it closes");
        let again = self.machine.open(self.id, Durability::Boundary);
        let again = again.unwrap_or_else(|error| panic!("what was written on does not open again: {error}"));
        assert_eq!(again.log().position(), position);
        if !set.images_lie {
            assert_eq!(again.dynamic().state().expect("it has a state"), state.expect("it has a state"));
        }
    }
}

fn without_images(report: &RecoveryReport) -> RecoveryReport {
    let mut report = report.clone();
    (report.from_image, report.dropped_images) = (None, Vec::new());
    report
}
