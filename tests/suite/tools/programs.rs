//! Programs that tools start.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use foldlog::Cause;

use super::*;

#[derive(Deserialize, Serialize, JsonSchema)]
struct Script {
    script: String,
    /// Whether it runs beside the tool.
    beside: bool,
}

struct Shell {
    folder: PathBuf,
}

/// Runs one script after the other, and answers with what the last one printed.
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

/// What the last of the scripts prints.
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
        let command = context.command("/bin/sh").args(["-c", &script.script]).current_dir(&self.folder);
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

fn shell(run: &Run, folder: &Path) -> ToolRunner {
    ToolRunner::new(run.runner.state().clone(), ToolRegistry::new().with(Shell { folder: folder.to_owned() }))
}

fn script(script: &str, beside: bool) -> ToolCall {
    let script = Script { script: script.to_owned(), beside };
    ToolCall::new("shell", serde_json::to_string(&script).unwrap())
}

#[test]
fn what_a_program_prints_is_the_tools_answer() {
    let (run, folder) = (Run::new(), tempfile::tempdir().unwrap());
    let report = shell(&run, folder.path())
        .execute(&script("echo hello; echo to nobody >&2", false), &ExecuteOptions::default())
        .unwrap();
    assert_eq!((report.success, report.message.as_str()), (true, "hello\n"));
    let report =
        shell(&run, folder.path()).execute(&script("exit 3", false), &ExecuteOptions::default()).unwrap();
    assert!(!report.success);
}

#[test]
fn what_a_tool_starts_does_not_outlive_the_call() {
    let (run, folder) = (Run::new(), tempfile::tempdir().unwrap());
    // A child that would write for ever, its output held open, and a tool that does not wait for it.
    let forever = "( while :; do echo x >> tracks; done ) & echo $! > pid";
    for beside in [false, true] {
        let report =
            shell(&run, folder.path()).execute(&script(forever, beside), &ExecuteOptions::default()).unwrap();
        assert!(report.success, "{report:?}");
        // The call is over, so nothing is written any more: the file can be taken away and does not come back.
        let _ = std::fs::remove_file(folder.path().join("tracks"));
        std::fs::write(folder.path().join("probe"), "").unwrap();
        assert!(!folder.path().join("tracks").exists());
    }
}

#[test]
fn a_program_that_left_its_group_ends_with_the_call() {
    // It was waited for until it ended by itself, however long that took: the group's end was not its own.
    let (run, folder) = (Run::new(), tempfile::tempdir().unwrap());
    let since = Instant::now();
    // The script waits until it has left.
    let left = "echo $$ > pid; exec setsid sleep 60";
    let report = shell(&run, folder.path()).execute(&script(left, true), &ExecuteOptions::default()).unwrap();
    assert!(report.success, "{report:?}");
    let options = ExecuteOptions { deadline: Some(Duration::from_millis(300)) };
    let late = shell(&run, folder.path()).execute(&script(left, false), &options);
    assert!(matches!(late, Err(Error::DeadlineExceeded { operation: Some(_) })), "{late:?}");
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    assert!(!PathBuf::from(format!("/proc/{}", pid.trim())).exists(), "it is gone");
}

#[test]
fn a_call_that_another_thread_cancels_ends_with_its_program_and_is_taken_back() {
    // Only whoever had begun a call by hand could stop it: what `execute` ran went on to its end.
    let (run, folder) = (Run::new(), tempfile::tempdir().unwrap());
    let (runner, session, pid) = (shell(&run, folder.path()), run.session(), folder.path().join("pid"));
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
        let operation = session.open_operations()[0].operation;
        assert!(session.cancel(operation) && !session.cancel(operation + 1), "one runs, and no other");
        (operation, running.join().unwrap().unwrap())
    });
    assert_eq!((report.operation, report.success, report.cause), (operation, false, Some(Cause::Cancelled)));
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    let pid = std::fs::read_to_string(pid).unwrap();
    assert!(!PathBuf::from(format!("/proc/{}", pid.trim())).exists(), "it is gone");
    assert!(!session.cancel(operation), "it is over");
    assert!(run.write("paper", "next", Then::Succeed).unwrap().success);
}

/// The state of the process that the script's group is named by, as the system puts it: `Z` where it has ended.
const LEADER: &str = "group=$(cut -d' ' -f5 /proc/$$/stat); cut -d' ' -f3 /proc/$group/stat";

#[test]
fn a_script_that_signals_its_whole_group_does_not_leave_it_without_its_leader() {
    // The leader ended with the others, and no later program of the call would have ended with the process.
    for signal in ["HUP", "INT", "TERM"] {
        let all = format!("sleep 0.2; trap '' {signal}; kill -{signal} 0");
        assert_eq!(shells(&[&all, LEADER]), "S\n", "{signal}");
    }
}

#[test]
fn where_the_leader_was_killed_the_next_program_has_another() {
    let killed =
        format!("kill -KILL $(cut -d' ' -f5 /proc/$$/stat); until [ \"$({LEADER})\" = Z ]; do :; done");
    assert_eq!(shells(&[&killed, LEADER]), "S\n");
}

#[test]
fn a_program_that_takes_too_long_is_ended_with_the_calls_time() {
    let (run, folder) = (Run::new(), tempfile::tempdir().unwrap());
    let options = ExecuteOptions { deadline: Some(Duration::from_millis(50)) };
    let since = Instant::now();
    let late = shell(&run, folder.path()).execute(&script("while :; do :; done", false), &options);
    assert!(matches!(late, Err(Error::DeadlineExceeded { operation: Some(_) })), "{late:?}");
    assert!(since.elapsed() < Duration::from_secs(30), "it was ended");
    assert_eq!(run.invoked()[0].cause, Some(Cause::Deadline));
}

/// A tool whose process is killed while a program runs that it started; the handler is kept until the next process has
/// recovered.
struct Killed {
    disk: MemoryStorage,
    folder: PathBuf,
    killed: SyncSender<()>,
    recovered: Mutex<Receiver<()>>,
}

impl Tool for Killed {
    const NAME: &'static str = "killed";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let script = "echo $$ > pid.new; mv pid.new pid; exec sleep 600";
        context.command("/bin/sh").args(["-c", script]).current_dir(&self.folder).start()?;
        while !self.folder.join("pid").exists() {
            std::thread::yield_now();
        }
        self.disk.crash(CrashKind::Process);
        self.killed.send(()).unwrap();
        let _ = self.recovered.lock().unwrap().recv();
        Ok(ToolResult::ok("nobody hears this", ()))
    }
}

/// What still ran would have gone on in a workspace that was just restored.
#[test]
fn what_a_killed_process_left_running_is_ended_before_its_call_is_taken_back() {
    let (mut run, folder) = (Run::new(), tempfile::tempdir().unwrap());
    let ((killed, is_killed), (recovered, is_recovered)) = (sync_channel(1), sync_channel(1));
    let tool = Killed {
        disk: run.disk.clone(),
        folder: folder.path().to_owned(),
        killed,
        recovered: Mutex::new(is_recovered),
    };
    let old = ExecutionState::new(run.session().clone(), ResourceRegistry::default());
    let old = ToolRunner::new(old, ToolRegistry::new().with(tool));
    std::thread::scope(|scope| {
        // Let go of where an assertion fails, so that the handler ends.
        let recovered = recovered;
        scope.spawn(|| old.execute(&ToolCall::new("killed", "{}"), &ExecuteOptions::default()).unwrap_err());
        is_killed.recv().unwrap();
        run.reopen(Idempotency::Manual);
        let state = ExecutionState::new(run.session().clone(), ResourceRegistry::default());
        let next = ToolRunner::new(state, ToolRegistry::new());
        assert_eq!(next.recover(&ExecuteOptions::default()).unwrap().len(), 1);
        let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        // Nobody but the handler's process can take it off the list.
        let state = stat.rsplit(") ").next().unwrap_or_default();
        assert!(state.is_empty() || state.starts_with(['Z', 'X']), "it still runs: {stat}");
        recovered.send(()).unwrap();
    });
}
