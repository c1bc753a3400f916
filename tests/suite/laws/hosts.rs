//! The laws as hosts test them: `foldlog::testkit` over a host's own events and reducers. Its
//! assertions must find each of the mistakes below.

use std::sync::atomic::{AtomicU64, Ordering};

use foldlog::testkit::{
    Action, History, HistoryStep, assert_deterministic, assert_rollback_equivalence, dispatch,
    dispatch_value, histories,
};
use foldlog::{Event, Policy, SessionTypes, Slice, SliceOp};
use foldlog_test_support::host::*;
use foldlog_test_support::named_host::{self, value};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};
use serde::{Deserialize, Serialize};

fn actions() -> impl Strategy<Value = Action> {
    let title = || "[a-c?]{0,3}|x{600}";
    prop_oneof![
        (title(), 0..3_u8).prop_map(|(title, part)| dispatch(StepAdded { title, part })),
        title().prop_map(|text| dispatch(Noted { text })),
        (0..4_usize, title()).prop_map(|(place, line)| dispatch(DraftEdited { place, line })),
        (0..3_usize).prop_map(|by| dispatch(DraftTurned { by })),
        any::<bool>().prop_map(|good| dispatch(Doubted { good })),
        any::<i64>().prop_map(|value| dispatch(Undeclared { value })),
        Just(Action::new("reset", |session| session.reset().map(drop))),
    ]
}

proptest! {
    #![proptest_config(super::config())]

    #[test]
    fn a_hosts_state_survives_any_history(history in histories(actions())) {
        assert_rollback_equivalence(&types(), &history);
    }

    #[test]
    fn a_hosts_history_is_the_same_each_time(history in histories(actions())) {
        assert_deterministic(&types(), &history);
    }
}

const ASSERTIONS: [fn(&SessionTypes, &History); 2] = [assert_rollback_equivalence, assert_deterministic];

/// Changes by the same host, built without types known at compile time.
fn named_actions() -> impl Strategy<Value = Action> {
    let title = || "[a-c?]{0,3}|x{600}";
    let edit = |(place, line)| DraftEdited { place, line };
    prop_oneof![
        (title(), 0..3_u8)
            .prop_map(|(title, part)| dispatch_value("plan.step_added", value(&StepAdded { title, part }))),
        title().prop_map(|text| dispatch_value("noted", value(&Noted { text }))),
        (0..4_usize, title()).prop_map(move |at| dispatch_value("draft.edited", value(&edit(at)))),
        any::<bool>().prop_map(|good| dispatch_value("doubted", value(&Doubted { good }))),
        any::<i64>().prop_map(|value| dispatch_value("undeclared", value)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: super::config().cases / 4, ..super::config() })]

    #[test]
    fn a_host_without_types_survives_any_history_and_is_the_same_each_time(history in histories(named_actions())) {
        assert_rollback_equivalence(&named_host::types(), &history);
        assert_deterministic(&named_host::types(), &history);
    }
}

/// Returns a short history that fails the assertion.
fn shrunk(
    assertion: fn(&SessionTypes, &History),
    types: &SessionTypes,
    actions: impl Strategy<Value = Action>,
) -> Option<History> {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) };
    // Shrinking ends by chance at one of several histories, sometimes at a longer one.
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let failed = runner.run(&histories(actions), |history| {
        assertion(types, &history);
        Ok(())
    });
    match failed {
        Err(TestError::Fail(_, history)) => Some(history),
        _ => None,
    }
}

#[test]
fn a_reducer_that_counts_its_calls_is_found_out() {
    let calls = AtomicU64::new(0);
    let types = SessionTypes::builder()
        .slice_with::<NoteSizes>(Policy::Log)
        .reducer::<NoteSizes, Noted>(move |_, _, _| {
            Ok(SliceOp::Append((calls.fetch_add(1, Ordering::Relaxed), 0)))
        })
        .build()
        .unwrap();
    for assertion in ASSERTIONS {
        let actions = "[a-z]{0,9}".prop_map(|text| dispatch(Noted { text }));
        let History { steps } = shrunk(assertion, &types, actions).expect("it is found");
        // One step would suffice, and shrinking comes close.
        assert!(
            steps.len() <= 2 && steps.iter().all(|step| matches!(step, HistoryStep::Act(_))),
            "{steps:?}"
        );
    }
}

#[test]
fn an_event_that_forgets_a_field_is_found_out() {
    #[derive(Serialize, Deserialize, Debug, Clone)]
    struct Weighed {
        #[serde(skip)]
        grams: u64,
    }
    impl Event for Weighed {
        const NAME: &'static str = "weighed";
    }
    struct Weights;
    impl Slice for Weights {
        const NAME: &'static str = "weights";
        type Item = Weighed;
    }
    // Each weight replaces the last one, but only while the host remembers that one.
    let types = SessionTypes::builder()
        .slice::<Weights>()
        .reducer::<Weights, Weighed>(|weights, weighed, _| {
            let before = weights.latest().map_or(0, |last| last.grams);
            Ok(match before {
                0 => SliceOp::Append(weighed.clone()),
                _ => SliceOp::Replace(vec![weighed.clone().into()]),
            })
        })
        .build()
        .unwrap();
    for assertion in ASSERTIONS {
        // The host itself dispatches the event, and no assertion compares that.
        let weigh =
            |grams| Action::new("weigh", move |session| session.dispatch(Weighed { grams }).map(drop));
        let History { steps } = shrunk(assertion, &types, (0..3_u64).prop_map(weigh)).expect("it is found");
        assert!(steps.len() <= 4, "two would do, and shrinking comes close: {steps:?}");
    }
    // No reducer is involved: the host keeps the value in memory until the session is opened again.
    let types = SessionTypes::builder().slice::<Weights>().append_all::<Weights>().build().unwrap();
    for assertion in ASSERTIONS {
        let actions = (0..3_u64).prop_map(|grams| dispatch(Weighed { grams }));
        let History { steps } = shrunk(assertion, &types, actions).expect("it is found");
        assert!(steps.len() <= 2, "one would do: {steps:?}");
    }
}

/// Each new hash map iterates in a different order.
#[test]
fn an_event_with_a_hash_map_reads_back_as_it_was() {
    #[derive(Serialize, Deserialize, Debug, Clone)]
    struct Counted(std::collections::HashMap<String, u64>);
    impl Event for Counted {
        const NAME: &'static str = "counted";
    }
    struct Counts;
    impl Slice for Counts {
        const NAME: &'static str = "counts";
        type Item = Counted;
    }
    let types = SessionTypes::builder().slice::<Counts>().append_all::<Counts>().build().unwrap();
    let counts = (0..20_u64).map(|number| (number.to_string(), number)).collect();
    assert_rollback_equivalence(
        &types,
        &History { steps: vec![HistoryStep::Act(dispatch(Counted(counts)))] },
    );
}
