//! Reads the contents of a directory by its own walk, to compare them before and after.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::report::Result;

/// Prefix of the engine's own attribute on a workspace's root, which tools do not see.
const ENGINES: &str = "user.foldlog.";

/// Longer files are not read: a tool made them of holes.
const READ_MAX: u64 = 1 << 30;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    /// Length and hash of a file, target of a link.
    content: String,
    /// The first path, in order, that names the same file.
    first_name: Option<PathBuf>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Selects what is compared in addition to names, kinds and contents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compared {
    pub(crate) modes: bool,
    pub(crate) owners: bool,
    /// Of files and links. A directory's time changes with its entries.
    pub(crate) times: bool,
    pub(crate) links: bool,
    pub(crate) attributes: bool,
}

impl Compared {
    pub(crate) const ALL: Compared =
        Compared { modes: true, owners: true, times: true, links: true, attributes: true };
    /// The properties that every restore preserves.
    pub(crate) const CONTENT: Compared =
        Compared { modes: true, owners: false, times: false, links: false, attributes: false };
}

/// A directory at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    nodes: BTreeMap<PathBuf, Node>,
}

impl Tree {
    pub(crate) fn of(root: &Path) -> Result<Tree> {
        let mut tree = Tree::default();
        let mut names = BTreeMap::new();
        tree.nodes.insert(PathBuf::new(), Node::of(root)?);
        tree.walk(root, Path::new(""), &mut names)?;
        Ok(tree)
    }

    fn walk(
        &mut self,
        directory: &Path,
        below: &Path,
        names: &mut BTreeMap<(u64, u64), PathBuf>,
    ) -> Result<()> {
        let mut entries = fs::read_dir(directory)?.collect::<std::io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (path, below) = (entry.path(), below.join(entry.file_name()));
            let mut node = Node::of(&path)?;
            let found = fs::symlink_metadata(&path)?;
            if found.is_file() && found.nlink() > 1 {
                let first = names.entry((found.dev(), found.ino())).or_insert_with(|| below.clone());
                node.first_name = Some(first.clone());
            }
            self.nodes.insert(below.clone(), node);
            if found.is_dir() {
                self.walk(&path, &below, names)?;
            }
        }
        Ok(())
    }

    /// Returns the number of entries, including the root.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the differences from another tree, by path.
    pub(crate) fn differences(&self, other: &Tree, compared: Compared) -> Vec<String> {
        let mut found = Vec::new();
        for (path, node) in &self.nodes {
            match other.nodes.get(path) {
                None => found.push(format!("{} is gone", path.display())),
                Some(now) => node.differences(now, compared, path, &mut found),
            }
        }
        let new = other.nodes.keys().filter(|path| !self.nodes.contains_key(*path));
        found.extend(new.map(|path| format!("{} is new", path.display())));
        found
    }

    /// Returns the differences as text (their number, and the first few), or `None`.
    pub(crate) fn compare(&self, other: &Tree, compared: Compared) -> Option<String> {
        let found = self.differences(other, compared);
        if found.is_empty() {
            return None;
        }
        let first: Vec<_> = found.iter().take(4).map(String::as_str).collect();
        Some(format!("{} differences: {}", found.len(), first.join("; ")))
    }
}

impl Node {
    fn of(path: &Path) -> Result<Node> {
        let found = fs::symlink_metadata(path)?;
        let content = if found.is_symlink() {
            format!("-> {}", fs::read_link(path)?.display())
        } else if found.len() > READ_MAX {
            format!("{} bytes, not read", found.len())
        } else if found.is_file() {
            let mut hasher = blake3::Hasher::new();
            let mut file = fs::File::open(path)?;
            let mut piece = vec![0; 256 << 10];
            while let len @ 1.. = file.read(&mut piece)? {
                hasher.update(piece.get(..len).unwrap_or_default());
            }
            format!("{} bytes {}", found.len(), &hasher.finalize().to_hex()[..12])
        } else {
            String::new()
        };
        Ok(Node {
            mode: found.mode(),
            owner: (found.uid(), found.gid()),
            mtime: if found.is_dir() { (0, 0) } else { (found.mtime(), found.mtime_nsec()) },
            content,
            first_name: None,
            attributes: attributes(path),
        })
    }

    fn differences(&self, now: &Node, compared: Compared, path: &Path, found: &mut Vec<String>) {
        let kind = |mode: u32| mode & 0o170_000;
        let mut differ = |what: &str, was: String, is: String| {
            let mut line = String::new();
            let _ = write!(line, "{}: {what} was {was} and is {is}", path.display());
            found.push(line);
        };
        if kind(self.mode) != kind(now.mode) || self.content != now.content {
            differ(
                "content",
                format!("{:o} {}", self.mode, self.content),
                format!("{:o} {}", now.mode, now.content),
            );
        } else if compared.modes && self.mode != now.mode {
            differ("mode", format!("{:o}", self.mode), format!("{:o}", now.mode));
        }
        if compared.owners && self.owner != now.owner {
            differ("owner", format!("{:?}", self.owner), format!("{:?}", now.owner));
        }
        if compared.times && self.mtime != now.mtime {
            differ("mtime", format!("{:?}", self.mtime), format!("{:?}", now.mtime));
        }
        if compared.links && self.first_name != now.first_name {
            differ("hard link", format!("{:?}", self.first_name), format!("{:?}", now.first_name));
        }
        if compared.attributes && self.attributes != now.attributes {
            differ("attributes", shown(&self.attributes), shown(&now.attributes));
        }
    }
}

fn shown(attributes: &BTreeMap<Vec<u8>, Vec<u8>>) -> String {
    let one = |(name, value): (&Vec<u8>, &Vec<u8>)| {
        format!(
            "{} ({} bytes, {})",
            String::from_utf8_lossy(name),
            value.len(),
            &blake3::hash(value).to_hex()[..8]
        )
    };
    format!("[{}]", attributes.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// Returns a file's extended attributes, except the engine's.
fn attributes(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let Ok(len) = rustix::fs::llistxattr(path, &mut names[..]) else { return BTreeMap::new() };
    let names = names.get(..len).unwrap_or_default();
    let named = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let foreign = named.filter(|name| !name.starts_with(ENGINES.as_bytes()));
    foreign
        .map(|name| {
            let mut value = vec![0; 64 << 10];
            let len =
                rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).unwrap_or_default();
            value.truncate(len);
            (name.to_vec(), value)
        })
        .collect()
}

pub(crate) fn set_attribute(path: &Path, name: &str, value: &[u8]) -> std::io::Result<()> {
    Ok(rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty())?)
}
