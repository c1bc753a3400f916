//! A worker on a machine: a store there, and a directory that its tools work on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions, Rebind};
use foldlog::tools::{ExecuteOptions, ToolContext, ToolError, ToolReport, ToolRunner};
use foldlog::{ResourceRegistry, Session, Store};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::bucket::Bucket;
use crate::host::store;
use crate::notes::{call, runner_over};

pub(crate) struct Worker {
    directory: tempfile::TempDir,
    pub(crate) store: Store,
}

impl Worker {
    pub(crate) fn new(bucket: &Bucket, name: &str) -> Worker {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("work")).unwrap();
        let store = store(&directory, bucket, name);
        Worker { directory, store }
    }

    /// Returns a worker with that store, and an empty directory elsewhere.
    pub(crate) fn at(store: Store) -> Worker {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("work")).unwrap();
        Worker { directory, store }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    /// Returns the session's workspace in the directory of this worker. After a takeover `rebind`
    /// permits its empty directory to replace the other one.
    pub(crate) fn files(&self, session: &Session, rebind: Option<Rebind>) -> Arc<HostFilesystem> {
        let files = session.open_workspace(self.work(), HostFilesystemOptions::default()).unwrap();
        rebind.into_iter().for_each(|rebind| files.rebind(rebind).unwrap());
        Arc::new(files)
    }

    pub(crate) fn runner(
        &self,
        session: &Session,
        rebind: Option<Rebind>,
        act: impl Fn(&ToolContext) -> Result<(), ToolError> + Send + Sync + 'static,
    ) -> ToolRunner {
        let files = self.files(session, rebind);
        let resources = ResourceRegistry::builder().filesystem(files).build().unwrap();
        runner_over(session, resources, act).unwrap()
    }

    /// Runs a tool that writes these files.
    pub(crate) fn write(&self, session: &Session, files: &[(&str, Vec<u8>)]) -> foldlog::Result<ToolReport> {
        let files: Vec<(String, Vec<u8>)> =
            files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.clone())).collect();
        let write = move |context: &ToolContext| {
            let workspace = context.resources().get::<dyn Filesystem>().unwrap();
            files.iter().try_for_each(|(path, bytes)| workspace.write(path, bytes)).unwrap();
            Ok(())
        };
        call(&self.runner(session, None, write))
    }

    /// Recovers a session after a takeover into the empty directory of this worker, without running
    /// a tool again.
    pub(crate) fn recover(&self, session: &Session) {
        let runner = self.runner(session, Some(Rebind::IfEmpty), |_| Ok(()));
        runner.recover(&ExecuteOptions::default()).unwrap();
        assert!(!session.calls().is_interrupted());
    }
}

/// Returns all files in a directory with their contents.
pub(crate) fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    fn add(directory: &Path, root: &Path, all: &mut BTreeMap<String, Vec<u8>>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => add(&path, root, all),
                false => {
                    let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                    all.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
    }
    let mut all = BTreeMap::new();
    add(directory, directory, &mut all);
    all
}

/// Returns incompressible bytes.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}
