//! Facts of the machine that workspaces and logs both need: its boot, and what its errors mean.

use std::fs;
use std::io::{Error, ErrorKind};
use std::sync::OnceLock;

use uuid::Uuid;

/// Returns the id of the machine's present boot; `None` if the machine does not tell. It changes with every boot.
pub fn boot_id() -> Option<Uuid> {
    static BOOT_ID: OnceLock<Option<Uuid>> = OnceLock::new();
    *BOOT_ID.get_or_init(|| {
        Uuid::parse_str(fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim()).ok()
    })
}

/// Returns whether `error` means that the disk, or the quota of the files' owner, has no space left.
pub fn is_out_of_space(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
