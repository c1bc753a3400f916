//! Cuts on a disk in memory, after each record and within it, at each durability.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use foldlog::conversation::ResumePoint;
use foldlog::inspect::{FrameInfo, LogReader, walk_on};
use foldlog::replication::Replication;
use foldlog::storage::{CrashKind, MemoryStorage, Storage};
use foldlog::{BackgroundSync, Durability, FixedClock, Generator, RecordKind, Session, Store, StoreOptions};
use foldlog_agent::EvaluateOptions;
use foldlog_remote::object_store::memory::InMemory;
use foldlog_remote::{ObjectReplicator, Retries};
use foldlog_test_support::host::assert_reduced_again;
use uuid::Uuid;

use super::generated::Generated;
use super::host::{Host, Outside, check_sendable, types};
use super::{Held, Said, page_after, said, seeds};

pub(super) const LEVELS: [Durability; 3] = [Durability::Process, Durability::Boundary, Durability::Every];

/// The end of a process.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cut {
    /// The process is killed after a record.
    Behind,
    /// The process is killed while it writes the record: this many sixteenths of its bytes were
    /// written.
    Within(usize),
    /// The power is cut after a record; unsynced data is lost or torn.
    Power(u64),
}

/// Sequence numbers of the last acknowledged records, except those that a tear removes.
#[derive(Default)]
struct Told {
    last: AtomicU64,
    /// The last record that is durable once its call returns.
    last_durable: AtomicU64,
}

/// A disk in memory with one session, and the process that has it open.
pub(super) struct Desk {
    pub(super) disk: MemoryStorage,
    pub(super) id: Uuid,
    pub(super) host: Host,
    durability: Durability,
    told: Arc<Told>,
    _directory: Arc<tempfile::TempDir>,
    /// The bucket of a replicated session, and the number of the machine that writes it.
    held: Option<(Arc<InMemory>, u64)>,
}

impl Desk {
    pub(super) fn new(durability: Durability, says: &Arc<Generated>) -> Desk {
        Desk::over(None, durability, says)
    }

    /// Creates a desk with a replicated session.
    pub(super) fn held(durability: Durability, says: &Arc<Generated>) -> Desk {
        Desk::over(Some((Arc::new(InMemory::new()), 0)), durability, says)
    }

    fn over(held: Option<(Arc<InMemory>, u64)>, durability: Durability, says: &Arc<Generated>) -> Desk {
        let (disk, directory) = (MemoryStorage::new(), Arc::new(tempfile::tempdir().unwrap()));
        let session = store(&disk, held.as_ref(), durability).create(&types()).unwrap();
        let (id, outside) = (session.id(), Outside(directory.path().join("outside")));
        let host = Host::new(session, outside, Arc::clone(says));
        Desk { disk, id, host, durability, told: Arc::default(), _directory: directory, held }
    }

    pub(super) fn store(&self) -> Store {
        store(&self.disk, self.held.as_ref(), self.durability)
    }

    /// Continues the session on another machine, from the bucket. The earlier machine's disk is
    /// lost; its process still runs and does not notice.
    pub(super) fn move_on(&mut self, at: &str) {
        let gone = std::mem::replace(&mut self.disk, MemoryStorage::new());
        self.held.as_mut().unwrap().1 += 1;
        let session = self.store().take_over(self.id, &types()).unwrap();
        let old = self.host.session().clone();
        assert!(old.set_tag("late", "x").and_then(|_| old.sync()).is_err(), "{at}: it still writes");
        gone.crash(CrashKind::Process);
        self.told = Arc::default();
        self.host = Host::new(session, self.host.outside.clone(), Arc::clone(&self.host.says));
    }

    /// Ends the process once the session has `records` more records.
    pub(super) fn end_behind(&self, records: u64, cut: Cut) {
        let (disk, told, left) =
            (self.disk.clone(), Arc::clone(&self.told), AtomicI64::new(records.cast_signed()));
        let (dir, durability) = (self.host.session().dir().to_owned(), self.durability);
        let _ = self.host.session().log().subscribe(move |record| {
            let left = left.fetch_sub(1, Ordering::SeqCst);
            match (left, cut) {
                (1, Cut::Behind) => disk.crash(CrashKind::Process),
                (1, Cut::Power(seed)) => disk.crash(CrashKind::Power { seed }),
                (1, Cut::Within(sixteenths)) => {
                    disk.crash(CrashKind::Process);
                    tear(&disk, &dir, sixteenths);
                    return;
                }
                _ => {}
            }
            let sequence = record.sequence().get();
            if left >= 1 {
                told.last.store(sequence, Ordering::SeqCst);
            }
            // The start record of a read-only call is not synced.
            let unsynced =
                [RecordKind::Dispatch, RecordKind::Declare, RecordKind::Request, RecordKind::ToolBegin];
            if left >= 1 && (durability == Durability::Every || !unsynced.contains(&record.kind())) {
                told.last_durable.store(sequence, Ordering::SeqCst);
            }
        });
    }

    /// Continues with another session of the store.
    pub(super) fn turn_to(&mut self, session: Session) {
        (self.id, self.told) = (session.id(), Arc::default());
        self.host = Host::new(session, self.host.outside.clone(), Arc::clone(&self.host.says));
    }

    /// Evaluates in this process until it ends.
    pub(super) fn evaluate(&self) -> bool {
        self.host.evaluate(EvaluateOptions::default()).is_ok()
    }

    /// Opens the session in the next process. All acknowledged records must exist, or after a power
    /// cut all durable ones.
    pub(super) fn open(&mut self, cut: Cut, at: &str) {
        self.disk.crash(CrashKind::Process);
        let session = self.store().open_session(self.id, &types()).unwrap();
        let told = if matches!(cut, Cut::Power(_)) { &self.told.last_durable } else { &self.told.last };
        assert!(
            session.log().position().unwrap().get() >= told.load(Ordering::SeqCst),
            "{at}: a record is lost"
        );
        self.host = Host::new(session, self.host.outside.clone(), Arc::clone(&self.host.says));
    }

    /// Resumes the conversation in this process, and checks all of it.
    pub(super) fn finish(&self, at: &str) {
        let held = Held::of(self.host.conversation().as_ref(), &self.host.outside);
        let done = self.host.evaluate(EvaluateOptions::default());
        let finding = done.unwrap_or_else(|error| panic!("{at}: {error}")).output.unwrap().finding;
        assert!(finding.starts_with("done"), "{at}: {finding}");
        let conversation = self.host.conversation().unwrap();
        held.check_finished(&conversation, &self.host.says, &self.host.outside, at);
        assert_eq!(self.host.point(), ResumePoint::Complete, "{at}");
        assert_eq!(self.host.page(), page_after(&conversation), "{at}: STATE is not what the calls did");
    }

    /// Recovers the session after the last process, and checks that its conversation can be sent.
    pub(super) fn recover(&self, has_tools: bool, at: &str) {
        let held = Held::of(self.host.conversation().as_ref(), &self.host.outside);
        assert!(self.host.recover(has_tools), "{at}: it cannot be recovered");
        let conversation = self.host.conversation();
        held.check(conversation.as_ref(), &self.host.outside, at);
        if let Some(conversation) = conversation {
            check_sendable(&conversation, &self.host.point(), at);
        }
    }

    pub(super) fn check_equals(&self, whole: &Whole, at: &str) {
        assert_eq!(said(&self.host.conversation().unwrap()), whole.said, "{at}");
        assert_eq!(self.host.page(), whole.page, "{at}");
        let session = self.host.session();
        let audit = LogReader::open_on(Arc::new(self.disk.process()), session.dir()).unwrap();
        assert_eq!(session.dynamic().state().unwrap(), audit.state().unwrap(), "{at}");
        assert_reduced_again(&audit, &types());
    }
}

fn store(disk: &MemoryStorage, held: Option<&(Arc<InMemory>, u64)>, durability: Durability) -> Store {
    let replication = held.map(|(bucket, machine)| {
        let (bucket, name) = (Arc::clone(bucket), format!("machine {machine}"));
        Replication::new(Arc::new(ObjectReplicator::new(bucket, "desk", &name, Retries::default()).unwrap()))
    });
    let options = StoreOptions {
        replication,
        storage: Arc::new(disk.process()),
        clock: Arc::new(FixedClock::with_step(1_767_322_800_000_000, 1_000)) as _,
        seed: Some(1),
        durability,
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    Store::open_with("/store", options).unwrap()
}

/// Leaves some sixteenths of the last record, which must be at least that large.
fn tear(disk: &MemoryStorage, dir: &Path, sixteenths: usize) {
    let (storage, mut last): (Arc<dyn Storage>, _) = (Arc::new(disk.process()), None);
    let see = &mut |frame: &FrameInfo<'_>| {
        if !frame.record.kind.is_envelope() {
            last = Some((frame.segment.to_owned(), frame.offset, frame.bytes));
        }
        Ok(())
    };
    walk_on(&storage, dir, see).unwrap();
    let Some((segment, offset, bytes)) = last else { return };
    let from = usize::try_from(offset + bytes * sixteenths as u64 / 16).unwrap();
    // The zeros also remove the frame after the record, which attests it.
    disk.mutate_file(&segment, |bytes| bytes[from..].fill(0)).unwrap();
}

/// A conversation without a cut.
pub(super) struct Whole {
    pub(super) said: Vec<Said>,
    pub(super) page: Vec<String>,
    pub(super) records: u64,
}

pub(super) fn uncut(says: &Arc<Generated>) -> Whole {
    let desk = Desk::new(Durability::Process, says);
    let before = desk.host.session().log().position().unwrap().get();
    desk.finish("uncut");
    let records = desk.host.session().log().position().unwrap().get() - before;
    Whole { said: said(&desk.host.conversation().unwrap()), page: desk.host.page(), records }
}

/// Runs one life that ends with this cut, and another that finishes.
fn cut_once(
    says: &Arc<Generated>,
    whole: &Whole,
    durability: Durability,
    records: u64,
    cut: Cut,
    at: &str,
) -> bool {
    let mut desk = Desk::new(durability, says);
    desk.end_behind(records, cut);
    desk.evaluate();
    let at = format!("{at}, {durability:?}, {cut:?} of record {records} of {}", whole.records);
    desk.open(cut, &at);
    let torn = desk.host.session().log().recovery().torn.is_some();
    desk.recover(records.is_multiple_of(2), &at);
    desk.finish(&at);
    desk.check_equals(whole, &at);
    torn
}

/// A kill between two particular records could make a call run twice, or an answer be paid for
/// twice. Therefore these conversations are cut after every record, and every record is torn too.
#[test]
fn a_conversation_that_ends_at_any_record_or_within_it_is_finished_as_if_it_had_not() {
    let (mut cuts, mut torn) = (0, 0);
    for seed in 0..seeds(60).div_ceil(30) {
        let says = Arc::new(Generated::from_seed(seed));
        let whole = uncut(&says);
        for durability in LEVELS {
            for records in 1..=whole.records {
                let within = Cut::Within((records as usize * 7 + seed as usize) % 16);
                for cut in [Cut::Behind, within] {
                    torn +=
                        u64::from(cut_once(&says, &whole, durability, records, cut, &format!("seed {seed}")));
                    cuts += 1;
                }
            }
        }
    }
    println!("{cuts} ends, {torn} of them with a torn record");
    assert!(torn * 3 > cuts, "{torn} of {cuts} ends tore a record");
}

/// Many conversations, each cut at a few places, including the recovery and the resumed evaluation.
#[test]
fn generated_conversations_that_end_anywhere_are_finished_as_if_they_had_not() {
    for seed in 100..100 + seeds(60) {
        let says = Arc::new(Generated::from_seed(seed));
        let whole = uncut(&says);
        let mut draw = Generator::from_seed(seed + 1);
        for durability in LEVELS {
            let mut desk = Desk::new(durability, &says);
            let lives = 1 + draw.next_below(4);
            let mut at = format!("seed {seed}, {durability:?}");
            for life in 0..lives {
                let records = 1 + draw.next_below(whole.records);
                let cut = match draw.next_below(4) {
                    0 => Cut::Behind,
                    // At `Process` a power cut may take answers whose tools have run.
                    1 if durability != Durability::Process => Cut::Power(draw.next_u64()),
                    _ => Cut::Within(draw.next_below(16) as usize),
                };
                at.push_str(&format!(", {cut:?} of record {records}"));
                desk.end_behind(records, cut);
                let held = Held::of(desk.host.conversation().as_ref(), &desk.host.outside);
                // The first life has nothing to recover; an interrupted recovery fails, and the
                // next one completes it.
                let has_tools = draw.next_below(2) == 0;
                if life == 0 || desk.host.recover(has_tools) {
                    desk.evaluate();
                }
                desk.open(cut, &at);
                held.check(desk.host.conversation().as_ref(), &desk.host.outside, &at);
            }
            desk.recover(seed % 2 == 0, &at);
            desk.finish(&at);
            desk.check_equals(&whole, &at);
        }
    }
}
