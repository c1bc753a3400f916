//! Writes MessagePack value by value.

use std::ops::Range;

/// Writes MessagePack into a growing buffer; integers take their shortest form.
#[derive(Debug, Default)]
pub struct MsgpackWriter {
    out: Vec<u8>,
}

impl MsgpackWriter {
    /// Creates an empty writer.
    pub fn new() -> MsgpackWriter {
        MsgpackWriter::default()
    }

    /// Creates an empty writer with room for `bytes` bytes before its buffer grows.
    pub fn with_capacity(bytes: usize) -> MsgpackWriter {
        MsgpackWriter { out: Vec::with_capacity(bytes) }
    }

    /// Creates an empty writer in the allocation of `out`, whose content is discarded.
    pub fn reuse_buffer(mut out: Vec<u8>) -> MsgpackWriter {
        out.clear();
        MsgpackWriter { out }
    }

    /// Creates a writer that appends to the content of `out`.
    pub(crate) fn append_to(out: Vec<u8>) -> MsgpackWriter {
        MsgpackWriter { out }
    }

    /// Returns the written bytes.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    pub(crate) fn len(&self) -> usize {
        self.out.len()
    }

    /// Changes the number of pairs of a map whose head is at `head`.
    pub(crate) fn set_map_len(&mut self, head: Range<usize>, len: usize) {
        match self.out.get_mut(head.start) {
            // The head of a map of at most 15 fields is one byte, which ends with their number.
            Some(byte) if head.len() == 1 && len <= 15 => *byte = 0x80 | len as u8,
            _ => {
                let mut written = MsgpackWriter::new();
                written.map(len);
                drop(self.out.splice(head, written.finish()));
            }
        }
    }

    /// Starts an array; the next `len` values that are written are its elements.
    pub fn array(&mut self, len: usize) -> &mut Self {
        // Writing to a vector never fails, and the encoders have no other error.
        let _ = rmp::encode::write_array_len(&mut self.out, len as u32);
        self
    }

    /// Starts a map; the next `2 * len` values that are written are its keys and values,
    /// alternately.
    pub fn map(&mut self, len: usize) -> &mut Self {
        let _ = rmp::encode::write_map_len(&mut self.out, len as u32);
        self
    }

    /// Writes text.
    pub fn str(&mut self, text: &str) -> &mut Self {
        let _ = rmp::encode::write_str(&mut self.out, text);
        self
    }

    /// Writes a byte string.
    pub fn bin(&mut self, bytes: &[u8]) -> &mut Self {
        let _ = rmp::encode::write_bin(&mut self.out, bytes);
        self
    }

    /// Writes an extension of the type `kind`.
    pub fn ext(&mut self, kind: i8, bytes: &[u8]) -> &mut Self {
        let _ = rmp::encode::write_ext_meta(&mut self.out, bytes.len() as u32, kind);
        self.out.extend_from_slice(bytes);
        self
    }

    /// Writes an integer of 0 or more in its shortest form.
    pub fn unsigned(&mut self, value: u64) -> &mut Self {
        let _ = rmp::encode::write_uint(&mut self.out, value);
        self
    }

    /// Writes an integer in its shortest form.
    pub fn signed(&mut self, value: i64) -> &mut Self {
        let _ = rmp::encode::write_sint(&mut self.out, value);
        self
    }

    /// Writes a boolean.
    pub fn bool(&mut self, value: bool) -> &mut Self {
        let _ = rmp::encode::write_bool(&mut self.out, value);
        self
    }

    /// Writes nil.
    pub fn nil(&mut self) -> &mut Self {
        let _ = rmp::encode::write_nil(&mut self.out);
        self
    }

    /// Writes a floating-point number of 32 bits.
    pub fn f32(&mut self, value: f32) -> &mut Self {
        let _ = rmp::encode::write_f32(&mut self.out, value);
        self
    }

    /// Writes a floating-point number of 64 bits.
    pub fn f64(&mut self, value: f64) -> &mut Self {
        let _ = rmp::encode::write_f64(&mut self.out, value);
        self
    }

    /// Appends bytes that are already MessagePack, unchecked.
    pub fn raw(&mut self, value: &[u8]) -> &mut Self {
        self.out.extend_from_slice(value);
        self
    }
}
