//! Sub-agents of the program: one, two and three in one answer, in the foreground and requested for
//! the background, with and without kills.
//!
//! The model is a script. It starts a sub-agent for each one with remaining work, and a sub-agent
//! calls `Bash` for each piece of its work until its request contains the output. So a result that
//! a resume lost shows up as a call that runs twice.
//!
//! `FOLDLOG_CLAUDE_MOMENTS=n` tries `n` of the 20 moments for each kind of kill, by default 2.
//! `FOLDLOG_CLAUDE_KILL="Host 29 2"` tries one alone, with two sub-agents, in the form that a
//! failure prints, and keeps its directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use foldlog::inspect::LogReader;
use foldlog::{Session, SessionTypes, Store};
use foldlog_agent::adapter_state::StatefulAdapter;
use serde_json::{Value, json};

use crate::api::{Answers, Api, call, text};
use crate::killed::{Killed, Moments, Task, host, killed_host, lines};
use crate::native;
use crate::world::{World, cli};

/// Pieces of work of each sub-agent.
const PIECES: usize = 2;

fn marker(agent: usize, piece: usize) -> String {
    format!("marker-{agent}-{piece}")
}

/// Returns the texts of calls' results; with `all`, of all messages.
fn texts(request: &Value, all: bool) -> Vec<String> {
    let mut texts = Vec::new();
    for message in request["messages"].as_array().unwrap() {
        let said = vec![json!({"type": "text", "text": message["content"]})];
        for block in message["content"].as_array().unwrap_or(&said) {
            match block["type"].as_str() {
                Some("tool_result") => texts.push(block["content"].to_string()),
                Some("text") if all => texts.push(block["text"].as_str().unwrap_or_default().to_owned()),
                _ => {}
            }
        }
    }
    texts
}

/// Returns the work of the sub-agent that sent a request: the call that started it, and its
/// markers.
fn work(request: &Value) -> Option<(String, Vec<String>)> {
    let prompt = texts(request, true).into_iter().find(|text| text.starts_with("AGENT "))?;
    let mut words = prompt.split_whitespace().skip(1).map(str::to_owned);
    Some((words.next()?, words.collect()))
}

/// Returns the fault in the messages of a request: each call needs its result in the next message,
/// and each result its call.
fn wrong(request: &Value) -> Option<String> {
    let ids = |message: Option<&Value>, kind: &str, name: &str| -> Vec<String> {
        let blocks = message.and_then(|message| message["content"].as_array()).into_iter().flatten();
        let of_kind = blocks.filter(|block| block["type"] == kind);
        of_kind.map(|block| block[name].as_str().unwrap().to_owned()).collect()
    };
    let messages = request["messages"].as_array().unwrap();
    for (place, message) in messages.iter().enumerate() {
        let mut calls = ids(Some(message), "tool_use", "id");
        let mut results = ids(messages.get(place + 1), "tool_result", "tool_use_id");
        calls.sort();
        results.sort();
        if message["role"] == "assistant" && calls != results {
            return Some(format!("{calls:?} have the results {results:?}: {request}"));
        }
    }
    None
}

/// The model's requests and calls.
#[derive(Default)]
struct Seen {
    /// Calls that started sub-agents, and whether these asked the model.
    begun: BTreeMap<String, bool>,
    calls: usize,
}

/// Starts a model that has `count` sub-agents work.
fn model(count: usize, in_background: bool) -> (Api, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let of_api = Arc::clone(&seen);
    let api = Api::start(move |request, _| {
        let mut seen = of_api.lock().unwrap();
        if let Some((id, markers)) = work(request) {
            seen.begun.insert(id, true);
            let shown = texts(request, false);
            let missing = markers.iter().find(|marker| !shown.iter().any(|text| text.contains(*marker)));
            let Some(missing) = missing else { return Answers::With(vec![text(&markers.join(" "))]) };
            seen.calls += 1;
            let name = missing.strip_prefix("marker-").unwrap();
            // The arguments do not contain the marker.
            let command = format!(
                "echo line >> log-{name}; echo line >> ../ran-{name}; sleep 0.05; echo mark'er'-{name}"
            );
            let input = json!({"command": command, "description": "d"});
            return Answers::With(vec![
                text("I work."),
                call(&format!("toolu_{name}_{}", seen.calls), "Bash", &input),
            ]);
        }
        let shown: Vec<String> = texts(request, true);
        // A fresh session's prompt contains the calls as well.
        let lines = shown.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with("you:"));
        let shown: Vec<&str> = lines.collect();
        let is_shown = |marker: &String| shown.iter().any(|text| text.contains(marker));
        let mut calls = Vec::new();
        for agent in 1..=count {
            let missing: Vec<String> =
                (1..=PIECES).map(|piece| marker(agent, piece)).filter(|marker| !is_shown(marker)).collect();
            if missing.is_empty() {
                continue;
            }
            seen.calls += 1;
            let id = format!("toolu_agent_{agent}_{}", seen.calls);
            seen.begun.insert(id.clone(), false);
            let mut input = json!({"description": "d", "prompt": format!("AGENT {id} {}", missing.join(" ")),
                "subagent_type": "general-purpose"});
            if in_background {
                input["run_in_background"] = json!(true);
            }
            calls.push(call(&id, "Agent", &input));
        }
        if calls.is_empty() { Answers::With(vec![text("done")]) } else { Answers::With(calls) }
    });
    (api, seen)
}

/// Checks that each piece of work was done once, and that each call is recorded in its
/// conversation.
fn check(directory: &Path, session: &Session, count: usize, told: &str) {
    let mut committed: BTreeMap<String, usize> = BTreeMap::new();
    let mut runs: BTreeMap<String, u64> = BTreeMap::new();
    for entry in LogReader::open(session.dir()).unwrap().ledger().unwrap() {
        if entry.tool != "Bash" {
            continue;
        }
        let id = entry.call_id.unwrap().to_string();
        let name = id.strip_prefix("toolu_").unwrap().rsplit_once('_').unwrap().0.to_owned();
        *committed.entry(name.clone()).or_default() += usize::from(entry.outcome.name() == "committed");
        *runs.entry(name).or_default() += entry.runs;
    }
    let pieces: Vec<String> =
        (1..=count).flat_map(|agent| (1..=PIECES).map(move |piece| format!("{agent}-{piece}"))).collect();
    assert_eq!(committed.keys().cloned().collect::<Vec<_>>(), pieces, "{told}");
    for name in &pieces {
        assert_eq!(committed[name], 1, "{told}: {name} was done more or less than once");
        let log = fs::read_to_string(directory.join(format!("workspace/log-{name}"))).unwrap();
        assert_eq!(log, "line\n", "{told}: {name}");
        let ran = lines(&directory.join(format!("ran-{name}"))) as u64;
        assert!((1..=runs[name]).contains(&ran), "{told}: {name} ran {ran} times of {runs:?}");
    }
    let tools = |id: &str| -> BTreeSet<String> {
        let conversation = session.conversation().read(id).unwrap().unwrap();
        conversation
            .sent_messages()
            .into_iter()
            .flat_map(|one| one.tool_calls)
            .map(|call| call.name)
            .collect()
    };
    assert_eq!(tools("run"), BTreeSet::from(["Agent".to_owned()]), "{told}");
    for id in session.conversation().evaluations().into_iter().filter(|id| id != "run") {
        assert!(tools(&id).is_subset(&BTreeSet::from(["Bash".to_owned()])), "{told}: {id} {:?}", tools(&id));
    }
}

/// Checks that a provider would accept each request.
fn check_requests(api: &Api, told: &str) {
    let wrong: Vec<String> = api.seen().iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{told}: {wrong:?}");
}

/// The hooks of the calls came before the answers that name the sub-agents, so the calls were
/// recorded in the conversation of the run. Two sub-agents ended the run with "operation 53 runs on
/// this thread".
fn work_together(count: usize, in_background: bool) {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let (api, seen) = model(count, in_background);
    let adapter = world.adapter(&cli, &api, native(&["Bash", "Agent", "Task"]));
    let told = format!("{count} sub-agents, background: {in_background}");
    let response = adapter.evaluate(&world.prompt(), &world.state, world.asking("Go."));
    assert_eq!(
        response.map(|response| response.text).map_err(|error| error.to_string()),
        Ok("done".to_owned()),
        "{told}"
    );
    check(world.directory.path(), &world.session, count, &told);
    check_requests(&api, &told);
    for id in seen.lock().unwrap().begun.keys() {
        let child = world.session.conversation().read(&format!("run/{id}")).unwrap().unwrap();
        let said = child.sent_messages();
        let asked: usize = said.iter().map(|message| message.tool_calls.len()).sum();
        assert_eq!(asked, PIECES, "{told}: {said:?}");
        assert!(said.last().unwrap().content.as_ref().unwrap().contains("marker-"), "{told}: {said:?}");
        let used: u64 = child
            .entries()
            .iter()
            .filter_map(|entry| match &entry.content {
                foldlog::conversation::EntryContent::Answer { usage, .. } => {
                    usage.as_ref().map(|usage| usage.input)
                }
                _ => None,
            })
            .sum();
        assert!(used >= 200, "{told}: the answers of a sub-agent have no usage: {used}");
    }
    let (types, elsewhere) = (SessionTypes::builder().build().unwrap(), tempfile::tempdir().unwrap());
    foldlog_replay::assert_host_replays(world.session.dir(), &types, |session| {
        let (state, prompt) = World::at(elsewhere.path(), session);
        drop(adapter.evaluate(&prompt, &state, world.asking("Go.")));
    });
}

#[test]
fn one_sub_agent_works() {
    work_together(1, false);
}

#[test]
fn two_sub_agents_of_one_answer_work() {
    work_together(2, false);
}

#[test]
fn three_sub_agents_of_one_answer_work() {
    work_together(3, false);
}

#[test]
fn sub_agents_that_are_to_run_in_the_background_run_in_the_foreground() {
    (1..=3).for_each(|count| work_together(count, true));
}

/// Kills `who` at record `at`, and has another host complete the run.
fn kill_at(who: Killed, at: u64, count: usize) {
    let Some(cli) = cli() else { return };
    let is_alone = std::env::var_os("FOLDLOG_CLAUDE_KILL").is_some();
    let directory = tempfile::Builder::new().disable_cleanup(is_alone).tempdir().unwrap();
    let path = directory.path();
    if is_alone {
        println!("{} is kept", path.display());
    }
    // Half of them are requested for the background, where foldlog permits none.
    let in_background = (at / 4 + count as u64) % 2 == 1;
    let (api, seen) = model(count, in_background);
    let tools = ["Bash", "Agent", "Task"].map(str::to_owned).to_vec();
    let task = |kill| Task {
        directory: path.to_owned(),
        cli: cli.clone(),
        url: api.url(),
        tools: tools.clone(),
        kill,
    };
    let place = if in_background { " in the background" } else { "" };
    let told = format!("{count} sub-agents{place}, {}", killed_host(&task(Some((who, at)))));
    let begun = seen.lock().unwrap().begun.clone();
    let (status, said) = host(&task(None));
    assert!(status.success() && said == "done done", "{told}; then {status}, {said}");
    let store = Store::open(path.join("store")).unwrap();
    let id = store.session_ids().unwrap().remove(0);
    let session = store.open_session(id, &SessionTypes::builder().build().unwrap()).unwrap();
    check(path, &session, count, &told);
    check_requests(&api, &told);
    let last = api.seen().into_iter().rfind(|request| work(request).is_none()).unwrap().to_string();
    for (id, _) in begun.into_iter().filter(|(_, asked)| *asked) {
        assert!(last.contains(&id), "{told}: the answer with {id} is lost: {last}");
    }
}

/// Kills at some of the moments, with one, two and three sub-agents.
fn kill_at_moments(who: Killed, begin: u64) {
    let moments = Moments { first: 8, apart: 4, sub_agents: &[Some(1), Some(2), Some(3)] };
    moments.kill(who, begin, |at, count| kill_at(who, at, count.unwrap()));
}

/// The answer that started the sub-agent was lost, and a call that committed ran twice.
#[test]
fn a_killed_program_leaves_sub_agents_that_another_process_ends() {
    kill_at_moments(Killed::Program, 6);
}

#[test]
fn a_killed_host_leaves_sub_agents_that_another_process_ends() {
    kill_at_moments(Killed::Host, 7);
}

#[test]
fn a_killed_host_and_program_leave_sub_agents_that_another_process_ends() {
    kill_at_moments(Killed::Both, 4);
}
