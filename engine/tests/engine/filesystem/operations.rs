//! Operations of tools on files, on both filesystems.

use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicI64, Ordering};

use foldlog::filesystem::{Error, Result};
use foldlog::filesystem::{FileKind, Filesystem, InMemoryFilesystem};

use super::Bench;

fn kind_of<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    match result.unwrap_err() {
        Error::Io { source, .. } => source.kind(),
        error => panic!("{error}"),
    }
}

fn is_refused<T: std::fmt::Debug>(result: Result<T>) -> bool {
    matches!(result.unwrap_err(), Error::Path { .. })
}

fn names(files: &dyn Filesystem, directory: &str) -> Vec<(String, FileKind)> {
    files.list(directory).unwrap().into_iter().map(|entry| (entry.name, entry.kind)).collect()
}

fn every_operation(files: &dyn Filesystem) {
    files.write("src/main.rs", b"fn main() {}").unwrap();
    files.write("src/deep/er/lib.rs", b"").unwrap();
    files.append("notes", b"one").unwrap();
    files.append("notes", b", two").unwrap();
    assert_eq!(files.read("notes").unwrap(), b"one, two");
    files.write("notes", b"new").unwrap();
    assert_eq!(files.read("./notes").unwrap(), b"new");

    let (file, directory) = (FileKind::File, FileKind::Directory);
    assert_eq!(names(files, "."), [("notes".to_owned(), file), ("src".to_owned(), directory)]);
    assert_eq!(names(files, "src"), [("deep".to_owned(), directory), ("main.rs".to_owned(), file)]);
    assert_eq!(files.glob("**/*.rs").unwrap(), ["src/deep/er/lib.rs", "src/main.rs"]);
    assert_eq!(files.glob("*").unwrap(), ["notes", "src"]);
    assert_eq!(files.glob("src/**").unwrap().len(), 4);
    let stat = files.stat("src/main.rs").unwrap();
    assert_eq!((stat.kind, stat.len, stat.mode), (file, 12, 0o644));
    assert_eq!(files.stat("src").unwrap().kind, directory);
    assert!(files.exists("src/deep").unwrap() && files.exists(".").unwrap());
    assert!(!files.exists("src/none").unwrap() && !files.exists("notes/below").unwrap());

    files.rename("src/main.rs", "bin/main.rs").unwrap();
    files.rename("src/deep", "deep").unwrap();
    assert_eq!(files.glob("**/*.rs").unwrap(), ["bin/main.rs", "deep/er/lib.rs"]);
    files.rename("notes", "bin/main.rs").unwrap();
    assert_eq!(files.read("bin/main.rs").unwrap(), b"new");
    assert_eq!(kind_of(files.rename("bin", "deep")), ErrorKind::AlreadyExists);
    assert_eq!(kind_of(files.rename("bin/main.rs", "deep")), ErrorKind::AlreadyExists);
    assert!(is_refused(files.rename("deep", "deep/er/deep")));
    files.rename("deep", "deep").unwrap();

    files.delete("deep").unwrap();
    files.delete("bin/main.rs").unwrap();
    assert_eq!(names(files, "bin"), []);
    assert!(files.exists("src").unwrap(), "an empty directory stays");

    assert_eq!(kind_of(files.read("none")), ErrorKind::NotFound);
    assert_eq!(kind_of(files.delete("none")), ErrorKind::NotFound);
    assert_eq!(kind_of(files.rename("none", "some")), ErrorKind::NotFound);
    assert_eq!(kind_of(files.list("none")), ErrorKind::NotFound);
    assert_eq!(kind_of(files.stat("none")), ErrorKind::NotFound);
    assert_eq!(kind_of(files.read("bin")), ErrorKind::IsADirectory);
    assert_eq!(kind_of(files.write("bin", b"")), ErrorKind::IsADirectory);
    files.write("plain", b"").unwrap();
    assert_eq!(kind_of(files.list("plain")), ErrorKind::NotADirectory);
    assert_eq!(kind_of(files.write("plain/below", b"")), ErrorKind::NotADirectory);
    for refused in ["", "/etc/passwd", "../outside", "bin/../../outside", "a//b", "nul\0"] {
        assert!(is_refused(files.read(refused)), "{refused:?}");
        assert!(is_refused(files.write(refused, b"")), "{refused:?}");
        assert!(is_refused(files.delete(refused)), "{refused:?}");
        assert!(is_refused(files.rename("plain", refused)), "{refused:?}");
        assert!(is_refused(files.exists(refused)), "{refused:?}");
    }
    assert!(is_refused(files.delete(".")));
    assert!(is_refused(files.glob("../*")));
}

#[test]
fn every_operation_does_the_same_in_memory_and_on_disk() {
    every_operation(&InMemoryFilesystem::new());
    every_operation(&Bench::new().open());
}

#[test]
fn memory_goes_back_to_a_snapshot_and_forth_again() {
    let now_us = AtomicI64::new(1000);
    let files = InMemoryFilesystem::with_time(move || now_us.fetch_add(1, Ordering::Relaxed));
    for n in 0..500 {
        files.write(&format!("directory {}/file {n}", n % 7), n.to_string().as_bytes()).unwrap();
    }
    let before = files.snapshot();
    let (all, stat) = (files.glob("**").unwrap(), files.stat("directory 3/file 3").unwrap());
    files.write("directory 3/file 3", b"changed").unwrap();
    files.delete("directory 4").unwrap();
    files.rename("directory 5", "directory 3/five").unwrap();
    let after = files.snapshot();
    files.restore(&before);
    assert_eq!(files.glob("**").unwrap(), all);
    assert_eq!(files.read("directory 3/file 3").unwrap(), b"3");
    assert_eq!(files.stat("directory 3/file 3").unwrap(), stat, "times go back as well");
    files.restore(&after);
    assert_eq!(files.read("directory 3/file 3").unwrap(), b"changed");
    assert!(files.exists("directory 3/five/file 5").unwrap() && !files.exists("directory 4").unwrap());
}

#[test]
fn a_change_in_memory_that_fails_changes_nothing() {
    let files = InMemoryFilesystem::new();
    files.write("a/file", b"").unwrap();
    let before = files.glob("**").unwrap();
    assert!(files.rename("a", "a/file/below").is_err());
    assert!(files.rename("a/file", "b/c/file/../x").is_err());
    assert!(files.write("a/file/below/deep", b"").is_err());
    assert_eq!(files.glob("**").unwrap(), before);
}

#[test]
fn a_link_is_followed_within_the_workspace_and_never_out_of_it() {
    let bench = Bench::new();
    let files = bench.open();
    let outside = bench.directory.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "secret").unwrap();
    files.write("inside/file", b"inside").unwrap();
    symlink("../inside/../inside/file", bench.at("inside/to file")).unwrap();
    symlink("inside", bench.at("to directory")).unwrap();
    symlink(bench.at("inside"), bench.at("whole path")).unwrap();
    for path in ["inside/to file", "to directory/file", "whole path/file"] {
        assert_eq!(files.read(path).unwrap(), b"inside", "{path}");
    }
    assert_eq!(files.stat("to directory").unwrap().kind, FileKind::Link);

    symlink(&outside, bench.at("out")).unwrap();
    symlink("../outside", bench.at("up")).unwrap();
    symlink("inside/../../outside", bench.at("around")).unwrap();
    symlink("../outside/secret", bench.at("to secret")).unwrap();
    symlink("../outside/new", bench.at("to nothing")).unwrap();
    symlink("again", bench.at("again")).unwrap();
    for path in ["out/secret", "up/secret", "around/secret", "to secret", "to nothing", "again"] {
        assert!(is_refused(files.read(path)), "{path}");
        assert!(is_refused(files.write(path, b"gone")), "{path}");
        assert!(is_refused(files.append(path, b"gone")), "{path}");
    }
    for path in ["out/secret", "up/secret", "around/secret"] {
        assert!(is_refused(files.delete(path)), "{path}");
        assert!(is_refused(files.rename("inside/file", path)), "{path}");
        assert!(is_refused(files.rename(path, "stolen")), "{path}");
        assert!(is_refused(files.stat(path)), "{path}");
    }
    assert!(is_refused(files.list("out")));
    assert!(files.glob("**/secret").unwrap().is_empty());
    // Deletes the link itself.
    files.delete("out").unwrap();
    files.delete("to secret").unwrap();
    assert_eq!(std::fs::read(outside.join("secret")).unwrap(), b"secret");
    assert!(!outside.join("new").exists());
}

#[test]
fn a_tool_changes_nothing_that_is_named_git() {
    let bench = Bench::new();
    let files = bench.open();
    bench.shell("mkdir -p .git/hooks project/.git && echo x >.git/config && ln -s .git/hooks hooks");
    assert_eq!(files.read(".git/config").unwrap(), b"x\n");
    assert!(is_refused(files.write(".git/config", b"")));
    assert!(is_refused(files.write("hooks/pre-commit", b"")));
    assert!(is_refused(files.delete(".git")));
    assert!(is_refused(files.delete("project")));
    assert!(is_refused(files.rename(".git", "git")));
    assert!(is_refused(files.rename("project", ".git/project")));
    assert!(bench.at("project/.git").is_dir());
    files.write(".github/workflow", b"").unwrap();
}
