//! A bucket that counts its puts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use async_trait::async_trait;
use foldlog_remote::chunk::Chunk;
use foldlog_remote::object_store::path::Path;
use foldlog_remote::object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use futures_lite::stream::Boxed;

/// Counts the puts of a store, and tracks the end of the session whose chunks are put.
#[derive(Debug)]
pub(super) struct CountingStore {
    store: Arc<dyn ObjectStore>,
    pub(super) puts: AtomicU64,
    pub(super) last_len: AtomicUsize,
    /// Sequence number after the last record that the store has confirmed.
    pub(super) held: AtomicU64,
}

impl CountingStore {
    pub(super) fn over(store: Arc<dyn ObjectStore>) -> Arc<CountingStore> {
        let (puts, last_len, held) = (AtomicU64::new(0), AtomicUsize::new(0), AtomicU64::new(0));
        Arc::new(CountingStore { store, puts, last_len, held })
    }
}

impl fmt::Display for CountingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for CountingStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.puts.fetch_add(1, Ordering::SeqCst);
        self.last_len.store(payload.content_length(), Ordering::SeqCst);
        let next = match location.as_ref().contains("/log/") {
            true => {
                let bytes: Vec<u8> = payload.iter().flat_map(|piece| piece.to_vec()).collect();
                Chunk::decode(&bytes, 0).ok().map(|chunk| chunk.next_sequence().get())
            }
            false => None,
        };
        let put = self.store.put_opts(location, payload, options).await;
        if let Some(next) = next.filter(|_| put.is_ok()) {
            self.held.store(next, Ordering::SeqCst);
        }
        put
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.store.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: Boxed<Result<Path>>) -> Boxed<Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> Boxed<Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}
