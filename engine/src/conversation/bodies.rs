//! Encodes texts and blocks of a conversation for the bodies of its records.

use std::borrow::Cow;

use foldlog_codec::body::{Blocks, Payload};
use foldlog_codec::msgpack::MsgpackWriter;

/// Encodes a text as one MessagePack string, the form of a payload in a body.
pub(crate) fn text_payload(text: &str) -> Vec<u8> {
    let mut writer = MsgpackWriter::with_capacity(text.len() + 5);
    writer.str(text);
    writer.finish()
}

/// Returns the blocks of a body from their format and their JSON payload.
pub(crate) fn blocks_of<'a>(encoded: Option<&'a (&'a str, Vec<u8>)>) -> Option<Blocks<'a>> {
    encoded.map(|(format, json)| Blocks { format: Cow::Borrowed(format), json: Payload::new(json) })
}
