//! A stream that replaces one path with another name.

use std::io::{self, Write};
use std::path::PathBuf;

/// Forwards lines, with a path replaced by another name.
pub(super) struct PathRewriter<'a> {
    inner: &'a mut dyn Write,
    from: String,
    to: String,
    /// Bytes of the last, incomplete line.
    line: Vec<u8>,
}

impl<'a> PathRewriter<'a> {
    /// Replaces the first of the pair with the second.
    pub(super) fn new(inner: &'a mut dyn Write, names: &[(PathBuf, String); 1]) -> PathRewriter<'a> {
        let [(from, to)] = names;
        PathRewriter { inner, from: from.display().to_string(), to: to.clone(), line: Vec::new() }
    }

    fn pass_on(&mut self, upto: usize) -> io::Result<()> {
        let rest = self.line.split_off(upto);
        let line = std::mem::replace(&mut self.line, rest);
        match std::str::from_utf8(&line) {
            Ok(text) if text.contains(&self.from) => {
                self.inner.write_all(text.replace(&self.from, &self.to).as_bytes())
            }
            _ => self.inner.write_all(&line),
        }
    }
}

impl Write for PathRewriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        if let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') {
            self.pass_on(self.line.len() - bytes.len() + end + 1)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pass_on(self.line.len())?;
        self.inner.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_renamed_however_it_is_written() {
        let names = [(PathBuf::from("/tmp/foldlog-x"), "s3://bucket".to_owned())];
        let text = "at /tmp/foldlog-x/sessions\nand /tmp/foldlog-x, /tmp/foldlog-x";
        for size in 1..text.len() {
            let mut written = Vec::new();
            let mut stream = PathRewriter::new(&mut written, &names);
            text.as_bytes().chunks(size).for_each(|piece| stream.write_all(piece).unwrap());
            stream.flush().unwrap();
            let expected = "at s3://bucket/sessions\nand s3://bucket, s3://bucket";
            assert_eq!(String::from_utf8(written).unwrap(), expected);
        }
    }
}
