//! Checks of a state, and the events that repair it.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog::conversation::{ConversationMessage, Role, TokenUsage};
use foldlog::filesystem::{ChangeKind, FileFacts, FileKind};
use foldlog::inspect::LogReader;
use foldlog::storage::MemoryStorage;
use foldlog_tasks::{
    ArtifactKind, BuildArtifact, ContextWindow, Dependency, DependencyAdded, DependencyRemoved,
    DependencyType, ExecutionEvent, FileModification, LogEntry, NotCompared, RecordedConversation, Repair,
    RepairObstacle, RepairStep, RuleViolation, SessionConfiguration, SessionConfigured, SessionState,
    StateComponent, StateUpdate, StateValidator, TaskChanges, TaskModified, TaskRenumbered, TaskTreeState,
    UpdateOperation, UsedTokens, ValidationError, ValidationResult, ValidationRule, ValidationRuleType,
    ValidationSeverity, WorkspaceStores,
};
use uuid::Uuid;

use super::validation_laws::{Forged, at, forging, sound, state_of};
use super::*;

use DependencyType::{Prefers, Requires};
use TaskStatus::{Completed, InProgress, Pending};

fn validate(state: &SessionState) -> ValidationResult {
    StateValidator::new().validate(state)
}

/// Returns the findings, one line each.
fn lines(state: &SessionState) -> Vec<String> {
    validate(state).issues.iter().map(ToString::to_string).collect()
}

fn empty() -> SessionState {
    state_of(TaskTreeState::default())
}

/// The documentation lists exactly the validator's rules; all types and severities occur.
#[test]
fn the_rules_are_data_of_four_types_and_three_severities() {
    let validator = StateValidator::new();
    let documented = include_str!("../../tasks/src/validation/mod.rs");
    let rows = documented.lines().filter_map(|line| line.strip_prefix("//! | `"));
    let rows = rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        (cells[0].trim_end_matches('`').to_owned(), cells[2].to_owned(), cells[3].to_owned())
    });
    let kind = |rule: &ValidationRule| match rule.rule_type {
        ValidationRuleType::StructuralConsistency => "structural",
        ValidationRuleType::ReferentialIntegrity => "referential",
        ValidationRuleType::BusinessLogic => "business",
        ValidationRuleType::ChecksumValidation => "checksum",
    };
    let mut rules: Vec<_> = validator
        .rules()
        .map(|rule| (rule.name.to_string(), kind(rule).to_owned(), rule.severity.to_string()))
        .collect();
    let mut documented: Vec<_> = rows.collect();
    rules.sort();
    documented.sort();
    assert_eq!(rules, documented);
    for rule_type in ValidationRuleType::ALL {
        assert!(validator.rules().any(|rule| rule.rule_type == rule_type), "{rule_type:?}");
    }
    for severity in ValidationSeverity::ALL {
        assert!(validator.rules().any(|rule| rule.severity == severity), "{severity}");
    }
    let json = serde_json::to_string(validator.rules().next().unwrap()).unwrap();
    let read: ValidationRule = serde_json::from_str(&json).unwrap();
    assert_eq!(read, *validator.rules().next().unwrap());
}

#[test]
fn what_is_broken_about_tasks_is_said_with_its_facts_and_the_whole_cycle() {
    let mut tasks: Vec<_> = ["a", "b", "c", "d"]
        .into_iter()
        .zip(0..)
        .map(|(name, number)| sound(name, number, Pending))
        .collect();
    let on = |on: &str, kind| Dependency { on: id(on), kind };
    tasks[0].dependencies = vec![on("b", Requires)];
    tasks[1].dependencies = vec![on("c", Prefers), on("gone", Requires)];
    tasks[2].dependencies = vec![on("a", Requires), on("b", Requires)];
    tasks[3].parent = Some(id("lost"));
    tasks[3].dependencies = vec![on("d", Requires)];
    let state = state_of(TaskTreeState::from_tasks(tasks));
    assert_eq!(
        lines(&state),
        [
            "critical parents-exist: the parent `lost` of task `d` is missing",
            "critical dependencies-exist: task `b` depends on `gone`, which is missing",
            "critical dependencies-acyclic: tasks depend on each other: a -> b -> c -> a",
            "critical dependencies-acyclic: tasks depend on each other: d -> d",
        ]
    );
    let result = validate(&state);
    let steps: Vec<String> = result.repair_plan.steps.iter().map(|step| step.step.to_string()).collect();
    assert_eq!(
        steps,
        [
            "make task `d` a root",
            "let task `b` depend on `gone` no longer (requires)",
            // The dependency that is only a preference is removed.
            "let task `b` depend on `c` no longer (prefers)",
            "let task `d` depend on `d` no longer (requires)",
        ]
    );
    assert_eq!((result.is_valid, result.repair_plan.unrepairable.len()), (false, 0));
}

/// A state is valid exactly if it has no critical finding: errors and warnings are reported, but do
/// not count.
#[test]
fn only_what_is_critical_makes_a_state_invalid() {
    for severity in ValidationSeverity::ALL {
        let rule = ValidationRule {
            name: "named".into(),
            component: StateComponent::Configuration,
            rule_type: ValidationRuleType::BusinessLogic,
            severity,
        };
        let configuration =
            SessionConfiguration { name: "named".to_owned(), ..SessionConfiguration::default() };
        let repaired = SessionConfigured { configuration };
        let validator = StateValidator::new().with_rule(rule.clone(), move |state| {
            let repair = Some(Repair::from_step(RepairStep::SessionConfigured(repaired.clone())));
            let finding = RuleViolation { repair, ..RuleViolation::other("no name\u{1b}") };
            if state.configuration.name.is_empty() { vec![finding] } else { Vec::new() }
        });
        let result = validator.validate(&empty());
        assert_eq!(result.is_valid, severity != ValidationSeverity::Critical);
        assert_eq!(result.issues[0].to_string(), format!("{severity} named: no name\\u{{1b}}"));
        assert_eq!(result.issues[0].rule, rule);
        // A host's repair is planned too, and checked by its own rule.
        let plan = result.repair_plan;
        assert_eq!((plan.steps.len(), plan.unrepairable.len()), (1, 0));
    }
}

/// A repair of a session is a few records, each with the person who requested it; another plan
/// completes an interrupted repair.
#[test]
fn a_repair_is_recorded_step_by_step_and_goes_on_where_it_was_cut_short() {
    let disk = MemoryStorage::new();
    let (store, clock) = store_on(&disk, false);
    // After all times of the tasks.
    clock.advance_us(60_000_000);
    let session = store.create(&forging()).unwrap();
    let mut tasks = [sound("a", 0, Pending), sound("b", 5, InProgress), sound("c", 5, Completed)].to_vec();
    tasks[0].parent = Some(id("b"));
    tasks[1].parent = Some(id("a"));
    tasks[1].dependencies =
        vec![Dependency { on: id("a"), kind: Requires }, Dependency { on: id("gone"), kind: Requires }];
    for task in tasks {
        session.dispatch(Forged(task)).unwrap();
    }
    let configuration = SessionConfiguration {
        requires_validation: true,
        validation_reason: Some("half a disk".to_owned()),
        ..SessionConfiguration::default()
    };
    session.dispatch(SessionConfigured { configuration }).unwrap();
    let read = || {
        let log = LogReader::open_on(Arc::new(disk.clone()), session.dir())?;
        SessionState::at(&log, session.log().position().unwrap(), &WorkspaceStores::none())
    };
    let validator = StateValidator::new();
    let before = read().unwrap();
    let found = lines(&before);
    assert_eq!(found.len(), 5, "{found:#?}");
    assert_eq!(found[4], "warning requires-validation: the state must be validated: half a disk");
    let plan = validator.repair_plan(&before);
    assert_eq!(plan.unrepairable, []);
    // The process ends after two steps.
    let mut half = plan.clone();
    half.steps.truncate(2);
    let report = validator.apply(&session, &half, "ada", "a test", read).unwrap();
    assert!(report.refused.is_none() && report.result.issues.len() > 1);
    let rest = report.result.repair_plan;
    assert_eq!(rest.steps[..], plan.steps[2..], "the rest is planned again");
    // A plan that no longer fits the session is refused with a reason.
    let stale = validator.apply(&session, &plan, "eve", "a test", read).unwrap();
    let (step, reason) = stale.refused.unwrap();
    assert_eq!(step.rule, "dependencies-exist");
    assert_eq!(reason, "task `b` requires no `gone`");
    let report = validator.apply(&session, &rest, "ada", "a test", read).unwrap();
    assert_eq!(
        (report.result.is_valid, report.result.issues.len()),
        (true, 0),
        "{:#?}",
        report.result.issues
    );

    let after = read().unwrap();
    let numbers: Vec<_> = after.task_tree.tasks.values().map(|task| task.number).collect();
    assert_eq!((numbers, after.task_tree.task_counter), (vec![0, 1, 2], 3));
    assert_eq!(after.task_tree.tasks[&id("b")].status, Pending);
    assert!(!after.configuration.requires_validation);
    let actions = &after.execution_logs.recovery_actions;
    assert!(actions.iter().all(|action| action.reason == "a test"));
    let of = |name: &str, by: &str| actions.iter().filter(|one| one.action == name && one.by == by).count();
    assert_eq!((of("repair_begun", "ada"), of("repair", "ada")), (2, plan.steps.len()));
    assert_eq!((of("repair_begun", "eve"), of("repair_refused", "eve")), (1, 1));
    let lost: Vec<_> =
        actions.iter().filter(|one| one.action == "repair").flat_map(|one| &one.lost).collect();
    assert_eq!(lost, ["`b` requires `gone`"]);
    // A repair is an update like any other.
    let log = LogReader::open_on(Arc::new(disk.clone()), session.dir()).unwrap();
    let updates =
        StateUpdate::list(&log, session.log().position().unwrap(), &WorkspaceStores::none()).unwrap();
    assert!(updates.iter().any(|one| matches!(one.operation, UpdateOperation::DependencyRemoved(_))));
    assert!(updates.iter().any(|one| matches!(one.operation, UpdateOperation::TaskRenumbered(_))));
}

#[test]
fn the_events_of_repairs_are_refused_where_they_contradict_the_tasks() {
    let (store, _) = store(false);
    let session = store.create(&forging()).unwrap();
    create(&session, task("a")).unwrap();
    create(&session, task("b").requires(id("a"))).unwrap();
    let removed = |from: &str, to: &str, dep_type| {
        let event = DependencyRemoved { from: id(from), to: id(to), dep_type, reason: None };
        session.dispatch(event).map(drop)
    };
    let renumbered = |name: &str, old_number, new_number| {
        session.dispatch(TaskRenumbered { task_id: id(name), old_number, new_number, reason: None }).map(drop)
    };
    let refused = [
        (removed("z", "a", Requires), "there is no task `z`"),
        (removed("b", "a", Prefers), "task `b` prefers no `a`"),
        (removed("a", "b", Requires), "task `a` requires no `b`"),
        (renumbered("z", 0, 0), "there is no task `z`"),
        (renumbered("a", 1, 0), "task `a` has the number 0, not 1"),
        (renumbered("a", 0, 2), "there is no place 2 among 2 tasks"),
    ];
    for (refused, reason) in refused {
        assert_eq!(refusal(refused), reason);
    }
    removed("b", "a", Requires).unwrap();
    change(&session, "b", Pending, InProgress).unwrap();
    let tree = TaskTreeState::from_session(&session).unwrap();
    assert!(tree.dependency_graph.is_empty());
    session.dispatch(DependencyAdded { from: id("b"), to: id("a"), dep_type: Prefers }).unwrap();
}

/// Regression: a task that its parent does not list was never found, and a task with a parent among
/// the roots was reported as an inconsistent parent and child.
#[test]
fn a_task_that_its_parent_does_not_list_is_an_inconsistent_parent_and_child() {
    let part = |name, number, parent: Option<&str>| foldlog_tasks::Task {
        parent: parent.map(id),
        ..sound(name, number, Pending)
    };
    let tasks = || [part("a", 0, None), part("b", 1, Some("a")), part("c", 2, Some("gone"))];
    let found = |tree: &TaskTreeState| {
        let result = validate(&state_of(tree.clone()));
        let errors = result.issues.into_iter().map(|issue| issue.error);
        errors.filter(|error| !matches!(error, ValidationError::OrphanedTask { .. })).collect::<Vec<_>>()
    };
    let disagree = |parent, child| ValidationError::InconsistentParentChild { parent, child };
    let sound_tree = TaskTreeState::from_tasks(tasks());
    assert_eq!(found(&sound_tree), [], "a task whose parent is missing is an orphan only");

    let mut unlisted = sound_tree.clone();
    unlisted.children.clear();
    assert_eq!(found(&unlisted), [disagree(id("a"), id("b"))]);
    let mut unnamed = sound_tree.clone();
    unnamed.children.entry(id("b")).or_default().insert(id("a"));
    assert_eq!(found(&unnamed), [disagree(id("b"), id("a"))]);
    let mut alone = TaskTreeState::from_tasks(tasks().into_iter().take(2));
    alone.children.clear();
    let plan = validate(&state_of(alone)).repair_plan;
    assert!(plan.steps.iter().any(|one| one.rule == "parent-child"), "{plan:?}");

    let mut rooted = sound_tree;
    rooted.root_tasks.push(id("b"));
    let differ = ValidationError::RootsDiffer { missing: Vec::new(), unknown: vec![id("b")] };
    assert_eq!(found(&rooted), [differ]);
}

/// The reducer of changed parents went up from the new parent to a root. For parents in a cycle,
/// which only another program writes, it never returned.
#[test]
fn a_task_cannot_be_put_below_parents_that_make_a_cycle() {
    let (store, _) = store(false);
    let session = store.create(&forging()).unwrap();
    for (number, (name, parent)) in (0..).zip([("a", Some("b")), ("b", Some("a")), ("c", None)]) {
        let parent = parent.map(id);
        session.dispatch(Forged(foldlog_tasks::Task { parent, ..sound(name, number, Pending) })).unwrap();
    }
    let changes = TaskChanges { parent: Some(Some(id("a"))), ..TaskChanges::default() };
    let refused = session.dispatch(TaskModified { task_id: id("c"), changes }).map(drop);
    assert_eq!(refusal(refused), "the parents of `a` make a cycle at `a`");
}

fn facts(digest: &str) -> Option<FileFacts> {
    let (digest, form) = (digest.to_owned(), Default::default());
    Some(FileFacts { kind: FileKind::File, permissions: Some(0o644), digest, len: 1, form })
}

/// Returns a change of the file `f`.
fn modification(sequence: u64, before: Option<FileFacts>, after: Option<FileFacts>) -> FileModification {
    let kind = match (&before, &after) {
        (None, _) => ChangeKind::Created,
        (_, None) => ChangeKind::Removed,
        _ => ChangeKind::Modified,
    };
    FileModification {
        sequence: sequence.into(),
        at: at(1),
        workspace: "workspace".to_owned(),
        path: "f\u{1b}".to_owned(),
        kind,
        before,
        after,
        tool: None,
        operation: None,
        task: None,
    }
}

#[test]
fn each_change_of_a_file_begins_where_the_one_before_it_ended() {
    let mut state = empty();
    state.file_system.file_modifications = vec![
        modification(3, None, facts("1")),
        modification(5, facts("1"), facts("2")),
        modification(9, facts("2"), None),
    ];
    assert_eq!(lines(&state), [""; 0]);
    state.file_system.file_modifications.remove(1);
    let broken = "error file-chain: record 9 changes `f\\u{1b}` of `workspace` from a different content than record 3 left";
    assert_eq!(lines(&state), [broken]);
    assert_eq!(validate(&state).repair_plan.unrepairable[0].why, RepairObstacle::Unknown);
    // If captures in between were not compared, the cause is unknown.
    let (workspace, reason) = ("workspace".to_owned(), "no store".to_owned());
    state.file_system.not_compared = vec![NotCompared { sequence: 6.into(), workspace, reason }];
    assert_eq!(lines(&state), [""; 0]);
    state.file_system.file_modifications[1].kind = ChangeKind::Created;
    let found = lines(&state);
    assert_eq!(
        found,
        ["error file-chain: record 9 lists `f\\u{1b}` of `workspace` as created, which its content before \
             and after contradicts"]
    );
}

#[test]
fn what_names_a_task_or_bears_a_name_is_checked_too() {
    let mut state = empty();
    let artifact = BuildArtifact {
        name: "app".to_owned(),
        kind: ArtifactKind::Compilation,
        success: true,
        summary: String::new(),
        path: None,
        digest: None,
        bytes: None,
        task: Some(id("gone")),
    };
    state.file_system.build_artifacts = BTreeMap::from([("other".to_owned(), artifact)]);
    state.resource_usage.failed_requests = 1;
    state.last_checkpoint = at(0);
    state.created_at = at(1);
    let entry = |sequence: u64| LogEntry {
        sequence: sequence.into(),
        at: at(0),
        is_live: true,
        what: ExecutionEvent::Created,
    };
    state.execution_logs.tasks = BTreeMap::from([(id("t"), vec![entry(4), entry(4), entry(3)])]);
    assert_eq!(
        lines(&state),
        [
            "warning session-times: the session: last_checkpoint (2026-01-02 03:00:00 UTC) is before created_at (2026-01-02 03:00:01 UTC)",
            "error artifact-names: the item in file_system under `other` is named `app`",
            "warning task-references: artifact `other` names task `gone`, which does not exist",
            "error log-order: the log of task `t` has record 3 after a later one",
            "error counts: more failures than requests: 1 of 0",
        ]
    );
    // Records contain all of this: a plan repairs nothing, and gives a reason for each.
    let plan = validate(&state).repair_plan;
    assert_eq!((plan.steps.len(), plan.unrepairable.len()), (0, 5));
}

#[test]
fn conversations_are_paired_and_tokens_add_up() {
    let mut state = empty();
    let message = |number: u128, role, call: Option<&str>| {
        let mut message = ConversationMessage::new(role, "text");
        message.message_id = Uuid::from_u128(number);
        match (role, call) {
            (Role::Assistant, Some(call)) => {
                let call = serde_json::json!({ "call_id": call, "name": "tool", "arguments": "{}" });
                message.tool_calls = vec![serde_json::from_value(call).unwrap()];
            }
            (_, call) => message.tool_call_id = call.map(str::to_owned),
        }
        message
    };
    let messages = vec![
        message(1, Role::User, None),
        message(2, Role::Assistant, Some("c1")),
        message(3, Role::Tool, Some("c1")),
        message(4, Role::Assistant, Some("c2")),
    ];
    let window = |ids: &[u128]| ContextWindow {
        evaluation_id: "e".to_owned(),
        messages: ids.iter().map(|id| Uuid::from_u128(*id)).collect(),
        shortened: 0,
        tokens: None,
    };
    let context = &mut state.claude_context;
    context.conversation_history.conversations = vec![RecordedConversation {
        evaluation_id: "e".to_owned(),
        prompt: None,
        messages,
        turns: 0,
        is_complete: false,
    }];
    context.context_windows = vec![window(&[1, 2, 3, 4])];
    assert_eq!(lines(&state), [""; 0], "the last answer's call may still run");
    state.claude_context.context_windows = vec![window(&[1, 2, 4])];
    let unanswered = "error conversation-pairing: conversation `e`: message 1: the call `c1` has no result directly after its answer";
    assert_eq!(lines(&state), [unanswered]);
    state.claude_context.context_windows = vec![window(&[1, 2, 3, 9])];
    assert!(
        lines(&state)[0].contains("it does not contain all messages to send: missing: 1"),
        "{:?}",
        lines(&state)
    );
    state.claude_context.context_windows.clear();
    assert!(lines(&state)[0].contains("the messages to send are not listed"), "{:?}", lines(&state));

    let mut state = empty();
    let usage = TokenUsage { input: 3, output: 4, ..TokenUsage::default() };
    let used = UsedTokens { sequence: 1.into(), at: at(0), model: Some("m".to_owned()), usage };
    state.claude_context.usage_tracking.history = vec![used];
    let wrong = "error token-sums: the tokens of model `m` are 0 in and 0 out in total, but 3 in and 4 out by \
         its requests";
    assert_eq!(lines(&state), [wrong]);
    let plan = validate(&state).repair_plan;
    assert_eq!(lines(&foldlog_tasks::simulate(&state, &plan)), [""; 0]);
}

/// Updates of an export are compared with the records: a wrong digest, number or record is
/// reported.
#[test]
fn updates_have_the_digests_of_their_records_and_no_gaps() {
    let disk = MemoryStorage::new();
    let (store, _) = store_on(&disk, false);
    let session = store.create(&types()).unwrap();
    for name in ["a", "b", "c"] {
        create(&session, task(name)).unwrap();
    }
    change(&session, "a", Pending, InProgress).unwrap();
    let last = session.log().position().unwrap();
    let log = LogReader::open_on(Arc::new(disk), session.dir()).unwrap();
    let (stores, validator) = (WorkspaceStores::none(), StateValidator::new());
    let result = validator.validate_log(&log, last, &stores).unwrap();
    assert_eq!((result.is_valid, result.issues.len()), (true, 0), "{:#?}", result.issues);

    let updates = StateUpdate::list(&log, last, &stores).unwrap();
    assert_eq!(updates.len(), 4);
    let found = |change: &dyn Fn(&mut Vec<StateUpdate>)| -> Vec<String> {
        let mut updates = updates.clone();
        change(&mut updates);
        validator.validate_updates(&log, &updates).unwrap().iter().map(ToString::to_string).collect()
    };
    assert_eq!(found(&|_| {}), [""; 0]);
    assert_eq!(found(&|updates| drop(updates.remove(1))).len(), 2, "both behind it have other numbers");
    assert_eq!(found(&|updates| updates.swap(0, 1)).len(), 2);
    let forged = found(&|updates| updates[2].checksum = "00".to_owned());
    assert!(
        forged.len() == 1 && forged[0].starts_with("critical update-checksums: update 3 of record"),
        "{forged:?}"
    );
    let beyond = found(&|updates| updates[3].position = 99.into());
    assert!(beyond.len() == 1 && beyond[0].ends_with("the record does not exist"), "{beyond:?}");
}
