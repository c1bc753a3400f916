//! The unfinished changes of a killed session keep other sessions out of its workspace until it is
//! recovered.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions};
use foldlog::inspect::{OperationStatus, walk};
use foldlog::{Durability, SessionOptions};
use foldlog_test_support::child;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};

use super::*;

/// The attribute of a workspace's root that names the session at work.
const MARK: &str = "user.foldlog.work";

/// The file that identifies the current boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Writes the page, and another one of its own.
struct Scribble {
    /// The disk that dies with the tool; without one the process dies.
    disk: Option<MemoryStorage>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Text {
    text: String,
    then: Then,
}

impl Tool for Scribble {
    const NAME: &'static str = "scribble";
    type Parameters = Text;
    type Output = ();

    fn call(&self, Text { text, then }: Text, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let files = context.resources().get::<dyn Filesystem>().unwrap();
        files.write("page", text.as_bytes())?;
        files.write(&text, b"")?;
        context.session().dispatch(StepAdded { title: text.clone(), part: 0 })?;
        context.session().dispatch(Noted { text })?;
        match (then, &self.disk) {
            (Then::Die, Some(disk)) => disk.crash(CrashKind::Process),
            (Then::Die, None) => kill(Pid::this(), Signal::SIGKILL).unwrap(),
            (Then::Fail, _) => return Err(ToolError::failed("not like that")),
            _ => {}
        }
        Ok(ToolResult::ok("scribbled", ()))
    }
}

struct Read;

impl Tool for Read {
    const NAME: &'static str = "read";
    type Parameters = Nothing;
    type Output = String;

    fn reads_only(&self) -> bool {
        true
    }

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<String>, ToolError> {
        let files = context.resources().get::<dyn Filesystem>().unwrap();
        let page = String::from_utf8(files.read("page")?).unwrap();
        Ok(ToolResult::ok("read", page))
    }
}

/// A resource whose restore kills the process. By its name it is restored after the workspace.
struct Precipice;

impl Snapshotable for Precipice {
    const NAME: &'static str = "yonder precipice";
    type Snapshot = ();

    fn snapshot(&self, _: &CaptureOptions) -> Result<()> {
        Ok(())
    }

    fn restore(&self, (): &()) -> Result<()> {
        kill(Pid::this(), Signal::SIGKILL).unwrap();
        Ok(())
    }

    fn is_shared(&self) -> bool {
        false
    }
}

struct Place {
    directory: tempfile::TempDir,
}

fn workspace(directory: &Path) -> Arc<HostFilesystem> {
    let (root, store) = (directory.join("workspace"), directory.join("snapshots"));
    Arc::new(HostFilesystem::open(root, store, HostFilesystemOptions::default()).unwrap())
}

fn store(directory: &Path, name: &str) -> Store {
    let options = StoreOptions { durability: Durability::Process, ..StoreOptions::default() };
    Store::open_with(directory.join(name), options).unwrap()
}

fn run_of(session: Session, directory: &Path, disk: Option<MemoryStorage>) -> ToolRunner {
    let resources = ResourceRegistry::builder().filesystem(workspace(directory)).build().unwrap();
    let tools = ToolRegistry::new().with(Scribble { disk }).with(Read);
    ToolRunner::new(ExecutionState::new(session, resources), tools)
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("workspace")).unwrap();
        fs::write(directory.path().join("workspace/page"), "empty").unwrap();
        setxattr(directory.path(), MARK, b"", XattrFlags::empty()).expect(
            "the directory for temporary files takes extended attributes, or TMPDIR names one that does",
        );
        Place { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn root(&self) -> PathBuf {
        self.path().join("workspace")
    }

    fn begin(&self, name: &str) -> ToolRunner {
        run_of(store(self.path(), name).create(&types()).unwrap(), self.path(), None)
    }

    fn open(&self, name: &str, id: Uuid) -> ToolRunner {
        run_of(store(self.path(), name).open_session(id, &types()).unwrap(), self.path(), None)
    }

    /// Returns a session in the store of that name, whose process was killed within its call.
    fn killed(&self, name: &str) -> Uuid {
        let runner = self.begin(name);
        let id = runner.state().session().id();
        scribble(&runner, "before", Then::Succeed).unwrap();
        drop(runner);
        let part = "tools::half_done::part_of_a_child_that_is_killed_within_a_call";
        child::start(part, &format!("{name} {id} {}", self.path().display())).ended();
        assert_eq!(self.page(), "half");
        id
    }

    fn page(&self) -> String {
        fs::read_to_string(self.root().join("page")).unwrap()
    }

    /// Returns the fields of the mark, the session's directory last.
    fn mark(&self) -> Vec<String> {
        let mut bytes = vec![0; 5_000];
        let len = getxattr(self.root(), MARK, &mut bytes[..]).unwrap();
        let text = String::from_utf8(bytes[..len].to_vec()).unwrap();
        text.splitn(8, ' ').map(str::to_owned).collect()
    }

    fn set_mark(&self, text: &str) {
        setxattr(self.root(), MARK, text.as_bytes(), XattrFlags::empty()).unwrap();
    }

    /// Replaces the mark by one from before the boot, with this state of the call.
    fn set_mark_of_another_boot(&self, call: &str) {
        let mut words = self.mark();
        assert_eq!(words[4], fs::read_to_string(BOOT).unwrap().trim());
        words[1] = call.to_owned();
        words[4] = Uuid::from_u128(7).to_string();
        self.set_mark(&words.join(" "));
    }
}

fn scribble(runner: &ToolRunner, text: &str, then: Then) -> Result<ToolReport> {
    let arguments = serde_json::to_string(&Text { text: text.to_owned(), then }).unwrap();
    runner.execute(&ToolCall::new("scribble", arguments), &ExecuteOptions::default())
}

fn recover(runner: &ToolRunner) {
    runner.recover(&ExecuteOptions::default()).unwrap();
}

/// Checks that a call is refused because of the session's unfinished changes, and leaves no trace.
#[track_caller]
fn is_refused_for(runner: &ToolRunner, place: &Place, id: Uuid) {
    let (position, page) = (runner.state().session().log().position(), place.page());
    let refused = scribble(runner, "refused", Then::Succeed);
    assert!(matches!(&refused, Err(Error::ResourceDirty { session, .. }) if *session == id), "{refused:?}");
    assert_eq!((runner.state().session().log().position(), place.page()), (position, page));
}

#[track_caller]
fn goes_on(runner: &ToolRunner, place: &Place) {
    assert!(scribble(runner, "gone on", Then::Succeed).unwrap().success);
    assert_eq!(place.page(), "gone on");
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_is_killed_within_a_call() {
    let Some(argument) = child::argument() else { return };
    let [name, id, directory] = argument.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{argument}") };
    let session = store(Path::new(directory), name).open_session(id.parse().unwrap(), &types()).unwrap();
    let _ = scribble(&run_of(session, Path::new(directory), None), "half", Then::Die);
    unreachable!("it was killed");
}

/// The lease ended with its process. Another session's call found the unfinished files and
/// committed, and the recovery of the first session silently took that back.
#[test]
fn what_a_killed_session_left_half_done_is_worked_on_by_nobody_else_until_it_is_recovered() {
    let place = Place::new();
    let other = place.begin("other");
    let id = place.killed("one");

    let half_done = scribble(&other, "lost", Then::Succeed).unwrap_err();
    let told = half_done.to_string();
    let Error::ResourceDirty { workspace, session, session_dir, operation, tool } = half_done else {
        panic!("{told}")
    };
    let dir = fs::canonicalize(place.path().join("one/sessions").join(id.to_string())).unwrap();
    assert_eq!(workspace, fs::canonicalize(place.root()).unwrap());
    assert_eq!((session, &session_dir, tool.as_str()), (id, &dir, "scribble"));
    let ledger = LogReader::open(&dir).unwrap().ledger().unwrap();
    let open = ledger.iter().find(|entry| entry.outcome == OperationStatus::Open).unwrap();
    assert_eq!(operation, open.operation);
    for fact in [dir.to_str().unwrap(), &id.to_string(), "`scribble`", "recover that session"] {
        assert!(told.contains(fact), "{told}");
    }
    // Unfinished changes are not read or captured either.
    let read = other.execute(&ToolCall::new("read", "{}"), &ExecuteOptions::default());
    assert!(matches!(read, Err(Error::ResourceDirty { .. })), "{read:?}");
    assert!(matches!(other.state().snapshot(None), Err(Error::ResourceDirty { .. })));
    is_refused_for(&other, &place, id);
    assert_eq!((place.page().as_str(), place.root().join("lost").exists()), ("half", false));

    // Opening the session does not recover it.
    let one = place.open("one", id);
    is_refused_for(&other, &place, id);
    recover(&one);
    assert_eq!((place.page().as_str(), place.mark()[1].as_str()), ("before", "idle"));
    goes_on(&other, &place);
    // A second recovery by another process takes nothing back.
    drop(one);
    let one = place.open("one", id);
    recover(&one);
    assert_eq!(place.page(), "gone on");
    goes_on(&one, &place);
}

#[test]
fn what_ended_leaves_nothing_in_the_way_and_no_log_is_read() {
    let place = Place::new();
    let (one, other) = (place.begin("one"), place.begin("other"));
    scribble(&one, "good", Then::Succeed).unwrap();
    assert!(!scribble(&one, "bad", Then::Fail).unwrap().success);
    one.execute(&ToolCall::new("read", "{}"), &ExecuteOptions::default()).unwrap();
    one.begin(&ToolCall::new("scribble", "{}"), &ExecuteOptions::default()).unwrap().abort("no").unwrap();
    let snapshot = one.state().snapshot(None).unwrap();
    scribble(&one, "later", Then::Succeed).unwrap();
    one.state().restore(&snapshot).unwrap();
    assert_eq!((place.mark()[1].as_str(), place.page().as_str()), ("idle", "good"));
    // If its log were read, the call would be refused.
    damage(one.state().session().dir());
    // Reads leave no mark.
    let mark = place.mark();
    other.execute(&ToolCall::new("read", "{}"), &ExecuteOptions::default()).unwrap();
    assert_eq!(place.mark(), mark);
    goes_on(&other, &place);
    assert_eq!(place.mark()[3], other.state().session().id().to_string());
}

#[test]
fn a_session_that_is_gone_is_waited_for_by_nobody() {
    let place = Place::new();
    let other = place.begin("other");
    let id = place.killed("one");
    is_refused_for(&other, &place, id);
    store(place.path(), "one").delete(id).unwrap();
    goes_on(&other, &place);
    // Nor does one whose store is gone, whatever replaced it.
    let id = place.killed("second");
    is_refused_for(&other, &place, id);
    fs::remove_dir_all(place.path().join("second")).unwrap();
    fs::write(place.path().join("second"), "no store").unwrap();
    goes_on(&other, &place);
}

#[test]
fn a_session_that_was_moved_is_still_its_own() {
    let place = Place::new();
    let (one, moved) = (place.path().join("one"), place.path().join("moved"));
    let id = place.killed("one");
    fs::rename(&one, &moved).unwrap();
    recover(&place.open("moved", id));
    assert_eq!(place.page(), "before");

    // If it is still found at its path, it is the same directory.
    let place = Place::new();
    let (one, moved) = (place.path().join("one"), place.path().join("moved"));
    let id = place.killed("one");
    fs::rename(&one, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &one).unwrap();
    let other = place.begin("other");
    is_refused_for(&other, &place, id);
    recover(&place.open("moved", id));
    assert_eq!(place.page(), "before");
    goes_on(&other, &place);
}

/// A copy has the session's id and its open call, and would roll back the same.
#[test]
fn a_copy_of_the_session_waits_as_others_do() {
    let place = Place::new();
    let id = place.killed("one");
    copy(&place.path().join("one"), &place.path().join("copy"));
    let copy = place.open("copy", id);
    let refused = copy.recover(&ExecuteOptions::default());
    assert!(matches!(refused, Err(Error::ResourceDirty { .. })), "{refused:?}");
    recover(&place.open("one", id));
    recover(&copy);
    goes_on(&copy, &place);
}

#[test]
fn a_fork_of_the_session_is_another_session() {
    let place = Place::new();
    let id = place.killed("one");
    let one = store(place.path(), "one");
    let committed = LogReader::open(one.session_dir(id)).unwrap().ledger().unwrap()[0].end.unwrap();
    let fork = one.fork(id, committed, &types(), SessionOptions::default()).unwrap();
    let fork = run_of(fork, place.path(), None);
    is_refused_for(&fork, &place, id);
    recover(&fork);
    assert_eq!(place.page(), "half");
    recover(&place.open("one", id));
    goes_on(&fork, &place);
}

#[test]
fn a_call_whose_end_could_not_be_recorded_keeps_others_away_in_the_same_process_too() {
    let (place, disk) = (Place::new(), MemoryStorage::new());
    let begin = || store_of(&disk).create(&types()).unwrap();
    let one = run_of(begin(), place.path(), Some(disk.clone()));
    let id = one.state().session().id();
    scribble(&one, "before", Then::Succeed).unwrap();
    scribble(&one, "half", Then::Die).unwrap_err();
    let other = run_of(begin(), place.path(), None);
    is_refused_for(&other, &place, id);
    drop(one);
    is_refused_for(&other, &place, id);
    let session = store_of(&disk).open_session(id, &types()).unwrap();
    recover(&run_of(session, place.path(), None));
    goes_on(&other, &place);
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_is_killed_within_a_restore() {
    let Some(argument) = child::argument() else { return };
    let (id, directory) = argument.split_once(' ').unwrap();
    let directory = Path::new(directory);
    let session = store(directory, "one").open_session(id.parse().unwrap(), &types()).unwrap();
    let resources =
        ResourceRegistry::builder().filesystem(workspace(directory)).snapshotable(Arc::new(Precipice));
    let state = ExecutionState::new(session, resources.build().unwrap());
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Scribble { disk: None }));
    scribble(&runner, "early", Then::Succeed).unwrap();
    let snapshot = runner.state().snapshot(None).unwrap();
    scribble(&runner, "late", Then::Succeed).unwrap();
    let _ = runner.state().restore(&snapshot);
    unreachable!("it was killed");
}

#[test]
fn a_restore_that_was_cut_short_keeps_others_away() {
    let place = Place::new();
    let (one, other) = (place.begin("one"), place.begin("other"));
    let id = one.state().session().id();
    drop(one);
    let part = "tools::half_done::part_of_a_child_that_is_killed_within_a_restore";
    child::start(part, &format!("{id} {}", place.path().display())).ended();
    assert_eq!(place.page(), "early");
    let refused = scribble(&other, "lost", Then::Succeed);
    assert!(
        matches!(&refused, Err(Error::ResourceDirty { tool, .. }) if tool == "foldlog.restore"),
        "{refused:?}"
    );
    recover(&place.open("one", id));
    assert_eq!(place.page(), "late");
    goes_on(&other, &place);
}

#[test]
fn a_mark_that_says_more_is_open_than_the_log_does_is_in_nobodys_way() {
    let place = Place::new();
    let other = place.begin("other");
    let one = place.begin("one");
    goes_on(&one, &place);
    // The process was killed before the start record was written, or before it could mark the end.
    let words = place.mark();
    place.set_mark(&words.join(" ").replacen("idle", "open", 1));
    // The log is read once, even if only a read needs it.
    other.execute(&ToolCall::new("read", "{}"), &ExecuteOptions::default()).unwrap();
    let mark = place.mark();
    assert_eq!((&mark[1], &mark[3]), (&"idle".to_owned(), &other.state().session().id().to_string()));
    goes_on(&other, &place);
    // The machine lost its power, and the session's call had ended.
    goes_on(&one, &place);
    for call in ["open", "idle"] {
        place.set_mark_of_another_boot(call);
        goes_on(&other, &place);
        goes_on(&one, &place);
    }
}

/// The mark of an open call is not synced, so a power cut may restore the previous one.
#[test]
fn after_a_power_cut_the_log_is_asked_and_not_the_mark() {
    let place = Place::new();
    let other = place.begin("other");
    let id = place.killed("one");
    place.set_mark_of_another_boot("idle");
    is_refused_for(&other, &place, id);
    // The number of a device may have changed.
    let mut words = place.mark();
    words[5] = "77777".to_owned();
    place.set_mark(&words.join(" "));
    is_refused_for(&other, &place, id);
    recover(&place.open("one", id));
    goes_on(&other, &place);
}

#[test]
fn a_copied_directory_is_not_the_one_that_was_left_half_done() {
    let place = Place::new();
    let id = place.killed("one");
    let copied = Place::new();
    fs::remove_dir_all(copied.root()).unwrap();
    copy(&place.root(), &copied.root());
    assert_eq!((copied.mark(), copied.page()), (place.mark(), place.page()));
    goes_on(&copied.begin("other"), &copied);
    is_refused_for(&place.begin("other"), &place, id);
    // The same directory under another name is recognized.
    fs::rename(place.root(), place.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere", place.root()).unwrap();
    is_refused_for(&place.begin("other"), &place, id);
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// Damages the last record but one of the log in a directory.
fn damage(dir: &Path) {
    let mut places = Vec::new();
    walk(dir, &mut |frame| {
        if !frame.record.kind.is_envelope() {
            places.push((frame.segment.to_owned(), frame.offset + frame.bytes - 1));
        }
        Ok(())
    })
    .unwrap();
    let (segment, at) = &places[places.len() - 2];
    // In place: a process that has mapped the file must not find it shorter.
    let file = fs::OpenOptions::new().read(true).write(true).open(segment).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, *at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], *at).unwrap();
    assert!(matches!(LogReader::open(dir), Err(Error::Corrupt(_))));
}

#[test]
fn a_session_whose_log_cannot_be_read_is_in_the_way_of_all_but_its_salvage() {
    let place = Place::new();
    let other = place.begin("other");
    let id = place.killed("one");
    let dir = store(place.path(), "one").session_dir(id);
    damage(&dir);
    let refused = scribble(&other, "lost", Then::Succeed).unwrap_err();
    let told = refused.to_string();
    let Error::ResourceMaybeDirty { workspace, session, session_dir, cause } = refused else {
        panic!("{told}")
    };
    assert_eq!(workspace, fs::canonicalize(place.root()).unwrap());
    assert_eq!((session, session_dir), (id, fs::canonicalize(&dir).unwrap()));
    assert!(matches!(&*cause, Error::Corrupt(_)), "{cause}");

    let salvaged = store(place.path(), "other").salvage(&dir, SessionOptions::default()).unwrap();
    assert_eq!(salvaged.open.len(), 1);
    let heir = place.open("other", salvaged.session);
    recover(&heir);
    assert_eq!(place.page(), "before");
    goes_on(&other, &place);
}

#[test]
fn a_mark_that_cannot_be_read_is_named_with_what_to_do() {
    let place = Place::new();
    let other = place.begin("other");
    goes_on(&other, &place);
    let mark = place.mark().join(" ");
    let later = mark.replacen('1', "2", 1);
    for unreadable in ["", "what is this", &later, &mark[..mark.find('/').unwrap()], &"1 ".repeat(800)] {
        place.set_mark(unreadable);
        let refused = scribble(&other, "lost", Then::Succeed).unwrap_err();
        let told = refused.to_string();
        assert!(matches!(refused, Error::Filesystem(foldlog::filesystem::Error::Path { .. })), "{told}");
        assert!(
            told.contains(place.root().to_str().unwrap()) && told.contains("remove the attribute"),
            "{told}"
        );
    }
    removexattr(place.root(), MARK).unwrap();
    goes_on(&other, &place);
}

/// A tool can write any mark, and be killed then. Its own session's recovery was refused because of
/// an unrelated session, and the error did not name the attribute to remove.
#[test]
fn a_forged_mark_is_named_and_a_person_removes_it() {
    let elsewhere = Place::new();
    elsewhere.killed("one");
    let damaged = Place::new();
    let id = damaged.killed("one");
    damage(&store(damaged.path(), "one").session_dir(id));
    for forged in ["open", "damaged", "nonsense"] {
        let place = Place::new();
        let id = place.killed("one");
        let own = place.mark();
        let mut words = if forged == "damaged" { damaged.mark() } else { elsewhere.mark() };
        words[5..7].clone_from_slice(&own[5..7]);
        let mark = if forged == "nonsense" { "nonsense".to_owned() } else { words.join(" ") };
        place.set_mark(&mark);
        let one = place.open("one", id);
        let refused = one.recover(&ExecuteOptions::default()).unwrap_err();
        let told = refused.to_string();
        match forged {
            "open" => assert!(matches!(refused, Error::ResourceDirty { .. }), "{told}"),
            "damaged" => assert!(matches!(refused, Error::ResourceMaybeDirty { .. }), "{told}"),
            _ => assert!(
                matches!(refused, Error::Filesystem(foldlog::filesystem::Error::Path { .. })),
                "{told}"
            ),
        }
        assert!(told.contains(MARK) && told.contains("remove"), "{told}");
        assert_eq!((place.page().as_str(), one.state().session().calls().is_interrupted()), ("half", true));
        let soon = Instant::now() + Duration::from_secs(10);
        assert_eq!(workspace(place.path()).remove_mark(soon).unwrap(), Some(mark));
        assert_eq!(workspace(place.path()).remove_mark(soon).unwrap(), None);
        recover(&one);
        assert_eq!(place.page(), "before");
        goes_on(&one, &place);
    }
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_scribbles() {
    let Some(argument) = child::argument() else { return };
    let [durability, id, directory] = argument.splitn(3, ' ').collect::<Vec<_>>()[..] else {
        panic!("{argument}")
    };
    let durability = if durability == "boundary" { Durability::Boundary } else { Durability::Process };
    let store = store(Path::new(directory), "one");
    let session = store.open_session_at(id.parse().unwrap(), &types(), durability).unwrap();
    let runner = run_of(session, Path::new(directory), None);
    for text in ["first", "second", "third"] {
        assert!(scribble(&runner, text, Then::Succeed).unwrap().success);
    }
}

/// Runs that child under a tracer, and returns whether it passed.
fn scribbles_under(place: &Place, durability: &str, id: Uuid, tracing: &[&str]) -> bool {
    let argument = format!("{durability} {id} {}", place.path().display());
    child::start_traced(tracing, "tools::half_done::part_of_a_child_that_scribbles", &argument).passed()
}

/// If a power cut keeps the start record, it must keep the mark too.
#[test]
fn a_workspace_is_synced_where_it_passes_from_one_session_to_another_and_at_no_other_call() {
    if !child::is_traced_here() {
        return;
    }
    let place = Place::new();
    let (one, other) = (place.begin("one"), place.begin("other"));
    let id = one.state().session().id();
    drop(one);
    let traced = place.path().join("traced");
    let root = format!("<{}>", fs::canonicalize(place.root()).unwrap().display());
    let syncs = |durability: &str| {
        let options = ["-y", "-o", traced.to_str().unwrap(), "-e", "trace=fsync"];
        assert!(scribbles_under(&place, durability, id, &options));
        let traced = fs::read_to_string(&traced).unwrap();
        traced.lines().filter(|line| line.contains(&root)).count()
    };
    assert_eq!((syncs("process"), place.mark()[2].as_str()), (0, "fresh"));
    assert_eq!((syncs("boundary"), place.mark()[2].as_str()), (1, "durable"));
    assert_eq!((syncs("boundary"), syncs("process")), (0, 0));
    goes_on(&other, &place);
    assert_eq!(syncs("boundary"), 1);
}

#[test]
fn a_directory_that_takes_no_mark_is_worked_on_without_one() {
    if !child::is_traced_here() {
        return;
    }
    let place = Place::new();
    let one = place.begin("one");
    let id = one.state().session().id();
    drop(one);
    for (call, error) in [
        ("fgetxattr", "EOPNOTSUPP"),
        ("fsetxattr", "EOPNOTSUPP"),
        ("fsetxattr", "EROFS"),
        ("fsetxattr", "EACCES"),
    ] {
        let (trace, inject) = (format!("trace={call}"), format!("inject={call}:error={error}"));
        let options = ["-o", "/dev/null", "-e", &trace, "-e", &inject];
        assert!(scribbles_under(&place, "boundary", id, &options), "{call} {error}");
        assert!(removexattr(place.root(), MARK).is_err(), "{call} {error}");
    }
    // Any other error fails the call.
    let options = ["-o", "/dev/null", "-e", "trace=fsetxattr", "-e", "inject=fsetxattr:error=EIO"];
    assert!(!scribbles_under(&place, "boundary", id, &options));
}
