//! Deliberate defects of long-running work, for foldlog's own tests. See
//! [`foldlog_codec::sabotage`].

foldlog_codec::breakages! {
    OldStatusIgnored = "old-status-ignored": "A task changes its status whatever the event says it was.",
    CycleUnseen = "cycle-unseen": "A validator takes tasks that depend on each other for sound.",
    CheckpointUnchained = "checkpoint-unchained": "The hash of a checkpoint does not cover the one before.",
    CheckpointTrusted = "checkpoint-trusted": "A session is restored to a checkpoint whatever its hash says.",
    NamedRemoved = "named-removed": "A checkpoint is removed although somebody gave it a name.",
    ForksUnrecorded = "forks-unrecorded": "Which checkpoints are kept depends on forks that no record tells of.",
    PlacesBeforeSync = "places-before-sync": "Files of a tree take their places before they are durable.",
    PlacesBeforeManifest = "places-before-manifest": "Files of a tree take their places before the manifest that names them is there.",
    TreeFileTrusted = "tree-file-trusted": "A file of a tree is believed whatever digest its manifest says.",
}
