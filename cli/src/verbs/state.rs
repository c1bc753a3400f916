//! `foldlog state`: the slices at a position, without the host's types.

use std::path::PathBuf;

use foldlog::inspect::{SliceReader, StateReader};
use foldlog::{Error, SequenceNumber};
use foldlog_codec::escape;
use foldlog_codec::msgpack::{JsonStream, ValueLimits};
use foldlog_view::positions::{Position, position};
use foldlog_view::text::{count_text, shorten_text};
use foldlog_view::visits::FirstFailure;

use crate::command::{Argument, Command, Group, Urls};
use crate::conversations::{ConversationSummary, summaries};
use crate::failure::{CommandError, Result};
use crate::output::Output;
use crate::readers::{code_of, map_write_error, open_sound};

/// Print the slices at a position.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Directory of the session, or URL/sessions/ID in a bucket or database
    pub session: PathBuf,
    /// Position whose state is shown [default: the last one]
    #[arg(long, value_name = "POSITION")]
    pub at: Option<Position>,
    /// Show only the slice with this name
    #[arg(long, value_name = "NAME")]
    pub slice: Option<String>,
}

impl Command for Args {
    const GROUP: Group = Group::Look;
    const URLS: Urls = Urls::Copied;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog state SESSION --at 42";

    /// Prints the slices at position `at`, or at the last one: the one named `slice`, or all. The
    /// last position of a damaged session is the one before its first damage.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if there is no such position, or no such
    ///   slice there.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if no record through `at` is intact, or the
    ///   session cannot be read.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let slice = self.slice.as_deref();
        let reader = open_sound(&self.session, output)?;
        let at = position(&reader, self.at)?;
        let state = reader.state_reader_at(at)?;
        if let Some(name) = slice {
            must_be_there(&state, name, at)?;
        }
        // A request for one slice does not include conversations.
        let conversations = if slice.is_none() { summaries(&reader, at)? } else { Vec::new() };
        if output.json() {
            let beside = Some(("conversations", &conversations)).filter(|_| !conversations.is_empty());
            map_write_error(state.write_json(slice, beside, &mut *output.stdout))?;
            writeln!(output.stdout)?;
            return Ok(code_of(&reader, output));
        }
        output.line(format_args!("position {at} of {}", reader.last_position()))?;
        for found in state.slices().filter(|found| slice.is_none_or(|name| name == found.name())) {
            text(&found, output)?;
        }
        conversations.iter().try_for_each(|conversation| summary(conversation, output))?;
        Ok(code_of(&reader, output))
    }
}

/// Maximum number of characters of an item that a person is shown.
const ITEM_CHARS_MAX: usize = 160;

fn must_be_there(state: &StateReader, name: &str, at: SequenceNumber) -> Result<()> {
    if state.slice(name).is_some() {
        return Ok(());
    }
    let names: Vec<&str> = state.slices().map(|slice| slice.name()).collect();
    let next = match names.as_slice() {
        [] => "give a later position: no slice is declared at this one".to_owned(),
        names => format!("the slices are {}", escape::text(&names.join(", "))),
    };
    Err(CommandError::usage(format!("there is no slice `{}` at position {at}", escape::text(name)), next))
}

fn summary(conversation: &ConversationSummary, output: &mut Output<'_>) -> Result<()> {
    let (messages, turns) =
        (count_text(conversation.messages, "message"), count_text(conversation.turns, "turn"));
    let mut line =
        format!("conversation of `{}` ({messages}, {turns}", escape::text(&conversation.evaluation_id));
    if conversation.abandoned_records > 0 {
        line.push_str(&format!(", {} abandoned", count_text(conversation.abandoned_records, "record")));
    }
    if conversation.input_tokens + conversation.output_tokens > 0 {
        let (sent, answered) = (conversation.input_tokens, conversation.output_tokens);
        line.push_str(&format!(", {sent} tokens sent, {answered} answered"));
    }
    output.line("")?;
    output.line(format_args!("{line})"))?;
    if let Some(answer) = conversation.last_answer {
        let open = count_text(conversation.open_calls.len() as u64, "open call");
        output.line(format_args!("  last answer @{answer}, {open}"))?;
    }
    Ok(())
}

fn text(slice: &SliceReader<'_>, output: &mut Output<'_>) -> Result<()> {
    let items = count_text(slice.len() as u64, "item");
    output.line("")?;
    output.line(format_args!("{} ({}, {items})", escape::text(slice.name()), slice.policy().name()))?;
    let (mut place, mut failure) = (0_u64, FirstFailure::default());
    let read = slice.read(|name, bytes| {
        let value = JsonStream::new(bytes, ValueLimits::default()).map_err(|error| Error::Decode {
            name: slice.name().to_owned(),
            sequence: name.sequence,
            reason: error.to_string(),
        })?;
        let json = escape::json_beginning(&value, ITEM_CHARS_MAX);
        // The sequence number of the item's record is the key for looking it up in the timeline.
        let line = format!("  [{place}] @{} {}", name.sequence, shorten_text(&json, ITEM_CHARS_MAX));
        place += 1;
        Ok(failure.flow(output.line(line)))
    });
    failure.end(read)
}
