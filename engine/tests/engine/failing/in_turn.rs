//! Each call to the disk fails in turn, in every way that it can, and then several at random.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use foldlog::Durability;
use foldlog::storage::{CrashKind, Fault, Op};
use foldlog_test_support::crash::Chance;

use super::day::Day;
use super::{LEVELS, each, number_from, step};

const ERRORS: [ErrorKind; 3] = [ErrorKind::Other, ErrorKind::StorageFull, ErrorKind::Interrupted];

/// Every call of the storage layer.
const OPS: [Op; 15] = [
    Op::CreateDirAll,
    Op::List,
    Op::Entry,
    Op::Create,
    Op::Open,
    Op::Rename,
    Op::HardLink,
    Op::RemoveFile,
    Op::RemoveDirAll,
    Op::SyncDir,
    Op::TryLock,
    Op::Len,
    Op::Read,
    Op::Write,
    Op::SyncData,
];

/// Number of days with several failures in a normal run.
const SEEDS: u64 = 150;

/// Returns how many calls of each kind a day without failures makes.
fn calls(durability: Durability) -> BTreeMap<Op, u64> {
    let mut day = Day::new(durability);
    day.live();
    assert_eq!((day.failed, day.refused, day.poisoned), (0, 0, 0), "{:#?}", day.told);
    let mut calls = BTreeMap::new();
    for (op, _) in day.machine.disk.take_trace() {
        *calls.entry(op).or_default() += 1;
    }
    day.end(CrashKind::PowerLosingAll);
    calls
}

#[derive(Default)]
struct Told {
    days: AtomicU64,
    refused: AtomicU64,
    poisoned: AtomicU64,
    harmless: AtomicU64,
}

impl Told {
    fn count(&self, day: &Day) {
        let one = |counter: &AtomicU64, yes: bool| counter.fetch_add(u64::from(yes), Ordering::Relaxed);
        one(&self.days, true);
        one(&self.refused, day.refused > 0);
        one(&self.poisoned, day.poisoned > 0);
        one(&self.harmless, day.failed == 0);
    }
}

/// Runs a day on a disk with these faults, and describes them if a check fails.
fn live(name: &str, durability: Durability, faults: &[Fault], kind: CrashKind, told: &Told) -> Day {
    let mut day = Day::new(durability);
    for fault in faults {
        day.machine.disk.inject(fault.clone());
    }
    let lived = catch_unwind(AssertUnwindSafe(|| {
        day.live();
        day.end(kind);
    }));
    if let Err(panic) = lived {
        eprintln!("{name}: {durability:?}, {faults:?}, {kind:?}:\n{}", day.told.join("\n"));
        std::panic::resume_unwind(panic);
    }
    told.count(&day);
    day
}

/// Returns the faults of a call: the errors, and for writes a few lengths that are kept.
fn strikes(op: Op, nth: u64) -> Vec<Fault> {
    let mut faults: Vec<Fault> = ERRORS.map(|error| Fault::FailNth { op, nth, error }).into();
    if op == Op::Write {
        faults.extend([0, 1, 27, 60, 300].map(|bytes| Fault::ShortWrite { nth, bytes }));
    }
    faults
}

/// In the short mode each call fails in one way at one durability, and the ways and durabilities
/// alternate. With `FOLDLOG_FAILING=all` each fails in every way at every durability, before either
/// kind of crash.
#[test]
fn whichever_call_fails_the_session_says_so_and_nothing_acknowledged_is_gone() {
    // A prime, so that it matches no pattern of the list. One day in 300 has a refusal.
    let step = step(13);
    let mut days = Vec::new();
    for durability in LEVELS {
        let calls = calls(durability);
        for op in OPS {
            let count = calls.get(&op).copied().unwrap_or_default();
            assert!(count > 0, "{durability:?}: a day touches everything, and not {op:?}");
            for (nth, fault) in
                (1..=count).flat_map(|nth| strikes(op, nth).into_iter().map(move |f| (nth, f)))
            {
                days.push((durability, nth, fault));
            }
        }
    }
    let whole = days.len();
    days = days.into_iter().step_by(step).collect();
    let told = Told::default();
    each(&days, |(durability, nth, fault)| {
        let kinds = [CrashKind::Process, CrashKind::PowerLosingAll, CrashKind::Power { seed: *nth }];
        let taken: Vec<CrashKind> = if step == 1 { kinds.into() } else { vec![kinds[*nth as usize % 3]] };
        for kind in taken {
            let day = live("alone", *durability, std::slice::from_ref(fault), kind, &told);
            if let Fault::FailNth { op, error: ErrorKind::Interrupted, .. } = fault
                && op.is_made_again()
            {
                assert_eq!(day.failed, 0, "{fault:?}: an interrupted call is made again: {:#?}", day.told);
            }
        }
    });
    let [days, refused, poisoned, harmless] = [&told.days, &told.refused, &told.poisoned, &told.harmless]
        .map(|count| count.load(Ordering::Relaxed));
    println!("{days} days of {whole}: {refused} with a refusal, {poisoned} poisoned, {harmless} unharmed");
    // A call that fails for lack of space is usually repeated with the space of dispensable files.
    assert!(poisoned > days / 20 && refused > 0 && harmless < days, "{poisoned} poisoned, {refused} refused");
}

/// `FOLDLOG_FAILING_SEED=n` runs that day alone; `FOLDLOG_FAILING_SEEDS=count` sets their number.
#[test]
fn several_failures_in_one_day_cost_nothing_acknowledged_either() {
    let seeds: Vec<u64> = match number_from("FOLDLOG_FAILING_SEED") {
        Some(seed) => vec![seed],
        None => (0..number_from("FOLDLOG_FAILING_SEEDS").unwrap_or(SEEDS)).collect(),
    };
    let counts: Vec<_> = LEVELS.map(|durability| (durability, calls(durability))).into();
    let told = Told::default();
    each(&seeds, |seed| {
        let mut chance = Chance::new(*seed);
        let (durability, calls) = chance.pick(&counts);
        let faults: Vec<Fault> = (0..2 + chance.below(6))
            .map(|_| {
                // Prefers calls that can fail in most ways.
                let changing = [Op::Write, Op::Create, Op::SyncData, Op::SyncDir];
                let op = if chance.percent(60) { *chance.pick(&changing) } else { *chance.pick(&OPS) };
                let nth = 1 + chance.below(calls[&op]);
                match chance.below(5) {
                    0 => Fault::ShortWrite { nth, bytes: chance.below(400) as usize },
                    way => Fault::FailNth { op, nth, error: ERRORS[way as usize % 3] },
                }
            })
            .collect();
        let kind = match chance.below(3) {
            0 => CrashKind::Process,
            1 => CrashKind::PowerLosingAll,
            _ => CrashKind::Power { seed: *seed },
        };
        live(&format!("FOLDLOG_FAILING_SEED={seed}"), *durability, &faults, kind, &told);
    });
    let poisoned = told.poisoned.load(Ordering::Relaxed);
    assert!(seeds.len() < 100 || poisoned > seeds.len() as u64 / 4, "{poisoned}");
}
