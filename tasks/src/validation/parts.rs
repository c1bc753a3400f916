//! Rules of the parts other than the task tree.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use foldlog::SequenceNumber;
use foldlog::conversation::{ConversationMessage, Role};
use foldlog::filesystem::ChangeKind;
use foldlog_agent::pairing::{MessageFormat, PairingRule, PairingViolation, validate};
use uuid::Uuid;

use super::index::ValidationIndex;
use super::{Repair, RepairStep, RuleViolation, ValidationError};
use crate::{
    ContextWindow, FileModification, LogEntry, RecordedConversation, SessionConfigured, StateComponent,
};

fn without_repair(error: ValidationError) -> RuleViolation {
    RuleViolation { error, repair: None }
}

/// A field of the state that contains a time.
#[derive(Clone, Copy)]
pub(super) struct TimeField {
    pub(super) name: &'static str,
    pub(super) at: DateTime<Utc>,
}

/// Returns a violation if two times are in the wrong order.
pub(super) fn disordered(subject: String, earlier: TimeField, later: TimeField) -> Option<RuleViolation> {
    let (earlier_at, later_at) = (earlier.at, later.at);
    let (earlier, later) = (earlier.name, later.name);
    let error = ValidationError::TimesDisordered { subject, earlier, earlier_at, later, later_at };
    (earlier_at > later_at).then(|| without_repair(error))
}

pub(super) fn session_times(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let state = checked.state;
    let created = TimeField { name: "created_at", at: state.created_at };
    let updated = TimeField { name: "last_checkpoint", at: state.last_checkpoint };
    disordered("the session".to_owned(), created, updated).into_iter().collect()
}

pub(super) fn requires_validation(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let mut configuration = checked.state.configuration.clone();
    if !configuration.requires_validation {
        return Vec::new();
    }
    let reason = configuration.validation_reason.take();
    configuration.requires_validation = false;
    let repair = Repair::from_step(RepairStep::SessionConfigured(SessionConfigured { configuration }));
    vec![RuleViolation { error: ValidationError::ValidationRequired { reason }, repair: Some(repair) }]
}

pub(super) fn token_sums(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let usage = &checked.state.claude_context.usage_tracking;
    let expected = usage.sums();
    let models: BTreeSet<&String> = expected.keys().chain(usage.by_model.keys()).collect();
    let mut found_all = Vec::new();
    for model in models {
        let (found, expected) = (usage.by_model.get(model).copied(), expected.get(model).copied());
        if found != expected {
            let (found, expected) = (found.unwrap_or_default(), expected.unwrap_or_default());
            let error = ValidationError::UsageDiffers { model: model.clone(), found, expected };
            found_all.push(RuleViolation::derived(error, StateComponent::ClaudeContext));
        }
    }
    found_all
}

/// Number of violations that are reported for one conversation.
const VIOLATIONS_MAX: usize = 20;

pub(super) fn conversation_pairing(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let context = &checked.state.claude_context;
    let windows: BTreeMap<&str, &ContextWindow> =
        context.context_windows.iter().map(|window| (window.evaluation_id.as_str(), window)).collect();
    let mut found = Vec::new();
    for conversation in &context.conversation_history.conversations {
        let evaluation_id = conversation.evaluation_id.clone();
        let violations = match windows.get(evaluation_id.as_str()) {
            None => vec!["the messages to send are not listed".to_owned()],
            Some(window) => check_pairing(conversation, window),
        };
        if !violations.is_empty() {
            found.push(without_repair(ValidationError::ConversationUnpaired { evaluation_id, violations }));
        }
    }
    found
}

/// Checks the messages of a conversation that would be sent. The calls of its last answer may still
/// be running.
fn check_pairing(conversation: &RecordedConversation, window: &ContextWindow) -> Vec<String> {
    let by_id: BTreeMap<Uuid, &ConversationMessage> =
        conversation.messages.iter().map(|message| (message.message_id, message)).collect();
    let unknown = window.messages.iter().filter(|id| !by_id.contains_key(id)).count();
    match (unknown, window.shortened) {
        (0, _) => {}
        (_, 0) => return vec![format!("it does not contain all messages to send: missing: {unknown}")],
        // The replacement of a shortened part has no record of its own.
        _ => return Vec::new(),
    }
    let sent: Vec<ConversationMessage> =
        window.messages.iter().filter_map(|id| by_id.get(id)).map(|message| (*message).clone()).collect();
    let last_answer = sent.iter().rposition(|message| message.role == Role::Assistant);
    let counts = |violation: &PairingViolation| match violation.rule {
        PairingRule::Unanswered => Some(violation.message) != last_answer,
        PairingRule::OutOfOrder
        | PairingRule::AnsweredTwice
        | PairingRule::Orphan
        | PairingRule::CallsElsewhere => true,
        // Other violations are specific to a provider: the messages may have been accepted
        // elsewhere.
        _ => false,
    };
    let violations = validate(MessageFormat::OpenAi, &sent).err().unwrap_or_default();
    violations.iter().filter(|one| counts(one)).take(VIOLATIONS_MAX).map(ToString::to_string).collect()
}

pub(super) fn file_chain(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let files = &checked.state.file_system;
    let mut not_compared: BTreeMap<&str, BTreeSet<SequenceNumber>> = BTreeMap::new();
    for one in &files.not_compared {
        not_compared.entry(&one.workspace).or_default().insert(one.sequence);
    }
    let mut latest: BTreeMap<(&str, &str), &FileModification> = BTreeMap::new();
    let mut found = Vec::new();
    for change in &files.file_modifications {
        let (workspace, path, sequence) = (change.workspace.clone(), change.path.clone(), change.sequence);
        let fits = match change.kind {
            ChangeKind::Created => change.before.is_none() && change.after.is_some(),
            ChangeKind::Modified => {
                change.before.is_some() && change.after.is_some() && change.before != change.after
            }
            ChangeKind::Removed => change.before.is_some() && change.after.is_none(),
        };
        if !fits {
            let (workspace, path, kind) = (workspace.clone(), path.clone(), change.kind);
            found.push(without_repair(ValidationError::ChangeImpossible { workspace, path, sequence, kind }));
        }
        let Some(before) = latest.insert((&change.workspace, &change.path), change) else { continue };
        // Changes between captures that were not compared are unknown.
        let since = before.sequence..=sequence;
        let is_known = before.sequence > sequence
            || not_compared.get(change.workspace.as_str()).is_none_or(|at| at.range(since).next().is_none());
        if is_known && (before.after != change.before || before.sequence > sequence) {
            let previous = before.sequence;
            let error = ValidationError::FileChainBroken { workspace, path, sequence, previous };
            found.push(without_repair(error));
        }
    }
    found
}

pub(super) fn artifact_names(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let artifacts = &checked.state.file_system.build_artifacts;
    let differing = artifacts.iter().filter(|(key, artifact)| **key != artifact.name);
    let found = differing.map(|(key, artifact)| {
        let (component, key, name) = (StateComponent::FileSystem, key.clone(), artifact.name.clone());
        let is_taken = artifacts.contains_key(&name);
        without_repair(ValidationError::KeyDiffers { component, key, name, is_taken })
    });
    found.collect()
}

pub(super) fn task_references(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let (tasks, files) = (&checked.state.task_tree.tasks, &checked.state.file_system);
    let changes = files.file_modifications.iter().filter_map(|change| {
        let by = || format!("the change of `{}` by record {}", change.path, change.sequence);
        Some((change.task.as_ref()?, by()))
    });
    let artifacts = files
        .build_artifacts
        .iter()
        .filter_map(|(name, artifact)| Some((artifact.task.as_ref()?, format!("artifact `{name}`"))));
    let unknown = changes.chain(artifacts).filter(|(task, _)| !tasks.contains_key(*task));
    unknown
        .map(|(task, by)| without_repair(ValidationError::UnknownTask { task: task.clone(), by }))
        .collect()
}

pub(super) fn log_order(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let logs = &checked.state.execution_logs;
    let mut found = Vec::new();
    let mut check = |part: String, sequences: &mut dyn Iterator<Item = SequenceNumber>| {
        let mut latest = None;
        for sequence in sequences {
            if latest > Some(sequence) {
                let part = part.clone();
                found.push(without_repair(ValidationError::LogDisordered { part, sequence }));
            }
            latest = latest.max(Some(sequence));
        }
    };
    let of_entry = |entry: &LogEntry| entry.sequence;
    for (task, entries) in &logs.tasks {
        check(format!("task `{task}`"), &mut entries.iter().map(of_entry));
    }
    check("the system".to_owned(), &mut logs.system_events.iter().map(of_entry));
    check("interactions".to_owned(), &mut logs.interactions.iter().map(|one| one.sequence));
    check("errors".to_owned(), &mut logs.errors.iter().map(|one| one.sequence));
    found
}

pub(super) fn counts(checked: &ValidationIndex<'_>) -> Vec<RuleViolation> {
    let usage = &checked.state.resource_usage;
    let counted = [
        ("runs of tools", usage.failed_tool_runs, usage.tool_runs),
        ("requests", usage.failed_requests, usage.requests),
    ];
    let wrong = counted.into_iter().filter(|(_, failed, all)| failed > all);
    wrong
        .map(|(what, failed, all)| without_repair(ValidationError::CountsImpossible { what, failed, all }))
        .collect()
}
