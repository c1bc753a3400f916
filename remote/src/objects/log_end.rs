//! Checks for objects after the end of a log, so that a gap is not mistaken for the end.
//!
//! A reader detects the end by a number without an object. So it could mistake a lost chunk for the
//! end. A writer that claims there would fence no other writer, and use an epoch twice. Before the
//! reader treats a number *n* as the end, it requests
//!
//! 1. the next number, each time;
//! 2. once for each *n*, and all concurrently: the volume of the range of *n*, small and large, and
//!    its mark; volume, mark and first chunk of the next small range; and the first small volume of
//!    the next large range. These are seven more requests, or five if *n* starts a small range,
//!    whose volume and mark were requested before *n*.
//!
//! If none of them exists, *n* is the end. If one exists, *n* is requested again, and so is its
//! volume: a writer may have put all of it in the meantime, and a volume may contain the lost
//! chunk. If chunk *n* is still not found, reading ends with
//! [`Error::Missing`](crate::Error::Missing), and nothing is claimed.
//!
//! Two gaps remain undetected: one of two or more chunks in the last range that was started, and
//! one so wide that all these objects are lost with it. No list is requested.

use futures_lite::future::try_zip;
use object_store::path::Path;
use uuid::Uuid;

use super::bucket::Bucket;
use crate::error::{GapEnd, Result};
use crate::volume::Extent;

const ASK: &str = "find out whether a chunk follows the end";

/// Returns the object after a number without an object, as far as one request shows.
pub(crate) async fn next(bucket: &Bucket, session: Uuid, number: u64) -> Result<Option<GapEnd>> {
    let Some(chunk) = number.checked_add(1) else { return Ok(None) };
    let found = bucket.size(&bucket.chunk_key(session, chunk), ASK).await?;
    Ok(found.map(|_| GapEnd::Chunk { chunk }))
}

/// Returns the object after a number without an object, if the next number has none either.
pub(crate) async fn further(bucket: &Bucket, session: Uuid, number: u64) -> Result<Option<GapEnd>> {
    let [small, large] = bucket.spans.map(|span| Extent::around(number, span));
    let [after, after_large] =
        [small, large].map(|own| Extent { first: own.first.saturating_add(own.count), count: small.count });
    let volume =
        |at: Extent| (bucket.volume_key(session, at), GapEnd::Volume { first: at.first, last: at.last() });
    let mark = |at: Extent| (bucket.mark_key(session, at), GapEnd::Mark { first: at.first, last: at.last() });
    let chunk = (bucket.chunk_key(session, after.first), GapEnd::Chunk { chunk: after.first });
    let mut questions = vec![volume(large), volume(after), mark(after), chunk, volume(after_large)];
    if number != small.first {
        questions.extend([volume(small), mark(small)]);
    }
    ask(bucket, &questions).await
}

/// Requests all of these objects concurrently, and returns the value of the first one that exists.
async fn ask(bucket: &Bucket, questions: &[(Path, GapEnd)]) -> Result<Option<GapEnd>> {
    let Some(((key, behind), others)) = questions.split_first() else { return Ok(None) };
    let (found, other) = try_zip(bucket.size(key, ASK), Box::pin(ask(bucket, others))).await?;
    Ok(found.map(|_| *behind).or(other))
}
