//! Parses a stream of server-sent events.

/// Collects bytes until an event is complete. It buffers the current event and the incomplete line.
#[derive(Debug, Default)]
pub(super) struct Events {
    line: Vec<u8>,
    after_return: bool,
    begun: bool,
    /// Lines of data, joined by newlines.
    data: String,
    has_data: bool,
}

impl Events {
    /// Adds bytes, and calls `take` with the data of each event that they complete, until `take`
    /// fails.
    pub(super) fn push<E>(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(String) -> Result<(), E>,
    ) -> Result<(), E> {
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let (text, end) = match piece.split_last() {
                Some((end @ (b'\n' | b'\r'), text)) => (text, Some(*end)),
                _ => (piece, None),
            };
            // A carriage return and a following newline end the same line.
            let is_second = std::mem::take(&mut self.after_return) && text.is_empty() && end == Some(b'\n');
            if is_second {
                continue;
            }
            self.line.extend_from_slice(text);
            self.after_return = end == Some(b'\r');
            if end.is_some() {
                let line = std::mem::take(&mut self.line);
                if let Some(data) = self.end_line(&line) {
                    take(data)?;
                }
            }
        }
        Ok(())
    }

    /// Processes a line. An empty line completes the event before it.
    fn end_line(&mut self, line: &[u8]) -> Option<String> {
        let line = String::from_utf8_lossy(line);
        let line = if std::mem::replace(&mut self.begun, true) {
            &*line
        } else {
            line.strip_prefix('\u{feff}').unwrap_or(&line)
        };
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            return std::mem::take(&mut self.has_data).then_some(data);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        if field == "data" {
            if std::mem::replace(&mut self.has_data, true) {
                self.data.push('\n');
            }
            self.data.push_str(value);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Events;

    fn events(pieces: &[&[u8]]) -> Vec<String> {
        let (mut events, mut taken) = (Events::default(), Vec::new());
        for piece in pieces {
            let all: Result<(), ()> = events.push(piece, |data| {
                taken.push(data);
                Ok(())
            });
            all.unwrap();
        }
        taken
    }

    /// Protects streams that are cut at any byte, and all three line endings.
    #[test]
    fn events_are_the_same_however_the_bytes_are_cut() {
        let stream = "\u{feff}: a comment\r\nevent: a\r\ndata: one\r\ndata:two\r\n\r\ndata: é\n\ndata\r\rid: 4\n\ndata: cut";
        let expected = ["one\ntwo", "é", ""];
        assert_eq!(events(&[stream.as_bytes()]), expected);
        let single: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
        assert_eq!(events(&single), expected);
    }
}
