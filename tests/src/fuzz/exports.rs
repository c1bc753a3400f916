//! What comes from elsewhere: the JSON of snapshots, and the runs of other tools.

use std::path::Path;

use foldlog::audit::LogReader;
use foldlog::{Durability, Export, ImportOptions, Store, Value};
use foldlog_replay::runs::{self, Run};

use crate::crash::Machine;
use crate::host;

/// The bytes are the JSON of a snapshot.
///
/// # Panics
///
/// Where something does not hold.
pub fn snapshot_json(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(export) = Export::from_json(text) else { return };
    let again = export.to_json().expect("what was read can be written");
    let twice = Export::from_json(&again).expect("what was written can be read");
    assert_eq!(twice, export);

    for keep_unknown in [false, true] {
        let machine = Machine::default();
        let store = machine.process(Durability::Boundary);
        let options = ImportOptions { keep_unknown, ..ImportOptions::default() };
        let session = match store.import(&export, &host::types(), options) {
            Ok(session) => session,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert!(store.session_ids().expect("it can be listed").is_empty(), "nothing is left behind");
                continue;
            }
        };
        assert_eq!(session.tags(), export.tags);
        let (id, state) = (session.id(), session.state().expect("it has a state"));
        for slice in &export.slices {
            let taken = state.slices.get(&slice.slice_type);
            let taken = taken.or_else(|| state.slices.get("tool_invoked.imported")).expect("it was taken in");
            assert_eq!(taken.items.len(), slice.items.len());
        }
        session.close().expect("it closes");
        assert_eq!(machine.audit(id).expect("it opens").state().expect("it is read"), state);
        let opened = store.open_session(id, &host::types()).expect("it opens");
        assert_eq!(opened.state().expect("it has a state"), state);
        // It is exported as it came in, and that comes in again.
        let exported = opened.export().expect("it can be exported");
        let text = exported.to_json().expect("what was read can be written");
        assert_eq!(Export::from_json(&text).expect("what was written can be read").slices, exported.slices);
    }
}

/// The first byte says which tool's, the others are a file of it.
///
/// # Panics
///
/// Where something does not hold.
pub fn import(bytes: &[u8]) {
    let Some((tool, content)) = bytes.split_first() else { return };
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let file = folder.path().join("task.traj");
    std::fs::write(&file, content).expect("there is room for a file");
    let read = match tool % 2 {
        0 => runs::read_tau_bench(&file),
        _ => runs::read_swe_agent(&file).map(|run| vec![run]),
    };
    let read = match read {
        Ok(read) => read,
        Err(failure) => {
            assert!(!failure.to_string().is_empty());
            return;
        }
    };
    let store = folder.path().join("store");
    for run in read.iter().take(4) {
        let written = runs::import::run(&store, &runs::types().expect("they agree"), run);
        match written {
            Ok(written) => assert_eq!(written.sessions, 1),
            // What is too large for the engine is refused, and nothing of it stays.
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        }
        taken_in(&store, run);
    }
}

/// Checks that the one session of the store holds what the run says, and takes the session away.
fn taken_in(root: &Path, run: &Run) {
    let store = Store::open(root).expect("the store opens");
    let ids = store.session_ids().expect("it can be listed");
    let [id] = ids[..] else { panic!("{} sessions", ids.len()) };
    let reader = LogReader::open(store.session_dir(id)).expect("it opens");
    assert_eq!(reader.opened().tags["task_id"], run.task_id);
    assert_eq!(reader.opened().tags["trial"], run.trial);
    let state = reader.state().expect("it is read");
    let items = |name: &str| -> Vec<Value> {
        let slice = state.slices.get(name).map(|slice| slice.items.as_slice()).unwrap_or_default();
        slice.iter().map(|item| item.value().expect("an item reads")).collect()
    };
    let failed = |step: &&foldlog_replay::runs::Step| step.call.as_ref().is_some_and(|call| call.failed);
    let kept: Vec<Vec<u8>> =
        run.steps.iter().filter(|step| !failed(step)).map(|it| it.message.encode()).collect();
    let found: Vec<Vec<u8>> = items("messages").iter().map(Value::encode).collect();
    assert_eq!(found, kept, "the messages of the calls that did not fail");
    assert_eq!(items("last_message").iter().map(Value::encode).next_back().as_ref(), kept.last());
    let calls: Vec<&str> =
        run.steps.iter().filter_map(|it| it.call.as_ref()).map(|it| it.tool.as_str()).collect();
    let ledger = reader.ledger().expect("it has a ledger");
    assert_eq!(ledger.iter().map(|entry| entry.tool.as_str()).collect::<Vec<_>>(), calls);
    store.delete(id).expect("it can be deleted");
}
