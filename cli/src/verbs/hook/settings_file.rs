//! How settings files are read and written.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use foldlog_codec::escape;

use super::json_text::TextError;
use crate::failure::{CommandError, Result};

/// Prefix of the names of incomplete files.
const PREFIX: &str = ".foldlog-settings-";

/// A settings file, as it was read.
#[derive(Debug)]
pub(super) struct SettingsFile {
    pub(super) path: PathBuf,
    /// The file itself, if the path is that of a link.
    target: PathBuf,
    /// Its text; `None` if there is no such file.
    pub(super) text: Option<String>,
}

impl SettingsFile {
    /// Reads the file at a path.
    ///
    /// # Errors
    ///
    /// - [`Error::File`](foldlog_view::Error::File) if it cannot be read, or is a link to a missing
    ///   file.
    /// - [`CommandError::usage`] if it is not a regular file of UTF-8.
    pub(super) fn read(path: PathBuf) -> Result<SettingsFile> {
        match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(SettingsFile { target: path.clone(), path, text: None });
            }
            Err(error) => return Err(CommandError::file(&path, error)),
            Ok(_) => {}
        }
        let target = path.canonicalize().map_err(|error| CommandError::file(&path, error))?;
        let metadata = target.metadata().map_err(|error| CommandError::file(&path, error))?;
        if !metadata.is_file() {
            let what = format!("{} is not a regular file", escape::path(&path));
            return Err(CommandError::usage(what, "nothing was written; move it away, and repeat"));
        }
        let bytes = fs::read(&target).map_err(|error| CommandError::file(&path, error))?;
        match String::from_utf8(bytes) {
            Ok(text) => Ok(SettingsFile { path, target, text: Some(text) }),
            Err(error) => {
                let valid = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
                let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
                Err(unusable(&path, &TextError { line, reason: "not UTF-8".to_owned() }))
            }
        }
    }

    /// Replaces the file, or creates it with its directories. Its mode, and the link at its path,
    /// remain.
    ///
    /// # Errors
    ///
    /// - [`CommandError::usage`] if another process has changed the file since it was read.
    /// - [`Error::File`](foldlog_view::Error::File) if it cannot be written. Then it is unchanged.
    pub(super) fn write(&self, text: &str) -> Result<()> {
        let directory = self.target.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory).map_err(|error| CommandError::file(directory, error))?;
        self.write_in(directory, text).map_err(|error| CommandError::file(&self.path, error))?
    }

    fn write_in(&self, directory: &Path, text: &str) -> io::Result<Result<()>> {
        let mut builder = tempfile::Builder::new();
        // Reduced by the process's mask.
        let mut staged =
            builder.prefix(PREFIX).permissions(Permissions::from_mode(0o666)).tempfile_in(directory)?;
        staged.write_all(text.as_bytes())?;
        if self.text.is_some() {
            let (replaced, file) = (self.target.metadata()?, staged.as_file());
            let created = file.metadata()?;
            if (replaced.uid(), replaced.gid()) != (created.uid(), created.gid()) {
                fchown(file, Some(replaced.uid()), Some(replaced.gid()))?;
            }
            file.set_permissions(replaced.permissions())?;
        }
        staged.as_file().sync_all()?;
        if let Err(error) = self.check_unchanged() {
            return Ok(Err(error));
        }
        staged.persist(&self.target).map_err(|error| error.error)?;
        Ok(Ok(File::open(directory)?.sync_all()?))
    }

    /// Removes the file.
    ///
    /// # Errors
    ///
    /// As of [`write`](SettingsFile::write).
    pub(super) fn remove(&self) -> Result<()> {
        self.check_unchanged()?;
        fs::remove_file(&self.path).map_err(|error| CommandError::file(&self.path, error))
    }

    fn check_unchanged(&self) -> Result<()> {
        if SettingsFile::read(self.path.clone())?.text == self.text {
            return Ok(());
        }
        let what = format!("{} was changed by another program meanwhile", escape::path(&self.path));
        Err(CommandError::usage(what, "nothing was written; repeat the command"))
    }
}

/// Creates the error for a file whose text cannot be used.
pub(super) fn unusable(path: &Path, error: &TextError) -> CommandError {
    let TextError { line, reason } = error;
    let what = format!("{}, line {line}: {}", escape::path(path), escape::text(reason));
    CommandError::usage(what, "nothing was written; correct the file, and repeat")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changed_meanwhile_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("settings.json");
        for before in [None, Some("{}")] {
            let _ = fs::remove_file(&path);
            before.iter().for_each(|text| fs::write(&path, text).unwrap());
            let file = SettingsFile::read(path.clone()).unwrap();
            fs::write(&path, "{ }").unwrap();
            let error = file.write("{\"hooks\": {}}").unwrap_err().to_string();
            assert!(error.contains("changed by another program"), "{error}");
            assert!(before.is_none() || file.remove().is_err());
            assert_eq!(fs::read_to_string(&path).unwrap(), "{ }");
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "a temporary file remains");
        }
    }
}
