//! Commands in errors and notes: inserts the session and the store of this command line in place of
//! their placeholders.

use std::path::Path;

use foldlog::inspect;
use foldlog_view::shell::quote_word;

/// Replacements for `SESSION` and for the `STORE` that contains it in a hint, quoted for a shell.
#[derive(Clone, Debug, Default)]
pub(crate) struct HintPaths {
    session: Option<String>,
    pub(crate) store: Option<String>,
}

impl HintPaths {
    /// Returns the replacements for a command line that names this directory. A missing directory
    /// replaces nothing.
    pub(crate) fn from_path(path: &Path) -> HintPaths {
        if inspect::is_store(path) {
            return HintPaths { session: None, store: Some(quote_word(path.as_os_str())) };
        }
        let store = inspect::store_around(path).map(|store| quote_word(store.as_os_str()));
        HintPaths { session: path.is_dir().then(|| quote_word(path.as_os_str())), store }
    }

    /// Returns the replacements for a command line that names a session in a place.
    #[cfg(feature = "object-store")]
    pub(crate) fn of_held(place: &str, session: &str) -> HintPaths {
        HintPaths { session: Some(quote_word(session.as_ref())), store: Some(quote_word(place.as_ref())) }
    }

    /// Replaces the placeholders in the commands of a text, which are in backquotes. A `STORE` that
    /// a command is to create remains.
    pub(crate) fn put_into(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for (number, piece) in text.split('`').enumerate() {
            if number > 0 {
                out.push('`');
            }
            match number % 2 {
                1 => out.push_str(&self.in_command(piece)),
                _ => out.push_str(piece),
            }
        }
        out
    }

    fn in_command(&self, command: &str) -> String {
        let mut words = command.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let is_of_store = command.starts_with("foldlog sessions ") || command.starts_with("chmod ");
        for word in &mut words {
            let place = match word.as_str() {
                "SESSION" => &self.session,
                "STORE" if is_of_store => &self.store,
                _ => continue,
            };
            if let Some(place) = place {
                word.clone_from(place);
            }
        }
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stand_in_commands_alone_and_never_for_a_new_store() {
        let places = HintPaths { session: Some("'a b'".to_owned()), store: Some("s".to_owned()) };
        let put = places.put_into(
            "SESSION of STORE: `foldlog show SESSION` or `foldlog salvage SESSION --to STORE`; `foldlog sessions STORE`; `SESSIONS`",
        );
        let expected = "SESSION of STORE: `foldlog show 'a b'` or `foldlog salvage 'a b' --to STORE`; `foldlog sessions s`; `SESSIONS`";
        assert_eq!(put, expected);
        assert_eq!(HintPaths::default().put_into("`foldlog show SESSION`"), "`foldlog show SESSION`");
    }

    #[test]
    fn a_directory_that_is_not_there_stands_for_nothing() {
        assert_eq!(
            HintPaths::from_path(Path::new("/nowhere/at/all")).put_into("`foldlog show SESSION`"),
            "`foldlog show SESSION`"
        );
    }
}
