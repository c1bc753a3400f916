//! Hides possible passwords and keys of typed URLs in errors that quote them.

use std::ffi::OsString;
use std::path::Path;

/// Parts of parameter names that indicate a key in a query, as in the presigned URL of a bucket.
const KEYS: [&str; 6] = ["password", "secret", "token", "key", "signature", "credential"];

/// The parts of typed URLs that no text may contain, with their replacements.
pub(crate) struct TypedUrls(Vec<(String, &'static str)>);

impl TypedUrls {
    pub(crate) fn from_arguments(arguments: &[OsString]) -> TypedUrls {
        let words = arguments.iter().filter_map(|word| word.to_str());
        let rests = words.filter_map(|word| Some(word.split_once("://")?.1));
        TypedUrls(rests.flat_map(hidden_parts).collect())
    }

    /// Returns whether a path contains such a part, and is therefore a URL.
    pub(crate) fn is_in(&self, path: &Path) -> bool {
        path.to_str().is_some_and(|path| self.0.iter().any(|(part, _)| path.contains(part.as_str())))
    }

    /// Returns the text with these parts replaced.
    pub(crate) fn hide(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (part, instead)| text.replace(part.as_str(), instead))
    }
}

/// Returns the parts to hide in a URL after its scheme, each with its replacement.
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
