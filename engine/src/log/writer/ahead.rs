//! What is made ready before the writer needs it: the pages in front of it, and the next segment.
//!
//! The writer asks as it passes certain places of its segment; nothing is asked for while a session is idle.
//! What comes too late, or fails, the writer does itself: a page by writing to it, a segment at its turn, where
//! a lack of space is [`Error::Full`](crate::Error::Full).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::background::{Background, Left, Rank};
use crate::log::storage::{Storage, StorageFile};

/// A segment file without a header.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) ordinal: u32,
    pub(super) path: PathBuf,
    pub(super) capacity: u64,
    pub(super) file: Arc<dyn StorageFile>,
}

#[derive(Debug, Default)]
enum Next {
    #[default]
    Nothing,
    /// Nobody has begun to make it.
    Asked,
    Ready(Made),
}

/// What was asked for in one session.
#[derive(Debug)]
pub(super) struct Ahead {
    storage: Arc<dyn Storage>,
    background: Background,
    next: Arc<Mutex<Next>>,
}

impl Ahead {
    pub(super) fn new(storage: &Arc<dyn Storage>, background: &Background) -> Ahead {
        Ahead { storage: Arc::clone(storage), background: background.clone(), next: Arc::default() }
    }

    /// Has the pages `from..to` of a segment brought in.
    pub(super) fn ask_for_pages(&self, file: &Arc<dyn StorageFile>, from: u64, to: u64) {
        let file = Arc::clone(file);
        self.background.offer(Rank::Space, move || {
            // Where it fails, the writer brings them in one by one.
            let _ = file.prepare(from, to);
            Left::Nothing
        });
    }

    /// Has the next segment made, and its first pages brought in.
    pub(super) fn ask_for_segment(&self, ordinal: u32, path: &Path, capacity: u64) {
        *self.next.lock() = Next::Asked;
        let (storage, next, path) = (Arc::clone(&self.storage), Arc::clone(&self.next), path.to_owned());
        self.background.offer(Rank::Space, move || {
            let mut slot = next.lock();
            if !matches!(*slot, Next::Asked) {
                return Left::Nothing;
            }
            let made = storage.create_segment(&path, capacity).ok();
            let file = made.as_ref().map(Arc::clone);
            *slot = match made {
                Some(file) => Next::Ready(Made { ordinal, path: path.clone(), capacity, file }),
                None => Next::Nothing,
            };
            drop(slot);
            if let Some(file) = file {
                let _ = file.prepare(0, file.prepare_bytes());
            }
            Left::Nothing
        });
    }

    /// The segment that was asked for, where it is there; one that nobody has begun to make is not made any
    /// more.
    pub(super) fn take_segment(&self) -> Option<Made> {
        match std::mem::take(&mut *self.next.lock()) {
            Next::Ready(made) => Some(made),
            Next::Nothing | Next::Asked => None,
        }
    }

    /// Takes a segment away that was made and is not needed.
    pub(super) fn discard(&self, made: &Made) -> std::io::Result<()> {
        self.storage.remove_file(&made.path)
    }
}
