//! Random numbers from a seed: the same seed gives the same numbers.

use std::time::Duration;

/// A random number generator (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    /// Makes an independent generator for one of many things.
    pub(crate) fn of(seed: u64, which: u64) -> Chance {
        let mut chance = Chance(seed ^ which.wrapping_mul(0xd6e8_feb8_6659_fd93));
        chance.number();
        chance
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.number() % end.max(1)
    }

    /// Returns `true` once in `times` calls on average.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn one_of<'a, T>(&mut self, things: &'a [T]) -> Option<&'a T> {
        things.get(usize::try_from(self.below(things.len() as u64)).unwrap_or_default())
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.number().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// Returns a duration below `end`.
    pub(crate) fn moment(&mut self, end: Duration) -> Duration {
        Duration::from_nanos(self.below(u64::try_from(end.as_nanos()).unwrap_or(u64::MAX)))
    }
}
