//! Long conversations that are shortened for their provider: when, how often, and which messages
//! always stay together.

use crate::story;

use std::sync::{Arc, Mutex};

use foldlog::conversation::{ConversationRecord, EntryContent, NewInput, Role};
use foldlog::{SequenceNumber, Session};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::provider::{ProviderAnswer, ProviderErrorKind};
use foldlog_agent::{
    Error, EvaluateOptions, KeepLastTurns, ProviderAdapter, Result, ShortenOptions, ShortenReason,
    ShortenRequest, ShortenedRange, Shortener,
};
use story::{Desk, Said, Script, limits};

const EVALUATION: &str = "one";
const TEXT: &str = "[before]";

/// Calls a tool in each answer but the last one.
fn script() -> Script {
    Script::new(vec![
        ("one", vec![("a", "add", "1"), ("b", "look", "1")]),
        ("two", vec![("a", "add", "2")]),
        ("three", vec![("c", "break", "3"), ("a", "add", "3")]),
        ("four", vec![("a", "add", "4")]),
        ("done", vec![]),
    ])
}

/// Returns the number of answers in the log; `None` once the process was killed.
fn answered(session: &Session) -> Option<usize> {
    let conversation = session.conversation().read(EVALUATION).ok()??;
    let is_answer = |entry: &&ConversationRecord| matches!(entry.content, EntryContent::Answer { .. });
    Some(conversation.entries().iter().filter(is_answer).count())
}

/// Answers by the number of answers in the log, since requests are shortened. Each answer reports
/// 100 tokens for each message.
fn adapter(session: &Session, script: &Script, overflows: usize) -> ProviderAdapter<ScriptedProvider> {
    let (session, script) = (session.clone(), script.clone());
    let provider = ScriptedProvider::from_fn(move |request| {
        if request.messages.len() > overflows {
            return ScriptedReply::fail(ProviderErrorKind::ContextOverflow, "too long");
        }
        let Some(at) = answered(&session) else {
            return ScriptedReply::fail(ProviderErrorKind::Cancelled, "the process was killed");
        };
        script.asked.lock().unwrap().push(at);
        let (text, calls) = &script.answers[at];
        let input = 100 * request.messages.len() as u64;
        ScriptedReply::Answer(ProviderAnswer {
            content: Some(text.clone()),
            calls: calls.clone(),
            usage: Some(foldlog::conversation::TokenUsage { input, output: 5, ..Default::default() }),
            ..ProviderAnswer::default()
        })
    });
    ProviderAdapter::new(provider).with_limits(limits())
}

fn options<'a>(shorten: Option<ShortenOptions>) -> EvaluateOptions<'a> {
    EvaluateOptions { evaluation_id: Some(EVALUATION.to_owned()), shorten, ..EvaluateOptions::default() }
}

fn keep_last(turns: usize) -> ShortenOptions {
    ShortenOptions::at_overflow(KeepLastTurns::new(turns).with_text(TEXT))
}

fn evaluate(desk: &Desk, script: &Script, shorten: Option<ShortenOptions>) -> Result<String> {
    let adapter = adapter(desk.session(), script, usize::MAX);
    Ok(adapter.evaluate(&desk.prompt(), &desk.state, options(shorten))?.text)
}

/// Returns the texts that would be sent, those of answers without their nonces.
fn texts(desk: &Desk) -> Vec<String> {
    desk.sent(EVALUATION).into_iter().skip(1).map(|said: Said| said.content.unwrap_or_default()).collect()
}

/// Returns the range and the reason of each shortening in the log.
fn shortened(desk: &Desk) -> Vec<(SequenceNumber, SequenceNumber, String)> {
    let conversation = desk.session().conversation().read(EVALUATION).unwrap().unwrap();
    let of = |entry: &ConversationRecord| match &entry.content {
        EntryContent::Shortened { from, to, reason, .. } => Some((*from, *to, reason.clone())),
        _ => None,
    };
    conversation.entries().iter().filter_map(of).collect()
}

/// A shortener that records its requests, and returns the result of a function.
struct Asks<F>(F, Asked);

/// The reason of each request, its number of messages, and the tokens sent for the last answer.
type Asked = Arc<Mutex<Vec<(ShortenReason, usize, Option<u64>)>>>;

impl<F: Fn(&ShortenRequest<'_>) -> Option<ShortenedRange> + Send + Sync> Shortener for Asks<F> {
    fn shorten(&self, asked: &ShortenRequest<'_>) -> Result<Option<ShortenedRange>> {
        let used = asked.usage.map(|usage| usage.input);
        self.1.lock().unwrap().push((asked.reason, asked.messages.len(), used));
        Ok(self.0(asked))
    }
}

#[test]
fn a_conversation_is_shortened_at_the_threshold_of_tokens_and_the_log_keeps_everything() {
    let desk = Desk::new();
    let shorten = ShortenOptions { input_tokens: Some(600), ..keep_last(1) };
    assert_eq!(evaluate(&desk, &script(), Some(shorten)).unwrap(), "done");
    // Requests of 1, 4 and 6 messages: 600 tokens are reached before the fourth request.
    assert_eq!(shortened(&desk).len(), 1);
    assert_eq!(shortened(&desk)[0].2, "threshold");
    assert_eq!(texts(&desk), [TEXT, "three", "it broke", "added 3", "four", "added 4", "done"]);
    let conversation = desk.session().conversation().read(EVALUATION).unwrap().unwrap();
    assert_eq!(conversation.messages().len(), 1 + 5 + 6, "the log holds every message as it was");
    assert_eq!(conversation.sent_messages()[0].role, Role::System, "the system message stays");
    assert_eq!(desk.page(), ["1", "2", "3", "4"]);
}

#[test]
fn a_conversation_is_shortened_again_whenever_it_has_grown_and_also_without_a_log() {
    let desk = Desk::new();
    let shorten = ShortenOptions { messages: Some(6), ..keep_last(1) };
    assert_eq!(evaluate(&desk, &script(), Some(shorten)).unwrap(), "done");
    let recorded = shortened(&desk);
    assert_eq!(recorded.len(), 3, "{recorded:?}");
    assert!(
        recorded.iter().all(|part| part.0 == recorded[0].0),
        "a later part begins with the text that replaced the first"
    );
    assert_eq!(texts(&desk), [TEXT, "four", "added 4", "done"]);

    // The same answers without a log: the sent messages are the same.
    let script = script();
    let replies = script.answers.iter().map(|(text, calls)| {
        ScriptedReply::Answer(ProviderAnswer {
            content: Some(text.clone()),
            calls: calls.clone(),
            ..ProviderAnswer::default()
        })
    });
    let adapter = ProviderAdapter::new(ScriptedProvider::new(replies.collect::<Vec<_>>()));
    let shorten = ShortenOptions { messages: Some(6), ..keep_last(1) };
    let (other, unrecorded) = (Desk::new(), EvaluateOptions { record: false, ..options(Some(shorten)) });
    assert_eq!(adapter.evaluate(&other.prompt(), &other.state, unrecorded).unwrap().text, "done");
    let sent = adapter.provider().seen_requests();
    let last: Vec<_> =
        sent[4].messages.iter().skip(1).map(|message| message.content.clone().unwrap()).collect();
    assert_eq!(last, [TEXT, "four", "added 4"]);
}

#[test]
fn a_conversation_that_reaches_no_threshold_has_the_records_of_one_without_a_shortener() {
    let (with, without) = (Desk::new(), Desk::new());
    let shorten = ShortenOptions { input_tokens: Some(1_000_000), messages: Some(1_000), ..keep_last(1) };
    evaluate(&with, &script(), Some(shorten)).unwrap();
    evaluate(&without, &script(), None).unwrap();
    assert_eq!(with.kinds(), without.kinds());
    assert_eq!(with.sent(EVALUATION), without.sent(EVALUATION));
}

#[test]
fn a_shortener_is_asked_once_for_each_answer_and_learns_why() {
    let desk = Desk::new();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let shorten = ShortenOptions {
        input_tokens: Some(400),
        ..ShortenOptions::at_overflow(Asks(|_: &ShortenRequest<'_>| None, Arc::clone(&asked)))
    };
    evaluate(&desk, &script(), Some(shorten)).unwrap();
    let threshold = ShortenReason::Threshold;
    let expected = [(threshold, 6, Some(400)), (threshold, 9, Some(600)), (threshold, 11, Some(900))];
    assert_eq!(*asked.lock().unwrap(), expected);
    assert_eq!(shortened(&desk), []);
}

/// The next process sends the shortened form, and requests no answer twice.
#[test]
fn a_killed_process_resumes_with_the_shortened_form() {
    let shorten = || Some(ShortenOptions { messages: Some(6), ..keep_last(1) });
    let whole = Desk::new();
    evaluate(&whole, &script(), shorten()).unwrap();
    let mut kills = 0;
    loop {
        let (mut desk, script) = (Desk::new(), script());
        desk.kill_behind(kills + 1);
        if evaluate(&desk, &script, shorten()).is_ok() {
            break;
        }
        kills += 1;
        desk.reopen();
        assert_eq!(evaluate(&desk, &script, shorten()).unwrap(), "done", "killed behind {kills}");
        assert_eq!(desk.sent(EVALUATION), whole.sent(EVALUATION), "killed behind {kills}");
        assert_eq!(shortened(&desk).len(), 3, "killed behind {kills}");
        let mut asked = script.asked();
        asked.dedup();
        assert_eq!(asked, [0, 1, 2, 3, 4], "killed behind {kills}");
    }
    assert!(kills > 25, "{kills} kills");
}

#[test]
fn a_range_that_parts_a_call_from_its_result_is_refused_and_names_both() {
    for holds_answer in [true, false] {
        let desk = Desk::new();
        let part = move |asked: &ShortenRequest<'_>| {
            let result = asked.messages.iter().find(|sent| sent.answer.is_some()).unwrap();
            let record = if holds_answer { result.answer.unwrap() } else { result.sequence };
            Some(ShortenedRange { from: record, to: record, messages: vec![(Role::User, TEXT.to_owned())] })
        };
        let shorten =
            ShortenOptions { messages: Some(4), ..ShortenOptions::at_overflow(Asks(part, Arc::default())) };
        let error = evaluate(&desk, &script(), Some(shorten)).unwrap_err();
        let conversation = desk.session().conversation().read(EVALUATION).unwrap().unwrap();
        let (answer, _) = conversation.last_answer().unwrap();
        let result =
            conversation.sent_entries().into_iter().find(|sent| sent.answer.is_some()).unwrap().sequence;
        let text = error.to_string();
        assert!(matches!(error, Error::ShorteningRefused { .. }), "{text}");
        for part in ["the call `a`", &format!("record {answer} "), &format!("record {result}:")] {
            assert!(text.contains(part), "{text} names {part}");
        }
        assert_eq!(shortened(&desk), [], "nothing was recorded");
        assert_eq!(evaluate(&desk, &script(), None).unwrap(), "done", "the evaluation goes on without it");
    }
}

#[test]
fn what_cannot_be_replaced_or_sent_is_refused() {
    let all =
        |asked: &ShortenRequest<'_>| (asked.messages[1].sequence, asked.messages.last().unwrap().sequence);
    type Shorten = fn(&ShortenRequest<'_>) -> ShortenedRange;
    let cases: [(Shorten, &str); 5] = [
        (
            |asked| ShortenedRange {
                from: asked.messages[1].sequence,
                to: SequenceNumber::MIN,
                messages: vec![],
            },
            "contain no message",
        ),
        (
            |asked| ShortenedRange {
                from: asked.messages[0].sequence,
                to: asked.messages[0].sequence,
                messages: vec![],
            },
            "contain no message",
        ),
        (
            |asked| ShortenedRange {
                from: SequenceNumber::MIN,
                to: SequenceNumber::MAX,
                messages: vec![(Role::System, asked.reason.name().to_owned())],
            },
            "`system`",
        ),
        (
            |_| ShortenedRange {
                from: SequenceNumber::MIN,
                to: SequenceNumber::MAX,
                messages: vec![(Role::User, " \n".to_owned())],
            },
            "has no text",
        ),
        (
            |_| ShortenedRange { from: SequenceNumber::MIN, to: SequenceNumber::MAX, messages: vec![] },
            "the whole conversation",
        ),
    ];
    for (shortening, reason) in cases {
        let desk = Desk::new();
        let asks = Asks(move |asked: &ShortenRequest<'_>| Some(shortening(asked)), Arc::default());
        let shorten = ShortenOptions { messages: Some(4), ..ShortenOptions::at_overflow(asks) };
        let text = evaluate(&desk, &script(), Some(shorten)).unwrap_err().to_string();
        assert!(text.contains(reason), "{text}");
    }
    // The system message stays even if the range includes its record.
    let desk = Desk::new();
    let whole = move |asked: &ShortenRequest<'_>| {
        let messages = vec![(Role::User, TEXT.to_owned())];
        Some(ShortenedRange { from: SequenceNumber::MIN, to: all(asked).1, messages })
    };
    let shorten =
        ShortenOptions { messages: Some(4), ..ShortenOptions::at_overflow(Asks(whole, Arc::default())) };
    assert_eq!(evaluate(&desk, &script(), Some(shorten)).unwrap(), "done");
    assert_eq!(desk.sent(EVALUATION)[0].role, Role::System);
}

#[test]
fn a_conversation_that_is_too_long_is_shortened_once_and_sent_once_more() {
    // Four messages fit, and one turn with the replacement of the others is as long: 1 + 1 + 2.
    let (desk, script) = (Desk::new(), self::script());
    let adapter = self::adapter(desk.session(), &script, 5);
    let text = adapter.evaluate(&desk.prompt(), &desk.state, options(Some(keep_last(1)))).unwrap().text;
    assert_eq!(text, "done");
    assert!(shortened(&desk).iter().all(|(_, _, reason)| reason == "overflow"));
    assert_eq!(shortened(&desk).len(), 3);

    // Still too long: the provider is asked once more, and not again.
    let (desk, script) = (Desk::new(), self::script());
    let adapter = self::adapter(desk.session(), &script, 3);
    let error = adapter.evaluate(&desk.prompt(), &desk.state, options(Some(keep_last(1)))).unwrap_err();
    assert!(matches!(error, Error::ContextOverflow(_)), "{error}");
    assert_eq!(adapter.provider().requests(), 2, "nothing can be shortened of one turn");

    // Nobody shortens it.
    let (desk, script) = (Desk::new(), self::script());
    let adapter = self::adapter(desk.session(), &script, 5);
    let error = adapter.evaluate(&desk.prompt(), &desk.state, options(None)).unwrap_err();
    assert!(matches!(error, Error::ContextOverflow(_)), "{error}");
    assert_eq!((adapter.provider().requests(), shortened(&desk).len()), (3, 0));
}

/// A user's message that arrives while tools run belongs to no replaceable range without its turn,
/// so the built-in shortener keeps both.
#[test]
fn a_message_that_came_late_is_not_replaced_unread() {
    let desk = Desk::new();
    let session = desk.session().clone();
    let answers = script();
    let provider = ScriptedProvider::from_fn(move |_| {
        let at = answered(&session).unwrap();
        if at == 2 {
            session.conversation().record_input(&NewInput::user(EVALUATION, "hurry up")).unwrap();
        }
        let (text, calls) = answers.answers[at].clone();
        ScriptedReply::Answer(ProviderAnswer { content: Some(text), calls, ..ProviderAnswer::default() })
    });
    let shorten = ShortenOptions { messages: Some(11), ..keep_last(1) };
    let adapter = ProviderAdapter::new(provider).with_limits(limits());
    adapter.evaluate(&desk.prompt(), &desk.state, options(Some(shorten))).unwrap();
    // One turn was to be kept. The message was recorded before the results of the turn before, and
    // is kept with it.
    assert_eq!(texts(&desk), [TEXT, "three", "it broke", "added 3", "hurry up", "four", "added 4", "done"]);
}
