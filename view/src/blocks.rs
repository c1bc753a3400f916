//! Blocks of data in a page: compressed text and numbers that a script reads on demand.
//!
//! A block is a `script` element with a type that no browser runs. It contains base64 of zlib, so
//! none of its contents can be parsed as markup. Only the page's *head* is not compressed: it is
//! JSON in which every character with a meaning in markup or scripts is escaped.

use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use foldlog_codec::escape;
use serde::Serialize;

/// Size at which a block of several parts is complete, in bytes.
pub(crate) const BLOCK_BYTES: usize = 64 << 10;

/// Writes blocks one after the other and numbers them.
#[derive(Debug)]
pub(crate) struct Blocks<W> {
    out: W,
    next: u32,
}

impl<W: Write> Blocks<W> {
    pub(crate) fn new(out: W) -> Blocks<W> {
        Blocks { out, next: 0 }
    }

    /// Writes a block and returns its number. The element's id is `b` followed by the number.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> io::Result<u32> {
        let number = self.next;
        self.next += 1;
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(4));
        encoder.write_all(bytes)?;
        let text = STANDARD.encode(encoder.finish()?);
        writeln!(self.out, "<script type=\"application/octet-stream\" id=\"b{number}\">{text}</script>")?;
        Ok(number)
    }

    /// Writes a value as a block of JSON and returns the block's number.
    ///
    /// # Errors
    ///
    /// The error of the writer, or of the value's `Serialize`.
    pub(crate) fn add_json(&mut self, value: &(impl Serialize + ?Sized)) -> io::Result<u32> {
        let json = escape::to_json(value)?;
        self.add(json.as_bytes())
    }

    pub(crate) fn into_inner(self) -> W {
        self.out
    }
}

/// Collects lines of text into blocks. Each block contains whole lines, separated by newlines.
#[derive(Debug, Default)]
pub(crate) struct LineBlocks {
    text: Vec<u8>,
    count: u64,
    first: u64,
    /// Number of the first line of each block, and the block.
    blocks: Vec<(u64, u32)>,
}

impl LineBlocks {
    /// Adds a line, which must not contain a newline.
    pub(crate) fn push<W: Write>(&mut self, line: &[u8], blocks: &mut Blocks<W>) -> io::Result<()> {
        if self.count > self.first {
            self.text.push(b'\n');
        }
        self.text.extend_from_slice(line);
        self.count += 1;
        if self.text.len() >= BLOCK_BYTES { self.flush(blocks) } else { Ok(()) }
    }

    fn flush<W: Write>(&mut self, blocks: &mut Blocks<W>) -> io::Result<()> {
        if self.count > self.first {
            self.blocks.push((self.first, blocks.add(&self.text)?));
            self.text.clear();
            self.first = self.count;
        }
        Ok(())
    }

    /// Writes the remaining lines. Returns each block with the number of its first line.
    pub(crate) fn finish<W: Write>(mut self, blocks: &mut Blocks<W>) -> io::Result<Vec<(u64, u32)>> {
        self.flush(blocks)?;
        Ok(self.blocks)
    }
}

/// Returns a value's JSON for a `script` element. Escapes `<`, `>` and `&` within texts, in
/// addition to the characters that [`escape::to_json`] escapes.
///
/// # Errors
///
/// The error of the value's `Serialize`.
pub(crate) fn markup_json(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    let json = escape::to_json(value)?;
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        // These characters occur only within texts, never between them.
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            character => out.push(character),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_a_head_can_end_its_element() {
        let json = markup_json(&["</script><!--", "a&b", "\u{2028}\u{202e}"]).unwrap();
        assert!(!json.contains(['<', '>', '&', '\u{2028}', '\u{202e}']), "{json}");
        let texts: Vec<String> = serde_json::from_str(&json).unwrap();
        assert_eq!(texts, ["</script><!--", "a&b", "\u{2028}\u{202e}"]);
    }

    #[test]
    fn lines_of_several_blocks_are_found_by_their_numbers() {
        let mut blocks = Blocks::new(Vec::new());
        let mut lines = LineBlocks::default();
        let line = vec![b'x'; BLOCK_BYTES / 2];
        (0..5).for_each(|_| lines.push(&line, &mut blocks).unwrap());
        assert_eq!(lines.finish(&mut blocks).unwrap(), [(0, 0), (2, 1), (4, 2)]);
    }
}
