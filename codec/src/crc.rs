//! Computes CRC-32 checksums of concatenated and of partial byte ranges.
//!
//! A CRC-32 is a remainder of polynomials, so the checksum of two consecutive ranges follows from
//! the checksum of each. From the checksums of a file's bytes up to two offsets, one multiplication
//! gives the checksum of the bytes between them, for any number of bytes. A search for frames in a
//! damaged segment uses this.

use std::sync::OnceLock;

/// The polynomial of CRC-32 (IEEE), with its bits reversed as in the checksum.
pub(crate) const POLYNOMIAL: u32 = 0xedb8_8320;

/// The most significant bit of a checksum, which is set if the polynomial was added last. Read as a
/// polynomial, it is 1.
pub(crate) const TOP: u32 = 1 << 31;

/// Number of lengths, in bytes from 0 on, whose power of x is in the table of low powers.
const LOW_LENS: usize = 1 << 12;

/// x to the power of 8: shifts a checksum by one byte.
const BYTE: u32 = TOP >> 8;

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
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    hasher.update(bytes);
    hasher.finalize()
}

/// Extends a checksum by zero bytes: returns the checksum of the range with the checksum `before`,
/// followed by `zeros` bytes of 0. The running time does not grow with `zeros`.
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
    let Powers { low, high } = powers();
    // Most lengths are those of a frame. Longer ones are holes, which are rare.
    let (of_low, rest) = (len % LOW_LENS as u64, len / LOW_LENS as u64);
    let checksum = index(low, of_low).map_or(checksum, |power| product(power, checksum));
    match index(high, rest) {
        Some(power) => product(power, checksum),
        None => product(power_of(index(high, 1).unwrap_or(TOP), rest), checksum),
    }
}

/// Contains precomputed powers of x, from which [`shift_checksum`] computes the factor for a
/// length.
struct Powers {
    /// x to eight times the index.
    low: Vec<u32>,
    /// x to eight times the index times [`LOW_LENS`].
    high: Vec<u32>,
}

fn powers() -> &'static Powers {
    static POWERS: OnceLock<Powers> = OnceLock::new();
    POWERS.get_or_init(|| {
        let row = |factor: u32, len: usize| {
            let row = std::iter::successors(Some(TOP), |power| Some(product(*power, factor)));
            row.take(len).collect::<Vec<u32>>()
        };
        let low = row(BYTE, LOW_LENS);
        let step = product(low.last().copied().unwrap_or(TOP), BYTE);
        Powers { high: row(step, LOW_LENS + 2), low }
    })
}

fn index(row: &[u32], at: u64) -> Option<u32> {
    row.get(usize::try_from(at).ok()?).copied()
}

/// Raises the polynomial `base` to a power, modulo the polynomial of CRC-32.
fn power_of(mut base: u32, mut exponent: u64) -> u32 {
    let mut power = TOP;
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = product(power, base);
        }
        base = product(base, base);
        exponent >>= 1;
    }
    power
}

/// Multiplies two polynomials, modulo the polynomial of CRC-32.
fn product(left: u32, mut right: u32) -> u32 {
    let mut product = 0;
    for bit in (0..32).rev() {
        if left >> bit & 1 == 1 {
            product ^= right;
        }
        right = if right & 1 == 1 { right >> 1 ^ POLYNOMIAL } else { right >> 1 };
    }
    product
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
