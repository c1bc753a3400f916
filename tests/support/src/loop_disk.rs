//! A small disk that is mounted from a file, and can be really full.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A mounted file system, which is unmounted when this is dropped.
#[derive(Debug)]
pub struct LoopDisk {
    directory: TempDir,
}

impl LoopDisk {
    /// Mounts an ext4 of this many bytes.
    ///
    /// # Errors
    ///
    /// If this machine or this user cannot mount one: the failed step and its reason.
    pub fn mounted(bytes: u64) -> Result<LoopDisk, String> {
        // No blocks are reserved for root, who may run the tests.
        LoopDisk::mounted_as("mkfs.ext4", &["-q", "-F", "-b", "4096", "-m", "0"], bytes)
    }

    /// Mounts a disk of this many bytes, on which the program `make` creates the file system.
    ///
    /// # Errors
    ///
    /// If this machine cannot mount one: the failed step and its reason.
    pub fn mounted_as(make: &str, options: &[&str], bytes: u64) -> Result<LoopDisk, String> {
        let directory = TempDir::new().map_err(|error| error.to_string())?;
        let (image, root) = (directory.path().join("image"), directory.path().join("root"));
        let made = std::fs::create_dir(&root)
            .and_then(|()| std::fs::File::create(&image))
            .and_then(|file| file.set_len(bytes));
        made.map_err(|error| error.to_string())?;
        run(Command::new(make).args(options).arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&root))?;
        Ok(LoopDisk { directory })
    }

    pub fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    /// Fills the disk to the last block with a file of this name, which can be removed again.
    ///
    /// # Panics
    ///
    /// If writing fails for another reason than a full disk.
    pub fn fill(&self, name: &str) -> PathBuf {
        let path = self.root().join(name);
        let mut file = std::fs::File::create(&path).expect("a file needs no block");
        let mut before = u64::MAX;
        while std::mem::replace(&mut before, file.metadata().expect("it is open").len()) != before {
            let ended = io::copy(&mut io::repeat(7), &mut file).expect_err("no disk is endless");
            assert_eq!(ended.kind(), io::ErrorKind::StorageFull, "{ended}");
            // Delayed allocation reserves more blocks than the file finally takes.
            file.sync_all().expect("what was written had room");
        }
        path
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let root = self.root();
        // Lazily if a file is still open: the directory must be empty before it is removed.
        if run(Command::new("umount").arg(&root)).is_err() {
            let _ = run(Command::new("umount").arg("-l").arg(&root));
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = Path::new(command.get_program()).display().to_string();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
