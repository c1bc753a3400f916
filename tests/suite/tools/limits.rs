//! A call that no record can hold.

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

/// An answer that was too large for its record left the call open and its session interrupted; and a call whose names
/// alone filled its begin could never end.
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
    assert!(session.open_operations().is_empty() && !session.is_interrupted());
    assert_eq!(session.view::<Plan>().unwrap().len(), 0);

    let position = session.position();
    let refused = say(1, "x".repeat((16 << 20) - 2048));
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    assert_eq!((session.position(), session.open_operations().len()), (position, 0));

    assert!(say(15 << 20, "small".to_owned()).unwrap().success);
    let (id, live) = (session.id(), session.state().unwrap());
    drop(runner);
    session.close().unwrap();
    assert_eq!(store.open_session(id, &types()).unwrap().state().unwrap(), live);
}
