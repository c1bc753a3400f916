//! Histories that a provider would refuse are found before they are sent, and can be repaired.

use foldlog::conversation::{ContentBlocks, ConversationMessage, Role, ToolCallRecord};
use foldlog_agent::pairing::{MessageFormat, PairingRule, RepairChange, close_open, repair, validate};
use proptest::prelude::*;

const FORMATS: [MessageFormat; 2] = [MessageFormat::OpenAi, MessageFormat::Anthropic];

fn user(text: &str) -> ConversationMessage {
    ConversationMessage::new(Role::User, text)
}

fn system(text: &str) -> ConversationMessage {
    ConversationMessage::new(Role::System, text)
}

fn answer(ids: &[&str]) -> ConversationMessage {
    let call = |id: &&str| ToolCallRecord {
        call_id: (*id).to_owned(),
        name: "search".to_owned(),
        arguments: "{}".to_owned(),
    };
    let content = if ids.is_empty() { Some("Done.".to_owned()) } else { None };
    let tool_calls = ids.iter().map(call).collect();
    ConversationMessage { content, tool_calls, ..ConversationMessage::new(Role::Assistant, "") }
}

fn result(id: &str, text: &str) -> ConversationMessage {
    ConversationMessage { tool_call_id: Some(id.to_owned()), ..ConversationMessage::new(Role::Tool, text) }
}

/// Returns the violations of a list, as index, rule, and id or name.
fn wrong(format: MessageFormat, messages: &[ConversationMessage]) -> Vec<(usize, PairingRule, String)> {
    let violations = validate(format, messages).err().unwrap_or_default();
    violations.into_iter().map(|v| (v.message, v.rule, v.subject.unwrap_or_default())).collect()
}

fn texts(messages: &[ConversationMessage]) -> Vec<&str> {
    messages.iter().map(|message| message.content.as_deref().unwrap_or("-")).collect()
}

/// Repairs a list for both providers, which must give the same result. Returns the messages and the
/// texts of the changes.
fn repaired(messages: &[ConversationMessage]) -> (Vec<ConversationMessage>, Vec<String>) {
    let [openai, anthropic] = FORMATS.map(|format| repair(format, messages));
    assert_eq!(openai, anthropic);
    assert_eq!(validate(MessageFormat::OpenAi, &openai.messages), Ok(()));
    (openai.messages, openai.changes.iter().map(ToString::to_string).collect())
}

#[test]
fn a_conversation_with_parallel_calls_is_accepted_by_both() {
    let messages = [
        system("Be brief."),
        user("Where is my order, and what is the weather?"),
        answer(&["call_a", "call_b"]),
        result("call_a", "on its way"),
        result("call_b", "sunny"),
        user("And tomorrow?"),
        answer(&["call_c"]),
        result("call_c", ""),
        answer(&[]),
    ];
    for format in FORMATS {
        assert_eq!(validate(format, &messages), Ok(()));
        assert_eq!(repair(format, &messages).messages, messages);
    }
}

#[test]
fn everything_that_is_wrong_is_named_and_not_only_the_first() {
    let messages = [
        user("hi"),
        answer(&["a", "b", "c"]),
        result("b", "out of order"),
        result("b", "again"),
        result("z", "whose?"),
        user("go on"),
        answer(&["a"]),
        result("a", "1"),
        answer(&[]),
        result("a", "late"),
    ];
    for format in FORMATS {
        assert_eq!(
            wrong(format, &messages),
            [
                (1, PairingRule::Unanswered, "a".to_owned()),
                (1, PairingRule::Unanswered, "c".to_owned()),
                (2, PairingRule::OutOfOrder, "b".to_owned()),
                (3, PairingRule::AnsweredTwice, "b".to_owned()),
                (4, PairingRule::Orphan, "z".to_owned()),
                (6, PairingRule::RepeatedId, "a".to_owned()),
                (9, PairingRule::Orphan, "a".to_owned()),
            ]
        );
    }
}

#[test]
fn what_only_one_of_them_refuses_is_refused_for_that_one_alone() {
    let long = "x".repeat(41);
    let failed = ConversationMessage { is_error: true, ..result("a", " ") };
    let silent = ConversationMessage { content: None, ..user("") };
    let cases: [(Vec<ConversationMessage>, Option<PairingRule>, Option<PairingRule>); 9] = [
        (vec![user(" \n")], None, Some(PairingRule::EmptyContent)),
        (vec![silent], Some(PairingRule::EmptyContent), Some(PairingRule::EmptyContent)),
        (vec![user("q"), answer(&["a"]), failed], None, Some(PairingRule::EmptyContent)),
        (vec![user("q"), answer(&[&long]), result(&long, "r")], Some(PairingRule::MalformedId), None),
        (vec![user("q"), answer(&["a.b"]), result("a.b", "r")], None, Some(PairingRule::MalformedId)),
        (vec![user("q"), system("also")], None, Some(PairingRule::SystemNotFirst)),
        (vec![system("s"), answer(&[])], None, Some(PairingRule::UserNotFirst)),
        (vec![system("s")], None, Some(PairingRule::NoMessages)),
        (vec![], Some(PairingRule::NoMessages), Some(PairingRule::NoMessages)),
    ];
    for (messages, openai, anthropic) in cases {
        let [one, other] = FORMATS.map(|format| {
            let rules: Vec<_> = wrong(format, &messages).into_iter().map(|(_, rule, _)| rule).collect();
            assert!(rules.len() < 2, "{rules:?}");
            rules.first().copied()
        });
        assert_eq!((one, other), (openai, anthropic), "{:?}", texts(&messages));
    }
}

#[test]
fn blocks_count_as_content_for_the_provider_whose_form_they_have() {
    let blocks = |json: &str| {
        let blocks = ContentBlocks { format: "anthropic".to_owned(), json: json.to_owned() };
        vec![ConversationMessage { content: None, blocks: Some(blocks), ..user("") }]
    };
    let image = blocks(r#"[{"type":"image","source":{}}]"#);
    assert_eq!(wrong(MessageFormat::Anthropic, &image), []);
    assert_eq!(wrong(MessageFormat::OpenAi, &image), [(0, PairingRule::EmptyContent, String::new())]);
    for malformed in ["", "[ ]", "[{", "null", "[1] 2"] {
        assert_eq!(
            wrong(MessageFormat::Anthropic, &blocks(malformed)),
            [(0, PairingRule::MalformedBlocks, String::new())]
        );
    }
}

#[test]
fn a_call_that_never_ran_gets_a_result_that_says_so() {
    let killed = [user("q"), answer(&["a", "b"]), result("a", "1")];
    let (messages, changes) = repaired(&killed);
    assert_eq!(changes, ["message 1: the call `b` gets a placeholder result"]);
    assert_eq!(messages[..3], killed);
    assert_eq!((messages[3].tool_call_id.as_deref(), messages[3].is_error), (Some("b"), true));
}

#[test]
fn what_a_user_said_while_tools_ran_goes_behind_their_results() {
    let interrupted =
        [user("q"), answer(&["a", "b"]), user("stop!"), result("b", "2"), result("a", "1"), answer(&[])];
    let (messages, changes) = repaired(&interrupted);
    assert_eq!(texts(&messages), ["q", "-", "1", "2", "stop!", "Done."]);
    assert_eq!(
        changes,
        [
            "message 4: the result for `a` is moved after its answer",
            "message 3: the result for `b` is moved after its answer"
        ]
    );
}

#[test]
fn ids_that_name_several_calls_are_renamed_and_stay_the_same_as_the_conversation_grows() {
    let mut messages = vec![user("q")];
    for text in ["1", "2", "3"] {
        messages.extend([answer(&["call", "call"]), result("call", text), result("call", text)]);
    }
    messages.extend([answer(&["call_3"]), result("call_3", "4")]);
    let (whole, _) = repaired(&messages);
    let ids: Vec<_> =
        whole.iter().flat_map(|message| &message.tool_calls).map(|call| &*call.call_id).collect();
    assert_eq!(ids, ["call", "call_2", "call_3", "call_4", "call_5", "call_6", "call_3_2"]);
    let named: Vec<_> = whole.iter().filter_map(|message| message.tool_call_id.as_deref()).collect();
    assert_eq!(named, ids);
    for length in [4, 7, 10] {
        let (beginning, _) = repaired(&messages[..length]);
        assert_eq!(beginning, whole[..length]);
    }
}

#[test]
fn one_id_for_thousands_of_calls_is_renamed_in_time() {
    let messages: Vec<_> = std::iter::once(user("q"))
        .chain((0..50_000).flat_map(|_| [answer(&["x"]), result("x", "r")]))
        .collect();
    for format in FORMATS {
        assert_eq!(validate(format, &repair(format, &messages).messages), Ok(()));
    }
}

#[test]
fn hostile_names_are_escaped_where_they_are_shown() {
    let mut evil = answer(&["\u{1b}[2J"]);
    evil.tool_calls[0].name = "rm\u{202e}".to_owned();
    evil.name = Some("a b\r".to_owned());
    let messages = [user("q"), evil];
    let violations = validate(MessageFormat::OpenAi, &messages).unwrap_err();
    let shown: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            r"message 1: `a b\r` is a speaker's name that the provider refuses",
            r"message 1: `rm\u{202e}` is a tool's name that the provider refuses",
            r"message 1: the call `\u{1b}[2J` has no result directly after its answer",
        ]
    );
    let repaired = repair(MessageFormat::Anthropic, &messages);
    let shown: String = repaired.changes.iter().map(|change| format!("{change}\n")).collect();
    assert_eq!(
        shown,
        "message 1: the call `\\u{1b}[2J` gets a placeholder result\n\
         message 1: the tool `rm\\u{202e}` of call 0 becomes `rm_`\n\
         message 1: the id `\\u{1b}[2J` of call 0 becomes `__2J`\n"
    );
}

/// Decides whether a provider accepts a list, by comparing each answer's calls with all results
/// after it.
fn is_accepted(format: MessageFormat, messages: &[ConversationMessage]) -> bool {
    let anthropic = format == MessageFormat::Anthropic;
    let letter = |message: &ConversationMessage| match message.role {
        Role::System => 's',
        Role::User => 'u',
        Role::Assistant => 'a',
        Role::Tool => 't',
    };
    let shape: String = messages.iter().map(letter).collect();
    let said = shape.trim_start_matches(if anthropic { 's' } else { '-' });
    if said.is_empty() || anthropic && (!said.starts_with('u') || said.contains('s')) {
        return false;
    }
    let calls = |message: &ConversationMessage| -> Vec<String> {
        message.tool_calls.iter().map(|call| call.call_id.clone()).collect()
    };
    let paired = messages.split_inclusive(|message| message.role != Role::Tool).collect::<Vec<_>>();
    // Each piece contains the messages after one message, up to and including the next one that is
    // no result.
    let mut before: Vec<String> = Vec::new();
    for piece in paired {
        let (results, next): (Vec<_>, Vec<_>) = piece.iter().partition(|message| message.role == Role::Tool);
        let named: Vec<String> =
            results.iter().map(|message| message.tool_call_id.clone().unwrap_or_default()).collect();
        if named != before {
            return false;
        }
        before = next.first().map(|message| calls(message)).unwrap_or_default();
    }
    if !before.is_empty() {
        return false;
    }
    let mut ids: Vec<String> = messages.iter().flat_map(calls).collect();
    let word = |text: &str| text.chars().all(|c| matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-'));
    let total = ids.len();
    let shaped =
        ids.iter().all(|id| !id.is_empty() && (if anthropic { word(id) } else { id.chars().count() <= 40 }));
    ids.sort();
    ids.dedup();
    shaped
        && ids.len() == total
        && messages.iter().all(|message| {
            let blank = message.content.as_deref().is_none_or(|text| text.trim().is_empty());
            let content = match message.role {
                Role::Assistant if !message.tool_calls.is_empty() => true,
                Role::Tool if anthropic => !(blank && message.is_error),
                _ if anthropic => !blank,
                _ => message.content.is_some(),
            };
            let speaker = message
                .name
                .as_deref()
                .is_none_or(|name| anthropic || (!name.is_empty() && !name.contains(' ')));
            let tools = message.tool_calls.iter().all(|call| !call.name.is_empty() && word(&call.name));
            content && speaker && tools && (message.role == Role::Assistant || message.tool_calls.is_empty())
        })
}

/// Decides whether the results after each answer are those of its calls, in order.
fn is_paired(messages: &[ConversationMessage]) -> bool {
    let mut open: Vec<&str> = Vec::new();
    for message in messages {
        match message.role {
            Role::Tool if open.is_empty() => return false,
            Role::Tool if open.remove(0) != message.tool_call_id.as_deref().unwrap_or_default() => {
                return false;
            }
            Role::Tool => {}
            _ if !open.is_empty() => return false,
            Role::Assistant => open.extend(message.tool_calls.iter().map(|call| call.call_id.as_str())),
            _ => {}
        }
    }
    open.is_empty()
}

fn ids() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "[ab]",
        4 => "[a-z]{6}",
        1 => Just(String::new()),
        1 => Just("a.b".to_owned()),
        1 => Just("i".repeat(50)),
        1 => Just("é\u{7}".to_owned()),
    ]
}

fn any_message() -> impl Strategy<Value = ConversationMessage> {
    let role = prop_oneof![Just(Role::System), Just(Role::User), Just(Role::Assistant), Just(Role::Tool)];
    let content = prop_oneof![
        5 => Just(Some("text".to_owned())),
        1 => Just(Some(String::new())),
        1 => Just(Some(" \n".to_owned())),
        1 => Just(None),
    ];
    let tool = prop_oneof![8 => Just("tool"), 1 => Just(""), 1 => Just("a tool")];
    let calls = proptest::collection::vec((ids(), tool), 0..4);
    let name =
        prop_oneof![8 => Just(None), 1 => Just(Some("ada".to_owned())), 1 => Just(Some("a b".to_owned()))];
    (role, content, calls, proptest::option::of(ids()), name, any::<bool>(), 0..8_u8).prop_map(
        |(role, content, calls, tool_call_id, name, is_error, strange)| {
            let calls = calls.into_iter().map(|(call_id, name)| ToolCallRecord {
                call_id,
                name: name.to_owned(),
                arguments: "{}".to_owned(),
            });
            let tool_calls = if role == Role::Assistant || strange == 0 { calls.collect() } else { vec![] };
            ConversationMessage {
                content,
                tool_calls,
                tool_call_id: tool_call_id.filter(|_| role == Role::Tool),
                name,
                is_error: is_error && role == Role::Tool,
                ..ConversationMessage::new(role, "")
            }
        },
    )
}

/// Draws lists that are mostly valid, so that many are accepted and others have one fault.
fn likely() -> impl Strategy<Value = Vec<ConversationMessage>> {
    let part = (proptest::collection::vec("[a-z]{1,8}", 0..4), 0..3_usize, any::<bool>()).prop_map(
        |(ids, users, answered)| {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            let results = ids.iter().filter(|_| answered).map(|id| result(id, "r"));
            let users = (0..users).map(|_| user("go on"));
            std::iter::once(answer(&ids)).chain(results).chain(users).collect::<Vec<_>>()
        },
    );
    let parts = proptest::collection::vec(part, 0..4);
    let fault = proptest::option::weighted(0.5, (any::<proptest::sample::Index>(), any_message(), 0..3_u8));
    (parts, fault).prop_map(|(parts, fault)| {
        let mut messages = vec![system("s"), user("q")];
        messages.extend(parts.into_iter().flatten());
        if let Some((place, message, how)) = fault {
            let place = place.index(messages.len());
            match how {
                0 => messages.insert(place, message),
                1 => messages[place] = message,
                _ => drop(messages.remove(place)),
            }
        }
        messages
    })
}

fn any_list() -> impl Strategy<Value = Vec<ConversationMessage>> {
    prop_oneof![proptest::collection::vec(any_message(), 0..12), likely()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_list_is_accepted_as_the_oracle_says_and_a_repaired_one_always(messages in any_list()) {
        for format in FORMATS {
            let accepted = is_accepted(format, &messages);
            prop_assert_eq!(validate(format, &messages).is_ok(), accepted);
            let repaired = repair(format, &messages);
            prop_assert_eq!(validate(format, &repaired.messages), Ok(()));
            prop_assert!(is_accepted(format, &repaired.messages));
            // The repair reports its changes, and changes nothing in a valid list.
            prop_assert_eq!(repaired.changes.is_empty(), accepted, "{:?}", &repaired.changes);
            prop_assert_eq!(repaired.messages == messages, accepted);
            let again = repair(format, &repaired.messages);
            prop_assert_eq!(again.changes, Vec::<RepairChange>::new());
            // No user message is lost or swapped with another one.
            let said = |messages: &[ConversationMessage]| -> Vec<Option<String>> {
                let users = messages.iter().filter(|message| message.role == Role::User);
                users.map(|user| user.content.clone()).filter(|content| content.as_deref() == Some("text")).collect()
            };
            prop_assert_eq!(said(&repaired.messages), said(&messages));
        }
    }

    #[test]
    fn a_list_whose_open_calls_are_closed_loses_nothing_and_leaves_no_call_or_result_alone(messages in any_list()) {
        let closed = close_open(&messages);
        prop_assert!(is_paired(&closed.messages), "{:?}", &closed.messages);
        prop_assert_eq!(closed.changes.is_empty(), is_paired(&messages), "{:?}", &closed.changes);
        prop_assert_eq!(closed.messages == messages, is_paired(&messages));
        prop_assert_eq!(close_open(&closed.messages).changes, Vec::<RepairChange>::new());
        // All messages are preserved, and those that are no results keep their order.
        let mut added = closed.messages.clone();
        for message in &messages {
            let place = added.iter().position(|one| one == message);
            prop_assert!(place.is_some(), "{:?} is lost", message);
            added.remove(place.unwrap());
        }
        let count = |wanted: fn(&RepairChange) -> bool| closed.changes.iter().filter(|change| wanted(change)).count();
        let calls: usize = added.iter().map(|message| message.tool_calls.len()).sum();
        prop_assert_eq!(calls, count(|change| matches!(change, RepairChange::CallAdded { .. })));
        let results = added.iter().filter(|message| message.role == Role::Tool).count();
        prop_assert_eq!(results, count(|change| matches!(change, RepairChange::ResultAdded { .. })));
        let others = |messages: &[ConversationMessage]| -> Vec<ConversationMessage> {
            let is_other = |message: &&ConversationMessage| message.role != Role::Tool && !added.contains(message);
            messages.iter().filter(is_other).cloned().collect()
        };
        prop_assert_eq!(others(&closed.messages), others(&messages));
    }
}
