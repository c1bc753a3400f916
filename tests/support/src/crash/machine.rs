//! A machine with a disk in memory, on which processes open a store one after the other.

use foldlog::SequenceNumber;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::inspect::{LogReader, walk_on};
use foldlog::log::SegmentSizes;
use foldlog::storage::{CrashKind, Fault, MemoryStorage, Op, Storage};
use foldlog::{BackgroundSync, Durability, FixedClock, RecordKind, Result, Session, Store, StoreOptions};
use uuid::Uuid;

use crate::host::{Noted, StepAdded, types};

/// The machine: its disk outlives every process.
#[derive(Clone, Debug)]
pub struct Machine {
    pub disk: MemoryStorage,
    clock: Arc<FixedClock>,
    image_bytes_min: u64,
}

/// A frame and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameAt {
    pub segment: PathBuf,
    pub start: usize,
    /// The offset after its last byte.
    pub end: usize,
    pub sequence: SequenceNumber,
    /// Every record below this was durable when the frame was written.
    pub watermark: SequenceNumber,
    pub kind: RecordKind,
}

/// The calls that change a disk when a file is replaced.
pub const CHANGES: [Op; 5] = [Op::Write, Op::SyncData, Op::Create, Op::Rename, Op::SyncDir];

/// The first boot of a machine.
pub const BOOT: Uuid = Uuid::from_u128(0xb007);
pub const OTHER_BOOT: Uuid = Uuid::from_u128(0xb008);

impl Default for Machine {
    fn default() -> Machine {
        Machine::booted(BOOT)
    }
}

impl Machine {
    /// Returns a machine with an empty disk, in this boot.
    pub fn booted(boot: Uuid) -> Machine {
        let clock = Arc::new(FixedClock::with_step(1_700_000_000_000_000, 10));
        // Most tests examine only the log; images have their own tests.
        Machine { disk: MemoryStorage::with_boot_id(boot), clock, image_bytes_min: u64::MAX }
    }

    /// Returns the same machine, whose processes write images as often as possible.
    #[must_use]
    pub fn with_images(self) -> Machine {
        Machine { image_bytes_min: 1, ..self }
    }

    /// Returns a machine with the same files in this boot; all of them durable.
    #[must_use]
    pub fn copied(&self, boot: Uuid) -> Machine {
        let machine = Machine { image_bytes_min: self.image_bytes_min, ..Machine::booted(boot) };
        for (path, bytes) in self.disk.dump() {
            machine.disk.write_file(path, bytes).expect("the new disk is sound");
        }
        machine
    }

    /// Returns the options with which every process opens the store.
    pub fn options(&self, durability: Durability) -> StoreOptions {
        StoreOptions {
            storage: Arc::new(self.disk.process()),
            clock: Arc::clone(&self.clock) as Arc<dyn foldlog::Clock>,
            seed: Some(7),
            durability,
            segments: SegmentSizes { first_bytes: 4096, max_bytes: 4096, ahead_bytes_min: 0 },
            object_bytes_min: 600,
            image_bytes_min: self.image_bytes_min,
            background: BackgroundSync::Inline,
            // Some tests write a replicated session, and examine only its log.
            unreplicated: true,
            ..StoreOptions::default()
        }
    }

    /// Opens the store in a new process.
    pub fn process(&self, durability: Durability) -> Store {
        Store::open_with("/home/store", self.options(durability)).expect("the store opens")
    }

    /// Opens a session of the store in a new process.
    pub fn open(&self, id: Uuid, durability: Durability) -> Result<Session> {
        self.process(durability).open_session(id, &types())
    }

    /// Ends the process, or the power.
    pub fn crash(&self, kind: CrashKind) {
        self.disk.crash(kind);
    }

    /// Does the same on successive copies of the machine, each of which dies one step later, until
    /// one reaches the end. After each crash, `look` sees the remains.
    pub fn killed_at_each_step<T>(
        &self,
        crashes: impl Fn(u64) -> Vec<CrashKind>,
        act: impl Fn(&Machine) -> Result<T>,
        mut look: impl FnMut(&Machine, &str),
    ) {
        for at in 1.. {
            for kind in crashes(at) {
                let machine = self.copied(BOOT);
                machine.disk.inject(Fault::Die { nth: at, bytes: 20 });
                let done = act(&machine);
                machine.disk.clear_faults();
                if done.is_ok() {
                    return;
                }
                machine.crash(kind);
                look(&machine, &format!("killed at {at}, {kind:?}"));
            }
        }
    }

    /// Does the same on copies of the machine, whose disks refuse one of the first calls of each of
    /// these kinds; `look` sees the remains.
    ///
    /// # Panics
    ///
    /// If no refusal of a kind causes an error.
    pub fn refused_at_each_step<T>(
        &self,
        ops: &[Op],
        calls: u64,
        act: impl Fn(&Machine) -> Result<T>,
        mut look: impl FnMut(&Machine, &str),
    ) {
        for op in ops.iter().copied() {
            let refused = (1..=calls).filter(|nth| {
                let machine = self.copied(BOOT);
                machine.disk.inject(Fault::FailNth { op, nth: *nth, error: std::io::ErrorKind::Other });
                let done = act(&machine);
                machine.disk.clear_faults();
                look(&machine, &format!("{op:?} {nth}"));
                done.is_err()
            });
            assert!(refused.count() > 0, "{op:?}");
        }
    }

    pub fn dir(&self, id: Uuid) -> PathBuf {
        Path::new("/home/store/sessions").join(id.to_string())
    }

    /// Returns the segment files of a session, oldest first.
    pub fn segments(&self, id: Uuid) -> Vec<PathBuf> {
        let dir = self.dir(id);
        let files = self.disk.files().into_iter();
        files
            .filter(|path| path.parent() == Some(&dir) && path.extension().is_some_and(|e| e == "seg"))
            .collect()
    }

    /// Opens a session as an auditor.
    pub fn audit(&self, id: Uuid) -> Result<LogReader> {
        LogReader::open_on(Arc::new(self.disk.clone()), self.dir(id))
    }

    /// Returns the frames of a session's chain, in order.
    pub fn frames(&self, id: Uuid) -> Result<Vec<FrameAt>> {
        let storage: Arc<dyn Storage> = Arc::new(self.disk.clone());
        let mut frames = Vec::new();
        walk_on(&storage, &self.dir(id), &mut |frame| {
            let start = usize::try_from(frame.offset).expect("small");
            frames.push(FrameAt {
                segment: frame.segment.to_owned(),
                start,
                end: start + usize::try_from(frame.bytes).expect("small"),
                sequence: frame.record.sequence,
                watermark: frame.watermark,
                kind: frame.record.kind,
            });
            Ok(())
        })?;
        Ok(frames)
    }
}

/// Returns a step that takes some space in a segment.
pub fn step(n: u64) -> StepAdded {
    StepAdded { title: format!("step {n} {}", "x".repeat(300)), part: (n % 3) as u8 }
}

/// Returns a note too large for a record, which becomes an object.
pub fn large_note(n: u64) -> Noted {
    Noted { text: format!("note {n} {}", "y".repeat(1000)) }
}

pub fn count(session: &Session) -> u64 {
    session.log().position().map_or(0, |last| last.get() + 1)
}

pub fn write_steps(session: &Session, steps: u64) {
    for n in 0..steps {
        session.dispatch(step(n)).expect("the step is taken");
    }
}
