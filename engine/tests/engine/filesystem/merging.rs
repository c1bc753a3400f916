//! What a rewind of a workspace restores: an earlier snapshot, except for changes by hand since the
//! last one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;

use foldlog::filesystem::{
    ChangeKind, ContentDiff, FilesystemSnapshot, HostFilesystem, HostFilesystemOptions, KeptFile,
    RewindMerge, RewindMergeInputs, SnapshotReader,
};
use proptest::prelude::*;

use super::Bench;
use super::random::{carry_out, steps};

/// A workspace with the snapshot to rewind to, the last snapshot of a call, and its present state.
struct Rewind {
    bench: Bench,
    files: HostFilesystem,
    target: FilesystemSnapshot,
    last: FilesystemSnapshot,
    present: FilesystemSnapshot,
}

impl Rewind {
    /// Runs three scripts: the initial files, the tools' changes, and the changes by hand.
    fn of(first: &str, tools: &str, by_hand: &str) -> Rewind {
        Rewind::with(HostFilesystemOptions::default(), first, tools, by_hand)
    }

    fn with(options: HostFilesystemOptions, first: &str, tools: &str, by_hand: &str) -> Rewind {
        let bench = Bench::new();
        let files = bench.open_with(options);
        let taken = |script: &str| {
            bench.shell(script);
            files.snapshot(None, false).unwrap()
        };
        let (target, last, present) = (taken(first), taken(tools), taken(by_hand));
        Rewind { bench, files, target, last, present }
    }

    fn merged(&self, overwrite: bool) -> RewindMerge {
        let (target, last, present) = (&self.target, &self.last, &self.present);
        self.files
            .merge_for_rewind(&RewindMergeInputs { target, last, present, overwrite, after_restore: false })
            .unwrap()
    }

    /// Rewinds, and checks that the preview listed the changes, and that they can be undone.
    fn rewound(&self, overwrite: bool) -> (RewindMerge, BTreeMap<String, String>) {
        let merged = self.merged(overwrite);
        let told = self.files.rewound(&self.present, &merged.snapshot).unwrap();
        let before = self.bench.digest();
        self.files.restore(&merged.snapshot).unwrap();
        if !self.present.gitignore {
            // Otherwise the next capture may exclude other files.
            let after = self.files.snapshot(None, false).unwrap();
            let mut reader = SnapshotReader::open(self.bench.store());
            assert_eq!(reader.changes(Some(&merged.snapshot), &after).unwrap(), []);
            assert_eq!(self.files.rewound(&self.present, &after).unwrap(), told);
        }
        let held = self.held();
        self.files.restore(&self.present).unwrap();
        assert_eq!(self.bench.digest(), before, "the present was captured");
        self.files.restore(&merged.snapshot).unwrap();
        (merged, held)
    }

    /// Returns the contents of the workspace by path, directories with a trailing `/`.
    fn held(&self) -> BTreeMap<String, String> {
        fn look(directory: &std::path::Path, prefix: &str, held: &mut BTreeMap<String, String>) {
            for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
                let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
                if entry.file_type().unwrap().is_dir() {
                    held.insert(format!("{path}/"), String::new());
                    look(&entry.path(), &format!("{path}/"), held);
                } else {
                    held.insert(path, fs::read_to_string(entry.path()).unwrap());
                }
            }
        }
        let mut held = BTreeMap::new();
        look(&self.bench.root(), "", &mut held);
        held
    }
}

fn held(files: &[(&str, &str)]) -> BTreeMap<String, String> {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

fn kept(merged: &RewindMerge) -> Vec<(&str, ChangeKind, ChangeKind, Option<&str>)> {
    let told = |kept: &'_ KeptFile| (kept.by_hand, kept.otherwise);
    merged
        .kept
        .iter()
        .map(|one| (one.path.as_str(), told(one).0, told(one).1, one.in_place_of.as_deref()))
        .collect()
}

const CREATED: ChangeKind = ChangeKind::Created;
const MODIFIED: ChangeKind = ChangeKind::Modified;
const REMOVED: ChangeKind = ChangeKind::Removed;

#[test]
fn files_that_were_changed_by_hand_are_kept_and_named_and_all_others_go_back() {
    let first = "printf one > tool; printf one > both; printf one > gone; printf one > same";
    let tools = "printf two > tool; printf two > both; printf two > gone; printf two > new";
    let by_hand = "printf hand > both; rm gone; printf hand > notes; printf two > same; printf one > same";
    let rewind = Rewind::of(first, tools, by_hand);
    let (merged, found) = rewind.rewound(false);
    assert_eq!(found, held(&[("tool", "one"), ("both", "hand"), ("notes", "hand"), ("same", "one")]));
    let expected = [
        ("both", MODIFIED, MODIFIED, None),
        ("gone", REMOVED, CREATED, None),
        ("notes", CREATED, REMOVED, None),
    ];
    assert_eq!(kept(&merged), expected);

    let rewind = Rewind::of(first, tools, by_hand);
    let (merged, found) = rewind.rewound(true);
    assert_eq!(found, held(&[("tool", "one"), ("both", "one"), ("gone", "one"), ("same", "one")]));
    assert_eq!((merged.kept.len(), &merged.snapshot.commit), (0, &rewind.target.commit));
}

#[test]
fn a_kept_file_wins_over_a_directory_or_a_file_of_the_target() {
    // The target has a directory there.
    let rewind = Rewind::of("mkdir d; printf x > d/x; printf y > d/y", "rm -r d", "printf hand > d");
    let (merged, found) = rewind.rewound(false);
    assert_eq!(found, held(&[("d", "hand")]));
    assert_eq!(kept(&merged), [("d", CREATED, REMOVED, Some("d/"))]);
    // In a directory where the target has a file; everything else in the directory is removed.
    let tools = "rm d; mkdir -p d/e; printf tool > d/tool; printf tool > d/e/f";
    let rewind = Rewind::of("printf file > d", tools, "printf hand > d/e/f");
    let (merged, found) = rewind.rewound(false);
    assert_eq!(found, held(&[("d/", ""), ("d/e/", ""), ("d/e/f", "hand")]));
    assert_eq!(kept(&merged), [("d/e/f", MODIFIED, REMOVED, Some("d"))]);
    // A file removed by hand does not block the restore.
    let rewind = Rewind::of("printf file > d", "rm d; mkdir d; printf tool > d/tool", "rm d/tool");
    let (merged, found) = rewind.rewound(false);
    assert_eq!((found, merged.kept.len()), (held(&[("d", "file")]), 0));
    // Nor does a file that a person replaced by a directory.
    let rewind = Rewind::of("printf one > d", "printf two > d", "rm d; mkdir d; printf hand > d/f");
    let (merged, found) = rewind.rewound(false);
    assert_eq!(found, held(&[("d/", ""), ("d/f", "hand")]));
    assert_eq!(kept(&merged), [("d", REMOVED, CREATED, None), ("d/f", CREATED, REMOVED, None)]);
}

#[test]
fn directories_come_and_go_with_what_is_kept_in_them() {
    // A directory that the target lacks stays for the kept file, with its permissions.
    let tools = "mkdir -p d/e d/f; printf tool > d/e/tool; printf tool > d/f/tool; chmod 700 d/e";
    let rewind = Rewind::of("printf one > one", tools, "printf hand > d/e/hand");
    let (_, found) = rewind.rewound(false);
    assert_eq!(found, held(&[("one", "one"), ("d/", ""), ("d/e/", ""), ("d/e/hand", "hand")]));
    let mode = |path: &str| fs::metadata(rewind.bench.at(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("d/e"), 0o700);
    // A directory that a person removed with all its files does not come back, except for files
    // that tools had removed from it before.
    let rewind = Rewind::of(
        "mkdir d; printf a > d/a; mkdir e; printf a > e/a; printf b > e/b",
        "rm e/b; printf 2 > e/a",
        "rm -r d e",
    );
    let (merged, found) = rewind.rewound(false);
    assert_eq!(found, held(&[("e/", ""), ("e/b", "b")]));
    assert_eq!(kept(&merged), [("d/a", REMOVED, CREATED, None), ("e/a", REMOVED, CREATED, None)]);
    // Directories alone are not kept.
    let (_, found) = Rewind::of("mkdir empty", ":", "rmdir empty; mkdir other").rewound(false);
    assert_eq!(found, held(&[("empty/", "")]));
}

#[test]
fn content_and_permissions_are_kept_separately() {
    let rewind = Rewind::of(
        "printf one > run; printf one > stays; printf one > text",
        "printf two > run; chmod 600 stays text",
        "chmod 755 run; printf hand > text",
    );
    let (merged, found) = rewind.rewound(false);
    assert_eq!(found, held(&[("run", "one"), ("stays", "one"), ("text", "hand")]));
    assert_eq!(kept(&merged), [("run", MODIFIED, MODIFIED, None), ("text", MODIFIED, MODIFIED, None)]);
    assert!(merged.kept.iter().all(|kept| kept.merged));
    let mode = |path: &str| fs::metadata(rewind.bench.at(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("run"), mode("stays"), mode("text")), (0o755, 0o644, 0o644));
}

#[test]
fn lines_of_tools_go_and_lines_by_hand_stay() {
    let text = |first: &str, last: &str| format!("{first}\na\nb\nc\n{last}\n");
    let write = |path: &str, text: &str| format!("printf '{}' > {path};", text.replace('\n', "\\n"));
    let rewind = Rewind::of(
        &format!(
            "{}{}{}",
            write("both", &text("1", "9")),
            write("same", &text("1", "9")),
            write("back", &text("1", "9"))
        ),
        &format!(
            "{}{}{}",
            write("both", &text("tool", "9")),
            write("same", &text("tool", "9")),
            write("back", &text("tool", "tool"))
        ),
        &format!(
            "{}{}{} touch -d @1100000000 both same",
            write("both", &text("tool", "hand")),
            write("same", &text("hand", "9")),
            write("back", &text("1", "tool"))
        ),
    );
    let (merged, found) = rewind.rewound(false);
    let expected = [("back", text("1", "9")), ("both", text("1", "hand")), ("same", text("hand", "9"))];
    assert_eq!(found, held(&expected.each_ref().map(|(path, text)| (*path, text.as_str()))));
    let told: Vec<_> = merged.kept.iter().map(|kept| (kept.path.as_str(), kept.merged)).collect();
    assert_eq!(told, [("both", true), ("same", false)]);
    // A build has to notice the new content.
    use std::os::unix::fs::MetadataExt;
    let time = |path: &str| fs::metadata(rewind.bench.at(path)).unwrap().mtime();
    assert!(time("both") > 1_100_000_000);
    assert_eq!(time("same"), 1_100_000_000);
}

#[test]
fn names_of_one_file_and_times_are_those_of_their_side() {
    let first = "printf one > a; ln a b; printf one > c; touch -d @1000000000 c a .";
    let tools = "rm b; printf two > b; printf two > c; printf x > x; ln x y";
    let rewind = Rewind::of(first, tools, "printf hand > x; touch -d @1100000000 x");
    let (merged, found) = rewind.rewound(false);
    assert_eq!(found, held(&[("a", "one"), ("b", "one"), ("c", "one"), ("x", "hand"), ("y", "hand")]));
    assert_eq!(merged.kept.len(), 2, "both names show the change");
    use std::os::unix::fs::MetadataExt;
    let look = |path: &str| fs::metadata(rewind.bench.at(path)).unwrap();
    assert_eq!((look("a").ino(), look("x").ino()), (look("b").ino(), look("y").ino()));
    assert_eq!((look("c").mtime(), look("x").mtime()), (1_000_000_000, 1_100_000_000));
}

/// A restore removes files that its snapshot lacks. Files that are now excluded from captures would
/// be lost for good.
#[test]
fn what_a_capture_leaves_out_stays_whatever_is_overwritten() {
    let options = || HostFilesystemOptions::default().gitignore(true);
    let first = "printf one > code; printf key > secret";
    let tools =
        "printf two > code; printf 'secret\nbuild/\n' > .gitignore; mkdir build; printf built > build/out";
    for overwrite in [false, true] {
        let rewind = Rewind::with(options(), first, tools, "printf other > secret");
        let (merged, found) = rewind.rewound(overwrite);
        let expected = [("code", "one"), ("secret", "other"), ("build/", ""), ("build/out", "built")];
        assert_eq!((found, merged.left_out, merged.kept.len()), (held(&expected), 1, 0));
    }
    // Files that the target excluded are unknown to it.
    let first = "printf 'build/\n' > .gitignore; mkdir build; printf old > build/out; printf one > code";
    let rewind =
        Rewind::with(options(), first, "rm .gitignore; printf two > code; printf new > build/out", ":");
    let (merged, found) = rewind.rewound(false);
    let expected = [(".gitignore", "build/\n"), ("build/", ""), ("build/out", "new"), ("code", "one")];
    assert_eq!((found, merged.left_out), (held(&expected), 1));
}

#[test]
fn differences_are_told_as_far_as_a_person_reads_them() {
    let first =
        "printf 'a\nb\n' > text; printf '\\0' > binary; head -c 300000 /dev/zero > large; printf x > mode";
    let tools =
        "printf 'a\nc\n' > text; printf '\\1\\0' > binary; printf x > large; chmod 755 mode; printf n > new";
    let rewind = Rewind::of(first, tools, ":");
    let told = rewind.files.rewound(&rewind.present, &rewind.merged(false).snapshot).unwrap();
    let told: BTreeMap<&str, (ChangeKind, &ContentDiff)> =
        told.iter().map(|file| (file.path.as_str(), (file.change, &file.diff))).collect();
    let text = |unified: &str| ContentDiff::Text { unified: unified.to_owned() };
    assert_eq!(told["text"], (MODIFIED, &text("@@ -1,2 +1,2 @@\n a\n-c\n+b\n")));
    assert_eq!(told["new"], (REMOVED, &text("@@ -1 +0,0 @@\n-n\n\\ No newline at end of file\n")));
    assert_eq!(told["binary"], (MODIFIED, &ContentDiff::Binary));
    assert_eq!(told["large"], (MODIFIED, &ContentDiff::TooLong));
    assert_eq!(told["mode"], (MODIFIED, &ContentDiff::Equal));
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 100, failure_persistence: None, ..ProptestConfig::with_cases(12) })]

    /// After any changes by tools and by hand, each file is either as in the target or unchanged,
    /// as reported, and the undo restores everything.
    #[test]
    fn any_changes_are_kept_or_go_back_file_by_file(
        first in steps(), tools in steps(), by_hand in steps(), overwrite in any::<bool>(),
    ) {
        let bench = Bench::new();
        let files = bench.open();
        let taken = |steps: &[super::random::Step]| {
            steps.iter().for_each(|(path, act)| carry_out(&bench.root(), path, act));
            files.snapshot(None, false).unwrap()
        };
        let (target, last, present) = (taken(&first), taken(&tools), taken(&by_hand));
        let before = bench.digest();
        let merged = files.merge_for_rewind(&RewindMergeInputs { target: &target, last: &last, present: &present, overwrite, after_restore: false }).unwrap();
        let restored = files.restore(&merged.snapshot).unwrap();
        prop_assert_eq!(restored.inexact, []);
        let after = files.snapshot(None, false).unwrap();
        let mut reader = SnapshotReader::open(bench.store());
        let mut paths = |one: &FilesystemSnapshot, other: &FilesystemSnapshot| -> Vec<String> {
            reader.changes(Some(one), other).unwrap().into_iter().map(|change| change.path).collect()
        };
        prop_assert_eq!(paths(&merged.snapshot, &after), [""; 0]);
        let (hand, otherwise) = (paths(&last, &present), paths(&present, &target));
        let expected: Vec<&String> = hand.iter().filter(|path| otherwise.contains(path) && !overwrite).collect();
        let all_kept = &merged.kept;
        let kept: Vec<&String> = all_kept.iter().map(|kept| &kept.path).collect();
        prop_assert!(kept.iter().all(|path| expected.contains(path)), "{:?} of {:?}", kept, expected);
        let changed = paths(&present, &after);
        let merged: BTreeSet<&String> = all_kept.iter().filter(|kept| kept.merged).map(|kept| &kept.path).collect();
        prop_assert!(kept.iter().all(|path| merged.contains(path) == changed.contains(path)), "what is kept whole is as it was");
        // A file that is neither as in the target nor kept was in the way of one that is.
        let in_the_way: Vec<&str> = all_kept.iter().filter_map(|kept| kept.in_place_of.as_deref()).collect();
        for path in paths(&target, &after) {
            let made_way = in_the_way.iter().any(|way| *way == path || (way.ends_with('/') && path.starts_with(way)));
            prop_assert!(kept.contains(&&path) || made_way, "{} is neither", path);
        }
        files.restore(&present).unwrap();
        prop_assert_eq!(bench.digest(), before);
    }
}
