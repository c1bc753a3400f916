//! Views of LOG slices, which read items from the log by their places.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::ops::ControlFlow;

use foldlog_codec::SequenceNumber;

use crate::error::{Error, Result};
use crate::fold::log_source::{EncodedItem, LogSource};
use crate::items::log_items::{ItemMark, LogItems};
use crate::types::{Decoder, Item, RecordedBytes};

/// Number of items that are read at a time.
const BATCH_ITEMS: usize = 256;

/// Reads a LOG slice as it was at one moment.
///
/// Items are read from the log on demand, so the slice may be of any length. The view does not
/// change while the session continues, and stays readable after the session is closed, as long as
/// its directory exists.
pub struct LogView<T> {
    /// `None` if the log has not declared the slice yet.
    slice: Option<ViewedSlice>,
    of: PhantomData<fn() -> T>,
}

/// A LOG slice as a view reads it: its items, their log, and their decoder.
#[derive(Clone)]
pub(super) struct ViewedSlice {
    pub(super) id: u32,
    pub(super) items: LogItems,
    pub(super) source: LogSource,
    pub(super) decoder: Decoder,
}

impl<T> Clone for LogView<T> {
    fn clone(&self) -> Self {
        LogView { slice: self.slice.clone(), of: PhantomData }
    }
}

impl<T> fmt::Debug for LogView<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.slice.as_ref().map_or(0, |slice| slice.items.len());
        f.debug_struct("LogView").field("len", &len).finish()
    }
}

impl<T: Send + Sync + 'static> LogView<T> {
    pub(super) fn new(slice: Option<ViewedSlice>) -> LogView<T> {
        LogView { slice, of: PhantomData }
    }

    /// Returns the number of items in the slice.
    pub fn len(&self) -> u64 {
        self.slice.as_ref().map_or(0, |slice| slice.items.len())
    }

    /// Returns whether the slice has no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the item at `place`, counted from 0. The cost does not depend on the place: at most
    /// some thousand records of the log are read.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the log cannot be read, [`Error::Object`] if an object is missing or
    /// damaged, [`Error::Decode`] or [`Error::NewerVersion`] if the item cannot be read as `T`.
    pub fn get(&self, place: u64) -> Result<Option<Item<T>>> {
        self.items_from(place).next().transpose()
    }

    /// Returns the last `count` items, in the slice's order.
    pub fn tail(&self, count: usize) -> Result<Vec<Item<T>>> {
        self.items_from(self.len().saturating_sub(count as u64)).collect()
    }

    /// Returns the items in order, reading a few hundred at a time. The first error ends the
    /// iterator.
    pub fn iter(&self) -> impl Iterator<Item = Result<Item<T>>> {
        self.items_from(0)
    }

    /// Returns the items at the places from `from` to before `end`, counted from 0.
    pub(crate) fn between(&self, from: u64, end: u64) -> impl Iterator<Item = Result<Item<T>>> {
        let count = usize::try_from(end.saturating_sub(from)).unwrap_or(usize::MAX);
        self.items_from(from).take(count)
    }

    /// Returns the items of the records after the one at `sequence`, as [`iter`](LogView::iter)
    /// does. If there are none, the log is not read. Otherwise at most a few hundred earlier items
    /// are read in addition.
    pub fn items_after(&self, sequence: impl Into<SequenceNumber>) -> impl Iterator<Item = Result<Item<T>>> {
        let sequence = sequence.into();
        let place = self.slice.as_ref().map_or(0, |slice| slice.items.place_behind(sequence));
        let is_before = move |item: &Item<T>| item.position().is_some_and(|(at, _)| at <= sequence);
        self.items_from(place).skip_while(move |item| item.as_ref().is_ok_and(is_before))
    }

    fn items_from(&self, place: u64) -> LogViewIter<'_, T> {
        LogViewIter {
            slice: self.slice.as_ref(),
            next: place,
            near: None,
            read: VecDeque::new(),
            of: PhantomData,
        }
    }
}

struct LogViewIter<'a, T> {
    slice: Option<&'a ViewedSlice>,
    next: u64,
    near: Option<ItemMark>,
    read: VecDeque<EncodedItem>,
    of: PhantomData<fn() -> T>,
}

impl<T> LogViewIter<'_, T> {
    fn read_on(&mut self, slice: &ViewedSlice) -> Result<()> {
        let (read, near) = (&mut self.read, &mut self.near);
        slice.source.read(slice.id, &slice.items, self.next, *near, &mut |mark, stored| {
            *near = Some(mark);
            read.push_back(stored);
            Ok(if read.len() < BATCH_ITEMS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })
    }
}

impl<T: Send + Sync + 'static> Iterator for LogViewIter<'_, T> {
    type Item = Result<Item<T>>;

    fn next(&mut self) -> Option<Self::Item> {
        let slice = self.slice?;
        if self.next >= slice.items.len() {
            return None;
        }
        if self.read.is_empty()
            && let Err(error) = self.read_on(slice)
        {
            self.slice = None;
            return Some(Err(error));
        }
        let stored = self.read.pop_front()?;
        self.next = stored.place + 1;
        let item = slice
            .decoder
            .alone(stored.version, stored.id.sequence, RecordedBytes::Elsewhere(&stored.bytes))
            .map_err(Error::from)
            .and_then(|value| match value.downcast() {
                Ok(value) => Ok(Item::from_value(stored.id, value)),
                Err(_) => {
                    let slice = slice.source.names.slice_name(slice.id);
                    Err(Error::NoSuchSlice { slice, reason: "its items are of another type" })
                }
            });
        if item.is_err() {
            self.slice = None;
        }
        Some(item)
    }
}
