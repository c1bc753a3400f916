//! Drops futures of conversations wherever they wait. The next evaluation continues from the end of
//! the log.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use foldlog::conversation::{EntryContent, ResumePoint, Role};
use foldlog::{Cause, Durability, Idempotency};
use foldlog_agent::{EvaluateOptions, Prompt, UserMessage};

use super::story::{Desk, Said, Script, limits, prompt_of};
use super::{single, slow, with_futures};

const EVALUATION: &str = "the story";

/// Wakes a thread that polls a future by hand.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future `times` times, each time that it is woken, and then drops it: at once, or when it
/// is woken once more. Returns its output if it ended before.
fn polled<T>(future: impl Future<Output = T>, times: usize, when_woken: bool) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    for time in 1..=times {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(value);
        }
        if time < times || when_woken {
            thread::park();
        }
    }
    None
}

fn options() -> EvaluateOptions<'static> {
    let messages = vec![UserMessage { id: "task".to_owned(), text: "Write the page.".to_owned() }];
    EvaluateOptions { evaluation_id: Some(EVALUATION.to_owned()), messages, ..EvaluateOptions::default() }
}

/// Blocking and `async` tools, alone and concurrent, one that fails and one that does not exist.
fn script() -> Script {
    Script::new(vec![
        ("first", vec![("a", "look", "a"), ("a", "read", "bb"), ("b", "add", "c")]),
        ("second", vec![("a", "break", "d"), ("b", "fly", "away"), ("c", "write", "e")]),
        ("third", vec![("a", "fetch", "ff"), ("b", "fetch", "g"), ("c", "write", "h")]),
        ("done", vec![]),
    ])
    .checked()
}

fn prompt(desk: &Desk) -> Prompt<String> {
    prompt_of(with_futures(desk.tools()))
}

/// Returns the causes of the conversation's failed calls, in the order in which the model reads
/// them.
fn causes(desk: &Desk) -> Vec<Cause> {
    let conversation = desk.session().conversation().read(EVALUATION).unwrap().unwrap();
    let cause = |content: &EntryContent| match content {
        EntryContent::CallEnded { cause, .. } => *cause,
        _ => None,
    };
    conversation.entries().iter().filter_map(|entry| cause(&entry.content)).collect()
}

/// Checks a conversation that was dropped and continued. It equals an undisturbed one, except that
/// calls that ran at that moment have failed, without effects. Returns the number of these.
fn check(desk: &Desk, script: &Script, whole: &[Said], at: &str) -> usize {
    let sent = desk.sent(EVALUATION);
    assert_eq!(sent.len(), whole.len(), "{at}: {sent:#?}");
    let mut stopped = 0;
    for (said, whole) in sent.iter().zip(whole).filter(|(said, whole)| said != whole) {
        assert!(said.role == Role::Tool && said.is_error && said.call_id == whole.call_id, "{at}: {said:?}");
        stopped += 1;
    }
    let dropped = causes(desk).into_iter().filter(|cause| matches!(cause, Cause::Dropped | Cause::Cancelled));
    assert_eq!(dropped.count(), stopped, "{at}: each of them, and once: {sent:#?}");
    let added = sent.iter().filter(|said| said.role == Role::Tool).filter_map(|said| said.content.as_deref());
    let added: Vec<&str> = added.filter_map(|text| text.strip_prefix("added ")).collect();
    assert_eq!(desk.page(), added, "{at}");
    for what in desk.ran.lines() {
        assert_eq!(desk.ran.times(&what), 1, "{at}: {what} ran again");
    }
    // A recorded answer was not requested again.
    let mut asked: BTreeMap<usize, usize> = BTreeMap::new();
    script.asked().into_iter().for_each(|answer| *asked.entry(answer).or_default() += 1);
    let twice = asked.values().filter(|times| **times > 1).count();
    assert!(asked.len() == script.answers.len() && twice <= 1, "{at}: {asked:?}");
    assert_eq!(
        desk.session().conversation().resume(Some(EVALUATION)).unwrap().point,
        ResumePoint::Complete,
        "{at}"
    );
    assert_eq!(desk.kinds().iter().filter(|kind| **kind == "turn").count(), script.answers.len(), "{at}");
    stopped
}

/// Drops an evaluation after each of its polls, and continues with either driver. Returns the
/// number of polls, and of stopped calls.
fn dropped_everywhere(durability: Durability, when_woken: bool) -> (usize, usize) {
    let whole = {
        let (desk, script) = (Desk::new(), script());
        script.adapter().evaluate(&prompt(&desk), &desk.state, options()).unwrap();
        desk.sent(EVALUATION)
    };
    let mut stopped = 0;
    for polls in 1.. {
        let (desk, script) = (Desk::at(Idempotency::Natural, durability), script());
        let (prompt, adapter) = (Arc::new(prompt(&desk)), slow(script.provider(), limits()));
        let evaluate = || adapter.evaluate_async(&prompt, &desk.state, options());
        let ended = polled(evaluate(), polls, when_woken);
        let at = format!("{durability:?}, dropped behind poll {polls}, when woken: {when_woken}");
        let response = match polls % 2 {
            0 => script.adapter().evaluate(&prompt, &desk.state, options()),
            _ => single().block_on(evaluate()),
        };
        let response = response.unwrap_or_else(|error| panic!("{at}: {error}"));
        assert!(response.text.starts_with("done"), "{at}");
        stopped += check(&desk, &script, &whole, &at);
        if ended.is_some() {
            return (polls, stopped);
        }
    }
    (0, stopped)
}

#[test]
fn a_conversation_that_is_dropped_wherever_it_waits_goes_on_where_it_stood() {
    let (polls, stopped) = dropped_everywhere(Durability::Process, false);
    assert!(polls > 10 && stopped > 2, "{polls} polls, and {stopped} calls were stopped");
}

#[test]
fn a_conversation_that_is_dropped_when_it_is_woken_goes_on_where_it_stood() {
    dropped_everywhere(Durability::Process, true);
}

/// A thread syncs each record here, and continues after the future is dropped.
#[test]
fn a_conversation_whose_records_are_being_synced_when_it_is_dropped_goes_on_behind_them() {
    dropped_everywhere(Durability::Every, false);
    dropped_everywhere(Durability::Every, true);
}
