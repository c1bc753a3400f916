//! Changes of a host's code, planted one at a time: each is found at its record.

use foldlog::inspect::LogReader;
use foldlog::replay::{Replay, ReplayMode};
use foldlog::{Divergence, DivergenceKind, Error, Generator, RecordKind, SequenceNumber};
use foldlog_codec::body::Lane;
use foldlog_test_support::replayed_host::Noted;

use super::host::{Change, Host, LANES, Step, Stored, types, types_with};
use super::seeds;

const CHANGES: [Change; 9] = [
    Change::Argument,
    Change::ClockRead,
    Change::Draw,
    Change::Letter,
    Change::MapOrder,
    Change::Float,
    Change::LeftOut,
    Change::Twice,
    Change::Swapped,
];

/// Draws a place at which the change has an effect and that is not the last of its lane. There,
/// only the end of the replay or its patience shows that no record follows.
fn place(host: &Host, change: Change, draw: &mut Generator) -> Option<(usize, usize)> {
    let (mut lane, start) = (draw.next_below(3) as usize, draw.next_u64() as usize);
    for _ in 0..3 {
        let steps = &host.lanes[lane];
        let fits = |at: usize| {
            let (step, next) = (&steps[at], &steps[at + 1]);
            match change {
                Change::Argument => matches!(step, Step::Note(_) | Step::Tool(..)),
                Change::Letter => matches!(step, Step::Letter(_)),
                Change::MapOrder | Change::Float => matches!(step, Step::Note(_)),
                // An additional reading next to another is like a missing record before it.
                Change::ClockRead => *step != Step::Time && *next != Step::Time,
                Change::Draw => *step != Step::Number && *next != Step::Number,
                Change::LeftOut | Change::Swapped => {
                    std::mem::discriminant(step) != std::mem::discriminant(next)
                }
                // Letters of one name are alike, too.
                Change::ToolsResult => false,
                Change::Twice => matches!(step, Step::Note(_) | Step::Tag(_)) && step != next,
            }
        };
        let len = steps.len() - 1;
        if let Some(at) = (0..len).map(|at| (at + start) % len).find(|at| fits(*at)) {
            return Some((lane, at));
        }
        lane = (lane + 1) % 3;
    }
    None
}

type Sequences = [Vec<SequenceNumber>; 3];

fn steps_of(log: &LogReader) -> Sequences {
    let mut sequences = Sequences::default();
    log.records(log.opened_sequence() + 1, SequenceNumber::MAX, |record| {
        let lane = Lane::decode(record.kind, record.body).unwrap();
        let is_nested = record.kind == RecordKind::ToolBegin
            && foldlog_codec::body::ToolBegin::decode(record.body).unwrap().parent.is_some();
        if lane.within.is_none()
            && !is_nested
            && ![RecordKind::Declare, RecordKind::ToolEnd].contains(&record.kind)
        {
            let name = lane.name.as_deref().unwrap_or_default();
            sequences[LANES.iter().position(|lane| *lane == name).unwrap()].push(record.sequence);
        }
        Ok(())
    })
    .unwrap();
    sequences
}

/// Returns the record at which the change has to be found, and the kind of divergence.
fn expected(lane: usize, at: usize, change: Change, live: &Sequences) -> (SequenceNumber, DivergenceKind) {
    let sequence = live[lane][at];
    match change {
        Change::Argument | Change::MapOrder | Change::Float => (sequence, DivergenceKind::Changed),
        Change::ClockRead | Change::Draw | Change::Letter => (sequence, DivergenceKind::Extra),
        Change::LeftOut | Change::Swapped | Change::ToolsResult => (sequence, DivergenceKind::Missing),
        Change::Twice => (live[lane][at + 1], DivergenceKind::Extra),
    }
}

/// Runs a host live. The directory is removed when the last of the three values is dropped.
fn live(seed: u64) -> (Host, LogReader, Stored) {
    let (host, stored) = (Host::from_seed(seed), Stored::new());
    let session = stored.store().create(&types()).unwrap();
    host.run(&session, seed).unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    (host, log, stored)
}

fn first(replayed: Result<foldlog::replay::ReplayReport, Error>, of: &str) -> Divergence {
    match replayed {
        Err(Error::Diverged(divergence)) => *divergence,
        other => panic!("{of} was not found: {other:?}"),
    }
}

#[test]
fn each_planted_change_is_found_at_its_record() {
    let mut found = std::collections::BTreeMap::<String, (u64, String)>::new();
    for seed in 0..seeds(20) {
        let (host, log, _stored) = live(seed);
        let live = steps_of(&log);
        let mut draw = Generator::from_seed(seed + 9);
        for change in CHANGES {
            let Some((lane, at)) = place(&host, change, &mut draw) else { continue };
            let of = format!("seed {seed}, {change:?} at step {at} of lane {lane}");
            let changed = host.changed((lane, at, change));
            let replayed = Replay::new(&log, &types()).run(|session| changed.run(&session, seed + 1));
            let divergence = first(replayed, &of);
            let (sequence, kind) = expected(lane, at, change, &live);
            assert_eq!((divergence.sequence, divergence.divergence), (sequence, kind), "{of}: {divergence}");
            let name = divergence.lane.name.clone().unwrap_or_default();
            assert_eq!(name, LANES[lane], "{of}: {divergence}");
            let (count, shown) = found.entry(format!("{change:?}")).or_default();
            *count += 1;
            *shown = divergence.to_string();
        }
    }
    for (change, (count, shown)) in &found {
        println!("{change}: {count} found, such as: {shown}");
    }
    assert_eq!(found.len(), CHANGES.len(), "no place was found for some changes");
}

/// If tools run again, their records and results are compared too, and their external effects are
/// repeated.
#[test]
fn a_changed_result_of_a_tool_is_found_at_the_end_of_its_call_where_tools_run_again() {
    let mut changed_results = 0;
    for seed in 0..seeds(20) {
        let (host, log, _stored) = live(seed);
        let ran = host.tools_run();
        let replay = Replay::new(&log, &types()).mode(ReplayMode::RunTools);
        let report = replay.run(|session| host.run(&session, seed + 1));
        let report = report.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(host.tools_run(), ran * 2, "seed {seed}: all tools ran once more");
        let declared = |kind: RecordKind| [RecordKind::Declare, RecordKind::Opened].contains(&kind);
        let mut written = 0;
        let mut committed = None;
        log.records(log.opened_sequence() + 1, SequenceNumber::MAX, |record| {
            written += u64::from(!declared(record.kind));
            if record.kind == RecordKind::ToolEnd && committed.is_none() {
                let end = foldlog_codec::body::ToolEnd::decode(record.body).unwrap();
                committed = (end.outcome == foldlog::Outcome::Committed).then_some(record.sequence);
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(report.compared, written, "seed {seed}: what tools write is compared too");
        let changed = host.changed((0, usize::MAX, Change::ToolsResult));
        let Some(sequence) = committed else { continue };
        let replayed = replay.run(|session| changed.run(&session, seed + 2));
        let divergence = first(replayed, "the result");
        assert_eq!((divergence.sequence, &*divergence.path), (sequence, "$.result"), "{divergence}");
        changed_results += 1;
    }
    assert!(changed_results > 5, "{changed_results} results changed");
}

#[test]
fn a_changed_reducer_is_found_at_the_record_whose_effect_it_changes() {
    for seed in 0..seeds(20) {
        let (host, log, _stored) = live(seed);
        let live = steps_of(&log);
        let notes = (0..3).flat_map(|lane| host.lanes[lane].iter().zip(&live[lane]));
        let notes = notes.filter_map(|(step, at)| match step {
            Step::Note(number) => Some((*number, *at)),
            _ => None,
        });
        let Some((number, sequence)) = notes.collect::<Vec<_>>().pop() else { continue };
        let types = types_with(Some(number));
        let replayed = Replay::new(&log, &types).run(|session| host.run(&session, seed + 1));
        let divergence = first(replayed, "the reducer");
        assert_eq!(divergence.sequence, sequence, "{divergence}");
        assert_eq!(divergence.slice.as_deref(), Some("notes"), "{divergence}");
    }
}

#[test]
fn the_records_of_two_lanes_that_are_swapped_are_found_at_the_first_of_them() {
    for seed in 0..seeds(20) {
        let (host, log, _stored) = live(seed);
        let mut changed = Host::from_seed(seed);
        let other = changed.lanes[2][0].clone();
        changed.lanes[2][0] = std::mem::replace(&mut changed.lanes[1][0], other);
        if changed.lanes == host.lanes {
            continue;
        }
        let live = steps_of(&log);
        let replayed = Replay::new(&log, &types()).run(|session| changed.run(&session, seed + 1));
        let divergence = first(replayed, "the swap");
        assert_eq!(divergence.sequence, live[1][0].min(live[2][0]), "{divergence}");
    }
}

#[test]
fn a_replay_that_goes_on_lists_all_that_differs() {
    let host = |session: &foldlog::Session, changed: &[u64]| -> foldlog::Result<()> {
        for number in 0..20 {
            let text = if changed.contains(&number) { "changed" } else { "as it was" };
            session.dispatch(Noted::new(number, text))?;
        }
        Ok(())
    };
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    host(&session, &[]).unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    let report = Replay::new(&log, &types()).all().run(|session| host(&session, &[3, 4, 11])).unwrap();
    let texts = |of: &Divergence| (of.divergence, of.path.clone());
    let found: Vec<_> = report.divergences.iter().map(texts).collect();
    assert_eq!(found, vec![(DivergenceKind::Changed, "$.event.text".to_owned()); 3]);
    assert_eq!(report.compared, 20);
}

/// Only the return of the host, or the replay's patience, shows that a lane has no more records.
#[test]
fn a_record_that_is_missing_at_the_end_of_its_lane_is_found_though_another_lane_waits_for_it() {
    let host = |session: &foldlog::Session, last: bool| {
        let lane = session.lane("other");
        std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                (0..2 + u64::from(last))
                    .try_for_each(|number| lane.set_tag("n", number.to_string()).map(drop))
            });
            let _ = other.join().unwrap();
        });
        session.set_tag("main", "done").map(drop)
    };
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    host(&session, true).unwrap();
    let last = session.log().position().unwrap() - 1;
    let log = LogReader::open(session.dir()).unwrap();
    let replay = Replay::new(&log, &types()).patience(std::time::Duration::from_secs(1));
    let divergence = first(replay.run(|session| host(&session, false)), "the missing record");
    assert_eq!((divergence.sequence, divergence.divergence), (last, DivergenceKind::Missing), "{divergence}");
    // The return of the host reports it at once.
    let say = |session: &foldlog::Session, to: u64| {
        (0..to).try_for_each(|number| session.set_tag("n", number.to_string()).map(drop))
    };
    let session = stored.store().create(&types()).unwrap();
    say(&session, 3).unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    let divergence = first(Replay::new(&log, &types()).run(|session| say(&session, 2)), "the missing record");
    assert_eq!(Some(divergence.sequence), session.log().position(), "{divergence}");
}

/// A record after those of a process that closed its session is known to be one too many; after a
/// killed process it is not.
#[test]
fn a_record_too_many_behind_a_session_that_was_closed_is_found() {
    let host = |session: &foldlog::Session, more: bool| {
        (0..3 + u64::from(more)).try_for_each(|number| session.set_tag("n", number.to_string()).map(drop))
    };
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    host(&session, false).unwrap();
    let (dir, last) = (session.dir().to_owned(), session.log().position().unwrap());
    let log = LogReader::open(&dir).unwrap();
    Replay::new(&log, &types()).run(|session| host(&session, true)).unwrap();
    session.close().unwrap();
    let log = LogReader::open(&dir).unwrap();
    let divergence =
        first(Replay::new(&log, &types()).run(|session| host(&session, true)), "the last record");
    assert_eq!(
        (divergence.sequence, divergence.divergence),
        (last + 1, DivergenceKind::Extra),
        "{divergence}"
    );
    Replay::new(&log, &types()).run(|session| host(&session, false)).unwrap();
}

/// A replay of all divergences stopped if another lane's records were between missing ones.
#[test]
fn records_that_are_missing_between_those_of_other_lanes_are_listed_and_the_replay_goes_on() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let lanes = ["mailbox", "worker"].map(|lane| session.lane(lane));
    let mut expected = Vec::new();
    for number in 0..40 {
        for (place, lane) in lanes.iter().enumerate() {
            let sequence = lane.dispatch(Noted::new(number, "n")).unwrap();
            expected.extend((place == 0 && [7, 8, 9, 30].contains(&number)).then_some(sequence));
        }
    }
    let log = LogReader::open(session.dir()).unwrap();
    let host = |session: foldlog::Session| {
        std::thread::scope(|scope| {
            for (place, lane) in ["mailbox", "worker"].map(|lane| session.lane(lane)).into_iter().enumerate()
            {
                scope.spawn(move || {
                    for number in (0..40).filter(|number| place == 1 || ![7, 8, 9, 30].contains(number)) {
                        lane.dispatch(Noted::new(number, "n")).unwrap();
                    }
                });
            }
        });
    };
    let report = Replay::new(&log, &types()).all().run(host).unwrap();
    let found: Vec<_> = report.divergences.iter().map(|found| (found.sequence, found.divergence)).collect();
    let expected: Vec<_> = expected.into_iter().map(|sequence| (sequence, DivergenceKind::Missing)).collect();
    assert_eq!(found, expected);
    assert_eq!(report.compared, 76, "all others were produced");
}

/// Of two records at one place only one was named, a call without its tool, and an event unknown to
/// the log by a number.
#[test]
fn a_record_that_is_missing_or_too_many_is_named_with_the_one_at_its_place() {
    #[derive(Clone, serde::Serialize, serde::Deserialize)]
    struct Rang(u64);
    impl foldlog::Event for Rang {
        const NAME: &'static str = "rang";
    }
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let call = |session: &foldlog::Session, tool: &str| {
        let resources = foldlog::ResourceRegistry::builder().build()?;
        let tools =
            foldlog::tools::ToolRegistry::new().with(foldlog_test_support::replayed_host::Works::new(None));
        let state = foldlog::ExecutionState::new(session.clone(), resources);
        let call = foldlog::tools::ToolCall::new(tool, "{\"number\":1,\"inner\":0}");
        let runner = foldlog::tools::ToolRunner::new(state, tools);
        runner.execute(&call, &foldlog::tools::ExecuteOptions::default()).map(drop)
    };
    session.set_tag("a", "b").unwrap();
    call(&session, "works").unwrap();
    session.inputs().draw().unwrap();
    let (dir, last) = (session.dir().to_owned(), session.log().position().unwrap());
    session.close().unwrap();
    let log = LogReader::open(dir).unwrap();
    let shown = |host: &dyn Fn(&foldlog::Session) -> foldlog::Result<()>| {
        first(Replay::new(&log, &types()).run(|session| host(&session)), "it").to_string()
    };
    let told = [
        shown(&|session| call(session, "works")),
        shown(&|session| {
            session.set_tag("a", "b")?;
            session.dispatch(Rang(1)).map(drop)
        }),
        shown(&|session| session.set_tag("a", "b").map(drop)),
        shown(&|session| {
            session.set_tag("a", "b")?;
            call(session, "works")?;
            session.inputs().draw()?;
            session.dispatch(Rang(1)).map(drop)
        }),
    ];
    assert_eq!(
        told,
        [
            "record 1 (dispatch `tag`) was not produced: the host went on with record 3 (tool_begin `works`)"
                .to_owned(),
            "the host wrote dispatch `rang` where record 3 (tool_begin `works`) is recorded".to_owned(),
            "record 3 (tool_begin `works`) was not produced".to_owned(),
            format!("record {} (dispatch `rang`) was produced and is not recorded", last + 1),
        ]
    );
}
