//! Deliberate defects of long-running work, for foldlog's own tests. See
//! [`foldlog_codec::sabotage`].

foldlog_codec::breakages! {
    OldStatusIgnored = "old-status-ignored": "A task changes its status even if the event states a different old status.",
    CycleUnseen = "cycle-unseen": "A validator accepts a dependency cycle of tasks.",
    CheckpointUnchained = "checkpoint-unchained": "The hash of a checkpoint does not cover the previous one.",
    CheckpointTrusted = "checkpoint-trusted": "A session is restored to a checkpoint with a wrong hash.",
    NamedRemoved = "named-removed": "A checkpoint with a name is removed.",
    ForksUnrecorded = "forks-unrecorded": "The retention of checkpoints depends on forks that are not recorded.",
    PlacesBeforeSync = "places-before-sync": "Files of a tree get their final names before they are durable.",
    PlacesBeforeManifest = "places-before-manifest": "Files of a tree get their final names before the manifest that lists them exists.",
    TreeFileTrusted = "tree-file-trusted": "A file of a tree is accepted in spite of a wrong digest.",
}
