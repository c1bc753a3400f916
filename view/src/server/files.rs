//! The files of the pages, as a fixed table: the server never reads a file from the disk for them.

use std::borrow::Cow;

use crate::report::{MODULES, STYLE, without_comments};

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";

pub(crate) const STORE_PAGE: &str = include_str!("../pages/store.html");

/// Page of one session, which contains whether the session belongs to a store.
const SESSION_PAGE: &str = include_str!("../pages/session.html");

const SERVER_STYLE: &str = include_str!("../pages/server.css");

/// Modules that only the server uses.
const OWN_MODULES: [(&str, &str); 5] = [
    ("view/server-source.js", include_str!("../pages/server-source.js")),
    ("view/session.js", include_str!("../pages/session.js")),
    ("view/store.js", include_str!("../pages/store.js")),
    ("view/comparing.js", include_str!("../pages/comparing.js")),
    ("view/live.js", include_str!("../pages/live.js")),
];

/// Returns the page of a session; `is_in_store` if the server also shows the store's other
/// sessions.
pub(crate) fn session_page(is_in_store: bool) -> String {
    SESSION_PAGE.replace("{{store}}", if is_in_store { "yes" } else { "no" })
}

/// Returns a file by its name, with its content type. Modules are served without comments, as in a
/// report. They import each other as `view/NAME`, which is replaced by addresses because these
/// pages have no import map.
pub(crate) fn find(name: &str) -> Option<(&'static str, Cow<'static, str>)> {
    match name {
        "style.css" => return Some((CSS, Cow::Borrowed(STYLE))),
        "server.css" => return Some((CSS, Cow::Borrowed(SERVER_STYLE))),
        _ => {}
    }
    let mut modules = MODULES.iter().chain(&OWN_MODULES);
    let (_, text) = modules.find(|(module, _)| module.strip_prefix("view/") == Some(name))?;
    Some((JAVASCRIPT, Cow::Owned(without_comments(text).replace(" from 'view/", " from './"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGES_BYTES_MAX;

    #[test]
    fn every_module_finds_those_that_it_imports() {
        let names = MODULES.iter().chain(&OWN_MODULES).filter_map(|(name, _)| name.strip_prefix("view/"));
        for name in names {
            let (_, text) = find(name).unwrap();
            for line in text.lines().filter(|line| line.starts_with("import ")) {
                let from = line.split('\'').nth(1).unwrap();
                let imported = from.strip_prefix("./").unwrap_or_else(|| panic!("{name} imports {from}"));
                assert!(find(imported).is_some(), "{name} imports {imported}");
            }
        }
    }

    #[test]
    fn the_page_of_a_session_stays_small() {
        // The modules that it loads: its own, and their imports.
        let (mut named, mut bytes) = (vec!["session.js".to_owned()], 0);
        let mut at = 0;
        while let Some(name) = named.get(at).cloned() {
            let (_, text) = find(&name).unwrap();
            bytes += text.len();
            for line in text.lines().filter(|line| line.starts_with("import ")) {
                let from = line.split('\'').nth(1).unwrap().trim_start_matches("./").to_owned();
                if !named.contains(&from) {
                    named.push(from);
                }
            }
            at += 1;
        }
        assert!(named.len() > 15 && !named.contains(&"report-source.js".to_owned()), "{named:?}");
        let bytes = bytes + session_page(true).len() + STYLE.len() + SERVER_STYLE.len();
        assert!(bytes <= PAGES_BYTES_MAX, "{bytes} bytes");
    }

    #[test]
    fn no_name_leads_to_anything_but_the_table() {
        for name in ["", "..", "../mod.rs", "view/main.js", "/etc/passwd", "main.js/", "MAIN.JS"] {
            assert!(find(name).is_none(), "{name}");
        }
    }
}
