//! Reads the state of a user's git repository, without running git and without writing.
//!
//! A repository may be hostile. Only regular files of a bounded length are read, and opening one
//! never blocks. Symbolic refs and directories are followed to a bounded depth. Paths that git
//! would not follow are not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use foldlog::escape;
use foldlog::filesystem::open_regular_file;
use serde::{Deserialize, Serialize};

/// A ref, a `.git` file and a `commondir` contain one line; a path in it is no longer than this.
const LINE_BYTES_MAX: u64 = 8 << 10;

/// About a million packed refs.
const PACKED_BYTES_MAX: u64 = 128 << 20;

const INDEX_BYTES_MAX: u64 = 1 << 30;

/// Same limit as git's.
const SYMBOLIC_DEPTH_MAX: usize = 5;

/// Maximum number of branches that are listed.
const BRANCHES_MAX: usize = 10_000;

/// Maximum number of files and directories of branches that are examined.
const ENTRIES_MAX: usize = 1 << 20;

const DIRECTORY_DEPTH_MAX: usize = 64;

const BRANCHES: &[u8] = b"refs/heads/";

/// Describes the state of a user's git repository. Bytes of names that are not UTF-8 are written as
/// `\xNN`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GitState {
    /// Commit that is checked out, in hexadecimal; `None` before the first commit.
    pub head: Option<String>,
    /// Ref that is checked out, such as `refs/heads/main`; `None` if `HEAD` names a commit itself
    /// (detached).
    pub reference: Option<String>,
    /// Branch that is checked out; `None` if `HEAD` is detached, or names a ref that is no branch.
    pub branch: Option<String>,
    /// Path of the repository's directory, links resolved; for a linked worktree, its own directory
    /// within the repository.
    pub git_dir: String,
    /// Unfinished operations, in the order of [`GitOperation`].
    pub operations: Vec<GitOperation>,
    /// BLAKE3 of the index file, in hexadecimal; `None` if there is none. It changes whenever the
    /// staged content changes, and also after git has updated the times of files.
    pub index: Option<String>,
    /// Branches and their commits; branches without a commit are left out.
    pub branches: BTreeMap<String, String>,
    /// Whether there are more branches than the list contains, which are the first 10,000 by name.
    pub branches_left_out: bool,
}

/// Lists the operations on a repository that take several steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GitOperation {
    /// A merge that is not committed.
    Merge,
    /// A rebase, or patches that are applied from mail.
    Rebase,
    /// A cherry-pick.
    CherryPick,
    /// A revert.
    Revert,
    /// A search for the commit that broke something.
    Bisect,
}

impl GitState {
    /// Reads the repository that `root` belongs to: that of `root` or of the nearest directory
    /// above it that has a `.git`, on the same file system. Returns `None` if there is none. A bare
    /// repository does not count. The environment and the owner of a repository do not matter,
    /// since its configuration is not used.
    ///
    /// Files are read one by one: while git writes, parts of the state may be from different
    /// moments.
    ///
    /// # Errors
    ///
    /// An error that names the file and the reason: it cannot be read, is no regular file, is
    /// longer than any that git writes, or does not have the form that git writes; symbolic refs
    /// form a cycle; or the refs are in a reftable ([`ErrorKind::Unsupported`]).
    pub fn read(root: &Path) -> io::Result<Option<GitState>> {
        let Some(repository) = Repository::find(root)? else { return Ok(None) };
        let packed = read_file(&repository.common_dir.join("packed-refs"), PACKED_BYTES_MAX)?;
        let packed = parse_packed(packed.as_deref().unwrap_or_default()).map_err(|line| {
            invalid_data(&repository.common_dir.join("packed-refs"), format!("line {line} is not a ref"))
        })?;
        Refs { repository: &repository, packed }.state().map(Some)
    }
}

fn invalid_data(path: &Path, reason: impl AsRef<str>) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        format!("{}: {}", escape::path(path), escape::text(reason.as_ref())),
    )
}

fn add_path(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {}", escape::path(path), escape::display(&error)))
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Opens a regular file of at most `bytes_max` bytes; returns `None` if the path is missing or is a
/// directory.
fn open_file(path: &Path, bytes_max: u64) -> io::Result<Option<File>> {
    let opened = match open_regular_file(path) {
        Err(error) if is_missing(&error) || path.is_dir() => return Ok(None),
        opened => opened.and_then(|file| Ok((file.metadata()?.len(), file))),
    };
    match opened.map_err(|error| add_path(path, error))? {
        (len, _) if len > bytes_max => {
            Err(invalid_data(path, format!("it is longer than {bytes_max} bytes")))
        }
        (_, file) => Ok(Some(file)),
    }
}

fn read_file(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = open_file(path, bytes_max)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes).map_err(|error| add_path(path, error))?;
    Ok(Some(bytes))
}

/// Returns the path in a file that consists of one line.
fn read_path(path: &Path, prefix: &[u8]) -> io::Result<Option<PathBuf>> {
    let Some(bytes) = read_file(path, LINE_BYTES_MAX)? else { return Ok(None) };
    let held = bytes.strip_prefix(prefix).map(<[u8]>::trim_ascii_end);
    match held {
        Some(held) if !held.is_empty() && !held.contains(&0) => {
            Ok(Some(PathBuf::from(OsStr::from_bytes(held))))
        }
        _ => Err(invalid_data(path, "it does not name a directory")),
    }
}

struct Repository {
    git_dir: PathBuf,
    /// Directory of the refs that all worktrees share.
    common_dir: PathBuf,
}

impl Repository {
    fn find(root: &Path) -> io::Result<Option<Repository>> {
        let start = fs::canonicalize(root).map_err(|error| add_path(root, error))?;
        let device = |directory: &Path| {
            fs::metadata(directory).map(|found| found.dev()).map_err(|error| add_path(directory, error))
        };
        let began = device(&start)?;
        for directory in start.ancestors() {
            if device(directory)? != began {
                return Ok(None);
            }
            let named = directory.join(".git");
            match fs::metadata(&named) {
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(add_path(&named, error)),
                Ok(found) if found.is_dir() => {
                    if let Some(repository) = Repository::at(&named)? {
                        return Ok(Some(repository));
                    }
                }
                Ok(_) => {
                    let target = read_path(&named, b"gitdir: ")?;
                    let found =
                        target.map(|target| Repository::at(&directory.join(target))).transpose()?.flatten();
                    return found
                        .ok_or_else(|| invalid_data(&named, "it does not lead to a repository"))
                        .map(Some);
                }
            }
        }
        Ok(None)
    }

    /// Returns the repository in a directory; `None` if git would see none.
    fn at(directory: &Path) -> io::Result<Option<Repository>> {
        let git_dir = match fs::canonicalize(directory) {
            Err(error) if is_missing(&error) => return Ok(None),
            found => found.map_err(|error| add_path(directory, error))?,
        };
        if fs::symlink_metadata(git_dir.join("HEAD")).is_err_and(|error| is_missing(&error)) {
            return Ok(None);
        }
        let common_dir = match read_path(&git_dir.join("commondir"), b"")? {
            Some(path) => {
                let path = git_dir.join(path);
                fs::canonicalize(&path).map_err(|error| add_path(&path, error))?
            }
            None => git_dir.clone(),
        };
        if !["objects", "refs"].iter().all(|name| common_dir.join(name).is_dir()) {
            return Ok(None);
        }
        let reftable = common_dir.join("reftable");
        if reftable.is_dir() {
            let reason = format!("{}: refs in a reftable cannot be read", escape::path(&reftable));
            return Err(io::Error::new(ErrorKind::Unsupported, reason));
        }
        Ok(Some(Repository { git_dir, common_dir }))
    }

    fn operations(&self) -> io::Result<Vec<GitOperation>> {
        let has = |name: &str| fs::symlink_metadata(self.git_dir.join(name)).is_ok();
        // Between two picks, only the list of remaining steps shows the operation in progress.
        let todo = self.git_dir.join("sequencer/todo");
        let mut begins = [0; 7];
        let read = match open_file(&todo, PACKED_BYTES_MAX)? {
            Some(mut file) => file.read(&mut begins).map_err(|error| add_path(&todo, error))?,
            None => 0,
        };
        let next = begins.get(..read).unwrap_or_default();
        let mut operations = Vec::new();
        if has("MERGE_HEAD") {
            operations.push(GitOperation::Merge);
        }
        if has("rebase-merge") || has("rebase-apply") {
            operations.push(GitOperation::Rebase);
        } else if has("CHERRY_PICK_HEAD") || next.starts_with(b"pick ") {
            operations.push(GitOperation::CherryPick);
        }
        if has("REVERT_HEAD") || next.starts_with(b"revert ") {
            operations.push(GitOperation::Revert);
        }
        if has("BISECT_LOG") {
            operations.push(GitOperation::Bisect);
        }
        Ok(operations)
    }

    fn index(&self) -> io::Result<Option<String>> {
        let path = self.git_dir.join("index");
        let Some(file) = open_file(&path, INDEX_BYTES_MAX)? else { return Ok(None) };
        let mut hasher = blake3::Hasher::new();
        io::copy(&mut file.take(INDEX_BYTES_MAX), &mut hasher).map_err(|error| add_path(&path, error))?;
        Ok(Some(hasher.finalize().to_hex().to_string()))
    }
}

enum Reference {
    Commit(String),
    Symbolic(Vec<u8>),
}

struct Refs<'a> {
    repository: &'a Repository,
    packed: BTreeMap<&'a [u8], String>,
}

impl Refs<'_> {
    fn state(&self) -> io::Result<GitState> {
        let head_path = self.repository.git_dir.join("HEAD");
        let (reference, head) = self.resolve(b"HEAD")?;
        let is_detached = reference == b"HEAD";
        if is_detached && head.is_none() {
            return Err(invalid_data(&head_path, "it is not a ref"));
        }
        let branch = reference.strip_prefix(BRANCHES).map(escape_bytes);
        let (branches, branches_left_out) = self.branches()?;
        Ok(GitState {
            head,
            branch,
            reference: (!is_detached).then(|| escape_bytes(&reference)),
            git_dir: escape_bytes(self.repository.git_dir.as_os_str().as_bytes()),
            operations: self.repository.operations()?,
            index: self.repository.index()?,
            branches,
            branches_left_out,
        })
    }

    /// Returns the path of a ref's file. Some refs belong to a worktree.
    fn path(&self, name: &[u8]) -> PathBuf {
        let own: [&[u8]; 3] = [b"refs/bisect/", b"refs/worktree/", b"refs/rewritten/"];
        let is_own = !name.starts_with(b"refs/") || own.iter().any(|own| name.starts_with(own));
        let directory = if is_own { &self.repository.git_dir } else { &self.repository.common_dir };
        directory.join(OsStr::from_bytes(name))
    }

    /// Follows symbolic refs; returns the name of the last ref, and its commit.
    fn resolve(&self, name: &[u8]) -> io::Result<(Vec<u8>, Option<String>)> {
        let mut reached = name.to_vec();
        for _ in 0..=SYMBOLIC_DEPTH_MAX {
            match self.loose(&reached)? {
                Some(Reference::Commit(commit)) => return Ok((reached, Some(commit))),
                Some(Reference::Symbolic(target)) => reached = target,
                None => {
                    let commit = self.packed.get(reached.as_slice()).cloned();
                    return Ok((reached, commit));
                }
            }
        }
        Err(invalid_data(&self.path(name), "it leads through too many symbolic refs"))
    }

    fn loose(&self, name: &[u8]) -> io::Result<Option<Reference>> {
        let path = self.path(name);
        // In old repositories, symbolic refs were links.
        if let Ok(target) = fs::read_link(&path)
            && is_ref_name(target.as_os_str().as_bytes())
        {
            return Ok(Some(Reference::Symbolic(target.as_os_str().as_bytes().to_vec())));
        }
        let Some(bytes) = read_file(&path, LINE_BYTES_MAX)? else { return Ok(None) };
        let found = match bytes.strip_prefix(b"ref:") {
            Some(target) => {
                let target = target.trim_ascii();
                is_ref_name(target).then(|| Reference::Symbolic(target.to_vec()))
            }
            None => {
                let id = bytes.split(u8::is_ascii_whitespace).next().unwrap_or_default();
                commit_of(id).map(Reference::Commit)
            }
        };
        found.map(Some).ok_or_else(|| invalid_data(&path, "it is not a ref"))
    }

    /// Returns the branches with a commit, and whether there are more than are listed.
    fn branches(&self) -> io::Result<(BTreeMap<String, String>, bool)> {
        let mut names = BTreeSet::new();
        let mut left_out = false;
        let mut add = |name: &[u8]| {
            names.insert(name.to_vec());
            if names.len() > BRANCHES_MAX {
                names.pop_last();
                left_out = true;
            }
        };
        self.packed.keys().filter(|name| name.starts_with(BRANCHES)).for_each(|name| add(name));
        self.visit_loose_branches(&mut add)?;
        let mut branches = BTreeMap::new();
        for name in names {
            if let (_, Some(commit)) = self.resolve(&name)? {
                branches.insert(escape_bytes(name.strip_prefix(BRANCHES).unwrap_or(&name)), commit);
            }
        }
        Ok((branches, left_out))
    }

    fn visit_loose_branches(&self, add: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let mut left = vec![(BRANCHES.to_vec(), 0)];
        let mut looked_at = 0;
        while let Some((prefix, depth)) = left.pop() {
            let directory = self.path(&prefix);
            let entries = match fs::read_dir(&directory) {
                Err(error) if is_missing(&error) => continue,
                entries => entries.map_err(|error| add_path(&directory, error))?,
            };
            for entry in entries {
                let entry = entry.map_err(|error| add_path(&directory, error))?;
                looked_at += 1;
                if looked_at > ENTRIES_MAX || depth > DIRECTORY_DEPTH_MAX {
                    return Err(invalid_data(
                        &directory,
                        "there are too many branches, or too many nested directories",
                    ));
                }
                let name = [prefix.as_slice(), entry.file_name().as_bytes()].concat();
                // Git skips locks and names that are not valid for refs.
                if !is_ref_name(&name) {
                    continue;
                }
                let kind = entry.file_type().map_err(|error| add_path(&entry.path(), error))?;
                if kind.is_dir() {
                    left.push(([name.as_slice(), b"/"].concat(), depth + 1));
                } else if kind.is_symlink() && entry.path().is_dir() {
                    return Err(invalid_data(&entry.path(), "it is a link to a directory"));
                } else {
                    add(&name);
                }
            }
        }
        Ok(())
    }
}

/// Parses a file of packed refs; the error is the number of an invalid line.
fn parse_packed(bytes: &[u8]) -> Result<BTreeMap<&[u8], String>, usize> {
    let mut packed = BTreeMap::new();
    for (line, number) in bytes.split_inclusive(|byte| *byte == b'\n').zip(1..) {
        // A comment, or the commit of the preceding tag.
        if line.starts_with(b"#") || line.starts_with(b"^") {
            continue;
        }
        let space = line.iter().position(|byte| *byte == b' ').ok_or(number)?;
        let (id, name) = line.split_at_checked(space).ok_or(number)?;
        let name = name.strip_prefix(b" ").and_then(|name| name.strip_suffix(b"\n")).ok_or(number)?;
        if !is_ref_name(name) {
            return Err(number);
        }
        packed.insert(name, commit_of(id).ok_or(number)?);
    }
    Ok(packed)
}

/// Parses an id of SHA-1 or SHA-256. An id of zeros means no commit.
fn commit_of(id: &[u8]) -> Option<String> {
    let is_id = matches!(id.len(), 40 | 64)
        && id.iter().all(u8::is_ascii_hexdigit)
        && id.iter().any(|digit| *digit != b'0');
    is_id.then(|| escape_bytes(&id.to_ascii_lowercase()))
}

/// Returns whether git would accept a name for a ref, below `refs/`.
fn is_ref_name(name: &[u8]) -> bool {
    let is_part = |part: &[u8]| !part.is_empty() && !part.starts_with(b".") && !part.ends_with(b".lock");
    let is_plain = |byte: &u8| !byte.is_ascii_control() && !b" ~^:?*[\\".contains(byte);
    let has = |pair: &[u8]| name.windows(2).any(|found| found == pair);
    name.strip_prefix(b"refs/").is_some_and(|rest| rest.split(|byte| *byte == b'/').all(is_part))
        && name.iter().all(is_plain)
        && !name.ends_with(b".")
        && !has(b"..")
        && !has(b"@{")
        && name.len() <= 4095
}

/// Converts bytes to text; bytes that are not UTF-8 become `\xNN`.
fn escape_bytes(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}
