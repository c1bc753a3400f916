//! Random numbers. No other module generates any.
//!
//! Session ids and seeds are drawn from the store's generator. Salts and the numbers for reducers
//! are drawn from the session's seed. The generator is ChaCha with 8 rounds (`rand_chacha`, whose
//! streams are guaranteed to be stable), so one seed gives one log on every machine and in every
//! version.

use foldlog_codec::SequenceNumber;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use uuid::Uuid;

/// Generates random numbers from a seed.
#[derive(Debug, Clone)]
pub struct Generator {
    rng: ChaCha8Rng,
}

impl Generator {
    /// Creates a generator from a seed. The same seed gives the same numbers on every machine and
    /// in every version.
    pub fn from_seed(seed: u64) -> Generator {
        Generator { rng: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// Creates a generator with a seed from the system's entropy.
    #[expect(clippy::disallowed_methods, reason = "the seed of a session whose host gives none")]
    pub(crate) fn from_entropy() -> Generator {
        let entropy = Uuid::new_v4().as_u128();
        Generator::from_seed((entropy >> 64) as u64 ^ entropy as u64)
    }

    /// Returns the generator for reducers at one record. It depends only on the seed of the session
    /// in which the record was first written, and on the record's sequence number.
    pub(crate) fn for_record(seed: u64, sequence: SequenceNumber) -> Generator {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // Stream 0 belongs to the session, so the streams of records start at 1.
        rng.set_stream(sequence.get().wrapping_add(1));
        Generator { rng }
    }

    /// Returns the generator of the token that identifies a workspace's directory. `position` is
    /// the last record before the session first binds the directory.
    pub(crate) fn for_directory(seed: u64, position: SequenceNumber) -> Generator {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // Streams of records count from the other end.
        rng.set_stream(!position.get());
        Generator { rng }
    }

    /// Returns the salt of a segment.
    pub(crate) fn salt(seed: u64, ordinal: u32) -> u64 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_word_pos(1 << 20 | u128::from(ordinal) << 2);
        rng.next_u64()
    }

    /// Returns a random number of 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// Returns a random number below `bound`; 0 if `bound` is 0. All numbers are equally likely, up
    /// to a bias below `bound / 2^64`.
    pub fn next_below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a random number from 0 (inclusive) to 1 (exclusive).
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a random identifier (a version 4 UUID).
    pub fn uuid(&mut self) -> Uuid {
        let bits = u128::from(self.next_u64()) << 64 | u128::from(self.next_u64());
        uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_pinned_since_logs_depend_on_them() {
        assert_eq!(Generator::from_seed(1).next_u64(), Generator::from_seed(1).next_u64());
        let first: Vec<u64> = (0..3).map(|n| Generator::for_record(7, n.into()).next_u64()).collect();
        assert_eq!(first.len(), first.iter().collect::<std::collections::BTreeSet<_>>().len());
        assert_ne!(Generator::salt(7, 0), Generator::salt(7, 1));
        // ChaCha8 of `rand_chacha`, seeded with 42. If this number changes, all logs change.
        assert_eq!(Generator::from_seed(42).next_u64(), 12_578_764_544_318_200_737);
    }

    #[test]
    fn bounds_hold() {
        let mut generator = Generator::from_seed(3);
        assert!((0..1000).all(|_| generator.next_below(7) < 7));
        assert_eq!(generator.next_below(0), 0);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&generator.next_f64())));
    }
}
