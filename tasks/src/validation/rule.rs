//! Validation rules.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::StateComponent;

/// Describes a rule for validating a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidationRule {
    /// Name of the rule.
    pub name: Cow<'static, str>,
    /// Part of the state that it checks.
    pub component: StateComponent,
    /// Kind of the rule.
    pub rule_type: ValidationRuleType,
    /// Severity of a violation.
    pub severity: ValidationSeverity,
}

/// Lists the kinds of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationRuleType {
    /// Parts agree with each other.
    StructuralConsistency,
    /// References lead to existing objects.
    ReferentialIntegrity,
    /// The state can result from normal work.
    BusinessLogic,
    /// Records match the digests that were recorded with them.
    ChecksumValidation,
}

impl ValidationRuleType {
    /// All kinds.
    pub const ALL: [ValidationRuleType; 4] = [
        ValidationRuleType::StructuralConsistency,
        ValidationRuleType::ReferentialIntegrity,
        ValidationRuleType::BusinessLogic,
        ValidationRuleType::ChecksumValidation,
    ];
}

/// Lists the severities of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationSeverity {
    /// A person may want to check it.
    Warning,
    /// There is a defect; work can continue.
    Error,
    /// The state is not valid: work that relies on it may fail or be lost.
    Critical,
}

impl ValidationSeverity {
    /// All severities, the mildest one first.
    pub const ALL: [ValidationSeverity; 3] =
        [ValidationSeverity::Warning, ValidationSeverity::Error, ValidationSeverity::Critical];
}

display_json_names!(ValidationSeverity);
