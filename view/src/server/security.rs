//! Checks requests: the token, the names and origins of this server, and the headers of every
//! answer.
//!
//! Any program on this machine can reach the port, and any page in the user's browser can make the
//! browser send requests. A request is therefore accepted only if three conditions are met:
//!
//! - It contains the token, which only the user's browser receives.
//! - It names this server by a name that no foreign DNS server can control (against DNS rebinding).
//! - No page of another site made it, as far as the browser reports the origin.

use std::fmt;

use axum::http::header::{CONTENT_LENGTH, HOST, ORIGIN, TRANSFER_ENCODING};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, request};

const TOKEN_BYTES: usize = 16;

/// Maximum length of a path with its query, in bytes.
const URI_BYTES_MAX: usize = 8 << 10;

/// Permissions of a page of this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// First part of every path of one server.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct AccessToken(String);

impl AccessToken {
    /// Draws a token from the system's randomness.
    ///
    /// # Errors
    ///
    /// The system's error if no randomness is available.
    pub(crate) fn draw() -> std::io::Result<AccessToken> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes)
            .map_err(|error| std::io::Error::other(format!("no random bytes are available: {error}")))?;
        Ok(AccessToken(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares in a time that does not depend on the number of equal characters.
    fn is(&self, said: &str) -> bool {
        let (own, said) = (self.0.as_bytes(), said.as_bytes());
        let differing = own.iter().zip(said).fold(0, |differing, (one, other)| differing | (one ^ other));
        own.len() == said.len() && std::hint::black_box(differing) == 0
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Decides which requests are answered.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    token: AccessToken,
    /// Names of this server with its port.
    hosts: [String; 2],
}

impl Gate {
    pub(crate) fn new(token: AccessToken, port: u16) -> Gate {
        Gate { token, hosts: [format!("127.0.0.1:{port}"), format!("localhost:{port}")] }
    }

    /// Returns the path after the token, without its first slash.
    ///
    /// # Errors
    ///
    /// The status with which the request is refused.
    pub(crate) fn path<'a>(&self, asked: &'a request::Parts) -> Result<&'a str, StatusCode> {
        let path = self.check_token(&asked.uri)?;
        if !self.is_this_server(&asked.uri, &asked.headers) || !self.is_same_site(asked, path) {
            return Err(StatusCode::FORBIDDEN);
        }
        if asked.method != Method::GET && asked.method != Method::HEAD {
            return Err(StatusCode::METHOD_NOT_ALLOWED);
        }
        let has_body = asked.headers.contains_key(TRANSFER_ENCODING)
            || asked.headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0");
        if has_body { Err(StatusCode::PAYLOAD_TOO_LARGE) } else { Ok(path) }
    }

    fn check_token<'a>(&self, uri: &'a Uri) -> Result<&'a str, StatusCode> {
        let path = uri.path().strip_prefix('/').ok_or(StatusCode::NOT_FOUND)?;
        let (token, rest) = path.split_once('/').unwrap_or((path, ""));
        if !self.token.is(token) {
            return Err(StatusCode::NOT_FOUND);
        }
        let len = uri.path().len() + uri.query().map_or(0, str::len);
        if len > URI_BYTES_MAX { Err(StatusCode::URI_TOO_LONG) } else { Ok(rest) }
    }

    /// Returns whether the request names this server, and no other.
    fn is_this_server(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let mut named = headers.get_all(HOST).iter();
        let is_own = |host: &HeaderValue| self.hosts.iter().any(|own| own.as_bytes() == host.as_bytes());
        named.next().is_some_and(is_own) && named.next().is_none() && uri.authority().is_none()
    }

    /// Returns whether no page of another site made the request. The pages themselves may be opened
    /// from anywhere, such as from the file that starts the browser: the opener cannot read them.
    fn is_same_site(&self, asked: &request::Parts, path: &str) -> bool {
        let mut origins = asked.headers.get_all(ORIGIN).iter();
        let is_own = |origin: &HeaderValue| {
            self.hosts.iter().any(|own| origin.as_bytes().strip_prefix(b"http://") == Some(own.as_bytes()))
        };
        if !origins.all(is_own) {
            return false;
        }
        let said = |name: &str| asked.headers.get(name).map(HeaderValue::as_bytes);
        match said("sec-fetch-site") {
            None | Some(b"same-origin" | b"none") => true,
            Some(_) => {
                let is_page = path.is_empty() || path.ends_with('/');
                is_page
                    && said("sec-fetch-mode") == Some(b"navigate")
                    && said("sec-fetch-dest") == Some(b"document")
            }
        }
    }
}

/// Adds the headers that every answer needs.
pub(crate) fn guard(headers: &mut HeaderMap) {
    let fixed = [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("x-frame-options", "DENY"),
    ];
    for (name, value) in fixed {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn asked(uri: &str, headers: &[(&str, &str)]) -> request::Parts {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_page_may_be_opened_from_elsewhere_and_its_data_not() {
        let token = AccessToken::draw().unwrap();
        let gate = Gate::new(token.clone(), 8000);
        let elsewhere = [
            ("host", "127.0.0.1:8000"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        let page = asked(&format!("/{}/", token.as_str()), &elsewhere);
        assert_eq!(gate.path(&page), Ok(""));
        let data = asked(&format!("/{}/sessions", token.as_str()), &elsewhere);
        assert_eq!(gate.path(&data), Err(StatusCode::FORBIDDEN));
        let mut framed = elsewhere;
        framed[3] = ("sec-fetch-dest", "iframe");
        let framed = asked(&format!("/{}/", token.as_str()), &framed);
        assert_eq!(gate.path(&framed), Err(StatusCode::FORBIDDEN));
    }

    #[test]
    fn tokens_are_drawn_anew_and_compared_whole() {
        let (one, other) = (AccessToken::draw().unwrap(), AccessToken::draw().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.as_str().len(), 2 * TOKEN_BYTES);
        assert!(one.is(one.as_str()) && !one.is(other.as_str()));
        assert!(!one.is(&one.as_str()[..31]) && !one.is(&format!("{}0", one.as_str())) && !one.is(""));
        assert_eq!(format!("{one:?}"), "Token", "no print of a server shows its token");
    }
}
