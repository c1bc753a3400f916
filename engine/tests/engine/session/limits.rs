//! No writer writes a record that no reader accepts.
//!
//! A dispatch of a payload of 1 GiB was acknowledged, and so was the close. Every later opening
//! failed, and a salvage cut the session off before that record, since the limit was checked where
//! an object is read and not where it is written. The same applied to a record of more values than
//! a reader accepts (many items of one seed, the removal of many), and to names that the head of
//! the next segment could not repeat. Each limit is one constant that both sides check.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use foldlog::inspect::{LogReader, ReadOptions};
use foldlog::storage::FileStorage;
use foldlog::{
    Durability, Error, Event, EventSlice, ExportedSlice, ImportOptions, Result, SequenceNumber, Session,
    SessionOptions, SessionTypes, Slice, Store, StoreOptions, Value,
};
use foldlog_codec::body::{OBJECT_BYTES_MAX, SLICES_MAX};
use foldlog_codec::frame::BODY_LEN_MAX;
use foldlog_codec::msgpack::ValueLimits;
use foldlog_test_support::Blob;
use serde::de::Deserializer;
use serde::ser::{SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};

/// Enables the payloads that really are that large.
const LONG: &str = "FOLDLOG_LIMITS";

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Large(Blob);

impl Event for Large {
    const NAME: &'static str = "limits.blob";
}

/// Many small pieces.
struct Pieces(usize);

const PIECE: &str = match str::from_utf8(&[b'x'; 4096]) {
    Ok(piece) => piece,
    Err(_) => "",
};

impl Serialize for Pieces {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut pieces = serializer.serialize_seq(Some(self.0))?;
        (0..self.0).try_for_each(|_| pieces.serialize_element(PIECE))?;
        pieces.end()
    }
}

impl<'de> Deserialize<'de> for Pieces {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pieces, D::Error> {
        Ok(Pieces(Vec::<String>::deserialize(deserializer)?.len()))
    }
}

impl Event for Pieces {
    const NAME: &'static str = "limits.pieces";
}

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Any(Value);

impl Event for Any {
    const NAME: &'static str = "limits.any";
}

fn nested(levels: usize) -> Any {
    Any((0..levels).fold(Value::Nil, |inner, _| Value::Array(vec![inner])))
}

fn values(count: u64) -> Any {
    Any(Value::Array(vec![Value::Nil; count as usize - 1]))
}

/// Numbers of one byte each.
struct Numbers;

impl Slice for Numbers {
    const NAME: &'static str = "limits.numbers";
    type Item = u8;
}

/// Arrays of numbers.
struct Arrays;

impl Slice for Arrays {
    const NAME: &'static str = "limits.arrays";
    type Item = Vec<u8>;
}

macro_rules! times_16 {
    ($text:expr) => {
        concat!(
            $text, $text, $text, $text, $text, $text, $text, $text, $text, $text, $text, $text, $text, $text,
            $text, $text
        )
    };
}

/// A mebibyte.
const LONG_NAME: &str = times_16!(times_16!(times_16!(times_16!("sixteen letters."))));

/// An event, and so a slice, with a name of nearly a mebibyte.
#[derive(Serialize, Deserialize)]
struct Named<const LESS: usize>;

impl<const LESS: usize> Event for Named<LESS> {
    const NAME: &'static str = LONG_NAME.split_at(LONG_NAME.len() - LESS).0;
}

fn named(session: &Session, events: usize) -> Result<()> {
    session.dispatch(Named::<1>)?;
    session.dispatch(Named::<2>)?;
    session.dispatch(Named::<3>)?;
    session.dispatch(Named::<4>)?;
    session.dispatch(Named::<5>)?;
    session.dispatch(Named::<6>)?;
    session.dispatch(Named::<7>)?;
    if events > 7 {
        session.dispatch(Named::<8>)?;
        session.dispatch(Named::<9>)?;
    }
    Ok(())
}

type Act = Box<dyn Fn(&Session) -> Result<()>>;

/// A limit, an action up to it, and one beyond it.
struct Row {
    limit: &'static str,
    object_bytes_min: u64,
    within: Act,
    beyond: Act,
}

fn act(act: impl Fn(&Session) -> Result<SequenceNumber> + 'static) -> Act {
    Box::new(move |session| act(session).map(drop))
}

fn row(limit: &'static str, within: Act, beyond: Act) -> Row {
    Row { limit, object_bytes_min: StoreOptions::default().object_bytes_min, within, beyond }
}

fn rows() -> Vec<Row> {
    let long = std::env::var_os(LONG).is_some();
    // The head of so long a value takes five bytes.
    let blob = |bytes: u64| act(move |session| session.dispatch(Large(Blob(vec![0; bytes as usize - 5]))));
    let items_max = ValueLimits::of_payload().items_max;
    let in_body = |row: Row| Row { object_bytes_min: u64::MAX, ..row };
    let fixed =
        |count: usize, len: usize| act(move |session| session.seed::<Arrays>(vec![vec![1; len]; count]));
    let mut rows = vec![
        row("payload", blob(if long { OBJECT_BYTES_MAX } else { 1 << 20 }), blob(OBJECT_BYTES_MAX + 1)),
        row(
            "depth",
            act(|session| session.dispatch(nested(112))),
            act(|session| session.dispatch(nested(113))),
        ),
        row(
            "values of a payload",
            act(move |session| session.dispatch(values(items_max))),
            act(move |session| session.dispatch(values(items_max + 1))),
        ),
        in_body(row("body", blob(BODY_LEN_MAX as u64 - 64), blob(BODY_LEN_MAX as u64))),
        // 63 and 65 arrays of 65,536 bytes, each with its head: 4,128,833 and 4,259,905 values.
        in_body(row("values of a record", fixed(63, 65_536), fixed(65, 65_536))),
        row("names", Box::new(|session| named(session, 7)), Box::new(|session| named(session, 9))),
        row(
            "tag",
            act(|session| session.set_tag("key", "x".repeat(BODY_LEN_MAX - 64))),
            act(|session| session.set_tag("key", "x".repeat(BODY_LEN_MAX))),
        ),
        row(
            "removed items",
            act(|session| session.clear_where::<Numbers>(|number| *number == 1)),
            act(|session| {
                session.seed::<Numbers>((0..2_200_000).map(|nth| u8::from(nth == 0)).collect())?;
                session.clear_where::<Numbers>(|number| *number == 0)
            }),
        ),
    ];
    if long {
        let pieces = |bytes: u64| act(move |session| session.dispatch(Pieces((bytes / 4099) as usize)));
        rows.push(row(
            "payload of many pieces",
            pieces(OBJECT_BYTES_MAX - 8),
            pieces(OBJECT_BYTES_MAX + 8192),
        ));
    }
    rows
}

fn types() -> SessionTypes {
    SessionTypes::builder()
        .slice::<Numbers>()
        .slice::<Arrays>()
        .seeded::<Numbers>()
        .seeded::<Arrays>()
        .build()
        .unwrap()
}

fn store(directory: &Path, object_bytes_min: u64) -> Store {
    let options =
        StoreOptions { durability: Durability::Process, object_bytes_min, ..StoreOptions::default() };
    Store::open_with(directory, options).unwrap()
}

#[test]
fn what_no_reader_takes_is_refused_before_it_is_acknowledged() {
    for Row { limit, object_bytes_min, within, beyond } in rows() {
        let directory = tempfile::tempdir().unwrap();
        let home = store(directory.path(), object_bytes_min);
        let session = home.create(&types()).unwrap();
        let id = session.id();
        // Up to the limit everything succeeds.
        within(&session).unwrap_or_else(|error| panic!("{limit}: within it: {error}"));
        let reopen = |session: Session| {
            let position = session.log().position();
            session.close().unwrap_or_else(|error| panic!("{limit}: closing: {error}"));
            let session = home.open_session(id, &types()).unwrap_or_else(|error| panic!("{limit}: {error}"));
            assert_eq!(session.log().position(), position, "{limit}");
            session
        };
        let session = reopen(session);
        // Beyond it the call fails, and the session is unchanged.
        match beyond(&session) {
            Err(Error::TooLarge { .. } | Error::Encode { .. }) => {}
            other => panic!("{limit}: beyond it: {other:?}"),
        }
        session.set_tag("still", "there").unwrap_or_else(|error| panic!("{limit}: afterwards: {error}"));
        let session = reopen(session);
        assert!(session.log().recovery().closed, "{limit}");
        // The reader chooses its memory limit: a million numbers of one byte take more memory than
        // their log.
        let options = ReadOptions { memory_bytes: Some(1 << 30), ..ReadOptions::default() };
        let reader = LogReader::open_with(Arc::new(FileStorage::new()), session.dir(), options);
        let records = reader.unwrap_or_else(|error| panic!("{limit}: {error}")).records_len();
        assert_eq!(
            Some(records),
            (session.log().position().map(|last| last + 1)).map(SequenceNumber::get),
            "{limit}"
        );
        session.close().unwrap();
    }
}

/// An export of more slices than a session may have failed only after its declaration was in the
/// log.
#[test]
fn an_import_that_no_reader_takes_begins_no_session() {
    let directory = tempfile::tempdir().unwrap();
    let home = store(directory.path(), 64 << 10);
    let options = || ImportOptions { keep_unknown: true, session: SessionOptions::default() };
    let session = home.create(&types()).unwrap();
    session.seed::<Numbers>(vec![1]).unwrap();
    let whole = session.log().export().unwrap();
    let with = |slices: usize, item: Value| {
        let slice = |nth: usize| ExportedSlice {
            slice_type: format!("slice {nth}"),
            items: vec![item.clone()],
            ..whole.slices[0].clone()
        };
        let mut export = whole.clone();
        (export.slices, export.policies) = ((0..slices).map(slice).collect(), BTreeMap::new());
        export
    };
    let reference = foldlog_codec::body::ObjectId::from_content(b"what is nowhere").reference();
    for (what, export) in [
        ("slices", with(SLICES_MAX + 1, Value::Nil)),
        ("depth", with(1, nested(113).0)),
        ("a reference", with(1, Value::decode(&reference).unwrap())),
    ] {
        match home.import(&export, &types(), options()) {
            Err(Error::TooLarge { .. } | Error::Encode { .. }) => {}
            other => panic!("{what}: {other:?}"),
        }
    }
    assert_eq!(home.sessions().unwrap().len(), 1);
    let imported = home.import(&with(SLICES_MAX, nested(112).0), &types(), options()).unwrap();
    let id = imported.id();
    imported.close().unwrap();
    home.open_untyped(id).unwrap();
    assert_eq!(
        home.open_read_only(session.id(), &types()).unwrap().view::<EventSlice<Any>>().unwrap().len(),
        0
    );
}
