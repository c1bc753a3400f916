//! Runs: values of one type that were put in one behind the other, in one piece of memory.
//!
//! A value that stands in a run costs no allocation, no counter and no row of its own. These were a sixth of a dispatch;
//! and a value of 72 bytes took 162, not counting what it owns elsewhere, where it takes 82 now.
//!
//! # Invariants
//!
//! 1. A run holds one item at least. All are of one type and one version, each the first of its record and later than
//!    the one before.
//! 2. A run that is shared is never written: [`room`] gives none in it.
//! 3. It has [`RUN_ITEMS_MAX`] items at most, which take [`RUN_BYTES_MAX`] at most, and [`VALUE_BYTES_MAX`] each when
//!    recorded: one item that is left, or a handle of it, holds the whole run in memory.

use std::any::Any;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::ItemId;
use triomphe::Arc;

/// How many items stand in a run at most.
const RUN_ITEMS_MAX: usize = 64;

/// How many bytes the items of a run take at most, what they own elsewhere not counted.
const RUN_BYTES_MAX: usize = 8 << 10;

/// How large the recording of a value is at most that may stand in a run, in bytes: what it owns elsewhere is about as much.
pub(crate) const VALUE_BYTES_MAX: usize = 1 << 10;

/// A value of any type, as a run or a row holds it.
pub(crate) type Value = dyn Any + Send + Sync;

struct Entry<T> {
    sequence: SequenceNumber,
    value: T,
}

/// Values of one type. Counted by an `Arc` without weak handles, so that a writer sees by a plain read whether a run is its
/// own.
pub(crate) struct Run<T> {
    version: u32,
    first: Entry<T>,
    others: Vec<Entry<T>>,
}

impl<T> Run<T> {
    const ITEMS_MAX: usize = {
        let fit = RUN_BYTES_MAX / size_of::<Entry<T>>();
        if fit < RUN_ITEMS_MAX { fit } else { RUN_ITEMS_MAX }
    };

    fn entry(&self, at: usize) -> &Entry<T> {
        at.checked_sub(1).and_then(|at| self.others.get(at)).unwrap_or(&self.first)
    }

    /// The value at a place below the run's length; beyond it, the first.
    pub(crate) fn value(&self, at: usize) -> &T {
        &self.entry(at).value
    }
}

/// A handle of a run of any one type: its own where it is boxed, a shared one where it is counted once more.
pub(crate) trait AnyRun: Send + Sync {
    /// Another handle of the same run.
    fn again(&self) -> Box<dyn AnyRun>;
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
    /// Whether this is the run's only handle.
    fn is_only(&self) -> bool;
    fn len(&self) -> usize;
    /// The version that all of its items were recorded at.
    fn version(&self) -> u32;
    /// The name of the item at a place below the length; beyond it, the first's.
    fn id(&self, at: usize) -> ItemId;
    /// Its value.
    fn value(&self, at: usize) -> &Value;
}

impl<T: Send + Sync + 'static> AnyRun for Arc<Run<T>> {
    fn again(&self) -> Box<dyn AnyRun> {
        Box::new(Arc::clone(self))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn is_only(&self) -> bool {
        self.is_unique()
    }

    fn len(&self) -> usize {
        self.others.len() + 1
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn id(&self, at: usize) -> ItemId {
        ItemId { sequence: self.entry(at).sequence, ordinal: 0 }
    }

    fn value(&self, at: usize) -> &Value {
        &self.entry(at).value
    }
}

/// Whether values of a type are small enough for more than one of them to stand in a run.
pub(crate) fn is_for<T>() -> bool {
    Run::<T>::ITEMS_MAX > 1
}

/// A run of one value, the first of its record; `many` where it is likely to be filled.
pub(crate) fn begin<T: Send + Sync + 'static>(
    sequence: SequenceNumber,
    version: u32,
    value: T,
    many: bool,
) -> Box<dyn AnyRun> {
    let others = Vec::with_capacity(if many { Run::<T>::ITEMS_MAX.saturating_sub(1) } else { 0 });
    Box::new(Arc::new(Run { version, first: Entry { sequence, value }, others }))
}

/// Room for one value behind the others of a run.
pub(crate) struct Room<'a, T>(&'a mut Run<T>);

impl<T> Room<'_, T> {
    /// Takes a value of a later record than all before.
    #[inline]
    pub(crate) fn push(self, sequence: SequenceNumber, value: T) {
        let others = &mut self.0.others;
        // Said once more, so that nothing stands between the value's old place and its new one: it is else put down on
        // the way, and read again before it is written out.
        if others.len() < others.capacity() {
            others.push(Entry { sequence, value });
        } else {
            push_into_more(others, Entry { sequence, value });
        }
    }
}

#[cold]
fn push_into_more<T>(others: &mut Vec<Entry<T>>, entry: Entry<T>) {
    others.push(entry);
}

/// Room for a value of this type and version, where there is any and nobody shares the run.
#[inline]
pub(crate) fn room<T: Send + Sync + 'static>(run: &mut dyn AnyRun, version: u32) -> Option<Room<'_, T>> {
    let run = Arc::get_mut(run.as_any_mut().downcast_mut::<Arc<Run<T>>>()?)?;
    (run.version == version && run.others.len() + 1 < Run::<T>::ITEMS_MAX).then_some(Room(run))
}

/// The run by its type.
pub(crate) fn of_type<T: 'static>(run: &dyn AnyRun) -> Option<Arc<Run<T>>> {
    run.as_any().downcast_ref::<Arc<Run<T>>>().cloned()
}

/// The place of an item in a run.
pub(crate) fn find(run: &dyn AnyRun, id: ItemId) -> Option<usize> {
    let (mut from, mut to) = (0, run.len());
    while from < to {
        let middle = from + (to - from) / 2;
        match run.id(middle).cmp(&id) {
            std::cmp::Ordering::Less => from = middle + 1,
            std::cmp::Ordering::Equal => return Some(middle),
            std::cmp::Ordering::Greater => to = middle,
        }
    }
    None
}
