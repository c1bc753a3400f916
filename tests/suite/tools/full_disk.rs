//! A workspace on a disk that a tool has filled. Skipped, with the reason printed, where the machine mounts no disk.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use foldlog::audit::Fate;
use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions};
use foldlog::tools::Recovered;
use foldlog_tests::child;
use foldlog_tests::loop_disk::LoopDisk;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;

const DISK_BYTES: u64 = 16 << 20;

const PAGE_BYTES: usize = 3 << 20;

/// Where a tool of these stories writes until there is no room left. The page is removed first.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Filled {
    /// Into a file whose name comes after the page's.
    Workspace,
    /// Into the page itself.
    Page,
    /// On the same disk, where nothing is restored.
    Beside,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Fill {
    filled: Filled,
    dies: bool,
}

/// Removes the page and fills the disk, and then fails, or dies with its process.
struct Fills {
    disk: PathBuf,
}

impl Tool for Fills {
    const NAME: &'static str = "fills";
    type Parameters = Fill;
    type Output = ();

    fn call(&self, fill: Fill, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        fs::remove_file(self.disk.join("workspace/a/page"))?;
        fill_with_noise(&self.disk.join(match fill.filled {
            Filled::Workspace => "workspace/z/filler",
            Filled::Page => "workspace/a/page",
            Filled::Beside => "beside",
        }));
        if fill.dies {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        }
        Err(ToolError::failed("no room"))
    }
}

/// What does not compress, so that a snapshot of it takes as much.
fn noise() -> Vec<u8> {
    let mut drawn = 7_u64;
    let bytes = std::iter::repeat_with(|| {
        drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (drawn >> 56) as u8
    });
    bytes.take(PAGE_BYTES).collect()
}

/// Writes a file until the disk takes no more.
fn fill_with_noise(path: &Path) {
    let (mut file, noise) = (fs::File::create(path).unwrap(), noise());
    let mut before = u64::MAX;
    while std::mem::replace(&mut before, file.metadata().unwrap().len()) != before {
        while let Ok(()) = file.write_all(&noise) {}
        // More is set aside for what is delayed than it takes in the end.
        file.sync_all().unwrap();
    }
}

/// The runner of a session whose workspace, and its snapshots, are on a disk that is mounted there.
fn runner_on(disk: &Path, session: Session) -> ToolRunner {
    let (root, store) = (disk.join("workspace"), disk.join("snapshots"));
    let files = HostFilesystem::open(root, store, HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    let tools = ToolRegistry::new().with(Fills { disk: disk.to_owned() });
    ToolRunner::new(ExecutionState::new(session, resources), tools)
}

fn fill(runner: &ToolRunner, filled: Filled, dies: bool) -> Result<ToolReport> {
    let arguments = serde_json::to_string(&Fill { filled, dies }).unwrap();
    runner.execute(&ToolCall::new("fills", arguments), &ExecuteOptions::default())
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_is_killed_with_its_disk_full() {
    let Some(argument) = child::argument() else { return };
    let (filled, id, disk, store): (Filled, Uuid, PathBuf, PathBuf) =
        serde_json::from_str(&argument).unwrap();
    let session = Store::open(store).unwrap().open_session(id, &types()).unwrap();
    let _ = fill(&runner_on(&disk, session), filled, true);
    unreachable!("it was killed");
}

/// A session, and on one small disk its workspace and the workspace's snapshots.
struct Crowded {
    // Let go of first: what it writes then is written before the disk is unmounted.
    runner: ToolRunner,
    disk: LoopDisk,
    store: tempfile::TempDir,
    page: Vec<u8>,
}

impl Crowded {
    fn new() -> Option<Crowded> {
        let disk = LoopDisk::mounted(DISK_BYTES);
        let disk = disk
            .inspect_err(|reason| foldlog_tests::skipped(format_args!("no disk of its own: {reason}")))
            .ok()?;
        for folder in ["a", "z"] {
            fs::create_dir_all(disk.root().join("workspace").join(folder)).unwrap();
        }
        let (page, store) = (noise(), tempfile::tempdir().unwrap());
        fs::write(disk.root().join("workspace/a/page"), &page).unwrap();
        let session = Store::open(store.path()).unwrap().create(&types()).unwrap();
        let runner = runner_on(&disk.root(), session);
        Some(Crowded { runner, disk, store, page })
    }

    fn session(&self) -> &Session {
        self.runner.state().session()
    }

    /// Has another process be killed within its call; this one is the next, and has not recovered yet.
    fn killed(&mut self, filled: Filled) {
        let (id, disk) = (self.session().id(), self.disk.root());
        self.session().clone().close().unwrap();
        let argument = serde_json::to_string(&(filled, id, &disk, self.store.path())).unwrap();
        child::start("tools::full_disk::part_of_a_child_that_is_killed_with_its_disk_full", &argument)
            .ended();
        let session = Store::open(self.store.path()).unwrap().open_session(id, &types()).unwrap();
        assert!(session.is_interrupted());
        self.runner = runner_on(&disk, session);
    }

    fn recover(&self) -> Result<Vec<Recovered>> {
        self.runner.recover(&ExecuteOptions::default())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.disk.root().join(path)
    }

    #[track_caller]
    fn is_as_it_was(&self) {
        assert!(fs::read(self.path("workspace/a/page")).unwrap() == self.page);
        assert_eq!(fs::read_dir(self.path("workspace/z")).unwrap().count(), 0);
    }

    /// Whether the last end says that nothing was captured.
    fn says_not_captured(&self) -> bool {
        let (mut says, last) = (false, self.session().position().unwrap());
        let needle = b"was not captured";
        self.session()
            .records(0, last, |record| {
                says |= record.body.windows(needle.len()).any(|window| window == needle);
                Ok(())
            })
            .unwrap();
        says
    }
}

/// Recovery captured what it found before it restored anything. There was no room for that, and so no way to recover the
/// session but by hand.
#[test]
fn a_call_that_filled_the_disk_is_recovered_and_what_it_left_is_not_captured() {
    for filled in [Filled::Workspace, Filled::Page] {
        let Some(mut crowded) = Crowded::new() else { return };
        crowded.killed(filled);
        let [recovered] = crowded.recover().unwrap().try_into().unwrap();
        let [not_captured] = recovered.not_undone.as_slice() else { panic!("{recovered:?}") };
        assert!(
            not_captured.reason.contains("not captured") && not_captured.reason.contains("No space left")
        );
        crowded.is_as_it_was();
        assert!(crowded.says_not_captured());
        let log = LogReader::open(crowded.session().dir()).unwrap();
        assert_eq!(log.ledger().unwrap()[0].outcome, Fate::Interrupted);
        // With room again the next recovery captures what it finds.
        crowded.killed(Filled::Beside);
        fs::remove_file(crowded.path("beside")).unwrap();
        let recovered = crowded.recover().unwrap();
        assert!(recovered.iter().all(|one| one.not_undone.is_empty()));
        crowded.is_as_it_was();
    }
}

#[test]
fn where_there_is_no_room_for_what_is_restored_the_recovery_says_so_and_is_called_again() {
    let Some(mut crowded) = Crowded::new() else { return };
    crowded.killed(Filled::Beside);
    let before = crowded.session().position();
    for _ in 0..2 {
        let full = crowded.recover().unwrap_err();
        assert!(matches!(full, Error::Full { bytes, .. } if bytes >= PAGE_BYTES as u64), "{full}");
        assert_eq!((crowded.session().position(), crowded.session().is_interrupted()), (before, true));
    }
    fs::remove_file(crowded.path("beside")).unwrap();
    crowded.recover().unwrap();
    crowded.is_as_it_was();
}

#[test]
fn a_call_that_filled_the_disk_and_fails_is_rolled_back() {
    for filled in [Filled::Workspace, Filled::Page] {
        let Some(crowded) = Crowded::new() else { return };
        let report = fill(&crowded.runner, filled, false).unwrap();
        assert_eq!((report.success, report.message.as_str()), (false, "no room"));
        crowded.is_as_it_was();
    }
}
