//! The state of a user's git repository, read without git: compared with git's output, and for
//! hostile repositories.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use foldlog_tasks::{GitOperation, GitState};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

/// A directory for git, without the settings of the person who runs the tests.
struct Bench {
    _directory: TempDir,
    root: PathBuf,
}

impl Bench {
    /// `None` if git is missing or cannot create such a repository.
    fn new(arguments: &[&str]) -> Option<Bench> {
        let directory = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(directory.path()).unwrap().join("work");
        fs::create_dir(&root).unwrap();
        let bench = Bench { _directory: directory, root };
        let made =
            bench.command(&[&["init", "--quiet", "--initial-branch=main"], arguments].concat()).output();
        if !made.is_ok_and(|made| made.status.success()) {
            foldlog_test_support::skipped(format!(
                "there is no git here that can do `git init {}`",
                arguments.join(" ")
            ));
            return None;
        }
        Some(bench)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.args(arguments).current_dir(&self.root).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", &self.root).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_EDITOR", "true");
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "somebody");
            command.env(format!("GIT_{who}_EMAIL"), "somebody@example.invalid");
        }
        command
    }

    /// Runs git, successful or not, and returns its output.
    fn git(&self, arguments: &str) -> String {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let output = self.command(&arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn commit(&self, file: &str, text: &str) {
        fs::write(self.root.join(file), text).unwrap();
        self.git("add -A");
        self.git(&format!("commit --quiet -m {file}"));
    }

    fn state(&self) -> GitState {
        GitState::read(&self.root).unwrap().unwrap()
    }

    /// Reads the state, and checks that git reports the same.
    fn agreed(&self) -> GitState {
        let state = self.state();
        assert_eq!(state.head.clone().unwrap_or_default(), self.git("rev-parse --quiet --verify HEAD"));
        assert_eq!(state.reference.clone().unwrap_or_default(), self.git("symbolic-ref --quiet HEAD"));
        assert_eq!(state.branch.clone().unwrap_or_default(), self.git("branch --show-current"));
        assert_eq!(state.git_dir, self.git("rev-parse --absolute-git-dir"));
        let branches = self.git("for-each-ref --format=%(refname:lstrip=2)|%(objectname) refs/heads/");
        let branches = branches.lines().map(|line| line.split_once('|').unwrap());
        let branches: BTreeMap<String, String> =
            branches.map(|(name, commit)| (name.to_owned(), commit.to_owned())).collect();
        assert_eq!(state.branches, branches);
        assert!(!state.branches_left_out);
        state
    }
}

fn files(directory: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, found),
            false => drop(found.insert(path.clone(), fs::read(path).unwrap())),
        }
    }
}

fn goes_through_the_life_of_a_repository(bench: &Bench) {
    let unborn = bench.agreed();
    assert_eq!((unborn.head, unborn.branch.as_deref(), unborn.index), (None, Some("main"), None));
    bench.commit("a", "1");
    let first = bench.agreed();
    assert!(first.head.is_some() && first.index.is_some());
    assert_eq!(bench.agreed(), first);

    fs::write(bench.root.join("a"), "2").unwrap();
    assert_eq!(bench.state(), first, "what is not staged is no part of it");
    bench.git("add a");
    let staged = bench.agreed();
    assert_ne!(staged.index, first.index);
    assert_eq!(GitState { index: first.index.clone(), ..staged }, first);

    bench.git("commit --quiet -m two");
    bench.git("branch topic/one HEAD~1");
    bench.git("branch topic/two");
    bench.git("symbolic-ref refs/heads/alias refs/heads/topic/one");
    bench.git("symbolic-ref refs/heads/dangling refs/heads/nowhere");
    bench.git("tag -a -m tag tagged");
    let loose = bench.agreed();
    assert_eq!(loose.branches.len(), 4);
    bench.git("pack-refs --all");
    assert_eq!(bench.agreed(), loose);
    // Loose refs take precedence over packed ones.
    bench.commit("b", "1");
    assert_ne!(bench.agreed().head, loose.head);

    bench.git("checkout --quiet --detach topic/one");
    let detached = bench.agreed();
    assert_eq!((detached.reference, detached.branch), (None, None));
    bench.git("checkout --quiet --orphan fresh");
    assert_eq!(bench.agreed().head, None);
    bench.git("checkout --quiet -f main");

    // A directory of the repository belongs to it; so does a linked worktree, with its own head.
    fs::create_dir_all(bench.root.join("deep/er")).unwrap();
    assert_eq!(GitState::read(&bench.root.join("deep/er")).unwrap().unwrap(), bench.agreed());
    bench.git("worktree add --quiet ../linked topic/two");
    let linked =
        Bench { _directory: tempfile::tempdir().unwrap(), root: bench.root.with_file_name("linked") };
    let of_worktree = linked.agreed();
    assert_eq!(of_worktree.branch.as_deref(), Some("topic/two"));
    assert!(
        of_worktree.git_dir.ends_with(".git/worktrees/linked") && of_worktree.branches.contains_key("main")
    );

    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    files(&bench.root, &mut before);
    bench.state();
    files(&bench.root, &mut after);
    assert!(before == after, "nothing is written");
    let json = serde_json::to_string(&of_worktree).unwrap();
    assert_eq!(serde_json::from_str::<GitState>(&json).unwrap(), of_worktree);
}

#[test]
fn a_repository_is_at_what_git_says_it_is_at() {
    if let Some(bench) = Bench::new(&[]) {
        goes_through_the_life_of_a_repository(&bench);
    }
}

#[test]
fn a_repository_with_ids_of_sha_256_is_read_as_well() {
    if let Some(bench) = Bench::new(&["--object-format=sha256"]) {
        goes_through_the_life_of_a_repository(&bench);
        assert_eq!(bench.state().head.unwrap().len(), 64);
    }
}

#[test]
fn what_is_under_way_is_named_until_it_has_ended() {
    let Some(bench) = Bench::new(&[]) else { return };
    bench.commit("a", "base");
    bench.git("checkout --quiet -b side");
    bench.commit("a", "side");
    bench.commit("b", "side");
    bench.git("checkout --quiet main");
    bench.commit("a", "main");
    bench.commit("a", "later");
    for (begin, end, expected) in [
        ("merge side", "merge --abort", GitOperation::Merge),
        ("rebase side", "rebase --abort", GitOperation::Rebase),
        ("rebase --apply side", "rebase --abort", GitOperation::Rebase),
        ("cherry-pick side~1", "cherry-pick --abort", GitOperation::CherryPick),
        ("revert HEAD~1", "revert --abort", GitOperation::Revert),
        ("bisect start HEAD HEAD~2", "bisect reset", GitOperation::Bisect),
    ] {
        bench.git(begin);
        assert_eq!(bench.agreed().operations, [expected], "{begin}");
        bench.git(end);
        assert_eq!(bench.agreed().operations, [], "{end}");
    }
    // Several picks, the first of which the user completed with a commit.
    bench.git("cherry-pick side~1 side");
    bench.commit("a", "settled");
    assert_eq!(bench.agreed().operations, [GitOperation::CherryPick]);
    bench.git("cherry-pick --continue");
    assert_eq!(bench.agreed().operations, []);
}

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A repository that git did not create.
struct Forged {
    directory: TempDir,
}

impl Forged {
    fn new() -> Forged {
        let forged = Forged { directory: tempfile::tempdir().unwrap() };
        for directory in [".git/objects", ".git/refs/heads"] {
            fs::create_dir_all(forged.at(directory)).unwrap();
        }
        forged.put(".git/HEAD", "ref: refs/heads/main\n");
        forged.put(".git/refs/heads/main", COMMIT);
        forged
    }

    fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    fn put(&self, path: &str, text: &str) {
        let _ = fs::remove_file(self.at(path));
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    fn read(&self) -> std::io::Result<Option<GitState>> {
        GitState::read(self.directory.path())
    }

    /// Asserts that reading fails, and names this file and this reason.
    fn refused(&self, file: &str, reason: &str) {
        let error = self.read().unwrap_err().to_string();
        assert!(error.contains(file) && error.contains(reason), "{file}: {error}");
    }
}

#[test]
fn a_directory_that_belongs_to_no_repository_has_no_state() {
    let forged = Forged::new();
    assert_eq!(forged.read().unwrap().unwrap().head.as_deref(), Some(COMMIT));
    // A directory that only looks like a repository is skipped, as by git.
    fs::create_dir_all(forged.at("inner/.git")).unwrap();
    assert_eq!(GitState::read(&forged.at("inner")).unwrap(), forged.read().unwrap());
    fs::remove_dir(forged.at(".git/objects")).unwrap();
    assert_eq!(forged.read().unwrap(), None);
    assert_eq!(GitState::read(&forged.at("nowhere")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn what_would_keep_a_reader_waiting_or_fill_its_memory_is_refused_by_name() {
    for file in
        ["HEAD", "packed-refs", "index", "refs/heads/main", "refs/heads/other", "commondir", "sequencer/todo"]
    {
        let path = format!(".git/{file}");
        let forged = Forged::new();
        forged.put(&path, "");
        fs::remove_file(forged.at(&path)).unwrap();
        mkfifo(&forged.at(&path), Mode::S_IRWXU).unwrap();
        forged.refused(file, "not a regular file");
        fs::remove_file(forged.at(&path)).unwrap();
        symlink("/dev/zero", forged.at(&path)).unwrap();
        forged.refused(file, "not a regular file");
        forged.put(&path, "");
        fs::File::options().write(true).open(forged.at(&path)).unwrap().set_len(10 << 30).unwrap();
        forged.refused(file, "longer than");
    }
    let forged = Forged::new();
    fs::remove_dir_all(forged.at(".git")).unwrap();
    mkfifo(&forged.at(".git"), Mode::S_IRWXU).unwrap();
    forged.refused(".git", "not a regular file");
    forged.put(".git", "gitdir: nowhere\n");
    forged.refused(".git", "does not lead to a repository");
    forged.put(".git", "nothing");
    forged.refused(".git", "does not name a directory");
}

#[test]
fn refs_that_lead_nowhere_sound_are_refused_by_name() {
    let main = "refs/heads/main";
    for target in ["../../../etc/passwd", "refs/../../secret", "refs/heads/.invalid", "refs/a//b", "HEAD", ""]
    {
        let forged = Forged::new();
        forged.put(".git/HEAD", &format!("ref: {target}\n"));
        forged.refused("HEAD", "it is not a ref");
    }
    for text in ["", "secret", &COMMIT[1..], &"0".repeat(40), &format!("{COMMIT}0"), &format!("x{COMMIT}")] {
        let forged = Forged::new();
        forged.put(".git/refs/heads/main", text);
        forged.refused(main, "it is not a ref");
        // The error does not repeat the file's content.
        assert!(!forged.read().unwrap_err().to_string().contains("secret"));
    }
    let forged = Forged::new();
    forged.put(".git/refs/heads/main", "ref: refs/heads/other");
    forged.put(".git/refs/heads/other", "ref: refs/heads/main");
    forged.refused("HEAD", "too many symbolic refs");
    for packed in
        [format!("{COMMIT} refs/heads/x"), format!("{COMMIT} refs/../x\n"), "zzz refs/heads/x\n".to_owned()]
    {
        let forged = Forged::new();
        forged.put(".git/packed-refs", &format!("# pack-refs\n{packed}"));
        forged.refused("packed-refs", "line 2 is not a ref");
    }
    let forged = Forged::new();
    symlink(".", forged.at(".git/refs/heads/loop")).unwrap();
    forged.refused("refs/heads/loop", "a link to a directory");
    let forged = Forged::new();
    fs::create_dir_all(forged.at(&format!(".git/refs/heads/{}", "d/".repeat(100)))).unwrap();
    forged.refused("refs/heads/d/d", "too many nested directories");
    let forged = Forged::new();
    fs::create_dir(forged.at(".git/reftable")).unwrap();
    assert_eq!(forged.read().unwrap_err().kind(), ErrorKind::Unsupported);
    // A file name may contain sequences that control a terminal.
    let forged = Forged::new();
    forged.put(".git/refs/heads/\u{9b}2J", "x");
    assert!(!forged.read().unwrap_err().to_string().contains('\u{9b}'));
}

#[test]
fn of_very_many_branches_the_first_are_listed() {
    let forged = Forged::new();
    let packed: String = (0..10_001).map(|n| format!("{COMMIT} refs/heads/n{n:05}\n")).collect();
    forged.put(".git/packed-refs", &packed);
    forged.put(".git/refs/heads/a", COMMIT);
    let state = forged.read().unwrap().unwrap();
    assert_eq!((state.branches.len(), state.branches_left_out), (10_000, true));
    assert!(state.branches.contains_key("a") && state.branches.contains_key("n09997"));
    assert_eq!(state.head.as_deref(), Some(COMMIT));
}
