//! Input and result of a resource's rewind.

use foldlog_filesystem::{FileRewound, FileUnknown, KeptFile};

/// Describes the rewind of a resource.
#[derive(Clone, Copy, Debug)]
pub struct RewindRequest<'a, S> {
    /// Capture that the rewind restores.
    pub target: &'a S,
    /// Last capture after a call: differences from it in the resource are changes by hand.
    pub last: &'a S,
    /// Whether a rewind brought the resource to `last` in its present place, even if that is a
    /// capture of a different place.
    pub last_is_here: bool,
    /// Capture of the present state.
    pub present: &'a S,
    /// Whether changes by hand are overwritten too.
    pub overwrite: bool,
    /// Whether the returned capture is restored only while the resource is unchanged since
    /// `present`, if the resource can detect that.
    pub unless_changed: bool,
    /// Whether a restore to `target` was started since `last`, and not finished. Content that
    /// equals the target now, and missing content, may be its work rather than changes by hand.
    pub after_restore: bool,
}

/// Contains the capture that a rewind restores, and the resulting changes.
#[derive(Clone, Debug)]
pub struct Rewound<S> {
    /// Capture to restore: the target, or one that preserves some present content.
    pub to: S,
    /// Files that the restore changes, if the resource has files.
    pub files: Vec<FileRewound>,
    /// Files that are kept because they were changed by hand.
    pub kept: Vec<KeptFile>,
    /// Files that are kept because it is unknown whether they were changed by hand.
    pub unknown: Vec<FileUnknown>,
    /// Number of files that one of the captures contains and the other leaves out. They are
    /// unchanged.
    pub left_out: u64,
}

impl<S> Rewound<S> {
    /// Creates the result of a resource that restores a capture whole, and has no files to report.
    pub fn whole(to: S) -> Rewound<S> {
        Rewound { to, files: Vec::new(), kept: Vec::new(), unknown: Vec::new(), left_out: 0 }
    }
}
