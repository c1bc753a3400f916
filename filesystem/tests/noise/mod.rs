//! Contents that no compression makes smaller.

/// Returns bytes that look random, and depend on the seed alone.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ seed.wrapping_mul(0xff51_afd7_ed55_8ccd);
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(step).collect()
}
