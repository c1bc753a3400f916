//! Tools that can verify the outcome of a call outside: a recovery asks them first, so that a
//! payment is neither lost nor made twice, whenever the process ended.

use foldlog::Outcome;
use foldlog::storage::Fault;
use foldlog::tools::{CallVerification, Recovery};

use super::*;

/// A bank, which outlives all processes: payments by the operations that made them.
#[derive(Clone, Default)]
struct Bank {
    payments: Arc<Mutex<BTreeMap<u64, u64>>>,
    told: Arc<Mutex<Told>>,
}

#[derive(Clone, Copy, Default)]
struct Told {
    dies: Option<Dies>,
    asked: u32,
    undone: u32,
    ran: u32,
    answers: Answers,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Dies {
    BeforePaying,
    BehindPaying,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Answers {
    #[default]
    Truly,
    CannotSay,
    Fails,
    Panics,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Payment {
    amount: u64,
}

struct Pays {
    bank: Bank,
    disk: MemoryStorage,
    idempotency: Idempotency,
}

impl Pays {
    fn dies(&self, at: Dies) -> bool {
        let dies = self.bank.told.lock().unwrap().dies == Some(at);
        if dies {
            self.bank.told.lock().unwrap().dies = None;
            self.disk.crash(CrashKind::Process);
        }
        dies
    }
}

impl Tool for Pays {
    const NAME: &'static str = "pays";
    type Parameters = Payment;
    type Output = u64;

    fn idempotency(&self) -> Idempotency {
        self.idempotency
    }

    fn call(&self, payment: Payment, context: &ToolContext) -> Result<ToolResult<u64>, ToolError> {
        self.bank.told.lock().unwrap().ran += 1;
        context.session().dispatch(StepAdded { title: "paid".to_owned(), part: 1 })?;
        if !self.dies(Dies::BeforePaying) {
            let paid = self.bank.payments.lock().unwrap().insert(context.operation().get(), payment.amount);
            assert!(paid.is_none() || self.idempotency == Idempotency::Keyed, "it is paid twice");
            self.dies(Dies::BehindPaying);
        }
        Ok(ToolResult::ok("paid", payment.amount))
    }

    fn undo(
        &self,
        _: Payment,
        undone: &InterruptedCall,
        _: &ToolContext,
    ) -> Result<ToolResult<u64>, ToolError> {
        self.bank.told.lock().unwrap().undone += 1;
        self.bank.payments.lock().unwrap().remove(&undone.operation.get());
        Ok(ToolResult::ok("paid back", 0))
    }

    fn verifies(&self) -> bool {
        true
    }

    fn verify(
        &self,
        payment: Payment,
        interrupted: &InterruptedCall,
        context: &ToolContext,
    ) -> Result<CallVerification<u64>, ToolError> {
        assert!(context.is_resume() && context.operation() != interrupted.operation);
        let changed = context.session().dispatch(StepAdded { title: "asked".to_owned(), part: 1 });
        assert!(matches!(changed, Err(Error::ReadsOnly { .. })), "{changed:?}");
        let answers = {
            let mut told = self.bank.told.lock().unwrap();
            told.asked += 1;
            told.answers
        };
        match answers {
            Answers::CannotSay => Ok(CallVerification::Unknown),
            Answers::Fails => Err(ToolError::failed("the bank is closed")),
            Answers::Panics => panic!("the bank burnt down"),
            Answers::Truly => {
                Ok(match self.bank.payments.lock().unwrap().get(&interrupted.operation.get()) {
                    Some(paid) => {
                        assert_eq!(*paid, payment.amount);
                        CallVerification::Done(ToolResult::ok("it was paid", *paid))
                    }
                    None => CallVerification::NotDone,
                })
            }
        }
    }
}

struct Payer {
    bank: Bank,
    disk: MemoryStorage,
    id: Uuid,
    runner: ToolRunner,
    idempotency: Idempotency,
}

impl Payer {
    fn new(idempotency: Idempotency) -> Payer {
        let (bank, disk) = (Bank::default(), MemoryStorage::new());
        let session = store_of(&disk).create(&types()).unwrap();
        let id = session.id();
        let runner = Payer::runner(session, &bank, &disk, idempotency);
        Payer { bank, disk, id, runner, idempotency }
    }

    fn runner(session: Session, bank: &Bank, disk: &MemoryStorage, idempotency: Idempotency) -> ToolRunner {
        let pays = Pays { bank: bank.clone(), disk: disk.clone(), idempotency };
        let state = ExecutionState::new(session, ResourceRegistry::default());
        ToolRunner::new(state, ToolRegistry::new().with(pays))
    }

    fn reopen(&mut self) {
        self.disk.crash(CrashKind::Process);
        let session = store_of(&self.disk).open_session(self.id, &types()).unwrap();
        self.runner = Payer::runner(session, &self.bank, &self.disk, self.idempotency);
    }

    fn call() -> ToolCall {
        ToolCall::new("pays", r#"{"amount": 7}"#).with_origin(1, 0)
    }

    /// Pays in a process that is killed meanwhile, and opens the next one.
    fn killed(idempotency: Idempotency, at: Dies) -> Payer {
        let mut payer = Payer::new(idempotency);
        payer.bank.told.lock().unwrap().dies = Some(at);
        payer.runner.execute(&Payer::call(), &ExecuteOptions::default()).unwrap_err();
        payer.reopen();
        payer
    }

    fn recover(&self) -> Recovery {
        let recovered = self.runner.recover(&ExecuteOptions::default()).unwrap();
        let [recovered] = recovered.try_into().unwrap();
        recovered.recovery
    }

    fn told(&self) -> Told {
        *self.bank.told.lock().unwrap()
    }

    fn payments(&self) -> Vec<u64> {
        self.bank.payments.lock().unwrap().values().copied().collect()
    }

    /// Checks that the payment is made and recorded, once, also after repeated calls.
    #[track_caller]
    fn is_paid(&self, message: &str) {
        assert_eq!(self.payments(), [7]);
        assert!(self.runner.recover(&ExecuteOptions::default()).unwrap().is_empty());
        let report = self.runner.execute(&Payer::call(), &ExecuteOptions::default()).unwrap();
        assert_eq!((report.success, report.message.as_str(), report.recorded), (true, message, true));
        assert_eq!(report.value, Some(7_u64.into()));
        assert_eq!(self.payments(), [7]);
    }
}

const ASKED_FIRST: [Idempotency; 3] = [Idempotency::Verify, Idempotency::Keyed, Idempotency::Compensate];

#[test]
fn a_call_that_had_done_its_work_is_committed_and_does_not_run_again() {
    for idempotency in ASKED_FIRST {
        let payer = Payer::killed(idempotency, Dies::BehindPaying);
        let Recovery::Verified(report) = payer.recover() else { panic!("{idempotency:?}") };
        assert_eq!(
            (report.success, report.outcome, report.value),
            (true, Outcome::Committed, Some(7_u64.into()))
        );
        assert_eq!((payer.told().ran, payer.told().asked, payer.told().undone), (1, 1, 0));
        // The call's events were rolled back, and not dispatched again.
        assert!(plan(payer.runner.state().session()).is_empty());
        payer.is_paid("it was paid");
        let reader = LogReader::open_on(Arc::new(payer.disk.clone()), payer.runner.state().session().dir());
        let ledger = reader.unwrap().ledger().unwrap();
        let asked: Vec<_> = ledger.iter().filter(|entry| entry.verifies == Some(report.operation)).collect();
        assert_eq!((ledger.len(), asked.len()), (2, 1), "{ledger:?}");
    }
}

#[test]
fn a_call_that_had_not_done_its_work_runs_again_and_has_nothing_to_undo() {
    for idempotency in ASKED_FIRST {
        let payer = Payer::killed(idempotency, Dies::BeforePaying);
        let Recovery::RanAgain(report) = payer.recover() else { panic!("{idempotency:?}") };
        assert!(report.success);
        assert_eq!((payer.told().ran, payer.told().asked, payer.told().undone), (2, 1, 0));
        assert_eq!(plan(payer.runner.state().session()), ["paid"]);
        payer.is_paid("paid");
    }
}

#[test]
fn what_nobody_can_say_is_left_to_what_else_the_tool_declares() {
    for answers in [Answers::CannotSay, Answers::Fails, Answers::Panics] {
        for dies in [Dies::BeforePaying, Dies::BehindPaying] {
            let payer = Payer::killed(Idempotency::Verify, dies);
            payer.bank.told.lock().unwrap().answers = answers;
            let waits = payer.recover();
            assert!(matches!(waits, Recovery::NeedsSettling(Error::ToolIdempotency { .. })), "{waits:?}");
            assert_eq!(payer.told().ran, 1);
            // Repeating the call asks the bank again, which now answers.
            payer.bank.told.lock().unwrap().answers = Answers::Truly;
            let report = payer.runner.execute(&Payer::call(), &ExecuteOptions::default()).unwrap();
            payer.is_paid(&report.message);

            let payer = Payer::killed(Idempotency::Keyed, dies);
            payer.bank.told.lock().unwrap().answers = answers;
            assert!(matches!(payer.recover(), Recovery::RanAgain(report) if report.success));
            payer.is_paid("paid");

            let payer = Payer::killed(Idempotency::Compensate, dies);
            payer.bank.told.lock().unwrap().answers = answers;
            assert!(matches!(payer.recover(), Recovery::RanAgain(report) if report.success));
            assert_eq!(payer.told().undone, 1);
            payer.is_paid("paid");
        }
    }
}

#[test]
fn a_person_who_decides_is_not_contradicted() {
    use foldlog::Settlement;
    let payer = Payer::killed(Idempotency::Verify, Dies::BehindPaying);
    payer.bank.told.lock().unwrap().answers = Answers::CannotSay;
    payer.recover();
    let session = payer.runner.state().session();
    let operation = session.calls().unsettled_operations()[0].operation;
    session
        .calls()
        .settle(operation, &Settlement::failed().showing("not paid"), "ada", "the bank says so")
        .unwrap();
    payer.bank.told.lock().unwrap().answers = Answers::Truly;
    assert!(payer.runner.recover(&ExecuteOptions::default()).unwrap().is_empty());
    let report = payer.runner.execute(&Payer::call(), &ExecuteOptions::default()).unwrap();
    assert_eq!((report.success, report.message.as_str(), payer.told().asked), (false, "not paid", 1));
}

/// The process that recovers is killed too, at each step that writes.
#[test]
fn a_payment_is_made_once_wherever_the_recovery_is_killed() {
    for idempotency in ASKED_FIRST {
        for dies in [Dies::BeforePaying, Dies::BehindPaying] {
            let mut at = 0;
            loop {
                at += 1;
                let mut payer = Payer::killed(idempotency, dies);
                payer.disk.inject(Fault::Die { nth: at, bytes: 20 });
                let first = payer.runner.recover(&ExecuteOptions::default());
                payer.disk.clear_faults();
                if first.is_ok() && payer.runner.state().session().sync().is_ok() {
                    break;
                }
                payer.reopen();
                for one in payer.runner.recover(&ExecuteOptions::default()).unwrap() {
                    let went_on = matches!(one.recovery, Recovery::RanAgain(_) | Recovery::Verified(_));
                    assert!(went_on, "{idempotency:?} {dies:?} {at}: {one:?}");
                }
                let report = payer.runner.execute(&Payer::call(), &ExecuteOptions::default()).unwrap();
                assert!(report.success, "{idempotency:?} {dies:?} {at}: {report:?}");
                assert_eq!(payer.payments(), [7], "{idempotency:?} {dies:?} {at}");
            }
            assert!(at > 3, "there are several moments to be killed in");
        }
    }
}
