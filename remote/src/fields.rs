//! Fields in the bytes of a bucket's objects. Integers are little-endian.

/// Takes one field after the other from bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldReader<'a> {
    pub(crate) bytes: &'a [u8],
}

impl<'a> FieldReader<'a> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*field)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub(crate) fn slice(&mut self, len: u32) -> Option<&'a [u8]> {
        let (field, rest) = self.bytes.split_at_checked(usize::try_from(len).ok()?)?;
        self.bytes = rest;
        Some(field)
    }
}
