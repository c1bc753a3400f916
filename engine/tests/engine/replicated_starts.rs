//! What a worker confirms before a tool starts, for each way of starting one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use foldlog::replication::{CapturePacks, HeldPart, ReplicaError, ReplicaStatus, Replication, Replicator};
use foldlog::tools::{
    AsyncTool, ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    Durability, Error, ExecutionState, Idempotency, ObjectId, Record, RecordKind, ResourceRegistry,
    SequenceNumber, Session, Store, StoreOptions, schemars,
};
use foldlog_test_support::crash::Machine;
use foldlog_test_support::host::types;
use foldlog_test_support::replica::MemoryReplica;
use futures_lite::future::block_on;
use serde::Deserialize;
use uuid::Uuid;

/// After a start record is appended, another worker takes the session over before the append
/// returns.
struct TakenOver {
    replica: MemoryReplica,
    happens: AtomicBool,
    /// Number of confirmations of the claim.
    confirmed: AtomicU64,
}

impl fmt::Debug for TakenOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.replica.fmt(f)
    }
}

impl Replicator for TakenOver {
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
        self.replica.append(session, epoch, captures, records)?;
        let begins = records.last().filter(|record| record.kind == RecordKind::ToolBegin);
        if let Some(begin) = begins
            && self.happens.load(Ordering::SeqCst)
        {
            self.replica.named("two").claim(session, begin.sequence + 1)?;
        }
        Ok(())
    }

    fn is_confirmed(&self, session: Uuid, epoch: u64) -> bool {
        self.replica.is_confirmed(session, epoch)
    }

    fn confirm(&self, session: Uuid, epoch: u64) -> Result<(), ReplicaError> {
        self.confirmed.fetch_add(1, Ordering::SeqCst);
        self.replica.confirm(session, epoch)
    }

    fn release(&self, session: Uuid, epoch: u64) {
        self.replica.release(session, epoch);
    }
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Nothing {}

type Starts = Arc<AtomicU64>;

/// A tool that runs on a thread. Its calls may run in parallel if it only acts outside.
struct Mail<const OUTSIDE: bool>(Starts);

impl<const OUTSIDE: bool> Tool for Mail<OUTSIDE> {
    const NAME: &'static str = if OUTSIDE { "send_outside" } else { "send" };
    type Parameters = Nothing;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Keyed
    }

    fn outside_only(&self) -> bool {
        OUTSIDE
    }

    fn call(&self, _: Nothing, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(ToolResult::ok("sent", ()))
    }
}

struct SendAsync(Starts);

impl AsyncTool for SendAsync {
    const NAME: &'static str = "send_async";
    type Parameters = Nothing;
    type Output = ();

    async fn call(&self, _: Nothing, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(ToolResult::ok("sent", ()))
    }
}

struct World {
    replicator: Arc<TakenOver>,
    session: Session,
    runner: ToolRunner,
    starts: Starts,
}

fn world(durability: Durability) -> World {
    let machine = Machine::default();
    let replicator = Arc::new(TakenOver {
        replica: MemoryReplica::new("one"),
        happens: AtomicBool::new(false),
        confirmed: AtomicU64::new(0),
    });
    let replication = Some(Replication::new(replicator.clone()));
    let options = StoreOptions { replication, ..machine.options(durability) };
    let store = Store::open_with("/home/store", options).unwrap();
    let session = store.create(&types()).unwrap();
    let starts = Starts::default();
    let runner = runner(&session, &starts);
    World { replicator, session, runner, starts }
}

fn runner(session: &Session, starts: &Starts) -> ToolRunner {
    let tools = ToolRegistry::new()
        .with(Mail::<false>(starts.clone()))
        .with(Mail::<true>(starts.clone()))
        .with_async(SendAsync(starts.clone()));
    ToolRunner::new(ExecutionState::new(session.clone(), ResourceRegistry::default()), tools)
}

fn is_fenced(error: &Error) -> bool {
    match error {
        Error::Fenced { epoch, .. } => *epoch == 2,
        Error::Poisoned { cause } => is_fenced(cause),
        _ => false,
    }
}

/// A worker that was suspended until another had taken over still started its tool, once it had
/// learnt that the start record is replicated.
#[test]
fn a_tool_does_not_start_once_another_worker_has_taken_over() {
    type Start = fn(&ToolRunner) -> foldlog::Result<()>;
    const OPTIONS: ExecuteOptions = ExecuteOptions { deadline: None, wait: None };
    let call = |tool: &str| ToolCall::new(tool, "{}");
    let ways: [(&str, Start); 8] = [
        ("execute", |runner| runner.execute(&ToolCall::new("send", "{}"), &OPTIONS).map(drop)),
        ("begin", |runner| runner.begin(&ToolCall::new("elsewhere", "{}"), &OPTIONS).map(drop)),
        ("together", |runner| {
            let calls = [ToolCall::new("send_outside", "{}"), ToolCall::new("send_outside", "{}")];
            runner.execute_together(&calls, &OPTIONS).into_iter().find_map(Result::err).map_or(Ok(()), Err)
        }),
        ("async, a thread", |runner| {
            block_on(runner.execute_async(&ToolCall::new("send", "{}"), &OPTIONS)).map(drop)
        }),
        ("async, a future", |runner| {
            block_on(runner.execute_async(&ToolCall::new("send_async", "{}"), &OPTIONS)).map(drop)
        }),
        ("async, on a thread that blocks", |runner| {
            runner.execute(&ToolCall::new("send_async", "{}"), &OPTIONS).map(drop)
        }),
        ("async begin", |runner| {
            block_on(runner.begin_async(&ToolCall::new("elsewhere", "{}"), &OPTIONS)).map(drop)
        }),
        ("async, together", |runner| {
            let calls = [ToolCall::new("send_outside", "{}"), ToolCall::new("send_outside", "{}")];
            let reports = block_on(runner.execute_together_async(&calls, &OPTIONS));
            reports.into_iter().find_map(Result::err).map_or(Ok(()), Err)
        }),
    ];
    for (way, start) in ways {
        let world = world(Durability::Boundary);
        // Without a competing claim, no confirmation is requested.
        assert!(world.runner.execute(&call("send"), &OPTIONS).unwrap().success, "{way}");
        assert_eq!(world.replicator.confirmed.load(Ordering::SeqCst), 0, "{way}");
        world.replicator.happens.store(true, Ordering::SeqCst);
        let refused = start(&world.runner).unwrap_err();
        assert!(is_fenced(&refused), "{way}: {refused:?}");
        assert_eq!(world.starts.load(Ordering::SeqCst), 1, "{way}: a tool starts late");
        // The start record stays open, for the other worker to recover.
        assert!(world.session.calls().is_interrupted(), "{way}");
        assert!(is_fenced(&world.session.sync().unwrap_err()), "{way}");
    }
}

#[test]
fn a_host_that_waits_for_no_begin_asks_for_no_claim() {
    let world = world(Durability::Process);
    world.replicator.happens.store(true, Ordering::SeqCst);
    assert!(world.runner.execute(&ToolCall::new("send", "{}"), &ExecuteOptions::default()).unwrap().success);
    assert_eq!(world.replicator.confirmed.load(Ordering::SeqCst), 0);
}
