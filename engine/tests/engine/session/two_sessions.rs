//! Comparing two sessions: where they diverge, and how they differ. After the first different
//! record, names of items and messages no longer correspond.

use std::ops::ControlFlow;

use foldlog::conversation::{NewAnswer, NewInput, ToolCallRecord};
use foldlog::inspect::{Difference, DifferenceKind, LogDivergence, LogReader, MessageRow};
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{ExecutionState, FixedClock, ResourceRegistry, Session, SessionOptions};
use foldlog_test_support::host::*;
use proptest::prelude::*;

use super::{Home, home, home_with, seeded, step};

fn read(home: &Home, session: &Session) -> LogReader {
    LogReader::open_on(std::sync::Arc::new(home.disk.clone()), session.dir()).unwrap()
}

fn run(home: &Home, seed: u64, titles: &[&str]) -> Session {
    let session = home.store.create_with(&types(), seeded(seed)).unwrap();
    for title in titles {
        session.dispatch(step(title)).unwrap();
    }
    session
}

fn records(parting: &LogDivergence) -> [Option<String>; 2] {
    [&parting.here, &parting.there]
        .map(|side| side.as_ref().map(|one| format!("{} {}", one.sequence, one.record)))
}

#[test]
fn two_runs_part_at_the_first_record_that_says_something_else() {
    let home = home();
    let (one, two) = (run(&home, 1, &["a", "b", "c", "d"]), run(&home, 2, &["a", "b", "x", "d", "e"]));
    let (one, two) = (read(&home, &one), read(&home, &two));
    let parting = one.find_divergence(&two).unwrap();
    let head = one.records_len() - 4;
    assert_eq!(parting.alike, head + 2, "what a session says of itself does not count");
    let at = format!("{} dispatch plan.step_added", head + 2);
    assert_eq!(records(&parting), [Some(at.clone()), Some(at)]);
    let difference = parting.difference.as_ref().unwrap();
    assert_eq!(difference.path, "$.event.title");
    let said =
        [&difference.recorded, &difference.produced].map(|value| value.as_ref().unwrap().as_str().unwrap());
    assert_eq!(said, ["c", "x"]);
    // Neither diverges from itself.
    for log in [&one, &two] {
        let alone = log.find_divergence(log).unwrap();
        assert!(alone.is_none() && alone.alike == log.records_len(), "{alone:?}");
    }
}

#[test]
fn a_run_that_stops_early_parts_where_it_ends() {
    let home = home();
    let (one, two) = (run(&home, 1, &["a", "b"]), run(&home, 2, &["a", "b", "c"]));
    let (one, two) = (read(&home, &one), read(&home, &two));
    let parting = one.find_divergence(&two).unwrap();
    assert_eq!(parting.alike, one.records_len());
    assert_eq!(records(&parting), [None, Some(format!("{} dispatch plan.step_added", one.records_len()))]);
    assert!(parting.difference.is_none());
}

fn slice_differences(here: &LogReader, there: &LogReader) -> Vec<Difference> {
    let (here, there) = (here.state_reader().unwrap(), there.state_reader().unwrap());
    let mut found = Vec::new();
    let take = &mut |difference| {
        found.push(difference);
        Ok(ControlFlow::Continue(()))
    };
    here.slice_differences_between(&there, |_| true, take).unwrap();
    found
}

#[test]
fn a_fork_and_its_parent_part_behind_what_they_share() {
    let home = home();
    let parent = run(&home, 1, &["a", "b"]);
    let at = parent.log().position().unwrap();
    let fork = home.store.fork(parent.id(), at, &types(), SessionOptions::default()).unwrap();
    parent.dispatch(step("parent's")).unwrap();
    fork.dispatch(step("fork's")).unwrap();
    let (parent, fork) = (read(&home, &parent), read(&home, &fork));
    let parting = fork.find_divergence(&parent).unwrap();
    assert_eq!(parting.alike, at.get() + 1);
    assert_eq!(records(&parting)[0], Some(format!("{} opened", at + 1)), "where the fork names itself");
    let differences = slice_differences(&fork, &parent);
    let of_plan: Vec<_> = differences.iter().filter(|one| one.slice.as_deref() == Some("plan")).collect();
    let [difference] = of_plan.as_slice() else { panic!("{differences:?}") };
    assert_eq!((difference.path.as_str(), difference.change), ("items[2].title", DifferenceKind::Changed));
    assert_eq!(
        [&difference.before, &difference.after].map(|value| value.as_str().unwrap()),
        ["fork's", "parent's"]
    );
}

/// Matched by their inserting records, all items after an additional one would differ.
#[test]
fn an_item_more_in_the_middle_is_one_difference() {
    let home = home();
    let (one, two) = (run(&home, 1, &["a", "b", "c", "d"]), run(&home, 2, &["a", "new", "b", "c", "d"]));
    let (one, two) = (read(&home, &one), read(&home, &two));
    let of_plan = |here: &LogReader, there: &LogReader| -> Vec<(String, DifferenceKind)> {
        let plan =
            slice_differences(here, there).into_iter().filter(|one| one.slice.as_deref() == Some("plan"));
        plan.map(|one| (one.path, one.change)).collect()
    };
    assert_eq!(of_plan(&one, &two), [("items[1]".to_owned(), DifferenceKind::Added)]);
    assert_eq!(of_plan(&two, &one), [("items[1]".to_owned(), DifferenceKind::Removed)]);
    assert_eq!(of_plan(&one, &one), []);
}

/// A provider draws new ids of calls in each run.
#[test]
fn conversations_stand_beside_each_other_whatever_ids_their_calls_have() {
    let home = home();
    let talk = |seed: u64, id: &str, last: &str| {
        let session = run(&home, seed, &[]);
        session.conversation().record_input(&NewInput::user("review", "Look into it.")).unwrap();
        let call =
            ToolCallRecord { call_id: id.to_owned(), name: "look".to_owned(), arguments: "{}".to_owned() };
        let answer = |content: &str, calls| NewAnswer {
            evaluation_id: "review".to_owned(),
            content: Some(content.to_owned()),
            calls,
            ..NewAnswer::default()
        };
        session.conversation().record_answer(&answer("I look.", vec![call])).unwrap();
        session.conversation().record_answer(&answer(last, Vec::new())).unwrap();
        read(&home, &session)
    };
    let (one, two) = (talk(1, "toolu_1", "It is fine."), talk(2, "toolu_2", "It is broken."));
    let ends = (one.last_position(), two.last_position());
    let beside = one.conversations_between(ends.0, &two, ends.1).unwrap();
    let [conversation] = beside.as_slice() else { panic!("{beside:?}") };
    let row = |place, alike| MessageRow { here: Some(place), there: Some(place), alike };
    assert_eq!(conversation.rows, [row(0, true), row(1, true), row(2, false)]);
    let differences = conversation.differences();
    assert_eq!(differences.len(), 1, "{differences:?}");
    assert_eq!(
        (differences[0].path.as_str(), differences[0].change),
        ("messages[2]", DifferenceKind::Changed)
    );
    let parting = one.find_divergence(&two).unwrap();
    assert_eq!(parting.alike, one.records_len() - 1, "{parting:?}");
}

/// Two runs of one program differed at their first call, by its duration in microseconds.
#[test]
fn how_long_a_call_took_is_no_difference() {
    let ran = |step_us| {
        let home =
            home_with(|options| options.clock = std::sync::Arc::new(FixedClock::with_step(0, step_us)));
        let session = run(&home, 1, &["a"]);
        let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build().unwrap());
        let runner = ToolRunner::new(state, ToolRegistry::new());
        let call = ToolCall::new("write", "{}");
        let operation = runner.begin(&call, &ExecuteOptions::default()).unwrap();
        std::thread::yield_now();
        operation.end(ToolResult::ok("written", "it")).unwrap();
        session.dispatch(step("b")).unwrap();
        read(&home, &session)
    };
    let (one, two) = (ran(1_000), ran(7_000));
    let parting = one.find_divergence(&two).unwrap();
    assert!(parting.is_none(), "{parting:?}");
    let differences = slice_differences(&one, &two);
    assert_eq!(differences, [], "{differences:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]

    /// Kept, removed and added items together give both lists, whatever their content.
    #[test]
    fn the_differences_of_two_lists_lead_from_one_to_the_other(
        one in proptest::collection::vec(0..6_u8, 0..14),
        two in proptest::collection::vec(0..6_u8, 0..14),
    ) {
        let home = home();
        let session = |seed, numbers: &[u8]| {
            let titles: Vec<String> = numbers.iter().map(u8::to_string).collect();
            let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
            read(&home, &run(&home, seed, &titles))
        };
        let (here, there) = (session(1, &one), session(2, &two));
        let all = slice_differences(&here, &there);
        let plan: Vec<_> = all.iter().filter(|one| one.slice.as_deref() == Some("plan")).collect();
        let (mut gone, mut come) = (0, 0);
        let place = |path: &str| -> usize {
            path.trim_start_matches("items[").split(']').next().unwrap().parse().unwrap()
        };
        let title = |value: &foldlog::Value| {
            value.as_str().or_else(|| value.get("title")?.as_str()).unwrap().parse::<u8>().unwrap()
        };
        for difference in &plan {
            let at = place(&difference.path);
            match difference.change {
                DifferenceKind::Added => { come += 1; prop_assert_eq!(title(&difference.after), two[at]); }
                DifferenceKind::Removed => { gone += 1; prop_assert_eq!(title(&difference.before), one[at]); }
                DifferenceKind::Changed => {
                    (gone, come) = (gone + 1, come + 1);
                    prop_assert_eq!(title(&difference.after), two[at]);
                }
            }
        }
        prop_assert_eq!(one.len() - gone, two.len() - come, "as many stay on one side as on the other");
        prop_assert_eq!(plan.is_empty(), one == two);
        // No more items differ than in a comparison place by place.
        let by_place = one.iter().zip(&two).filter(|(one, two)| one != two).count() + one.len().abs_diff(two.len());
        prop_assert!(plan.len() <= 2 * by_place, "{:?}", plan);
    }
}
