//! Values that are stored once, and referred to by their numbers.

use std::collections::HashMap;
use std::hash::Hash;

use serde::Serialize;

/// Different values, in the order in which they occurred first.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Numbered<T> {
    pub(crate) values: Vec<T>,
    #[serde(skip)]
    numbers: HashMap<T, u32>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered { values: Vec::new(), numbers: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash> Numbered<T> {
    /// Returns the number of a value, counted from 0.
    pub(crate) fn number(&mut self, value: T) -> u32 {
        if let Some(number) = self.numbers.get(&value) {
            return *number;
        }
        let number = self.values.len() as u32;
        self.values.push(value.clone());
        self.numbers.insert(value, number);
        number
    }
}
