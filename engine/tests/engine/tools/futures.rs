//! Async hosts: waiting blocks no thread, dropped futures leave nothing behind, and results are the
//! same as those of blocking calls. The runtimes are those of a host: one with a single thread,
//! where a blocking call would block everything, and one with two.

use std::future::{Future, pending};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use foldlog::tools::{AsyncTool, CompositeSnapshot, Recovery, RewindOptions};
use foldlog::{Blocker, Durability, Outcome, SequenceNumber, SessionOptions, SnapshotOptions};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Notify, Semaphore};

use super::*;

fn single() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

fn two_workers() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

type Boxed = std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// Returns to a snapshot or a position of a run.
type Wait = fn(ExecutionState, (CompositeSnapshot, SequenceNumber)) -> Boxed;

/// Longest wait of a test for an immediate result.
const SOON: Duration = Duration::from_secs(10);

/// Longest wait of a test with very many calls for one of them.
const LATE: Duration = Duration::from_secs(60);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("this should have happened at once")
}

/// A gate at which tools wait, with their counts.
#[derive(Default)]
struct Gate {
    began: Notify,
    opens: Notify,
    /// Number of tools that were dropped before they had answered.
    dropped: AtomicUsize,
    ran: AtomicUsize,
}

/// The tools at work in a session: at most one that changes something, or any number of those that
/// do not.
#[derive(Default)]
struct Room(Mutex<(usize, usize)>);

/// A tool's presence in a room, until this is dropped.
struct InRoom(Arc<Room>, bool);

impl Room {
    fn enter(context: &ToolContext, changes: bool) -> InRoom {
        let room = context.resources().get::<Room>().unwrap();
        {
            let (changing, others) = &mut *room.0.lock().unwrap();
            assert!(
                *changing == 0 && (!changes || *others == 0),
                "{changing} that change and {others} others"
            );
            *(if changes { changing } else { others }) += 1;
        }
        InRoom(room, changes)
    }
}

impl Drop for InRoom {
    fn drop(&mut self) {
        let (changing, others) = &mut *self.0.0.lock().unwrap();
        *(if self.1 { changing } else { others }) -= 1;
    }
}

/// A tool that runs in parallel with others: it only reads, or acts outside only.
struct Beside<const OUTSIDE: bool>;

impl<const OUTSIDE: bool> AsyncTool for Beside<OUTSIDE> {
    const NAME: &'static str = if OUTSIDE { "requests" } else { "reads" };
    type Parameters = Asked;
    type Output = usize;

    fn reads_only(&self) -> bool {
        !OUTSIDE
    }

    fn outside_only(&self) -> bool {
        OUTSIDE
    }

    async fn call(&self, asked: Asked, context: &ToolContext) -> Result<ToolResult<usize>, ToolError> {
        let _in = Room::enter(context, false);
        let changed =
            context.session().dispatch_async(StepAdded { title: asked.text.clone(), part: 1 }).await;
        assert!(changed.is_err(), "{changed:?}");
        tokio::task::yield_now().await;
        match asked.does {
            Does::Hangs => pending().await,
            Does::Panics => panic!("the line is dead"),
            Does::Fails => Err(ToolError::failed("no")),
            _ => Ok(ToolResult::ok("done", 0)),
        }
    }
}

/// Writes as [`Writer`] does, once its gate opens, on its runtime.
struct Patient {
    gate: Arc<Gate>,
    idempotency: Idempotency,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema, PartialEq)]
enum Does {
    Succeeds,
    Fails,
    Panics,
    SaysNo,
    Waits,
    Hangs,
    /// Writes through the session's handle instead of its own.
    WritesOutside,
    Dies,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Asked {
    text: String,
    does: Does,
}

struct CountsDrops<'a>(&'a Gate);

impl Drop for CountsDrops<'_> {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

impl AsyncTool for Patient {
    const NAME: &'static str = "patient";
    const DESCRIPTION: &'static str = "Takes its time.";
    type Parameters = Asked;
    type Output = usize;

    fn idempotency(&self) -> Idempotency {
        self.idempotency
    }

    async fn call(&self, asked: Asked, context: &ToolContext) -> Result<ToolResult<usize>, ToolError> {
        let gate = &self.gate;
        let ran = gate.ran.fetch_add(1, Ordering::SeqCst);
        let _in = Room::enter(context, true);
        // Like a client of the host's runtime, which fails anywhere else.
        Handle::try_current().map_err(|_| ToolError::failed("there is no runtime here"))?;
        tokio::task::yield_now().await;
        let written = Write { paper: asked.text.clone(), text: asked.text.clone(), then: Then::Succeed };
        context.session().dispatch_async(StepAdded { title: asked.text.clone(), part: 1 }).await?;
        if let Some(desk) = context.resources().get::<Desk>() {
            desk.put(&written.paper, &written.text);
        }
        let drops = CountsDrops(gate);
        gate.began.notify_one();
        match asked.does {
            Does::Waits => gate.opens.notified().await,
            Does::Hangs => pending().await,
            Does::Panics => panic!("the clock exploded"),
            _ => {}
        }
        std::mem::forget(drops);
        match asked.does {
            Does::Fails => Err(ToolError::failed("no time")),
            Does::SaysNo => Ok(ToolResult::unsuccessful("not today")),
            Does::WritesOutside => {
                let outside = context.resources().get::<Session>().unwrap();
                outside.dispatch_async(StepAdded { title: "outside".to_owned(), part: 0 }).await?;
                Ok(ToolResult::ok("unreachable", 0))
            }
            Does::Dies if ran == 0 => {
                context.resources().get::<MemoryStorage>().unwrap().crash(CrashKind::Process);
                Ok(ToolResult::ok("nobody hears this", 0))
            }
            _ => Ok(ToolResult::ok("done", asked.text.len())),
        }
    }

    async fn undo(
        &self,
        _: Asked,
        _: &InterruptedCall,
        _: &ToolContext,
    ) -> Result<ToolResult<usize>, ToolError> {
        Handle::try_current().map_err(|_| ToolError::failed("there is no runtime here"))?;
        Ok(ToolResult::ok("undone", 0))
    }
}

fn asks(text: &str, does: Does) -> ToolCall {
    let asked = Asked { text: text.to_owned(), does };
    ToolCall::new("patient", serde_json::to_string(&asked).unwrap())
}

struct Host {
    desk: Desk,
    gate: Arc<Gate>,
    runner: ToolRunner,
}

impl Host {
    fn new() -> Host {
        Host::in_store(StoreOptions::default())
    }

    fn in_store(options: StoreOptions) -> Host {
        let disk = MemoryStorage::new();
        let session = store_with(&disk, options).create(&types()).unwrap();
        let (desk, gate) = (Desk::default(), Arc::<Gate>::default());
        let runner = Host::runner(session, &disk, &desk, &gate, Idempotency::Manual);
        Host { desk, gate, runner }
    }

    fn runner(
        session: Session,
        disk: &MemoryStorage,
        desk: &Desk,
        gate: &Arc<Gate>,
        idempotency: Idempotency,
    ) -> ToolRunner {
        let resources = ResourceRegistry::builder()
            .snapshotable(Arc::new(desk.clone()))
            .resource(Arc::new(session.clone()))
            .resource(Arc::new(disk.clone()))
            .resource(Arc::<BudgetTracker>::default())
            .resource(Arc::<Room>::default())
            .build()
            .unwrap();
        let counts = Arc::default();
        let writer = Writer { disk: disk.clone(), idempotency, counts };
        let tools = ToolRegistry::new()
            .with_async(Patient { gate: Arc::clone(gate), idempotency })
            .with_async(Beside::<true>)
            .with_async(Beside::<false>)
            .with(writer);
        ToolRunner::new(ExecutionState::new(session, resources), tools)
    }

    fn session(&self) -> &Session {
        self.runner.state().session()
    }

    /// The state that a failing call must leave unchanged.
    fn state(&self) -> (Vec<String>, Vec<String>) {
        (plan(self.session()), self.desk.papers().keys().cloned().collect())
    }

    fn execute(&self, text: &str, does: Does) -> impl Future<Output = Result<ToolReport>> + Send + use<> {
        self.runner.execute_async(&asks(text, does), &ExecuteOptions::default())
    }

    /// Checks that earlier calls are over: another one begins and ends.
    async fn is_at_rest(&self) {
        assert!(soon(self.execute("last", Does::Succeeds)).await.unwrap().success);
        assert!(
            self.session().calls().open_operations().is_empty() && !self.session().calls().is_interrupted()
        );
        assert!(self.session().calls().stuck_operations().is_empty());
    }
}

#[test]
fn a_tool_that_is_a_future_commits_or_leaves_nothing() {
    single().block_on(async {
        let host = Host::new();
        assert!(host.execute("one", Does::Succeeds).await.unwrap().success);
        let before = host.state();
        assert_eq!(before, (vec!["one".to_owned()], vec!["one".to_owned()]));
        for (does, cause) in
            [(Does::Fails, Cause::Error), (Does::SaysNo, Cause::Unsuccessful), (Does::Panics, Cause::Panic)]
        {
            let report = host.execute("two", does).await.unwrap();
            assert_eq!((report.success, report.cause), (false, Some(cause)), "{does:?}");
            assert_eq!(host.state(), before, "{does:?}");
        }
        let wrong = ToolCall::new("patient", r#"{"text":"two"}"#);
        let report = host.runner.execute_async(&wrong, &ExecuteOptions::default()).await.unwrap();
        assert_eq!(report.cause, Some(Cause::InvalidArguments));
        let none = ToolCall::new("nobody", "{}");
        let none = host.runner.execute_async(&none, &ExecuteOptions::default()).await;
        assert!(matches!(none, Err(Error::NoSuchTool(_))), "{none:?}");
        host.is_at_rest().await;
    });
}

#[test]
fn the_thread_of_a_call_waits_for_a_tool_that_is_a_future_too() {
    // Outside of any runtime, the tool finds none.
    let host = Host::new();
    let report = host.runner.execute(&asks("one", Does::Succeeds), &ExecuteOptions::default()).unwrap();
    assert_eq!((report.success, report.message.as_str()), (false, "there is no runtime here"));
    let runtime = two_workers();
    let _entered = runtime.enter();
    let report = host.runner.execute(&asks("one", Does::Succeeds), &ExecuteOptions::default()).unwrap();
    assert!(report.success, "{report:?}");
    let report = host.runner.execute(&asks("two", Does::Panics), &ExecuteOptions::default()).unwrap();
    assert_eq!(report.cause, Some(Cause::Panic));
    assert_eq!(host.state().0, ["one"]);
}

#[test]
fn a_call_whose_future_is_dropped_is_rolled_back_at_once() {
    single().block_on(async {
        let host = Host::new();
        let call = tokio::spawn(host.execute("one", Does::Hangs));
        soon(host.gate.began.notified()).await;
        assert_eq!(host.state().0, ["one"]);
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        assert_eq!(host.gate.dropped.load(Ordering::SeqCst), 1, "the tool went first");
        // No call has to request it.
        soon(async {
            while !host.session().calls().open_operations().is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(host.state(), (vec![], vec![]));
        let log = host.session().log().slice::<ToolInvocations>().unwrap();
        let last = log.iter().last().unwrap().unwrap();
        assert_eq!((last.outcome, last.cause), (Outcome::Failed, Some(Cause::Dropped)));
        host.is_at_rest().await;
    });
}

/// Its thread continues, so nothing may be restored before it has returned.
#[test]
fn a_tool_of_a_thread_whose_future_is_dropped_is_told_and_rolled_back_once_it_returns() {
    struct Stubborn {
        began: Arc<Notify>,
        stopped: std::sync::mpsc::Sender<()>,
    }
    impl Tool for Stubborn {
        const NAME: &'static str = "stubborn";
        type Parameters = Nothing;
        type Output = ();

        fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
            let desk = context.resources().get::<Desk>().unwrap();
            desk.put("a", "half");
            self.began.notify_one();
            while !context.is_cancelled() {
                std::thread::yield_now();
            }
            desk.put("b", "too late");
            self.stopped.send(()).unwrap();
            Ok(ToolResult::ok("it says so", ()))
        }
    }
    single().block_on(async {
        let host = Host::new();
        let (stopped, stops) = std::sync::mpsc::channel();
        let began = Arc::<Notify>::default();
        let tools = ToolRegistry::new().with(Stubborn { began: Arc::clone(&began), stopped });
        let runner = ToolRunner::new(host.runner.state().clone(), tools);
        let call = ToolCall::new("stubborn", "{}");
        let call = tokio::spawn(runner.execute_async(&call, &ExecuteOptions::default()));
        soon(began.notified()).await;
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        host.is_at_rest().await;
        stops.recv().unwrap();
        assert_eq!(host.state(), (vec!["last".to_owned()], vec!["last".to_owned()]));
    });
}

#[test]
fn a_tool_that_is_a_future_ends_with_its_deadline_and_with_a_cancellation() {
    single().block_on(async {
        let host = Host::new();
        let late = ExecuteOptions { deadline: Some(Duration::from_secs(1)), ..ExecuteOptions::default() };
        let late = soon(host.runner.execute_async(&asks("one", Does::Hangs), &late)).await;
        assert!(is_late(&late), "{late:?}");
        assert_eq!((host.state().0.len(), host.gate.dropped.load(Ordering::SeqCst)), (0, 1));

        let call = tokio::spawn(host.execute("two", Does::Hangs));
        soon(host.gate.began.notified()).await;
        soon(host.gate.began.notified()).await;
        let open = host.session().calls().open_operations().remove(0);
        assert!(host.session().calls().cancel(open.operation));
        let report = soon(call).await.unwrap().unwrap();
        assert_eq!((report.success, report.cause), (false, Some(Cause::Cancelled)));
        assert_eq!((host.state().0.len(), host.gate.dropped.load(Ordering::SeqCst)), (0, 2));
        host.is_at_rest().await;
    });
}

/// A task that dispatched while another task of its thread had an open operation blocked the thread
/// for ever, and so the task that would have ended the operation.
#[test]
fn a_task_waits_for_another_task_of_the_same_thread() {
    single().block_on(async {
        let host = Host::new();
        let begun =
            host.runner.begin_async(&asks("one", Does::Waits), &ExecuteOptions::default()).await.unwrap();
        let session = host.session().clone();
        let dispatched =
            tokio::spawn(session.dispatch_async(StepAdded { title: "second".to_owned(), part: 0 }));
        let taken = tokio::spawn(session.snapshot_async(SnapshotOptions::with_tag("behind")));
        let called = tokio::spawn(host.execute("third", Does::Succeeds));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!dispatched.is_finished() && !taken.is_finished() && !called.is_finished());
        let inside = StepAdded { title: "first".to_owned(), part: 0 };
        begun.context().session().dispatch_async(inside).await.unwrap();
        assert!(begun.end_async(ToolResult::ok("done", 1)).await.unwrap().success);
        let position = soon(dispatched).await.unwrap().unwrap();
        let taken = soon(taken).await.unwrap().unwrap();
        assert!(soon(called).await.unwrap().unwrap().success);
        session.sync_async().await.unwrap();
        assert_eq!(host.state().0[0], "first");
        assert_eq!(host.state().0.len(), 3);
        assert!(session.log().synced_end() > position && session.log().synced_end() > taken.position);
        assert_eq!(session.log().snapshot_tagged("behind").unwrap(), Some(taken));
    });
}

/// Composite snapshots, restores, rewinds and rollbacks had no async variants: on an executor with
/// one thread they waited for a task that could not run.
#[test]
fn a_run_goes_back_while_another_task_of_the_same_thread_works_on_it() {
    single().block_on(async {
        let host = Host::new();
        let (state, session) = (host.runner.state().clone(), host.session().clone());
        assert!(soon(host.execute("one", Does::Succeeds)).await.unwrap().success);
        let before = soon(state.snapshot_async(Some("before"))).await.unwrap();
        let position = session.log().position().unwrap();
        let held = host.state();
        let waits: [Wait; 6] = [
            |state, _| Box::pin(async move { state.snapshot_async(None).await.map(drop) }),
            |state, (before, _)| Box::pin(async move { state.restore_async(&before).await.map(drop) }),
            |state, (_, at)| {
                Box::pin(async move { state.rewind_async(at, &RewindOptions::default()).await.map(drop) })
            },
            |state, (_, at)| {
                let options = RewindOptions::default();
                Box::pin(async move { state.preview_rewind_async(at, &options).await.map(drop) })
            },
            |state, _| {
                Box::pin(async move { state.undo_rewind_async(&RewindOptions::default()).await.map(drop) })
            },
            |state, (before, _)| {
                Box::pin(async move { state.session().rollback_async(&before.session).await.map(drop) })
            },
        ];
        for (number, wait) in waits.into_iter().enumerate() {
            let begun = host.runner.begin_async(&asks("two", Does::Waits), &ExecuteOptions::default());
            let begun = soon(begun).await.unwrap();
            let waiting = tokio::spawn(wait(state.clone(), (before.clone(), position)));
            let given_up = tokio::spawn(wait(state.clone(), (before.clone(), position)));
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert!(!waiting.is_finished() && !given_up.is_finished(), "{number}");
            given_up.abort();
            assert!(given_up.await.unwrap_err().is_cancelled());
            let written =
                begun.context().session().dispatch_async(StepAdded { title: "two".to_owned(), part: 0 });
            soon(written).await.unwrap();
            assert!(soon(begun.end_async(ToolResult::ok("done", 1))).await.unwrap().success);
            soon(waiting).await.unwrap().unwrap();
            // The restore, the rewind and the rollback have abandoned the call; the undo has
            // brought it back.
            let plan = match number {
                1 | 2 | 5 => held.0.clone(),
                _ => [held.0.clone(), vec!["two".to_owned()]].concat(),
            };
            assert_eq!(host.state().0, plan, "{number}");
            assert!(!session.calls().is_interrupted() && session.calls().open_operations().is_empty());
            if number == 0 || number == 3 {
                soon(state.rewind_async(position, &RewindOptions::default())).await.unwrap();
            }
        }
        host.is_at_rest().await;
    });
}

#[test]
fn a_rewind_whose_future_is_dropped_while_it_waits_is_never_begun() {
    single().block_on(async {
        let host = Host::new();
        let state = host.runner.state().clone();
        let position = soon(state.snapshot_async(None)).await.unwrap().session.position;
        for _ in 0..20 {
            let begun = host.runner.begin_async(&asks("more", Does::Waits), &ExecuteOptions::default());
            let begun = soon(begun).await.unwrap();
            let rewound = state.rewind_async(position, &RewindOptions::default());
            assert!(tokio::time::timeout(Duration::from_millis(1), rewound).await.is_err());
            let written = StepAdded { title: "more".to_owned(), part: 0 };
            soon(begun.context().session().dispatch_async(written)).await.unwrap();
            assert!(soon(begun.end_async(ToolResult::ok("done", 1))).await.unwrap().success);
        }
        host.is_at_rest().await;
        assert_eq!(host.state().0.len(), 21, "no call was abandoned");
    });
}

#[test]
fn a_future_gives_up_after_its_limit_and_names_what_it_waited_for() {
    single().block_on(async {
        let limit = Duration::from_millis(10);
        let host = Host::in_store(StoreOptions { wait: limit, ..StoreOptions::default() });
        let from = line!();
        let begun =
            host.runner.begin_async(&asks("one", Does::Waits), &ExecuteOptions::default()).await.unwrap();
        let title = "outside".to_owned();
        let (state, position) = (host.runner.state(), SequenceNumber::MIN);
        let waited = [
            soon(state.snapshot_async(None)).await.map(drop),
            soon(state.rewind_async(position, &RewindOptions::default())).await.map(drop),
            soon(host.session().rollback_to_async(position)).await.map(drop),
            soon(host.session().dispatch_async(StepAdded { title, part: 0 })).await.map(drop),
            soon(host.session().snapshot_async(SnapshotOptions::default())).await.map(drop),
            soon(host.execute("two", Does::Succeeds)).await.map(drop),
        ];
        for told in waited {
            let Err(Error::WaitedTooLong { waited, blocker }) = told else { panic!("{told:?}") };
            assert!(waited >= limit);
            let Blocker::Operation { operation, tool, begun_at, .. } = *blocker else { panic!() };
            assert_eq!((operation, tool.as_str()), (Some(begun.id()), "patient"));
            assert!(begun_at.file().ends_with("futures.rs") && (from..from + 3).contains(&begun_at.line()));
        }
        drop(begun);
        host.is_at_rest().await;
    });
}

#[test]
fn a_tool_that_writes_outside_of_its_call_is_refused_and_does_not_wait_for_itself() {
    single().block_on(async {
        let host = Host::new();
        let report = soon(host.execute("one", Does::WritesOutside)).await.unwrap();
        assert_eq!(report.cause, Some(Cause::Error));
        assert!(report.message.contains("this thread"), "{}", report.message);
        host.is_at_rest().await;
    });
}

/// A blocking tool runs on another thread than the executor, which has only one here.
#[test]
fn a_tool_that_blocks_its_thread_blocks_no_executor() {
    struct Listens(Mutex<std::sync::mpsc::Receiver<&'static str>>);
    impl Tool for Listens {
        const NAME: &'static str = "listens";
        type Parameters = Nothing;
        type Output = String;

        fn reads_only(&self) -> bool {
            true
        }

        fn call(&self, _: Nothing, _: &ToolContext) -> Result<ToolResult<String>, ToolError> {
            let heard = self.0.lock().unwrap().recv().unwrap();
            Ok(ToolResult::ok(heard, heard.to_owned()))
        }
    }
    single().block_on(async {
        let host = Host::new();
        let (says, heard) = std::sync::mpsc::channel();
        let tools = ToolRegistry::new().with(Listens(Mutex::new(heard)));
        let runner = ToolRunner::new(host.runner.state().clone(), tools);
        let call = ToolCall::new("listens", "{}");
        let listens = tokio::spawn(runner.execute_async(&call, &ExecuteOptions::default()));
        tokio::task::yield_now().await;
        says.send("hello").unwrap();
        assert_eq!(soon(listens).await.unwrap().unwrap().message, "hello");
    });
}

#[test]
fn a_recovery_runs_tools_that_are_futures_where_their_runtime_is() {
    for idempotency in [Idempotency::Natural, Idempotency::Compensate] {
        single().block_on(async {
            let disk = MemoryStorage::new();
            let (desk, gate) = (Desk::default(), Arc::<Gate>::default());
            let session = store_of(&disk).create(&types()).unwrap();
            let id = session.id();
            let runner = Host::runner(session, &disk, &desk, &gate, idempotency);
            let died = runner.execute_async(&asks("one", Does::Dies), &ExecuteOptions::default()).await;
            assert!(died.is_err(), "{died:?}");
            drop(runner);
            let session = store_of(&disk).open_session(id, &types()).unwrap();
            let runner = Host::runner(session, &disk, &desk, &gate, idempotency);
            let recovered = soon(runner.recover_async(&ExecuteOptions::default())).await.unwrap();
            let [recovered] = &recovered[..] else { panic!("{recovered:?}") };
            let Recovery::RanAgain(report) = &recovered.recovery else { panic!("{recovered:?}") };
            assert!(report.success, "{report:?}");
            assert_eq!(plan(runner.state().session()), ["one"]);
        });
    }
}

#[test]
fn a_call_of_an_origin_that_has_a_result_is_answered_from_the_log_and_waits_for_nobody() {
    single().block_on(async {
        let host = Host::new();
        let first = asks("one", Does::Succeeds).with_origin(1, 0);
        let report = host.runner.execute_async(&first, &ExecuteOptions::default()).await.unwrap();
        let begun =
            host.runner.begin_async(&asks("two", Does::Waits), &ExecuteOptions::default()).await.unwrap();
        let again = soon(host.runner.execute_async(&first, &ExecuteOptions::default())).await.unwrap();
        assert_eq!((again.operation, again.recorded), (report.operation, true));
        let again = host.runner.begin_async(&first, &ExecuteOptions::default()).await;
        assert!(matches!(again, Err(Error::NoSuchOperation { .. })), "{again:?}");
        begun.abort("it is over").unwrap();
        assert_eq!(host.gate.ran.load(Ordering::SeqCst), 1);
    });
}

/// The outcomes of one session's calls, as reported to its host.
#[derive(Default)]
struct Told {
    committed: Vec<String>,
    /// Calls whose futures were dropped: their outcomes were not reported.
    unknown: Vec<String>,
}

/// Runs calls of all kinds in many sessions at once, some of them dropped, cancelled or late, and
/// compares each session with the results reported to its host.
fn storm(runtime: &Runtime, sessions: usize, calls: usize) {
    let disk = MemoryStorage::new();
    let store = store_of(&disk);
    let create = |_| {
        let options = SessionOptions { durability: Some(Durability::Process), ..SessionOptions::default() };
        store.create_with(&types(), options).unwrap()
    };
    let gate = Arc::<Gate>::default();
    let hosts: Vec<(ToolRunner, Desk)> = (0..sessions)
        .map(create)
        .map(|session| {
            let desk = Desk::default();
            (Host::runner(session, &disk, &desk, &gate, Idempotency::Manual), desk)
        })
        .collect();
    let told: Vec<Arc<Mutex<Told>>> = hosts.iter().map(|_| Arc::default()).collect();
    let running = Arc::new(Semaphore::new(0));
    runtime.block_on(async {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let mut tasks = Vec::new();
        for number in 0..calls {
            let of = number % sessions;
            let (runner, told, running) = (hosts[of].0.clone(), Arc::clone(&told[of]), Arc::clone(&running));
            let (kind, fate) = (random.next_u32() % 10, random.next_u32() % 8);
            let text = format!("call {number}");
            let does = [Does::Succeeds, Does::Succeeds, Does::Fails, Does::Panics, Does::SaysNo, Does::Hangs];
            let does = does.get(kind as usize).copied();
            let call = match does {
                Some(does) => asks(&text, does),
                // Tools that run in parallel with others.
                None if kind > 7 => {
                    let does = [Does::Succeeds, Does::Fails, Does::Panics, Does::Hangs][fate as usize % 4];
                    let tool = if kind == 8 { "reads" } else { "requests" };
                    ToolCall { tool: tool.into(), ..asks(&text, does) }
                }
                // A tool that runs on a thread.
                None => super::call(&text, &text, if kind == 6 { Then::Succeed } else { Then::Fail }),
            };
            // Cancels a running call now and then.
            if fate == 1 {
                let session = runner.state().session().clone();
                tasks.push(tokio::spawn(async move {
                    for open in session.calls().open_operations() {
                        session.calls().cancel(open.operation);
                    }
                }));
            }
            // A call that hangs has to end by its deadline, or be dropped.
            let changes = kind < 8;
            let hangs = does == Some(Does::Hangs) || !changes;
            let deadline = hangs.then(|| Duration::from_millis(u64::from(fate)));
            let options = ExecuteOptions { deadline, ..ExecuteOptions::default() };
            tasks.push(tokio::spawn(async move {
                running.add_permits(1);
                let call = runner.execute_async(&call, &options);
                if fate == 0 {
                    let gave_up = tokio::time::timeout(Duration::from_micros(100), call).await;
                    match gave_up {
                        Ok(Ok(report)) if report.success && changes => {
                            told.lock().unwrap().committed.push(text)
                        }
                        Ok(_) => {}
                        Err(_) => told.lock().unwrap().unknown.push(text),
                    }
                    return;
                }
                match call.await {
                    Ok(report) if report.success && changes => told.lock().unwrap().committed.push(text),
                    Ok(_) | Err(Error::DeadlineExceeded { .. }) => {}
                    Err(error) => panic!("{text}: {error}"),
                }
            }));
        }
        for task in tasks {
            tokio::time::timeout(LATE, task).await.unwrap().unwrap();
        }
        for (runner, _) in &hosts {
            let session = runner.state().session();
            tokio::time::timeout(LATE, session.snapshot_async(SnapshotOptions::default()))
                .await
                .unwrap()
                .unwrap();
            assert!(session.calls().open_operations().is_empty() && !session.calls().is_interrupted());
        }
    });
    assert_eq!(running.available_permits(), calls);
    for ((runner, desk), told) in hosts.iter().zip(&told) {
        let told = told.lock().unwrap();
        let mut steps = plan(runner.state().session());
        let papers: Vec<String> = desk.papers().keys().cloned().collect();
        steps.sort();
        assert_eq!(steps, papers, "what is kept of a call is kept everywhere");
        for step in &steps {
            assert!(told.committed.contains(step) || told.unknown.contains(step), "{step} was not told");
        }
        for committed in &told.committed {
            assert!(steps.contains(committed), "{committed} is lost");
        }
    }
}

#[test]
fn ten_thousand_calls_of_a_thousand_sessions_run_on_two_workers() {
    storm(&two_workers(), 1_000, 10_000);
}

#[test]
fn ten_thousand_calls_of_a_thousand_sessions_run_on_a_single_thread() {
    storm(&single(), 1_000, 10_000);
}

#[test]
fn a_thousand_calls_of_one_session_run_one_after_the_other() {
    storm(&two_workers(), 1, 1_000);
}

/// One session at a time leases a shared workspace, and the other one only learns by polling that
/// it is free.
#[test]
fn a_future_waits_for_a_workspace_that_another_session_works_on() {
    use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions};
    single().block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("workspace");
        std::fs::create_dir(&root).unwrap();
        let store = Store::open(directory.path().join("store")).unwrap();
        let runner = || {
            let session = store.create(&types()).unwrap();
            let files = session.dir().join("files");
            let workspace = HostFilesystem::open(&root, files, HostFilesystemOptions::default()).unwrap();
            let resources = ResourceRegistry::builder().snapshotable(Arc::new(workspace)).build().unwrap();
            let tools = ToolRegistry::new().with(super::programs::Runs(|context: &ToolContext| {
                let there = context.resources().get::<HostFilesystem>().unwrap().root().join("file");
                std::fs::write(there, "written").unwrap();
                Ok("written".to_owned())
            }));
            ToolRunner::new(ExecutionState::new(session, resources), tools)
        };
        let (first, second) = (runner(), runner());
        let begun =
            first.begin_async(&ToolCall::new("elsewhere", "{}"), &ExecuteOptions::default()).await.unwrap();
        let late = ExecuteOptions { wait: Some(Duration::from_millis(20)), ..ExecuteOptions::default() };
        let call = ToolCall::new("runs", "{}");
        let told = second.execute_async(&call, &late).await;
        let Err(Error::WaitedTooLong { waited, blocker }) = told else { panic!("{told:?}") };
        assert!(
            waited >= Duration::from_millis(20) && matches!(*blocker, Blocker::Resource { .. }),
            "{blocker:?}"
        );
        let waits = tokio::spawn(second.execute_async(&call, &ExecuteOptions::default()));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!waits.is_finished() && !root.join("file").exists());
        begun.end_async(ToolResult::ok("done", ())).await.unwrap();
        assert!(soon(waits).await.unwrap().unwrap().success);
        assert!(root.join("file").exists());
    });
}
