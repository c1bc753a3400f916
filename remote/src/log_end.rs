//! Finds out whether anything stands behind the end of a log, so that no end is taken for one that is a hole.
//!
//! A reader knows the end by a number that nothing stands under. So it would take a chunk that the place has lost for the end, and whoever
//! claims there would fence nobody and use an epoch twice. Before it calls a number *n* the end, it asks
//!
//! 1. for the next number, each time;
//! 2. once for each *n*, and all at the same time, for the volume of the range that *n* is in, small and large, and its mark; for volume,
//!    mark and first chunk of the small range behind it; and for the first small volume of the large range behind it: seven requests more,
//!    five where *n* begins a small range, whose volume and mark were asked for in front of *n*.
//!
//! If one of them is there, *n* is asked for once more, and so is its volume: a writer may have put all of it meanwhile, and a volume may
//! hold what was lost. Otherwise reading ends with [`Error::Missing`](crate::Error::Missing), and nothing is claimed.
//!
//! Not found is a hole of two chunks or more in the last range that was begun, and one that is so wide that all of this is lost with it.
//! No list is asked.

use futures_lite::future::try_zip;
use object_store::path::Path;
use uuid::Uuid;

use crate::bucket::Bucket;
use crate::error::{GapEnd, Result};
use crate::volume::Extent;

const ASK: &str = "find out whether a chunk stands behind the end";

/// Returns what stands behind a number that nothing stands under, as far as one request tells.
pub(crate) async fn next(bucket: &Bucket, session: Uuid, number: u64) -> Result<Option<GapEnd>> {
    let Some(chunk) = number.checked_add(1) else { return Ok(None) };
    let found = bucket.size(&bucket.chunk_key(session, chunk), ASK).await?;
    Ok(found.map(|_| GapEnd::Chunk { chunk }))
}

/// Returns what stands behind a number that nothing stands under, nor under the next one.
pub(crate) async fn further(bucket: &Bucket, session: Uuid, number: u64) -> Result<Option<GapEnd>> {
    let [small, large] = bucket.spans().map(|span| Extent::around(number, span));
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

/// Asks for all of these objects at once, and returns what the first one says that is there.
async fn ask(bucket: &Bucket, questions: &[(Path, GapEnd)]) -> Result<Option<GapEnd>> {
    let Some(((key, behind), others)) = questions.split_first() else { return Ok(None) };
    let (found, other) = try_zip(bucket.size(key, ASK), Box::pin(ask(bucket, others))).await?;
    Ok(found.map(|_| *behind).or(other))
}
