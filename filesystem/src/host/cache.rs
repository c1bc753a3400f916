//! The stat cache's file: the result of the last walk, so that another process need not read every
//! file again.
//!
//! It is a cache: written without a sync, checked as a whole, and ignored if anything about it is
//! unexpected.
//!
//! ```text
//! head      "foldlog stat cache 5\n", boot id (16), mark (16), the directory's inode (8) and creation time (8)
//! directories   each before those in it: stat (56), time at which the attributes were read (8), attributes, tree (20),
//!           stamp (16), durable (1), times (20), stamp (16), count of entries (4), entries
//! entry     length of the name (2), name, then one of
//!             0  a directory; the next of the directories not yet named, in order
//!             1  a file or a link: stat (56), blob (20), stamp (16), bits: racy 1, durable 2, attributes follow 4, sparse 8, prefix 16, shared 32;
//!                of a sparse one the blob of its data (20), stamp (16)
//! stat      device, inode, length (8 each), times of the last changes of content and of metadata (8 each), mode, user, group,
//!           names (4 each)
//! stamp     length of the object's file (8), time of its last change (8); `Stamp::UNKNOWN` if it is not known to be intact
//! attributes  count (4); for each the lengths of name and value (4 each), name, value
//! tail      BLAKE3 of all bytes before it (32)
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::attributes::listed;
use super::known_objects::Stamp;
use super::manifest::{
    Attributes, FileForm, Leaf, ManifestDirectory, ManifestEntry, ManifestNode, Owner, Stat,
};
use super::objects::{ObjectId, Objects};
use super::sparse::Sparse;
use crate::DirectoryIdentity;
use crate::path::DEPTH_MAX;

const HEAD: &[u8] = b"foldlog stat cache 5\n";
const HASH_BYTES: usize = 32;

const RACY: u8 = 1;
const DURABLE: u8 = 2;
const ATTRIBUTES: u8 = 4;
const SPARSE: u8 = 8;
const PREFIX: u8 = 16;
const SHARED: u8 = 32;

/// Conditions that must be the same as when the file was written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct StatCacheKey {
    /// Objects that were not synced are not reliable after a power cut.
    pub(super) boot: [u8; 16],
    /// The last collection of the store.
    pub(super) mark: [u8; 16],
    /// The directory that was walked. If it is unknown, any directory in the file is accepted.
    pub(super) directory: Option<DirectoryIdentity>,
}

pub(super) enum Cached {
    Here(Arc<ManifestDirectory>),
    /// It is of a different directory.
    Elsewhere(DirectoryIdentity),
}

const BORN_UNKNOWN: i64 = i64::MIN;

pub(super) fn encode(
    circumstances: StatCacheKey,
    root: &Arc<ManifestDirectory>,
    objects: &Objects,
) -> Vec<u8> {
    let mut bytes = HEAD.to_vec();
    bytes.extend_from_slice(&circumstances.boot);
    bytes.extend_from_slice(&circumstances.mark);
    let (inode, born_ns) =
        circumstances.directory.map_or((0, None), |directory| (directory.inode, directory.born_ns));
    bytes.extend_from_slice(&inode.to_le_bytes());
    bytes.extend_from_slice(&born_ns.unwrap_or(BORN_UNKNOWN).to_le_bytes());
    let mut left = vec![root];
    while let Some(directory) = left.pop() {
        put_stat(&mut bytes, &directory.stat);
        bytes.extend_from_slice(&directory.checked_ns.load(Ordering::Relaxed).to_le_bytes());
        put_attributes(&mut bytes, &directory.attributes);
        put_object(&mut bytes, directory.tree, objects);
        bytes.push(u8::from(objects.is_durable(directory.tree)));
        // The times are omitted if they may be lost before the tree is.
        let times = Some(directory.times)
            .filter(|times| objects.is_durable(*times) || !objects.is_durable(directory.tree));
        put_object(&mut bytes, times.unwrap_or(ObjectId::UNKNOWN), objects);
        let entries: Vec<&ManifestEntry> = directory
            .entries
            .iter()
            .filter(|entry| !matches!(entry.node, ManifestNode::Special | ManifestNode::Mount))
            .collect();
        bytes.extend_from_slice(&u32::try_from(entries.len()).unwrap_or(u32::MAX).to_le_bytes());
        let first = left.len();
        for entry in entries {
            bytes.extend_from_slice(&u16::try_from(entry.name.len()).unwrap_or(u16::MAX).to_le_bytes());
            bytes.extend_from_slice(&entry.name);
            match &entry.node {
                ManifestNode::Directory(directory) => {
                    bytes.push(0);
                    left.push(directory);
                }
                ManifestNode::Leaf(Leaf { stat, attributes, form, blob, racy }) => {
                    bytes.push(1);
                    put_stat(&mut bytes, stat);
                    put_object(&mut bytes, *blob, objects);
                    let form = match form {
                        FileForm::Whole => 0,
                        FileForm::Sparse => SPARSE,
                        FileForm::Prefix => PREFIX,
                        FileForm::Shared => SHARED,
                    };
                    let attributed = if attributes.is_some() { ATTRIBUTES } else { 0 };
                    let durable = if objects.is_durable(*blob) { DURABLE } else { 0 };
                    bytes.push(if *racy { RACY } else { 0 } | durable | attributed | form);
                    if attributes.is_some() {
                        put_attributes(&mut bytes, attributes);
                    }
                    if form == SPARSE {
                        let data = Sparse::read(objects, *blob).map(|(_, data)| data);
                        put_object(&mut bytes, data.unwrap_or(ObjectId::UNKNOWN), objects);
                    }
                }
                ManifestNode::Special | ManifestNode::Mount => {}
            }
        }
        // The first directory that was named comes next.
        if let Some(named) = left.get_mut(first..) {
            named.reverse();
        }
    }
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    bytes
}

fn put_object(bytes: &mut Vec<u8>, id: ObjectId, objects: &Objects) {
    let stamp = objects.known_stamp(id);
    bytes.extend_from_slice(&id.0);
    bytes.extend_from_slice(&stamp.len.to_le_bytes());
    bytes.extend_from_slice(&stamp.modified_ns.to_le_bytes());
}

fn put_stat(bytes: &mut Vec<u8>, stat: &Stat) {
    for word in [stat.device, stat.inode, stat.len] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    for ns in [stat.modified_ns, stat.changed_ns] {
        bytes.extend_from_slice(&ns.to_le_bytes());
    }
    for word in [stat.mode, stat.owner.uid, stat.owner.gid, stat.names] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
}

fn put_attributes(bytes: &mut Vec<u8>, attributes: &Attributes) {
    let attributes = listed(attributes);
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
    bytes.extend_from_slice(&number(attributes.len()));
    for (name, value) in attributes {
        bytes.extend_from_slice(&number(name.len()));
        bytes.extend_from_slice(&number(value.len()));
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value);
    }
}

/// Reads the content of a cache file, and registers its objects in `objects`.
pub(super) fn decode(bytes: &[u8], now: StatCacheKey, objects: &Objects) -> Option<Cached> {
    let (bytes, hash) = bytes.split_at_checked(bytes.len().checked_sub(HASH_BYTES)?)?;
    if blake3::hash(bytes).as_bytes() != hash {
        return None;
    }
    let mut rest = Rest(bytes.strip_prefix(HEAD)?);
    let (boot, mark) = (rest.take()?, rest.take()?);
    if mark != now.mark {
        return None;
    }
    let (inode, born_ns) = (u64::from_le_bytes(rest.take()?), i64::from_le_bytes(rest.take()?));
    let walked = DirectoryIdentity::new(None, inode, (born_ns != BORN_UNKNOWN).then_some(born_ns));
    if now.directory.is_some_and(|directory| (directory.inode, directory.born_ns) != (inode, walked.born_ns))
    {
        return Some(Cached::Elsewhere(walked));
    }
    let same_boot = boot == now.boot;
    let mut known = Vec::new();
    let mut judge = |(id, stamp): (ObjectId, Stamp), durable: bool| match durable || same_boot {
        true => {
            known.push((id, durable, stamp));
            id
        }
        false => ObjectId::UNKNOWN,
    };
    let root = rest.directory(&mut judge, 0)?;
    if !rest.0.is_empty() {
        return None;
    }
    known.retain(|(id, _, stamp)| *id != ObjectId::UNKNOWN && *stamp != Stamp::UNKNOWN);
    objects.learn(known);
    Some(Cached::Here(root))
}

struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn directory(
        &mut self,
        judge: &mut dyn FnMut((ObjectId, Stamp), bool) -> ObjectId,
        depth: usize,
    ) -> Option<Arc<ManifestDirectory>> {
        if depth > DEPTH_MAX {
            return None;
        }
        let stat = self.stat()?;
        let checked_ns = i64::from_le_bytes(self.take()?);
        let attributes = self.attributes()?;
        let (tree, [durable]) = (self.object()?, self.take()?);
        let tree = judge(tree, durable == 1);
        let times = judge(self.object()?, durable == 1);
        let count = u32::from_le_bytes(self.take()?);
        let mut entries = Vec::new();
        let mut directories = Vec::new();
        for at in 0..count {
            let length = u16::from_le_bytes(self.take()?);
            let (name, rest) = self.0.split_at_checked(usize::from(length))?;
            self.0 = rest;
            let node = match self.take()? {
                [0] => {
                    directories.push(at);
                    ManifestNode::Special
                }
                [1] => ManifestNode::Leaf(self.leaf(judge)?),
                _ => return None,
            };
            entries.push(ManifestEntry { name: Arc::from(name), node });
        }
        for at in directories {
            let directory = self.directory(judge, depth + 1)?;
            entries.get_mut(usize::try_from(at).ok()?)?.node = ManifestNode::Directory(directory);
        }
        let mut directory = ManifestDirectory::new(stat, attributes, tree, entries);
        directory.times = times;
        directory.checked_ns = checked_ns.into();
        Some(Arc::new(directory))
    }

    fn leaf(&mut self, judge: &mut dyn FnMut((ObjectId, Stamp), bool) -> ObjectId) -> Option<Leaf> {
        let stat = self.stat()?;
        let (blob, [bits]) = (self.object()?, self.take()?);
        let form = match bits & (SPARSE | PREFIX | SHARED) {
            0 => FileForm::Whole,
            SPARSE => FileForm::Sparse,
            PREFIX => FileForm::Prefix,
            SHARED => FileForm::Shared,
            _ => return None,
        };
        let attributes = if bits & ATTRIBUTES == 0 { None } else { self.attributes()? };
        let blob = judge(blob, bits & DURABLE != 0);
        if form == FileForm::Sparse {
            judge(self.object()?, bits & DURABLE != 0);
        }
        Some(Leaf { stat, attributes, form, blob, racy: bits & RACY != 0 })
    }

    fn object(&mut self) -> Option<(ObjectId, Stamp)> {
        let id = ObjectId(self.take()?);
        let (len, modified_ns) = (u64::from_le_bytes(self.take()?), i64::from_le_bytes(self.take()?));
        Some((id, Stamp { len, modified_ns }))
    }

    fn stat(&mut self) -> Option<Stat> {
        let (device, inode) = (u64::from_le_bytes(self.take()?), u64::from_le_bytes(self.take()?));
        let len = u64::from_le_bytes(self.take()?);
        let (modified_ns, changed_ns) = (i64::from_le_bytes(self.take()?), i64::from_le_bytes(self.take()?));
        let mut word = || self.take().map(u32::from_le_bytes);
        let (mode, owner, names) = (word()?, Owner { uid: word()?, gid: word()? }, word()?);
        Some(Stat { device, inode, mode, owner, names, len, modified_ns, changed_ns })
    }

    fn attributes(&mut self) -> Option<Attributes> {
        let count = u32::from_le_bytes(self.take()?);
        let mut attributes = Vec::new();
        for _ in 0..count {
            let (name, value) = (u32::from_le_bytes(self.take()?), u32::from_le_bytes(self.take()?));
            let (name, value) = (usize::try_from(name).ok()?, usize::try_from(value).ok()?);
            let (name, rest) = self.0.split_at_checked(name)?;
            let (value, rest) = rest.split_at_checked(value)?;
            self.0 = rest;
            attributes.push((name.to_vec(), value.to_vec()));
        }
        Some((!attributes.is_empty()).then(|| Arc::new(attributes)))
    }
}
