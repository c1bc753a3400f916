//! Calls too large for a record, and more open calls than a reader accepts.

use foldlog_codec::body::OPEN_OPERATIONS_MAX;

use super::*;

struct Say;

#[derive(Deserialize, JsonSchema)]
struct Words {
    bytes: usize,
}

impl Tool for Say {
    const NAME: &'static str = "say";
    type Parameters = Words;
    type Output = String;

    fn call(&self, words: Words, context: &ToolContext) -> Result<ToolResult<String>, ToolError> {
        context.session().dispatch(StepAdded { title: "said".to_owned(), part: 0 })?;
        Ok(ToolResult::ok("done", "x".repeat(words.bytes)))
    }
}

/// A result too large for its record left the call open and its session interrupted. A call whose
/// names alone filled its start record could never end.
#[test]
fn what_no_record_holds_fails_its_call_or_keeps_it_from_beginning() {
    let disk = MemoryStorage::new();
    let options =
        StoreOptions { object_bytes_min: u64::MAX, storage: Arc::new(disk), ..StoreOptions::default() };
    let store = Store::open_with("/store", options).unwrap();
    let session = store.create(&types()).unwrap();
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Say));
    let say = |bytes: usize, id: String| {
        let call = ToolCall::new("say", format!("{{\"bytes\":{bytes}}}")).with_id(id);
        runner.execute(&call, &ExecuteOptions::default())
    };
    let report = say(17 << 20, "large".to_owned()).unwrap();
    assert!(!report.success && report.message.contains("record body"), "{report:?}");
    assert!(session.calls().open_operations().is_empty() && !session.calls().is_interrupted());
    assert_eq!(session.view::<Plan>().unwrap().len(), 0);

    let position = session.log().position();
    let refused = say(1, "x".repeat((16 << 20) - 2048));
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    assert_eq!((session.log().position(), session.calls().open_operations().len()), (position, 0));

    assert!(say(15 << 20, "small".to_owned()).unwrap().success);
    let (id, live) = (session.id(), session.dynamic().state().unwrap());
    drop(runner);
    session.close().unwrap();
    assert_eq!(store.open_session(id, &types()).unwrap().dynamic().state().unwrap(), live);
}

/// Read-only, so that many calls are open at once.
struct Look;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

impl Tool for Look {
    const NAME: &'static str = "look";
    type Parameters = Nothing;
    type Output = ();

    fn reads_only(&self) -> bool {
        true
    }

    fn call(&self, _: Nothing, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        Ok(ToolResult::ok("seen", ()))
    }
}

/// A reader folds a limited number of open calls: one more would have left an unreadable log.
#[test]
fn no_more_calls_are_open_at_once_than_a_reader_takes() {
    let disk = MemoryStorage::new();
    let store = store_of(&disk);
    let session = store.create(&types()).unwrap();
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Look));
    let begin = || runner.begin(&ToolCall::new("look", "{}"), &ExecuteOptions::default());
    let open: Vec<_> = (0..OPEN_OPERATIONS_MAX).map(|_| begin().unwrap()).collect();
    let position = session.log().position();
    let refused = begin().map(drop);
    assert!(
        matches!(&refused, Err(Error::NoSuchOperation { reason, .. }) if reason.contains("the maximum number"))
    );
    assert_eq!(session.log().position(), position);
    // The log opens with all of them, and continues once they have ended.
    let id = session.id();
    let read = store.open_read_only(id, &types()).unwrap();
    assert_eq!(read.log().recovery().interrupted.len(), OPEN_OPERATIONS_MAX);
    open.into_iter().for_each(|operation| drop(operation.abort("enough").unwrap()));
    begin().unwrap().abort("one more").unwrap();
    drop(runner);
    session.close().unwrap();
    assert!(store.open_session(id, &types()).unwrap().calls().open_operations().is_empty());
}
