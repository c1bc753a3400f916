//! What a tool changed in the workspace's git repositories, which no restore touches: told, and not undone.
//!
//! A capture looks at what of a repository takes effect by itself or decides where it stands: `config`, `hooks`,
//! `HEAD`, refs, `info`, `worktrees`, and the files that lead elsewhere; not at repositories of submodules in
//! `modules`. It keeps a digest of each, and no content, since a `config` may hold a password. Objects and the index
//! are not looked at: nothing comes of them alone.
//!
//! ```text
//! foldlog-repositories 1
//! DIGEST ./PATH               sorted by path, any byte of it that is not plain as \xNN; the digest (BLAKE3, 16 bytes, in
//!                             hexadecimal) covers what is there, its permissions and its content, or where a link leads
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::OwnedFd;

use nix::sys::stat::Mode;

use super::manifest::{Kind, Stat, join, shown, told, unshown};
use super::objects::{ObjectId, ObjectKind, Objects, pump};
use super::step::open_at;
use super::step::{OPEN_FOLDER, list, open_file, read_link, stat_at};
use crate::error::{Error, Result, Unrestored};

const HEAD: &str = "foldlog-repositories 1";

const BYTES_MAX: u64 = 64 << 20;

/// So many files are looked at, of all repositories.
const FILES_MAX: usize = 100_000;

/// Folders within a repository, refs' names among them, are looked through so deep.
const DEPTH_MAX: usize = 32;

/// Of longer files the beginning is looked at, and the length.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What is looked at in a repository's folder.
const NAMES: &[&[u8]] = &[
    b"HEAD",
    b"config",
    b"config.worktree",
    b"packed-refs",
    b"commondir",
    b"gitdir",
    b"hooks",
    b"info",
    b"refs",
    b"worktrees",
];

type Digest = [u8; 16];

/// What was looked at, by path.
#[derive(Default)]
pub(super) struct Repositories {
    found: BTreeMap<Vec<u8>, Digest>,
}

/// What was found last, by path, so that a file that is as it was need not be read again.
pub(super) type Seen = BTreeMap<Vec<u8>, (Stat, Digest)>;

impl Repositories {
    /// Looks at the repositories at these paths, each with the folder that holds it.
    pub(super) fn of(
        root: &OwnedFd,
        paths: &[Vec<u8>],
        seen: &mut Seen,
        is_racy: &dyn Fn(&Stat) -> bool,
    ) -> Repositories {
        let mut looking =
            Looking { repositories: Repositories::default(), before: std::mem::take(seen), seen, is_racy };
        for path in paths {
            let mut folder = match open_at(root, b".", OPEN_FOLDER, Mode::empty()) {
                Ok(folder) => folder,
                Err(_) => return looking.repositories,
            };
            let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
            let Some(name) = names.pop() else { continue };
            let opened = names.into_iter().try_for_each(|name| {
                folder = open_at(&folder, name, OPEN_FOLDER, Mode::empty())?;
                Ok::<(), nix::errno::Errno>(())
            });
            if opened.is_ok() {
                looking.look(&folder, name, path, 0);
            }
        }
        looking.repositories
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub(super) fn write(&self, objects: &Objects) -> Result<ObjectId> {
        let mut text = format!("{HEAD}\n");
        for (path, digest) in &self.found {
            let _ = writeln!(text, "{:032x} ./{}", u128::from_be_bytes(*digest), shown(path));
        }
        objects.write(ObjectKind::Blob, text.as_bytes())
    }

    pub(super) fn read(objects: &Objects, id: ObjectId) -> Result<Repositories> {
        let bytes = objects.read(id, ObjectKind::Blob, BYTES_MAX)?;
        let read = std::str::from_utf8(&bytes).ok().and_then(Repositories::decode);
        read.ok_or_else(|| Error::Object {
            path: objects.path(id),
            reason: "it does not say what repositories were like".to_owned(),
        })
    }

    fn decode(text: &str) -> Option<Repositories> {
        let mut found = BTreeMap::new();
        for line in text.strip_prefix(HEAD)?.strip_prefix('\n')?.lines() {
            let (digits, path) = line.split_once(" ./")?;
            let number = u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 32)?;
            found.insert(unshown(path)?, number.to_be_bytes());
        }
        Some(Repositories { found })
    }

    /// What is not as it was: what was made, changed or removed. Of a repository that is new, or gone, that alone.
    pub(super) fn changed(&self, then: &Repositories) -> Vec<Unrestored> {
        let mut changed = Vec::new();
        let mut tell = |path: &[u8], what: &str| {
            let reason = format!("it was {what}, and nothing in a `.git` is undone");
            changed.push(Unrestored { path: told(path), reason });
        };
        for (path, digest) in &self.found {
            match then.found.get(path) {
                Some(before) if before == digest => {}
                Some(_) => tell(path, "changed"),
                None if then.has_folder_of(path) => tell(path, "made"),
                None => {}
            }
        }
        for path in then.found.keys().filter(|path| !self.found.contains_key(*path)) {
            if self.has_folder_of(path) {
                tell(path, "removed");
            }
        }
        changed
    }

    /// Whether what holds a path was there, so that the path itself is worth being told.
    fn has_folder_of(&self, path: &[u8]) -> bool {
        let is_repository = path == b".git" || path.ends_with(b"/.git");
        let around = path.iter().rposition(|byte| *byte == b'/').and_then(|at| path.get(..at));
        is_repository || around.is_some_and(|around| self.found.contains_key(around))
    }
}

struct Looking<'a> {
    repositories: Repositories,
    before: Seen,
    seen: &'a mut Seen,
    is_racy: &'a dyn Fn(&Stat) -> bool,
}

impl Looking<'_> {
    fn look(&mut self, around: &OwnedFd, name: &[u8], path: &[u8], depth: usize) {
        if self.repositories.found.len() >= FILES_MAX || depth > DEPTH_MAX {
            return;
        }
        let Ok(stat) = stat_at(around, name) else { return };
        let digest = match self.before.get(path) {
            Some((before, digest))
                if *before == stat && stat.kind() != Kind::Folder && !(self.is_racy)(&stat) =>
            {
                *digest
            }
            _ => digest_of(around, name, &stat),
        };
        self.repositories.found.insert(path.to_vec(), digest);
        self.seen.insert(path.to_vec(), (stat, digest));
        if stat.kind() != Kind::Folder {
            return;
        }
        let Ok(folder) = open_at(around, name, OPEN_FOLDER, Mode::empty()) else { return };
        let is_repository = name == b".git";
        for (child, _) in list(&folder).unwrap_or_default() {
            if !is_repository || NAMES.contains(&&*child) {
                self.look(&folder, &child, &join(path, &child), depth + 1);
            }
        }
    }
}

fn digest_of(around: &OwnedFd, name: &[u8], stat: &Stat) -> Digest {
    let mut hash = blake3::Hasher::new();
    hash.update(&stat.mode.to_le_bytes());
    match stat.kind() {
        Kind::File => {
            hash.update(&stat.len.to_le_bytes());
            if let Ok(file) = open_file(around, name) {
                let mut content = std::io::Read::take(File::from(file), FILE_BYTES_MAX);
                let _ = pump(&mut content, &mut |bytes| {
                    hash.update(bytes);
                    Ok(())
                });
            }
        }
        Kind::Link => {
            hash.update(&read_link(around, name).unwrap_or_default());
        }
        Kind::Folder | Kind::Special => {}
    }
    hash.finalize().as_bytes().first_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_as_it_was_is_told_and_of_a_new_repository_that_alone() {
        let of = |paths: &[(&str, u8)]| Repositories {
            found: paths.iter().map(|(path, byte)| (path.as_bytes().to_vec(), [*byte; 16])).collect(),
        };
        let then =
            of(&[(".git", 0), (".git/HEAD", 1), (".git/hooks", 0), (".git/refs", 0), (".git/refs/a", 2)]);
        let now = of(&[
            (".git", 0),
            (".git/HEAD", 3),
            (".git/hooks", 0),
            (".git/hooks/pre-commit", 4),
            ("clone/.git", 0),
            ("clone/.git/HEAD", 5),
        ]);
        let told = now.changed(&then);
        let told: Vec<(&str, &str)> =
            told.iter().map(|one| (one.path.as_str(), one.reason.split(',').next().unwrap())).collect();
        let expected = [
            (".git/HEAD", "it was changed"),
            (".git/hooks/pre-commit", "it was made"),
            ("clone/.git", "it was made"),
            (".git/refs", "it was removed"),
        ];
        assert_eq!(told, expected);
        assert!(then.changed(&then).is_empty());
    }
}
