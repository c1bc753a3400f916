//! Keeps the key of a provider out of everything that is shown or recorded.

use std::borrow::Cow;
use std::fmt;

use super::{ProviderError, ProviderErrorKind};

/// Text that stands where a key would.
const HIDDEN: &str = "[key]";

/// Holds the key of a provider. No form of it that is printed shows the key.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(Box<str>);

impl ApiKey {
    /// Takes a key: visible ASCII characters, white space around them left out.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`] if the key is empty, or holds a character that no header may hold.
    pub fn new(key: impl AsRef<str>) -> Result<ApiKey, Box<ProviderError>> {
        let key = key.as_ref().trim();
        let message = if key.is_empty() {
            "the key is empty: leave it out for a provider that takes none"
        } else if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            "the key holds a character that is no visible ASCII character: check what was copied"
        } else {
            return Ok(ApiKey(key.into()));
        };
        Err(Box::new(ProviderError::new(ProviderErrorKind::Unsupported, message)))
    }

    /// Returns the key, to be written into a header and nowhere else.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }

    /// Returns a text that came from outside, without the key.
    pub(super) fn hide<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if text.contains(&*self.0) { text.replace(&*self.0, HIDDEN).into() } else { text.into() }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}
