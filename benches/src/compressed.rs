//! Measures compressed segments: their size for recorded runs of an agent compared with the JSON,
//! and the cost of checking and opening a compressed log compared with the plain one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use foldlog::inspect::{self, LogReader};
use foldlog::{BackupOptions, CompactOptions, Compression, SessionTypes, Store};
use foldlog_cli::runs::{import, read_tau_bench, types};
use uuid::Uuid;

use crate::import::FILE;
use crate::measure::{AtMost, BenchRow, Measurement, Result, Round, take_turns, timed};
use crate::subject::{BenchStep, append_types, step, store_without_images};

const CODECS: [Compression; 2] = [Compression::Zstd, Compression::Lz4];

/// Number of bytes of text in an event of the long session.
const TEXT_BYTES: usize = 1_000;

/// Number of copies of the file's text in the long session.
const REPEATED: usize = 10;

/// Largest size of a compressed log's files as a fraction of their JSON.
const SMALLER: f64 = 1.0 / 2.5;

/// Largest time of checking or opening a compressed log, as a multiple of the plain one's.
const SLOWER: f64 = 2.0;

const SPEED_ROUNDS: usize = 7;

pub fn compressed(dir: &Path) -> Result<Vec<BenchRow>> {
    let file = Path::new(FILE);
    if !file.is_file() {
        eprintln!("compressed: skipped, there is no file of recorded runs beside the checkout ({FILE})");
        return Ok(Vec::new());
    }
    let mut rows = short(&dir.join("short"), file)?;
    rows.append(&mut long(&dir.join("long"), &fs::read_to_string(file)?)?);
    Ok(rows)
}

fn sized(bytes: u64) -> Result<Measurement> {
    let [measured] = take_turns(1, [&mut || Ok(Round::of(bytes as f64))])?;
    Ok(measured)
}

fn smaller(subject: &str, param: &str, bytes: u64, json: u64) -> Result<BenchRow> {
    let param = format!("{param}: {bytes} bytes of {json}");
    Ok(BenchRow::pair("compressed", subject, param, sized(bytes)?, sized(json)?))
}

/// Returns the allocated bytes of a session's segments.
fn segment_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "seg") {
            bytes += entry.metadata()?.blocks() * 512;
        }
    }
    Ok(bytes)
}

fn options(compression: Compression) -> CompactOptions {
    CompactOptions { compression: Some(compression), keep_bodies: true, ..CompactOptions::default() }
}

/// Measures a session for each run. Most are shorter than 64 KiB, and stay plain unless the options
/// say otherwise.
fn short(root: &Path, file: &Path) -> Result<Vec<BenchRow>> {
    let (types, runs) = (types()?, read_tau_bench(file)?);
    let json = fs::metadata(file)?.len();
    let mut rows = Vec::new();
    for (subject, compression, compress_bytes_min) in [
        ("tau-bench, plain", Compression::None, None),
        ("tau-bench, zstd", Compression::Zstd, None),
        ("tau-bench, zstd from 4 KiB on", Compression::Zstd, Some(4096)),
    ] {
        runs.iter().try_for_each(|run| import::run(root, &types, run).map(drop))?;
        let store = Store::open(root)?;
        let mut bytes = 0;
        for id in store.session_ids()? {
            store.compact(id, &CompactOptions { compress_bytes_min, ..options(compression) })?;
            bytes += segment_bytes(&store.session_dir(id))?;
        }
        rows.push(smaller(subject, &format!("{} sessions", runs.len()), bytes, json)?);
        fs::remove_dir_all(root)?;
    }
    Ok(rows)
}

/// Measures one session that contains the text of all runs, several times.
fn long(dir: &Path, text: &str) -> Result<Vec<BenchRow>> {
    let types = append_types()?;
    let plain = store_without_images(&dir.join("plain"))?;
    let session = plain.create(&types)?;
    let (mut events, mut json) = (0, 0);
    for _ in 0..REPEATED {
        let mut rest = text;
        while !rest.is_empty() {
            let end = (TEXT_BYTES.min(rest.len())..=rest.len()).find(|at| rest.is_char_boundary(*at));
            let (detail, behind) = rest.split_at(end.unwrap_or(rest.len()));
            session.dispatch(BenchStep {
                title: String::new(),
                detail: detail.to_owned(),
                ..step(events)
            })?;
            (rest, events, json) = (behind, events + 1, json + detail.len() as u64);
        }
    }
    let id = session.id();
    session.close()?;
    // Finishes all segments, in either form.
    plain.compact(id, &options(Compression::Zstd))?;
    plain.compact(id, &options(Compression::None))?;
    let mut rows = Vec::new();
    for codec in CODECS {
        let store = store_without_images(&dir.join(codec.to_string()))?;
        plain.backup(id, dir.join(codec.to_string()), BackupOptions::default())?;
        let report = store.compact(id, &options(codec))?.compressed.ok_or("nothing was compressed")?;
        let subject = format!("one session of their text, {codec}");
        let row =
            smaller(&subject, &format!("{events} events"), segment_bytes(&store.session_dir(id))?, json)?;
        rows.push(if codec == Compression::Zstd { row.at_most(AtMost::Ratio(SMALLER)) } else { row });
        let param = format!("{} MiB in {} segments", report.bytes_before >> 20, report.finished);
        rows.append(&mut speed(&plain, &store, id, &types, codec, events, &param)?);
    }
    Ok(rows)
}

fn speed(
    plain: &Store,
    packed: &Store,
    id: Uuid,
    types: &SessionTypes,
    codec: Compression,
    events: u64,
    param: &str,
) -> Result<Vec<BenchRow>> {
    let dirs = [plain.session_dir(id), packed.session_dir(id)];
    let verify = |dir: &PathBuf| {
        timed(events, || {
            inspect::walk(dir, &mut |frame| match foldlog_codec::body::check(
                frame.record.kind,
                frame.record.body,
            ) {
                Ok(()) => Ok(()),
                Err(error) => Err(foldlog::Error::Export(error.to_string())),
            })?;
            LogReader::open(dir)?.check_seals()?;
            Ok(())
        })
    };
    let open = |store: &Store| {
        timed(events, || {
            store.open_read_only(id, types)?;
            Ok(())
        })
    };
    let middle = events / 2;
    let reader = [LogReader::open(&dirs[0])?, LogReader::open(&dirs[1])?];
    let one = |reader: &LogReader| {
        timed(200, || {
            (0..200).try_for_each(|n| reader.records(middle + n * 31, middle + n * 31, |_| Ok(())))?;
            Ok(())
        })
    };
    let [verified, verified_plain, opened, opened_plain, read, read_plain] = take_turns(
        SPEED_ROUNDS,
        [
            &mut || verify(&dirs[1]),
            &mut || verify(&dirs[0]),
            &mut || open(packed),
            &mut || open(plain),
            &mut || one(&reader[1]),
            &mut || one(&reader[0]),
        ],
    )?;
    let row = |subject: &str, measured, limit| {
        BenchRow::beside("compressed", &format!("{subject}, {codec}, beside plain"), param, measured, limit)
    };
    Ok(vec![
        row("verify with seals", verified, verified_plain).at_most(AtMost::Ratio(SLOWER)),
        row("open without an image", opened, opened_plain).at_most(AtMost::Ratio(SLOWER)),
        row("a record by its number", read, read_plain),
    ])
}
