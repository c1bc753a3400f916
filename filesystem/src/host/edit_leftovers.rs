//! Names of incomplete edits of single paths, and their recovery after a kill.
//!
//! An edit (`path_edits.rs`) writes an entry under a first name, renames it to a second one once it
//! is complete, and exchanges it with the entry at the path. The second name contains the inode of
//! the written entry, so it is known after a kill on which side of the exchange the edit was:
//!
//! | name after `.foldlog-editing-` | entry |
//! |---|---|
//! | `PPPPPPPPNNNNNNNN-new` | incomplete entry that the edit wrote |
//! | `PPPPPPPPNNNNNNNN-IIIIIIIIIIIIIIII-HHHHHHHH` | if its inode is `I`, the entry that the edit wrote; otherwise the one that was at the path |
//! | `PPPPPPPPNNNNNNNN-old-HHHHHHHH` | the entry that was at the path |
//!
//! `P` is the process, `N` the number of the edit in it, and `H` the beginning of the hash of the
//! last name of the path, all in hexadecimal.
//!
//! # Recovery
//!
//! | leftover | recovery |
//! |---|---|
//! | written by the edit | removed |
//! | was at the path, content in the store | removed: a capture has it |
//! | was at the path, content not in the store, and no entry is there now | gets its name again |
//! | the same, and the edit's entry is there, unchanged | gets its name again; the edit's entry is removed |
//! | the same, and a third entry is there | gets the name `NAME.foldlog-kept` |

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use rustix::fs::RenameFlags;

use super::HostFilesystem;
use super::manifest::{FileKind, Stat, unescape_path};
use super::objects::{Hasher, ObjectKind};
use super::path_edits::rename;
use super::rules::{EDITING, is_editing};
use super::step::{OPEN_DIRECTORY, list, open_around, open_at, open_file, read_link, stat_at};
use crate::error::Result;

/// Greatest number of preserved entries with one former name.
const KEPT_MAX: u32 = 1000;

/// Temporary names of one edit.
pub(super) struct TemporaryNames {
    prefix: String,
    hash: String,
}

impl TemporaryNames {
    /// Names for an edit of the entry with a name.
    pub(super) fn new(name: &[u8]) -> TemporaryNames {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed) & u64::from(u32::MAX);
        let prefix = format!("{EDITING}{:08x}{number:08x}", std::process::id());
        TemporaryNames { prefix, hash: hash_of(name) }
    }

    pub(super) fn new_entry(&self) -> Vec<u8> {
        format!("{}-new", self.prefix).into_bytes()
    }

    pub(super) fn complete(&self, inode: u64) -> Vec<u8> {
        format!("{}-{inode:016x}-{}", self.prefix, self.hash).into_bytes()
    }

    pub(super) fn old(&self) -> Vec<u8> {
        format!("{}-old-{}", self.prefix, self.hash).into_bytes()
    }
}

fn hash_of(name: &[u8]) -> String {
    let hash = Hasher::hash_bytes(ObjectKind::Blob, name).map(|id| id.to_string());
    hash.unwrap_or_default().chars().take(8).collect()
}

/// What a temporary name says about its entry.
enum Leftover {
    New,
    Complete { inode: u64, hash: String },
    Old { hash: String },
}

impl Leftover {
    fn parse(name: &[u8]) -> Option<Leftover> {
        let mut parts = std::str::from_utf8(name).ok()?.strip_prefix(EDITING)?.split('-');
        let (_, stage, hash) = (parts.next()?, parts.next()?, parts.next());
        match (stage, hash) {
            ("new", None) => Some(Leftover::New),
            ("old", Some(hash)) => Some(Leftover::Old { hash: hash.to_owned() }),
            (inode, Some(hash)) => {
                let inode = u64::from_str_radix(inode, 16).ok()?;
                Some(Leftover::Complete { inode, hash: hash.to_owned() })
            }
            _ => None,
        }
    }
}

/// Renames an entry to a visible name: the former name with `.foldlog-kept`. Returns the
/// new name; `None` if the entry could not be renamed.
pub(super) fn keep_aside(directory: &OwnedFd, temporary: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    (0..KEPT_MAX).find_map(|number| {
        let mut kept = name.to_vec();
        kept.extend_from_slice(b".foldlog-kept");
        if number > 0 {
            kept.extend_from_slice(format!("-{number}").as_bytes());
        }
        rename(directory, temporary, &kept, RenameFlags::NOREPLACE).ok().map(|()| kept)
    })
}

impl HostFilesystem {
    /// Removes the leftovers of killed [edits](HostFilesystem::edit_paths) of these paths from their
    /// directories. An entry with content that the store does not have is put back, or renamed to
    /// `NAME.foldlog-kept`. No edit of this workspace may run.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`](crate::Error::Io) if the workspace's root cannot be opened.
    /// - [`Error::Object`](crate::Error::Object) if an entry of a different kind is in the place of
    ///   an object.
    pub fn recover_edits<'a>(&self, paths: impl IntoIterator<Item = &'a str>) -> Result<()> {
        let root = self.bound_root()?;
        let mut names: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>> = BTreeMap::new();
        for path in paths.into_iter().filter_map(unescape_path) {
            // A missing directory of the path was created in its parent directory.
            let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
            for end in ends.chain([path.len()]) {
                let path = path.get(..end).unwrap_or_default();
                let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
                let around = path.get(..path.len().saturating_sub(name.len() + 1)).unwrap_or_default();
                names.entry(around.to_vec()).or_default().insert(name);
            }
        }
        for (path, names) in names {
            let directory = match path.is_empty() {
                true => open_at(root.directory(), b".", OPEN_DIRECTORY, Mode::empty()),
                false => open_around(root.directory(), &path)
                    .and_then(|(around, name)| open_at(&around, &name, OPEN_DIRECTORY, Mode::empty())),
            };
            let Ok(directory) = directory else { continue };
            for (temporary, stat) in list(&directory).unwrap_or_default() {
                if is_editing(&temporary)
                    && let Some(leftover) = Leftover::parse(&temporary)
                {
                    self.recover(&directory, &temporary, &stat, &leftover, &names)?;
                }
            }
        }
        Ok(())
    }

    fn recover(
        &self,
        directory: &OwnedFd,
        temporary: &[u8],
        stat: &Stat,
        leftover: &Leftover,
        names: &BTreeSet<Vec<u8>>,
    ) -> Result<()> {
        let remove = |flags| {
            // What cannot be removed now has no effect: no snapshot contains it.
            let _ = unlinkat(directory, temporary, flags);
            Ok(())
        };
        let (written, hash) = match leftover {
            Leftover::New if stat.kind() == FileKind::Directory => {
                return remove(UnlinkatFlags::RemoveDir);
            }
            Leftover::New => return remove(UnlinkatFlags::NoRemoveDir),
            Leftover::Complete { inode, .. } if *inode == stat.inode => {
                return remove(UnlinkatFlags::NoRemoveDir);
            }
            Leftover::Complete { inode, hash } => (Some(*inode), hash),
            Leftover::Old { hash } => (None, hash),
        };
        if self.is_content_stored(directory, temporary, stat)? {
            return remove(UnlinkatFlags::NoRemoveDir);
        }
        let Some(name) = names.iter().find(|name| hash_of(name) == *hash) else { return Ok(()) };
        if rename(directory, temporary, name, RenameFlags::NOREPLACE) != Err(Errno::EEXIST) {
            return Ok(());
        }
        let present = stat_at(directory, name).ok().filter(|present| Some(present.inode) == written);
        if let Some(present) = present
            && self.is_content_stored(directory, name, &present)?
            && rename(directory, temporary, name, RenameFlags::EXCHANGE).is_ok()
        {
            if stat_at(directory, temporary).is_ok_and(|taken| Some(taken.inode) == written) {
                return remove(UnlinkatFlags::NoRemoveDir);
            }
            // Another program has replaced it meanwhile.
            let _ = rename(directory, temporary, name, RenameFlags::EXCHANGE);
        }
        keep_aside(directory, temporary, name);
        Ok(())
    }

    /// Returns whether the store has the content of a file or link as one object or as a clone.
    fn is_content_stored(&self, directory: &OwnedFd, name: &[u8], stat: &Stat) -> Result<bool> {
        let hash = |source: &mut dyn Read| Hasher::hash_blob(source, stat.len).ok().flatten();
        let id = match stat.kind() {
            FileKind::Link => read_link(directory, name).ok().and_then(|target| hash(&mut target.as_slice())),
            FileKind::File => {
                let Ok(file) = open_file(directory, name).map(File::from) else { return Ok(false) };
                if self.objects.has_clone_of(&file)? {
                    return Ok(true);
                }
                hash(&mut &file)
            }
            _ => None,
        };
        id.map_or(Ok(false), |id| self.objects.is_sound(id, ObjectKind::Blob))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::path::PathBuf;

    use super::*;
    use crate::host::HostFilesystemOptions;

    struct Workspace {
        directory: tempfile::TempDir,
        files: HostFilesystem,
    }

    impl Workspace {
        /// A workspace of which a capture has the content `captured`.
        fn new() -> Workspace {
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path().join("root");
            fs::create_dir_all(root.join("d")).unwrap();
            fs::write(root.join("d/file"), "captured").unwrap();
            symlink("captured target", root.join("d/link")).unwrap();
            let store = directory.path().join("store");
            let files = HostFilesystem::open(&root, store, HostFilesystemOptions::default()).unwrap();
            files.snapshot(None, false).unwrap();
            fs::remove_file(root.join("d/file")).unwrap();
            fs::remove_file(root.join("d/link")).unwrap();
            Workspace { directory, files }
        }

        fn at(&self, name: &[u8]) -> PathBuf {
            self.directory.path().join("root/d").join(std::str::from_utf8(name).unwrap())
        }

        /// Recovers, and returns the names and contents in the directory.
        fn recovered(&self) -> Vec<(String, String)> {
            self.files.recover_edits(["d/file"]).unwrap();
            let entry = |entry: fs::DirEntry| {
                let name = entry.file_name().into_string().unwrap();
                (name, fs::read_to_string(entry.path()).unwrap())
            };
            let mut found: Vec<_> =
                fs::read_dir(self.at(b"")).unwrap().map(|found| entry(found.unwrap())).collect();
            found.sort();
            found
        }
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, content)| ((*name).to_owned(), (*content).to_owned())).collect()
    }

    #[test]
    fn what_the_edit_wrote_and_what_a_capture_has_is_removed() {
        let work = Workspace::new();
        let names = TemporaryNames::new(b"file");
        fs::write(work.at(&names.new_entry()), "half a fi").unwrap();
        assert_eq!(work.recovered(), []);
        fs::create_dir(work.at(&names.new_entry())).unwrap();
        assert_eq!(work.recovered(), []);
        fs::write(work.at(b"written"), "a merged text that no capture has").unwrap();
        let inode = fs::metadata(work.at(b"written")).unwrap().ino();
        fs::rename(work.at(b"written"), work.at(&names.complete(inode))).unwrap();
        assert_eq!(work.recovered(), []);
        fs::write(work.at(&names.old()), "captured").unwrap();
        assert_eq!(work.recovered(), []);
        symlink("captured target", work.at(&names.old())).unwrap();
        assert_eq!(work.recovered(), []);
    }

    #[test]
    fn an_entry_that_no_capture_has_gets_its_name_again() {
        let work = Workspace::new();
        let names = TemporaryNames::new(b"file");
        fs::write(work.at(&names.old()), "by hand").unwrap();
        fs::set_permissions(work.at(&names.old()), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(work.recovered(), pairs(&[("file", "by hand")]));
        assert_eq!(fs::metadata(work.at(b"file")).unwrap().mode() & 0o777, 0o755);
        // The exchange was done, and the edit's entry is at the path.
        fs::rename(work.at(b"file"), work.at(b"by hand")).unwrap();
        fs::write(work.at(b"file"), "captured").unwrap();
        let inode = fs::metadata(work.at(b"file")).unwrap().ino();
        fs::rename(work.at(b"by hand"), work.at(&names.complete(inode))).unwrap();
        assert_eq!(work.recovered(), pairs(&[("file", "by hand")]));
    }

    #[test]
    fn an_entry_that_no_capture_has_is_kept_next_to_a_newer_one() {
        let work = Workspace::new();
        let names = TemporaryNames::new(b"file");
        for (round, content) in ["first", "second"].into_iter().enumerate() {
            fs::write(work.at(b"file"), "newer").unwrap();
            fs::write(work.at(&names.complete(1)), content).unwrap();
            let found = work.recovered();
            let kept = pairs(&[
                ("file", "newer"),
                ("file.foldlog-kept", "first"),
                ("file.foldlog-kept-1", "second"),
            ]);
            assert_eq!(found, kept[..round + 2]);
        }
        // The edit's entry is at the path, but was written to since.
        fs::write(work.at(&names.complete(fs::metadata(work.at(b"file")).unwrap().ino())), "third").unwrap();
        assert!(work.recovered().contains(&("file.foldlog-kept-2".to_owned(), "third".to_owned())));
    }

    #[test]
    fn a_name_that_no_edit_makes_is_left() {
        let work = Workspace::new();
        for name in [".foldlog-editing-", ".foldlog-editing-1-2", ".foldlog-editing-1-old-00000000"] {
            fs::write(work.at(name.as_bytes()), "x").unwrap();
        }
        assert_eq!(work.recovered().len(), 3);
    }
}
