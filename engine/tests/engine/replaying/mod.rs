//! Replays over a log: each difference is found at its record, slice and path, and no other is
//! reported.

mod hosts;
mod reducers;
mod versions;

use std::panic::{AssertUnwindSafe, catch_unwind};

fn panicked(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("it panics");
    match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => (*panic.downcast_ref::<&str>().expect("a panic has a message")).to_owned(),
    }
}
