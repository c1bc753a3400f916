//! The log: segment files, and the only place that opens them.
//!
//! | module | holds |
//! |---|---|
//! | `layout` | where things stand in a store |
//! | `chain` | which files make up a log |
//! | `scan` | walking a log; damage or torn tail; what of a damaged one is sound |
//! | `reader` | records by position |
//! | `follow` | records as another process writes them |
//! | `writer` | appending, turning, sealing, recovering |
//! | `publish` | one sync for every thread that waits |
//! | `objects` | large payloads |
//! | `images` | the files of images |
//! | `lock` | one writer a session |
//! | `exposed` | who else can read a log |
//! | `partial_creation` | what a crash leaves of a session before its first record |

#![deny(clippy::indexing_slicing)]

pub(crate) mod chain;
pub(crate) mod exposed;
pub(crate) mod follow;
pub(crate) mod images;
pub(crate) mod layout;
pub(crate) mod lock;
pub(crate) mod objects;
pub(crate) mod partial_creation;
pub(crate) mod publish;
pub(crate) mod reader;
pub(crate) mod scan;
mod window;
pub(crate) mod writer;

pub use exposed::Exposed;
pub use scan::TornTail;
pub use writer::SegmentSizes;
