//! The binary `foldlog`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(foldlog_cli::output::with_process(|output| foldlog_cli::run(std::env::args_os(), output)))
}
