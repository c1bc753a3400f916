//! The messages of conversations. The lists of messages that count at each position are in memory;
//! the messages are in an unnamed file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use foldlog::SequenceNumber;
use foldlog::inspect::LogReader;

use crate::Payloads;
use crate::lists::ListHistory;
use crate::summaries::{SummaryRow, summaries};
use crate::walk::{history, message_line, versions};
use crate::{Error, Result};

/// The messages of one conversation, which may exceed the available memory.
#[derive(Debug)]
pub(crate) struct MessageListHistory {
    versions: ListHistory<u32>,
    /// Record of each message, and the end of its line.
    lines: Vec<(SequenceNumber, u64)>,
    file: File,
    summaries: Vec<SummaryRow>,
}

#[derive(Debug)]
pub(crate) struct MessageLine {
    pub(crate) sequence: SequenceNumber,
    /// `=` and its JSON, or `-` and a placeholder.
    pub(crate) line: Vec<u8>,
}

impl MessageListHistory {
    /// Reads the messages of a conversation; `None` if there is no such conversation.
    ///
    /// # Errors
    ///
    /// The engine's error, or the system's if no temporary file can be created.
    pub(crate) fn read(
        reader: &LogReader,
        evaluation: &str,
        payloads: Payloads,
    ) -> Result<Option<MessageListHistory>> {
        let mut out = BufWriter::new(tempfile::tempfile().map_err(of_file)?);
        let (mut lines, mut end) = (Vec::new(), 0);
        let history = history(reader, evaluation, |message| {
            let line = message_line(&message.message, payloads)?;
            out.write_all(&line).map_err(of_file)?;
            end += line.len() as u64;
            lines.push((message.sequence, end));
            Ok(())
        })?;
        let Some(history) = history else { return Ok(None) };
        let versions = versions(&history, reader.last_position());
        let file = out.into_inner().map_err(|error| of_file(error.into_error()))?;
        let summaries = summaries(reader, evaluation, payloads)?;
        Ok(Some(MessageListHistory { versions, lines, file, summaries }))
    }

    /// Returns the number of messages that count at a position.
    pub(crate) fn len_at(&self, position: SequenceNumber) -> u32 {
        self.versions.window(position, 0, 0).map_or(0, |(len, _)| len)
    }

    /// Returns the number of messages that count at a position, and the numbers of up to `count` of
    /// them, starting at place `from`.
    pub(crate) fn numbers(&self, position: SequenceNumber, from: u32, count: u32) -> (u32, Vec<u32>) {
        self.versions.window(position, from, count).unwrap_or_default()
    }

    pub(crate) fn summaries_at(&self, position: SequenceNumber) -> Vec<SummaryRow> {
        self.summaries.iter().filter(|summary| summary.counts_at(position)).cloned().collect()
    }

    /// Returns a message by its number; `None` if there are fewer.
    ///
    /// # Errors
    ///
    /// The system's error if the file cannot be read.
    pub(crate) fn read_message(&self, number: u32) -> Result<Option<MessageLine>> {
        let at = number as usize;
        let Some((sequence, end)) = self.lines.get(at).copied() else { return Ok(None) };
        let begin = at.checked_sub(1).and_then(|before| self.lines.get(before)).map_or(0, |(_, end)| *end);
        let mut line = vec![0; (end - begin) as usize];
        self.file.read_exact_at(&mut line, begin).map_err(of_file)?;
        Ok(Some(MessageLine { sequence, line }))
    }
}

fn of_file(source: io::Error) -> Error {
    Error::File { path: Path::new("a temporary file").to_owned(), source }
}

/// Cache of a session's conversations that were requested. If one of a conversation's messages
/// exceeds the memory limit, this error is cached, so that no step reads the conversation again.
#[derive(Debug, Default)]
pub(crate) struct Conversations(BTreeMap<String, foldlog::Result<Option<MessageListHistory>>>);

impl Conversations {
    /// Returns a conversation, which is read if it is not cached.
    pub(crate) fn get(
        &mut self,
        reader: &LogReader,
        evaluation: &str,
        payloads: Payloads,
    ) -> Result<Option<&MessageListHistory>> {
        if !self.0.contains_key(evaluation) {
            if self.0.len() >= CONVERSATIONS_MAX {
                self.0.pop_first();
            }
            let held = match MessageListHistory::read(reader, evaluation, payloads) {
                Err(Error::Engine(error @ foldlog::Error::OverBudget { .. })) => Err(error),
                read => Ok(read?),
            };
            self.0.insert(evaluation.to_owned(), held);
        }
        match self.0.get(evaluation) {
            Some(Ok(messages)) => Ok(messages.as_ref()),
            Some(Err(error)) => Err(error.clone().into()),
            None => Ok(None),
        }
    }
}

/// Maximum number of cached conversations of a session, each with an open file.
const CONVERSATIONS_MAX: usize = 32;
