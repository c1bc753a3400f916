//! Hosts of the program that are killed at any moment: the next process recovers the session, and
//! the evaluation continues until it is complete.
//!
//! A seed determines the model's output: texts, calls of the host's tools, which record outside of
//! any session that they ran, and calls of the program's own tools, which write files. After each
//! life:
//!
//! 1. no answer that the log contained was requested again;
//! 2. no closed call ran again, whether committed or failed.
//!
//! At the end, the workspace and STATE contain the effects of the committed calls, and the
//! conversation is valid for a provider.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foldlog::conversation::{Conversation, EntryContent, ToolCallRecord};
use foldlog::filesystem::Filesystem;
use foldlog::inspect::LogReader;
use foldlog::tools::{Tool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog::{Generator, Idempotency, Outcome, SequenceNumber, Session, Store};
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::pairing::{MessageFormat, validate};
use foldlog_agent::{MarkdownSection, Prompt};
use foldlog_test_support::child;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::world::{EVALUATION, Line, Page, World, adapter_of, asking, native, state_of, types};

/// The task of one process.
#[derive(Clone, Serialize, Deserialize)]
struct Life {
    store: PathBuf,
    session: Uuid,
    script: PathBuf,
    workspace: PathBuf,
    outside: PathBuf,
}

/// Adds a line to STATE and to the file `page`, and records outside that it ran. Then it fails for
/// texts that start with `break`.
struct Note(PathBuf);

impl Tool for Note {
    const NAME: &'static str = "note";
    type Parameters = Line;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, line: Line, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let mut outside = OpenOptions::new().create(true).append(true).open(&self.0)?;
        // A single write, so that a kill leaves all of it or nothing.
        outside.write_all(format!("{}\n", line.text).as_bytes())?;
        let files = context.resources().get::<dyn Filesystem>().ok_or(ToolError::failed("no workspace"))?;
        let before = if files.exists("page")? { files.read("page")? } else { Vec::new() };
        files.write("page", &[&before, line.text.as_bytes(), b"\n"].concat())?;
        let fails = line.text.starts_with("break");
        context.session().dispatch(line)?;
        if fails { Err(ToolError::failed("it broke")) } else { Ok(ToolResult::ok("noted", ())) }
    }
}

fn prompt(life: &Life) -> Prompt {
    Prompt::text("tests", "killed")
        .with_section(MarkdownSection::new("task", "Write the page."))
        .with_tools(ToolRegistry::new().with(Note(life.outside.clone())))
}

/// Opens the session, recovers it, evaluates, and reports each record.
#[test]
#[ignore = "a part of the test below"]
fn part_of_a_run() {
    let Some(argument) = child::argument() else { return };
    let life: Life = serde_json::from_str(&argument).unwrap();
    let session = open(&life);
    let _ = session.log().subscribe(|record| child::tell("told", record.sequence()));
    let state = state_of(session.clone(), &life.workspace);
    let adapter = adapter_of(&life.script, &life.workspace).with_options(native(&["Write"]));
    adapter.recover(&prompt(&life), &state).unwrap();
    adapter.evaluate(&prompt(&life), &state, asking("Write the page.")).unwrap();
    drop(state);
    session.close().unwrap();
    child::tell("done", "");
}

/// Opens the session. If a host was killed while it started a program, its child holds the lock
/// until it has become the program.
fn open(life: &Life) -> Session {
    let (store, began) = (Store::open(&life.store).unwrap(), Instant::now());
    loop {
        match store.open_session(life.session, &types()) {
            Err(foldlog::Error::Locked { .. }) if began.elapsed() < Duration::from_secs(20) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            session => return session.unwrap(),
        }
    }
}

/// Generates the model's output.
fn answers(draw: &mut Generator) -> Value {
    let number = 3 + draw.next_below(4);
    let mut is_mirrored = {
        let mut draw = Generator::from_seed(draw.next_below(1 << 30));
        move || draw.next_below(2) == 0
    };
    let answers: Vec<Value> = (0..number)
        .map(|answer| {
            let calls: Vec<Value> = (0..1 + draw.next_below(2))
                .map(|call| {
                    let name = format!("{answer}.{call}");
                    let mut step = match draw.next_below(5) {
                        0 | 1 => json!({"tool": "note", "input": {"text": format!("line {name}")}}),
                        2 => json!({"tool": "note", "input": {"text": format!("break {name}")}}),
                        kind => {
                            let (file, text) =
                                (format!("file {}", draw.next_below(3)), format!("text {name}"));
                            let input = json!({"file": file, "text": text});
                            let step = json!({"native": "Write", "input": input, "write": {file: text}});
                            if kind == 3 { step } else { with(step, "fails", json!("the disk is full")) }
                        }
                    };
                    if is_mirrored() {
                        step = with(step, "mirror", json!(true));
                    }
                    step
                })
                .collect();
            json!({"text": format!("answer {answer}"), "calls": calls, "mirror": is_mirrored()})
        })
        .chain([json!({"text": "It is written."})])
        .collect();
    json!(answers)
}

fn with(mut step: Value, name: &str, value: Value) -> Value {
    step[name] = value;
    step
}

/// Reads the conversation without opening the session.
fn read(dir: &Path) -> Option<Conversation> {
    let reader = LogReader::open(dir).unwrap();
    reader.conversation_at(EVALUATION, reader.records_len() - 1).unwrap()
}

/// Returns the closed calls with their outcomes, in the order of their ends.
fn closed(conversation: &Conversation) -> Vec<(ToolCallRecord, Outcome)> {
    let mut calls: BTreeMap<SequenceNumber, Vec<ToolCallRecord>> = BTreeMap::new();
    let mut closed = Vec::new();
    for entry in conversation.entries() {
        match &entry.content {
            EntryContent::Answer { message, .. } => {
                calls.insert(entry.sequence, message.tool_calls.clone());
            }
            EntryContent::CallEnded { origin, outcome, .. } if *outcome != Outcome::Interrupted => {
                closed.push((calls[&origin.answer][origin.ordinal as usize].clone(), *outcome));
            }
            _ => {}
        }
    }
    closed
}

fn argument(call: &ToolCallRecord, name: &str) -> String {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
    arguments[name].as_str().unwrap().to_owned()
}

/// Returns the numbers of the answers that the log contains at least in part.
fn recorded(conversation: &Conversation) -> BTreeSet<usize> {
    let number = |content: &EntryContent| match content {
        EntryContent::Answer { request_id: Some(id), .. } => id.strip_prefix("msg_")?.parse().ok(),
        _ => None,
    };
    conversation.entries().iter().filter_map(|entry| number(&entry.content)).collect()
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Runs one process, and kills it a moment after a number of records, or lets it end. Returns
/// whether it finished.
fn live(world: &World, life: &Life, draw: &mut Generator, at: &str) -> bool {
    let asked_file = world.stand_in.path("script.asked");
    let before = read(&world.dir());
    let answers = before.as_ref().map(recorded).unwrap_or_default();
    let notes = before
        .as_ref()
        .map(closed)
        .unwrap_or_default()
        .into_iter()
        .filter(|(call, _)| call.name.ends_with("note"));
    let texts: Vec<String> = notes.map(|(call, _)| argument(&call, "text")).collect();
    let times = |text: &String| lines(&life.outside).iter().filter(|line| *line == text).count();
    let ran: Vec<usize> = texts.iter().map(times).collect();
    let asked = lines(&asked_file).len();

    let (_, module) = module_path!().split_once("::").unwrap();
    let mut process =
        child::start(&format!("{module}::part_of_a_run"), &serde_json::to_string(life).unwrap());
    let (behind, moment) = (draw.next_below(50), Duration::from_micros(draw.next_below(4_000)));
    let (mut heard, mut done) = (0, false);
    while heard < behind {
        let Some(line) = process.line() else { break };
        heard += u64::from(line.starts_with("@told "));
        done |= line.starts_with("@done");
    }
    let is_killed = heard >= behind;
    if is_killed {
        // Any moment is suitable.
        std::thread::sleep(moment);
        process.kill();
    }
    while let Some(line) = process.line() {
        done |= line.starts_with("@done");
    }
    assert!(done || is_killed, "{at}: the process failed");
    let again: Vec<_> = lines(&asked_file)
        .split_off(asked)
        .into_iter()
        .filter(|number| answers.contains(&number.parse().unwrap()))
        .collect();
    assert!(
        again.is_empty(),
        "{at}: the answers {again:?} were asked for again, and the log held {answers:?}"
    );
    for (text, ran) in texts.iter().zip(ran) {
        assert_eq!(times(text), ran, "{at}: `{text}` ran again");
    }
    done
}

/// Checks the results of a complete evaluation.
fn check_finished(world: &World, at: &str) {
    let conversation = read(&world.dir()).unwrap();
    validate(MessageFormat::Anthropic, &conversation.sent_messages())
        .unwrap_or_else(|broken| panic!("{at}: {broken:?}"));
    let committed = closed(&conversation).into_iter().filter(|(_, outcome)| *outcome == Outcome::Committed);
    let (mut page, mut files) = (Vec::new(), BTreeMap::new());
    for (call, _) in committed {
        match call.name.as_str() {
            "Write" => drop(files.insert(argument(&call, "file"), argument(&call, "text"))),
            _ => page.push(argument(&call, "text")),
        }
    }
    let state = world.run_unreplayed(|host| {
        host.session().view::<Page>().unwrap().iter().map(|line| line.text.clone()).collect::<Vec<_>>()
    });
    assert_eq!(state, page, "{at}: STATE is not what the calls made");
    if !page.is_empty() {
        files.insert("page".to_owned(), page.iter().map(|line| format!("{line}\n")).collect());
    }
    let found = fs::read_dir(world.workspace()).unwrap().flatten();
    let found: BTreeMap<String, String> = found
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap()))
        .collect();
    assert_eq!(found, files, "{at}: the workspace is not what the calls made");
}

/// Evaluates once, in as many lives as necessary. Returns the number of kills.
fn evaluate(seed: u64) -> u64 {
    let mut draw = Generator::from_seed(seed);
    let world = World::new(&json!([{"turn": true}, {"model": answers(&mut draw)}]));
    let life = Life {
        store: world.stand_in.path("store"),
        session: world.dir().file_name().unwrap().to_str().unwrap().parse().unwrap(),
        script: world.stand_in.path("script"),
        workspace: world.workspace(),
        outside: world.stand_in.path("outside"),
    };
    let (mut kills, at) = (0, format!("seed {seed}"));
    while !live(&world, &life, &mut draw, &format!("{at}, behind {kills} kills")) {
        kills += 1;
    }
    check_finished(&world, &at);
    kills
}

/// Processes are killed at any moment, and the next one continues.
#[test]
fn evaluations_whose_hosts_are_killed_are_finished_by_others() {
    let wanted = std::env::var("FOLDLOG_CLAUDE_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(8);
    let first = std::env::var("FOLDLOG_CLAUDE_FIRST").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let (mut kills, mut evaluations) = (0, 0);
    for seed in first.. {
        kills += evaluate(seed);
        evaluations += 1;
        if kills >= wanted {
            break;
        }
    }
    println!("{kills} kills in {evaluations} evaluations");
}
