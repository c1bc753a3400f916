//! Facts of the machine that workspaces and logs both need: its boot, and what its errors mean.

use std::fs;
use std::io::{Error, ErrorKind};
use std::sync::OnceLock;

use uuid::Uuid;

/// The two numbers by which Linux says that no more files can be opened, of the system and of the process
/// (`asm-generic/errno-base.h`).
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

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

/// Returns whether `error` means that the process, or the system, has as many files open as it may (`EMFILE`, `ENFILE`).
pub fn is_out_of_handles(error: &Error) -> bool {
    error.raw_os_error().is_some_and(|errno| [EMFILE, ENFILE].contains(&errno))
}
