//! Brings the repositories of a workspace back to a capture.
//!
//! | part of a repository | result |
//! |---|---|
//! | a repository that was created since the call started, or one of a submodule in it | is moved aside; reported if no call is rolled back |
//! | a repository that the call created in place of a file `.git` | is moved aside |
//! | a repository that the call removed, or replaced by one without its objects | reported |
//! | a file or directory that the call created in it, including a lock | is removed |
//! | a file or directory that the call changed or removed | is as it was captured; reported if there is no copy |
//! | a lock that existed before | is unchanged |
//! | git objects, and other parts that are not examined | are unchanged |
//! | a commit that is no longer referenced | is preserved by a ref within `refs/foldlog/lost`, and reported; only reported if the refs are in the format reftable |
//! | anything outside of the workspace | reported |
//!
//! # Invariants
//!
//! 1. Repositories that a call created are moved before anything else is restored, so that their
//!    parent directories can be removed. The rest is restored after the workspace's files, so that
//!    the parent directories of a `.git` exist.
//! 2. Refs that preserve lost commits are written before anything that names these commits is
//!    removed or replaced. So a restore that is interrupted at any step can be run again.
//! 3. A file is replaced by a rename. Failures are reported, and the remaining steps carried out.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::renameat;
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::symlinkat;

use super::super::attributes::{Target, WantedAttributes};
use super::super::known_objects::doubt;
use super::super::manifest::{FileKind, display_path, escape_path, join};
use super::super::objects::{ObjectId, ObjectKind, Objects};
use super::super::removal::{EntryAt, Removal};
use super::super::rules::{Rules, temporary_name};
use super::super::set_aside::{self, Aside};
use super::super::step::{
    NEW_FILE, OPEN_DIRECTORY, describe_errno, discard, open_around, open_at, open_file, stat_at, stat_of,
};
use super::lost_commits::{self, LostCommitRefs, is_head_or_ref, is_kept_ref, is_of_worktree};
use super::reftable;
use super::{
    COPY_BYTES_MAX, Look, NOT_WHOLE, Repositories, RepositoryEntry, RepositoryStatCache, is_lock,
    is_repository,
};
use crate::error::UnrestoredPath;

const MADE: &str = "it was made, and a repository is removed only with the call that made it";

/// Greatest number of lost commits of a repository that are preserved at once.
const LOST_MAX: usize = 20;

/// Greatest number of ids of a `packed-refs` to be written that are searched for.
const LOOKED_FOR_MAX: usize = 200;

pub(in crate::host) struct RepositoryRestore<'a> {
    pub(in crate::host) objects: &'a Objects,
    pub(in crate::host) root: &'a Arc<OwnedFd>,
    pub(in crate::host) place: &'a Path,
    pub(in crate::host) then: &'a Repositories,
    pub(in crate::host) now: &'a Repositories,
    /// The call that is rolled back; `None` for another restore, which removes no repository.
    pub(in crate::host) call: Option<&'a str>,
    pub(in crate::host) keeps_lost: bool,
    pub(in crate::host) told: Vec<UnrestoredPath>,
    pub(in crate::host) changed: u64,
    /// Repositories that existed before, and in which something was replaced or removed.
    pub(in crate::host) replaced_in: Vec<Vec<u8>>,
}

type RepositoryPathEntry<'a> = (&'a Vec<u8>, &'a RepositoryEntry);

/// A commit that is no longer referenced, and its former reference.
struct LostCommit {
    id: String,
    named_by: String,
}

impl<'a> RepositoryRestore<'a> {
    fn tell(&mut self, path: &[u8], reason: impl Into<String>) {
        self.told.push(UnrestoredPath { path: display_path(path), reason: reason.into() });
    }

    pub(in crate::host) fn created_roots(&self) -> impl Iterator<Item = &'a Vec<u8>> + use<'a> {
        let (then, now) = (self.then, self.now);
        now.roots().filter(|root| !then.is_older && !then.found.contains_key(*root))
    }

    /// Moves the repositories that the call created aside. A person may have created them or worked
    /// in them in the meantime, and no capture contains their objects, nor any part of a repository
    /// that did not exist at the capture.
    pub(in crate::host) fn remove_made(&mut self) {
        for root in self.created_roots() {
            match (self.now.found.get(root), self.call) {
                (Some(entry), Some(call)) if entry.kind() == FileKind::Directory => {
                    self.move_aside(root, call);
                }
                (Some(entry), Some(_)) => self.remove(root, entry.kind()),
                _ => self.tell(root, MADE),
            }
        }
    }

    fn move_aside(&mut self, path: &[u8], call: &str) {
        let paths = Aside { moved: vec![path.to_owned()], linked: Vec::new() };
        match set_aside::set_all(self.root, self.place, call, &paths) {
            Ok(()) => self.changed += 1,
            Err(error) => self.tell(path, error.to_string()),
        }
    }

    pub(in crate::host) fn restore(&mut self) {
        if self.then.is_older {
            self.tell(b".git", "it was captured by an earlier version, which kept no copies of its refs");
            return;
        }
        for (root, then) in self.then.found.iter().filter(|(path, _)| is_repository(path)) {
            match self.now.found.get(root) {
                None if then.kind() != FileKind::Directory => {
                    self.write_all(&[(root, then)]);
                    self.tell_of_outside(root);
                }
                None => self.tell_of_missing(root, "it was removed, and a capture holds no git objects"),
                Some(now) if then.kind() != FileKind::Directory => {
                    match self.call {
                        _ if now.kind() == then.kind() => {}
                        // The call created a repository there, whose objects are in no capture.
                        Some(call) if now.kind() == FileKind::Directory => self.move_aside(root, call),
                        _ => self.remove(root, now.kind()),
                    }
                    if now.digest != then.digest {
                        self.write_all(&[(root, then)]);
                    }
                    self.tell_of_outside(root);
                }
                Some(now) if now.kind() != FileKind::Directory => {
                    self.tell(root, "it was replaced by a file, and a capture holds no git objects");
                }
                Some(now) if [now.digest, then.digest].contains(&NOT_WHOLE) => {
                    self.tell(root, "not all of it can be looked at, so nothing in it is undone");
                }
                Some(_) => self.repository(root),
            }
        }
    }

    /// Reports a repository whose objects are missing, and one that was moved aside from its place.
    fn tell_of_missing(&mut self, repository: &[u8], reason: &str) {
        let aside = set_aside::find(self.root, repository);
        let aside =
            aside.map_or_else(String::new, |aside| format!("; {aside} may be it: `mv` brings it back"));
        self.tell(repository, format!("{reason}{aside}"));
    }

    fn tell_of_outside(&mut self, root: &[u8]) {
        // The target of the link after the restore.
        let look = Look { root: self.root, place: self.place, keep: None, is_racy: &|_| true };
        let now = look.at(&[root.to_vec()], &mut RepositoryStatCache::new()).unwrap_or_default();
        let (then, now): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (self.then.entries_within(root).collect(), now.entries_within(root).collect());
        for path in then.keys().chain(now.keys()).copied().collect::<BTreeSet<_>>() {
            let what = match (then.get(path), now.get(path)) {
                (Some(then), Some(now)) if then.digest == now.digest => continue,
                (Some(_), Some(_)) => "changed",
                (Some(_), None) => "removed",
                _ => "made",
            };
            if !is_lock(path) {
                let reason =
                    format!("it was {what}, and it is outside of the workspace, where nothing is undone");
                self.tell(path, reason);
            }
        }
    }

    /// Returns the entries to set aside before a restore, if they cannot be captured: repositories
    /// that were created since, and the files that the restore replaces or removes in those that
    /// existed before.
    pub(in crate::host) fn aside(&self) -> Aside {
        let mut aside = Aside { moved: self.created_roots().cloned().collect(), linked: Vec::new() };
        let then = self.then.found.iter().filter(|(path, _)| is_repository(path));
        for (root, then) in then {
            match self.now.found.get(root).map(|now| (now.kind(), now.digest)) {
                Some((FileKind::Directory, _)) if then.kind() == FileKind::Directory => {
                    aside.linked.append(&mut self.replaced_in(root));
                }
                // The restore moves it.
                Some((FileKind::Directory, _)) | None => {}
                Some((_, digest)) if then.kind() == FileKind::Directory || digest == then.digest => {}
                Some(_) => aside.linked.push(root.clone()),
            }
        }
        aside
    }

    /// Returns the paths of files and links that a restore of a repository, and of those of
    /// submodules in it, replaces or removes.
    fn replaced_in(&self, root: &[u8]) -> Vec<Vec<u8>> {
        let (mut removals, writes) = self.changes(root);
        let repositories = self.repositories_in(root);
        // The restore moves them.
        removals.retain(|(path, _)| !self.holds_objects(&repositories, path));
        let is_gone = |path: &Vec<u8>| {
            let is_in = |gone: &Vec<u8>| path == gone || path.starts_with(&join(gone, b""));
            removals.iter().any(|(gone, _)| is_in(gone))
        };
        let is_replaced = |path: &Vec<u8>| writes.binary_search_by(|(one, _)| (*one).cmp(path)).is_ok();
        let files = self.now.entries_within(root).filter(|(_, now)| now.kind() != FileKind::Directory);
        files.map(|(path, _)| path).filter(|path| is_gone(path) || is_replaced(path)).cloned().collect()
    }

    /// Returns whether a newly created path is, or contains, a submodule's repository or a part of
    /// one that is not in `repositories`: its objects are in no capture.
    fn holds_objects(&self, repositories: &[Vec<u8>], path: &[u8]) -> bool {
        let Some(repository) = repository_of(repositories, path) else { return false };
        let is_of_submodule = |path: &[u8]| {
            let names = path.strip_prefix(&*join(repository, b"")).unwrap_or_default();
            let mut names = names.split(|byte| *byte == b'/');
            match names.next() {
                Some(b"modules") => true,
                Some(b"worktrees") => names.nth(1) == Some(b"modules"),
                _ => false,
            }
        };
        is_of_submodule(path) || self.now.entries_within(path).any(|(path, _)| is_of_submodule(path))
    }

    /// Returns the removals and the writes of a restore in a repository, and in those of submodules
    /// in it, each sorted by path.
    fn changes(&self, root: &[u8]) -> (Vec<RepositoryPathEntry<'a>>, Vec<RepositoryPathEntry<'a>>) {
        let (then, now) = (self.then, self.now);
        let mut removals: Vec<RepositoryPathEntry<'a>> = Vec::new();
        for (path, entry) in now.entries_within(root) {
            let is_gone = removals.last().is_some_and(|(gone, _)| path.starts_with(&join(gone, b"")));
            let is_as_kind = then.found.get(path).is_some_and(|then| then.kind() == entry.kind());
            if !is_gone && !is_as_kind && !is_kept_ref(path) {
                removals.push((path, entry));
            }
        }
        let is_changed = |(path, then): &RepositoryPathEntry<'_>| {
            !is_lock(path) && now.found.get(*path).is_none_or(|now| now.digest != then.digest)
        };
        (removals, then.entries_within(root).filter(is_changed).collect())
    }

    /// Restores a repository and the repositories of its submodules.
    fn repository(&mut self, root: &[u8]) {
        let (mut removals, mut writes) = self.changes(root);
        if removals.is_empty() && writes.is_empty() {
            return;
        }
        let repositories = self.repositories_in(root);
        for repository in &repositories {
            let is_own = |path: &[u8]| repository_of(&repositories, path) == Some(repository);
            if self.is_replaced(repository, &writes, &is_own) {
                let reason = "git objects are missing that its refs named, so nothing in it is undone";
                self.tell_of_missing(repository, reason);
                removals.retain(|(path, _)| !is_own(path));
                writes.retain(|(path, _)| !is_own(path));
            } else {
                self.keep_lost(repository, &is_own);
            }
        }
        if !removals.is_empty() || !writes.is_empty() {
            self.replaced_in.push(root.to_vec());
        }
        for (path, entry) in removals {
            match (self.holds_objects(&repositories, path), self.call) {
                (true, Some(call)) => self.move_aside(path, call),
                (true, None) => self.tell(path, MADE),
                (false, _) => self.remove(path, entry.kind()),
            }
        }
        self.write_all(&writes);
    }

    /// Returns the captured repositories: the one at `root`, and those of submodules in it and of
    /// its linked worktrees.
    fn repositories_in(&self, root: &[u8]) -> Vec<Vec<u8>> {
        let prefix = join(root, b"");
        let heads = self.then.entries_within(root).filter_map(|(path, _)| path.strip_suffix(b"/HEAD"));
        let is_submodule = |path: &&[u8]| {
            let names: Vec<&[u8]> =
                path.strip_prefix(&*prefix).unwrap_or_default().split(|byte| *byte == b'/').collect();
            let names = match &names[..] {
                [b"modules", names @ ..] | [b"worktrees", _, b"modules", names @ ..] => names,
                _ => return false,
            };
            let is_part = |name: &&[u8]| [&b"worktrees"[..], b"logs", b"refs"].contains(name);
            !names.is_empty() && !names.iter().skip(1).any(is_part)
        };
        let submodules = heads.filter(is_submodule).map(<[u8]>::to_vec);
        std::iter::once(root.to_vec()).chain(submodules).collect()
    }

    /// Returns whether a repository lacks objects that the refs to be written name.
    fn is_replaced(
        &self,
        repository: &[u8],
        writes: &[(&Vec<u8>, &RepositoryEntry)],
        is_own: &dyn Fn(&[u8]) -> bool,
    ) -> bool {
        let Some(opened) = self.open(repository) else { return true };
        if stat_at(&opened, b"objects").is_err() {
            return true;
        }
        let named = self.reftable_now(repository);
        let then =
            self.reftable_then(repository).into_values().filter(|id| !named.values().any(|now| now == id));
        if then.take(LOOKED_FOR_MAX).any(|id| !lost_commits::has_object(&opened, &id)) {
            return true;
        }
        let own = writes.iter().filter(|(path, _)| is_own(path));
        own.filter_map(|(path, entry)| Some((name_within(repository, path), *path, entry.copy?))).any(
            |(name, path, copy)| {
                if !(name == "HEAD" || name == "packed-refs" || name.starts_with("refs/")) {
                    return false;
                }
                let present: HashSet<String> =
                    lost_commits::ids_in(&name, &self.present(path)).into_iter().map(|(id, _)| id).collect();
                let ids = lost_commits::ids_in(&name, &self.copy(copy)).into_iter().map(|(id, _)| id);
                let mut ids = ids.filter(|id| !present.contains(id)).take(LOOKED_FOR_MAX);
                ids.any(|id| !lost_commits::has_object(&opened, &id))
            },
        )
    }

    /// Preserves and reports the commits of a repository that are no longer referenced once it is
    /// restored.
    fn keep_lost(&mut self, repository: &[u8], is_own: &dyn Fn(&[u8]) -> bool) {
        let found = self.find_lost_commits(repository, is_own);
        let Some(opened) = self.open(repository) else { return };
        let mut kept =
            LostCommitRefs::in_repository(&opened, &self.present(&join(repository, b"packed-refs")));
        for (name, id) in kept.packed_alone() {
            if let Err(errno) = self.write_ref(&opened, &name, &id) {
                self.tell(&lost_commits::path_of(repository, &name), errno.desc());
            }
        }
        let is_reftable = stat_at(&opened, b"reftable").is_ok();
        let more = found.len().saturating_sub(LOST_MAX);
        for LostCommit { id, named_by } in found.into_iter().take(LOST_MAX) {
            if !lost_commits::has_object(&opened, &id) {
                continue;
            }
            let was = format!("commit {id}, which was named by {named_by}");
            if !self.keeps_lost || is_reftable {
                self.tell(repository, format!("nothing names {was}: keep it with `git branch NAME {id}`"));
                continue;
            }
            let known = kept.name_of(&id);
            let base = self.call.unwrap_or_else(|| id.get(..12).unwrap_or(&id));
            let name = known.clone().unwrap_or_else(|| kept.free_name(base));
            match if known.is_some() { Ok(()) } else { self.write_ref(&opened, &name, &id) } {
                Ok(()) => {
                    let path = lost_commits::path_of(repository, &name);
                    self.tell(&path, format!("it was made, and keeps {was}"));
                }
                Err(errno) => self.tell(repository, format!("nothing names {was}: {}", errno.desc())),
            }
            kept.loose.insert((name, id));
        }
        if more > 0 {
            self.tell(repository, format!("nothing names {more} commits more that were named before"));
        }
    }

    /// Returns the present and the captured refs of a repository in the format reftable.
    fn reftable_now(&self, repository: &[u8]) -> BTreeMap<String, String> {
        reftable::refs(|name| self.present(&join(repository, name.as_bytes())))
    }

    fn reftable_then(&self, repository: &[u8]) -> BTreeMap<String, String> {
        reftable::refs(|name| {
            let copy = self.then.found.get(&join(repository, name.as_bytes())).and_then(|then| then.copy);
            copy.map(|copy| self.copy(copy)).unwrap_or_default()
        })
    }

    fn write_ref(&mut self, repository: &OwnedFd, name: &str, id: &str) -> Result<(), Errno> {
        let refs = stat_at(repository, b"refs")?;
        let (executable, owner) = (refs.permissions(), Some(refs.owner));
        let wanted =
            |permissions| WantedAttributes { permissions, owner, attributes: None, modified_ns: None };
        let give = |opened: &OwnedFd, permissions: u32| {
            wanted(permissions).give(&Target::Opened(opened.as_fd()), &stat_of(opened)?, &None).map(drop)
        };
        let directory = lost_commits::make_directory(repository, &|directory| give(directory, executable))?;
        let temporary = temporary_name(0);
        let file = create(&directory, &temporary)?;
        let mut file = File::from(file);
        let written = file.write_all(format!("{id}\n").as_bytes()).map_err(|error| errno_of(&error));
        let named = written
            .and_then(|()| give(&OwnedFd::from(file), executable & 0o666))
            .and_then(|()| renameat(&directory, temporary.as_str(), &directory, name));
        if named.is_err() {
            discard(&directory, temporary);
        }
        self.changed += 1;
        named
    }

    /// Finds the commits that refs, heads and logs of a repository name now and did not name when
    /// it was captured.
    fn find_lost_commits(&self, repository: &[u8], is_own: &dyn Fn(&[u8]) -> bool) -> Vec<LostCommit> {
        let (mut named, mut logged) = (Vec::new(), Vec::new());
        for (path, now) in self.now.entries_within(repository).filter(|(path, _)| is_own(path)) {
            let then = self.then.found.get(path);
            if now.kind() != FileKind::File || then.is_some_and(|then| then.digest == now.digest) {
                continue;
            }
            let name = name_within(repository, path);
            if name == "logs/refs/stash" || name == "logs/HEAD" || is_of_worktree(&name, "/logs/HEAD") {
                let before = then.and_then(|then| then.copy).map(|copy| self.copy(copy)).unwrap_or_default();
                let of = name.replace("logs/", "");
                let ids = lost_commits::ids_in_log(&self.present(path), &before).into_iter();
                logged.extend(ids.map(|id| LostCommit { id, named_by: format!("the log of `{of}`") }));
            } else if is_head_or_ref(&name) {
                let ids = lost_commits::ids_in(&name, &self.present(path)).into_iter();
                let ids = ids.filter(|(_, name)| is_head_or_ref(name));
                named.extend(ids.map(|(id, name)| LostCommit { id, named_by: format!("`{name}`") }));
            }
        }
        let (tables, tables_now) = (self.reftable_then(repository), self.reftable_now(repository));
        let changed =
            tables_now.into_iter().filter(|(name, id)| is_head_or_ref(name) && tables.get(name) != Some(id));
        named.extend(changed.map(|(name, id)| LostCommit { id, named_by: format!("`{name}`") }));
        named.append(&mut logged);
        if named.is_empty() {
            return named;
        }
        let (mut stay, mut logs) = (tables.into_values().collect::<HashSet<_>>(), String::new());
        for (path, then) in self.then.entries_within(repository).filter(|(path, _)| is_own(path)) {
            let name = name_within(repository, path);
            let Some(copy) = then.copy else { continue };
            if name.starts_with("logs/") || name.contains("/logs/") {
                logs.push_str(&String::from_utf8_lossy(&self.copy(copy)));
            } else if name.starts_with("refs/") || is_head_or_ref(&name) {
                stay.extend(lost_commits::ids_in(&name, &self.copy(copy)).into_iter().map(|(id, _)| id));
            }
        }
        named.retain(|lost| !logs.contains(&lost.id) && stay.insert(lost.id.clone()));
        named
    }

    /// Writes files, links and directories as they were captured, parents first.
    fn write_all(&mut self, writes: &[(&Vec<u8>, &RepositoryEntry)]) {
        for (path, entry) in writes {
            match self.write(path, entry) {
                Ok(told) => {
                    self.changed += 1;
                    if !told.is_empty() {
                        self.tell(path, told.join("; "));
                    }
                }
                Err(reason) => self.tell(path, reason),
            }
        }
    }

    fn write(&self, path: &[u8], entry: &RepositoryEntry) -> Result<Vec<String>, String> {
        let RepositoryEntry { mode, owner, modified_ns, copy, .. } = *entry;
        let (directory, name) = open_around(self.root, path).map_err(describe_errno)?;
        let wanted = WantedAttributes {
            permissions: mode & 0o7777,
            owner: Some(owner),
            attributes: None,
            modified_ns: Some(modified_ns).filter(|_| entry.kind() != FileKind::Directory),
        };
        if entry.kind() == FileKind::Directory {
            match mkdirat(&directory, &*name, Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(describe_errno(errno)),
            }
            let opened = open_at(&directory, &name, OPEN_DIRECTORY, Mode::empty()).map_err(describe_errno)?;
            return give(&wanted, &opened);
        }
        let Some(copy) = copy else {
            return Err("it was changed, and no copy of it was captured".to_owned());
        };
        let content = self.objects.read(copy, ObjectKind::Blob, COPY_BYTES_MAX).map_err(|error| {
            doubt(self.objects.store());
            error.to_string()
        })?;
        let temporary = temporary_name(0);
        let written = match entry.kind() {
            FileKind::Link => {
                symlinkat(&*content, &directory, temporary.as_str()).map_err(describe_errno).and_then(|()| {
                    let stat = stat_at(&directory, temporary.as_bytes()).map_err(describe_errno)?;
                    let target = Target::Link(directory.as_fd(), temporary.as_bytes());
                    wanted.give(&target, &stat, &None).map_err(describe_errno)
                })
            }
            _ => create(&directory, &temporary).map_err(describe_errno).and_then(|file| {
                let mut file = File::from(file);
                file.write_all(&content).map_err(|error| error.to_string())?;
                give(&wanted, &OwnedFd::from(file))
            }),
        };
        let named = written.and_then(|told| {
            let rename = || renameat(&directory, temporary.as_str(), &directory, &*name);
            let renamed = if is_repository(path) { keeping_time(&directory, rename) } else { rename() };
            renamed.map(|()| told).map_err(describe_errno)
        });
        if named.is_err() {
            discard(&directory, temporary);
        }
        named
    }

    fn remove(&mut self, path: &[u8], kind: FileKind) {
        let (directory, name) = match open_around(self.root, path) {
            Ok(found) => found,
            Err(errno) => return self.tell(path, describe_errno(errno)),
        };
        let rules = Rules::keep_all();
        let mut removal = Removal::new(&rules);
        let at = EntryAt { directory: &Arc::new(directory), name: &name, path, scope: None };
        let removed = removal.remove(at, kind);
        self.changed += removal.removed;
        let mounts =
            removal.mounts.drain(..).map(|path| UnrestoredPath::new(path, "something is mounted there"));
        self.told.extend(mounts);
        self.told.append(&mut removal.failures);
        if let Err(reason) = removed {
            self.tell(path, reason);
        }
    }

    fn open(&self, path: &[u8]) -> Option<OwnedFd> {
        let (directory, name) = open_around(self.root, path).ok()?;
        open_at(&directory, &name, OPEN_DIRECTORY, Mode::empty()).ok()
    }

    /// Returns the present content of a file in a repository; empty if it cannot be read.
    fn present(&self, path: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Ok((directory, name)) = open_around(self.root, path)
            && let Ok(file) = open_file(&directory, &name)
        {
            let _ = File::from(file).take(COPY_BYTES_MAX).read_to_end(&mut bytes);
        }
        bytes
    }

    fn copy(&self, copy: ObjectId) -> Vec<u8> {
        self.objects.read(copy, ObjectKind::Blob, COPY_BYTES_MAX).unwrap_or_default()
    }
}

fn repository_of<'a>(repositories: &'a [Vec<u8>], path: &[u8]) -> Option<&'a Vec<u8>> {
    let around = repositories.iter().filter(|one| path == *one || path.starts_with(&join(one, b"")));
    around.max_by_key(|one| one.len())
}

fn name_within(repository: &[u8], path: &[u8]) -> String {
    escape_path(path.strip_prefix(&*join(repository, b"")).unwrap_or(path))
}

fn create(directory: &OwnedFd, temporary: &str) -> Result<OwnedFd, Errno> {
    // A leftover of a killed restore.
    discard(directory, temporary);
    open_at(directory, temporary.as_bytes(), NEW_FILE, Mode::S_IRUSR | Mode::S_IWUSR)
}

fn give(wanted: &WantedAttributes, opened: &OwnedFd) -> Result<Vec<String>, String> {
    let stat = stat_of(opened).map_err(describe_errno)?;
    wanted.give(&Target::Opened(opened.as_fd()), &stat, &None).map_err(describe_errno)
}

/// Changes a name in a directory without changing the directory's time.
fn keeping_time(directory: &OwnedFd, change: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    let before = stat_of(directory)?;
    change()?;
    let modified_ns = Some(before.modified_ns);
    let wanted =
        WantedAttributes { permissions: before.permissions(), owner: None, attributes: None, modified_ns };
    let _ = wanted.give(&Target::Opened(directory.as_fd()), &before, &None);
    Ok(())
}

fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
