//! The log of a session: its segment files, and the only code that opens them.
//!
//! | module | contents |
//! |---|---|
//! | `layout` | paths of the files and directories of a store |
//! | `chain` | the files that form a log |
//! | `scan` | walking a log, distinguishing damage from a torn tail, finding the intact part of a damaged log |
//! | `seal_check` | checking the seals of finished segments against their records |
//! | `reader` | reading records by position |
//! | `follow` | reading records as another process writes them |
//! | `segment_replacement` | replacing a segment by a compacted one |
//! | `dropped_ranges` | the format of a compacted segment, and the result of compactions |
//! | `compressed` | compressed segments: their format, reading them, and converting segments to either form |
//! | `rebuild` | building a log from records that are stored elsewhere, including those of forks and compacted sessions |
//! | `copy` | copying a log that is being written, for a backup |
//! | `writer` | appending, rollover, sealing, recovery |
//! | `publish` | one sync for all waiting threads |
//! | `objects` | large payloads |
//! | `image_files` | the files of images |
//! | `lock` | one writer for each session |
//! | `fence` | a note that another writer claimed a session, and from which record on |
//! | `notes` | the small files that name the holder of a lock, and a fenced writer |
//! | `decisions` | the files in which other processes leave decisions for the open session |
//! | `exposure` | detection of logs that other users can read |
//! | `partial_creation` | the state after a crash before a session's first record |

#![deny(clippy::indexing_slicing)]

pub(crate) mod chain;
pub(crate) mod compressed;
pub(crate) mod copy;
pub(crate) mod decisions;
pub(crate) mod dropped_ranges;
pub(crate) mod exposure;
pub(crate) mod fence;
pub(crate) mod follow;
pub(crate) mod image_files;
pub(crate) mod layout;
pub(crate) mod lock;
mod notes;
pub(crate) mod objects;
mod open_files;
pub(crate) mod partial_creation;
pub(crate) mod publish;
pub(crate) mod reader;
pub(crate) mod rebuild;
pub(crate) mod scan;
pub(crate) mod seal_check;
pub(crate) mod segment_replacement;
mod window;
pub(crate) mod writer;

pub use compressed::Compression;
pub use exposure::FileExposure;
pub use scan::TornTail;
pub use writer::SegmentSizes;
