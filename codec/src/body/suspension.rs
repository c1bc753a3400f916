//! Encodes and decodes the reason of a call's suspension, as recorded in its end.
//!
//! A suspended call holds no transaction and no lease. Its question is the `shown` text of its end.
//!
//! | form | work of the call so far | continuation |
//! |---|---|---|
//! | `asks` | none: its changes were rolled back | an approval runs it again, a refusal ends it |
//! | `awaits` | its own part: its changes are committed | a settlement supplies its result |
//! | `within` | none: its changes were rolled back | it runs again once the suspended inner call is settled |

use uuid::Uuid;

use super::fields::{Place, ReadField, WriteField, map_fields};
use super::json::{Object, Part, hex};
use super::operation::SuspensionForm;
use crate::msgpack::{MsgpackReader, MsgpackWriter};
use crate::{Error, OperationId};

/// Describes the condition for which a suspended call waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Suspension {
    /// Kind of the condition.
    pub form: SuspensionForm,
    /// BLAKE3 of the text of the call's arguments, which an approval names.
    pub arguments: [u8; 32],
    /// Time, in microseconds since 1970-01-01 UTC, from which on no answer is needed: the call
    /// counts as failed.
    pub expires_us: Option<i64>,
    /// Suspended call for which this one waits; set for [`SuspensionForm::Within`].
    pub inner: Option<InnerCall>,
}

/// Identifies a suspended call that another one made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InnerCall {
    /// Session whose log contains the call; `None` if it is that of the outer call.
    pub session: Option<Uuid>,
    /// Operation id of the call.
    pub operation: OperationId,
}

impl Suspension {
    /// Creates a suspension that never expires.
    pub fn new(form: SuspensionForm, arguments: [u8; 32]) -> Suspension {
        Suspension { form, arguments, ..Suspension::default() }
    }

    pub(super) fn into_json<'a>(self) -> Part<'a> {
        let mut object = Object::default();
        object.set("form", self.form.name());
        object.set("arguments", hex(self.arguments));
        object.some("expires_us", self.expires_us);
        object.some("session", self.inner.and_then(|inner| inner.session).map(|id| id.to_string()));
        object.some("operation", self.inner.map(|inner| inner.operation));
        object.into_part()
    }
}

map_fields! { impl<'a> Suspension {
    "is" => form [required],
    "args" => arguments [required],
    "until" => expires_us,
    "on" => inner,
}}

impl WriteField for InnerCall {
    fn write(&self, writer: &mut MsgpackWriter) {
        let writer = writer.array(1 + usize::from(self.session.is_some()));
        self.operation.write(writer);
        if let Some(session) = self.session {
            session.write(writer);
        }
    }
}

impl ReadField<'_> for InnerCall {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'_>) -> Result<InnerCall, Error> {
        let len = reader.array()?;
        if !(1..=2).contains(&len) {
            return Err(place.bad("an inner call is not an operation with an optional session"));
        }
        let operation = reader.unsigned()?.into();
        let session = if len == 2 { ReadField::read(place, reader)? } else { None };
        Ok(InnerCall { session, operation })
    }
}
