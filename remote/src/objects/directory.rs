//! A bucket in a local directory. Every object has to be a regular file.
//!
//! There may be a pipe in place of an object, whose opening would wait for a writer forever, or a
//! directory, which `object_store` reports as a missing object: a log would seem to end there. Both
//! are refused before they are opened
//! ([`RemoteFailure::NotAFile`](crate::RemoteFailure::NotAFile)).

use std::fmt;
use std::fs;
use std::path::PathBuf;

use async_trait::async_trait;
use futures_lite::stream::Boxed;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// A directory with objects as files.
#[derive(Debug)]
pub(crate) struct DirectoryObjectStore(LocalFileSystem);

/// Error for a path that is not a regular file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotAFile;

impl fmt::Display for NotAFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is not a regular file")
    }
}

impl std::error::Error for NotAFile {}

impl DirectoryObjectStore {
    /// Opens an existing directory. Objects that are put into it are durable.
    ///
    /// # Errors
    ///
    /// The error of `object_store` if there is no such directory.
    pub(crate) fn open(path: PathBuf) -> Result<DirectoryObjectStore> {
        Ok(DirectoryObjectStore(LocalFileSystem::new_with_prefix(path)?.with_fsync(true)))
    }

    fn check(&self, location: &Path) -> Result<()> {
        match fs::metadata(self.0.path_to_filesystem(location)?) {
            Ok(found) if !found.is_file() => {
                Err(Error::Generic { store: "directory", source: Box::new(NotAFile) })
            }
            // Opening a missing or inaccessible path reports its own error.
            _ => Ok(()),
        }
    }
}

impl fmt::Display for DirectoryObjectStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for DirectoryObjectStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.0.put_opts(location, payload, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.check(location)?;
        self.0.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: Boxed<Result<Path>>) -> Boxed<Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, directory: Option<&Path>) -> Boxed<Result<ObjectMeta>> {
        self.0.list(directory)
    }

    async fn list_with_delimiter(&self, directory: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(directory).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(location, options).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}
