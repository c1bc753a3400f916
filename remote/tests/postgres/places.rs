//! Opens stores whose sessions are in a database that is named by its URL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldlog::inspect::LogReader;
use foldlog::tools::ExecuteOptions;
use foldlog::{Error, ObjectId, ResourceRegistry, Store};
use foldlog_remote::{Place, PlaceEnvironment, PlaceItem, open_place_with};

use crate::notes::{call, note, runner_over, texts, types};
use crate::placed::store;
use crate::server::{hasty, retries, shared};

pub(crate) fn place(url: &str) -> Arc<dyn Place> {
    open_place_with(url, retries(), &PlaceEnvironment::new()).unwrap()
}

#[test]
fn a_session_goes_to_a_database_and_is_taken_over_from_there() {
    let Some(server) = shared() else { return };
    let place = place(&server.url());
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    assert!(place.sessions().unwrap().is_empty());
    let old = store(&one, place.as_ref(), "one").create(&types()).unwrap();
    let id = old.id();
    assert!(old.log().replicated_record().unwrap().at.starts_with("PostgreSQL at localhost:"));
    for n in 0..300 {
        old.dispatch(note(format!("{n}"))).unwrap();
    }
    old.dispatch(note("long ".repeat(30_000))).unwrap();
    assert!(call(&runner_over(&old, ResourceRegistry::default(), |_| Ok(())).unwrap()).unwrap().success);
    old.sync().unwrap();

    assert_eq!(place.sessions().unwrap(), [id]);
    let standing = place.read_standing(id).unwrap().unwrap();
    assert_eq!((standing.epoch, standing.name.as_str()), (1, "one"));
    assert_eq!(standing.next.get(), old.log().position().unwrap().get() + 1);
    assert_eq!(place.read_standing(uuid::Uuid::from_u128(1)).unwrap(), None);
    let mut reader = place.reader(id).unwrap();
    let (mut objects, mut last) = (Vec::new(), None);
    reader
        .read_on(&mut |met| {
            if let PlaceItem::Record(record) = met {
                objects.extend(record.objects());
                last = Some(record.time_us);
            }
        })
        .unwrap();
    assert_eq!(standing.last_time_us, last);
    // Payloads out of line are stored under their hashes.
    assert_eq!(objects.len(), 1);
    let bytes = reader.object(objects[0]).unwrap().unwrap();
    assert_eq!(ObjectId::from_content(&bytes), objects[0]);

    let new = store(&two, place.as_ref(), "two").take_over(id, &types()).unwrap();
    assert_eq!(texts(&new), texts(&old));
    let last = old.log().position().unwrap();
    let (local, taken) = (LogReader::open(old.dir()).unwrap(), LogReader::open(new.dir()).unwrap());
    assert_eq!(local.digest_through(last).unwrap(), taken.digest_through(last).unwrap());
    let refused = call(&runner_over(&old, ResourceRegistry::default(), |_| panic!("it runs")).unwrap());
    assert!(
        matches!(&refused, Err(Error::Fenced { epoch: 2, by, .. }) if by.starts_with("two, ")),
        "{refused:?}"
    );
    new.dispatch(note("went on")).unwrap();
    new.close().unwrap();
    // A reader continues from its position.
    let (mut claims, mut records) = (Vec::new(), 0);
    reader
        .read_on(&mut |met| match met {
            PlaceItem::Claim { epoch, name } => claims.push((epoch, name.to_owned())),
            PlaceItem::Record(_) => records += 1,
            _ => {}
        })
        .unwrap();
    assert_eq!(claims, [(2, "two".to_owned())]);
    assert!(records > 0);
    drop(old);
    let superseded = store(&one, place.as_ref(), "one").open_session(id, &types()).unwrap_err();
    assert!(matches!(superseded, Error::Superseded { .. } | Error::ReplicaAhead { .. }), "{superseded:?}");
}

#[test]
fn a_call_that_a_lost_worker_left_open_is_recovered_by_the_next_and_its_begin_was_held() {
    let Some(server) = shared() else { return };
    let place = place(&server.url());
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let old = store(&one, place.as_ref(), "one").create(&types()).unwrap();
    let id = old.id();
    let (begun, second) = (Arc::new(AtomicU64::new(0)), store(&two, place.as_ref(), "two"));
    let (begins, (takes, taken)) = (Arc::clone(&begun), std::sync::mpsc::channel());
    let lost = call(
        &runner_over(&old, ResourceRegistry::default(), move |context| {
            begins.store(context.operation().get(), Ordering::SeqCst);
            // The others lose this machine, which does not notice.
            takes.send(second.take_over(id, &types()).unwrap()).unwrap();
            Ok(())
        })
        .unwrap(),
    );
    assert!(matches!(lost, Err(Error::Fenced { .. })), "{lost:?}");
    let new = taken.recv().unwrap();
    let open: Vec<u64> = new.calls().open_operations().iter().map(|open| open.operation.get()).collect();
    assert_eq!(open, [begun.load(Ordering::SeqCst)]);
    let recovered = runner_over(&new, ResourceRegistry::default(), |_| Ok(()))
        .unwrap()
        .recover(&ExecuteOptions::default())
        .unwrap();
    assert_eq!(recovered.len(), 1);
    assert!(!new.calls().is_interrupted());
}

#[test]
fn a_store_goes_on_with_its_own_sessions_and_gets_back_what_its_log_lost() {
    let Some(server) = shared() else { return };
    let place = place(&server.url());
    let (directory, lost) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let session = store(&directory, place.as_ref(), "one").create(&types()).unwrap();
    let id = session.id();
    session.dispatch(note("first")).unwrap();
    session.close().unwrap();
    // The directory returns later in this state.
    let older = Store::open(lost.path()).unwrap();
    older
        .backup_from(
            store(&directory, place.as_ref(), "one").session_dir(id),
            foldlog::BackupOptions::default(),
        )
        .unwrap();
    let session = store(&directory, place.as_ref(), "one").open_session(id, &types()).unwrap();
    session.dispatch(note("second")).unwrap();
    session.close().unwrap();
    let session = store(&lost, place.as_ref(), "one").open_session(id, &types()).unwrap();
    assert_eq!(texts(&session), ["first", "second"]);
}

#[test]
fn urls_of_databases_are_places_and_tell_no_password() {
    let opened = open_place_with("postgres://u:secret@db/x", hasty(), &PlaceEnvironment::new()).unwrap_err();
    assert!(opened.to_string().contains("PGPASSWORD"), "{opened}");
    assert!(!opened.to_string().contains("secret"), "{opened}");
    let variables = PlaceEnvironment::from([("PGPASSWORD".to_owned(), "secret".to_owned())]);
    let place = open_place_with("postgresql://u@a:1,b:2/x", hasty(), &variables).unwrap();
    assert_eq!(place.url(), "postgresql://u@a:1,b:2/x");
    assert!(!format!("{place:?}").contains("secret"));
    assert_eq!(
        place.replicator("one").unwrap().place(),
        "PostgreSQL at a:1,b:2, database `x`, schema `foldlog`"
    );
}
