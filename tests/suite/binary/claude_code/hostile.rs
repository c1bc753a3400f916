//! Transcripts written to harm their reader, and files that are no transcripts.

use std::time::{Duration, Instant};

use super::*;

#[test]
fn nothing_in_a_transcript_reaches_a_terminal_raw() {
    let place = Place::new();
    let evil = "\u{1b}[31m\u{202e}\u{9b}\r\n\u{7}";
    let mut named = assistant(evil, evil, 2, evil, call(evil, evil, json!({"prompt": evil})));
    named["agentId"] = evil.into();
    let lines = [
        user("u1", evil, 1, evil),
        named,
        result("r1", evil, 3, evil, evil),
        of_agent(evil, user("s1", "", 3, "lost")),
        user("r1", "u1", 4, evil),
        json!({"type": evil, "uuid": evil, "timestamp": evil}),
    ];
    let file = place.write("s\u{1b}[31m.jsonl", text(&lines));
    for options in [&[][..], &["--json"]] {
        let ran = place.run(std::slice::from_ref(&file), options);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.stdout.contains("31m"));
        let printed = ran.stdout + &ran.stderr;
        assert!(!printed.contains(['\u{1b}', '\u{202e}', '\u{9b}', '\r', '\u{7}']), "{printed:?}");
    }
    for session in place.sessions() {
        let session = session.to_str().unwrap();
        for verb in [
            &["transcript", session, "--evaluation", "s\u{1b}[31m"][..],
            &["ledger", session],
            &["show", session],
        ] {
            let ran = foldlog(verb.iter().copied());
            let printed = ran.stdout + &ran.stderr;
            assert!(!printed.contains(['\u{1b}', '\u{202e}', '\u{9b}', '\r', '\u{7}']), "{printed:?}");
        }
    }
}

#[test]
fn huge_ids_and_deep_nesting_are_kept_as_they_are() {
    let place = Place::new();
    let huge = "i".repeat(1 << 20);
    let deep = "[".repeat(200_000) + &"]".repeat(200_000);
    let object = r#"{"a":"#.repeat(100_000) + "1" + &"}".repeat(100_000);
    let lines = [
        format!(
            r#"{{"type":"user","uuid":"{huge}","message":{{"role":"user","content":{deep}}},"x":{object}}}"#
        ),
        format!(
            r#"{{"type":"assistant","uuid":"a","parentUuid":"{huge}","message":{{"id":"{huge}","content":[{{"type":"tool_use","id":"{huge}","name":"n","input":{object}}}]}}}}"#
        ),
        format!(
            r#"{{"type":"user","uuid":"b","parentUuid":"a","message":{{"content":[{{"type":"tool_result","tool_use_id":"{huge}","content":{deep}}}]}}}}"#
        ),
        format!(r#"{{"type":{deep},"uuid":{object}}}"#),
        deep.clone(),
        format!(r#"{{"type":"user","uuid":"d","parentUuid":"{huge}-","message":{object}}}"#),
        format!(r#"{{"type":"user","uuid":"e","parentUuid":"{huge}-","message":{{"content":"x"}}}}"#),
        format!(r#"{{"type":"file-history-snapshot","snapshot":{{"trackedFileBackups":{object}}}}}"#),
    ];
    let file = place.write("s.jsonl", lines.join("\n"));
    let imported = place.import(std::slice::from_ref(&file));
    let kinds: Vec<&str> = imported.found().iter().map(|(kind, ..)| *kind).collect();
    assert_eq!(kinds, ["malformed_line", "dangling_parent", "dangling_parent"]);
    // The output for people shows the start of an id.
    let plain = place.run(&[file], &[]).stdout;
    assert!(plain.len() < 4000, "{}", plain.len());
    fs::remove_dir_all(place.path("store")).unwrap();
    place.import(&[place.path("in/s.jsonl")]);
    place.comes_out();
    let session = place.session();
    for format in ["text", "markdown", "openai", "anthropic"] {
        let ran = foldlog(["transcript", session.to_str().unwrap(), "--format", format]);
        assert!(ran.code == 0 || !ran.stderr.is_empty(), "{format}");
    }
}

#[test]
fn a_line_of_20_mb_is_one_message() {
    let place = Place::new();
    let long = "0123456789".repeat(2 << 20);
    let lines = [
        user("u1", "", 1, "read it"),
        assistant("a1", "u1", 2, "m1", call("c1", "Read", json!({"path": "long"}))),
        result("r1", "a1", 3, "c1", long.clone()),
        assistant("a2", "r1", 4, "m2", says(&long)),
    ];
    let imported = place.lines(&lines);
    assert_eq!(imported.found(), []);
    let session = place.session();
    let ran = foldlog(["transcript", session.to_str().unwrap(), "--json", "--memory", "1G"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let last: Value = serde_json::from_str(ran.stdout.lines().last().unwrap()).unwrap();
    assert!(last["content"] == long.as_str());
    let out = place.path("out");
    export(&session, &out);
    assert_eq!(tree(&out), tree(&place.path("in")));
}

#[test]
fn time_and_memory_grow_with_the_lines_and_not_with_their_square() {
    // Many loose parts, children of one node, rewinds of one node, results of one call: quadratic
    // work on any would take minutes.
    let place = Place::new();
    let count = 6_000;
    let id = |number: u32| format!("u{number}");
    let loose = (0..count).map(|number| user(&id(number), if number % 2 == 0 { "gone" } else { "" }, 1, "x"));
    place.write("loose.jsonl", text(&loose.collect::<Vec<_>>()));
    let chain = (0..count).map(|number| user(&id(number), &id(number + 1), 1, "x"));
    place.write("upwards.jsonl", text(&chain.collect::<Vec<_>>()));
    let beside = (1..count).map(|number| user(&id(number), &id(0), 7, "x"));
    let beside: Vec<Value> = std::iter::once(user("u0", "", 0, "x")).chain(beside).collect();
    place.write("beside.jsonl", text(&beside));
    let ring = (0..count).map(|number| user(&id(number), &id((number + 1) % count), 1, "x"));
    place.write("ring.jsonl", text(&ring.collect::<Vec<_>>()));
    let mut rewinds: Vec<Value> = vec![user("u0", "", 0, "x")];
    rewinds.extend((1..count).map(|number| user(&id(number), &id(0), number, "x")));
    place.write("rewinds.jsonl", text(&rewinds));
    // Calls of one answer, with rewinds between their results.
    let calls = (0..count / 3).map(|number| call(&format!("c{number}"), "n", json!({}))[0].clone());
    let mut answered = vec![assistant("u0", "", 0, "m", calls.collect())];
    for number in 0..count / 3 {
        let (last, own) = (id(2 * number), id(2 * number + 2));
        answered.push(user(&format!("v{number}"), &last, 3 * number + 1, "x"));
        answered.push(result(&own, &last, 3 * number + 2, &format!("c{number}"), "x"));
    }
    place.write("answered.jsonl", text(&answered));
    for name in ["answered", "rewinds", "loose", "upwards", "beside", "ring"] {
        let since = Instant::now();
        let imported = place.import(&[place.path("in").join(format!("{name}.jsonl"))]);
        let messages = if name == "answered" { count / 3 * 2 + 1 } else { count };
        assert_eq!(imported.count("messages"), u64::from(messages), "{name}");
        let rewinds = match name {
            "answered" => count / 3,
            "rewinds" => count - 2,
            _ => 0,
        };
        assert_eq!(imported.count("rewinds"), u64::from(rewinds), "{name}");
        assert!(since.elapsed() < Duration::from_secs(60), "{name}");
    }
}

#[test]
fn what_is_no_transcript_is_refused_and_leaves_nothing_behind() {
    let place = Place::new();
    let good = place.write("good.jsonl", text(&parallel()));
    for (content, told) in [
        ("", "the file contains no line of a transcript"),
        ("\n\n", "the file contains no line of a transcript"),
        ("hello\n{}\n[]", "the file contains no line of a transcript"),
    ] {
        let bad = place.write("bad.jsonl", content);
        let ran = place.run(&[good.clone(), bad], &[]);
        assert_eq!(ran.code, 2, "{content:?}");
        assert!(ran.stderr.contains(told), "{}", ran.stderr);
    }
    for path in [place.path("gone.jsonl"), place.path("in")] {
        assert_eq!(place.run(&[good.clone(), path], &[]).code, 2);
    }
    // Data too large for a log is refused by name.
    let id = "i".repeat(17 << 20);
    let lines = [assistant("a1", "", 1, "m1", call(&id, "n", json!({}))), result("r1", "a1", 2, &id, "x")];
    let store = place.path("store");
    let ran = place.run(&[place.write("large.jsonl", text(&lines))], &[]);
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    let sessions = foldlog(["sessions", store.to_str().unwrap(), "--json"]);
    assert_eq!((sessions.code, sessions.stdout.as_str()), (0, ""));
    fs::remove_dir_all(store).unwrap();
    let twice = place.run(&[good.clone(), good], &[]);
    assert!(twice.stderr.contains("another file of the same session has the same name"), "{}", twice.stderr);
    assert!(!place.path("store").exists());
}
