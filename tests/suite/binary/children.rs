//! Sessions of sub-agents: how the ledgers of parent and child refer to each other.

use foldlog::inspect::LogReader;
use foldlog::tools::{DynTool, ExecuteOptions, ToolCall, ToolError, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{ExecutionState, ResourceRegistry, Store};
use foldlog_test_support::host::{StepAdded, types};
use foldlog_tests::verbs::foldlog;
use serde_json::json;
use uuid::Uuid;

fn drive() -> DynTool {
    DynTool::new("drive", json!({"type": "object"}), |_, context| -> Result<ToolResult<()>, ToolError> {
        for number in 0..2 {
            let scrawl = DynTool::new("scrawl", json!({"type": "object"}), |_, context| {
                context.session().dispatch(StepAdded { title: "by a sub-agent".to_owned(), part: 0 })?;
                Ok(ToolResult::ok("done", ()))
            });
            let tools = ToolRegistry::new().with_dynamic(scrawl);
            let agent = ToolRunner::new(context.child(number, &types())?, tools);
            assert!(agent.execute(&ToolCall::new("scrawl", "{}"), &ExecuteOptions::default())?.success);
        }
        Err(ToolError::failed("not like that"))
    })
}

#[test]
fn the_ledgers_of_a_failed_call_and_of_its_sub_agents_say_that_their_work_is_abandoned() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let session = store.create(&types()).unwrap();
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build().unwrap());
    let runner = ToolRunner::new(state, ToolRegistry::new().with_dynamic(drive()));
    assert!(!runner.execute(&ToolCall::new("drive", "{}"), &ExecuteOptions::default()).unwrap().success);

    let ledger = LogReader::open(session.dir()).unwrap().ledger().unwrap();
    let children: Vec<Uuid> = ledger.last().unwrap().children.iter().map(|child| child.session).collect();
    assert_eq!(children.len(), 2);
    let ledger_of =
        |session: Uuid| foldlog(["ledger".into(), store.session_dir(session).into_os_string()]).stdout;
    for child in children {
        let told = ledger_of(child);
        assert!(
            told.contains("1 operation: 1 abandoned") && told.contains("has abandoned this work"),
            "{told}"
        );
        assert!(ledger_of(session.id()).contains(&format!("{child}: abandoned")));
    }
}
