//! Ids that several calls share, compared with an oracle in which each call has its own id; and
//! texts that were cut within a character.

use foldlog_test_support::crash::Chance;

use super::*;

/// Returns the calls of a session's operations, as answer and ordinal.
fn asked_by(session: &Path) -> Vec<(u64, u64)> {
    let number = |value: &Value| value.as_u64().unwrap();
    let asked = |row: Value| (number(&row["asked_by"][0]), number(&row["asked_by"][1]));
    ledger(session).into_iter().map(asked).collect()
}

/// Returns the messages for a provider, after a check that each call has its own id, and a result
/// directly after it.
fn sent(session: &Path) -> Vec<Value> {
    let format = |format: &str| {
        let ran = foldlog(["transcript", session.to_str().unwrap(), "--format", format]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        serde_json::from_str::<Vec<Value>>(&ran.stdout).unwrap()
    };
    let ids = |messages: &[Value], field: &str| -> Vec<String> {
        let blocks = messages.iter().filter_map(|it| it["content"].as_array()).flatten();
        blocks.filter_map(|block| block[field].as_str().map(str::to_owned)).collect()
    };
    let anthropic = format("anthropic");
    let (mut calls, results) = (ids(&anthropic, "id"), ids(&anthropic, "tool_use_id"));
    assert_eq!(calls, results);
    calls.sort();
    calls.dedup();
    assert_eq!(calls.len(), results.len(), "an id names two calls");
    format("openai")
}

/// Three calls of one id became two operations, and could not be printed in any provider's format.
#[test]
fn calls_of_one_id_are_operations_of_their_own_and_their_results_are_paired_in_order() {
    let place = Place::new();
    let imported = place.lines(&[
        user("u1", "", 1, "hi"),
        assistant("a1", "u1", 2, "m1", call("call_0", "Bash", json!({"command": "a"}))),
        assistant("a2", "a1", 3, "m1", call("call_0", "Bash", json!({"command": "b"}))),
        result("r1", "a2", 4, "call_0", "A"),
        result("r2", "r1", 5, "call_0", "B"),
        assistant("a3", "r2", 6, "m2", call("call_0", "Bash", json!({"command": "c"}))),
        result("r3", "a3", 7, "call_0", "C"),
        assistant("a4", "r3", 8, "m3", says("done")),
    ]);
    assert_eq!((imported.count("rewinds"), imported.found()), (0, vec![]));
    let session = place.session();
    assert_eq!(said(&session), ["hi", "-", "A", "B", "-", "C", "done"]);
    let asked = asked_by(&session);
    let (first, second) = (asked[0].0, asked[2].0);
    assert_eq!(asked, [(first, 0), (first, 1), (second, 0)]);
    let sent = sent(&session);
    let command = |message: usize, call: usize| {
        sent[message]["tool_calls"][call]["function"]["arguments"].as_str().unwrap().to_owned()
    };
    assert_eq!([command(1, 0), command(1, 1)], [r#"{"command":"a"}"#, r#"{"command":"b"}"#]);
    assert_eq!((&sent[2]["content"], &sent[3]["content"]), (&json!("A"), &json!("B")));
    place.comes_out();
}

#[test]
fn a_result_answers_the_call_in_the_line_that_it_names_or_follows() {
    let answer = |input: &str| call("c", "Bash", json!({"command": input}));
    let asks = || {
        vec![
            user("u1", "", 1, "hi"),
            assistant("a1", "u1", 2, "m1", answer("a")),
            assistant("a2", "a1", 3, "m1", answer("b")),
        ]
    };
    // Each result follows the line of its call; the second call ended first.
    let mut follows = asks();
    follows.extend([result("r2", "a2", 4, "c", "B"), result("r1", "a1", 5, "c", "A")]);
    // One result follows the other, and each names the line of its call.
    let mut names = asks();
    let named = |line: &str, mut result: Value| {
        result["sourceToolAssistantUUID"] = line.into();
        result
    };
    names.push(named("a2", result("r2", "a2", 4, "c", "B")));
    names.push(named("a1", result("r1", "r2", 5, "c", "A")));
    for lines in [follows, names] {
        let place = Place::new();
        let imported = place.lines(&lines);
        assert_eq!((imported.count("rewinds"), imported.found()), (0, vec![]));
        let sent = sent(&place.session());
        assert_eq!((&sent[2]["content"], &sent[3]["content"]), (&json!("A"), &json!("B")));
        place.comes_out();
    }
}

#[test]
fn a_call_that_is_repeated_counts_once_unless_it_has_results_of_its_own() {
    let lines = |results: u32| {
        let mut lines = vec![user("u1", "", 1, "hi")];
        let mut last = "u1".to_owned();
        for number in 0..2 {
            let uuid = format!("a{number}");
            lines.push(assistant(&uuid, &last, 2, "m1", call("c", "Bash", json!({"command": "a"}))));
            last = uuid;
        }
        for number in 0..results {
            let uuid = format!("r{number}");
            lines.push(result(&uuid, &last, 3 + number, "c", format!("result {number}")));
            last = uuid;
        }
        lines
    };
    for results in [1, 2] {
        let place = Place::new();
        place.lines(&lines(results));
        let session = place.session();
        assert_eq!(asked_by(&session).len(), results as usize);
        assert_eq!(sent(&session).len(), 2 + results as usize);
        place.comes_out();
    }
}

#[test]
fn sub_agents_are_children_of_their_own_calls_where_these_have_one_id() {
    let place = Place::new();
    let mut lines = vec![user("u1", "", 1, "Check twice, and again.")];
    let mut last = "u1".to_owned();
    let agents = ["x", "y", "z"];
    for (number, agent) in (0..).zip(agents) {
        let second = 10 * number + 2;
        // One answer requests the first two.
        let message = if number < 2 { "m1" } else { "m2" };
        let uuid = format!("a{agent}");
        let prompt = json!({"prompt": format!("look at {agent}")});
        lines.push(assistant(&uuid, &last, second, message, call("c", "Task", prompt)));
        last = uuid;
        if number == 0 {
            continue;
        }
        for (ended, agent) in (0..).zip(agents).filter(|(ended, _)| (*ended < 2) == (number < 2)) {
            let uuid = format!("r{agent}");
            let mut result = result(&uuid, &last, second + 5 + ended, "c", agent);
            result["toolUseResult"] = json!({"agentId": agent});
            lines.push(result);
            last = uuid;
        }
    }
    let file = place.write("s.jsonl", text(&lines));
    for (number, agent) in (0..).zip(agents) {
        let told = user("s1", "", 10 * number + 3, format!("look at {agent}"));
        let uuid = format!("{agent}1");
        let mut told = of_agent(agent, told);
        told["uuid"] = uuid.into();
        place.write(&format!("s/subagents/agent-{agent}.jsonl"), text(&[told]));
    }
    let imported = place.import(&[file]);
    assert_eq!((imported.count("agents"), imported.count("rewinds"), imported.found()), (3, 0, vec![]));
    let operations: Vec<Value> =
        ledger(&place.session()).into_iter().map(|row| row["operation"].clone()).collect();
    for (agent, operation) in agents.iter().zip(&operations) {
        let is_agents = |session: &&PathBuf| said(session) == [format!("look at {agent}")];
        let child = place.sessions().into_iter().find(|it| is_agents(&it)).unwrap();
        let opened = foldlog(["show", child.to_str().unwrap(), "--kind", "opened", "--json"]).stdout;
        let opened: Value = serde_json::from_str(&opened).unwrap();
        assert_eq!(&opened["parent"]["operation"], operation, "{agent}");
    }
    assert_eq!(operations.len(), 3);
    place.comes_out();
}

/// Generates a conversation of answers with several calls each. `id` returns the id of a call by
/// its number.
fn generated(seed: u64, id: &dyn Fn(u64) -> String) -> Vec<Value> {
    let mut chance = Chance::new(seed);
    let (mut lines, mut last, mut second, mut number) =
        (vec![user("u", "", 0, "begin")], "u".to_owned(), 1, 0_u64);
    for answer in 0..6 {
        let calls: Vec<u64> = (0..chance.below(4)).map(|call| number + call).collect();
        number += calls.len() as u64;
        let message = format!("m{answer}");
        let mut uuids = Vec::new();
        if calls.is_empty() || chance.percent(30) {
            let uuid = format!("t{answer}");
            lines.push(assistant(&uuid, &last, second, &message, says(&message)));
            last = uuid;
        }
        for call_number in &calls {
            second += 1;
            let uuid = format!("a{call_number}");
            let input = json!({"command": format!("command {call_number}")});
            lines.push(assistant(&uuid, &last, second, &message, call(&id(*call_number), "Bash", input)));
            last.clone_from(&uuid);
            uuids.push((*call_number, uuid));
        }
        // Results follow each other, or each follows the line of its call, in any order.
        let in_row = chance.percent(50);
        if !in_row && uuids.len() > 1 && chance.percent(50) {
            uuids.reverse();
        }
        for (call_number, line) in uuids {
            second += 1;
            let uuid = format!("r{call_number}");
            let parent = if in_row { &last } else { &line };
            lines.push(result(&uuid, parent, second, &id(call_number), format!("result {call_number}")));
            last = uuid;
        }
        second += 1;
    }
    lines
}

#[test]
fn a_transcript_whose_ids_repeat_says_the_same_as_one_with_ids_of_their_own() {
    for seed in 0..40 {
        let of = |id: &dyn Fn(u64) -> String| {
            let place = Place::new();
            let imported = place.lines(&generated(seed, id));
            assert_eq!((imported.count("rewinds"), imported.found()), (0, vec![]), "seed {seed}");
            let session = place.session();
            let contents = sent(&session).into_iter().map(|message| {
                let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
                let calls: Vec<Value> = calls.into_iter().map(|call| call["function"].clone()).collect();
                (message["content"].clone(), calls)
            });
            (asked_by(&session), contents.collect::<Vec<_>>())
        };
        let own = of(&|number| format!("c{number}"));
        assert_eq!(of(&|_| "call_0".to_owned()), own, "seed {seed}");
        assert_eq!(of(&|number| format!("call_{}", number % 2)), own, "seed {seed}");
    }
}

/// Such texts were shown and sent as empty.
#[test]
fn a_text_that_was_cut_within_a_character_is_shown_and_sent_with_a_replacement() {
    let place = Place::new();
    // serde_json writes no such escapes.
    let cut = |line: &Value| line.to_string().replace("CUT", r"\ud83d").replace("LOW", r"\uDE00");
    let thinking = json!([
        {"type": "thinking", "thinking": "CUT thought", "signature": "s"},
        {"type": "tool_use", "id": "c2", "name": "Bash", "input": {"command": "echo LOW"}},
    ]);
    let lines = [
        user("u1", "", 1, "CUT hi"),
        assistant("a1", "u1", 2, "m1", call("c1", "Bash", json!({"command": "ls CUT"}))),
        result("r1", "a1", 3, "c1", "Cancelled: Bash(ls CUT) \\ud83d errored"),
        assistant("a2", "r1", 4, "m2", thinking),
        result("r2", "a2", 5, "c2", says("LOW CUTLOW")),
        assistant("a3", "r2", 6, "m3", says("ok CUT end")),
    ];
    let text: String = lines.iter().map(|line| cut(line) + "\n").collect();
    let file = place.write("s.jsonl", text);
    assert_eq!(place.import(&[file]).found(), []);
    let session = place.session();
    let expected = [
        "\u{fffd} hi",
        "-",
        "Cancelled: Bash(ls \u{fffd}) \\ud83d errored",
        "-",
        "\u{fffd} \u{1f600}",
        "ok \u{fffd} end",
    ];
    assert_eq!(said(&session), expected);
    let sent = sent(&session);
    let texts: Vec<&str> = sent.iter().map(|message| message["content"].as_str().unwrap_or("-")).collect();
    assert_eq!(texts, expected);
    let arguments = |message: usize| {
        let arguments = sent[message]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
        serde_json::from_str::<Value>(arguments).unwrap()["command"].clone()
    };
    assert_eq!([arguments(1), arguments(3)], ["ls \u{fffd}", "echo \u{fffd}"]);
    let session = session.to_str().unwrap();
    let anthropic = foldlog(["transcript", session, "--format", "anthropic"]).stdout;
    let anthropic: Value = serde_json::from_str(&anthropic).unwrap();
    assert_eq!(anthropic[3]["content"][0]["thinking"], "\u{fffd} thought");
    assert_eq!(anthropic[3]["content"][1]["input"]["command"], "echo \u{fffd}");
    for format in ["text", "markdown", "openai"] {
        for recorded in [&[][..], &["--as-recorded"]] {
            let ran = foldlog([&["transcript", session, "--format", format], recorded].concat());
            assert!(ran.code == 0 && !ran.stdout.contains(r"ls \ud83d"), "{format}: {}", ran.stdout);
        }
    }
    let shown = foldlog(["show", session, "--payload"]).stdout;
    assert!(shown.contains("Cancelled: Bash(ls \u{fffd}) "), "{shown}");
    // The record keeps the text of the file.
    place.comes_out();
}
