//! Git repositories in a workspace, changed by real git, and what a rollback restores of them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use foldlog::filesystem::{
    CaptureCollectOptions, FilesystemSnapshot, HostFilesystem, HostFilesystemOptions, PackReceiver,
    RewindMergeInputs, SnapshotPacker, WorkspaceRestoreReport, audit_snapshots, collect_snapshots,
};
use foldlog_test_support::child;

use super::Bench;

/// Variables that make git behave alike on every machine.
pub(crate) const GIT: [(&str, &str); 8] = [
    ("GIT_AUTHOR_NAME", "A"),
    ("GIT_AUTHOR_EMAIL", "a@example.org"),
    ("GIT_COMMITTER_NAME", "A"),
    ("GIT_COMMITTER_EMAIL", "a@example.org"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_CONFIG_SYSTEM", "/dev/null"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_ALLOW_PROTOCOL", "file"),
];

#[track_caller]
pub(crate) fn shell(directory: &Path, script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).envs(GIT).current_dir(directory).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{script}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Returns all files of a repository with their permissions, except git objects and refs that keep
/// lost commits.
pub(crate) fn files_of(repository: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut files = BTreeMap::new();
    let mut directories = vec![repository.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let found = path.symlink_metadata().unwrap();
            if found.is_dir() && !path.ends_with("objects") && !path.ends_with("refs/foldlog") {
                directories.push(path.clone());
                files.insert(path, (found.mode(), Vec::new()));
            } else if found.is_file() {
                files.insert(path.clone(), (found.mode(), fs::read(&path).unwrap()));
            }
        }
    }
    files
}

/// Returns git's description of a repository's state.
pub(crate) fn stands(directory: &Path) -> String {
    let script = "git status --porcelain=v2 --branch && git stash list && git reflog && git for-each-ref | \
                  grep -v refs/foldlog || true";
    shell(directory, script)
}

/// Checks that nothing is missing or damaged in a repository.
#[track_caller]
pub(crate) fn is_sound(directory: &Path) {
    let output =
        Command::new("git").args(["fsck", "--strict"]).envs(GIT).current_dir(directory).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("error") && !said.contains("missing"), "{said}");
}

/// The repository at the start: two commits, a branch, a stash, packed refs, and a staged file.
const MADE: &str = "git init -q -b main && echo 1 >file && git add . && git commit -qm one && git branch old && \
    git pack-refs --all && echo 2 >file && git commit -qam two && echo stashed >file && git stash -q && \
    echo staged >staged && git add staged && echo changed >>file";

fn told(restored: &WorkspaceRestoreReport) -> Vec<String> {
    restored.inexact.iter().map(|one| format!("{}: {}", one.path, one.reason)).collect()
}

/// Runs a script as a failing call, and rolls it back.
fn rolled_back(bench: &Bench, files: &HostFilesystem, script: &str) -> WorkspaceRestoreReport {
    let snapshot = files.snapshot(None, false).unwrap();
    shell(&bench.root(), script);
    files.roll_back(&snapshot, "7").unwrap()
}

/// After a failing call had used git, its commit, stash or branch stayed, and the index did not
/// match the files.
#[test]
fn what_a_failed_call_did_in_a_repository_is_undone() {
    for script in [
        "git commit -qam three",
        "git stash",
        "git stash pop -q || git checkout -q -f && git stash pop -q",
        "git checkout -q -b feature && echo 3 >new && git add new && git commit -qm feature",
        "git reset -q --hard HEAD~1",
        "git branch -D old && git tag mark && git branch -q -m main trunk",
        "git commit -qam three && git gc -q && git pack-refs --all",
        "git commit -qam three && git checkout -q -b side HEAD~1 && echo 4 >file && git commit -qam four && \
         git merge main || test -e .git/MERGE_HEAD",
        "git commit -qam x && git checkout -q -b side HEAD~1 && echo 4 >file && git commit -qam four && \
         git rebase main || test -d .git/rebase-merge",
        "git commit -qam x && git checkout -q old && git cherry-pick main || test -e .git/CHERRY_PICK_HEAD",
        "git commit -qam x && git bisect start && git bisect bad && git bisect good old",
        "git config core.fsmonitor ./evil && git config user.name B && echo x >.git/hooks/pre-commit && \
         chmod 755 .git/hooks/pre-commit && echo '*' >.git/info/exclude && rm -f .git/hooks/*.sample",
        "rm .git/index .git/logs/HEAD .git/refs/stash",
        "touch .git/index.lock .git/refs/heads/main.lock .git/config.lock .git/objects/maintenance.lock",
        "git branch -D old && git branch old/deep/er",
        "git checkout -q --detach && git commit -q --allow-empty -m loose",
    ] {
        let bench = Bench::new();
        shell(&bench.root(), MADE);
        let (repository, before) = (bench.at(".git"), (files_of(&bench.at(".git")), stands(&bench.root())));
        let times = fs::metadata(repository.join("index")).unwrap().mtime();
        let restored = rolled_back(&bench, &bench.open(), script);
        assert_eq!((files_of(&repository), stands(&bench.root())), before, "{script}");
        assert_eq!(fs::metadata(repository.join("index")).unwrap().mtime(), times);
        assert!(!repository.join("objects/maintenance.lock").exists());
        let beside = told(&restored).into_iter().filter(|one| !one.contains("refs/foldlog/lost/7"));
        assert_eq!(beside.collect::<Vec<_>>(), Vec::<String>::new(), "{script}");
        is_sound(&bench.root());
        // Unchanged files are not touched again.
        let again = bench.open();
        let snapshot = again.snapshot(None, false).unwrap();
        assert_eq!(again.roll_back(&snapshot, "8").unwrap(), WorkspaceRestoreReport::default(), "{script}");
    }
}

/// A commit of a failed call was no longer in any branch, and git removed it in time.
#[test]
fn a_commit_that_a_rollback_takes_from_its_branch_is_kept_and_named() {
    let kept = |bench: &Bench| {
        shell(&bench.root(), "git for-each-ref --format='%(refname) %(objectname)' refs/foldlog")
    };
    let bench = Bench::new();
    shell(&bench.root(), MADE);
    let script =
        "git commit -qam three && git commit -q --allow-empty -m four && git rev-parse HEAD >../lost";
    let restored = rolled_back(&bench, &bench.open(), script);
    let lost = fs::read_to_string(bench.directory.path().join("lost")).unwrap();
    let lost = lost.trim();
    // The first of the two is its parent.
    assert_eq!(kept(&bench), format!("refs/foldlog/lost/7 {lost}\n"));
    let expected = format!(
        ".git/refs/foldlog/lost/7: it was made, and keeps commit {lost}, which was named by `refs/heads/main`"
    );
    assert_eq!(told(&restored), [expected]);
    shell(&bench.root(), &format!("git gc -q --prune=now && git cat-file -e {lost}^{{commit}}"));
    // Another call with that number, of another session, does not overwrite the first one's refs.
    rolled_back(&bench, &bench.open(), "git stash -q && git stash drop -q");
    rolled_back(&bench, &bench.open(), "git commit -q --allow-empty -m other && git reset -q --hard HEAD~1");
    let names: Vec<String> =
        kept(&bench).lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(names, ["refs/foldlog/lost/7", "refs/foldlog/lost/7-2"]);
    // Commits from before the call are not lost.
    let told_of = |restored: &WorkspaceRestoreReport| told(restored).len();
    assert_eq!(
        told_of(&rolled_back(&bench, &bench.open(), "git reset -q --hard HEAD~1 && git branch again")),
        0
    );
    let declined = bench.open_with(HostFilesystemOptions::default().keep_lost_commits(false));
    let restored = rolled_back(&bench, &declined, "git commit -q --allow-empty -m five");
    assert!(told(&restored)[0].contains("keep it with `git branch NAME "), "{:?}", told(&restored));
    assert_eq!(kept(&bench).lines().count(), 2);
    is_sound(&bench.root());
}

/// A repository that a failed call had created stayed, with the directory around it.
#[test]
fn a_repository_that_a_failed_call_made_is_removed_with_its_objects() {
    let bench = Bench::new();
    shell(bench.directory.path(), &format!("mkdir origin && cd origin && {MADE}"));
    shell(&bench.root(), "mkdir there && echo 1 >there/1");
    let before = bench.digest();
    let files = bench.open();
    for script in [
        "git clone -q ../origin clone",
        "git init -q && git add . && git commit -qm all",
        "cd there && git init -q && git add . && git commit -qm all && chmod 555 .git/objects .git",
        "mkdir -p app/src && cd app && echo {} >package.json && git init -q && git add . && git commit -qm app",
        "echo 'gitdir: /nowhere' >there/.git",
        "ln -s ../../origin/.git there/.git",
    ] {
        let told = told(&rolled_back(&bench, &files, script));
        // Objects in a repository are not captured.
        match script.contains("git init") || script.contains("git clone") {
            true => {
                assert!(
                    matches!(&told[..], [one] if one.starts_with(".foldlog-aside/7: ")),
                    "{script}: {told:?}"
                );
                let made = shell(&bench.root(), "find .foldlog-aside/7 -name .git");
                shell(&bench.root(), &format!("git --git-dir {} fsck --strict", made.trim()));
                shell(&bench.root(), "chmod -R u+w .foldlog-aside && rm -r .foldlog-aside");
            }
            false => assert_eq!(told, Vec::<String>::new(), "{script}"),
        }
        assert_eq!(bench.digest(), before, "{script}");
        assert_eq!(shell(&bench.root(), "find . -name .git"), "", "{script}");
    }
    is_sound(&bench.directory.path().join("origin"));
    // A restore that is no rollback, such as to an old checkpoint, removes no repository.
    let snapshot = files.snapshot(None, false).unwrap();
    shell(&bench.root(), "git init -q empty && echo mine >empty/.git/hooks/mine");
    let said = told(&files.roll_back(&snapshot, "7").unwrap());
    assert_eq!(
        said,
        [".foldlog-aside/7: empty was moved there, since no capture holds it: `mv` brings it back"]
    );
    assert!(!bench.at("empty").exists() && bench.at(".foldlog-aside/7/empty/.git/hooks/mine").exists());
    shell(&bench.root(), "git init -q");
    assert!(told(&files.restore(&snapshot).unwrap())[0].starts_with(".git: it was made"));
    assert!(bench.at(".git/HEAD").exists());
}

/// The repository of a submodule that a call had added was removed with its objects, without a
/// report.
#[test]
fn the_repository_of_a_submodule_that_a_failed_call_added_is_moved_aside() {
    let bench = Bench::new();
    shell(bench.directory.path(), &format!("mkdir origin && cd origin && {MADE}"));
    shell(&bench.root(), MADE);
    let files = bench.open();
    let restored = rolled_back(
        &bench,
        &files,
        "git -c protocol.file.allow=always submodule --quiet add ../origin sub && cd sub && git commit -q --allow-empty -m own",
    );
    assert!(
        told(&restored).iter().any(|one| one.starts_with(".foldlog-aside/7: .git was moved")),
        "{restored:?}"
    );
    assert!(!bench.at("sub").exists() && !bench.at(".git/modules").exists());
    let aside = ".foldlog-aside/7/.git/modules";
    let log = shell(&bench.root(), &format!("cat {aside}/sub/logs/HEAD"));
    assert!(log.trim().ends_with("commit: own"), "{log}");
    is_sound(&bench.root());
}

#[test]
fn a_repository_that_a_failed_call_removed_or_replaced_is_told_and_left_alone() {
    for (script, expected) in [
        ("rm -rf .git", ".git: it was removed"),
        (
            "rm -rf .git && git init -q -b main && git add . && git commit -qm other",
            ".git: git objects are missing",
        ),
        ("rm -rf .git && echo x >.git", ".git: it was replaced by a file"),
    ] {
        let bench = Bench::new();
        shell(&bench.root(), MADE);
        let told = told(&rolled_back(&bench, &bench.open(), script));
        assert!(matches!(&told[..], [one] if one.starts_with(expected)), "{script}: {told:?}");
    }
}

/// A repository that a failed call had created in place of a file `.git` was removed with its
/// objects.
#[test]
fn a_repository_that_a_failed_call_made_in_place_of_a_file_is_moved_aside() {
    let bench = Bench::new();
    shell(&bench.root(), "mkdir there && echo 1 >there/1 && echo 'gitdir: /nowhere' >there/.git");
    let script = "cd there && rm .git && git init -q && git add . && git commit -qm mine";
    let restored = rolled_back(&bench, &bench.open(), script);
    assert!(told(&restored)[0].starts_with(".foldlog-aside/7: there was moved"), "{restored:?}");
    assert_eq!(fs::read(bench.at("there/.git")).unwrap(), b"gitdir: /nowhere\n");
    let log = shell(&bench.root(), "git --git-dir .foldlog-aside/7/there/.git log --format=%s");
    assert_eq!(log, "mine\n");
}

/// If nothing could be captured, files were moved aside before they were replaced, but not those in
/// a repository.
#[test]
fn what_a_rollback_replaces_in_a_repository_lies_aside_where_it_cannot_be_captured() {
    let bench = Bench::new();
    shell(&bench.root(), &format!("{MADE} && mkdir d && echo 1 >d/1"));
    let (repository, files) = (bench.at(".git"), bench.open());
    let state = || (files_of(&repository), stands(&bench.root()));
    let before = state();
    let snapshot = files.snapshot(None, false).unwrap();
    let script = "git checkout -q -b side && git commit -qam side && touch .git/index.lock && rm .git/description && \
                  echo x >.git/hooks/mine && mkdir .git/rebase-merge && echo y >.git/rebase-merge/head-name && echo 2 >d/1";
    shell(&bench.root(), script);
    let after = files_of(&repository);
    let names = |path: &str| fs::metadata(repository.join(path)).unwrap().nlink();
    // All of it is moved aside, or nothing.
    let aside = bench.at(".foldlog-aside/7");
    fs::create_dir_all(&aside).unwrap();
    fs::write(aside.join("d"), "in the way").unwrap();
    files.set_aside(&snapshot, "7").unwrap_err();
    assert_eq!((files_of(&repository), names("HEAD"), names("index")), (after.clone(), 1, 1));
    fs::remove_dir_all(bench.at(".foldlog-aside")).unwrap();
    // An attempt that was interrupted after it is repeated.
    for _ in 0..2 {
        files.set_aside(&snapshot, "7").unwrap();
        assert_eq!(files_of(&repository), after, "the rollback has yet to read it");
    }
    let replaced = "COMMIT_EDITMSG HEAD hooks/mine index index.lock logs/HEAD logs/refs/heads/side rebase-merge/head-name refs/heads/side";
    let lies: Vec<PathBuf> =
        files_of(&aside.join(".git")).into_keys().filter(|path| path.is_file()).collect();
    let wanted: Vec<PathBuf> = replaced.split(' ').map(|name| aside.join(".git").join(name)).collect();
    assert_eq!(lies, wanted);
    let restored = files.roll_back(&snapshot, "7").unwrap();
    let clear = format!("rm -r {}", bench.at(".git/refs/foldlog").display());
    assert_eq!(files_of(&repository), before.0);
    let said = told(&restored).into_iter().find(|one| one.starts_with(".foldlog-aside/7: ")).unwrap();
    let way = "; of .git it is a part: `cp -a .foldlog-aside/7/.git/. .git` brings that back";
    assert!(said.ends_with(way), "{said}");
    // Follows the instructions of the report.
    shell(&bench.root(), &format!("{clear} && cp -a .foldlog-aside/7/.git/. .git"));
    for name in replaced.split(' ') {
        assert_eq!(
            fs::read(repository.join(name)).ok().as_ref(),
            Some(&after[&repository.join(name)].1),
            "{name}"
        );
    }
    assert_eq!(shell(&bench.root(), "rm .git/index.lock && git log -1 --format=%s"), "side\n");
    is_sound(&bench.root());
}

/// In submodules' repositories only files from before the call were set aside. Refs, a stash and
/// their logs were lost, and a submodule's repository that a call had created within another one
/// was removed with its objects.
#[test]
fn what_a_rollback_replaces_in_the_repositories_of_submodules_lies_aside_where_it_cannot_be_captured() {
    let bench = Bench::new();
    let add = "git -c protocol.file.allow=always submodule --quiet add";
    for origin in ["deep", "origin"] {
        shell(bench.directory.path(), &format!("mkdir {origin} && cd {origin} && {MADE}"));
    }
    let within = format!("cd ../origin && {add} ../deep deep && git commit -qm deep");
    let update = "git -c protocol.file.allow=always submodule --quiet update --init --recursive";
    let script = format!(
        "({within}) && {MADE} && {add} ../origin sub && git commit -qam sub && {update} && \
         git worktree add -q tree -b dev && cd tree && {update}"
    );
    shell(
        &bench.root(),
        &script.replace("../origin", &bench.directory.path().join("origin").display().to_string()),
    );
    let (repository, files) = (bench.at(".git"), bench.open());
    let before = files_of(&repository);
    assert!(repository.join("worktrees/tree/modules/sub/modules/deep/HEAD").exists());
    let snapshot = files.snapshot(None, false).unwrap();
    let script = "for place in sub sub/deep tree tree/sub tree/sub/deep; do (cd $place && \
        git update-ref -m message --create-reflog refs/heads/keep HEAD && echo x >>file && git stash -q && \
        git update-ref refs/worktree/mine HEAD && git bisect start && git bisect bad); done; \
        for place in sub tree/sub; do (cd $place && ADD ../../deep more && cd more && git commit -q --allow-empty -m own); done";
    let add = add.to_owned();
    let deep = bench.directory.path().join("deep").display().to_string();
    shell(&bench.root(), &script.replace("ADD ../../deep", &format!("{add} {deep}")));
    let after = files_of(&repository);
    files.set_aside(&snapshot, "7").unwrap();
    let restored = files.roll_back(&snapshot, "7").unwrap();
    assert_eq!(files_of(&repository), before);
    let aside = bench.at(".foldlog-aside/7/.git");
    for (path, found) in after.iter().filter(|(path, _)| !path.starts_with(repository.join("objects"))) {
        let lies = aside.join(path.strip_prefix(&repository).unwrap());
        let holds = |path: &Path| path.is_dir() || fs::read(path).is_ok_and(|content| content == found.1);
        assert!(
            holds(path) || holds(&lies) || fs::symlink_metadata(path).is_err() && before.contains_key(path),
            "{path:?}"
        );
    }
    let said = told(&restored).into_iter().find(|one| one.starts_with(".foldlog-aside/7: ")).unwrap();
    assert!(
        said.contains("of .git it is a part: `cp -a .foldlog-aside/7/.git/. .git` brings that back"),
        "{said}"
    );
    shell(&bench.root(), "cp -a .foldlog-aside/7/.git/. .git");
    for place in ["", "worktrees/tree/"] {
        let more = repository.join(place).join("modules/sub/modules/more");
        let git = "git --git-dir . --work-tree .";
        let log = shell(&more, &format!("{git} log -1 --format=%s && {git} fsck --strict --no-dangling"));
        assert_eq!(log, "own\n");
        let keeps = shell(&more, &format!("cd ../.. && {git} rev-parse refs/heads/keep refs/stash"));
        assert_eq!(keeps.lines().count(), 2);
    }
}

/// A restore that is no rollback, such as a rewind, removed the repository of a submodule with its
/// objects, which no undo brings back.
#[test]
fn a_restore_that_is_no_rollback_leaves_the_repository_of_a_submodule() {
    let bench = Bench::new();
    shell(bench.directory.path(), &format!("mkdir origin && cd origin && {MADE}"));
    shell(&bench.root(), MADE);
    let refs = || shell(&bench.root(), "cat .git/HEAD .git/config && git for-each-ref refs/heads");
    let (files, before) = (bench.open(), refs());
    let snapshot = files.snapshot(None, false).unwrap();
    shell(
        &bench.root(),
        "git -c protocol.file.allow=always submodule --quiet add ../origin sub && git commit -qm sub",
    );
    let (present, now) = (files.snapshot(None, false).unwrap(), stands(&bench.root()));
    let said = told(&files.restore(&snapshot).unwrap());
    let made = ".git/modules: it was made, and a repository is removed only with the call that made it";
    assert!(said.contains(&made.to_owned()), "{said:?}");
    assert_eq!(refs(), before);
    files.restore(&present).unwrap();
    assert_eq!(
        (stands(&bench.root()), shell(&bench.at("sub"), "git log --format=%s")),
        (now, "two\none\n".to_owned())
    );
}

/// In a repository with refs in the reftable format, a commit of a failed call was lost without a
/// report, and one without its objects was given refs to them.
#[test]
fn a_repository_with_refs_in_the_format_reftable_comes_back_and_names_what_is_lost() {
    let is_known = |bench: &Bench| {
        let mut git = Command::new("git");
        git.args(["init", "-q", "--ref-format=reftable", "known"])
            .envs(GIT)
            .current_dir(bench.directory.path());
        git.output().is_ok_and(|made| made.status.success())
    };
    if !is_known(&Bench::new()) {
        foldlog_test_support::skipped("this git knows no reftable");
        return;
    }
    let many = "for i in $(seq 1500); do echo create refs/tags/t$i HEAD; done | git update-ref --stdin && git pack-refs --all";
    for (form, more) in [("sha1", "true"), ("sha256", "true"), ("sha1", many)] {
        let made =
            MADE.replace("git init -q", &format!("git init -q --ref-format=reftable --object-format={form}"));
        for (script, named_by) in [
            ("git commit -qam three && git commit -q --allow-empty -m four", "refs/heads/main"),
            ("git checkout -q -b side && git commit -qam side && git pack-refs --all", "refs/heads/side"),
            ("git checkout -q --detach && git commit -q --allow-empty -m loose", "HEAD"),
            ("git branch -D old && git tag mark && git branch -q -m main trunk", ""),
        ] {
            let bench = Bench::new();
            shell(&bench.root(), &format!("{made} && {more}"));
            let before = (files_of(&bench.at(".git")), stands(&bench.root()));
            let script = format!("{script} && git rev-parse HEAD >../lost");
            let restored = rolled_back(&bench, &bench.open(), &script);
            assert_eq!((files_of(&bench.at(".git")), stands(&bench.root())), before, "{script}");
            is_sound(&bench.root());
            let lost = fs::read_to_string(bench.directory.path().join("lost")).unwrap();
            let lost = lost.trim();
            let expected = format!(
                ".git: nothing names commit {lost}, which was named by `{named_by}`: keep it with `git branch NAME {lost}`"
            );
            let expected = if named_by.is_empty() { Vec::new() } else { vec![expected] };
            assert_eq!(told(&restored), expected, "{script}");
        }
        let bench = Bench::new();
        shell(&bench.root(), &format!("{made} && {more}"));
        let other = "rm -rf .git && git init -q --ref-format=reftable && git add . && git commit -qm other";
        let restored = rolled_back(&bench, &bench.open(), other);
        assert!(told(&restored)[0].starts_with(".git: git objects are missing"), "{restored:?}");
        assert_eq!(shell(&bench.root(), "git log --format=%s"), "other\n");
    }
}

/// If `.git` leads out of the workspace, nothing is written there.
#[test]
fn what_a_failed_call_did_in_a_linked_worktree_is_told_and_nothing_outside_is_written() {
    let bench = Bench::new();
    fs::remove_dir(bench.root()).unwrap();
    shell(
        bench.directory.path(),
        &format!("mkdir main && cd main && {MADE} && git worktree add -q ../workspace old"),
    );
    let files = bench.open();
    let snapshot = files.snapshot(None, false).unwrap();
    assert_eq!(files.roll_back(&snapshot, "7").unwrap(), WorkspaceRestoreReport::default());
    shell(&bench.root(), "echo 3 >file && git commit -qam three && git config user.name B && rm .git");
    shell(&bench.root(), "echo 'gitdir: /nowhere' >.git");
    let outside = |bench: &Bench| files_of(&bench.directory.path().join("main/.git"));
    let before = outside(&bench);
    let restored = files.roll_back(&snapshot, "7").unwrap();
    assert_eq!(outside(&bench), before);
    let told = told(&restored);
    for path in [".git/config", ".git/index", ".git/refs/heads/old"] {
        let is_told = |one: &String| one.starts_with(path) && one.contains("it is outside of the workspace");
        assert!(told.iter().any(is_told), "{told:?}");
    }
    assert!(!told.iter().any(|one| one.contains("was removed") || one.starts_with(".git:")), "{told:?}");
    assert_eq!(fs::read(bench.at("file")).unwrap(), b"1\n");
    is_sound(&bench.root());
}

#[test]
fn worktrees_and_submodules_within_the_workspace_are_restored() {
    let bench = Bench::new();
    shell(bench.directory.path(), &format!("mkdir origin && cd origin && {MADE}"));
    let script = format!(
        "mkdir main && cd main && {MADE} && git worktree add -q ../tree old && \
         git -c protocol.file.allow=always submodule --quiet add ../../origin sub && git commit -qam sub"
    );
    shell(&bench.root(), &script);
    let all = |bench: &Bench| {
        let places = ["main", "tree", "main/sub"].map(|place| bench.at(place));
        (files_of(&bench.at("main/.git")), places.map(|place| stands(&place)))
    };
    let before = all(&bench);
    for script in [
        "cd tree && echo 3 >file && git commit -qam three",
        "cd main/sub && git checkout -q -b side && echo 3 >file && git commit -qam three && git tag mark",
        "rm -rf tree && cd main && git worktree prune",
        "rm -rf main/sub && cd main && git add -A && git commit -qam gone",
        "cd main && git worktree add -q ../more && git -c protocol.file.allow=always submodule --quiet add ../../origin sub2",
    ] {
        let restored = rolled_back(&bench, &bench.open(), script);
        assert_eq!(all(&bench), before, "{script}");
        let aside = ".foldlog-aside/7: main was moved";
        let beside: Vec<String> =
            told(&restored).into_iter().filter(|one| !one.contains("refs/foldlog/lost/7")).collect();
        assert!(beside.iter().all(|one| script.contains("sub2") && one.starts_with(aside)), "{beside:?}");
        assert_eq!(
            bench.at(".foldlog-aside/7/main/.git/modules/sub2/HEAD").exists(),
            script.contains("sub2")
        );
        ["main", "tree", "main/sub"].iter().for_each(|place| is_sound(&bench.at(place)));
    }
    let lost = shell(&bench.at("main/sub"), "git for-each-ref refs/foldlog");
    assert_eq!(lost.lines().count(), 1, "{lost}");
    // A submodule whose objects are missing is reported, and the repository around it restored.
    let restored =
        rolled_back(&bench, &bench.open(), "rm -rf main/.git/modules/sub && cd main && git tag more");
    assert!(told(&restored)[0].starts_with("main/.git/modules/sub: git objects are missing"), "{restored:?}");
    assert!(!shell(&bench.at("main"), "git tag").contains("more"));
}

#[test]
fn a_host_that_leaves_out_a_config_has_no_copy_of_it_and_is_told_of_changes() {
    let bench = Bench::new();
    shell(&bench.root(), MADE);
    let files = bench.open_with(HostFilesystemOptions::default().leave_out(".git/config"));
    shell(&bench.root(), "git config user.password secret");
    let restored = rolled_back(&bench, &files, "git config user.name B && touch .git/config.lock");
    assert_eq!(told(&restored), [".git/config: it was changed, and no copy of it was captured"]);
    assert!(!bench.at(".git/config.lock").exists());
    for object in super::storing::objects(&bench) {
        let name = object.file_name().unwrap().to_str().unwrap();
        let id = object.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned() + name;
        assert!(!bench.git(&["cat-file", "-p", &id]).unwrap().contains("secret"));
    }
}

/// A collection kept the object that describes the repositories, and removed the copies that it
/// names.
#[test]
fn copies_of_a_repository_are_kept_audited_and_packed_with_the_snapshot() {
    let bench = Bench::new();
    shell(&bench.root(), MADE);
    let files = bench.open();
    let first = files.snapshot(None, true).unwrap();
    shell(&bench.root(), "git commit -qam three");
    let second = files.snapshot(None, true).unwrap();
    // Another kept snapshot has the same files, so only the description of repositories is removed.
    shell(&bench.root(), "git tag mark");
    let third = files.snapshot(None, true).unwrap();
    assert_eq!((&second.commit, second.repositories == third.repositories), (&third.commit, false));
    let (keep, give_up) = ([first.clone(), third.clone()], [second.clone()]);
    let asked = CaptureCollectOptions { keep: &keep, give_up: &give_up, pool: None, dry_run: false };
    assert!(collect_snapshots(files.store(), &asked).unwrap().objects > 0);
    let audit = |snapshots: &[FilesystemSnapshot]| audit_snapshots(files.store(), snapshots, &|_| true);
    let audited = audit(&[first.clone(), second.clone(), third.clone()]);
    assert_eq!((audited.damaged.len(), audited.collected), (0, 1), "{audited:?}");
    // Another store receives all of it.
    let (mut packs, other) = (Vec::new(), bench.directory.path().join("other"));
    let mut packer = SnapshotPacker::new(files.store());
    let last = packer.pack::<foldlog::filesystem::Error>(&keep, &mut |pack| {
        packs.push(pack.to_vec());
        Ok(())
    });
    packs.push(last.unwrap());
    let mut receiver = PackReceiver::new(&other);
    packs.iter().for_each(|pack| receiver.take(pack).unwrap());
    receiver.finish().unwrap();
    let audited = audit_snapshots(&other, &keep, &|_| true);
    assert_eq!((audited.snapshots, audited.damaged.len(), audited.absent.len()), (2, 0, 0));
    // A missing copy is reported by its path.
    let there = HostFilesystem::open(bench.root(), &other, HostFilesystemOptions::default()).unwrap();
    there.roll_back(&first, "7").unwrap();
    assert_eq!(stands(&bench.root()).matches("three").count(), 0);
    is_sound(&bench.root());
    let index = bench.git(&["hash-object", bench.at(".git/index").to_str().unwrap()]).unwrap();
    let (directory, name) = index.trim().split_at(2);
    fs::remove_file(files.store().join("objects").join(directory).join(name)).unwrap();
    assert_eq!(audit(&[first]).damaged.len(), 1);
}

/// A rewind of an earlier call also took back a person's commit.
#[test]
fn a_rewind_restores_a_repository_that_nobody_worked_in_by_hand() {
    for by_hand in [false, true] {
        let bench = Bench::new();
        shell(&bench.root(), MADE);
        let (files, before) = (bench.open(), stands(&bench.root()));
        let target = files.snapshot(None, false).unwrap();
        shell(&bench.root(), "git commit -qam three");
        let last = files.snapshot(None, false).unwrap();
        if by_hand {
            shell(&bench.root(), "git commit -q --allow-empty -m mine");
        }
        let (present, now) = (files.snapshot(None, false).unwrap(), stands(&bench.root()));
        let merge = |overwrite| {
            let merging = RewindMergeInputs {
                target: &target,
                last: &last,
                present: &present,
                overwrite,
                after_restore: false,
            };
            files.merge_for_rewind(&merging).unwrap()
        };
        let merged = merge(false);
        let kept: Vec<&str> = merged.kept.iter().map(|one| one.path.as_str()).collect();
        files.restore(&merged.snapshot).unwrap();
        match by_hand {
            true => {
                assert_eq!(kept, [".git"]);
                let heads =
                    |said: &str| said.lines().find(|line| line.contains("branch.oid")).map(str::to_owned);
                assert_eq!(heads(&stands(&bench.root())), heads(&now));
            }
            false => assert_eq!((kept.len(), stands(&bench.root())), (0, before.clone())),
        }
        files.restore(&merge(true).snapshot).unwrap();
        assert_eq!(stands(&bench.root()), before);
        // Forward again, as an undo of the rewind does.
        let undo = RewindMergeInputs {
            target: &present,
            last: &target,
            present: &target,
            overwrite: true,
            after_restore: false,
        };
        files.restore(&files.merge_for_rewind(&undo).unwrap().snapshot).unwrap();
        assert_eq!(stands(&bench.root()), now);
        is_sound(&bench.root());
    }
}

/// The ref that a rollback creates for a lost commit, and the file times that `git status` notes in
/// the index, counted as a person's work. An immediate undo of the rollback, and each later rewind,
/// left the repository unchanged.
#[test]
fn what_a_rollback_or_git_status_leaves_in_a_repository_is_nobodys_work() {
    let status = "touch -d 2001-01-01 staged && GIT_OPTIONAL_LOCKS=1 git status >/dev/null";
    for (form, meanwhile, is_by_hand) in [
        ("sha1", "true", false),
        ("sha1", status, false),
        ("sha256", status, false),
        ("sha1", "git tag mine", true),
        ("sha1", "git rm -q --cached staged", true),
        ("sha1", "git update-index --chmod=+x staged", true),
        ("sha1", "git update-index --skip-worktree staged", true),
        ("sha1", "git update-index --index-version 4 && echo mine >staged && git add staged", true),
    ] {
        let bench = Bench::new();
        shell(&bench.root(), &MADE.replace("git init -q", &format!("git init -q --object-format={form}")));
        let (files, first_stands) = (bench.open(), stands(&bench.root()));
        let first = files.snapshot(None, false).unwrap();
        shell(&bench.root(), "git commit -qam three");
        let begin = files.snapshot(None, false).unwrap();
        shell(
            &bench.root(),
            "git add . && git commit -q --allow-empty -m four && git branch topic && git tag mark",
        );
        let (failed, failed_stands) = (files.snapshot(None, false).unwrap(), stands(&bench.root()));
        files.roll_back(&begin, "7").unwrap();
        let lost = fs::read(bench.at(".git/refs/foldlog/lost/7")).unwrap();
        let index = || fs::read(bench.at(".git/index")).unwrap();
        let before = index();
        shell(&bench.root(), meanwhile);
        assert_eq!(index() != before, !["true", "git tag mine"].contains(&meanwhile), "{meanwhile}");
        let now = files_of(&bench.at(".git"));
        for (target, then) in [(&failed, &failed_stands), (&first, &first_stands)] {
            let present = files.snapshot(None, false).unwrap();
            let merging = RewindMergeInputs {
                target,
                last: &begin,
                present: &present,
                overwrite: false,
                after_restore: false,
            };
            let merged = files.merge_for_rewind(&merging).unwrap();
            let kept: Vec<&str> = merged.kept.iter().map(|one| one.path.as_str()).collect();
            files.restore(&merged.snapshot).unwrap();
            if is_by_hand {
                assert!(kept.contains(&".git"), "{meanwhile}: {kept:?}");
                assert_eq!(files_of(&bench.at(".git")), now, "{meanwhile}");
            } else {
                assert_eq!((kept.len(), &stands(&bench.root())), (0, then), "{meanwhile}");
            }
            assert_eq!(fs::read(bench.at(".git/refs/foldlog/lost/7")).unwrap(), lost);
            files.restore(&present).unwrap();
        }
        is_sound(&bench.root());
    }
}

/// A tool in a copy of a workspace would have worked in the original's repository.
#[test]
fn a_copy_of_a_snapshot_holds_no_file_that_leads_to_a_repository() {
    let bench = Bench::new();
    fs::remove_dir(bench.root()).unwrap();
    shell(
        bench.directory.path(),
        &format!("mkdir main && cd main && {MADE} && git worktree add -q ../workspace old"),
    );
    let files = bench.open();
    let copy = files.scratch(&files.snapshot(None, false).unwrap()).unwrap();
    assert!(copy.root().join("file").exists() && !copy.root().join(".git").exists());
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_rolls_back() {
    let Some(argument) = child::argument() else { return };
    let (directory, snapshot) = argument.split_once(' ').unwrap();
    let directory = Path::new(directory);
    let options = HostFilesystemOptions::default();
    let files =
        HostFilesystem::open(directory.join("workspace"), directory.join("workspace.git"), options).unwrap();
    files.roll_back(&serde_json::from_str(snapshot).unwrap(), "7").unwrap();
}

/// The rollback is killed at each rename, unlink and creation of a directory.
#[test]
fn a_rollback_of_a_repository_that_is_killed_is_run_again() {
    if !child::is_traced_here() {
        return;
    }
    let mut is_done = false;
    for step in (1..200).step_by(3) {
        let bench = Bench::new();
        shell(&bench.root(), MADE);
        let (before, root) = ((files_of(&bench.at(".git")), stands(&bench.root())), bench.root());
        let snapshot = bench.open().snapshot(None, true).unwrap();
        let script = "git commit -qam three && git checkout -q -b side && git branch -D old && git stash drop -q && \
                      git rev-parse main >../lost && git init -q inner && rm .git/index && touch .git/index.lock";
        shell(&root, script);
        let argument =
            format!("{} {}", bench.directory.path().display(), serde_json::to_string(&snapshot).unwrap());
        let inject = format!("inject=rename,renameat,renameat2,unlinkat,mkdirat:signal=KILL:when={step}");
        let part = "filesystem::git::part_of_a_child_that_rolls_back";
        child::start_traced(&["-o", "/dev/null", "-e", &inject], part, &argument).ended();
        let inner = bench.at(".foldlog-aside/7/inner/.git/HEAD");
        assert!(bench.at("inner/.git/HEAD").exists() || inner.exists(), "{step}");
        let clear = || shell(&root, "rm -rf .foldlog-aside");
        clear();
        is_done = (files_of(&bench.at(".git")), stands(&root)) == before;
        bench.open().roll_back(&snapshot, "7").unwrap();
        clear();
        assert_eq!((files_of(&bench.at(".git")), stands(&root)), before, "{step}");
        let lost = fs::read_to_string(bench.directory.path().join("lost")).unwrap();
        assert_eq!(fs::read_to_string(bench.at(".git/refs/foldlog/lost/7")).unwrap(), lost, "{step}");
        assert!(!bench.at("inner").exists());
        is_sound(&root);
        if is_done {
            break;
        }
    }
    assert!(is_done, "the last rollback was whole");
}

/// Files that a rollback writes have the permissions of those that they replace.
#[test]
fn refs_that_keep_commits_may_be_read_by_whoever_reads_the_others() {
    let bench = Bench::new();
    shell(
        &bench.root(),
        &format!("{MADE} && git config core.sharedRepository group && chmod -R g+w .git/refs"),
    );
    rolled_back(&bench, &bench.open(), "git commit -qam three");
    let mode = |path: &str| fs::metadata(bench.at(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(".git/refs/foldlog/lost"), mode(".git/refs"));
    assert_eq!(mode(".git/refs/foldlog/lost/7"), mode(".git/refs") & 0o666);
}
