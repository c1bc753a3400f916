//! Measures tool calls that do nothing, which is the cost of a transaction alone.

use std::path::Path;
use std::sync::Arc;

use foldlog::filesystem::{Filesystem, InMemoryFilesystem};
use foldlog::tools::resources::BudgetTracker;
use foldlog::tools::{
    AsyncTool, ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    Durability, Event, ExecutionState, Idempotency, ResourceRegistry, SessionTypes, Slice, Store,
    StoreOptions,
};
use futures_lite::future::block_on;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::measure::{AtMost, BenchRow, ROUNDS, Result, Round, take_turns, timed};

const CALLS: u64 = 20_000;

const CALLS_SYNCED: u64 = 200;

/// Number of files in memory, which every call captures.
const FILES: u64 = 100;

#[derive(Serialize, Deserialize, JsonSchema)]
struct EmptyCallParameters {}

struct Empty;

impl Tool for Empty {
    const NAME: &'static str = "empty";
    type Parameters = EmptyCallParameters;
    type Output = bool;

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(
        &self,
        _: EmptyCallParameters,
        _: &ToolContext,
    ) -> std::result::Result<ToolResult<bool>, ToolError> {
        Ok(ToolResult::ok("done", true))
    }
}

/// Does nothing either, as a future.
struct EmptyFuture;

impl AsyncTool for EmptyFuture {
    const NAME: &'static str = Empty::NAME;
    type Parameters = EmptyCallParameters;
    type Output = bool;

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    async fn call(
        &self,
        _: EmptyCallParameters,
        _: &ToolContext,
    ) -> std::result::Result<ToolResult<bool>, ToolError> {
        Ok(ToolResult::ok("done", true))
    }
}

/// An event whose record is half as long as the two records of a call.
#[derive(Serialize, Deserialize, Clone)]
struct Half {
    text: String,
}

impl Event for Half {
    const NAME: &'static str = "half";
}

struct Halves;

impl Slice for Halves {
    const NAME: &'static str = "halves";
    type Item = Half;
}

fn types() -> Result<SessionTypes> {
    Ok(SessionTypes::builder().slice::<Halves>().append_all::<Halves>().build()?)
}

fn call() -> ToolCall {
    ToolCall::new("empty", "{}").with_id("call_0123456789")
}

fn runner(store: &Store) -> Result<ToolRunner> {
    runner_with(store, ToolRegistry::new().with(Empty))
}

fn runner_with(store: &Store, tools: ToolRegistry) -> Result<ToolRunner> {
    let files = Arc::new(InMemoryFilesystem::new());
    (0..FILES).try_for_each(|number| files.write(&format!("folder/{number}"), b"a few bytes"))?;
    let resources = ResourceRegistry::builder()
        .filesystem(files)
        .snapshotable(Arc::new(BudgetTracker::default()))
        .build()?;
    let state = ExecutionState::new(store.create(&types()?)?, resources);
    Ok(ToolRunner::new(state, tools))
}

/// Returns the bytes of the two records of a call, without their frames.
fn record_bytes(runner: &ToolRunner) -> Result<u64> {
    let report = runner.execute(&call(), &ExecuteOptions::default())?;
    let mut bytes = 0;
    runner.state().session().log().records(report.begin, report.end, |record| {
        bytes += record.body.len() as u64;
        Ok(())
    })?;
    Ok(bytes)
}

fn done(runner: ToolRunner, store: &Store) -> Result<()> {
    let session = runner.state().session().clone();
    drop(runner);
    let id = session.id();
    session.close()?;
    Ok(store.delete(id)?)
}

pub fn tools(dir: &Path) -> Result<Vec<BenchRow>> {
    let store = |durability: Durability, name: &str| {
        Store::open_with(dir.join(name), StoreOptions { durability, ..StoreOptions::default() })
    };
    let process = store(Durability::Process, "process")?;
    let measured = runner(&process)?;
    let bytes = record_bytes(&measured)?;
    done(measured, &process)?;
    let mut rows = at_process(&process, bytes / 2)?;
    rows.push(at_boundary(&store(Durability::Boundary, "boundary")?, &dir.join("limit"), bytes / 2)?);
    Ok(rows)
}

fn called(store: &Store, calls: u64) -> Result<Round> {
    let runner = runner(store)?;
    let round = timed(calls, || {
        (0..calls).try_for_each(|_| Ok(runner.execute(&call(), &ExecuteOptions::default()).map(drop)?))
    });
    done(runner, store)?;
    round
}

fn awaited(store: &Store, calls: u64) -> Result<Round> {
    let runner = runner_with(store, ToolRegistry::new().with_async(EmptyFuture))?;
    let round = timed(calls, || {
        block_on(async {
            for _ in 0..calls {
                runner.execute_async(&call(), &ExecuteOptions::default()).await?;
            }
            Ok(())
        })
    });
    done(runner, store)?;
    round
}

/// Measures calls of an answer, which look up their earlier runs.
fn asked_for(store: &Store, calls: u64) -> Result<Round> {
    let runner = runner(store)?;
    let session = runner.state().session().clone();
    let round = timed(calls, || {
        (0..calls).try_for_each(|_| {
            let answer = session.dispatch(Half { text: String::new() })?;
            runner.execute(&call().with_origin(answer, 0), &ExecuteOptions::default())?;
            Ok(())
        })
    });
    drop(session);
    done(runner, store)?;
    round
}

fn at_process(store: &Store, half_bytes: u64) -> Result<Vec<BenchRow>> {
    // The field's name and the map around it are a few bytes of the record too.
    let text = "x".repeat(half_bytes.saturating_sub(14) as usize);
    let mut dispatched = || {
        let session = store.create(&types()?)?;
        let round = timed(CALLS, || {
            (0..2 * CALLS).try_for_each(|_| Ok(session.dispatch(Half { text: text.clone() }).map(drop)?))
        });
        let id = session.id();
        session.close()?;
        store.delete(id)?;
        round
    };
    let [subject, limit, asked, awaited] = take_turns(
        ROUNDS,
        [&mut || called(store, CALLS), &mut dispatched, &mut || asked_for(store, CALLS), &mut || {
            awaited(store, CALLS)
        }],
    )?;
    Ok(vec![
        BenchRow::beside("tools", "empty tool", "Process", subject, limit).at_most(AtMost::Ratio(3.0)),
        BenchRow::beside("tools", "an event, and the empty tool it asks for", "Process", asked, limit),
        BenchRow::beside("tools", "empty async tool, beside the sync one", "Process", awaited, subject)
            .at_most(AtMost::Ratio(1.3)),
    ])
}

fn at_boundary(store: &Store, path: &Path, half_bytes: u64) -> Result<BenchRow> {
    let frame = vec![1; half_bytes as usize + foldlog_codec::frame::HEADER_LEN];
    let file = limits::filled(path, 2 * CALLS_SYNCED * frame.len() as u64)?;
    let mut written = || {
        timed(CALLS_SYNCED, || {
            let mut places = (0..2 * CALLS_SYNCED).map(|place| place * frame.len() as u64);
            Ok(places.try_for_each(|offset| limits::write_and_sync(&file, &frame, offset))?)
        })
    };
    let [subject, limit] = take_turns(ROUNDS, [&mut || called(store, CALLS_SYNCED), &mut written])?;
    Ok(BenchRow::beside("tools", "empty tool", "Boundary", subject, limit).at_most(AtMost::Ratio(1.2)))
}
