//! The directories of a run: the program's home, its temporary directory and its own files.
//!
//! The program saves an output that is too large for the model below
//! `projects/<cwd>/<session>/tool-results` of its own directory, and gives the model the path of
//! the file. The file has to exist as long as the session. So the program's own directory is
//! [`PROGRAM`] in the session's directory, and its subdirectories `tool-results` remain when
//! everything else is removed.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::config::ProgramHome;
use super::start_or_resume::ProgramSession;
use foldlog_agent::error::{Error, EvaluationPhase, Result};

/// Permissions of directories with transcripts and possibly credentials.
const PRIVATE: u32 = 0o700;

/// Contains the directories of a run. Those that belong to the run are removed with it. Those of a
/// killed run are removed when the session's next run starts.
#[derive(Debug)]
pub(super) struct Directories {
    /// `HOME`; `None` for that of the user.
    pub(super) home: Option<PathBuf>,
    /// `TMPDIR`.
    pub(super) tmpdir: PathBuf,
    /// `CLAUDE_CONFIG_DIR`; `None` for the user's.
    pub(super) config: Option<PathBuf>,
    /// Working directory.
    pub(super) cwd: PathBuf,
    _own: OwnDirectory,
    _outputs: Option<KeptOutputs>,
}

/// Removes a directory with its contents when it is dropped.
#[derive(Debug)]
struct OwnDirectory(PathBuf);

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        // Files that a program still writes while it ends may be lost.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Name of the program's own directory in the session's directory.
const PROGRAM: &str = "program";

/// Name of the directories in which the program saves large outputs.
const OUTPUTS: &str = "tool-results";

/// Removes the program's own directory when dropped, except for the outputs whose paths the model
/// knows.
#[derive(Debug)]
struct KeptOutputs(PathBuf);

impl Drop for KeptOutputs {
    fn drop(&mut self) {
        remove_but_outputs(&self.0);
    }
}

/// Removes the contents of the program's own directory, except for large outputs. Failures are
/// ignored.
fn remove_but_outputs(config: &Path) {
    for found in directories_among(config) {
        if !found.ends_with("projects") {
            let _ = fs::remove_dir_all(found);
            continue;
        }
        for session in directories_among(&found).iter().flat_map(|project| directories_among(project)) {
            let others = directories_among(&session).into_iter().filter(|inner| !inner.ends_with(OUTPUTS));
            others.for_each(|inner| drop(fs::remove_dir_all(inner)));
            // Directories with outputs are not empty, and remain.
            let _ = fs::remove_dir(session.join(OUTPUTS));
            let _ = fs::remove_dir(session);
        }
        directories_among(&found).iter().for_each(|project| drop(fs::remove_dir(project)));
        let _ = fs::remove_dir(found);
    }
    let _ = fs::remove_dir(config);
}

/// Returns the subdirectories of a directory, and removes its other entries.
fn directories_among(directory: &Path) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for found in fs::read_dir(directory).into_iter().flatten().flatten() {
        if found.file_type().is_ok_and(|kind| kind.is_dir()) {
            directories.push(found.path());
        } else {
            let _ = fs::remove_file(found.path());
        }
    }
    directories
}

/// Returns the common prefix of the directories of a session's runs. `mark` identifies the session.
fn own_names(mark: &str) -> String {
    format!("foldlog-claude-{mark}-")
}

/// Removes the directories of earlier, killed runs of a session. They contain transcripts.
fn remove_left(mark: &str) {
    let names = own_names(mark);
    for found in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        if found.file_name().to_str().is_some_and(|name| name.starts_with(&names)) {
            // Directories of other users cannot be removed, and remain.
            let _ = fs::remove_dir_all(found.path());
        }
    }
}

impl Directories {
    /// Creates the directories of a run, and removes those of earlier runs. `session` is the
    /// directory of the session, if it has one. `cwd` is the working directory, which must exist;
    /// `None` creates an empty one.
    ///
    /// # Errors
    ///
    /// [`Error::PromptEvaluation`] if a directory cannot be created.
    pub(super) fn make(
        keeps: &ProgramHome,
        cwd: Option<&Path>,
        session: Option<&Path>,
        mark: &str,
        prompt: &str,
    ) -> Result<Directories> {
        remove_left(mark);
        let made = || -> io::Result<Directories> {
            // The parent directory is writable for everyone, so the name must be unpredictable.
            #[expect(clippy::disallowed_methods, reason = "it names a temporary directory")]
            let name = format!("{}{:08x}", own_names(mark), Uuid::new_v4().as_fields().0);
            let own = std::env::temp_dir().join(name);
            make_private(&own)?;
            let own = OwnDirectory(own);
            let (home, tmpdir) = (own.0.join("home"), own.0.join("tmp"));
            make_private(&home)?;
            make_private(&tmpdir)?;
            // A session in another storage has no directory.
            let outputs = session.filter(|dir| dir.is_dir()).map(|dir| KeptOutputs(dir.join(PROGRAM)));
            let outputs = outputs.filter(|_| *keeps == ProgramHome::FromLog);
            if let Some(outputs) = &outputs {
                remove_but_outputs(&outputs.0);
            }
            let (home, config) = match keeps {
                ProgramHome::FromLog => {
                    let config = outputs.as_ref().map_or_else(|| own.0.join("config"), |it| it.0.clone());
                    (Some(home), Some(std::path::absolute(config)?))
                }
                ProgramHome::Kept(directory) => (Some(home), Some(std::path::absolute(directory)?)),
                ProgramHome::Users => (None, None),
            };
            if let Some(config) = &config {
                make_private(config)?;
            }
            let cwd = match cwd {
                Some(cwd) => std::path::absolute(cwd)?,
                None => {
                    let cwd = own.0.join("cwd");
                    make_private(&cwd)?;
                    cwd
                }
            };
            // The program names the directory of a project after the real path.
            let cwd = fs::canonicalize(&cwd).unwrap_or(cwd);
            Ok(Directories { home, tmpdir, config, cwd, _own: own, _outputs: outputs })
        };
        made().map_err(|error| Error::PromptEvaluation {
            phase: EvaluationPhase::Request,
            prompt: prompt.to_owned(),
            reason: format!("a directory of the run cannot be created: {error}"),
            source: Some(Box::new(error)),
        })
    }

    /// Locks the program's session that this run writes, until the returned file is dropped. The
    /// program itself has no such lock.
    ///
    /// # Errors
    ///
    /// [`Error::PromptEvaluation`] if another run holds the lock.
    pub(super) fn lock(&self, provided: &ProgramSession, prompt: &str) -> Result<fs::File> {
        let directory =
            self.config.clone().unwrap_or_else(|| std::env::temp_dir().join("foldlog-claude-locks"));
        let path = directory.join(format!("foldlog-{}.lock", provided.id()));
        let locked = || -> io::Result<Option<fs::File>> {
            make_private(&directory)?;
            let file = fs::File::options().create(true).append(true).open(&path)?;
            match file.try_lock() {
                Ok(()) => Ok(Some(file)),
                Err(fs::TryLockError::WouldBlock) => Ok(None),
                Err(fs::TryLockError::Error(error)) => Err(error),
            }
        };
        let refused = |reason: String| Error::evaluation(EvaluationPhase::Request, prompt, reason);
        match locked() {
            Ok(Some(file)) => Ok(file),
            Ok(None) => Err(refused(format!(
                "another run uses the program's session {}: wait until it ends, or fork the session",
                provided.id()
            ))),
            Err(error) => Err(refused(format!("{} cannot be locked: {error}", path.display()))),
        }
    }
}

/// Creates a directory that only this user can read, or restricts an existing one.
fn make_private(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(PRIVATE).create(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(PRIVATE))
}
