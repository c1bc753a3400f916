//! The command line: the options that all verbs have, and [`run`], which runs a verb. The list of
//! verbs is in [`verbs`](crate::verbs), the arguments of a verb next to its code there.

use std::borrow::Cow;
use std::ffi::OsString;

use clap::{ColorChoice, Command, CommandFactory, Parser, ValueEnum};
use foldlog_codec::escape;

use crate::command::{Dispatch, ListedCommand, Urls};
use crate::failure::{CommandError, HOLDS, Result, UNUSABLE};
use crate::help;
use crate::hints::HintPaths;
use crate::output::Output;
use crate::pager::{Pager, PagerWriter};
use crate::redact::TypedUrls;
use crate::remote;
use crate::run_failure::RunFailure;
use crate::style::ColorMode;
use crate::value_parsers::parse_bytes;
use crate::verbs::Verb;

/// Runs agents as recorded sessions, and reads, checks and repairs their logs.
#[derive(Debug, Parser)]
#[command(name = "foldlog", version, max_term_width = 100)]
struct Args {
    /// Print JSON: one document, or one object a line for lists
    #[arg(long, global = true)]
    json: bool,
    /// Limit memory for log data, such as 512M [default: 64M + 3 times the log]
    #[arg(long, global = true, value_name = "BYTES", value_parser = parse_bytes)]
    memory: Option<u64>,
    /// Colour the output: auto, always or never
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        value_enum,
        hide_possible_values = true,
        hide_default_value = true,
        default_value_t
    )]
    color: ColorMode,
    /// Print without a pager
    #[arg(long, global = true)]
    no_pager: bool,
    #[command(subcommand)]
    verb: Verb,
}

/// Returns the parser of the command line, with its help.
pub fn command() -> Command {
    help::with_groups(parser())
}

/// Returns the parser of the command line, without the groups of the help.
pub(crate) fn parser() -> Command {
    Verb::describe(Args::command())
}

/// Returns the commands that the help lists.
pub fn commands() -> Vec<ListedCommand> {
    let mut listed = Vec::new();
    Verb::list(&parser(), String::new(), &mut listed);
    listed
}

/// Runs the binary with `arguments`, of which the first is the program's name, and returns its exit
/// code.
///
/// The exit code is 0 on success, 1 if the data that a verb checks does not hold
/// ([`DOES_NOT_HOLD`](crate::failure::DOES_NOT_HOLD)), and 2 for wrong usage and unreadable input.
/// Errors are written to `output.stderr`, with the next step.
pub fn run(arguments: impl IntoIterator<Item = OsString>, output: &mut Output<'_>) -> u8 {
    let arguments = remote::join_session_url(arguments.into_iter().collect());
    let typed = TypedUrls::from_arguments(&arguments);
    let is_run_as_json = asks_for_run_as_json(&arguments);
    let accepted = accepted_numbers(&arguments);
    output.color = color_of(&arguments);
    let is_colored = output.colors_results() || output.colors_notes();
    let parsed = command()
        .color(if is_colored { ColorChoice::Always } else { ColorChoice::Never })
        .try_get_matches_from(arguments)
        .and_then(|matches| <Args as clap::FromArgMatches>::from_arg_matches(&matches));
    let mut arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => {
            let code = not_parsed(&error, &typed, is_run_as_json, output);
            accepted.filter(|_| error.use_stderr()).into_iter().for_each(|accepted| output.note(accepted));
            return code;
        }
    };
    output.json = arguments.json;
    output.memory_bytes = arguments.memory;
    output.color = arguments.color;
    let shown = arguments.verb.target().filter(|target| !typed.is_in(target));
    output.places = shown.map(|target| HintPaths::from_path(target)).unwrap_or_default();
    let is_paged = arguments.verb.metadata().is_paged && !arguments.no_pager;
    let pager = output.pager.take().filter(|_| is_paged);
    let ended = match pager {
        Some(pager) => run_paged(arguments.verb, &pager, output),
        None => verb(arguments.verb, output),
    };
    match ended {
        Ok(code) => code,
        Err(failure) if failure.is_closed_pipe() => HOLDS,
        Err(failure) => {
            output.error(typed.hide(&failure.to_string()));
            if let Some(next) = failure.next() {
                output.note(format_args!("  next: {}", typed.hide(&next)));
            }
            failure.exit_code()
        }
    }
}

/// Runs a verb with a pager for its results. Its notes are written after the pager has ended.
fn run_paged(asked: Verb, pager: &Pager, output: &mut Output<'_>) -> Result<u8> {
    let mut notes = Vec::new();
    let mut paged = PagerWriter::new(pager, &mut *output.stdout);
    let mut within = Output {
        stdout: &mut paged,
        stderr: &mut notes,
        progress: false,
        terminal: output.terminal,
        pager: None,
        child: output.child,
        pause: output.pause,
        is_process: output.is_process,
        is_held: output.is_held,
        json: output.json,
        color: output.color,
        places: output.places.clone(),
        columns: output.columns,
        memory_bytes: output.memory_bytes,
    };
    let code = verb(asked, &mut within);
    let ended = paged.end();
    // Notes follow the results of a pager that could not be started, too.
    let _ = output.stdout.flush();
    // If standard error is closed, the notes have no reader.
    let _ = output.stderr.write_all(&notes);
    let code = code?;
    if let Some(note) = ended? {
        output.note(note);
    }
    Ok(code)
}

/// Returns the colour mode of unparsed arguments, so that parse errors are coloured too.
fn color_of(arguments: &[OsString]) -> ColorMode {
    let mut words =
        arguments.iter().filter_map(|word| word.to_str()).skip_while(|word| !word.starts_with("--color"));
    let value = match words.next() {
        Some("--color") => words.next(),
        Some(word) => word.strip_prefix("--color="),
        None => None,
    };
    value.and_then(|value| ColorMode::from_str(value, false).ok()).unwrap_or_default()
}

/// Returns whether arguments that cannot be parsed are those of `run --json`.
fn asks_for_run_as_json(arguments: &[OsString]) -> bool {
    let is_option = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    let behind = arguments.iter().skip(1).zip(arguments);
    let mut words =
        behind.filter(|(word, before)| !is_option(word) && *before != "--memory" && *before != "--color");
    arguments.iter().any(|word| word == "--json") && words.next().is_some_and(|(verb, _)| verb == "run")
}

/// Returns the forms of a command whose arguments are numbers of calls; `None` for other arguments.
fn accepted_numbers(arguments: &[OsString]) -> Option<&'static str> {
    let mut words = arguments.iter().skip(1).filter_map(|word| word.to_str());
    let verb = words.find(|word| !word.starts_with('-'))?;
    let mut numbers = words.filter(|word| !word.starts_with('-'));
    numbers.next()?.parse::<u64>().ok()?;
    match verb {
        "undo" => {
            Some("  next: `foldlog undo 2` undoes call 2, and `foldlog undo --to 2` also all later ones")
        }
        "redo" => Some("  next: `foldlog redo` reverses the last undo, and `foldlog undo 3` reverses step 3"),
        "diff" => Some(
            "  next: `foldlog diff 3` shows call 3; positions need a session: `foldlog diff SESSION 3 4`",
        ),
        _ => None,
    }
}

/// Prints clap's message when no verb runs. Help and version are results. Any other message reports
/// wrong usage; it quotes typed text, so it is escaped. For `run --json` it is also printed as a
/// JSON result.
fn not_parsed(error: &clap::Error, typed: &TypedUrls, is_run_as_json: bool, output: &mut Output<'_>) -> u8 {
    let rendered = error.render();
    let plain = typed.hide(&rendered.to_string());
    let is_plain = plain.lines().all(|line| matches!(escape::text(line), Cow::Borrowed(_)));
    let is_colored = if error.use_stderr() { output.colors_notes() } else { output.colors_results() };
    let text = match (is_plain, is_colored) {
        (true, true) => typed.hide(&rendered.ansi().to_string()),
        (true, false) => plain.clone(),
        (false, _) => plain.lines().map(escape::text).collect::<Vec<_>>().join("\n"),
    };
    if error.use_stderr() {
        // If standard error is closed, the message has no reader.
        let _ = writeln!(output.stderr, "{}", text.trim_end());
        if is_run_as_json {
            // As above.
            let _ = output.value(&RunFailure::of_options(&plain));
        }
        return UNUSABLE;
    }
    match writeln!(output.stdout, "{}", text.trim_end()).map_err(CommandError::from) {
        Err(failure) if !failure.is_closed_pipe() => UNUSABLE,
        _ => HOLDS,
    }
}

/// Runs a verb. If it reads a session in a place, runs it over a copy.
fn verb(mut asked: Verb, output: &mut Output<'_>) -> Result<u8> {
    let Some(url) = asked.target().and_then(|target| remote::url(target)).map(str::to_owned) else {
        return asked.run(output);
    };
    match asked.metadata().urls {
        Urls::Refused | Urls::Separate => Err(remote::not_written(&url)),
        #[cfg(feature = "object-store")]
        Urls::Read => asked.run(output),
        #[cfg(feature = "object-store")]
        Urls::Copied => over_copy(asked, &url, output),
        #[cfg(not(feature = "object-store"))]
        Urls::Read | Urls::Copied => Err(remote::not_built()),
    }
}

#[cfg(feature = "object-store")]
fn over_copy(mut asked: Verb, url: &str, output: &mut Output<'_>) -> Result<u8> {
    let session = remote::HeldSession::parse(url).ok_or_else(|| remote::no_session(url))?;
    remote::with_copy(&session, output, |copy, output| {
        if let Some(target) = asked.target() {
            copy.clone_into(target);
        }
        asked.run(output)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Target;

    #[test]
    fn the_example_of_a_command_runs_it_and_names_its_target() {
        for ListedCommand { name, metadata, .. } in commands() {
            let line = metadata.example.split(" | ").next().unwrap_or_default();
            let line = line.strip_prefix("source <(").map_or(line, |line| line.trim_end_matches(')'));
            assert!(line.starts_with(&format!("foldlog {name}")), "{name}: {line}");
            let mut verb = Args::try_parse_from(line.split(' ')).unwrap().verb;
            assert_eq!(verb.metadata(), metadata, "{line}");
            assert_eq!(verb.target().is_some(), metadata.target != Target::Nothing, "{line}");
        }
    }
}
