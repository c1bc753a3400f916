//! The manifest: which session and position a tree is of, and what each of its files holds.

use std::collections::BTreeMap;
use std::io::{self, Write};

use chrono::{DateTime, Utc};
use foldlog::{SequenceNumber, escape};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::layout;
use crate::{Checkpoint, CheckpointId, Error, RemovalReason, Result, StateCompression};

/// Version of the tree's form.
const FORMAT: u32 = 1;
/// Greatest length of a manifest in bytes: one of a million files has less.
pub(super) const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// Says what a tree is of, and what each of its files holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TreeManifest {
    /// Version of the form: 1.
    pub format: u32,
    /// Session.
    pub session_id: Uuid,
    /// Last record that the tree includes; `None` if nobody said so.
    pub position: Option<SequenceNumber>,
    /// Number of updates that the tree holds.
    pub updates: u64,
    /// How its files are compressed.
    pub compression: StateCompression,
    /// Number of the directories of checkpoints.
    pub checkpoints: u64,
    /// Checkpoints that were created up to the position, in their order, those that were removed since among them. Empty in a tree that
    /// was written before they were listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<ListedCheckpoint>,
    /// Files by their paths within the session's directory.
    pub files: BTreeMap<String, ManifestFile>,
}

/// Names a checkpoint in the history of a tree, with what it is validated by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ListedCheckpoint {
    /// Id of the checkpoint.
    pub id: CheckpointId,
    /// Session whose log has its position.
    pub session_id: Uuid,
    /// Position that it is of.
    pub position: SequenceNumber,
    /// Time of its creation.
    pub created_at: DateTime<Utc>,
    /// Name that somebody gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// BLAKE3 of the records through the position.
    pub validation_hash: String,
    /// Number of its directory in the tree; `None` if it was removed.
    #[serde(default, rename = "folder", skip_serializing_if = "Option::is_none")]
    pub directory: Option<u64>,
    /// Limit by which it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<RemovalReason>,
}

impl ListedCheckpoint {
    /// Lists a checkpoint that stands in a directory, or was removed.
    pub(super) fn from_checkpoint(
        checkpoint: &Checkpoint,
        directory: Option<u64>,
        removed: Option<RemovalReason>,
    ) -> ListedCheckpoint {
        let Checkpoint { id, session_id, position, created_at, ref name, ref validation_hash, .. } =
            *checkpoint;
        let (name, validation_hash) = (name.clone(), validation_hash.clone());
        ListedCheckpoint { id, session_id, position, created_at, name, validation_hash, directory, removed }
    }
}

/// Says what a file holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Length in bytes, as it is stored.
    pub bytes: u64,
    /// BLAKE3 of what is stored, in hexadecimal digits.
    pub blake3: String,
    /// What it holds once it is decompressed; `None` if it is stored plain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<ContentDigest>,
}

/// Says what a compressed file holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentDigest {
    /// Length in bytes.
    pub bytes: u64,
    /// BLAKE3 in hexadecimal digits.
    pub blake3: String,
}

/// The file: the manifest, and the BLAKE3 of its JSON on one line.
#[derive(Serialize, Deserialize)]
struct SealedManifest<M> {
    manifest: M,
    blake3: String,
}

impl TreeManifest {
    /// Makes the manifest of a tree without files.
    pub(super) fn new(session_id: Uuid, compression: StateCompression) -> TreeManifest {
        TreeManifest {
            format: FORMAT,
            session_id,
            position: None,
            updates: 0,
            compression,
            checkpoints: 0,
            history: Vec::new(),
            files: BTreeMap::new(),
        }
    }

    /// Returns the bytes of the file.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let failed = |source| Error::Json { what: layout::MANIFEST.to_owned(), source };
        let sealed = SealedManifest { manifest: self, blake3: self.digest().map_err(failed)? };
        let mut bytes = Vec::new();
        escape::write_json_pretty(&mut bytes, &sealed).map_err(failed)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Reads the bytes of the file.
    ///
    /// # Errors
    ///
    /// Why these are not the bytes of a manifest that somebody wrote.
    pub(super) fn decode(bytes: &[u8]) -> Result<TreeManifest, String> {
        let sealed: SealedManifest<TreeManifest> =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let manifest = sealed.manifest;
        let digest = manifest.digest().map_err(|error| error.to_string())?;
        if manifest.format != FORMAT {
            return Err(format!("it is of version {}, not {FORMAT}", manifest.format));
        }
        if digest != sealed.blake3 {
            return Err(format!("it has the digest {digest}, not {}", sealed.blake3));
        }
        match manifest.files.keys().find(|path| !layout::is_file(path)) {
            Some(path) => Err(format!("no tree has a file {path:?}")),
            None => Ok(manifest),
        }
    }

    fn digest(&self) -> serde_json::Result<String> {
        Ok(hex_of(serde_json::to_string(self)?.as_bytes()))
    }
}

impl ManifestFile {
    /// Describes a file.
    pub(super) fn from_content(content: &[u8], stored: &[u8]) -> ManifestFile {
        let digest = |bytes: &[u8]| ContentDigest { bytes: bytes.len() as u64, blake3: hex_of(bytes) };
        let content = (content != stored).then(|| digest(content));
        let ContentDigest { bytes, blake3 } = digest(stored);
        ManifestFile { bytes, blake3, content }
    }

    /// Describes a file by what it holds and by what is stored.
    pub(super) fn of_digests(content: ContentDigest, stored: ContentDigest) -> ManifestFile {
        let content = (content != stored).then_some(content);
        let ContentDigest { bytes, blake3 } = stored;
        ManifestFile { bytes, blake3, content }
    }

    /// Returns whether the file holds these bytes.
    pub(super) fn is_of(&self, content: &[u8]) -> bool {
        let (bytes, digest) = self.content();
        bytes == content.len() as u64 && digest == hex_of(content)
    }

    /// Returns the length and the digest of what the file holds.
    pub(super) fn content(&self) -> (u64, &str) {
        match &self.content {
            Some(content) => (content.bytes, &content.blake3),
            None => (self.bytes, &self.blake3),
        }
    }
}

/// Digests what is written through it to `out`.
pub(super) struct DigestWriter<W> {
    out: W,
    bytes: u64,
    hasher: blake3::Hasher,
}

impl<W: Write> DigestWriter<W> {
    pub(super) fn new(out: W) -> DigestWriter<W> {
        DigestWriter { out, bytes: 0, hasher: blake3::Hasher::new() }
    }

    /// Returns what was written, and where to.
    pub(super) fn finish(self) -> (ContentDigest, W) {
        let DigestWriter { out, bytes, hasher } = self;
        (ContentDigest { bytes, blake3: hasher.finalize().to_hex().to_string() }, out)
    }
}

impl<W: Write> Write for DigestWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        self.hasher.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

pub(super) fn hex_of(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}
