//! Shows the replication of captures by child sessions, which are in the parent's directory, and of
//! captures that no replica contains.

use std::path::Path;
use std::sync::Arc;

use foldlog::filesystem::{
    Filesystem, FilesystemSnapshot, HostFilesystem, HostFilesystemOptions, Rebind, WorkspaceNotice,
    audit_snapshots,
};
use foldlog::inspect::LogReader;
use foldlog::tools::{RewindOptions, ToolContext, ToolError};
use foldlog::{RecordKind, ResourceRegistry, Session};
use foldlog_codec::body::{ResourceSnapshot, ToolBegin, ToolEnd};
use foldlog_codec::msgpack;
use uuid::Uuid;

use crate::bucket::Bucket;
use crate::notes::{call, runner_of, runner_over, types};
use crate::workspace::{Worker, contents, noise};

/// Returns the captures of workspaces that a session's log names.
fn captures(dir: &Path) -> Vec<FilesystemSnapshot> {
    let mut captures = Vec::new();
    let mut take = |resources: Vec<ResourceSnapshot<'_>>| {
        let recorded = resources.into_iter().filter_map(|resource| resource.snapshot);
        captures.extend(recorded.map(|recorded| msgpack::from_slice(recorded.bytes()).unwrap()));
    };
    let log = LogReader::open(dir).unwrap();
    log.records(0, u64::MAX, |record| {
        match record.kind {
            RecordKind::ToolBegin => take(ToolBegin::decode(record.body).unwrap().resources),
            RecordKind::ToolEnd => take(ToolEnd::decode(record.body).unwrap().resources),
            _ => {}
        }
        Ok(())
    })
    .unwrap();
    captures
}

#[track_caller]
fn assert_whole(store: &Path, captures: &[FilesystemSnapshot]) {
    let audited = audit_snapshots(store, captures, &|_| true);
    assert!(audited.damaged.is_empty() && audited.absent.is_empty(), "{audited:?}");
    assert_eq!(audited.snapshots, captures.len() as u64);
}

/// Has a tool of the worker's session call a tool of a child session that writes a file. Returns
/// the child's id.
fn child_writes(worker: &Worker, session: &Session, path: &'static str, bytes: Vec<u8>) -> Uuid {
    let (sends, sent) = std::sync::mpsc::channel();
    let driven = worker.runner(session, None, move |context: &ToolContext| {
        let state = context.child(0, &types())?;
        sends.send(state.session().id()).unwrap();
        let bytes = bytes.clone();
        let write = move |context: &ToolContext| -> Result<(), ToolError> {
            context.resources().get::<dyn Filesystem>().unwrap().write(path, &bytes)?;
            Ok(())
        };
        assert!(call(&runner_of(state, write)).unwrap().success);
        Ok(())
    });
    assert!(call(&driven).unwrap().success);
    sent.recv().unwrap()
}

#[test]
fn captures_of_a_childs_calls_are_held_with_it_and_stand_in_the_parents_directory_after_a_takeover() {
    for child_first in [true, false] {
        let bucket = Bucket::default();
        let [first, second] = ["one", "two"].map(|name| Worker::new(&bucket, name));
        let session = first.store.create(&types()).unwrap();
        let id = session.id();
        let large = noise(6 << 20, 1);
        assert!(first.write(&session, &[("large", large.clone())]).unwrap().success);
        let bytes = bucket.put_bytes();
        let child = child_writes(&first, &session, "by a child", noise(300_000, 2));
        // The objects of the parent's captures are replicated already.
        let more = bucket.put_bytes() - bytes;
        assert!((600_000..2_000_000).contains(&more), "{more}");
        let child_dir = first.store.session_dir(child);
        let named = captures(&child_dir);
        assert!(named.len() == 2 && !child_dir.join("captures").exists(), "{named:?}");
        assert_whole(&session.log().captures_dir(), &named);
        session.close().unwrap();

        // Another machine gets both, in either order.
        let take = |id: Uuid| second.store.take_over(id, &types()).unwrap();
        let (new, taken) = match child_first {
            true => {
                let taken = take(child);
                assert!(taken.log().captures_dir().exists());
                taken.close().unwrap();
                (take(id), second.store.open_session(child, &types()).unwrap())
            }
            false => (take(id), take(child)),
        };
        assert!(!taken.log().captures_dir().exists());
        assert_eq!(captures(taken.dir()), named);
        assert_whole(&new.log().captures_dir(), &named);
        taken.close().unwrap();

        // The child continues there, and puts only its changes.
        let runner = second.runner(&new, Some(Rebind::Overwrite), |_| Ok(()));
        let last = new.log().position().unwrap();
        let options = RewindOptions { overwrite: true, ..RewindOptions::default() };
        runner.state().rewind(last, &options).unwrap();
        assert_eq!(contents(&second.work()), contents(&first.work()));
        let bytes = bucket.put_bytes();
        let another = child_writes(&second, &new, "by another", b"more".to_vec());
        assert!(another != child && bucket.put_bytes() - bytes < 200_000);
        assert_whole(&new.log().captures_dir(), &captures(&second.store.session_dir(another)));
    }
}

#[test]
fn captures_that_a_host_keeps_in_another_directory_are_told_not_to_be_held() {
    let bucket = Bucket::default();
    let worker = Worker::new(&bucket, "one");
    let session = worker.store.create(&types()).unwrap();
    let elsewhere = worker.path().join("elsewhere");
    let told = |files: Arc<HostFilesystem>| {
        let resources = ResourceRegistry::builder().filesystem(Arc::clone(&files)).build().unwrap();
        let runner = runner_over(&session, resources, |_| Ok(())).unwrap();
        assert!(call(&runner).unwrap().success && call(&runner).unwrap().success);
        files.take_notices()
    };
    assert_eq!(told(worker.files(&session, None)), []);
    let files = HostFilesystem::open(worker.work(), &elsewhere, HostFilesystemOptions::default()).unwrap();
    let notices = told(Arc::new(files));
    let held = session.log().captures_dir();
    assert!(
        matches!(&notices[..], [WorkspaceNotice::CapturesNotHeld { store, held: of }, ..] if *store == elsewhere && *of == held),
        "{notices:?}"
    );
    // Without a replica this does not matter.
    let plain = crate::host::plain_store(&worker.path().join("plain"), false);
    let session = plain.create(&types()).unwrap();
    let files = HostFilesystem::open(worker.work(), &elsewhere, HostFilesystemOptions::default()).unwrap();
    let files = Arc::new(files);
    let resources = ResourceRegistry::builder().filesystem(Arc::clone(&files)).build().unwrap();
    assert!(call(&runner_over(&session, resources, |_| Ok(())).unwrap()).unwrap().success);
    assert_eq!(files.take_notices(), []);
}
