//! Validates a state, and plans the events that repair it.
//!
//! [`StateValidator::validate`] checks a [`SessionState`](super::SessionState) by rules, which are
//! data: those of the table below, and those that a host adds.
//! [`validate_log`](StateValidator::validate_log) adds the rules that need the log. Each violation
//! is a [`ValidationIssue`] with its facts. A [`RepairPlan`] contains the events that repair it, in
//! order; [`apply`](StateValidator::apply) dispatches them, and records the person for each.
//!
//! A session's own events refuse changes that would break its tasks. A log can still contain broken
//! ones: from an import, from another program, or from an older version. A state that was exported
//! can have been changed since.
//!
//! | rule | component | type | severity | repair |
//! |---|---|---|---|---|
//! | `task-keys` | task tree | structural | critical | derive, if no two tasks have one id |
//! | `parents-exist` | task tree | referential | critical | the orphan becomes a root |
//! | `parents-acyclic` | task tree | structural | critical | the oldest task of the cycle becomes a root |
//! | `dependencies-exist` | task tree | referential | critical | the dependency is removed |
//! | `dependencies-distinct` | task tree | structural | error | all but one are removed; a `Requires` is preferred to a `Prefers` |
//! | `dependencies-acyclic` | task tree | structural | critical | dependencies that close a cycle are removed, `Prefers` first |
//! | `parent-child` | task tree | structural | critical | derive |
//! | `roots` | task tree | structural | critical | derive |
//! | `active-task` | task tree | structural | error | derive |
//! | `task-counter` | task tree | structural | error | derive |
//! | `task-numbers` | task tree | structural | error | tasks are numbered again, in their order |
//! | `dependency-graph` | task tree | structural | critical | derive |
//! | `schedule` | task tree | structural | error | derive |
//! | `statuses` | task tree | business | error | a task that was started too early is pending again |
//! | `attempts` | task tree | business | warning | - |
//! | `task-times` | task tree | business | warning | - |
//! | `session-times` | session | business | warning | - |
//! | `token-sums` | Claude context | structural | error | derive |
//! | `conversation-pairing` | Claude context | referential | error | - |
//! | `file-chain` | file system | structural | error | - |
//! | `artifact-names` | file system | structural | error | - |
//! | `task-references` | file system | referential | warning | - |
//! | `log-order` | execution logs | structural | error | - |
//! | `counts` | resource usage | business | error | - |
//! | `requires-validation` | configuration | business | warning | the session is marked as validated, once only warnings are left |
//! | `seals` | session | checksum | critical | - |
//! | `update-checksums` | session | checksum | critical | - |
//! | `checkpoint-hashes` | session | checksum | critical | - |
//!
//! *Derive* means that data is derived again from the tasks, or from the tokens. A session always
//! does this; only an exported state can differ.
//!
//! # Invariants
//!
//! 1. A state is valid if and only if it has no critical issue.
//! 2. No repair removes a task. A plan names the issues that it leaves, with reasons.
//! 3. Equal states have equal results and equal plans, byte for byte in JSON.
//! 4. Validation takes time linear in the size of the state, except for sorting; no state makes it
//!    recurse.

mod apply;
mod cycles;
mod error;
mod index;
mod log;
mod parts;
mod repair;
mod rule;
mod tasks;
mod validator;

pub use apply::{RepairReport, RepairedStep};
pub use error::{RepairObstacle, ValidationError};
pub use repair::{PlannedStep, Repair, RepairPlan, RepairStep, Unrepairable, simulate};
pub use rule::{ValidationRule, ValidationRuleType, ValidationSeverity};
pub use validator::{RuleViolation, StateValidator, ValidationIssue, ValidationResult};
