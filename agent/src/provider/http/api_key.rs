//! Keeps a provider's key out of all output and records.

use std::borrow::Cow;
use std::fmt;

use super::unsupported_error;
use crate::provider::Result;

/// Replacement text for a key.
const HIDDEN: &str = "[key]";

/// Contains a provider's key. Neither `Debug` nor `Display` shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(Box<str>);

impl ApiKey {
    /// Creates a key from visible ASCII characters. Surrounding white space is removed.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`](crate::provider::ProviderErrorKind::Unsupported) if the
    /// key is empty, or contains a character that is not allowed in a header.
    pub fn new(key: impl AsRef<str>) -> Result<ApiKey> {
        let key = key.as_ref().trim();
        let message = if key.is_empty() {
            "the API key is empty: omit it for a provider that needs none"
        } else if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            "the API key contains a character that is not visible ASCII: copy the key again"
        } else {
            return Ok(ApiKey(key.into()));
        };
        Err(unsupported_error(message))
    }

    /// Returns the key, only for use in a header.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }

    /// Returns a text from outside, without the key.
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
