//! Commits that are no longer referenced once a repository is restored, and refs that preserve
//! them.
//!
//! A commit counts as lost if it was named by a ref, a `HEAD`, or an entry that a call added to the
//! log of `HEAD` or of `refs/stash`, but is named by no ref, `HEAD` or log of the capture. No
//! commit is read, so one of them may be an ancestor of a commit that stays. Of commits that the
//! log shows to be parents of the next one, only the last is preserved. Commits in `refs/remotes`
//! can be fetched again.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::sys::stat::Mode;

use super::super::manifest::join;
use super::super::metadata::unhex;
use super::super::rules::is_temporary;
use super::super::step::{OPEN_DIRECTORY, list, open_at, open_file, stat_at};
use super::read_start;

const PACK_INDEX: [u8; 8] = [0xff, b't', b'O', b'c', 0, 0, 0, 2];

/// Length of the part before the ids in an index: the above, and 256 counts.
const PACK_INDEX_HEAD: u64 = 8 + 256 * 4;

/// The prefix of the refs that preserve lost commits.
pub(super) const LOST: &[u8] = b"refs/foldlog/lost";

/// Returns the id, in hexadecimal, if it is the only content of a file.
pub(super) fn id_in(content: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(content).ok()?.trim();
    let is_id = matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(text)
}

/// Returns the id in a ref's file, or those in the lines of `packed-refs`, with the ref's name.
pub(super) fn ids_in(path: &str, content: &[u8]) -> Vec<(String, String)> {
    if path != "packed-refs" {
        return id_in(content).map(|id| (id.to_owned(), path.to_owned())).into_iter().collect();
    }
    let text = String::from_utf8_lossy(content);
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .filter(|(id, _)| id_in(id.as_bytes()).is_some())
        .map(|(id, name)| (id.to_owned(), name.to_owned()))
        .collect()
}

/// Returns the resulting ids of log lines that are not in `before`, the newest first, without those
/// that are parents of others.
pub(super) fn ids_in_log(now: &[u8], before: &[u8]) -> Vec<String> {
    let (now, before) = (String::from_utf8_lossy(now), String::from_utf8_lossy(before));
    let known: HashSet<&str> = before.lines().collect();
    let (mut ids, mut parents) = (Vec::new(), HashSet::new());
    for line in now.lines().filter(|line| !known.contains(line)) {
        let mut words = line.split(' ');
        let (Some(from), Some(to)) = (words.next(), words.next()) else { continue };
        let message = line.split_once('\t').map_or("", |(_, message)| message);
        let adds =
            ["commit:", "commit (initial)", "commit (merge)", "cherry-pick:", "rebase (pick)", "revert:"];
        if adds.iter().any(|start| message.starts_with(start)) {
            parents.insert(from);
        }
        ids.push(to);
    }
    let found = ids.into_iter().rev().filter(|id| !parents.contains(id) && id_in(id.as_bytes()).is_some());
    let mut seen = HashSet::new();
    found.filter(|id| seen.insert(*id)).map(str::to_owned).collect()
}

/// Returns whether a repository has a git object. A repository that borrows objects, or has a pack
/// that cannot be read, counts as having all of them.
pub(super) fn has_object(repository: &OwnedFd, id: &str) -> bool {
    let directory = |around: &OwnedFd, name: &[u8]| open_at(around, name, OPEN_DIRECTORY, Mode::empty());
    let Ok(objects) = directory(repository, b"objects") else { return false };
    let (first, rest) = id.split_at_checked(2).unwrap_or_default();
    if directory(&objects, first.as_bytes()).is_ok_and(|loose| stat_at(&loose, rest.as_bytes()).is_ok()) {
        return true;
    }
    if directory(&objects, b"info").is_ok_and(|info| stat_at(&info, b"alternates").is_ok()) {
        return true;
    }
    let Ok(packs) = directory(&objects, b"pack") else { return false };
    let Some(id) = unhex(id) else { return true };
    list(&packs).unwrap_or_default().iter().filter(|(name, _)| name.ends_with(b".idx")).any(|(name, _)| {
        open_file(&packs, name).ok().and_then(|file| is_in_index(&File::from(file), &id)).unwrap_or(true)
    })
}

/// Returns whether the index of a pack has an id, or `None` if it cannot be read.
fn is_in_index(file: &File, id: &[u8]) -> Option<bool> {
    let mut head = [0; 8];
    file.read_exact_at(&mut head, 0).ok()?;
    let first = u64::from(*id.first()?);
    let count_to = |byte: u64| {
        let mut count = [0; 4];
        file.read_exact_at(&mut count, 8 + byte * 4).ok()?;
        Some(u64::from(u32::from_be_bytes(count)))
    };
    if head != PACK_INDEX {
        return None;
    }
    let from = if first == 0 { 0 } else { count_to(first - 1)? };
    let ids = count_to(first)?.checked_sub(from)?;
    let length = u64::try_from(id.len()).ok()?;
    let mut bytes = vec![0; usize::try_from(ids.checked_mul(length)?).ok()?];
    file.read_exact_at(&mut bytes, PACK_INDEX_HEAD + from * length).ok()?;
    Some(bytes.chunks_exact(id.len()).any(|one| one == id))
}

/// The refs of a repository that preserve lost commits: names within [`LOST`], and their commits.
#[derive(Default)]
pub(super) struct LostCommitRefs {
    /// Refs in separate files, as a restore writes them.
    pub(super) loose: BTreeSet<(String, String)>,
    pub(super) packed: BTreeSet<(String, String)>,
}

impl LostCommitRefs {
    pub(super) fn in_repository(repository: &OwnedFd, packed_refs: &[u8]) -> LostCommitRefs {
        let within = |(id, name): (String, String)| {
            let name = name.strip_prefix(std::str::from_utf8(LOST).ok()?)?.strip_prefix('/')?.to_owned();
            Some((name, id))
        };
        let packed = ids_in("packed-refs", packed_refs).into_iter().filter_map(within).collect();
        let mut directory = open_at(repository, b".", OPEN_DIRECTORY, Mode::empty());
        for name in LOST.split(|byte| *byte == b'/') {
            directory =
                directory.and_then(|directory| open_at(&directory, name, OPEN_DIRECTORY, Mode::empty()));
        }
        let Ok(directory) = directory else { return LostCommitRefs { packed, ..LostCommitRefs::default() } };
        let names =
            list(&directory).unwrap_or_default().into_iter().filter(|(name, _)| !name.starts_with(b"."));
        let loose = names.filter_map(|(name, _)| {
            let id = id_in(&read_start(&directory, &name).ok()?)?.to_owned();
            Some((String::from_utf8(name).ok()?, id))
        });
        LostCommitRefs { loose: loose.collect(), packed }
    }

    fn all(&self) -> impl Iterator<Item = &(String, String)> {
        self.loose.iter().chain(&self.packed)
    }

    /// Returns the name of the ref that preserves a commit.
    pub(super) fn name_of(&self, id: &str) -> Option<String> {
        self.all().find(|(_, kept)| kept == id).map(|(name, _)| name.clone())
    }

    /// Returns an unused name: `base`, or `base` with a number.
    pub(super) fn free_name(&self, base: &str) -> String {
        let is_free = |name: &String| !self.all().any(|(taken, _)| taken == name);
        let mut further = (2_u32..).map(|number| format!("{base}-{number}"));
        Some(base.to_owned()).filter(is_free).or_else(|| further.find(is_free)).unwrap_or_default()
    }

    /// Returns the refs that are only in `packed-refs`. A restore of that file may remove them.
    pub(super) fn packed_alone(&self) -> Vec<(String, String)> {
        let is_loose = |name: &str| self.loose.iter().any(|(loose, _)| loose == name);
        self.packed.iter().filter(|(name, _)| !is_loose(name)).cloned().collect()
    }
}

pub(super) fn path_of(repository: &[u8], name: &str) -> Vec<u8> {
    join(&join(repository, LOST), name.as_bytes())
}

/// Opens the directory [`LOST`] of a repository, and creates it if it is missing.
pub(super) fn make_directory(
    repository: &OwnedFd,
    give: &dyn Fn(&OwnedFd) -> Result<(), Errno>,
) -> Result<OwnedFd, Errno> {
    let mut directory = open_at(repository, b".", OPEN_DIRECTORY, Mode::empty())?;
    for name in LOST.split(|byte| *byte == b'/') {
        let is_new = match nix::sys::stat::mkdirat(&directory, name, Mode::S_IRWXU) {
            Ok(()) => true,
            Err(Errno::EEXIST) => false,
            Err(errno) => return Err(errno),
        };
        directory = open_at(&directory, name, OPEN_DIRECTORY, Mode::empty())?;
        if is_new {
            give(&directory)?;
        }
    }
    Ok(directory)
}

/// Returns whether a ref preserves lost commits, or is a parent directory of such refs. None of
/// these is removed.
pub(super) fn is_kept_ref(path: &[u8]) -> bool {
    let lost = [&b"/"[..], LOST].concat();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let is_within = path.windows(lost.len()).any(|at| at == lost);
    (path.ends_with(b"/refs/foldlog") || is_within) && !is_temporary(name)
}

/// Returns whether a name is that of a file in the repository of a linked worktree.
pub(super) fn is_of_worktree(name: &str, file: &str) -> bool {
    name.starts_with("worktrees/") && name.ends_with(file)
}

/// Returns whether the commits of a file of a repository, or of a ref, must not be lost.
pub(super) fn is_head_or_ref(name: &str) -> bool {
    let is_ref = name.starts_with("refs/")
        && !name.starts_with("refs/remotes/")
        && !name.starts_with("refs/foldlog/lost/");
    is_ref || name == "HEAD" || name == "packed-refs" || is_of_worktree(name, "/HEAD")
}
