//! Writing engine bodies.

/// Writes MessagePack into a growing buffer; integers take their shortest form.
#[derive(Debug, Default)]
pub struct Writer {
    out: Vec<u8>,
}

impl Writer {
    /// An empty writer.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// An empty writer that takes so many bytes before it grows.
    pub fn with_capacity(bytes: usize) -> Writer {
        Writer { out: Vec::with_capacity(bytes) }
    }

    /// A writer that goes on in a buffer, so that its allocation can be used again.
    pub fn reusing(mut out: Vec<u8>) -> Writer {
        out.clear();
        Writer { out }
    }

    /// The bytes written.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    /// Begins an array of `len` values.
    pub fn array(&mut self, len: usize) -> &mut Self {
        // A vector takes every write: the encoders' only error is the sink's.
        let _ = rmp::encode::write_array_len(&mut self.out, len as u32);
        self
    }

    /// Begins a map of `len` pairs.
    pub fn map(&mut self, len: usize) -> &mut Self {
        let _ = rmp::encode::write_map_len(&mut self.out, len as u32);
        self
    }

    /// Writes text.
    pub fn str(&mut self, text: &str) -> &mut Self {
        let _ = rmp::encode::write_str(&mut self.out, text);
        self
    }

    /// Writes bytes.
    pub fn bin(&mut self, bytes: &[u8]) -> &mut Self {
        let _ = rmp::encode::write_bin(&mut self.out, bytes);
        self
    }

    /// Writes an extension.
    pub fn ext(&mut self, kind: i8, bytes: &[u8]) -> &mut Self {
        let _ = rmp::encode::write_ext_meta(&mut self.out, bytes.len() as u32, kind);
        self.out.extend_from_slice(bytes);
        self
    }

    /// Writes an integer of 0 or more.
    pub fn unsigned(&mut self, value: u64) -> &mut Self {
        let _ = rmp::encode::write_uint(&mut self.out, value);
        self
    }

    /// Writes an integer.
    pub fn signed(&mut self, value: i64) -> &mut Self {
        let _ = rmp::encode::write_sint(&mut self.out, value);
        self
    }

    /// Writes true or false.
    pub fn bool(&mut self, value: bool) -> &mut Self {
        let _ = rmp::encode::write_bool(&mut self.out, value);
        self
    }

    /// Writes nothing's value.
    pub fn nil(&mut self) -> &mut Self {
        let _ = rmp::encode::write_nil(&mut self.out);
        self
    }

    /// Writes a number of 32 bits.
    pub fn f32(&mut self, value: f32) -> &mut Self {
        let _ = rmp::encode::write_f32(&mut self.out, value);
        self
    }

    /// Writes a number of 64 bits.
    pub fn f64(&mut self, value: f64) -> &mut Self {
        let _ = rmp::encode::write_f64(&mut self.out, value);
        self
    }

    /// Writes a value that is already MessagePack.
    pub fn raw(&mut self, value: &[u8]) -> &mut Self {
        self.out.extend_from_slice(value);
        self
    }
}
