//! Collects chunks into volumes over the wire.

use foldlog_codec::{Record, RecordKind};
use foldlog_remote::{CollectOptions, Error, open_remote};
use uuid::Uuid;

use crate::between::{Act, Between};
use crate::server;

const SESSION: Uuid = Uuid::from_u128(0x5eed);

fn record(sequence: u64) -> Record<'static> {
    Record { sequence: sequence.into(), kind: RecordKind::Observed, time_us: 0, body: b"body" }
}

#[test]
fn a_session_whose_chunks_are_collected_is_taken_over_by_its_volumes() {
    let Some(server) = server::bucket() else { return };
    // Only the small volume is old.
    let between = Between::before(&server.address, |method, path, _| match path.contains("/volumes/64/") {
        true if method == "HEAD" => Act::Aged,
        _ => Act::Pass,
    });
    let remote =
        |address: &str| open_remote(&server.url(), server::retries(), &server::variables(address)).unwrap();
    let direct = remote(&server.address);
    let mut first = direct.claim(SESSION, "first", |_| {}).unwrap();
    for sequence in 0..70 {
        first.append([record(sequence)]).unwrap();
    }
    // Without that answer nothing is old enough.
    let young = direct.collect(SESSION, CollectOptions::default()).unwrap();
    assert_eq!((young.chunks, young.left, young.next.get()), (0, 71, 70));
    let aged = remote(&between.address);
    let report = aged.collect(SESSION, CollectOptions::default()).unwrap();
    assert_eq!((report.chunks, report.left), (64, 7));
    assert_eq!(aged.collect(SESSION, CollectOptions::default()).unwrap().chunks, 0);

    let count = |between: &Between| between.met.lock().unwrap().len();
    let before = count(&between);
    let (send, read) = std::sync::mpsc::channel();
    let each = move |chunk: &foldlog_remote::chunk::Chunk<'_>| {
        chunk.records().for_each(|record| send.send(record.sequence.get()).unwrap());
    };
    let mut second = aged.claim(SESSION, "second", each).unwrap();
    assert_eq!(read.iter().collect::<Vec<_>>(), (0..70).collect::<Vec<_>>());
    // Five for the probe, one small volume and no large one, no volume and no mark for the rest, 7
    // chunks, the end, the checks after it, and the claim.
    assert_eq!(count(&between) - before, 5 + 2 + 2 + 7 + 2 + 7 + 1);
    assert!(matches!(first.append([record(70)]), Err(Error::Fenced { .. })));
    assert_eq!(second.append([record(70)]).unwrap(), 71);
}
