//! Decisions that another process leaves for the host that has the session open.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use chrono::{TimeDelta, Utc};
use foldlog::tools::{Question, Recovery};
use foldlog::{
    CollectOptions, Durability, LeftDecision, LeftFate, OperationId, PendingQuestion, SessionOptions,
    Settlement, SystemClock,
};

use super::*;

/// Longest wait in these tests if something is wrong.
const LONG: Duration = Duration::from_secs(120);

#[derive(Serialize, Deserialize, JsonSchema)]
struct Order {
    what: String,
}

/// Buys something after an approval.
struct Buys(Arc<Mutex<Vec<String>>>);

impl Tool for Buys {
    const NAME: &'static str = "buys";
    type Parameters = Order;
    type Output = ();

    fn call(&self, order: Order, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let Some(approval) = context.approval() else {
            return Err(ToolError::Ask(Question::new(format!("Buy {}?", order.what))));
        };
        self.0.lock().unwrap().push(format!("{} for {}", order.what, approval.by));
        Ok(ToolResult::ok("bought", ()))
    }
}

/// A host that keeps its session open, with a store in a real directory.
struct Shop {
    directory: tempfile::TempDir,
    bought: Arc<Mutex<Vec<String>>>,
    runner: ToolRunner,
}

fn options() -> StoreOptions {
    StoreOptions { clock: Arc::new(SystemClock), durability: Durability::Process, ..StoreOptions::default() }
}

impl Shop {
    fn open() -> Shop {
        let directory = tempfile::tempdir().unwrap();
        let session = Store::open_with(directory.path(), options()).unwrap().create(&types()).unwrap();
        Shop::of(directory, session)
    }

    fn of(directory: tempfile::TempDir, session: Session) -> Shop {
        let bought = Arc::<Mutex<Vec<String>>>::default();
        let state = ExecutionState::new(session, ResourceRegistry::default());
        let runner = ToolRunner::new(state, ToolRegistry::new().with(Buys(Arc::clone(&bought))));
        Shop { directory, bought, runner }
    }

    fn session(&self) -> &Session {
        self.runner.state().session()
    }

    fn ask(&self, what: &str) -> PendingQuestion {
        let call = ToolCall::new("buys", serde_json::json!({ "what": what }).to_string());
        let _ = self.runner.execute(&call, &ExecuteOptions::default()).unwrap_err();
        self.session().calls().pending_questions().unwrap().pop().unwrap()
    }

    fn elsewhere(&self) -> Store {
        Store::open_with(self.directory.path(), options()).unwrap()
    }

    fn leave(&self, operation: OperationId, settlement: &Settlement) -> LeftDecision {
        self.elsewhere().leave_decision(self.session().id(), operation, settlement, "ada", "seen").unwrap()
    }

    fn recover(&self) -> Vec<Recovery> {
        let recovered = self.runner.recover(&ExecuteOptions::default()).unwrap();
        recovered.into_iter().map(|one| one.recovery).collect()
    }

    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.session().dir().join("decisions"));
        let names = entries.into_iter().flatten().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn reasons(&self) -> Vec<String> {
        let refused = self.session().calls().take_decisions().unwrap().refused;
        refused.into_iter().map(|refused| refused.reason).collect()
    }
}

/// A host that kept its session open could not be approved by another process, which was refused
/// with a lock error.
#[test]
fn a_waiting_host_takes_an_approval_that_another_process_leaves() {
    let shop = Shop::open();
    let asked = shop.ask("a boat");
    let approved = Settlement::approved(asked.digest);
    let elsewhere = shop.elsewhere();
    let refused = elsewhere.settle(shop.session().id(), asked.operation, &approved, "ada", "seen");
    assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");

    let waits = shop.session().clone();
    let host = thread::spawn(move || waits.calls().wait_for_decision(&[asked.operation], LONG).unwrap());
    let left = shop.leave(asked.operation, &approved);
    let LeftFate::Taken(sequence) = left.wait(LONG).unwrap() else { panic!("the host waits") };
    let wait = host.join().unwrap();
    assert_eq!((wait.decided, wait.refused), (vec![asked.operation], Vec::new()));

    assert!(matches!(shop.recover()[..], [Recovery::RanAgain(_)]));
    assert_eq!(*shop.bought.lock().unwrap(), ["a boat for ada"]);
    let reader = LogReader::open(shop.session().dir()).unwrap();
    let entry = reader.ledger().unwrap().pop().unwrap();
    let settled = entry.settled.unwrap();
    assert_eq!((settled.name(), &*settled.by, settled.sequence), ("approved", "ada", sequence));
    assert_eq!(settled.arguments, Some(asked.digest));
    assert_eq!(shop.left(), [""; 0], "nothing is left over");
}

#[test]
fn a_recovery_takes_what_was_left_while_nobody_waited() {
    let shop = Shop::open();
    let (boat, car) = (shop.ask("a boat"), shop.ask("a car"));
    let left = shop.leave(boat.operation, &Settlement::approved(boat.digest));
    shop.leave(car.operation, &Settlement::failed());
    assert_eq!(left.fate().unwrap(), LeftFate::Waits);
    let mode = fs::metadata(left.path()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert!(matches!(shop.recover()[..], [Recovery::RanAgain(_)]));
    assert_eq!(*shop.bought.lock().unwrap(), ["a boat for ada"]);
    assert!(matches!(left.fate().unwrap(), LeftFate::Taken(_)));
    assert_eq!(shop.session().calls().pending_questions().unwrap(), []);
}

/// A decision of the same process also ends a wait, and so does the expiry of the question.
#[test]
fn a_wait_hears_of_decisions_of_its_own_process_and_ends_in_time() {
    let shop = Shop::open();
    let asked = shop.ask("a boat");
    let began = Instant::now();
    let wait = shop.session().calls().wait_for_decision(&[asked.operation], Duration::ZERO).unwrap();
    assert!(wait.decided.is_empty());
    let waits = shop.session().clone();
    let host = thread::spawn(move || waits.calls().wait_for_decision(&[asked.operation], LONG).unwrap());
    shop.session().calls().settle(asked.operation, &Settlement::failed(), "ada", "no").unwrap();
    assert_eq!(host.join().unwrap().decided, [asked.operation]);
    assert!(began.elapsed() < LONG);
    // An operation that does not wait is not waited for.
    assert_eq!(
        shop.session().calls().wait_for_decision(&[asked.operation], LONG).unwrap().decided,
        [asked.operation]
    );

    let asked = shop.ask("a car");
    let waits = shop.session().clone();
    let host = thread::spawn(move || waits.calls().wait_for_decision(&[asked.operation], LONG));
    let Shop { runner, .. } = shop;
    runner.state().session().clone().close().unwrap();
    assert!(matches!(host.join().unwrap(), Err(Error::Closed { .. })), "the session is closed");
}

#[test]
fn an_async_host_waits_and_holds_no_thread() {
    let shop = Shop::open();
    let asked = shop.ask("a boat");
    let wait = shop.session().calls().wait_for_decision_async(&[asked.operation], LONG);
    let given_up = shop.session().calls().wait_for_decision_async(&[asked.operation], LONG);
    drop(given_up);
    let host = thread::spawn(|| futures_lite::future::block_on(wait).unwrap());
    let left = shop.leave(asked.operation, &Settlement::approved(asked.digest));
    assert!(matches!(left.wait(LONG).unwrap(), LeftFate::Taken(_)));
    assert_eq!(host.join().unwrap().decided, [asked.operation]);
    assert!(matches!(shop.recover()[..], [Recovery::RanAgain(_)]));
}

#[test]
fn a_decision_that_does_not_fit_is_refused_and_leaves_no_record() {
    let shop = Shop::open();
    let asked = shop.ask("a boat");
    let approved = Settlement::approved(asked.digest);
    let leave = |settlement: &Settlement| {
        shop.elsewhere().leave_decision(shop.session().id(), asked.operation, settlement, "ada", "seen")
    };
    // Invalid decisions are refused at once.
    let wrong = leave(&Settlement::approved([7; 32])).unwrap_err().to_string();
    assert!(wrong.contains("arguments that differ"), "{wrong}");
    assert!(leave(&Settlement::run_again()).is_err());
    let nobody =
        shop.elsewhere().leave_decision(shop.session().id(), asked.operation, &approved, " ", "seen");
    assert!(matches!(nobody, Err(Error::Blank { .. })), "{nobody:?}");
    assert_eq!(shop.left(), [""; 0]);

    // An approval that expires before it is taken.
    let late = leave(&approved.clone().until(Utc::now() + TimeDelta::microseconds(1))).unwrap();
    let before = shop.session().log().position();
    assert_eq!(shop.reasons().len(), 1);
    let fate = late.wait(LONG).unwrap();
    assert!(matches!(&fate, LeftFate::Refused(reason) if reason.contains("expired")), "{fate:?}");
    assert_eq!(shop.session().log().position(), before);

    // A decision that comes after another one.
    let slow = leave(&approved).unwrap();
    shop.session().calls().settle(asked.operation, &Settlement::failed(), "bob", "no").unwrap();
    let before = shop.session().log().position();
    assert_eq!(shop.reasons().len(), 1);
    let fate = slow.wait(LONG).unwrap();
    assert!(
        matches!(&fate, LeftFate::Refused(reason) if reason.contains("already settled: `failed` by bob")),
        "{fate:?}"
    );
    assert_eq!((shop.session().log().position(), shop.left().len()), (before, 0));

    // A withdrawn decision is never seen.
    let asked = shop.ask("a car");
    let left = shop.leave(asked.operation, &Settlement::failed());
    assert!(left.withdraw().unwrap() && !left.withdraw().unwrap());
    assert_eq!(shop.session().calls().take_decisions().unwrap().taken, []);
}

/// Any file may be written into the directory. None is recorded, delays others, or is read without
/// a limit.
#[test]
fn hostile_and_torn_files_harm_nothing() {
    let (shop, other) = (Shop::open(), Shop::open());
    let asked = shop.ask("a boat");
    let whole = {
        let left = shop.leave(asked.operation, &Settlement::approved(asked.digest));
        let bytes = fs::read(left.path()).unwrap();
        assert!(left.withdraw().unwrap());
        bytes
    };
    let foreign = {
        let asked = other.ask("a boat");
        let left = other.leave(asked.operation, &Settlement::approved(asked.digest));
        fs::read(left.path()).unwrap()
    };
    let directory = shop.session().dir().join("decisions");
    let name =
        |n: u128, end: &str| -> PathBuf { directory.join(format!("{n:020}-{}{end}", Uuid::from_u128(n))) };
    let put = |n: u128, bytes: &[u8]| {
        fs::write(name(n, ".decision"), bytes).unwrap();
        fs::set_permissions(name(n, ".decision"), Permissions::from_mode(0o600)).unwrap();
    };
    put(1, &whole[..whole.len() - 1]);
    put(2, b"");
    put(3, b"FOLDDECI of somebody else");
    put(4, &foreign);
    put(5, &whole);
    fs::set_permissions(name(5, ".decision"), Permissions::from_mode(0o662)).unwrap();
    let huge = fs::File::create(name(6, ".decision")).unwrap();
    huge.set_len(1 << 40).unwrap();
    fs::set_permissions(name(6, ".decision"), Permissions::from_mode(0o600)).unwrap();
    // Other kinds of files are left alone.
    let aside = shop.directory.path().join("aside");
    fs::write(&aside, &whole).unwrap();
    symlink(&aside, name(7, ".decision")).unwrap();
    fs::create_dir(name(8, ".decision")).unwrap();
    nix::unistd::mkfifo(&name(9, ".decision"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(directory.join("notes.txt"), "mine").unwrap();

    let before = shop.session().log().position();
    let reasons = shop.reasons();
    assert_eq!(reasons.len(), 6, "{reasons:?}");
    assert_eq!(shop.session().log().position(), before);
    assert!(reasons.iter().any(|reason| reason.contains("another session")), "{reasons:?}");
    assert!(
        reasons.iter().any(|reason| reason.contains("its permissions allow others to write it")),
        "{reasons:?}"
    );
    assert_eq!(shop.reasons(), [""; 0], "each is refused once");
    assert!(aside.exists() && directory.join("notes.txt").exists());
    assert_eq!(shop.session().calls().pending_questions().unwrap().len(), 1);

    // Thousands of them are taken in rounds, and few answers are kept.
    for n in 100..700 {
        put(n, b"nothing");
    }
    let mut rounds = 0;
    while !shop.reasons().is_empty() {
        rounds += 1;
    }
    let answers = shop.left().iter().filter(|name| name.ends_with(".answer")).count();
    assert!(rounds >= 3 && answers <= 64, "{rounds} rounds, {answers} answers");

    // The valid one among them is taken.
    put(1000, &whole);
    assert_eq!(shop.session().calls().take_decisions().unwrap().taken.len(), 1);
}

/// A host that is killed between the record and the removal of the file finds the file again.
#[test]
fn a_decision_is_recorded_once_although_its_file_comes_back() {
    let shop = Shop::open();
    let asked = shop.ask("a boat");
    let left = shop.leave(asked.operation, &Settlement::approved(asked.digest));
    let bytes = fs::read(left.path()).unwrap();
    let first = shop.session().calls().take_decisions().unwrap().taken;
    let before = shop.session().log().position();
    let come_back = || {
        fs::write(left.path(), &bytes).unwrap();
        fs::set_permissions(left.path(), Permissions::from_mode(0o600)).unwrap();
        shop.session().calls().take_decisions().unwrap()
    };
    let again = come_back();
    assert_eq!((again.taken, again.refused), (first.clone(), Vec::new()));
    assert_eq!(shop.session().log().position(), before);
    // After it ran, too.
    shop.recover();
    let before = shop.session().log().position();
    assert_eq!(come_back().taken, first);
    assert_eq!(shop.session().log().position(), before);
    assert_eq!(*shop.bought.lock().unwrap(), ["a boat for ada"]);
}

/// A decision outlives the host, and is only visible to this store's host.
#[test]
fn collection_backups_forks_and_verify_know_what_was_left() {
    let shop = Shop::open();
    let asked = shop.ask("a boat");
    let left = shop.leave(asked.operation, &Settlement::approved(asked.digest));
    let (id, dir) = (shop.session().id(), shop.session().dir().to_owned());
    let position = shop.session().log().position().unwrap();
    shop.session().clone().close().unwrap();
    let Shop { directory, runner, .. } = shop;
    drop(runner);
    let building = left.path().with_extension("decision.new");
    fs::write(&building, "torn").unwrap();

    let store = Store::open_with(directory.path(), options()).unwrap();
    let backup = tempfile::tempdir().unwrap();
    store.backup(id, backup.path(), foldlog::BackupOptions::default()).unwrap();
    assert!(!backup.path().join("sessions").join(id.to_string()).join("decisions").exists());
    let fork = store.fork(id, position, &types(), SessionOptions::default()).unwrap();
    assert!(!fork.dir().join("decisions").exists());
    fork.close().unwrap();
    foldlog::inspect::walk(&dir, &mut |_| Ok(())).unwrap();
    store.collect(&CollectOptions::default()).unwrap();
    assert!(left.path().exists() && !building.exists());

    // The next host takes it.
    let shop = Shop::of(directory, store.open_session(id, &types()).unwrap());
    assert!(matches!(shop.recover()[..], [Recovery::RanAgain(_)]));
    assert_eq!(*shop.bought.lock().unwrap(), ["a boat for ada"]);
    shop.session().clone().close().unwrap();
    let Shop { directory: _directory, runner, .. } = shop;
    drop(runner);
    store.delete(id).unwrap();
    assert!(!dir.exists());
}

/// A replay has no files to wait for: it takes the recorded decisions.
#[test]
fn a_replay_takes_the_decisions_from_the_log() {
    let host = |session: &Session, elsewhere: Option<&Store>| -> Result<()> {
        let bought = Arc::<Mutex<Vec<String>>>::default();
        let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
        let runner = ToolRunner::new(state, ToolRegistry::new().with(Buys(bought)));
        let call = ToolCall::new("buys", r#"{"what":"a boat"}"#);
        let _ = runner.execute(&call, &ExecuteOptions::default()).unwrap_err();
        let asked = session.calls().pending_questions()?.pop().unwrap();
        assert!(session.calls().wait_for_decision(&[asked.operation], Duration::ZERO)?.decided.is_empty());
        session.dispatch(Noted { text: "it waits".to_owned() })?;
        if let Some(elsewhere) = elsewhere {
            let approved = Settlement::approved(asked.digest);
            elsewhere.leave_decision(session.id(), asked.operation, &approved, "ada", "seen")?;
        }
        let wait = session.calls().wait_for_decision(&[asked.operation], LONG)?;
        assert_eq!(wait.decided, [asked.operation]);
        runner.recover(&ExecuteOptions::default())?;
        session.dispatch(Noted { text: "it is done".to_owned() })?;
        Ok(())
    };
    let shop = Shop::open();
    host(shop.session(), Some(&shop.elsewhere())).unwrap();
    let reader = LogReader::open(shop.session().dir()).unwrap();
    let replay = foldlog::replay::Replay::new(&reader, &types());
    let report = replay.run(|session| host(&session, None).unwrap()).unwrap();
    assert!(report.compared >= 5, "{report:?}");
}
