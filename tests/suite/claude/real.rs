//! The real program, with a model that a loopback server plays: the reference for the stand-in.
//!
//! `FOLDLOG_CLAUDE_CLI` names the program: an executable, or a `cli.js` that `node` runs. Without
//! it, these tests are skipped. They install nothing, and connect only to the loopback server.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use foldlog_claude::{
    BridgedTool, Callbacks, ClaudeMessage, Client, ClientOptions, ErrorKind, FailureKind, HookCall,
    HookMatcher, HookReply, PermissionMode, ToolCall, ToolReply,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use super::stand_in::{call_results, mirrored, rest, result_text, turn, up_to_result};

/// The limit of a wait for another thread.
const LONG: Duration = Duration::from_secs(60);

/// Answers each request as its last message demands: `say X` with a text, `call NAME JSON` with a
/// call, `fail N` with a status; a result of a tool with the text `done`.
fn serve_model() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            std::thread::spawn(move || answer(stream));
        }
    });
    port
}

fn answer(stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        if header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (status, kind, text) = reply_to(&first, &request);
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        text.len()
    );
    let mut stream = stream;
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes())).ok()
}

fn reply_to(first: &str, request: &Value) -> (u16, &'static str, String) {
    if !first.starts_with("POST /v1/messages") || first.contains("count_tokens") {
        return (404, "application/json", "{}".to_owned());
    }
    // Since 2.1.330 the program adds messages of its own.
    let messages = request["messages"].as_array();
    let last = messages.and_then(|messages| messages.iter().rfind(|message| message["role"] != "system"));
    let last = last.map(|last| last["content"].clone()).unwrap_or_default();
    let blocks = last.as_array().cloned().unwrap_or_else(|| vec![json!({"type": "text", "text": last})]);
    let is_order = |text: &str| ["say ", "call ", "fail "].iter().any(|order| text.starts_with(order));
    // After an interrupt, the result of the call and the next prompt are one message.
    let order = blocks.iter().rev().find_map(|block| match block["text"].as_str() {
        Some(text) => is_order(text).then(|| text.trim().to_owned()),
        None => (block["type"] == "tool_result").then(|| "say done".to_owned()),
    });
    let order = order.unwrap_or_else(|| "say nothing".to_owned());
    let (verb, rest) = order.split_once(' ').unwrap_or_default();
    match verb {
        "fail" => {
            let error = json!({"type": "error", "error": {"type": "planned_error", "message": "planned"}});
            (rest.parse().unwrap_or(500), "application/json", error.to_string())
        }
        "call" => {
            let (name, input) = rest.split_once(' ').unwrap_or((rest, "{}"));
            let id = format!("toolu_{}", Uuid::new_v4().simple());
            let input: Value = serde_json::from_str(input).unwrap_or_default();
            (
                200,
                "text/event-stream",
                streamed(&json!({"type": "tool_use", "id": id, "name": name, "input": input})),
            )
        }
        _ => (200, "text/event-stream", streamed(&json!({"type": "text", "text": rest}))),
    }
}

/// Returns an answer of one block as a stream of events.
fn streamed(block: &Value) -> String {
    let id = format!("msg_{}", Uuid::new_v4().simple());
    let (start, delta, stop) = match block["type"].as_str() {
        Some("tool_use") => {
            let start = json!({"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}});
            let delta = json!({"type": "input_json_delta", "partial_json": block["input"].to_string()});
            (start, delta, "tool_use")
        }
        _ => {
            let delta = json!({"type": "text_delta", "text": block["text"]});
            (json!({"type": "text", "text": ""}), delta, "end_turn")
        }
    };
    let message = json!({"id": id, "type": "message", "role": "assistant", "model": "claude-test", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 10, "output_tokens": 1}});
    let events = [
        json!({"type": "message_start", "message": message}),
        json!({"type": "content_block_start", "index": 0, "content_block": start}),
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null},
            "usage": {"output_tokens": 20}}),
        json!({"type": "message_stop"}),
    ];
    let event =
        |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default());
    events.iter().map(event).collect()
}

/// The directories of the program.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(TempDir::new().unwrap());
        for directory in ["work", "home", "tmp", "config"] {
            fs::create_dir(place.0.path().join(directory)).unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Returns options that start the program, or `None` if it is not named.
fn options(place: &Place) -> Option<ClientOptions> {
    let Some(program) = std::env::var_os("FOLDLOG_CLAUDE_CLI") else {
        foldlog_test_support::skipped("FOLDLOG_CLAUDE_CLI names no program");
        return None;
    };
    let is_script = Path::new(&program).extension().is_some_and(|extension| extension == "js");
    let mut options = if is_script {
        let leading_arguments = vec![program];
        ClientOptions { leading_arguments, ..ClientOptions::new("node", place.path("work")) }
    } else {
        ClientOptions::new(program, place.path("work"))
    };
    options.home = Some(place.path("home"));
    options.tmpdir = Some(place.path("tmp"));
    options.config_dir = Some(place.path("config"));
    options.model = Some("claude-test".into());
    options.tools = Some(vec!["Read".into(), "Write".into()]);
    options.variables.set("ANTHROPIC_BASE_URL", format!("http://127.0.0.1:{}", serve_model()));
    options.variables.set("ANTHROPIC_API_KEY", "none");
    options.variables.set("CLAUDE_CODE_MAX_RETRIES", "0");
    options.variables.set("IS_SANDBOX", "1");
    options.permission_mode = Some(PermissionMode::BypassPermissions);
    options.bridged_servers = vec!["wink".into()];
    options.hooks = ["PreToolUse", "PostToolUse", "PostToolUseFailure"]
        .map(|event| HookMatcher::new(event, event.to_lowercase()))
        .to_vec();
    Some(options)
}

/// Reports each request, and answers as the arguments demand.
struct Host(Mutex<Sender<String>>);

impl Host {
    fn new() -> (Arc<Host>, Receiver<String>) {
        let (to, asked) = channel();
        (Arc::new(Host(Mutex::new(to))), asked)
    }

    fn tell(&self, what: String) {
        self.0.lock().send(what).unwrap();
    }
}

impl Callbacks for Host {
    fn tools(&self) -> Vec<BridgedTool> {
        vec![BridgedTool::new("wink", "search", "searches", json!({}))]
    }

    fn call_tool(&self, call: ToolCall) -> ToolReply {
        self.tell(format!("call {}", call.name));
        match call.arguments["how"].as_str() {
            Some("fail") => ToolReply::error("planned"),
            Some("wait") => {
                while !call.cancel.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                ToolReply::text("too late")
            }
            Some("panic") => panic!("planned in the tool"),
            _ => ToolReply::text("found"),
        }
    }

    fn hook(&self, call: HookCall) -> HookReply {
        self.tell(format!("{} {}", call.callback_id, call.tool_name().unwrap_or_default()));
        match call.event.as_str() {
            "PreToolUse" if call.tool_input()["content"] == "deny" => HookReply::deny("not that"),
            "PreToolUse" if call.tool_input()["content"] == "panic" => panic!("planned in the hook"),
            _ => HookReply::proceed(),
        }
    }
}

fn results(messages: &[ClaudeMessage]) -> (Vec<(String, bool)>, String) {
    (call_results(messages), result_text(messages))
}

#[test]
fn tools_and_hooks_are_asked_for_as_the_stand_in_does() {
    let place = Place::new();
    let Some(options) = options(&place) else { return };
    let (host, asked) = Host::new();
    let client = Client::start(&options, host).unwrap();
    let done = |text: &str, is_error| (vec![(text.to_owned(), is_error)], "done".to_owned());
    assert_eq!(results(&turn(&client, "call mcp__wink__search {}")), done("found", false));
    assert_eq!(results(&turn(&client, r#"call mcp__wink__search {"how":"fail"}"#)), done("planned", true));
    let panic = "Tool error: the tool panicked: planned in the tool";
    assert_eq!(results(&turn(&client, r#"call mcp__wink__search {"how":"panic"}"#)), done(panic, true));
    let tool = "mcp__wink__search";
    let expected = [
        format!("pretooluse {tool}"),
        "call search".into(),
        format!("posttooluse {tool}"),
        format!("pretooluse {tool}"),
        "call search".into(),
        format!("posttoolusefailure {tool}"),
        format!("pretooluse {tool}"),
        "call search".into(),
        format!("posttoolusefailure {tool}"),
    ];
    assert_eq!(asked.try_iter().collect::<Vec<_>>(), expected);
    for content in ["text", "deny", "panic"] {
        let path = place.path("work").join(content);
        let messages =
            turn(&client, &format!("call Write {}", json!({"file_path": path, "content": content})));
        assert_eq!(call_results(&messages)[0].1, content != "text", "{messages:?}");
        assert_eq!(path.exists(), content == "text", "{content}");
    }
    assert!(client.close().unwrap().success());
}

#[test]
fn an_interrupted_turn_is_followed_by_another_and_the_session_is_mirrored_and_resumed() {
    let place = Place::new();
    let Some(mut options) = options(&place) else { return };
    let id = Uuid::new_v4().to_string();
    options.session_id = Some(id.clone());
    options.session_mirror = true;
    let (host, asked) = Host::new();
    let client = Arc::new(Client::start(&options, host).unwrap());
    client.query(r#"call mcp__wink__search {"how":"wait"}"#).unwrap();
    let other = Arc::clone(&client);
    let interrupter = std::thread::spawn(move || {
        while asked.recv_timeout(LONG).unwrap() != "call search" {}
        other.interrupt()
    });
    let mut messages = up_to_result(&client);
    interrupter.join().unwrap().unwrap();
    assert_eq!(messages.last().unwrap().result().unwrap().failure(), Some(FailureKind::Aborted));
    messages.extend(turn(&client, "say hello"));
    assert_eq!(result_text(&messages), "hello");
    client.close().unwrap();
    messages.extend(rest(&client));
    let (path, rebuilt) = mirrored(&messages);
    // 2.1.332 also writes its requests to the file, without mirroring those lines. A resumption
    // does not need them.
    let file = fs::read_to_string(path).unwrap();
    let is_request = |line: &&str| line.starts_with(r#"{"type":"api-request"#);
    let said: String = file.split_inclusive('\n').filter(|line| !is_request(line)).collect();
    assert_eq!(said, rebuilt);

    options.session_id = None;
    options.resume = Some(id);
    let client = Client::start(&options, Host::new().0).unwrap();
    assert_eq!(result_text(&turn(&client, "say again")), "again");
    options.resume = Some(Uuid::new_v4().to_string());
    let error = Client::start(&options, Host::new().0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionNotFound);
}

#[test]
fn failures_of_the_provider_are_told_apart() {
    use FailureKind::{
        Authentication, InvalidRequest, ModelNotFound, Overloaded, ProviderFailed, RateLimited,
    };
    let place = Place::new();
    let Some(options) = options(&place) else { return };
    let client = Client::start(&options, Host::new().0).unwrap();
    for (status, kind) in [
        (429, RateLimited),
        (529, Overloaded),
        (500, ProviderFailed),
        (401, Authentication),
        (404, ModelNotFound),
        (400, InvalidRequest),
    ] {
        let messages = turn(&client, &format!("fail {status}"));
        let result = messages.last().unwrap().result().unwrap();
        assert_eq!(result.failure(), Some(kind), "{status}: {result:?}");
    }
}
