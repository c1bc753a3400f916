//! Which file systems keep the space that they allocate.
//!
//! A store into a memory mapping cannot fail: where the system finds no space for the page, it kills the process. So
//! the engine maps a segment only where space that was allocated once is there whenever it is written. A file system
//! that copies on write needs new space for a block that it already holds, and of one across a network or in another
//! process nobody knows. `statfs` tells which file system a file is on; on those of the table below each record is a
//! positioned write, which can answer with an error.
//!
//! Two cases cannot be told apart from a file system that keeps its space: an overlay whose upper directory lies on one of
//! these, and a session that somebody copied by hand in a way that shares blocks (`cp --reflink`).

use std::fs::File;

use nix::sys::statfs::fstatfs;

/// Numbers by which `statfs` names the file systems on which an allocation promises nothing.
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

/// Returns whether the file system of `file` still has the space that it allocated when the file is written. A file
/// system that does not say what it is counts as one that has.
pub(super) fn keeps_allocations(file: &File) -> bool {
    fstatfs(file).map_or(true, |found| is_kept(found.filesystem_type().0 as u32))
}

/// Returns whether the file system with this `statfs` number keeps what it allocates. The number has 32 bits, whatever
/// type a machine gives it.
fn is_kept(number: u32) -> bool {
    !NOT_KEPT.iter().any(|(not_kept, _)| *not_kept == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_mapped_where_an_allocation_promises_nothing() {
        // As `statfs(2)` lists them.
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
