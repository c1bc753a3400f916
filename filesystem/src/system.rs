//! What the system says, for workspaces and for whoever keeps files beside them.

use std::fs;
use std::io::{Error, ErrorKind};
use std::sync::OnceLock;

use uuid::Uuid;

/// Returns the identity of the machine's present boot; `None` where the machine does not tell.
pub fn boot_id() -> Option<Uuid> {
    static BOOT_ID: OnceLock<Option<Uuid>> = OnceLock::new();
    *BOOT_ID.get_or_init(|| {
        Uuid::parse_str(fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim()).ok()
    })
}

/// Returns whether an error means that there is no space left for what was to be made: on the disk, or for its owner.
pub fn is_out_of_space(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
