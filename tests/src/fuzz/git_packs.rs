//! The git packs in the store of a directory's captures.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use foldlog::filesystem::{
    CaptureCollectOptions, Error, FilesystemSnapshot, HostFilesystem, HostFilesystemOptions, Rebind,
    audit_snapshots, collect_snapshots,
};
use sha1_checked::Sha1;

/// More files than are stored one by one.
const MANY: usize = 1100;

/// A store with one capture, whose directory and files are in a small pack.
struct Stored {
    snapshot: FilesystemSnapshot,
    files: BTreeMap<PathBuf, Vec<u8>>,
    pack: PathBuf,
    captured: BTreeMap<PathBuf, Vec<u8>>,
}

static STORED: LazyLock<Stored> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let (root, store) = (directory.path().join("work"), directory.path().join("store"));
    for n in 0..MANY {
        let name = if n < 3 { "kept" } else { "many" };
        fs::create_dir_all(root.join(name)).unwrap();
        fs::write(root.join(name).join(n.to_string()), format!("{n}: {}\n", blake3::hash(&n.to_le_bytes())))
            .unwrap();
    }
    open(&root, &store).snapshot(None, false).unwrap();
    fs::remove_dir_all(root.join("many")).unwrap();
    let snapshot = open(&root, &store).snapshot(None, false).unwrap();
    collect(&store, &snapshot);
    let (files, captured) = (files_below(&store), files_below(&root));
    let is_pack = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "pack");
    let pack = files.keys().find(is_pack).unwrap().clone();
    Stored { snapshot, files, pack, captured }
});

fn open(root: &Path, store: &Path) -> HostFilesystem {
    HostFilesystem::open(root, store, HostFilesystemOptions::default().times(false)).unwrap()
}

fn collect(store: &Path, keep: &FilesystemSnapshot) {
    let keep = std::slice::from_ref(keep);
    // It may refuse a damaged store.
    let _ =
        collect_snapshots(store, &CaptureCollectOptions { keep, give_up: &[], pool: None, dry_run: false });
}

fn files_below(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut left) = (BTreeMap::new(), vec![directory.to_owned()]);
    while let Some(inner) = left.pop() {
        for entry in fs::read_dir(inner).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => left.push(path),
                false => drop(
                    found.insert(path.strip_prefix(directory).unwrap().to_owned(), fs::read(&path).unwrap()),
                ),
            }
        }
    }
    found
}

/// Returns an input: the length of the index as four bytes, the index, and the pack.
pub fn input_of_pack(index: &[u8], pack: &[u8]) -> Vec<u8> {
    [&u32::try_from(index.len()).unwrap().to_be_bytes(), index, pack].concat()
}

/// Returns the index and the pack of the capture, from which mutations start.
pub fn sound_pack() -> (Vec<u8>, Vec<u8>) {
    let file = |extension| STORED.files[&STORED.pack.with_extension(extension)].clone();
    (file("idx"), file("pack"))
}

/// Replaces the index and the pack of a capture, unchanged and with corrected checksums at their
/// ends. Restores then write the captured files or none, an audit agrees with that, and a
/// collection loses no file that could be read before.
pub fn git_packs(bytes: &[u8]) {
    let Some((len, rest)) = bytes.split_first_chunk() else { return };
    let (index, pack) = rest.split_at(rest.len().min(u32::from_be_bytes(*len) as usize));
    store_of(index, pack);
    let (mut index, mut pack) = (index.to_vec(), pack.to_vec());
    if let (Some(at), Some(end)) = (pack.len().checked_sub(20), index.len().checked_sub(40)) {
        let (content, sum) = pack.split_at_mut(at);
        sum.copy_from_slice(&checksum(content));
        index[end..end + 20].copy_from_slice(sum);
        let own = checksum(&index[..end + 20]);
        index[end + 20..].copy_from_slice(&own);
        store_of(&index, &pack);
    }
}

fn checksum(bytes: &[u8]) -> [u8; 20] {
    (*Sha1::try_digest(bytes).hash()).into()
}

fn store_of(index: &[u8], pack: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("store");
    for (path, bytes) in &STORED.files {
        let bytes = match path.with_extension("pack") == STORED.pack {
            true if *path == STORED.pack => pack,
            true => index,
            false => bytes,
        };
        fs::create_dir_all(store.join(path).parent().unwrap()).unwrap();
        fs::write(store.join(path), bytes).unwrap();
    }
    let audited = audit_snapshots(&store, [&STORED.snapshot], &|_| true);
    let is_whole = audited.damaged.is_empty() && audited.absent.is_empty();
    let restores = restores(&store, &directory.path().join("restored"));
    assert!(restores || !is_whole, "the audit found nothing");
    collect(&store, &STORED.snapshot);
    assert!(!restores || self::restores(&store, &directory.path().join("again")), "a collection lost a file");
}

/// Returns whether the capture is restored to a new directory. If not, no file is written.
fn restores(store: &Path, to: &Path) -> bool {
    fs::create_dir(to).unwrap();
    let files = open(to, store);
    files.rebind(Rebind::Overwrite).unwrap();
    match files.restore(&STORED.snapshot) {
        Ok(_) => assert_eq!(files_below(to), STORED.captured),
        Err(error) => {
            assert!(matches!(error, Error::Object { .. }), "{error}");
            assert_eq!(files_below(to), BTreeMap::new());
            return false;
        }
    }
    true
}
