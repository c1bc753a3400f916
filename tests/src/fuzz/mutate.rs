//! Random mutations of kept inputs: changed bits and bytes, pieces that are removed, repeated or
//! exchanged, numbers that are often special, and parts of other inputs.

use foldlog_test_support::crash::Chance;

/// The limit on an input's growth, in bytes.
const LEN_MAX: usize = 1 << 16;

/// Bytes that formats treat specially: MessagePack's markers, JSON's signs, limits.
const TELLING: &[u8] =
    b"\x00\x01\x02\x7f\x80\x81\x8f\x90\x9f\xa0\xc0\xc1\xc4\xc6\xc7\xca\xcf\xd0\xd3\xd4\xd9\xdc\xdf\xe0\xff[]{},:\"\\-0";

/// Returns one of the kept inputs, changed in a few places.
pub fn mutated(chance: &mut Chance, kept: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = chance.pick(kept).clone();
    for _ in 0..=chance.below(4) {
        change(chance, &mut bytes, kept);
    }
    bytes.truncate(LEN_MAX);
    bytes
}

fn change(chance: &mut Chance, bytes: &mut Vec<u8>, kept: &[Vec<u8>]) {
    let len = bytes.len() as u64;
    let at = chance.below(len + 1) as usize;
    let most = (bytes.len() - at) as u64;
    let piece = at..at + chance.below(most.min(40) + 1) as usize;
    match chance.below(9) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << chance.below(8);
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = *chance.pick(TELLING);
            }
        }
        2 => {
            if let Some(byte) = bytes.get_mut(at) {
                let by = 1 + chance.below(3) as u8;
                *byte = if chance.percent(50) { byte.wrapping_add(by) } else { byte.wrapping_sub(by) };
            }
        }
        3 => drop(bytes.drain(piece)),
        4 => {
            let twice = bytes[piece].to_vec();
            bytes.splice(at..at, twice);
        }
        5 => {
            let other = chance.pick(kept);
            let from = chance.below(other.len() as u64 + 1) as usize;
            let len = chance.below((other.len() - from).min(400) as u64 + 1) as usize;
            bytes.splice(piece, other[from..from + len].iter().copied());
        }
        6 => bytes.truncate(at),
        7 => {
            let with = chance.number().to_le_bytes();
            let len = chance.below(9) as usize;
            bytes.splice(piece, with[..len].iter().copied());
        }
        _ => {
            let special = *chance.pick(&[0_u64, 1, 0x7fff_ffff, 0xffff_ffff, u64::MAX, 1 << 24, 84, 28]);
            let width = *chance.pick(&[1, 2, 4, 8]);
            for (slot, byte) in bytes.iter_mut().skip(at).zip(&special.to_le_bytes()[..width]) {
                *slot = *byte;
            }
        }
    }
}
