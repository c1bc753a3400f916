//! Hides what may be a password or a key in URLs that were typed, where an error quotes them.

use std::ffi::OsString;
use std::path::Path;

/// Parts of a query's names that give away that a key stands in it, as in the presigned URL of a bucket.
const KEYS: [&str; 6] = ["password", "secret", "token", "key", "signature", "credential"];

/// Knows the parts of typed URLs that no text may hold.
pub(crate) struct TypedUrls(Vec<(String, &'static str)>);

impl TypedUrls {
    pub(crate) fn from_arguments(arguments: &[OsString]) -> TypedUrls {
        let words = arguments.iter().filter_map(|word| word.to_str());
        let rests = words.filter_map(|word| Some(word.split_once("://")?.1));
        TypedUrls(rests.flat_map(hidden_parts).collect())
    }

    /// Returns whether such a part stands in a path, which is a URL then.
    pub(crate) fn is_in(&self, path: &Path) -> bool {
        path.to_str().is_some_and(|path| self.0.iter().any(|(part, _)| path.contains(part.as_str())))
    }

    /// Returns the text without these parts.
    pub(crate) fn hide(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (part, instead)| text.replace(part.as_str(), instead))
    }
}

/// Returns the parts of a URL behind its scheme that are hidden, each with what stands in its place.
fn hidden_parts(rest: &str) -> Vec<(String, &'static str)> {
    let (place, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let mut parts = Vec::new();
    if let Some((user, _)) = place.rsplit_once('@')
        && user.contains(':')
    {
        parts.push((format!("://{user}@"), "://"));
    }
    let lowercase = query.to_ascii_lowercase();
    if KEYS.iter().any(|key| lowercase.contains(key)) {
        parts.push((query.to_owned(), "?…"));
    }
    parts
}
