//! Files with holes: one blob lists the ranges of the file's data, and another contains the data
//! without the holes, piece after piece. A file of 200 GiB without data costs two small objects,
//! and no reading.
//!
//! ```text
//! foldlog-sparse 1
//! length BYTES
//! data ID                     the blob of all data
//! OFFSET BYTES                each piece of data, in ascending order; none touches the previous one
//! ```
//!
//! Files of up to 1 MiB are stored whole, and so is everything in a file after its 65,536th piece.
//! If a file system does not report holes, files are read.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::objects::{ObjectId, ObjectKind, Objects, len};
use crate::error::Result;

const HEAD: &str = "foldlog-sparse 1";

/// Smaller files are stored whole.
pub(super) const LENGTH_MIN: u64 = (1 << 20) + 1;

const PIECES_MAX: usize = 1 << 16;

const BYTES_MAX: u64 = 4 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sparse {
    pub(super) length: u64,
    /// Offset and length of each piece.
    pieces: Vec<(u64, u64)>,
}

impl Sparse {
    /// Finds the ranges of a file's data. Returns `None` if the file system reports no holes.
    pub(super) fn detect(file: &File, length: u64, blocks: i64) -> io::Result<Option<Sparse>> {
        let occupied = u64::try_from(blocks).unwrap_or(0).saturating_mul(512);
        if length < LENGTH_MIN || occupied >= length {
            return Ok(None);
        }
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < length {
            let begin = match seek(file, SeekFrom::Data(at)) {
                Ok(begin) => begin.min(length),
                Err(Errno::NXIO) => break,
                Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            };
            if begin == length {
                break;
            }
            let end = match pieces.len() + 1 < PIECES_MAX {
                true => seek(file, SeekFrom::Hole(begin)).map_err(io::Error::from)?.clamp(begin + 1, length),
                false => length,
            };
            pieces.push((begin, end - begin));
            at = end;
        }
        Ok((pieces != [(0, length)]).then_some(Sparse { length, pieces }))
    }

    pub(super) fn data_len(&self) -> u64 {
        self.pieces.iter().map(|(_, len)| len).sum()
    }

    /// Returns a reader of the data, piece after piece.
    pub(super) fn data<'a>(&'a self, file: &'a File) -> impl Read + 'a {
        Data { file, pieces: &self.pieces, done: 0 }
    }

    /// Returns a writer that accepts the data, piece after piece, and writes each to its offset.
    /// Sets the length of the file first.
    pub(super) fn writer<'a>(&'a self, file: &'a File) -> io::Result<impl Write + 'a> {
        file.set_len(self.length)?;
        Ok(Data { file, pieces: &self.pieces, done: 0 })
    }

    /// Returns the content, with the data at its offsets and zeros in the holes. Returns `None` if
    /// the data has another length, or if there is not enough memory for the content.
    pub(super) fn fill_holes(&self, data: &[u8]) -> Option<Vec<u8>> {
        let length = usize::try_from(self.length).ok()?;
        let mut content = Vec::new();
        content.try_reserve_exact(length).ok()?;
        content.resize(length, 0);
        let mut rest = data;
        for (offset, len) in &self.pieces {
            let (offset, len) = (usize::try_from(*offset).ok()?, usize::try_from(*len).ok()?);
            let (piece, after) = rest.split_at_checked(len)?;
            content.get_mut(offset..)?.get_mut(..len)?.copy_from_slice(piece);
            rest = after;
        }
        rest.is_empty().then_some(content)
    }

    pub(super) fn encode(&self, data: ObjectId) -> String {
        let mut text = format!("{HEAD}\nlength {}\ndata {data}\n", self.length);
        for (offset, len) in &self.pieces {
            let _ = writeln!(text, "{offset} {len}");
        }
        text
    }

    /// Reads a blob that lists ranges of data, and returns them with the blob of the data.
    pub(super) fn read(objects: &Objects, id: ObjectId) -> Result<(Sparse, ObjectId)> {
        let bytes = objects.read(id, ObjectKind::Blob, BYTES_MAX)?;
        std::str::from_utf8(&bytes)
            .ok()
            .and_then(Sparse::decode)
            .ok_or_else(|| objects.damaged(id, "it is not a list of the data ranges of a sparse file"))
    }

    fn decode(text: &str) -> Option<(Sparse, ObjectId)> {
        let mut lines = text.lines();
        if lines.next()? != HEAD {
            return None;
        }
        let length = lines.next()?.strip_prefix("length ")?.parse().ok()?;
        let data = ObjectId::parse(lines.next()?.strip_prefix("data ")?)?;
        let (mut pieces, mut at) = (Vec::new(), 0_u64);
        for line in lines {
            let (offset, len) = line.split_once(' ')?;
            let (offset, len): (u64, u64) = (offset.parse().ok()?, len.parse().ok()?);
            let follows = pieces.is_empty() || offset > at;
            at = offset.checked_add(len).filter(|end| follows && len > 0 && *end <= length)?;
            pieces.push((offset, len));
        }
        let sparse = Sparse { length, pieces };
        (sparse.encode(data) == text).then_some((sparse, data))
    }
}

struct Data<'a> {
    file: &'a File,
    pieces: &'a [(u64, u64)],
    /// Number of bytes of the first piece that are done.
    done: u64,
}

impl Data<'_> {
    /// Returns the next offset, and how many of `bytes` bytes fit there; `None` at the end.
    fn next(&mut self, bytes: usize) -> Option<(u64, usize)> {
        while let Some((offset, length)) = self.pieces.first() {
            let left = length.saturating_sub(self.done);
            if left > 0 {
                let bytes = usize::try_from(left).unwrap_or(usize::MAX).min(bytes);
                return Some((offset + self.done, bytes));
            }
            self.pieces = self.pieces.get(1..).unwrap_or_default();
            self.done = 0;
        }
        None
    }
}

impl Read for Data<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some((offset, bytes)) = self.next(buffer.len()) else { return Ok(0) };
        let read = self.file.read_at(buffer.get_mut(..bytes).unwrap_or_default(), offset)?;
        self.done += len(buffer.get(..read).unwrap_or_default());
        Ok(read)
    }
}

impl Write for Data<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some((offset, count)) = self.next(bytes.len()) else { return Ok(0) };
        let written = self.file.write_at(bytes.get(..count).unwrap_or_default(), offset)?;
        self.done += len(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_blob_says_of_a_file_is_read_as_it_was_written_and_nothing_else_is() {
        let data = ObjectId([7; 20]);
        let sparse = Sparse { length: 1 << 40, pieces: vec![(0, 4096), (8192, 1), (1 << 39, 1 << 39)] };
        let text = sparse.encode(data);
        assert_eq!(Sparse::decode(&text), Some((sparse, data)));
        let damaged = [
            text.replace("8192 1", "4096 1"),
            text.replace("8192 1", "8192 0"),
            text.replace("8192 1", "8192 01"),
            text.replace("8192 1", "18446744073709551615 1"),
            text.replace("length 1099511627776", "length 1099511627775"),
            text.replace("sparse 1", "sparse 2"),
            format!("{text}\n"),
            String::new(),
        ];
        for damaged in damaged {
            assert_eq!(Sparse::decode(&damaged), None, "{damaged}");
        }
    }
}
