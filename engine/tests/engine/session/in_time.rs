//! Records that no call waits for are synced in time, and their memory is bounded until then.

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

use foldlog::log::SegmentSizes;
use foldlog::storage::CrashKind;
use foldlog::{Clock, Durability};

use super::*;

/// A clock that can be set, and the monotonic one.
#[derive(Debug, Default)]
struct Clocks {
    now_us: AtomicI64,
    steady_us: AtomicI64,
}

impl Clock for Clocks {
    fn now_us(&self) -> i64 {
        BEGIN_US + self.now_us.load(Ordering::Relaxed)
    }

    fn steady_us(&self) -> i64 {
        self.steady_us.load(Ordering::Relaxed)
    }
}

/// Returns the steps that survive the worst power cut.
fn kept(home: &Home, session: Session) -> Vec<String> {
    let id = session.id();
    home.disk.crash(CrashKind::PowerLosingAll);
    drop(session);
    titles::<foldlog_test_support::host::Plan>(&home.store.open_session(id, &types()).unwrap())
}

/// A writer without a background syncs after a second by the settable clock: set back an hour, it
/// synced nothing for an hour and a second.
#[test]
fn what_is_due_is_synced_although_the_clock_was_set_back() {
    let clocks = Arc::new(Clocks::default());
    let home = home_with(|options| {
        (options.clock, options.durability) = (Arc::clone(&clocks) as _, Durability::Process);
    });
    let session = home.session();
    session.dispatch(step("before")).unwrap();
    clocks.now_us.store(-3_600_000_000, Ordering::Relaxed);
    clocks.steady_us.store(1_100_000, Ordering::Relaxed);
    session.dispatch(step("a second later")).unwrap();
    session.dispatch(step("at once")).unwrap();
    assert_eq!(kept(&home, session), ["before", "a second later"]);
    // A test's clock is both; it may go back too.
    let home = home_with(|options| options.durability = Durability::Process);
    let session = home.session();
    session.dispatch(step("before")).unwrap();
    home.clock.advance_us(-3_600_000_000);
    session.dispatch(step("set back")).unwrap();
    home.clock.advance_us(1_100_000);
    session.dispatch(step("a second later")).unwrap();
    assert_eq!(kept(&home, session), ["before", "set back", "a second later"]);
}

/// Returns how many files below a directory this process has open, and how many of them mapped.
fn open_below(directory: &Path) -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    fds.filter(|fd| {
        fd.as_ref().is_ok_and(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(directory)))
    })
    .count()
}

/// Each unsynced segment kept its file open, and so did each that waited for its seal: with small
/// segments, or on a slow disk, the process ran out of handles.
#[test]
fn unsynced_segments_keep_only_so_many_files_open() {
    let directory = tempfile::tempdir().unwrap();
    for background in [BackgroundSync::Inline, BackgroundSync::Thread] {
        let options = StoreOptions {
            durability: Durability::Process,
            segments: SegmentSizes { first_bytes: 4096, max_bytes: 4096, ..SegmentSizes::default() },
            background,
            // The number of files is the only reason for a sync here.
            clock: Arc::new(FixedClock::new(BEGIN_US)),
            ..StoreOptions::default()
        };
        let store = Store::open_with(directory.path(), options).unwrap();
        let session = store.create(&types()).unwrap();
        let mut most = 0;
        for nth in 0..1500 {
            session.dispatch(step(&"x".repeat(2048))).unwrap();
            if nth % 50 == 49 {
                most = most.max(open_below(directory.path()));
            }
        }
        assert!(most < 700, "{most} files are open");
        let (id, live) = (session.id(), session.dynamic().state().unwrap());
        session.close().unwrap();
        assert_eq!(store.open_session(id, &types()).unwrap().dynamic().state().unwrap(), live);
    }
}
