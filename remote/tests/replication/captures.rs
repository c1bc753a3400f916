//! Shows that captures of workspaces are stored before the records that name them, and reach
//! another machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::filesystem::{Filesystem, HostFilesystem, Rebind, WorkspaceNotice};
use foldlog::inspect::audit_captures;
use foldlog::tools::{ExecuteOptions, RewindOptions, ToolContext};
use foldlog::{BackupOptions, CollectOptions, Error, ResourceRegistry, Session};

use crate::bucket::Bucket;
use crate::directories::copy;
use crate::host::{plain_store, store, timeless_store};
use crate::notes::{call, runner_over, types};
use crate::workspace::{Worker, contents, noise};

fn workers(bucket: &Bucket) -> [Worker; 2] {
    ["one", "two"].map(|name| Worker::new(bucket, name))
}

fn assert_sound(session: &Session) {
    let audited = audit_captures(session.dir()).unwrap();
    assert!(audited.damaged.is_empty() && audited.elsewhere.is_empty(), "{audited:?}");
    assert!(audited.captures > 0);
}

/// Returns the paths of all files in a directory.
fn files_in(directory: &Path) -> Vec<PathBuf> {
    contents(directory).into_keys().map(|name| directory.join(name)).collect()
}

/// Rewinds a session to its last position in the worker's empty directory, and returns the files.
fn rewound(worker: &Worker, session: &Session) -> BTreeMap<String, Vec<u8>> {
    let runner = worker.runner(session, Some(Rebind::Overwrite), |_| Ok(()));
    let last = session.log().position().unwrap();
    runner.state().rewind(last, &RewindOptions { overwrite: true, ..RewindOptions::default() }).unwrap();
    contents(&worker.work())
}

#[test]
fn a_begins_captures_are_held_before_its_handler_runs_and_restored_on_another_machine() {
    let bucket = Bucket::default();
    let [first, second] = workers(&bucket);
    let session = first.store.create(&types()).unwrap();
    let id = session.id();
    let large = noise(3 << 20, 1);
    let (work, later) = (first.work(), first.work());
    std::fs::create_dir_all(work.join("src/deep")).unwrap();
    std::fs::write(work.join("src/deep/page"), "one").unwrap();
    std::fs::write(work.join("large"), &large).unwrap();
    std::os::unix::fs::symlink("src/deep/page", work.join("link")).unwrap();
    // A sparse file: its data is an object of its own.
    std::fs::File::create(work.join("holes")).unwrap().set_len(64 << 20).unwrap();
    assert!(first.write(&session, &[("src/new", b"by a tool".to_vec())]).unwrap().success);
    let before = contents(&work);

    let (taken, took) = std::sync::mpsc::channel();
    let lost = first.runner(&session, None, move |context: &ToolContext| {
        // The others lose this machine during the call.
        let files = context.resources().get::<dyn Filesystem>().unwrap();
        files.write("src/new", b"half done").unwrap();
        std::fs::remove_file(later.join("large")).unwrap();
        taken
            .send(second.store.take_over(id, &types()).map(|session| (second.store.clone(), session)))
            .unwrap();
        Ok(())
    });
    let _ = call(&lost);
    let (store, new) = took.recv().unwrap().unwrap();
    assert!(new.calls().is_interrupted());
    assert_sound(&new);
    let third = Worker::at(store);
    third.recover(&new);
    assert_eq!(contents(&third.work()), before);
    assert!(std::fs::symlink_metadata(third.work().join("link")).unwrap().is_symlink());
    assert_eq!(std::fs::read(third.work().join("large")).unwrap(), large);
    // The session continues there.
    assert!(third.write(&new, &[("src/new", b"two".to_vec())]).unwrap().success);
}

/// The README filled the directory only if no call was open. An open call that had only read left
/// it empty for the tools that followed.
#[test]
fn what_the_readme_says_fills_the_directory_whether_a_call_was_open_or_not() {
    for is_open in [false, true] {
        let bucket = Bucket::default();
        let [first, second] = workers(&bucket);
        let session = first.store.create(&types()).unwrap();
        let id = session.id();
        assert!(first.write(&session, &[("src/new", b"by a tool".to_vec())]).unwrap().success);
        let before = contents(&first.work());
        let store = second.store.clone();
        let (taken, took) = std::sync::mpsc::channel();
        let take_over = move || taken.send(second.store.take_over(id, &types())).unwrap();
        if is_open {
            let take_over = std::sync::Mutex::new(Some(take_over));
            let lost = first.runner(&session, None, move |_| {
                take_over.lock().unwrap().take().unwrap()();
                Ok(())
            });
            let _ = call(&lost);
        } else {
            take_over();
        }
        let new = took.recv().unwrap().unwrap();
        assert_eq!(new.calls().is_interrupted(), is_open);

        let third = Worker::at(store);
        let runner = third.runner(&new, None, |_| Ok(()));
        assert!(runner.state().fill(&RewindOptions::default()).unwrap().is_some());
        assert_eq!(contents(&third.work()), before, "open: {is_open}");
        // A second start does the same, and fills nothing twice.
        let runner = third.runner(&new, None, |_| Ok(()));
        assert!(runner.state().fill(&RewindOptions::default()).unwrap().is_none());
        let options = ExecuteOptions::default();
        runner.recover(&options).unwrap();
        assert!(third.write(&new, &[("src/new", b"two".to_vec())]).unwrap().success);
    }
}

#[test]
fn what_the_last_call_left_is_there_and_each_side_of_a_call_costs_one_put_unless_much_is_new() {
    let bucket = Bucket::default();
    let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [first, second] = [(&directories[0], "one"), (&directories[1], "two")]
        .map(|(directory, name)| Worker::at(timeless_store(directory, &bucket, name)));
    let session = first.store.create(&types()).unwrap();
    let id = session.id();
    for n in 0..200_u64 {
        std::fs::write(first.work().join(format!("{n}")), noise(2_000, n)).unwrap();
    }
    let puts_of = |files: &[(&str, Vec<u8>)]| {
        let (puts, bytes) = (bucket.puts(), bucket.put_bytes());
        assert!(first.write(&session, files).unwrap().success);
        (bucket.puts() - puts, bucket.put_bytes() - bytes)
    };
    // All files, with the start record; the change, with the end record.
    let (puts, bytes) = puts_of(&[("page", b"one".to_vec())]);
    assert!(puts == 2 && bytes > 400_000, "{puts} puts of {bytes} bytes");
    let (puts, bytes) = puts_of(&[("page", b"two".to_vec())]);
    assert!(puts == 2 && bytes < 60_000, "{puts} puts of {bytes} bytes");
    // Existing objects are not put again.
    let (puts, bytes) = puts_of(&[("page", b"one".to_vec())]);
    assert!(puts == 2 && bytes < 60_000, "{puts} puts of {bytes} bytes");
    // Content that is too large to be stored with records gets a pack of its own, and very large
    // content a few.
    assert_eq!(puts_of(&[("large", noise(2 << 20, 7))]).0, 3);
    assert_eq!(puts_of(&[("larger", noise(20 << 20, 8))]).0, 2 + 3);
    let (puts, bytes) = puts_of(&[]);
    assert!(puts == 2 && bytes < 60_000, "{puts} puts of {bytes} bytes");
    session.close().unwrap();

    // Opening the session finds the objects that the last captures need.
    let session = first.store.open_session(id, &types()).unwrap();
    let bytes = bucket.put_bytes();
    assert!(first.write(&session, &[("page", b"three".to_vec())]).unwrap().success);
    assert!(bucket.put_bytes() - bytes < 60_000, "{}", bucket.put_bytes() - bytes);

    let new = second.store.take_over(id, &types()).unwrap();
    assert_sound(&new);
    assert_eq!(rewound(&second, &new), contents(&first.work()));
    // So does a takeover.
    let bytes = bucket.put_bytes();
    assert!(second.write(&new, &[("page", b"four".to_vec())]).unwrap().success);
    assert!(bucket.put_bytes() - bytes < 60_000, "{}", bucket.put_bytes() - bytes);
}

#[test]
fn a_handler_does_not_run_whose_captures_cannot_be_held() {
    let bucket = Bucket::default();
    let [first, _] = workers(&bucket);
    let session = first.store.create(&types()).unwrap();
    std::fs::write(first.work().join("large"), noise(2 << 20, 1)).unwrap();
    bucket.refuse_puts_of("/objects/");
    let refused = call(&first.runner(&session, None, |_| panic!("the handler runs")));
    assert!(matches!(refused, Err(Error::ReplicaFailed { .. })), "{refused:?}");
    assert!(
        !bucket.kinds(session.id()).contains(&"tool_begin".to_owned()),
        "a record is held without its captures"
    );

    // A capture with an object that is damaged here could not be restored. The test keeps the
    // object's modification time, since an object with another one would be written again.
    let [first, _] = workers(&Bucket::default());
    let session = first.store.create(&types()).unwrap();
    std::fs::write(first.work().join("page"), "one").unwrap();
    let captures = session.log().captures_dir();
    let files = first.files(&session, None);
    files.snapshot(None, true).unwrap();
    for (path, bytes) in contents(&captures.join("objects")) {
        let path = captures.join("objects").join(path);
        let modified = path.metadata().unwrap().modified().unwrap();
        std::fs::write(&path, bytes.iter().rev().copied().collect::<Vec<_>>()).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    }
    let resources = ResourceRegistry::builder().filesystem::<HostFilesystem>(files).build().unwrap();
    let refused = call(&runner_over(&session, resources, |_| panic!("the handler runs")).unwrap());
    assert!(matches!(refused, Err(Error::Filesystem(_))), "{refused:?}");
}

#[test]
fn a_pack_that_is_damaged_or_gone_is_named_and_nothing_is_made_of_it() {
    let bucket = Bucket::default();
    let [first, second] = workers(&bucket);
    let session = first.store.create(&types()).unwrap();
    let id = session.id();
    assert!(first.write(&session, &[("larger", noise(20 << 20, 1))]).unwrap().success);
    assert!(first.write(&session, &[("page", noise(2 << 20, 2))]).unwrap().success);
    session.close().unwrap();
    let packs = bucket.keys("/objects/");
    assert_eq!(packs.len(), 4);
    for pack in &packs {
        let bytes = bucket.bytes(pack);
        let (mut wrong, mut short) = (bytes.clone(), bytes.clone());
        *wrong.last_mut().unwrap() ^= 1;
        short.pop();
        for damaged in [Some(wrong), Some(short), Some(Vec::new()), None] {
            bucket.exchange(pack, damaged);
            let refused = second.store.take_over(id, &types()).unwrap_err();
            let Error::ReplicaFailed { reason, .. } = &refused else { panic!("{refused:?}") };
            assert!(reason.contains(pack.filename().unwrap()) && reason.contains("captures"), "{reason}");
            assert!(second.store.session_ids().unwrap().is_empty());
            let left: Vec<_> = std::fs::read_dir(second.path().join("sessions")).unwrap().collect();
            assert!(left.is_empty(), "{left:?}");
        }
        bucket.exchange(pack, Some(bytes));
    }
    let new = second.store.take_over(id, &types()).unwrap();
    assert_sound(&new);
    assert_eq!(rewound(&second, &new), contents(&first.work()));
}

#[test]
fn a_log_that_gets_back_what_it_lost_gets_back_its_captures_and_a_copy_that_is_read_has_them_too() {
    let bucket = Bucket::default();
    let [first, second] = workers(&bucket);
    let session = first.store.create(&types()).unwrap();
    let id = session.id();
    assert!(first.write(&session, &[("page", b"one".to_vec())]).unwrap().success);
    session.sync().unwrap();
    assert!(second.store.pull(id).unwrap().new > 0);
    let older = tempfile::tempdir().unwrap();
    copy(session.dir(), older.path());
    assert!(
        first.write(&session, &[("page", b"two".to_vec()), ("more", noise(2 << 20, 1))]).unwrap().success
    );
    let dir = session.dir().to_owned();
    session.close().unwrap();

    // A power cut took the last records, and the objects that they name.
    std::fs::remove_dir_all(&dir).unwrap();
    copy(older.path(), &dir);
    let session = first.store.open_session(id, &types()).unwrap();
    assert!(session.log().recovery().fetched > 0);
    assert_sound(&session);
    session.close().unwrap();

    assert!(second.store.pull(id).unwrap().new > 0);
    let audited = audit_captures(second.store.session_dir(id)).unwrap();
    assert!(
        audited.damaged.is_empty() && audited.elsewhere.is_empty() && audited.captures > 2,
        "{audited:?}"
    );
    let new = second.store.open_session(id, &types()).unwrap();
    assert_eq!(rewound(&second, &new), contents(&first.work()));
}

/// A session's captures were collected before it was replicated. A takeover then reported them as
/// damaged.
#[test]
fn captures_that_were_collected_before_they_were_held_are_not_taken_for_damaged() {
    let bucket = Bucket::default();
    let [first, second] = workers(&bucket);
    let directory = tempfile::tempdir().unwrap();
    let alone = plain_store(directory.path(), false);
    let session = alone.create(&types()).unwrap();
    let id = session.id();
    let worker = Worker::at(alone.clone());
    let mut positions = Vec::new();
    for page in ["one", "two", "three", "one", "four"] {
        assert!(worker.write(&session, &[("page", page.as_bytes().to_vec())]).unwrap().success);
        positions.push(session.log().position().unwrap());
    }
    session.close().unwrap();
    let few = CollectOptions { calls: 2, ..CollectOptions::default() };
    assert!(alone.collect(&few).unwrap().all.captures > 0);
    let before = audit_captures(alone.session_dir(id)).unwrap();
    assert!(before.collected > 0 && before.damaged.is_empty(), "{before:?}");
    drop(worker);
    drop(alone);
    store(&directory, &bucket, "one").open_session(id, &types()).unwrap().close().unwrap();

    // A copy and a takeover report the same as the store that collected them.
    drop(first);
    let third = Worker::new(&bucket, "three");
    third.store.pull(id).unwrap();
    let new = second.store.take_over(id, &types()).unwrap();
    for dir in [third.store.session_dir(id), new.dir().to_owned()] {
        let after = audit_captures(dir).unwrap();
        assert_eq!(after.damaged, []);
        assert_eq!((after.captures, after.collected), (before.captures, before.collected));
        assert!(after.elsewhere.is_empty(), "{after:?}");
    }
    let copies = tempfile::tempdir().unwrap();
    let copied = third.store.backup(id, copies.path().join("copies"), BackupOptions::default()).unwrap();
    assert_eq!((copied.captures, copied.captures_absent), (before.captures, before.collected));
    assert_eq!(rewound(&second, &new)["page"], b"four");
    let runner = second.runner(&new, Some(Rebind::Overwrite), |_| Ok(()));
    let fill = RewindOptions { overwrite: true, ..RewindOptions::default() };
    let refused = runner.state().rewind(positions[0], &fill).unwrap_err();
    assert!(matches!(refused, Error::Collected { .. }), "{refused:?}");
    // An object that is lost here is reported as damage nevertheless.
    drop(runner);
    new.close().unwrap();
    let mut lost = files_in(&third.store.session_dir(id).join("files/objects"));
    lost.retain(|path| std::fs::remove_file(path).is_ok());
    assert!(!lost.is_empty());
    let after = audit_captures(third.store.session_dir(id)).unwrap();
    assert!(after.collected > 0 && !after.damaged.is_empty(), "{after:?}");
}

/// A machine was lost between two calls, and the new worker's directory is not filled. Its first
/// call continues with the present files, and reports that the last call left others.
#[test]
fn the_first_call_after_a_takeover_tells_that_the_directory_is_another_one() {
    let bucket = Bucket::default();
    let [first, second] = workers(&bucket);
    let third = Worker::new(&bucket, "three");
    let session = first.store.create(&types()).unwrap();
    let id = session.id();
    assert!(first.write(&session, &[("page", b"one".to_vec())]).unwrap().success);
    session.sync().unwrap();
    let first_call = |worker: &Worker, session: &Session| {
        let files = worker.files(session, None);
        let resources = ResourceRegistry::builder().filesystem(Arc::clone(&files)).build().unwrap();
        assert!(call(&runner_over(session, resources, |_| Ok(())).unwrap()).unwrap().success);
        files.take_notices()
    };

    let new = second.store.take_over(id, &types()).unwrap();
    let told = first_call(&second, &new);
    assert!(matches!(told[..], [WorkspaceNotice::Replaced { .. }]), "{told:?}");
    assert_eq!(contents(&second.work()), BTreeMap::new(), "nothing is restored by itself");
    assert_eq!(first_call(&second, &new), []);
    // The files of the last call on the lost machine are still available.
    let before = new.log().position().unwrap();
    let runner = second.runner(&new, Some(Rebind::Overwrite), |_| Ok(()));
    let ends: Vec<_> =
        new.log().slice::<foldlog::ToolInvocations>().unwrap().iter().map(Result::unwrap).collect();
    assert!(before > ends[0].begin);
    let options = RewindOptions { overwrite: true, ..RewindOptions::default() };
    runner.state().rewind(ends[0].position().unwrap().0, &options).unwrap();
    assert_eq!(contents(&second.work()), contents(&first.work()));
    assert_eq!(first_call(&second, &new), []);
    new.close().unwrap();

    // If the directory is filled first, there is nothing to report.
    let last = third.store.take_over(id, &types()).unwrap();
    assert_eq!(rewound(&third, &last), contents(&first.work()));
    assert_eq!(first_call(&third, &last), []);
}
