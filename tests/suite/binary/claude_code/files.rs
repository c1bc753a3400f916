//! Sub-agents and the files of a transcript: which call a child belongs to, and the exported files.

use super::*;

/// Returns a transcript whose call starts a sub-agent, and the sub-agent's own lines.
fn delegating() -> (Vec<Value>, Vec<Value>) {
    let mut finished = result("r1", "a1", 9, "c1", says("the files are fine"));
    finished["toolUseResult"] = json!({"status": "completed", "agentId": "x1", "prompt": "look"});
    let main = vec![
        user("u1", "", 1, "Check the files."),
        assistant("a1", "u1", 2, "m1", call("c1", "Agent", json!({"prompt": "look", "description": "d"}))),
        finished,
        assistant("a2", "r1", 10, "m2", says("All fine.")),
    ];
    let agent = vec![
        of_agent("x1", user("s1", "", 3, "look")),
        of_agent("x1", assistant("s2", "s1", 4, "n1", call("k1", "Read", json!({"path": "a"})))),
        of_agent("x1", result("s3", "s2", 5, "k1", "content")),
        of_agent("x1", assistant("s4", "s3", 6, "n2", says("the files are fine"))),
    ];
    (main, agent)
}

#[test]
fn a_sub_agent_is_a_child_session_of_the_call_that_started_it() {
    let place = Place::new();
    let (main, agent) = delegating();
    let file = place.write("s.jsonl", text(&main));
    place.write("s/subagents/agent-x1.jsonl", text(&agent));
    let imported = place.import(&[file]);
    assert_eq!((imported.count("agents"), imported.count("sessions"), imported.found()), (1, 2, vec![]));
    assert_eq!(said(&place.session()), ["Check the files.", "-", "the files are fine", "All fine."]);
    assert_eq!(said(&place.child()), ["look", "-", "content", "the files are fine"]);
    let ledger = ledger(&place.session());
    assert_eq!((ledger.len(), &ledger[0]["call_id"]), (1, &json!("c1")));
    // The child names the session and the operation.
    let opened = foldlog(["show", place.child().to_str().unwrap(), "--kind", "opened", "--json"]).stdout;
    let opened: Value = serde_json::from_str(&opened).unwrap();
    let id = place.session().file_name().unwrap().to_str().unwrap().to_owned();
    let parent = json!({"how": "child", "operation": ledger[0]["operation"], "session": id});
    assert_eq!(opened["parent"], parent);
    place.comes_out();
}

#[test]
fn lines_of_a_sub_agent_within_the_transcript_are_found_by_their_prompt() {
    let place = Place::new();
    let (mut main, agent) = delegating();
    main[2].as_object_mut().unwrap().remove("toolUseResult");
    // Neither the lines nor the result name the agent.
    let agent = agent.into_iter().map(|mut line| {
        line.as_object_mut().unwrap().remove("agentId");
        line
    });
    main.splice(2..2, agent);
    let imported = place.lines(&main);
    assert_eq!((imported.count("agents"), imported.found()), (1, vec![]));
    assert_eq!(said(&place.session()), ["Check the files.", "-", "the files are fine", "All fine."]);
    assert_eq!(said(&place.child()), ["look", "-", "content", "the files are fine"]);
    place.comes_out();
}

#[test]
fn two_sub_agents_of_one_prompt_are_children_of_a_call_each() {
    let place = Place::new();
    let prompt = json!({"prompt": "look"});
    let mut lines = vec![
        user("u1", "", 1, "Check twice."),
        assistant("a1", "u1", 2, "m1", call("c1", "Task", prompt.clone())),
        assistant("a2", "a1", 2, "m1", call("c2", "Task", prompt)),
    ];
    for (agent, second) in [("y", 3), ("z", 4)] {
        let uuid = |name: &str| format!("{agent}{name}");
        lines.push(of_agent(agent, user(&uuid("1"), "", second, "look")));
        lines.push(of_agent(agent, assistant(&uuid("2"), &uuid("1"), second, &uuid("m"), says(agent))));
    }
    lines.push(result("r1", "a1", 8, "c1", "y"));
    lines.push(result("r2", "a2", 9, "c2", "z"));
    let imported = place.lines(&lines);
    assert_eq!((imported.count("agents"), imported.count("rewinds")), (2, 0));
    let children = &place.sessions()[1..];
    let mut all: Vec<Vec<String>> = children.iter().map(|child| said(child)).collect();
    all.sort();
    assert_eq!(all, [["look", "y"], ["look", "z"]]);
    place.comes_out();

    // A call that is known to have started one of them did not start the other one.
    let place = Place::new();
    lines[7]["toolUseResult"] = json!({"agentId": "y"});
    assert_eq!(place.lines(&lines).count("agents"), 2);
    let of = |agent: &str| {
        let is_agents = |session: &&PathBuf| said(session) == ["look", agent];
        let session = place.sessions().into_iter().find(|it| is_agents(&it)).unwrap();
        let opened = foldlog(["show", session.to_str().unwrap(), "--kind", "opened", "--json"]).stdout;
        serde_json::from_str::<Value>(&opened).unwrap()["parent"]["operation"].clone()
    };
    let ledger = ledger(&place.session());
    assert_eq!((of("y"), of("z")), (ledger[0]["operation"].clone(), ledger[1]["operation"].clone()));
}

#[test]
fn sub_agents_start_others_and_progress_names_their_call() {
    let place = Place::new();
    let (mut main, mut agent) = delegating();
    main[2].as_object_mut().unwrap().remove("toolUseResult");
    let mut progress = line("progress", "p1", "a1", 3, Value::Null);
    progress["parentToolUseID"] = "c1".into();
    progress["data"] = json!({"type": "agent_progress", "agentId": "x1"});
    main.insert(2, progress);
    agent[0]["message"]["content"] = "told otherwise".into();
    agent[2]["toolUseResult"] = json!({"agentId": "x2"});
    let inner = [
        of_agent("x2", user("i1", "", 4, "read it")),
        of_agent("x2", assistant("i2", "i1", 5, "i", says("read"))),
    ];
    let file = place.write("s.jsonl", text(&main));
    place.write("s/subagents/agent-x1.jsonl", text(&agent));
    place.write("s/subagents/agent-x2.jsonl", text(&inner));
    let imported = place.import(&[file]);
    assert_eq!((imported.count("agents"), imported.count("sessions"), imported.found()), (2, 3, vec![]));
    let inner = place.sessions().into_iter().find(|session| said(session).last().unwrap() == "read").unwrap();
    let opened = foldlog(["show", inner.to_str().unwrap(), "--kind", "opened", "--json"]).stdout;
    let agent = place.sessions().into_iter().find(|session| said(session)[0] == "told otherwise").unwrap();
    assert!(opened.contains(agent.file_name().unwrap().to_str().unwrap()), "{opened}");
    place.comes_out();
}

#[test]
fn a_sub_agent_without_a_call_or_a_result_is_reported_and_kept() {
    let place = Place::new();
    let (main, agent) = delegating();
    let file = place.write("s.jsonl", text(&main[..1]));
    place.write("s/subagents/agent-x1.jsonl", text(&agent));
    let imported = place.import(std::slice::from_ref(&file));
    assert_eq!(imported.found(), [("agent_without_call", "s/subagents/agent-x1.jsonl", 1)]);
    let session = place.session();
    let messages = messages(&session, &["--evaluation", "x1", "--as-recorded"]);
    assert_eq!(messages.len(), 4);
    place.comes_out();

    // The call is recorded, and the transcript ends before its result.
    let place = Place::new();
    let file = place.write("s.jsonl", text(&main[..2]));
    place.write("s/subagents/agent-x1.jsonl", text(&agent));
    let imported = place.import(&[file]);
    assert_eq!(imported.found(), [("call_without_result", "s/subagents/agent-x1.jsonl", 1)]);
    assert_eq!(ledger(&place.session())[0]["outcome"], "failed");
    assert_eq!(said(&place.child()).len(), 4);
    place.comes_out();
}

#[test]
fn a_sub_agent_whose_call_was_abandoned_goes_with_it() {
    let place = Place::new();
    let (mut main, agent) = delegating();
    main.push(user("u2", "u1", 20, "Do something else."));
    let file = place.write("s.jsonl", text(&main));
    place.write("s/subagents/agent-x1.jsonl", text(&agent));
    let imported = place.import(&[file]);
    assert_eq!((imported.count("rewinds"), imported.count("agents")), (1, 1));
    assert_eq!(ledger(&place.session())[0]["outcome"], "abandoned");
    assert_eq!(said(&place.session()), ["Check the files.", "Do something else."]);
    place.comes_out();
}

#[test]
fn sub_agents_that_start_each_other_are_conversations_of_their_own() {
    let place = Place::new();
    let started = |agent: &str, other: &str, call_id: &str| {
        let mut finished =
            of_agent(agent, result(&format!("{agent}3"), &format!("{agent}2"), 3, call_id, "r"));
        finished["toolUseResult"] = json!({"agentId": other});
        let asks = assistant(
            &format!("{agent}2"),
            &format!("{agent}1"),
            2,
            agent,
            call(call_id, "Agent", json!({})),
        );
        [of_agent(agent, user(&format!("{agent}1"), "", 1, "go")), of_agent(agent, asks), finished]
    };
    let mut lines = vec![user("u1", "", 1, "one")];
    lines.extend(started("x", "y", "c1"));
    lines.extend(started("y", "x", "c2"));
    lines.extend(started("z", "z", "c3"));
    let imported = place.lines(&lines);
    let found = imported.found();
    assert_eq!(found, [("agent_without_call", "s.jsonl", 2), ("agent_without_call", "s.jsonl", 8)]);
    place.comes_out();
}

#[test]
fn files_come_out_byte_for_byte_whatever_is_in_them() {
    let place = Place::new();
    let odd = b"\xef\xbb\xbf{\"type\":\"summary\", \"summary\":\"x\",\"leafUuid\":\"u1\"}\r\n\
        \n  \nno json\n[1]\n\"text\"\n{\"type\":\"new\",\"uuid\":\"n\",\"unheard\":[{}],\"a\":1,\"a\":2}\n\
        {\"no\":\"type\"}\n\xff\xfe\n{\"type\":5}\n";
    let lines = [odd.as_slice(), text(&parallel()).as_bytes(), b"{\"type\":\"us\xc3"].concat();
    let file = place.write("a b\u{e9}.jsonl", lines);
    place.write("a b\u{e9}/subagents/agent-empty.jsonl", "");
    place.write("a b\u{e9}/subagents/agent-torn.jsonl", "{");
    let imported = place.import(&[file]);
    let kinds: Vec<(&str, u64)> = imported.found().iter().map(|(kind, _, line)| (*kind, *line)).collect();
    let malformed = [4, 5, 6, 9].map(|line| ("malformed_line", line));
    assert_eq!(kinds[..4], malformed);
    assert_eq!(kinds[4..], [("torn_line", 17), ("torn_line", 1)]);
    assert_eq!(said(&place.session()).len(), 5);
    place.comes_out();
}

#[test]
fn every_prefix_of_a_transcript_is_imported_and_comes_out() {
    let mut lines = parallel();
    lines.push(user("u2", "u1", 8, "again"));
    let whole = text(&lines);
    let ends: Vec<usize> = whole.match_indices('\n').map(|(at, _)| at + 1).collect();
    let last = ends[ends.len() - 2];
    let cuts = ends.iter().copied().chain(last + 1..whole.len());
    let place = Place::new();
    let mut torn = 0;
    for cut in cuts {
        let file = place.write("s.jsonl", &whole[..cut]);
        fs::remove_dir_all(place.path("store")).ok();
        let imported = place.import(&[file]);
        torn += imported.found().iter().filter(|(kind, ..)| *kind == "torn_line").count();
        assert!(imported.found().iter().all(|(kind, ..)| *kind == "torn_line"));
        let complete =
            whole[..cut].lines().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count();
        assert_eq!(imported.count("rewinds"), u64::from(complete == 7));
        let said = said(&place.session());
        let live = if complete == 7 { vec!["Oslo and Rome?", "again"] } else { vec!["Oslo and Rome?"] };
        assert!(said.iter().map(String::as_str).take(live.len()).eq(live), "{said:?}");
        let out = place.path("out");
        fs::remove_dir_all(&out).ok();
        export(&place.session(), &out);
        assert_eq!(fs::read(out.join("s.jsonl")).unwrap(), whole.as_bytes()[..cut]);
    }
    // Only the cut before the newline leaves a whole object.
    assert_eq!(torn, whole.len() - last - 2);
    let ran = place.run(&[place.write("s.jsonl", "")], &[]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("the file contains no line of a transcript"), "{}", ran.stderr);
}

#[test]
fn nothing_is_written_out_of_the_directory_or_over_a_file() {
    use foldlog::{SessionOptions, Store, Value as Stored};
    use foldlog_cli::runs::claude_code::{RawTranscriptLine, TranscriptFile, types};

    let place = Place::new();
    let store = Store::open(place.path("store")).unwrap();
    let outside = place.path("outside");
    let absolute = outside.to_str().unwrap().to_owned();
    for name in [
        "../outside",
        "a/../../outside",
        &absolute,
        "",
        ".",
        "..",
        "a//b",
        "a/./b",
        "/",
        "a/",
        "a\0b",
        "\u{1b}[31m/..",
    ] {
        let session = store.create_with(&types().unwrap(), SessionOptions::default()).unwrap();
        let kept = |file, name: &str| TranscriptFile { file, name: name.to_owned() };
        session.dispatch(kept(0, "good.jsonl")).unwrap();
        session.dispatch(kept(1, name)).unwrap();
        let line = |file| RawTranscriptLine { file, line: 1, raw: Stored::from("{}"), ended: true };
        session.dispatch(line(0)).unwrap();
        session.dispatch(line(1)).unwrap();
        let dir = session.dir().to_owned();
        session.close().unwrap();
        let out = place.path("out");
        let (out, dir) = (out.to_str().unwrap(), dir.to_str().unwrap());
        let ran = foldlog(["export", dir, "--format", "claude-code", "--out", out]);
        assert_eq!(ran.code, 2, "{name:?}");
        assert!(
            ran.stderr.starts_with("error: the session names a file outside of the directory: `"),
            "{}",
            ran.stderr
        );
        assert!(!ran.stderr.contains('\u{1b}'));
        // Not even the file with a valid name is written.
        assert!(!place.path("out").exists() && !outside.exists(), "{name:?}");
    }
    fs::remove_dir_all(place.path("store")).unwrap();

    let file = place.write("s.jsonl", text(&parallel()));
    place.write("s/subagents/agent-x.jsonl", "{}\n");
    place.import(&[file]);
    let session = place.session();
    let refused = |out: &Path| {
        let (out, session) = (out.to_str().unwrap(), session.to_str().unwrap());
        let ran = foldlog(["export", session, "--format", "claude-code", "--out", out]);
        assert_eq!(ran.code, 2, "{}", ran.stdout);
        ran.stderr
    };
    let out = place.path("there");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("s.jsonl"), "mine").unwrap();
    assert!(refused(&out).contains("s.jsonl"));
    assert_eq!(fs::read_to_string(out.join("s.jsonl")).unwrap(), "mine");
    // A link in place of a directory is not followed.
    let (out, elsewhere) = (place.path("linked"), place.path("elsewhere"));
    fs::create_dir(&out).unwrap();
    fs::create_dir_all(elsewhere.join("subagents")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, out.join("s")).unwrap();
    refused(&out);
    assert_eq!(fs::read_dir(elsewhere.join("subagents")).unwrap().count(), 0);
    // A link in place of a file is not written through.
    let out = place.path("to a file");
    fs::create_dir(&out).unwrap();
    std::os::unix::fs::symlink(place.path("new"), out.join("s.jsonl")).unwrap();
    refused(&out);
    assert!(!place.path("new").exists());
}

#[test]
fn without_a_directory_a_transcript_of_one_file_is_printed_and_anything_else_refused() {
    let place = Place::new();
    let mut lines = parallel();
    lines[0]["message"]["content"] = "red \u{9b}31m \u{202e}".into();
    place.lines(&lines);
    let session = place.session();
    let session = session.to_str().unwrap();
    let ran = foldlog(["export", session, "--format", "claude-code"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let printed: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(printed, lines);
    assert!(!ran.stdout.contains(['\u{9b}', '\u{202e}']));
    for options in [&["--at", "1"][..], &["--out", "x", "--at", "1"]] {
        let ran = foldlog([&["export", session, "--format", "claude-code"], options].concat());
        assert_eq!(ran.code, 2);
    }
    assert_eq!(foldlog(["export", session, "--format", "jsonl", "--out", "x"]).code, 2);

    let place = Place::new();
    let (main, agent) = delegating();
    let file = place.write("s.jsonl", text(&main));
    place.write("s/subagents/agent-x1.jsonl", text(&agent));
    place.import(&[file]);
    for (session, told) in [(place.session(), "2 files"), (place.child(), "contains no transcript")] {
        let ran = foldlog(["export", session.to_str().unwrap(), "--format", "claude-code"]);
        assert_eq!(ran.code, 2);
        assert!(ran.stderr.contains(told), "{}", ran.stderr);
    }
}
