//! Asks a person at the terminal for consent.

use std::io::{self, IsTerminal as _};

use crate::failure::{CommandError, Result};
use crate::output::Output;

/// Asks a question on standard error, and returns whether the answer is yes. `refusal` describes
/// the result if there is no terminal, such as "nothing was written".
///
/// # Errors
///
/// [`CommandError::usage`] if no terminal can ask.
pub(crate) fn ask(question: &str, refusal: &str, output: &mut Output<'_>) -> Result<bool> {
    if output.json() || !output.is_process || !io::stdin().is_terminal() {
        let what = format!("{refusal}: no terminal can ask for your consent");
        return Err(CommandError::usage(what, "repeat the command with `--yes`"));
    }
    output.stdout.flush()?;
    write!(output.stderr, "{question} [y/N] ")?;
    output.stderr.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
