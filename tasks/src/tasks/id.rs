use std::fmt;
use std::str::FromStr;

use foldlog::{SmolStr, escape};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum length of a [`TaskId`], in bytes.
pub const TASK_ID_BYTES_MAX: usize = 64;

/// Names a task: 1 to 64 ASCII letters, digits, `-`, `_` and `.`, the first of which is a letter or
/// a digit. So an id may be part of a file's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "SmolStr")]
#[schemars(try_from = "String", into = "String")]
// Short texts are compared and cloned without following a pointer.
pub struct TaskId(SmolStr);

/// Reports a text that is no id of a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is not a valid id of a task: use 1 to {TASK_ID_BYTES_MAX} letters, digits, `-`, `_` or `.`, beginning with a letter or digit",
    escape::text(.0)
)]
pub struct InvalidTaskId(
    /// The text, at most its first 100 characters.
    pub String,
);

impl TaskId {
    /// Creates an id from a text.
    ///
    /// # Errors
    ///
    /// [`InvalidTaskId`] if the text is empty, too long, or contains other characters.
    pub fn new(text: impl Into<String>) -> Result<TaskId, InvalidTaskId> {
        TaskId::parse(text.into().into())
    }

    fn parse(text: SmolStr) -> Result<TaskId, InvalidTaskId> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let begins = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        match begins && text.len() <= TASK_ID_BYTES_MAX && text.bytes().all(is_plain) {
            true => Ok(TaskId(text)),
            false => Err(InvalidTaskId(text.chars().take(100).collect())),
        }
    }

    /// Returns the id as a text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<SmolStr> for TaskId {
    type Error = InvalidTaskId;

    fn try_from(text: SmolStr) -> Result<TaskId, InvalidTaskId> {
        TaskId::parse(text)
    }
}

impl FromStr for TaskId {
    type Err = InvalidTaskId;

    fn from_str(text: &str) -> Result<TaskId, InvalidTaskId> {
        TaskId::new(text)
    }
}
