//! The table of what a failed tool leaves unchanged and what not, in `docs/reference/failed-calls.md` and in the docs of
//! `HostFilesystem`: each row is tested.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use foldlog::filesystem::{
    FilesystemSnapshot, HostFilesystem, HostFilesystemOptions, WorkspaceRestoreReport,
};
use nix::unistd::Uid;

use super::{Bench, exact, limits, mounts};

const HEAD: &str = "| part of a workspace | state after a failed tool |";

/// Returns the rows of the table below its head, without the prefix of each line.
fn rows(text: &str, before: &str) -> Vec<(String, String)> {
    let lines = text.lines().map(|line| line.strip_prefix(before).unwrap_or(line));
    let table = lines.skip_while(|line| *line != HEAD).skip(2).take_while(|line| line.starts_with('|'));
    table
        .map(|line| match line.trim_matches('|').split(" | ").collect::<Vec<_>>()[..] {
            [of, after] => (of.trim().to_owned(), after.trim().to_owned()),
            _ => panic!("a row has two cells: {line}"),
        })
        .collect()
}

/// Captures a workspace, runs a tool, and returns the report of the restore.
fn failed(before: &str, tool: &str) -> (Bench, HostFilesystem, FilesystemSnapshot, WorkspaceRestoreReport) {
    failed_with(HostFilesystemOptions::default(), before, tool)
}

fn failed_with(
    options: HostFilesystemOptions,
    before: &str,
    tool: &str,
) -> (Bench, HostFilesystem, FilesystemSnapshot, WorkspaceRestoreReport) {
    let bench = Bench::new();
    bench.shell(before);
    let files = bench.open_with(options);
    let snapshot = files.snapshot(None, false).unwrap();
    bench.shell(tool);
    let restored = files.restore(&snapshot).unwrap();
    (bench, files, snapshot, restored)
}

fn told(restored: &WorkspaceRestoreReport) -> Vec<&str> {
    restored.inexact.iter().map(|one| one.path.as_str()).collect()
}

fn contents() {
    let bench = Bench::new();
    bench.shell("mkdir -p a/b && echo 1 >a/1 && ln -s ../x a/link && printf '' >a/empty");
    let files = bench.open();
    let (snapshot, before) = (files.snapshot(None, false).unwrap(), bench.digest());
    bench.shell("rm -r a && mkdir c && echo 2 >c/2");
    assert_eq!(files.restore(&snapshot).unwrap().inexact, []);
    assert_eq!(bench.digest(), before);
}

fn permissions() {
    let (bench, ..) = failed("echo 1 >1 && chmod 4751 1 && mkdir 2 && chmod 3700 2", "rm -r 1 2 && touch 1");
    let mode = |path| fs::metadata(bench.at(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("1"), mode("2")), (0o4751, 0o3700));
    exact::what_cannot_be_given_back_to_its_owner_is_told_and_loses_its_bits();
}

fn owners() {
    if Uid::effective().is_root() {
        let (bench, _, _, restored) = failed("touch 1 && chown 1000:1001 1", "rm 1 && touch 1");
        let found = fs::metadata(bench.at("1")).unwrap();
        assert_eq!((found.uid(), found.gid(), told(&restored)), (1000, 1001, vec![]));
    }
}

fn names_inside() {
    let (bench, _, _, restored) = failed("echo 1 >1 && ln 1 2", "rm 2 && echo 1 >2");
    let inode = |path| fs::metadata(bench.at(path)).unwrap().ino();
    assert!(inode("1") == inode("2") && restored.inexact.is_empty());
}

fn names_outside() {
    let (bench, _, _, restored) = failed("echo 1 >../outside && ln ../outside 1", "echo 2 >>1");
    assert_eq!(told(&restored), ["1"]);
    assert_eq!(fs::read(bench.at("1")).unwrap(), b"1\n");
    assert_eq!(fs::read(bench.directory.path().join("outside")).unwrap(), b"1\n2\n");
    assert_eq!(fs::metadata(bench.at("1")).unwrap().nlink(), 1);
}

fn holes() {
    let bench = Bench::new();
    File::create(bench.at("holes")).unwrap().set_len(8 << 20).unwrap();
    File::create(bench.at("small")).unwrap().set_len(1 << 20).unwrap();
    let files = bench.open();
    let snapshot = files.snapshot(None, false).unwrap();
    let blocks = |path| fs::metadata(bench.at(path)).unwrap().blocks();
    let before = blocks("holes");
    bench.shell("rm holes small");
    files.restore(&snapshot).unwrap();
    assert_eq!(blocks("holes"), before);
    assert_eq!(fs::read(bench.at("small")).unwrap(), vec![0; 1 << 20]);
}

fn times() {
    exact::times_come_back_where_nothing_is_left_out();
    exact::times_do_not_come_back_beside_what_is_left_out();
}

fn other_times() {
    let (bench, ..) = failed("touch -a -d '2020-01-01' 1", "rm 1");
    assert!(fs::metadata(bench.at("1")).unwrap().atime() > 1_600_000_000);
}

fn left_out() {
    let options = HostFilesystemOptions::default().leave_out("build/");
    let (bench, _, _, restored) = failed_with(options, "mkdir build && echo 1 >build/1", "echo 2 >build/1");
    assert_eq!((fs::read(bench.at("build/1")).unwrap(), told(&restored)), (b"2\n".to_vec(), vec![]));
}

fn repositories() {
    let before =
        "mkdir -p .git/hooks .git/refs .git/info .git/objects && touch .git/config .git/HEAD .git/index";
    let tool =
        "for name in hooks/pre-commit config HEAD refs/main info/exclude index; do echo 2 >.git/$name; done";
    let (bench, _, _, restored) = failed(before, tool);
    assert_eq!(told(&restored), Vec::<&str>::new());
    assert_eq!(fs::read(bench.at(".git/config")).unwrap(), b"");
    assert!(!bench.at(".git/hooks/pre-commit").exists() && !bench.at(".git/refs/main").exists());
}

fn special() {
    let (bench, files, ..) = failed("echo 1 >1", "mkfifo pipe && rm 1 && mkfifo 1");
    assert!(!bench.at("pipe").exists() && !fs::metadata(bench.at("1")).unwrap().file_type().is_fifo());
    bench.shell("mkfifo pipe");
    assert!(files.snapshot(None, false).unwrap_err().to_string().contains("`pipe`"));
}

fn depth() {
    let bench = Bench::new();
    let path = |depth: usize| "d/".repeat(depth);
    fs::create_dir_all(bench.at(&path(256))).unwrap();
    let files = bench.open();
    let (snapshot, before) = (files.snapshot(None, false).unwrap(), bench.digest());
    bench.shell("rm -r d");
    fs::create_dir_all(bench.at(&path(700))).unwrap();
    assert!(files.snapshot(None, false).is_err());
    files.restore(&snapshot).unwrap();
    assert_eq!(bench.digest(), before);
}

const TRIED: &[(&str, fn())] = &[
    ("names, contents, directories, symbolic links", contents),
    ("permission bits", permissions),
    ("owner and group", owners),
    (
        "extended attributes, access lists and capabilities, of files and directories",
        exact::extended_attributes_come_back_with_capabilities_and_access_lists,
    ),
    ("names of the same file, inside", names_inside),
    ("a file that has other names outside", names_outside),
    ("holes", holes),
    ("times of the last change of content", times),
    ("other times, attributes of symbolic links", other_times),
    (
        "a file that others append to while it is captured",
        limits::a_log_that_others_append_to_is_captured_as_far_as_it_was_and_never_restored,
    ),
    ("paths that the host leaves out", left_out),
    ("`.git`", repositories),
    ("mounts", mounts::what_a_tool_mounted_is_reported_and_neither_entered_nor_emptied),
    ("pipes, sockets, devices", special),
    ("nested directories", depth),
];

#[test]
fn each_row_of_the_table_of_what_comes_back_holds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = rows(&fs::read_to_string(root.join("docs/reference/failed-calls.md")).unwrap(), "");
    let docs = fs::read_to_string(root.join("filesystem/src/host/mod.rs")).unwrap();
    assert_eq!(rows(&docs, "/// "), page, "the page and the docs of `HostFilesystem` say the same");
    let named: Vec<&str> = page.iter().map(|(of, _)| of.as_str()).collect();
    assert_eq!(named, TRIED.iter().map(|(of, _)| *of).collect::<Vec<_>>());
    for (of, try_it) in TRIED {
        println!("{of}");
        try_it();
    }
}
