//! External input: the JSON of snapshots, and the runs of other tools.

use std::path::Path;

use foldlog::inspect::LogReader;
use foldlog::{Durability, Export, ImportOptions, Store, Value};
use foldlog_cli::runs::{self, AgentRun, openai};

use foldlog_test_support::crash::Machine;
use foldlog_test_support::host;

/// The name of the slice of conversations in exports.
const CONVERSATIONS: &str = "weakincentives.runtime.conversation:ConversationState";

/// The name of the slice of adapters' states in exports.
const ADAPTER_STATES: &str = "weakincentives.runtime.adapter_state:AdapterStateSnapshot";

/// Reads the bytes as the JSON of a snapshot.
///
/// # Panics
///
/// If a property is violated.
pub fn snapshot_json(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(export) = Export::from_json(text) else { return };
    let again = export.to_json().expect("what was read can be written");
    let twice = Export::from_json(&again).expect("what was written can be read");
    // NaN is not equal to itself, but its JSON is.
    assert_eq!(twice.to_json().expect("what was read can be written"), again);

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
        let (id, state) = (session.id(), session.dynamic().state().expect("it has a state"));
        for slice in &export.slices {
            if slice.slice_type == CONVERSATIONS {
                // Conversations become records, and no slice; one without a prompt and turns
                // becomes nothing.
                assert!(session.conversation().evaluations().len() <= slice.items.len());
                continue;
            }
            if slice.slice_type == ADAPTER_STATES {
                let states = session.conversation().adapter_states().expect("they can be read");
                assert_eq!(states.len(), slice.items.len());
                continue;
            }
            let taken = state.slices.get(&slice.slice_type);
            let taken = taken.or_else(|| state.slices.get("tool_invoked.imported")).expect("it was taken in");
            assert_eq!(taken.items.len(), slice.items.len());
        }
        session.close().expect("it closes");
        assert_eq!(machine.audit(id).expect("it opens").state().expect("it is read"), state);
        let opened = store.open_session(id, &host::types()).expect("it opens");
        assert_eq!(opened.dynamic().state().expect("it has a state"), state);
        // The export equals the import, and can be imported again.
        let exported = opened.log().export().expect("it can be exported");
        let text = exported.to_json().expect("what was read can be written");
        let read = Export::from_json(&text).expect("what was written can be read");
        assert_eq!(read.to_json().expect("what was read can be written"), text);
    }
}

/// The first byte selects the tool, the others are a file of it.
///
/// # Panics
///
/// If a property is violated.
pub fn import(bytes: &[u8]) {
    let Some((tool, content)) = bytes.split_first() else { return };
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let file = directory.path().join("task.traj");
    std::fs::write(&file, content).expect("there is room for a file");
    if tool % 4 == 3 {
        return messages(directory.path(), &file);
    }
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
    let store = directory.path().join("store");
    for run in read.iter().take(4) {
        let written = runs::import::run(&store, &runs::types().expect("they agree"), run);
        match written {
            Ok(written) => assert_eq!(written.sessions, 1),
            // Data too large for the engine is refused, and leaves nothing.
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        }
        taken_in(&store, run);
    }
}

/// Checks that a file of OpenAI's messages is either refused without a trace, or becomes a
/// conversation with the same content.
fn messages(directory: &Path, file: &Path) {
    let store = directory.join("store");
    let read = openai::read(file).and_then(|text| {
        runs::import::messages(&store, file, &text, None)?;
        Ok(text)
    });
    let open = || Store::open(&store).expect("the store opens");
    let text = match read {
        Ok(text) => text,
        Err(failure) => {
            assert!(!failure.to_string().is_empty());
            assert!(open().session_ids().expect("it can be listed").is_empty());
            return;
        }
    };
    let mut said = Vec::new();
    let each = openai::each(file, &text, &mut |message| {
        said.push(message);
        Ok(())
    });
    each.expect("it was imported");
    let ids = open().session_ids().expect("it can be listed");
    let [id] = ids[..] else { panic!("{} sessions", ids.len()) };
    let reader = LogReader::open(open().session_dir(id)).expect("it opens");
    let conversation =
        reader.conversation_at("imported", u64::MAX).expect("it is read").expect("it is there");
    let messages = conversation.messages();
    assert_eq!(messages.len(), said.len());
    for (message, said) in messages.iter().zip(said) {
        assert_eq!((message.role, &message.content, &message.name), (said.role, &said.content, &said.name));
        assert_eq!((&message.blocks, &message.tool_calls), (&said.blocks, &said.calls));
        assert_eq!(message.tool_call_id, said.call_id);
    }
}

/// Checks that the only session of the store contains the run, and deletes the session.
fn taken_in(root: &Path, run: &AgentRun) {
    let store = Store::open(root).expect("the store opens");
    let ids = store.session_ids().expect("it can be listed");
    let [id] = ids[..] else { panic!("{} sessions", ids.len()) };
    let reader = LogReader::open(store.session_dir(id)).expect("it opens");
    assert_eq!(reader.opening_record().tags["task_id"], run.task_id);
    assert_eq!(reader.opening_record().tags["trial"], run.trial);
    let evaluation = format!("{}/{}", run.task_id, run.trial);
    let conversation = reader.conversation_at(&evaluation, u64::MAX).expect("it is read");
    let messages = conversation.map(|conversation| conversation.messages()).unwrap_or_default();
    assert_eq!(messages.len(), run.steps.len());
    for (message, step) in messages.iter().zip(&run.steps) {
        let text = step.message.get("content").and_then(Value::as_str);
        assert!(text.is_none() || message.content.as_deref() == text);
        assert_eq!(message.tool_calls, step.calls);
    }
    let calls: Vec<&str> =
        run.steps.iter().filter_map(|it| it.call.as_ref()).map(|it| it.tool.as_str()).collect();
    let ledger = reader.ledger().expect("it has a ledger");
    assert_eq!(ledger.iter().map(|entry| entry.tool.as_str()).collect::<Vec<_>>(), calls);
    store.delete(id).expect("it can be deleted");
}
