//! What a record says, decoded.

use foldlog_codec::body::{Declare, Dispatch, Import, Opened, Rollback};
use foldlog_codec::{Kind, Record};

use crate::error::{Error, Result};

/// A record's body, decoded. Whoever has just built a body hands over what it was built from.
#[derive(Debug)]
pub(crate) enum Content<'a> {
    Opened(Opened),
    Declare(Declare),
    Dispatch(Dispatch<'a>),
    Import(Import<'a>),
    Rollback(Rollback),
    Snapshot,
    /// Of a kind that this version cannot fold.
    Unsupported(Kind),
}

impl<'a> Content<'a> {
    /// Decodes a record's body.
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`] where the body does not read as its kind says.
    pub(crate) fn of(record: &Record<'a>) -> Result<Content<'a>> {
        let Record { sequence, kind, body, .. } = *record;
        let content = match kind {
            Kind::OPENED => Opened::decode(body).map(Content::Opened),
            Kind::DECLARE => Declare::decode(body).map(Content::Declare),
            Kind::DISPATCH => Dispatch::decode(body).map(Content::Dispatch),
            Kind::IMPORT => Import::decode(body).map(Content::Import),
            Kind::ROLLBACK => Rollback::decode(body).map(Content::Rollback),
            // What it says is for those who export it; to the slices it is but a position.
            Kind::SNAPSHOT => Ok(Content::Snapshot),
            kind => Ok(Content::Unsupported(kind)),
        };
        content.map_err(|error| Error::Inconsistent { sequence, reason: error.to_string() })
    }
}
