//! Parses the program's output: one JSON object per line.
//!
//! | line | result |
//! |---|---|
//! | blank, or starts with anything but `{` | nothing, regardless of its length |
//! | an object | a [`ClaudeMessage`] |
//! | starts with `{` but is not an object | [`ErrorKind::MalformedLine`]; reading continues with the next line |
//! | the start of an object, longer than the limit | [`ErrorKind::LineTooLong`]; reading ends |
//! | the last one, without a newline, and not an object | nothing: the program died while writing |
//!
//! Spaces around a line are ignored. The program writes the escape of half a surrogate pair if it
//! cuts a text there, which is invalid JSON for other parsers. It is read as U+FFFD, and preserved
//! in [`ClaudeMessage::line`].

use std::io::{self, BufRead};

use serde_json::{Map, Value};

use super::error::{ClientError, ErrorKind, Stage};
use super::message::{ClaudeMessage, TranscriptMirror};

/// Contains a line that starts as an object.
struct StreamLine {
    /// The line, without spaces around it.
    bytes: Vec<u8>,
    /// Number of the line, from 1.
    number: u64,
    /// Offset of the line in the stream, in bytes.
    offset: u64,
    /// Whether the stream ended before a newline.
    is_tail: bool,
}

/// Contains a line that is an object.
pub(super) struct Frame {
    /// The line, without spaces around it.
    pub(super) line: Box<str>,
    pub(super) content: FrameContent,
}

pub(super) enum FrameContent {
    Object(Map<String, Value>),
    /// Mirrored lines, which are most of the program's output: their entries are not parsed.
    Mirror(TranscriptMirror),
}

/// Reads the lines of a stream that start as objects.
pub(super) struct StreamLineReader<R> {
    reader: R,
    limit: usize,
    number: u64,
    offset: u64,
    is_over: bool,
}

impl<R: BufRead> StreamLineReader<R> {
    pub(super) fn new(reader: R, limit: usize) -> StreamLineReader<R> {
        StreamLineReader { reader, limit, number: 0, offset: 0, is_over: false }
    }

    /// Reads the next object; `None` at the end of the stream.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, ClientError> {
        while !self.is_over {
            if let Some(line) = self.line()?
                && let Some(frame) = line.parse()?
            {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// Reads one line; returns `None` if it is skipped.
    fn line(&mut self) -> Result<Option<StreamLine>, ClientError> {
        self.number += 1;
        let offset = self.offset;
        let mut bytes: Vec<u8> = Vec::new();
        let mut is_skipped = false;
        let mut is_tail = false;
        loop {
            let read = match self.reader.fill_buf() {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.is_over = true;
                    let reason = "the program's output cannot be read";
                    return Err(
                        ClientError::new(ErrorKind::Disconnected, Stage::Response, reason).because(error)
                    );
                }
            };
            if read.is_empty() {
                (self.is_over, is_tail) = (true, true);
                break;
            }
            let end = read.iter().position(|byte| *byte == b'\n');
            let piece = read.get(..end.unwrap_or(read.len())).unwrap_or_default();
            if !is_skipped {
                let piece = if bytes.is_empty() { piece.trim_ascii_start() } else { piece };
                is_skipped = bytes.is_empty() && piece.first().is_some_and(|first| *first != b'{');
                if !is_skipped {
                    bytes.extend_from_slice(piece);
                }
            }
            let taken = piece.len() + usize::from(end.is_some());
            self.offset += taken as u64;
            self.reader.consume(taken);
            if bytes.len() > self.limit {
                self.is_over = true;
                return Err(self.too_long(offset));
            }
            if end.is_some() {
                break;
            }
        }
        bytes.truncate(bytes.trim_ascii_end().len());
        let line = StreamLine { bytes, number: self.number, offset, is_tail };
        Ok((!is_skipped && !line.bytes.is_empty()).then_some(line))
    }

    fn too_long(&self, offset: u64) -> ClientError {
        let (line, limit) = (self.number, self.limit);
        let reason = format!(
            "line {line}, which begins at byte {offset}, is longer than {limit} bytes: raise `line_limit`"
        );
        ClientError::new(ErrorKind::LineTooLong { line, offset }, Stage::Response, reason)
    }
}

impl StreamLine {
    /// Parses the object. Returns `None` for a line that was cut by the program's end.
    fn parse(self) -> Result<Option<Frame>, ClientError> {
        let (line, offset) = (self.number, self.offset);
        let malformed = |what: String| {
            let reason = format!("line {line}, which begins at byte {offset}, is not a JSON object: {what}");
            ClientError::new(ErrorKind::MalformedLine { line, offset }, Stage::Response, reason)
        };
        let text = match String::from_utf8(self.bytes) {
            Ok(text) => text,
            Err(_) if self.is_tail => return Ok(None),
            Err(error) => return Err(malformed(error.utf8_error().to_string())),
        };
        let parsed = match TranscriptMirror::of_its_line(&text) {
            Some(mirror) => Ok(FrameContent::Mirror(mirror)),
            None => foldlog::escape::read_json(&text).map(FrameContent::Object),
        };
        match parsed {
            Ok(content) => Ok(Some(Frame { line: text.into_boxed_str(), content })),
            Err(_) if self.is_tail => Ok(None),
            Err(error) => Err(malformed(error.to_string())),
        }
    }
}

/// Parses the messages of a stream, such as a recorded one, without a program. Control frames are
/// also returned as messages, as [`ClaudeMessageBody::Other`](super::ClaudeMessageBody::Other).
///
/// ```
/// use foldlog_claude::{ClaudeMessageBody, read_stream};
///
/// let recorded = "noise\n{\"type\":\"result\",\"subtype\":\"success\",\"result\":\"42\"}\n{\"type\":\"us";
/// let messages: Vec<_> = read_stream(recorded.as_bytes(), 1 << 20).collect::<Result<_, _>>().unwrap();
/// let [message] = &messages[..] else { panic!("the noise and the tail are dropped") };
/// assert!(matches!(&message.body, ClaudeMessageBody::Result(result) if result.result.as_deref() == Some("42")));
/// ```
pub fn read_stream<R: BufRead>(reader: R, limit: usize) -> ClaudeMessages<R> {
    ClaudeMessages { lines: StreamLineReader::new(reader, limit), index: 0 }
}

/// Iterates over the messages of a stream, or the errors of its lines.
pub struct ClaudeMessages<R> {
    lines: StreamLineReader<R>,
    index: u64,
}

impl<R: BufRead> Iterator for ClaudeMessages<R> {
    type Item = Result<ClaudeMessage, ClientError>;

    fn next(&mut self) -> Option<Result<ClaudeMessage, ClientError>> {
        let frame = self.lines.next().transpose()?;
        Some(frame.map(|frame| {
            self.index += 1;
            ClaudeMessage::new(self.index - 1, frame)
        }))
    }
}
