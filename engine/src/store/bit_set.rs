//! Sets of small numbers.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BitSet(Vec<u64>);

impl BitSet {
    pub(super) fn add(&mut self, number: u64) {
        let Ok(word) = usize::try_from(number / 64) else { return };
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        if let Some(word) = self.0.get_mut(word) {
            *word |= 1 << (number % 64);
        }
    }

    pub(super) fn extend(&mut self, others: &BitSet) {
        if self.0.len() < others.0.len() {
            self.0.resize(others.0.len(), 0);
        }
        for (word, other) in self.0.iter_mut().zip(&others.0) {
            *word |= other;
        }
    }

    pub(super) fn first(&self) -> Option<u64> {
        let (at, word) = self.0.iter().enumerate().find(|(_, word)| **word != 0)?;
        Some(at as u64 * 64 + u64::from(word.trailing_zeros()))
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        let word = usize::try_from(number / 64).unwrap_or(usize::MAX);
        self.0.get(word).is_some_and(|word| word & (1 << (number % 64)) != 0)
    }

    pub(super) fn contains_all(&self, others: &BitSet) -> bool {
        let own = self.0.iter().copied().chain(std::iter::repeat(0));
        others.0.iter().zip(own).all(|(other, word)| other & !word == 0)
    }
}
