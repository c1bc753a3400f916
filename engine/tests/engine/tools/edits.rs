//! A person's edits during a call are rolled back with it if it fails: they are named, and an undo
//! brings them back.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions, KeptFile, Rebind};
use foldlog::tools::{CaptureMoment, RewindOptions};
use foldlog::{CollectOptions, KeptSnapshots, OperationId, ReplacedContent};
use foldlog_test_support::room::{Room, root, store_in};

use super::*;

/// Begins a call that runs elsewhere, edits files by hand meanwhile, and lets the call fail.
fn fail_while_edited(room: &Room, edits: &str) -> ToolReport {
    let call = ToolCall::new("elsewhere", "{}");
    let operation = room.runner.begin(&call, &ExecuteOptions::default()).unwrap();
    room.by_hand(edits);
    operation.fail(ToolError::failed("it broke")).unwrap()
}

fn files(held: &[(&str, &str)]) -> BTreeMap<String, String> {
    held.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

fn replaced(changed: &[&str], removed: &[&str]) -> Vec<ReplacedContent> {
    let owned = |paths: &[&str]| paths.iter().map(ToString::to_string).collect();
    let resource = "workspace".to_owned();
    vec![ReplacedContent { resource, changed: owned(changed), removed: owned(removed), more: 0 }]
}

fn last_entry(room: &Room) -> LedgerEntry {
    LogReader::open(room.session().dir()).unwrap().ledger().unwrap().pop().unwrap()
}

const EDITS: &str = "printf edited > page; printf mine > notes; mkdir -p a/b; printf x > a/b/file; rm other";

/// The edit disappeared without a message and without a copy.
#[test]
fn an_edit_during_a_failing_call_is_named_and_an_undo_brings_it_back() {
    for reopens in [false, true] {
        let mut room = Room::new();
        let then = room.call("printf one > page; printf two > other");
        let before = room.seen();
        let report = fail_while_edited(&room, EDITS);
        assert_eq!(report.replaced, replaced(&["page"], &["a/b/file", "notes"]));
        assert_eq!((room.seen(), &report.not_undone), (before.clone(), &Vec::new()));
        assert_eq!(last_entry(&room).replaced, report.replaced);
        if reopens {
            room = room.reopen();
        }
        let undone = room.undo();
        assert_eq!(undone.undoes, Some(report.operation));
        let taken = undone.resources[0].capture;
        assert_eq!((taken.record, taken.of), (report.end, CaptureMoment::RollbackBegan));
        let edited = files(&[("a/b/file", "x"), ("notes", "mine"), ("page", "edited")]);
        assert_eq!(room.seen(), (before.0.clone(), edited.clone()));
        // For a later rewind, restored files count as changed by hand.
        let kept: Vec<String> =
            room.rewind(then).resources[0].kept.iter().map(|one| one.path.clone()).collect();
        assert_eq!(
            (kept, room.seen().1),
            (["a/b/file", "notes", "other", "page"].map(String::from).to_vec(), edited)
        );
        // An undo is undone by the next one.
        room.undo();
        room.undo();
        room.undo();
        assert_eq!(room.file("page").as_deref(), Some("edited"));
    }
}

/// Changes of a repository alone were rolled back without being named, and no undo brought them
/// back.
#[test]
fn an_edit_of_a_repository_alone_is_named_and_an_undo_brings_it_back() {
    let mut room = Room::new();
    room.by_hand("git init -q . && git config user.name A");
    room.call("printf one > page");
    let edits = "git config user.name B; printf mine > .git/hooks/pre-push";
    let report = fail_while_edited(&room, edits);
    assert_eq!(report.replaced, replaced(&[".git"], &[]));
    let config = |room: &Room| room.file(".git/config").unwrap().contains("name = B");
    assert_eq!((config(&room), room.file(".git/hooks/pre-push")), (false, None));
    room = room.reopen();
    room.undo();
    assert_eq!((config(&room), room.file(".git/hooks/pre-push").as_deref()), (true, Some("mine")));
}

#[test]
fn an_undo_of_a_rollback_is_itself_undone() {
    let room = Room::new();
    room.call("printf one > page; printf two > other");
    let before = room.seen();
    fail_while_edited(&room, EDITS);
    room.undo();
    room.undo();
    assert_eq!(room.seen(), before);
    room.undo();
    assert_eq!(room.file("page").as_deref(), Some("edited"));
}

#[test]
fn what_was_changed_since_a_rollback_stays_when_it_is_undone() {
    let room = Room::new();
    room.call("printf one > page; printf two > other");
    fail_while_edited(&room, EDITS);
    room.call("printf later > later; printf again > page");
    room.by_hand("printf hand > hand");
    let (plan, _) = room.seen();
    let undone = room.undo();
    let kept: Vec<&str> =
        undone.resources[0].kept.iter().map(|KeptFile { path, .. }| path.as_str()).collect();
    assert_eq!(kept, ["hand", "later", "page"]);
    let held =
        [("a/b/file", "x"), ("hand", "hand"), ("later", "later"), ("notes", "mine"), ("page", "again")];
    assert_eq!(room.seen(), (plan, files(&held)));
}

#[test]
fn a_tools_own_changes_are_named_and_come_back_too() {
    let room = Room::new();
    room.call("printf one > page");
    let before = room.seen();
    let report = room.execute("printf half > page; printf made > made", true);
    assert_eq!((report.success, room.seen()), (false, before.clone()));
    assert_eq!(report.replaced, replaced(&["page"], &["made"]));
    room.undo();
    assert_eq!(room.seen(), (before.0, files(&[("made", "made"), ("page", "half")])));
}

#[test]
fn a_failed_call_that_changed_nothing_names_nothing() {
    let room = Room::new();
    room.call("printf one > page");
    let report = room.execute("true", true);
    assert!(!report.success && report.replaced.is_empty(), "{report:?}");
    // Files that come back where there were none replace nothing.
    let report = room.execute("rm page", true);
    assert!(!report.success && report.replaced.is_empty(), "{report:?}");
    assert_eq!(room.file("page").as_deref(), Some("one"));
    let none = room.state().undo_rewind(&RewindOptions::default());
    assert!(matches!(none, Err(Error::NoRewind(_))), "{none:?}");
    assert!(!serde_json::to_string(&last_entry(&room)).unwrap().contains("replaced"));
}

#[test]
fn a_long_list_of_replaced_files_is_counted() {
    let room = Room::new();
    let first = room.call("true");
    let report = room.execute("for i in $(seq 1005); do : > f$i; done", true);
    let [one] = report.replaced.as_slice() else { panic!("{report:?}") };
    assert_eq!((one.removed.len(), one.more), (1_000, 5));
    let text = ReplacedContent::text(&report.replaced).unwrap();
    assert!(text.starts_with("f1 (removed), f10 (removed)") && text.ends_with(", and 985 more"), "{text}");
    assert!(room.at() > first);
}

/// A resource that cannot be restored while it is shut.
#[derive(Default)]
struct Gate {
    is_shut: AtomicBool,
}

impl Snapshotable for Gate {
    const NAME: &'static str = "gate";
    type Snapshot = ();

    fn snapshot(&self, _: &CaptureOptions) -> Result<()> {
        Ok(())
    }

    fn restore(&self, (): &()) -> Result<()> {
        match self.is_shut.load(Ordering::Relaxed) {
            true => Err(Error::Resource { resource: "gate".to_owned(), reason: "it is shut".to_owned() }),
            false => Ok(()),
        }
    }
}

/// Lets a call fail whose rollback is interrupted: the files are restored, but the end is not
/// recorded.
fn cut_short(room: &mut Room, work: &str) -> (Arc<Gate>, OperationId) {
    let gate = Arc::new(Gate::default());
    let session = room.session().clone();
    let files = HostFilesystem::open(
        root(room.directory.path()),
        session.log().captures_dir(),
        HostFilesystemOptions::default(),
    );
    let resources = ResourceRegistry::builder()
        .filesystem(Arc::new(files.unwrap()))
        .snapshotable(Arc::clone(&gate))
        .build();
    let tools = ToolRegistry::new().with(room.shell());
    room.runner = ToolRunner::new(ExecutionState::new(session, resources.unwrap()), tools);
    let call = ToolCall::new("elsewhere", "{}");
    let operation = room.runner.begin(&call, &ExecuteOptions::default()).unwrap();
    let id = operation.id();
    room.by_hand(work);
    gate.is_shut.store(true, Ordering::Relaxed);
    let failed = operation.fail(ToolError::failed("it broke"));
    assert!(matches!(failed, Err(Error::RestoreFailed { .. })), "{failed:?}");
    assert!(room.session().calls().is_interrupted());
    gate.is_shut.store(false, Ordering::Relaxed);
    (gate, id)
}

/// A person's repairs between an interrupted rollback and the next attempt were lost with the
/// call's changes.
#[test]
fn what_is_edited_once_a_rollback_was_cut_short_stays_and_is_named() {
    for reopens in [false, true] {
        let mut room = Room::new();
        room.call("printf one > page; printf two > other; printf three > third");
        let (plan, _) = room.seen();
        let (_gate, operation) =
            cut_short(&mut room, "printf half > page; printf made > made; rm other; printf half > third");
        assert_eq!(room.file("page").as_deref(), Some("one"), "the files went back");
        if reopens {
            room = room.reopen();
        }
        // Nothing shows that the rollback had reached the page and the third file. All other
        // changes are a person's work.
        room.by_hand(
            "printf half > page; rm third; printf fixed > other; printf mine > made; printf note > note",
        );
        let recovered = room.runner.recover(&ExecuteOptions::default()).unwrap();
        let recovered = recovered.iter().find(|one| one.operation == operation).unwrap();
        let held =
            [("made", "mine"), ("note", "note"), ("other", "fixed"), ("page", "one"), ("third", "three")];
        assert_eq!(room.seen(), (plan.clone(), files(&held)));
        let told: Vec<&str> = recovered.not_undone.iter().map(|one| one.path.as_str()).collect();
        assert_eq!(told, ["made", "note", "other"]);
        assert!(recovered.not_undone[0].reason.contains("somebody changed it"), "{recovered:?}");
        assert_eq!(recovered.replaced, replaced(&["made", "page", "third"], &[]));
        assert_eq!(last_entry(&room).replaced, recovered.replaced);
        // The files from before the first attempt come back, in addition to later edits.
        let undone = room.undo();
        assert_eq!(undone.undoes, Some(operation));
        let held =
            [("made", "mine"), ("note", "note"), ("other", "fixed"), ("page", "half"), ("third", "half")];
        assert_eq!(room.seen(), (plan, files(&held)));
    }
}

/// In another directory all missing files counted as removed by a person, and the directory stayed
/// empty.
#[test]
fn a_rollback_that_was_cut_short_is_made_whole_in_another_directory() {
    let mut room = Room::new();
    room.call("printf one > page; printf two > other");
    let before = room.seen();
    let _cut = cut_short(&mut room, "printf half > page; rm other");
    room = room.reopen();
    let root = root(room.directory.path());
    fs::rename(&root, root.with_extension("away")).unwrap();
    fs::create_dir(&root).unwrap();
    let captures = room.session().log().captures_dir();
    let workspace = HostFilesystem::open(&root, captures, HostFilesystemOptions::default()).unwrap();
    workspace.rebind(Rebind::IfEmpty).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(workspace)).build().unwrap();
    let tools = ToolRegistry::new().with(room.shell());
    room.runner = ToolRunner::new(ExecutionState::new(room.session().clone(), resources), tools);
    room.runner.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(room.seen(), before);
}

#[test]
fn what_a_rollback_found_is_kept_by_a_collection_of_all_that_may_go() {
    let mut room = Room::new();
    room.call("printf one > page");
    let (_gate, operation) = cut_short(&mut room, "printf half > page");
    room = room.reopen();
    room.runner.recover(&ExecuteOptions::default()).unwrap();
    room.session().clone().close().unwrap();
    let store = store_in(room.directory.path());
    let options = CollectOptions { calls: 0, snapshots: KeptSnapshots::None, ..CollectOptions::default() };
    store.collect(&options).unwrap();
    room = room.reopen();
    assert_eq!((room.undo().undoes, room.file("page").as_deref()), (Some(operation), Some("half")));
}

/// Only the last of two rollbacks could be undone: the files that the first had replaced were lost.
#[test]
fn the_rollback_of_each_call_is_undone_by_its_name() {
    let room = Room::new();
    room.call("printf one > page; printf two > other");
    let first = fail_while_edited(&room, "printf edited > page");
    let second = room.execute("printf half > other", true);
    assert!(!second.success);
    let of =
        |operation, overwrite| RewindOptions { of: Some(operation), overwrite, ..RewindOptions::default() };
    let preview = room.state().preview_undo(&of(first.operation, false)).unwrap();
    assert_eq!(preview.undoes, Some(first.operation));
    let undone = room.state().undo_rewind(&of(first.operation, false)).unwrap();
    assert_eq!(undone.undoes, Some(first.operation));
    assert_eq!((room.file("page").as_deref(), room.file("other").as_deref()), (Some("edited"), Some("two")));
    // Again, after the restored files were changed, and after other undos.
    room.state().undo_rewind(&of(second.operation, false)).unwrap();
    room.by_hand("printf later > page");
    room.state().undo_rewind(&of(first.operation, false)).unwrap();
    assert_eq!((room.file("page").as_deref(), room.file("other").as_deref()), (Some("later"), Some("half")));
    // `overwrite` also replaces all later changes.
    room.state().undo_rewind(&of(first.operation, true)).unwrap();
    assert_eq!((room.file("page").as_deref(), room.file("other").as_deref()), (Some("edited"), Some("two")));
    let none = room.state().undo_rewind(&of(OperationId::new(1_000), false));
    assert!(matches!(none, Err(Error::NoRewind(_))), "{none:?}");
    // After a rewind to before it, which has to be undone first.
    let before = second.operation.sequence().saturating_sub(1);
    room.state().rewind(before, &RewindOptions::default()).unwrap();
    let left = room.state().undo_rewind(&of(second.operation, false)).unwrap_err();
    assert!(left.to_string().contains("undo that rewind first"), "{left}");
    room.state().undo_rewind(&RewindOptions::default()).unwrap();
    room.state().undo_rewind(&of(second.operation, false)).unwrap();
}
