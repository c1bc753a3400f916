//! Counts the requests of a takeover.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use foldlog_codec::Record;
use foldlog_remote::{CollectOptions, Remote, Retries};
use futures_lite::stream::Boxed;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    GetOptions, GetResult, ObjectMeta, ObjectStore, PutOptions, PutPayload, PutResult, Result,
};

use crate::requests::{Answered, Requests};
use crate::sim::world::{SESSION, record};

/// A store in memory that counts reads and puts.
#[derive(Debug, Default)]
struct Counted {
    store: InMemory,
    reads: AtomicU64,
    puts: AtomicU64,
}

#[async_trait]
impl Requests for Counted {
    async fn create(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.puts.fetch_add(1, Ordering::Relaxed);
        self.store.put_opts(location, payload, options).await
    }

    async fn read(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.store.get_opts(location, options).await
    }

    fn delete(&self, locations: Boxed<Result<Path>>) -> Boxed<Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, directory: Option<&Path>) -> Boxed<Result<ObjectMeta>> {
        self.store.list(directory)
    }
}

#[test]
fn a_takeover_of_a_million_records_reads_some_hundred_objects() {
    const CHUNKS: u64 = 20_000;
    let counted = Arc::new(Answered(Counted::default()));
    let (reads, puts) =
        (|| counted.0.reads.load(Ordering::Relaxed), || counted.0.puts.load(Ordering::Relaxed));
    let remote = Remote::new(Arc::<Answered<Counted>>::clone(&counted), "", Retries::default()).unwrap();
    let mut writer = remote.claim(SESSION, "one", |_| {}).unwrap();
    for chunk in 0..CHUNKS {
        let bodies: Vec<String> = (0..50).map(|at| format!("{}", chunk * 50 + at)).collect();
        let records: Vec<Record<'_>> =
            (chunk * 50..).zip(&bodies).map(|(sequence, body)| record(sequence, body.as_bytes())).collect();
        writer.append(records).unwrap();
    }
    drop(writer);
    // The collection puts the volumes that the writer has not put by now.
    let report = remote.collect(SESSION, CollectOptions::default()).unwrap();
    assert_eq!((report.next.get(), report.chunks), (1_000_000, 0), "nothing is a day old");
    let volumes = CHUNKS.div_ceil(64) - 1 + CHUNKS / 4_096;
    // The claim, the chunks, the volumes, and the probes of opening and collecting.
    assert!((1 + CHUNKS + volumes..=CHUNKS + volumes + 10).contains(&puts()), "{} puts", puts());

    let before = reads();
    let records = Arc::new(AtomicU64::new(0));
    let each = Arc::clone(&records);
    let writer = remote
        .claim(SESSION, "two", move |chunk| {
            each.fetch_add(chunk.records().count() as u64, Ordering::Relaxed);
        })
        .unwrap();
    assert_eq!(
        (records.load(Ordering::Relaxed), writer.writer().acknowledged_sequence().get()),
        (1_000_000, 1_000_000)
    );
    let (whole, rest) = (CHUNKS / 4_096, CHUNKS % 4_096 + 1);
    // Each large volume after its first small one, small ones for the rest, the chunks of the last
    // range, and a few requests at the ends.
    let expected = 2 * whole + rest / 64 + rest % 64 + 17;
    assert!(reads() - before <= expected && expected < 200, "{} of {expected} requests", reads() - before);
}
