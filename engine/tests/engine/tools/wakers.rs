//! Wakers of hosts: a woken host takes locks of its own, calls into the session, and drops futures.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use foldlog::tools::DynTool;
use foldlog::{Outcome, SequenceNumber};
use serde_json::json;

use super::*;

type Waiting = Pin<Box<dyn Future<Output = Result<SequenceNumber>> + Send>>;

/// A host's waker that reads the session, and drops the future of another of its tasks.
struct LooksIn {
    session: Session,
    others: Mutex<Vec<Waiting>>,
    woken: mpsc::Sender<usize>,
}

impl Wake for LooksIn {
    fn wake(self: Arc<Self>) {
        let open = self.session.calls().open_operations().len();
        self.session.log().latest::<Plan>().unwrap();
        let dropped = std::mem::take(&mut *self.others.lock().unwrap());
        drop(dropped);
        // The receiver is gone once the story has ended.
        let _ = self.woken.send(open);
    }
}

/// Runs a story on its own thread, since one that waits for itself never returns.
fn told(story: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        story();
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(20)).expect("the story ends, and does not wait for itself");
}

fn step(title: &str) -> StepAdded {
    StepAdded { title: title.to_owned(), part: 1 }
}

fn looks_in(run: &Run, others: Vec<Waiting>) -> (Waker, mpsc::Receiver<usize>) {
    let (woken, was_woken) = mpsc::channel();
    let session = run.session().clone();
    (Waker::from(Arc::new(LooksIn { session, others: Mutex::new(others), woken })), was_woken)
}

/// A host was woken while the session was locked. If the waker took a lock of a thread that waited
/// for the session, such as that of a Python interpreter, the two threads waited for each other.
#[test]
fn a_waker_may_call_into_the_session_and_drop_other_futures_that_wait_for_it() {
    told(|| {
        let run = Run::new();
        let call = run.runner.begin(&ToolCall::new("other", "{}"), &ExecuteOptions::default()).unwrap();
        let other = |title| -> Waiting { Box::pin(run.session().dispatch_async(step(title))) };
        let mut others = vec![other("dropped"), other("dropped too")];
        let (idle, _) = looks_in(&run, Vec::new());
        for other in &mut others {
            assert!(other.as_mut().poll(&mut Context::from_waker(&idle)).is_pending());
        }
        let (waker, was_woken) = looks_in(&run, others);
        let mut waits = pin!(run.session().dispatch_async(step("waited")));
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        call.end(ToolResult::ok("done", ())).unwrap();
        assert!(was_woken.try_recv().is_ok(), "the end of the call wakes whoever waits for it");
        assert!(matches!(waits.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(_))));
        assert_eq!(plan(run.session()), ["waited"]);
    });
}

#[test]
fn a_waker_that_hears_of_a_cancel_may_call_into_the_session() {
    told(|| {
        let mut run = Run::new();
        let hangs = DynTool::new_async("hangs", json!({"type": "object"}), |_, _| {
            std::future::pending::<Result<ToolResult<()>, ToolError>>()
        });
        let tools = ToolRegistry::new().with_dynamic(hangs);
        run.runner = ToolRunner::new(run.runner.state().clone(), tools);
        let (waker, was_woken) = looks_in(&run, Vec::new());
        let call = ToolCall::new("hangs", "{}");
        let mut call = pin!(run.runner.execute_async(&call, &ExecuteOptions::default()));
        let mut open = run.session().calls().open_operations();
        while open.is_empty() {
            // A thread of the pool that works for the call wakes it too.
            assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            open = run.session().calls().open_operations();
            if open.is_empty() {
                was_woken.recv_timeout(Duration::from_secs(10)).unwrap();
            }
        }
        assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        while was_woken.try_recv().is_ok() {}
        assert!(run.session().calls().cancel(open[0].operation));
        assert_eq!(was_woken.try_recv(), Ok(1), "it is woken at once, while the call is open");
        let report = loop {
            match call.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(report) => break report.unwrap(),
                Poll::Pending => drop(was_woken.recv_timeout(Duration::from_secs(10)).unwrap()),
            }
        };
        assert_eq!(report.outcome, Outcome::Failed);
    });
}
