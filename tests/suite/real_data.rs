//! Recorded runs of real agents: their imports equal a plain fold of their files, and pass
//! verification.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use foldlog_test_support::runs::{self, Expected, Json, Told};
use foldlog_tests::verbs::foldlog;

/// The limit on log bytes for the recorded file of tau-bench.
const TAU_BENCH_LOG_BYTES_MAX: u64 = 4_500_000;

/// Returns the output of `import --json`.
fn import(arguments: &[&str], store: &Path) -> BTreeMap<String, f64> {
    let store = store.to_str().unwrap();
    let ran = foldlog([&["import"], arguments, &["--store", store, "--json"]].concat());
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    serde_json::from_str(&ran.stdout).unwrap()
}

fn counts(imported: &BTreeMap<String, f64>) -> (u64, u64) {
    (imported["sessions"] as u64, imported["rollbacks"] as u64)
}

fn sessions(store: &Path) -> BTreeMap<(String, String), PathBuf> {
    let ran = foldlog(["sessions", store.to_str().unwrap(), "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let rows = ran.stdout.lines().map(|line| {
        let row = Json::parse(line);
        let text = |value: Option<&Json>| value.and_then(Json::as_str).unwrap().to_owned();
        let tag = |name| text(row.get("tags").and_then(|tags| tags.get(name)));
        ((tag("task_id"), tag("trial")), store.join("sessions").join(text(row.get("session"))))
    });
    rows.collect()
}

/// Returns the importer's slices; [`calls`] checks the engine's own.
fn slices(session: &Path) -> Json {
    let ran = foldlog(["state", session.to_str().unwrap(), "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let slices = Json::parse(&ran.stdout).get("slices").unwrap().clone();
    let Json::Object(mut slices) = slices else { panic!("slices are an object") };
    slices.retain(|(name, _)| name != "tool_invoked");
    Json::Object(slices)
}

fn transcript(session: &Path) -> Json {
    let ran = foldlog(["transcript", session.to_str().unwrap(), "--as-recorded", "--format", "openai"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    Json::parse(&ran.stdout)
}

/// Returns the content of a conversation, independent of the order of its fields.
fn told(transcript: &Json) -> Vec<Told> {
    let text = |of: &Json, field: &str| of.get(field).and_then(Json::as_str).map(str::to_owned);
    let messages = transcript.elements().iter().map(|message| Told {
        role: text(message, "role").unwrap(),
        content: message.get("content").unwrap().clone(),
        calls: message
            .get("tool_calls")
            .map(Json::elements)
            .unwrap_or_default()
            .iter()
            .map(|call| {
                let function = call.get("function").unwrap();
                (
                    text(call, "id").unwrap(),
                    text(function, "name").unwrap(),
                    text(function, "arguments").unwrap(),
                )
            })
            .collect(),
        answers: text(message, "tool_call_id"),
    });
    messages.collect()
}

fn shown(session: &Path, kind: &str) -> Vec<Json> {
    let ran = foldlog(["show", session.to_str().unwrap(), "--json", "--kind", kind]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ran.stdout.lines().map(Json::parse).collect()
}

/// Returns the calls of a session from its transactions: provider's id, tool, arguments, result,
/// whether it failed.
fn calls(session: &Path) -> Vec<(Option<String>, String, Json, Json, bool)> {
    let text = |record: &Json, field: &str| record.get(field).and_then(Json::as_str).map(str::to_owned);
    let (begins, ends) = (shown(session, "tool_begin"), shown(session, "tool_end"));
    assert_eq!(begins.len(), ends.len());
    let calls = begins.iter().zip(&ends).map(|(begin, end)| {
        assert_eq!(end.get("begin"), begin.get("sequence"), "one call ends before the next begins");
        let result = end.get("result").filter(|result| **result != Json::Scalar(serde_json::Value::Null));
        let result = result.or_else(|| end.get("shown")).unwrap().clone();
        let failed = text(end, "outcome").unwrap() == "failed";
        (
            text(begin, "call_id"),
            text(begin, "tool").unwrap(),
            begin.get("arguments").unwrap().clone(),
            result,
            failed,
        )
    });
    calls.collect()
}

/// Checks that the store contains the expected runs and passes verification.
fn check(store: &Path, expected: &BTreeMap<(String, String), Expected>) {
    let sessions = sessions(store);
    assert_eq!(sessions.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    let verified = foldlog(["verify", store.to_str().unwrap(), "--json"]);
    assert_eq!(verified.code, 0, "{}", verified.stdout);
    let verified = Json::parse(&verified.stdout);
    assert_eq!(verified.get("sessions"), Some(&Json::Scalar(sessions.len().into())));
    assert_eq!(verified.get("torn_bytes"), Some(&Json::Scalar(0.into())));
    for (run, session) in &sessions {
        assert_eq!(slices(session), expected[run].slices(), "run {run:?}");
        assert_eq!(told(&transcript(session)), expected[run].messages, "run {run:?}");
        assert_eq!(calls(session), expected[run].tool_calls, "run {run:?}");
        check_ledger(session, &expected[run]);
        let replayed = foldlog(["replay", "--thorough", "--json", session.to_str().unwrap()]);
        assert_eq!(replayed.code, 0, "run {run:?}: {}", replayed.stderr);
        let checked = Json::parse(&replayed.stdout).get("checked").cloned();
        assert_eq!(checked, Some(Json::Scalar(expected[run].rollbacks.into())), "run {run:?}");
    }
}

/// Checks that every call is its own operation, whatever its provider's id.
fn check_ledger(session: &Path, expected: &Expected) {
    let ran = foldlog(["ledger", session.to_str().unwrap(), "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let entries: Vec<Json> = ran.stdout.lines().map(Json::parse).collect();
    let operations: std::collections::BTreeSet<String> =
        entries.iter().map(|entry| serde_json::to_string(entry.get("operation").unwrap()).unwrap()).collect();
    assert_eq!((entries.len(), operations.len()), (expected.tool_calls.len(), expected.tool_calls.len()));
    for (entry, (id, tool, _, _, failed)) in entries.iter().zip(&expected.tool_calls) {
        let text = |field: &str| entry.get(field).and_then(Json::as_str);
        let outcome = if *failed { "failed" } else { "committed" };
        assert_eq!(
            (text("call_id"), text("tool"), text("outcome")),
            (id.as_deref(), Some(tool.as_str()), Some(outcome))
        );
    }
}

#[test]
fn tau_bench_comes_to_what_a_plain_fold_of_its_file_comes_to() {
    let Some(data) = runs::directory() else { return };
    let path = data.join("tau-bench/gpt-4o-airline.json");
    let file = Json::parse(&std::fs::read_to_string(&path).unwrap());
    let expected = runs::tau_bench(&file);
    let directory = tempfile::tempdir().unwrap();
    let imported = import(&["tau-bench", path.to_str().unwrap()], directory.path());
    assert_eq!(counts(&imported), (200, 73));
    assert_eq!(expected.values().map(|run| run.rollbacks).sum::<u64>(), 73);
    let log_bytes = imported["log_bytes"] as u64;
    assert!(log_bytes <= TAU_BENCH_LOG_BYTES_MAX, "{log_bytes} bytes");
    // 1,164 operations; 71 ids occur more than once within a run.
    let calls: usize = expected.values().map(|run| run.tool_calls.len()).sum();
    let reused = |run: &Expected| {
        let mut times = BTreeMap::new();
        run.tool_calls.iter().for_each(|(id, ..)| *times.entry(id).or_insert(0) += 1);
        times.values().filter(|times| **times > 1).count()
    };
    assert_eq!((calls, expected.values().map(reused).sum::<usize>()), (1_164, 71));
    check(directory.path(), &expected);
}

fn unordered(messages: &Json) -> serde_json::Value {
    serde_json::to_value(messages).unwrap()
}

#[test]
fn the_conversation_of_each_of_tau_benchs_runs_is_the_files_message_by_message() {
    let Some(data) = runs::directory() else { return };
    let path = data.join("tau-bench/gpt-4o-airline.json");
    let file = Json::parse(&std::fs::read_to_string(&path).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let imported = import(&["tau-bench", path.to_str().unwrap()], directory.path());
    let sessions = sessions(directory.path());
    assert_eq!((imported["messages"] as usize, sessions.len()), (5_308, 200));
    let (mut messages, mut nulls, mut repeating) = (0, 0, 0);
    for run in file.elements() {
        let tag = |field: &str| serde_json::to_string(run.get(field).unwrap()).unwrap();
        let session = &sessions[&(tag("task_id"), tag("trial"))];
        let original = unordered(run.get("traj").unwrap());
        let recorded = unordered(&transcript(session));
        assert_eq!(recorded, original, "task {}, trial {}", tag("task_id"), tag("trial"));
        let original = original.as_array().unwrap();
        messages += original.len();
        nulls += original.iter().filter(|message| message["content"].is_null()).count();

        // The provider's format has the same content, except for ids that the run repeats.
        let ran = foldlog(["transcript", session.to_str().unwrap(), "--format", "openai"]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        let sent: Vec<serde_json::Value> = serde_json::from_str(&ran.stdout).unwrap();
        let ids = |messages: &[serde_json::Value]| -> Vec<String> {
            let calls = messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
            calls.map(|call| call["id"].as_str().unwrap().to_owned()).collect()
        };
        let (before, after) = (ids(original), ids(&sent));
        let distinct = |ids: &[String]| ids.iter().collect::<std::collections::BTreeSet<_>>().len();
        assert_eq!(distinct(&after), after.len());
        repeating += usize::from(distinct(&before) < before.len());
        let contents = |messages: &[serde_json::Value]| -> Vec<serde_json::Value> {
            messages.iter().map(|message| message["content"].clone()).collect()
        };
        assert_eq!(contents(&sent), contents(original));
        let ran = foldlog(["transcript", session.to_str().unwrap(), "--format", "anthropic", "--json"]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    }
    assert_eq!((messages, nulls, repeating), (5_308, 1_074, 49));
}

#[test]
fn a_perturbed_copy_of_tau_bench_comes_to_other_states() {
    let Some(data) = runs::directory() else { return };
    let path = data.join("tau-bench/gpt-4o-airline.json");
    let file = Json::parse(&std::fs::read_to_string(path).unwrap());
    let mut file = Json::Array(file.elements()[..8].to_vec());
    let before = runs::tau_bench(&file);
    // Another word in the first run, no text in the second, one more failure in the third, and a
    // call of another tool in the fourth.
    perturb(&mut file, 0, "user", |message| *message.get_mut("content").unwrap() = Json::text("No."));
    perturb(&mut file, 1, "user", |message| {
        *message.get_mut("content").unwrap() = Json::Scalar(serde_json::Value::Null);
    });
    perturb(&mut file, 2, "tool", |message| *message.get_mut("content").unwrap() = Json::text("Error: no"));
    perturb(&mut file, 3, "tool-calling", |message| {
        let call = &mut message.get_mut("tool_calls").unwrap().elements_mut()[0];
        *call.get_mut("function").unwrap().get_mut("name").unwrap() = Json::text("another");
    });

    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy.json");
    std::fs::write(&copy, serde_json::to_string(&file).unwrap()).unwrap();
    let store = directory.path().join("store");
    import(&["tau-bench", copy.to_str().unwrap()], &store);
    check(&store, &runs::tau_bench(&file));
    let sessions = sessions(&store);
    let other =
        before.iter().filter(|(run, expected)| told(&transcript(&sessions[*run])) != expected.messages);
    let tags = |run: usize| {
        let run = &file.elements()[run];
        let tag = |field: &str| serde_json::to_string(run.get(field).unwrap()).unwrap();
        (tag("task_id"), tag("trial"))
    };
    let mut perturbed: Vec<_> = (0..4).map(tags).collect();
    perturbed.sort();
    assert_eq!(other.map(|(run, _)| run.clone()).collect::<Vec<_>>(), perturbed);
}

fn perturb(file: &mut Json, run: usize, role: &str, change: impl FnOnce(&mut Json)) {
    let messages = file.elements_mut()[run].get_mut("traj").unwrap().elements_mut();
    let wanted = messages.iter_mut().find(|message| match role {
        "tool-calling" => message.get("tool_calls").is_some_and(|calls| !calls.elements().is_empty()),
        role => message.get("role").and_then(Json::as_str) == Some(role),
    });
    change(wanted.unwrap());
}

#[test]
fn swe_agent_comes_to_what_a_plain_fold_of_its_files_comes_to() {
    let Some(data) = runs::directory() else { return };
    let mut files: Vec<PathBuf> = std::fs::read_dir(data.join("swe-agent"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "traj"))
        .collect();
    files.sort();
    assert_eq!(files.len(), 3);
    let expected: BTreeMap<_, _> = files
        .iter()
        .map(|path| {
            let file = Json::parse(&std::fs::read_to_string(path).unwrap());
            let task = path.file_stem().unwrap().to_str().unwrap().to_owned();
            ((task, "0".to_owned()), runs::swe_agent(&file))
        })
        .collect();
    let calls: usize = expected.values().map(|run| run.tool_calls.len()).sum();
    assert_eq!(calls, 5 + 4 + 11);
    let directory = tempfile::tempdir().unwrap();
    let files: Vec<&str> = files.iter().map(|path| path.to_str().unwrap()).collect();
    let imported = import(&[&["swe-agent"], files.as_slice()].concat(), directory.path());
    assert_eq!(counts(&imported), (3, expected.values().map(|run| run.rollbacks).sum()));
    check(directory.path(), &expected);
}
