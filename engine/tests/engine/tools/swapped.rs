//! A workspace is the directory at the start of the call, wherever its path leads later: in the
//! same process and in the next one, which recovers the call.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions, Rebind, WorkspaceNotice};
use foldlog::tools::RewindOptions;
use foldlog::{Durability, SessionOptions, filesystem};
use foldlog_test_support::child;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::{CWD, RenameFlags, listxattr, removexattr, renameat_with};

use super::*;
use crate::filesystem::digest::{self, Digest};

/// The attribute with the token of a workspace's directory.
const TOKEN: &str = "user.foldlog.token";

/// Number of calls that fail while directories are swapped; with `FOLDLOG_SWAPPING_SECONDS` they
/// fail for that long instead.
const RACES: u32 = 40;

/// A tool's replacement of the workspace's directory while it runs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Swap {
    No,
    RootByDirectory,
    RootByLink,
    /// A link to the victim's parent replaces the root's parent.
    ParentByLink,
    /// A copy of the workspace, with all attributes, replaces it.
    RootByCopy,
    /// The root is moved away without a replacement.
    RootGone,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Told {
    text: String,
    swap: Swap,
    then: Then,
}

/// Writes the page, swaps directories, and writes the page once more.
struct Vandal(Site);

impl Tool for Vandal {
    const NAME: &'static str = "vandal";
    type Parameters = Told;
    type Output = ();

    fn call(&self, told: Told, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let files = context.resources().get::<dyn Filesystem>().unwrap();
        files.write("page", told.text.as_bytes())?;
        files.write("src/new", told.text.as_bytes())?;
        self.0.swap(told.swap);
        files.write("page", told.text.as_bytes())?;
        match told.then {
            Then::Die => kill(Pid::this(), Signal::SIGKILL).unwrap(),
            Then::Fail => return Err(ToolError::failed("not like that")),
            _ => {}
        }
        Ok(ToolResult::ok("done", ()))
    }
}

/// The layout: `base/workspace`, next to it the directory `away`, and `victims/workspace`, which
/// must not change.
#[derive(Clone)]
pub(super) struct Site(pub(super) PathBuf);

impl Site {
    pub(super) fn root(&self) -> PathBuf {
        self.0.join("base/workspace")
    }

    fn victim(&self) -> PathBuf {
        self.0.join("victims/workspace")
    }

    fn away(&self) -> PathBuf {
        self.0.join("away")
    }

    fn swap(&self, swap: Swap) {
        match swap {
            Swap::No => return,
            Swap::ParentByLink => {
                fs::rename(self.0.join("base"), self.away()).unwrap();
                return symlink("victims", self.0.join("base")).unwrap();
            }
            _ => fs::rename(self.root(), self.away()).unwrap(),
        }
        match swap {
            Swap::RootByDirectory => fs::rename(self.victim(), self.root()).unwrap(),
            Swap::RootByLink => symlink(self.victim(), self.root()).unwrap(),
            Swap::RootByCopy => {
                let copied =
                    std::process::Command::new("cp").arg("-a").args([self.away(), self.root()]).status();
                assert!(copied.unwrap().success());
            }
            _ => {}
        }
    }

    fn swap_back(&self, swap: Swap) {
        match swap {
            Swap::No => return,
            Swap::ParentByLink => {
                fs::remove_file(self.0.join("base")).unwrap();
                return fs::rename(self.away(), self.0.join("base")).unwrap();
            }
            Swap::RootByDirectory => fs::rename(self.root(), self.victim()).unwrap(),
            Swap::RootByLink => fs::remove_file(self.root()).unwrap(),
            Swap::RootByCopy => fs::remove_dir_all(self.root()).unwrap(),
            Swap::RootGone => {}
        }
        fs::rename(self.away(), self.root()).unwrap();
    }

    /// Returns the victim's path while directories are swapped in this way.
    fn victim_at(&self, swap: Swap) -> PathBuf {
        match swap {
            Swap::RootByDirectory | Swap::RootByCopy => self.root(),
            _ => self.victim(),
        }
    }

    pub(super) fn files(&self) -> Arc<HostFilesystem> {
        let options = HostFilesystemOptions::default();
        Arc::new(HostFilesystem::open(self.root(), self.0.join("snapshots"), options).unwrap())
    }

    pub(super) fn store(&self) -> Store {
        let options = StoreOptions { durability: Durability::Process, ..StoreOptions::default() };
        Store::open_with(self.0.join("store"), options).unwrap()
    }

    pub(super) fn run(&self, session: Session) -> ToolRunner {
        self.run_on(session, self.files())
    }

    pub(super) fn run_on(&self, session: Session, files: Arc<HostFilesystem>) -> ToolRunner {
        let resources = ResourceRegistry::builder().filesystem(files).build().unwrap();
        let tools = ToolRegistry::new().with(Vandal(self.clone()));
        ToolRunner::new(ExecutionState::new(session, resources), tools)
    }

    fn open(&self, id: Uuid) -> ToolRunner {
        self.run(self.store().open_session(id, &types()).unwrap())
    }

    pub(super) fn page(&self) -> String {
        fs::read_to_string(self.root().join("page")).unwrap()
    }
}

pub(super) struct Place {
    _directory: tempfile::TempDir,
    site: Site,
}

impl std::ops::Deref for Place {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl Place {
    pub(super) fn new() -> Place {
        let directory = tempfile::tempdir().unwrap();
        let site = Site(fs::canonicalize(directory.path()).unwrap());
        for root in [site.root(), site.victim()] {
            fs::create_dir_all(root.join("src/deep")).unwrap();
            fs::write(root.join("src/deep/file"), root.as_os_str().as_encoded_bytes()).unwrap();
        }
        fs::write(site.root().join("page"), "empty").unwrap();
        fs::write(site.victim().join("precious"), "nobody else has this").unwrap();
        Place { _directory: directory, site }
    }

    /// Returns a session whose process is killed within a call that swapped directories, after one
    /// that wrote "before".
    fn killed(&self, swap: Swap) -> Uuid {
        let runner = self.run(self.store().create(&types()).unwrap());
        let id = runner.state().session().id();
        vandal(&runner, "before", Swap::No, Then::Succeed).unwrap();
        drop(runner);
        let part = "tools::swapped::part_of_a_child_that_swaps_directories_and_is_killed";
        let swap = serde_json::to_string(&swap).unwrap();
        child::start(part, &format!("{id} {swap} {}", self.0.display())).ended();
        id
    }
}

pub(super) fn vandal(runner: &ToolRunner, text: &str, swap: Swap, then: Then) -> Result<ToolReport> {
    let arguments = serde_json::to_string(&Told { text: text.to_owned(), swap, then }).unwrap();
    runner.execute(&ToolCall::new("vandal", arguments), &ExecuteOptions::default())
}

/// Returns the content of a directory, and its own attributes.
fn all_of(directory: &Path) -> (Digest, Vec<u8>) {
    let mut names = vec![0; 1_000];
    let len = listxattr(directory, &mut names[..]).unwrap();
    names.truncate(len);
    (digest::of(directory), names)
}

#[track_caller]
fn is_refused_as_replaced(refused: &Result<impl std::fmt::Debug>, workspace: &Path) {
    let Err(Error::RestoreFailed { failed, .. }) = refused else { panic!("{refused:?}") };
    let [(name, error)] = &failed[..] else { panic!("{failed:?}") };
    assert_eq!(name, "workspace");
    assert!(
        matches!(&**error, Error::Filesystem(filesystem::Error::Replaced { workspace: named, .. }) if named == workspace),
        "{error:?}"
    );
    let told = refused.as_ref().unwrap_err().to_string();
    for fact in [workspace.to_str().unwrap(), "inode", "rebind the workspace"] {
        assert!(told.contains(fact), "{told}");
    }
    assert!(told.contains("is another directory") || told.contains("is gone"), "{told}");
}

/// The root was opened again by its path for each restore. The directory that had replaced it
/// during the call was emptied, the snapshot written there, and the call reported as failed.
#[test]
fn a_call_whose_workspace_is_swapped_for_another_touches_neither_and_says_so() {
    for swap in
        [Swap::RootByDirectory, Swap::RootByLink, Swap::ParentByLink, Swap::RootByCopy, Swap::RootGone]
    {
        for then in [Then::Fail, Then::Succeed] {
            let place = Place::new();
            let runner = place.run(place.store().create(&types()).unwrap());
            vandal(&runner, "before", Swap::No, Then::Succeed).unwrap();
            let victim = all_of(&place.victim());
            let refused = vandal(&runner, "half", swap, then);
            is_refused_as_replaced(&refused, &place.root());
            if swap != Swap::RootByCopy {
                assert_eq!(all_of(&place.victim_at(swap)), victim, "{swap:?}, {then:?}");
            }
            // The tool's writes went into the directory at the start of the call, wherever that was
            // by then.
            place.swap_back(swap);
            assert_eq!(place.page(), "half", "{swap:?}, {then:?}");
            assert_eq!(all_of(&place.victim()), victim);
        }
    }
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_swaps_directories_and_is_killed() {
    let Some(argument) = child::argument() else { return };
    let [id, swap, directory] = argument.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{argument}") };
    let site = Site(PathBuf::from(directory));
    let _ = vandal(&site.open(id.parse().unwrap()), "half", serde_json::from_str(swap).unwrap(), Then::Die);
    unreachable!("it was killed");
}

/// The next process found the workspace by its path, links and all, and restored the snapshot to
/// whatever was there.
#[test]
fn a_recovery_that_finds_another_directory_at_the_path_is_refused_and_leaves_it_as_it_is() {
    for swap in [Swap::RootByDirectory, Swap::RootByLink, Swap::ParentByLink, Swap::RootByCopy] {
        let place = Place::new();
        let victim = all_of(&place.victim());
        let id = place.killed(swap);
        let there = all_of(&place.victim_at(swap));
        let runner = place.open(id);
        for _ in 0..2 {
            let refused = runner.recover(&ExecuteOptions::default());
            // Opening resolves links once, so this may be the victim's own path.
            is_refused_as_replaced(&refused, &fs::canonicalize(place.root()).unwrap());
            assert!(runner.state().session().calls().is_interrupted());
            assert_eq!(all_of(&place.victim_at(swap)), there, "{swap:?}: not even a mark");
        }
        drop(runner);
        place.swap_back(swap);
        assert_eq!(all_of(&place.victim()), victim);
        let runner = place.open(id);
        runner.recover(&ExecuteOptions::default()).unwrap();
        assert_eq!(place.page(), "before", "{swap:?}");
        assert_eq!(fs::read_to_string(place.root().join("src/new")).unwrap(), "before");
        assert_eq!(all_of(&place.victim()), victim);
    }
}

/// Without attributes a directory is identified by its inode and its time of birth.
#[test]
fn a_workspace_that_lost_its_token_is_known_by_inode_and_birth() {
    let place = Place::new();
    let id = place.killed(Swap::No);
    removexattr(place.root(), TOKEN).expect("the directory for temporary files takes extended attributes");
    place.open(id).recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(place.page(), "before");
}

#[test]
fn a_recovery_goes_into_another_directory_once_somebody_asks_for_it() {
    let place = Place::new();
    let id = place.killed(Swap::RootGone);
    fs::create_dir(place.root()).unwrap();
    fs::write(place.root().join("other"), "in the way").unwrap();
    let (before, session) = (all_of(&place.root()), place.store().open_session(id, &types()).unwrap());
    let files = place.files();
    let runner = place.run_on(session.clone(), Arc::clone(&files));
    is_refused_as_replaced(&runner.recover(&ExecuteOptions::default()), &place.root());
    let refused = files.rebind(Rebind::IfEmpty);
    assert!(
        matches!(&refused, Err(filesystem::Error::Path { reason, .. }) if reason.contains("not empty")),
        "{refused:?}"
    );
    is_refused_as_replaced(&runner.recover(&ExecuteOptions::default()), &place.root());
    assert_eq!(all_of(&place.root()), before);
    // A directory that is empty at `rebind` and not at the restore is left alone as well.
    fs::remove_file(place.root().join("other")).unwrap();
    files.rebind(Rebind::IfEmpty).unwrap();
    fs::write(place.root().join("other"), "in the way").unwrap();
    assert!(runner.recover(&ExecuteOptions::default()).unwrap_err().to_string().contains("not empty"));
    assert_eq!(all_of(&place.root()), before);
    fs::remove_file(place.root().join("other")).unwrap();
    runner.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(place.page(), "before");
    assert!(place.root().join("src/deep/file").exists() && !session.calls().is_interrupted());
    // From here on that directory is the workspace.
    vandal(&runner, "later", Swap::No, Then::Fail).unwrap();
    assert_eq!(place.page(), "before");

    let place = Place::new();
    let id = place.killed(Swap::RootGone);
    fs::create_dir(place.root()).unwrap();
    fs::write(place.root().join("other"), "of no worth").unwrap();
    let files = place.files();
    files.rebind(Rebind::Overwrite).unwrap();
    let runner = place.run_on(place.store().open_session(id, &types()).unwrap(), files);
    runner.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!((place.page().as_str(), place.root().join("other").exists()), ("before", false));
}

/// A directory that is recreated between calls, as by a clone, is the workspace from then on.
/// Nothing known of the old one is assumed of it, and the host is notified.
#[test]
fn a_directory_that_is_replaced_between_calls_is_bound_anew_and_told() {
    let place = Place::new();
    let files = place.files();
    let runner = place.run_on(place.store().create(&types()).unwrap(), Arc::clone(&files));
    vandal(&runner, "before", Swap::No, Then::Succeed).unwrap();
    let old = files.snapshot(None, false).unwrap();
    assert_eq!(files.take_notices(), []);
    place.swap(Swap::RootByDirectory);
    let cloned = digest::of(&place.root());
    vandal(&runner, "half", Swap::No, Then::Fail).unwrap();
    assert_eq!(digest::of(&place.root()), cloned);
    let notices = files.take_notices();
    assert!(
        matches!(notices[..], [WorkspaceNotice::Replaced { before, now }] if before.inode != now.inode),
        "{notices:?}"
    );
    // Captures of the other directory are not restored into this one.
    assert!(matches!(files.restore(&old), Err(filesystem::Error::Replaced { .. })));
    assert_eq!(digest::of(&place.root()), cloned);
    // Another process is notified too, from the last one's knowledge.
    drop((runner, files));
    fs::rename(place.root(), place.victim()).unwrap();
    fs::rename(place.away(), place.root()).unwrap();
    let files = place.files();
    files.snapshot(None, false).unwrap();
    assert!(matches!(files.take_notices()[..], [WorkspaceNotice::Replaced { .. }]));
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_is_killed_between_two_calls() {
    let Some(argument) = child::argument() else { return };
    let [id, ends, directory] = argument.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{argument}") };
    let runner = Site(PathBuf::from(directory)).open(id.parse().unwrap());
    vandal(&runner, "before", Swap::No, Then::Succeed).unwrap();
    let then = if ends == "fail" { Then::Fail } else { Then::Succeed };
    vandal(&runner, "last", Swap::No, then).unwrap();
    kill(Pid::this(), Signal::SIGKILL).unwrap();
    unreachable!("it was killed");
}

/// Only a process that closed its session left a note about the directory. After a kill the next
/// call silently captured whatever was there.
#[test]
fn the_first_call_after_a_kill_between_calls_tells_what_is_not_as_the_last_call_left_it() {
    for (ends, last) in [("succeed", "last"), ("fail", "before")] {
        let place = Place::new();
        let id = place.store().create(&types()).unwrap().id();
        let part = "tools::swapped::part_of_a_child_that_is_killed_between_two_calls";
        child::start(part, &format!("{id} {ends} {}", place.0.display())).ended();
        assert_eq!(place.page(), last);
        let first_call = || {
            let files = place.files();
            let runner = place.run_on(place.store().open_session(id, &types()).unwrap(), Arc::clone(&files));
            vandal(&runner, "half", Swap::No, Then::Fail).unwrap();
            let told = files.take_notices();
            // One notice suffices: the session works on the present files from now on.
            vandal(&runner, "half", Swap::No, Then::Fail).unwrap();
            assert_eq!(files.take_notices(), []);
            told
        };
        assert_eq!(first_call(), [], "nothing has changed");
        fs::write(place.root().join("page"), "by hand").unwrap();
        fs::remove_dir_all(place.root().join("src/deep")).unwrap();
        let paths = ["page", "src/deep", "src/deep/file"].map(str::to_owned).to_vec();
        assert_eq!(first_call(), [WorkspaceNotice::Changed { paths, more: 0 }]);
        assert_eq!(place.page(), "by hand", "nothing is restored by itself");
        assert_eq!(first_call(), []);

        // Without the note of the previous process.
        let replaced = |place: &Place| {
            let _ = fs::remove_file(place.0.join("snapshots/stat-cache"));
            place.swap(Swap::RootByDirectory);
        };
        replaced(&place);
        let there = digest::of(&place.root());
        let told = first_call();
        assert!(
            matches!(told[..], [WorkspaceNotice::Replaced { before, now }] if before.inode != now.inode),
            "{told:?}"
        );
        assert_eq!(digest::of(&place.root()), there);
        assert_eq!(first_call(), []);
        // An unchanged copy with the token replaces the directory.
        fs::remove_dir_all(place.away()).unwrap();
        let _ = fs::remove_file(place.0.join("snapshots/stat-cache"));
        place.swap(Swap::RootByCopy);
        assert_eq!(first_call(), []);

        // A comparison with the last call's files is no longer possible.
        fs::write(place.root().join("page"), "something else").unwrap();
        fs::remove_dir_all(place.0.join("snapshots")).unwrap();
        let told = first_call();
        assert!(matches!(told[..], [WorkspaceNotice::Unknown { .. }]), "{told:?}");
    }
}

/// The notice is not repeated for a directory that was restored, or already reported.
#[test]
fn a_workspace_that_was_brought_back_is_as_the_last_call_left_it() {
    let first_call = |place: &Place, id| {
        let files = place.files();
        let runner = place.run_on(place.store().open_session(id, &types()).unwrap(), Arc::clone(&files));
        vandal(&runner, "half", Swap::No, Then::Fail).unwrap();
        files.take_notices()
    };
    // A recovery into another directory.
    let place = Place::new();
    let id = place.killed(Swap::RootGone);
    fs::create_dir(place.root()).unwrap();
    let _ = fs::remove_file(place.0.join("snapshots/stat-cache"));
    let files = place.files();
    files.rebind(Rebind::IfEmpty).unwrap();
    let runner = place.run_on(place.store().open_session(id, &types()).unwrap(), Arc::clone(&files));
    runner.recover(&ExecuteOptions::default()).unwrap();
    drop(runner);
    assert_eq!((place.page().as_str(), files.take_notices()), ("before", Vec::new()));
    drop(files);
    let _ = fs::remove_file(place.0.join("snapshots/stat-cache"));
    assert_eq!(first_call(&place, id), []);

    // A rewind of a workspace that was changed by hand.
    fs::write(place.root().join("page"), "by hand").unwrap();
    let files = place.files();
    let runner = place.run_on(place.store().open_session(id, &types()).unwrap(), Arc::clone(&files));
    let last = runner.state().session().log().position().unwrap();
    runner.state().rewind(last, &RewindOptions { overwrite: true, ..RewindOptions::default() }).unwrap();
    vandal(&runner, "half", Swap::No, Then::Fail).unwrap();
    assert_eq!((place.page().as_str(), files.take_notices()), ("before", Vec::new()));
    drop((runner, files));
    assert_eq!(first_call(&place, id), []);

    // A fork has its own directory, which its parent's captures do not describe.
    let fork = place.store().fork(id, last, &types(), SessionOptions::default()).unwrap().id();
    fs::write(place.root().join("page"), "by hand").unwrap();
    assert_eq!(first_call(&place, fork), []);
}

#[test]
fn a_capture_of_no_known_directory_is_restored_where_somebody_asks_for_it_only() {
    let place = Place::new();
    let files = place.files();
    let mut snapshot = files.snapshot(None, false).unwrap();
    snapshot.directory = None;
    fs::write(place.root().join("page"), "changed").unwrap();
    let refused = files.restore(&snapshot);
    assert!(
        matches!(&refused, Err(filesystem::Error::Replaced { expected: None, found: Some(_), .. })),
        "{refused:?}"
    );
    assert_eq!(place.page(), "changed");
    files.rebind(Rebind::Overwrite).unwrap();
    files.restore(&snapshot).unwrap();
    assert_eq!(place.page(), "empty");
}

/// Stops the swapping, also if the test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Swaps two names repeatedly until it is stopped.
fn swap_until(stop: &AtomicBool, pairs: &[(PathBuf, PathBuf)]) {
    let exchange = |(one, other): &(PathBuf, PathBuf)| {
        // If the parent is swapped too, a name may be missing for a moment.
        renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok()
    };
    while !stop.load(Ordering::Relaxed) {
        for pair in pairs {
            if exchange(pair) {
                std::thread::yield_now();
                while !exchange(pair) && !stop.load(Ordering::Relaxed) {}
            }
        }
    }
}

/// Restores the order of swapped names, of which one is a link to `to`.
fn put_right(one: &Path, other: &Path, to: &Path) {
    if other.is_symlink() {
        return;
    }
    if one.is_symlink() && other.exists() {
        return renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
    }
    // A restore created a new directory in place of the link.
    if other.exists() {
        fs::remove_dir_all(other).unwrap();
    }
    symlink(to, other).unwrap();
}

/// Root, parent and an inner directory are swapped for links to others as fast as possible, while
/// calls fail and are recovered. Whatever their outcome, the links' targets are unchanged.
#[test]
fn whatever_is_swapped_while_calls_fail_and_recover_nothing_else_is_touched() {
    let place = Place::new();
    let (inner, link) = (place.root().join("src"), place.0.join("link"));
    let links = BTreeMap::from([
        (link.clone(), place.victim()),
        (place.0.join("base-link"), place.0.join("victims")),
        (place.0.join("inner-link"), place.victim().join("src")),
    ]);
    links.iter().for_each(|(link, to)| symlink(to, link).unwrap());
    let pairs = [
        vec![(place.root(), link.clone())],
        vec![(place.0.join("base"), place.0.join("base-link"))],
        vec![(inner.clone(), place.0.join("inner-link"))],
        vec![(inner, place.0.join("inner-link")), (place.root(), link)],
    ];
    let victim = all_of(&place.0.join("victims"));
    let (victim_root, until) = (all_of(&place.victim()), Instant::now() + seconds());
    let (mut rounds, mut refused, mut failed) = (0, 0, 0);
    // A slow machine runs fewer failing calls.
    let enough = Instant::now() + Duration::from_secs(20);
    while rounds < RACES && Instant::now() < enough || Instant::now() < until {
        let disk = MemoryStorage::new();
        let runner = place.run(store_of(&disk).create(&types()).unwrap());
        let id = runner.state().session().id();
        let operation = runner.begin(&ToolCall::new("elsewhere", "{}"), &ExecuteOptions::default()).unwrap();
        for name in ["page", "src/new", "src/deep/file"] {
            fs::write(place.root().join(name), format!("{rounds}")).unwrap();
        }
        fs::remove_dir_all(place.root().join("src/deep")).unwrap();
        let (stop, pairs) = (AtomicBool::new(false), &pairs[rounds as usize % pairs.len()]);
        std::thread::scope(|scope| {
            let _stops = Stops(&stop);
            scope.spawn(|| swap_until(&stop, pairs));
            if rounds % 2 == 0 {
                failed += u32::from(operation.abort("no").is_err());
            } else {
                disk.crash(CrashKind::Process);
                // A process's leases end with it, that of the workspace too.
                drop((operation, runner));
                let options =
                    ExecuteOptions { deadline: Some(Duration::from_secs(10)), ..ExecuteOptions::default() };
                let (root, snapshots) = (place.root(), place.0.join("snapshots"));
                // At that moment there may be no directory at all.
                let opened = HostFilesystem::open(root, snapshots, HostFilesystemOptions::default());
                let recovered = opened.map_err(Error::from).and_then(|files| {
                    let session = store_of(&disk).open_session(id, &types()).unwrap();
                    place.run_on(session, Arc::new(files)).recover(&options)
                });
                refused += u32::from(recovered.is_err());
            }
        });
        for (one, other) in pairs.iter().rev() {
            put_right(one, other, &links[other]);
        }
        assert_eq!(all_of(&place.0.join("victims")), victim, "in round {rounds}");
        assert_eq!(all_of(&place.victim()), victim_root, "in round {rounds}");
        // Unfinished changes must not affect the next round's capture.
        fs::create_dir_all(place.root().join("src/deep")).unwrap();
        rounds += 1;
    }
    println!("{rounds} rounds: {failed} calls were not restored, {refused} recoveries refused");
}

fn seconds() -> Duration {
    let asked = std::env::var("FOLDLOG_SWAPPING_SECONDS").ok();
    Duration::from_secs(asked.map_or(0, |seconds| seconds.parse().expect("a number of seconds")))
}
