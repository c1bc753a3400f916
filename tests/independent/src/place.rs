//! Places where a harness works: directories, and small disks of its own. All are removed at the
//! end.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::report::{Report, Result};

/// Makes a directory that every user may pass through.
pub(crate) fn directory(under: &Path) -> Result<TempDir> {
    let directory = tempfile::Builder::new().prefix("foldlog-independent-").tempdir_in(under)?;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
    Ok(directory)
}

/// Removes the files that a rollback moved aside in a workspace, since no capture contained them.
/// They are for a person to inspect, and no part of the earlier contents.
pub(crate) fn clear_aside(report: &mut Report, workspace: &Path) -> Result<()> {
    let aside = workspace.join(".foldlog-aside");
    if aside.exists() {
        report.count("moved aside", 1);
        fs::remove_dir_all(&aside)?;
    }
    Ok(())
}

/// Kind of a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Ext4,
    Tmpfs,
}

/// A small mounted disk. Dropping it unmounts it.
#[derive(Debug)]
pub(crate) struct Disk {
    directory: TempDir,
    kind: Kind,
    mounted: bool,
}

impl Disk {
    /// Makes a disk of this many bytes. The inner error states why this machine, or this user,
    /// cannot.
    pub(crate) fn new(under: &Path, kind: Kind, bytes: u64) -> Result<std::result::Result<Disk, String>> {
        let mut disk = Disk { directory: directory(under)?, kind, mounted: false };
        fs::create_dir(disk.root())?;
        if kind == Kind::Ext4 {
            File::create(disk.image())?.set_len(bytes)?;
            // Reserves nothing for root.
            let mut make = Command::new("mkfs.ext4");
            make.args(["-q", "-F", "-b", "4096", "-m", "0"]).arg(disk.image());
            if let Err(reason) = run(&mut make) {
                return Ok(Err(reason));
            }
        }
        Ok(disk.mount_as(bytes).map(|()| disk))
    }

    fn mount_as(&mut self, bytes: u64) -> std::result::Result<(), String> {
        let mut mount = Command::new("mount");
        match self.kind {
            Kind::Ext4 => mount.args(["-o", "loop"]).arg(self.image()),
            Kind::Tmpfs => mount.args(["-t", "tmpfs", "-o"]).arg(format!("size={bytes}")).arg("tmpfs"),
        };
        run(mount.arg(self.root()))?;
        self.mounted = true;
        Ok(())
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    /// Returns the mount point.
    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    /// Mounts an ext4 again, after [`unmount`](Disk::unmount).
    pub(crate) fn mount(&mut self) -> std::result::Result<(), String> {
        self.mount_as(0)
    }

    /// Unmounts the disk, at once if it is unused.
    pub(crate) fn unmount(&mut self) -> std::result::Result<(), String> {
        if std::mem::take(&mut self.mounted) && run(Command::new("umount").arg(self.root())).is_err() {
            // A process has a file open. The directory must be empty before it is removed.
            return run(Command::new("umount").arg("-l").arg(self.root()));
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.unmount();
    }
}

/// Runs a program. Returns its error output if it fails.
pub(crate) fn run(command: &mut Command) -> std::result::Result<(), String> {
    let program = Path::new(command.get_program()).display().to_string();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Number of files and allocated bytes of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// Counts the files in a directory, at any depth, and the bytes allocated for them.
pub(crate) fn taken(directory: &Path) -> Result<Taken> {
    let mut taken = Taken::default();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let found = entry.metadata()?;
        if found.is_dir() {
            let within = self::taken(&entry.path())?;
            taken.files += within.files;
            taken.bytes += within.bytes;
        } else {
            taken.files += 1;
            taken.bytes += found.blocks() * 512;
        }
    }
    Ok(taken)
}

/// Copies a directory recursively. Files that disappear meanwhile are skipped.
pub(crate) fn copy_all(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &target)?;
        } else {
            match fs::copy(entry.path(), target) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Returns whether this process has root's rights.
pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
