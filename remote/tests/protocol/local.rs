//! The protocol over a local folder, which has create-if-absent and no update, through the blocking forms.

use std::sync::{Arc, Mutex};
use std::thread;

use foldlog_remote::{Error, Remote, Retries};
use object_store::local::LocalFileSystem;

use crate::sim::world::{SESSION, record};

fn remote(folder: &tempfile::TempDir) -> Remote {
    let store = LocalFileSystem::new_with_prefix(folder.path()).unwrap().with_fsync(true);
    Remote::new(Arc::new(store), "team", Retries::default()).unwrap()
}

#[test]
fn a_folder_holds_a_session_that_another_worker_takes_over() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = remote(&folder).claim(SESSION, "first", |_| {}).unwrap();
    assert_eq!(first.append([record(0, b"zero"), record(1, b"one")]).unwrap(), 2);
    let known = *first.writer().unwrap().chain();

    let (send, bodies) = std::sync::mpsc::channel();
    let each = move |chunk: &foldlog_remote::chunk::Chunk<'_>| {
        chunk.records().for_each(|record| send.send((record.sequence.get(), record.body.to_vec())).unwrap());
    };
    let mut second = remote(&folder).claim(SESSION, "second", each).unwrap();
    assert_eq!(bodies.iter().collect::<Vec<_>>(), [(0, b"zero".to_vec()), (1, b"one".to_vec())]);
    assert_eq!(second.append([record(2, b"two")]).unwrap(), 3);
    match first.append([record(2, b"two")]).unwrap_err() {
        Error::Fenced { epoch, note, .. } => assert_eq!((epoch.get(), note.as_str()), (2, "second")),
        error => panic!("{error}"),
    }

    // A reader goes on from where it was.
    let reading = remote(&folder);
    let count = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&count);
    let chain = reading.read_behind(known, move |chunk| *counted.lock().unwrap() += chunk.count).unwrap();
    assert_eq!((chain.next_sequence().get(), *count.lock().unwrap()), (3, 1));
}

#[test]
fn eight_writers_race_and_nothing_is_appended_twice() {
    let folder = tempfile::tempdir().unwrap();
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let threads: Vec<_> = (0..8)
        .map(|who| {
            let (remote, acknowledged) = (remote(&folder), Arc::clone(&acknowledged));
            thread::spawn(move || {
                for round in 0..3 {
                    let Ok(mut writer) = remote.claim(SESSION, "racer", |_| {}) else { continue };
                    let next = writer.writer().unwrap().next_sequence().get();
                    let body = format!("{who}/{round}").into_bytes();
                    match writer.append([record(next, &body)]) {
                        Ok(_) => acknowledged.lock().unwrap().push((next, body)),
                        Err(Error::Fenced { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());

    let log = Arc::new(Mutex::new(Vec::new()));
    let read = Arc::clone(&log);
    let each = move |chunk: &foldlog_remote::chunk::Chunk<'_>| {
        read.lock()
            .unwrap()
            .extend(chunk.records().map(|record| (record.sequence.get(), record.body.to_vec())));
    };
    remote(&folder).read(SESSION, each).unwrap();
    let mut acknowledged = std::mem::take(&mut *acknowledged.lock().unwrap());
    acknowledged.sort();
    // Nothing was in doubt, so the log holds what was acknowledged, and nothing else.
    assert_eq!(*log.lock().unwrap(), acknowledged);
    assert!(!acknowledged.is_empty());
}

#[test]
fn a_session_that_is_not_there_is_empty() {
    let folder = tempfile::tempdir().unwrap();
    let chain = remote(&folder).read(SESSION, |_| panic!("there is no chunk")).unwrap();
    assert_eq!((chain.next_number(), chain.last()), (0, None));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "reading writes nothing");
}
