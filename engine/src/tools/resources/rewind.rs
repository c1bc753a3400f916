//! What a resource is asked of a rewind, and what it answers.

use foldlog_filesystem::{FileRewound, FileUnknown, KeptFile};

/// Says how a rewind is to bring a resource back.
#[derive(Clone, Copy, Debug)]
pub struct RewindRequest<'a, S> {
    /// Capture that the rewind goes back to.
    pub target: &'a S,
    /// Last capture that a call left: what the resource differs in from it was changed by hand.
    pub last: &'a S,
    /// Whether a rewind brought the resource to `last` where it is now, though that may be a capture of another place.
    pub last_is_here: bool,
    /// Capture of what the resource is now.
    pub present: &'a S,
    /// Whether what was changed by hand goes back too.
    pub overwrite: bool,
    /// Whether the capture that is returned is to be restored only as long as the resource is as `present` found it, if the
    /// resource can tell.
    pub unless_changed: bool,
    /// Whether a restore to `target` was begun since `last`, and not finished: what is as in the target now, and what is missing, may be
    /// its work and was not changed by hand.
    pub after_restore: bool,
}

/// Says what a rewind restores of a resource, and what that changes.
#[derive(Clone, Debug)]
pub struct Rewound<S> {
    /// Capture to be restored: the target, or one that keeps something of the present.
    pub to: S,
    /// Files that the restore changes, if the resource has files.
    pub files: Vec<FileRewound>,
    /// Files that are kept since they were changed by hand.
    pub kept: Vec<KeptFile>,
    /// Files that are kept since nobody knows whether they were changed by hand.
    pub unknown: Vec<FileUnknown>,
    /// Number of files that one of the captures holds and the other leaves out. They stay as they are.
    pub left_out: u64,
}

impl<S> Rewound<S> {
    /// Makes the answer of a resource that goes back to a capture whole, and has no files to tell of.
    pub fn whole(to: S) -> Rewound<S> {
        Rewound { to, files: Vec::new(), kept: Vec::new(), unknown: Vec::new(), left_out: 0 }
    }
}
