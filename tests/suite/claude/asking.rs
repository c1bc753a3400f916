//! Requests of the program to its host, and of the host to the program.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use foldlog_claude::{
    BridgedTool, Callbacks, Client, ClientOptions, ErrorKind, HookCall, HookMatcher, HookReply,
    PermissionMode, PermissionReply, PermissionRequest, ToolCall, ToolReply, UserInput,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::stand_in::{StandIn, call_results, late, result_text, turn, up_to_result};

/// The limit of a wait for another thread.
const LONG: Duration = Duration::from_secs(60);

fn tool(name: &str) -> BridgedTool {
    BridgedTool::new("wink", name, format!("does {name}"), json!({}))
}

type OnTool = Box<dyn Fn(ToolCall) -> ToolReply + Send + Sync>;
type OnHook = Box<dyn Fn(HookCall) -> HookReply + Send + Sync>;
type OnPermission = Box<dyn Fn(PermissionRequest) -> PermissionReply + Send + Sync>;

/// Callbacks made from closures.
struct Host {
    tools: Vec<BridgedTool>,
    on_tool: OnTool,
    on_hook: OnHook,
    on_permission: OnPermission,
}

impl Default for Host {
    fn default() -> Host {
        Host {
            tools: vec![tool("search")],
            on_tool: Box::new(|call| match call.arguments["fail"] == true {
                true => ToolReply::error("planned"),
                false => ToolReply::text(format!("found {}", call.arguments)),
            }),
            on_hook: Box::new(|_| HookReply::proceed()),
            on_permission: Box::new(|_| PermissionReply::Allow { updated_input: None }),
        }
    }
}

impl Callbacks for Host {
    fn tools(&self) -> Vec<BridgedTool> {
        self.tools.clone()
    }

    fn call_tool(&self, call: ToolCall) -> ToolReply {
        (self.on_tool)(call)
    }

    fn hook(&self, call: HookCall) -> HookReply {
        (self.on_hook)(call)
    }

    fn can_use_tool(&self, request: PermissionRequest) -> PermissionReply {
        (self.on_permission)(request)
    }
}

/// Starts a client with hooks around each tool, and without permission to call any.
fn start_guarded(stand_in: &StandIn, host: Host) -> Client {
    let options = ClientOptions {
        bridged_servers: vec!["wink".into()],
        hooks: vec![
            HookMatcher::new("PreToolUse", "before"),
            HookMatcher::new("PostToolUse", "after"),
            HookMatcher::new("PostToolUseFailure", "failed"),
        ],
        can_use_tool: true,
        ..stand_in.options()
    };
    Client::start(&options, Arc::new(host)).unwrap()
}

fn shared<T>() -> (Mutex<Sender<T>>, Receiver<T>) {
    let (sender, receiver) = channel();
    (Mutex::new(sender), receiver)
}

/// The program answers `initialize` only after its own request was answered: the stand-in would
/// wait forever otherwise.
#[test]
fn the_bridge_is_served_while_initialize_is_pending_and_lists_the_tools() {
    let stand_in = StandIn::new(&json!([
        {"turn": true}, {"tool": "search", "input": {"q": 1}}, {"text": "$history"}, {"result": "ok"}
    ]));
    let (names, called) = shared();
    let host = Host {
        tools: vec![tool("search"), BridgedTool { read_only: true, max_result_chars: 7, ..tool("look") }],
        on_tool: Box::new(move |call| {
            names.lock().send((call.name, call.tool_use_id)).unwrap();
            ToolReply::text("found")
        }),
        ..Host::default()
    };
    let client = stand_in.start_with(Arc::new(host));
    assert_eq!(client.initialize_reply()["models"], json!([]));
    let messages = turn(&client, "go");
    assert_eq!(call_results(&messages), [("found".to_owned(), false)]);
    assert_eq!(called.recv_timeout(LONG).unwrap(), ("search".to_owned(), Some("toolu_1".to_owned())));
    let heard = stand_in.heard();
    let first = heard.iter().find(|line| line["type"] == "control_response").unwrap();
    let initialized = &first["response"]["response"]["mcp_response"]["result"];
    assert_eq!(initialized["protocolVersion"], "2025-11-25");
    assert_eq!(initialized["capabilities"], json!({"tools": {}}));
    let answers = heard.iter().map(|line| &line["response"]["response"]["mcp_response"]["result"]["tools"]);
    let listed = answers.filter_map(Value::as_array).next().unwrap();
    let expected = json!([
        {"name": "search", "description": "does search", "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": false}, "_meta": {"anthropic/maxResultSizeChars": 500_000}},
        {"name": "look", "description": "does look", "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": true}, "_meta": {"anthropic/maxResultSizeChars": 7}},
    ]);
    assert_eq!(Value::from(listed.clone()), expected);
}

#[test]
fn a_prompt_is_marked_as_composed_by_the_host() {
    let stand_in =
        StandIn::new(&json!([{"turn": true}, {"result": "$prompt"}, {"turn": true}, {"result": "ok"}]));
    let client = stand_in.start().unwrap();
    assert_eq!(result_text(&turn(&client, "/clear @file")), "/clear @file");
    client.query(json!([{"type": "text", "text": "blocks"}])).unwrap();
    up_to_result(&client);
    let heard = stand_in.heard();
    let prompts: Vec<&Value> = heard.iter().filter(|line| line["type"] == "user").collect();
    let expected = json!({"type": "user", "session_id": "", "parent_tool_use_id": null, "client_composed": true,
        "message": {"role": "user", "content": "/clear @file"}});
    assert_eq!(prompts[0], &expected);
    assert_eq!(prompts[1]["message"]["content"], json!([{"type": "text", "text": "blocks"}]));
}

/// An older version took a prompt that starts with `/` for a command: it ended successfully without
/// asking the model.
#[test]
fn a_prompt_that_begins_with_a_slash_is_sent_as_text_to_an_older_version() {
    let mut steps = vec![json!({"initialize": "older"})];
    for _ in 0..4 {
        steps.extend([json!({"turn": true}), json!({"result": "$prompt"})]);
    }
    let stand_in = StandIn::new(&json!(steps));
    let client = stand_in.start().unwrap();
    assert_eq!(result_text(&turn(&client, "/clear @file")), " /clear @file");
    assert_eq!(result_text(&turn(&client, "and /clear")), "and /clear");
    let blocks = json!([{"type": "text", "text": "/one"}, {"type": "text", "text": "/two"}]);
    client.query(blocks).unwrap();
    let sent = result_text(&up_to_result(&client));
    assert!(sent.contains(r#""/one""#) && sent.contains(r#"" /two""#), "{sent}");
    // A prompt that is meant as a command.
    client.query(UserInput { client_composed: false, ..UserInput::new("/clear") }).unwrap();
    assert_eq!(result_text(&up_to_result(&client)), "/clear");
}

/// Each call waits for all others: they return only if all of them run at the same time, while
/// messages are read.
#[test]
fn fifty_calls_of_one_answer_run_together() {
    let call = |number: u32| json!({"tool": "search", "input": {"n": number}});
    let calls: Vec<Value> = (0..50).map(call).collect();
    let stand_in = StandIn::new(&json!([{"turn": true}, {"together": calls}, {"result": "ok"}]));
    let barrier = std::sync::Barrier::new(50);
    let host = Host {
        on_tool: Box::new(move |call| {
            barrier.wait();
            ToolReply::text(call.arguments["n"].to_string())
        }),
        ..Host::default()
    };
    let client = stand_in.start_with(Arc::new(host));
    let results = call_results(&turn(&client, "go"));
    let expected: Vec<_> = (0..50).map(|number| (number.to_string(), false)).collect();
    assert_eq!(results, expected);
}

#[test]
fn hooks_stand_before_and_after_native_and_bridged_tools() {
    let stand_in = StandIn::new(&json!([
        {"turn": true},
        {"native": "Write", "input": {"path": "a"}, "write": {"a": "text"}, "output": "written"},
        {"tool": "search", "input": {"q": 1}},
        {"native": "Write", "input": {"path": "secret"}, "write": {"secret": "text"}},
        {"tool": "search", "input": {"fail": true}},
        {"result": "ok"},
    ]));
    let (calls, called) = shared();
    let host = Host {
        on_hook: Box::new(move |call| {
            let seen = (call.callback_id.clone(), call.event.clone(), call.tool_name().unwrap().to_owned());
            let told = call.input.get("error").unwrap_or(call.tool_response()).clone();
            calls.lock().send((seen, told)).unwrap();
            match (call.event.as_str(), call.tool_input()["path"].as_str()) {
                ("PreToolUse", Some("secret")) => HookReply::deny("not that"),
                ("PreToolUse", None) if call.tool_input()["fail"] != true => {
                    HookReply { updated_input: Some(json!({"q": 2})), ..HookReply::allow("fine") }
                }
                _ => HookReply::proceed(),
            }
        }),
        ..Host::default()
    };
    let messages = turn(&start_guarded(&stand_in, host), "go");
    let expected = [("written", false), (r#"found {"q":2}"#, false), ("not that", true), ("planned", true)];
    assert_eq!(call_results(&messages), expected.map(|(text, is_error)| (text.to_owned(), is_error)));
    assert!(stand_in.path("work/a").exists() && !stand_in.path("work/secret").exists());
    let seen = |id: &str, event: &str, tool: &str| (id.to_owned(), event.to_owned(), tool.to_owned());
    let called: Vec<_> = called.try_iter().collect();
    let expected = [
        (seen("before", "PreToolUse", "Write"), Value::Null),
        (seen("after", "PostToolUse", "Write"), json!("written")),
        (seen("before", "PreToolUse", "mcp__wink__search"), Value::Null),
        (
            seen("after", "PostToolUse", "mcp__wink__search"),
            json!([{"type": "text", "text": r#"found {"q":2}"#}]),
        ),
        (seen("before", "PreToolUse", "Write"), Value::Null),
        (seen("before", "PreToolUse", "mcp__wink__search"), Value::Null),
        (seen("failed", "PostToolUseFailure", "mcp__wink__search"), json!("planned")),
    ];
    assert_eq!(called, expected);
}

#[test]
fn a_hook_after_a_call_may_end_the_turn() {
    let stand_in = StandIn::new(&json!([
        {"turn": true}, {"tool": "search"}, {"text": "never said"}, {"result": "never"}
    ]));
    let host = Host {
        on_hook: Box::new(|call| match call.event.as_str() {
            "PostToolUse" => HookReply::stop("enough"),
            _ => HookReply::proceed(),
        }),
        ..Host::default()
    };
    let messages = turn(&start_guarded(&stand_in, host), "go");
    let result = messages.last().unwrap().result().unwrap();
    assert_eq!((result.terminal_reason.as_deref(), result.failure()), (Some("hook_stopped"), None));
}

#[test]
fn permissions_are_asked_and_may_change_or_refuse_a_call() {
    let stand_in = StandIn::new(&json!([
        {"turn": true},
        {"tool": "search", "input": {"n": 1}}, {"tool": "search", "input": {"n": 2}}, {"tool": "search", "input": {"n": 3}},
        {"result": "ok"},
    ]));
    let host = Host {
        on_permission: Box::new(|request| match request.input["n"].as_u64() {
            Some(1) => PermissionReply::Allow { updated_input: None },
            Some(2) => PermissionReply::Allow { updated_input: Some(json!({"n": 20})) },
            _ => PermissionReply::Deny { message: format!("no {}", request.tool_name), interrupt: false },
        }),
        ..Host::default()
    };
    let messages = turn(&start_guarded(&stand_in, host), "go");
    let expected =
        [(r#"found {"n":1}"#, false), (r#"found {"n":20}"#, false), ("no mcp__wink__search", true)];
    assert_eq!(call_results(&messages), expected.map(|(text, is_error)| (text.to_owned(), is_error)));
    assert_eq!(messages.last().unwrap().result().unwrap().permission_denials.len(), 1);
}

/// The program ignores a hook that fails, and the call would run unguarded.
#[test]
fn a_panic_fails_the_call_that_it_was_about_and_nothing_else() {
    let stand_in = StandIn::new(&json!([
        {"turn": true},
        {"tool": "search", "input": {"panic": "tool"}},
        {"tool": "search", "input": {"panic": "hook"}},
        {"tool": "search", "input": {"panic": "permission"}},
        {"tool": "search", "input": {}},
        {"result": "ok"},
    ]));
    let is = |input: &Value, what: &str| input["panic"] == what;
    let host = Host {
        on_tool: Box::new(move |call| match is(&call.arguments, "tool") {
            true => panic!("planned in the tool"),
            false => ToolReply::text("fine"),
        }),
        on_hook: Box::new(move |call| match is(call.tool_input(), "hook") {
            true => panic!("planned in the hook"),
            false => HookReply::proceed(),
        }),
        on_permission: Box::new(move |request| match is(&request.input, "permission") {
            true => panic!("planned in the decision"),
            false => PermissionReply::Allow { updated_input: None },
        }),
        ..Host::default()
    };
    let results = call_results(&turn(&start_guarded(&stand_in, host), "go"));
    let [(tool, true), (hook, true), (decision, true), (fine, false)] = &results[..] else {
        panic!("{results:?}")
    };
    assert_eq!(tool, "Tool error: the tool panicked: planned in the tool");
    assert!(hook.contains("planned in the hook"), "{hook}");
    assert!(decision.contains("planned in the decision"), "{decision}");
    assert_eq!(fine, "fine");
}

/// The stand-in dies if an answer arrives after it cancelled the request. It therefore runs until
/// the tool has returned, and until the host has answered later requests.
#[test]
fn a_cancelled_call_learns_of_it_and_gets_no_answer() {
    let call = json!({"subtype": "mcp_message", "server_name": "wink", "message":
        {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "search", "arguments": {}}}});
    let other = json!({"subtype": "mcp_message", "server_name": "wink", "message":
        {"jsonrpc": "2.0", "id": 78, "method": "tools/call", "params": {"name": "look", "arguments": {}}}});
    let hook = json!({"subtype": "hook_callback", "callback_id": "h", "input": {"hook_event_name": "Stop"}});
    let called_off = json!({"subtype": "mcp_message", "server_name": "wink", "message":
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 77}}});
    let by_frame = json!([
        {"turn": true}, {"ask": call, "id": "call", "wait": false}, {"gate": "begun"}, {"cancel": "call"},
        {"gate": "returned"}, {"ask": other}, {"ask": hook}, {"unanswered": "call"}, {"result": "ok"},
    ]);
    let by_notification = json!([
        {"turn": true}, {"ask": call, "id": "call", "wait": false}, {"gate": "begun"}, {"ask": called_off},
        {"gate": "returned"}, {"ask": other}, {"ask": hook}, {"unanswered": "call"}, {"result": "ok"},
    ]);
    for steps in [by_frame, by_notification] {
        let stand_in = Arc::new(StandIn::new(&steps));
        let (events, seen) = shared();
        let host = Host {
            tools: vec![tool("search"), tool("look")],
            on_tool: Box::new(move |call| {
                if call.name == "look" {
                    return ToolReply::text("looked");
                }
                events.lock().send("begun").unwrap();
                while !call.cancel.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                events.lock().send("returned").unwrap();
                ToolReply::text("too late")
            }),
            ..Host::default()
        };
        let gates = Arc::clone(&stand_in);
        let opener = std::thread::spawn(move || {
            for _ in 0..2 {
                gates.open_gate(seen.recv_timeout(LONG).unwrap());
            }
        });
        let client = stand_in.start_with(Arc::new(host));
        assert_eq!(result_text(&turn(&client, "go")), "ok");
        opener.join().unwrap();
        assert!(client.close().unwrap().success());
        assert!(!stand_in.heard().iter().any(|line| line["response"]["request_id"] == "call"));
    }
}

#[test]
fn an_interrupt_gets_through_while_a_tool_runs_and_another_turn_follows() {
    let stand_in = StandIn::new(&json!([
        {"turn": true}, {"tool": "search"}, {"text": "never said"}, {"result": "never"},
        {"turn": true}, {"result": "again"},
    ]));
    let (began, begun) = shared();
    let (ended, end) = shared();
    let host = Host {
        on_tool: Box::new(move |call| {
            began.lock().send(()).unwrap();
            while !call.cancel.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            ended.lock().send(()).unwrap();
            ToolReply::text("too late")
        }),
        ..Host::default()
    };
    let client = Arc::new(stand_in.start_with(Arc::new(host)));
    client.query("go").unwrap();
    let other = Arc::clone(&client);
    let interrupter = std::thread::spawn(move || {
        begun.recv_timeout(LONG).unwrap();
        other.interrupt()
    });
    let messages = up_to_result(&client);
    interrupter.join().unwrap().unwrap();
    end.recv_timeout(LONG).unwrap();
    let result = messages.last().unwrap().result().unwrap();
    assert_eq!(result.terminal_reason.as_deref(), Some("aborted_tools"));
    assert_eq!(result_text(&turn(&client, "more")), "again");
}

#[test]
fn control_requests_are_answered_refused_and_left_alone() {
    let stand_in = StandIn::new(&json!([
        {"turn": true}, {"hear": {"request": {"subtype": "get_context_usage"}}}, {"reply": {"tokens": 7}},
        {"hear": {"request": {"subtype": "rewind_files"}}}, {"reply_error": "no\u{1b}checkpoint"},
        {"hear": {"request": {"subtype": "stop_task"}}}, {"result": "ok"},
    ]));
    let options = ClientOptions { control_timeout: Duration::from_secs(3), ..stand_in.options() };
    let client = Client::start(&options, Arc::new(foldlog_claude::NoCallbacks)).unwrap();
    client.query("go").unwrap();
    client.set_model(Some("other")).unwrap();
    client.set_permission_mode(PermissionMode::AcceptEdits).unwrap();
    assert_eq!(client.control(&json!({"subtype": "get_context_usage"})).unwrap(), json!({"tokens": 7}));
    let error = client.control(&json!({"subtype": "rewind_files"})).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains(r"no\u{1b}checkpoint"), "{error}");
    let error = client.control(&json!({"subtype": "stop_task"})).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let error = client.control(&json!({"subtype": "unheard_of"})).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert_eq!(result_text(&up_to_result(&client)), "ok");
    let heard = stand_in.heard();
    let request =
        |subtype: &str| &heard.iter().find(|line| line["request"]["subtype"] == subtype).unwrap()["request"];
    assert_eq!(request("set_model")["model"], "other");
    assert_eq!(request("set_permission_mode")["mode"], "acceptEdits");
}

#[test]
fn what_the_program_asks_beyond_that_is_refused_and_does_no_harm() {
    let rpc = |server: &str, message: Value| json!({"ask": {"subtype": "mcp_message", "server_name": server, "message": message}});
    let stand_in = StandIn::new(&json!([
        {"turn": true},
        rpc("other", json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})),
        rpc("wink", json!({"jsonrpc": "2.0", "id": 2, "method": "resources/list"})),
        rpc("wink", json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "absent"}})),
        rpc("wink", json!({"jsonrpc": "2.0", "id": "four", "method": "ping"})),
        rpc("wink", json!({"jsonrpc": "2.0", "method": "notifications/progress"})),
        {"ask": {"subtype": "elicitation"}},
        {"ask": {}},
        {"result": "ok"},
    ]));
    let client = stand_in.start_with(Arc::new(Host::default()));
    turn(&client, "go");
    let heard = stand_in.heard();
    // The first three answer the stand-in's own handshake.
    let answers: Vec<&Value> = heard
        .iter()
        .filter(|line| line["type"] == "control_response")
        .skip(3)
        .map(|line| &line["response"])
        .collect();
    let code = |at: usize| &answers[at]["response"]["mcp_response"]["error"]["code"];
    assert_eq!([code(0), code(1), code(2)], [&json!(-32601), &json!(-32601), &json!(-32602)]);
    let pong = json!({"jsonrpc": "2.0", "id": "four", "result": {}});
    assert_eq!(answers[3]["response"]["mcp_response"], pong);
    assert_eq!(answers[4]["response"]["mcp_response"], json!({"jsonrpc": "2.0", "result": {}}));
    assert_eq!([&answers[5]["subtype"], &answers[6]["subtype"]], ["error", "error"]);
}

/// A host that records in its loop over messages records an answer of the model before any tool of
/// that answer runs.
#[test]
fn a_tool_runs_after_the_host_has_dealt_with_the_messages_before_it() {
    let stand_in =
        StandIn::new(&json!([{"turn": true}, {"text": "thinking"}, {"tool": "search"}, {"result": "ok"}]));
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&recorded);
    let (counts, counted) = shared();
    let host = Host {
        on_tool: Box::new(move |_| {
            counts.lock().send(seen.lock().len()).unwrap();
            ToolReply::text("found")
        }),
        ..Host::default()
    };
    let client = stand_in.start_with(Arc::new(host));
    client.query("go").unwrap();
    loop {
        let message = client.next_message(late()).unwrap().unwrap();
        // A slow host: the request for the call arrives long before this is recorded.
        std::thread::sleep(Duration::from_millis(20));
        recorded.lock().push(message.index);
        if message.result().is_some() {
            break;
        }
    }
    // Those before the call are the start of the turn, the text, and the call itself.
    let recorded = counted.recv_timeout(LONG).unwrap();
    assert!(recorded >= 3, "{recorded} messages were recorded");
}

#[test]
fn a_tool_of_no_bridged_server_or_one_that_is_there_twice_is_refused() {
    let stand_in = StandIn::new(&json!([]));
    for tools in
        [vec![tool("search"), tool("search")], vec![BridgedTool { server: "other".into(), ..tool("a") }]]
    {
        let options = ClientOptions { bridged_servers: vec!["wink".into()], ..stand_in.options() };
        let error = Client::start(&options, Arc::new(Host { tools, ..Host::default() })).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Options);
    }
    assert!(!stand_in.path("script.starts").exists());
}

#[test]
fn unread_messages_keep_the_program_waiting_and_are_all_there() {
    let stand_in = StandIn::new(&json!([
        {"turn": true}, {"large": 3_000_000}, {"large": 3_000_000}, {"large": 3_000_000}, {"touch": "all"},
        {"result": "ok"},
    ]));
    let options = ClientOptions { unread_limit: 1 << 20, ..stand_in.options() };
    let client = Client::start(&options, Arc::new(foldlog_claude::NoCallbacks)).unwrap();
    client.query("go").unwrap();
    while client.next_message(late()).unwrap().unwrap().index < 1 {}
    // Enough time for an unblocked program to write the rest.
    std::thread::sleep(Duration::from_millis(200));
    assert!(!stand_in.path("all").exists());
    let messages = up_to_result(&client);
    assert_eq!(messages.iter().filter(|message| message.line().len() > 3_000_000).count(), 3);
}
