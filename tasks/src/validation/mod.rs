//! Whether a state holds, and the events that repair it.
//!
//! [`StateValidator::validate`] checks a [`SessionState`](super::SessionState) by rules, which are data: those of the table
//! below, and those that a host adds. [`validate_log`](StateValidator::validate_log) adds those that need the log. What does
//! not hold is a [`ValidationIssue`] with its facts. A [`RepairPlan`] holds the events that repair it, in the order in which
//! they are taken; [`apply`](StateValidator::apply) dispatches them, and records who asked for each.
//!
//! A session's own events refuse what would break its tasks. A log can still hold broken ones: from an import, from another
//! program, or from an older version; and a state that was exported can have been changed since.
//!
//! | rule | component | type | severity | repair |
//! |---|---|---|---|---|
//! | `task-keys` | task tree | structural | critical | derive, if no two tasks have one id |
//! | `parents-exist` | task tree | referential | critical | the orphan becomes a root |
//! | `parents-acyclic` | task tree | structural | critical | the oldest task of the cycle becomes a root |
//! | `dependencies-exist` | task tree | referential | critical | the dependency is removed |
//! | `dependencies-distinct` | task tree | structural | error | all but one are removed; one that requires stays before one that prefers |
//! | `dependencies-acyclic` | task tree | structural | critical | dependencies that close a cycle are removed, those that prefer first |
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
//! | `requires-validation` | configuration | business | warning | it is said to be validated, once nothing worse than a warning is left |
//! | `seals` | session | checksum | critical | - |
//! | `update-checksums` | session | checksum | critical | - |
//! | `checkpoint-hashes` | session | checksum | critical | - |
//!
//! *Derive* stands for making what follows from the tasks, or from the tokens, once more. A session always does; only an
//! exported state can differ.
//!
//! # Invariants
//!
//! 1. A state is valid exactly if nothing critical is found.
//! 2. No repair removes a task. What a plan leaves broken, it names, and why.
//! 3. Equal states have equal results and equal plans, byte for byte in JSON.
//! 4. Checking takes time linear in the size of the state, but for sorting; no state makes it recurse.

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
