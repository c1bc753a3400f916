//! `foldlog gc URL`: removes redundant copies from a place's sessions.

use foldlog_remote::{CollectOptions, CollectReport, MIN_AGE};
use foldlog_view::document;
use foldlog_view::text::count_text;
use uuid::Uuid;

use super::HeldSession;
use crate::failure::{HOLDS, Result, worse};
use crate::output::Output;

/// Collects the sessions of a place, or one of them, and prints the objects that were or would be
/// removed. A session that cannot be read is reported on standard error and not changed.
///
/// # Errors
///
/// [`Error::Usage`](foldlog_view::Error::Usage) if the place cannot be opened or listed.
pub(crate) fn collect(url: &str, yes: bool, output: &mut Output<'_>) -> Result<u8> {
    let (place, sessions) = super::some_sessions_at(url)?;
    let mut options = CollectOptions::default();
    options.dry_run = !yes;
    let (mut code, mut all) = (HOLDS, CollectReport::default());
    for HeldSession { session, .. } in sessions {
        let report = match place.collect(session, options) {
            Ok(report) => report.unwrap_or_default(),
            Err(error) => {
                let failure = super::failure(error);
                output.error(format_args!("session {session}: {failure}"));
                code = worse(code, failure.exit_code());
                continue;
            }
        };
        all.chunks += report.chunks;
        all.bytes += report.bytes;
        all.left += report.left;
        all.young += report.young;
        all.dropped += report.dropped;
        all.dropped_bytes += report.dropped_bytes;
        all.payloads += report.payloads;
        all.payload_bytes += report.payload_bytes;
        all.payloads_left += report.payloads_left;
        let CollectReport { chunks, volumes, dropped, waiting, payloads, payloads_left, .. } = report;
        let is_anything =
            chunks + volumes + dropped + waiting + payloads + payloads_left > 0 || report.undecoded.is_some();
        match output.json() {
            true => output.value(&document! { session, #[serde(flatten)] report })?,
            false if is_anything => output.line(text(session, &report, yes))?,
            false => {}
        }
    }
    if output.json() {
        return Ok(code);
    }
    let told = describe_collected(&all);
    match (all.chunks + all.dropped + all.payloads, yes) {
        // Some sessions could not be read, so it is unknown whether there is anything to remove.
        (0, _) if code != HOLDS => {}
        (0, _) => output.line(format_args!("nothing to remove"))?,
        (_, true) => output.line(format_args!("removed {told}"))?,
        (_, false) => output.line(format_args!("would remove {told}; --yes removes them"))?,
    }
    if all.left > 0 {
        output.line(format_args!("{}", stay(all.left, all.young)))?;
    }
    if all.payloads_left > 0 {
        output.line(format_args!("{}", payloads_stay(all.payloads_left)))?;
    }
    Ok(code)
}

fn describe_collected(report: &CollectReport) -> String {
    let bodies = match report.dropped {
        0 => String::new(),
        dropped => format!(
            ", and the bodies of {} that a compaction dropped, {} bytes",
            count_text(dropped, "record"),
            report.dropped_bytes
        ),
    };
    let payloads = match report.payloads {
        0 => String::new(),
        payloads => {
            format!(
                ", and {} that no record names any more, {} bytes",
                count_text(payloads, "payload"),
                report.payload_bytes
            )
        }
    };
    format!("{}, {} bytes{bodies}{payloads}", count_text(report.chunks, "chunk"), report.bytes)
}

/// Describes how many unreferenced payloads remain, and until when.
fn payloads_stay(left: u64) -> String {
    let hours = MIN_AGE.as_secs() / 3_600;
    match left {
        1 => format!(
            "1 payload that no record names any more remains until `gc` finds it unused again, {hours} h later"
        ),
        _ => format!(
            "{left} payloads that no record names any more remain until `gc` finds them unused again, {hours} h later"
        ),
    }
}

/// Describes how many chunks remain, and why.
fn stay(left: u64, young: u64) -> String {
    let rest = left.saturating_sub(young);
    let hours = MIN_AGE.as_secs() / 3_600;
    let young = (young > 0).then(|| format!("{young} whose volume is younger than {hours} h"));
    let rest = (rest > 0).then(|| format!("{rest} that no volume contains yet"));
    let whys: Vec<String> = young.into_iter().chain(rest).collect();
    match left {
        0 => "none remain".to_owned(),
        1 => format!("1 chunk remains: {}", whys.join(", ")),
        _ => format!("{left} chunks remain: {}", whys.join(", ")),
    }
}

fn text(session: Uuid, report: &CollectReport, yes: bool) -> String {
    let CollectReport { volumes, left, young, waiting, payloads_left, .. } = *report;
    let verb = if yes { "removed" } else { "would remove" };
    let made = match volumes {
        0 => String::new(),
        _ => format!(", wrote {}", count_text(volumes, "volume")),
    };
    let more = match waiting {
        0 => String::new(),
        _ => {
            format!(
                "; the bodies of {} wait until their chunks are collected",
                count_text(waiting, "more record")
            )
        }
    };
    let payloads = match (report.undecoded, payloads_left) {
        (Some(record), _) => {
            format!(
                "; no payload is removed: this version does not know which payloads record {record} names"
            )
        }
        (None, 0) => String::new(),
        (None, left) => format!("; {}", payloads_stay(left)),
    };
    format!(
        "session {session}: {verb} {}{made}; {}{more}{payloads}",
        describe_collected(report),
        stay(left, young)
    )
}
