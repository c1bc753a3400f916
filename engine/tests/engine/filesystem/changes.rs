//! Differences of two snapshots, computed from their store alone.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use foldlog::filesystem::{
    ChangeKind, Error, FileChange, FileFacts, FileForm, FileKind, FilesystemSnapshot, Result, SnapshotReader,
};
use proptest::prelude::*;

use super::Bench;
use super::digest::Digest;
use super::random::{carry_out, steps};

/// By path as changes have it: kind, permissions, content.
type Files = BTreeMap<String, (FileKind, Option<u32>, Vec<u8>)>;

/// Returns the files and links of a directory, as a walk found them.
fn walked(digest: Digest) -> Files {
    let files = digest.into_iter().filter_map(|(path, (kind, permissions, content, ..))| match kind {
        'f' => Some((shown(&path), (FileKind::File, Some(permissions), content))),
        'l' => Some((shown(&path), (FileKind::Link, None, content))),
        _ => None,
    });
    files.collect()
}

/// Returns a path without its leading `./`, with special characters escaped.
fn shown(path: &Path) -> String {
    let mut shown = String::new();
    for chunk in path.as_os_str().as_bytes()[2..].utf8_chunks() {
        let escape = |shown: &mut String, byte: u8| write!(shown, "\\x{byte:02x}").unwrap();
        for found in chunk.valid().chars() {
            match found {
                '\\' | '\n' => escape(&mut shown, found as u8),
                plain => shown.push(plain),
            }
        }
        chunk.invalid().iter().for_each(|byte| escape(&mut shown, *byte));
    }
    shown
}

/// Compares two walks naively.
fn expected(before: &Files, after: &Files) -> Vec<(String, ChangeKind)> {
    let mut expected = BTreeMap::new();
    for (path, was) in before {
        match after.get(path) {
            None => drop(expected.insert(path.clone(), ChangeKind::Removed)),
            Some(is) if is != was => drop(expected.insert(path.clone(), ChangeKind::Modified)),
            Some(_) => {}
        }
    }
    let created = after.keys().filter(|path| !before.contains_key(*path));
    expected.extend(created.map(|path| (path.clone(), ChangeKind::Created)));
    expected.into_iter().collect()
}

fn kinds(changes: &[FileChange]) -> Vec<(String, ChangeKind)> {
    changes.iter().map(|change| (change.path.clone(), change.kind)).collect()
}

/// Reads the file that `facts` describe, and checks that they are true.
fn read(reader: &mut SnapshotReader, facts: &FileFacts) -> (FileKind, Option<u32>, Vec<u8>) {
    let content = reader.content(facts, facts.len).unwrap();
    assert_eq!(content.len() as u64, facts.len);
    (facts.kind, facts.permissions, content)
}

/// Checks that both sides of all changes match the two walks, under the same names and in their
/// order.
fn assert_told(reader: &mut SnapshotReader, changes: &[FileChange], before: &Files, after: &Files) {
    assert_eq!(kinds(changes), expected(before, after));
    for change in changes {
        let sides = [(&change.before, before.get(&change.path)), (&change.after, after.get(&change.path))];
        for (facts, walked) in sides {
            assert_eq!(facts.as_ref().map(|facts| read(reader, facts)).as_ref(), walked, "{}", change.path);
        }
    }
}

fn files(reader: &mut SnapshotReader, snapshot: &FilesystemSnapshot) -> Files {
    let mut found = Vec::new();
    reader
        .files(snapshot, |path, facts| {
            found.push((path.to_owned(), facts.clone()));
            Ok(())
        })
        .unwrap();
    assert!(found.is_sorted_by(|left, right| left.0 < right.0));
    found.into_iter().map(|(path, facts)| (path, read(reader, &facts))).collect()
}

fn object(bench: &Bench, id: &str) -> PathBuf {
    bench.store().join("objects").join(&id[..2]).join(&id[2..])
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::with_cases(32) })]

    #[test]
    fn whatever_was_done_between_two_snapshots_is_what_differs(
        first in steps(),
        second in steps(),
    ) {
        let bench = Bench::new();
        let work = bench.open();
        first.iter().for_each(|(path, act)| carry_out(&bench.root(), path, act));
        let (one, before) = (work.snapshot(None, false).unwrap(), walked(bench.digest()));
        second.iter().for_each(|(path, act)| carry_out(&bench.root(), path, act));
        let (two, after) = (work.snapshot(None, false).unwrap(), walked(bench.digest()));
        drop(work);
        fs::rename(bench.root(), bench.directory.path().join("elsewhere")).unwrap();
        let stored = bench.stored();

        let mut reader = SnapshotReader::open(bench.store());
        for (one, two, before, after) in [(&one, &two, &before, &after), (&two, &one, &after, &before)] {
            let changes = reader.changes(Some(one), two).unwrap();
            assert_told(&mut reader, &changes, before, after);
            let json = serde_json::to_string(&changes).unwrap();
            prop_assert_eq!(serde_json::from_str::<Vec<FileChange>>(&json).unwrap(), changes);
            prop_assert_eq!(&files(&mut reader, two), after);
            prop_assert_eq!(reader.changes(Some(one), one).unwrap(), []);
            let all = reader.changes(None, two).unwrap();
            assert_told(&mut reader, &all, &Files::new(), after);
        }
        prop_assert_eq!(bench.stored(), stored, "nothing is written, and nothing is locked");
    }
}

#[test]
fn git_finds_the_same_differences() {
    let bench = Bench::new();
    let work = bench.open();
    bench.shell(
        "mkdir -p a/b c && echo 1 >a/1 && echo 2 >a/b/2 && echo 3 >a.b && ln -s 1 c/link && echo x >c/x",
    );
    bench.shell("echo run >run && echo mode >mode && echo same >same && echo turned >turned");
    let before = work.snapshot(None, false).unwrap();
    bench
        .shell("echo 9 >a/1 && rm -r a/b && echo file >a/b && rm c/link && echo plain >c/link && mv c/x c/y");
    bench.shell(
        "chmod +x run && chmod 600 mode && rm turned && mkdir turned && echo in >turned/in && mkdir empty",
    );
    bench.shell("touch -d 2001-01-01 same && chmod 700 a");
    let after = work.snapshot(None, false).unwrap();

    let mut reader = SnapshotReader::open(bench.store());
    let changes = reader.changes(Some(&before), &after).unwrap();
    let mut told = String::new();
    for FileChange { path, kind, before, after } in &changes {
        let mode = |facts: &Option<FileFacts>| match facts {
            None => "000000",
            Some(facts) if facts.kind == FileKind::Link => "120000",
            Some(facts) if facts.is_executable() => "100755",
            Some(_) => "100644",
        };
        let id =
            |facts: &Option<FileFacts>| facts.as_ref().map_or("0".repeat(40), |facts| facts.digest.clone());
        let status = match (kind, mode(before), mode(after)) {
            (ChangeKind::Created, ..) => 'A',
            (ChangeKind::Removed, ..) => 'D',
            (_, "120000", _) | (_, _, "120000") => 'T',
            // Git has only one permission bit, and does not see the changes of `mode`.
            (_, was, is) if was == is && id(before) == id(after) => {
                assert_eq!(path, "mode");
                continue;
            }
            _ => 'M',
        };
        let (was, is) = (mode(before), mode(after));
        writeln!(told, ":{was} {is} {} {} {status}\t{path}", id(before), id(after)).unwrap();
    }
    assert_eq!(changes.len(), 10, "{changes:#?}");
    assert!(told.contains("D\ta/b/2\n") && told.contains("A\tturned/in\n"), "{told}");
    let arguments = ["diff-tree", "-r", "--no-renames", "--full-index", &before.commit, &after.commit];
    if let Some(found) = bench.git(&arguments) {
        assert_eq!(told, found);
    }
}

/// The cost depends on the differences alone: equal directories are not read, even if one of their
/// objects is missing.
#[test]
fn directories_that_hold_the_same_are_not_read() {
    let bench = Bench::new();
    let work = bench.open();
    bench.shell(
        "mkdir -p same/deep big && echo 1 >same/deep/1 && echo 2 >same/2 && echo 3 >big/3 && echo a >a",
    );
    let before = work.snapshot(None, false).unwrap();
    // The first executable in the snapshot does not cause a search for others.
    bench.shell("echo b >a && chmod +x a && chmod 700 same");
    let after = work.snapshot(None, false).unwrap();
    drop(work);
    let mut reader = SnapshotReader::open(bench.store());
    let mut contents = BTreeMap::new();
    reader
        .files(&after, |path, facts| {
            contents.insert(path.to_owned(), facts.digest.clone());
            Ok(())
        })
        .unwrap();
    for path in ["same/deep/1", "same/2", "big/3"] {
        fs::remove_file(object(&bench, &contents[path])).unwrap();
    }
    let directories = ["same", "same/deep", "big"].map(|directory| format!("{}:{directory}", after.commit));
    let Some(trees) = bench.git(&["rev-parse", &directories[0], &directories[1], &directories[2]]) else {
        return;
    };
    trees.lines().for_each(|tree| fs::remove_file(object(&bench, tree)).unwrap());
    let mut reader = SnapshotReader::open(bench.store());
    let changes = reader.changes(Some(&before), &after).unwrap();
    assert_eq!(kinds(&changes), [("a".to_owned(), ChangeKind::Modified)]);
    let missing = reader.files(&after, |_, _| Ok(())).unwrap_err();
    assert!(
        matches!(missing, Error::Object { .. }) && missing.to_string().contains("directory `big`"),
        "{missing}"
    );
}

/// Permissions are stored outside of the trees, so equal trees can belong to files with different
/// permissions.
#[test]
fn permissions_alone_are_a_change_also_where_the_directories_hold_the_same() {
    let bench = Bench::new();
    let work = bench.open();
    bench.shell("umask 022; mkdir -p a/b c && for n in 1 2 3 4 5; do echo $n >a/b/$n; done; echo x >c/x && echo y >c/y; mkdir p q; echo x >p/x; echo x >q/x; chmod 600 p/x");
    let one = work.snapshot(None, false).unwrap();
    bench.shell("chmod 600 a/b/3");
    let two = work.snapshot(None, false).unwrap();
    // Now most files have permissions that only one had, and these are no longer listed.
    bench.shell("chmod 600 a/b/1 a/b/2 a/b/4 a/b/5 q/x && chmod 711 a c");
    let three = work.snapshot(None, false).unwrap();
    let mut reader = SnapshotReader::open(bench.store());
    let mut changed = |before, after| {
        let changes = reader.changes(Some(before), after).unwrap();
        let equal = |change: &FileChange| {
            let (before, after) = (change.before.as_ref().unwrap(), change.after.as_ref().unwrap());
            assert!(before.digest == after.digest && before.permissions != after.permissions);
        };
        changes.iter().for_each(equal);
        changes.into_iter().map(|change| change.path).collect::<Vec<_>>()
    };
    assert_eq!(changed(&one, &two), ["a/b/3"]);
    assert_eq!(changed(&two, &three), ["a/b/1", "a/b/2", "a/b/4", "a/b/5", "q/x"]);
    assert_eq!(changed(&three, &one), ["a/b/1", "a/b/2", "a/b/3", "a/b/4", "a/b/5", "q/x"]);
}

/// A plain file whose content equals the object of a file with holes has the same blob, in the same
/// tree.
#[test]
fn a_file_with_holes_is_read_with_them_and_told_from_one_that_poses_as_it() {
    let bench = Bench::new();
    let work = bench.open();
    let mut content = vec![0; 3 << 20];
    content[2 << 20..][..5].copy_from_slice(b"data\n");
    bench.shell("mkdir d && truncate -s 3M d/image && printf 'data\\n' | dd of=d/image bs=1M seek=2 conv=notrunc 2>/dev/null");
    if fs::metadata(bench.at("d/image")).unwrap().blocks() * 512 >= 3 << 20 {
        foldlog_test_support::skipped("the file system has no holes");
        return;
    }
    let before = work.snapshot(None, false).unwrap();
    let mut reader = SnapshotReader::open(bench.store());
    let all = reader.changes(None, &before).unwrap();
    let facts = all[0].after.clone().unwrap();
    assert_eq!((facts.form, facts.len), (FileForm::Sparse, 3 << 20));
    assert_eq!(reader.content(&facts, 3 << 20).unwrap(), content);
    let refused = reader.content(&facts, (3 << 20) - 1).unwrap_err();
    assert!(refused.to_string().contains("3145728 bytes"), "{refused}");

    let says = FileFacts { form: FileForm::Whole, ..facts.clone() };
    let says = reader.content(&says, 1 << 20).unwrap();
    fs::remove_file(bench.at("d/image")).unwrap();
    fs::write(bench.at("d/image"), &says).unwrap();
    let after = work.snapshot(None, false).unwrap();
    let changes = reader.changes(Some(&before), &after).unwrap();
    let [FileChange { kind: ChangeKind::Modified, before: Some(was), after: Some(is), .. }] = &*changes
    else {
        panic!("{changes:?}");
    };
    assert_eq!((&was.digest, was), (&is.digest, &facts));
    assert_eq!((is.form, is.len), (FileForm::Whole, says.len() as u64));
    assert_eq!(reader.content(is, is.len).unwrap(), says);
}

#[test]
fn a_missing_or_damaged_object_is_named_with_what_it_was_of() {
    let bench = Bench::new();
    let work = bench.open();
    bench.shell("mkdir -p d && echo content >d/file");
    symlink("file", bench.at("d/link")).unwrap();
    let snapshot = work.snapshot(None, false).unwrap();
    let facts =
        SnapshotReader::open(bench.store()).changes(None, &snapshot).unwrap()[0].after.clone().unwrap();
    let failing = |result: Result<()>, id: &str, what: &str| {
        let error = result.unwrap_err();
        let Error::Object { path, reason } = &error else { panic!("{error}") };
        assert!(path == &object(&bench, id) && reason.contains(what), "{error}");
    };
    let all =
        |snapshot: &FilesystemSnapshot| SnapshotReader::open(bench.store()).changes(None, snapshot).map(drop);
    let content = || SnapshotReader::open(bench.store()).content(&facts, 100).map(drop);
    let blob = object(&bench, &facts.digest);
    let sound = fs::read(&blob).unwrap();

    failing(SnapshotReader::open(bench.store()).content(&facts, 7).map(drop), &facts.digest, "8 bytes");
    fs::remove_file(&blob).unwrap();
    failing(all(&snapshot), &facts.digest, "the file `d/file`: ");
    failing(content(), &facts.digest, "No such file");
    // A pipe in place of the object blocks no reader.
    nix::unistd::mkfifo(&blob, nix::sys::stat::Mode::S_IRWXU).unwrap();
    failing(all(&snapshot), &facts.digest, "the file `d/file`: ");
    fs::remove_file(&blob).unwrap();
    // The content of another object is refused.
    let commit = object(&bench, &snapshot.commit);
    fs::copy(&commit, &blob).unwrap();
    failing(all(&snapshot), &facts.digest, "it is not a blob");
    fs::remove_file(&blob).unwrap();
    fs::write(&blob, [&sound[..sound.len() - 6], &[0; 6]].concat()).unwrap();
    failing(content(), &facts.digest, "");
    fs::remove_file(&blob).unwrap();
    fs::write(&blob, sound).unwrap();
    all(&snapshot).unwrap();

    let miscounted = FilesystemSnapshot { files: 3, ..snapshot.clone() };
    failing(all(&miscounted), &snapshot.commit, "states 3 files, but contains 2");
    let miscounted = FilesystemSnapshot { files: 1, ..snapshot.clone() };
    failing(all(&miscounted), &snapshot.commit, "states 1 files, but contains 2");
    let nameless = FilesystemSnapshot { commit: "../../etc/passwd".to_owned(), ..snapshot.clone() };
    assert!(all(&nameless).unwrap_err().to_string().contains("is not the name of an object"));
    let named = FilesystemSnapshot { metadata: Some(facts.digest.clone()), ..snapshot.clone() };
    failing(all(&named), &facts.digest, "not the metadata");
    let wrong = FilesystemSnapshot { commit: facts.digest.clone(), ..snapshot };
    failing(all(&wrong), &facts.digest, "it is not a commit");
}
