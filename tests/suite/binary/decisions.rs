//! `foldlog settle` while another process has the session open: the decision is left for that
//! process.

use std::path::Path;
use std::time::Duration;

use foldlog::tools::{
    ExecuteOptions, Question, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    Durability, Error, ExecutionState, LeftFate, ResourceRegistry, SessionTypes, Settlement, Store,
    StoreOptions,
};
use foldlog_test_support::child;
use foldlog_tests::verbs::{Ran, foldlog};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The limit of a wait in these tests if a fault occurs.
const LONG: Duration = Duration::from_secs(120);

#[derive(Serialize, Deserialize, JsonSchema)]
struct Order {
    what: String,
}

struct Buys;

impl Tool for Buys {
    const NAME: &'static str = "buys";
    type Parameters = Order;
    type Output = ();

    fn call(&self, order: Order, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let Some(approval) = context.approval() else {
            return Err(ToolError::Ask(Question::new(format!("Buy {}?", order.what))));
        };
        child::tell("bought", format_args!("{} for {}", order.what, approval.by));
        Ok(ToolResult::ok("bought", ()))
    }
}

fn store(directory: &Path) -> Store {
    let options = StoreOptions { durability: Durability::Process, ..StoreOptions::default() };
    Store::open_with(directory, options).unwrap()
}

/// The host: asks, and then uses its open session as its argument demands.
#[test]
#[ignore = "a part of other tests, which run it in a process of its own"]
fn part_of_an_open_host() {
    let Some(argument) = child::argument() else { return };
    let (what, directory) = argument.split_once(' ').unwrap();
    let session = store(Path::new(directory)).create(&SessionTypes::builder().build().unwrap()).unwrap();
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Buys));
    let call = ToolCall::new("buys", r#"{"what":"a boat"}"#);
    let _ = runner.execute(&call, &ExecuteOptions::default()).unwrap_err();
    let asked = session.calls().pending_questions().unwrap().pop().unwrap();
    child::tell("asks", session.dir().display());
    let heard = || std::io::stdin().read_line(&mut String::new()).unwrap();
    match what {
        "waits" => {
            let wait = session.calls().wait_for_decision(&[asked.operation], LONG).unwrap();
            assert_eq!(wait.decided, [asked.operation]);
            runner.recover(&ExecuteOptions::default()).unwrap();
        }
        "works" => {
            heard();
            runner.recover(&ExecuteOptions::default()).unwrap();
        }
        _ => {
            heard();
            session.calls().settle(asked.operation, &Settlement::failed(), "bob", "no").unwrap();
            assert_eq!(session.calls().take_decisions().unwrap().refused.len(), 1);
        }
    }
    session.close().unwrap();
}

/// Starts a host, and returns it with the words of the command that `pending` lists for its
/// question.
fn host(what: &str, directory: &Path) -> (child::Started, Vec<String>) {
    let argument = format!("{what} {}", directory.display());
    let mut host = child::start("binary::decisions::part_of_an_open_host", &argument);
    let dir = host.hear("asks").expect("the host asks");
    let listed = foldlog(["pending".as_ref(), directory.as_os_str(), "--json".as_ref()]).stdout;
    let row: serde_json::Value = serde_json::from_str(listed.trim()).unwrap();
    let command = row["decide"][0]["command"].as_str().unwrap();
    assert!(command.contains(&dir) && command.contains(" approved "), "{command}");
    let words = command.replace("\"$USER\"", "Ada");
    (host, words.split(' ').skip(1).map(str::to_owned).collect())
}

fn run(words: &[String], more: &[&str]) -> Ran {
    foldlog(words.iter().map(String::as_str).chain(more.iter().copied()))
}

/// The command was refused as locked, and the host had to be stopped before any approval.
#[test]
fn a_host_that_waits_is_approved_from_another_process() {
    let directory = tempfile::tempdir().unwrap();
    let (mut host, words) = host("waits", directory.path());
    let ran = run(&words, &["--wait", "120", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let told: serde_json::Value = serde_json::from_str(ran.stdout.trim()).unwrap();
    assert!(told["sequence"].is_u64() && told.get("left").is_none(), "{told}");
    assert_eq!(host.hear("bought").as_deref(), Some("a boat for Ada"));
    assert!(host.passed());
    let ledger = run(&["ledger".to_owned(), words[1].clone()], &[]).stdout;
    assert!(ledger.contains("approved by Ada"), "{ledger}");
}

#[test]
fn a_host_that_works_takes_the_decision_later_and_the_command_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let (mut host, words) = host("works", directory.path());
    let ran = run(&words, &["--wait", "0"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let pid = format!("process {}", host.id());
    assert!(ran.stdout.contains("has not taken it yet") && ran.stdout.contains(&pid), "{}", ran.stdout);
    let listed = foldlog(["pending".as_ref(), directory.path().as_os_str()]).stdout;
    assert!(listed.contains("Buy a boat?"), "{listed}");
    host.go_on();
    assert_eq!(host.hear("bought").as_deref(), Some("a boat for Ada"));
    assert!(host.passed());
}

#[test]
fn a_decision_that_the_host_refuses_is_reported_with_its_reason() {
    let directory = tempfile::tempdir().unwrap();
    let (mut host, words) = host("refuses", directory.path());
    let elsewhere = store(directory.path());
    let id = elsewhere.session_ids().unwrap()[0];
    let approved = || {
        let reader = foldlog::inspect::LogReader::open(&words[1]).unwrap();
        let asked = reader.pending_questions(chrono::Utc::now()).unwrap().pop().unwrap();
        (asked.operation, Settlement::approved(asked.digest))
    };
    let (operation, approved) = approved();
    let left = elsewhere.leave_decision(id, operation, &approved, "Ada", "seen").unwrap();
    host.go_on();
    let fate = left.wait(LONG).unwrap();
    assert!(matches!(&fate, LeftFate::Refused(reason) if reason.contains("by bob")), "{fate:?}");
    assert!(host.passed());
    // Now the session is free: the command itself records a decision, or explains why not.
    let ran = run(&words, &[]);
    assert!(ran.code == 2 && ran.stderr.contains("has no open question"), "{}{}", ran.stdout, ran.stderr);
    assert!(matches!(
        elsewhere.settle(id, operation, &approved, "Ada", "seen"),
        Err(Error::AlreadySettled { .. })
    ));
}
