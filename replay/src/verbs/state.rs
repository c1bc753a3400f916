//! `foldlog state`: the slices at a position, without the host's types.

use std::collections::BTreeMap;
use std::path::Path;

use foldlog::{SliceState, State, Value};
use foldlog_codec::escape;
use serde::Serialize;

use crate::failure::{Failure, HOLDS, Result};
use crate::output::Output;
use crate::reading::{counted, open_session, position, shortened};

/// How much of an item a person is shown.
const ITEM_CHARS_MAX: usize = 160;

#[derive(Debug, Serialize)]
struct Document<'a> {
    sequence: u64,
    slices: BTreeMap<&'a str, SliceDocument>,
}

#[derive(Debug, Serialize)]
struct SliceDocument {
    policy: &'static str,
    items: Vec<Value>,
}

/// Shows the slices at `at`, one of them or all.
///
/// # Errors
///
/// Where the session cannot be read, or there is no such position or slice.
pub fn run(session: &Path, at: Option<u64>, slice: Option<&str>, output: &mut Output<'_>) -> Result<u8> {
    let reader = open_session(session, output)?;
    let at = position(&reader, at)?;
    let mut state = if at + 1 == reader.records_len() { reader.state() } else { reader.state_at(at)? };
    if let Some(name) = slice {
        keep_only(&mut state, name, at)?;
    }
    if output.json() {
        let slices = state.slices.iter().map(|(name, slice)| Ok((name.as_str(), document(slice)?)));
        let slices = slices.collect::<Result<_>>()?;
        output.value(&Document { sequence: at, slices })?;
        return Ok(HOLDS);
    }
    output.line(format_args!("position {at} of {}", reader.records_len().saturating_sub(1)))?;
    for (name, slice) in &state.slices {
        text(name, slice, output)?;
    }
    Ok(HOLDS)
}

fn keep_only(state: &mut State, name: &str, at: u64) -> Result<()> {
    let Some(slice) = state.slices.remove(name) else {
        let names: Vec<&str> = state.slices.keys().map(String::as_str).collect();
        let next = match names.as_slice() {
            [] => "no slice was declared up to there".to_owned(),
            names => format!("the slices are {}", escape::text(&names.join(", "))),
        };
        return Err(Failure::usage(
            format!("there is no slice `{}` at position {at}", escape::text(name)),
            next,
        ));
    };
    state.slices = BTreeMap::from([(name.to_owned(), slice)]);
    Ok(())
}

fn document(slice: &SliceState) -> Result<SliceDocument> {
    let items = slice.items.iter().map(|item| Ok(item.value()?));
    Ok(SliceDocument { policy: slice.policy.name(), items: items.collect::<Result<_>>()? })
}

fn text(name: &str, slice: &SliceState, output: &mut Output<'_>) -> Result<()> {
    let items = counted(slice.items.len() as u64, "item");
    output.line("")?;
    output.line(format_args!("{} ({}, {items})", escape::text(name), slice.policy.name()))?;
    for (place, item) in slice.items.iter().enumerate() {
        let json = escape::to_json(&item.value()?).map_err(std::io::Error::from)?;
        // Where the item came from is what a person looks up next in the timeline.
        output.line(format_args!("  [{place}] @{} {}", item.sequence, shortened(&json, ITEM_CHARS_MAX)))?;
    }
    Ok(())
}
