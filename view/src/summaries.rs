//! Summaries of conversations: messages that a provider is sent in place of some records, and the
//! positions at which they count.

use foldlog::SequenceNumber;
use foldlog::conversation::{EntryContent, Role};
use foldlog::inspect::LogReader;
use serde::Serialize;
use serde_json::Value as Json;

use crate::Payloads;
use crate::Result;
use crate::tasks::text_of;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct SummaryRow {
    /// Record of the summary.
    sequence: SequenceNumber,
    /// First and last record that it replaces.
    from: SequenceNumber,
    to: SequenceNumber,
    reason: Json,
    /// Messages that are sent in their place: roles with texts.
    messages: Vec<(Role, Json)>,
    /// Positions at which it counts: first and last of each range.
    counts: Vec<(SequenceNumber, SequenceNumber)>,
}

impl SummaryRow {
    #[cfg(feature = "server")]
    pub(crate) fn counts_at(&self, position: SequenceNumber) -> bool {
        self.counts.iter().any(|(first, last)| (*first..=*last).contains(&position))
    }
}

/// Returns the summaries of a conversation, including abandoned ones, in the order of their
/// records.
pub(crate) fn summaries(reader: &LogReader, evaluation: &str, payloads: Payloads) -> Result<Vec<SummaryRow>> {
    let parts = reader.shortened_parts(evaluation)?;
    let mut found: Vec<SummaryRow> = parts
        .iter()
        .filter_map(|entry| match &entry.content {
            EntryContent::Shortened { from, to, messages, reason } => Some(SummaryRow {
                sequence: entry.sequence,
                from: *from,
                to: *to,
                reason: text_of(reason, payloads),
                messages: messages.iter().map(|(role, text)| (*role, text_of(text, payloads))).collect(),
                counts: Vec::new(),
            }),
            _ => None,
        })
        .collect();
    if !found.is_empty() {
        count(reader, &mut found);
    }
    Ok(found)
}

/// Finds the positions at which summaries count; only rollbacks change these.
fn count(reader: &LogReader, summaries: &mut [SummaryRow]) {
    let last = reader.last_position();
    let rollbacks: Vec<SequenceNumber> = reader.rollbacks().map(|(at, _)| at).collect();
    let lives: Vec<_> = rollbacks.iter().map(|at| reader.live_path().live_at(*at)).collect();
    for summary in summaries {
        let own = summary.sequence;
        let mut since = Some(own);
        for (at, live) in rollbacks.iter().zip(&lives).filter(|(at, _)| **at > own) {
            let is_live = live.iter().any(|range| range.contains(&own));
            match since {
                Some(first) if !is_live => {
                    summary.counts.push((first, at.saturating_sub(1)));
                    since = None;
                }
                None if is_live => since = Some(*at),
                _ => {}
            }
        }
        summary.counts.extend(since.map(|first| (first, last)));
    }
}
