//! Answers to the pages of a session: a document for each kind of request.
//!
//! A value is sent as a JSON text within the JSON, so that the page receives exactly the digits
//! that the command line prints.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use foldlog::SequenceNumber;
use foldlog_codec::escape;
use foldlog_replay::differences::{DifferenceSink, conversations, states};
use foldlog_timeline::TimelinePlace;
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::compare::unless_refused;
use super::query::{Query, malformed};
use super::session::Session;
use crate::records::{CHUNK_RECORDS, Density, RecordFilter};
use crate::report::parent_json;
use crate::visits::{FirstFailure, each_record};
use crate::{Error, RecordRange, Result, after_damage, document, tasks, walk};

/// Maximum number of items or messages of one window.
const WINDOW_MAX: u64 = 10_000;

/// Size of one window's values in bytes, after which it ends early.
const WINDOW_BYTES: usize = 8 << 20;

const DIFFERENCES_MAX: usize = 10_000;

/// Maximum number of conversations whose message counts at a position are returned.
const CONVERSATIONS_MAX: usize = 24;

/// Maximum number of slices in a head.
const SLICES_MAX: usize = 1000;

/// Time after which an answer that scans a log stops early and states where to continue.
const TURN: Duration = Duration::from_millis(400);

/// Maximum number of records in one answer.
const FOUND_MAX: usize = 1 << 16;

/// Maximum number of results of one part of a search.
const RESULTS_MAX: usize = 200;

/// Number of characters of an excerpt before and after the match.
const AROUND: (usize, usize) = (60, 120);

/// Returns the answer to a session's page by the name of the request; `None` if there is no such
/// request.
///
/// # Errors
///
/// [`Error::Usage`] if the query is malformed or refers to something that does not exist; the
/// engine's errors.
pub(crate) fn answer(session: &mut Session, name: &str, query: &Query) -> Result<Option<String>> {
    let answered = match name {
        "head" => head(session)?,
        "records" => records(session, query)?,
        "document" => document(session, query)?,
        "beyond" => rows_after_damage(session, query)?,
        "beyond-document" => behind_document(session, query)?,
        "step" => step(session, query)?,
        "items" => items(session, query)?,
        "messages" => messages(session, query)?,
        "tasks" => tasks(session, query)?,
        "usage" => usage(session, query)?,
        "workspaces" => workspaces(session, query)?,
        "files" => files(session, query)?,
        "content" => content(session, query)?,
        "file-changes" => file_changes(session, query)?,
        "diff" => diff(session, query)?,
        "facets" => facets(session)?,
        "filter" => filter(session, query)?,
        "search" => search(session, query)?,
        _ => return Ok(None),
    };
    Ok(Some(answered))
}

pub(crate) fn text(value: &(impl Serialize + ?Sized)) -> Result<String> {
    Ok(escape::to_json(value).map_err(std::io::Error::from)?)
}

/// Returns the facts about a session that a page loads first. The fields are those of a report's
/// head, as far as they are available.
fn head(session: &mut Session) -> Result<String> {
    let beyond = session.records_after_damage()?;
    let log = &session.log;
    let reader = &log.reader;
    let last = reader.last_position();
    let live = reader.live_path().live_at(last);
    let range = RecordRange { from: SequenceNumber::MIN, last };
    let density = Density::new(&range, &live, &session.known.failures, &session.known.rollbacks);
    let slices: Vec<Json> = reader
        .declarations()
        .slices
        .iter()
        .take(SLICES_MAX)
        .map(|slice| json!({ "id": slice.id, "name": slice.name }))
        .collect();
    let mut head = json!({
        "format": 1,
        "foldlog": env!("CARGO_PKG_VERSION"),
        "session": reader.opening_record().session,
        "root": TimelinePlace::of_session(reader.dir()).map(|place| escape::path(&place.root)),
        "epoch": session.epoch,
        "from": 0,
        "last": last,
        "log_last": last,
        "at": last,
        "payload_bytes": Session::payloads().bytes_max(),
        "parent": parent_json(reader),
        "rollbacks": reader.rollbacks().collect::<Vec<_>>(),
        "damage": beyond.damage(reader),
        "kinds": session.known.kinds,
        "failures": session.known.failures.first().into_iter().collect::<Vec<_>>(),
        "slices": slices,
        "unknown": log.unknown,
    });
    head["density"] = serde_json::to_value(&density).map_err(std::io::Error::from)?;
    text(&head)
}

fn slice_names(session: &Session) -> BTreeMap<u32, String> {
    session.log.timeline.names.slices.clone().into_iter().collect()
}

fn records(session: &mut Session, query: &Query) -> Result<String> {
    let (chunk, gathered) = session.chunk(query.require_number("chunk")?)?;
    let mut names = slice_names(session);
    let changed = chunk.slices();
    names.retain(|id, _| changed.contains(id));
    let (kinds, paths) = (gathered.kinds, gathered.paths);
    // The names are those of the slices that the records changed, by their ids.
    text(&document! { epoch: session.epoch, kinds, paths, names, #[serde(flatten)] chunk })
}

/// Returns the JSON form of a line: whether its value is complete, and its JSON as text.
pub(super) fn line_json(line: &[u8]) -> Json {
    let (mark, text) = line.split_first().unwrap_or((&b'-', &[]));
    json!({ "text": String::from_utf8_lossy(text), "whole": *mark == b'=' })
}

fn document(session: &mut Session, query: &Query) -> Result<String> {
    let at = session.position(query.position("at")?)?;
    let log = &session.log;
    let mut line = Vec::new();
    each_record(&log.reader, at..=at, |record| {
        line = walk::document(&log.timeline, record, Session::payloads())?;
        Ok::<_, Error>(())
    })?;
    text(&line_json(&line))
}

fn rows_after_damage(session: &mut Session, query: &Query) -> Result<String> {
    let (from, count) = window_of(query)?;
    let beyond = session.records_after_damage()?;
    let rows = beyond.rows.iter().skip(usize::try_from(from).unwrap_or(usize::MAX)).take(count as usize);
    text(&rows.collect::<Vec<_>>())
}

fn behind_document(session: &mut Session, query: &Query) -> Result<String> {
    let log = &session.log;
    let read = after_damage::document_of(
        &log.reader,
        &log.timeline,
        query.require_number("number")?,
        Session::payloads(),
    )?;
    text(&line_json(&read.ok_or_else(malformed)?))
}

/// Returns the contents of a step: slices with their lengths, conversations, tags.
fn step(session: &mut Session, query: &Query) -> Result<String> {
    let at = session.position(query.position("at")?)?;
    let is_known = session.log.is_known(at);
    let (slices, tags) = if is_known {
        let state = session.state(at)?;
        let slices = state.slices().map(
            |slice| json!({ "name": slice.name(), "policy": slice.policy().name(), "total": slice.len() }),
        );
        (slices.collect::<Vec<_>>(), state.tags().clone())
    } else {
        // The slices that existed are known, but their contents are not.
        let declared = session.log.reader.declarations().slices;
        let slices = declared
            .iter()
            .map(|slice| json!({ "name": slice.name, "policy": slice.policy.name(), "total": null }));
        (slices.collect(), BTreeMap::new())
    };
    let evaluations = session.evaluations_at(at);
    let mut conversations = Vec::new();
    for evaluation in evaluations.iter().rev().take(CONVERSATIONS_MAX).rev() {
        match session.conversation(evaluation, at) {
            Ok(shown) => {
                let total = shown.map_or(0, |shown| shown.messages.len_at(shown.position));
                if total > 0 {
                    conversations.push(json!({ "evaluation_id": evaluation, "total": total }));
                }
            }
            // The rest of the step is still shown.
            Err(failure) if failure.is_over_budget() => conversations
                .push(json!({ "evaluation_id": evaluation, "total": null, "refused": failure.with_next() })),
            Err(failure) => return Err(failure),
        }
    }
    let left_out = evaluations.len().saturating_sub(CONVERSATIONS_MAX);
    text(&json!({
        "epoch": session.epoch, "slices": slices, "tags": tags, "conversations": conversations,
        "conversations_left_out": left_out,
    }))
}

/// Returns the tasks at a step, in the order of their creation.
fn tasks(session: &mut Session, query: &Query) -> Result<String> {
    let at = session.position(query.position("at")?)?;
    let rows = if session.log.is_known(at) {
        tasks::rows(&session.state(at)?, Session::payloads())
    } else {
        Vec::new()
    };
    text(&rows)
}

fn window_of(query: &Query) -> Result<(u64, u64)> {
    Ok((query.number("from")?.unwrap_or(0), query.require_number("count")?.min(WINDOW_MAX)))
}

fn items(session: &mut Session, query: &Query) -> Result<String> {
    let at = session.position(query.position("at")?)?;
    let name = query.require_text("slice")?;
    let (from, count) = window_of(query)?;
    if !session.log.is_known(at) {
        return text(&json!({ "total": null, "items": [] }));
    }
    let state = session.state(at)?;
    let Some(slice) = state.slice(name) else { return text(&json!({ "total": null, "items": [] })) };
    let (mut items, mut bytes, mut failure) = (Vec::new(), 0, FirstFailure::<Error>::default());
    let names = slice.names().skip(from as usize).take(count as usize);
    let read = slice.read_these(names, |item, value| {
        let line = walk::item_line(name, item, value, Session::payloads());
        let flow = failure.flow(line.map(|line| {
            bytes += line.len();
            let place = from + items.len() as u64;
            items.push(json!({
                "place": place, "sequence": item.sequence, "ordinal": item.ordinal, "value": line_json(&line),
            }));
        }));
        Ok(if bytes > WINDOW_BYTES { ControlFlow::Break(()) } else { flow })
    });
    failure.end(read)?;
    text(&json!({ "total": slice.len(), "items": items }))
}

fn messages(session: &mut Session, query: &Query) -> Result<String> {
    let at = session.position(query.position("at")?)?;
    let (from, count) = window_of(query)?;
    let evaluation = query.require_text("evaluation")?;
    let Some(shown) = session.conversation(evaluation, at)? else {
        return text(&json!({ "total": 0, "items": [] }));
    };
    let (messages, at) = (shown.messages, shown.position);
    let clamped = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let (mut items, mut bytes) = (Vec::new(), 0);
    let summaries = messages.summaries_at(at);
    let (total, numbers) = messages.numbers(at, clamped(from), clamped(count));
    for number in numbers {
        let Some(listed) = messages.read_message(number)? else { continue };
        bytes += listed.line.len();
        // The page leads only to records of its own log.
        let sequence = if shown.is_agents { json!(-1) } else { json!(listed.sequence) };
        items.push(json!({
            "number": number, "place": from + items.len() as u64, "sequence": sequence, "ordinal": 0,
            "value": line_json(&listed.line),
        }));
        if bytes > WINDOW_BYTES {
            break;
        }
    }
    text(&json!({ "total": total, "items": items, "summaries": summaries }))
}

/// Returns the usage of each conversation at a position.
fn usage(session: &mut Session, query: &Query) -> Result<String> {
    let at = session.position(query.position("at")?)?;
    let rows = session.known.usage.rows.iter().take_while(|row| row.sequence <= at);
    let last: BTreeMap<&str, _> = rows.map(|row| (row.evaluation_id.as_str(), row)).collect();
    text(&last.into_values().collect::<Vec<_>>())
}

fn workspaces(session: &mut Session, query: &Query) -> Result<String> {
    let at = session.position(query.position("at")?)?;
    text(&session.captures()?.workspaces(at))
}

fn files(session: &mut Session, query: &Query) -> Result<String> {
    let at = session.position(query.position("at")?)?;
    text(&session.captures()?.files(at, query.require_text("workspace")?))
}

fn content(session: &mut Session, query: &Query) -> Result<String> {
    let at = session.position(query.position("at")?)?;
    let (workspace, path) = (query.require_text("workspace")?, query.require_text("path")?);
    text(&session.captures()?.content(at, workspace, path, Session::payloads().bytes_max()))
}

fn file_changes(session: &mut Session, query: &Query) -> Result<String> {
    let before = session.position(query.position("before")?)?;
    let after = session.position(query.position("after")?)?;
    text(&session.captures()?.changes(before, after))
}

/// Returns the differences of two steps, each as the text that `diff --json` prints.
fn diff(session: &mut Session, query: &Query) -> Result<String> {
    let before = session.position(query.position("before")?)?;
    let after = session.position(query.position("after")?)?;
    let mut refused = None;
    let (found, is_cut) = cut(|take| {
        let compared = compare(session, before, after, take);
        unless_refused(compared, &mut refused).map(Option::unwrap_or_default)
    })?;
    text(&json!({ "differences": found, "more": is_cut, "refused": refused }))
}

/// Collects the differences of `compare`, each as the text that `diff --json` prints. Returns also
/// whether there are more than fit into an answer.
pub(super) fn cut(
    compare: impl FnOnce(&mut DifferenceSink<'_, Error>) -> Result<()>,
) -> Result<(Vec<String>, bool)> {
    let (mut found, mut bytes, mut is_cut) = (Vec::new(), 0, false);
    let compared = compare(&mut |difference| {
        let line = text(&difference)?;
        if found.len() >= DIFFERENCES_MAX || bytes + line.len() > 4 * WINDOW_BYTES {
            is_cut = true;
            return Err(Error::DoesNotHold(String::new()));
        }
        bytes += line.len();
        found.push(line);
        Ok(())
    });
    if !is_cut {
        compared?;
    }
    Ok((found, is_cut))
}

fn compare(
    session: &mut Session,
    before: SequenceNumber,
    after: SequenceNumber,
    take: &mut DifferenceSink<'_, Error>,
) -> Result<()> {
    if session.log.is_known(before) && session.log.is_known(after) {
        states(&session.state(before)?, &session.state(after)?, take)?;
    }
    conversations(&session.log.reader, before, after, take)
}

fn facets(session: &mut Session) -> Result<String> {
    let slices: Vec<String> = slice_names(session).into_values().take(SLICES_MAX).collect();
    let known = &session.known;
    text(&json!({ "kinds": known.kinds, "slices": slices, "tools": known.tools, "outcomes": known.outcomes }))
}

fn facets_of(session: &Session, query: &Query) -> RecordFilter {
    let wanted = query.all("slices");
    let names = slice_names(session);
    let slices = names.iter().filter(|(_, name)| wanted.contains(name)).map(|(id, _)| *id).collect();
    RecordFilter {
        kinds: query.all("kinds"),
        slices,
        tools: query.all("tools"),
        outcomes: query.all("outcomes"),
    }
}

/// Returns the records from a chunk on that pass the filter, and the chunk at which to continue;
/// `None` at the end.
fn allowed(
    session: &mut Session,
    facets: &RecordFilter,
    begin: u64,
    most: usize,
) -> Result<(Vec<SequenceNumber>, Option<u64>)> {
    let started = Instant::now();
    let chunks = session.log.reader.records_len().div_ceil(CHUNK_RECORDS as u64);
    let mut found = Vec::new();
    for number in begin..chunks {
        if found.len() + CHUNK_RECORDS > most || (number > begin && started.elapsed() > TURN) {
            return Ok((found, Some(number)));
        }
        let (chunk, gathered) = session.chunk(number)?;
        let first = SequenceNumber::new(number * CHUNK_RECORDS as u64);
        found.extend(chunk.allowed(facets, &gathered.kinds).into_iter().map(|at| first + at as u64));
    }
    Ok((found, None))
}

fn filter(session: &mut Session, query: &Query) -> Result<String> {
    let facets = facets_of(session, query);
    let (records, next) = allowed(session, &facets, query.number("chunk")?.unwrap_or(0), FOUND_MAX)?;
    text(&json!({ "epoch": session.epoch, "records": records, "next": next }))
}

/// Searches for a text, ignoring case: first in the records of some chunks, and after the last
/// chunk in the items of slices and the messages of conversations at the log's end. Returns the
/// matches and the place at which to continue.
fn search(session: &mut Session, query: &Query) -> Result<String> {
    let wanted = query.text("q").unwrap_or_default().to_lowercase();
    let facets = facets_of(session, query);
    let begin = query.number("from")?.unwrap_or(0);
    if wanted.is_empty() {
        return text(&json!({ "found": [], "next": null }));
    }
    let chunks = session.log.reader.records_len().div_ceil(CHUNK_RECORDS as u64);
    if begin < chunks {
        let (found, next) = in_records(session, &wanted, &facets, begin)?;
        return text(&json!({ "found": found, "next": next }));
    }
    let narrowed = !(facets.kinds.is_empty() && facets.tools.is_empty() && facets.outcomes.is_empty());
    if narrowed {
        return text(&json!({ "found": [], "next": null }));
    }
    in_lists(session, &wanted, &facets, query, begin - chunks, chunks)
}

fn in_records(
    session: &mut Session,
    wanted: &str,
    facets: &RecordFilter,
    chunk: u64,
) -> Result<(Vec<Json>, u64)> {
    let (records, next) = allowed(session, facets, chunk, CHUNK_RECORDS)?;
    let log = &session.log;
    let mut found = Vec::new();
    let (Some(first), Some(last)) = (records.first(), records.last()) else {
        return Ok((found, next.unwrap_or(chunk + 1)));
    };
    each_record(&log.reader, *first..=*last, |record| {
        if records.binary_search(&record.sequence).is_ok() {
            let line = walk::document(&log.timeline, record, Session::payloads())?;
            if let Some(excerpt) = excerpt(&line, wanted) {
                let kind = record.kind.to_string();
                found.push(json!({ "what": "record", "sequence": record.sequence, "where": kind, "excerpt": excerpt }));
            }
        }
        Ok::<_, Error>(())
    })?;
    Ok((found, next.unwrap_or(chunk + 1).max(chunk + 1)))
}

/// Searches the list with number `list`: first the slices by their names, then the conversations.
/// Starts at the query's place within the list.
fn in_lists(
    session: &mut Session,
    wanted: &str,
    facets: &RecordFilter,
    query: &Query,
    list: u64,
    chunks: u64,
) -> Result<String> {
    let started = Instant::now();
    let from = query.number("place")?.unwrap_or(0);
    let last = session.log.reader.last_position();
    let state = session.state(last)?;
    let is_any = query.all("slices").is_empty();
    let slices: Vec<_> =
        state.slices().filter(|slice| is_any || facets.slices.contains(&slice.id())).collect();
    let (mut found, mut place) = (Vec::new(), from);
    let next = |list: u64, place: u64| json!({ "from": chunks + list, "place": place });
    if let Some(slice) = slices.get(list as usize) {
        let (mut failure, mut is_cut) = (FirstFailure::<Error>::default(), false);
        let read = slice.read_these(slice.names().skip(from as usize), |item, value| {
            let line = walk::item_line(slice.name(), item, value, Session::payloads());
            let flow = failure.flow(line.map(|line| {
                found.extend(excerpt(&line, wanted).map(|excerpt| {
                    json!({ "what": "item", "sequence": item.sequence, "where": slice.name(), "excerpt": excerpt })
                }));
            }));
            place += 1;
            is_cut = found.len() >= RESULTS_MAX || started.elapsed() > TURN;
            Ok(if is_cut { ControlFlow::Break(()) } else { flow })
        });
        failure.end(read)?;
        let next = if is_cut { next(list, place) } else { next(list + 1, 0) };
        return text(&json!({ "found": found, "next": next["from"], "place": next["place"] }));
    }
    let evaluations = if is_any { session.evaluations_at(last) } else { Vec::new() };
    let Some(evaluation) = evaluations.get((list as usize).saturating_sub(slices.len())) else {
        return text(&json!({ "found": [], "next": null }));
    };
    let mut is_cut = false;
    if let Some(shown) = session.conversation(evaluation, last)? {
        let messages = shown.messages;
        let (_, numbers) =
            messages.numbers(shown.position, u32::try_from(from).unwrap_or(u32::MAX), u32::MAX);
        for number in numbers {
            if let Some(listed) = messages.read_message(number)?
                && let Some(excerpt) = excerpt(&listed.line, wanted)
            {
                let sequence = if shown.is_agents { last } else { listed.sequence };
                found.push(json!({
                    "what": "message", "sequence": sequence, "where": evaluation, "excerpt": excerpt,
                }));
            }
            place += 1;
            is_cut = found.len() >= RESULTS_MAX || started.elapsed() > TURN;
            if is_cut {
                break;
            }
        }
    }
    let next = if is_cut { next(list, place) } else { next(list + 1, 0) };
    text(&json!({ "found": found, "next": next["from"], "place": next["place"] }))
}

/// Returns an excerpt around the first match of a lower-case text in a line.
fn excerpt(line: &[u8], wanted: &str) -> Option<String> {
    let line = String::from_utf8_lossy(line.get(1..)?);
    let lower = line.to_lowercase();
    let at = lower.find(wanted)?;
    // A letter's length may differ in lower case, so the excerpt is cut at character boundaries.
    let begin = line.floor_char_boundary(at.min(line.len()).saturating_sub(AROUND.0));
    let end = line.ceil_char_boundary((at + wanted.len() + AROUND.1).min(line.len()));
    line.get(begin..end).map(str::to_owned)
}
