//! Documents: facts about a log or a store, as values that serialise into the fields of `--json`.
//!
//! | module | contains |
//! |---|---|
//! | [`timeline`] | the name, line and JSON form of each record |
//! | [`stats`] | counts of a log's contents |
//! | [`ledger`] | the account of a call, with the decisions that are possible |
//! | [`verify`], [`captures`] | damage of a log and of captures |
//! | [`sessions`] | the status of each session of a store |
//! | [`tasks`] | texts about tasks |

use std::path::Path;

use foldlog_codec::escape;
use serde::Serialize;

pub mod captures;
pub mod ledger;
pub mod sessions;
pub mod stats;
pub mod tasks;
pub mod timeline;
pub mod verify;

/// Makes a document of JSON from its fields, in their order. A field without a value has that of the
/// variable with its name. A field with the attribute `#[serde(flatten)]` stands for those of its
/// value, if there is one.
#[macro_export]
macro_rules! document {
    ($($(#[$attribute:meta])* $name:ident $(: $value:expr)?),+ $(,)?) => {{
        #[allow(non_camel_case_types, reason = "the type of each field has its name")]
        mod fields {
            #[derive(serde::Serialize)]
            pub(super) struct Document<$($name),+> {
                $($(#[$attribute])* pub(super) $name: $name),+
            }
        }
        fields::Document { $($name $(: $value)?),+ }
    }};
}

/// A path in a document, as text.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PathField<'a>(#[serde(serialize_with = "escape::serialize_path")] pub &'a Path);
