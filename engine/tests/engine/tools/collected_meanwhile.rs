//! Child sessions that are created while the captures of their parents are collected.

use std::fs;

use foldlog::filesystem::{FilesystemSnapshot, HostFilesystem, HostFilesystemOptions, SnapshotReader};
use foldlog::inspect::captures_dir;
use foldlog::{Durability, SessionOptions};
use foldlog_test_support::crash::Mortal;
use foldlog_test_support::room::{Room, root, store_in};

use super::collected::keeping;
use super::*;

/// Protects: captures of a child session stay although the child is created during a collection of
/// its parent's store, before or after its parent's log is read. A session that is created after
/// it, and cannot be read, keeps its parent's captures too.
#[test]
fn what_a_child_needs_stays_though_it_is_created_while_its_parents_captures_are_collected() {
    let mut told = Vec::new();
    for (is_readable, nth) in [(true, 1), (true, 2), (true, 3), (false, 3)] {
        let room = Room::new();
        for n in 0..4 {
            room.call(&format!("printf {n} > page"));
        }
        room.session().clone().close().unwrap();
        let shell = room.shell();
        let Room { directory, runner, id: parent, .. } = room;
        drop(runner);
        let home = directory.path().to_owned();
        let sessions = home.join("store/sessions");
        let (say, hear) = std::sync::mpsc::channel();
        let create = move || {
            let store = store_in(&home);
            let options = SessionOptions { parent: Some(parent), ..SessionOptions::default() };
            let child = store.create_with(&types(), options).unwrap();
            let captures = captures_dir(&store.session_dir(parent));
            let files =
                HostFilesystem::open(root(&home), captures, HostFilesystemOptions::default()).unwrap();
            let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
            let state = ExecutionState::new(child.clone(), resources);
            let runner = ToolRunner::new(state, ToolRegistry::new().with(shell));
            let arguments =
                serde_json::json!({ "script": "printf child > page", "fails": false }).to_string();
            runner.execute(&ToolCall::new("shell", arguments), &ExecuteOptions::default()).unwrap();
            let (id, dir) = (child.id(), child.dir().to_owned());
            drop(runner);
            child.close().unwrap();
            if !is_readable {
                let segment = dir.join("0000000000.seg");
                let mut bytes = fs::read(&segment).unwrap();
                bytes[60] ^= 1;
                fs::write(&segment, bytes).unwrap();
            }
            say.send(id).unwrap();
        };
        let disk = Mortal::born(None);
        let options = StoreOptions {
            durability: Durability::Process,
            storage: Arc::new(disk.clone()),
            ..StoreOptions::default()
        };
        let store = Store::open_with(directory.path().join("store"), options).unwrap();
        disk.meanwhile(nth, move |path| path == sessions, create);
        let report = store.collect(&keeping(0)).unwrap();
        let child = hear.try_recv().unwrap_or_else(|_| panic!("listing {nth}: nobody came"));
        told.push(report.skipped.get(&parent).cloned());
        if is_readable {
            assert_eq!(reads_captures_of(&store, child, parent), 1, "listing {nth}");
        }
        // The next collection sees it from the start.
        let report = store.collect(&keeping(0)).unwrap();
        assert_eq!(report.skipped.contains_key(&parent), !is_readable, "listing {nth}: {report:?}");
        if is_readable {
            assert_eq!(reads_captures_of(&store, child, parent), 1, "listing {nth}");
        }
    }
    let [before, between, behind, unread] = &told[..] else { panic!("four were created") };
    assert_eq!((before, between), (&None, &None));
    assert!(behind.as_ref().unwrap().contains("was created during the collection"), "{behind:?}");
    assert!(unread.as_ref().unwrap().contains("cannot be read"), "{unread:?}");
}

/// Reads the captures of a child's calls from the directory of a session. Returns their number.
fn reads_captures_of(store: &Store, child: Uuid, parent: Uuid) -> usize {
    let mut reader = SnapshotReader::open(captures_dir(&store.session_dir(parent)));
    let mut seen = 0;
    let log = store.read_log(child).unwrap();
    log.contents(0, log.last_position(), |record| {
        if let foldlog::inspect::RecordedContent::CallEnded(end) = &record.content {
            let capture: FilesystemSnapshot = end.after.get("workspace").unwrap().unwrap();
            reader.changes(None, &capture)?;
            seen += 1;
        }
        Ok(())
    })
    .unwrap();
    seen
}
