//! `foldlog candidates`: possible completions of a word. The scripts of `foldlog completions` call
//! it while the user types.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use foldlog::inspect;
use foldlog_codec::escape;
use foldlog_view::clock::now;

use crate::command::{Command, Group, Target};
use crate::failure::{HOLDS, Result};
use crate::output::Output;
use crate::readers::{open_sound_outline, open_store};

/// Names what a word may be completed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CandidateKind {
    /// Ids of the sessions of a store
    Sessions,
    /// Tags of a session's snapshots, or of a store's sessions as KEY=VALUE
    Tags,
}

/// List what a shell may complete a word to.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Kind of the candidates
    pub kind: CandidateKind,
    /// Directory of a store or session
    pub path: PathBuf,
    /// Beginning of the word
    #[arg(default_value = "", hide_default_value = true, allow_hyphen_values = true)]
    pub prefix: String,
}

impl Command for Args {
    const GROUP: Group = Group::Internal;
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "";

    /// Prints the candidates that start with the prefix, unescaped, one per line: a shell inserts
    /// them into a command. Candidates with a character that would be escaped are left out.
    /// Unreadable files are ignored silently, since the user is typing.
    ///
    /// # Errors
    ///
    /// [`Error::Output`](foldlog_view::Error::Output) if the candidates cannot be printed.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let found = match self.kind {
            CandidateKind::Sessions => sessions(&self.path, output),
            CandidateKind::Tags if inspect::is_store(&self.path) => tags_of_sessions(&self.path, output),
            CandidateKind::Tags => tags_of_snapshots(&self.path, output),
        };
        for candidate in found.unwrap_or_default() {
            if candidate.starts_with(&self.prefix) && !candidate.contains(escape::is_escaped) {
                writeln!(output.stdout, "{candidate}")?;
            }
        }
        Ok(HOLDS)
    }
}

fn sessions(store: &Path, output: &Output<'_>) -> Result<BTreeSet<String>> {
    let ids = open_store(store, output)?.session_ids()?;
    Ok(ids.into_iter().map(|id| id.to_string()).collect())
}

/// Returns the tags of a store's sessions. Sessions that were closed at the last listing are not
/// read again.
fn tags_of_sessions(store: &Path, output: &Output<'_>) -> Result<BTreeSet<String>> {
    let found =
        open_store(store, output)?.overviews(now().timestamp_micros(), output.memory_bytes, &mut |_| {})?;
    let sound = found.into_iter().filter_map(|(_, found)| found.ok());
    Ok(sound.flat_map(|overview| overview.tags).map(|(key, value)| format!("{key}={value}")).collect())
}

/// Returns the tags of a session's snapshots, in the form in which a command accepts them as
/// positions.
fn tags_of_snapshots(session: &Path, output: &Output<'_>) -> Result<BTreeSet<String>> {
    let (mut nobody, mut neither) = (io::sink(), io::sink());
    let mut quiet = Output::new(&mut nobody, &mut neither, output.child);
    quiet.memory_bytes = output.memory_bytes;
    let snapshots = open_sound_outline(session, &mut quiet)?.snapshots()?;
    let tags = snapshots.into_iter().filter_map(|snapshot| snapshot.tag);
    Ok(tags.map(|tag| if is_ambiguous(&tag) { format!("tag:{tag}") } else { tag }).collect())
}

/// Returns whether a command would interpret a tag differently: as a number, or as a tag without
/// its prefix.
fn is_ambiguous(tag: &str) -> bool {
    tag.parse::<u64>().is_ok() || tag.starts_with("tag:")
}
