//! The data of a snapshot in addition to contents and permissions: owners, extended attributes,
//! names of the same file, files with holes, files that were still being written, and files with shared
//! blocks. It is an object in the store, which the capture names.
//!
//! ```text
//! foldlog-metadata 1
//! owner UID:GID               the most frequent owner
//! times ID                    the object of the root directory's times, if times are captured (`times.rs`)
//! WORDS ./PATH                each path with data of its own, sorted; each byte of it that is not plain as \xNN
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | `owner=UID:GID` | owner of the path |
//! | `link=N` | names with one number are one file; they count from 0, in the order of their first paths |
//! | `sparse` | the blob lists the ranges of the file's data (`sparse.rs`) |
//! | `prefix` | the blob is a prefix of the file, which was growing |
//! | `shared` | the blob describes the file's content (`shared.rs`) |
//! | `x:NAME=VALUE` | an extended attribute, both in hexadecimal |
//!
//! The words are in this order, each once except the last. Any other form than that of
//! [`Metadata::encode`] is invalid, so that equal metadata has equal bytes.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::manifest::{
    Attributes, FileForm, ManifestDirectory, Owner, ValueCounts, VisitedNode, escape_path, unescape_path,
    visit,
};
use super::objects::{ObjectId, ObjectKind, Objects};
use crate::error::{Error, Result};

const HEAD: &str = "foldlog-metadata 1";

/// Greatest length of metadata in bytes. More is rejected when the capture is taken.
const BYTES_MAX: u64 = 256 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Metadata {
    owner: Owner,
    pub(super) times: Option<ObjectId>,
    /// By path, sorted; the root's is empty.
    others: Vec<(Vec<u8>, PathMetadata)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PathMetadata {
    owner: Option<Owner>,
    pub(super) link: Option<u32>,
    pub(super) form: FileForm,
    pub(super) attributes: Attributes,
}

/// The files with several names: the number of the file for each path, and the number of names of
/// each file within the workspace.
#[derive(Debug, Default)]
pub(super) struct Links {
    of_path: HashMap<Vec<u8>, u32>,
    within: HashMap<(u64, u64), u32>,
}

impl Links {
    /// Takes all paths of files with several names, inside or outside of the workspace.
    pub(super) fn new(found: Vec<(u64, u64, Vec<u8>)>) -> Links {
        let mut files: HashMap<(u64, u64), Vec<Vec<u8>>> = HashMap::new();
        for (device, inode, path) in found {
            files.entry((device, inode)).or_default().push(path);
        }
        let within = files
            .iter()
            .map(|(file, names)| (*file, u32::try_from(names.len()).unwrap_or(u32::MAX)))
            .collect();
        let mut files: Vec<Vec<Vec<u8>>> = files.into_values().filter(|names| names.len() > 1).collect();
        files.iter_mut().for_each(|names| names.sort());
        files.sort();
        let mut of_path = HashMap::new();
        for (names, number) in files.into_iter().zip(0..) {
            of_path.extend(names.into_iter().map(|name| (name, number)));
        }
        Links { of_path, within }
    }

    pub(super) fn names_within(&self, device: u64, inode: u64) -> u32 {
        self.within.get(&(device, inode)).copied().unwrap_or(1)
    }
}

impl Metadata {
    pub(super) fn from_manifest(
        root: &ManifestDirectory,
        links: &Links,
        times: Option<ObjectId>,
    ) -> Metadata {
        let mut counts = ValueCounts::default();
        visit(root, &mut |found| counts.add(found.stat.owner));
        let owner = counts.most();
        let mut others = Vec::new();
        visit(root, &mut |found: &VisitedNode<'_>| {
            let owner = Some(found.stat.owner).filter(|own| *own != owner);
            let attributes = found.attributes.clone();
            let link = match found.stat.names {
                0 | 1 => None,
                _ if links.of_path.is_empty() => None,
                _ => links.of_path.get(&found.path()).copied(),
            };
            let other = PathMetadata { owner, link, form: found.form, attributes };
            if other != PathMetadata::default() {
                others.push((found.path(), other));
            }
        });
        others.sort_by(|(left, _), (right, _)| left.cmp(right));
        Metadata { owner, times, others }
    }

    /// Returns the metadata of paths from two sides: paths with `true` take those of `now`, the
    /// others those of `self`. The paths are sorted. Names of one file stay so if both are from one
    /// side.
    pub(super) fn merge_with(
        &self,
        now: &Metadata,
        times: Option<ObjectId>,
        paths: impl Iterator<Item = (Vec<u8>, bool)>,
    ) -> Metadata {
        let mut names: HashMap<(bool, u32), u32> = HashMap::new();
        let mut mixed = Vec::new();
        for (path, is_now) in paths {
            let side = if is_now { now } else { self };
            let owner = Some(side.owner(&path)).filter(|own| *own != self.owner);
            let other = PathMetadata { owner, ..side.get(&path).cloned().unwrap_or_default() };
            if let Some(link) = other.link {
                *names.entry((is_now, link)).or_default() += 1;
            }
            mixed.push((path, is_now, other));
        }
        // Numbered in the order of their first paths, as everywhere.
        let mut numbers: HashMap<(bool, u32), u32> = HashMap::new();
        let mut others = Vec::new();
        for (path, is_now, mut other) in mixed {
            let link = other.link.map(|link| (is_now, link));
            other.link = link.filter(|link| names.get(link) > Some(&1)).map(|link| {
                let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
                *numbers.entry(link).or_insert(next)
            });
            if other != PathMetadata::default() {
                others.push((path, other));
            }
        }
        Metadata { owner: self.owner, times, others }
    }

    pub(super) fn get(&self, path: &[u8]) -> Option<&PathMetadata> {
        let at = self.others.binary_search_by(|(other, _)| other.as_slice().cmp(path)).ok()?;
        self.others.get(at).map(|(_, other)| other)
    }

    pub(super) fn has_several_names(&self, path: &[u8]) -> bool {
        self.get(path).is_some_and(|other| other.link.is_some())
    }

    pub(super) fn owner(&self, path: &[u8]) -> Owner {
        self.get(path).and_then(|other| other.owner).unwrap_or(self.owner)
    }

    /// Returns the paths of files of a form.
    pub(super) fn of_form(&self, form: FileForm) -> impl Iterator<Item = &[u8]> {
        let of_form = self.others.iter().filter(move |(_, other)| other.form == form);
        of_form.map(|(path, _)| path.as_slice())
    }

    /// Returns the files whose blob is not their content, sorted by path.
    pub(super) fn into_forms(self) -> Vec<(Vec<u8>, FileForm)> {
        let forms = self.others.into_iter().map(|(path, other)| (path, other.form));
        forms.filter(|(_, form)| *form != FileForm::Whole).collect()
    }

    pub(super) fn is_same_but_for_times(&self, other: &Metadata) -> bool {
        self.owner == other.owner && self.others == other.others
    }

    /// Returns all paths of its file for each path of a file with several names. Unlike numbers,
    /// paths can be compared between two sides.
    pub(super) fn links(&self) -> HashMap<&[u8], Arc<Vec<&[u8]>>> {
        let mut files: HashMap<u32, Vec<&[u8]>> = HashMap::new();
        for (path, other) in &self.others {
            if let Some(link) = other.link {
                files.entry(link).or_default().push(path);
            }
        }
        let mut of_path = HashMap::new();
        for names in files.into_values() {
            let names = Arc::new(names);
            of_path.extend(names.iter().map(|name| (*name, Arc::clone(&names))));
        }
        of_path
    }

    pub(super) fn write(&self, objects: &Objects) -> Result<ObjectId> {
        let text = self.encode();
        if u64::try_from(text.len()).is_ok_and(|len| len > BYTES_MAX) {
            let reason = format!(
                "its owners, attributes and links take {} bytes, more than the limit of {BYTES_MAX} bytes",
                text.len()
            );
            return Err(Error::path(".", reason));
        }
        objects.write(ObjectKind::Blob, text.as_bytes())
    }

    pub(super) fn read(objects: &Objects, id: ObjectId) -> Result<Metadata> {
        let bytes = objects.read(id, ObjectKind::Blob, BYTES_MAX)?;
        let metadata = std::str::from_utf8(&bytes).ok().and_then(Metadata::decode);
        metadata.ok_or_else(|| objects.damaged(id, "it is not the metadata of a workspace snapshot"))
    }

    fn encode(&self) -> String {
        let Metadata { owner, times, others } = self;
        let mut text = format!("{HEAD}\nowner {owner}\n");
        if let Some(times) = times {
            let _ = writeln!(text, "times {times}");
        }
        for (path, other) in others {
            other.encode(&mut text);
            let _ = writeln!(text, "./{}", escape_path(path));
        }
        text
    }

    fn decode(text: &str) -> Option<Metadata> {
        let mut lines = text.lines().peekable();
        if lines.next()? != HEAD {
            return None;
        }
        let owner = parse_owner(lines.next()?.strip_prefix("owner ")?)?;
        let times = lines.next_if(|line| line.starts_with("times "));
        let times = match times {
            Some(line) => Some(ObjectId::parse(line.strip_prefix("times ")?)?),
            None => None,
        };
        let mut others = Vec::new();
        for line in lines {
            let (words, path) = line.split_once(" ./")?;
            others.push((unescape_path(path)?, PathMetadata::decode(words)?));
        }
        let sorted = others.is_sorted_by(|(left, _), (right, _)| left < right);
        let metadata = Metadata { owner, times, others };
        (sorted && metadata.encode() == text).then_some(metadata)
    }
}

fn parse_owner(text: &str) -> Option<Owner> {
    let (uid, gid) = text.split_once(':')?;
    Some(Owner { uid: uid.parse().ok()?, gid: gid.parse().ok()? })
}

impl PathMetadata {
    fn encode(&self, text: &mut String) {
        let PathMetadata { owner, link, form, attributes } = self;
        if let Some(owner) = owner {
            let _ = write!(text, "owner={owner} ");
        }
        if let Some(link) = link {
            let _ = write!(text, "link={link} ");
        }
        text.push_str(match form {
            FileForm::Whole => "",
            FileForm::Sparse => "sparse ",
            FileForm::Prefix => "prefix ",
            FileForm::Shared => "shared ",
        });
        for (name, value) in attributes.iter().flat_map(|attributes| attributes.iter()) {
            text.push_str("x:");
            hex(name, text);
            text.push('=');
            hex(value, text);
            text.push(' ');
        }
    }

    fn decode(words: &str) -> Option<PathMetadata> {
        let mut other = PathMetadata::default();
        let mut attributes = Vec::new();
        for word in words.split(' ') {
            if let Some(owner) = word.strip_prefix("owner=") {
                other.owner = Some(parse_owner(owner)?);
            } else if let Some(link) = word.strip_prefix("link=") {
                other.link = Some(link.parse().ok()?);
            } else if let Some(attribute) = word.strip_prefix("x:") {
                let (name, value) = attribute.split_once('=')?;
                attributes.push((unhex(name)?, unhex(value)?));
            } else {
                other.form = match word {
                    "sparse" => FileForm::Sparse,
                    "prefix" => FileForm::Prefix,
                    "shared" => FileForm::Shared,
                    _ => return None,
                };
            }
        }
        if !attributes.is_empty() {
            other.attributes = Some(Arc::new(attributes));
        }
        Some(other)
    }
}

fn hex(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
}

pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn owner() -> impl Strategy<Value = Owner> {
        any::<(u32, u32)>().prop_map(|(uid, gid)| Owner { uid, gid })
    }

    proptest! {
        /// An object is either valid metadata or rejected, and metadata is read as it was written.
        #[test]
        fn metadata_is_read_as_it_was_written(
            owner in owner(),
            times in any::<Option<[u8; 20]>>(),
            others in prop::collection::btree_map(
                prop::collection::vec(1u8.., 0..20),
                (prop::option::of(owner()), any::<Option<u32>>(), 0..4, prop::collection::btree_map(
                    prop::collection::vec(1u8.., 1..20), prop::collection::vec(any::<u8>(), 0..20), 0..3)),
                0..5),
            anything in ".{0,200}",
        ) {
            let form = |number| [FileForm::Whole, FileForm::Sparse, FileForm::Prefix, FileForm::Shared][number as usize];
            let other = |(owner, link, number, attributes): (_, _, i32, std::collections::BTreeMap<_, _>)| PathMetadata {
                owner, link, form: form(number),
                attributes: (!attributes.is_empty()).then(|| Arc::new(attributes.into_iter().collect())),
            };
            let others = others.into_iter().map(|(path, found)| (path, other(found)));
            let others: Vec<_> = others.filter(|(_, other)| *other != PathMetadata::default()).collect();
            let metadata = Metadata { owner, times: times.map(ObjectId), others };
            let text = metadata.encode();
            prop_assert_eq!(Metadata::decode(&text), Some(metadata));
            let _ = Metadata::decode(&anything);
            let _ = Metadata::decode(&format!("{text}{anything}"));
            prop_assert_eq!(Metadata::decode(&format!("{text} ")), None);
        }
    }
}
