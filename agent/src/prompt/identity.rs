//! The digest by which a log recognizes a changed prompt.
//!
//! The digest is the BLAKE3 of the bytes below. A number is 8 bytes, little-endian. Every encoding
//! marks its own end. So two prompts have the same bytes only if they agree in everything that is
//! encoded here.
//!
//! | element | bytes |
//! |---|---|
//! | text | number of bytes, UTF-8 |
//! | list | number of elements, the elements |
//! | option | the byte 0, or the byte 1 and the value |
//! | prompt | text `foldlog.prompt.1`, list of sections, list of tools by ascending name, option of the output |
//! | section | text key, text title, text template, option of text summary, the byte 0 (full), 1 (summary) or 2 (hidden), list of text names of tools in ascending order, list of sections |
//! | tool | text name, text description, JSON of the parameters' schema |
//! | output | text name, JSON of the schema |
//! | JSON | the byte 0 (null), 1 (false), 2 (true), 3 and the number's text, 4 and text, 5 and a list of JSON, 6 and a list of text and JSON by ascending name |

use blake3::Hasher;
use serde_json::Value;

use super::{MarkdownSection, SectionVisibility};
use crate::provider::{OutputSpec, ToolSpec};

/// Prefix of every prompt's bytes. It changes with the encoding.
const DOMAIN: &str = "foldlog.prompt.1";

/// Returns the digest of a prompt. `tools` must be in ascending order of their names.
pub(super) fn digest<'a>(
    sections: &[MarkdownSection],
    tools: impl ExactSizeIterator<Item = &'a ToolSpec>,
    output: Option<&OutputSpec>,
) -> [u8; 32] {
    let mut bytes = IdentityHasher(Hasher::new());
    bytes.text(DOMAIN);
    bytes.sections(sections);
    bytes.number(tools.len());
    for tool in tools {
        bytes.text(&tool.name);
        bytes.text(&tool.description);
        bytes.json(&tool.parameters);
    }
    bytes.option(output, |bytes, output| {
        bytes.text(&output.name);
        bytes.json(&output.schema);
    });
    *bytes.0.finalize().as_bytes()
}

struct IdentityHasher(Hasher);

impl IdentityHasher {
    fn byte(&mut self, byte: u8) {
        self.0.update(&[byte]);
    }

    fn number(&mut self, number: usize) {
        self.0.update(&(number as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.update(text.as_bytes());
    }

    fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut IdentityHasher, T)) {
        self.byte(value.is_some().into());
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn sections(&mut self, sections: &[MarkdownSection]) {
        self.number(sections.len());
        for section in sections {
            self.text(&section.key);
            self.text(&section.title);
            self.text(&section.template);
            self.option(section.summary.as_deref(), IdentityHasher::text);
            self.byte(match section.visibility {
                SectionVisibility::Full => 0,
                SectionVisibility::Summary => 1,
                SectionVisibility::Hidden => 2,
            });
            self.number(section.tools.len());
            section.tools.iter().for_each(|tool| self.text(tool));
            self.sections(&section.children);
        }
    }

    fn json(&mut self, value: &Value) {
        match value {
            Value::Null => self.byte(0),
            Value::Bool(value) => self.byte(if *value { 2 } else { 1 }),
            Value::Number(number) => {
                self.byte(3);
                self.text(&number.to_string());
            }
            Value::String(text) => {
                self.byte(4);
                self.text(text);
            }
            Value::Array(values) => {
                self.byte(5);
                self.number(values.len());
                values.iter().for_each(|value| self.json(value));
            }
            Value::Object(fields) => {
                self.byte(6);
                self.number(fields.len());
                let mut fields: Vec<_> = fields.iter().collect();
                fields.sort_unstable_by_key(|(name, _)| name.as_str());
                for (name, value) in fields {
                    self.text(name);
                    self.json(value);
                }
            }
        }
    }
}
