//! Panics of a host's code, as errors.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Error, Result};

/// Runs a host's code and returns a panic as an [`Error::Resource`] of the resource `what`.
pub(crate) fn catch_panic<T>(what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let reason = format!("panicked: {}", panic_message(&*panic));
        Err(Error::Resource { resource: what.to_owned(), reason })
    })
}

pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
