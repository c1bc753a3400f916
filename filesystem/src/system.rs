//! Facts of the machine that both workspaces and logs need: its boot, and the meaning of its
//! errors.

use std::fs;
use std::io::{Error, ErrorKind};
use std::sync::OnceLock;

use uuid::Uuid;

/// The two error numbers of Linux for too many open files, in the system and in the process
/// (`asm-generic/errno-base.h`).
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// Returns the id of the machine's current boot, or `None` if it is not available. It changes with
/// every boot.
pub fn boot_id() -> Option<Uuid> {
    static BOOT_ID: OnceLock<Option<Uuid>> = OnceLock::new();
    *BOOT_ID.get_or_init(|| {
        Uuid::parse_str(fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim()).ok()
    })
}

/// Returns whether `error` means that the disk, or the quota of the files' owner, has no space
/// left.
pub fn is_out_of_space(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Returns whether `error` means that the process or the system has reached its limit of open files
/// (`EMFILE`, `ENFILE`).
pub fn is_out_of_handles(error: &Error) -> bool {
    error.raw_os_error().is_some_and(|errno| [EMFILE, ENFILE].contains(&errno))
}
