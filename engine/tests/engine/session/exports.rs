//! Every value that a host's type finds again after reopening, it also finds after an export and an
//! import.
//!
//! An export once contained `null` for `NaN` and infinities, an array for bytes, and text for keys
//! of other types. A `Uuid`, a `u128` over 64 bits and `NaN` made the import fail, an undeclared
//! slice came back with other values, and many floats were off by their last bit.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog::storage::MemoryStorage;
use foldlog::{
    Event, Export, ImportOptions, Policy, Session, SessionTypes, Slice, Store, StoreOptions, Value,
};
use foldlog_test_support::Blob;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A type whose values `rmp-serde` writes as extensions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename = "_ExtStruct")]
struct Extension((i8, Blob));

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Marker;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Kind {
    Unit,
    /// Looks like the JSON form of another value.
    #[serde(rename = "$bytes")]
    Newtype(String),
    Tuple(i8, f32),
    Struct {
        wide: u128,
        within: Option<Box<Kind>>,
    },
    Shapeless(Value),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "$f64")]
enum Tagged {
    Name { name: String },
    Number { number: f64 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(u64),
    Float(f64),
    Text(String),
    Bytes(Blob),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Spot {
    x: i32,
    y: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Numbers {
    real: f64,
    narrow: f32,
    wide: u128,
    deep: i128,
    large: u64,
    small: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Keys {
    numbered: BTreeMap<u32, String>,
    signed: BTreeMap<i64, bool>,
    flags: BTreeMap<bool, char>,
    pairs: BTreeMap<(u8, i64), Marker>,
    ids: BTreeMap<Uuid, Vec<u8>>,
    spots: BTreeMap<Spot, ()>,
    named: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Animal {
    id: Uuid,
    numbers: Numbers,
    keys: Keys,
    bytes: Blob,
    extension: Extension,
    kinds: Vec<Kind>,
    tagged: Tagged,
    untagged: Untagged,
    marker: Marker,
    nothing: (),
    maybe: Option<Option<f32>>,
    #[serde(flatten)]
    rest: BTreeMap<String, u64>,
}

impl Event for Animal {
    const NAME: &'static str = "zoo.animal";
}

struct Kept;

impl Slice for Kept {
    const NAME: &'static str = "zoo.kept";
    type Item = Animal;
}

struct Seen;

impl Slice for Seen {
    const NAME: &'static str = "zoo.seen";
    type Item = Animal;
}

fn types() -> SessionTypes {
    SessionTypes::builder()
        .slice::<Kept>()
        .append_all::<Kept>()
        .slice_with::<Seen>(Policy::Log)
        .append_all::<Seen>()
        .build()
        .unwrap()
}

fn store() -> Store {
    let options = StoreOptions { storage: Arc::new(MemoryStorage::new()), ..StoreOptions::default() };
    Store::open_with("/store", options).unwrap()
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        prop::sample::select(vec![
            "$bytes", "$f32", "$f64", "$ext", "$msgpack", "$object", "$key:", "$key:1"
        ])
        .prop_map(str::to_owned),
    ]
}

fn real() -> impl Strategy<Value = f64> {
    let special =
        vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, f64::MIN_POSITIVE, 1e300, 9007199254740993.0];
    prop_oneof![any::<u64>().prop_map(f64::from_bits), any::<f64>(), prop::sample::select(special)]
}

fn narrow() -> impl Strategy<Value = f32> {
    prop_oneof![
        any::<u32>().prop_map(f32::from_bits),
        prop::sample::select(vec![0.1, f32::NAN, f32::INFINITY])
    ]
}

/// Generates values of any shape. A map of one field may look like the form of another value.
fn shapeless() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        real().prop_map(Value::F64),
        narrow().prop_map(Value::F32),
        text().prop_map(Value::Str),
        vec(any::<u8>(), 0..9).prop_map(Value::Bin),
        vec(any::<u8>(), 0..9).prop_map(|bytes| Value::Ext(7, bytes)),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let pair = (prop_oneof![text().prop_map(Value::Str), inner.clone()], inner.clone());
        prop_oneof![vec(inner, 0..3).prop_map(Value::Array), vec(pair, 0..3).prop_map(Value::Map)]
    })
}

fn kind() -> impl Strategy<Value = Kind> {
    let leaf = prop_oneof![
        Just(Kind::Unit),
        text().prop_map(Kind::Newtype),
        (any::<i8>(), narrow()).prop_map(|(first, second)| Kind::Tuple(first, second)),
        shapeless().prop_map(Kind::Shapeless),
    ];
    leaf.prop_recursive(3, 6, 1, |inner| {
        (any::<u128>(), proptest::option::of(inner))
            .prop_map(|(wide, within)| Kind::Struct { wide, within: within.map(Box::new) })
    })
}

fn keys() -> impl Strategy<Value = Keys> {
    let spot = (any::<i32>(), any::<Option<u64>>()).prop_map(|(x, y)| Spot { x, y });
    (
        btree_map(any::<u32>(), any::<String>(), 0..3),
        btree_map(any::<i64>(), any::<bool>(), 0..3),
        btree_map(any::<bool>(), any::<char>(), 0..3),
        btree_map(any::<(u8, i64)>(), Just(Marker), 0..3),
        btree_map(any::<u128>().prop_map(Uuid::from_u128), any::<Vec<u8>>(), 0..3),
        btree_map(spot, Just(()), 0..3),
        btree_map(text(), shapeless(), 0..3),
    )
        .prop_map(|(numbered, signed, flags, pairs, ids, spots, named)| Keys {
            numbered,
            signed,
            flags,
            pairs,
            ids,
            spots,
            named,
        })
}

fn animal() -> impl Strategy<Value = Animal> {
    let numbers = (real(), narrow(), any::<u128>(), any::<i128>(), any::<u64>(), any::<i64>()).prop_map(
        |(real, narrow, wide, deep, large, small)| Numbers { real, narrow, wide, deep, large, small },
    );
    let tagged = prop_oneof![
        text().prop_map(|name| Tagged::Name { name }),
        real().prop_map(|number| Tagged::Number { number })
    ];
    let untagged = prop_oneof![
        any::<u64>().prop_map(Untagged::Number),
        real().prop_map(Untagged::Float),
        text().prop_map(Untagged::Text),
        vec(any::<u8>(), 0..9).prop_map(|bytes| Untagged::Bytes(Blob(bytes)))
    ];
    let maybe = prop_oneof![Just(None), narrow().prop_map(|it| Some(Some(it)))];
    let extension =
        (any::<i8>(), vec(any::<u8>(), 0..9)).prop_map(|(kind, bytes)| Extension((kind, Blob(bytes))));
    let rest = btree_map("[$a-c]{1,6}_", any::<u64>(), 0..3);
    let bytes = vec(any::<u8>(), 0..40).prop_map(Blob);
    ((any::<u128>(), numbers, keys(), bytes, extension), vec(kind(), 0..4), (tagged, untagged, maybe, rest))
        .prop_map(|((id, numbers, keys, bytes, extension), kinds, (tagged, untagged, maybe, rest))| Animal {
            id: Uuid::from_u128(id),
            numbers,
            keys,
            bytes,
            extension,
            kinds,
            tagged,
            untagged,
            marker: Marker,
            nothing: (),
            maybe,
            rest,
        })
}

/// Returns the slices as bytes, since `NaN` does not equal itself.
fn found(session: &Session) -> Vec<Vec<u8>> {
    let bytes = |animal: &Animal| foldlog_codec::msgpack::to_vec(animal).unwrap();
    let mut found: Vec<_> = session.view::<Kept>().unwrap().iter().map(bytes).collect();
    found.extend(session.log().slice::<Seen>().unwrap().iter().map(|animal| bytes(&animal.unwrap())));
    found
}

/// Returns the bytes of the items of each slice, without the records that inserted them.
fn items(session: &Session) -> BTreeMap<String, Vec<Vec<u8>>> {
    let slices = session.dynamic().state().unwrap().slices;
    let bytes = |slice: foldlog::SliceState| slice.items.iter().map(|item| item.bytes.to_vec()).collect();
    slices.into_iter().map(|(name, slice)| (name, bytes(slice))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn what_survives_opening_again_survives_export_and_import(animals in vec(animal(), 1..4)) {
        let home = store();
        let session = home.create(&types()).unwrap();
        for animal in &animals {
            session.dispatch(animal.clone()).unwrap();
        }
        let id = session.id();
        session.close().unwrap();
        let opened = home.open_session(id, &types()).unwrap();
        let json = opened.log().export().unwrap().to_json().unwrap();
        let mut written = Vec::new();
        let policies = [Policy::State, Policy::Log].into();
        let reader = home.read_log(id).unwrap();
        reader.write_export(reader.last_position(), &policies, Vec::new(), &mut written).unwrap();
        let without_times = |json: &str| {
            let mut json: serde_json::Value = serde_json::from_str(json).unwrap();
            json.as_object_mut().unwrap().remove("created_at");
            json
        };
        prop_assert_eq!(without_times(&String::from_utf8(written).unwrap()), without_times(&json));

        let export = Export::from_json(&json).unwrap();
        let typed = store().import(&export, &types(), ImportOptions::default()).unwrap();
        prop_assert_eq!(found(&typed), found(&opened), "{}", json);
        let options = ImportOptions { keep_unknown: true, ..ImportOptions::default() };
        let nothing = SessionTypes::builder().build().unwrap();
        let untyped = store().import(&export, &nothing, options).unwrap();
        prop_assert_eq!(items(&untyped), items(&opened), "{}", json);
    }
}

/// Snapshots of other programs contain a `Uuid` as text, and an object is an object whatever its
/// field's name. They do not state how values are written.
#[test]
fn the_json_of_another_program_is_read_as_serde_reads_json() {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Entry {
        id: Uuid,
        counts: BTreeMap<u32, u64>,
        fields: BTreeMap<String, Value>,
    }
    impl Event for Entry {
        const NAME: &'static str = "zoo.entry";
    }
    struct Entries;
    impl Slice for Entries {
        const NAME: &'static str = "zoo.entries";
        type Item = Entry;
    }
    let types = SessionTypes::builder().slice::<Entries>().append_all::<Entries>().build().unwrap();
    let text = |beside: &str| {
        format!(
            r#"{{"version": "1", "created_at": "2026-01-02T03:04:05+00:00", {beside} "parent_id": null, "slices": [{{
                "slice_type": "zoo.entries", "item_type": "zoo.entry", "items": [{{
                    "id": "67e55044-10b1-426f-9247-bb680e5fe0c8", "counts": {{"7": 1}},
                    "fields": {{"a": {{"$bytes": "of another program"}}}}}}]}}]}}"#
        )
    };
    let export = Export::from_json(&text("")).unwrap();
    let imported = store().import(&export, &types, ImportOptions::default()).unwrap();
    let entries = imported.view::<Entries>().unwrap();
    let entry = entries.iter().next().unwrap();
    assert_eq!(entry.id.to_string(), "67e55044-10b1-426f-9247-bb680e5fe0c8");
    assert_eq!(entry.counts, BTreeMap::from([(7, 1)]));
    assert_eq!(entry.fields["a"].get("$bytes").and_then(Value::as_str), Some("of another program"));
    // Its session's own export states that values are exact, and means the same.
    let own = imported.log().export().unwrap().to_json().unwrap();
    let again = store().import(&Export::from_json(&own).unwrap(), &types, ImportOptions::default()).unwrap();
    assert_eq!(items(&again), items(&imported));

    // As an export of foldlog, the same text contains an invalid form of a value, and creates no
    // session.
    let refused = |beside: &str| Export::from_json(&text(beside)).unwrap_err().to_string();
    let said = refused(r#""values": "exact","#);
    let place = r#"item 0 of slice `zoo.entries`: at $["fields"]["a"]"#;
    assert!(said.contains(place) && said.contains("the value of `$bytes` is invalid"), "{said}");
    assert!(refused(r#""values": "rounded","#).contains("rounded"));
}
