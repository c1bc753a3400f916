//! The log: segment files, and the only place that opens them.
//!
//! | module | holds |
//! |---|---|
//! | [`storage`] | the seam to the file system and its backends |
//! | `layout` | where things stand in a store |
//! | `chain` | which files make up a log |
//! | `scan` | walking a log; damage or torn tail |
//! | `reader` | records by position |
//! | `writer` | appending, turning, sealing, recovering |
//! | `publish` | one sync for every thread that waits |
//! | `objects` | large payloads |
//! | `lock` | one writer a session |

#![deny(clippy::indexing_slicing)]

pub(crate) mod chain;
pub(crate) mod layout;
pub(crate) mod lock;
pub(crate) mod objects;
pub(crate) mod publish;
pub(crate) mod reader;
pub(crate) mod scan;
pub mod storage;
mod window;
pub(crate) mod writer;

use std::collections::BTreeSet;

use foldlog_codec::Kind;
use foldlog_codec::body::{Added, Dispatch, Import, ObjectId, Operation};

pub use scan::TornTail;
pub use writer::SegmentSizes;

/// The objects that records name.
pub(crate) fn objects_named<'a>(records: impl Iterator<Item = (Kind, &'a [u8])>) -> BTreeSet<ObjectId> {
    let mut objects = BTreeSet::new();
    for (kind, body) in records {
        match kind {
            Kind::DISPATCH => {
                let Ok(dispatch) = Dispatch::decode(body) else { continue };
                if let Operation::Event { data, .. } = &dispatch.operation {
                    objects.extend(data.object());
                }
                for effect in dispatch.effects.iter().flatten() {
                    if let Added::Items { items, .. } = &effect.added {
                        objects.extend(items.iter().filter_map(|item| item.object()));
                    }
                }
            }
            Kind::IMPORT => {
                let Ok(import) = Import::decode(body) else { continue };
                for slice in &import.slices {
                    objects.extend(slice.items.iter().filter_map(|(item, _)| item.object()));
                }
            }
            _ => {}
        }
    }
    objects
}
