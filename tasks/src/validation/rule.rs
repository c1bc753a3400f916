//! What a rule is.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::StateComponent;

/// Describes a rule by which a state is checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidationRule {
    /// Name of the rule.
    pub name: Cow<'static, str>,
    /// Part of the state that it is about.
    pub component: StateComponent,
    /// What kind of rule it is.
    pub rule_type: ValidationRuleType,
    /// How bad it is if it is broken.
    pub severity: ValidationSeverity,
}

/// Kinds of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationRuleType {
    /// Parts agree with each other.
    StructuralConsistency,
    /// What is named exists.
    ReferentialIntegrity,
    /// The state can have come about as work is done.
    BusinessLogic,
    /// What was recorded has the digest that was recorded with it.
    ChecksumValidation,
}

impl ValidationRuleType {
    /// Lists all kinds.
    pub const ALL: [ValidationRuleType; 4] = [
        ValidationRuleType::StructuralConsistency,
        ValidationRuleType::ReferentialIntegrity,
        ValidationRuleType::BusinessLogic,
        ValidationRuleType::ChecksumValidation,
    ];
}

/// Says how bad it is if a rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationSeverity {
    /// Somebody may want to look at it.
    Warning,
    /// Something is wrong; work can go on.
    Error,
    /// The state is not valid: work that relies on it may go wrong or be lost.
    Critical,
}

impl ValidationSeverity {
    /// Lists all severities, the mildest one first.
    pub const ALL: [ValidationSeverity; 3] =
        [ValidationSeverity::Warning, ValidationSeverity::Error, ValidationSeverity::Critical];

    /// Returns the severity's name in output.
    pub fn name(self) -> &'static str {
        match self {
            ValidationSeverity::Warning => "warning",
            ValidationSeverity::Error => "error",
            ValidationSeverity::Critical => "critical",
        }
    }
}

impl fmt::Display for ValidationSeverity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
