//! Writes the files of an imported transcript back.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use foldlog::inspect::{LogReader, StateReader};
use foldlog::{Slice, Value};
use foldlog_codec::escape;
use foldlog_codec::msgpack;
use foldlog_view::visits::FirstFailure;

use super::{RawTranscriptLine, RawTranscriptLines, TranscriptFile, TranscriptFiles};
use crate::failure::{CommandError, Result};
use crate::raw_json::escape_json;

/// Counts the written data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ExportCounts {
    /// Number of files.
    pub files: u64,
    /// Number of lines, of all files.
    pub lines: u64,
}

/// Writes the files into the directory `out`, which is created if missing, byte for byte as they
/// were. No existing file is changed.
///
/// # Errors
///
/// - [`Error::Usage`](foldlog_view::Error::Usage) if the session contains no transcript, or names a
///   file outside of the directory.
/// - [`Error::File`](foldlog_view::Error::File) if a file cannot be written, or already exists.
/// - [`Error::Engine`](foldlog_view::Error::Engine) if the session cannot be read.
pub fn export(reader: &LogReader, out: &Path) -> Result<ExportCounts> {
    let state = reader.state_reader()?;
    let files = list_files(&state)?;
    // All names are checked before the first file is created.
    let parts: Vec<Vec<&str>> = files.iter().map(parts).collect::<Result<_>>()?;
    make_directory(out)?;
    let mut exported = ExportCounts::default();
    let mut files = files.iter().zip(&parts);
    let mut current: Option<ExportFileWriter> = None;
    each_item::<RawTranscriptLines>(&state, &mut |line| {
        while current.as_ref().is_none_or(|open| open.file != line.file) {
            let (file, parts) =
                files.next().ok_or_else(|| inconsistent("its lines are not in the order of its files"))?;
            close(current.replace(make(out, file, parts)?))?;
            exported.files += 1;
        }
        exported.lines += 1;
        let newline: &[u8] = if line.ended { b"\n" } else { b"" };
        let Some(open) = &mut current else { return Ok(()) };
        let written = open.writer.write_all(bytes_of(&line)).and_then(|()| open.writer.write_all(newline));
        written.map_err(|source| CommandError::file(&open.path, source))
    })?;
    close(current)?;
    // Files without lines.
    for (file, parts) in files {
        close(Some(make(out, file, parts)?))?;
        exported.files += 1;
    }
    Ok(exported)
}

struct ExportFileWriter {
    file: u64,
    path: PathBuf,
    writer: BufWriter<fs::File>,
}

fn close(open: Option<ExportFileWriter>) -> Result<()> {
    let Some(ExportFileWriter { path, mut writer, .. }) = open else { return Ok(()) };
    writer.flush().map_err(|source| CommandError::file(&path, source))
}

/// Writes the lines of the transcript's only file to `stdout`, escaped: equal as JSON, but not byte
/// for byte.
///
/// # Errors
///
/// - [`Error::Usage`](foldlog_view::Error::Usage) if the session contains no transcript, or one of
///   several files.
/// - [`Error::Output`](foldlog_view::Error::Output) if the lines cannot be written.
/// - [`Error::Engine`](foldlog_view::Error::Engine) if the session cannot be read.
pub fn export_main(reader: &LogReader, stdout: &mut dyn Write) -> Result<ExportCounts> {
    let state = reader.state_reader()?;
    let files = list_files(&state)?;
    if files.len() > 1 {
        let what = format!("the transcript has {} files", files.len());
        return Err(CommandError::usage(what, "give a directory for them: --out DIR"));
    }
    let mut exported = ExportCounts { files: 1, lines: 0 };
    each_item::<RawTranscriptLines>(&state, &mut |line| {
        exported.lines += 1;
        let text = String::from_utf8_lossy(bytes_of(&line));
        stdout.write_all(escape_json(&text).as_bytes())?;
        Ok(stdout.write_all(b"\n")?)
    })?;
    Ok(exported)
}

fn inconsistent(reason: &str) -> CommandError {
    CommandError::usage(
        format!("the session contains no transcript of Claude Code that can be exported: {reason}"),
        "`foldlog import claude-code FILE --store STORE` imports one",
    )
}

/// Returns a line in its original form, without its newline.
fn bytes_of(line: &RawTranscriptLine) -> &[u8] {
    match &line.raw {
        Value::Str(text) => text.as_bytes(),
        Value::Bin(bytes) => bytes,
        _ => &[],
    }
}

/// Passes the items of a slice to `visit`, in order.
fn each_item<S: Slice>(state: &StateReader, visit: &mut dyn FnMut(S::Item) -> Result<()>) -> Result<()> {
    let Some(slice) = state.slice(S::NAME) else {
        return Err(inconsistent("a slice of the transcript is missing"));
    };
    let mut failure = FirstFailure::default();
    let read = slice.read(|_, bytes| {
        let item = msgpack::from_slice(bytes).map_err(|error| inconsistent(&error.to_string()));
        Ok(failure.flow(item.and_then(&mut *visit)))
    });
    failure.end(read)
}

fn list_files(state: &StateReader) -> Result<Vec<TranscriptFile>> {
    let mut files = Vec::new();
    each_item::<TranscriptFiles>(state, &mut |file| {
        files.push(file);
        Ok(())
    })?;
    if files.is_empty() { Err(inconsistent("it names no file")) } else { Ok(files) }
}

/// Splits a name into its components, none of which leads out of the directory.
fn parts(named: &TranscriptFile) -> Result<Vec<&str>> {
    let parts: Vec<&str> = named.name.split('/').collect();
    let is_name = |part: &&str| {
        let mut components = Path::new(part).components();
        let only = matches!(components.next(), Some(Component::Normal(name)) if name == *part);
        only && components.next().is_none() && !part.contains('\0')
    };
    if parts.iter().all(is_name) {
        return Ok(parts);
    }
    let what = format!("the session names a file outside of the directory: `{}`", escape::text(&named.name));
    Err(CommandError::usage(what, "nothing was written; do not trust this session"))
}

/// Creates a directory with access for its user only, unless it exists.
fn make_directory(path: &Path) -> Result<()> {
    let made = match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    };
    made.map_err(|source| CommandError::file(path, source))
}

/// Creates a file below the directory, with its parent directories. None of these may be a link.
fn make(out: &Path, file: &TranscriptFile, parts: &[&str]) -> Result<ExportFileWriter> {
    let mut path = out.to_owned();
    let failed = |path: &Path, source| CommandError::file(path, source);
    let Some((name, directories)) = parts.split_last() else {
        return Err(inconsistent("a file has no name"));
    };
    for directory in directories {
        path.push(directory);
        make_directory(&path)?;
        let found = fs::symlink_metadata(&path).map_err(|source| failed(&path, source))?;
        if !found.is_dir() {
            return Err(failed(&path, io::Error::from(io::ErrorKind::NotADirectory)));
        }
    }
    path.push(name);
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    match created {
        Ok(created) => Ok(ExportFileWriter { file: file.file, path, writer: BufWriter::new(created) }),
        Err(source) => Err(failed(&path, source)),
    }
}
