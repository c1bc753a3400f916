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

use super::fields::{FieldWriter, bad, fixed, require_field, walk_map};
use super::json::hex;
use super::operation::{END, SuspensionForm, read_named};
use crate::msgpack::{MsgpackReader, MsgpackWriter, Value};
use crate::{Error, OperationId};

/// Describes the condition for which a suspended call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        Suspension { form, arguments, expires_us: None, inner: None }
    }

    pub(crate) fn write(&self, writer: &mut MsgpackWriter) {
        let mut fields = FieldWriter::with_capacity(96);
        fields.text("is", Some(self.form.name()));
        fields.bytes("args", Some(&self.arguments));
        if let Some(expires_us) = self.expires_us {
            fields.field("until").signed(expires_us);
        }
        if let Some(InnerCall { session, operation }) = self.inner {
            let writer = fields.field("on").array(1 + usize::from(session.is_some()));
            writer.unsigned(operation.get());
            if let Some(session) = session {
                writer.bin(session.as_bytes());
            }
        }
        fields.into_map(writer);
    }

    pub(crate) fn read(reader: &mut MsgpackReader<'_>) -> Result<Suspension, Error> {
        let (mut form, mut arguments, mut expires_us, mut inner) = (None, None, None, None);
        walk_map(reader, |name, value| {
            match name {
                "is" => form = Some(read_named(END, "wait.is", value, SuspensionForm::from_recorded)?),
                "args" => arguments = Some(fixed(value)?),
                "until" => expires_us = Some(value.signed()?),
                "on" => inner = Some(InnerCall::read(value)?),
                _ => {}
            }
            Ok(())
        })?;
        let form = require_field(END, "wait.is", form)?;
        Ok(Suspension { form, arguments: require_field(END, "wait.args", arguments)?, expires_us, inner })
    }
}

impl InnerCall {
    fn read(reader: &mut MsgpackReader<'_>) -> Result<InnerCall, Error> {
        let len = reader.array()?;
        if !(1..=2).contains(&len) {
            return Err(bad(END, "an inner call is not an operation with an optional session"));
        }
        let operation = reader.unsigned()?.into();
        let session = if len == 2 { Some(Uuid::from_bytes(fixed(reader)?)) } else { None };
        Ok(InnerCall { session, operation })
    }
}

impl Suspension {
    pub(super) fn into_json(self) -> Value {
        let Suspension { form, arguments, expires_us, inner } = self;
        let mut fields =
            vec![("form", Value::from(form.name())), ("arguments", Value::from(hex(&arguments)))];
        fields.extend(expires_us.map(|expires_us| ("expires_us", Value::from(expires_us))));
        if let Some(inner) = inner {
            fields.extend(inner.session.map(|session| ("session", Value::from(session.to_string()))));
            fields.push(("operation", Value::from(inner.operation)));
        }
        Value::Map(fields.into_iter().map(|(name, value)| (Value::from(name), value)).collect())
    }
}
