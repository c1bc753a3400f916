//! Kills the program, its host, or both at a moment of a run. A host in another process completes
//! the run.
//!
//! A moment is a record of the log: the kill comes when the record is written and before anything
//! follows from it. The host is this test binary, which runs the ignored test below. The model is a
//! script that looks at the results in its request, and calls a tool until it has the result. So a
//! result that a resume lost shows up as a call that runs twice.
//!
//! `FOLDLOG_CLAUDE_MOMENTS=n` tries `n` of the 20 moments for each kind of kill, by default 2.
//! `FOLDLOG_CLAUDE_KILL="Host 29"` tries one alone, in the form that a failure prints, and keeps
//! its directory.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foldlog::inspect::LogReader;
use foldlog::tools::{Tool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog::{Idempotency, SequenceNumber, SessionTypes, Store};
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::{Deadline, EvaluateOptions, MarkdownSection, Prompt, UserMessage};
use foldlog_claude::{ClaudeAgentSDKAdapter, RunOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::{Answers, Api, call, text};
use crate::native;
use crate::world::{World, cli, command, config, resuming};

/// Names the variable with a host's task, as JSON.
const HOST: &str = "FOLDLOG_TEST_HOST";

const MOMENTS: u64 = 20;

/// Longest duration of a run.
const LONG: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Killed {
    Program,
    Host,
    Both,
}

/// Describes a host's task.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) directory: PathBuf,
    pub(crate) cli: PathBuf,
    pub(crate) url: String,
    /// Tools of the program's own that may run.
    pub(crate) tools: Vec<String>,
    pub(crate) kill: Option<(Killed, u64)>,
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Noting {
    text: String,
}

/// Appends a line to a file outside of the workspace each time that it runs.
struct Note(PathBuf);

impl Tool for Note {
    const NAME: &'static str = "note";
    const DESCRIPTION: &'static str = "Notes a text.";
    type Parameters = Noting;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, noting: Noting, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let mut file = fs::File::options().create(true).append(true).open(&self.0).unwrap();
        writeln!(file, "{}", noting.text).unwrap();
        Ok(ToolResult::ok(format!("noted {}", noting.text), ()))
    }
}

/// Returns the processes with the API's address in their environment: the program, and its
/// children.
fn given(url: &str) -> Vec<(i32, Vec<u8>)> {
    let variable = format!("ANTHROPIC_BASE_URL={url}");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let found = processes.filter_map(|process| {
        let id: i32 = process.file_name().to_str()?.parse().ok()?;
        let environment = fs::read(process.path().join("environ")).ok()?;
        let is_given = environment.split(|byte| *byte == 0).any(|one| one == variable.as_bytes());
        is_given.then(|| Some((id, fs::read(process.path().join("cmdline")).ok()?))).flatten()
    });
    found.collect()
}

fn kill_program(url: &str, cli: &Path) {
    let cli = cli.as_os_str().as_bytes();
    for (id, command) in given(url) {
        if command.split(|byte| *byte == 0).any(|word| word == cli) {
            // It may have ended meanwhile.
            let _ = kill_process(Pid::from_raw(id).unwrap(), Signal::KILL);
        }
    }
}

#[test]
#[ignore = "a part of other tests, which run it in a process of its own"]
fn part_that_is_the_host() {
    let Ok(task) = std::env::var(HOST) else { return };
    let Task { directory, cli, url, tools, kill } = serde_json::from_str(&task).unwrap();
    let store = Store::open(directory.join("store")).unwrap();
    let types = SessionTypes::builder().build().unwrap();
    let session = match store.session_ids().unwrap().first() {
        Some(id) => store.open_session(*id, &types).unwrap(),
        None => store.create(&types).unwrap(),
    };
    if let Some((who, at)) = kill {
        let (url, cli) = (url.clone(), cli.clone());
        session.log().subscribe(move |record| {
            if record.sequence() == SequenceNumber::from(at) {
                if who != Killed::Host {
                    kill_program(&url, &cli);
                }
                if who != Killed::Program {
                    kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
                }
            }
        });
    }
    let (state, _) = World::at(&directory, session);
    let (program, leading) = command(&cli);
    let adapter = ClaudeAgentSDKAdapter::new()
        .with_program(program, leading)
        .with_client_config(config(&directory.join("workspace"), &url))
        .with_options(RunOptions {
            roll_back_failed: true,
            ..native(&tools.iter().map(String::as_str).collect::<Vec<_>>())
        })
        .with_state_options(resuming());
    let prompt = Prompt::text("tests", "killed")
        .with_section(MarkdownSection::new("task", "Work."))
        .with_tools(ToolRegistry::new().with(Note(directory.join("noted"))));
    adapter.recover(&prompt, &state).unwrap();
    let options = EvaluateOptions {
        evaluation_id: Some("run".to_owned()),
        messages: vec![UserMessage { id: "1".to_owned(), text: "Begin.".to_owned() }],
        deadline: Deadline::after(LONG),
        ..EvaluateOptions::default()
    };
    match adapter.evaluate(&prompt, &state, options) {
        Ok(response) => println!("\n@done {}", response.text),
        Err(error) => println!("\n@failed {error}"),
    }
}

/// Returns the tools that the model calls, each until a result contains the marker.
fn steps(directory: &Path) -> Vec<(&'static str, &'static str, Value)> {
    let bash = |command: &str| json!({"command": command, "description": "d"});
    let page = directory.join("workspace/marker-page");
    vec![
        ("noted one", "mcp__wink__note", json!({"text": "one"})),
        ("marker-page", "Write", json!({"file_path": page, "content": "one"})),
        ("marker-fails", "Bash", bash("echo two > marker-page; echo marker-fails; exit 3")),
        ("marker-log", "Bash", bash("echo line >> log; echo line >> ../logged; echo marker-log")),
    ]
}

/// Returns the texts of the results of calls that were not interrupted. A request contains them as
/// blocks, or as the conversation in the prompt of a fresh session.
fn shown(request: &Value) -> Vec<String> {
    let messages = request["messages"].as_array().unwrap();
    let mut shown = Vec::new();
    for message in messages {
        let blocks = message["content"]
            .as_array()
            .cloned()
            .unwrap_or_else(|| vec![json!({"text": message["content"]})]);
        for block in blocks {
            match block["type"].as_str() {
                Some("tool_result") => shown.push(block["content"].to_string()),
                Some("tool_use") => {}
                _ => {
                    let lines = block["text"].as_str().unwrap_or_default().lines();
                    shown.extend(lines.filter(|line| line.starts_with("result of")).map(str::to_owned));
                }
            }
        }
    }
    // The text of an interrupted call names the restored files, and so contains the marker.
    shown.retain(|text| !text.contains("The call was interrupted"));
    shown
}

/// Starts a model that calls each tool until it has the result.
fn model(directory: &Path) -> Api {
    let (steps, calls) = (steps(directory), AtomicUsize::new(0));
    Api::start(move |request, _| {
        let shown = shown(request);
        let missing = steps
            .iter()
            .enumerate()
            .find(|(_, (marker, ..))| !shown.iter().any(|text| text.contains(marker)));
        match missing {
            Some((place, (_, tool, input))) => {
                let number = calls.fetch_add(1, Ordering::SeqCst);
                Answers::With(vec![call(&format!("toolu_{place}_{number}"), tool, input)])
            }
            None => Answers::With(vec![text("done")]),
        }
    })
}

/// Runs a host to its end. Returns its status and its output.
pub(crate) fn host(task: &Task) -> (ExitStatus, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::part_that_is_the_host", "--ignored", "--nocapture"])
        .env(HOST, serde_json::to_string(task).unwrap())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let said = said.lines().find_map(|line| line.strip_prefix('@')).unwrap_or_default().to_owned();
    (output.status, said)
}

/// Returns for each step the number of its committed calls, and of all its calls.
fn calls(directory: &Path) -> BTreeMap<usize, (usize, usize)> {
    let mut calls = BTreeMap::new();
    let session = fs::read_dir(directory.join("store/sessions")).unwrap().next().unwrap().unwrap().path();
    for entry in LogReader::open(&session).unwrap().ledger().unwrap() {
        let id = entry.call_id.unwrap().to_string();
        let step: usize = id.split('_').nth(1).unwrap().parse().unwrap();
        let (committed, all) = calls.entry(step).or_insert((0, 0));
        *committed += usize::from(entry.outcome.name() == "committed");
        *all += usize::try_from(entry.runs).unwrap();
    }
    calls
}

pub(crate) fn lines(file: &Path) -> usize {
    fs::read_to_string(file).unwrap_or_default().lines().count()
}

/// Runs a host that will be killed, and waits until its program has ended. Returns a description of
/// the result.
pub(crate) fn killed_host(task: &Task) -> String {
    let (status, said) = host(task);
    let told = format!("{:?}: {status}, {said}", task.kill);
    match task.kill {
        Some((Killed::Program, _)) => assert!(status.success() && !said.is_empty(), "{told}"),
        _ => assert!(status.signal() == Some(9) || said == "done done", "{told}"),
    }
    let until = Instant::now() + Duration::from_secs(10);
    while !given(&task.url).is_empty() {
        assert!(Instant::now() < until, "{told}: the program outlives its host: {:?}", given(&task.url));
        std::thread::sleep(Duration::from_millis(5));
    }
    told
}

/// Kills `who` when record `at` is written, and has another host complete the run.
fn kill_at(who: Killed, at: u64) {
    let Some(cli) = cli() else { return };
    let is_alone = std::env::var_os("FOLDLOG_CLAUDE_KILL").is_some();
    let directory = tempfile::Builder::new().disable_cleanup(is_alone).tempdir().unwrap();
    let path = directory.path();
    if is_alone {
        println!("{} is kept", path.display());
    }
    let api = model(path);
    let tools = ["Write", "Bash"].map(str::to_owned).to_vec();
    let task = |kill| Task {
        directory: path.to_owned(),
        cli: cli.clone(),
        url: api.url(),
        tools: tools.clone(),
        kill,
    };
    let told = killed_host(&task(Some((who, at))));
    let before = calls(path);
    let (status, said) = host(&task(None));
    assert!(status.success() && said == "done done", "{told}; then {status}, {said}");
    let after = calls(path);
    for (step, (committed, _)) in before {
        assert!(after[&step].0 >= committed, "{told}: a call that committed is undone: {after:?}");
    }
    let committed: Vec<usize> = after.values().map(|(committed, _)| *committed).collect();
    assert_eq!(committed, [1, 1, 0, 1], "{told}: {after:?}");
    let workspace = path.join("workspace");
    assert_eq!(fs::read_to_string(workspace.join("marker-page")).unwrap(), "one", "{told}");
    assert_eq!(fs::read_to_string(workspace.join("log")).unwrap(), "line\n", "{told}");
    assert_eq!(fs::read_dir(&workspace).unwrap().count(), 2, "{told}");
    // Each run of a tool leaves a line outside of the workspace. There are no more lines than calls
    // in the log.
    for (file, step) in [("noted", 0), ("logged", 3)] {
        let ran = lines(&path.join(file));
        assert!((1..=after[&step].1).contains(&ran), "{told}: {file} has {ran} lines: {after:?}");
    }
    assert!(given(&api.url()).is_empty(), "{told}: {:?}", given(&api.url()));
}

/// Describes the moments of a kind of run.
pub(crate) struct Moments<'a> {
    /// First record at which a process is killed.
    pub(crate) first: u64,
    /// Number of records from one moment to the next.
    pub(crate) apart: u64,
    /// Numbers of sub-agents, each of which is tried at each moment; `None` for a run without any.
    pub(crate) sub_agents: &'a [Option<usize>],
}

impl Moments<'_> {
    /// Kills `who` at some of the moments, starting with number `begin`, or at the one in
    /// `FOLDLOG_CLAUDE_KILL`. `kill` takes a record and a number of sub-agents.
    pub(crate) fn kill(&self, who: Killed, begin: u64, kill: impl Fn(u64, Option<usize>)) {
        if let Ok(one) = std::env::var("FOLDLOG_CLAUDE_KILL") {
            let words: Vec<&str> = one.split_whitespace().collect();
            let count = words.get(2).map(|count| count.parse().unwrap());
            if words[0] == format!("{who:?}") && self.sub_agents.contains(&count) {
                kill(words[1].parse().unwrap(), count);
            }
            return;
        }
        let wanted = std::env::var("FOLDLOG_CLAUDE_MOMENTS").ok().and_then(|number| number.parse().ok());
        let moments: u64 = wanted.unwrap_or(2).clamp(1, MOMENTS);
        for number in 0..moments {
            let moment = (begin + number * MOMENTS / moments) % MOMENTS;
            for count in self.sub_agents {
                kill(self.first + moment * self.apart, *count);
            }
        }
    }
}

fn kill_at_moments(who: Killed, begin: u64) {
    let moments = Moments { first: 5, apart: 3, sub_agents: &[None] };
    moments.kill(who, begin, |at, _| kill_at(who, at));
}

#[test]
fn a_killed_program_leaves_a_run_that_another_process_ends() {
    kill_at_moments(Killed::Program, 5);
}

#[test]
fn a_killed_host_leaves_a_run_that_another_process_ends() {
    kill_at_moments(Killed::Host, 8);
}

#[test]
fn a_killed_host_and_program_leave_a_run_that_another_process_ends() {
    kill_at_moments(Killed::Both, 2);
}
