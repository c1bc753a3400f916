//! Validates states by rules, and plans repairs.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

use super::index::ValidationIndex;
use super::repair::take_all;
use super::{
    PlannedStep, Repair, RepairObstacle, RepairPlan, RepairStep, Unrepairable, ValidationError,
    ValidationRule, ValidationRuleType, ValidationSeverity, parts, tasks,
};
use crate::{SessionState, StateComponent};

use StateComponent::{Configuration, ExecutionLogs, FileSystem, ResourceUsage, Session, TaskTree};
use ValidationRuleType::{BusinessLogic, ChecksumValidation, ReferentialIntegrity, StructuralConsistency};
use ValidationSeverity::{Critical, Error, Warning};

/// Describes one violation of a rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleViolation {
    /// The defect.
    pub error: ValidationError,
    /// Its repair, if there is one.
    pub repair: Option<Repair>,
}

impl RuleViolation {
    /// Reports a violation in a host's words.
    pub fn other(message: impl Into<String>) -> RuleViolation {
        RuleViolation { error: ValidationError::Other { message: message.into() }, repair: None }
    }

    /// Reports a part that does not follow from what it is derived from.
    pub(super) fn derived(error: ValidationError, component: StateComponent) -> RuleViolation {
        RuleViolation { error, repair: Some(Repair::from_step(RepairStep::Derive { component })) }
    }
}

/// Describes a defect, the violated rule, and the repair.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValidationIssue {
    /// Rule.
    pub rule: ValidationRule,
    /// The defect.
    pub error: ValidationError,
    /// Its repair, viewed in isolation. A [plan](RepairPlan) orders repairs, and omits those that
    /// others make redundant.
    pub suggested_repair: Option<Repair>,
}

impl fmt::Display for ValidationIssue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = foldlog::escape::text(&self.rule.name);
        write!(f, "{} {name}: {}", self.rule.severity, self.error)
    }
}

/// Reports whether a state is valid.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValidationResult {
    /// Whether there is no critical issue.
    pub is_valid: bool,
    /// Issues in the order of the rules.
    pub issues: Vec<ValidationIssue>,
    /// Their repairs.
    pub repair_plan: RepairPlan,
}

type BuiltIn = fn(&ValidationIndex<'_>) -> Vec<RuleViolation>;
/// Finds the violations of a rule. `None` if that needs the log.
type Check = Option<Box<dyn Fn(&ValidationIndex<'_>) -> Vec<RuleViolation> + Send + Sync>>;

/// Validates states by rules.
///
/// ```
/// use foldlog_tasks::{
///     RuleViolation, SessionState, StateComponent, StateValidator, ValidationRule, ValidationRuleType, ValidationSeverity,
/// };
///
/// let named = ValidationRule {
///     name: "is-named".into(),
///     component: StateComponent::Configuration,
///     rule_type: ValidationRuleType::BusinessLogic,
///     severity: ValidationSeverity::Critical,
/// };
/// let validator = StateValidator::new().with_rule(named, |state| match state.configuration.name.is_empty() {
///     true => vec![RuleViolation::other("the session has no name")],
///     false => Vec::new(),
/// });
/// let state = SessionState::empty(uuid::Uuid::nil(), chrono::DateTime::UNIX_EPOCH);
/// let result = validator.validate(&state);
/// assert!(!result.is_valid);
/// assert_eq!(result.issues[0].to_string(), "critical is-named: the session has no name");
/// ```
pub struct StateValidator {
    rules: Vec<(ValidationRule, Check)>,
}

impl fmt::Debug for StateValidator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateValidator").field("rules", &self.rules().collect::<Vec<_>>()).finish()
    }
}

impl Default for StateValidator {
    fn default() -> StateValidator {
        StateValidator::new()
    }
}

/// The rules that need no log, in their order.
#[rustfmt::skip]
const OF_STATES: [(&str, StateComponent, ValidationRuleType, ValidationSeverity, BuiltIn); 25] = [
    ("task-keys", TaskTree, StructuralConsistency, Critical, tasks::keys),
    ("parents-exist", TaskTree, ReferentialIntegrity, Critical, tasks::parents_exist),
    ("parents-acyclic", TaskTree, StructuralConsistency, Critical, tasks::parents_acyclic),
    ("dependencies-exist", TaskTree, ReferentialIntegrity, Critical, tasks::dependencies_exist),
    ("dependencies-distinct", TaskTree, StructuralConsistency, Error, tasks::dependencies_distinct),
    ("dependencies-acyclic", TaskTree, StructuralConsistency, Critical, tasks::dependencies_acyclic),
    ("parent-child", TaskTree, StructuralConsistency, Critical, tasks::parents_and_children),
    ("roots", TaskTree, StructuralConsistency, Critical, tasks::roots),
    ("active-task", TaskTree, StructuralConsistency, Error, tasks::active),
    ("task-counter", TaskTree, StructuralConsistency, Error, tasks::counter),
    ("task-numbers", TaskTree, StructuralConsistency, Error, tasks::numbers),
    ("dependency-graph", TaskTree, StructuralConsistency, Critical, tasks::graph),
    ("schedule", TaskTree, StructuralConsistency, Error, tasks::schedule),
    ("statuses", TaskTree, BusinessLogic, Error, tasks::statuses),
    ("attempts", TaskTree, BusinessLogic, Warning, tasks::attempts),
    ("task-times", TaskTree, BusinessLogic, Warning, tasks::times),
    ("session-times", Session, BusinessLogic, Warning, parts::session_times),
    ("token-sums", StateComponent::ClaudeContext, StructuralConsistency, Error, parts::token_sums),
    ("conversation-pairing", StateComponent::ClaudeContext, ReferentialIntegrity, Error, parts::conversation_pairing),
    ("file-chain", FileSystem, StructuralConsistency, Error, parts::file_chain),
    ("artifact-names", FileSystem, StructuralConsistency, Error, parts::artifact_names),
    ("task-references", FileSystem, ReferentialIntegrity, Warning, parts::task_references),
    ("log-order", ExecutionLogs, StructuralConsistency, Error, parts::log_order),
    ("counts", ResourceUsage, BusinessLogic, Error, parts::counts),
    ("requires-validation", Configuration, BusinessLogic, Warning, parts::requires_validation),
];

/// The rules that need the log, in their order.
const OF_LOGS: [ValidationRule; 3] = [SEALS, UPDATE_CHECKSUMS, CHECKPOINT_HASHES];

pub(super) const SEALS: ValidationRule = rule_of_log("seals");
pub(super) const UPDATE_CHECKSUMS: ValidationRule = rule_of_log("update-checksums");
pub(super) const CHECKPOINT_HASHES: ValidationRule = rule_of_log("checkpoint-hashes");

const fn rule_of_log(name: &'static str) -> ValidationRule {
    let (name, rule_type, severity) = (Cow::Borrowed(name), ChecksumValidation, Critical);
    ValidationRule { name, component: Session, rule_type, severity }
}

/// The last phase of repairs, if nothing else is wrong.
const VALIDATED: u8 = 8;

/// Returns the phase in which an error is repaired. The steps of one phase are applied before the
/// next phase looks for issues, since a repair can make later ones redundant.
fn repair_phase(error: &ValidationError) -> u8 {
    match error {
        ValidationError::KeyDiffers { .. } => 0,
        ValidationError::OrphanedTask { .. } | ValidationError::ParentCycle { .. } => 1,
        ValidationError::MissingDependency { .. } => 2,
        ValidationError::DependencyRepeated { .. } => 3,
        ValidationError::DependencyCycle { .. } => 4,
        ValidationError::NumbersDiffer { .. } => 5,
        ValidationError::StatusImpossible { .. } => 6,
        ValidationError::ValidationRequired { .. } => VALIDATED,
        _ => 7,
    }
}

impl StateValidator {
    /// Returns a validator with the built-in rules of this module's table.
    pub fn new() -> StateValidator {
        let of_states = OF_STATES.into_iter().map(|(name, component, rule_type, severity, check)| {
            let rule = ValidationRule { name: Cow::Borrowed(name), component, rule_type, severity };
            (rule, Some(Box::new(check) as _))
        });
        StateValidator { rules: of_states.chain(OF_LOGS.map(|rule| (rule, None))).collect() }
    }

    /// Adds a rule of the host, which returns the violations of a state.
    #[must_use]
    pub fn with_rule(
        mut self,
        rule: ValidationRule,
        check: impl Fn(&SessionState) -> Vec<RuleViolation> + Send + Sync + 'static,
    ) -> StateValidator {
        self.rules.push((rule, Some(Box::new(move |checked| check(checked.state)))));
        self
    }

    /// Lists the rules, including those that only [`validate_log`](StateValidator::validate_log)
    /// checks.
    pub fn rules(&self) -> impl Iterator<Item = &ValidationRule> {
        self.rules.iter().map(|(rule, _)| rule)
    }

    /// Validates a state by all rules that need no log.
    pub fn validate(&self, state: &SessionState) -> ValidationResult {
        self.result(state, self.issues(state), Vec::new())
    }

    /// Plans the repairs of a state.
    pub fn repair_plan(&self, state: &SessionState) -> RepairPlan {
        self.plan(state, self.issues(state))
    }

    pub(super) fn issues(&self, state: &SessionState) -> Vec<ValidationIssue> {
        let (mut issues, checked) = (Vec::new(), ValidationIndex::from_state(state));
        for (rule, check) in &self.rules {
            let found = check.as_ref().map(|check| check(&checked)).unwrap_or_default();
            issues.extend(found.into_iter().map(|RuleViolation { error, repair: suggested_repair }| {
                ValidationIssue { rule: rule.clone(), error, suggested_repair }
            }));
        }
        issues
    }

    /// Returns the result from the issues of a state and those of its log.
    pub(super) fn result(
        &self,
        state: &SessionState,
        mut issues: Vec<ValidationIssue>,
        of_log: Vec<ValidationIssue>,
    ) -> ValidationResult {
        let mut repair_plan = self.plan(state, issues.clone());
        issues.extend(of_log.iter().cloned());
        let of_log =
            of_log.into_iter().map(|issue| Unrepairable { why: issue.error.repair_obstacle(), issue });
        repair_plan.unrepairable.extend(of_log);
        let is_valid = issues.iter().all(|issue| issue.rule.severity != Critical);
        ValidationResult { is_valid, issues, repair_plan }
    }

    fn plan(&self, state: &SessionState, mut issues: Vec<ValidationIssue>) -> RepairPlan {
        let mut plan = RepairPlan::default();
        let mut after = Cow::Borrowed(state);
        for phase in 0..=VALIDATED {
            let holds_otherwise = || issues.iter().all(|issue| issue.rule.severity == Warning);
            if phase == VALIDATED && !holds_otherwise() {
                break;
            }
            let mut steps: Vec<PlannedStep> = Vec::new();
            for issue in issues.iter().filter(|issue| repair_phase(&issue.error) == phase) {
                for step in issue.suggested_repair.iter().flat_map(|repair| &repair.steps) {
                    let is_derived = |planned: &PlannedStep| planned.step == *step;
                    if !matches!(step, RepairStep::Derive { .. }) || !steps.iter().any(is_derived) {
                        steps.push(PlannedStep { rule: issue.rule.name.to_string(), step: step.clone() });
                    }
                }
            }
            if !steps.is_empty() {
                take_all(after.to_mut(), &steps);
                plan.steps.append(&mut steps);
                issues = self.issues(&after);
            }
        }
        let left = issues.into_iter().map(|issue| {
            let why = match (&issue.error, &issue.suggested_repair) {
                (ValidationError::ValidationRequired { .. }, _) => RepairObstacle::OthersLeft,
                (_, Some(_)) => RepairObstacle::StillThere,
                (error, None) => error.repair_obstacle(),
            };
            Unrepairable { issue, why }
        });
        plan.unrepairable = left.collect();
        plan
    }
}
