//! The times of the last changes of a workspace's files. There is one object for each directory,
//! next to its tree object, so that a change of one file creates new objects only for its parent
//! directories.
//!
//! ```text
//! head      "foldlog times 1\n"
//! directory    nanoseconds since 1970 (8, little-endian), of the directory itself
//! lines     for each line of the directory's tree object, in its order: for a file or a link nanoseconds (8); for a directory
//!           the name of its own object (20)
//! ```
//!
//! Such an object has a meaning only together with its tree, which determines the number and the
//! kinds of the lines.

use super::manifest::{GitMode, ManifestEntry, ManifestNode, Stat, TreeEntry};
use super::objects::{ObjectId, ObjectKind, Objects};
use crate::error::Result;

const HEAD: &[u8] = b"foldlog times 1\n";

pub(super) struct Times {
    pub(super) own_ns: i64,
    /// In the order of the tree.
    pub(super) lines: Vec<EntryTime>,
}

#[derive(Clone, Copy)]
pub(super) enum EntryTime {
    Leaf(i64),
    Directory(ObjectId),
}

impl EntryTime {
    pub(super) fn leaf_ns(self) -> Option<i64> {
        if let EntryTime::Leaf(ns) = self { Some(ns) } else { None }
    }

    pub(super) fn directory(self) -> Option<ObjectId> {
        if let EntryTime::Directory(times) = self { Some(times) } else { None }
    }
}

/// Encodes the object of a directory from its entries in the order of its tree. Returns `None` if a
/// directory in it has none.
pub(super) fn encode(own: &Stat, ordered: &[(GitMode, &ManifestEntry)]) -> Option<Vec<u8>> {
    let line = |(_, entry): &(GitMode, &ManifestEntry)| match &entry.node {
        ManifestNode::Leaf(leaf) => Some(EntryTime::Leaf(leaf.stat.modified_ns)),
        ManifestNode::Directory(directory) if directory.times != ObjectId::UNKNOWN => {
            Some(EntryTime::Directory(directory.times))
        }
        ManifestNode::Directory(_) | ManifestNode::Special | ManifestNode::Mount => None,
    };
    let lines: Option<Vec<EntryTime>> = ordered.iter().map(line).collect();
    Some(encode_lines(own.modified_ns, lines?))
}

pub(super) fn encode_lines(own_ns: i64, lines: impl IntoIterator<Item = EntryTime>) -> Vec<u8> {
    let mut bytes = HEAD.to_vec();
    bytes.extend_from_slice(&own_ns.to_le_bytes());
    for line in lines {
        match line {
            EntryTime::Leaf(ns) => bytes.extend_from_slice(&ns.to_le_bytes()),
            EntryTime::Directory(id) => bytes.extend_from_slice(&id.0),
        }
    }
    bytes
}

impl Times {
    pub(super) fn read(objects: &Objects, id: ObjectId, tree: &[TreeEntry]) -> Result<Times> {
        // A line is no longer than an object's name.
        let bytes_max = HEAD.len() + 8 + tree.len() * size_of::<ObjectId>();
        let bytes = objects.read(id, ObjectKind::Blob, bytes_max.try_into().unwrap_or(u64::MAX))?;
        Times::decode(&bytes, tree)
            .ok_or_else(|| objects.damaged(id, "it does not contain the times of its tree"))
    }

    fn decode(bytes: &[u8], tree: &[TreeEntry]) -> Option<Times> {
        let (own, mut rest) = bytes.strip_prefix(HEAD)?.split_first_chunk()?;
        let mut lines = Vec::with_capacity(tree.len());
        for line in tree {
            if line.mode == GitMode::Directory {
                let (id, after) = rest.split_first_chunk()?;
                lines.push(EntryTime::Directory(ObjectId(*id)));
                rest = after;
            } else {
                let (ns, after) = rest.split_first_chunk()?;
                lines.push(EntryTime::Leaf(i64::from_le_bytes(*ns)));
                rest = after;
            }
        }
        rest.is_empty().then(|| Times { own_ns: i64::from_le_bytes(*own), lines })
    }
}
