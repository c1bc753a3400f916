//! The binary `foldlog`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(foldlog_replay::output::with_process(|output| {
        foldlog_replay::run(std::env::args_os(), output)
    }))
}
