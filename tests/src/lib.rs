//! Parts of the tests that need more than the engine: verbs of the binary, fuzz targets, and
//! sessions to look at.

/// Compiles and runs the examples of the README and of the guide.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../README.md")]
    mod readme {}
    #[doc = include_str!("../../docs/guide/approvals.md")]
    mod approvals {}
    #[doc = include_str!("../../docs/guide/async.md")]
    mod async_hosts {}
    #[doc = include_str!("../../docs/guide/claude-code.md")]
    mod claude_code {}
    #[doc = include_str!("../../docs/guide/conversations.md")]
    mod conversations {}
    #[doc = include_str!("../../docs/guide/first-host.md")]
    mod first_host {}
    #[doc = include_str!("../../docs/guide/long-running-work.md")]
    mod long_running_work {}
    #[doc = include_str!("../../docs/guide/operating.md")]
    mod operating {}
    #[doc = include_str!("../../docs/guide/read-models.md")]
    mod read_models {}
    #[doc = include_str!("../../docs/guide/replay-in-ci.md")]
    mod replay_in_ci {}
    #[doc = include_str!("../../docs/guide/run-time-types.md")]
    mod run_time_types {}
    #[doc = include_str!("../../docs/guide/several-machines.md")]
    mod several_machines {}
    #[doc = include_str!("../../docs/guide/tools-and-directories.md")]
    mod tools_and_directories {}
    #[doc = include_str!("../../docs/reference/durability.md")]
    mod durability {}
}

pub mod forge;
pub mod fuzz;
pub mod held;
pub mod shown;
pub mod verbs;
