//! Writes a report: one page with all its data.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use foldlog::inspect::{LogReader, OperationStatus};
use foldlog::{Clock, SequenceNumber, SystemClock};
use foldlog_codec::record::time_text;
use serde_json::{Value as Json, json};
use uuid::Uuid;

use crate::after_damage::RecordsAfterDamage;
use crate::agent_steps;
use crate::blocks::{Blocks, markup_json};
use crate::documents::ledger;
use crate::documents::stats::stats;
use crate::documents::timeline::Timeline;
use crate::documents::verify::{self, VerifyReport};
use crate::files::files;
use crate::walk::walk;
use crate::{Error, Payloads, RecordRange, Result, document};

const PAGE: &str = include_str!("pages/report.html");

pub(crate) const STYLE: &str = include_str!("pages/style.css");

/// The modules, each with the name by which the others import it.
pub(crate) const MODULES: [(&str, &str); 19] = [
    ("view/dom.js", include_str!("pages/dom.js")),
    ("view/json.js", include_str!("pages/json.js")),
    ("view/report-source.js", include_str!("pages/report-source.js")),
    ("view/words.js", include_str!("pages/words.js")),
    ("view/virtual-list.js", include_str!("pages/virtual-list.js")),
    ("view/value-tree.js", include_str!("pages/value-tree.js")),
    ("view/markdown.js", include_str!("pages/markdown.js")),
    ("view/timeline.js", include_str!("pages/timeline.js")),
    ("view/step.js", include_str!("pages/step.js")),
    ("view/conversation.js", include_str!("pages/conversation.js")),
    ("view/tasks.js", include_str!("pages/tasks.js")),
    ("view/files.js", include_str!("pages/files.js")),
    ("view/diff.js", include_str!("pages/diff.js")),
    ("view/differences.js", include_str!("pages/differences.js")),
    ("view/operations.js", include_str!("pages/operations.js")),
    ("view/search.js", include_str!("pages/search.js")),
    ("view/facts.js", include_str!("pages/facts.js")),
    ("view/palette.js", include_str!("pages/palette.js")),
    ("view/main.js", include_str!("pages/main.js")),
];

/// Maximum number of operations for which a report lists the possible decisions. Each requires
/// reading the log from the operation's start.
const WAITING_MAX: usize = 100;

/// Selects the contents of a report.
#[derive(Debug)]
pub struct ReportSelection {
    /// Records that are listed.
    pub range: RecordRange,
    /// Step at which the report opens.
    pub at: SequenceNumber,
    /// Values that are included.
    pub payloads: Payloads,
}

/// Writes the report of a session to `out`.
///
/// # Errors
///
/// The engine's error if the session cannot be read or exceeds the memory limit, or [`Error::File`]
/// with `path` if the report cannot be written.
pub fn write(
    reader: &LogReader,
    selection: &ReportSelection,
    memory_bytes: Option<u64>,
    out: &mut File,
    path: &Path,
) -> Result<()> {
    write_into(reader, selection, memory_bytes, out, path).map_err(|error| match error {
        Error::Output(source) => Error::File { path: path.to_owned(), source },
        error => error,
    })
}

fn write_into(
    reader: &LogReader,
    selection: &ReportSelection,
    memory_bytes: Option<u64>,
    out: &mut File,
    path: &Path,
) -> Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let spool = tempfile::tempfile_in(dir)?;
    let mut blocks = Blocks::new(BufWriter::new(spool));
    let walked = walk(reader, &selection.range, selection.payloads, &mut blocks)?;
    let files = files(reader, &selection.range, selection.payloads, &mut blocks)?;
    let operations = blocks.add_json(&operations(reader, selection.payloads)?)?;
    let integrity = blocks.add_json(&integrity(reader, memory_bytes)?)?;
    let statistics = blocks.add_json(&stats(reader)?)?;
    let timeline = Timeline::from_reader(reader);
    let beyond = RecordsAfterDamage::read(reader, &timeline)?;
    let unattached = beyond.write(reader, &timeline, selection.payloads, &mut blocks)?;
    // Facts about the session that a page has before it reads any block.
    let head = document! {
        // Version of the report's format.
        format: 1,
        foldlog: env!("CARGO_PKG_VERSION"),
        session: reader.opening_record().session,
        made_at: time_text(SystemClock.now_us()),
        from: selection.range.from,
        last: selection.range.last,
        log_last: reader.last_position(),
        at: selection.at,
        // Length of the longest included value in bytes; null if none is included.
        payload_bytes: selection.payloads.limit,
        parent: parent_json(reader),
        rollbacks: reader.rollbacks().collect::<Vec<_>>(),
        damage: beyond.damage(reader),
        beyond: unattached,
        #[serde(flatten)] walked,
        files,
        operations,
        integrity,
        statistics,
    };
    let head = markup_json(&head).map_err(io::Error::from)?;
    let spool = blocks.into_inner().into_inner().map_err(|error| error.into_error())?;
    Ok(page(&head, reader.opening_record().session, spool, out)?)
}

fn page(head: &str, session: Uuid, mut spool: File, out: &mut File) -> io::Result<()> {
    let imports: BTreeMap<&str, String> =
        MODULES.iter().map(|(name, text)| (*name, data_url(name, text))).collect();
    let imports = markup_json(&json!({ "imports": imports }))?;
    let (title, nonce) = (format!("foldlog {session}"), nonce());
    let mut out = BufWriter::new(out);
    let mut rest = PAGE;
    while let Some((before, marked)) = rest.split_once("{{") {
        out.write_all(before.as_bytes())?;
        let (mark, behind) = marked.split_once("}}").unwrap_or((marked, ""));
        rest = behind;
        match mark {
            "title" => out.write_all(title.as_bytes())?,
            "nonce" => out.write_all(nonce.as_bytes())?,
            "style" => out.write_all(STYLE.as_bytes())?,
            "imports" => out.write_all(imports.as_bytes())?,
            "head" => out.write_all(head.as_bytes())?,
            "blocks" => {
                spool.rewind()?;
                io::copy(&mut spool, &mut out)?;
            }
            _ => {}
        }
    }
    out.write_all(rest.as_bytes())?;
    out.flush()
}

/// Returns a module as a data URL. Developer tools report errors under the module's name.
fn data_url(name: &str, text: &str) -> String {
    let text = without_comments(text);
    format!("data:text/javascript;base64,{}", STANDARD.encode(format!("{text}\n//# sourceURL={name}\n")))
}

/// Replaces each comment line of a module with an empty line, so that a report does not contain the
/// source's comments. No text of a module may span several lines.
pub(crate) fn without_comments(text: &str) -> String {
    let (mut code, mut is_within) = (String::with_capacity(text.len()), false);
    for line in text.lines() {
        let begins = line.trim_start();
        let is_comment = is_within || begins.starts_with("//") || begins.starts_with("/**");
        if !is_comment {
            code.push_str(line);
        }
        code.push('\n');
        is_within = (is_within || begins.starts_with("/**")) && !line.trim_end().ends_with("*/");
    }
    code
}

/// Returns a nonce for the page's scripts and styles, which no record can contain.
fn nonce() -> String {
    Uuid::new_v4().simple().to_string()
}

/// Returns the session from which this one was created, and the first record of its own; null if
/// there is none.
pub(crate) fn parent_json(reader: &LogReader) -> Json {
    reader.opening_record().parent.map_or(
        Json::Null,
        |parent| json!({ "session": parent.session(), "first_own": reader.opened_sequence() }),
    )
}

/// Returns the ledger, the steps of a timeline, and the accounts of operations that wait for a decision.
pub(crate) fn operations(reader: &LogReader, payloads: Payloads) -> Result<Json> {
    let entries = reader.ledger()?;
    let waits = |fate: OperationStatus| {
        matches!(
            fate,
            OperationStatus::Open
                | OperationStatus::Interrupted
                | OperationStatus::Suspended
                | OperationStatus::Unknown
        )
    };
    let waiting = entries.iter().filter(|entry| waits(entry.outcome)).take(WAITING_MAX);
    let accounts = waiting.map(|entry| {
        ledger::account(reader, &entries, entry, payloads.are_asked_for())
            .map(|account| (entry.operation.to_string(), account))
    });
    let accounts: BTreeMap<String, Json> = accounts.collect::<Result<_>>()?;
    let mut listed: Vec<Json> =
        entries.iter().map(serde_json::to_value).collect::<Result<_, _>>().map_err(io::Error::from)?;
    listed.extend(agent_steps::entries(reader, payloads.are_asked_for())?);
    Ok(json!({ "ledger": listed, "waiting": accounts }))
}

/// Returns the result of `verify`, with its time and extent.
pub(crate) fn integrity(reader: &LogReader, memory_bytes: Option<u64>) -> Result<Json> {
    let mut verified = VerifyReport::default();
    verify::session(reader.dir(), memory_bytes, &mut verified)?;
    Ok(json!({
        "verified_at": time_text(SystemClock.now_us()),
        "through": reader.last_position(),
        "found": verified,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::PAGES_BYTES_MAX;

    #[test]
    fn the_pages_stay_small_and_name_only_each_other() {
        let names: Vec<&str> = MODULES.iter().map(|(name, _)| *name).collect();
        let bytes: usize = MODULES.iter().map(|(_, text)| without_comments(text).len()).sum();
        assert!(
            bytes + PAGE.len() + STYLE.len() <= PAGES_BYTES_MAX,
            "{} bytes",
            bytes + PAGE.len() + STYLE.len()
        );
        for (name, text) in MODULES {
            for import in text.lines().filter(|line| line.starts_with("import ")) {
                let from = import.split('\'').nth(1).unwrap();
                assert!(names.contains(&from), "{name} imports {from}");
            }
            assert!(!text.contains("innerHTML") && !text.contains("eval("), "{name}");
        }
    }

    #[test]
    fn a_module_loses_its_comments_and_keeps_each_line_of_code_where_it_is() {
        let text = "// What it is.\nconst a = '//'; // kept\n/** One line. */\n  /**\n   * @type {number}\n   */\n  let b = 1;\n";
        assert_eq!(without_comments(text), "\nconst a = '//'; // kept\n\n\n\n\n  let b = 1;\n");
        for (name, text) in MODULES {
            let code = without_comments(text);
            assert_eq!(code.lines().count(), text.lines().count(), "{name}");
            for (kept, line) in code.lines().zip(text.lines()) {
                assert!(kept == line || kept.is_empty(), "{name}: {line}");
                assert!(kept == line || line.trim_start().starts_with(['/', '*']), "{name}: {line}");
                // A text that spans several lines could contain a line that looks like a comment.
                // Within a regular expression, a backtick is an ordinary character.
                let is_whole =
                    line.matches('`').count().is_multiple_of(2) || line.contains("/(") || line.contains("/^");
                assert!(kept != line || is_whole, "{name}: {line}");
            }
        }
    }
}
