//! Runs a thousand conversations at once, on one thread and on two. Some are dropped, cancelled,
//! late or fail.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use foldlog::conversation::{ResumePoint, Role};
use foldlog::storage::MemoryStorage;
use foldlog::tools::ToolRegistry;
use foldlog::{BackgroundSync, Durability, ExecutionState, ResourceRegistry, Session, Store, StoreOptions};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::provider::{
    AsyncProvider, CancelToken, PreparedRequest, Provider, ProviderAnswer, ProviderError, ProviderErrorKind,
    ProviderRequest, SendOptions,
};
use foldlog_agent::{
    Deadline, Error, EvaluateOptions, MarkdownSection, Prompt, PromptResponse, ProviderAdapter,
};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, yield_now};

use super::story::{Page, limits, types};
use super::{single, two_workers, with_futures};

const CONVERSATIONS: usize = 1_000;

/// The disturbance of a conversation before it continues.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Undisturbed,
    /// Its future is dropped after this many polls.
    Dropped(usize),
    /// It is cancelled after its first answer.
    Cancelled,
    /// Its deadline passes before it starts.
    Late,
    /// One of its requests fails, and is retried.
    Cut,
    /// One of its requests fails permanently.
    Refused,
}

fn fate(number: usize) -> Fate {
    match number % 10 {
        0 => Fate::Dropped(3 + number / 10 % 40),
        1 => Fate::Cancelled,
        2 => Fate::Late,
        3 => Fate::Cut,
        4 => Fate::Refused,
        5 => Fate::Dropped(10 + number / 10 % 25),
        _ => Fate::Undisturbed,
    }
}

/// The model of all conversations. It answers only once all concurrent conversations have asked,
/// which shows that no conversation has a thread of its own.
struct Model {
    rendering: ScriptedProvider,
    asked: AtomicUsize,
    /// Number of conversations that have to ask first.
    together: usize,
    all_asked: Semaphore,
    /// Conversations whose request was cut.
    cut: Mutex<HashSet<usize>>,
}

/// Answers a conversation by the number in its prompt's first message.
fn reply(number: usize, answers: usize) -> ProviderAnswer {
    let call = |ordinal: usize, name: &str| foldlog::conversation::ToolCallRecord {
        call_id: format!("call_{ordinal}"),
        name: name.to_owned(),
        arguments: serde_json::json!({ "text": format!("{number}.{answers}.{ordinal}") }).to_string(),
    };
    let calls = match answers {
        0 => vec![call(0, "read"), call(1, "read"), call(2, "write")],
        1 => vec![call(0, "write"), call(1, "fetch"), call(2, "fetch"), call(3, "write")],
        _ => Vec::new(),
    };
    ProviderAnswer { content: Some(format!("answer {answers}")), calls, ..ProviderAnswer::default() }
}

impl AsyncProvider for Model {
    fn name(&self) -> &str {
        "model"
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> {
        let answers = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
        let system = request.messages.first().and_then(|message| message.content.as_deref()).unwrap();
        let number = system.rsplit(' ').next().unwrap();
        let prepared = self.rendering.prepare(&ProviderRequest { messages: &[], ..*request })?;
        Ok(PreparedRequest { body: format!("{number} {answers}").into_bytes(), ..prepared })
    }

    async fn send(
        &self,
        prepared: &PreparedRequest,
        options: &mut SendOptions<'_>,
    ) -> Result<ProviderAnswer, Box<ProviderError>> {
        if self.asked.fetch_add(1, Ordering::SeqCst) + 1 == self.together {
            self.all_asked.add_permits(CONVERSATIONS);
        }
        drop(self.all_asked.acquire().await.unwrap());
        yield_now().await;
        let body = std::str::from_utf8(&prepared.body).unwrap();
        let (number, answers) = body.split_once(' ').unwrap();
        let (number, answers): (usize, usize) = (number.parse().unwrap(), answers.parse().unwrap());
        // Conversations that continue after their disturbance have no such deadline.
        let is_unlucky = answers == 1 && options.deadline.is_some();
        match fate(number) {
            Fate::Cut if is_unlucky && self.cut.lock().unwrap().insert(number) => {
                Err(Box::new(ProviderError::new(ProviderErrorKind::Cut, "the stream broke")))
            }
            Fate::Refused if is_unlucky => {
                Err(Box::new(ProviderError::new(ProviderErrorKind::Refused, "no")))
            }
            _ => Ok(reply(number, answers)),
        }
    }
}

/// Polls a future at most this many times, and then drops it.
struct DropBehind<F>(Option<Pin<Box<F>>>, usize);

impl<F: Future> Future for DropBehind<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.0 else { return Poll::Ready(None) };
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        self.1 -= 1;
        if self.1 == 0 {
            self.0 = None;
            return Poll::Ready(None);
        }
        Poll::Pending
    }
}

type Adapter = Arc<ProviderAdapter<Model>>;

/// Runs one conversation, twice if it was disturbed the first time, and checks its records.
async fn converse(adapter: Adapter, session: Session, number: usize) {
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build().unwrap());
    let prompt = Prompt::text("many", "page")
        .with_section(MarkdownSection::new("task", format!("Write page {number}")))
        .with_tools(with_futures(ToolRegistry::new()));
    let (prompt, cancel) = (Arc::new(prompt), CancelToken::new());
    let evaluate = |options| adapter.evaluate_async(&prompt, &state, options);
    let named = || EvaluateOptions { evaluation_id: Some("page".to_owned()), ..EvaluateOptions::default() };
    let stops = cancel.clone();
    let on_turn = move |_: &Session| {
        if fate(number) == Fate::Cancelled {
            stops.cancel();
        }
        Ok(())
    };
    let deadline = match fate(number) {
        Fate::Late => Deadline::after(std::time::Duration::ZERO),
        _ => Deadline::after(std::time::Duration::from_secs(600)),
    };
    let first = EvaluateOptions { cancel, deadline, on_turn: Some(Box::new(on_turn)), ..named() };
    let ended: Option<Result<PromptResponse<String>, Error>> = match fate(number) {
        Fate::Dropped(polls) => DropBehind(Some(Box::pin(evaluate(first))), polls).await,
        _ => Some(evaluate(first).await),
    };
    match (fate(number), &ended) {
        (Fate::Undisturbed | Fate::Cut, Some(Ok(_)))
        | (Fate::Dropped(_), _)
        | (Fate::Cancelled, Some(Err(Error::Cancelled)))
        | (Fate::Late, Some(Err(Error::DeadlineExceeded { .. })))
        | (Fate::Refused, Some(Err(Error::Refused(_)))) => {}
        (fate, ended) => panic!("{fate:?}: {ended:?}"),
    }
    let response = evaluate(named()).await.unwrap();
    assert_eq!(response.text, "answer 2");
    check(&session, number);
}

/// Checks that the page has each line once and in order, unless its call was dropped, and that each
/// answer is recorded once.
fn check(session: &Session, number: usize) {
    let conversation = session.conversation().read("page").unwrap().unwrap();
    let messages = conversation.sent_messages();
    let answers = messages.iter().filter(|message| message.role == Role::Assistant).count();
    assert_eq!(answers, 3, "{number}");
    let results: Vec<(&str, &str)> = messages
        .iter()
        .filter(|message| message.role == Role::Tool)
        .map(|message| (message.name.as_deref().unwrap(), message.content.as_deref().unwrap()))
        .collect();
    let names: Vec<&str> = results.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["read", "read", "write", "write", "fetch", "fetch", "write"], "{number}");
    let added: Vec<&str> = results.iter().filter_map(|(_, text)| text.strip_prefix("added ")).collect();
    let page: Vec<String> = session.view::<Page>().unwrap().iter().map(|line| line.text.clone()).collect();
    assert_eq!(page, added, "{number}");
    let failed = results.iter().filter(|(_, text)| !text.starts_with("added ") && !text.starts_with("got "));
    let may_fail = matches!(fate(number), Fate::Dropped(_));
    assert!(may_fail || failed.count() == 0, "{number}: {results:?}");
    assert!(session.calls().open_operations().is_empty() && !session.calls().is_interrupted(), "{number}");
    assert_eq!(session.conversation().resume(Some("page")).unwrap().point, ResumePoint::Complete, "{number}");
}

fn hold_all(runtime: &Runtime) {
    let options = StoreOptions {
        storage: Arc::new(MemoryStorage::new()),
        durability: Durability::Process,
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    let store = Store::open_with("/store", options).unwrap();
    // Late ones send no request, and dropped ones may have sent one.
    let together =
        (0..CONVERSATIONS).filter(|number| !matches!(fate(*number), Fate::Late | Fate::Dropped(_)));
    let model = Model {
        rendering: ScriptedProvider::new(Vec::<ScriptedReply>::new()),
        asked: AtomicUsize::new(0),
        together: together.count(),
        all_asked: Semaphore::new(0),
        cut: Mutex::default(),
    };
    let adapter = Arc::new(ProviderAdapter::new(model).with_limits(limits()));
    runtime.block_on(async {
        let mut running = JoinSet::new();
        for number in 0..CONVERSATIONS {
            let session = store.create(&types()).unwrap();
            running.spawn(converse(adapter.clone(), session, number));
        }
        while let Some(ended) = running.join_next().await {
            ended.unwrap();
        }
    });
}

#[test]
fn a_thousand_conversations_share_one_thread() {
    hold_all(&single());
}

#[test]
fn a_thousand_conversations_share_two_threads() {
    hold_all(&two_workers());
}
