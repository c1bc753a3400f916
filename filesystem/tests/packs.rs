//! Packs of the objects of snapshots: how a receiver handles damaged, missing and exchanged ones.

#![cfg(feature = "host")]
// The functions below are all tests, or called by nothing else.
#![allow(clippy::unwrap_used)]

mod noise;

use std::io::Read as _;
use std::path::{Path, PathBuf};

use foldlog_filesystem::{
    CaptureCollectOptions, Error, Filesystem, FilesystemSnapshot, HostFilesystem, HostFilesystemOptions,
    PACK_BYTES_MAX, PackReceiver, SnapshotPacker, audit_snapshots, collect_snapshots, damage_of_object,
};

use noise::noise;

struct Site {
    directory: tempfile::TempDir,
    work: HostFilesystem,
}

impl Site {
    fn new() -> Site {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("work")).unwrap();
        let (root, store) = (directory.path().join("work"), directory.path().join("store"));
        let work = HostFilesystem::open(root, store, HostFilesystemOptions::default()).unwrap();
        Site { directory, work }
    }

    fn packer(&self) -> SnapshotPacker {
        SnapshotPacker::new(&self.directory.path().join("store"))
    }

    fn snapshot(&self) -> FilesystemSnapshot {
        self.work.snapshot(None, false).unwrap()
    }
}

fn packed(packer: &mut SnapshotPacker, snapshot: &FilesystemSnapshot) -> Vec<Vec<u8>> {
    let mut packs = Vec::new();
    let mut put = |pack: &[u8]| {
        packs.push(pack.to_vec());
        Ok::<(), Error>(())
    };
    let rest = packer.pack([snapshot], &mut put).unwrap();
    packs.extend(Some(rest).filter(|rest| !rest.is_empty()));
    packs
}

fn received<'a>(store: &Path, packs: impl IntoIterator<Item = &'a Vec<u8>>) -> Result<(), Error> {
    let mut receiver = PackReceiver::new(store);
    packs.into_iter().try_for_each(|pack| receiver.take(pack))?;
    receiver.finish()
}

fn is_whole(store: &Path, snapshot: &FilesystemSnapshot) -> bool {
    let audited = audit_snapshots(store, [snapshot], &|_| true);
    audited.snapshots == 1 && audited.damaged.is_empty()
}

fn files_in(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files_in(&path, found),
            false => found.push(path),
        }
    }
}

/// Checks that each object has the content that its name states, and that there are no other files.
fn assert_nothing_else(around: &Path, what: &str) {
    let mut found = Vec::new();
    files_in(around, &mut found);
    for path in found {
        assert!(path.starts_with(around.join("to")), "{what}: {}", path.display());
        assert!(!path.to_string_lossy().contains("tmp_obj_"), "{what}: {}", path.display());
        assert_eq!(damage_of_object(&path), None, "{what}");
    }
}

#[test]
fn no_wrong_byte_and_no_length_makes_an_object_of_another_content() {
    let site = Site::new();
    site.work.write("page", b"one").unwrap();
    site.work.write("src/deep/page", b"another").unwrap();
    let snapshot = site.snapshot();
    let [pack]: [Vec<u8>; 1] = packed(&mut site.packer(), &snapshot).try_into().unwrap();
    let (mut refused, mut tried) = (0, 0);
    let flipped = (0..pack.len()).step_by(7).map(|at| {
        let mut bytes = pack.clone();
        bytes[at] ^= 1 << (at % 8);
        (bytes, format!("byte {at}"))
    });
    let cut = (0..pack.len()).step_by(19).map(|len| (pack[..len].to_vec(), format!("{len} bytes")));
    for (bytes, what) in flipped.chain(cut) {
        let around = tempfile::tempdir().unwrap();
        let store = around.path().join("to");
        let took = received(&store, [&bytes]);
        assert_nothing_else(around.path(), &what);
        refused += usize::from(took.is_err());
        tried += 1;
        // The leftovers do not interfere with an intact pack.
        if tried % 29 == 0 {
            received(&store, [&pack]).unwrap();
            assert!(is_whole(&store, &snapshot), "{what}");
        }
    }
    // A pack that ends at the end of a piece is valid, and some compressed bits do not affect the
    // content.
    assert!(refused > tried - tried / 10, "{refused} of {tried}");
}

#[test]
fn a_file_goes_on_in_the_next_pack_and_packs_are_taken_in_their_order_alone() {
    let site = Site::new();
    let large = noise(2 * PACK_BYTES_MAX + PACK_BYTES_MAX / 2, 0);
    site.work.write("large", &large).unwrap();
    site.work.write("page", b"one").unwrap();
    let snapshot = site.snapshot();
    let mut packer = site.packer();
    let packs = packed(&mut packer, &snapshot);
    assert_eq!(packs.len(), 3);
    assert!(packs.iter().all(|pack| pack.len() <= PACK_BYTES_MAX));
    let around = tempfile::tempdir().unwrap();
    let store = around.path().join("to");
    for order in [&[0, 2][..], &[1], &[0, 0], &[0, 1], &[2, 1, 0]] {
        assert!(received(&store, order.iter().map(|at| &packs[*at])).is_err(), "{order:?}");
        assert_nothing_else(around.path(), &format!("{order:?}"));
    }
    received(&store, &packs).unwrap();
    assert!(is_whole(&store, &snapshot));
    // Again, over the existing objects.
    received(&store, &packs).unwrap();
    assert_nothing_else(around.path(), "again");
    let directory = around.path().join("work");
    std::fs::create_dir(&directory).unwrap();
    let copy = HostFilesystem::open(&directory, &store, HostFilesystemOptions::default()).unwrap();
    copy.rebind(foldlog_filesystem::Rebind::IfEmpty).unwrap();
    copy.restore(&snapshot).unwrap();
    assert_eq!(copy.read("large").unwrap(), large);

    // A change packs only its new objects, and another packer skips those that were noted as
    // replicated.
    site.work.write("page", b"two").unwrap();
    let next = site.snapshot();
    let [change]: [Vec<u8>; 1] = packed(&mut packer, &next).try_into().unwrap();
    assert!(change.len() < 4096, "{}", change.len());
    let mut other = site.packer();
    other.note_held([&snapshot]);
    assert_eq!(packed(&mut other, &next), std::slice::from_ref(&change));
    received(&store, [&change]).unwrap();
    assert!(is_whole(&store, &next));
}

#[test]
fn what_is_damaged_is_not_packed_and_what_is_not_there_is_passed_over() {
    let site = Site::new();
    site.work.write("page", b"one").unwrap();
    let snapshot = site.snapshot();
    let elsewhere = tempfile::tempdir().unwrap();
    let mut other = SnapshotPacker::new(&elsewhere.path().join("store"));
    assert!(packed(&mut other, &snapshot).is_empty());
    let mut found = Vec::new();
    files_in(&site.directory.path().join("store/objects"), &mut found);
    assert!(found.len() > 3);
    for path in found {
        let bytes = std::fs::read(&path).unwrap();
        let mut wrong = bytes.clone();
        wrong[bytes.len() / 2] ^= 4;
        let is_commit = path.to_string_lossy().replace('/', "").ends_with(&snapshot.commit);
        for damage in [Some(wrong), Some([&bytes[..], b"more"].concat()), None] {
            match &damage {
                Some(damage) => std::fs::write(&path, damage).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            let packs = site.packer().pack([&snapshot], &mut |_| Ok::<(), Error>(()));
            // A snapshot without its commit was collected.
            assert_eq!(packs.is_ok(), is_commit && damage.is_none(), "{}: {packs:?}", path.display());
        }
        std::fs::write(&path, bytes).unwrap();
    }
    assert_eq!(packed(&mut site.packer(), &snapshot).len(), 1);
}

/// Collects the objects that only `give_up` needs. There have to be some.
fn collect(store: &Path, keep: &FilesystemSnapshot, give_up: &FilesystemSnapshot) {
    let (keep, give_up) = (std::slice::from_ref(keep), std::slice::from_ref(give_up));
    let asked = CaptureCollectOptions { keep, give_up, pool: None, dry_run: false };
    assert!(collect_snapshots(store, &asked).unwrap().objects > 0);
}

/// Returns the content of an object that has a file of its own.
fn content_of(store: &Path, object: &str) -> Vec<u8> {
    let mut found = Vec::new();
    files_in(store, &mut found);
    let (first, rest) = object.split_at(2);
    let path = found.iter().find(|path| path.ends_with(format!("{first}/{rest}"))).unwrap();
    let mut bytes = Vec::new();
    flate2::read::ZlibDecoder::new(std::fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes.split_off(bytes.iter().position(|byte| *byte == 0).unwrap() + 1)
}

/// The collection took the file for the list, and removed the copies that the list names.
#[test]
fn a_file_with_the_content_of_a_list_of_repositories_costs_no_copies() {
    let site = Site::new();
    let (store, work) = (site.directory.path().join("store"), site.directory.path().join("work"));
    for directory in [".git/objects", ".git/refs"] {
        std::fs::create_dir_all(work.join(directory)).unwrap();
    }
    std::fs::write(work.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    let first = site.snapshot();
    let list = first.repositories.as_deref().unwrap();
    site.work.write("file", &content_of(&store, list)).unwrap();
    let second = site.snapshot();
    assert_eq!(second.repositories.as_deref(), Some(list));
    collect(&store, &second, &first);
    std::fs::write(work.join(".git/HEAD"), "ref: refs/heads/other\n").unwrap();
    site.work.restore(&second).unwrap();
    assert_eq!(std::fs::read_to_string(work.join(".git/HEAD")).unwrap(), "ref: refs/heads/main\n");
}

/// A collected snapshot's content was captured again, which recreated its objects, but not its
/// metadata. If the first snapshot was taken for replicated, a call was acknowledged whose files no
/// other machine had. If it was packed, the store was reported as damaged.
#[test]
fn what_was_collected_is_neither_held_nor_missed_once_its_content_is_back() {
    let site = Site::new();
    let store = site.directory.path().join("store");
    site.work.write("page", b"one").unwrap();
    let first = site.snapshot();
    site.work.write("page", b"two").unwrap();
    let second = site.snapshot();
    collect(&store, &second, &first);
    site.work.write("page", b"one").unwrap();
    let again = site.snapshot();
    assert_eq!(again.commit, first.commit);
    assert_ne!(again.metadata, first.metadata, "its file has another time");

    // A process that opens the session knows the first snapshot only from its record.
    let mut packer = site.packer();
    packer.note_held([&first, &second]);
    let elsewhere = site.directory.path().join("elsewhere");
    let mut receiver = PackReceiver::new(&elsewhere);
    for pack in packed(&mut site.packer(), &second).iter().chain(&packed(&mut packer, &again)) {
        receiver.take(pack).unwrap();
    }
    receiver.finish().unwrap();
    assert!(audit_snapshots(&elsewhere, [&second, &again], &|_| true).damaged.is_empty());
    // The collected snapshot is skipped, like one without its commit.
    assert!(packed(&mut site.packer(), &first).iter().all(Vec::is_empty));
}
