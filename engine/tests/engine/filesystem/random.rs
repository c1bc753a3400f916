//! Random trees and changes: a restore brings back every name, kind, permission and byte.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use foldlog::filesystem::HostFilesystem;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::Bench;

/// Names that git, a shell or a careless program could mishandle.
const NAMES: &[&[u8]] = &[
    b"a",
    b"b",
    b"c.txt",
    b".hidden",
    b"-rf",
    b"two words",
    b"new\nline",
    b"\xff\xfe",
    b".GIT",
    b".git ",
    b"git~1",
    b"...",
    b"a.b",
    b"a-b",
    b"quote'\"",
    b"back\\slash",
    b"\xc3\xa9",
    b"*",
    b"~",
    b"CON",
    b".gitignore",
];

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Act {
    File(Vec<u8>, u32),
    Directory(u32),
    Link(Vec<u8>),
    Append(Vec<u8>),
    Permissions(u32),
    Remove,
    Rename(Vec<usize>),
}

pub(crate) type Step = (Vec<usize>, Act);

fn path() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0..NAMES.len(), 1..4)
}

fn act() -> impl Strategy<Value = Act> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..20);
    let mode = || prop_oneof![Just(0o644), Just(0o755), 0u32..0o10000];
    let target = prop_oneof![
        Just(b"a".to_vec()),
        Just(b"../outside".to_vec()),
        Just(b"/etc/passwd".to_vec()),
        Just(b"nowhere/\xff".to_vec()),
        Just(b".".to_vec())
    ];
    prop_oneof![
        4 => (bytes(), mode()).prop_map(|(bytes, mode)| Act::File(bytes, mode)),
        3 => mode().prop_map(Act::Directory),
        1 => target.prop_map(Act::Link),
        1 => bytes().prop_map(Act::Append),
        1 => mode().prop_map(Act::Permissions),
        2 => Just(Act::Remove),
        2 => path().prop_map(Act::Rename),
    ]
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((path(), act()), 0..25)
}

fn whole(root: &Path, path: &[usize]) -> PathBuf {
    path.iter().fold(root.to_owned(), |path, name| path.join(OsStr::from_bytes(NAMES[*name])))
}

/// Whether a change would follow a link out of the workspace.
fn through_a_link(root: &Path, path: &Path) -> bool {
    path.ancestors().skip(1).take_while(|path| *path != root).any(Path::is_symlink)
}

/// Applies the change if possible; otherwise the tree is unchanged.
pub(crate) fn carry_out(root: &Path, path: &[usize], act: &Act) {
    let path = whole(root, path);
    if through_a_link(root, &path) {
        return;
    }
    let is_link = path.is_symlink();
    if let Some(parent) = path.parent() {
        let _ = fs::create_dir_all(parent);
    }
    let permissions = |mode: u32| Permissions::from_mode(mode);
    match act {
        Act::File(bytes, mode) if !is_link && fs::write(&path, bytes).is_ok() => {
            let _ = fs::set_permissions(&path, permissions(*mode));
        }
        Act::Directory(mode) if fs::create_dir(&path).is_ok() => {
            let _ = fs::set_permissions(&path, permissions(*mode));
        }
        Act::Link(target) => {
            let _ = symlink(OsStr::from_bytes(target), &path);
        }
        Act::Append(bytes) if !is_link && path.is_file() => {
            let before = fs::read(&path).unwrap_or_default();
            let _ = fs::write(&path, [before.as_slice(), bytes].concat());
        }
        Act::Permissions(mode) if !is_link && path.exists() => {
            let _ = fs::set_permissions(&path, permissions(*mode));
        }
        Act::Remove => {
            let _ = fs::remove_dir_all(&path);
            let _ = fs::remove_file(&path);
        }
        Act::Rename(to) => {
            let to = whole(root, to);
            if !through_a_link(root, &to) {
                let _ = fs::rename(&path, to);
            }
        }
        _ => {}
    }
}

/// Scripts of a tool that is a shell.
pub(crate) const SCRIPTS: &[&str] = &[
    "true",
    "find . -depth -type f -name '*a*' -delete",
    "find . -type f -exec sh -c 'printf x >> \"$1\"' _ {} \\;",
    "find . -mindepth 1 -maxdepth 1 -exec rm -rf {} +",
    "find . -type d -exec chmod 700 {} +",
    "find . -type f -exec chmod u+x {} +",
    "mkdir -p new/deep/er && cp -R . /dev/null 2>/dev/null; for n in 1 2 3; do echo $n > new/deep/$n; done",
    "chmod 511 .",
];

fn shell(root: &Path, script: &str) {
    // Some scripts fail on some trees; their partial changes must be undone all the same.
    let _ = Command::new("sh").args(["-c", script]).current_dir(root).status().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn any_tree_comes_back_after_any_changes(
        first in steps(),
        second in steps(),
        script in 0..SCRIPTS.len(),
        third in steps(),
        fresh in any::<bool>(),
    ) {
        let bench = Bench::new();
        let root = bench.root();
        let reopened = |files: HostFilesystem| if fresh { drop(files); bench.open() } else { files };
        let files = bench.open();
        first.iter().for_each(|(path, act)| carry_out(&root, path, act));
        let (one, one_digest) = (files.snapshot(Some("one"), false).unwrap(), bench.digest());
        second.iter().for_each(|(path, act)| carry_out(&root, path, act));
        shell(&root, SCRIPTS[script]);
        let files = reopened(files);
        let (two, two_digest) = (files.snapshot(None, true).unwrap(), bench.digest());
        third.iter().for_each(|(path, act)| carry_out(&root, path, act));
        let files = reopened(files);

        files.restore(&one).unwrap();
        prop_assert_eq!(&bench.digest(), &one_digest);
        prop_assert_eq!(files.restore(&one).unwrap(), Default::default());
        let again = files.snapshot(Some("one"), false).unwrap();
        prop_assert_eq!(&again, &one);

        // Repeats some of the changes: an interrupted restore leaves such a mixture.
        files.restore(&two).unwrap();
        prop_assert_eq!(&bench.digest(), &two_digest);
        third.iter().take(third.len() / 2).for_each(|(path, act)| carry_out(&root, path, act));
        let files = reopened(files);
        files.restore(&one).unwrap();
        prop_assert_eq!(&bench.digest(), &one_digest);
        files.collect(std::slice::from_ref(&two)).unwrap();
        files.restore(&two).unwrap();
        prop_assert_eq!(&bench.digest(), &two_digest);
    }
}
