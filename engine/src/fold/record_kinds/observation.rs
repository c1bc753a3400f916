//! `observed`: a fact that the host or the engine observed.

use foldlog_codec::body::Observed;

use super::{Author, RecordBody, RecordRules};
use crate::operation::PROGRAMS;

pub(super) const RULES: RecordRules = RecordRules {
    // The system assigns the ids of a call's programs.
    excluded_in_both: |body| (Observed::decode(body).ok()?.name == PROGRAMS).then_some("$.data"),
    subject: |body, _| Some(Observed::decode(body).ok()?.name),
    subject_identifies: true,
    title: |body, _| Some(Observed::decode(body).ok()?.name),
    payloads: |body| Some(vec![("data", Observed::decode(body).ok()?.data)]),
    ..RecordRules::unsynced(Author::Host, |_| Ok(RecordBody::NoEffect))
};
