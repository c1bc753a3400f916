//! Parsed queries: names and values, percent-encoded, of a bounded length.

use foldlog::SequenceNumber;

use crate::{Error, Result};

#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

/// Error: a page asks for something that no page of this version asks for.
pub(super) fn malformed() -> Error {
    Error::usage("the query is not valid", "reload the page")
}

impl Query {
    /// Parses a query. Invalid UTF-8 is replaced.
    pub(crate) fn read(text: &str) -> Query {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decode(name), percent_decode(value))
        });
        Query(pairs.collect())
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns the text with this name, which is required.
    pub(crate) fn require_text(&self, name: &str) -> Result<&str> {
        self.text(name).ok_or_else(malformed)
    }

    /// Returns all values of a name.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(found, _)| found == name).map(|(_, value)| value.clone()).collect()
    }

    /// Returns the number with this name; `None` if the query lacks the name.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>> {
        self.text(name).map(|text| text.parse().map_err(|_| malformed())).transpose()
    }

    /// Returns the number with this name, which is required.
    pub(crate) fn require_number(&self, name: &str) -> Result<u64> {
        self.number(name)?.ok_or_else(malformed)
    }

    /// Returns the position with this name, which is required.
    pub(crate) fn position(&self, name: &str) -> Result<SequenceNumber> {
        self.require_number(name).map(SequenceNumber::new)
    }
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let digit = |at: usize| bytes.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
                continue;
            }
            (b'+', ..) => out.push(b' '),
            _ => out.push(*byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_as_browsers_write_them() {
        let query = Query::read("slice=a%26b+c%2Fd&from=12&kinds=x&kinds=%C3%A4&bad=%zz%4");
        assert_eq!(query.text("slice"), Some("a&b c/d"));
        assert_eq!(query.require_number("from").unwrap(), 12);
        assert_eq!(query.all("kinds"), ["x", "ä"]);
        assert_eq!(query.text("bad"), Some("%zz%4"));
        assert!(query.number("slice").is_err() && query.require_number("none").is_err());
        assert!(query.number("none").unwrap().is_none());
        assert!(Query::read("n=18446744073709551616").number("n").is_err());
    }
}
