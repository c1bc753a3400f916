//! A log that is read at the moment at which its writer continues.

use super::*;

/// A disk that changes just before one of the reader's calls.
#[derive(Debug)]
struct Racing {
    disk: MemoryStorage,
    /// The number of calls before the change, and the change.
    coming: Mutex<(u32, Coming)>,
}

impl Racing {
    fn on(disk: MemoryStorage, calls: u32, coming: Coming) -> Arc<Racing> {
        Arc::new(Racing { disk, coming: Mutex::new((calls, coming)) })
    }

    fn call(&self) {
        let mut coming = self.coming.lock().unwrap();
        match coming.0.checked_sub(1) {
            Some(left) => coming.0 = left,
            None => std::mem::take(&mut coming.1).iter().for_each(|(path, bytes)| match bytes {
                Some(bytes) => self.disk.write_file(path, bytes).unwrap(),
                None => self.disk.remove_file(path).unwrap(),
            }),
        }
    }
}

impl Storage for Racing {
    fn list(&self, dir: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.call();
        self.disk.list(dir)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn StorageFile>> {
        assert_eq!(access, Access::Read);
        self.call();
        self.disk.open(path, access)
    }

    fn entry(&self, path: &Path) -> io::Result<Option<DirectoryEntry>> {
        self.call();
        self.disk.entry(path)
    }

    fn boot_id(&self) -> Option<Uuid> {
        self.disk.boot_id()
    }

    fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        unreachable!("a follower writes nothing")
    }

    fn create(&self, _: &Path, _: u64) -> io::Result<Arc<dyn StorageFile>> {
        unreachable!("a follower writes nothing")
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        unreachable!("a follower writes nothing")
    }

    fn hard_link(&self, _: &Path, _: &Path) -> io::Result<()> {
        unreachable!("a follower writes nothing")
    }

    fn remove_file(&self, _: &Path) -> io::Result<()> {
        unreachable!("a follower writes nothing")
    }

    fn remove_dir_all(&self, _: &Path) -> io::Result<()> {
        unreachable!("a follower writes nothing")
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        unreachable!("a follower writes nothing")
    }

    fn try_lock(&self, _: &Path, _: u64) -> io::Result<Option<Box<dyn HeldLock>>> {
        unreachable!("a follower takes no lock")
    }
}

/// A machine with a session whose process was killed after this many steps.
fn killed_behind(steps: u64) -> (Machine, Uuid) {
    let machine = Machine::default();
    let session = machine.process(Durability::Every).create(&types()).unwrap();
    write_steps(&session, steps);
    machine.crash(CrashKind::Process);
    (machine, session.id())
}

/// A log whose writer is within record 4, for a reader; and the machine on which the writer has
/// continued, with or without rollovers.
fn half_written(turned: bool) -> (Machine, Uuid, Arc<Racing>) {
    let (machine, id) = killed_behind(if turned { 20 } else { 5 });
    let frames = machine.frames(id).unwrap();
    let torn = frames.iter().find(|frame| frame.sequence == 4 && !frame.kind.is_envelope()).unwrap();
    let disk = MemoryStorage::with_boot_id(BOOT);
    let mut half = machine.disk.read_file(&torn.segment).unwrap();
    half[torn.end - 5..].fill(0);
    disk.write_file(&torn.segment, half).unwrap();
    (machine, id, Racing::on(disk, 0, Coming::new()))
}

fn all_of(machine: &Machine) -> Coming {
    machine.disk.dump().into_iter().map(|(path, bytes)| (path, Some(bytes))).collect()
}

/// For followers and one-time readers alike: once the frame exists that attests a half-written
/// frame, the latter is complete.
#[test]
fn a_writer_that_goes_on_while_its_log_is_read_is_no_damage() {
    let mut overtaken = 0;
    for (turned, calls) in [false, true].into_iter().flat_map(|turned| (0..12).map(move |n| (turned, n))) {
        let (machine, id, racing) = half_written(turned);
        *racing.coming.lock().unwrap() = (calls, all_of(&machine));
        let read = LogReader::open_on(Arc::clone(&racing) as Arc<dyn Storage>, machine.dir(id));
        let read = read.unwrap_or_else(|error| panic!("call {calls}, turned: {turned}: {error}"));
        let all = machine.audit(id).unwrap().records_len();
        assert!((4..=all).contains(&read.records_len()), "call {calls}: {} of {all}", read.records_len());
        overtaken += u64::from(read.records_len() > 4);
    }
    assert!(overtaken > 0, "some were overtaken in time");
}

/// Between a read of a half-written frame and a later read the writer may have continued. Then the
/// frame that attests it exists, and the frame itself is complete.
#[test]
fn a_writer_that_goes_on_between_two_looks_is_no_damage() {
    for (turned, calls) in [false, true].into_iter().flat_map(|turned| (0..12).map(move |n| (turned, n))) {
        let (machine, id, racing) = half_written(turned);
        let storage = Arc::clone(&racing) as Arc<dyn Storage>;
        let mut follower = Follower::open_on(storage, machine.dir(id), 0).unwrap();
        *racing.coming.lock().unwrap() = (calls, all_of(&machine));
        // If the writer is slower than the poll, the record is left to the next one.
        let mut seen = come(&mut follower);
        racing.coming.lock().unwrap().0 = 0;
        seen.extend(come(&mut follower));
        seen.extend(come(&mut follower));
        assert_eq!(seen, Vec::from_iter(0..machine.audit(id).unwrap().records_len()), "call {calls}");
    }
}

/// A writer continued into its preallocated segment, and into the next ones, after a reader had
/// listed the directory. The reader took the records for a torn tail, or for records after a lost
/// header.
#[test]
fn a_writer_that_goes_on_into_a_segment_made_ahead_is_no_damage() {
    let (machine, id) = killed_behind(60);
    let segments = machine.segments(id);
    let after = segments.iter().map(|path| (path.clone(), machine.disk.read_file(path))).collect::<Coming>();
    assert!(segments.len() > 4);
    let all = machine.audit(id).unwrap().records_len();
    let mut seen = BTreeSet::new();
    for (made, calls) in (1..segments.len() - 1).flat_map(|made| (0..24).map(move |calls| (made, calls))) {
        let disk = MemoryStorage::with_boot_id(BOOT);
        // The writer is at the end of one segment, whose seal is not yet written; the next one
        // exists.
        for (path, bytes) in after.iter().take(made) {
            disk.write_file(path, bytes.as_ref().unwrap()).unwrap();
        }
        let last = machine.frames(id).unwrap().into_iter().rfind(|frame| frame.segment == segments[made - 1]);
        disk.mutate_file(&segments[made - 1], |bytes| bytes[last.unwrap().end..].fill(0)).unwrap();
        disk.write_file(&segments[made], [0; 4096]).unwrap();
        let here = LogReader::open_on(Arc::new(disk.clone()), machine.dir(id)).unwrap().records_len();
        // It continues through this many segments, which may or may not be in the listing.
        let racing = Racing::on(disk, calls, after.clone());
        let read = LogReader::open_on(Arc::clone(&racing) as Arc<dyn Storage>, machine.dir(id));
        let read = read.unwrap_or_else(|error| panic!("segment {made}, call {calls}: {error}"));
        assert_eq!(read.report().torn, None, "segment {made}, call {calls}");
        assert!((here..=all).contains(&read.records_len()), "segment {made}, call {calls}");
        seen.insert(read.records_len() - here);
        // A follower gets there too.
        let storage = Arc::clone(&racing) as Arc<dyn Storage>;
        let mut follower = Follower::open_on(storage, machine.dir(id), here).unwrap();
        let mut followed = come(&mut follower);
        racing.coming.lock().unwrap().0 = 0;
        followed.extend((0..2).flat_map(|_| come(&mut follower)));
        assert_eq!(followed, Vec::from_iter(here..all), "segment {made}, call {calls}");
    }
    assert!(seen.len() > 2, "{seen:?}");
}

/// Listing a directory is not atomic: it may contain the name of a later segment and not that of an
/// earlier one.
#[test]
fn a_listing_that_missed_a_segment_made_meanwhile_is_no_damage() {
    let (machine, id) = killed_behind(60);
    let segments = machine.segments(id);
    for missed in 1..segments.len() - 1 {
        let comes_at = |calls| {
            let disk = machine.copied(BOOT).disk;
            let bytes = disk.read_file(&segments[missed]).unwrap();
            disk.remove_file(&segments[missed]).unwrap();
            let racing = Racing::on(disk, calls, BTreeMap::from([(segments[missed].clone(), Some(bytes))]));
            match LogReader::open_on(racing as Arc<dyn Storage>, machine.dir(id)) {
                Ok(read) => {
                    assert_eq!(read.report().torn, None, "segment {missed}, call {calls}");
                    true
                }
                Err(error) => {
                    assert!(matches!(error, Error::MissingSegment { .. }), "{error}");
                    false
                }
            }
        };
        let in_time: Vec<bool> = (0..40).map(comes_at).collect();
        // A segment may appear long after the listing; one that never appears is missing.
        let longest = in_time.iter().take_while(|found| **found).count();
        assert!(longest > segments.len() + 2 && longest < 40, "segment {missed}: {in_time:?}");
        assert!(!in_time[longest..].contains(&true), "segment {missed}: {in_time:?}");
    }
}

/// A writer that closes a session removes its preallocated segment. A reader that had just listed
/// it reported an unreadable log.
#[test]
fn a_segment_that_its_writer_takes_away_meanwhile_is_passed_over() {
    let mut missed = 0;
    for calls in 0..16 {
        let machine = Machine::default();
        let session = machine.process(Durability::Boundary).create(&types()).unwrap();
        let id = session.id();
        write_steps(&session, 20);
        let last = session.log().position().unwrap();
        session.close().unwrap();
        let ahead = machine.dir(id).join(format!("{:010}.seg", machine.segments(id).len()));
        machine.disk.write_file(&ahead, [0; 4096]).unwrap();
        let racing = Racing::on(machine.disk.clone(), calls, BTreeMap::from([(ahead.clone(), None)]));
        let storage = Arc::clone(&racing) as Arc<dyn Storage>;
        let reader = foldlog::inspect::LogReader::open_on(Arc::clone(&storage), machine.dir(id));
        let reader = reader.unwrap_or_else(|error| panic!("call {calls}: {error}"));
        assert_eq!((reader.records_len(), &reader.report().torn), (last.get() + 1, &None), "call {calls}");
        missed += u64::from(machine.disk.read_file(&ahead).is_none());

        machine.disk.write_file(&ahead, [0; 4096]).unwrap();
        let mut follower = Follower::open_on(storage, machine.dir(id), 0).unwrap();
        *racing.coming.lock().unwrap() = (calls, BTreeMap::from([(ahead, None)]));
        assert_eq!(come(&mut follower), Vec::from_iter(0..=last.get()), "call {calls}");
    }
    assert!(missed > 5, "{missed}");
}

/// The frame that a writer starts with tells whether the power was cut since, and it may be far
/// back.
#[test]
fn the_boot_of_an_unattested_end_is_looked_up_where_it_stands() {
    let machine = Machine::default();
    let session = machine.process(Durability::Process).create(&types()).unwrap();
    let id = session.id();
    write_steps(&session, 10);
    session.sync().unwrap();
    while machine.segments(id).len() < 3 {
        write_steps(&session, 1);
    }
    write_steps(&session, 4);
    machine.crash(CrashKind::Process);
    let records: Vec<_> = machine.frames(id).unwrap().into_iter().filter(|f| !f.kind.is_envelope()).collect();
    let [.., bad, last] = records.as_slice() else { panic!("there are records") };
    assert_eq!(bad.segment, last.segment);
    for boot in [BOOT, OTHER_BOOT] {
        let shown = Shown::new(boot);
        shown.show(&machine);
        shown.disk.mutate_file(&bad.segment, |bytes| bytes[bad.end - 1] ^= 1).unwrap();
        let (polled, progress) = poll(&mut shown.follow(&machine, id, last.sequence.get()));
        assert_eq!(polled.sequences(), [] as [u64; 0]);
        match progress {
            Err(Error::Corrupt(found)) => assert_eq!((boot, found.sequence), (BOOT, bad.sequence)),
            progress => {
                assert_eq!((boot, progress.unwrap().torn.unwrap().sequence), (OTHER_BOOT, bad.sequence));
            }
        }
    }
}
