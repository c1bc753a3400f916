//! The content of the golden files of format version 1, as values of this crate: frames, segment
//! headers and images.

mod conversations;
mod frames;
mod images;

use std::collections::BTreeMap;

use foldlog_codec::body::{
    AdapterState, AnswerBody, Base, Compacted, Declare, Dispatch, Dropped, Import, Input, Lane, Observed,
    PromptAccepted, Replicated, Request, Resumed, Rollback, Seal, SessionOpening, Settle, Shortened,
    SnapshotBody, ToolBegin, ToolEnd, Turn,
};
use foldlog_codec::frame::{self, Context, Header};
use foldlog_codec::record::RecordNames;
use foldlog_codec::segment::{Previous, SegmentHeader};
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use uuid::Uuid;

pub(crate) use frames::{declaration, end, goldens, lane, later};
pub(crate) use images::images;

pub(crate) fn context() -> Context {
    Context::new(0x0123_4567_89ab_cdef, 1_000.into())
}
pub(crate) const PREDECESSOR_CRC: u32 = 0xcafe_f00d;
pub(crate) const SEQUENCE: SequenceNumber = SequenceNumber::new(1_042);
pub(crate) const WATERMARK: SequenceNumber = SequenceNumber::new(1_040);
/// 2026-01-02T03:04:05.678901 UTC.
pub(crate) const TIME_US: i64 = 1_767_323_045_678_901;

pub(crate) const SESSION: Uuid = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
pub(crate) const OTHER: Uuid = Uuid::from_u128(0xfedc_ba98_7654_3210_0f1e_2d3c_4b5a_6978);

/// MessagePack of an event of a host: `{"step": 3, "text": "ship it"}`.
pub(crate) const EVENT: &[u8] = b"\x82\xa4step\x03\xa4text\xa7ship it";
pub(crate) const ITEM: &[u8] = b"\x81\xa4step\x07";

/// One golden frame: the name of its file, its kind, its body, and the lane that is added to the
/// body.
pub(crate) struct Golden {
    pub(crate) name: &'static str,
    pub(crate) kind: RecordKind,
    pub(crate) body: Body,
    pub(crate) lane: Lane<'static>,
}

macro_rules! bodies {
    ($($name:ident $body:ident $(<$life:lifetime>)?,)*) => {
        /// A body of any kind.
        pub(crate) enum Body {
            $($name($body $(<$life>)?),)*
            /// The bytes of a body for which this crate has no type.
            Bytes(&'static [u8]),
        }

        impl Body {
            pub(crate) fn encode(&self) -> Vec<u8> {
                match self {
                    $(Body::$name(body) => body.encode(),)*
                    Body::Bytes(bytes) => bytes.to_vec(),
                }
            }

            pub(crate) fn assert_says(&self, name: &str, bytes: &[u8]) {
                match self {
                    $(Body::$name(body) => {
                        let found = $body::decode(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
                        assert_eq!(&found, body, "{name} decodes to something else");
                    })*
                    Body::Bytes(body) => assert_eq!(&bytes, body, "{name}"),
                }
            }
        }
    };
}

bodies! {
    Opened SessionOpening,
    Declare Declare,
    Dispatch Dispatch<'static>,
    Snapshot SnapshotBody<'static>,
    Rollback Rollback,
    Import Import<'static>,
    ToolBegin ToolBegin<'static>,
    ToolEnd ToolEnd<'static>,
    Settle Settle<'static>,
    Observed Observed<'static>,
    Replicated Replicated,
    Input Input<'static>,
    Request Request<'static>,
    Answer AnswerBody<'static>,
    Turn Turn<'static>,
    Shortened Shortened<'static>,
    PromptAccepted PromptAccepted<'static>,
    AdapterState AdapterState<'static>,
    Resumed Resumed,
    Seal Seal,
    Dropped Dropped,
    Compacted Compacted,
    Base Base,
}

/// Returns the note of a replicated session.
pub(crate) fn replicated() -> Replicated {
    Replicated { at: "object storage beneath `team`".to_owned(), by: "worker 7".to_owned(), epoch: 3 }
}

pub(crate) fn tags<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Returns the names for the JSON forms: those of [`declaration`].
pub(crate) fn names() -> RecordNames {
    let mut names = RecordNames::default();
    names.learn(&declaration());
    names
}

pub(crate) fn header(golden: &Golden) -> Header {
    Header {
        crc: 0,
        predecessor_crc: PREDECESSOR_CRC,
        body_len: 0,
        sequence: SEQUENCE,
        watermark: if golden.kind == RecordKind::Opened { 0.into() } else { WATERMARK },
        kind: golden.kind,
        time_us: TIME_US,
    }
}

pub(crate) fn frame_of(golden: &Golden) -> Vec<u8> {
    let (mut body, mut bytes) = (golden.body.encode(), Vec::new());
    golden.lane.add_to(&mut body, 0);
    frame::encode(context(), &header(golden), &body, &mut bytes).unwrap();
    bytes
}

pub(crate) fn json_of(golden: &Golden, body: &[u8]) -> String {
    let record = Record { sequence: SEQUENCE, kind: golden.kind, time_us: TIME_US, body };
    let value = record.to_json(&names()).unwrap_or_else(|error| panic!("{}: {error}", golden.name));
    serde_json::to_string_pretty(&value).unwrap() + "\n"
}

pub(crate) fn segment_headers() -> [(&'static str, SegmentHeader); 2] {
    let later = SegmentHeader {
        ordinal: 7,
        session: SESSION,
        first_sequence: 1_000.into(),
        watermark: 998.into(),
        salt: context().salt(),
        previous: Some(Previous { ordinal: 5, end: 8_388_608, crc: PREDECESSOR_CRC }),
    };
    let first =
        SegmentHeader { ordinal: 0, first_sequence: 0.into(), watermark: 0.into(), previous: None, ..later };
    [("segment-first", first), ("segment-later", later)]
}
