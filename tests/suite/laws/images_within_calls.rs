//! The law of images, with calls: images are written while calls are open, in nested calls, and
//! while interrupted calls wait to be settled. The session opens, recovers and continues as without
//! images, to the byte.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use foldlog::log::SegmentSizes;
use foldlog::storage::{CrashKind, MemoryStorage};
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    BackgroundSync, Durability, ExecutionState, FixedClock, ResourceRegistry, Session, SessionOptions,
    Settlement, Store, StoreOptions,
};
use foldlog_test_support::host::{DraftEdited, Noted, StepAdded, types};
use proptest::prelude::*;
use proptest::sample::Index;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

proptest! {
    #![proptest_config(super::config())]

    /// Images of any moment, including moments within calls, next to the log of any later moment.
    #[test]
    fn nothing_depends_on_an_image_of_open_and_unsettled_calls(
        history in prop::collection::vec(step(3), 4..14),
        settles in any::<bool>(),
        log in any::<Index>(),
        image in any::<Index>(),
        other_boot in any::<bool>(),
    ) {
        let lived = Life::through(&history, settles);
        let moment = log.get(&lived.moments);
        let images: Vec<_> = lived.moments.iter().flat_map(|files| files.iter())
            .filter(|(path, _)| is_image(path)).collect();
        prop_assume!(!images.is_empty());
        let (path, bytes) = image.get(&images);
        let boot = if other_boot { Uuid::from_u128(2) } else { lived.boot };
        let [without, with] = [None, Some((path, bytes))].map(|image| {
            let disk = MemoryStorage::with_boot_id(boot);
            for (path, bytes) in moment.iter().filter(|(path, _)| is_of_log(path)) {
                disk.write_file(path, bytes).unwrap();
            }
            if let Some((path, bytes)) = image {
                disk.write_file(path, bytes).unwrap();
            }
            answers(&disk, lived.id)
        });
        prop_assert_eq!(&with.0, &without.0);
        prop_assert!(with.1 == without.1, "the same bytes are written afterwards");
    }
}

/// A step of a host, or of a call.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
enum Step {
    Plan(u16),
    Note(u16),
    /// Changes a line of the draft, or removes it.
    Draft(u8, u16),
    Call(Vec<Step>, Then),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
enum Then {
    Succeed,
    Fail,
    /// The process ends before the call.
    Die,
}

fn step(depth: u32) -> BoxedStrategy<Step> {
    let plain = prop_oneof![
        (0..900_u16).prop_map(Step::Plan),
        (0..900_u16).prop_map(Step::Note),
        (0..4_u8, 0..900_u16).prop_map(|(place, len)| Step::Draft(place, len)),
    ];
    if depth == 0 {
        return plain.boxed();
    }
    let then = prop_oneof![3 => Just(Then::Succeed), 2 => Just(Then::Fail), 2 => Just(Then::Die)];
    let call = (prop::collection::vec(step(depth - 1), 0..6), then)
        .prop_map(|(steps, then)| Step::Call(steps, then));
    prop_oneof![3 => plain, 2 => call].boxed()
}

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A tool that performs the steps in its arguments.
#[derive(Clone)]
struct Work {
    disk: MemoryStorage,
    moments: Arc<Mutex<Vec<Files>>>,
    runner: Arc<Mutex<Option<ToolRunner>>>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Told {
    steps: Vec<Step>,
    then: Then,
}

impl Work {
    fn perform(&self, session: &Session, runner: &ToolRunner, step: &Step) -> foldlog::Result<()> {
        let text = |len: u16| "x".repeat(len.into());
        match step {
            Step::Plan(len) => {
                session.dispatch(StepAdded { title: text(*len), part: (len % 3) as u8 })?;
            }
            Step::Note(len) => {
                session.dispatch(Noted { text: text(*len) })?;
            }
            Step::Draft(place, len) => {
                session.dispatch(DraftEdited { place: (*place).into(), line: text(*len) })?;
            }
            Step::Call(steps, then) => {
                let told = serde_json::to_string(&Told { steps: steps.clone(), then: *then }).unwrap();
                runner.execute(&ToolCall::new("work", told), &ExecuteOptions::default())?;
            }
        }
        self.moments.lock().unwrap().push(self.disk.dump());
        Ok(())
    }
}

impl Tool for Work {
    const NAME: &'static str = "work";
    const DESCRIPTION: &'static str = "Works.";
    type Parameters = Told;
    type Output = usize;

    fn call(&self, told: Told, context: &ToolContext) -> Result<ToolResult<usize>, ToolError> {
        let runner = self.runner.lock().unwrap().clone().unwrap().within(context);
        for step in &told.steps {
            self.perform(context.session(), &runner, step)?;
        }
        match told.then {
            Then::Succeed => Ok(ToolResult::ok("worked", told.steps.len())),
            Then::Fail => Err(ToolError::failed("tired")),
            Then::Die => {
                self.disk.crash(CrashKind::Process);
                Ok(ToolResult::ok("nobody hears this", 0))
            }
        }
    }
}

fn store(disk: &MemoryStorage, image_bytes_min: u64) -> Store {
    let options = StoreOptions {
        storage: Arc::new(disk.process()),
        clock: Arc::new(FixedClock::with_step(1_800_000_000_000_000, 250_001)),
        seed: Some(5),
        durability: Durability::Process,
        segments: SegmentSizes { first_bytes: 1, max_bytes: 4096, ahead_bytes_min: 0 },
        image_bytes_min,
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    Store::open_with("/store", options).unwrap()
}

fn runner(session: Session, work: Work) -> ToolRunner {
    let state = ExecutionState::builder(session, ResourceRegistry::builder().build().unwrap()).build();
    ToolRunner::new(state, ToolRegistry::new().with(work))
}

/// A completed history: the disk after each step, including the steps within calls.
struct Life {
    id: Uuid,
    boot: Uuid,
    moments: Vec<Files>,
}

impl Life {
    fn through(history: &[Step], settles: bool) -> Life {
        let boot = Uuid::from_u128(1);
        let disk = MemoryStorage::with_boot_id(boot);
        let options = SessionOptions { seed: Some(1), ..SessionOptions::default() };
        let session = store(&disk, 1).create_with(&types(), options).unwrap();
        let id = session.id();
        let work = Work { disk: disk.clone(), moments: Arc::default(), runner: Arc::default() };
        let mut run = runner(session, work.clone());
        for step in history {
            *work.runner.lock().unwrap() = Some(run.clone());
            if work.perform(run.state().session(), &run, step).is_err() {
                // The process has ended. The next one recovers the session and sometimes settles
                // its calls.
                work.runner.lock().unwrap().take();
                work.moments.lock().unwrap().push(disk.dump());
                run = runner(store(&disk, 1).open_session(id, &types()).unwrap(), work.clone());
                run.recover(&ExecuteOptions::default()).unwrap();
                let waits = run.state().session().calls().unsettled_operations();
                if let (true, Some(one)) = (settles, waits.first()) {
                    let settlement = Settlement::failed();
                    run.state().session().calls().settle(one.operation, &settlement, "a test", "so").unwrap();
                }
            }
        }
        work.runner.lock().unwrap().take();
        drop(run);
        work.moments.lock().unwrap().push(disk.dump());
        let moments = std::mem::take(&mut *work.moments.lock().unwrap());
        Life { id, boot, moments }
    }
}

fn is_image(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "image")
}

fn is_of_log(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "seg")
}

/// Returns all output of a session while it is opened, recovered and continued, and its segments at
/// the end.
fn answers(disk: &MemoryStorage, id: Uuid) -> (Vec<String>, Files) {
    let session = store(disk, u64::MAX).open_session(id, &types()).unwrap();
    let mut report = session.log().recovery().clone();
    (report.from_image, report.dropped_images) = (None, Vec::new());
    let mut said = vec![format!("{report:?}"), all_of(&session)];
    let work = Work { disk: disk.clone(), moments: Arc::default(), runner: Arc::default() };
    let run = runner(session, work);
    said.push(format!("{:?}", run.recover(&ExecuteOptions::default()).map_err(|error| error.to_string())));
    let session = run.state().session();
    said.push(all_of(session));
    said.push(format!("{:?}", session.dispatch(StepAdded { title: "and on".to_owned(), part: 1 })));
    for one in session.calls().unsettled_operations() {
        said.push(format!(
            "{:?}",
            session.calls().settle(one.operation, &Settlement::failed(), "a test", "so")
        ));
    }
    let last = session.log().position().unwrap().get();
    for to in [last, last / 2, last / 3] {
        said.push(format!("{:?}", session.rollback_to(to).map_err(|error| error.to_string())));
        said.push(all_of(session));
    }
    drop(run);
    (said, disk.dump().into_iter().filter(|(path, _)| is_of_log(path)).collect())
}

fn all_of(session: &Session) -> String {
    format!(
        "{:?} {:?} {:?} {:?}",
        session.log().position(),
        session.calls().open_operations(),
        session.calls().unsettled_operations(),
        session.dynamic().state().map_err(|error| error.to_string())
    )
}
