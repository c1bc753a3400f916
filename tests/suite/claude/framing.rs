//! Parsing of the program's lines, without a program.

use std::io::{self, BufReader, Read};

use foldlog_agent::EvaluationPhase;
use foldlog_claude::{ClaudeBlock, ClaudeMessage, ClaudeMessageBody, ClientError, ErrorKind, read_stream};
use serde_json::json;

fn read(bytes: &[u8]) -> Vec<Result<ClaudeMessage, ClientError>> {
    read_stream(bytes, 1 << 20).collect()
}

fn messages(bytes: &[u8]) -> Vec<ClaudeMessage> {
    read(bytes).into_iter().map(Result::unwrap).collect()
}

#[test]
fn blank_lines_and_noise_are_skipped_and_a_cut_tail_is_dropped() {
    let noise = "n".repeat(3 << 20);
    let stream = format!(
        "\n  \r\nnpm warn\n{noise}\n[1]\n \t{{\"type\":\"a\"}}\r\n\n{{\"type\":\"b\"}}\n{{\"type\":\"c"
    );
    let messages = messages(stream.as_bytes());
    let [a, b] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!((a.index, a.line()), (0, r#"{"type":"a"}"#));
    assert_eq!((b.index, b.line()), (1, r#"{"type":"b"}"#));
}

#[test]
fn a_last_line_that_is_whole_needs_no_newline() {
    let [message] = &messages(br#"{"type":"result","result":"42"}"#)[..] else { panic!("one message") };
    assert_eq!(message.result().unwrap().result.as_deref(), Some("42"));
}

#[test]
fn a_line_that_is_no_object_is_an_error_with_its_place_and_reading_goes_on() {
    let stream = b"noise\n{\"type\":\"a\"}\n{\"type\":\n{\"type\":\"\xff\"}\n{\"type\":\"b\"}\n";
    let read = read(stream);
    let [Ok(_), Err(broken), Err(not_text), Ok(last)] = &read[..] else { panic!("{read:?}") };
    assert_eq!(broken.kind(), ErrorKind::MalformedLine { line: 3, offset: 19 });
    assert_eq!(not_text.kind(), ErrorKind::MalformedLine { line: 4, offset: 28 });
    assert_eq!(broken.phase(), EvaluationPhase::Response);
    assert!(!broken.is_retryable());
    assert_eq!(last.line(), r#"{"type":"b"}"#);
}

#[test]
fn a_line_beyond_the_limit_ends_the_stream_before_it_is_held() {
    let claimed = 64 << 20;
    let mut stream = (&b"{\"type\":\"a\"}\n{"[..]).chain(io::repeat(b'x').take(claimed));
    let read: Vec<_> = read_stream(BufReader::new(&mut stream), 1000).collect();
    let [Ok(_), Err(error)] = &read[..] else { panic!("{read:?}") };
    assert_eq!(error.kind(), ErrorKind::LineTooLong { line: 2, offset: 13 });
    assert!(error.to_string().contains("line_limit"), "{error}");
    let taken = claimed - stream.into_inner().1.limit();
    assert!(taken < 100_000, "{taken} bytes were taken");
}

/// The program cuts texts by UTF-16 units, and writes the remaining half of a pair as an escape.
#[test]
fn half_a_surrogate_pair_is_read_as_a_replacement_and_kept_in_the_line() {
    let line = r#"{"type":"result","result":"\\ud83d a\ud83d\u0041 \ud83d\ude00 \ude00"}"#;
    let [message] = &messages(line.as_bytes())[..] else { panic!("one message") };
    assert_eq!(message.result().unwrap().result.as_deref(), Some("\\ud83d a\u{fffd}A \u{1f600} \u{fffd}"));
    assert_eq!(message.line(), line);
}

#[test]
fn what_is_not_known_of_messages_and_blocks_is_kept() {
    let stream = json!({"type": "rate_limit_event", "rate_limit_info": {"status": "allowed"}}).to_string()
        + "\n"
        + &json!({"type": "system", "subtype": "task_started", "task_id": "t"}).to_string()
        + "\n{\"no\":\"type\"}\n"
        + &json!({"type": "assistant", "message": {"id": "m", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "a"},
            {"type": "tool_use", "id": "t", "name": "Read", "input": {"path": "p"}},
            {"type": "server_tool_use", "id": "t"},
            {"type": "text"},
            7,
        ]}})
        .to_string();
    let messages = messages(stream.as_bytes());
    let [limit, task, untyped, answer] = &messages[..] else { panic!("{messages:?}") };
    assert!(
        matches!(&limit.body, ClaudeMessageBody::Other { kind, subtype: None } if kind == "rate_limit_event")
    );
    assert_eq!(limit.json()["rate_limit_info"]["status"], "allowed");
    assert!(
        matches!(&task.body, ClaudeMessageBody::Other { subtype: Some(subtype), .. } if subtype == "task_started")
    );
    assert!(matches!(&untyped.body, ClaudeMessageBody::Other { kind, .. } if kind.is_empty()));
    let ClaudeMessageBody::Assistant(answer) = &answer.body else { panic!("{answer:?}") };
    let expected = [
        ClaudeBlock::Thinking { thinking: "hm".into(), signature: Some("s".into()) },
        ClaudeBlock::Text("a".into()),
        ClaudeBlock::ToolUse { id: "t".into(), name: "Read".into(), input: json!({"path": "p"}) },
        ClaudeBlock::Other(json!({"type": "server_tool_use", "id": "t"})),
        ClaudeBlock::Other(json!({"type": "text"})),
        ClaudeBlock::Other(json!(7)),
    ];
    assert_eq!(answer.content, expected);
}

/// A session's file is rebuilt from these lines, so the order of fields and the formats of numbers
/// must stay the program's.
#[test]
fn mirrored_lines_are_kept_byte_for_byte() {
    let entries = [r#"{"z":1.0,"a":[1e21, 12345678901234567890123],"s":"\ud83d"}"#, r#"{"b":"\u0041"}"#];
    let line = format!(
        r#"{{"type":"transcript_mirror","filePath":"/p.jsonl","entries":[{},{}]}}"#,
        entries[0], entries[1]
    );
    let [message] = &messages(line.as_bytes())[..] else { panic!("one message") };
    let ClaudeMessageBody::TranscriptMirror(mirror) = &message.body else { panic!("{message:?}") };
    assert_eq!(mirror.file_path, "/p.jsonl");
    assert_eq!(mirror.entries.iter().map(|entry| entry.get()).collect::<Vec<_>>(), entries);
}

/// A recorded stream of version 2.1.100, shortened.
#[test]
fn a_recorded_stream_is_read_without_a_program() {
    let recorded = concat!(
        r#"{"type":"system","subtype":"init","cwd":"/w","session_id":"b550","tools":["Read","mcp__wink__search"],"mcp_servers":[{"name":"wink","status":"connected"}],"model":"claude-test","permissionMode":"bypassPermissions","claude_code_version":"2.1.100","apiKeySource":"ANTHROPIC_API_KEY","uuid":"u"}"#,
        "\n",
        r#"{"type":"assistant","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-test","content":[{"type":"tool_use","id":"toolu_1a","name":"mcp__wink__search","input":{"query":"a"}}],"usage":{"input_tokens":10,"output_tokens":1}},"parent_tool_use_id":null,"session_id":"b550","uuid":"v"}"#,
        "\n",
        r#"{"type":"user","message":{"role":"user","content":[{"tool_use_id":"toolu_1a","type":"tool_result","content":[{"type":"text","text":"found"}]}]},"parent_tool_use_id":null,"session_id":"b550","uuid":"w","tool_use_result":[{"type":"text","text":"found"}]}"#,
        "\n",
        r#"{"type":"result","subtype":"success","is_error":false,"duration_ms":103,"num_turns":3,"result":"done","stop_reason":"end_turn","session_id":"b550","total_cost_usd":0.00066,"usage":{"input_tokens":20,"cache_creation_input_tokens":1,"cache_read_input_tokens":2,"output_tokens":40,"service_tier":"standard"},"modelUsage":{"claude-test":{"costUSD":0.00066}},"permission_denials":[],"terminal_reason":"completed","uuid":"x"}"#,
        "\n",
    );
    let messages = messages(recorded.as_bytes());
    let [init, answer, told, result] = &messages[..] else { panic!("{messages:?}") };
    let ClaudeMessageBody::Init(init) = &init.body else { panic!("{init:?}") };
    assert_eq!((init.session_id.as_str(), init.version.as_deref()), ("b550", Some("2.1.100")));
    assert_eq!(init.mcp_servers, [("wink".to_owned(), "connected".to_owned())]);
    assert!(
        matches!(&answer.body, ClaudeMessageBody::Assistant(answer) if answer.id.as_deref() == Some("msg_1"))
    );
    assert!(
        matches!(&told.body, ClaudeMessageBody::User(user) if user.tool_use_result.is_some() && user.content.len() == 1)
    );
    let result = result.result().unwrap();
    let usage = result.usage.unwrap();
    assert_eq!((usage.input_tokens, usage.output_tokens), (20, 40));
    assert_eq!((usage.cache_creation_input_tokens, usage.cache_read_input_tokens), (1, 2));
    assert_eq!((result.failure(), result.total_cost_usd), (None, Some(0.00066)));
}
