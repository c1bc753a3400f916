//! Programs that tools start.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions};
use foldlog_test_support::child;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;

#[derive(Deserialize, Serialize, JsonSchema)]
struct Script {
    script: String,
    /// Whether it runs concurrently with the tool.
    beside: bool,
}

struct Shell {
    directory: PathBuf,
}

/// Runs scripts one after the other, and returns the output of the last one.
struct Shells;

#[derive(Deserialize, Serialize, JsonSchema)]
struct Scripts {
    scripts: Vec<String>,
}

impl Tool for Shells {
    const NAME: &'static str = "shells";
    type Parameters = Scripts;
    type Output = String;

    fn call(&self, params: Scripts, context: &ToolContext) -> Result<ToolResult<String>, ToolError> {
        let mut text = String::new();
        for script in &params.scripts {
            let output = context.command("/bin/sh").args(["-c", script]).output()?;
            text = String::from_utf8_lossy(&output.stdout).into_owned();
        }
        Ok(ToolResult::ok(text.clone(), text))
    }
}

fn shells(scripts: &[&str]) -> String {
    let run = Run::new();
    let runner = ToolRunner::new(run.runner.state().clone(), ToolRegistry::new().with(Shells));
    let scripts = scripts.iter().map(|script| (*script).to_owned()).collect();
    let call = ToolCall::new("shells", serde_json::to_string(&Scripts { scripts }).unwrap());
    runner.execute(&call, &ExecuteOptions::default()).unwrap().message
}

impl Tool for Shell {
    const NAME: &'static str = "shell";
    type Parameters = Script;
    type Output = String;

    fn call(&self, script: Script, context: &ToolContext) -> Result<ToolResult<String>, ToolError> {
        let command = context.command("/bin/sh").args(["-c", &script.script]).current_dir(&self.directory);
        if script.beside {
            command.start()?;
            return Ok(ToolResult::ok("started", String::new()));
        }
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            Ok(ToolResult::ok(text.clone(), text))
        } else {
            Ok(ToolResult::unsuccessful(text))
        }
    }
}

fn shell(run: &Run, directory: &Path) -> ToolRunner {
    ToolRunner::new(
        run.runner.state().clone(),
        ToolRegistry::new().with(Shell { directory: directory.to_owned() }),
    )
}

fn script(script: &str, beside: bool) -> ToolCall {
    let script = Script { script: script.to_owned(), beside };
    ToolCall::new("shell", serde_json::to_string(&script).unwrap())
}

#[test]
fn what_a_program_prints_is_the_tools_answer() {
    let (run, directory) = (Run::new(), tempfile::tempdir().unwrap());
    let report = shell(&run, directory.path())
        .execute(&script("echo hello; echo to nobody >&2", false), &ExecuteOptions::default())
        .unwrap();
    assert_eq!((report.success, report.message.as_str()), (true, "hello\n"));
    let report =
        shell(&run, directory.path()).execute(&script("exit 3", false), &ExecuteOptions::default()).unwrap();
    assert!(!report.success);
}

#[test]
fn what_a_tool_starts_does_not_outlive_the_call() {
    let (run, directory) = (Run::new(), tempfile::tempdir().unwrap());
    // A child that would write for ever and keeps its output open, and a tool that does not wait
    // for it.
    let forever = "( while :; do echo x >> tracks; done ) & echo $! > pid";
    for beside in [false, true] {
        let report = shell(&run, directory.path())
            .execute(&script(forever, beside), &ExecuteOptions::default())
            .unwrap();
        assert!(report.success, "{report:?}");
        // The call is over, so nothing is written any more: the file can be removed and does not
        // come back.
        let _ = std::fs::remove_file(directory.path().join("tracks"));
        std::fs::write(directory.path().join("probe"), "").unwrap();
        assert!(!directory.path().join("tracks").exists());
    }
}

#[test]
fn a_program_that_left_its_group_ends_with_the_call() {
    // The tool waited until it ended on its own, however long that took: the end of its group did
    // not end it.
    let (run, directory) = (Run::new(), tempfile::tempdir().unwrap());
    let since = Instant::now();
    // The script waits until it has left.
    let left = "echo $$ > pid; exec setsid sleep 60";
    let report =
        shell(&run, directory.path()).execute(&script(left, true), &ExecuteOptions::default()).unwrap();
    assert!(report.success, "{report:?}");
    let options = ExecuteOptions { deadline: Some(Duration::from_secs(2)), ..ExecuteOptions::default() };
    let late = shell(&run, directory.path()).execute(&script(left, false), &options);
    assert!(is_late(&late), "{late:?}");
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    let pid = std::fs::read_to_string(directory.path().join("pid")).unwrap();
    assert!(!PathBuf::from(format!("/proc/{}", pid.trim())).exists(), "it is gone");
}

#[test]
fn a_call_that_another_thread_cancels_ends_with_its_program_and_is_taken_back() {
    // Only a call begun by hand could be stopped: one in `execute` ran to its end.
    let (run, directory) = (Run::new(), tempfile::tempdir().unwrap());
    let (runner, session, pid) = (shell(&run, directory.path()), run.session(), directory.path().join("pid"));
    let since = Instant::now();
    let (operation, report) = thread::scope(|scope| {
        let running = scope.spawn(|| {
            runner.execute(
                &script("echo $$ > new; mv new pid; exec sleep 60", false),
                &ExecuteOptions::default(),
            )
        });
        while !pid.exists() && !running.is_finished() {
            thread::yield_now();
        }
        let operation = session.calls().open_operations()[0].operation;
        assert!(
            session.calls().cancel(operation) && !session.calls().cancel(operation.get() + 1),
            "one runs, and no other"
        );
        (operation, running.join().unwrap().unwrap())
    });
    assert_eq!((report.operation, report.success, report.cause), (operation, false, Some(Cause::Cancelled)));
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    let pid = std::fs::read_to_string(pid).unwrap();
    assert!(!PathBuf::from(format!("/proc/{}", pid.trim())).exists(), "it is gone");
    assert!(!session.calls().cancel(operation), "it is over");
    assert!(run.write("paper", "next", Then::Succeed).unwrap().success);
}

/// Prints the state of the script's group leader, as in `/proc`: `Z` if it has ended.
const LEADER: &str = "group=$(cut -d' ' -f5 /proc/$$/stat); cut -d' ' -f3 /proc/$group/stat";

/// Whether a script's last line shows that a process lives: it sleeps, or still runs if it has just
/// started.
fn says_that_it_lives(printed: &str) -> bool {
    ["S\n", "R\n"].contains(&printed)
}

#[test]
fn a_script_that_signals_its_whole_group_does_not_leave_it_without_its_leader() {
    // The leader ended with the others, and no later program of the call would have ended with the
    // process.
    for signal in ["HUP", "INT", "TERM"] {
        let all = format!("sleep 0.2; trap '' {signal}; kill -{signal} 0");
        let leader = shells(&[&all, LEADER]);
        assert!(says_that_it_lives(&leader), "{signal}: {leader}");
    }
}

#[test]
fn where_the_leader_was_killed_the_next_program_has_another() {
    let killed =
        format!("kill -KILL $(cut -d' ' -f5 /proc/$$/stat); until [ \"$({LEADER})\" = Z ]; do :; done");
    let leader = shells(&[&killed, LEADER]);
    assert!(says_that_it_lives(&leader), "{leader}");
}

#[test]
fn a_program_that_takes_too_long_is_ended_with_the_calls_time() {
    let (run, directory) = (Run::new(), tempfile::tempdir().unwrap());
    let options = ExecuteOptions { deadline: Some(Duration::from_secs(1)), ..ExecuteOptions::default() };
    let since = Instant::now();
    let late = shell(&run, directory.path()).execute(&script("while :; do :; done", false), &options);
    assert!(is_late(&late), "{late:?}");
    assert!(since.elapsed() < Duration::from_secs(30), "it was ended");
    assert_eq!(run.invoked()[0].cause, Some(Cause::Deadline));
}

/// A tool whose process is killed while its program runs; the handler is blocked until the next
/// process has recovered.
struct Killed {
    disk: MemoryStorage,
    directory: PathBuf,
    killed: SyncSender<()>,
    recovered: Mutex<Receiver<()>>,
}

impl Tool for Killed {
    const NAME: &'static str = "killed";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let script = "echo $$ > pid.new; mv pid.new pid; exec sleep 600";
        context.command("/bin/sh").args(["-c", script]).current_dir(&self.directory).start()?;
        while !self.directory.join("pid").exists() {
            std::thread::yield_now();
        }
        self.disk.crash(CrashKind::Process);
        self.killed.send(()).unwrap();
        let _ = self.recovered.lock().unwrap().recv();
        Ok(ToolResult::ok("nobody hears this", ()))
    }
}

/// A program that still ran would have continued in a workspace that was just restored.
#[test]
fn what_a_killed_process_left_running_is_ended_before_its_call_is_taken_back() {
    let (mut run, directory) = (Run::new(), tempfile::tempdir().unwrap());
    let ((killed, is_killed), (recovered, is_recovered)) = (sync_channel(1), sync_channel(1));
    let tool = Killed {
        disk: run.disk.clone(),
        directory: directory.path().to_owned(),
        killed,
        recovered: Mutex::new(is_recovered),
    };
    let old = ExecutionState::new(run.session().clone(), ResourceRegistry::default());
    let old = ToolRunner::new(old, ToolRegistry::new().with(tool));
    std::thread::scope(|scope| {
        // Dropped if an assertion fails, so that the handler ends.
        let recovered = recovered;
        scope.spawn(|| old.execute(&ToolCall::new("killed", "{}"), &ExecuteOptions::default()).unwrap_err());
        is_killed.recv().unwrap();
        run.reopen(Idempotency::Manual);
        let state = ExecutionState::new(run.session().clone(), ResourceRegistry::default());
        let next = ToolRunner::new(state, ToolRegistry::new());
        assert_eq!(next.recover(&ExecuteOptions::default()).unwrap().len(), 1);
        let pid = std::fs::read_to_string(directory.path().join("pid")).unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        // Only the handler's process can reap it.
        let state = stat.rsplit(") ").next().unwrap_or_default();
        assert!(state.is_empty() || state.starts_with(['Z', 'X']), "it still runs: {stat}");
        recovered.send(()).unwrap();
    });
}

/// Starts programs that leave their process group, lets each write into the workspace once, and
/// then fails or is killed with its process.
struct Leaves {
    is_killed: bool,
}

/// Scripts that leave the group of the shell that runs them. Each keeps writing into the workspace
/// until it is killed.
const LEAVING: [(&str, &str); 3] = [
    ("session", "setsid sh -c \"$WRITES\" session &"),
    ("daemon", "( ( setsid sh -c \"$WRITES\" daemon & ) & )"),
    // A background job of a shell without job control ignores signals of the terminal, and gets
    // another parent.
    ("orphan", "( sh -c 'setsid sh -c \"$WRITES\" orphan & exit' & )"),
];

/// Writes its process id to a file with its name, next to the workspace, after its first write.
const WRITES: &str = "echo x >> \"tracks of $0\"; echo $$ > \"../new $0\"; mv \"../new $0\" \"../pid of $0\"; \
                      while [ -e \"../pid of $0\" ]; do echo x >> \"tracks of $0\"; done";

impl Tool for Leaves {
    const NAME: &'static str = "leaves";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let files = context.resources().get::<HostFilesystem>().unwrap();
        for (name, script) in LEAVING {
            let shell = context.command("/bin/sh").args(["-c", script]).env("WRITES", WRITES);
            assert!(shell.current_dir(files.root()).status()?.success());
            let pid = pid_of(files.root(), name);
            while !pid.exists() {
                thread::yield_now();
            }
        }
        if self.is_killed {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        }
        Err(ToolError::failed("no"))
    }
}

fn pid_of(root: &Path, name: &str) -> PathBuf {
    root.with_file_name(format!("pid of {name}"))
}

/// Returns the runner of a session in a directory, whose workspace is next to its store.
fn leaving(session: Session, directory: &Path, is_killed: bool) -> ToolRunner {
    let (root, store) = (directory.join("workspace"), directory.join("snapshots"));
    let files = HostFilesystem::open(root, store, HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    ToolRunner::new(ExecutionState::new(session, resources), ToolRegistry::new().with(Leaves { is_killed }))
}

fn place() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("workspace")).unwrap();
    std::fs::write(directory.path().join("workspace/page"), "as it was").unwrap();
    directory
}

/// Kills the programs that a failed test left running.
struct Ended<'a>(&'a Path);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        for (name, _) in LEAVING {
            let _ = std::fs::remove_file(pid_of(self.0, name));
        }
    }
}

/// Checks that the programs are gone, and that the workspace is as before and stays so.
#[track_caller]
fn nothing_is_left(directory: &Path) {
    let root = directory.join("workspace");
    let _ended = Ended(&root);
    let names = || {
        let found = std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name());
        found.collect::<Vec<_>>()
    };
    assert_eq!(names(), ["page"]);
    for (name, _) in LEAVING {
        let pid = std::fs::read_to_string(pid_of(&root, name)).unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        let state = stat.rsplit(") ").next().unwrap_or_default();
        assert!(state.is_empty() || state.starts_with(['Z', 'X']), "{name} still runs: {stat}");
    }
    assert_eq!(names(), ["page"]);
}

/// Programs that had left their group, by `setsid` or as a daemon does, were not ended, and kept
/// writing into the workspace after its rollback.
#[test]
fn what_left_its_group_does_not_outlive_a_call_that_failed() {
    let place = place();
    let store = Store::open(place.path().join("store")).unwrap();
    let runner = leaving(store.create(&types()).unwrap(), place.path(), false);
    let report = runner.execute(&ToolCall::new("leaves", "{}"), &ExecuteOptions::default()).unwrap();
    assert_eq!((report.success, report.message.as_str()), (false, "no"));
    nothing_is_left(place.path());
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_whose_programs_left_their_group() {
    let Some(argument) = child::argument() else { return };
    let (id, directory) = argument.split_once(' ').unwrap();
    let store = Store::open(Path::new(directory).join("store")).unwrap();
    let session = store.open_session(id.parse().unwrap(), &types()).unwrap();
    let _ = leaving(session, Path::new(directory), true)
        .execute(&ToolCall::new("leaves", "{}"), &ExecuteOptions::default());
    unreachable!("it was killed");
}

/// The same after a kill of the process: the leader ended only its group, and the recovery looked
/// no further.
#[test]
fn what_left_its_group_is_ended_by_the_recovery_of_a_killed_process() {
    let place = place();
    let store = Store::open(place.path().join("store")).unwrap();
    let session = store.create(&types()).unwrap();
    let id = session.id();
    session.close().unwrap();
    let argument = format!("{id} {}", place.path().display());
    child::start("tools::programs::part_of_a_child_whose_programs_left_their_group", &argument).ended();
    let runner = leaving(store.open_session(id, &types()).unwrap(), place.path(), false);
    runner.recover(&ExecuteOptions::default()).unwrap();
    nothing_is_left(place.path());
}

/// Whether this process may create a control group below its own; if not, prints so.
fn groups_are_made_here() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounted = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/").map(str::to_owned));
    let made = mounted.zip(own).is_some_and(|(mounted, own)| {
        let root = Path::new(mounted.split(' ').nth(4).unwrap_or_default()).join(own);
        let probe = root.join(format!("foldlog-probe-{}", std::process::id()));
        let made = std::fs::create_dir(&probe).is_ok();
        let kills = probe.join("cgroup.kill").exists();
        let _ = std::fs::remove_dir(&probe);
        made && kills
    });
    if !made {
        foldlog_test_support::skipped("no control group can be made here");
    }
    made
}

/// The programs were identified only by the call's variable.
#[test]
fn what_cleared_its_environment_ends_with_the_calls_control_group() {
    if !groups_are_made_here() {
        return;
    }
    let (run, directory) = (Run::new(), tempfile::tempdir().unwrap());
    // The shell has joined the group once its own cgroup file names it.
    let left = "until grep -q foldlog- /proc/self/cgroup; do :; done; \
                env -i setsid sh -c 'echo $$ > pid.new; mv pid.new pid; exec sleep 600' & \
                until [ -e pid ]; do :; done; grep '^0::' /proc/self/cgroup";
    let report =
        shell(&run, directory.path()).execute(&script(left, false), &ExecuteOptions::default()).unwrap();
    assert!(report.success && report.message.contains("/foldlog-"), "{report:?}");
    let pid = std::fs::read_to_string(directory.path().join("pid")).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    assert!(state.is_empty() || state.starts_with(['Z', 'X']), "it still runs: {stat}");
    // The group itself is removed.
    let name = report.message.trim().rsplit('/').next().unwrap().to_owned();
    assert!(!std::fs::read_to_string("/proc/self/cgroup").unwrap().contains(&name));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounted = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap();
    let path = report.message.trim().trim_start_matches("0::/");
    assert!(!Path::new(mounted.split(' ').nth(4).unwrap()).join(path).exists());
}

/// A program can tell which calls started it, including those of processes around its own host.
#[test]
fn programs_bear_the_variable_of_their_call() {
    let printed = shells(&["echo $FOLDLOG_CALL", "echo $FOLDLOG_CALL"]);
    let marks: Vec<&str> = printed.trim().split(',').collect();
    let parts: Vec<&str> = marks.last().unwrap().split(':').collect();
    let [session, begin, drawn] = parts[..] else { panic!("{printed}") };
    assert!(
        Uuid::try_parse(session).is_ok() && begin.parse::<u64>().is_ok() && drawn.len() == 16,
        "{printed}"
    );
}

/// Runs a closure as a tool that starts programs.
pub(super) struct Runs<F>(pub(super) F);

impl<F: Fn(&ToolContext) -> Result<String, ToolError> + Send + Sync + 'static> Tool for Runs<F> {
    const NAME: &'static str = "runs";
    type Parameters = Nothing;
    type Output = String;

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<String>, ToolError> {
        let text = (self.0)(context)?;
        Ok(ToolResult::ok(text.clone(), text))
    }
}

/// Runs a closure as a tool over a workspace, and returns its report.
fn over_a_workspace(
    root: &Path,
    runs: impl Fn(&ToolContext) -> Result<String, ToolError> + Send + Sync + 'static,
) -> String {
    let (run, store) = (Run::new(), tempfile::tempdir().unwrap());
    let workspace = HostFilesystem::open(root, store.path(), HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().resource(Arc::new(workspace)).build().unwrap();
    let state = ExecutionState::builder(run.session().clone(), resources).inheriting(["PATH", "TZ"]).build();
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Runs(runs)));
    let report = runner.execute(&ToolCall::new("runs", "{}"), &ExecuteOptions::default()).unwrap();
    assert!(report.success, "{report:?}");
    report.message
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// A model's shell inherited the whole environment of its host, with all keys in it, and started in
/// the host's directory.
#[test]
fn a_program_begins_in_the_workspace_and_inherits_what_the_host_lets_through() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    assert!(std::env::vars_os().count() > 3, "there is something to be hidden");
    let said = over_a_workspace(&root, |context| {
        let command = context.command("env").env("OWN", "set by the tool");
        let names: Vec<String> = command.environment().map(|name| name.display().to_string()).collect();
        let printed = text(&command.output()?.stdout);
        let seen: Vec<&str> =
            printed.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
        let directory = text(&context.command("pwd").output()?.stdout);
        Ok(format!("{names:?} {seen:?} {directory}"))
    });
    let mut names: Vec<&str> = ["OWN", "PATH", "TZ"].into();
    names.retain(|name| *name == "OWN" || std::env::var_os(name).is_some());
    let (names, seen) = (format!("{names:?}"), said.split_once("] ").unwrap());
    assert_eq!(format!("{}]", seen.0), names);
    let (seen, at) = seen.1.split_once("] ").unwrap();
    let mut seen: Vec<&str> = seen.trim_start_matches('[').split(", ").collect();
    seen.retain(|name| *name != r#""FOLDLOG_CALL""#);
    seen.sort_unstable();
    assert_eq!(format!("[{}]", seen.join(", ")), names);
    assert_eq!(at.trim(), root.display().to_string());
}

#[test]
fn a_program_reads_what_it_is_given_and_no_more_of_its_output_is_kept_than_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let said = over_a_workspace(directory.path(), |context| {
        // More than any pipe's capacity, in both directions.
        let given = vec![b'x'; 1 << 20];
        let output = context.command("cat").stdin(given.clone()).output()?;
        assert!(output.stdout == given && output.left_out == 0);
        let output = context.command("cat").stdin(given).keeping_at_most(1_000).output()?;
        assert!(output.status.success(), "the program was let go on");
        assert_eq!((output.stdout.len(), output.left_out), (1_000, (1 << 20) - 1_000));
        // A program that ignores its input causes no error, and one without input reads nothing.
        assert!(context.command("true").stdin(vec![0; 1 << 20]).status()?.success());
        let nothing = context.command("cat").output()?;
        assert!(nothing.stdout.is_empty());
        let split = context.command("sh").args(["-c", "echo out; echo err >&2"]).output()?;
        Ok(format!("{}{}", text(&split.stdout), text(&split.stderr)))
    });
    assert_eq!(said, "out\nerr\n");
}

#[test]
fn a_tool_hears_what_its_program_prints_while_it_runs() {
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let said = over_a_workspace(directory.path(), move |context| {
        let script = "echo one; while [ ! -e go ]; do sleep 0.01; done; echo two >&2; exit 3";
        let mut heard = Vec::new();
        let status = context.command("sh").args(["-c", script]).stream(|stream, piece| {
            heard.push((stream, text(piece)));
            // The program continues only once its output was read.
            fs::write(&go, "").unwrap();
        })?;
        Ok(format!("{heard:?} {:?}", status.code()))
    });
    assert_eq!(said, r#"[(Stdout, "one\n"), (Stderr, "two\n")] Some(3)"#);
}

/// The record of a call's processes made two otherwise equal runs diverge.
#[test]
fn two_runs_that_start_the_same_programs_part_nowhere() {
    let read = || {
        let run = Run::new();
        let runner = ToolRunner::new(run.runner.state().clone(), ToolRegistry::new().with(Shells));
        let call = ToolCall::new("shells", r#"{"scripts": ["echo hello"]}"#);
        assert_eq!(runner.execute(&call, &ExecuteOptions::default()).unwrap().message, "hello\n");
        LogReader::open_on(Arc::new(run.disk.clone()), run.session().dir()).unwrap()
    };
    let (one, other) = (read(), read());
    let parting = one.find_divergence(&other).unwrap();
    assert!(parting.is_none(), "{parting:?}");
    assert_eq!(parting.alike, one.records_len());
}
