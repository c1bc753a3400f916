//! The viewer's server, asked over the loopback byte for byte: whom it refuses, that it says what the command line says, that it
//! sees what is written, and how it ends.

mod client;
mod documents;
mod live;
mod refusals;

use std::path::{Path, PathBuf};

use foldlog_tests::shown;

pub(crate) use client::Viewer;

/// A store with one session.
struct Fixture {
    directory: tempfile::TempDir,
    session: PathBuf,
}

impl Fixture {
    fn of_history(records: u64, seed: u64) -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let session = shown::history(&shown::store(directory.path()), records, seed);
        Fixture { directory, session }
    }

    fn store(&self) -> &Path {
        self.directory.path()
    }

    fn id(&self) -> &str {
        self.session.file_name().unwrap().to_str().unwrap()
    }
}
