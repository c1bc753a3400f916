//! What the checksum of some bytes says of the checksum of a part of them.
//!
//! A CRC-32 is a remainder of polynomials, so the checksum of two stretches one behind the other follows from those of
//! each. Whoever has the checksums of all bytes up to two places has, for the price of one multiplication, that of what
//! stands between these, however much it is.

use std::sync::OnceLock;

/// CRC-32's polynomial, its bits in the order in which the checksum has them.
pub(crate) const POLYNOMIAL: u32 = 0xedb8_8320;

/// The bit of a checksum that is set where the polynomial was last added to it. As a polynomial, one.
pub(crate) const TOP: u32 = 1 << 31;

/// Counts the lengths, in bytes from 0 on, whose power of x stands in a table.
const LOW_LENS: usize = 1 << 12;

/// x to the eighth, which stands for one byte.
const BYTE: u32 = TOP >> 8;

/// The checksum of the bytes whose checksum is `before`, and of these behind them.
#[must_use]
pub fn with_bytes(before: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    hasher.update(bytes);
    hasher.finalize()
}

/// The checksum of the bytes whose checksum is `before`, and of so many zeros behind them.
#[must_use]
pub fn with_zeros(before: u32, zeros: u64) -> u32 {
    !shifted(!before, zeros)
}

/// What a checksum comes to so many bytes later, before those are added to it: the checksum of two stretches is that of
/// the first, moved on by the length of the second, and exclusive-or that of the second.
#[must_use]
pub fn shifted(checksum: u32, len: u64) -> u32 {
    let Powers { low, high } = powers();
    // Most lengths are those of a frame; longer ones are holes, of which there are few.
    let (of_low, rest) = (len % LOW_LENS as u64, len / LOW_LENS as u64);
    let checksum = index(low, of_low).map_or(checksum, |power| product(power, checksum));
    match index(high, rest) {
        Some(power) => product(power, checksum),
        None => product(power_of(index(high, 1).unwrap_or(TOP), rest), checksum),
    }
}

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

/// `base` to a power.
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

/// The product of two polynomials, less what the checksum's own divides.
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
            let joined = shifted(crc32fast::hash(before), behind.len() as u64) ^ crc32fast::hash(behind);
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
        // Beyond what anybody could hash: in two steps or in one.
        let (long, longer) = (1 << 40, (1 << 25) + 12_345);
        assert_eq!(with_zeros(with_zeros(7, long), longer), with_zeros(7, long + longer));
    }
}
