//! Removes objects from the packs of a store.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;

use super::pack::{GitPack, PackEntry};
use super::writer::{NewPack, PACKED_OBJECT_BYTES_MAX, PackWriter};
use crate::error::{IoContext, Result};
use crate::host::collect::Collection;
use crate::host::listing::remove_if_present;
use crate::host::objects::{ObjectId, Objects};

/// Selects the packs whose needed objects are written into new ones.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::host) enum PackRewrites {
    /// Packs of which more than half of the bytes are not needed. The others keep all objects.
    Mostly,
    /// All packs with an object that is not needed.
    All,
}

/// Removes packs of which nothing is needed. If a part of a pack is not needed, and no other store
/// shares the pack, writes the needed objects into a new one, and removes it then. It does the same
/// with a pack whose index is damaged, or of which an object was damaged, and written again into its
/// own file.
///
/// A kill leaves the old packs, the new ones, or both, and each needed object in one of them.
pub(in crate::host) fn sweep_packs(
    objects: &Objects,
    needed: &HashSet<ObjectId>,
    rewrites: PackRewrites,
    dry_run: bool,
) -> Result<Collection> {
    let is_rewritten = |dead: u64, live: u64| match rewrites {
        PackRewrites::Mostly => dead > live,
        PackRewrites::All => dead > 0,
    };
    let mut removed = Collection::default();
    let (mut unneeded, mut replaced) = (Vec::new(), Vec::new());
    for pack in objects.packs.all() {
        let (live, dead): (Vec<PackEntry>, Vec<PackEntry>) =
            pack.entries().into_iter().partition(|entry| needed.contains(&entry.id));
        let bytes = |entries: &[PackEntry]| entries.iter().map(|entry| entry.len).sum::<u64>();
        let is_last = pack.is_last_name() || objects.unpool_pack(&pack, true);
        let gone = if live.is_empty() {
            unneeded.push(Arc::clone(&pack));
            pack.bytes()
        } else if ((is_last && is_rewritten(bytes(&dead), bytes(&live)))
            || was_damaged(objects, &pack, &live))
            && is_readable(objects, &pack, &live)
        {
            replaced.push((Arc::clone(&pack), live));
            bytes(&dead)
        } else {
            continue;
        };
        removed.objects += u64::try_from(dead.len()).unwrap_or(u64::MAX);
        removed.bytes += if is_last { gone } else { 0 };
    }
    if !dry_run {
        let new = replace(objects, &replaced)?;
        // If only the index of a pack was damaged, the new pack may be equal, and have its name.
        let is_old = |pack: &&Arc<GitPack>| !new.iter().any(|new| new.path == pack.path());
        let replaced = replaced.iter().map(|(pack, _)| pack).filter(is_old);
        for pack in unneeded.iter().chain(replaced) {
            pack.entries().iter().filter(|entry| !needed.contains(&entry.id)).for_each(|entry| {
                objects.forget_one(entry.id);
            });
            objects.unpool_pack(pack, false);
            objects.remove_pack(pack)?;
        }
    }
    sweep_damaged(objects, needed, dry_run, &mut removed)?;
    Ok(removed)
}

/// Returns whether the pack was damaged: an object also has its own file, or the index does not
/// match its checksum.
fn was_damaged(objects: &Objects, pack: &GitPack, live: &[PackEntry]) -> bool {
    live.iter().any(|entry| objects.path(entry.id).is_file()) || !pack.has_intact_index()
}

/// Returns whether all of these objects of a pack are intact. A pack with a damaged one is kept, for
/// whatever can still be read from it.
fn is_readable(objects: &Objects, pack: &GitPack, live: &[PackEntry]) -> bool {
    live.iter().all(|entry| {
        let opened = pack.open_object(entry.offset).ok().and_then(Result::ok);
        opened.is_some_and(|opened| opened.drain(entry.id, true, &mut |_| {}).is_ok())
            || (objects.path(entry.id).is_file() && objects.has_intact(entry.id))
    })
}

/// Writes the needed objects of packs into new packs. These are durable when this returns.
fn replace(objects: &Objects, replaced: &[(Arc<GitPack>, Vec<PackEntry>)]) -> Result<Vec<NewPack>> {
    let (mut new, mut writer) = (Vec::new(), None);
    for (pack, entry) in replaced.iter().flat_map(|(pack, live)| live.iter().map(move |entry| (pack, entry)))
    {
        // Its own file precedes the pack.
        if objects.path(entry.id).is_file() {
            continue;
        }
        let read = pack.read_entry(entry).during("read", pack.path())?;
        let mut open = match writer.take() {
            Some(open) => open,
            None => objects.create_pack()?,
        };
        let added = match read {
            Some(bytes) => open.add_entry(entry.id, &bytes),
            // The index is damaged: how long the entry is remains unknown.
            None => {
                let (kind, bytes) = objects.read_any(entry.id, PACKED_OBJECT_BYTES_MAX as u64)?;
                open.add((entry.id, kind), &bytes, &objects.compressors)
            }
        };
        added.during("write", objects.packs.directory())?;
        if open.is_full() {
            new.push(objects.finish_pack(open)?);
        } else {
            writer = Some(open);
        }
    }
    new.extend(writer.map(|writer: PackWriter| objects.finish_pack(writer)).transpose()?);
    objects.sync_packs(&new)?;
    Ok(new)
}

/// Removes packs that cannot be used, if all needed objects are elsewhere.
fn sweep_damaged(
    objects: &Objects,
    needed: &HashSet<ObjectId>,
    dry_run: bool,
    removed: &mut Collection,
) -> Result<()> {
    let damaged = objects.packs.damaged();
    if damaged.is_empty() || !needed.iter().all(|id| objects.contains(*id)) {
        return Ok(());
    }
    for path in damaged.iter().flat_map(|pack| ["idx", "pack"].map(|end| pack.path.with_extension(end))) {
        let Some(found) = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file) else { continue };
        removed.bytes += found.len();
        if !dry_run {
            remove_if_present(&path)?;
        }
    }
    Ok(())
}
