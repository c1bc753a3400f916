//! Shows that the key reaches its own provider, and nothing else.

use std::panic::catch_unwind;

use foldlog::conversation::{ConversationMessage, Role};
use foldlog_agent::provider::anthropic::AnthropicProvider;
use foldlog_agent::provider::openai::OpenAiProvider;
use foldlog_agent::provider::{
    ApiKey, LlmConfig, Provider, ProviderError, ProviderErrorKind, ProviderRequest, SendOptions,
};
use serde_json::json;

use super::asking::{BOTH, KEY, Which, ask};
use super::server::{Does, Server};

/// Returns every part of a failure that is shown or recorded.
fn everything(error: &ProviderError) -> String {
    let payload = match &error.kind {
        ProviderErrorKind::Throttled(details) => json!(details.provider_payload).to_string(),
        _ => String::new(),
    };
    format!("{error} {error:?} {error:#?} {payload}")
}

/// Covers every text that a server can return.
#[test]
fn a_key_that_a_server_repeats_is_shown_nowhere() {
    let body =
        json!({ "error": { "message": format!("the key {KEY} is wrong"), "type": KEY, "extra": [KEY] } });
    let headers = [("x-request-id", KEY), ("x-ratelimit-key", KEY), ("retry-after", KEY), ("location", KEY)];
    let failures = [401, 400, 429, 500, 302, 307].map(|status| Does::fails(status, &headers, &body));
    let streams = [
        format!("data: {KEY}\n\n"),
        format!("data: {{\"type\":\"{KEY}\",\"choices\":\"{KEY}\"}}\n\n"),
        format!(
            "data: {body}\n\nevent: error\ndata: {{\"type\":\"error\",\"error\":{{\"message\":\"{KEY}\"}}}}\n\n"
        ),
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{KEY}\"}}}}]}}\n\n"),
    ];
    let redirect = format!("HTTP/1.1 302 Found\r\nlocation: https://{KEY}.example.com/{KEY}\r\n\r\n");
    let others = [
        Does::Writes(redirect.into_bytes()),
        Does::Writes(format!("HTTP/1.1 {KEY}\r\n\r\n").into_bytes()),
        Does::Replies(200, vec![], format!("\"{KEY}\"").into_bytes()),
    ];
    for does in failures.into_iter().chain(streams.map(|stream| Does::streams(&stream))).chain(others) {
        for which in BOTH {
            let server = Server::that(does.clone());
            let error = ask(&*which.provider(&server), true).outcome.unwrap_err();
            let shown = everything(&error);
            assert!(!shown.contains(KEY), "{which:?} {does:?}: {shown}");
            assert_eq!(server.seen().len(), 1, "one request, and no other host");
            assert!(server.seen()[0].head.contains(KEY), "the server itself got it");
        }
    }
}

/// Covers debug output, records of requests, and panics of a host that prints its provider.
#[test]
fn neither_providers_nor_requests_show_the_key() {
    let key = || Some(ApiKey::new(format!(" {KEY}\n")).unwrap());
    let openai = OpenAiProvider::new("https://localhost/v1", key(), "m").unwrap();
    let anthropic = AnthropicProvider::new("https://localhost", key(), "m").unwrap();
    let messages = [ConversationMessage::new(Role::User, "hi")];
    let config = LlmConfig::default();
    let request = ProviderRequest { messages: &messages, tools: &[], output: None, config: &config };
    for provider in [&openai as &dyn Provider, &anthropic] {
        let prepared = provider.prepare(&request).unwrap();
        assert!(!format!("{prepared:?} {}", String::from_utf8_lossy(&prepared.body)).contains(KEY));
    }
    let printed =
        format!("{openai:?} {openai:#?} {anthropic:?} {anthropic:#?} {:?} {}", key(), key().unwrap());
    assert!(!printed.contains(KEY), "{printed}");
    assert!(printed.contains("localhost") && printed.contains("[key]"), "{printed}");
    let panicked = catch_unwind(|| panic!("{openai:?} {:?}", key())).unwrap_err();
    assert!(!panicked.downcast_ref::<String>().unwrap().contains(KEY));
    let wrong = ApiKey::new(format!("{KEY}\n{KEY}")).unwrap_err();
    assert!(!everything(&wrong).contains(KEY), "{wrong}");
    assert!(ApiKey::new(" ").is_err());
}

/// The key must not reach another host. The failure names the target of the redirect.
#[test]
fn a_redirect_to_another_host_is_not_followed() {
    for (which, status) in
        BOTH.into_iter().flat_map(|which| [301, 302, 303, 307, 308].map(|status| (which, status)))
    {
        let thief = Server::start(move |_, _| which.answers(false, "thanks", &[]));
        let location = format!("{}/v1/messages", thief.url());
        let server = Server::that(Does::Replies(status, vec![("location", location)], Vec::new()));
        let error = ask(&*which.provider(&server), false).outcome.unwrap_err();
        assert_eq!((&error.kind, error.status), (&ProviderErrorKind::InvalidAnswer, Some(status)));
        assert!(error.message.contains("redirects to 127.0.0.1"), "{error}");
        assert!(thief.seen().is_empty());
    }
    let hostile = "HTTP/1.1 302 Found\r\nlocation: http://a\u{202e}b.example/\r\n\r\n";
    let server = Server::that(Does::Writes(hostile.as_bytes().to_vec()));
    let error = ask(&*Which::OpenAi.provider(&server), false).outcome.unwrap_err();
    assert!(!error.message.contains('\u{202e}'), "{error}");
}

#[test]
fn without_a_key_no_header_names_one() {
    let server = Server::start(|_, _| Which::OpenAi.answers(false, "ok", &[]));
    let provider = OpenAiProvider::new(&server.url(), None, "m").unwrap();
    let config = LlmConfig::default();
    let messages = [ConversationMessage::new(Role::User, "hi")];
    let request = ProviderRequest { messages: &messages, tools: &[], output: None, config: &config };
    provider.send(&provider.prepare(&request).unwrap(), &mut SendOptions::default()).unwrap();
    assert!(!server.seen()[0].head.to_ascii_lowercase().contains("authorization"));
    assert_eq!(
        server.seen()[0].head.lines().find(|line| line.starts_with("host: ")),
        Some(format!("host: {}", server.host()).as_str())
    );
}

/// A pause for one key held back every other key of the same provider.
#[test]
fn each_key_and_each_address_has_a_limit_of_its_own() {
    let provider = |address: &str, key: &str| {
        OpenAiProvider::new(address, Some(ApiKey::new(key).unwrap()), "model-1").unwrap()
    };
    let one = provider("https://a.example/v1", KEY);
    let names = [
        provider("https://a.example/v1", "another-key-of-the-host").limited_as().to_owned(),
        provider("https://b.example/v1", KEY).limited_as().to_owned(),
    ];
    assert!(names.iter().all(|name| name != one.limited_as() && !name.contains(KEY)), "{names:?}");
    assert_eq!(provider("https://a.example/v1", KEY).limited_as(), one.limited_as());
    assert!(!one.limited_as().contains(KEY));
}
