//! A workspace on a disk that a tool has filled. Skipped, with the reason printed, if the machine
//! cannot mount one.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use foldlog::filesystem::{Error as FilesError, HostFilesystem, HostFilesystemOptions};
use foldlog::inspect::OperationStatus;
use foldlog::tools::RecoveredOperation;
use foldlog_test_support::child;
use foldlog_test_support::loop_disk::LoopDisk;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;

const DISK_BYTES: u64 = 24 << 20;

const PAGE_BYTES: usize = 3 << 20;

const HALF_BYTES: usize = 10 << 20;

/// The file that a tool writes until the disk is full. The page is removed first.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Filled {
    /// A file whose name sorts after the page's.
    Workspace,
    Page,
    /// A file larger than the space that then remains, without filling the disk.
    Half,
    /// A file on the same disk, outside of the workspace.
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
        match fill.filled {
            Filled::Workspace => fill_with_noise(&self.disk.join("workspace/z/filler")),
            Filled::Page => fill_with_noise(&self.disk.join("workspace/a/page")),
            Filled::Half => fs::write(self.disk.join("workspace/z/filler"), half())?,
            Filled::Beside => fill_with_noise(&self.disk.join("beside")),
        }
        if fill.dies {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        }
        Err(ToolError::failed("no room"))
    }
}

/// Returns incompressible bytes, so that a snapshot of them takes as much space.
fn noise() -> Vec<u8> {
    let mut drawn = 7_u64;
    let bytes = std::iter::repeat_with(|| {
        drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (drawn >> 56) as u8
    });
    bytes.take(PAGE_BYTES).collect()
}

/// So much that the disk has no space for another copy, except of the page.
fn half() -> Vec<u8> {
    noise().into_iter().cycle().take(HALF_BYTES).map(|byte| byte ^ 1).collect()
}

fn fill_with_noise(path: &Path) {
    let (mut file, noise) = (fs::File::create(path).unwrap(), noise());
    let mut before = u64::MAX;
    while std::mem::replace(&mut before, file.metadata().unwrap().len()) != before {
        while let Ok(()) = file.write_all(&noise) {}
        // Delayed allocation reserves more than is used in the end.
        file.sync_all().unwrap();
    }
}

/// Returns the runner of a session whose workspace and snapshots are on this disk.
fn runner_on(disk: &Path, session: Session, without_capture: bool) -> ToolRunner {
    let (root, store) = (disk.join("workspace"), disk.join("snapshots"));
    let files = HostFilesystem::open(root, store, HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    let tools = ToolRegistry::new().with(Fills { disk: disk.to_owned() });
    let state = ExecutionState::builder(session, resources).without_capture(without_capture).build();
    ToolRunner::new(state, tools)
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
    let _ = fill(&runner_on(&disk, session, false), filled, true);
    unreachable!("it was killed");
}

/// A session whose workspace and snapshots are on one small disk.
struct Crowded {
    // Dropped first: its last writes come before the disk is unmounted.
    runner: ToolRunner,
    disk: LoopDisk,
    store: tempfile::TempDir,
    page: Vec<u8>,
}

impl Crowded {
    fn new() -> Option<Crowded> {
        let disk = LoopDisk::mounted(DISK_BYTES);
        let disk = disk
            .inspect_err(|reason| foldlog_test_support::skipped(format_args!("no disk of its own: {reason}")))
            .ok()?;
        for directory in ["a", "z"] {
            fs::create_dir_all(disk.root().join("workspace").join(directory)).unwrap();
        }
        let (page, store) = (noise(), tempfile::tempdir().unwrap());
        fs::write(disk.root().join("workspace/a/page"), &page).unwrap();
        let session = Store::open(store.path()).unwrap().create(&types()).unwrap();
        let runner = runner_on(&disk.root(), session, false);
        Some(Crowded { runner, disk, store, page })
    }

    fn session(&self) -> &Session {
        self.runner.state().session()
    }

    /// Kills another process within its call; this one is the next, before its recovery.
    fn killed(&mut self, filled: Filled) {
        let (id, disk) = (self.session().id(), self.disk.root());
        self.session().clone().close().unwrap();
        let argument = serde_json::to_string(&(filled, id, &disk, self.store.path())).unwrap();
        child::start("tools::full_disk::part_of_a_child_that_is_killed_with_its_disk_full", &argument)
            .ended();
        let session = Store::open(self.store.path()).unwrap().open_session(id, &types()).unwrap();
        assert!(session.calls().is_interrupted());
        self.runner = runner_on(&disk, session, false);
    }

    fn recover(&self) -> Result<Vec<RecoveredOperation>> {
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

    /// Whether the last end record states that nothing was captured.
    fn says_not_captured(&self) -> bool {
        let (mut says, last) = (false, self.session().log().position().unwrap());
        let needle = b"was not captured";
        self.session()
            .log()
            .records(0, last, |record| {
                says |= record.body.windows(needle.len()).any(|window| window == needle);
                Ok(())
            })
            .unwrap();
        says
    }
}

/// Lets the run continue although the present files are lost.
fn without_capture(mut crowded: Crowded) -> Crowded {
    crowded.runner = runner_on(&crowded.disk.root(), crowded.session().clone(), true);
    crowded
}

#[track_caller]
fn assert_untouched(crowded: &Crowded, refused: &Error) {
    let Error::Uncaptured { capture, aside } = refused else { panic!("{refused:?}") };
    assert!(capture.to_string().contains("No space left"), "{capture}");
    assert!(
        aside.to_string().contains(&PAGE_BYTES.to_string()[..2]) || aside.to_string().contains("space"),
        "{aside}"
    );
    assert!(crowded.session().calls().is_interrupted());
    assert!(fs::metadata(crowded.path("workspace/.foldlog-aside")).is_err());
}

/// Recovery captured the present files before it restored anything. Without space for that, the
/// session could only be recovered by hand. Later, the file that filled the disk was lost.
#[test]
fn a_call_that_filled_the_disk_is_recovered_only_without_a_capture_and_nothing_is_touched_before() {
    for filled in [Filled::Workspace, Filled::Page] {
        let Some(mut crowded) = Crowded::new() else { return };
        crowded.killed(filled);
        let before = crowded.session().log().position();
        for _ in 0..2 {
            assert_untouched(&crowded, &crowded.recover().unwrap_err());
            assert_eq!(crowded.session().log().position(), before);
        }
        // Other sessions are kept out of the unfinished changes.
        let other = crowded.session().store().create(&types()).unwrap();
        let other = runner_on(&crowded.disk.root(), other, false);
        let dirty = fill(&other, Filled::Half, false);
        assert!(matches!(dirty, Err(Error::ResourceDirty { .. })), "{dirty:?}");
        drop(other);
        let mut crowded = without_capture(crowded);
        let [recovered] = crowded.recover().unwrap().try_into().unwrap();
        let [not_captured] = recovered.not_undone.as_slice() else { panic!("{recovered:?}") };
        assert!(
            not_captured.reason.contains("not captured") && not_captured.reason.contains("No space left")
        );
        crowded.is_as_it_was();
        assert!(crowded.says_not_captured());
        let log = LogReader::open(crowded.session().dir()).unwrap();
        assert_eq!(log.ledger().unwrap()[0].outcome, OperationStatus::Interrupted);
        // With space again, the next recovery captures the present files.
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
    let mut at = None;
    for _ in 0..2 {
        let full = crowded.recover().unwrap_err();
        let full = match &full {
            Error::Uncaptured { aside, .. } => aside,
            full => full,
        };
        let bytes = match full {
            Error::Full { bytes, .. } | Error::Filesystem(FilesError::Full { bytes, .. }) => *bytes,
            other => panic!("{other:?}"),
        };
        assert!(bytes >= PAGE_BYTES as u64, "{full}");
        assert!(crowded.session().calls().is_interrupted());
        // The files found by the first attempt are recorded once.
        let position = crowded.session().log().position();
        assert_eq!(*at.get_or_insert(position), position);
    }
    fs::remove_file(crowded.path("beside")).unwrap();
    crowded.recover().unwrap();
    crowded.is_as_it_was();
}

#[test]
fn a_call_that_filled_the_disk_and_fails_is_left_open_and_recovered_without_a_capture() {
    for filled in [Filled::Workspace, Filled::Page] {
        let Some(crowded) = Crowded::new() else { return };
        let refused = fill(&crowded.runner, filled, false).unwrap_err();
        assert_untouched(&crowded, &refused);
        let crowded = without_capture(crowded);
        crowded.recover().unwrap();
        crowded.is_as_it_was();
        // A run without captures rolls such a call back at once.
        let report = fill(&crowded.runner, filled, false).unwrap();
        assert_eq!((report.success, report.message.as_str()), (false, "no room"));
        crowded.is_as_it_was();
    }
}

/// A file too large to be captured next to the original was lost with the rollback.
#[test]
fn what_the_disk_has_no_second_room_for_is_moved_aside_and_named() {
    for dies in [false, true] {
        let Some(mut crowded) = Crowded::new() else { return };
        let not_undone = match dies {
            false => fill(&crowded.runner, Filled::Half, false).unwrap().not_undone,
            true => {
                crowded.killed(Filled::Half);
                let [recovered] = crowded.recover().unwrap().try_into().unwrap();
                recovered.not_undone
            }
        };
        let [not_captured, aside] = not_undone.as_slice() else { panic!("{not_undone:?}") };
        assert!(not_captured.reason.contains("was not captured"), "{not_captured:?}");
        assert!(aside.path.starts_with(".foldlog-aside/"), "{aside:?}");
        let moved = crowded.path("workspace").join(&aside.path).join("z/filler");
        assert!(fs::read(&moved).unwrap() == half());
        crowded.is_as_it_was();
    }
}
