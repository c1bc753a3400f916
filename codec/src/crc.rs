//! Computes CRC-32 checksums of concatenated and of partial byte ranges.
//!
//! A CRC-32 is a remainder of polynomials, so the checksum of two consecutive ranges follows from
//! the checksum of each. From the checksums of a file's bytes up to two offsets, a few
//! multiplications give the checksum of the bytes between them, for any number of bytes. A search
//! for frames in a damaged segment uses this.

use crc32fast::Hasher;

/// The polynomial of CRC-32 (IEEE), with its bits reversed as in the checksum.
pub(crate) const POLYNOMIAL: u32 = 0xedb8_8320;

/// The most significant bit of a checksum, which is set if the polynomial was added last. Read as a
/// polynomial, it is 1.
pub(crate) const TOP: u32 = 1 << 31;

/// Extends a checksum by bytes: returns the checksum of the range with the checksum `before`,
/// followed by `bytes`.
///
/// ```
/// use foldlog_codec::crc;
///
/// let before = crc::with_bytes(0, b"fold");
/// assert_eq!(crc::with_bytes(before, b"log"), crc::with_bytes(0, b"foldlog"));
/// ```
#[must_use]
pub fn with_bytes(before: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(before);
    hasher.update(bytes);
    hasher.finalize()
}

/// Extends a checksum by zero bytes: returns the checksum of the range with the checksum `before`,
/// followed by `zeros` bytes of 0. The running time grows only with the number of digits of
/// `zeros`.
#[must_use]
pub fn with_zeros(before: u32, zeros: u64) -> u32 {
    !shift_checksum(!before, zeros)
}

/// Shifts a checksum by `len` bytes, without the bytes themselves.
///
/// The checksum of two consecutive ranges is the checksum of the first, shifted by the length of
/// the second, exclusive-or the checksum of the second.
#[must_use]
pub fn shift_checksum(checksum: u32, len: u64) -> u32 {
    let mut shifted = Hasher::new_with_initial(checksum);
    // A checksum of 0 adds nothing but its length.
    shifted.combine(&Hasher::new_with_initial_len(0, len));
    shifted.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_stretches_have_the_checksum_that_follows_from_those_of_each() {
        let bytes: Vec<u8> = (0..70_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for (from, to) in [(0, 0), (0, 1), (3, 4_098), (5, 4_101), (1, 20_000), (9, 70_000)] {
            let (before, behind) = (&bytes[..from], &bytes[from..to]);
            let joined =
                shift_checksum(crc32fast::hash(before), behind.len() as u64) ^ crc32fast::hash(behind);
            assert_eq!(joined, crc32fast::hash(&bytes[..to]), "{from}..{to}");
        }
    }

    #[test]
    fn zeros_behind_are_counted_however_many_they_are() {
        for zeros in [0, 1, 4_095, 4_096, 4_097, 1 << 20] {
            let padded = [b"before", &vec![0; zeros][..]].concat();
            assert_eq!(
                with_zeros(crc32fast::hash(b"before"), zeros as u64),
                crc32fast::hash(&padded),
                "{zeros}"
            );
        }
        // Lengths beyond any real input: two steps give the same result as one.
        let (long, longer) = (1 << 40, (1 << 25) + 12_345);
        assert_eq!(with_zeros(with_zeros(7, long), longer), with_zeros(7, long + longer));
    }
}
