//! The directory of large payloads.

use std::fs;
use std::os::unix::fs::symlink;

use foldlog::inspect::LogReader;
use foldlog::{Error, Store, StoreOptions};
use foldlog_test_support::host::{StepAdded, types};

/// If a session contained a link, auditing and opening it read the link's target.
#[test]
fn a_directory_of_objects_that_is_a_link_is_followed_by_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path().join("store"), StoreOptions::default()).unwrap();
    let session = store.create(&types()).unwrap();
    session.dispatch(StepAdded { title: "long ".repeat(1 << 20), part: 0 }).unwrap();
    let (id, dir, state) = (session.id(), session.dir().to_owned(), session.dynamic().state().unwrap());
    session.close().unwrap();
    let (objects, elsewhere) = (dir.join("objects"), directory.path().join("elsewhere"));
    fs::rename(&objects, &elsewhere).unwrap();
    symlink(&elsewhere, &objects).unwrap();
    let is_refused = |error: Error| {
        let told = error.to_string();
        assert!(matches!(&error, Error::Object { path, .. } if *path == objects), "{told}");
        assert!(told.contains("link"), "{told}");
    };
    is_refused(LogReader::open(&dir).map(|audit| audit.state()).err().unwrap());
    match store.open_session(id, &types()) {
        Err(error) => is_refused(error),
        Ok(session) => {
            // Nothing is written through the link either.
            let before = fs::read_dir(&elsewhere).unwrap().count();
            is_refused(session.dispatch(StepAdded { title: "other ".repeat(1 << 20), part: 0 }).unwrap_err());
            assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), before);
        }
    }
    fs::remove_file(&objects).unwrap();
    fs::rename(&elsewhere, &objects).unwrap();
    assert_eq!(store.open_session(id, &types()).unwrap().dynamic().state().unwrap(), state);
}
