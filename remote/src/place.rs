//! A place of sessions as a person writes it: a URL.
//!
//! | URL | store |
//! |---|---|
//! | `file:///PATH` | a local folder, which exists |
//!
//! Stores of networks have no URL here yet: a host makes one, as the crate `object_store` says, and hands it in. No error quotes the
//! URL, which may hold a password.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use url::Url;

use crate::error::{Error, Result};

/// Opens the store that a URL names, and returns it with the prefix beneath which the sessions are.
///
/// # Errors
///
/// [`Error::Url`] if it is no such URL, holds a password, a query or a fragment, names a folder that is not there, or a store that this
/// crate does not reach.
pub fn open_url(url: &str) -> Result<(Arc<dyn ObjectStore>, String)> {
    let refused = |reason| Error::Url { reason };
    let url = Url::parse(url).map_err(|_| refused("it is no URL"))?;
    if url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        return Err(refused("it holds more than a place"));
    }
    if url.scheme() != "file" {
        return Err(refused("a folder is reached by file:///PATH, and other stores by a host alone"));
    }
    let path = url.to_file_path().map_err(|()| refused("it names no local folder"))?;
    if path.parent().is_none() {
        return Err(refused("it names the root of all folders"));
    }
    let files = LocalFileSystem::new_with_prefix(path).map_err(|_| refused("there is no such folder"))?;
    Ok((Arc::new(files.with_fsync(true)), String::new()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn reason(url: &str) -> &'static str {
        match open_url(url) {
            Err(Error::Url { reason }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_no_place_is_refused_and_no_error_quotes_it() {
        assert_eq!(reason("bucket"), "it is no URL");
        assert!(reason("s3://bucket/x").contains("by a host alone"));
        assert_eq!(reason("file:///nowhere/at/all"), "there is no such folder");
        for url in ["file://", "file:///", "file:///.."] {
            assert_eq!(reason(url), "it names the root of all folders");
        }
        for url in ["s3://key:secret@bucket/x", "file:///tmp?key=secret", "s3://bucket/x#secret"] {
            assert_eq!(reason(url), "it holds more than a place");
            let text = open_url(url).unwrap_err().to_string();
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn a_folder_is_a_place() {
        let folder = tempfile::tempdir().unwrap();
        let url = Url::from_directory_path(folder.path()).unwrap();
        let (store, prefix) = open_url(url.as_str()).unwrap();
        assert_eq!(prefix, "");
        assert!(store.to_string().contains("LocalFileSystem"));
    }
}
