//! The end of the program: each way to stop it works.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldlog::process::{ProcessGroup, ProcessIdentity};
use foldlog_claude::{
    BridgedTool, Callbacks, Client, ClientOptions, ErrorKind, NoCallbacks, ToolCall, ToolReply,
};
use foldlog_test_support::child;
use serde_json::json;

use super::stand_in::{StandIn, late, rest, result_text, turn};

/// The limit of a wait for a process to end.
const LONG: Duration = Duration::from_secs(60);

/// A process that runs until this is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Sleeper {
        let mut command = Command::new("sleep");
        command.arg("600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Sleeper(command.spawn().unwrap())
    }

    fn identity(&self) -> ProcessIdentity {
        ProcessIdentity::from_pid(self.0.id()).unwrap()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a process has ended. It is no child of the test, so the test must poll.
fn is_gone(identity: &ProcessIdentity) -> bool {
    let until = Instant::now() + LONG;
    while identity.is_alive() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    !identity.is_alive()
}

/// Makes the shell ignore SIGTERM, which a program inherits.
fn ignoring_sigterm(stand_in: &StandIn) -> ClientOptions {
    let mut options = stand_in.options();
    let program = std::mem::replace(&mut options.program, "/bin/sh".into());
    let script = "trap '' TERM; exec \"$0\" \"$@\"";
    options.leading_arguments = vec!["-c".into(), script.into(), program.into()];
    options.stop_grace = Duration::from_millis(200);
    options
}

#[test]
fn a_program_whose_input_is_closed_ends_by_itself() {
    let stand_in = StandIn::new(&json!([{"turn": true}, {"result": "ok"}]));
    let client = stand_in.start().unwrap();
    turn(&client, "go");
    assert!(client.identity().is_alive());
    assert!(client.close().unwrap().success());
    assert!(!client.identity().is_alive());
    assert!(rest(&client).iter().all(|message| message.result().is_none()));
    assert_eq!(client.query("more").unwrap_err().kind(), ErrorKind::Closed);
    assert!(client.close().unwrap().success(), "closing twice does no harm");
}

#[test]
fn one_that_goes_on_gets_sigterm_and_one_that_ignores_it_is_killed() {
    use std::os::unix::process::ExitStatusExt;
    let stand_in = StandIn::new(&json!([{"turn": true}, {"hold": true}]));
    let heeding = ClientOptions { stop_grace: Duration::from_secs(3), ..stand_in.options() };
    for (options, signal) in [(heeding, 15), (ignoring_sigterm(&stand_in), 9)] {
        let client = Client::start(&options, Arc::new(NoCallbacks)).unwrap();
        client.query("go").unwrap();
        assert!(client.next_message(late()).unwrap().is_some());
        let exit = client.close().unwrap();
        assert_eq!((exit.code(), exit.signal()), (None, Some(signal)));
        assert!(!client.identity().is_alive());
        rest(&client);
    }
}

#[test]
fn dropping_a_client_kills_the_program_and_what_it_left_in_its_group() {
    let stand_in =
        StandIn::new(&json!([{"turn": true}, {"leave": ["sleep", "600"]}, {"result": "ok"}, {"hold": true}]));
    let client = stand_in.start().unwrap();
    turn(&client, "go");
    let identity = client.identity().clone();
    let left = children_of(identity.pid);
    assert_eq!(left.len(), 1);
    drop(client);
    assert!(!identity.is_alive() && is_gone(&left[0]));
}

fn children_of(parent: i32) -> Vec<ProcessIdentity> {
    let ids = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |id: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
        fields.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    ids.filter(is_child).filter_map(ProcessIdentity::from_pid).collect()
}

/// A process that the ended program had started holds the pipe, so the pipe stays open.
#[test]
fn a_program_that_has_ended_is_noticed_while_another_one_holds_its_output() {
    let stand_in = StandIn::new(&json!([{"turn": true}, {"leave": ["sleep", "600"]}, {"exit": 3}]));
    let client = stand_in.start().unwrap();
    client.query("go").unwrap();
    let error = std::iter::from_fn(|| Some(client.next_message(late()))).find_map(Result::err).unwrap();
    assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Exited, Some(3)));
}

struct Waiting(parking_lot::Mutex<std::sync::mpsc::Sender<&'static str>>);

impl Callbacks for Waiting {
    fn tools(&self) -> Vec<BridgedTool> {
        vec![BridgedTool::new("wink", "wait", "waits", json!({}))]
    }

    fn call_tool(&self, call: ToolCall) -> ToolReply {
        self.0.lock().send("begun").unwrap();
        while !call.cancel.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50));
        self.0.lock().send("ended").unwrap();
        ToolReply::text("too late")
    }
}

#[test]
fn closing_cancels_callbacks_and_returns_after_them() {
    let stand_in = StandIn::new(&json!([{"turn": true}, {"tool": "wait"}, {"result": "never"}]));
    let (sender, seen) = std::sync::mpsc::channel();
    let client = Arc::new(stand_in.start_with(Arc::new(Waiting(parking_lot::Mutex::new(sender)))));
    client.query("go").unwrap();
    let other = Arc::clone(&client);
    let reader = std::thread::spawn(move || while let Ok(Some(_)) = other.next_message(late()) {});
    assert_eq!(seen.recv_timeout(LONG).unwrap(), "begun");
    client.close().unwrap();
    assert_eq!(seen.try_recv().unwrap(), "ended");
    reader.join().unwrap();
}

#[test]
fn an_identity_names_one_process_and_no_other_of_the_same_number() {
    let sleeper = Sleeper::start();
    let identity = sleeper.identity();
    assert!(identity.is_alive());
    for other in [
        ProcessIdentity { start_time: identity.start_time + 1, ..identity.clone() },
        ProcessIdentity { boot: None, ..identity.clone() },
        ProcessIdentity { namespace: Some(3), ..identity.clone() },
        ProcessIdentity { pid: -1, ..identity.clone() },
    ] {
        assert!(!other.is_alive() && !other.terminate() && other.end(Duration::ZERO), "{other:?}");
    }
    assert!(identity.is_alive(), "nobody else was meant");
    let text = serde_json::to_string(&identity).unwrap();
    let read: ProcessIdentity = serde_json::from_str(&text).unwrap();
    assert_eq!(read, identity);
    assert!(read.end(Duration::from_secs(10)));
    assert!(!identity.is_alive());
}

/// Only the recorded identity remains of the host. With it, even a program that ignores SIGTERM is
/// ended.
#[test]
fn an_orphan_is_found_and_ended_by_its_identity() {
    let stand_in = StandIn::new(&json!([{"turn": true}, {"hold": true}]));
    let client = Client::start(&ignoring_sigterm(&stand_in), Arc::new(NoCallbacks)).unwrap();
    client.query("go").unwrap();
    client.next_message(late()).unwrap();
    assert!(client.identity().end(Duration::from_millis(100)));
    let error = std::iter::from_fn(|| Some(client.next_message(late()))).find_map(Result::err).unwrap();
    assert_eq!((error.kind(), error.signal()), (ErrorKind::Exited, Some(9)));
}

#[test]
fn a_group_dies_when_it_is_dropped() {
    let group = ProcessGroup::start().unwrap();
    let mut command = Command::new("sleep");
    command.arg("600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let sleeper = Sleeper(group.spawn(&mut command).unwrap());
    let identity = sleeper.identity();
    drop(group);
    assert!(!identity.is_alive());
}

/// The orphan would continue, and call the model again.
#[test]
fn a_program_dies_with_its_host_however_that_ends() {
    let stand_in = StandIn::new(&json!([{"turn": true}, {"result": "ok"}, {"hold": true}]));
    let script = stand_in.path("script");
    let mut host = child::start("claude::stopping::part_of_the_host", script.to_str().unwrap());
    let told = host.hear("program").unwrap();
    let identity: ProcessIdentity = serde_json::from_str(&told).unwrap();
    assert!(identity.is_alive());
    host.kill();
    assert!(is_gone(&identity));
}

#[test]
#[ignore = "a child's part"]
fn part_of_the_host() {
    let Some(script) = child::argument() else { return };
    let directory = std::path::Path::new(&script).parent().unwrap();
    let mut options = ClientOptions::new(env!("CARGO_BIN_EXE_claude-stand-in"), directory.join("work"));
    options.home = Some(directory.join("home"));
    options.variables.set("STAND_IN_SCRIPT", &script);
    let client = Client::start(&options, Arc::new(NoCallbacks)).unwrap();
    assert_eq!(result_text(&turn(&client, "go")), "ok");
    child::tell("program", serde_json::to_string(client.identity()).unwrap());
    // This waits until the parent kills this process.
    let _ = std::io::stdin().read(&mut [0]);
}
