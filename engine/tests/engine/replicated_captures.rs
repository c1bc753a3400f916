//! Captures of workspaces of replicated sessions, over a replica in memory.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use foldlog::filesystem::{HostFilesystemOptions, Rebind};
use foldlog::inspect::audit_captures;
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{Durability, ExecutionState, ResourceRegistry, Session, Store, StoreOptions};
use foldlog_test_support::host::types;
use foldlog_test_support::replica::MemoryReplica;

fn store(directory: &Path, replica: &MemoryReplica, durability: Durability) -> Store {
    let options = StoreOptions { replication: replica.option(), durability, ..StoreOptions::default() };
    Store::open_with(directory, options).unwrap()
}

/// Creates a runner on the directory, which replaces that of the captures if `rebind` says so.
fn runner(session: &Session, directory: &Path, rebind: Option<Rebind>) -> ToolRunner {
    fs::create_dir_all(directory).unwrap();
    let files = session.open_workspace(directory, HostFilesystemOptions::default()).unwrap();
    rebind.into_iter().for_each(|rebind| files.rebind(rebind).unwrap());
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new())
}

#[test]
fn a_handler_runs_behind_captures_that_are_held_and_another_machine_restores_them() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let replica = MemoryReplica::new("one");
    let session = store(one.path(), &replica, Durability::Boundary).create(&types()).unwrap();
    let (id, work) = (session.id(), one.path().join("work"));
    let worker = runner(&session, &work, None);
    let options = ExecuteOptions::default();
    for n in 0..3 {
        fs::write(work.join("page"), format!("{n}")).unwrap();
        let open = worker.begin(&ToolCall::new("send", "{}"), &options).unwrap();
        fs::write(work.join("new"), format!("half done {n}")).unwrap();
        if n < 2 {
            open.end(ToolResult::ok("sent", n)).unwrap();
            continue;
        }
        // The first machine is lost to the others.
        let other = store(two.path(), &replica.named("two"), Durability::Boundary);
        let taken = other.take_over(id, &types()).unwrap();
        let audited = audit_captures(taken.dir()).unwrap();
        assert!(audited.damaged.is_empty() && audited.elsewhere.is_empty(), "{audited:?}");
        let directory = two.path().join("work");
        runner(&taken, &directory, Some(Rebind::IfEmpty)).recover(&options).unwrap();
        assert_eq!(fs::read_to_string(directory.join("page")).unwrap(), "2");
        assert_eq!(fs::read_to_string(directory.join("new")).unwrap(), "half done 1");
        drop(open);
    }
}

#[test]
fn what_no_call_waits_for_takes_its_captures_along() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let replica = MemoryReplica::new("one");
    let session = store(one.path(), &replica, Durability::Process).create(&types()).unwrap();
    let (id, work) = (session.id(), one.path().join("work"));
    let worker = runner(&session, &work, None);
    for n in 0..20 {
        let open = worker.begin(&ToolCall::new("send", "{}"), &ExecuteOptions::default()).unwrap();
        fs::write(work.join("page"), format!("{n}")).unwrap();
        open.end(ToolResult::ok("sent", n)).unwrap();
    }
    drop(worker);
    session.close().unwrap();
    let copies = store(two.path(), &replica.named("two"), Durability::Boundary);
    copies.pull(id).unwrap();
    let audited = audit_captures(copies.session_dir(id)).unwrap();
    assert!(
        audited.damaged.is_empty() && audited.elsewhere.is_empty() && audited.captures >= 20,
        "{audited:?}"
    );
}
