//! States that share their items, and comparing them by what changed.

use foldlog_codec::body::Policy;

use crate::fold::projection::Projection;
use crate::fold::rows::Rows;
use crate::session::State;

/// The slices at one position of a fold. Shares its items with the fold, so that taking one costs little, however much it
/// holds.
#[derive(Clone, Debug)]
pub struct SharedState {
    projection: Projection,
}

impl SharedState {
    pub(super) fn of(projection: &Projection) -> SharedState {
        SharedState { projection: projection.clone() }
    }

    /// The slices, with all their items.
    pub fn to_state(&self) -> State {
        State::of(&self.projection)
    }

    /// Whether each LOG slice is that of `earlier` with more items behind it. Looks at no more than what the two do not
    /// share, and says `false` where that does not tell: the slices themselves then do.
    pub fn logs_grew_since(&self, earlier: &SharedState) -> bool {
        let empty = Rows::default();
        self.slices(Policy::Log).chain(earlier.slices(Policy::Log)).all(|slice| {
            let before = earlier.rows(slice).unwrap_or(&empty);
            self.rows(slice).unwrap_or(&empty).only_grew_since(before)
        })
    }

    /// The ids of the slices of a policy.
    fn slices(&self, policy: Policy) -> impl Iterator<Item = u32> {
        let slices = self.projection.names.slices().iter();
        slices.filter(move |slice| slice.policy == policy).map(|slice| slice.id)
    }

    fn rows(&self, slice: u32) -> Option<&Rows> {
        Some(self.projection.items(slice)?.1.held())
    }
}

/// Compares STATE of two folds that go on side by side. What was found to be the same is not looked at again: where both
/// have changed alike since then, they are the same still.
#[derive(Debug, Default)]
pub struct Comparison {
    /// STATE by slice, where both were the same last; empty where they were not.
    same: Vec<(Rows, Rows)>,
}

impl Comparison {
    /// Whether STATE of both is the same, item by item. Says `false` also where their items are not kept alike, which
    /// the slices themselves then tell from a difference.
    pub fn is_same(&mut self, one: &SharedState, other: &SharedState) -> bool {
        let empty = Rows::default();
        let len = one.projection.names.slices().len().max(other.projection.names.slices().len());
        self.same.resize_with(len, Default::default);
        let mut all = true;
        let slices: Vec<u32> = one.slices(Policy::State).chain(other.slices(Policy::State)).collect();
        for slice in slices {
            let Some((one_then, other_then)) = self.same.get_mut(slice as usize) else { continue };
            let now = [one.rows(slice), other.rows(slice)].map(|rows| rows.unwrap_or(&empty));
            let same = match (now[0].changes_since(one_then), now[1].changes_since(other_then)) {
                (Some(one), Some(other)) => {
                    one.len() == other.len() && one.iter().zip(&other).all(|(one, other)| one.is_same(other))
                }
                _ => false,
            };
            (*one_then, *other_then) =
                if same { (now[0].clone(), now[1].clone()) } else { Default::default() };
            all &= same;
        }
        all
    }
}
