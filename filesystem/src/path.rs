//! Validation of paths: the only function that decides which paths are accepted.

use crate::error::{Error, Result};

/// The longest path in bytes, as on Linux.
pub(super) const PATH_BYTES_MAX: usize = 4095;

/// Greatest depth of nested directories. A walk holds one open for each level.
pub(super) const DEPTH_MAX: usize = 256;

/// Splits a path into its parts; the root has none.
pub(super) fn parts(path: &str) -> Result<Vec<&str>> {
    let refused = |reason: &str| Err(Error::path(path.escape_debug().to_string(), reason));
    if path.len() > PATH_BYTES_MAX {
        // The message omits the path, which would bury the rest of the text.
        return Err(Error::path(
            "",
            format!("a path of {} bytes is too long (at most {PATH_BYTES_MAX})", path.len()),
        ));
    }
    if path.is_empty() {
        return refused("the path is empty; the root is `.`");
    }
    if path.starts_with('/') {
        return refused("absolute paths are not allowed");
    }
    if path.contains('\0') {
        return refused("a path cannot contain NUL");
    }
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            "" => return refused("a part of the path is empty"),
            ".." => return refused("`..` is not allowed"),
            part => parts.push(part),
        }
    }
    if parts.len() > DEPTH_MAX {
        return refused("too many nested directories");
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_relative_and_plain_or_refused_by_name() {
        assert_eq!(parts("a/b c/.d").unwrap(), ["a", "b c", ".d"]);
        assert_eq!(parts("./a/./b").unwrap(), ["a", "b"]);
        assert!(parts(".").unwrap().is_empty());
        for refused in ["", "/", "/a", "a//b", "a/", "..", "a/../b", "a\0b"] {
            let error = parts(refused).unwrap_err();
            assert!(
                matches!(&error, Error::Path { path, .. } if *path == refused.escape_debug().to_string()),
                "{refused:?}: {error}"
            );
        }
        assert!(parts(&"a/".repeat(DEPTH_MAX + 1)).is_err());
        assert!(parts(&"a".repeat(PATH_BYTES_MAX + 1)).is_err());
    }
}
