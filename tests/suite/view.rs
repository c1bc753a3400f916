//! The viewer's server, tested byte for byte over the loopback: which clients it refuses, that it
//! shows the command line's output and new records, and how it ends.

mod client;
mod documents;
mod live;
mod refusals;

use std::path::{Path, PathBuf};

use foldlog_tests::shown;

pub(crate) use client::Viewer;

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
