//! How a workspace's snapshots are taken.

/// How a [`HostFilesystem`](super::HostFilesystem) takes its snapshots.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HostFilesystemOptions {
    /// What snapshots leave out and restores leave alone, as lines of a `.gitignore`: a pattern without `/` is
    /// for names anywhere, one with `/` for paths below the root, one that ends in `/` for folders. Everything
    /// named `.git` is always left out.
    pub leave_out: Vec<String>,
    /// Whether the workspace's `.gitignore` files count as well.
    pub gitignore: bool,
    /// Whether snapshots say when files were last changed, so that restores give that back; so by default. They do so
    /// only where nothing but `.git` is left out: with old times beside a left-out `target/`, a build would take stale
    /// files for fresh ones. Without times two runs that do the same have equal snapshots.
    pub times: bool,
    /// How many bytes of contents one snapshot may read, holes left out; any number by default. Where it comes to more
    /// the snapshot is [`Error::CaptureTooLarge`](crate::Error::CaptureTooLarge): a call does not begin, or fails and is rolled back.
    pub capture_bytes_max: Option<u64>,
}

impl Default for HostFilesystemOptions {
    fn default() -> HostFilesystemOptions {
        HostFilesystemOptions {
            leave_out: Vec::new(),
            gitignore: false,
            times: true,
            capture_bytes_max: None,
        }
    }
}

impl HostFilesystemOptions {
    /// Keeps times, or does not.
    #[must_use]
    pub fn times(mut self, kept: bool) -> Self {
        self.times = kept;
        self
    }

    /// Bounds how many bytes of contents one snapshot may read.
    #[must_use]
    pub fn capture_bytes_max(mut self, bytes: u64) -> Self {
        self.capture_bytes_max = Some(bytes);
        self
    }

    /// Leaves a pattern out.
    #[must_use]
    pub fn leave_out(mut self, pattern: impl Into<String>) -> Self {
        self.leave_out.push(pattern.into());
        self
    }

    /// Lets `.gitignore` files count, or not.
    #[must_use]
    pub fn gitignore(mut self, counts: bool) -> Self {
        self.gitignore = counts;
        self
    }
}
