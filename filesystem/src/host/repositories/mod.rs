//! The state of the git repositories in a workspace: the copies in a capture, and their restore.
//!
//! A capture contains copies of the files that determine the state of a repository: every file
//! directly in it (`HEAD`, `index`, `packed-refs`, `config`, `MERGE_HEAD`, ...) and the contents of
//! [`DIRECTORIES`], also in the repositories of submodules (`modules`) and of linked worktrees
//! (`worktrees`). It contains no git objects: a restore does not touch them. Of a lock (`*.lock`)
//! only the name is recorded. `config` may contain a password, like any file of the workspace. A
//! host that wants no copy of it leaves it out (`.git/config`); its changes are then reported and
//! not undone.
//!
//! If `.git` is a file or a link that leads out of the workspace, its target is digested, so that
//! its changes are reported: a restore writes nothing outside.
//!
//! | module | contents |
//! |---|---|
//! | `undo` | bringing repositories back to a capture |
//! | `lost_commits` | commits that are no longer referenced after that, and refs that preserve them |
//! | `index` | comparing indexes without the stat data of files |
//! | `reftable` | refs in the format reftable |
//!
//! ```text
//! foldlog-repositories 2
//! DIGEST MODE USER GROUP TIME COPY ./PATH
//!     sorted by path, each byte of it that is not plain as \xNN
//!     DIGEST  BLAKE3, 16 bytes, in hexadecimal: of the mode and the content, or of the target of a link; zero for a lock; ones
//!             for a repository that could not be examined entirely, of which nothing else is listed
//!     MODE    kind and permissions, octal
//!     TIME    of the last change of content, in nanoseconds: git uses that of `index` to decide which files it reads again
//!     COPY    id of the blob of the content, or `-`
//! ```
//!
//! Version 1 contained only digests. It is read as a capture of which nothing can be restored.

mod index;
mod lost_commits;
mod reftable;
mod undo;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::Mode;

use super::leave_out::LeaveOut;
use super::manifest::{FileKind, Owner, Stat, escape_path, join, unescape_path};
use super::object_files::open_directory;
use super::objects::{ObjectId, ObjectKind, Objects};
use super::step::{OPEN_DIRECTORY, list, open_around, open_at, open_file, read_link, stat_at};
use crate::error::Result;
pub(super) use undo::RepositoryRestore;

const HEAD: &str = "foldlog-repositories 2";
const HEAD_BEFORE: &str = "foldlog-repositories 1\n";

const BYTES_MAX: u64 = 64 << 20;

/// Greatest number of files that are examined, over all repositories.
const FILES_MAX: usize = 100_000;

/// Greatest depth of directories that are examined within a repository, including those in refs'
/// names.
const DEPTH_MAX: usize = 32;

/// A longer file is not copied: its length and its start are digested.
const COPY_BYTES_MAX: u64 = 64 << 20;
const DIGESTED_BYTES_MAX: u64 = 1 << 20;

/// The directories of a repository whose content is examined, in addition to those that contain
/// further repositories.
const DIRECTORIES: &[&[u8]] = &[
    b"branches",
    b"hooks",
    b"info",
    b"logs",
    b"rebase-apply",
    b"rebase-merge",
    b"refs",
    b"reftable",
    b"remotes",
    b"sequencer",
];

/// The entries that are examined in a repository outside of the workspace.
const OUTSIDE: &[&[u8]] = &[
    b"BISECT_LOG",
    b"CHERRY_PICK_HEAD",
    b"HEAD",
    b"MERGE_HEAD",
    b"REVERT_HEAD",
    b"config.worktree",
    b"index",
    b"rebase-apply",
    b"rebase-merge",
    b"sequencer",
];

/// The entries that are examined in the repository that such a one shares with other worktrees.
const OUTSIDE_SHARED: &[&[u8]] = &[b"config", b"hooks", b"info", b"packed-refs", b"refs", b"reftable"];

type Digest = [u8; 16];

const LOCK: Digest = [0; 16];
const NOT_WHOLE: Digest = [0xff; 16];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RepositoryEntry {
    digest: Digest,
    mode: u32,
    owner: Owner,
    modified_ns: i64,
    copy: Option<ObjectId>,
}

impl RepositoryEntry {
    fn kind(&self) -> FileKind {
        Stat { mode: self.mode, ..Stat::UNKNOWN }.kind()
    }

    /// Returns whether both are an index, and differ only in the stat data of files.
    fn is_same_index(&self, other: &RepositoryEntry, objects: &Objects) -> bool {
        let left = |entry: &RepositoryEntry| {
            let content = objects.read(entry.copy?, ObjectKind::Blob, COPY_BYTES_MAX).ok()?;
            index::without_stats(&content)
        };
        self.mode == other.mode && left(self).is_some_and(|own| left(other) == Some(own))
    }
}

#[derive(Default)]
pub(super) struct Repositories {
    found: BTreeMap<Vec<u8>, RepositoryEntry>,
    /// Whether it was captured by an earlier version, which stored no copies.
    is_older: bool,
}

/// The results of the last snapshot, by path, so that an unchanged file need not be read again.
pub(super) type RepositoryStatCache = BTreeMap<Vec<u8>, (Stat, RepositoryEntry)>;

fn is_repository(path: &[u8]) -> bool {
    path == b".git" || path.ends_with(b"/.git")
}

fn is_lock(path: &[u8]) -> bool {
    path.ends_with(b".lock")
}

impl Repositories {
    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub(super) fn copies(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.found.values().filter_map(|entry| entry.copy)
    }

    pub(super) fn roots(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.found.keys().filter(|path| is_repository(path))
    }

    /// Returns the repositories that are only in one of the two, or differ, sorted by path.
    pub(super) fn changed_roots<'a>(
        &'a self,
        other: &'a Repositories,
        objects: &Objects,
    ) -> impl Iterator<Item = &'a Vec<u8>> {
        let roots: BTreeSet<&Vec<u8>> = self.roots().chain(other.roots()).collect();
        roots.into_iter().filter(move |root| !self.is_same_at(other, root, objects))
    }

    /// Returns the entries within a repository, sorted by path.
    fn entries_within(&self, root: &[u8]) -> impl Iterator<Item = (&Vec<u8>, &RepositoryEntry)> {
        let prefix = join(root, b"");
        let from = self.found.range(prefix.clone()..);
        from.take_while(move |(path, _)| path.starts_with(&prefix))
    }

    /// Returns whether a repository is unchanged between the two, including its index and its logs.
    /// Ignores refs that preserve lost commits, and the stat data that `git status` notes in an
    /// index.
    fn is_same_at(&self, other: &Repositories, root: &[u8], objects: &Objects) -> bool {
        fn all<'a>(of: &'a Repositories, root: &[u8]) -> BTreeMap<&'a Vec<u8>, &'a RepositoryEntry> {
            let within = of.entries_within(root).filter(|(path, _)| !lost_commits::is_kept_ref(path));
            within.chain(of.found.get_key_value(root)).collect()
        }
        let (own, others) = (all(self, root), all(other, root));
        let is_same = |(one, other): (&&RepositoryEntry, &&RepositoryEntry)| {
            one.digest == other.digest || one.is_same_index(other, objects)
        };
        let is_known = !self.is_older && !other.is_older;
        is_known && own.keys().eq(others.keys()) && own.values().zip(others.values()).all(is_same)
    }

    /// Returns the state that a rewind to `target` restores: for each repository that is unchanged
    /// since `last`, the target's state, and for each other one the state in `now`. Also returns
    /// the repositories that are kept in this way, although the target has a different state of
    /// them.
    pub(super) fn merge(
        target: &Repositories,
        last: &Repositories,
        now: &Repositories,
        overwrite: bool,
        objects: &Objects,
    ) -> (Repositories, Vec<Vec<u8>>) {
        let (mut merged, mut kept) = (Repositories::default(), Vec::new());
        let roots: BTreeSet<&Vec<u8>> = target.roots().chain(now.roots()).collect();
        for root in roots {
            let by_hand = !overwrite && !now.is_same_at(last, root, objects);
            if by_hand && !now.is_same_at(target, root, objects) {
                kept.push(root.clone());
            }
            let from = if by_hand || target.is_older { now } else { target };
            let entries = from.found.get_key_value(root).into_iter().chain(from.entries_within(root));
            merged.found.extend(entries.map(|(path, entry)| (path.clone(), entry.clone())));
        }
        (merged, kept)
    }

    pub(super) fn write(&self, objects: &Objects) -> Result<ObjectId> {
        let mut text = format!("{HEAD}\n");
        for (path, RepositoryEntry { digest, mode, owner, modified_ns, copy }) in &self.found {
            let digest = u128::from_be_bytes(*digest);
            let Owner { uid, gid } = owner;
            let copy = copy.map_or_else(|| "-".to_owned(), |copy| copy.to_string());
            let path = escape_path(path);
            let _ = writeln!(text, "{digest:032x} {mode:o} {uid} {gid} {modified_ns} {copy} ./{path}");
        }
        objects.write(ObjectKind::Blob, text.as_bytes())
    }

    pub(super) fn read(objects: &Objects, id: ObjectId) -> Result<Repositories> {
        let bytes = objects.read(id, ObjectKind::Blob, BYTES_MAX)?;
        let read = std::str::from_utf8(&bytes).ok().and_then(Repositories::decode);
        read.ok_or_else(|| objects.damaged(id, "it is not a record of repositories"))
    }

    fn decode(text: &str) -> Option<Repositories> {
        if text.starts_with(HEAD_BEFORE) {
            return Some(Repositories { is_older: true, ..Repositories::default() });
        }
        let mut found = BTreeMap::new();
        for line in text.strip_prefix(HEAD)?.strip_prefix('\n')?.lines() {
            let (facts, path) = line.split_once(" ./")?;
            let mut facts = facts.split(' ');
            let digits = facts.next().filter(|digits| digits.len() == 32)?;
            let digest = u128::from_str_radix(digits, 16).ok()?.to_be_bytes();
            let mode = u32::from_str_radix(facts.next()?, 8).ok()?;
            let (uid, gid) = (facts.next()?.parse().ok()?, facts.next()?.parse().ok()?);
            let modified_ns = facts.next()?.parse().ok()?;
            let copy = match facts.next()? {
                "-" => None,
                copy => Some(ObjectId::parse(copy)?),
            };
            let path = unescape_path(path)?;
            // A restore follows them from the workspace's root.
            if path.split(|byte| *byte == b'/').any(|name| matches!(name, b"" | b"." | b"..")) {
                return None;
            }
            found
                .insert(path, RepositoryEntry { digest, mode, owner: Owner { uid, gid }, modified_ns, copy });
        }
        Some(Repositories { found, is_older: false })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RepositoryPart {
    /// A repository itself, or that of a submodule or of a linked worktree.
    Repository,
    /// Contains the repositories of submodules, under names that may have several parts.
    Modules,
    /// Contains those of linked worktrees.
    Worktrees,
    /// Contains git objects: only locks are examined.
    Objects,
    /// Any other directory: all of it is examined.
    Inner,
}

impl RepositoryPart {
    /// Returns the role of the directory `name` in a repository, or `None` if it is not examined.
    fn from_name(name: &[u8]) -> Option<RepositoryPart> {
        match name {
            b"modules" => Some(RepositoryPart::Modules),
            b"worktrees" => Some(RepositoryPart::Worktrees),
            b"objects" => Some(RepositoryPart::Objects),
            name => DIRECTORIES.contains(&name).then_some(RepositoryPart::Inner),
        }
    }
}

pub(super) struct Look<'a> {
    /// The workspace's directory, and its path, from which links to directories outside are
    /// followed.
    pub(super) root: &'a OwnedFd,
    pub(super) place: &'a Path,
    /// The store for copies, and the host's leave-out list for them. Without it nothing is copied.
    pub(super) keep: Option<(&'a Objects, &'a LeaveOut)>,
    /// Whether a file may change once more without a new time.
    pub(super) is_racy: &'a dyn Fn(&Stat) -> bool,
}

impl Look<'_> {
    /// Examines the repositories at these paths, each with its parent directory.
    pub(super) fn at(&self, paths: &[Vec<u8>], seen: &mut RepositoryStatCache) -> Result<Repositories> {
        let before = std::mem::take(seen);
        let mut looking = RepositoryScan {
            look: self,
            before,
            seen,
            found: BTreeMap::new(),
            is_whole: true,
            is_outside: false,
        };
        for path in paths {
            let Ok((directory, name)) = open_around(self.root, path) else { continue };
            looking.is_whole = true;
            looking.look(&directory, &name, path, RepositoryPart::Repository, 0)?;
            looking.outside(&directory, &name, path)?;
            if !looking.is_whole {
                let prefix = join(path, b"");
                looking.found.retain(|path, _| !path.starts_with(&prefix));
                if let Some(entry) = looking.found.get_mut(path) {
                    entry.digest = NOT_WHOLE;
                }
            }
        }
        Ok(Repositories { found: looking.found, is_older: false })
    }
}

struct RepositoryScan<'a> {
    look: &'a Look<'a>,
    before: RepositoryStatCache,
    seen: &'a mut RepositoryStatCache,
    found: BTreeMap<Vec<u8>, RepositoryEntry>,
    /// Whether the repository was examined entirely.
    is_whole: bool,
    /// Whether it is outside of the workspace, where nothing is copied.
    is_outside: bool,
}

impl RepositoryScan<'_> {
    fn look(
        &mut self,
        around: &OwnedFd,
        name: &[u8],
        path: &[u8],
        part: RepositoryPart,
        depth: usize,
    ) -> Result<()> {
        if self.found.len() >= FILES_MAX || depth > DEPTH_MAX {
            self.is_whole = false;
            return Ok(());
        }
        let stat = match stat_at(around, name) {
            Ok(stat) => stat,
            Err(errno) => {
                self.is_whole &= errno == Errno::ENOENT;
                return Ok(());
            }
        };
        match stat.kind() {
            FileKind::Special => return Ok(()),
            FileKind::File | FileKind::Link => return self.file(around, name, path, stat),
            FileKind::Directory => {}
        }
        if part != RepositoryPart::Objects {
            let digest = digest(stat.mode, b"", 0);
            self.found.insert(
                path.to_vec(),
                RepositoryEntry { modified_ns: 0, ..RepositoryEntry::from_stat(&stat, digest, None) },
            );
        }
        let opened = open_at(around, name, OPEN_DIRECTORY, Mode::empty());
        let listed = opened.and_then(|directory| list(&directory).map(|listed| (directory, listed)));
        let Ok((directory, listed)) = listed else {
            self.is_whole = false;
            return Ok(());
        };
        let is_submodule = part == RepositoryPart::Modules && stat_at(&directory, b"HEAD").is_ok();
        let part = if is_submodule { RepositoryPart::Repository } else { part };
        for (child, stat) in listed {
            let is_directory = stat.kind() == FileKind::Directory;
            let child_part = match part {
                RepositoryPart::Repository if is_directory => RepositoryPart::from_name(&child),
                RepositoryPart::Worktrees if is_directory => Some(RepositoryPart::Repository),
                RepositoryPart::Modules if is_directory => Some(RepositoryPart::Modules),
                RepositoryPart::Objects if is_directory => {
                    (child == b"info").then_some(RepositoryPart::Objects)
                }
                RepositoryPart::Objects => is_lock(&child).then_some(RepositoryPart::Inner),
                _ => Some(RepositoryPart::Inner),
            };
            if let Some(part) = child_part {
                self.look(&directory, &child, &join(path, &child), part, depth + 1)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, around: &OwnedFd, name: &[u8], path: &[u8], stat: Stat) -> Result<()> {
        if is_lock(name) {
            self.found.insert(path.to_vec(), RepositoryEntry::from_stat(&stat, LOCK, None));
            return Ok(());
        }
        let keep = self.look.keep.filter(|_| !self.is_outside);
        let is_left_out =
            |left_out: &LeaveOut| name.starts_with(b"config") && left_out.says(path, false) == Some(true);
        let keep = keep.filter(|(_, left_out)| !is_left_out(left_out)).map(|(objects, _)| objects);
        let entry = match self.before.remove(path) {
            Some((before, entry))
                if before == stat
                    && !(self.look.is_racy)(&stat)
                    && entry.copy.is_none_or(|copy| {
                        keep.is_some_and(|keep| {
                            keep.is_known(copy) && keep.is_trusted(copy, ObjectKind::Blob)
                        })
                    }) =>
            {
                entry
            }
            _ => {
                let (digest, copy) = content(around, name, &stat, keep)?;
                RepositoryEntry::from_stat(&stat, digest, copy)
            }
        };
        self.found.insert(path.to_vec(), entry.clone());
        self.seen.insert(path.to_vec(), (stat, entry));
        Ok(())
    }

    /// Examines the target of a `.git` that is a file or a link, outside of the workspace.
    fn outside(&mut self, around: &OwnedFd, name: &[u8], path: &[u8]) -> Result<()> {
        let leads_to = match self.found.get(path).map(RepositoryEntry::kind) {
            Some(FileKind::Link) => read_link(around, name).ok(),
            Some(FileKind::File) => read_start(around, name).ok(),
            _ => None,
        };
        let Some(leads_to) = leads_to else { return Ok(()) };
        let leads_to = leads_to.strip_prefix(b"gitdir: ").unwrap_or(&leads_to);
        let place = &self.look.place;
        let from = place.join(OsStr::from_bytes(path)).parent().map(Path::to_path_buf).unwrap_or_default();
        let Some((directory, opened)) = self.open_outside(&from, leads_to) else { return Ok(()) };
        self.is_outside = true;
        let looked = self.look_at_all(&opened, path, OUTSIDE).and_then(|()| {
            let shared = read_start(&opened, b"commondir").ok();
            match shared.and_then(|shared| self.open_outside(&directory, &shared)) {
                Some((_, shared)) => self.look_at_all(&shared, path, OUTSIDE_SHARED),
                None => self.look_at_all(&opened, path, OUTSIDE_SHARED),
            }
        });
        self.is_outside = false;
        looked
    }

    fn look_at_all(&mut self, directory: &OwnedFd, path: &[u8], names: &[&[u8]]) -> Result<()> {
        names
            .iter()
            .try_for_each(|name| self.look(directory, name, &join(path, name), RepositoryPart::Inner, 1))
    }

    /// Opens a directory outside of the workspace, whose path may end in a line feed.
    fn open_outside(&self, from: &Path, leads_to: &[u8]) -> Option<(PathBuf, OwnedFd)> {
        let leads_to = leads_to.strip_suffix(b"\n").unwrap_or(leads_to);
        let directory = fs::canonicalize(from.join(OsStr::from_bytes(leads_to))).ok()?;
        let place = fs::canonicalize(self.look.place).ok()?;
        if directory.starts_with(place) {
            return None;
        }
        let opened = open_directory(&directory).ok()?;
        Some((directory, opened.into()))
    }
}

impl RepositoryEntry {
    fn from_stat(stat: &Stat, digest: Digest, copy: Option<ObjectId>) -> RepositoryEntry {
        RepositoryEntry { digest, mode: stat.mode, owner: stat.owner, modified_ns: stat.modified_ns, copy }
    }
}

fn digest(mode: u32, content: &[u8], len: u64) -> Digest {
    let mut hash = blake3::Hasher::new();
    hash.update(&mode.to_le_bytes()).update(&len.to_le_bytes()).update(content);
    hash.finalize().as_bytes().first_chunk().copied().unwrap_or_default()
}

/// Digests a file or a link, and copies it into `keep`. If it cannot be read, only the mode is
/// digested.
fn content(
    around: &OwnedFd,
    name: &[u8],
    stat: &Stat,
    keep: Option<&Objects>,
) -> Result<(Digest, Option<ObjectId>)> {
    let is_short = stat.len <= COPY_BYTES_MAX;
    let read = match stat.kind() {
        FileKind::Link => read_link(around, name).ok(),
        _ => open_file(around, name).ok().and_then(|file| {
            let mut bytes = Vec::new();
            let max = if is_short { COPY_BYTES_MAX } else { DIGESTED_BYTES_MAX };
            File::from(file).take(max).read_to_end(&mut bytes).ok()?;
            Some(bytes)
        }),
    };
    let Some(bytes) = read else { return Ok((digest(stat.mode, b"", stat.len), None)) };
    let len = if is_short { super::objects::len(&bytes) } else { stat.len };
    let copy = keep.filter(|_| is_short).map(|keep| keep.write(ObjectKind::Blob, &bytes)).transpose()?;
    Ok((digest(stat.mode, &bytes, len), copy))
}

fn read_start(around: &OwnedFd, name: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::from(open_file(around, name)?).take(4096).read_to_end(&mut bytes)?;
    Ok(bytes)
}
