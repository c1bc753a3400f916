//! A disk without space: all sessions open and can be read, writes that need space are refused,
//! calls that have begun can end, and writing continues once there is space.

use std::panic::{AssertUnwindSafe, catch_unwind};

use foldlog::Durability;
use foldlog::storage::{CrashKind, Fault};
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{Error, ExecutionState, ResourceRegistry, Session, Store, StoreOptions, ToolInvocations};
use foldlog_test_support::crash::{Change, Machine, Slices, step, write_steps};
use foldlog_test_support::host::{StepAdded, types};

use super::day::{Day, Look};
use super::{LEVELS, each};

/// A day in which the disk is full from one moment on, until another or to the end.
#[derive(Clone, Copy, Debug)]
struct Filled {
    durability: Durability,
    from: u64,
    until: Option<u64>,
}

fn live(Filled { durability, from, until }: Filled) -> Day {
    let mut day = Day::new(durability).before_each(move |machine, done| {
        if done == from {
            machine.disk.inject(Fault::DiskFull { capacity_bytes: machine.disk.used_bytes() });
        }
        if Some(done) == until {
            machine.disk.clear_faults();
        }
        if done == from || done == from + 7 { Look::Yes } else { Look::No }
    });
    let lived = catch_unwind(AssertUnwindSafe(|| {
        day.live();
        assert_eq!(day.poisoned, 0, "a full disk is no failure of the log");
        assert!(day.otherwise.is_empty(), "a full disk is told by its own error: {:#?}", day.otherwise);
        day.end(CrashKind::PowerLosingAll);
    }));
    if let Err(panic) = lived {
        eprintln!("{durability:?}, from {from}, until {until:?}:\n{}", day.told.join("\n"));
        std::panic::resume_unwind(panic);
    }
    day
}

#[test]
fn a_disk_that_fills_up_at_any_moment_refuses_and_loses_nothing_and_a_begun_call_ends() {
    let mut days = Vec::new();
    for durability in LEVELS {
        let mut day = Day::new(durability);
        day.live();
        // The first session exists by then.
        for from in 1..day.done() {
            days.push(Filled { durability, from, until: None });
            days.push(Filled { durability, from, until: Some(from + 5) });
        }
    }
    let days: Vec<Filled> = days.into_iter().step_by(super::step(3)).collect();
    let refused = each(&days, |filled| u64::from(live(*filled).refused > 0));
    let refused: u64 = refused.iter().sum();
    println!("{} days, {refused} of them with refusals", days.len());
    // On the other days the space of images was enough for the remaining actions.
    assert!(refused > days.len() as u64 / 4, "{refused}");
}

fn runner(session: &Session) -> ToolRunner {
    let resources = ResourceRegistry::builder().build().unwrap();
    ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new())
}

/// Nested calls each reserve space for themselves; the ends of inner calls once used that of outer
/// ones.
#[test]
fn calls_within_calls_all_end_on_a_full_disk_whatever_the_inner_ones_answered() {
    for (durability, answer_bytes) in
        LEVELS.iter().flat_map(|durability| [1, 1000, 2500, 6000, 14_000].map(|bytes| (*durability, bytes)))
    {
        let machine = Machine::default();
        // Stores answers in the log itself, as is usual for those below 64 KiB.
        let options = StoreOptions { object_bytes_min: u64::MAX, ..machine.options(durability) };
        let store = Store::open_with("/home/store", options).unwrap();
        let session = store.create(&types()).unwrap();
        write_steps(&session, 3);
        let before = Slices::of(&session).unwrap();
        let (outer, call) = (runner(&session), ToolCall::new("write", "{}"));
        let mut operations = vec![outer.begin(&call, &ExecuteOptions::default()).unwrap()];
        for _ in 0..4 {
            let within = outer.within(operations.last().unwrap().context());
            operations.push(within.begin(&call, &ExecuteOptions::default()).unwrap());
        }
        machine.disk.inject(Fault::DiskFull { capacity_bytes: 0 });
        let inside = operations.last().unwrap().context().session().clone();
        let refused = (0..).find_map(|n| inside.dispatch(step(n)).err()).unwrap();
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
        while inside.dispatch(StepAdded { title: String::new(), part: 0 }).is_ok() {}
        while let Some(operation) = operations.pop() {
            let answer = "v".repeat(answer_bytes);
            let report = operation.end(ToolResult::ok(answer.clone(), answer)).unwrap();
            // If there is no space for the answer itself, the call is rolled back, and its report
            // says why.
            assert!(report.success || report.message.contains("no space"), "{}", report.message);
        }
        assert!(session.calls().open_operations().is_empty() && !session.calls().is_interrupted());
        assert_eq!(session.log().slice::<ToolInvocations>().unwrap().len(), 5);
        if answer_bytes == 14_000 {
            let back = before.after(&Change::Rollback(0, Box::new(before.clone())));
            assert_eq!(Slices::of(&session).unwrap(), back, "none of them has committed");
        }
        let (id, slices) = (session.id(), Slices::of(&session).unwrap());
        session.sync().unwrap();
        drop((outer, inside, session));
        machine.disk.clear_faults();
        machine.crash(CrashKind::PowerLosingAll);
        let session = machine.open(id, durability).unwrap();
        assert_eq!(Slices::of(&session).unwrap(), slices);
        write_steps(&session, 1);
    }
}
