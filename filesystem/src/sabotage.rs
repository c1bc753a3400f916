//! Lists the ways in which foldlog's tests break workspaces on purpose: see
//! [`foldlog_codec::sabotage`].

foldlog_codec::breakages! {
    // Tools.
    RestoreWritesFirst = "restore-writes-first": "A restore writes files before it has removed obsolete ones.",
    ForgedMarkKept = "forged-mark-kept": "A person cannot remove a forged mark.",
    MountEntered = "mount-entered": "A restore enters mounts in the workspace.",
    WorkspaceByPath = "workspace-by-path": "A call works on any directory at its workspace's path.",
    AnyDirectoryRestored = "any-directory-restored": "A capture is restored into any directory.",
    ChangesUntold = "changes-untold": "Changes to a workspace since the last call of an earlier process are not reported.",
    BootUntold = "boot-untold": "Changes to a workspace by a power failure are not reported.",

    // Workspaces.
    CapturesReadable = "captures-readable": "Other users can read the objects of a workspace's captures.",
    OwnerNotRestored = "owner-not-restored": "A restored file belongs to the user who restores it.",
    SetuidKept = "setuid-kept": "A restored file has its set-user-ID bit although its owner has changed.",
    AttributesNotRestored = "attributes-not-restored": "A restored file has no extended attributes.",
    GrowingFileRefused = "growing-file-refused": "A workspace cannot be captured while a program appends to one of its files.",
    PrefixRestored = "prefix-restored": "A file to which programs have appended is restored to its captured prefix.",
    CaptureUnbounded = "capture-unbounded": "A capture continues past its deadline and its budget.",
    DeepTreeHeldOpen = "deep-tree-held-open": "All directories on the path to a deep one are open at the same time.",
    BytesBehindUnseen = "bytes-behind-unseen": "Extra bytes after the content in an object's file are not detected.",
    HolesRead = "holes-read": "A file with holes is captured as if it had none.",
    RepositoryNotRestored = "repository-not-restored": "The changes of a failed tool to a `.git` remain, and are not reported.",
    LinksApart = "links-apart": "Hard links to one file are restored as separate files.",
    HandChangesOverwritten = "hand-changes-overwritten": "A rewind overwrites changes made by hand.",
    TimesBesideLeftOut = "times-beside-left-out": "The times of a directory are restored even if it contains entries that snapshots leave out.",
}
