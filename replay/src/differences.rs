//! Visits the differences between two positions, of one log or of two, one by one.

use std::ops::ControlFlow;

use foldlog::SequenceNumber;
use foldlog::inspect::{Difference, LogReader, StateReader, VisitDifference};

/// Callback that receives one difference after the other. An error ends the search.
pub type DifferenceSink<'a, E> = dyn FnMut(Difference) -> Result<(), E> + 'a;

/// Passes the differences between two states of one log to `sink`: first the slices', in the order
/// of their names, then the tags'. One pair of items is decoded at a time.
///
/// # Errors
///
/// The engine's error if an item cannot be read, or would take more memory than the reader may; the
/// error of `sink`.
pub fn states<E: From<foldlog::Error>>(
    before: &StateReader,
    after: &StateReader,
    sink: &mut DifferenceSink<'_, E>,
) -> Result<(), E> {
    handed(sink, |visit| before.slice_differences(after, |_| true, visit))?;
    before.tag_differences(after).into_iter().try_for_each(sink)
}

/// Passes the messages that only one of two positions has to `sink`, conversation by conversation.
///
/// # Errors
///
/// The engine's error if the log cannot be read, or the error of `sink`.
pub fn conversations<E: From<foldlog::Error>>(
    reader: &LogReader,
    before: SequenceNumber,
    after: SequenceNumber,
    sink: &mut DifferenceSink<'_, E>,
) -> Result<(), E> {
    handed(sink, |visit| reader.conversation_differences(before, after, visit))
}

/// Passes the differences between a state of one log and one of another to `sink`: first the
/// slices', then the tags'.
///
/// # Errors
///
/// The engine's error if one of them cannot be read, or takes more memory than it may; the error of
/// `sink`.
pub fn between_states<E: From<foldlog::Error>>(
    before: &StateReader,
    after: &StateReader,
    sink: &mut DifferenceSink<'_, E>,
) -> Result<(), E> {
    handed(sink, |visit| before.slice_differences_between(after, |_| true, visit))?;
    before.tag_differences(after).into_iter().try_for_each(sink)
}

/// Passes the differences between a position of one log and one of another to `sink`: the slices',
/// the tags' and the conversations'.
///
/// # Errors
///
/// The engine's error if one of them cannot be read, or takes more memory than it may; the error of
/// `sink`.
pub fn between_logs<E: From<foldlog::Error>>(
    here: &LogReader,
    at: SequenceNumber,
    there: &LogReader,
    other_at: SequenceNumber,
    sink: &mut DifferenceSink<'_, E>,
) -> Result<(), E> {
    let (before, after) = (here.state_reader_at(at)?, there.state_reader_at(other_at)?);
    between_states(&before, &after, sink)?;
    handed(sink, |visit| here.conversation_differences_between(at, there, other_at, visit))
}

/// Runs `walk` with a visitor that passes differences to `sink`, and ends when `sink` fails.
fn handed<E: From<foldlog::Error>>(
    sink: &mut DifferenceSink<'_, E>,
    walk: impl FnOnce(&mut VisitDifference<'_>) -> foldlog::Result<()>,
) -> Result<(), E> {
    let mut handed = Ok(());
    walk(&mut |difference| {
        handed = sink(difference);
        Ok(if handed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    handed
}
