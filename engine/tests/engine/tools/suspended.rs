//! Calls that wait for a person: they ask before they act, or leave their result to others, and
//! keep no transaction open meanwhile.

use std::time::Duration;

use foldlog::inspect::OperationStatus;
use foldlog::tools::{Question, Recovery};
use foldlog::{Outcome, PendingQuestion, Settlement, SnapshotOptions, SuspensionForm, Value};

use super::*;

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug)]
struct Letter {
    to: String,
    /// Time until the question expires, in microseconds; 0 if it never does. Each reading of the
    /// clock takes 1,000.
    #[serde(default)]
    expires_us: u64,
}

struct Send {
    disk: MemoryStorage,
    sent: Arc<Mutex<Vec<String>>>,
}

impl Tool for Send {
    const NAME: &'static str = "send";
    type Parameters = Letter;
    type Output = usize;

    fn call(&self, letter: Letter, context: &ToolContext) -> Result<ToolResult<usize>, ToolError> {
        context.resources().get::<Desk>().unwrap().put("draft", &letter.to);
        context.session().dispatch(StepAdded { title: format!("to {}", letter.to), part: 1 })?;
        let Some(approval) = context.approval() else {
            let question = Question::new(format!("Send to {}?", letter.to));
            let after = Some(Duration::from_micros(letter.expires_us)).filter(|after| !after.is_zero());
            return Err(ToolError::Ask(after.into_iter().fold(question, Question::expiring)));
        };
        let mut sent = self.sent.lock().unwrap();
        sent.push(letter.to.clone());
        if letter.to == "death" && sent.len() == 1 || letter.to == "late death" && sent.len() == 2 {
            self.disk.crash(CrashKind::Process);
        }
        Ok(ToolResult::ok(format!("sent, as {} agreed: {}", approval.by, approval.reason), sent.len()))
    }
}

/// Puts a paper on the desk, and leaves the review to a person.
struct Review;

impl Tool for Review {
    const NAME: &'static str = "review";
    type Parameters = Nothing;
    type Output = u64;

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<u64>, ToolError> {
        context.resources().get::<Desk>().unwrap().put("paper", "to be read");
        context.session().dispatch(StepAdded { title: "handed in".to_owned(), part: 1 })?;
        Ok(ToolResult::awaits(Question::new("Read the paper.")))
    }
}

/// Runs another tool of the same session.
struct Delegate {
    state: ExecutionState,
    tools: ToolRegistry,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug)]
struct Errand {
    tool: String,
    arguments: String,
    /// Number of equal calls.
    times: u32,
    /// Whether it asks before it runs the other tool.
    #[serde(default)]
    asks: bool,
}

impl Tool for Delegate {
    const NAME: &'static str = "delegate";
    type Parameters = Errand;
    type Output = ();

    fn call(&self, errand: Errand, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        context.session().dispatch(StepAdded { title: "delegated".to_owned(), part: 1 })?;
        if errand.asks && context.approval().is_none() {
            return Err(ToolError::Ask(Question::new("Delegate?")));
        }
        let runner = ToolRunner::new(self.state.clone(), self.tools.clone()).within(context);
        let call = ToolCall::new(errand.tool, errand.arguments);
        for _ in 1..errand.times {
            runner.execute(&call, &ExecuteOptions::default())?;
        }
        let report = runner.execute(&call, &ExecuteOptions::default())?;
        Ok(ToolResult { success: report.success, ..ToolResult::ok(report.message, ()) })
    }
}

struct Office {
    run: Run,
    sent: Arc<Mutex<Vec<String>>>,
    runner: ToolRunner,
}

impl Office {
    fn new() -> Office {
        let run = Run::new();
        let sent = Arc::default();
        let runner = Office::runner(&run, &sent);
        Office { run, sent, runner }
    }

    fn runner(run: &Run, sent: &Arc<Mutex<Vec<String>>>) -> ToolRunner {
        let state = run.runner.state().clone();
        let send = || Send { disk: run.disk.clone(), sent: Arc::clone(sent) };
        let tools = ToolRegistry::new().with(send()).with(Review);
        let delegate = |tools: &ToolRegistry| Delegate { state: state.clone(), tools: tools.clone() };
        let inner = delegate(&tools);
        let delegate = delegate(&tools.clone().with(inner));
        ToolRunner::new(state.clone(), tools.with(delegate))
    }

    /// Kills this process and starts the next one.
    fn reopen(&mut self) {
        self.run.disk.crash(CrashKind::Process);
        self.run.reopen(Idempotency::Manual);
        self.runner = Office::runner(&self.run, &self.sent);
    }

    fn session(&self) -> &Session {
        self.run.session()
    }

    fn execute(&self, call: &ToolCall) -> Result<ToolReport> {
        self.runner.execute(call, &ExecuteOptions::default())
    }

    fn pending(&self) -> Vec<PendingQuestion> {
        let own = self.session().calls().pending_questions().unwrap();
        let reader = LogReader::open_on(Arc::new(self.run.disk.clone()), self.session().dir()).unwrap();
        // A reader of the log alone finds the same questions. The readers' clock is that of the
        // session.
        let now = own.first().map_or_else(Default::default, |one| one.asked_at);
        assert!(own.is_empty() || reader.pending_questions(now).unwrap() == own);
        own
    }

    fn sent(&self) -> Vec<String> {
        self.sent.lock().unwrap().clone()
    }

    /// The state that a call must leave unchanged before it runs.
    fn state(&self) -> (Vec<String>, BTreeMap<String, String>) {
        self.run.state()
    }

    fn fates(&self) -> Vec<(String, OperationStatus)> {
        self.run.ledger().into_iter().map(|entry| (entry.tool, entry.outcome)).collect()
    }
}

fn letter(to: &str) -> ToolCall {
    expiring_letter(to, 0)
}

fn expiring_letter(to: &str, expires_us: u64) -> ToolCall {
    let letter = Letter { to: to.to_owned(), expires_us };
    ToolCall::new("send", serde_json::to_string(&letter).unwrap())
}

fn review() -> ToolCall {
    ToolCall::new("review", "{}")
}

fn errand(call: &ToolCall) -> ToolCall {
    errands(call, 1)
}

fn errands(call: &ToolCall, times: u32) -> ToolCall {
    let errand =
        Errand { tool: call.tool.to_string(), arguments: call.arguments.clone(), times, asks: false };
    ToolCall::new("delegate", serde_json::to_string(&errand).unwrap())
}

/// Records a model's answer, by whose calls the log recognizes a call.
fn asked(office: &Office, call: ToolCall) -> ToolCall {
    let answer = office.session().dispatch(Noted { text: "an answer".to_owned() }).unwrap();
    call.with_origin(answer, 0)
}

fn is_suspended(result: &Result<ToolReport>, wanted: SuspensionForm) -> bool {
    matches!(result, Err(Error::Suspended { form, .. }) if *form == wanted)
}

#[test]
fn a_call_that_asks_has_done_nothing_and_runs_once_it_is_approved_in_another_process_too() {
    let mut office = Office::new();
    let call = asked(&office, letter("bo"));
    let before = office.state();
    let suspended = office.execute(&call);
    assert!(is_suspended(&suspended, SuspensionForm::Asks), "{suspended:?}");
    assert_eq!((office.state(), office.sent().len()), (before, 0), "nothing has happened");
    assert!(
        !office.session().calls().is_interrupted() && office.session().calls().open_operations().is_empty()
    );
    // The question keeps no transaction open: other writers continue.
    office.session().dispatch(StepAdded { title: "meanwhile".to_owned(), part: 1 }).unwrap();

    office.reopen();
    let pending = office.pending();
    assert_eq!(pending.len(), 1);
    let question = &pending[0];
    assert_eq!(
        (question.question.as_str(), question.arguments.as_str()),
        ("Send to bo?", call.arguments.as_str())
    );
    assert_eq!(question.digest, *blake3::hash(call.arguments.as_bytes()).as_bytes());
    let position = office.session().log().position();
    assert!(is_suspended(&office.execute(&call), SuspensionForm::Asks), "asking again records nothing");
    assert_eq!(office.session().log().position(), position);

    let approval = Settlement::approved(question.digest);
    office.session().calls().settle(question.operation, &approval, "Ada", "he waits for it").unwrap();
    assert_eq!(office.pending(), []);
    office.reopen();
    let report = office.execute(&call).unwrap();
    assert_eq!(report.message, "sent, as Ada agreed: he waits for it");
    assert_eq!((report.operation, office.sent()), (question.operation, vec!["bo".to_owned()]));
    let again = office.execute(&call).unwrap();
    assert_eq!((again.recorded, office.sent().len()), (true, 1), "what was approved runs once");
    assert_eq!(office.run.plan(), ["meanwhile", "to bo"]);
    assert_eq!(office.fates(), [("send".to_owned(), OperationStatus::Committed)]);
}

/// An approval that named only the operation would approve any arguments of the call.
#[test]
fn an_approval_names_the_arguments_that_somebody_has_seen() {
    let office = Office::new();
    assert!(office.execute(&letter("bo")).is_err());
    let PendingQuestion { operation, digest, .. } = office.pending().remove(0);
    let other = *blake3::hash(b"{}").as_bytes();
    for settlement in [Settlement::approved(other), Settlement::run_again()] {
        let refused = office.session().calls().settle(operation, &settlement, "Ada", "");
        assert!(matches!(refused, Err(Error::NoSuchOperation { .. })), "{settlement:?}: {refused:?}");
    }
    office.session().calls().settle(operation, &Settlement::approved(digest), "Ada", "").unwrap();
    let twice = office.session().calls().settle(operation, &Settlement::approved(digest), "Bo", "");
    assert!(matches!(&twice, Err(Error::NoSuchOperation { .. } | Error::AlreadySettled { .. })), "{twice:?}");
}

#[test]
fn a_call_that_the_host_asked_for_runs_in_the_next_recovery_once_it_is_approved() {
    let mut office = Office::new();
    assert!(office.execute(&letter("bo")).is_err());
    assert!(office.runner.recover(&ExecuteOptions::default()).unwrap().is_empty(), "nobody has answered");
    let PendingQuestion { operation, digest, .. } = office.pending().remove(0);
    office.session().calls().settle(operation, &Settlement::approved(digest), "Ada", "").unwrap();
    office.reopen();
    let recovered = office.runner.recover(&ExecuteOptions::default()).unwrap();
    assert!(matches!(&recovered[0].recovery, Recovery::RanAgain(report) if report.success), "{recovered:?}");
    assert_eq!(office.sent(), ["bo"]);
}

#[test]
fn a_call_that_is_refused_has_failed_and_the_model_reads_why() {
    let office = Office::new();
    for (shown, expected) in [
        (Some("Not today."), "Not today."),
        (None, "The call did not do its work, and is not run again: it is late"),
    ] {
        let call = asked(&office, letter("bo"));
        assert!(office.execute(&call).is_err());
        let operation = office.pending()[0].operation;
        let settlement = shown.into_iter().fold(Settlement::failed(), Settlement::showing);
        office.session().calls().settle(operation, &settlement, "Ada", "it is late").unwrap();
        let report = office.execute(&call).unwrap();
        assert_eq!((report.success, report.recorded, report.message.as_str()), (false, true, expected));
    }
    assert_eq!((office.sent().len(), office.run.plan().len()), (0, 0));
    assert!(office.fates().iter().all(|(_, fate)| *fate == OperationStatus::Settled), "{:?}", office.fates());
}

#[test]
fn a_call_that_awaits_its_result_keeps_what_it_did_and_never_runs_again() {
    let mut office = Office::new();
    let call = asked(&office, review());
    assert!(is_suspended(&office.execute(&call), SuspensionForm::Awaits));
    assert_eq!(office.run.plan(), ["handed in"]);
    assert_eq!(office.run.desk.text("paper").as_deref(), Some("to be read"));
    office.reopen();
    assert!(office.runner.recover(&ExecuteOptions::default()).unwrap().is_empty());
    let PendingQuestion { operation, digest, .. } = office.pending().remove(0);
    for settlement in [Settlement::run_again(), Settlement::approved(digest)] {
        assert!(
            office.session().calls().settle(operation, &settlement, "Ada", "").is_err(),
            "{settlement:?}"
        );
    }
    let result = Settlement::committed(Some(Value::from(5_u64))).showing("It has five mistakes.");
    office.session().calls().settle(operation, &result, "Ada", "I have read it").unwrap();
    let report = office.execute(&call).unwrap();
    assert_eq!((report.success, report.value), (true, Some(Value::from(5_u64))));
    assert_eq!((report.message.as_str(), office.run.plan().len()), ("It has five mistakes.", 1));
}

#[test]
fn a_question_that_nobody_answers_in_time_is_a_failed_call_and_too_late_to_answer() {
    let office = Office::new();
    let call = asked(&office, expiring_letter("bo", 1));
    let suspended = office.execute(&call);
    let Err(Error::Suspended { operation, .. }) = suspended else { panic!("{suspended:?}") };
    assert_eq!(office.pending(), []);
    let digest = *blake3::hash(call.arguments.as_bytes()).as_bytes();
    let late = office.session().calls().settle(operation, &Settlement::approved(digest), "Ada", "");
    assert!(matches!(late, Err(Error::NoSuchOperation { .. })), "{late:?}");
    let report = office.execute(&call).unwrap();
    assert_eq!((report.success, report.recorded, office.sent().len()), (false, true, 0));
    assert!(report.message.contains("Nobody answered in time"), "{}", report.message);
}

#[test]
fn an_approval_that_came_to_nothing_in_time_does_not_count() {
    let office = Office::new();
    let call = asked(&office, letter("bo"));
    assert!(office.execute(&call).is_err());
    let PendingQuestion { operation, digest, asked_at, .. } = office.pending().remove(0);
    let approval = Settlement::approved(digest).until(asked_at);
    office.session().calls().settle(operation, &approval, "Ada", "").unwrap();
    let report = office.execute(&call).unwrap();
    assert_eq!((report.success, office.sent().len()), (false, 0));
}

#[test]
fn a_rollback_to_before_the_call_withdraws_its_question_and_one_back_asks_it_again() {
    let office = Office::new();
    let call = asked(&office, letter("bo"));
    let before = office.session().snapshot(SnapshotOptions::default()).unwrap();
    assert!(office.execute(&call).is_err());
    let PendingQuestion { operation, digest, .. } = office.pending().remove(0);
    let after = office.session().log().position().unwrap();
    office.session().rollback(&before).unwrap();
    assert_eq!(office.pending(), []);
    let withdrawn = office.session().calls().settle(operation, &Settlement::approved(digest), "Ada", "");
    assert!(matches!(withdrawn, Err(Error::NoSuchOperation { .. })), "{withdrawn:?}");
    assert_eq!(office.fates(), [("send".to_owned(), OperationStatus::Abandoned)]);

    office.session().rollback_to(after).unwrap();
    assert_eq!(office.pending().len(), 1, "the question counts again");
    office.session().rollback(&before).unwrap();
    let Err(Error::Suspended { operation: anew, .. }) = office.execute(&call) else { panic!("it asks anew") };
    assert_ne!(anew, operation);
}

#[test]
fn a_fork_asks_anew_what_was_approved_before_it() {
    let office = Office::new();
    let call = asked(&office, letter("bo"));
    assert!(office.execute(&call).is_err());
    let PendingQuestion { operation, digest, .. } = office.pending().remove(0);
    office.session().calls().settle(operation, &Settlement::approved(digest), "Ada", "").unwrap();
    let at = office.session().log().position().unwrap();
    let store = store_of(&office.run.disk);
    let fork = store.fork(office.run.id, at, &types(), foldlog::SessionOptions::default()).unwrap();
    let resources = office.runner.state().resources().clone();
    let state = ExecutionState::new(fork.clone(), resources);
    let runner = ToolRunner::new(state, office.runner.tools().clone());
    assert_eq!(fork.calls().pending_questions().unwrap().len(), 1);
    let asked = runner.execute(&call, &ExecuteOptions::default());
    assert!(is_suspended(&asked, SuspensionForm::Asks), "{asked:?}");
    fork.calls().settle(operation, &Settlement::approved(digest), "Bo", "").unwrap();
    let report = runner.execute(&call, &ExecuteOptions::default()).unwrap();
    assert!(report.message.contains("as Bo agreed"), "{}", report.message);
    drop((runner, fork));
    assert!(office.execute(&call).unwrap().message.contains("as Ada agreed"), "the parent goes its own way");
}

#[test]
fn a_call_within_another_one_asks_and_the_outer_one_runs_again_once_it_is_answered() {
    for agreed in [true, false] {
        let mut office = Office::new();
        let call = asked(&office, errand(&letter("bo")));
        let before = office.state();
        let suspended = office.execute(&call);
        let Err(Error::Suspended { operation, question, .. }) = &suspended else { panic!("{suspended:?}") };
        assert_eq!((office.state(), question.as_str()), (before, "Send to bo?"), "both are rolled back");
        office.reopen();
        let pending = office.pending();
        let PendingQuestion { digest, parent, .. } = &pending[0];
        assert_eq!(
            (pending.len(), pending[0].operation),
            (1, *operation),
            "the inner call is the one to settle"
        );
        assert!(parent.is_some());
        let outer = office.session().calls().settle(parent.unwrap(), &Settlement::committed(None), "Ada", "");
        assert!(matches!(outer, Err(Error::NoSuchOperation { .. })), "{outer:?}");
        let settlement =
            if agreed { Settlement::approved(*digest) } else { Settlement::failed().showing("No.") };
        office.session().calls().settle(*operation, &settlement, "Ada", "so be it").unwrap();
        office.reopen();
        let report = office.execute(&call).unwrap();
        assert_eq!((report.operation, report.success), (parent.unwrap(), agreed), "{report:?}");
        assert_eq!(office.sent().len(), usize::from(agreed));
        let expected: &[&str] = if agreed { &["delegated", "to bo"] } else { &[] };
        assert_eq!(office.run.plan(), expected);
        assert_eq!(office.pending(), []);
        let again = office.execute(&call).unwrap();
        assert!(again.recorded && again.message.contains(if agreed { "agreed" } else { "No." }));
    }
}

/// The second of two equal calls asked again in every run of the outer call, since the first had
/// used up the approval: the outer call never ended, and the first inner one ran every time.
#[test]
fn equal_calls_within_another_one_are_approved_one_by_one_and_stay_so() {
    let office = Office::new();
    let call = asked(&office, errands(&letter("bo"), 2));
    for _ in 0..2 {
        assert!(office.execute(&call).is_err());
        let pending = office.pending();
        assert_eq!(pending.len(), 1);
        let approval = Settlement::approved(pending[0].digest);
        office.session().calls().settle(pending[0].operation, &approval, "Ada", "").unwrap();
    }
    assert!(office.execute(&call).unwrap().success);
    assert_eq!(office.run.plan(), ["delegated", "to bo", "to bo"]);
    assert_eq!(
        (office.pending(), office.sent().len()),
        (vec![], 3),
        "one was rolled back with the second question"
    );
}

/// A timely answer to a question within another call was ignored once the question had expired.
#[test]
fn an_answer_in_time_counts_whenever_the_call_around_it_runs_again() {
    let office = Office::new();
    let call = asked(&office, errand(&expiring_letter("bo", 200_000)));
    assert!(office.execute(&call).is_err());
    let operation = office.pending()[0].operation;
    office
        .session()
        .calls()
        .settle(operation, &Settlement::failed().showing("No, never."), "Ada", "")
        .unwrap();
    for step in 0..400 {
        office.session().dispatch(Noted { text: format!("{step}") }).unwrap();
    }
    let report = office.execute(&call).unwrap();
    assert_eq!((report.success, report.message.as_str()), (false, "No, never."));
}

#[test]
fn an_approval_can_be_taken_back_before_the_call_runs() {
    let office = Office::new();
    let call = asked(&office, letter("bo"));
    assert!(office.execute(&call).is_err());
    let PendingQuestion { operation, digest, .. } = office.pending().remove(0);
    office.session().calls().settle(operation, &Settlement::approved(digest), "Ada", "").unwrap();
    office.session().calls().settle(operation, &Settlement::failed().showing("Stop."), "Ada", "").unwrap();
    let report = office.execute(&call).unwrap();
    assert_eq!((report.success, report.message.as_str(), office.sent().len()), (false, "Stop.", 0));
}

#[test]
fn a_call_within_another_one_cannot_leave_its_result_to_somebody() {
    let office = Office::new();
    let report = office.execute(&errand(&review())).unwrap();
    assert!(!report.success && report.message.contains("cannot leave its result"), "{report:?}");
    assert_eq!((office.pending(), office.run.plan().len()), (vec![], 0));
}

/// An inner call had run and was rolled back, since the next one asked. Withdrawing its approval
/// then had no effect: it ran again all the same.
#[test]
fn an_approval_can_be_taken_back_after_a_run_that_was_rolled_back() {
    let office = Office::new();
    let call = asked(&office, errands(&letter("bo"), 2));
    let mut operations = Vec::new();
    for _ in 0..2 {
        assert!(office.execute(&call).is_err());
        let PendingQuestion { operation, digest, .. } = office.pending().remove(0);
        office.session().calls().settle(operation, &Settlement::approved(digest), "Ada", "").unwrap();
        operations.push(operation);
    }
    assert_eq!(
        office.sent().len(),
        1,
        "what the first one sent was rolled back with the second one's question"
    );
    office
        .session()
        .calls()
        .settle(operations[0], &Settlement::failed().showing("Stop."), "Ada", "")
        .unwrap();
    assert!(office.execute(&call).unwrap().success, "the second one is approved still");
    assert_eq!(
        (office.sent().len(), office.run.plan()),
        (2, vec!["delegated".to_owned(), "to bo".to_owned()])
    );
}

/// A question within a refused call still waited for an answer, although none could have an effect.
/// Until one was given, the outermost call did not continue.
#[test]
fn a_refusal_withdraws_what_the_refused_call_asked_within_it() {
    let office = Office::new();
    let call = asked(&office, errand(&errand(&letter("bo"))));
    assert!(office.execute(&call).is_err());
    let PendingQuestion { operation, parent, .. } = office.pending().remove(0);
    office
        .session()
        .calls()
        .settle(parent.unwrap(), &Settlement::failed().showing("No."), "Ada", "")
        .unwrap();
    assert_eq!(office.pending(), []);
    let fate =
        |wanted| office.run.ledger().into_iter().find(|entry| entry.operation == wanted).unwrap().outcome;
    assert_eq!(
        (fate(operation), fate(parent.unwrap())),
        (OperationStatus::Abandoned, OperationStatus::Settled)
    );
    let report = office.execute(&call).unwrap();
    assert_eq!((report.success, report.message.as_str(), office.sent().len()), (false, "No.", 0));
}

/// The ledger listed a question as abandoned as soon as the outer call ran again, while the session
/// still counted it.
#[test]
fn a_question_counts_in_the_ledger_while_the_call_around_it_runs_again() {
    let mut office = Office::new();
    let call = asked(&office, errands(&letter("late death"), 2));
    for _ in 0..2 {
        assert!(office.execute(&call).is_err());
        let PendingQuestion { operation, digest, .. } = office.pending().remove(0);
        office.session().calls().settle(operation, &Settlement::approved(digest), "Ada", "").unwrap();
    }
    assert!(office.execute(&call).is_err(), "its process is killed in the first of the two calls");
    office.reopen();
    let fates: Vec<OperationStatus> = office.fates().into_iter().map(|(_, fate)| fate).collect();
    assert_eq!(fates, [OperationStatus::Open, OperationStatus::Open, OperationStatus::Suspended]);
}

/// An approved call asked again in its next run, if a call within it had asked meanwhile.
#[test]
fn an_approval_holds_although_a_call_within_the_approved_one_asks_too() {
    let mut office = Office::new();
    let (tool, arguments) = ("send".to_owned(), letter("bo").arguments);
    let errand = Errand { tool, arguments, times: 1, asks: true };
    let call = asked(&office, ToolCall::new("delegate", serde_json::to_string(&errand).unwrap()));
    for question in ["Delegate?", "Send to bo?"] {
        assert!(office.execute(&call).is_err());
        let pending = office.pending().remove(0);
        assert_eq!(pending.question, question);
        office
            .session()
            .calls()
            .settle(pending.operation, &Settlement::approved(pending.digest), "Ada", "")
            .unwrap();
        office.reopen();
    }
    let report = office.execute(&call).unwrap();
    assert!(report.success && report.message.contains("as Ada agreed"), "{report:?}");
    assert_eq!((office.pending(), office.sent().len()), (vec![], 1));
}

/// An approved call asked again if its process had died and a person, or the tool, had it run
/// again.
#[test]
fn an_approval_holds_for_the_run_that_follows_an_interrupted_one() {
    let mut office = Office::new();
    let call = asked(&office, letter("death"));
    assert!(office.execute(&call).is_err());
    let PendingQuestion { operation, digest, .. } = office.pending().remove(0);
    office.session().calls().settle(operation, &Settlement::approved(digest), "Ada", "go").unwrap();
    assert!(office.execute(&call).is_err(), "its process is killed");
    office.reopen();
    office.runner.recover(&ExecuteOptions::default()).unwrap();
    office.session().calls().settle(operation, &Settlement::run_again(), "Bo", "nothing was sent").unwrap();
    let recovered = office.runner.recover(&ExecuteOptions::default()).unwrap();
    let [recovered] = recovered.as_slice() else { panic!("{recovered:?}") };
    assert!(matches!(&recovered.recovery, Recovery::RanAgain(report) if report.success), "{recovered:?}");
    assert_eq!(office.execute(&call).unwrap().message, "sent, as Ada agreed: go");
}

#[test]
fn an_approved_call_whose_process_dies_is_settled_like_any_other_and_does_not_ask_again() {
    let mut office = Office::new();
    let call = asked(&office, letter("death"));
    assert!(office.execute(&call).is_err());
    let PendingQuestion { operation, digest, .. } = office.pending().remove(0);
    office.session().calls().settle(operation, &Settlement::approved(digest), "Ada", "").unwrap();
    assert!(office.execute(&call).is_err(), "its process is killed");
    office.reopen();
    let recovered = office.runner.recover(&ExecuteOptions::default()).unwrap();
    assert!(matches!(recovered[0].recovery, Recovery::NeedsSettling(_)), "{recovered:?}");
    assert_eq!((office.pending(), recovered[0].operation), (vec![], operation));
    let unclear = office.execute(&call);
    assert!(matches!(unclear, Err(Error::ToolIdempotency { .. })), "{unclear:?}");
    assert_eq!(office.sent(), ["death"]);
}

/// The imported session could not take an answer: its log does not contain the call.
#[test]
fn an_export_says_which_calls_wait_and_is_refused_until_they_are_settled() {
    let office = Office::new();
    assert!(office.execute(&letter("bo")).is_err());
    let operation = office.pending()[0].operation;
    let store = store_of(&office.run.disk);
    let reader = || LogReader::open_on(Arc::new(office.run.disk.clone()), office.session().dir()).unwrap();
    let policies = [foldlog::Policy::State].into_iter().collect();
    let last = office.session().log().position().unwrap();
    for export in [office.session().log().export().unwrap(), reader().export_at(last, &policies).unwrap()] {
        assert_eq!(export.suspended_operations, [operation]);
        let refused = store.import(&export, &types(), foldlog::ImportOptions::default());
        assert!(
            matches!(&refused, Err(Error::Export(reason)) if reason.contains("were suspended")),
            "{refused:?}"
        );
    }
    office.session().calls().settle(operation, &Settlement::failed(), "Ada", "").unwrap();
    let export = office.session().log().export().unwrap();
    assert!(store.import(&export, &types(), foldlog::ImportOptions::default()).is_ok());
}

/// With an image that lacked the questions, they would be lost.
#[test]
fn a_session_that_is_opened_from_an_image_knows_what_waits() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions { image_bytes_min: 1 << 10, ..StoreOptions::default() };
    let store = Store::open_with(directory.path(), options).unwrap();
    let session = store.create(&types()).unwrap();
    let id = session.id();
    let resources = || ResourceRegistry::builder().snapshotable(Arc::new(Desk::default())).build().unwrap();
    let send = || Send { disk: MemoryStorage::new(), sent: Arc::default() };
    let runner = |session: &Session| {
        ToolRunner::new(ExecutionState::new(session.clone(), resources()), ToolRegistry::new().with(send()))
    };
    let answer = session.dispatch(Noted { text: "an answer".to_owned() }).unwrap();
    let call = letter("bo").with_origin(answer, 0);
    assert!(runner(&session).execute(&call, &ExecuteOptions::default()).is_err());
    let asked = session.calls().pending_questions().unwrap();
    for step in 0..200 {
        session.dispatch(StepAdded { title: format!("{step} {}", "x".repeat(100)), part: 1 }).unwrap();
    }
    session.close().unwrap();
    let session = store.open_session(id, &types()).unwrap();
    assert!(session.log().recovery().from_image.is_some_and(|from| from > asked[0].operation.sequence()));
    assert_eq!(session.calls().pending_questions().unwrap(), asked);
    session.calls().settle(asked[0].operation, &Settlement::approved(asked[0].digest), "Ada", "").unwrap();
    assert!(runner(&session).execute(&call, &ExecuteOptions::default()).unwrap().success);
}

#[test]
fn the_log_says_of_a_suspended_call_what_it_waits_for() {
    let office = Office::new();
    assert!(office.execute(&letter("bo")).is_err());
    assert!(office.execute(&review()).is_err());
    let waits: Vec<_> =
        office.run.ledger().into_iter().map(|entry| (entry.outcome, entry.waits_for)).collect();
    let expected =
        [SuspensionForm::Asks, SuspensionForm::Awaits].map(|form| (OperationStatus::Suspended, Some(form)));
    assert_eq!(waits, expected);
    let outcomes: Vec<Outcome> = office.run.invoked().into_iter().map(|invoked| invoked.outcome).collect();
    assert_eq!(outcomes, [Outcome::Suspended, Outcome::Suspended]);
}
