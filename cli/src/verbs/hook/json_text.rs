//! JSON with comments as a tree of ranges in its text, and edits of that text.
//!
//! An edit inserts or removes one entry of an object or array, and leaves all other bytes
//! unchanged. Removing an inserted entry gives the former text, byte for byte:
//!
//! 1. An entry begins a line of its own. Its comma and its text are inserted directly after the
//!    last entry, or after that entry's comma and the comments on its line. A comma after the last
//!    entry remains after the new last entry.
//! 2. In an empty container, an entry is inserted directly after the opening bracket. The former
//!    whitespace and comments follow it. If they begin with a newline, another newline precedes
//!    them, so that the text after the entry differs from that of rule 3.
//! 3. A container that is inserted together with its entries has one newline between its last entry
//!    and its closing bracket ([`Document::is_inserted_container`]).
//! 4. The object that is made in a file without a value follows the former whitespace and a newline.
//!
//! The syntax tree of the crate `jsonc-parser` can edit too, but removes blank lines and comments
//! next to an edit.

use std::ops::Range;

use jsonc_parser::ast::{ObjectProp, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::errors::ParseError;
use jsonc_parser::tokens::Token;
use jsonc_parser::{CollectOptions, CommentCollectionStrategy, ParseOptions, parse_to_ast};
use serde::Serialize;
use serde_json::ser::PrettyFormatter;

/// Indentation of a text without indented lines.
const DEFAULT_INDENT: &str = "  ";

/// Reason why a text cannot be used, with its line, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextError {
    pub(super) line: usize,
    pub(super) reason: String,
}

/// A text, with the tree and the tokens that it contains.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) text: String,
    pub(super) root: Node,
    commas: Vec<Range<usize>>,
    comments: Vec<Comment>,
}

#[derive(Debug)]
struct Comment {
    range: Range<usize>,
    is_line: bool,
}

/// A value.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) range: Range<usize>,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    Object(Vec<Entry>),
    Array(Vec<Entry>),
    Text(String),
    Boolean(bool),
    Other,
}

/// A property of an object, or an element of an array.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) range: Range<usize>,
    /// Name of a property; `None` for an element.
    pub(super) name: Option<String>,
    pub(super) value: Node,
}

impl Node {
    fn from_value(value: &Value<'_>) -> Node {
        let entry = |range, name, value| Entry { range, name, value: Node::from_value(value) };
        let content = match value {
            Value::Object(object) => {
                let name = |one: &ObjectProp<'_>| Some(one.name.as_str().to_owned());
                let properties = object.properties.iter();
                Content::Object(properties.map(|one| entry(range_of(one), name(one), &one.value)).collect())
            }
            Value::Array(array) => {
                let elements = array.elements.iter();
                Content::Array(elements.map(|one| entry(range_of(one), None, one)).collect())
            }
            Value::StringLit(text) => Content::Text(text.value.clone().into_owned()),
            Value::BooleanLit(boolean) => Content::Boolean(boolean.value),
            Value::NumberLit(_) | Value::NullKeyword(_) => Content::Other,
        };
        Node { range: range_of(value), content }
    }

    /// Returns the entries of an object or array; none for other values.
    pub(super) fn entries(&self) -> &[Entry] {
        match &self.content {
            Content::Object(entries) | Content::Array(entries) => entries,
            _ => &[],
        }
    }

    /// Returns the place and the value of a property.
    pub(super) fn property(&self, name: &str) -> Option<(usize, &Node)> {
        let mut entries = self.entries().iter().enumerate();
        entries
            .find(|(_, entry)| entry.name.as_deref() == Some(name))
            .map(|(index, entry)| (index, &entry.value))
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match &self.content {
            Content::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Returns whether a text has no value, only whitespace of JSON.
pub(super) fn is_empty(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
}

fn range_of(value: &impl Ranged) -> Range<usize> {
    value.start()..value.end()
}

impl Document {
    /// Parses a text. Comments and commas after the last entry are accepted.
    pub(super) fn parse(text: String) -> Result<Document, TextError> {
        let options = ParseOptions {
            allow_comments: true,
            allow_trailing_commas: true,
            allow_loose_object_property_names: false,
            allow_missing_commas: false,
            allow_single_quoted_strings: false,
            allow_hexadecimal_numbers: false,
            allow_unary_plus_numbers: false,
            allow_bare_decimal_point_numbers: false,
            allow_non_finite_numbers: false,
            allow_extended_string_escapes: false,
        };
        let collected = CollectOptions { comments: CommentCollectionStrategy::AsTokens, tokens: true };
        let parsed = parse_to_ast(&text, &collected, &options).map_err(|error| not_parsed(&error))?;
        let (mut commas, mut comments) = (Vec::new(), Vec::new());
        for token in parsed.tokens.iter().flatten() {
            let range = range_of(token);
            match token.token {
                Token::Comma => commas.push(range),
                Token::CommentLine(_) => comments.push(Comment { range, is_line: true }),
                Token::CommentBlock(_) => comments.push(Comment { range, is_line: false }),
                _ => {}
            }
        }
        let Some(root) = parsed.value.as_ref().map(Node::from_value) else {
            return Err(TextError { line: 1, reason: "the file contains no value".to_owned() });
        };
        Ok(Document { text, root, commas, comments })
    }

    /// Returns the text of an object with one property.
    pub(super) fn text_of_object(name: &str, value: &impl Serialize) -> String {
        let property = entry_text(Some(name), value, DEFAULT_INDENT, DEFAULT_INDENT, "\n");
        format!("{{\n{DEFAULT_INDENT}{property}\n}}\n")
    }

    /// Returns the line of a place in the text, counted from 1.
    pub(super) fn line(&self, place: usize) -> usize {
        1 + self.slice(0..place).matches('\n').count()
    }

    /// Adds an entry at the end of an object or array, whose value is written over several lines.
    pub(super) fn append(
        &self,
        container: &Node,
        name: Option<&str>,
        value: &impl Serialize,
    ) -> Result<Document, TextError> {
        let newline = self.newline();
        let entries = container.entries();
        let indent = entries.iter().rev().find_map(|entry| self.indent_of_line(entry.range.start));
        let indent = match indent {
            Some(indent) => indent.to_owned(),
            None => self.outer_indent(container).to_owned() + self.indent_unit(),
        };
        let entry = entry_text(name, value, &indent, self.indent_unit(), newline);
        let Some(last) = entries.last() else {
            let place = container.range.start + 1;
            let rest = self.slice(place..container.range.end);
            let separator = if without_newline(rest).is_some() { newline } else { "" };
            return self.edited(&[(place..place, &format!("{newline}{indent}{entry}{separator}"))]);
        };
        let end = last.range.end;
        let (comma_before, place, comma_after) = match self.comma_in(end..container.range.end) {
            Some(comma) => ("", self.end_of_comments(comma.end), ","),
            None => (",", self.end_of_comments(end), ""),
        };
        let inserted = format!("{newline}{indent}{entry}{comma_after}");
        self.edited(&[(end..end, comma_before), (place..place, &inserted)])
    }

    /// Removes an entry of an object or array, with its comma and its line.
    pub(super) fn remove(&self, container: &Node, index: usize) -> Result<Document, TextError> {
        let entries = container.entries();
        let Some(entry) = entries.get(index) else { return self.edited(&[]) };
        let (start, end) = (entry.range.start, entry.range.end);
        let before = index.checked_sub(1).and_then(|index| entries.get(index)).map(|entry| entry.range.end);
        let limit = entries.get(index + 1).map_or(container.range.end, |next| next.range.start);
        let line = self.newline_before(start);
        let (comma, removed) = match (self.comma_in(end..limit), before) {
            (Some(comma), _) if line.is_some() => (Some(comma), end..end),
            (Some(comma), _) => {
                let blanks = blanks(self.slice(comma.end..limit));
                (Some(comma.start..comma.end + blanks), end..end)
            }
            (None, Some(before)) => (self.comma_in(before..start), end..end),
            (None, None) => (None, end..end + self.remainder(container, end)),
        };
        let rest = comma.as_ref().filter(|comma| comma.start == end).map_or(removed.end, |comma| comma.end);
        let has_newline = self.slice(rest..self.text.len()).starts_with(['\n', '\r']);
        let in_comment =
            self.comments.iter().any(|comment| comment.is_line && Some(comment.range.end) == line);
        let first = match (line, before) {
            // Otherwise the rest of the line would become part of the comment.
            (Some(_), _) if in_comment && !has_newline => start,
            (Some(line), _) => line,
            (None, Some(_)) => start - blanks_at_end(self.slice(0..start)),
            (None, None) => start,
        };
        let entry = (first..removed.end, "");
        match comma {
            Some(comma) if comma.start < first => self.edited(&[(comma, ""), entry]),
            Some(comma) => self.edited(&[entry, (comma, "")]),
            None => self.edited(&[entry]),
        }
    }

    /// Replaces a value by a text.
    pub(super) fn replace_text(&self, range: Range<usize>, value: &str) -> Result<Document, TextError> {
        self.edited(&[(range, &json_text(&value))])
    }

    /// Returns whether a container has one entry, and was inserted together with it.
    pub(super) fn is_inserted_container(&self, container: &Node) -> bool {
        let [entry] = container.entries() else { return false };
        let before = self.slice(container.range.start + 1..entry.range.start);
        let after = self.slice(entry.range.end..container.range.end - 1);
        let line = without_newline(after);
        is_blank(before) && line.is_some_and(|line| line.len() == blanks(line))
    }

    /// Returns the text before an object that was [made](Document::text_of_object) with its only
    /// property; `None` for any other text.
    pub(super) fn before_made_object(&self) -> Option<&str> {
        let before = self.slice(0..self.root.range.start);
        let after = self.slice(self.root.range.end..self.text.len());
        (is_empty(before) && after == "\n" && self.is_inserted_container(&self.root)).then_some(before)
    }

    /// Returns the number of bytes after the only entry of a container that are removed with it.
    fn remainder(&self, container: &Node, end: usize) -> usize {
        let after = self.slice(end..container.range.end - 1);
        match without_newline(after) {
            Some(line) if without_newline(line).is_some() => after.len() - line.len(),
            Some(_) if is_blank(after) => after.len(),
            _ => 0,
        }
    }

    /// Replaces ranges, in the order of the text.
    fn edited(&self, edits: &[(Range<usize>, &str)]) -> Result<Document, TextError> {
        let mut text = String::with_capacity(self.text.len());
        let mut end = 0;
        for (range, replacement) in edits {
            text.push_str(self.slice(end..range.start));
            text.push_str(replacement);
            end = range.end;
        }
        text.push_str(self.slice(end..self.text.len()));
        Document::parse(text)
    }

    fn slice(&self, range: Range<usize>) -> &str {
        self.text.get(range).unwrap_or_default()
    }

    fn newline(&self) -> &'static str {
        match self.text.split_once('\n') {
            Some((line, _)) if line.ends_with('\r') => "\r\n",
            _ => "\n",
        }
    }

    /// Returns the indentation of one level.
    fn indent_unit(&self) -> &str {
        let first = self.root.entries().first().and_then(|entry| self.indent_of_line(entry.range.start));
        first.filter(|indent| !indent.is_empty()).unwrap_or(DEFAULT_INDENT)
    }

    /// Returns the indentation of the line in which a container begins.
    fn outer_indent(&self, container: &Node) -> &str {
        let line = self.slice(0..container.range.start).rsplit('\n').next().unwrap_or_default();
        line.get(..blanks(line)).unwrap_or_default()
    }

    /// Returns the indentation of a line that begins with the entry at this place.
    fn indent_of_line(&self, start: usize) -> Option<&str> {
        self.newline_before(start)?;
        self.slice(0..start).rsplit('\n').next()
    }

    /// Returns the place of the newline before an entry that begins a line.
    fn newline_before(&self, start: usize) -> Option<usize> {
        let before = self.slice(0..start);
        let line = before.get(..before.len() - blanks_at_end(before))?.strip_suffix('\n')?;
        Some(line.strip_suffix('\r').unwrap_or(line).len())
    }

    /// Returns the end of the comments that follow on the same line.
    fn end_of_comments(&self, start: usize) -> usize {
        let mut end = start;
        for comment in self.comments.iter().filter(|comment| comment.range.start >= start) {
            let between = self.slice(end..comment.range.start);
            if between.len() != blanks(between) {
                break;
            }
            end = comment.range.end;
        }
        end
    }

    fn comma_in(&self, range: Range<usize>) -> Option<Range<usize>> {
        self.commas.iter().find(|comma| range.contains(&comma.start)).cloned()
    }
}

fn not_parsed(error: &ParseError) -> TextError {
    TextError { line: error.line_display(), reason: format!("not valid JSON: {}", error.kind()) }
}

/// Returns the text of an entry, whose lines but the first begin with `indent`.
fn entry_text(name: Option<&str>, value: &impl Serialize, indent: &str, unit: &str, newline: &str) -> String {
    let mut bytes = Vec::new();
    let formatter = PrettyFormatter::with_indent(unit.as_bytes());
    // Writing text into memory never fails.
    let _ = value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter));
    let value = String::from_utf8_lossy(&bytes).replace('\n', &format!("{newline}{indent}"));
    match name {
        Some(name) => format!("{}: {value}", json_text(&name)),
        None => value,
    }
}

fn json_text(value: &impl Serialize) -> String {
    // As above.
    serde_json::to_string(value).unwrap_or_default()
}

fn without_newline(text: &str) -> Option<&str> {
    text.strip_prefix("\r\n").or_else(|| text.strip_prefix('\n'))
}

fn is_blank(text: &str) -> bool {
    text.bytes().all(|byte| b" \t\r\n".contains(&byte))
}

/// Returns the number of spaces and tabs at the start of a text.
fn blanks(text: &str) -> usize {
    text.len() - text.trim_start_matches([' ', '\t']).len()
}

fn blanks_at_end(text: &str) -> usize {
    text.len() - text.trim_end_matches([' ', '\t']).len()
}
