//! Shows that captures of workspaces are stored before the records that name them, and reach
//! another machine.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use foldlog::filesystem::{Filesystem, HostFilesystemOptions, Rebind};
use foldlog::inspect::audit_captures;
use foldlog::replication::{CapturePacks, HeldPart, Replication, Replicator};
use foldlog::tools::{ExecuteOptions, ToolContext, ToolError, ToolRunner};
use foldlog::{ObjectId, ResourceRegistry, Session, Store, StoreOptions};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use uuid::Uuid;

use crate::notes::{call, runner_over, types};
use crate::server::{replicator, retries, schema_of, shared};
use crate::worker::{append, claim, held, reason, record};

fn store(directory: &Path, url: &str, name: &str) -> Store {
    let replication = Some(Replication::new(Arc::new(replicator(url, name, retries()))));
    Store::open_with(directory, StoreOptions { replication, ..StoreOptions::default() }).unwrap()
}

fn runner(
    session: &Session,
    work: &Path,
    rebind: Option<Rebind>,
    act: impl Fn(&ToolContext) -> Result<(), ToolError> + Send + Sync + 'static,
) -> ToolRunner {
    let files = session.open_workspace(work, HostFilesystemOptions::default()).unwrap();
    rebind.into_iter().for_each(|rebind| files.rebind(rebind).unwrap());
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    runner_over(session, resources, act).unwrap()
}

#[test]
fn a_begins_captures_are_held_before_its_handler_runs_and_restored_on_another_machine() {
    let Some(server) = shared() else { return };
    let (url, directory) = (server.url(), tempfile::tempdir().unwrap());
    let path = |name: &str| directory.path().join(name);
    for name in ["work one", "work two"] {
        fs::create_dir(path(name)).unwrap();
    }
    // Too large to be stored with records, so that a pack of its own is written.
    let mut large = vec![0; 3 << 20];
    ChaCha8Rng::seed_from_u64(1).fill_bytes(&mut large);
    fs::write(path("work one/large"), &large).unwrap();
    fs::write(path("work one/page"), "one").unwrap();
    let session = store(&path("one"), &url, "one").create(&types()).unwrap();
    let (id, second) = (session.id(), store(&path("two"), &url, "two"));
    let (takes, taken) = std::sync::mpsc::channel();
    let lost = runner(&session, &path("work one"), None, move |context| {
        // The others lose this machine during the call.
        context.resources().get::<dyn Filesystem>().unwrap().write("page", b"half done").unwrap();
        takes.send(second.take_over(id, &types())).unwrap();
        Ok(())
    });
    assert!(call(&lost).is_err());
    let new = taken.recv().unwrap().unwrap();
    assert!(new.calls().is_interrupted());
    let audited = audit_captures(new.dir()).unwrap();
    assert!(audited.damaged.is_empty() && audited.captures > 0, "{audited:?}");
    let recovers = runner(&new, &path("work two"), Some(Rebind::IfEmpty), |_| Ok(()));
    recovers.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(fs::read(path("work two/page")).unwrap(), b"one");
    assert!(fs::read(path("work two/large")).unwrap() == large);
}

#[test]
fn captures_come_back_in_front_of_the_records_of_their_append_and_damage_is_seen() {
    let Some(server) = shared() else { return };
    let (url, session) = (server.url(), Uuid::from_u128(1));
    let schema = schema_of(&url);
    let one = replicator(&url, "one", retries());
    claim(&one, session).unwrap();
    append(&one, session, 1, 0, &["without"]).unwrap();
    let packs = [ObjectId::from_content(b"a"), ObjectId::from_content(b"b")];
    let many: Vec<String> = (0..5_000).map(|n| n.to_string()).collect();
    let records: Vec<_> = (1..).zip(&many).map(|(sequence, text)| record(sequence, text)).collect();
    let captures = CapturePacks { packs: &packs, inlined: b"more" };
    one.append(session, 1, Some(captures), &records).unwrap();
    let mut seen = Vec::new();
    let mut each = |part: HeldPart<'_>| match part {
        HeldPart::Captures { next, captures } => {
            seen.push((0, next.get(), captures.packs.to_vec(), captures.inlined.to_vec()));
        }
        HeldPart::Record(record) if [0, 1, 4_097].contains(&record.sequence.get()) => {
            seen.push((1, record.sequence.get(), Vec::new(), Vec::new()));
        }
        _ => {}
    };
    one.read(session, &mut each).unwrap();
    // Two statements: the second one finds no more rows.
    let record = |sequence| (1, sequence, Vec::new(), Vec::new());
    let expected = [
        record(0),
        (0, 4_097, packs.to_vec(), b"more".to_vec()),
        record(1),
        (0, 5_001, Vec::new(), Vec::new()),
        record(4_097),
    ];
    assert_eq!(seen, expected);
    for damage in ["NULL", "captures || 'x'", "set_byte(captures, 20, 7)", "''", "sha256('')"] {
        server.sql(&format!(
            "CREATE TEMP TABLE kept AS SELECT captures FROM {schema}.records WHERE sequence = 1; \
             UPDATE {schema}.records SET captures = {damage} WHERE sequence = 1; \
             CREATE TABLE {schema}.kept AS TABLE kept"
        ));
        let text = reason(held(&one, session));
        assert!(text.contains(&format!("record 1 of session {session} is damaged")), "{damage}: {text}");
        server.sql(&format!(
            "UPDATE {schema}.records SET captures = (SELECT captures FROM {schema}.kept) WHERE sequence = 1; \
             DROP TABLE {schema}.kept"
        ));
    }
    assert_eq!(held(&one, session).unwrap().1.len(), 5_001);
}
