//! The manifest: the session and position of a tree, and the content of each of its files.

use std::collections::BTreeMap;
use std::io::{self, Write};

use chrono::{DateTime, Utc};
use foldlog::{SequenceNumber, escape};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::layout;
use crate::{Checkpoint, CheckpointId, Error, RemovalReason, Result, StateCompression};

/// Version of the tree's format.
const FORMAT: u32 = 1;
/// Maximum length of a manifest in bytes. A manifest of a million files is shorter.
pub(super) const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// Describes a tree, and the content of each of its files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TreeManifest {
    /// Version of the format: 1.
    pub format: u32,
    /// Session.
    pub session_id: Uuid,
    /// Last record that the tree includes; `None` if unknown.
    pub position: Option<SequenceNumber>,
    /// Number of updates in the tree.
    pub updates: u64,
    /// How its files are compressed.
    pub compression: StateCompression,
    /// Number of checkpoint directories.
    pub checkpoints: u64,
    /// Checkpoints that were created up to the position, in order, including those that were
    /// removed since. Empty in a tree that was written before they were listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<ListedCheckpoint>,
    /// Files by their paths within the session's directory.
    pub files: BTreeMap<String, ManifestFile>,
}

/// Describes a checkpoint in the history of a tree, with its validation hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ListedCheckpoint {
    /// Id of the checkpoint.
    pub id: CheckpointId,
    /// Session whose log has its position.
    pub session_id: Uuid,
    /// Position of the checkpoint.
    pub position: SequenceNumber,
    /// Time of its creation.
    pub created_at: DateTime<Utc>,
    /// Name given by the creator.
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
    /// Lists a checkpoint that has a directory, or was removed.
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

/// Describes the content of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Stored length in bytes.
    pub bytes: u64,
    /// BLAKE3 of the stored bytes, in hexadecimal digits.
    pub blake3: String,
    /// Its decompressed content; `None` if it is stored plain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<ContentDigest>,
}

/// Describes the content of a compressed file.
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
    /// Returns the manifest of a tree without files.
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

    /// Parses the bytes of the file.
    ///
    /// # Errors
    ///
    /// Why the bytes are not a valid manifest.
    pub(super) fn decode(bytes: &[u8]) -> Result<TreeManifest, String> {
        let sealed: SealedManifest<TreeManifest> =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let manifest = sealed.manifest;
        let digest = manifest.digest().map_err(|error| error.to_string())?;
        if manifest.format != FORMAT {
            return Err(format!("its version is {}, not {FORMAT}", manifest.format));
        }
        if digest != sealed.blake3 {
            return Err(format!("its digest is {digest}, not {}", sealed.blake3));
        }
        match manifest.files.keys().find(|path| !layout::is_file(path)) {
            Some(path) => Err(format!("it names the file {path:?}, which no tree contains")),
            None => Ok(manifest),
        }
    }

    fn digest(&self) -> serde_json::Result<String> {
        Ok(hex_of(serde_json::to_string(self)?.as_bytes()))
    }
}

impl ManifestFile {
    /// Describes a file by the digests of its content and of its stored bytes.
    pub(super) fn of_digests(content: ContentDigest, stored: ContentDigest) -> ManifestFile {
        let content = (content != stored).then_some(content);
        let ContentDigest { bytes, blake3 } = stored;
        ManifestFile { bytes, blake3, content }
    }

    /// Returns whether the file contains these bytes.
    pub(super) fn is_of(&self, content: &[u8]) -> bool {
        let (bytes, digest) = self.content();
        bytes == content.len() as u64 && digest == hex_of(content)
    }

    /// Returns the length and the digest of the file's decompressed content.
    pub(super) fn content(&self) -> (u64, &str) {
        match &self.content {
            Some(content) => (content.bytes, &content.blake3),
            None => (self.bytes, &self.blake3),
        }
    }
}

/// Computes a digest of all bytes that are written through it to `out`.
pub(super) struct DigestWriter<W> {
    out: W,
    bytes: u64,
    hasher: blake3::Hasher,
}

impl<W: Write> DigestWriter<W> {
    pub(super) fn new(out: W) -> DigestWriter<W> {
        DigestWriter { out, bytes: 0, hasher: blake3::Hasher::new() }
    }

    /// Returns the digest of the written bytes, and the inner writer.
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
