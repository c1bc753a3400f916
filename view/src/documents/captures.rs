//! Audits the captures of workspaces that a session's directory contains.

use std::path::Path;

use foldlog::filesystem::DamagedObject;
use foldlog::inspect::{self, CapturesAudited};
use serde::Serialize;

use super::verify::{SessionDamage, VerifyReport, session_id_of};
use crate::Result;

/// Counts captures of workspaces.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CaptureCounts {
    /// Captures that were read.
    pub read: u64,
    /// Captures that were collected as garbage.
    pub collected: u64,
    /// Captures that are in none of the sessions' directories: the host stores them elsewhere, or
    /// they were lost.
    pub elsewhere: u64,
    /// Damaged files that are listed with all other corrupt files.
    #[serde(skip)]
    pub damaged: usize,
    /// Damaged files that are not listed.
    #[serde(skip_serializing_if = "super::verify::is_zero")]
    pub damaged_more: u64,
}

/// Reads the captures of a session, if the caller enabled this. If the log itself is damaged, its
/// captures cannot be determined.
pub fn add(dir: &Path, verified: &mut VerifyReport) -> Result<()> {
    let Some(counted) = &mut verified.captures else { return Ok(()) };
    let audited = match inspect::audit_captures(dir) {
        Err(error) if error.is_damage() => return Ok(()),
        audited => audited?,
    };
    let CapturesAudited { captures, collected, elsewhere, damaged, damaged_more, .. } = audited;
    counted.read += captures;
    counted.collected += collected;
    counted.elsewhere += elsewhere.values().sum::<u64>();
    counted.damaged += damaged.len();
    counted.damaged_more += damaged_more;
    let of_file = |DamagedObject { path, reason }| SessionDamage {
        session: session_id_of(dir),
        segment: path,
        reason: format!("a capture of a workspace needs it: {reason}"),
        ..SessionDamage::default()
    };
    verified.corrupt.extend(damaged.into_iter().map(of_file));
    Ok(())
}
