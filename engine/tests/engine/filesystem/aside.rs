//! Files that cannot be captured are moved aside before they are replaced.

use std::fs;
use std::os::unix::fs::symlink;

use foldlog::filesystem::Error;

use super::*;

fn text(bench: &Bench, path: &str) -> Option<String> {
    fs::read_to_string(bench.at(path)).ok()
}

#[test]
fn what_a_rollback_replaces_or_removes_lies_aside_and_is_left_alone() {
    let bench = Bench::new();
    fs::create_dir_all(bench.at("kept/inner")).unwrap();
    for (path, content) in [("page", "one"), ("kept/inner/file", "two"), ("gone", "three"), ("same", "four")]
    {
        fs::write(bench.at(path), content).unwrap();
    }
    let work = bench.open();
    let before = work.snapshot(None, true).unwrap();
    fs::write(bench.at("page"), "half").unwrap();
    fs::write(bench.at("kept/inner/file"), "half two").unwrap();
    fs::remove_file(bench.at("gone")).unwrap();
    fs::create_dir_all(bench.at("made/deep")).unwrap();
    fs::write(bench.at("made/deep/file"), "made").unwrap();
    symlink("page", bench.at("link")).unwrap();
    nix::unistd::mkfifo(&bench.at("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    work.set_aside(&before, "7").unwrap();
    let aside = |path: &str| text(&bench, &format!(".foldlog-aside/7/{path}"));
    assert_eq!(aside("page").as_deref(), Some("half"));
    assert_eq!(aside("kept/inner/file").as_deref(), Some("half two"));
    assert_eq!(aside("made/deep/file").as_deref(), Some("made"));
    assert_eq!(fs::read_link(bench.at(".foldlog-aside/7/link")).unwrap().to_str(), Some("page"));
    assert_eq!((aside("same"), text(&bench, "same").as_deref()), (None, Some("four")));
    // An interrupted attempt is repeated, and overwrites nothing in the directory.
    fs::write(bench.at("page"), "later").unwrap();
    work.set_aside(&before, "7").unwrap();
    assert_eq!((aside("page").as_deref(), aside("page.1").as_deref()), (Some("half"), Some("later")));
    let restored = work.roll_back(&before, "7").unwrap();
    let [told] = restored.inexact.as_slice() else { panic!("{restored:?}") };
    assert_eq!(told.path, ".foldlog-aside/7");
    assert_eq!(work.snapshot(None, true).unwrap(), before, "no snapshot holds what lies aside");
    assert_eq!(
        (text(&bench, "page").as_deref(), text(&bench, "gone").as_deref()),
        (Some("one"), Some("three"))
    );
    assert!(!bench.at("made").exists() && !bench.at("pipe").exists());
    assert!(work.roll_back(&before, "8").unwrap().inexact.is_empty(), "nothing of call 8 lies aside");
    assert_eq!(aside("page").as_deref(), Some("half"));
}

#[test]
fn where_something_cannot_be_moved_everything_stays_where_it_was() {
    let bench = Bench::new();
    for path in ["a", "b"] {
        fs::write(bench.at(path), "one").unwrap();
    }
    let work = bench.open();
    let before = work.snapshot(None, true).unwrap();
    for path in ["a", "b"] {
        fs::write(bench.at(path), "half").unwrap();
    }
    // A file or link has the directory's name, so nothing can be moved into it; a link is not
    // followed.
    symlink("/tmp", bench.at(".foldlog-aside")).unwrap();
    let refused = work.set_aside(&before, "7").unwrap_err();
    let is_named = matches!(&refused, Error::Io { op: "move into .foldlog-aside", path, .. } if *path == bench.at(".foldlog-aside"));
    assert!(is_named, "{refused}");
    assert_eq!([text(&bench, "a"), text(&bench, "b")].map(Option::unwrap), ["half", "half"]);
}
