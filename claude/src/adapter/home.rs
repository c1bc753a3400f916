//! Directories of a run: what the program takes for its home, its temporary directory and its own files.
//!
//! An output that is too large for the model is saved by the program below `projects/<cwd>/<session>/tool-results` of its own
//! directory, and the model is told the path of the file. So that the file is there as long as the session, the program's own
//! directory is [`PROGRAM`] in the session's directory, and the directories `tool-results` stay in it when all else is removed.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::begin::ProgramSession;
use super::config::ProgramHome;
use foldlog_agent::error::{Error, EvaluationPhase, Result};

/// Permissions of directories that hold transcripts and, maybe, credentials.
const PRIVATE: u32 = 0o700;

/// Holds the directories of a run. Those that belong to the run are removed with it; those of a run that was killed, when the session's
/// next one begins.
#[derive(Debug)]
pub(super) struct Directories {
    /// `HOME`; `None` is that of the user.
    pub(super) home: Option<PathBuf>,
    /// `TMPDIR`.
    pub(super) tmpdir: PathBuf,
    /// `CLAUDE_CONFIG_DIR`; `None` is where the program keeps its files for the user.
    pub(super) config: Option<PathBuf>,
    /// Working directory.
    pub(super) cwd: PathBuf,
    _own: OwnDirectory,
    _outputs: Option<KeptOutputs>,
}

/// Removes a directory with all that is in it when it is dropped.
#[derive(Debug)]
struct OwnDirectory(PathBuf);

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        // What a program that has not quite ended still writes there is nobody's.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Name of the program's own directory in the session's directory.
const PROGRAM: &str = "program";

/// Name of the directories in which the program saves large outputs.
const OUTPUTS: &str = "tool-results";

/// Removes all of the program's own directory but the outputs that the model was told of, when it is dropped.
#[derive(Debug)]
struct KeptOutputs(PathBuf);

impl Drop for KeptOutputs {
    fn drop(&mut self) {
        remove_but_outputs(&self.0);
    }
}

/// Removes what is in the program's own directory but for its large outputs. What cannot be removed stays.
fn remove_but_outputs(config: &Path) {
    for found in directories_among(config) {
        if !found.ends_with("projects") {
            let _ = fs::remove_dir_all(found);
            continue;
        }
        for session in directories_among(&found).iter().flat_map(|project| directories_among(project)) {
            let others = directories_among(&session).into_iter().filter(|inner| !inner.ends_with(OUTPUTS));
            others.for_each(|inner| drop(fs::remove_dir_all(inner)));
            // Those that hold outputs are not empty, and stay.
            let _ = fs::remove_dir(session.join(OUTPUTS));
            let _ = fs::remove_dir(session);
        }
        directories_among(&found).iter().for_each(|project| drop(fs::remove_dir(project)));
        let _ = fs::remove_dir(found);
    }
    let _ = fs::remove_dir(config);
}

/// Returns the directories in a directory, and removes whatever else is in it.
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

/// Returns how the names of the directories of a session's runs begin. `mark` is what the session is known by.
fn own_names(mark: &str) -> String {
    format!("foldlog-claude-{mark}-")
}

/// Removes the directories of earlier runs of a session, whose processes were killed. They hold transcripts.
fn remove_left(mark: &str) {
    let names = own_names(mark);
    for found in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        if found.file_name().to_str().is_some_and(|name| name.starts_with(&names)) {
            // What is another user's stays.
            let _ = fs::remove_dir_all(found.path());
        }
    }
}

impl Directories {
    /// Makes the directories of a run of a session, whose directory is `session` if there is one, and removes those that its earlier runs left. `cwd` is the
    /// working directory, which must exist; `None` is a fresh one.
    ///
    /// # Errors
    ///
    /// [`Error::PromptEvaluation`] if a directory cannot be made.
    pub(super) fn make(
        keeps: &ProgramHome,
        cwd: Option<&Path>,
        session: Option<&Path>,
        mark: &str,
        prompt: &str,
    ) -> Result<Directories> {
        remove_left(mark);
        let made = || -> io::Result<Directories> {
            // Where everyone may write, nobody is to guess the name.
            #[expect(clippy::disallowed_methods, reason = "it names a temporary folder")]
            let name = format!("{}{:08x}", own_names(mark), Uuid::new_v4().as_fields().0);
            let own = std::env::temp_dir().join(name);
            make_private(&own)?;
            let own = OwnDirectory(own);
            let (home, tmpdir) = (own.0.join("home"), own.0.join("tmp"));
            make_private(&home)?;
            make_private(&tmpdir)?;
            // A session of another storage has no directory.
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
            // The program names its directory of a project by the real path.
            let cwd = fs::canonicalize(&cwd).unwrap_or(cwd);
            Ok(Directories { home, tmpdir, config, cwd, _own: own, _outputs: outputs })
        };
        made().map_err(|error| Error::PromptEvaluation {
            phase: EvaluationPhase::Request,
            prompt: prompt.to_owned(),
            reason: format!("a folder of the run cannot be made: {error}"),
            source: Some(Box::new(error)),
        })
    }

    /// Keeps other processes from running the session of the program that this run writes, until what is returned is
    /// dropped: the program itself does not.
    ///
    /// # Errors
    ///
    /// [`Error::PromptEvaluation`] if another run has it.
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
                "another run works in the program's session {}: wait for its end, or fork the session",
                provided.id()
            ))),
            Err(error) => Err(refused(format!("{} cannot be locked: {error}", path.display()))),
        }
    }
}

/// Makes a directory that only this user reads, or sees to it that one that is there is such a directory.
fn make_private(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(PRIVATE).create(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(PRIVATE))
}
