//! Resources of calls besides the session: how they are leased, recorded and restored.

use std::sync::Condvar;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use foldlog::RecordKind;
use foldlog::tools::resources::{LeaseHolder, LeaseMark, ResourceLease};
use foldlog_codec::body::{ToolBegin, ToolEnd};

use super::*;

/// A meeting point with a time limit.
struct Together {
    all: u32,
    came: Mutex<u32>,
    more: Condvar,
}

impl Together {
    fn of(all: u32) -> Option<Together> {
        Some(Together { all, came: Mutex::new(0), more: Condvar::new() })
    }

    fn are_all_here(&self) -> bool {
        let mut came = self.came.lock().unwrap();
        *came += 1;
        self.more.notify_all();
        let wait = Duration::from_secs(20);
        let (came, _) = self.more.wait_timeout_while(came, wait, |came| *came < self.all).unwrap();
        *came >= self.all
    }
}

/// Reads, together with others.
struct Look {
    together: Option<Together>,
}

impl Tool for Look {
    const NAME: &'static str = "look";
    type Parameters = Nothing;
    type Output = u64;

    fn reads_only(&self) -> bool {
        self.together.is_some()
    }

    fn call(&self, _: Nothing, _: &ToolContext) -> Result<ToolResult<u64>, ToolError> {
        if self.together.as_ref().is_some_and(|together| !together.are_all_here()) {
            return Err(ToolError::failed("alone"));
        }
        Ok(ToolResult::ok("seen", 1))
    }
}

fn look() -> ToolCall {
    ToolCall::new("look", "{}")
}

fn with_resource<R: Snapshotable>(disk: &MemoryStorage, resource: R) -> ExecutionState {
    let session = store_of(disk).create(&types()).unwrap();
    let resources = ResourceRegistry::builder().snapshotable(Arc::new(resource)).build().unwrap();
    ExecutionState::new(session, resources)
}

/// A resource for one call at a time. A call at its door waits there until all expected ones have
/// come.
#[derive(Clone, Default)]
struct Room {
    inner: Arc<RoomInner>,
}

#[derive(Default)]
struct RoomInner {
    is_held: Mutex<bool>,
    left: Condvar,
    /// How many more are turned away at the door.
    turned_away: AtomicU32,
    asked: AtomicU32,
    expected: AtomicU32,
    come: AtomicU32,
}

impl Room {
    fn comes(&self) {
        self.inner.come.fetch_add(1, Ordering::Relaxed);
    }

    fn wait_for_all(&self) {
        let RoomInner { come, expected, .. } = &*self.inner;
        while come.load(Ordering::Relaxed) < expected.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        // They need some time to reach the door.
        (0..1_000).for_each(|_| thread::yield_now());
    }

    fn enter(&self, until: Instant) -> Result<Inside> {
        self.inner.asked.fetch_add(1, Ordering::Relaxed);
        self.wait_for_all();
        let away = self
            .inner
            .turned_away
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
        if away.is_ok() {
            let (resource, reason) = (Room::NAME.to_owned(), "not today".to_owned());
            return Err(Error::Resource { resource, reason });
        }
        let mut is_held = self.inner.is_held.lock().unwrap();
        while *is_held {
            let wait = until.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                return Err(Error::DeadlineExceeded { operation: None });
            }
            is_held = self.inner.left.wait_timeout(is_held, wait).unwrap().0;
        }
        *is_held = true;
        Ok(Inside(self.clone()))
    }
}

struct Inside(Room);

impl Drop for Inside {
    fn drop(&mut self) {
        *self.0.inner.is_held.lock().unwrap() = false;
        self.0.inner.left.notify_all();
    }
}

impl LeaseMark for Inside {}

impl Snapshotable for Room {
    const NAME: &'static str = "room";
    type Snapshot = ();

    fn snapshot(&self, _: &CaptureOptions) -> Result<()> {
        Ok(())
    }

    fn restore(&self, (): &()) -> Result<()> {
        Ok(())
    }

    fn lease(&self, _: &LeaseHolder<'_>, until: Instant) -> Result<Option<ResourceLease>> {
        Ok(Some(ResourceLease::new(self.enter(until)?)))
    }
}

#[test]
fn calls_that_run_together_enter_together() {
    // Each of them found no shareable lease while another was taking one, took its own, and waited
    // for the other, which waited for it.
    let (disk, room) = (MemoryStorage::new(), Room::default());
    room.inner.expected.store(3, Ordering::Relaxed);
    let state = with_resource(&disk, room.clone());
    let together = Together::of(3);
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Look { together }));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let options =
                    ExecuteOptions { deadline: Some(Duration::from_secs(10)), ..ExecuteOptions::default() };
                room.comes();
                assert!(runner.execute(&look(), &options).unwrap().success);
            });
        }
    });
    assert_eq!(room.inner.asked.load(Ordering::Relaxed), 1, "one of them took it for all");
}

#[test]
fn where_one_is_turned_away_the_next_one_tries_for_the_others() {
    let (disk, room) = (MemoryStorage::new(), Room::default());
    room.inner.turned_away.store(1, Ordering::Relaxed);
    room.inner.expected.store(3, Ordering::Relaxed);
    let state = with_resource(&disk, room.clone());
    let together = Together::of(2);
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Look { together }));
    let options = ExecuteOptions { deadline: Some(Duration::from_secs(10)), ..ExecuteOptions::default() };
    let refused = thread::scope(|scope| {
        let call = || {
            room.comes();
            runner.execute(&look(), &options)
        };
        let calls = [(); 3].map(|()| scope.spawn(call));
        calls.map(|call| call.join().unwrap()).into_iter().filter(|report| report.is_err()).count()
    });
    assert_eq!((refused, room.inner.asked.load(Ordering::Relaxed)), (1, 2));
}

#[test]
fn who_waits_for_a_lease_that_another_is_taking_waits_no_longer_than_its_time() {
    let (disk, room) = (MemoryStorage::new(), Room::default());
    let _outside = room.enter(Instant::now()).unwrap();
    let state = with_resource(&disk, room.clone());
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Look { together: Together::of(1) }));
    let execute = |millis| {
        let since = Instant::now();
        let options =
            ExecuteOptions { deadline: Some(Duration::from_millis(millis)), ..ExecuteOptions::default() };
        let report = runner.execute(&look(), &options);
        assert!(matches!(report, Err(Error::DeadlineExceeded { .. })), "{report:?}");
        since.elapsed()
    };
    thread::scope(|scope| {
        scope.spawn(|| execute(2_000));
        // The holder outside counts as the first request.
        while room.inner.asked.load(Ordering::Relaxed) < 2 {
            thread::yield_now();
        }
        let waited = execute(50);
        assert!(waited < Duration::from_millis(1_500), "{waited:?}");
    });
}

/// A drawer that knows whether it was changed, and counts its captures.
#[derive(Default)]
struct Drawer {
    papers: Mutex<Arc<Vec<String>>>,
    captured: AtomicU32,
}

impl Snapshotable for Drawer {
    const NAME: &'static str = "drawer";
    type Snapshot = Arc<Vec<String>>;

    fn snapshot(&self, _: &CaptureOptions) -> Result<Self::Snapshot> {
        self.captured.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::clone(&self.papers.lock().unwrap()))
    }

    fn restore(&self, snapshot: &Self::Snapshot) -> Result<()> {
        *self.papers.lock().unwrap() = Arc::clone(snapshot);
        Ok(())
    }

    fn is_unchanged(&self, since: &Self::Snapshot) -> bool {
        Arc::ptr_eq(&self.papers.lock().unwrap(), since)
    }

    fn record(snapshot: &Self::Snapshot) -> Result<Option<Vec<u8>>> {
        Ok(Some(rmp_serde::to_vec(snapshot.as_slice()).unwrap()))
    }
}

#[derive(Deserialize, JsonSchema)]
struct Paper {
    name: String,
    succeeds: bool,
}

struct Put;

impl Tool for Put {
    const NAME: &'static str = "put";
    type Parameters = Paper;
    type Output = bool;

    fn call(&self, paper: Paper, context: &ToolContext) -> Result<ToolResult<bool>, ToolError> {
        let drawer = context.resources().get::<Drawer>().unwrap();
        Arc::make_mut(&mut drawer.papers.lock().unwrap()).push(paper.name);
        if paper.succeeds { Ok(ToolResult::ok("put", true)) } else { Err(ToolError::failed("torn")) }
    }
}

/// Returns the drawer's captures in each start record and end record of the log.
fn drawers(session: &Session) -> Vec<Vec<String>> {
    let mut drawers = Vec::new();
    let last = session.log().position().unwrap();
    session
        .log()
        .records(0, last, |record| {
            let resources = match record.kind {
                RecordKind::ToolBegin => ToolBegin::decode(record.body).unwrap().resources,
                RecordKind::ToolEnd => ToolEnd::decode(record.body).unwrap().resources,
                _ => Vec::new(),
            };
            let recorded = resources.iter().filter_map(|resource| resource.snapshot);
            drawers.extend(recorded.map(|drawer| rmp_serde::from_slice(drawer.bytes()).unwrap()));
            Ok(())
        })
        .unwrap();
    drawers
}

/// Two captures for each call were half of the cost of a call that changes nothing.
#[test]
fn what_did_not_change_is_not_captured_again_and_every_record_says_what_it_was() {
    let state = with_resource(&MemoryStorage::new(), Drawer::default());
    let (session, drawer) = (state.session().clone(), state.resources().get::<Drawer>().unwrap());
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Look { together: None }).with(Put));
    let captured = |call: &ToolCall| {
        let before = drawer.captured.load(Ordering::Relaxed);
        runner.execute(call, &ExecuteOptions::default()).unwrap();
        drawer.captured.load(Ordering::Relaxed) - before
    };
    let put = |name: &str, succeeds| {
        ToolCall::new("put", format!(r#"{{"name": "{name}", "succeeds": {succeeds}}}"#))
    };
    assert_eq!([captured(&look()), captured(&look())], [1, 0], "once, since nothing was captured yet");
    assert_eq!(captured(&put("bill", true)), 1, "as it is after the call");
    assert_eq!(captured(&put("note", false)), 1, "as it is before it is brought back to its begin");
    drawer.restore(&Arc::new(vec!["letter".to_owned()])).unwrap();
    assert_eq!([captured(&look()), captured(&look())], [1, 0], "somebody else changed it");
    let [none, bill, letter] = [&[] as &[&str], &["bill"], &["letter"]];
    // The end of a failed call names a capture only if its rollback replaced files.
    let expected = [none, none, none, none, none, bill, bill, letter, letter, letter, letter];
    assert_eq!(drawers(&session), expected);
}

/// Returns the given bytes as its capture.
struct Odd(&'static [u8]);

impl Snapshotable for Odd {
    const NAME: &'static str = "odd";
    type Snapshot = &'static [u8];

    fn snapshot(&self, _: &CaptureOptions) -> Result<&'static [u8]> {
        Ok(self.0)
    }

    fn restore(&self, _: &&'static [u8]) -> Result<()> {
        Ok(())
    }

    fn record(snapshot: &&'static [u8]) -> Result<Option<Vec<u8>>> {
        Ok(Some(snapshot.to_vec()))
    }
}

#[test]
fn a_resource_that_records_no_single_value_keeps_the_tool_from_running_and_the_log_readable() {
    // The bytes were copied into the record, and the log could not be opened again.
    let deep = [[0x91; 113].as_slice(), &[0xc0]].concat().leak();
    let reference = [[0xc7, 40, 1].as_slice(), &[0; 40]].concat().leak();
    let bad: [&'static [u8]; 6] = [b"{\"json\": true}", b"", &[0xc0, 0xc0], &[0x92, 0xc0], deep, reference];
    for bytes in bad {
        let disk = MemoryStorage::new();
        let state = with_resource(&disk, Odd(bytes));
        let session = state.session().clone();
        let runner = ToolRunner::new(state, ToolRegistry::new().with(Look { together: None }));
        let refused = runner.execute(&look(), &ExecuteOptions::default());
        assert!(
            matches!(&refused, Err(Error::Resource { resource, .. }) if resource == "odd"),
            "{refused:?}"
        );
        assert!(matches!(runner.state().snapshot(None), Err(Error::Resource { .. })));
        drop(runner);
        let id = session.id();
        session.close().unwrap();
        store_of(&disk).open_session(id, &types()).unwrap();
    }
    let state = with_resource(&MemoryStorage::new(), Odd(&[0x92, 0xc0, 0x01]));
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Look { together: None }));
    assert!(runner.execute(&look(), &ExecuteOptions::default()).unwrap().success);
}

#[test]
fn recovery_asks_for_no_resource_that_it_would_not_restore() {
    // A run without the previous run's budget could not be recovered, although recovery does not
    // change budgets.
    let mut run = Run::with(Idempotency::Natural);
    run.desk.put("letter", "as it was");
    run.session().sync().unwrap();
    assert!(run.write("letter", "half done", Then::Die).is_err());
    run.reopen(Idempotency::Natural);
    let with = |resources: ResourceRegistry| {
        ToolRunner::new(ExecutionState::new(run.session().clone(), resources), ToolRegistry::new())
    };
    let bare = with(ResourceRegistry::builder().snapshotable(Arc::clone(&run.budget)).build().unwrap());
    let refused = bare.recover(&ExecuteOptions::default());
    assert!(matches!(refused, Err(Error::SnapshotMismatch(_))), "the desk is to be restored: {refused:?}");
    assert!(run.session().calls().is_interrupted());
    let without = with(ResourceRegistry::builder().snapshotable(Arc::new(run.desk.clone())).build().unwrap());
    without.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(run.desk.text("letter").as_deref(), Some("as it was"));
}

#[test]
fn recovery_does_without_what_did_not_outlive_its_process() {
    // A resource that existed only in the ended process was required in the next one.
    let disk = MemoryStorage::new();
    let state = with_resource(&disk, Room::default());
    let id = state.session().id();
    let runner = ToolRunner::new(state, ToolRegistry::new());
    let operation = runner.begin(&look(), &ExecuteOptions::default()).unwrap();
    runner.state().session().sync().unwrap();
    disk.crash(CrashKind::Process);
    let session = store_of(&disk).open_session(id, &types()).unwrap();
    let next =
        ToolRunner::new(ExecutionState::new(session, ResourceRegistry::default()), ToolRegistry::new());
    next.recover(&ExecuteOptions::default()).unwrap();
    assert!(!next.state().session().calls().is_interrupted());
    drop(operation);
}

/// The wait had no limit and could not be cancelled.
#[test]
fn a_recovery_waits_for_what_another_works_on_no_longer_than_it_is_told() {
    let disk = MemoryStorage::new();
    let state = with_resource(&disk, Room::default());
    let id = state.session().id();
    let runner = ToolRunner::new(state, ToolRegistry::new());
    let operation = runner.begin(&look(), &ExecuteOptions::default()).unwrap();
    disk.crash(CrashKind::Process);
    let room = Room::default();
    let outside = room.enter(Instant::now()).unwrap();
    let session = store_of(&disk).open_session(id, &types()).unwrap();
    let resources = ResourceRegistry::builder().snapshotable(Arc::new(room)).build().unwrap();
    let next = ToolRunner::new(ExecutionState::new(session, resources), ToolRegistry::new());
    let since = Instant::now();
    let waited = next
        .recover(&ExecuteOptions { deadline: Some(Duration::from_millis(20)), ..ExecuteOptions::default() });
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    assert!(matches!(waited, Err(Error::DeadlineExceeded { operation: None })), "{waited:?}");
    assert!(next.state().session().calls().is_interrupted());
    drop(outside);
    next.recover(&ExecuteOptions::default()).unwrap();
    assert!(!next.state().session().calls().is_interrupted());
    drop(operation);
}

/// A budget existed only in its process: after reopening, on the same machine or after a takeover
/// on another, it started at zero.
#[test]
fn what_was_spent_stays_spent_in_the_next_process() {
    let mut run = Run::new();
    let spent = |run: &Run| run.budget.usage_of("evaluation").input_tokens;
    let next = |run: &mut Run| {
        run.disk.crash(CrashKind::Process);
        run.budget = Arc::default();
        run.reopen(Idempotency::Manual);
    };
    run.budget.record("planning", Usage { cost_micros: 7_000, ..Usage::default() });
    run.write("paper", "one", Then::Succeed).unwrap();
    next(&mut run);
    assert_eq!((spent(&run), run.budget.usage_of("planning").cost_micros), (10, 7_000));
    // A failed call has spent tokens too.
    assert!(!run.write("paper", "two", Then::Fail).unwrap().success);
    next(&mut run);
    assert_eq!((spent(&run), run.budget.usage_of("planning").cost_micros), (20, 7_000));
    // So has a killed one, for all that is known.
    run.counts.lock().unwrap().ran = 0;
    assert!(run.write("paper", "three", Then::Die).is_err());
    next(&mut run);
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(spent(&run), 20);
    next(&mut run);
    assert_eq!((spent(&run), run.budget.usage_of("planning").cost_micros), (20, 7_000));
    // A host with a higher count continues with that.
    run.disk.crash(CrashKind::Process);
    run.budget = Arc::default();
    run.budget.record("evaluation", Usage { input_tokens: 500, ..Usage::default() });
    run.reopen(Idempotency::Manual);
    assert_eq!((spent(&run), run.budget.usage_of("planning").cost_micros), (500, 7_000));
    run.write("paper", "four", Then::Succeed).unwrap();
    // A reset by the host stays.
    let before = run.runner.state().snapshot(None).unwrap();
    run.write("paper", "five", Then::Succeed).unwrap();
    assert_eq!(spent(&run), 520);
    run.runner.state().restore(&before).unwrap();
    next(&mut run);
    assert_eq!(spent(&run), 510);
}
