//! Reaches deep directories without open handles on all of their parents.
//!
//! Down to 32 nested levels, each directory is held open while work in it is pending. Below that,
//! only every 16th is. Those in between are opened again from there, step by step as in
//! [`step`](super::step). So a tree of the greatest depth that a snapshot accepts needs about 50
//! descriptors.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::stat::Mode;

use super::step::OPEN_DIRECTORY;
use super::step::open_at;

const HELD_MAX: usize = 32;
const HELD_EVERY: usize = 16;

/// The way to a directory, from one that is held open.
#[derive(Clone)]
pub(super) struct Reach {
    from: Arc<OwnedFd>,
    names: Vec<Arc<[u8]>>,
}

pub(super) fn depth(path: &[u8]) -> usize {
    if path.is_empty() { 0 } else { path.split(|byte| *byte == b'/').count() }
}

/// Returns whether a directory is closed while work in it is pending.
pub(super) fn is_let_go(path: &[u8]) -> bool {
    let depth = depth(path);
    depth > HELD_MAX && !depth.is_multiple_of(HELD_EVERY)
}

impl Reach {
    pub(super) fn from_directory(directory: Arc<OwnedFd>) -> Reach {
        Reach { from: directory, names: Vec::new() }
    }

    pub(super) fn open(&self) -> Result<Arc<OwnedFd>, Errno> {
        let mut directory = Arc::clone(&self.from);
        for name in &self.names {
            directory = Arc::new(open_at(&*directory, name, OPEN_DIRECTORY, Mode::empty())?);
        }
        Ok(directory)
    }

    pub(super) fn to(&self, name: &Arc<[u8]>) -> Reach {
        let names = self.names.iter().chain([name]).map(Arc::clone).collect();
        Reach { from: Arc::clone(&self.from), names }
    }

    /// Returns the way from which to continue, once the directory at a path is open.
    pub(super) fn advance_to(self, directory: &Arc<OwnedFd>, path: &[u8]) -> Reach {
        if is_let_go(path) { self } else { Reach::from_directory(Arc::clone(directory)) }
    }
}
