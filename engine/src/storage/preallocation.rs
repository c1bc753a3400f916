//! File systems that keep allocated space, and those that do not.
//!
//! A store into a memory mapping cannot fail: if the system finds no space for the page, it kills
//! the process. The engine therefore maps a segment only if allocated space is guaranteed to be
//! available for every later write. A copy-on-write file system needs new space for a block that is
//! already allocated. For a file system across a network or in another process, nothing is known.
//! `statfs` identifies the file system of a file. On those of the table below each record is a
//! positioned write, which can return an error.
//!
//! Two cases look like a file system that keeps its space and are not detected: an overlay whose
//! upper directory is on a file system of the table, and a session that was copied by hand with
//! shared blocks (`cp --reflink`).

use std::fs::File;

use nix::sys::statfs::fstatfs;

/// `statfs` numbers of the file systems on which an allocation guarantees nothing.
const NOT_KEPT: [(u32, &str); 18] = [
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xca45_1a4e, "bcachefs"),
    (0x0000_3434, "nilfs"),
    (0x0000_6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x0000_517b, "smb"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "fuse"),
    (0x6573_5543, "fusectl"),
    (0x00c3_6400, "ceph"),
    (0x5346_414f, "afs"),
    (0x6b41_4653, "kafs"),
    (0x7375_7245, "coda"),
    (0x0bd0_0bd0, "lustre"),
    (0x786f_4256, "vboxsf"),
    (0xbacb_acbc, "vmhgfs"),
];

/// Returns whether the file system of `file` keeps allocated space until the file is written.
/// Returns `true` if the file system cannot be identified.
pub(super) fn keeps_allocations(file: &File) -> bool {
    fstatfs(file).map_or(true, |found| is_kept(found.filesystem_type().0 as u32))
}

/// Returns whether the file system with this `statfs` number keeps allocated space. The number has
/// 32 bits, regardless of its type on a machine.
fn is_kept(number: u32) -> bool {
    !NOT_KEPT.iter().any(|(not_kept, _)| *not_kept == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_mapped_where_an_allocation_promises_nothing() {
        // From `statfs(2)`.
        for (name, number) in [
            ("btrfs", 0x9123_683e_u32),
            ("zfs", 0x2fc1_2fc1),
            ("nfs", 0x6969),
            ("fuse", 0x6573_5546),
            ("9p", 0x0102_1997),
            ("cifs", 0xff53_4d42),
        ] {
            assert!(!is_kept(number), "{name}");
            assert!(NOT_KEPT.iter().any(|(_, not_kept)| *not_kept == name), "{name}");
        }
        for (name, number) in [
            ("ext4", 0xef53_u32),
            ("xfs", 0x5846_5342),
            ("tmpfs", 0x0102_1994),
            ("f2fs", 0xf2f5_2010),
            ("overlayfs", 0x794c_7630),
        ] {
            assert!(is_kept(number), "{name}");
        }
    }

    #[test]
    fn no_number_stands_there_twice() {
        let mut numbers: Vec<u32> = NOT_KEPT.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), NOT_KEPT.len());
    }
}
