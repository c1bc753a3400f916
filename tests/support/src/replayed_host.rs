//! Events, slices and a tool of hosts that are replayed over their logs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldlog::tools::{ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolResult, ToolRunner};
use foldlog::{Clock, Durability, Event, Idempotency, Slice, Store, StoreOptions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noted {
    pub number: u64,
    pub text: String,
    /// Pairs that are written as a map, in this order.
    #[serde(with = "ordered")]
    pub marks: Vec<(String, u64)>,
}

mod ordered {
    use serde::de::Deserialize;
    use serde::ser::{SerializeMap, Serializer};

    pub(super) fn serialize<S: Serializer>(pairs: &[(String, u64)], to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(pairs.len()))?;
        pairs.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
        map.end()
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(String, u64)>, D::Error> {
        let map = std::collections::BTreeMap::<String, u64>::deserialize(from)?;
        Ok(map.into_iter().collect())
    }
}

impl Noted {
    /// Creates an event with marks derived from the number.
    pub fn new(number: u64, text: &str) -> Noted {
        let marks = vec![("a".to_owned(), number), ("b".to_owned(), number / 2)];
        Noted { number, text: text.to_owned(), marks }
    }
}

impl Event for Noted {
    const NAME: &'static str = "noted";
}

/// Notes with even numbers, folded by a reducer of the host.
pub struct Notes;

impl Slice for Notes {
    const NAME: &'static str = "notes";
    type Item = Noted;
}

pub struct Diary;

impl Slice for Diary {
    const NAME: &'static str = "diary";
    type Item = Noted;
}

/// Opens the store in a directory, at a durability at which a kill loses nothing.
pub fn store_in(directory: &Path, clock: Arc<dyn Clock>) -> Store {
    let options = StoreOptions { durability: Durability::Process, clock, ..StoreOptions::default() };
    Store::open_with(directory, options).unwrap()
}

/// Parameters of [`Works`].
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Work {
    number: u64,
    inner: u64,
}

/// Records a number, makes nested calls that record others, and fails at every third number.
pub struct Works {
    /// Counts the calls that ran.
    pub tools: Arc<AtomicU64>,
    /// Runs the nested calls.
    pub within: Option<ToolRunner>,
    /// Whether the tool's code is changed and returns another result.
    pub changed: bool,
}

impl Works {
    /// Creates the tool, which makes nested calls through a runner.
    pub fn new(within: Option<ToolRunner>) -> Works {
        Works { tools: Arc::default(), within, changed: false }
    }
}

impl Tool for Works {
    const NAME: &'static str = "works";
    type Parameters = Work;
    type Output = u64;

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, work: Work, context: &ToolContext) -> Result<ToolResult<u64>, ToolError> {
        self.tools.fetch_add(1, Ordering::SeqCst);
        context.session().dispatch(Noted::new(work.number, "by a tool"))?;
        if let Some(within) = self.within.as_ref().filter(|_| work.inner > 0) {
            let call = ToolCall::new("works", format!("{{\"number\":{},\"inner\":0}}", work.number + 1));
            let runner = within.within(context);
            for _ in 0..work.inner {
                runner.execute(&call, &ExecuteOptions::default())?;
            }
        }
        match work.number % 3 {
            0 => Err(ToolError::failed("it does not work")),
            // A change of the tool's code, if the host has one.
            _ if self.changed => Ok(ToolResult::ok("it works", work.number + 1)),
            _ => Ok(ToolResult::ok("it works", work.number)),
        }
    }
}
