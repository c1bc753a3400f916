//! Lists the ways in which foldlog's tests break workspaces on purpose: see
//! [`foldlog_codec::sabotage`].

foldlog_codec::breakages! {
    // Tools.
    RestoreWritesFirst = "restore-writes-first": "A restore writes before it has removed what is to go elsewhere.",
    ForgedMarkKept = "forged-mark-kept": "A person cannot remove a mark that is not true.",
    MountEntered = "mount-entered": "A restore enters what is mounted in the workspace.",
    WorkspaceByPath = "workspace-by-path": "A call works on whatever directory its workspace's path leads to.",
    AnyDirectoryRestored = "any-directory-restored": "A capture is restored into any directory.",
    ChangesUntold = "changes-untold": "Nobody is told what became of a workspace since the last call of another process.",
    BootUntold = "boot-untold": "Nobody is told what a power cut left of a workspace.",

    // Workspaces.
    CapturesReadable = "captures-readable": "The objects of a workspace's captures can be read by others.",
    OwnerNotRestored = "owner-not-restored": "A restored file belongs to whoever restores it.",
    SetuidKept = "setuid-kept": "A restored file keeps its set-user-ID bit under another owner.",
    AttributesNotRestored = "attributes-not-restored": "A restored file has no extended attributes.",
    GrowingFileRefused = "growing-file-refused": "A file that others append to keeps a workspace from being captured.",
    PrefixRestored = "prefix-restored": "A file that others appended to is restored to what it began with.",
    CaptureUnbounded = "capture-unbounded": "A capture goes on past its deadline and its budget.",
    DeepTreeHeldOpen = "deep-tree-held-open": "Each directory on the way to a deep one is held open.",
    BytesBehindUnseen = "bytes-behind-unseen": "Bytes that follow on the content in the file of an object pass for nothing.",
    HolesRead = "holes-read": "A file with holes is captured as if it had none.",
    RepositoryNotRestored = "repository-not-restored": "What a failed tool changed in a `.git` stays, and nobody is told.",
    LinksApart = "links-apart": "Names of one file come back as files of their own.",
    HandChangesOverwritten = "hand-changes-overwritten": "A rewind overwrites what was changed by hand.",
    TimesBesideLeftOut = "times-beside-left-out": "Times come back beside what is left out of snapshots.",
}
