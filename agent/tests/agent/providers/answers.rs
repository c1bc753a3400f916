//! Complete answers: their contents, their cost, and their form in later requests.

use foldlog::conversation::{ConversationMessage, Role, TokenUsage};
use foldlog_agent::provider::anthropic::AnthropicProvider;
use foldlog_agent::provider::openai::OpenAiProvider;
use foldlog_agent::provider::{
    LlmConfig, OutputSpec, Provider, ProviderErrorKind, ProviderRequest, SendOptions, ToolChoice, ToolSpec,
};
use serde_json::{Value, json};

use super::asking::{
    BOTH, KEY, Which, ask, ask_with, block, chunk, message_of, message_start, message_stop, result_of,
};
use super::server::{Does, Server};

/// Text, calls byte for byte, cost and identity are compared.
#[test]
fn an_answer_is_the_same_whether_it_is_streamed_or_not() {
    let calls = [("call_1", "search", "{\"b\":1,\"a\":[2,3]}"), ("call_2", "search", "{\"q\":\"é,\"}")];
    for which in BOTH {
        let server =
            Server::start(move |seen, _| which.answers(seen.body["stream"] == true, "Let me look.", &calls));
        let provider = which.provider(&server);
        let [whole, streamed] = [false, true].map(|stream| ask(&*provider, stream));
        assert_eq!(streamed.shown, ["Let ", "me ", "look."], "{which:?}");
        assert_eq!(whole.shown, [""; 0]);
        let answer = streamed.outcome.unwrap();
        assert_eq!(answer.content.as_deref(), Some("Let me look."));
        let arguments: Vec<_> = answer.calls.iter().map(|call| call.arguments.as_str()).collect();
        assert_eq!(arguments, [calls[0].2, calls[1].2], "in the order in which the model wrote them");
        assert_eq!(answer.model.as_deref(), Some("model-1-2026"));
        assert_eq!(answer.request_id.as_deref(), Some("req_7"));
        // OpenAI includes cached tokens in the tokens of the prompt: 7 of 11 were not cached.
        let (input, cache_write, reasoning) = if which == Which::OpenAi { (7, 0, 3) } else { (11, 5, 0) };
        let usage = TokenUsage { input, output: 7, cache_read: 4, cache_write, reasoning };
        assert_eq!((answer.usage, &answer.blocks), (Some(usage), &None), "{which:?}");
        let whole = whole.outcome.unwrap();
        assert_eq!((whole.content, whole.usage, whole.stop), (answer.content, answer.usage, answer.stop));
        assert_eq!(whole.calls.len(), 2);
    }
}

/// Covers the request's address, key and contents.
#[test]
fn a_request_says_what_the_configuration_says() {
    let messages =
        [ConversationMessage::new(Role::System, "Be brief."), ConversationMessage::new(Role::User, "hi")];
    let tools = [ToolSpec {
        name: "search".into(),
        description: "Searches.".into(),
        parameters: json!({ "type": "object" }),
    }];
    let output = OutputSpec { name: "My output".into(), schema: json!({ "type": "object" }) };
    let config = LlmConfig {
        temperature: Some(0.5),
        max_tokens: Some(77),
        stop: vec!["END".into()],
        tool_choice: ToolChoice::Tool("search".into()),
        parallel_tool_calls: Some(false),
        ..LlmConfig::default()
    };
    let request =
        ProviderRequest { messages: &messages, tools: &tools, output: Some(&output), config: &config };
    for which in BOTH {
        let server = Server::start(move |_, _| which.answers(false, "ok", &[]));
        let provider = which.provider(&server);
        let prepared = provider.prepare(&request).unwrap();
        provider.send(&prepared, &mut SendOptions::default()).unwrap();
        let seen = server.seen().remove(0);
        let body = &seen.body;
        assert_eq!(body, &serde_json::from_slice::<Value>(&prepared.body).unwrap());
        assert_eq!(
            (&body["model"], &body["temperature"], &body["max_tokens"]),
            (&json!("model-1"), &json!(0.5), &json!(77))
        );
        assert_eq!(prepared.parameters["temperature"], 0.5);
        assert!(prepared.parameters.get("messages").is_none(), "messages are records of their own");
        if which == Which::OpenAi {
            assert!(seen.head.starts_with("POST /v1/chat/completions HTTP/1.1"));
            assert!(seen.has_header(&format!("authorization: Bearer {KEY}")));
            assert_eq!(body["messages"][0], json!({ "role": "system", "content": "Be brief." }));
            assert_eq!(body["tools"][0]["function"]["parameters"], json!({ "type": "object" }));
            assert_eq!(body["tool_choice"], json!({ "type": "function", "function": { "name": "search" } }));
            assert_eq!(body["parallel_tool_calls"], false);
            assert_eq!(body["response_format"]["json_schema"]["name"], "My_output");
            assert_eq!(body["stop"], json!(["END"]));
        } else {
            assert!(seen.head.starts_with("POST /v1/messages HTTP/1.1"));
            assert!(
                seen.has_header(&format!("x-api-key: {KEY}"))
                    && seen.has_header("anthropic-version: 2023-06-01")
            );
            assert_eq!(
                (&body["system"], body["messages"].as_array().unwrap().len()),
                (&json!("Be brief."), 1)
            );
            assert_eq!(body["tools"][0]["input_schema"], json!({ "type": "object" }));
            assert_eq!(
                body["tool_choice"],
                json!({ "type": "tool", "name": "search", "disable_parallel_tool_use": true })
            );
            assert_eq!(body["output_config"]["format"]["schema"], json!({ "type": "object" }));
            assert_eq!(body["stop_sequences"], json!(["END"]));
        }
    }
}

/// Models send broken arguments, unknown tools, and two calls with one id. The loop gets all of it
/// unchanged, and the provider accepts the history with its results.
#[test]
fn a_strange_answer_is_kept_as_it_is_and_goes_back_as_the_provider_takes_it() {
    let calls = [("same", "search", "{\"q\": "), ("same", "no.such tool", "{}"), ("other", "search", "[1,")];
    for which in BOTH {
        let server =
            Server::start(move |_, number| which.answers(true, "", if number == 0 { &calls } else { &[] }));
        let provider = which.provider(&server);
        let answer = ask(&*provider, true).outcome.unwrap();
        assert_eq!(answer.content, None);
        let kept: Vec<_> = answer
            .calls
            .iter()
            .map(|call| (call.call_id.as_str(), call.name.as_str(), call.arguments.as_str()))
            .collect();
        assert_eq!(kept, calls, "{which:?}");
        let mut history = vec![ConversationMessage::new(Role::User, "hello"), message_of(&answer)];
        history.extend(answer.calls.iter().map(|call| result_of(call, "")));
        ask_with(&*provider, &history, true, SendOptions::default()).outcome.unwrap();
    }
}

#[test]
fn an_empty_answer_is_an_answer_and_can_be_sent_back() {
    for (which, stream) in BOTH.into_iter().flat_map(|which| [(which, false), (which, true)]) {
        let server =
            Server::start(move |_, number| which.answers(stream, if number == 0 { "" } else { "yes" }, &[]));
        let provider = which.provider(&server);
        let answer = ask(&*provider, stream).outcome.unwrap();
        assert_eq!((answer.content.as_deref().unwrap_or_default(), answer.calls.len()), ("", 0));
        let history = [ConversationMessage::new(Role::User, "hello"), message_of(&answer)];
        let next = [history.as_slice(), &[ConversationMessage::new(Role::User, "so?")]].concat();
        let again = ask_with(&*provider, &next, stream, SendOptions::default());
        assert_eq!(again.outcome.unwrap().content.as_deref(), Some("yes"), "{which:?}");
    }
}

#[test]
fn an_answer_of_20_mb_arrives_whole() {
    let text = "x".repeat(20 << 20);
    for (which, stream) in BOTH.into_iter().flat_map(|which| [(which, false), (which, true)]) {
        let said = text.clone();
        let server = Server::start(move |_, _| which.answers(stream, &said, &[]));
        let answer = ask(&*which.provider(&server), stream).outcome.unwrap();
        assert!(answer.content.as_ref() == Some(&text), "{which:?}, streamed: {stream}");
    }
    for which in BOTH {
        let server = Server::start(move |_, _| which.answers(true, &"a ".repeat(20_000), &[]));
        let asked = ask(&*which.provider(&server), true);
        assert_eq!((asked.outcome.unwrap().content.unwrap().len(), asked.shown.len()), (40_000, 20_000));
    }
}

/// Content beyond text and calls is kept byte for byte, since a signature covers it.
#[test]
fn thinking_is_kept_byte_for_byte_and_sent_back() {
    let content = "[{\"type\":\"thinking\",\"thinking\":\"h\\u006dm\", \"signature\":\"+/=\"},{\"type\":\"redacted_thinking\",\"data\":\"zz\"},\
                   {\"type\":\"text\",\"text\":\"Hi.\"},{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"s\",\"input\":{ \"n\":1.0 }}]";
    let body =
        format!("{{\"type\":\"message\",\"content\":{content},\"stop_reason\":\"tool_use\",\"usage\":{{}}}}");
    let server = Server::start(move |_, number| match number {
        0 => Does::Replies(200, vec![], body.clone().into_bytes()),
        _ => Which::Anthropic.answers(false, "done", &[]),
    });
    let provider = Which::Anthropic.provider(&server);
    let answer = ask(&*provider, false).outcome.unwrap();
    assert_eq!(answer.blocks.as_ref().unwrap().json, content);
    assert_eq!(
        (answer.content.as_deref(), answer.calls[0].arguments.as_str()),
        (Some("Hi."), "{ \"n\":1.0 }")
    );
    let history = [
        ConversationMessage::new(Role::User, "hello"),
        message_of(&answer),
        result_of(&answer.calls[0], "ok"),
    ];
    let config = LlmConfig::default();
    let request = ProviderRequest { messages: &history, tools: &[], output: None, config: &config };
    let prepared = provider.prepare(&request).unwrap();
    assert!(String::from_utf8_lossy(&prepared.body).contains(&format!("\"content\":{content}")));
    provider.send(&prepared, &mut SendOptions::default()).unwrap();
}

/// An answer of thinking alone was sent back unchanged, and every later request was refused: "The
/// final block in an assistant message cannot be `thinking`".
#[test]
fn an_answer_of_thinking_alone_does_not_end_the_conversation() {
    let thought = json!({ "type": "thinking", "thinking": "hm", "signature": "abc" });
    let redacted = json!({ "type": "redacted_thinking", "data": "zz" });
    for (content, kept) in
        [(json!([thought, redacted]), 0), (json!([thought, { "type": "text", "text": "Hi." }, thought]), 2)]
    {
        let body = json!({ "type": "message", "content": content, "stop_reason": "end_turn", "usage": {} });
        let server = Server::start(move |_, number| match number {
            0 => Does::json(&body),
            _ => Which::Anthropic.answers(false, "done", &[]),
        });
        let provider = Which::Anthropic.provider(&server);
        let answer = ask(&*provider, false).outcome.unwrap();
        assert_eq!(answer.blocks.as_ref().unwrap().json, content.to_string(), "the log keeps all of it");
        let user = |text| ConversationMessage::new(Role::User, text);
        let history = [user("hello"), message_of(&answer), user("go on")];
        let config = LlmConfig::default();
        let request = ProviderRequest { messages: &history, tools: &[], output: None, config: &config };
        let prepared = provider.prepare(&request).unwrap();
        provider.send(&prepared, &mut SendOptions::default()).unwrap();
        let sent = server.seen()[1].body["messages"].clone();
        let answers: Vec<_> =
            sent.as_array().unwrap().iter().filter(|it| it["role"] == "assistant").collect();
        assert_eq!(answers.first().map_or(0, |it| it["content"].as_array().unwrap().len()), kept, "{sent}");
    }
}

/// The streamed pieces must form the same blocks as a whole answer.
#[test]
fn streamed_blocks_are_put_together_and_a_paused_turn_continues() {
    let events = message_start()
        + &block(
            0,
            &json!({ "type": "thinking", "thinking": "", "signature": "" }),
            &[
                json!({ "type": "thinking_delta", "thinking": "h" }),
                json!({ "type": "thinking_delta", "thinking": "m" }),
                json!({ "type": "signature_delta", "signature": "abc" }),
            ],
        )
        + &block(
            1,
            &json!({ "type": "server_tool_use", "id": "srv", "name": "web_search", "input": {} }),
            &[
                json!({ "type": "input_json_delta", "partial_json": "{\"q\":" }),
                json!({ "type": "input_json_delta", "partial_json": "\"x\"}" }),
            ],
        )
        + &block(
            2,
            &json!({ "type": "text", "text": "" }),
            &[
                json!({ "type": "text_delta", "text": "As " }),
                json!({ "type": "citations_delta", "citation": { "cited_text": "c" } }),
                json!({ "type": "text_delta", "text": "said." }),
            ],
        )
        + &message_stop("pause_turn");
    let server = Server::start(move |_, number| {
        if number == 0 { Does::streams(&events) } else { Which::Anthropic.answers(true, "done", &[]) }
    });
    let provider = Which::Anthropic.provider(&server);
    let answer = ask(&*provider, true).outcome.unwrap();
    assert!(answer.continues && answer.calls.is_empty(), "a server's own tool is no call for the host");
    assert_eq!(answer.content.as_deref(), Some("As said."));
    let blocks: Value = serde_json::from_str(&answer.blocks.as_ref().unwrap().json).unwrap();
    assert_eq!(
        blocks,
        json!([
            { "type": "thinking", "thinking": "hm", "signature": "abc" },
            { "type": "server_tool_use", "id": "srv", "name": "web_search", "input": { "q": "x" } },
            { "type": "text", "text": "As said.", "citations": [{ "cited_text": "c" }] },
        ])
    );
    let history = [ConversationMessage::new(Role::User, "hello"), message_of(&answer)];
    ask_with(&*provider, &history, true, SendOptions::default()).outcome.unwrap();
    assert_eq!(server.seen()[1].body["messages"][1]["content"], blocks);
}

/// Some servers of OpenAI's protocol require their reasoning to be sent back.
#[test]
fn fields_that_the_protocol_does_not_know_go_back_to_their_server() {
    let message = "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"h\\u006dm\",\"tool_calls\":[{\"id\":\"c\",\
                   \"type\":\"function\",\"function\":{\"name\":\"s\",\"arguments\":\"{}\"},\"extra\":{\"sig\":\"x\"}}]}";
    let body = format!("{{\"choices\":[{{\"message\":{message},\"finish_reason\":\"tool_calls\"}}]}}");
    let streamed = chunk(&json!({ "role": "assistant", "content": null, "reasoning_content": "h" }), None)
        + &chunk(&json!({ "reasoning_content": "mm" }), None)
        + &chunk(
            &json!({ "tool_calls": [{ "index": 0, "id": "c", "type": "function", "extra": { "sig": "x" },
            "function": { "name": "s", "arguments": "{}" } }] }),
            None,
        )
        + &chunk(&json!({}), Some("tool_calls"))
        + "data: [DONE]\n\n";
    let server = Server::start(move |seen, number| match (number, seen.body["stream"] == true) {
        (0, false) => Does::Replies(200, vec![], body.clone().into_bytes()),
        (_, true) => Does::streams(&streamed),
        _ => Which::OpenAi.answers(false, "done", &[]),
    });
    let provider = Which::OpenAi.provider(&server);
    let answer = ask(&*provider, false).outcome.unwrap();
    assert_eq!(answer.blocks.as_ref().unwrap().json, message);
    let again = ask(&*provider, true).outcome.unwrap();
    let [whole, streamed] = [&answer, &again]
        .map(|answer| serde_json::from_str::<Value>(&answer.blocks.as_ref().unwrap().json).unwrap());
    assert_eq!(
        (whole["reasoning_content"].clone(), whole["tool_calls"].clone()),
        (streamed["reasoning_content"].clone(), streamed["tool_calls"].clone())
    );
    let history = [
        ConversationMessage::new(Role::User, "hello"),
        message_of(&answer),
        result_of(&answer.calls[0], "ok"),
    ];
    ask_with(&*provider, &history, false, SendOptions::default()).outcome.unwrap();
    assert_eq!(server.seen()[2].body["messages"][1], whole);
}

/// If an answer was cut at its maximum length, its last call is marked as incomplete, so that no
/// tool runs with partial arguments.
#[test]
fn an_answer_that_reached_its_length_has_an_incomplete_call() {
    let begun = json!({ "index": 0, "id": "c", "type": "function", "function": { "name": "s", "arguments": "{\"q\":\"" } });
    let openai = chunk(&json!({ "tool_calls": [begun] }), None)
        + &chunk(&json!({}), Some("length"))
        + "data: [DONE]\n\n";
    let start = json!({ "type": "tool_use", "id": "c", "name": "s", "input": {} });
    let anthropic = message_start()
        + &block(0, &start, &[json!({ "type": "input_json_delta", "partial_json": "{\"q\":\"" })])
        + &message_stop("max_tokens");
    for (which, events) in BOTH.into_iter().zip([openai, anthropic]) {
        let server = Server::that(Does::streams(&events));
        let answer = ask(&*which.provider(&server), true).outcome.unwrap();
        assert!(answer.last_call_incomplete, "{which:?}");
        assert_eq!(answer.calls[0].arguments, "{\"q\":\"");
        let server = Server::start(move |_, _| which.answers(true, "", &[("c", "s", "{\"q\":\"")]));
        let finished = ask(&*which.provider(&server), true).outcome.unwrap();
        assert!(!finished.last_call_incomplete, "broken arguments of an answer that ended by itself");
    }
}

/// Markers for the cache only save money, so they must not change the request's digest.
#[test]
fn cache_markers_are_sent_and_are_not_part_of_what_was_prepared() {
    let server = Server::start(|_, _| Which::Anthropic.answers(false, "ok", &[]));
    let plain = AnthropicProvider::new(&server.url(), None, "m").unwrap();
    let caching = AnthropicProvider::new(&server.url(), None, "m").unwrap().with_cache(true);
    let messages = [ConversationMessage::new(Role::System, "s"), ConversationMessage::new(Role::User, "hi")];
    let config = LlmConfig::default();
    let request = ProviderRequest { messages: &messages, tools: &[], output: None, config: &config };
    let prepared = caching.prepare(&request).unwrap();
    assert_eq!(prepared, plain.prepare(&request).unwrap());
    caching.send(&prepared, &mut SendOptions::default()).unwrap();
    let body = server.seen().remove(0).body;
    let marked =
        |text: &str| json!([{ "type": "text", "text": text, "cache_control": { "type": "ephemeral" } }]);
    assert_eq!((&body["system"], &body["messages"][0]["content"]), (&marked("s"), &marked("hi")));
}

#[test]
fn a_request_goes_through_the_proxy_that_was_set() {
    let proxy = Server::start(|_, _| Which::OpenAi.answers(false, "through", &[]));
    let provider = OpenAiProvider::new("http://provider.invalid/v1?version=2", None, "m").unwrap();
    let provider = provider.with_proxy(&proxy.url()).unwrap().with_header("x-team", "a").unwrap();
    let answer = ask(&provider, false).outcome.unwrap();
    assert_eq!(answer.content.as_deref(), Some("through"));
    let seen = proxy.seen().remove(0);
    assert_eq!(seen.tunnel.as_deref(), Some("provider.invalid:80"));
    assert!(seen.head.starts_with("POST /v1/chat/completions?version=2 "), "{}", seen.head);
    assert!(seen.has_header("x-team: a") && !seen.head.to_ascii_lowercase().contains("authorization"));
}

/// Such settings would otherwise be ignored silently.
#[test]
fn what_the_provider_cannot_take_is_refused_before_anything_is_sent() {
    let server = Server::start(|_, _| Which::Anthropic.answers(false, "ok", &[]));
    let config = LlmConfig { seed: Some(4), ..LlmConfig::default() };
    let messages = [ConversationMessage::new(Role::User, "hi")];
    let request = ProviderRequest { messages: &messages, tools: &[], output: None, config: &config };
    let error = Which::Anthropic.provider(&server).prepare(&request).unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Unsupported);
    for url in
        ["", "api.example.com", "ftp://example.com", "http://", "http://me:secret@example.com", "http://a b"]
    {
        let error = OpenAiProvider::new(url, None, "m").unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::Unsupported, "{url}");
        assert!(!error.to_string().contains("secret"));
    }
    assert!(server.seen().is_empty());
}
