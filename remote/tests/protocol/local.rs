//! Runs the protocol over a local directory, which has create-if-absent and no update, through the
//! blocking methods.

use std::fs::{self, File};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use foldlog_remote::{
    CollectOptions, Error, MIN_AGE, PlaceEnvironment, Remote, RemoteFailure, Retries, open_remote,
};
use object_store::local::LocalFileSystem;

use crate::sim::world::{SESSION, record};

fn remote(directory: &tempfile::TempDir) -> Remote {
    let store = LocalFileSystem::new_with_prefix(directory.path()).unwrap().with_fsync(true);
    Remote::new(Arc::new(store), "team", Retries::default()).unwrap()
}

#[test]
fn a_directory_holds_a_session_that_another_worker_takes_over() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = remote(&directory).claim(SESSION, "first", |_| {}).unwrap();
    assert_eq!(first.append([record(0, b"zero"), record(1, b"one")]).unwrap(), 2);
    let known = *first.writer().chain();

    let (send, bodies) = std::sync::mpsc::channel();
    let each = move |chunk: &foldlog_remote::chunk::Chunk<'_>| {
        chunk.records().for_each(|record| send.send((record.sequence.get(), record.body.to_vec())).unwrap());
    };
    let mut second = remote(&directory).claim(SESSION, "second", each).unwrap();
    assert_eq!(bodies.iter().collect::<Vec<_>>(), [(0, b"zero".to_vec()), (1, b"one".to_vec())]);
    assert_eq!(second.append([record(2, b"two")]).unwrap(), 3);
    match first.append([record(2, b"two")]).unwrap_err() {
        Error::Fenced { epoch, note, .. } => assert_eq!((epoch.get(), note.as_str()), (2, "second")),
        error => panic!("{error}"),
    }

    // A reader continues from its position.
    let reading = remote(&directory);
    let count = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&count);
    let chain = reading.read_behind(known, move |chunk| *counted.lock().unwrap() += chunk.count).unwrap();
    assert_eq!((chain.next_sequence().get(), *count.lock().unwrap()), (3, 1));
}

#[test]
fn eight_writers_race_and_nothing_is_appended_twice() {
    let directory = tempfile::tempdir().unwrap();
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let threads: Vec<_> = (0..8)
        .map(|who| {
            let (remote, acknowledged) = (remote(&directory), Arc::clone(&acknowledged));
            thread::spawn(move || {
                for round in 0..3 {
                    let Ok(mut writer) = remote.claim(SESSION, "racer", |_| {}) else { continue };
                    let next = writer.writer().next_sequence().get();
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
    remote(&directory).read(SESSION, each).unwrap();
    let mut acknowledged = std::mem::take(&mut *acknowledged.lock().unwrap());
    acknowledged.sort();
    // Nothing was in doubt, so the log contains the acknowledged records and no others.
    assert_eq!(*log.lock().unwrap(), acknowledged);
    assert!(!acknowledged.is_empty());
}

#[test]
fn a_session_that_is_not_there_is_empty() {
    let directory = tempfile::tempdir().unwrap();
    let chain = remote(&directory).read(SESSION, |_| panic!("there is no chunk")).unwrap();
    assert_eq!((chain.next_number(), chain.last()), (0, None));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "reading writes nothing");
}

#[test]
fn chunks_are_collected_from_a_directory_by_the_times_of_its_files() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = remote(&directory).claim(SESSION, "first", |_| {}).unwrap();
    for sequence in 0..130 {
        writer.append([record(sequence, b"body")]).unwrap();
    }
    let collecting = remote(&directory);
    let young = collecting.collect(SESSION, CollectOptions::default()).unwrap();
    assert_eq!((young.chunks, young.left, young.next.get()), (0, 131, 130));
    let session = directory.path().join(format!("team/sessions/{SESSION}"));
    let age = |volume: &str, age: Duration| {
        let file = File::options().write(true).open(session.join("volumes/64").join(volume)).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    };
    let minute = Duration::from_secs(60);
    age("00000000000000000000", MIN_AGE + minute);
    age("00000000000000000064", MIN_AGE - minute);
    let mut options = CollectOptions::default();
    // Objects younger than a day are never collected.
    options.min_age = Duration::ZERO;
    options.dry_run = true;
    let would = collecting.collect(SESSION, options).unwrap();
    assert_eq!((would.chunks, would.left), (64, 67));
    assert_eq!(fs::read_dir(session.join("log")).unwrap().count(), 131);
    options.dry_run = false;
    assert_eq!(collecting.collect(SESSION, options).unwrap(), would);
    assert_eq!(fs::read_dir(session.join("log")).unwrap().count(), 67);
    assert!(!session.join("log/00000000000000000063").exists());
    assert_eq!(collecting.collect(SESSION, options).unwrap().chunks, 0);

    writer.append([record(130, b"on")]).unwrap();
    let chain = remote(&directory).read(SESSION, |_| {}).unwrap();
    assert_eq!(chain.next_sequence().get(), 131);
    // The files of the probe are removed.
    assert_eq!(fs::read_dir(session.join("probe")).map_or(0, Iterator::count), 0);
}

/// A pipe in place of an object blocked for a minute, and a directory was taken for a missing
/// object, which ended the log there.
#[test]
fn what_is_no_file_in_a_directory_is_refused_at_once_and_is_no_end() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().display());
    let place = || open_remote(&url, Retries::default(), &PlaceEnvironment::new()).unwrap();
    let mut writer = place().claim(SESSION, "first", |_| {}).unwrap();
    writer.append([record(0, b"zero")]).unwrap();
    let log = directory.path().join(format!("sessions/{SESSION}/log"));
    let last = log.join(format!("{:020}", 1));
    let whole = fs::read(&last).unwrap();
    let is_refused = |read: Result<(), Error>| {
        let text = read.unwrap_err().to_string();
        text == format!("could not read a chunk: the entry with this name is not a regular file ({url})")
    };
    fs::remove_file(&last).unwrap();
    fs::create_dir(&last).unwrap();
    assert!(is_refused(place().read(SESSION, |_| {}).map(drop)));
    let claimed = place().claim(SESSION, "second", |_| {});
    assert!(matches!(claimed, Err(Error::Store { failure: RemoteFailure::NotAFile, .. })), "{claimed:?}");
    fs::remove_dir(&last).unwrap();
    nix::unistd::mkfifo(&last, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(is_refused(place().read(SESSION, |_| {}).map(drop)));
    fs::remove_file(&last).unwrap();
    // A link to a file is valid.
    fs::write(directory.path().join("elsewhere"), whole).unwrap();
    std::os::unix::fs::symlink(directory.path().join("elsewhere"), &last).unwrap();
    assert_eq!(place().read(SESSION, |_| {}).unwrap().next_sequence().get(), 1);
}
