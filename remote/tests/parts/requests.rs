//! Buckets of tests, which answer the protocol's requests and panic at any other.

use std::fmt;

use async_trait::async_trait;
use futures_lite::stream::Boxed;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

#[async_trait]
pub(crate) trait Requests: fmt::Debug + Send + Sync + 'static {
    async fn create(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult>;
    async fn read(&self, location: &Path, options: GetOptions) -> Result<GetResult>;
    fn delete(&self, locations: Boxed<Result<Path>>) -> Boxed<Result<Path>>;

    /// Lists what a collection may remove. Nothing else relies on a list.
    fn list(&self, _: Option<&Path>) -> Boxed<Result<ObjectMeta>> {
        panic!("the protocol relies on no list")
    }
}

/// An object store that forwards its requests to a [`Requests`].
#[derive(Debug)]
pub(crate) struct Answered<T>(pub(crate) T);

impl<T: Requests> fmt::Display for Answered<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl<T: Requests> ObjectStore for Answered<T> {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.0.create(location, payload, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.read(location, options).await
    }

    fn delete_stream(&self, locations: Boxed<Result<Path>>) -> Boxed<Result<Path>> {
        self.0.delete(locations)
    }

    fn list(&self, directory: Option<&Path>) -> Boxed<Result<ObjectMeta>> {
        self.0.list(directory)
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        panic!("the protocol relies on no list")
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        panic!("the protocol puts whole objects")
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        panic!("the protocol copies nothing")
    }
}
