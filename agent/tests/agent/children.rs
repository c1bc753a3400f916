//! A tool that drives a sub-agent in a session of its own: a conversation within a conversation,
//! killed at any record.

use crate::story;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use foldlog::conversation::{ResumePoint, Role};
use foldlog::inspect::{LogReader, OperationStatus};
use foldlog::storage::{CrashKind, MemoryStorage};
use foldlog::tools::{
    ChildStop, ExecuteOptions, Tool, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{Durability, Idempotency};
use foldlog_agent::{EvaluateOptions, UserMessage};
use story::{Desk, Line, Page, Script, prompt_of, tools, types};

const EVALUATION: &str = "the story";

fn options<'a>(task: &str) -> EvaluateOptions<'a> {
    let messages = vec![UserMessage { id: "task".to_owned(), text: task.to_owned() }];
    EvaluateOptions { evaluation_id: Some(EVALUATION.to_owned()), messages, ..EvaluateOptions::default() }
}

/// Evaluates a prompt in a child session. Its text is the task.
struct Delegate {
    script: Script,
    tools: ToolRegistry,
    disk: MemoryStorage,
    /// Number of records that the child writes until the process is killed, over all processes.
    left: Arc<AtomicU64>,
}

impl Tool for Delegate {
    const NAME: &'static str = "delegate";
    type Parameters = Line;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, task: Line, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let child = context.child(0, &types())?;
        let (disk, left) = (self.disk.clone(), Arc::clone(&self.left));
        let _killed = child.session().log().subscribe(move |_| {
            if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                disk.crash(CrashKind::Process);
            }
        });
        let options = options(&task.text);
        let prompt = prompt_of(self.tools.clone());
        match self.script.adapter().evaluate(&prompt, &child, options) {
            Ok(response) => Ok(ToolResult::ok(response.text, ())),
            Err(error) => Err(ToolError::failed(error.to_string())),
        }
    }
}

struct Agents {
    parent: Script,
    child: Script,
    left: Arc<AtomicU64>,
}

impl Agents {
    fn new(left: u64) -> Agents {
        let parent = vec![("hand it over", vec![("d1", "delegate", "write")]), ("all is done", vec![])];
        let child = vec![
            ("first", vec![("c1", "add", "a"), ("c2", "look", "at it")]),
            ("second", vec![("c1", "add", "b")]),
            ("done", vec![]),
        ];
        let (parent, child) = (Script::new(parent).checked(), Script::new(child).checked());
        Agents { parent, child, left: Arc::new(AtomicU64::new(left)) }
    }

    fn tools(&self, desk: &Desk) -> ToolRegistry {
        let (script, left, disk) = (self.child.clone(), Arc::clone(&self.left), desk.disk.clone());
        ToolRegistry::new().with(Delegate { script, tools: tools(&desk.ran, desk.idempotency), disk, left })
    }

    fn evaluate(&self, desk: &Desk) -> Result<String, foldlog_agent::Error> {
        let options = options("Have the page written.");
        let evaluated = self.parent.adapter().evaluate(&prompt_of(self.tools(desk)), &desk.state, options);
        evaluated.map(|response| response.text)
    }
}

/// Returns the number of requests for each answer, in order.
fn asked(script: &Script) -> Vec<usize> {
    let asked = script.asked();
    let last = asked.iter().max().map_or(0, |last| last + 1);
    (0..last).map(|at| asked.iter().filter(|one| **one == at).count()).collect()
}

#[test]
fn a_sub_agent_that_is_killed_at_any_record_goes_on_within_its_parents_call() {
    let mut killed = 0;
    for left in 1.. {
        let (mut desk, agents) = (Desk::at(Idempotency::Natural, Durability::Boundary), Agents::new(left));
        let first = agents.evaluate(&desk);
        let was_killed = agents.left.load(Ordering::SeqCst) == 0 || first.is_err();
        // The subscriber gets the child's last records after the parent's, if at all.
        agents.left.store(u64::MAX, Ordering::SeqCst);
        desk.open();
        ToolRunner::new(desk.state.clone(), agents.tools(&desk)).recover(&ExecuteOptions::default()).unwrap();
        assert!(agents.evaluate(&desk).unwrap().starts_with("all is done"), "killed behind {left}");
        let [child] = desk.session().store().children(desk.session().id()).unwrap().try_into().unwrap();
        let dir = desk.session().dir().parent().unwrap().join(child.to_string());
        let reader = LogReader::open_on(Arc::new(desk.disk.clone()), dir).unwrap();
        let page = reader.state().unwrap();
        let page: Vec<_> = page.slices[<Page as foldlog::Slice>::NAME].items.iter().collect();
        assert_eq!(page.len(), 2, "killed behind {left}");
        // The child's log contains each acknowledged answer once. Its calls ran once, unless they
        // were cut short.
        let conversation = reader.conversation_at(EVALUATION, u64::MAX).unwrap().unwrap();
        let said = conversation.messages().into_iter().filter(|message| message.role == Role::Assistant);
        assert_eq!(said.count(), 3, "killed behind {left}");
        let fates = reader.ledger().unwrap().into_iter().map(|entry| entry.outcome);
        assert!(
            fates.clone().all(|fate| fate == OperationStatus::Committed),
            "{:?}",
            fates.collect::<Vec<_>>()
        );
        for asked in [asked(&agents.child), asked(&agents.parent)] {
            assert!(asked.iter().sum::<usize>() <= asked.len() + 1, "killed behind {left}: {asked:?}");
        }
        assert!(desk.ran.lines().len() <= 4, "killed behind {left}: {:?}", desk.ran.lines());
        killed += u32::from(was_killed);
        if !was_killed {
            break;
        }
    }
    assert!(killed > 15, "{killed}");
}

/// Before it continues, the host asks for the child and the point at which its conversation
/// stopped.
#[test]
fn a_parent_learns_where_the_conversation_of_its_child_stopped() {
    let (mut desk, agents) = (Desk::new(), Agents::new(7));
    assert!(agents.evaluate(&desk).is_err());
    desk.open();
    // Like a host without tools.
    let runner = ToolRunner::new(desk.state.clone(), ToolRegistry::new());
    let [recovered] = runner.recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    let [child] = recovered.children.try_into().unwrap();
    let ChildStop::At { conversations, .. } = &child.stop else { panic!("{child:?}") };
    let [resume] = conversations.as_slice() else { panic!("{child:?}") };
    assert_eq!(resume.evaluation_id.as_deref(), Some(EVALUATION));
    assert!(matches!(resume.point, ResumePoint::RunTools(_) | ResumePoint::AwaitProvider), "{resume:?}");
}

/// The tool is nested in a call of its own session, and evaluates there.
#[test]
fn a_conversation_within_a_call_of_its_own_session_is_refused_and_a_child_session_is_named() {
    struct Inside(Arc<Mutex<Option<String>>>);
    impl Tool for Inside {
        const NAME: &'static str = "inside";
        type Parameters = Line;
        type Output = ();

        fn call(&self, _: Line, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
            // The call's own handle, with the call's own resources.
            let state = foldlog::ExecutionState::new(context.session().clone(), context.resources().clone());
            let script = Script::new(vec![("done", vec![])]);
            let prompt = prompt_of(ToolRegistry::new());
            let refused = script.adapter().evaluate(&prompt, &state, EvaluateOptions::default());
            *self.0.lock().unwrap() = Some(refused.unwrap_err().to_string());
            Ok(ToolResult::ok("refused", ()))
        }
    }
    let (desk, told) = (Desk::new(), Arc::default());
    let runner = ToolRunner::new(desk.state, ToolRegistry::new().with(Inside(Arc::clone(&told))));
    let call = foldlog::tools::ToolCall::new("inside", r#"{"text":""}"#);
    assert!(runner.execute(&call, &ExecuteOptions::default()).unwrap().success);
    assert!(told.lock().unwrap().as_ref().unwrap().contains("hold a conversation in a child session"));
}
