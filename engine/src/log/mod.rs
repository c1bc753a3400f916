//! The log of a session: its segment files, and the only code that opens them.
//!
//! | module | holds |
//! |---|---|
//! | `layout` | paths of the files and directories of a store |
//! | `chain` | which files make up a log |
//! | `scan` | walking a log, telling damage from a torn tail, finding the sound part of a damaged log |
//! | `seal_check` | the seals of finished segments, checked against their records |
//! | `reader` | reading records by position |
//! | `follow` | reading records as another process writes them |
//! | `compact` | writing a compacted segment into the place of another one |
//! | `compaction` | what compactions have left of a log, and what a compacted segment is |
//! | `compressed` | compressed segments: their format, reading them, and writing segments compressed or plain again |
//! | `rebuild` | writing a log of records that are held elsewhere, those of forks and compacted sessions too |
//! | `copy` | copying a log that is being written, for a backup |
//! | `writer` | appending, rollover, sealing, recovery |
//! | `publish` | one sync for every thread that waits |
//! | `objects` | large payloads |
//! | `image_files` | the files of images |
//! | `lock` | one writer for each session |
//! | `fence` | a note that another writer claimed a session, and from which record on |
//! | `notes` | the small files that say who holds a lock, and who was fenced |
//! | `decisions` | the files in which other processes leave decisions for the open session |
//! | `exposure` | who else can read a log |
//! | `partial_creation` | what a crash leaves of a session before its first record |

#![deny(clippy::indexing_slicing)]

pub(crate) mod chain;
pub(crate) mod compact;
pub(crate) mod compaction;
pub(crate) mod compressed;
pub(crate) mod copy;
pub(crate) mod decisions;
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
mod window;
pub(crate) mod writer;

pub use compressed::Compression;
pub use exposure::FileExposure;
pub use scan::TornTail;
pub use writer::SegmentSizes;
