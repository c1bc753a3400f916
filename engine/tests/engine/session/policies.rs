//! Slices after a rollback or a reset, and as reducers read them.

use foldlog::testkit::rollback_discarding_logs;
use foldlog::{Clear, Error, Policy, SequenceNumber, SessionTypes, Slice, SliceOp, SnapshotOptions};
use foldlog_test_support::host::*;
use serde_json::json;

use super::{home, part, step, stored, titles};

#[test]
fn state_goes_back_log_stays_and_cache_is_emptied() {
    let home = home();
    let session = home.session();
    session.dispatch(step("read")).unwrap();
    session.dispatch(Noted { text: "began".to_owned() }).unwrap();
    let before = session.snapshot(SnapshotOptions::with_tag("before")).unwrap();
    session.dispatch(part("write", 1)).unwrap();
    session.dispatch(Noted { text: "failed".to_owned() }).unwrap();
    session.set_tag("mood", "glum").unwrap();

    let done = session.rollback(&before).unwrap();

    assert_eq!(done.abandoned, [before.position + 1..=done.sequence - 1]);
    assert_eq!(titles::<Plan>(&session), ["read"]);
    assert_eq!(titles::<CurrentStep>(&session), ["read"]);
    assert_eq!(titles::<StepOfPart>(&session), ["read"]);
    assert_eq!(stored(&session, "notes"), [json!({"text": "began"}), json!({"text": "failed"})]);
    assert_eq!(stored(&session, "note_sizes"), [json!([5, 5]), json!([6, 11])]);
    assert!(titles::<Preview>(&session).is_empty(), "what can be computed again is not restored");
    assert_eq!(session.tags()["mood"], "glum", "tags say what a session is, not what it does");
    // Later events fill CACHE again.
    session.dispatch(step("again")).unwrap();
    assert_eq!(titles::<Preview>(&session), ["again"]);
}

#[test]
fn logs_go_back_only_where_a_test_asks_for_it() {
    let home = home();
    let session = home.session();
    session.dispatch(Noted { text: "kept".to_owned() }).unwrap();
    let position = session.log().position().unwrap();
    session.dispatch(Noted { text: "in doubt".to_owned() }).unwrap();
    session.rollback_to(position).unwrap();
    assert_eq!(
        session.log().slice::<Notes>().unwrap().len(),
        2,
        "preserve_logs = true is all that a host has"
    );

    rollback_discarding_logs(&session, position).unwrap();

    assert_eq!(stored(&session, "notes"), [json!({"text": "kept"})]);
    let live = session.dynamic().state().unwrap();
    assert_eq!(
        home.reopened(session, &types()).dynamic().state().unwrap(),
        live,
        "the record says which of the two it was"
    );
}

/// Declares slices with the names of specification E's table, and one with a custom name.
#[test]
fn a_slice_without_a_policy_has_that_of_the_table() {
    macro_rules! slices {
        ($($slice:ident = $name:literal),*) => {{
            $(
                struct $slice;
                impl Slice for $slice {
                    const NAME: &'static str = $name;
                    type Item = String;
                }
            )*
            SessionTypes::builder()$(.slice::<$slice>().seeded::<$slice>())*.build().unwrap()
        }};
    }
    let types = slices!(
        Plan = "Plan",
        VisibilityOverrides = "VisibilityOverrides",
        WorkspaceDigest = "WorkspaceDigest",
        ToolInvoked = "ToolInvoked",
        PromptRendered = "PromptRendered",
        PromptExecuted = "PromptExecuted",
        Custom = "my.slice"
    );
    let policies: Vec<_> = types.slices().collect();
    let expected = [
        ("Plan", Policy::State),
        ("PromptExecuted", Policy::Log),
        ("PromptRendered", Policy::Log),
        ("ToolInvoked", Policy::Log),
        ("VisibilityOverrides", Policy::State),
        ("WorkspaceDigest", Policy::Cache),
        ("my.slice", Policy::State),
        // The engine's own, which every session has.
        ("tool_invoked", Policy::Log),
    ];
    assert_eq!(policies, expected);
}

#[test]
fn a_policy_given_at_registration_counts_and_stands_in_the_log() {
    let types = SessionTypes::builder()
        .slice_with::<Plan>(Policy::Log)
        .append_all::<Plan>()
        .slice_with::<Notes>(Policy::State)
        .append_all::<Notes>()
        .build()
        .unwrap();
    let home = home();
    let session = home.store.create(&types).unwrap();
    let begin = session.log().position().unwrap();
    session.dispatch(step("stays")).unwrap();
    session.dispatch(Noted { text: "goes".to_owned() }).unwrap();
    session.rollback_to(begin).unwrap();
    assert_eq!(session.log().slice::<Plan>().unwrap().len(), 1);
    assert!(session.view::<Notes>().unwrap().is_empty());
    // Each policy has its own read method, so that a whole LOG is never loaded by accident.
    assert!(matches!(session.view::<Plan>(), Err(Error::NoSuchSlice { .. })));
    assert!(matches!(session.log().slice::<Notes>(), Err(Error::NoSuchSlice { .. })));
    let untyped = home.store.open_untyped(session.id()).unwrap().dynamic().state().unwrap();
    assert_eq!(untyped.slices["plan"].policy, Policy::Log);
    assert_eq!(untyped.slices["notes"].policy, Policy::State);
}

#[test]
fn a_log_only_grows_whoever_asks() {
    let home = home();
    let types = SessionTypes::builder()
        .slice_with::<Notes>(Policy::Log)
        .append_all::<Notes>()
        .reducer::<Notes, DraftEdited>(|notes, edited, _| {
            Ok(match edited.place {
                0 => SliceOp::Replace(notes.items().collect()),
                _ => SliceOp::Clear(Clear::All),
            })
        })
        .build()
        .unwrap();
    let session = home.store.create(&types).unwrap();
    session.dispatch(Noted { text: "one".to_owned() }).unwrap();
    let before = (session.dynamic().state().unwrap(), session.log().position());
    let only_grows = |result: foldlog::Result<SequenceNumber>, what: &str| match result {
        Err(Error::LogOnlyGrows { slice, operation }) => {
            assert_eq!((slice.as_str(), operation), ("notes", what));
        }
        other => panic!("{other:?}"),
    };
    only_grows(session.dispatch(DraftEdited { place: 0, line: String::new() }), "Replace");
    only_grows(session.dispatch(DraftEdited { place: 1, line: String::new() }), "Clear");
    only_grows(session.clear::<Notes>(), "clear");
    only_grows(session.clear_where::<Notes>(|_| true), "clear");
    only_grows(session.seed::<Notes>(vec![Noted { text: "two".to_owned() }]), "seed");
    assert_eq!((session.dynamic().state().unwrap(), session.log().position()), before);
    session.reset().unwrap();
    assert_eq!(session.log().slice::<Notes>().unwrap().len(), 1, "a reset is for what is worked on");

    let replaced = SessionTypes::builder().slice_with::<Notes>(Policy::Log).replace_latest::<Notes>();
    assert!(matches!(replaced.build(), Err(Error::LogOnlyGrows { .. })));
    let upserted = SessionTypes::builder()
        .slice_with::<Notes>(Policy::Log)
        .upsert_by::<Notes, _>(|note| note.text.clone());
    assert!(matches!(upserted.build(), Err(Error::LogOnlyGrows { .. })));
}

#[test]
fn a_logs_reducer_sees_its_length_and_the_tail_that_it_declared() {
    let sees = |count: Option<usize>| {
        let types = SessionTypes::builder().slice_with::<NoteSizes>(Policy::Log);
        let types = match count {
            Some(count) => types.tail_items::<NoteSizes>(count),
            None => types,
        };
        let types = types.reducer::<NoteSizes, Noted>(|sizes, _, _| {
            Ok(SliceOp::Append((sizes.len(), sizes.iter().count() as u64)))
        });
        let session = home().store.create(&types.build().unwrap()).unwrap();
        for _ in 0..5 {
            session.dispatch(Noted { text: String::new() }).unwrap();
        }
        stored(&session, "note_sizes")
    };
    let expected =
        |tails: [u64; 5]| -> Vec<_> { (0..5).zip(tails).map(|(len, tail)| json!([len, tail])).collect() };
    assert_eq!(sees(None), expected([0, 1, 1, 1, 1]), "one item where nothing is said");
    assert_eq!(sees(Some(3)), expected([0, 1, 2, 3, 3]));
    assert_eq!(sees(Some(0)), expected([0, 0, 0, 0, 0]));
}

#[test]
fn a_reset_empties_state_and_cache_also_what_was_never_declared() {
    let home = home();
    let session = home.session();
    session.dispatch(step("read")).unwrap();
    session.dispatch(Undeclared { value: 1 }).unwrap();
    session.dispatch(Noted { text: "kept".to_owned() }).unwrap();
    session.set_tag("task", "7").unwrap();
    let position = session.log().position().unwrap();
    session.reset().unwrap();
    let full: Vec<String> = session
        .dynamic()
        .state()
        .unwrap()
        .slices
        .into_iter()
        .filter(|(_, slice)| !slice.items.is_empty())
        .map(|(name, _)| name)
        .collect();
    assert_eq!(full, ["note_sizes", "notes"]);
    assert_eq!(session.tags()["task"], "7");
    session.rollback_to(position).unwrap();
    assert_eq!(titles::<Plan>(&session), ["read"], "a reset is undone like anything else");
}
