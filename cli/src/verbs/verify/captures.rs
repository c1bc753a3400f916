//! What `foldlog verify --captures` finds of captures of workspaces.

use std::path::Path;

use foldlog::filesystem::DamagedObject;
use foldlog::inspect::{self, CapturesAudited};
use serde::Serialize;

use super::{SessionDamage, VerifyReport, named};
use crate::failure::Result;
use crate::output::Output;
use crate::readers::counted;

/// Counts captures of workspaces.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CaptureCounts {
    /// Those that were read.
    pub read: u64,
    /// Those that were collected.
    pub collected: u64,
    /// Those of which the sessions' folders have none: the host keeps them in folders of its own, or they were lost.
    pub elsewhere: u64,
    /// Damaged files that are listed among all that is corrupt.
    #[serde(skip)]
    pub damaged: usize,
    /// Damaged files that are not listed.
    #[serde(skip_serializing_if = "super::is_zero")]
    pub damaged_more: u64,
}

/// Reads the captures of a session, if that was asked for. Of a log that is damaged itself, nobody knows which these are.
///
/// # Errors
///
/// [`Failure::Engine`](crate::failure::CommandError::Engine) if the log cannot be read.
pub(super) fn add(dir: &Path, verified: &mut VerifyReport) -> Result<()> {
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
        session: named(dir),
        segment: path,
        reason: format!("a capture of a workspace needs it: {reason}"),
        ..SessionDamage::default()
    };
    verified.corrupt.extend(damaged.into_iter().map(of_file));
    Ok(())
}

impl CaptureCounts {
    pub(super) fn print(&self, output: &mut Output<'_>) -> Result<()> {
        let CaptureCounts { read, collected, elsewhere, damaged_more, .. } = self;
        let captures = counted(*read, "capture");
        output.line(format_args!(
            "{captures} of workspaces read, {collected} were collected, {elsewhere} are not in the sessions' folders"
        ))?;
        match damaged_more {
            0 => Ok(()),
            more => output.line(format_args!("and {more} more damaged files of captures")),
        }
    }
}
