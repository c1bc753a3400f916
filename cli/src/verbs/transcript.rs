//! `foldlog transcript`: a conversation as it would be sent to a provider, or as it was recorded.

use std::path::PathBuf;

use foldlog::SequenceNumber;
use foldlog::conversation::{Conversation, ConversationMessage, Role};
use foldlog::inspect::LogReader;
use foldlog_agent::pairing::{MessageFormat, PairingRule, close_open, validate};
use foldlog_agent::provider::rendering::{
    render_anthropic, render_anthropic_system, render_openai, render_openai_recorded,
};
use foldlog_codec::escape;
use foldlog_view::positions::{Position, position};

use crate::command::{Argument, Command, Group, Urls};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::raw_json::escape_json;
use crate::readers::open_session;
use crate::style::{BAD, GONE, GOOD, PLAIN, SPEAKER};

/// Describes the output of `transcript --json`.
const TRANSCRIPT_JSON: &str = "\
With --json and the formats text and markdown one object a line, for each message:
  role, content, tool_calls (call_id, name, arguments), tool_call_id, name, created_at, message_id,
  is_error, blocks (format, json: the content in a provider's own form)
With --json and the format anthropic one object: system, messages.";

/// Print a conversation.
///
/// Prints what a provider would be sent: results follow their calls, call ids are unique,
/// and shortened parts are left out. --as-recorded prints the recorded messages. The
/// formats openai and anthropic print one JSON array of messages, and fail if the provider
/// would refuse the history.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = TRANSCRIPT_JSON)]
pub struct Args {
    /// Directory of the session, or URL/sessions/ID in a bucket or database
    pub session: PathBuf,
    /// Evaluation whose conversation is printed; optional if there is only one
    #[arg(long, value_name = "ID")]
    pub evaluation: Option<String>,
    /// Position whose conversation is printed [default: the last one]
    #[arg(long, value_name = "POSITION")]
    pub at: Option<Position>,
    /// Print the messages as they were recorded, valid or not
    #[arg(long)]
    pub as_recorded: bool,
    /// Add placeholder results to open calls, and placeholder calls to results without one
    ///
    /// Providers refuse a history without them. Each addition is noted on standard error.
    #[arg(long, conflicts_with = "as_recorded")]
    pub close_open: bool,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

impl Command for Args {
    const GROUP: Group = Group::Look;
    const URLS: Urls = Urls::Copied;
    const IS_PAGED: bool = true;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog transcript SESSION --format markdown";

    /// Prints a conversation.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if there is no such position or conversation,
    ///   or if no provider of the format accepts the messages.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if the session is corrupt or cannot be
    ///   read.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let reader = open_session(&self.session, output)?;
        let at = position(&reader, self.at)?;
        let mut messages = {
            // A long conversation takes much memory, so it is dropped before its messages are
            // printed.
            let held = conversation(&reader, self.evaluation.as_deref(), at)?;
            if self.as_recorded { held.messages() } else { held.sent_messages() }
        };
        if self.close_open {
            let closed = close_open(&messages);
            closed.changes.iter().for_each(|change| output.note(format_args!("note: {change}")));
            messages = closed.messages;
        }
        if let (Some(format), false) = (self.format.message_format(), self.as_recorded) {
            check(format, &messages)?;
        }
        let json = match self.format {
            Format::Text | Format::Markdown if output.json() => {
                messages.iter().try_for_each(|message| output.value(message))?;
                return Ok(HOLDS);
            }
            Format::Text => {
                (0_u64..).zip(&messages).try_for_each(|(number, message)| text(number, message, output))?;
                return Ok(HOLDS);
            }
            Format::Markdown => {
                (0_u64..)
                    .zip(&messages)
                    .try_for_each(|(number, message)| markdown(number, message, output))?;
                return Ok(HOLDS);
            }
            Format::Openai if self.as_recorded => render_openai_recorded(&messages),
            Format::Openai => render_openai(&messages),
            Format::Anthropic => anthropic(&messages, output),
        };
        drop(messages);
        writeln!(output.stdout, "{}", escape_json(&json))?;
        Ok(HOLDS)
    }
}

/// Maximum number of violated rules that an error lists.
const LISTED_MAX: usize = 10;

/// Chooses the form in which a conversation is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Text for a terminal
    Text,
    /// Markdown: each content is a fenced block
    Markdown,
    /// JSON array of messages for OpenAI's chat completions
    Openai,
    /// JSON array of messages for Anthropic's Messages API
    Anthropic,
}

impl Format {
    fn message_format(self) -> Option<MessageFormat> {
        match self {
            Format::Text | Format::Markdown => None,
            Format::Openai => Some(MessageFormat::OpenAi),
            Format::Anthropic => Some(MessageFormat::Anthropic),
        }
    }
}

fn conversation(reader: &LogReader, evaluation: Option<&str>, at: SequenceNumber) -> Result<Conversation> {
    let evaluations = reader.evaluations_at(at);
    let quoted = |id: &str| format!("`{}`", escape::text(id));
    let names = evaluations.iter().map(|id| quoted(id)).collect::<Vec<_>>().join(", ");
    let evaluation = match (evaluation, evaluations.as_slice()) {
        (_, []) => {
            let what = format!("there is no conversation at position {at}");
            return Err(CommandError::usage(
                what,
                "`foldlog show SESSION` lists the records, and which are live",
            ));
        }
        (Some(asked), _) => asked,
        (None, [only]) => only.as_str(),
        (None, _) => {
            let what = format!("the session contains {} conversations", evaluations.len());
            return Err(CommandError::usage(what, format!("give one by --evaluation: {names}")));
        }
    };
    reader.conversation_at(evaluation, at)?.ok_or_else(|| {
        let what = format!("there is no conversation of {} at position {at}", quoted(evaluation));
        CommandError::usage(what, format!("the conversations are those of {names}"))
    })
}

/// Checks that a provider accepts messages once they are rendered.
fn check(format: MessageFormat, messages: &[ConversationMessage]) -> Result<()> {
    let violations = validate(format, messages).err().unwrap_or_default();
    let violations: Vec<_> = violations.into_iter().filter(|found| !is_rendered_right(found.rule)).collect();
    if violations.is_empty() {
        return Ok(());
    }
    let mut what = format!("{} would refuse this history:", format.name());
    for violation in violations.iter().take(LISTED_MAX) {
        what.push_str(&format!("\n{violation}"));
    }
    if let Some(more @ 1..) = violations.len().checked_sub(LISTED_MAX) {
        what.push_str(&format!("\nand {more} more"));
    }
    // Adding the missing parts satisfies these rules.
    let is_closable = |rule| !matches!(rule, PairingRule::CallsElsewhere | PairingRule::NoMessages);
    let next = match violations.iter().any(|violation| is_closable(violation.rule)) {
        true => {
            "--close-open adds what is missing and reports it; --as-recorded prints the messages as they are"
        }
        false => "--as-recorded prints the messages as they are",
    };
    Err(CommandError::usage(what, next))
}

/// Returns whether rendering corrects violations of a rule. It gives calls new ids and valid names,
/// leaves out blank texts, and moves system messages to their place.
fn is_rendered_right(rule: PairingRule) -> bool {
    !matches!(
        rule,
        PairingRule::Unanswered
            | PairingRule::OutOfOrder
            | PairingRule::AnsweredTwice
            | PairingRule::Orphan
            | PairingRule::CallsElsewhere
            | PairingRule::NoMessages
    )
}

/// Renders messages for Anthropic, whose requests contain the system prompt separately.
fn anthropic(messages: &[ConversationMessage], output: &mut Output<'_>) -> String {
    let rendered = render_anthropic(messages);
    match render_anthropic_system(messages) {
        Some(system) if output.json() => format!(r#"{{"system":{system},"messages":{rendered}}}"#),
        None if output.json() => format!(r#"{{"messages":{rendered}}}"#),
        Some(_) => {
            output.note("note: the system message is not in the array; --json prints it too, as `system`");
            rendered
        }
        None => rendered,
    }
}

/// Names the author of a message: the role, the tool or speaker, and the id of the call that a
/// result answers.
fn speaker(message: &ConversationMessage, quote: impl Fn(&str) -> String) -> String {
    let mut speaker = message.role.name().to_owned();
    for named in [message.name.as_deref(), message.tool_call_id.as_deref()].into_iter().flatten() {
        speaker.push_str(&format!(" {}", quote(named)));
    }
    if message.is_error {
        speaker.push_str(", failed");
    }
    speaker
}

/// Returns the text of a message, or its blocks if it has no text.
fn message_text(message: &ConversationMessage) -> Option<&str> {
    message.content.as_deref().or_else(|| Some(message.blocks.as_ref()?.json.as_str()))
}

fn text(number: u64, message: &ConversationMessage, output: &mut Output<'_>) -> Result<()> {
    let quote = |name: &str| format!("`{}`", escape::text(name));
    let who = speaker(message, quote);
    let who = format!("[{number}] {who}");
    let style = match message.role {
        _ if message.is_error => BAD,
        Role::User => GOOD,
        Role::System => GONE,
        _ => SPEAKER,
    };
    match message_text(message) {
        Some(said) => output.pieces(&[(style, &who), (PLAIN, &": "), (PLAIN, &said)])?,
        None => output.styled_line(style, who)?,
    }
    for call in &message.tool_calls {
        let (name, id) = (quote(&call.name), quote(&call.call_id));
        let calls = format!("    calls {name} {id}");
        output.pieces(&[(SPEAKER, &calls), (PLAIN, &": "), (PLAIN, &call.arguments)])?;
    }
    Ok(())
}

fn markdown(number: u64, message: &ConversationMessage, output: &mut Output<'_>) -> Result<()> {
    if number > 0 {
        output.line("")?;
    }
    output.line(format_args!("## {number}. {}", speaker(message, code)))?;
    if let Some(said) = message_text(message) {
        write_fenced(said, output)?;
    }
    for call in &message.tool_calls {
        output.line("")?;
        output.line(format_args!("Calls {} {}:", code(&call.name), code(&call.call_id)))?;
        write_fenced(&call.arguments, output)?;
    }
    Ok(())
}

/// Returns the length of the longest run of backticks in a text.
fn backticks(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or_default()
}

/// Writes a text as a code span that the text cannot close.
fn code(text: &str) -> String {
    let text = escape::text(text);
    let mark = "`".repeat(backticks(&text) + 1);
    let pad = if text.is_empty() || text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{mark}{pad}{text}{pad}{mark}")
}

/// Writes a text as a fenced block that the text cannot close. The block is indented, which
/// Markdown removes again, so that no line of the text can imitate one of the program's.
fn write_fenced(text: &str, output: &mut Output<'_>) -> Result<()> {
    let fence = "`".repeat(backticks(text).max(2) + 1);
    output.line("")?;
    output.line(format_args!("  {fence}"))?;
    text.split('\n').try_for_each(|line| match line {
        "" => output.line(""),
        line => output.line(format_args!("  {}", escape::text(line))),
    })?;
    output.line(format_args!("  {fence}"))
}
