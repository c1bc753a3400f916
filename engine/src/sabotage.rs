//! The ways to break the engine on purpose, for its tests: see [`foldlog_codec::sabotage`].

foldlog_codec::breakages! {
    // Frames.
    PredecessorIgnored = "predecessor-ignored": "A frame is accepted whatever predecessor it names.",
    SaltRepeated = "salt-repeated": "All segments of a session have one salt.",
    WatermarkFrozen = "watermark-frozen": "No frame says how far the log is durable.",

    // Syncs.
    NoSync = "no-sync": "A sync does nothing, and reports success.",
    AcknowledgedBeforeSync = "acknowledged-before-sync": "A call returns before the sync that it promises.",
    NoSyncedFrame = "no-synced-frame": "No frame attests a sync.",
    NoFolderSync = "no-folder-sync": "A sync leaves out the folders with new names in them.",
    OldSegmentUnsynced = "old-segment-unsynced": "A sync leaves out the segment before the rollover.",
    CloseUnsynced = "close-unsynced": "Closing syncs nothing.",
    ObjectAfterRecord = "object-after-record": "A record is made durable before the object that it names.",
    SyncRetried = "sync-retried": "A sync that failed is tried again, and believed.",
    PoisonIgnored = "poison-ignored": "A session goes on after a write or sync that failed.",
    ToldBeforeSync = "told-before-sync": "Subscribers are told of a record before it is as durable as promised.",
    ClosingFrameTrusted = "closing-frame-trusted": "What the last writer attested at closing is taken for durable.",
    WaitedBySetClock = "waited-by-set-clock": "A sync that is due within a second waits by the clock that can be set.",
    IdleFilesKept = "idle-files-kept": "A session that nobody writes keeps its file open.",
    RestedUnsynced = "rested-unsynced": "A session that rests closes a file that no sync has covered.",
    UnsyncedFilesKept = "unsynced-files-kept": "Unsynced segments keep their files open, however many.",

    // Limits.
    BodyOverLimit = "body-over-limit": "A record is written although no reader takes one of so many values.",
    DeclaredOverLimit = "declared-over-limit": "More is declared than the head of a segment can repeat.",

    // Captures.
    CapturesUnsynced = "captures-unsynced": "A record is made durable before the capture that it names.",
    EarlierCapturesUnsynced = "earlier-captures-unsynced": "What a killed process recorded is made durable before the captures that it names.",

    // Permissions.
    UmaskObeyed = "umask-obeyed": "What a store makes is as open as the process's umask leaves it.",
    ExposureUntold = "exposure-untold": "Nobody is told that others may read a store.",
    FolderUnlocked = "folder-unlocked": "A session is locked only in the store through which it is opened.",

    // Opening and recovery.
    WrittenBehindTear = "written-behind-tear": "After a crash the old segment is written on, behind its tear.",
    TailNotRewritten = "tail-not-rewritten": "Recovery leaves the unattested tail where it stands.",
    TailLeftOutUnexamined = "tail-left-out-unexamined": "A bad frame passes for torn, whatever stands behind it.",
    NoiseEndsSearch = "noise-ends-search": "Frames are not looked for behind 64 KiB of noise.",
    BootIgnored = "boot-ignored": "A bad frame passes for torn although no power was cut since it was written.",
    RecoveryUnattested = "recovery-unattested": "Recovery's segment does not attest what it makes durable.",
    RecoveryNameTrusted = "recovery-name-trusted": "The name of a recovery's segment is taken for durable whoever made it.",
    NoSpareForRecovery = "no-spare-for-recovery": "A begin keeps no space for the recovery that its call may need.",
    CachesBeforeRecords = "caches-before-records": "On a full disk images and a segment made ahead keep their room.",
    OneSizeOfSegment = "one-size-of-segment": "On a full disk no smaller segment is tried.",
    HandlesPoison = "handles-poison": "A rollover that finds no file handle ends the session.",
    HandlesPoisonSync = "handles-poison-sync": "A sync that finds no file handle ends the session.",
    MappedWhereNotKept = "mapped-where-not-kept": "Segments are mapped where an allocation promises nothing.",
    RecoveryInPlace = "recovery-in-place": "Recovery builds its segment under the name that counts.",
    RecoveryNamedUnsynced = "recovery-named-unsynced": "Recovery's segment takes its name before it is durable.",
    RecoveryNameUnsynced = "recovery-name-unsynced": "The name of recovery's segment is not made durable.",
    RecoveryFoldersUnsynced = "recovery-folders-unsynced": "Recovery leaves out the folders above the session.",
    RecoveredObjectUnsynced = "recovered-object-unsynced": "Recovery leaves out the objects of the tail.",
    LinkFollowed = "link-followed": "A file of a session is read through a link.",
    PartialCreationRefused = "partial-creation-refused": "What a crash left before the first record passes for a session.",
    PartialCreationUnexamined = "partial-creation-unexamined": "A session is begun behind segments that nobody looked into.",
    RecordWithoutObject = "record-without-object": "A record is kept although its object never reached the disk.",
    ReaderReadsOnce = "reader-reads-once": "A scan does not read a bad frame again before it calls it damage.",
    FollowerReadsOnce = "follower-reads-once": "A follower does not read a bad frame again before it calls it damage.",

    // Segments, images, forks.
    SealBeforeName = "seal-before-name": "A segment is sealed before its successor's name is durable.",
    SealTrusted = "seal-trusted": "A segment below an image is believed whatever its seal says.",
    ImageTrusted = "image-trusted": "An image is believed although the log does not hold the frame that it names.",
    ImageBeforeLog = "image-before-log": "An image is written before the log is durable up to it.",
    ImageWithoutCalls = "image-without-calls": "An image says nothing of the calls that are open or unsettled.",
    ImageTakesTheLastRoom = "image-takes-the-last-room": "An image is begun however little the disk has left.",
    ManyImagesWait = "many-images-wait": "An image is taken although another still waits to be written.",
    ForkOfUnsyncedParent = "fork-of-unsynced-parent": "A fork links what its parent has not synced.",
    ForkLinksReplaced = "fork-links-replaced": "A fork links what a compaction has replaced meanwhile.",
    ForkLinksUnattested = "fork-links-unattested": "A fork links what nobody knows to be durable.",
    ForkAttestedUnnamed = "fork-attested-unnamed": "A fork says that it is durable before it has its name.",
    ForkNameUnsynced = "fork-name-unsynced": "The name of a fork's folder is not made durable.",

    // Replicas.
    HeldWrittenUnawares = "held-written-unawares": "A session that a replica holds is written without its replicator.",
    HoldNotDurable = "hold-not-durable": "Opening returns before the record that a replica holds the session is durable.",
    HoldRolledBack = "hold-rolled-back": "A rollback abandons the record that a replica holds the session.",
    OthersFetched = "others-fetched": "A log gets records that another writer has appended.",
    FetchedUnheld = "fetched-unheld": "What a log has lost is claimed and not fetched.",
    BegunUnheld = "begun-unheld": "A tool runs before the replicator holds its begin.",

    // Compaction.
    NeededBodyDropped = "needed-body-dropped": "A compaction drops bodies whose items slices still hold.",
    BaseLeftOut = "base-left-out": "A compaction writes no base at a position that is kept.",
    CompactedNamedUnsynced = "compacted-named-unsynced": "A compacted segment takes its name before it is durable.",
    CompactedUnattested = "compacted-unattested": "A compaction leaves what a killed process wrote as it is.",
    CompactedCut = "compacted-cut": "A recovery cuts off the last record of a compacted segment.",

    CompressedNamedUnsynced = "compressed-named-unsynced": "A compressed segment takes its name before it is durable.",
    CompressedBlockUnchecked = "compressed-block-unchecked": "A block of a compressed segment is decompressed whatever its checksum is.",

    OldestCompactedFirst = "oldest-compacted-first": "A compaction replaces the oldest segment first.",

    // Collection.
    NamedObjectCollected = "named-object-collected": "A collection removes objects that records name.",
    WaitingCaptureCollected = "waiting-capture-collected": "A collection removes what a suspended or unsettled call began with.",
    CollectedBeforeDurable = "collected-before-durable": "A collection relies on what a power cut may take back.",
    ChildCapturesForgotten = "child-captures-forgotten": "A collection asks only the session's own log which captures are needed.",

    // Tools.
    BeginNotDurable = "begin-not-durable": "A tool runs before its begin is durable.",
    EndNotDurable = "end-not-durable": "A call returns before its end is durable.",
    EndWithoutRollback = "end-without-rollback": "A failed tool's end does not roll STATE back.",
    NoRoomForEnd = "no-room-for-end": "A begin keeps no room for its end.",
    InterruptedWrittenOn = "interrupted-written-on": "An interrupted session takes writes before it is recovered.",
    ProgramsNotAwaited = "programs-not-awaited": "Recovery does not wait for the programs of the call.",
    ProgramsLeftBehind = "programs-left-behind": "A program that left the process group of its call is not ended with the call.",
    ManualRunAgain = "manual-run-again": "Recovery runs a manual tool again without being told to.",
    VerifiedRunAgain = "verified-run-again": "A tool runs again although it found out that its interrupted call had done its work.",
    OutsideCountsAsReading = "outside-counts-as-reading": "An interrupted call that acts outside is run again as one that only reads.",
    OutsideEndsInOrder = "outside-ends-in-order": "The end of a call that acts outside waits for the calls before it.",
    CapturesCopiedOverSound = "captures-copied-over-sound": "A backup replaces a sound file of a capture by a damaged one of another length.",
    CapturesCopiedUnread = "captures-copied-unread": "A backup does not read the captures that it copied.",
    DecisionOutlivesRollback = "decision-outlives-rollback": "A call is run again although the session went back to before it since that was decided.",
    DroppedLeftOpen = "dropped-left-open": "A call whose future is dropped stays open until somebody waits for it.",
    FuturesUnwoken = "futures-unwoken": "A future that waits for the schedule is not woken when it changes.",
    EnvironmentInherited = "environment-inherited": "The programs of tools inherit the whole environment of the host.",
    CommittedRunAgain = "committed-run-again": "A call of an answer is run again although it was committed.",
    ResourcesNotRestored = "resources-not-restored": "Recovery ends a call without restoring the resources.",
    EndedUnrestored = "ended-unrestored": "A call whose resources could not be restored is ended.",
    RestoredAfterEnd = "restored-after-end": "Recovery ends a call before it restores the resources.",
    InterruptedStateKept = "interrupted-state-kept": "An interrupted call's end does not roll STATE back.",
    HandChangesByLivePath = "hand-changes-by-live-path": "What calls of an abandoned branch did to files passes for a change by hand.",
    RestoreUnrecorded = "restore-unrecorded": "A composite snapshot is restored without an operation of its own.",
    ChildIdDrawn = "child-id-drawn": "The id of a session that a call begins is drawn.",
    ChildNotRestored = "child-not-restored": "A child session goes on with the resources as its parent's call found them.",
    ChildLeftOpenCommitted = "child-left-open-committed": "A call commits although a call of its child session has not ended.",
    ChildUnscheduled = "child-unscheduled": "Calls of child sessions do not wait for the other work on their resources.",
    ChildKeptAlone = "child-kept-alone": "The ledger of a child session does not ask its parent's log.",
    LogInWorkspace = "log-in-workspace": "A workspace may hold the session's own log.",
    StuckUntold = "stuck-untold": "Nobody is told of a call that does not end.",
    HalfDoneWorkedOn = "half-done-worked-on": "A session works on a workspace that an interrupted call of another session has changed.",
    HalfDoneUnmarked = "half-done-unmarked": "A resource is marked as idle although a call on it was left open.",
    MarkOutlivesBoot = "mark-outlives-boot": "A workspace passes for idle by a mark from before a power cut.",
    MarkNotDurable = "mark-not-durable": "The mark on a workspace is not synced where its begin is.",
    ObjectsBehindLink = "objects-behind-link": "Objects are read from a folder that is a link.",
    RestoreUnsynced = "restore-unsynced": "An end is made durable before what was restored for it.",
    CancelledOutstays = "cancelled-outstays": "Nothing limits how long a cancelled call may take to end.",
    CancelUnheard = "cancel-unheard": "A caller that waits for a cancelled call waits on as if the call were not cancelled.",
    RecoveryWaitsOn = "recovery-waits-on": "A recovery waits for a lease for as long as it takes.",

    // Suspended calls.
    AskedKept = "asked-kept": "What a call did before it asked stays.",
    AwaitedRolledBack = "awaited-rolled-back": "What a call did that awaits its result is rolled back.",
    ApprovalUnchecked = "approval-unchecked": "An approval counts whatever arguments it names.",
    ApprovalUsedUp = "approval-used-up": "An approval holds for one run, whatever becomes of that.",
    ExpiryIgnored = "expiry-ignored": "A question and an approval count although their time is over.",
    DecisionUnfolded = "decision-unfolded": "What is decided about a suspended call changes nothing.",
    DecisionNotDurable = "decision-not-durable": "A decision is acknowledged before it is durable.",
    RefusalUnheard = "refusal-unheard": "An approval that was taken back counts if the call has run since its question.",
    QuestionsDropped = "questions-dropped": "Recovery forgets the calls that wait for somebody.",
    QuestionNotWithdrawn = "question-not-withdrawn": "A question still counts after a rollback to before its call.",
    ImageWithoutQuestions = "image-without-questions": "An image says nothing of the calls that wait for somebody.",
    ForkKeepsApproval = "fork-keeps-approval": "A fork runs what another session has approved.",

    // Conversations.
    OpenCallsForgotten = "open-calls-forgotten": "A provider is asked although calls of its last answer have not run.",

    // Replays.
    KeyOrderIgnored = "key-order-ignored": "Maps whose keys stand in another order pass for the same.",
    FloatsByValue = "floats-by-value": "Floats of another width and of equal value pass for the same.",
    ForkSeedForAll = "fork-seed-for-all": "Reducers that are run again in a fork draw from its seed for the records of its parent too.",
    ProducedFoldedOn = "produced-folded-on": "Where reducers produced something else, no rollback ends the difference.",
    ReplayInAnyOrder = "replay-in-any-order": "A replayed host writes as it comes, and not in the turn of its lane.",
    ReplayUncompared = "replay-uncompared": "What a replayed host writes passes for what is recorded.",
    ReplayEndUnchecked = "replay-end-unchecked": "A replayed host that returns early passes for one that does all.",
    ReplayAsOneProcess = "replay-as-one-process": "A host is called once for all processes that wrote its log.",
    ObservedAnew = "observed-anew": "A replayed host reads its inputs from outside again.",
    ReplayExpiresLate = "replay-expires-late": "A replay judges what has expired by the time of the record before.",
    ReplayedOnResources = "replayed-on-resources": "A replayed host and its tools work on its resources, and not on copies.",
    LeftOtherwiseUntold = "left-otherwise-untold": "What a tool left that ran again passes for what is recorded.",
    FirstMissingAlone = "first-missing-alone": "Of several events without reducers only the first is named.",
    OlderVersionsBelieved = "older-versions-believed": "A recording of an older version passes for readable without being decoded.",

    // Workspaces.
    RecoveryNeedsCapture = "recovery-needs-capture": "A recovery restores nothing that it cannot capture before.",

    // Readers.
    BudgetIgnored = "budget-ignored": "A log is read however much memory that takes.",
    ImageLeftOut = "image-left-out": "A session that its last writer did not close gets its next image in the background.",
    ListedUnlooked = "listed-unlooked": "What a listing knows of a session counts whatever has become of the session.",
    WriterUnstamped = "writer-unstamped": "A writer does not stamp its session's folder.",
    CopyCalledDamage = "copy-called-damage": "A copy that was taken while its session was written is called damaged.",
}
