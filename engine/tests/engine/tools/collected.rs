//! Collection of captures: a store keeps those that a rollback may need, and reports each other one
//! as collected.

use std::collections::BTreeMap;
use std::fs;

use foldlog::filesystem::{
    FilesystemSnapshot, HostFilesystem, HostFilesystemOptions, SnapshotReader, collect_snapshots,
};
use foldlog::inspect::captures_dir;
use foldlog::tools::RewindOptions;
use foldlog::{CollectOptions, CollectReport, KeptSnapshots, SequenceNumber, SessionOptions};
use foldlog_test_support::room::{Room, root, runner_in, store_in};
use proptest::prelude::*;

use super::*;

type Files = BTreeMap<String, String>;

pub(super) fn keeping(calls: u64) -> CollectOptions {
    CollectOptions { calls, ..CollectOptions::default() }
}

/// Closes the session, collects the store, and opens it in another process.
fn collected(room: Room, options: &CollectOptions) -> (Room, CollectReport) {
    room.session().clone().close().unwrap();
    let Room { directory, runner, id, .. } = room;
    drop(runner);
    let store = store_in(directory.path());
    let planned = store.collect(&CollectOptions { dry_run: true, ..options.clone() }).unwrap();
    let report = store.collect(options).unwrap();
    assert_eq!(report, planned);
    let session = store.open_session(id, &types()).unwrap();
    (Room { runner: runner_in(directory.path(), session), directory, id, awaits: false }, report)
}

/// Rewinds to a position and back; `None` if its capture is collected.
fn visited(room: &Room, to: SequenceNumber) -> Option<Files> {
    match room.state().rewind(to, &RewindOptions::default()) {
        Ok(_) => {
            let (_, files) = room.seen();
            room.undo();
            Some(files)
        }
        Err(Error::Collected { .. }) => None,
        Err(error) => panic!("{to}: {error}"),
    }
}

#[test]
fn captures_of_the_latest_calls_stay_and_what_goes_is_told_from_what_is_damaged() {
    let room = Room::new();
    let mut then = Vec::new();
    for n in 0..8 {
        then.push((room.call(&format!("printf {n} > page; printf {n} > only-{n}")), room.seen().1));
    }
    let (room, report) = collected(room, &keeping(3));
    assert!(report.all.captures > 5 && report.all.bytes > 0, "{report:?}");
    assert_eq!(report.skipped, BTreeMap::new());
    for (n, (at, files)) in then.iter().enumerate() {
        // The third last call began with the files of the fourth last.
        let expected = (n >= 4).then(|| files.clone());
        assert_eq!(visited(&room, *at), expected, "behind call {n}");
    }
    // A refused rewind has changed nothing.
    let before = room.seen();
    let refused = room.state().rewind(then[0].0, &RewindOptions::default());
    assert!(matches!(&refused, Err(Error::Collected { .. })), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("by a collection"));
    assert_eq!(room.seen(), before);
    // Later calls work as before, also with content that was collected.
    let again = room.call("printf 0 > page; printf 0 > only-0");
    room.call("rm only-0; printf x > page");
    assert_eq!(visited(&room, again).unwrap()["only-0"], "0");
}

#[test]
fn a_tagged_snapshot_keeps_its_files_for_good() {
    let room = Room::new();
    room.call("printf one > page");
    room.by_hand("printf hand > page; mkdir -p d; printf x > d/x");
    // No call has captured the changes by hand: only the snapshot names them.
    let tagged = room.state().snapshot(Some("by hand")).unwrap();
    let untagged = {
        room.by_hand("printf other > page");
        room.state().snapshot(None).unwrap()
    };
    for n in 0..6 {
        room.call(&format!("rm -rf d; printf {n} > page"));
    }
    let restored = |room: &Room, snapshot: &foldlog::tools::CompositeSnapshot| {
        let json = snapshot.to_json().unwrap();
        let snapshot = foldlog::tools::CompositeSnapshot::from_json(&json).unwrap();
        room.state().restore(&snapshot).map(|_| room.seen().1)
    };
    let (room, _) = collected(room, &keeping(2));
    let files = restored(&room, &tagged).unwrap();
    assert_eq!((files["page"].as_str(), files["d/x"].as_str()), ("hand", "x"));
    let gone = restored(&room, &untagged);
    assert!(matches!(gone, Err(Error::Collected { .. })), "{gone:?}");
    room.call("printf last > page; rm -r d");
    let (room, report) = collected(room, &CollectOptions { snapshots: KeptSnapshots::None, ..keeping(0) });
    assert!(report.all.captures > 0);
    assert!(matches!(restored(&room, &tagged), Err(Error::Collected { .. })));
}

#[test]
fn the_last_rewind_can_be_undone_whatever_else_goes() {
    let room = Room::new();
    let then = room.call("printf one > page");
    room.call("printf two > page");
    room.by_hand("printf mine > notes");
    let before = room.seen();
    room.rewind(then);
    for n in 0..3 {
        room.call(&format!("printf {n} > later"));
    }
    let (room, _) = collected(room, &keeping(1));
    room.undo();
    let (plan, files) = room.seen();
    assert_eq!((plan, files["page"].as_str(), files["notes"].as_str()), (before.0, "two", "mine"));
}

/// An interrupted call is recovered to its start, also after a collection.
#[test]
fn what_an_open_call_began_with_stays() {
    let room = Room::new();
    room.call("printf one > page");
    // Changed since the previous call, so that the start record has its own capture.
    room.by_hand("printf mine > notes");
    let before = room.seen();
    let call = ToolCall::new("shell", r#"{"script":"true","fails":false}"#);
    let operation = room.runner.begin(&call, &ExecuteOptions::default()).unwrap();
    room.by_hand("printf half > page; printf done > trash");
    operation.context().session().sync().unwrap();
    let Room { directory, runner, id, .. } = room;
    // As after a kill: the call does not end.
    let held = tempfile::tempdir().unwrap();
    let copy = held.path().join("copy");
    let status =
        std::process::Command::new("cp").arg("-a").arg(directory.path()).arg(&copy).status().unwrap();
    assert!(status.success());
    drop((operation, runner));
    let store = store_in(&copy);
    let report = store.collect(&keeping(0)).unwrap();
    assert_eq!(report.skipped, BTreeMap::new());
    let session = store.open_session(id, &types()).unwrap();
    let capture = session.calls().open_captures().unwrap()["workspace"].clone().unwrap();
    let capture: FilesystemSnapshot = foldlog_codec::msgpack::from_slice(&capture).unwrap();
    let mut reader = SnapshotReader::open(session.log().captures_dir());
    let mut files = Files::new();
    let mut found = Vec::new();
    reader
        .files(&capture, |path, facts| {
            found.push((path.to_owned(), facts.clone()));
            Ok(())
        })
        .unwrap();
    for (path, facts) in found {
        files.insert(path, String::from_utf8(reader.content(&facts, 100).unwrap()).unwrap());
    }
    assert_eq!(files, before.1);
}

/// A power cut may take the end record that a killed process wrote. Then the call is open, and its
/// first capture is needed.
#[test]
fn captures_stay_while_the_end_of_a_log_may_go() {
    let room = Room::new();
    room.call("printf one > page");
    room.session().sync().unwrap();
    for n in 0..4 {
        room.call(&format!("printf {n} > page"));
    }
    let Room { directory, runner, id, .. } = room;
    let held = tempfile::tempdir().unwrap();
    let copy = held.path().join("copy");
    let status =
        std::process::Command::new("cp").arg("-a").arg(directory.path()).arg(&copy).status().unwrap();
    assert!(status.success());
    drop(runner);
    let store = store_in(&copy);
    let report = store.collect(&keeping(0)).unwrap();
    assert_eq!(report.all.captures, 0);
    assert!(report.skipped[&id].contains("may not be durable"), "{report:?}");
    // An opening makes it durable, and closes it.
    let session = store.open_session(id, &types()).unwrap();
    session.sync().unwrap();
    session.close().unwrap();
    assert!(store.collect(&keeping(0)).unwrap().all.captures > 0);
}

/// A child session works on its parent's workspace, so its captures are in its parent's directory.
#[test]
fn what_a_child_session_needs_stays_in_its_parents_directory() {
    what_descends_keeps_its_captures(false);
}

/// After the session in between was deleted, it was unknown whose directory contains the captures
/// of a child's child, and they were removed.
#[test]
fn what_a_childs_child_needs_stays_though_the_child_is_deleted() {
    what_descends_keeps_its_captures(true);
}

fn what_descends_keeps_its_captures(through_one_that_is_deleted: bool) {
    let room = Room::new();
    room.call("printf one > page");
    let (store, parent) = (store_in(room.directory.path()), room.id);
    let files = room.state().resources().get::<HostFilesystem>().unwrap();
    let of = |parent| SessionOptions { parent: Some(parent), ..SessionOptions::default() };
    let between = through_one_that_is_deleted.then(|| {
        let between = store.create_with(&types(), of(parent)).unwrap();
        let id = between.id();
        between.close().unwrap();
        id
    });
    let options = of(between.unwrap_or(parent));
    let child = store.create_with(&types(), options).unwrap();
    let resources = ResourceRegistry::builder().filesystem(files).build().unwrap();
    let state = ExecutionState::new(child.clone(), resources);
    let runner = ToolRunner::new(state, ToolRegistry::new().with(room.shell()));
    let run = |script: &str| {
        let arguments = serde_json::json!({ "script": script, "fails": false }).to_string();
        runner.execute(&ToolCall::new("shell", arguments), &ExecuteOptions::default()).unwrap();
        child.log().position().unwrap()
    };
    let of_child = run("printf child > page");
    run("printf later > page");
    let id = child.id();
    child.clone().close().unwrap();
    drop((runner, child));
    between.into_iter().for_each(|between| store.delete(between).unwrap());
    for n in 0..4 {
        room.call(&format!("printf {n} > page"));
    }
    let (room, report) = collected(room, &keeping(2));
    assert!(report.all.captures > 0, "{report:?}");
    let log = store.read_log(id).unwrap();
    let mut reader = SnapshotReader::open(captures_dir(&store.session_dir(parent)));
    let mut seen = 0;
    log.contents(0, of_child, |record| {
        if let foldlog::inspect::RecordedContent::CallEnded(end) = &record.content {
            let capture: FilesystemSnapshot = end.after.get("workspace").unwrap().unwrap();
            reader.changes(None, &capture)?;
            seen += 1;
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, 1);
    // While the child is open for writing, its next captures are unknown.
    let child = store.open_session(id, &types()).unwrap();
    room.call("printf more > page");
    room.session().clone().close().unwrap();
    let report = store.collect(&keeping(0)).unwrap();
    assert!(report.skipped[&parent].contains("captures"), "{report:?}");
    assert_eq!(report.all.captures, 0);
    child.close().unwrap();
}

/// A fork has its own captures, independent of those of its parent.
#[test]
fn a_fork_goes_back_to_what_its_parent_gave_up() {
    let room = Room::new();
    let then = room.call("printf one > page; printf x > first");
    let expected = room.seen().1;
    let at = room.call("printf two > page; rm first");
    let store = store_in(room.directory.path());
    let fork = store.fork(room.id, at, &types(), SessionOptions::default()).unwrap();
    for n in 0..4 {
        room.call(&format!("printf {n} > page"));
    }
    let (parent, id) = (room.id, fork.id());
    fork.close().unwrap();
    let (room, report) = collected(room, &keeping(1));
    assert!(report.all.captures > 0 && report.all.bytes < report.all.captures * 1000, "{report:?}");
    room.session().clone().close().unwrap();
    store.delete(parent).unwrap();
    let fork = store.open_session(id, &types()).unwrap();
    let mut reader = SnapshotReader::open(fork.log().captures_dir());
    let mut found = Files::new();
    let log = store.read_log(fork.id()).unwrap();
    log.contents(0, then, |record| {
        if let foldlog::inspect::RecordedContent::CallEnded(end) = &record.content {
            let capture: FilesystemSnapshot = end.after.get("workspace").unwrap().unwrap();
            let mut facts = Vec::new();
            reader.files(&capture, |path, of| {
                facts.push((path.to_owned(), of.clone()));
                Ok(())
            })?;
            for (path, of) in facts {
                found.insert(path, String::from_utf8(reader.content(&of, 100)?).unwrap());
            }
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(found, expected);
}

/// A host with captures elsewhere learns which ones are needed, and removes the others.
#[test]
fn a_host_collects_captures_that_it_keeps_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(root(directory.path())).unwrap();
    let (store, elsewhere) = (store_in(directory.path()), directory.path().join("captures"));
    let session = store.create(&types()).unwrap();
    let files =
        HostFilesystem::open(root(directory.path()), &elsewhere, HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    let state = ExecutionState::new(session.clone(), resources);
    let mut last = None;
    for n in 0..5 {
        fs::write(root(directory.path()).join("page"), n.to_string()).unwrap();
        last = Some(state.snapshot(None).unwrap());
    }
    let id = session.id();
    drop(state);
    session.close().unwrap();
    let in_use =
        store.captures_in_use(id, &CollectOptions { snapshots: KeptSnapshots::None, ..keeping(0) }).unwrap();
    let of = |captures: &BTreeMap<String, std::collections::BTreeSet<Vec<u8>>>| -> Vec<FilesystemSnapshot> {
        captures.values().flatten().map(|it| foldlog_codec::msgpack::from_slice(it).unwrap()).collect()
    };
    assert_eq!((of(&in_use.kept).len(), of(&in_use.given_up).len()), (0, 5), "no call needs them");
    let recorded = last.unwrap().recorded_captures()["workspace"].clone().unwrap();
    let keep = [foldlog_codec::msgpack::from_slice::<FilesystemSnapshot>(&recorded).unwrap()];
    let give_up = of(&in_use.given_up);
    let asked = foldlog::filesystem::CaptureCollectOptions {
        keep: &keep,
        give_up: &give_up,
        pool: None,
        dry_run: false,
    };
    assert!(collect_snapshots(&elsewhere, &asked).unwrap().objects >= 4);
    let mut reader = SnapshotReader::open(&elsewhere);
    let read: Vec<bool> = give_up.iter().map(|it| reader.changes(None, it).is_ok()).collect();
    assert_eq!(read.iter().filter(|read| **read).count(), 1);
    // A directory that is not a store of snapshots is left alone.
    assert_eq!(collect_snapshots(directory.path(), &asked).unwrap().objects, 0);
    assert!(root(directory.path()).join("page").is_file());
}

struct Number(std::sync::atomic::AtomicU64);

impl Snapshotable for Number {
    const NAME: &'static str = "number";
    type Snapshot = u64;

    fn snapshot(&self, _: &CaptureOptions) -> Result<u64> {
        Ok(self.0.load(std::sync::atomic::Ordering::Relaxed))
    }

    fn restore(&self, to: &u64) -> Result<()> {
        self.0.store(*to, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    fn record(number: &u64) -> Result<Option<Vec<u8>>> {
        Ok(Some(foldlog_codec::msgpack::to_vec(number).unwrap()))
    }

    fn recall(recorded: &[u8]) -> Result<u64> {
        Ok(foldlog_codec::msgpack::from_slice(recorded).unwrap())
    }
}

struct Set(Arc<Number>);

impl Tool for Set {
    const NAME: &'static str = "set";
    type Parameters = u64;
    type Output = ();

    fn call(&self, number: u64, _: &ToolContext) -> std::result::Result<ToolResult<()>, ToolError> {
        self.0.restore(&number)?;
        Ok(ToolResult::ok("set", ()))
    }
}

/// From the 65th resource on, resources were confused: if one of them had the capture of a tagged
/// snapshot, those of the others were removed.
#[test]
fn a_tagged_snapshot_keeps_each_of_many_resources() {
    let options = StoreOptions { storage: Arc::new(MemoryStorage::new()), ..StoreOptions::default() };
    let store = Store::open_with("/store", options).unwrap();
    let session = store.create(&types()).unwrap();
    let set = |nth: u64, to: u64| {
        let number = Arc::new(Number(to.saturating_sub(1).into()));
        let resources =
            ResourceRegistry::builder().named(format!("n{nth}"), Arc::clone(&number)).build().unwrap();
        let runner = ToolRunner::new(
            ExecutionState::new(session.clone(), resources),
            ToolRegistry::new().with(Set(number)),
        );
        runner.execute(&ToolCall::new("set", to.to_string()), &ExecuteOptions::default()).unwrap();
    };
    (0..70).for_each(|nth| set(nth, 10));
    session.snapshot(foldlog::SnapshotOptions::with_tag("then")).unwrap();
    (0..70).for_each(|nth| set(nth, 20));
    let id = session.id();
    session.close().unwrap();
    let in_use = store.captures_in_use(id, &keeping(0)).unwrap();
    for nth in 0..70 {
        let kept = &in_use.kept[&format!("n{nth}")];
        assert!(kept.contains(&foldlog_codec::msgpack::to_vec(&10_u64).unwrap()), "{nth}: {kept:?}");
    }
}

/// Links in a session's directory, or in the pool, were followed, and their targets taken for
/// unneeded captures: the objects of a repository elsewhere were removed.
#[test]
fn what_a_link_leads_to_is_not_collected() {
    for within in
        ["pool/files", "pool/files/objects", "pool/files/objects/ab", "files/objects", "files/objects/ab"]
    {
        let room = Room::new();
        room.call("printf one > page");
        room.call("printf two > page");
        room.session().clone().close().unwrap();
        let store = store_in(room.directory.path());
        let elsewhere = room.directory.path().join("elsewhere");
        let deep = match within.matches('/').count() - usize::from(within.starts_with("pool")) {
            0 => "objects/ab",
            1 if within.ends_with("objects") => "ab",
            _ => "",
        };
        fs::create_dir_all(elsewhere.join(deep)).unwrap();
        let object = elsewhere.join(deep).join("c".repeat(38));
        let temporary = elsewhere.join(deep).join("tmp_obj_x");
        for file in [&object, &temporary] {
            fs::write(file, "not yours").unwrap();
        }
        let link = match within.strip_prefix("files") {
            Some(_) => store.session_dir(room.id).join(within),
            None => room.directory.path().join("store").join(within),
        };
        let _ = fs::remove_dir_all(&link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
        let _ = store.collect(&keeping(0));
        assert!(object.is_file() && temporary.is_file(), "{within}");
    }
}

/// Sessions share the files of equal captures, and deleting one session leaves them to the others.
#[test]
fn captures_that_sessions_have_alike_are_kept_once() {
    let directory = tempfile::tempdir().unwrap();
    let workspace = root(directory.path());
    fs::create_dir(&workspace).unwrap();
    for n in 0..40 {
        let text: String =
            (0..4000_u32).map(|at| char::from(b'a' + (at * at % (n + 3)) as u8 % 26)).collect();
        fs::write(workspace.join(format!("page-{n}")), text).unwrap();
    }
    let store = store_in(directory.path());
    let bytes = || -> u64 {
        let listed = std::process::Command::new("du").args(["-s", "-B1"]).arg(store.path()).output().unwrap();
        String::from_utf8(listed.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    };
    let captured = || {
        let session = store.create(&types()).unwrap();
        let files = session.open_workspace(&workspace, HostFilesystemOptions::default()).unwrap();
        let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
        let state = ExecutionState::new(session.clone(), resources);
        let snapshot = state.snapshot(Some("all")).unwrap();
        session.sync().unwrap();
        (session, state, snapshot)
    };
    let (first, state, _) = captured();
    let one = bytes();
    drop(state);
    let (second, state, snapshot) = captured();
    let pages = 40 * 4096;
    assert!(bytes() < 2 * one - pages, "{one} and then {}", bytes());
    first.clone().close().unwrap();
    store.delete(first.id()).unwrap();
    store.collect(&CollectOptions::default()).unwrap();
    for n in 0..40 {
        fs::remove_file(workspace.join(format!("page-{n}"))).unwrap();
    }
    state.restore(&snapshot).unwrap();
    assert_eq!(fs::read_dir(&workspace).unwrap().count(), 40);
    // Damaged objects in a pool are not shared.
    let pool = store.path().join("pool/files/objects");
    for of in fs::read_dir(&pool).unwrap() {
        for object in fs::read_dir(of.unwrap().path()).unwrap() {
            let path = object.unwrap().path();
            fs::remove_file(&path).unwrap();
            fs::write(&path, b"no object").unwrap();
        }
    }
    drop(state);
    let id = second.id();
    second.close().unwrap();
    let (third, state, snapshot) = captured();
    fs::remove_file(workspace.join("page-7")).unwrap();
    state.restore(&snapshot).unwrap();
    assert_eq!(fs::read_dir(&workspace).unwrap().count(), 40);
    drop(state);
    third.clone().close().unwrap();
    // The files are removed with the last session that has them. The damaged ones belonged to no
    // session.
    store.delete(id).unwrap();
    store.collect(&CollectOptions::default()).unwrap();
    store.delete(third.id()).unwrap();
    let left = fs::read_dir(&pool).unwrap().map(|of| fs::read_dir(of.unwrap().path()).unwrap().count());
    assert_eq!(left.sum::<usize>(), 0);
}

/// The capture that a rewind restored shows later changes by hand. It was collected, and the next
/// rewind refused.
#[test]
fn what_a_rewind_went_back_to_stays_for_the_next_one() {
    let room = Room::new();
    room.call("printf first > page-0");
    let tagged = room.state().snapshot(Some("tag")).unwrap().session.position;
    room.by_hand("printf by-hand > page-0");
    room.rewind(tagged);
    let (room, _) = collected(room, &keeping(0));
    assert!(visited(&room, tagged).is_some());
    // The same when kept positions depend on rewinds.
    let (room, _) = collected(room, &keeping(2));
    for to in [tagged, room.at() - 1] {
        let _ = room.state().rewind(to, &RewindOptions::default()).map(|_| room.undo());
    }
    let (room, _) = collected(room, &keeping(2));
    assert!(visited(&room, tagged).is_some());
}

/// The capture at a rollback's target was collected although the rollback itself was recent enough
/// to keep: a rewind to its position worked before the collection, and not afterwards.
#[test]
fn where_a_rollback_that_is_kept_went_stays_however_long_ago_it_was() {
    let room = Room::new();
    let first = room.call("printf first > page");
    for n in 0..6 {
        room.call(&format!("printf {n} > page"));
    }
    let back = room.session().rollback_to(first).unwrap().sequence;
    for n in 0..2 {
        room.call(&format!("printf later-{n} > page"));
    }
    let (room, report) = collected(room, &keeping(3));
    assert!(report.all.captures > 0, "{report:?}");
    assert_eq!(visited(&room, back).unwrap()["page"], "first");
}

/// Each rewind counted as one of the latest calls to keep, so that a hundred of them pushed out
/// every call.
#[test]
fn rewinds_push_out_no_call() {
    let room = Room::new();
    let ends: Vec<_> = (0..3).map(|n| room.call(&format!("printf {n} > page"))).collect();
    for _ in 0..3 {
        room.rewind(ends[1]);
    }
    let (room, _) = collected(room, &keeping(3));
    for (n, end) in ends.iter().enumerate() {
        assert_eq!(visited(&room, *end).unwrap()["page"], n.to_string());
    }
}

#[derive(Clone, Debug)]
enum Deed {
    Call { page: u8, fails: bool },
    ByHand { page: u8 },
    Snapshot { tagged: bool },
    Rewind { to: prop::sample::Index },
    Rollback { to: prop::sample::Index },
    Collect { calls: u64 },
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        5 => (0_u8..4, any::<bool>()).prop_map(|(page, fails)| Deed::Call { page, fails }),
        2 => (0_u8..4).prop_map(|page| Deed::ByHand { page }),
        2 => any::<bool>().prop_map(|tagged| Deed::Snapshot { tagged }),
        2 => any::<prop::sample::Index>().prop_map(|to| Deed::Rewind { to }),
        1 => any::<prop::sample::Index>().prop_map(|to| Deed::Rollback { to }),
        2 => (0_u64..4).prop_map(|calls| Deed::Collect { calls }),
    ]
}

/// Returns the preview of a rewind to each position: the files with their contents, or that they
/// are collected.
fn outlook(room: &Room) -> BTreeMap<u64, Option<Vec<String>>> {
    let mut seen = BTreeMap::new();
    for to in 0..room.at().get() {
        let preview = match room.state().preview_rewind(to, &RewindOptions::default()) {
            Ok(preview) => {
                Some(preview.resources.iter().map(|one| format!("{:?} {:?}", one.files, one.kept)).collect())
            }
            Err(Error::Collected { .. }) => None,
            // Within a call, or before the first capture.
            Err(_) => continue,
        };
        seen.insert(to, preview);
    }
    seen
}

/// Reads everything that a rewind to a position needs.
fn restored(room: &Room, to: u64) -> Option<Files> {
    visited(room, to.into())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// The law: after a collection a rewind has the same effect as before, or reports that its
    /// capture was collected. It never reports that for a position to be kept.
    #[test]
    fn what_is_kept_is_as_it_was(deeds in prop::collection::vec(deed(), 4..16)) {
        let mut room = Room::new();
        room.call("printf first > page-0");
        for deed in deeds {
            match deed {
                Deed::Call { page, fails } => {
                    let script = format!("printf {} > page-{page}", room.at());
                    room.execute(&script, fails);
                }
                Deed::ByHand { page } => room.by_hand(&format!("printf by-hand-{} > page-{page}", room.at())),
                Deed::Snapshot { tagged } => drop(room.state().snapshot(tagged.then_some("tag")).unwrap()),
                Deed::Rewind { to } => {
                    let to = to.index(room.at().get() as usize) as u64;
                    let _ = room.state().rewind(to, &RewindOptions::default());
                }
                Deed::Rollback { to } => {
                    let to = to.index(room.at().get() as usize) as u64;
                    let _ = room.session().rollback_to(to);
                }
                Deed::Collect { calls } => {
                    let before = outlook(&room);
                    let kept = must_stay(&room, calls);
                    let (then, _) = collected(room, &keeping(calls));
                    room = then;
                    let after = outlook(&room);
                    prop_assert_eq!(before.len(), after.len());
                    for (to, was) in &before {
                        if after[to].is_some() {
                            prop_assert_eq!(was, &after[to], "position {}", to);
                        } else {
                            prop_assert!(was.is_none() || !kept.contains(to), "position {} was to stay", to);
                        }
                    }
                    // Rewinds to a few of them, which reads every object.
                    let there: Vec<u64> = kept.iter().copied().filter(|to| before.get(to).is_some_and(Option::is_some)).collect();
                    for to in there.iter().rev().step_by(5).take(2) {
                        prop_assert!(restored(&room, *to).is_some(), "position {}", to);
                    }
                }
            }
        }
    }
}

/// Computes from the records the positions whose files have to stay: those from the first kept call
/// on, tagged snapshots, and the last one.
fn must_stay(room: &Room, calls: u64) -> std::collections::BTreeSet<u64> {
    let calls = usize::try_from(calls).unwrap();
    let begins: Vec<u64> = room
        .session()
        .log()
        .slice::<ToolInvocations>()
        .unwrap()
        .iter()
        .map(|call| call.unwrap().begin.get())
        .collect();
    let last = room.at().get();
    let mut stay: std::collections::BTreeSet<u64> = [last].into();
    if calls > 0 {
        let mut begins = begins;
        begins.sort_unstable();
        let first = begins.iter().rev().take(calls).next_back().copied().unwrap_or(last);
        stay.extend(first..=last);
    }
    let tagged = room.session().log().snapshots().unwrap().into_iter().filter(|it| it.tag.is_some());
    stay.extend(tagged.map(|it| it.position.get()));
    stay
}
