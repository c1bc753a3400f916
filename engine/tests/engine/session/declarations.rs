//! Declarations of a host, checked against each other and against a log.

use foldlog::{Error, Event, Policy, SessionTypes, Slice, SliceOp};
use foldlog_test_support::host::*;
use serde::{Deserialize, Serialize};

use super::{home, kinds, step, titles};

/// Another Rust type with the name of [`StepAdded`].
#[derive(Serialize, Deserialize, Debug, Clone)]
struct Impostor {
    number: u64,
}

impl Event for Impostor {
    const NAME: &'static str = "plan.step_added";
}

/// Another item type with the name of [`Plan`].
struct PlanOfNumbers;

impl Slice for PlanOfNumbers {
    const NAME: &'static str = "plan";
    type Item = Impostor;
}

#[test]
fn a_declaration_that_contradicts_itself_is_refused() {
    let builder = SessionTypes::builder;
    let error = builder().slice::<Plan>().slice_with::<Plan>(Policy::Log).build().unwrap_err();
    let said = "slice `plan` is declared as log, but was first declared as state";
    assert_eq!(error.to_string(), said);
    assert!(
        builder().slice::<Plan>().slice_with::<Plan>(Policy::State).append_all::<Plan>().build().is_ok(),
        "twice alike is once"
    );
    let twice = |types: foldlog::Result<SessionTypes>, of: &str| match types {
        Err(Error::DeclaredTwice { name, .. }) => assert_eq!(name, of),
        other => panic!("{other:?}"),
    };
    twice(builder().slice::<Plan>().slice::<PlanOfNumbers>().build(), "plan");
    twice(builder().slice::<Plan>().append_all::<Plan>().replace_latest::<Plan>().build(), "plan.step_added");
    let two_types = builder()
        .slice::<Plan>()
        .append_all::<Plan>()
        .slice::<Notes>()
        .reducer::<Notes, Impostor>(|_, _, _| Ok(SliceOp::nothing()));
    twice(two_types.build(), "plan.step_added");
    assert!(matches!(builder().append_all::<Plan>().build(), Err(Error::NoSuchSlice { .. })));
    assert!(matches!(builder().tail_items::<Plan>(1).build(), Err(Error::NoSuchSlice { .. })));
}

/// The types were accepted, and each event went to an implicit slice of its own name, while the
/// declared one stayed empty.
#[test]
fn a_slice_that_no_event_changes_is_refused_unless_the_host_says_so() {
    let builder = || SessionTypes::builder().slice::<Plan>();
    let refused = builder().build().unwrap_err();
    let said = "slice `plan` is declared, but no event changes it: bind an event, for example with `append_all`, or declare \
                the slice as `seeded`";
    assert_eq!(refused.to_string(), said);
    let other = builder().append_all::<Plan>().slice::<Notes>().build();
    assert!(matches!(other, Err(Error::SliceUnbound { slice }) if slice == "notes"));
    let of_its_own_name = SessionTypes::builder().slice::<foldlog::EventSlice<Undeclared>>();
    for builder in [
        builder().append_all::<Plan>(),
        builder().seeded::<Plan>(),
        builder().retired("plan.step_added", "plan"),
        of_its_own_name,
        SessionTypes::builder(),
    ] {
        builder.build().unwrap();
    }
}

#[test]
fn one_name_is_one_type_also_where_only_one_was_declared() {
    let session = home().session();
    assert!(matches!(session.dispatch(Impostor { number: 1 }), Err(Error::DeclaredTwice { .. })));
    assert!(matches!(session.view::<PlanOfNumbers>(), Err(Error::NoSuchSlice { .. })));
    assert!(matches!(session.seed::<PlanOfNumbers>(vec![]), Err(Error::NoSuchSlice { .. })));
    assert_eq!(kinds(&session), ["opened"]);
}

/// An event without reducers uses a slice of its own name, which may be taken.
#[test]
fn an_undeclared_event_does_not_get_into_another_slice() {
    struct Taken;
    impl Slice for Taken {
        const NAME: &'static str = "undeclared";
        type Item = String;
        const ITEM_NAME: &'static str = "word";
    }
    let types = SessionTypes::builder().slice::<Taken>().seeded::<Taken>().build().unwrap();
    let home = home();
    let session = home.store.create(&types).unwrap();
    assert!(matches!(session.dispatch(Undeclared { value: 1 }), Err(Error::NoSuchSlice { .. })));
    session.seed::<Taken>(vec!["text".to_owned()]).unwrap();
    // A host without that slice still finds it in the log.
    let session = home.reopened(session, &SessionTypes::default());
    assert!(matches!(session.dispatch(Undeclared { value: 1 }), Err(Error::NoSuchSlice { .. })));
    assert_eq!(kinds(&session), ["opened", "declare", "dispatch"]);
}

#[test]
fn a_forgotten_reducer_is_named_on_opening_unless_it_was_given_up_on_purpose() {
    let home = home();
    let session = home.session();
    session.dispatch(step("read")).unwrap();
    session.dispatch(Undeclared { value: 1 }).unwrap();
    let id = session.id();
    session.close().unwrap();

    let fewer = || SessionTypes::builder().slice::<Plan>().append_all::<Plan>();
    match home.store.open_session(id, &fewer().build().unwrap()) {
        Err(Error::NotRegistered(missing)) => {
            assert_eq!(missing.len(), 1);
            assert_eq!(missing[0].event, "plan.step_added");
            assert_eq!(missing[0].slices, ["current_step", "step_of_part", "preview"]);
        }
        other => panic!("{other:?}"),
    }
    match home.store.open_read_only(id, &SessionTypes::default()) {
        Err(Error::NotRegistered(missing)) => assert_eq!(missing[0].slices.len(), 4),
        other => panic!("{other:?}"),
    }
    // `undeclared` is not mentioned: it never had a reducer that could be forgotten.
    let retired = fewer()
        .retired("plan.step_added", "current_step")
        .retired("plan.step_added", "step_of_part")
        .retired("plan.step_added", "preview")
        .build()
        .unwrap();
    let session = home.store.open_session(id, &retired).unwrap();
    session.dispatch(step("write")).unwrap();
    assert_eq!(titles::<Plan>(&session), ["read", "write"]);
    // A slice without reducers is unchanged.
    assert_eq!(super::stored(&session, "current_step").len(), 1);
    assert_eq!(super::stored(&session, "current_step")[0]["title"], "read");
    // The log now records it: fewer reducers suffice from now on.
    let id = session.id();
    session.close().unwrap();
    let session = home.store.open_session(id, &fewer().build().unwrap()).unwrap();
    assert_eq!(kinds(&session).last().unwrap(), "dispatch");
    drop(session);
    // With all reducers again, events go to all slices from now on.
    let session = home.store.open_session(id, &types()).unwrap();
    session.dispatch(step("both")).unwrap();
    assert_eq!(titles::<CurrentStep>(&session), ["both"]);
    assert_eq!(titles::<StepOfPart>(&session), ["both"]);
    assert_eq!(titles::<Preview>(&session), ["read", "both"]);
}

#[test]
fn a_slice_keeps_the_policy_that_its_log_was_begun_with() {
    let home = home();
    let session = home.session();
    session.dispatch(Noted { text: "kept".to_owned() }).unwrap();
    let id = session.id();
    session.close().unwrap();
    let types = SessionTypes::builder().slice_with::<Notes>(Policy::State).append_all::<Notes>();
    let types = types.retired("noted", "note_sizes").build().unwrap();
    let error = home.store.open_session(id, &types).unwrap_err();
    assert_eq!(error.to_string(), "slice `notes` is declared as state, but was first declared as log");
}

#[test]
fn a_binding_made_later_counts_from_there_on() {
    let home = home();
    let none = SessionTypes::default();
    let session = home.store.create(&none).unwrap();
    session.dispatch(step("alone")).unwrap();
    // It went to an implicit slice, by a binding that the log marks as not chosen by the host.
    assert_eq!(super::stored(&session, "plan.step_added").len(), 1);
    let session = home.reopened(session, &types());
    session.dispatch(step("bound")).unwrap();
    assert_eq!(titles::<Plan>(&session), ["bound"]);
    let own = session.view::<foldlog::EventSlice<StepAdded>>().unwrap();
    assert_eq!(own.iter().map(|step| step.title.as_str()).collect::<Vec<_>>(), ["alone"]);
    let live = session.dynamic().state().unwrap();
    assert_eq!(home.reopened(session, &types()).dynamic().state().unwrap(), live);
}
