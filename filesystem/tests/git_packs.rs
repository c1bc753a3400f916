//! Git packs of a store: what large captures write, how it is read, collected and shared, and how
//! damage is reported.

#![cfg(feature = "host")]
// The functions below are all tests, or called by nothing else.
#![allow(clippy::unwrap_used)]

mod noise;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use foldlog_filesystem::{
    CaptureCollectOptions, Collection, Error, FileFacts, FilesystemSnapshot, HostFilesystem,
    HostFilesystemOptions, PackReceiver, Rebind, SnapshotPacker, SnapshotReader, SnapshotsAudited,
    audit_snapshots, collect_pool, collect_snapshots, damage_of_object, unpool,
};

use noise::noise;

/// More files than are stored one by one.
const MANY: usize = 1100;

struct Site {
    directory: tempfile::TempDir,
}

impl Site {
    fn new() -> Site {
        let site = Site { directory: tempfile::tempdir().unwrap() };
        fs::create_dir(site.root()).unwrap();
        site
    }

    /// Creates a site with a directory `many`, and one, `kept`, with three files.
    fn with_many() -> Site {
        let site = Site::new();
        site.write_many("many", MANY, "");
        site.write_many("kept", 3, "kept");
        site
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    fn write_many(&self, name: &str, count: usize, text: &str) {
        fs::create_dir_all(self.root().join(name)).unwrap();
        for n in 0..count {
            let content = [format!("{text} {name} {n}\n").into_bytes(), noise(100, n as u64)].concat();
            fs::write(self.root().join(name).join(n.to_string()), content).unwrap();
        }
    }

    fn open(&self) -> HostFilesystem {
        self.open_with(HostFilesystemOptions::default())
    }

    fn open_with(&self, options: HostFilesystemOptions) -> HostFilesystem {
        HostFilesystem::open(self.root(), self.store(), options.times(false)).unwrap()
    }

    fn snapshot(&self) -> FilesystemSnapshot {
        self.open().snapshot(None, false).unwrap()
    }

    /// Captures everything, removes all but the directory `kept`, and collects the first capture.
    /// The three files of the second one are then in a small pack.
    fn with_small_pack() -> (Site, FilesystemSnapshot) {
        let site = Site::with_many();
        site.snapshot();
        fs::remove_dir_all(site.root().join("many")).unwrap();
        let kept = site.snapshot();
        site.collect(&[&kept], false);
        assert_eq!(site.packs().len(), 2, "a pack and its index");
        (site, kept)
    }

    fn audit(&self, snapshots: &[&FilesystemSnapshot]) -> SnapshotsAudited {
        let audited = audit_snapshots(&self.store(), snapshots.iter().copied(), &|_| true);
        assert_eq!(
            audited.snapshots + audited.collected + audited.absent.len() as u64,
            snapshots.len() as u64
        );
        audited
    }

    fn is_whole(&self, snapshots: &[&FilesystemSnapshot]) -> bool {
        let audited = self.audit(snapshots);
        audited.damaged.is_empty() && audited.absent.is_empty()
    }

    fn collect(&self, keep: &[&FilesystemSnapshot], dry_run: bool) -> Collection {
        let keep: Vec<FilesystemSnapshot> = keep.iter().map(|one| (*one).clone()).collect();
        let options = CaptureCollectOptions { keep: &keep, give_up: &[], pool: None, dry_run };
        collect_snapshots(&self.store(), &options).unwrap()
    }

    fn packs(&self) -> Vec<PathBuf> {
        packs_in(&self.store())
    }

    /// Returns the paths of objects that have files of their own.
    fn files(&self) -> Vec<PathBuf> {
        let directories = fs::read_dir(self.store().join("objects")).unwrap();
        let directories =
            directories.map(|entry| entry.unwrap().path()).filter(|path| !path.ends_with("pack"));
        let entries = directories.flat_map(|path| fs::read_dir(path).unwrap());
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Runs git on the store. Returns `None` if git is not installed.
    fn git(&self, arguments: &[&str], input: &str) -> Option<Vec<u8>> {
        let mut git = Command::new("git");
        git.arg("--git-dir").arg(self.store()).args(arguments);
        git.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut git = git.spawn().ok()?;
        let mut into = git.stdin.take().unwrap();
        let input = input.to_owned();
        let writing = std::thread::spawn(move || into.write_all(input.as_bytes()));
        let output = git.wait_with_output().unwrap();
        writing.join().unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !said.contains("error"), "{arguments:?}: {said}");
        Some(output.stdout)
    }
}

fn packs_in(store: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(store.join("objects/pack")).into_iter().flatten();
    let mut packs: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    packs.sort();
    packs
}

fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut left) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match fs::symlink_metadata(&path).unwrap().is_dir() {
                true => left.push(path),
                false => {
                    let bytes = match fs::read_link(&path) {
                        Ok(target) => target.into_os_string().into_encoded_bytes(),
                        Err(_) => fs::read(&path).unwrap(),
                    };
                    found.insert(path.strip_prefix(root).unwrap().to_owned(), bytes);
                }
            }
        }
    }
    found
}

#[test]
fn any_git_reads_every_object_of_a_large_capture() {
    let site = Site::with_many();
    fs::create_dir_all(site.root().join("a/b/c")).unwrap();
    fs::create_dir(site.root().join("empty")).unwrap();
    for (n, len) in
        [0, 1, 15, 16, 2047, 2048, 4096, 65_535, 65_536, 300_000, 1 << 20, 3 << 20].iter().enumerate()
    {
        fs::write(site.root().join(format!("a/noise{n}")), noise(*len, n as u64 + 1)).unwrap();
        fs::write(site.root().join(format!("a/b/text{n}")), b"a line\n".repeat(len / 7)).unwrap();
        fs::write(site.root().join(format!("a/b/c/same{n}")), "the same").unwrap();
    }
    std::os::unix::fs::symlink("a/b", site.root().join("link")).unwrap();
    let snapshot = site.snapshot();
    assert!(site.files().len() < 20, "a commit, metadata and large files: {:?}", site.files());
    assert!(site.packs().len() >= 2 && site.is_whole(&[&snapshot]));
    let Some(listed) = site.git(&["ls-tree", "-r", "-z", &snapshot.commit], "") else { return };
    site.git(&["fsck", "--strict", "--full"], "");
    for pack in site.packs().iter().filter(|path| path.extension().unwrap() == "pack") {
        site.git(&["verify-pack", pack.to_str().unwrap()], "");
    }
    let listed = String::from_utf8(listed).unwrap();
    let lines = listed.split_terminator('\0').map(|line| line.split_once('\t').unwrap());
    let ids: Vec<(&str, &str)> = lines.map(|(facts, path)| (&facts[12..52], path)).collect();
    let asked: String = ids.iter().map(|(id, _)| format!("{id}\n")).collect();
    let read = site.git(&["cat-file", "--batch"], &asked).unwrap();
    let files = contents(&site.root());
    assert_eq!(files.len(), ids.len());
    let mut rest = &read[..];
    for (id, path) in ids {
        let content = &files[Path::new(path)];
        let expected = [format!("{id} blob {}\n", content.len()).as_bytes(), content, b"\n"].concat();
        assert!(rest.starts_with(&expected), "{path}");
        rest = &rest[expected.len()..];
    }
    assert!(rest.is_empty());
}

#[test]
fn few_new_objects_have_files_of_their_own() {
    let site = Site::new();
    site.write_many("few", 900, "");
    let snapshot = site.snapshot();
    assert!(site.packs().is_empty() && site.files().len() > 900);
    site.write_many("more", 3, "");
    let second = site.snapshot();
    assert!(site.packs().is_empty() && site.is_whole(&[&snapshot, &second]));
}

#[test]
fn a_restore_brings_back_files_from_packs_and_from_other_captures() {
    let site = Site::with_many();
    let files = site.open();
    let first = files.snapshot(None, true).unwrap();
    let before = contents(&site.root());
    site.write_many("many", MANY, "changed");
    let second = files.snapshot(None, false).unwrap();
    let changed = contents(&site.root());
    assert!(site.packs().len() >= 4);
    for is_another_process in [false, true] {
        let files = if is_another_process { &site.open() } else { &files };
        fs::remove_dir_all(site.root().join("kept")).unwrap();
        files.restore(&first).unwrap();
        assert_eq!(contents(&site.root()), before);
        files.restore(&second).unwrap();
        assert_eq!(contents(&site.root()), changed);
    }
    // Nothing is written again.
    let stored = (site.packs(), site.files());
    assert_eq!(site.open().snapshot(None, true).unwrap().commit, second.commit);
    assert_eq!((site.packs(), site.files()), stored);
}

/// Returns the damages of a file: each byte changed, except most of the fan-out of an index, many
/// lengths, and none at all.
fn damages(sound: &[u8]) -> Vec<(String, Option<Vec<u8>>)> {
    let mut damages = vec![("removed".to_owned(), None), ("longer".to_owned(), Some([sound, b"x"].concat()))];
    let is_tested =
        |at: &usize| !(sound.starts_with(b"\xff") && (8..1032).contains(at)) || at.is_multiple_of(29);
    for at in (0..sound.len()).filter(is_tested) {
        let mut flipped = sound.to_vec();
        flipped[at] ^= 1 << (at % 8);
        damages.push((format!("byte {at}"), Some(flipped)));
        if at % 7 == 0 {
            damages.push((format!("{at} bytes"), Some(sound[..at].to_vec())));
        }
    }
    damages
}

/// Returns the files of a store.
fn files_of(store: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    contents(store)
}

fn put_back(store: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) {
    fs::remove_dir_all(store).unwrap();
    for (path, bytes) in files {
        fs::create_dir_all(store.join(path).parent().unwrap()).unwrap();
        fs::write(store.join(path), bytes).unwrap();
    }
}

#[test]
fn each_damaged_byte_of_a_pack_or_an_index_is_reported_and_repaired_by_the_next_capture() {
    let (site, kept) = Site::with_small_pack();
    let (before, stored) = (contents(&site.root()), files_of(&site.store()));
    let restored = site.directory.path().join("restored");
    for path in site.packs() {
        let sound = fs::read(&path).unwrap();
        assert!(sound.len() < 3000 && damage_of_object(&path).is_none());
        for (at, (what, damaged)) in damages(&sound).into_iter().enumerate() {
            let what = format!("{what} of {}", path.extension().unwrap().display());
            fs::remove_file(&path).unwrap();
            damaged.iter().for_each(|damaged| fs::write(&path, damaged).unwrap());
            assert!(damage_of_object(&path).is_some(), "{what}");
            let audited = site.audit(&[&kept]);
            assert!(!audited.damaged.is_empty(), "{what}");
            assert!(audited.damaged.iter().all(|one| one.path.starts_with(site.store())), "{what}");
            // A restore writes the captured contents, or nothing.
            fs::create_dir(&restored).unwrap();
            let copy =
                HostFilesystem::open(&restored, site.store(), HostFilesystemOptions::default()).unwrap();
            copy.rebind(Rebind::Overwrite).unwrap();
            match copy.restore(&kept) {
                Ok(_) => assert_eq!(contents(&restored), before, "{what}"),
                Err(error) => {
                    assert!(matches!(error, Error::Object { .. }), "{what}: {error}");
                    assert!(contents(&restored).is_empty(), "{what}");
                }
            }
            drop(copy);
            fs::remove_dir_all(&restored).unwrap();
            if at % 31 == 0 || damaged.is_none() {
                assert_eq!(site.snapshot().commit, kept.commit, "{what}");
                assert!(audit_contents(&site, &kept), "{what}");
                site.collect(&[&kept], false);
                assert!(site.is_whole(&[&kept]), "{what}: {:?}", site.audit(&[&kept]));
                put_back(&site.store(), &stored);
            }
            fs::write(&path, &sound).unwrap();
        }
    }
}

/// Returns whether every content of a snapshot can be read.
fn audit_contents(site: &Site, snapshot: &FilesystemSnapshot) -> bool {
    let audited = audit_snapshots(&site.store(), [snapshot], &|path| path.extension().is_none());
    audited.damaged.is_empty()
}

/// A store does not say which objects a pack without an index had, and so which files are lost.
#[test]
fn objects_of_a_pack_that_cannot_be_used_name_it() {
    let (site, kept) = Site::with_small_pack();
    let index = site.packs().into_iter().find(|path| path.extension().unwrap() == "idx").unwrap();
    let mut bytes = fs::read(&index).unwrap();
    bytes.truncate(1000);
    fs::write(&index, &bytes).unwrap();
    let audited = site.audit(&[&kept]);
    let reason = "it ends within its fan-out";
    assert!(audited.damaged.iter().any(|one| one.path == index && one.reason == reason), "{audited:?}");
    let name = index.file_name().unwrap().to_str().unwrap();
    assert!(audited.damaged.iter().any(|one| one.reason.contains(name)), "{audited:?}");
}

#[test]
fn a_collection_rewrites_packs_with_dead_objects_and_removes_those_that_are_entirely_dead() {
    let site = Site::with_many();
    let first = site.snapshot();
    let of_first = site.packs();
    fs::write(site.root().join("many/1"), "changed").unwrap();
    let second = site.snapshot();
    assert_eq!(site.packs(), of_first, "few new objects");
    // Of the first capture, the content of one file and two directories are not needed.
    site.open().collect(std::slice::from_ref(&second)).unwrap();
    assert!(site.packs().iter().any(|path| of_first.contains(path)) && site.is_whole(&[&second]));
    let planned = site.collect(&[&second], true);
    assert_eq!(site.collect(&[&second], false), planned);
    assert!(site.packs() != of_first && site.is_whole(&[&second]));
    assert_eq!(site.collect(&[&second], true), Collection::default(), "nothing is left to remove");
    fs::remove_dir_all(site.root().join("many")).unwrap();
    site.write_many("others", MANY, "");
    let third = site.snapshot();
    let both = site.packs();
    fs::remove_dir_all(site.root().join("others")).unwrap();
    let fourth = site.snapshot();
    let (planned, before) = (site.collect(&[&second, &fourth], true), contents(&site.store()));
    assert!(planned.objects > 1000 && planned.bytes > 30_000, "{planned:?}");
    assert_eq!(contents(&site.store()), before, "nothing was removed");
    assert_eq!(site.collect(&[&second, &fourth], false), planned);
    assert!(site.is_whole(&[&second, &fourth]) && site.packs().len() < both.len());
    let (packs, planned) = (site.packs(), site.collect(&[&fourth], true));
    assert_eq!(site.collect(&[&fourth], false), planned);
    assert!(site.is_whole(&[&fourth]) && site.packs() != packs);
    assert!(files_of(&site.store()).values().map(Vec::len).sum::<usize>() < 5000);
    site.git(&["fsck", "--strict", "--full"], "");
    site.collect(&[], false);
    assert!(site.packs().is_empty() && site.files().is_empty());
    let _ = (first, third);
}

/// Another process that opened the store before a collection has the old packs listed.
#[test]
fn a_reader_finds_objects_whose_pack_was_replaced_meanwhile() {
    let site = Site::with_many();
    site.snapshot();
    fs::remove_dir_all(site.root().join("many")).unwrap();
    let kept = site.snapshot();
    let mut reader = SnapshotReader::open(site.store());
    let mut found = Vec::new();
    let mut visit = |_: &str, facts: &FileFacts| {
        found.push(facts.clone());
        Ok(())
    };
    reader.files(&kept, &mut visit).unwrap();
    let listed = site.packs();
    site.collect(&[&kept], false);
    assert!(site.packs().iter().all(|path| !listed.contains(path)));
    let read: BTreeSet<Vec<u8>> = found.iter().map(|facts| reader.content(facts, 1000).unwrap()).collect();
    assert_eq!(read, contents(&site.root()).into_values().collect());
}

#[test]
fn leftovers_of_a_kill_are_no_objects_and_are_removed_by_a_collection() {
    let site = Site::with_many();
    let snapshot = site.snapshot();
    let sound = site.packs();
    let directory = site.store().join("objects/pack");
    let [index, pack] =
        ["idx", "pack"].map(|end| sound.iter().find(|path| path.extension().unwrap() == end).unwrap());
    let named = |digit: &str, end: &str| directory.join(format!("pack-{}.{end}", digit.repeat(40)));
    fs::copy(pack, named("a", "pack")).unwrap();
    fs::copy(index, named("b", "idx")).unwrap();
    fs::write(site.store().join("objects/tmp_obj_1_1"), "half a pack").unwrap();
    fs::write(directory.join("notes"), "somebody's").unwrap();
    assert!(site.is_whole(&[&snapshot]));
    assert_eq!(site.snapshot().commit, snapshot.commit);
    site.collect(&[&snapshot], false);
    let expected: BTreeSet<PathBuf> = sound.iter().cloned().chain([directory.join("notes")]).collect();
    assert_eq!(site.packs().into_iter().collect::<BTreeSet<_>>(), expected);
    assert!(!site.store().join("objects/tmp_obj_1_1").exists() && site.is_whole(&[&snapshot]));
}

#[test]
fn what_is_in_the_place_of_a_pack_is_left_and_named() {
    let site = Site::with_many();
    let snapshot = site.snapshot();
    let stands = site.store().join(format!("objects/pack/pack-{}.idx", "c".repeat(40)));
    std::os::unix::fs::symlink("/dev/zero", &stands).unwrap();
    assert!(site.is_whole(&[&snapshot]));
    assert_eq!(site.collect(&[&snapshot], false).left, std::slice::from_ref(&stands));
    assert!(fs::symlink_metadata(&stands).unwrap().is_symlink());
}

#[test]
fn a_replica_receives_objects_of_packs() {
    let site = Site::with_many();
    let snapshot = site.snapshot();
    let elsewhere = site.directory.path().join("elsewhere");
    let (mut packer, mut packs) = (SnapshotPacker::new(&site.store()), Vec::new());
    let mut put = |pack: &[u8]| {
        packs.push(pack.to_vec());
        Ok::<(), Error>(())
    };
    let rest = packer.pack([&snapshot], &mut put).unwrap();
    packs.push(rest);
    for store in [&elsewhere, &site.store()] {
        let stored = site.files();
        let mut receiver = PackReceiver::new(store);
        packs.iter().try_for_each(|pack| receiver.take(pack)).unwrap();
        assert!(!receiver.lacks(&snapshot));
        receiver.finish().unwrap();
        let audited = audit_snapshots(store, [&snapshot], &|_| true);
        assert!(audited.damaged.is_empty() && audited.snapshots == 1);
        assert_eq!(site.files(), stored, "a store that has the objects receives none");
    }
}

#[test]
fn two_processes_capture_into_one_store_at_once() {
    let site = Site::with_many();
    let other = site.directory.path().join("other");
    fs::create_dir_all(other.join("more")).unwrap();
    for n in 0..2 * MANY {
        let content = [format!(" many {n}\n").into_bytes(), noise(100, n as u64)].concat();
        fs::write(other.join("more").join(n.to_string()), content).unwrap();
    }
    let capture = |root: &Path| {
        let options = HostFilesystemOptions::default().times(false);
        HostFilesystem::open(root, site.store(), options).unwrap().snapshot(None, true).unwrap()
    };
    let root = site.root();
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| capture(&other));
        (capture(&root), other.join().unwrap())
    });
    assert!(site.is_whole(&[&first, &second]));
    site.git(&["fsck", "--strict", "--full"], "");
    // An object that is in two packs is needed in both.
    site.collect(&[&first], false);
    assert!(site.is_whole(&[&first]));
}

#[test]
fn stores_with_one_pool_share_packs_until_the_last_of_them_is_collected() {
    let site = Site::with_many();
    let pool = site.directory.path().join("pool");
    fs::create_dir(&pool).unwrap();
    let options = || HostFilesystemOptions::default().times(false).pool(pool.clone());
    let second = site.directory.path().join("second");
    let first = site.open_with(options()).snapshot(None, true).unwrap();
    assert_eq!(packs_in(&pool).len(), site.packs().len());
    let other = HostFilesystem::open(site.root(), &second, options()).unwrap().snapshot(None, true).unwrap();
    let inodes = |store: &Path| -> Vec<u64> {
        packs_in(store)
            .iter()
            .map(|path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap()))
            .collect()
    };
    assert_eq!(inodes(&second), inodes(&site.store()));
    assert_eq!(other.commit, first.commit);
    let keep = std::slice::from_ref(&other);
    let nothing = CaptureCollectOptions { keep: &[], give_up: &[], pool: Some(&pool), dry_run: false };
    let removed = collect_snapshots(&site.store(), &nothing).unwrap();
    assert!(removed.objects > 1000 && removed.bytes < 5000, "the other store has the bytes: {removed:?}");
    assert!(site.packs().is_empty() && packs_in(&pool).len() == packs_in(&second).len());
    let audited = audit_snapshots(&second, keep, &|_| true);
    assert!(audited.damaged.is_empty() && audited.snapshots == 1);
    assert_eq!(collect_pool(&pool, false).unwrap().objects, 0);
    unpool(&second, &pool).unwrap();
    assert!(packs_in(&pool).is_empty());
    assert!(audit_snapshots(&second, keep, &|_| true).damaged.is_empty());
}
