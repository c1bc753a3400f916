//! Workspaces: how tools change files, and how a workspace is restored.

mod aside;
mod changes;
pub(crate) mod digest;
mod exact;
pub(crate) mod git;
mod git_packs;
mod leases;
mod limits;
mod merging;
mod mounts;
mod operations;
pub(crate) mod random;
mod restoring;
mod storing;
mod table;

use std::path::PathBuf;
use std::process::Command;

use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions};
use tempfile::TempDir;

/// A real directory with a workspace, and the store of its snapshots next to it.
struct Bench {
    directory: TempDir,
}

impl Bench {
    fn new() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("workspace")).unwrap();
        Bench { directory }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("workspace.git")
    }

    fn open(&self) -> HostFilesystem {
        self.open_with(HostFilesystemOptions::default())
    }

    fn open_with(&self, options: HostFilesystemOptions) -> HostFilesystem {
        HostFilesystem::open(self.root(), self.store(), options).unwrap()
    }

    /// Runs a script as a tool that is a shell would.
    fn shell(&self, script: &str) {
        let status = Command::new("sh").args(["-ec", script]).current_dir(self.root()).status().unwrap();
        assert!(status.success(), "{script}");
    }

    fn digest(&self) -> digest::Digest {
        digest::of(&self.root())
    }

    fn stored(&self) -> digest::Digest {
        digest::with_times(&self.store())
    }

    /// Runs git on the store; `None` if git is not installed.
    fn git(&self, arguments: &[&str]) -> Option<String> {
        let git = Command::new("git").arg("--git-dir").arg(self.store()).args(arguments).output();
        let Ok(output) = git else {
            foldlog_test_support::skipped("there is no git here");
            return None;
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
        Some(said)
    }
}
