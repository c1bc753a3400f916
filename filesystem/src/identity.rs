use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

/// Identifies a workspace's directory across processes and reboots, independently of its path. A
/// snapshot records the identity, so that no restore changes a different directory that has taken
/// the workspace's path since.
///
/// Path, device or inode alone are not enough: a directory can be replaced, a device gets a
/// different number at the next mount, and the inode of a removed directory is given to a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DirectoryIdentity {
    /// Random number in the directory's extended attribute `user.foldlog.token`. `None` if the file
    /// system has no such attributes, or if the directory is not writable.
    #[serde(default, deserialize_with = "read_token", skip_serializing_if = "Option::is_none")]
    pub token: Option<Uuid>,
    /// Inode of the directory.
    pub inode: u64,
    /// Time at which the directory was created, in nanoseconds since 1970-01-01 UTC; `None` if the
    /// file system does not provide it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born_ns: Option<i64>,
}

/// Reads a token from a record (16 bytes), from JSON (text), or from a record that was converted
/// through JSON, which has no bytes (a list of 16 numbers).
fn read_token<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Uuid>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "expected a UUID as text, as 16 bytes, or as a list of 16 numbers below 256"
    )]
    enum Token {
        Uuid(Uuid),
        Numbers([u8; 16]),
    }

    Ok(Option::deserialize(from)?.map(|token| match token {
        Token::Uuid(token) => token,
        Token::Numbers(bytes) => Uuid::from_bytes(bytes),
    }))
}

impl DirectoryIdentity {
    #[cfg(any(feature = "host", test))]
    pub(crate) fn new(token: Option<Uuid>, inode: u64, born_ns: Option<i64>) -> DirectoryIdentity {
        DirectoryIdentity { token, inode, born_ns }
    }

    /// Returns whether `found` is the directory that `self` identifies. If both have a token, the
    /// tokens must be equal, and also the inodes or the creation times. Otherwise both the inodes
    /// and the creation times must be equal.
    pub fn is_borne_by(&self, found: &DirectoryIdentity) -> bool {
        let same_inode = self.inode == found.inode;
        let same_birth = self.born_ns.is_some() && self.born_ns == found.born_ns;
        match (self.token, found.token) {
            (Some(token), Some(other)) => token == other && (same_inode || same_birth),
            _ => same_inode && same_birth,
        }
    }
}

impl fmt::Display for DirectoryIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode {}", self.inode)?;
        match self.born_ns {
            Some(born_ns) => {
                write!(f, ", created {}", foldlog_codec::record::time_text(born_ns.div_euclid(1000)))?;
            }
            None => f.write_str(", creation time unknown")?,
        }
        match self.token {
            Some(token) => write!(f, ", with token {token}"),
            None => f.write_str(", without a token"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule, case by case: token, inode and time of the found directory, and whether it is the
    /// same directory.
    #[test]
    fn a_directory_is_known_again_by_its_token_and_one_thing_more_or_by_both_of_the_others() {
        let (token, other) = (Some(Uuid::from_u128(1)), Some(Uuid::from_u128(2)));
        let recorded = DirectoryIdentity::new(token, 7, Some(70));
        let untold = DirectoryIdentity::new(None, 7, Some(70));
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
            (DirectoryIdentity::new(None, 7, None), (None, 7, None), false),
            (DirectoryIdentity::new(token, 7, None), (token, 8, None), false),
        ];
        for (recorded, (token, inode, born_ns), is_same) in cases {
            let found = DirectoryIdentity::new(token, inode, born_ns);
            assert_eq!(recorded.is_borne_by(&found), is_same, "{recorded}; {found}");
        }
    }
}
