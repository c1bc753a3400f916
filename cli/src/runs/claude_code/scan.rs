//! Reads files line by line, and indexes each line's place and its references.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use foldlog::SmolStr;
use foldlog::filesystem::open_regular_file;

use super::findings::{FindingKind, TranscriptFinding};
use super::line::{BlockContent, LineFields, MessageContent, content, field, prompt};
use crate::failure::{CommandError, Result};
use crate::runs::malformed_error;

/// Maximum length of a line in bytes.
const LINE_BYTES_MAX: u64 = 1 << 28;

#[derive(Debug)]
pub(super) struct TranscriptSource {
    pub(super) path: PathBuf,
    /// Name within the transcript's directory.
    pub(super) name: String,
    /// Index of the transcript's own file: this one, or the one whose sub-agent this is.
    pub(super) main: usize,
    /// Id of the sub-agent whose file this is.
    pub(super) agent: Option<SmolStr>,
    /// Length of the file in bytes when it was first read. Data appended since is ignored.
    pub(super) bytes: u64,
    /// Digest of these bytes.
    digest: u64,
    /// Time of the last line, in microseconds.
    pub(super) last_us: i64,
}

/// Identifies a call by its node and its place among that node's calls: several calls may share an
/// id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallPlace {
    pub(super) node: usize,
    pub(super) place: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    User,
    Assistant,
    Other,
}

/// A node: its place, and its references.
#[derive(Debug)]
pub(super) struct TranscriptNode {
    pub(super) source: usize,
    pub(super) line: u64,
    /// Offset of the line's first byte in the file.
    offset: u64,
    len: u64,
    /// Time in microseconds; that of the line before if it has none.
    pub(super) time_us: i64,
    pub(super) kind: NodeKind,
    /// `None` also if an earlier line has the same `uuid`.
    pub(super) uuid: Option<SmolStr>,
    pub(super) parent: Option<SmolStr>,
    pub(super) logical_parent: Option<SmolStr>,
    /// Id of an assistant's message.
    pub(super) message: Option<SmolStr>,
    pub(super) sidechain: bool,
    pub(super) agent: Option<SmolStr>,
    /// Calls that the node makes, with digests of their prompts for a sub-agent.
    pub(super) calls: Vec<(SmolStr, Option<u64>)>,
    /// Calls whose results the node contains.
    pub(super) results: Vec<SmolStr>,
    /// `uuid` of the node whose call the node answers, if the line names it.
    pub(super) source_of_result: Option<SmolStr>,
    /// Digest of the text, for nodes of sub-agents.
    pub(super) said: Option<u64>,
    /// Call for which the node was written, according to the node.
    pub(super) parent_call: Option<SmolStr>,
}

pub(super) struct LineAt<'a> {
    pub(super) number: u64,
    offset: u64,
    /// The line without its newline.
    pub(super) bytes: &'a [u8],
    pub(super) ended: bool,
}

/// Index of all files.
#[derive(Debug, Default)]
pub(super) struct TranscriptScan {
    pub(super) sources: Vec<TranscriptSource>,
    pub(super) nodes: Vec<TranscriptNode>,
    /// Nodes by their `uuid`.
    pub(super) by_uuid: HashMap<SmolStr, usize>,
    /// Calls that lines name together with an agent, and the time of the line, by the transcript's
    /// own file and the agent's id.
    pub(super) started: HashMap<(usize, SmolStr), (SmolStr, i64)>,
    pub(super) findings: Vec<(usize, TranscriptFinding)>,
    /// Pairs of files of which one repeats lines of the other.
    pub(super) replays: Vec<(usize, usize)>,
}

fn changed_error(path: &Path) -> CommandError {
    CommandError::file(path, io::Error::other("the file changed while it was read"))
}

pub(super) fn open(path: &Path) -> Result<File> {
    open_regular_file(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => CommandError::file(path, io::Error::other("it is not a regular file")),
        _ => CommandError::file(path, error),
    })
}

pub(super) fn digest_of(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Passes each line of the first `bytes` bytes of a file to `visit`, and returns their digest.
fn each_line(path: &Path, bytes: u64, visit: &mut dyn FnMut(LineAt<'_>) -> Result<()>) -> Result<u64> {
    let mut reader = BufReader::with_capacity(1 << 16, open(path)?.take(bytes));
    let (mut line, mut offset, mut number) = (Vec::new(), 0_u64, 0_u64);
    let mut hasher = DefaultHasher::new();
    loop {
        line.clear();
        let read = reader.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line);
        let read = read.map_err(|error| CommandError::file(path, error))? as u64;
        if read == 0 {
            return Ok(hasher.finish());
        }
        number += 1;
        hasher.write(&line);
        let ended = line.last() == Some(&b'\n');
        if read > LINE_BYTES_MAX && !ended {
            let reason = format!("line {number} has more than {LINE_BYTES_MAX} bytes");
            return Err(malformed_error(path, None, reason));
        }
        let content = line.get(..line.len() - usize::from(ended)).unwrap_or_default();
        visit(LineAt { number, offset, bytes: content, ended })?;
        offset += read;
    }
}

impl TranscriptSource {
    /// Passes each line to `visit`, as it was when the file was first read.
    pub(super) fn each_line(&self, visit: &mut dyn FnMut(LineAt<'_>) -> Result<()>) -> Result<()> {
        let digest = each_line(&self.path, self.bytes, visit)?;
        if digest == self.digest { Ok(()) } else { Err(changed_error(&self.path)) }
    }
}

impl TranscriptScan {
    /// Reads a transcript's file, and those of its sub-agents.
    pub(super) fn transcript(&mut self, path: &Path) -> Result<()> {
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name else {
            return Err(malformed_error(path, None, "the file's name is not UTF-8, and cannot be stored"));
        };
        let main = self.sources.len();
        let seen = self.file(path, name.to_owned(), main, None)?;
        if !seen {
            return Err(malformed_error(path, None, "the file contains no line of a transcript"));
        }
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        for (path, name, agent) in subagents(path)? {
            self.file(&path, format!("{stem}/subagents/{name}"), main, Some(agent.into()))?;
        }
        Ok(())
    }

    /// Reads a file, and returns whether any of its lines belongs to a transcript.
    fn file(&mut self, path: &Path, name: String, main: usize, agent: Option<SmolStr>) -> Result<bool> {
        let bytes = open(path)?.metadata().map_err(|error| CommandError::file(path, error))?.len();
        let place = self.sources.len();
        let source =
            TranscriptSource { path: path.to_owned(), name, main, agent, bytes, digest: 0, last_us: 0 };
        self.sources.push(source);
        let (mut seen, mut time_us, mut replayed) = (false, 0, None);
        let digest = each_line(path, bytes, &mut |line| {
            if line.bytes.trim_ascii().is_empty() {
                return Ok(());
            }
            let Some(read) = LineFields::read(line.bytes) else {
                let kind = if line.ended { FindingKind::MalformedLine } else { FindingKind::TornLine };
                self.find(place, line.number, kind, None);
                return Ok(());
            };
            let Some(kind) = field::<String>(read.kind) else { return Ok(()) };
            seen = true;
            time_us = read.time_us().unwrap_or(time_us);
            if kind != "file-history-snapshot" {
                let node = self.node(place, &line, &kind, &read, time_us);
                self.take(node, &mut replayed);
            }
            Ok(())
        })?;
        if let Some((line, lines)) = replayed {
            let file = self.name_of(place);
            let kind = FindingKind::ReplayedLines;
            self.findings.push((place, TranscriptFinding { kind, file, line, lines: Some(lines), id: None }));
        }
        if let Some(source) = self.sources.get_mut(place) {
            (source.digest, source.last_us) = (digest, time_us);
        }
        Ok(seen)
    }

    fn name_of(&self, source: usize) -> String {
        self.sources.get(source).map(|source| source.name.clone()).unwrap_or_default()
    }

    /// Returns the places of a node's calls.
    pub(super) fn calls_of(&self, node: usize) -> impl Iterator<Item = CallPlace> + use<> {
        let count = self.nodes.get(node).map_or(0, |node| node.calls.len());
        (0..count).map(move |place| CallPlace { node, place })
    }

    /// Returns the node that a node follows.
    pub(super) fn parent_of(&self, node: &TranscriptNode) -> Option<usize> {
        self.by_uuid.get(node.parent.as_ref()?).copied()
    }

    /// Returns the node that a node follows, also across a compaction.
    pub(super) fn any_parent_of(&self, node: &TranscriptNode) -> Option<usize> {
        let logical = || self.by_uuid.get(node.logical_parent.as_ref()?).copied();
        self.parent_of(node).or_else(logical)
    }

    /// Adds a finding about a line.
    pub(super) fn find(&mut self, source: usize, line: u64, kind: FindingKind, id: Option<&str>) {
        let (file, id) = (self.name_of(source), id.map(str::to_owned));
        self.findings.push((source, TranscriptFinding { kind, file, line, lines: None, id }));
    }

    /// Returns pairs of files of which one follows lines of the other: a session that was resumed
    /// or compacted.
    pub(super) fn references(&self) -> impl Iterator<Item = (usize, usize)> {
        let nodes = self.nodes.iter();
        nodes.filter_map(|node| {
            let parent = self.nodes.get(self.any_parent_of(node)?)?.source;
            (parent != node.source).then_some((parent, node.source))
        })
    }

    /// Creates the node of a line, and indexes the agents and calls that the line names.
    fn node(
        &mut self,
        source: usize,
        at: &LineAt<'_>,
        kind: &str,
        line: &LineFields<'_>,
        time_us: i64,
    ) -> TranscriptNode {
        let id = |raw| field::<String>(raw).map(SmolStr::from);
        let message = line.message();
        let kind = match (kind, &message) {
            ("user" | "assistant", Some(message)) => {
                match message.is_assistants().unwrap_or(kind == "assistant") {
                    true => NodeKind::Assistant,
                    false => NodeKind::User,
                }
            }
            _ => NodeKind::Other,
        };
        let mut node = TranscriptNode {
            source,
            line: at.number,
            offset: at.offset,
            len: at.bytes.len() as u64,
            time_us,
            kind,
            uuid: id(line.uuid),
            parent: id(line.parent_uuid),
            logical_parent: id(line.logical_parent_uuid),
            message: None,
            sidechain: field(line.is_sidechain).unwrap_or_default(),
            agent: id(line.agent_id),
            calls: Vec::new(),
            results: Vec::new(),
            source_of_result: id(line.source_of_result),
            said: None,
            parent_call: line.parent_call().map(SmolStr::from),
        };
        if let Some(message) = message.filter(|_| kind != NodeKind::Other) {
            let content = content(message.content);
            if let MessageContent::Blocks(blocks) = &content {
                for block in blocks {
                    match (&block.content, kind) {
                        (BlockContent::Call { id, input, .. }, NodeKind::Assistant) => {
                            node.calls.push((id.into(), prompt(input).map(|text| digest_of(&text))));
                        }
                        (BlockContent::Result { id, .. }, NodeKind::User) => node.results.push(id.into()),
                        _ => {}
                    }
                }
            }
            node.message = id(message.id).filter(|_| kind == NodeKind::Assistant);
            node.said = content.text().filter(|_| node.sidechain).map(|text| digest_of(&text));
        }
        let call = node.parent_call.clone().or_else(|| node.results.first().cloned());
        let main = self.sources.get(source).map_or(source, |source| source.main);
        if let Some(call) = call {
            for agent in line.agents_named() {
                self.started.entry((main, agent.into())).or_insert_with(|| (call.clone(), time_us));
            }
        }
        node
    }

    /// Adds a node, unless it repeats an earlier one.
    fn take(&mut self, mut node: TranscriptNode, replayed: &mut Option<(u64, u64)>) {
        let Some(uuid) = node.uuid.clone() else {
            if node.kind != NodeKind::Other {
                self.nodes.push(node);
            }
            return;
        };
        let Some(first) = self.by_uuid.get(&uuid).and_then(|first| self.nodes.get(*first)) else {
            self.by_uuid.insert(uuid, self.nodes.len());
            self.nodes.push(node);
            return;
        };
        let says = |node: &TranscriptNode| (node.kind, node.time_us, node.message.clone());
        if says(first) == says(&node) {
            replayed.get_or_insert((node.line, 0)).1 += 1;
            let pair = (first.source, node.source);
            if self.replays.last() != Some(&pair) {
                self.replays.push(pair);
            }
            return;
        }
        self.find(node.source, node.line, FindingKind::RepeatedUuid, Some(&uuid));
        node.uuid = None;
        self.nodes.push(node);
    }
}

/// Lists the files of a transcript's sub-agents, by name: the path, the name and the sub-agent's id
/// of each. Skips links and entries that are not files.
pub(super) fn subagents(transcript: &Path) -> Result<Vec<(PathBuf, String, String)>> {
    let dir = &transcript.with_extension("").join("subagents");
    let entries = match std::fs::read_dir(dir) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.map_err(|error| CommandError::file(dir, error))?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| CommandError::file(dir, error))?;
        let is_file = entry.file_type().map_err(|error| CommandError::file(dir, error))?.is_file();
        let name = entry.file_name();
        if !is_file || Path::new(&name).extension().is_none_or(|ending| ending != "jsonl") {
            continue;
        }
        let Some(name) = name.to_str() else {
            let reason = "the file's name is not UTF-8, and cannot be stored";
            return Err(malformed_error(&entry.path(), None, reason));
        };
        let agent = name.strip_suffix(".jsonl").unwrap_or(name);
        let agent = agent.strip_prefix("agent-").unwrap_or(agent);
        files.push((entry.path(), name.to_owned(), agent.to_owned()));
    }
    files.sort();
    Ok(files)
}

/// Reads lines of nodes again.
#[derive(Debug, Default)]
pub(super) struct Reread {
    /// The file that was read last, with its index.
    open: Option<(usize, File)>,
}

impl Reread {
    /// Reads the line of a node.
    pub(super) fn line(&mut self, scan: &TranscriptScan, node: &TranscriptNode) -> Result<Vec<u8>> {
        let Some(source) = scan.sources.get(node.source) else { return Ok(Vec::new()) };
        let mut line = Vec::new();
        let file = match self.open.take() {
            Some((place, file)) if place == node.source => file,
            _ => open(&source.path)?,
        };
        // The length was measured when the line was first read.
        line.resize(node.len as usize, 0);
        file.read_exact_at(&mut line, node.offset).map_err(|_| changed_error(&source.path))?;
        self.open = Some((node.source, file));
        if LineFields::read(&line).is_some() { Ok(line) } else { Err(changed_error(&source.path)) }
    }
}
