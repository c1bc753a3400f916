//! The bytes of one file: the bytes that reads return, and the bytes that a power cut leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::chance::{Chance, Grain, PowerCutOutcome};

/// Number of bytes that the kernel writes as a whole.
const PAGE_BYTES: usize = 4096;

type Page = [u8; PAGE_BYTES];

/// One version of a file's bytes. A missing page is all zeros; versions share pages until one of
/// them changes.
#[derive(Clone, Default)]
struct Image {
    pages: BTreeMap<u64, Arc<Page>>,
    len: u64,
}

impl Image {
    fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let readable = left.min(buf.len());
        let mut rest = buf.get_mut(..readable).unwrap_or_default();
        let mut position = offset;
        while !rest.is_empty() {
            let (page, within) = locate(position);
            let count = rest.len().min(PAGE_BYTES - within);
            let (piece, tail) = rest.split_at_mut(count);
            match self.pages.get(&page).and_then(|page| page.get(within..within + count)) {
                Some(found) => piece.copy_from_slice(found),
                None => piece.fill(0),
            }
            position += count as u64;
            rest = tail;
        }
        readable
    }

    fn write(&mut self, bytes: &[u8], offset: u64) {
        let mut rest = bytes;
        let mut position = offset;
        while !rest.is_empty() {
            let (page, within) = locate(position);
            let count = rest.len().min(PAGE_BYTES - within);
            let (piece, tail) = rest.split_at(count);
            let page = Arc::make_mut(self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE_BYTES])));
            if let Some(place) = page.get_mut(within..within + count) {
                place.copy_from_slice(piece);
            }
            position += count as u64;
            rest = tail;
        }
        self.len = self.len.max(position);
    }

    /// Copies one page of another image into this one.
    fn take_page(&mut self, page: u64, from: &Image) {
        match from.pages.get(&page) {
            Some(found) => self.pages.insert(page, Arc::clone(found)),
            None => self.pages.remove(&page),
        };
    }

    /// Copies random pieces of a page of another image into this one: the page is torn.
    fn take_pieces(&mut self, page: u64, from: &Image, grain: Grain, chance: &mut Chance) {
        let Some(new) = from.pages.get(&page) else { return };
        let torn = Arc::make_mut(self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE_BYTES])));
        for (old, new) in torn.chunks_mut(grain.bytes()).zip(new.chunks(grain.bytes())) {
            if chance.coin() {
                old.copy_from_slice(new);
            }
        }
    }

    /// Sets the length, and clears the bytes after it so that they never come back.
    fn cut_at(&mut self, len: u64) {
        let (page, within) = locate(len);
        let behind = self.pages.split_off(&page);
        if let Some(last) = behind.get(&page).filter(|_| within > 0) {
            let mut last = **last;
            last.get_mut(within..).unwrap_or_default().fill(0);
            self.pages.insert(page, Arc::new(last));
        }
        self.len = len;
    }
}

/// A file: the bytes that reads return, the durable bytes, and the pages that differ.
#[derive(Default)]
pub(super) struct FilePages {
    current: Image,
    durable: Image,
    dirty: BTreeSet<u64>,
    /// Pages that a failed sync left: they look clean, so no later sync writes them, and the disk
    /// may lack them.
    abandoned: BTreeSet<u64>,
    /// Number of failed syncs. Each handle that was open then reports one of them once, as on
    /// Linux.
    pub(super) failures: u64,
}

impl FilePages {
    /// Returns a new file of `len` zeros, none of them durable yet.
    pub(super) fn with_zeros(len: u64) -> Self {
        Self { current: Image { pages: BTreeMap::new(), len }, ..Self::default() }
    }

    /// Lengthens the file with zeros, to at least `len` bytes.
    pub(super) fn lengthen(&mut self, len: u64) {
        self.current.len = self.current.len.max(len);
    }

    /// Returns a file with these bytes, all durable.
    pub(super) fn from_durable_bytes(bytes: &[u8]) -> Self {
        let mut image = Image::default();
        image.write(bytes, 0);
        Self { current: image.clone(), durable: image, ..Self::default() }
    }

    pub(super) fn len(&self) -> u64 {
        self.current.len
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        self.current.read(buf, offset)
    }

    /// Returns the start of the next page, at or after `offset`, that was ever written.
    pub(super) fn next_data(&self, offset: u64) -> u64 {
        let page = self.current.pages.range(locate(offset).0..).next();
        page.map_or(self.current.len, |(page, _)| page * PAGE_BYTES as u64).max(offset)
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.current.len).unwrap_or(usize::MAX)];
        self.current.read(&mut bytes, 0);
        bytes
    }

    /// Writes bytes at a position. The caller has checked that `offset + bytes.len()` does not
    /// overflow.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        let Some(last) = (bytes.len() as u64).checked_sub(1) else { return };
        self.current.write(bytes, offset);
        for page in locate(offset).0..=locate(offset + last).0 {
            self.abandoned.remove(&page);
            self.dirty.insert(page);
        }
    }

    pub(super) fn sync(&mut self) {
        self.sync_range(0, u64::MAX);
    }

    /// Makes the pages of the bytes `from..to`, and the length, durable.
    pub(super) fn sync_range(&mut self, from: u64, to: u64) {
        let Some(last) = to.checked_sub(1).filter(|last| *last >= from) else { return };
        let synced: Vec<u64> = self.dirty.range(locate(from).0..=locate(last).0).copied().collect();
        for page in synced {
            self.dirty.remove(&page);
            self.durable.take_page(page, &self.current);
        }
        self.durable.len = self.current.len;
    }

    /// Fails a sync like the kernel, which forgets that the pages were dirty.
    pub(super) fn fail_sync(&mut self) {
        self.abandoned.append(&mut self.dirty);
        self.failures += 1;
    }

    /// Writes some dirty pages, as the kernel may at any time.
    pub(super) fn write_back(&mut self, fate: PowerCutOutcome, chance: &mut Chance) {
        for page in std::mem::take(&mut self.dirty) {
            if fate.draw_reached(chance) {
                self.durable.take_page(page, &self.current);
            } else {
                self.dirty.insert(page);
            }
        }
        if fate.draw_reached(chance) {
            self.durable.len = self.current.len;
        }
    }

    /// Cuts the power. Each unsynced page reached the disk, or did not, or is torn; the length
    /// reached it or did not.
    pub(super) fn lose_power(&mut self, fate: PowerCutOutcome, grain: Grain, chance: &mut Chance) {
        self.dirty.append(&mut self.abandoned);
        self.write_back(fate, chance);
        if grain != Grain::Page && matches!(fate, PowerCutOutcome::Mixed) {
            for page in std::mem::take(&mut self.dirty) {
                if chance.coin() {
                    self.durable.take_pieces(page, &self.current, grain, chance);
                }
            }
        }
        self.durable.cut_at(self.durable.len);
        self.current = self.durable.clone();
        self.dirty.clear();
    }
}

/// Returns the page of a position, and the offset within the page.
fn locate(position: u64) -> (u64, usize) {
    let page_bytes = PAGE_BYTES as u64;
    // The remainder is smaller than a page, so it always fits.
    (position / page_bytes, usize::try_from(position % page_bytes).unwrap_or_default())
}
