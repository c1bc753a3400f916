//! Measures replicated sessions: an acknowledgement compared with a bare put, the cost of a
//! replicator for the local log, the puts of a call, the duration of a takeover, and the lag of a
//! bucket.

mod bucket;
#[cfg(feature = "postgres")]
mod database;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use clap::Args;
use foldlog::filesystem::{Filesystem, HostFilesystemOptions};
use foldlog::replication::{Replication, Replicator};
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    Durability, ExecutionState, Idempotency, Record, RecordKind, ResourceRegistry, Session, SessionOptions,
    Store, StoreOptions,
};
use foldlog_remote::object_store::local::LocalFileSystem;
use foldlog_remote::object_store::memory::InMemory;
use foldlog_remote::object_store::path::Path as Key;
use foldlog_remote::object_store::{ObjectStore, PutMode, PutOptions, PutPayload};
use foldlog_remote::{LEASE_LENGTH_MAX, ObjectReplicator, Retries, Runtime};
use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use self::bucket::CountingStore;
use crate::measure::{AtMost, BenchRow, Measurement, ROUNDS, Result, Round, take_turns, timed};
use crate::subject::{append_types, fill, step};

const BENCH: &str = "remote";

/// Length of the body whose acknowledgement is timed.
const BODY_BYTES: usize = 1_024;

/// Number of records that are acknowledged in a round, one after the other.
const ACKNOWLEDGED: u64 = 200;

/// An acknowledgement may exceed a put below this time, in nanoseconds, by [`MORE_NS`], and a
/// longer one by a tenth.
const SLOW_PUT_NS: f64 = 1e6;

const MORE_NS: f64 = 100_000.0;

/// Number of appends of a round, below the replicator's largest lag.
const APPENDS: u64 = 50_000;

/// Longest duration of a takeover.
const TAKEOVER_NS: f64 = 2e9;

/// Sizes of the sessions that are taken over.
#[derive(Args)]
#[group(skip)]
pub struct Sizes {
    /// Number of records of the session that is taken over.
    #[arg(long, default_value_t = 1_000_000)]
    taken_over: u64,
    /// A PostgreSQL database to measure too, as `postgres://USER@/DATABASE?host=/DIRECTORY`; needs
    /// the feature `postgres`.
    #[cfg(feature = "postgres")]
    #[arg(long)]
    database: Option<String>,
}

pub fn remote(dir: &Path, sizes: &Sizes) -> Result<Vec<BenchRow>> {
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let bucket = dir.join("bucket");
    std::fs::create_dir_all(&bucket)?;
    let directory: Arc<dyn ObjectStore> =
        Arc::new(LocalFileSystem::new_with_prefix(bucket)?.with_fsync(true));
    let mut rows =
        vec![acknowledged("in memory", &memory)?, acknowledged("a directory, synced", &directory)?];
    #[cfg(feature = "postgres")]
    if let Some(url) = &sizes.database {
        rows.push(database::acknowledged(url)?);
    }
    rows.push(appends(dir)?);
    rows.extend(puts_of_calls(dir)?);
    rows.push(lag(dir)?);
    for chunk in [1_000, 10] {
        rows.push(takeover(dir, sizes.taken_over, chunk)?);
    }
    Ok(rows)
}

/// Stores sessions in a bucket, with a lease that no timer renews.
fn replicator(bucket: &Arc<dyn ObjectStore>, name: &str) -> Result<Arc<dyn Replicator>> {
    let replicator = ObjectReplicator::new(Arc::clone(bucket), "team", name, Retries::default())?;
    Ok(Arc::new(replicator.with_lease(LEASE_LENGTH_MAX)?))
}

/// Claims a session of its own. Returns a function that appends one record and returns once it is
/// acknowledged.
fn appender(replicator: Arc<dyn Replicator>) -> Result<impl FnMut() -> Result<()>> {
    let session = Uuid::new_v4();
    let said = |error| format!("{error:?}");
    let held = replicator.read(session, &mut |_| {}).map_err(said)?;
    let epoch = replicator.claim(session, held.next).map_err(said)?;
    let (mut next, body) = (held.next, vec![7; BODY_BYTES]);
    Ok(move || {
        let record = Record { sequence: next, kind: RecordKind::Observed, time_us: 0, body: &body };
        replicator.append(session, epoch, None, &[record]).map_err(said)?;
        next += 1;
        Ok(())
    })
}

/// Makes the row of an acknowledgement and its limit.
fn acknowledgement(of: &str, measured: Measurement, limit: Measurement) -> BenchRow {
    let row = BenchRow::beside(BENCH, "acknowledged record", of, measured, limit);
    row.at_most(if limit.median < SLOW_PUT_NS {
        AtMost::Ns(limit.median + MORE_NS)
    } else {
        AtMost::Ratio(1.1)
    })
}

/// Compares an acknowledged record with a bare put of as many bytes, by a thread that waits for it.
fn acknowledged(of: &str, store: &Arc<dyn ObjectStore>) -> Result<BenchRow> {
    let counting = CountingStore::over(Arc::clone(store));
    let as_store: Arc<dyn ObjectStore> = Arc::clone(&counting) as _;
    let mut append = appender(replicator(&as_store, "one")?)?;
    append()?;
    let len = counting.last_len.load(Ordering::SeqCst);
    let (runtime, mut number) = (Runtime::start()?, 0);
    let mut subject = || timed(ACKNOWLEDGED, || (0..ACKNOWLEDGED).try_for_each(|_| append()));
    let mut limit = || {
        timed(ACKNOWLEDGED, || {
            for _ in 0..ACKNOWLEDGED {
                number += 1;
                let (store, key) = (Arc::clone(&as_store), Key::from(format!("bare/{number:020}")));
                let payload = PutPayload::from(vec![7; len]);
                let put =
                    async move { store.put_opts(&key, payload, PutOptions::from(PutMode::Create)).await };
                runtime.run(put)??;
            }
            Ok(())
        })
    };
    let [measured, limit] = take_turns(ROUNDS, [&mut subject, &mut limit])?;
    Ok(acknowledgement(&format!("{of}, {len} bytes"), measured, limit))
}

fn store(dir: &Path, bucket: Option<&Arc<dyn ObjectStore>>, durability: Durability) -> Result<Store> {
    let replication = bucket
        .map(|bucket| Ok::<_, Box<dyn std::error::Error>>(Replication::new(replicator(bucket, "one")?)));
    let options =
        StoreOptions { replication: replication.transpose()?, durability, ..StoreOptions::default() };
    Ok(Store::open_with(dir, options)?)
}

/// Compares local appends with a replicator that is within its largest lag to those without.
fn appends(dir: &Path) -> Result<BenchRow> {
    let types = append_types()?;
    let bucket: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let [held, plain] = [("held", Some(&bucket)), ("plain", None)].map(|(name, bucket)| {
        let store = store(&dir.join(name), bucket, Durability::Process);
        let types = &types;
        move || -> Result<Round> {
            let session = store.as_ref().map_err(ToString::to_string)?.create(types)?;
            session.sync()?;
            let round = timed(APPENDS, || Ok(fill(&session, 0..APPENDS)?))?;
            session.close()?;
            Ok(round)
        }
    });
    let (mut held, mut plain) = (held, plain);
    let [measured, limit] = take_turns(ROUNDS, [&mut held, &mut plain])?;
    let row = BenchRow::beside(BENCH, "append at Process below the lag", APPENDS, measured, limit);
    Ok(row.at_most(AtMost::Ratio(1.05)))
}

#[derive(Deserialize, JsonSchema)]
struct WriteParameters {
    count: usize,
}

/// Writes a file of the requested length.
struct Writes;

impl Tool for Writes {
    const NAME: &'static str = "writes";
    type Parameters = WriteParameters;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(
        &self,
        WriteParameters { count }: WriteParameters,
        context: &ToolContext,
    ) -> std::result::Result<ToolResult<()>, ToolError> {
        let files = context
            .resources()
            .get::<dyn Filesystem>()
            .ok_or_else(|| ToolError::failed("there are no files"))?;
        // No two calls write the same bytes, and they are incompressible.
        let bytes: Vec<u8> =
            std::iter::repeat_with(|| *Uuid::new_v4().as_bytes()).take(count / 16).flatten().collect();
        files.write("file", &bytes)?;
        Ok(ToolResult::ok("written", ()))
    }
}

/// Counts the puts of a call, whose start record is replicated before its handler runs.
fn puts_of_calls(dir: &Path) -> Result<Vec<BenchRow>> {
    let counting = CountingStore::over(Arc::new(InMemory::new()));
    let as_store: Arc<dyn ObjectStore> = Arc::clone(&counting) as _;
    let session =
        store(&dir.join("calls"), Some(&as_store), Durability::Boundary)?.create(&append_types()?)?;
    let work = dir.join("work");
    std::fs::create_dir_all(&work)?;
    let files = session.open_workspace(&work, HostFilesystemOptions::default())?;
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build()?;
    let runner =
        ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new().with(Writes));
    let puts_of = |count: usize| -> Result<f64> {
        let before = counting.puts.load(Ordering::SeqCst);
        let call = ToolCall::new("writes", format!(r#"{{"count":{count}}}"#));
        runner.execute(&call, &ExecuteOptions::default())?;
        Ok((counting.puts.load(Ordering::SeqCst) - before) as f64)
    };
    puts_of(16)?;
    // Measures the second of two calls of the same kind.
    let [small, large] = [1 << 16, 4 << 20].map(|count| -> Result<f64> {
        puts_of(count)?;
        puts_of(count)
    });
    let row =
        |what, puts, most| BenchRow::once(BENCH, "puts of a call", what, puts).at_most(AtMost::Amount(most));
    Ok(vec![row("64 KiB changed", small?, 2.0), row("4 MiB changed", large?, 4.0)])
}

/// Measures the largest lag of the bucket at full speed, in records.
fn lag(dir: &Path) -> Result<BenchRow> {
    let counting = CountingStore::over(Arc::new(InMemory::new()));
    let as_store: Arc<dyn ObjectStore> = Arc::clone(&counting) as _;
    let session = store(&dir.join("lag"), Some(&as_store), Durability::Process)?.create(&append_types()?)?;
    session.sync()?;
    let (mut most, begun) = (0, Instant::now());
    for number in 0..10 * APPENDS {
        let position = session.dispatch(step(number))?;
        most = most.max(position.get().saturating_sub(counting.held.load(Ordering::SeqCst)));
    }
    let appended = 10 * APPENDS;
    let rate = appended as f64 / begun.elapsed().as_secs_f64();
    session.close()?;
    // The record that finds the limit reached waits, and is then written: one more than the limit.
    let bound = Replication::new(replicator(&as_store, "two")?).records_behind_max as f64 + 1.0;
    let row = BenchRow::once(
        BENCH,
        "records behind, at most",
        format!("{appended} appended, {rate:.0} a second"),
        most as f64,
    );
    Ok(row.at_most(AtMost::Amount(bound)))
}

/// Measures taking over a session whose chunks have this many records.
fn takeover(dir: &Path, records: u64, chunk: u64) -> Result<BenchRow> {
    let types = append_types()?;
    let bucket: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let session = Uuid::new_v4();
    put_session(dir, &bucket, session, records, chunk)?;
    let other = store_named(&dir.join(format!("taken-{chunk}")), &bucket, "two")?;
    let begun = Instant::now();
    let taken = other.take_over(session, &types)?;
    let ns = begun.elapsed().as_nanos() as f64;
    taken.close()?;
    std::fs::remove_dir_all(dir.join(format!("taken-{chunk}")))?;
    let row = BenchRow::once(BENCH, "takeover", format!("{records} records, {chunk} a chunk"), ns);
    Ok(row.at_most(AtMost::Ns(TAKEOVER_NS)))
}

fn store_named(dir: &Path, bucket: &Arc<dyn ObjectStore>, name: &str) -> Result<Store> {
    let replication = Some(Replication::new(replicator(bucket, name)?));
    Ok(Store::open_with(dir, StoreOptions { replication, ..StoreOptions::default() })?)
}

/// Puts a session into a bucket, in chunks of this many records: those of a session that was
/// written without a bucket.
fn put_session(
    dir: &Path,
    bucket: &Arc<dyn ObjectStore>,
    session: Uuid,
    records: u64,
    chunk: u64,
) -> Result<()> {
    let directory = dir.join(format!("written-{chunk}"));
    let options = SessionOptions { id: Some(session), ..SessionOptions::default() };
    let written: Session =
        store(&directory, None, Durability::Process)?.create_with(&append_types()?, options)?;
    fill(&written, 0..records)?;
    let dir = written.dir().to_owned();
    written.close()?;
    let replicator = replicator(bucket, "one")?;
    let said = |error| format!("{error:?}");
    let held = replicator.read(session, &mut |_| {}).map_err(said)?;
    let epoch = replicator.claim(session, held.next).map_err(said)?;
    let log = foldlog::inspect::LogReader::open(&dir)?;
    let (mut bodies, mut from) = (Vec::new(), 0);
    let put = |bodies: &mut Vec<(RecordKind, i64, Vec<u8>)>, from: &mut u64| -> Result<()> {
        let records: Vec<Record<'_>> = (*from..)
            .zip(bodies.iter())
            .map(|(sequence, (kind, time_us, body))| Record {
                sequence: sequence.into(),
                kind: *kind,
                time_us: *time_us,
                body,
            })
            .collect();
        replicator.append(session, epoch, None, &records).map_err(said)?;
        *from += records.len() as u64;
        bodies.clear();
        Ok(())
    };
    let mut failed = Ok(());
    log.records(0, log.last_position(), |record| {
        bodies.push((record.kind, record.time_us, record.body.to_vec()));
        if bodies.len() as u64 >= chunk && failed.is_ok() {
            failed = put(&mut bodies, &mut from);
        }
        Ok(())
    })?;
    failed?;
    if !bodies.is_empty() {
        put(&mut bodies, &mut from)?;
    }
    replicator.release(session, epoch);
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
