//! Measures reading whole logs: folding them, and checking them.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use foldlog::inspect::{self, EventFeed, Fed};
use foldlog_codec::msgpack;

use crate::limits::{self, LIMIT_TWICE};
use crate::measure::{AtMost, BenchRow, ROUNDS, Result, at_once, take_turns, timed};
use crate::subject::{BenchStep, append_types, closed, step, store, store_without_images};

const EVENTS: u64 = 1_000_000;

/// Makes the limit's frames of all events, consecutively in memory.
fn frames() -> Result<Vec<u8>> {
    let (mut frames, mut body) = (Vec::new(), Vec::new());
    for number in 0..EVENTS {
        body.clear();
        msgpack::append(&step(number), &mut body)?;
        limits::write_frame(number, limits::now_us(), &body, &mut frames)?;
    }
    Ok(frames)
}

/// Checks that `read`, the number of read events, is that of all events.
fn all(read: u64) -> Result<()> {
    if read < EVENTS { Err(format!("{read} of {EVENTS} events were read").into()) } else { Ok(()) }
}

pub fn replay(dir: &Path) -> Result<Vec<BenchRow>> {
    let types = append_types()?;
    let store = store_without_images(dir)?;
    let id = closed(&store, &types, 0..EVENTS)?;
    let frames = frames()?;
    let mut open = || {
        let mut session = None;
        let ns = timed(EVENTS, || {
            session = Some(store.open_session(id, &types)?);
            Ok(())
        });
        drop(session);
        ns
    };
    let mut caught_up = || {
        timed(EVENTS, || {
            let (mut feed, mut read) = (EventFeed::open(store.session_dir(id), 0)?, 0);
            while let Some(fed) = feed.try_next()? {
                if let Fed::Event(event) = fed {
                    read += u64::from(event.event.read::<BenchStep>()?.is_some());
                }
            }
            all(read)
        })
    };
    let mut kept = || {
        let mut kept: Vec<Arc<dyn Any>> = Vec::new();
        let ns = timed(EVENTS, || {
            all(limits::check_frames(&frames, |body| {
                kept.extend(limits::decoded(body).map(|step| Arc::new(step) as Arc<dyn Any>));
            }))
        });
        drop(kept);
        ns
    };
    let check = || all(limits::check_frames(&frames, limits::decode));
    let mut twice = || timed(EVENTS, || at_once([&mut || check(), &mut || check()]));
    let [subject, limit, twice, checked, kept, caught_up] = take_turns(
        ROUNDS,
        [
            &mut open,
            &mut || timed(EVENTS, check),
            &mut twice,
            &mut || timed(EVENTS, || all(limits::check_frames(&frames, limits::check_and_decode))),
            &mut kept,
            &mut caught_up,
        ],
    )?;
    Ok(vec![
        BenchRow::beside("replay", "open", EVENTS, subject, limit).at_most(AtMost::Ratio(1.4)),
        BenchRow::beside("replay", LIMIT_TWICE, EVENTS, twice, limit),
        BenchRow::beside("replay", "open beside a limit that pre-scans", EVENTS, subject, checked),
        BenchRow::beside("replay", "the limit, and each event kept", EVENTS, kept, limit),
        BenchRow::beside("replay", "catch-up by `events_from`, beside open", EVENTS, caught_up, subject)
            .at_most(AtMost::Ratio(1.5)),
    ])
}

pub fn verify(dir: &Path) -> Result<Vec<BenchRow>> {
    let types = append_types()?;
    let store = store(dir)?;
    let session = store.session_dir(closed(&store, &types, 0..EVENTS)?);
    let frames = frames()?;
    let walk = |bodies: bool| {
        timed(EVENTS, || {
            let walked = inspect::walk(&session, &mut |frame| {
                if bodies && let Err(error) = foldlog_codec::body::check(frame.record.kind, frame.record.body)
                {
                    return Err(foldlog::Error::Export(error.to_string()));
                }
                Ok(())
            });
            all(walked?.records)
        })
    };
    let [alone, bodies, limit] = take_turns(
        ROUNDS,
        [&mut || walk(false), &mut || walk(true), &mut || {
            timed(EVENTS, || all(limits::check_frames(&frames, |_| ())))
        }],
    )?;
    Ok(vec![
        BenchRow::beside("verify", "frames alone", EVENTS, alone, limit).at_most(AtMost::Ratio(1.5)),
        BenchRow::beside("verify", "with every body", EVENTS, bodies, limit).at_most(AtMost::Ratio(3.0)),
    ])
}
