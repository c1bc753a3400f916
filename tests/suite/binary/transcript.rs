//! Import and output of conversations: files of OpenAI's messages, and the printed transcripts.

use std::path::{Path, PathBuf};

use foldlog_test_support::runs::Json;
use foldlog_tests::verbs::{Ran, foldlog};
use serde_json::{Value, json};

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { directory: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    fn import(&self, content: impl AsRef<[u8]>) -> Ran {
        let file = self.directory.path().join("chat.json");
        std::fs::write(&file, content).unwrap();
        let mut ran =
            foldlog(["import", "openai", file.to_str().unwrap(), "--store", self.store().to_str().unwrap()]);
        ran.stderr = ran.stderr.replace(self.directory.path().to_str().unwrap(), "[directory]");
        ran
    }

    fn session(&self) -> PathBuf {
        let listed = foldlog(["sessions", self.store().to_str().unwrap(), "--json"]).stdout;
        let last = Json::parse(listed.lines().last().unwrap());
        self.store().join("sessions").join(last.get("session").and_then(Json::as_str).unwrap())
    }

    fn imported(&self, content: impl AsRef<[u8]>) -> PathBuf {
        let ran = self.import(content);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        self.session()
    }

    fn sessions(&self) -> usize {
        std::fs::read_dir(self.store().join("sessions")).map_or(0, Iterator::count)
    }
}

fn transcript(session: &Path, options: &[&str]) -> Ran {
    foldlog([&["transcript", session.to_str().unwrap()], options].concat())
}

fn array(session: &Path, options: &[&str]) -> Value {
    let ran = transcript(session, options);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

/// A conversation in which one answer has two calls of one id, and another repeats it.
fn parallel() -> Value {
    let call = |id: &str, city: &str| {
        let arguments = format!("{{\"city\":  \"{city}\"}}");
        json!({"id": id, "type": "function", "function": {"name": "weather", "arguments": arguments}})
    };
    json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Oslo and Rome?", "name": "ada"},
        {"role": "assistant", "content": null, "tool_calls": [call("c", "Oslo"), call("c", "Rome")]},
        {"role": "tool", "tool_call_id": "c", "content": "snow"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "assistant", "content": "Snow in Oslo.", "tool_calls": [call("c", "Rome")]},
        {"role": "tool", "tool_call_id": "c", "content": "sun"},
        {"role": "assistant", "content": "Sun in Rome."}
    ])
}

#[test]
fn a_conversation_comes_out_as_it_came_in_and_is_sent_with_ids_of_its_own() {
    let place = Place::new();
    let lines: Vec<String> = parallel().as_array().unwrap().iter().map(Value::to_string).collect();
    for content in [parallel().to_string(), lines.join("\n\n"), format!("\u{feff}{:#}\n", parallel())] {
        let session = place.imported(content);
        assert_eq!(array(&session, &["--as-recorded", "--format", "openai"]), parallel());
        let sent = array(&session, &["--format", "openai"]);
        let ids = |field: &str| -> Vec<&Value> {
            let messages = sent.as_array().unwrap().iter();
            match field {
                "calls" => {
                    messages.filter_map(|m| m["tool_calls"].as_array()).flatten().map(|c| &c["id"]).collect()
                }
                field => messages.map(|m| &m[field]).filter(|id| !id.is_null()).collect(),
            }
        };
        assert_eq!(ids("calls"), ["c", "c_2", "c_3"]);
        assert_eq!(ids("tool_call_id"), ["c", "c_2", "c_3"]);
    }
    let ran = foldlog(["verify", place.store().to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}", ran.stdout);
}

#[test]
fn anthropic_gets_the_prompt_beside_the_messages_and_results_as_the_users() {
    let place = Place::new();
    let session = place.imported(parallel().to_string());
    let ran = transcript(&session, &["--format", "anthropic"]);
    assert_eq!(
        ran.stderr,
        "note: the system message is not in the array; --json prints it too, as `system`\n"
    );
    let messages: Value = serde_json::from_str(&ran.stdout).unwrap();
    let roles: Vec<&str> = messages.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user", "assistant"]);
    let whole = array(&session, &["--format", "anthropic", "--json"]);
    assert_eq!(whole, json!({"system": "Be brief.", "messages": messages}));
}

#[test]
fn a_person_reads_who_said_what() {
    let place = Place::new();
    let session = place.imported(parallel().to_string());
    let ran = transcript(&session, &["--as-recorded"]);
    assert_eq!(
        ran.stdout,
        "[0] system: Be brief.\n\
         [1] user `ada`: Oslo and Rome?\n\
         [2] assistant\n\
         \x20   calls `weather` `c`: {\"city\":  \"Oslo\"}\n\
         \x20   calls `weather` `c`: {\"city\":  \"Rome\"}\n\
         [3] tool `c`: snow\n\
         [4] tool `c`: \n\
         [5] assistant: Snow in Oslo.\n\
         \x20   calls `weather` `c`: {\"city\":  \"Rome\"}\n\
         [6] tool `c`: sun\n\
         [7] assistant: Sun in Rome.\n"
    );
    let json = transcript(&session, &["--as-recorded", "--json"]).stdout;
    let messages: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(messages.len(), 8);
    assert_eq!(messages[1]["content"], "Oslo and Rome?");
}

#[test]
fn at_a_position_the_conversation_is_what_it_was_there() {
    let place = Place::new();
    let session = place.imported(parallel().to_string());
    let shown = foldlog(["show", session.to_str().unwrap(), "--json", "--kind", "input"]).stdout;
    let inputs: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let at = inputs[1]["sequence"].to_string();
    assert_eq!(array(&session, &["--at", &at, "--format", "openai"]).as_array().unwrap().len(), 2);
    let ran = transcript(&session, &["--at", "0"]);
    assert_eq!(
        (ran.code, ran.stderr.as_str()),
        (
            2,
            format!(
                "error: there is no conversation at position 0\n  next: `foldlog show {}` lists the records, and which are live\n",
                session.display()
            )
            .as_str()
        )
    );
    let ran = transcript(&session, &["--evaluation", "an\u{1b}other"]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.stderr.contains(r"there is no conversation of `an\u{1b}other` at position"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("the conversations are those of `imported`"), "{}", ran.stderr);
}

#[test]
fn a_history_that_no_provider_accepts_is_printed_as_recorded_alone() {
    let place = Place::new();
    let broken = json!([
        {"role": "user", "content": "hi"},
        {"role": "tool", "tool_call_id": "late\u{202e}", "content": "whose?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{"}}]}
    ]);
    let session = place.imported(broken.to_string());
    for format in ["openai", "anthropic"] {
        let ran = transcript(&session, &["--format", format]);
        assert_eq!(ran.code, 2);
        assert_eq!(ran.stdout, "");
        assert!(
            ran.stderr.starts_with(&format!("error: {format} would refuse this history:")),
            "{}",
            ran.stderr
        );
        assert!(
            ran.stderr.contains("message 1: the call `late\\u{202e}` is not in the answer"),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains("message 2: the call `a` has no result"), "{}", ran.stderr);
        assert!(ran.stderr.contains("next: --close-open adds what is missing"), "{}", ran.stderr);
    }
    assert_eq!(array(&session, &["--format", "openai", "--as-recorded"]), broken);
}

/// A conversation that was killed within a call, or without its start, could not be printed for any
/// provider.
#[test]
fn open_calls_and_results_without_a_call_are_closed_on_request() {
    let place = Place::new();
    let call =
        |id: &str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}});
    let result = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
    let session = place.imported(
        json!([
            result("lost", "whose?"),
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": null, "tool_calls": [call("a"), call("a")]},
            result("a", "first"),
            result("b\u{202e}", "whose too?"),
            {"role": "assistant", "content": "Once more.", "tool_calls": [call("c")]}
        ])
        .to_string(),
    );
    let notes = "note: message 0: the result for `lost` gets a placeholder call\n\
                 note: message 2: the call `a` gets a placeholder result\n\
                 note: message 4: the result for `b\\u{202e}` gets a placeholder call\n\
                 note: message 5: the call `c` gets a placeholder result\n";
    let closed = |format: &str| -> Vec<Value> {
        let refused = transcript(&session, &["--format", format]);
        assert_eq!((refused.code, refused.stdout.as_str()), (2, ""));
        let ran = transcript(&session, &["--format", format, "--close-open"]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, notes));
        serde_json::from_str(&ran.stdout).unwrap()
    };
    let openai = closed("openai");
    let contents: Vec<&str> =
        openai.iter().map(|message| message["content"].as_str().unwrap_or("-")).collect();
    let missing = "There is no result: the call was not run, or its result was not recorded.";
    let expected = ["-", "whose?", "hi", "-", "first", missing, "-", "whose too?", "Once more.", missing];
    assert_eq!(contents, expected);
    // Each call has its result directly after its answer.
    let mut open = Vec::new();
    for message in &openai {
        let named = message["tool_call_id"].as_str();
        assert_eq!(named.is_some(), !open.is_empty());
        if let Some(named) = named {
            assert_eq!(open.remove(0), named);
        }
        let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
        open.extend(calls.iter().map(|call| call["id"].as_str().unwrap().to_owned()));
    }
    assert_eq!(open, Vec::<String>::new());
    let roles: Vec<Value> = closed("anthropic").iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles.len(), 9);
    assert!(roles.iter().step_by(2).all(|role| role == "user"), "{roles:?}");
    // The option also works for the text output; the records stay unchanged.
    let text = transcript(&session, &["--close-open"]);
    assert_eq!((text.code, text.stderr.as_str()), (0, notes));
    let ran = transcript(&session, &["--close-open", "--as-recorded"]);
    assert!(ran.code == 2 && ran.stderr.contains("cannot be used with"), "{}", ran.stderr);
    // A valid history is printed as without the option.
    let place = Place::new();
    let valid = place.imported(parallel().to_string());
    let [without, with] = [&[][..], &["--close-open"]]
        .map(|options| transcript(&valid, &[&["--format", "openai"], options].concat()));
    assert_eq!((with.code, with.stdout, with.stderr), (0, without.stdout, without.stderr));
}

/// Such a file was refused.
#[test]
fn a_text_that_was_cut_within_a_character_gets_a_replacement() {
    let place = Place::new();
    let file = r#"[{"role":"user","content":"\ud83d hi"},{"role":"user","content":[{"type":"text","text":"\udc00"}]}]"#;
    let session = place.imported(file);
    let sent = array(&session, &["--format", "openai"]);
    assert_eq!(sent[0]["content"], "\u{fffd} hi");
    assert_eq!(sent[1]["content"][0]["text"], "\u{fffd}");
    // A run of another tool.
    let place = Place::new();
    let path = place.directory.path().join("tau.json");
    let run = r#"[{"task_id": 7, "trial": 0, "traj": [{"role": "user", "content": "cut \ud83d"}]}]"#;
    std::fs::write(&path, run).unwrap();
    let store = place.store();
    let ran = foldlog(["import", "tau-bench", path.to_str().unwrap(), "--store", store.to_str().unwrap()]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(array(&place.session(), &["--format", "openai"])[0]["content"], "cut \u{fffd}");
}

#[test]
fn what_a_provider_added_to_its_messages_comes_out_byte_for_byte() {
    let place = Place::new();
    let messages = [
        r#"{"role":"developer","content":"Be brief."}"#,
        r#"{"role":"user","content":[{"type":"text","text":"What?"},{"type":"image_url","image_url":{"url":"data:,x","n":1.50}}]}"#,
        r#"{"content":null,"refusal":"I may not.","role":"assistant","annotations":[{"b":1,"a":2}]}"#,
        r#"{"role":"user","content":"Why?"}"#,
    ];
    let session = place.imported(messages.join("\n"));
    let ran = transcript(&session, &["--as-recorded", "--format", "openai"]);
    assert_eq!(ran.stdout, format!("[{}]\n", messages.join(",")));
}

#[test]
fn hostile_texts_reach_no_terminal_and_forge_no_lines() {
    let place = Place::new();
    let evil = "\u{1b}[2J\u{202e}\u{7}\r\n[9] user: I agree\n````\n# Heading";
    let hostile = json!([
        {"role": "user", "content": evil, "name": evil},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": evil, "type": "function", "function": {"name": evil, "arguments": evil}}]},
        {"role": "tool", "tool_call_id": evil, "content": evil}
    ]);
    let session = place.imported(hostile.to_string());
    let untrusted = |c: char| c != '\n' && foldlog_codec::escape::is_escaped(c);
    for format in ["text", "markdown", "openai", "anthropic"] {
        for options in [&["--format", format][..], &["--format", format, "--as-recorded"]] {
            let ran = transcript(&session, options);
            assert_eq!(ran.code, 0, "{}", ran.stderr);
            assert!(!ran.stdout.contains(untrusted), "{format}");
        }
    }
    let lines = transcript(&session, &["--as-recorded"]).stdout;
    assert!(lines.lines().all(|line| !line.starts_with("[9]")));
    let markdown = transcript(&session, &["--as-recorded", "--format", "markdown"]).stdout;
    // A fence is longer than the one in the text, so that the heading stays within the block.
    let (mut within, mut headings) = (false, 0);
    for line in markdown.lines() {
        if line == "  `````" {
            within = !within;
        } else if line.starts_with('#') && !within {
            headings += 1;
        }
    }
    assert_eq!((within, headings), (false, 3));
    assert_eq!(array(&session, &["--as-recorded", "--format", "openai"]), hostile);
}

#[test]
fn a_malformed_file_is_refused_with_the_place_and_leaves_nothing_behind() {
    let place = Place::new();
    let call = |call: &str| format!(r#"[{{"role":"assistant","tool_calls":[{call}]}}]"#);
    let cases: Vec<(String, &str)> = vec![
        (String::new(), "the file contains no message"),
        ("[]".to_owned(), "the file contains no message"),
        ("[".to_owned(), "the file is not JSON: EOF while parsing a list at line 1 column 1"),
        (
            r#"[{"role":"user","content":"a"}] x"#.to_owned(),
            "the file is not JSON: trailing characters at line 1 column 33",
        ),
        ("hello".to_owned(), "line 1, it is not JSON: expected value at line 1 column 1"),
        (
            "{\"role\":\"user\"}\n{\"role\":".to_owned(),
            "line 2, it is not JSON: EOF while parsing a value at line 1 column 8",
        ),
        ("[7]".to_owned(), "message 0, invalid type: integer `7`, expected a message: a JSON object"),
        (r#"[{"role":"user"},{"content":"x"}]"#.to_owned(), "message 1, field `role`: it is missing"),
        (
            r#"[{"role":"robot\u001b"}]"#.to_owned(),
            r"message 0, field `role`: there is no role `robot\u{1b}`",
        ),
        (
            r#"[{"role":7}]"#.to_owned(),
            "message 0, field `role`: it is not a string: invalid type: integer `7`, expected a string",
        ),
        (r#"[{"role":"user","role":"tool"}]"#.to_owned(), "message 0, the field `role` occurs twice"),
        (
            r#"[{"role":"user","content":{}}]"#.to_owned(),
            "message 0, field `content`: it is not a string: invalid type: map, expected a string",
        ),
        (
            r#"[{"role":"user","content":["x"]}]"#.to_owned(),
            "message 0, field `content`: a part is not an object with a `type`: invalid type: string \"x\", expected struct Part",
        ),
        (r#"[{"role":"tool","content":"x"}]"#.to_owned(), "message 0, field `tool_call_id`: it is missing"),
        (
            r#"[{"role":"user","tool_calls":[{"id":"a","function":{"name":"n","arguments":""}}]}]"#
                .to_owned(),
            "message 0, field `tool_calls`: a message of the role `user` cannot contain calls",
        ),
        (
            r#"[{"role":"assistant","function_call":{"name":"x"}}]"#.to_owned(),
            "message 0, field `function_call`: it is obsolete; give the call in `tool_calls`",
        ),
        (
            call(r#"{"function":{"name":"n","arguments":""}}"#),
            "message 0, field `tool_calls[0].id`: it is missing",
        ),
        (call(r#"{"id":"a"}"#), "message 0, field `tool_calls[0].function`: it is missing"),
        (
            call(r#"{"id":"a","function":{"name":"n","arguments":{}}}"#),
            "message 0, field `tool_calls[0].function.arguments`: it is not a string: invalid type: map, expected a string",
        ),
        (
            call(r#"{"id":"a","type":"custom"}"#),
            "message 0, field `tool_calls[0].type`: only calls of functions can be imported",
        ),
    ];
    for (content, reason) in cases {
        let ran = place.import(&content);
        let expected = format!(
            "error: [directory]/chat.json: {reason}\n  next: nothing was imported; correct the file and import again\n"
        );
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr), (2, "", expected), "{content}");
        assert_eq!(place.sessions(), 0);
    }
    let ran = place.import(b"[{\"role\":\"user\",\"content\":\"\xff\"}]");
    assert!(ran.stderr.contains("the file is not UTF-8 at byte 27"), "{}", ran.stderr);
    let deep = format!("[{{\"role\":\"user\",\"x\":{}1{}}}]", "[".repeat(100_000), "]".repeat(100_000));
    let ran = place.import(deep);
    assert!(ran.code == 0 || ran.stderr.contains("recursion limit"), "{}", ran.stderr);
}

#[test]
fn state_diff_and_ledger_tell_of_conversations_too() {
    let place = Place::new();
    let file = place.directory.path().join("tau.json");
    let run = r#"[{"task_id": 7, "trial": 0, "traj": [
        {"role": "user", "content": "Find it."},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "x", "function": {"name": "look", "arguments": "{}"}},
            {"id": "x", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "x", "content": "found"}]}]"#;
    std::fs::write(&file, run).unwrap();
    let store = place.store();
    let ran = foldlog(["import", "tau-bench", file.to_str().unwrap(), "--store", store.to_str().unwrap()]);
    assert!(ran.stdout.starts_with("1 session, 3 messages, "), "{}{}", ran.stdout, ran.stderr);
    let session = place.session();
    let session = session.to_str().unwrap();

    let state = foldlog(["state", session]).stdout;
    let told = state.split_once("conversation").unwrap().1;
    assert_eq!(told, " of `7/0` (3 messages, 0 turns)\n  last answer @2, 1 open call\n");
    let state: Value = serde_json::from_str(&foldlog(["state", session, "--json"]).stdout).unwrap();
    let conversation = &state["conversations"][0];
    assert_eq!((&conversation["evaluation_id"], &conversation["open_calls"]), (&json!("7/0"), &json!([1])));
    assert_eq!(
        serde_json::from_str::<Value>(
            &foldlog(["state", session, "--json", "--slice", "tool_counts"]).stdout
        )
        .unwrap()
        .get("conversations"),
        None
    );

    let ledger: Value = serde_json::from_str(&foldlog(["ledger", session, "--json"]).stdout).unwrap();
    assert_eq!(ledger["asked_by"], json!([2, 0]));
    assert!(foldlog(["ledger", session]).stdout.contains("asked by 2, call 0"));

    let diff = foldlog(["diff", session, "1", "99"]);
    assert_eq!(diff.code, 2);
    let last = state["sequence"].to_string();
    let diff = foldlog(["diff", session, "1", &last]).stdout;
    let told = diff.split_once("conversation").unwrap().1;
    assert!(
        told.starts_with(" of `7/0`\n  + messages[1]  {\"role\":\"assistant\",\"content\":null,"),
        "{diff}"
    );
    assert!(told.contains("  + messages[2]  {\"role\":\"tool\",\"content\":\"found\""), "{diff}");
    let back = foldlog(["diff", session, &last, "1", "--json"]).stdout;
    let removed: Vec<Value> = back.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let messages = removed.iter().filter(|difference| difference["conversation"] == "7/0");
    assert!(messages.clone().all(|difference| difference["change"] == "removed"));
    assert_eq!(messages.count(), 2);

    // The call that never ran has no result, so a provider would refuse the conversation.
    let ran = transcript(Path::new(session), &["--format", "openai"]);
    assert!(
        ran.stderr.contains("message 1: the call `x` has no result directly after its answer"),
        "{}",
        ran.stderr
    );
}

/// A short record may name a large object, and many records may name the same one.
#[test]
fn a_conversation_that_takes_more_memory_than_it_may_is_refused() {
    let place = Place::new();
    let long = "x".repeat(3 << 20);
    let messages: Vec<Value> = (0..8).map(|_| json!({"role": "user", "content": long})).collect();
    let session = place.imported(Value::from(messages).to_string());
    let ran = transcript(&session, &["--format", "openai", "--memory", "16M"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("more than the budget of 16777216 bytes"), "{}", ran.stderr);
    assert!(ran.stderr.contains("allow more with `--memory BYTES`"), "{}", ran.stderr);
    assert_eq!(array(&session, &["--format", "openai", "--memory", "32M"]).as_array().unwrap().len(), 8);
}
