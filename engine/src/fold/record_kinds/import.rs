//! `import`: the slices of an export.

use std::borrow::Cow;

use foldlog_codec::Record;
use foldlog_codec::body::Import;

use super::{Author, RecordBody, RecordRules};
use crate::error::{Error, Result};
use crate::fold::log_source::AddedItem;
use crate::names::DeclaredNames;

pub(super) const RULES: RecordRules = RecordRules {
    added_items,
    title: |body, _| Some(format!("of {}", Import::decode(body).ok()?.from?)),
    ..RecordRules::synced(Author::Engine, |record| Import::decode(record.body).map(RecordBody::Import))
};

fn added_items<'a>(record: &Record<'a>, slice: u32, _: &DeclaredNames) -> Result<Vec<AddedItem<'a>>> {
    let import = Import::decode(record.body).map_err(Error::unread(record.sequence))?;
    let slices = import.slices.into_iter().filter(|imported| imported.slice == slice);
    let items = slices.flat_map(|imported| imported.items);
    Ok((0..)
        .zip(items)
        .map(|(ordinal, (item, version))| (ordinal, Cow::from(item.bytes()), version))
        .collect())
}
