//! How a workspace is restored.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use foldlog::filesystem::Error;
use foldlog::filesystem::HostFilesystemOptions;

use super::Bench;
use super::storing::objects;

/// A workspace with one of everything.
const BEGIN: &str = "mkdir -p src/deep empty/nested docs && echo 1 >src/one && echo 2 >src/deep/two && \
    echo 3 >docs/three && ln -s ../src docs/link && ln -s /nowhere gone && echo x >run && chmod 750 run && \
    chmod 700 empty && chmod 2755 docs";

#[test]
fn whatever_a_shell_does_is_undone_and_nothing_else_is_touched() {
    let bench = Bench::new();
    bench.shell(BEGIN);
    let files = bench.open();
    let (snapshot, before) = (files.snapshot(None, false).unwrap(), bench.digest());
    let untouched = fs::metadata(bench.at("src/one")).unwrap();
    for script in [
        "rm -r src/deep empty",
        "mv src/deep source && mv docs/three docs/four",
        "rm -r src/deep && echo file >src/deep",
        "rm run && mkdir -p run/deep && touch run/deep/x",
        "rm docs/link && mkdir docs/link && rm gone && echo y >gone",
        "chmod 600 run && chmod 755 empty && chmod 700 .",
        "rm -r src/deep && ln -s /etc src/deep && touch new && mkdir -p new2/new3",
        "echo 9 >src/deep/two && chmod 555 src/deep",
        "rm -rf docs empty gone run && chmod 1777 .",
        "mkdir -p $(printf 'a/%.0s' $(seq 300)) && touch deep",
        "mkdir .git && touch .foldlog-restoring-0000000000000001 src/deep/.foldlog-restoring-0000000000000002",
    ] {
        bench.shell(script);
        files.restore(&snapshot).unwrap_or_else(|error| panic!("{script}: {error}"));
        assert_eq!(bench.digest(), before, "{script}");
        let again = files.restore(&snapshot).unwrap();
        assert_eq!((again.written, again.removed), (0, 0), "{script}");
    }
    let now = fs::metadata(bench.at("src/one")).unwrap();
    assert_eq!((now.ino(), now.ctime_nsec()), (untouched.ino(), untouched.ctime_nsec()));
    assert!(bench.at(".git").is_dir());
}

#[test]
fn another_process_restores_from_the_snapshot_alone() {
    let bench = Bench::new();
    bench.shell(BEGIN);
    let before = bench.digest();
    let text = serde_json::to_string(&bench.open().snapshot(None, true).unwrap()).unwrap();
    for cold in [false, true] {
        bench.shell("echo 8 >src/one && rm -r docs && touch more");
        if cold {
            fs::remove_file(bench.store().join("stat-cache")).unwrap();
        }
        let unchanged = fs::metadata(bench.at("src/deep/two")).unwrap().ino();
        let restored = bench.open().restore(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!((restored.written, restored.removed), (4, 1));
        assert_eq!(bench.digest(), before);
        assert_eq!(fs::metadata(bench.at("src/deep/two")).unwrap().ino(), unchanged, "it was not rewritten");
    }
}

#[test]
fn a_restore_that_was_cut_short_anywhere_ends_the_same() {
    let bench = Bench::new();
    bench.shell(BEGIN);
    let (snapshot, before) = (bench.open().snapshot(None, false).unwrap(), bench.digest());
    // The steps of a restore in order, interrupted after each one.
    let steps = [
        "rm later/a",
        "rmdir later",
        "chmod 700 src",
        "echo 1 >src/.foldlog-restoring-0123456789abcdef",
        "mv src/.foldlog-restoring-0123456789abcdef src/one",
        "mkdir -m 700 src/deep",
        "printf 2 >src/deep/.foldlog-restoring-0123456789abcdef",
        "chmod 755 src",
    ];
    for cut in 0..=steps.len() {
        bench.shell("mkdir later && touch later/a && rm -r src/deep && echo other >src/one && chmod 500 src");
        bench.shell(&format!("true; {}", steps[..cut].join("; ")));
        bench.open().restore(&snapshot).unwrap();
        assert_eq!(bench.digest(), before, "cut behind {cut} steps");
    }
}

#[test]
fn a_leftover_of_a_restore_is_in_no_snapshot() {
    let bench = Bench::new();
    bench.shell("echo 1 >one && echo half >.foldlog-restoring-0123456789abcdef");
    let options = HostFilesystemOptions::default().leave_out(".*");
    let files = bench.open_with(options);
    let snapshot = files.snapshot(None, false).unwrap();
    assert_eq!(snapshot.files, 1);
    files.restore(&snapshot).unwrap();
    assert!(!bench.at(".foldlog-restoring-0123456789abcdef").exists());
}

#[test]
fn a_store_that_is_damaged_is_found_out_before_anything_is_changed() {
    let bench = Bench::new();
    bench.shell(BEGIN);
    let snapshot = bench.open().snapshot(None, false).unwrap();
    let all = "rm -rf * && echo other >src";
    for object in objects(&bench) {
        let sound = fs::read(&object).unwrap();
        let mut flipped = sound.clone();
        flipped[sound.len() / 2] ^= 1;
        for damaged in [None, Some(flipped), Some(sound[..sound.len() - 3].to_vec()), Some(b"x".to_vec())] {
            bench.shell(all);
            fs::remove_file(&object).unwrap();
            if let Some(damaged) = damaged {
                fs::write(&object, damaged).unwrap();
            }
            let before = bench.digest();
            let error = bench.open().restore(&snapshot).unwrap_err();
            assert!(matches!(&error, Error::Object { path, .. } if *path == object), "{error}");
            assert!(foldlog::Error::from(error).is_damage());
            assert_eq!(bench.digest(), before);
            let _ = fs::remove_file(&object);
            fs::write(&object, &sound).unwrap();
        }
    }
    bench.open().restore(&snapshot).unwrap();
    for commit in ["", "x", "../../etc/passwd", &"0".repeat(40), &"Z".repeat(40)] {
        let mut wrong = snapshot.clone();
        wrong.commit = commit.to_owned();
        assert!(matches!(bench.open().restore(&wrong), Err(Error::Object { .. })), "{commit}");
    }
}

#[test]
fn what_is_left_out_is_left_alone() {
    let bench = Bench::new();
    let options = HostFilesystemOptions::default().leave_out("target/").leave_out("*.log").leave_out("/top");
    let files = bench.open_with(options);
    bench.shell("mkdir -p target a/target a/b && touch target/1 a/target/2 x.log top a/top a/b/c");
    bench.shell("mkdir .git a/.git && echo mine >.git/config && echo gitdir >a/b/.git");
    let snapshot = files.snapshot(None, false).unwrap();
    assert_eq!(snapshot.files, 2);
    bench.shell("touch target/3 a/target/4 && rm x.log a/top a/b/c && echo y >top && mkdir -p new/target/5");
    bench.shell("mkdir -p clone/.git clone/src && touch clone/src/x && echo yours >.git/config");
    let restored = bench.open().restore(&snapshot).unwrap();
    let mut kept = restored.kept;
    kept.sort();
    assert_eq!(kept, ["clone", "new"], "what it leaves out is in them");
    for left in
        ["target/3", "a/target/4", "new/target/5", "clone/.git", "a/.git", "a/b/.git", "a/top", "a/b/c"]
    {
        assert!(bench.at(left).exists(), "{left}");
    }
    assert!(!bench.at("x.log").exists() && !bench.at("clone/src").exists());
    assert_eq!(fs::read(bench.at("top")).unwrap(), b"y\n");
    assert_eq!(fs::read(bench.at(".git/config")).unwrap(), b"yours\n");
}

#[test]
fn a_gitignore_counts_as_it_was_at_the_snapshot_and_only_if_asked_for() {
    let bench = Bench::new();
    bench.shell("mkdir -p sub build && printf 'build/\\n*.tmp\\n!keep.tmp\\n' >.gitignore && echo '!b.tmp' >sub/.gitignore");
    bench.shell("touch build/1 a.tmp keep.tmp sub/a.tmp sub/b.tmp");
    assert_eq!(bench.open().snapshot(None, false).unwrap().files, 7);
    let files = bench.open_with(HostFilesystemOptions::default().gitignore(true));
    let snapshot = files.snapshot(None, false).unwrap();
    assert_eq!(snapshot.files, 4);
    // The tool ignores files that were not ignored, and vice versa.
    bench.shell(
        "echo 'keep.tmp' >.gitignore && rm sub/.gitignore keep.tmp a.tmp && echo 2 >build/1 && touch junk",
    );
    files.restore(&snapshot).unwrap();
    assert!(bench.at("keep.tmp").exists() && !bench.at("a.tmp").exists() && !bench.at("junk").exists());
    assert_eq!(fs::read(bench.at("build/1")).unwrap(), b"2\n");
    assert_eq!(
        bench
            .open_with(HostFilesystemOptions::default().gitignore(true))
            .snapshot(None, false)
            .unwrap()
            .commit,
        snapshot.commit
    );
}

#[test]
fn a_path_that_cannot_be_restored_is_named_and_the_rest_is_restored() {
    let bench = Bench::new();
    let options = || HostFilesystemOptions::default().leave_out("*.keep");
    bench.shell("echo 1 >one && echo 2 >two && mkdir three && echo 4 >three/four");
    let files = bench.open_with(options());
    let snapshot = files.snapshot(None, false).unwrap();
    bench.shell("rm one && mkdir one && touch one/a.keep one/b && echo 3 >two && rm -r three");
    match files.restore(&snapshot).unwrap_err() {
        Error::NotRestored(left) => {
            assert_eq!(left.iter().map(|left| left.path.as_str()).collect::<Vec<_>>(), ["one"]);
        }
        error => panic!("{error}"),
    }
    assert_eq!(fs::read(bench.at("two")).unwrap(), b"2\n");
    assert_eq!(fs::read(bench.at("three/four")).unwrap(), b"4\n");
    bench.shell("rm -r one");
    files.restore(&snapshot).unwrap();
    assert_eq!(fs::read(bench.at("one")).unwrap(), b"1\n");
}

#[test]
fn a_file_of_several_names_gives_none_of_its_other_names_new_permissions() {
    let bench = Bench::new();
    bench.shell("echo x >file && chmod 644 file");
    let files = bench.open();
    let snapshot = files.snapshot(None, false).unwrap();
    let outside = bench.directory.path().join("outside");
    bench.shell("chmod 600 file && ln file ../outside");
    files.restore(&snapshot).unwrap();
    assert_eq!(fs::metadata(bench.at("file")).unwrap().permissions().mode() & 0o7777, 0o644);
    assert_eq!(fs::metadata(outside).unwrap().permissions().mode() & 0o7777, 0o600);
}

/// A directory created by a restore within a setgid directory inherited that bit, and kept it.
#[test]
fn a_directory_within_one_that_hands_its_group_on_comes_back_without_that_bit() {
    let bench = Bench::new();
    bench.shell("mkdir -p outer/inner && chmod 2755 outer && chmod 700 outer/inner && chmod g-s outer/inner");
    let files = bench.open();
    let (snapshot, before) = (files.snapshot(None, false).unwrap(), bench.digest());
    bench.shell("rm -r outer/inner");
    files.restore(&snapshot).unwrap();
    assert_eq!(bench.digest(), before);
}

/// Protects: exports of a session into its own workspace do not count as changes by tools.
/// Otherwise a restore would remove the exports, and each export would be a change of the
/// workspace.
#[test]
fn exports_of_sessions_in_the_root_are_left_out_unless_a_host_includes_them() {
    let bench = Bench::new();
    bench.shell("mkdir -p .aca/sessions deep/.aca && echo 1 >file && echo 1 >deep/.aca/file && touch -d 2001-01-01 file");
    let files = bench.open();
    let snapshot = files.snapshot(None, false).unwrap();
    assert_eq!(snapshot.files, 2, "what bears the name in another directory is a file as any other");
    bench.shell("echo export >.aca/sessions/one && echo 2 >deep/.aca/file && echo 2 >file");
    files.restore(&snapshot).unwrap();
    assert_eq!(fs::read(bench.at(".aca/sessions/one")).unwrap(), b"export\n");
    assert_eq!(fs::read(bench.at("deep/.aca/file")).unwrap(), b"1\n");
    let modified = fs::metadata(bench.at("file")).unwrap().modified().unwrap();
    assert!(
        modified < std::time::SystemTime::now() - std::time::Duration::from_secs(1 << 28),
        "times are kept"
    );
    // If it is not a directory, it is an ordinary file of the workspace.
    bench.shell("mv .aca kept && echo 1 >.aca");
    assert_eq!(files.snapshot(None, false).unwrap().files, 4);
    bench.shell("rm .aca && mv kept .aca");
    let including = bench.open_with(HostFilesystemOptions::default().leave_out("!/.aca/"));
    let snapshot = including.snapshot(None, false).unwrap();
    assert_eq!(snapshot.files, 3);
    bench.shell("rm -r .aca");
    including.restore(&snapshot).unwrap();
    assert_eq!(fs::read(bench.at(".aca/sessions/one")).unwrap(), b"export\n");
}
