use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Identifies a workspace's folder across processes and reboots, whatever path leads to it. A snapshot records the
/// identity, so that no restore changes another folder that stands at the workspace's path by then.
///
/// Neither path, device nor inode is enough alone: a folder can be replaced, a device gets another number with the next
/// mount, and an inode is given to a new folder once the old one is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FolderIdentity {
    /// Random number in the folder's extended attribute `user.foldlog.token`; `None` if the file system has no such
    /// attributes, or the folder may not be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Uuid>,
    /// Inode of the folder.
    pub inode: u64,
    /// Time at which the folder was made, in nanoseconds since 1970-01-01 UTC; `None` if the file system does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born_ns: Option<i64>,
}

impl FolderIdentity {
    #[cfg(any(feature = "host", test))]
    pub(crate) fn new(token: Option<Uuid>, inode: u64, born_ns: Option<i64>) -> FolderIdentity {
        FolderIdentity { token, inode, born_ns }
    }

    /// Returns whether `found` is the folder that `self` was recorded of. If both have a token, the tokens must be
    /// equal, and either the inodes or the times of making; otherwise both the inodes and those times.
    pub fn is_borne_by(&self, found: &FolderIdentity) -> bool {
        let same_inode = self.inode == found.inode;
        let same_birth = self.born_ns.is_some() && self.born_ns == found.born_ns;
        match (self.token, found.token) {
            (Some(token), Some(other)) => token == other && (same_inode || same_birth),
            _ => same_inode && same_birth,
        }
    }
}

impl fmt::Display for FolderIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode {}", self.inode)?;
        match self.born_ns {
            Some(born_ns) => write!(f, " of {}", foldlog_codec::record::time_text(born_ns.div_euclid(1000)))?,
            None => f.write_str(" of no known time")?,
        }
        match self.token {
            Some(token) => write!(f, " with token {token}"),
            None => f.write_str(" without a token"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule, case by case: token, inode and time of what is found, and whether that is the folder.
    #[test]
    fn a_folder_is_known_again_by_its_token_and_one_thing_more_or_by_both_of_the_others() {
        let (token, other) = (Some(Uuid::from_u128(1)), Some(Uuid::from_u128(2)));
        let recorded = FolderIdentity::new(token, 7, Some(70));
        let untold = FolderIdentity::new(None, 7, Some(70));
        let cases = [
            (recorded, (token, 7, Some(70)), true),
            (recorded, (token, 8, Some(70)), true),
            (recorded, (token, 7, Some(71)), true),
            (recorded, (token, 7, None), true),
            (recorded, (token, 8, Some(71)), false),
            (recorded, (token, 8, None), false),
            (recorded, (other, 7, Some(70)), false),
            (recorded, (None, 7, Some(70)), true),
            (recorded, (None, 7, Some(71)), false),
            (untold, (None, 7, Some(70)), true),
            (untold, (token, 7, Some(70)), true),
            (untold, (None, 7, None), false),
            (untold, (None, 8, Some(70)), false),
            (FolderIdentity::new(None, 7, None), (None, 7, None), false),
            (FolderIdentity::new(token, 7, None), (token, 8, None), false),
        ];
        for (recorded, (token, inode, born_ns), is_same) in cases {
            let found = FolderIdentity::new(token, inode, born_ns);
            assert_eq!(recorded.is_borne_by(&found), is_same, "{recorded}; {found}");
        }
    }
}
