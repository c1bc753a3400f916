//! The differences between two positions of a log: in slices, by path, and in the messages of
//! conversations.
//!
//! Items are matched by identity, not by place. An item is identified by the sequence number of the
//! record that inserted it and its ordinal in that record. Between two items that both states
//! contain, the removed and the added items are paired in order and compared field by field. An
//! item without a partner is reported as removed or added. So an appended item is one difference, a
//! replaced item shows the fields that changed, and an item after a removed one is not reported as
//! moved.
//!
//! A path starts at the slice: `items[3].status`. The index is the item's place in the later state,
//! or in the earlier one if the item was removed. The path of a message is its place in its
//! conversation: `messages[3]`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::Policy;
use foldlog_codec::msgpack::{MsgpackReader, Value};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smol_str::SmolStr;
use uuid::Uuid;

use super::{ItemName, LogReader, SliceReader, StateReader};
use crate::conversation::{Conversation, ConversationMessage};
use crate::error::Result;
use crate::fold::conversation_reading::TextBudget;
use crate::session::StoredItem;

/// Describes one difference between two positions of a log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Name of the slice; `None` for the session's tags and for conversations.
    pub slice: Option<String>,
    /// Id of the evaluation in whose conversation a message differs; `None` for slices and tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Path of the value, such as `items[3].status`.
    pub path: String,
    /// Kind of the change.
    pub change: DifferenceKind,
    /// The value at the earlier position; nil if it was added. Serde uses its [exact
    /// form](Value::json_form).
    #[serde(serialize_with = "json_form", deserialize_with = "exact")]
    pub before: Value,
    /// The value at the later position; nil if it was removed.
    #[serde(serialize_with = "json_form", deserialize_with = "exact")]
    pub after: Value,
}

fn json_form<S: Serializer>(value: &Value, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    value.json_form().serialize(serializer)
}

fn exact<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Value, D::Error> {
    Value::deserialize(deserializer)?.into_exact().map_err(serde::de::Error::custom)
}

/// Describes how a value changed between two positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DifferenceKind {
    /// Only the later position has the value.
    Added,
    /// Only the earlier position has the value.
    Removed,
    /// The two positions have different values.
    Changed,
}

/// Callback that receives one difference after the other until it breaks.
pub type VisitDifference<'a> = dyn FnMut(Difference) -> Result<ControlFlow<()>> + 'a;

/// Continues with the next comparison unless the visitor has broken off.
macro_rules! unless_broken {
    ($compared:expr) => {
        if $compared?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    };
}

impl LogReader {
    /// Passes the messages that only one of two positions has to `visit`, conversation by
    /// conversation in the order of their first records, until it breaks.
    ///
    /// # Errors
    ///
    /// The errors of [`conversation_at`](LogReader::conversation_at); the error of `visit`.
    pub fn conversation_differences(
        &self,
        from: impl Into<SequenceNumber>,
        to: impl Into<SequenceNumber>,
        visit: &mut VisitDifference<'_>,
    ) -> Result<()> {
        let (from, to) = (from.into(), to.into());
        for evaluation in of_both(self.evaluations_at(from), self.evaluations_at(to)) {
            let before = self.conversation_at(&evaluation, from)?;
            let after = self.conversation_at(&evaluation, to)?;
            for difference in messages_of(&evaluation, before.as_ref(), after.as_ref()) {
                if visit(difference)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

impl StateReader {
    /// Passes the differences from this position to a later one to `visit`, until it breaks.
    /// Compares the slices whose policy is `wanted`, in the order of their names. Both must be
    /// positions of one log: items in both are equal, and are not read. A slice that only one
    /// position knows counts as empty at the other.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`](crate::Error::Decode) if an item is not MessagePack,
    /// [`Error::OverBudget`](crate::Error::OverBudget) if an item would take more memory than the
    /// reader may, [`Error::Io`](crate::Error::Io) if a segment can no longer be read,
    /// [`Error::Object`](crate::Error::Object) if an object is missing or damaged; the error of
    /// `visit`.
    pub fn slice_differences(
        &self,
        later: &StateReader,
        wanted: impl Fn(Policy) -> bool,
        visit: &mut VisitDifference<'_>,
    ) -> Result<()> {
        self.compare_slices(later, wanted, visit, |before, after| {
            let is_in = |slice: Option<SliceReader<'_>>, name: ItemName| {
                slice.is_some_and(|slice| slice.contains(name.sequence, name.ordinal))
            };
            Ok((
                UnpairedItems::new(before, move |_, name| is_in(after, name)),
                UnpairedItems::new(after, move |_, name| is_in(before, name)),
            ))
        })
    }

    /// Compares the slices whose policy is `wanted` with those of another state, in the order of
    /// their names. `unpaired` returns the items of a slice that only this state has, and the ones
    /// that only the other has.
    pub(super) fn compare_slices<'a>(
        &'a self,
        other: &'a StateReader,
        wanted: impl Fn(Policy) -> bool,
        visit: &mut VisitDifference<'_>,
        unpaired: impl Fn(
            Option<SliceReader<'a>>,
            Option<SliceReader<'a>>,
        ) -> Result<(UnpairedItems<'a>, UnpairedItems<'a>)>,
    ) -> Result<()> {
        let slices = self.slices().chain(other.slices());
        let named: BTreeMap<&str, Policy> = slices.map(|slice| (slice.name(), slice.policy())).collect();
        for (name, _) in named.into_iter().filter(|(_, policy)| wanted(*policy)) {
            let (went, came) = unpaired(self.slice(name), other.slice(name))?;
            let name = name.to_owned();
            let mut collector = Collector { slice: Some(&name), visit: &mut *visit };
            if self.compare_unpaired(went, came, other, &mut collector)?.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Compares the items of a slice that only one of two states has, one pair at a time.
    fn compare_unpaired(
        &self,
        mut went: UnpairedItems<'_>,
        mut came: UnpairedItems<'_>,
        other: &StateReader,
        collector: &mut Collector<'_, '_>,
    ) -> VisitorFlow {
        loop {
            let (goes, comes) = (went.gap()?, came.gap()?);
            let takes_old = goes.is_some_and(|goes| comes.is_none_or(|comes| goes <= comes));
            let takes_new = comes.is_some_and(|comes| goes.is_none_or(|goes| comes <= goes));
            let old = if takes_old { went.take() } else { None };
            let new = if takes_new { came.take() } else { None };
            for (state, item) in old.iter().map(|old| (self, old)).chain(new.iter().map(|new| (other, new))) {
                state.check_decoded(item.1.sequence, &item.1.bytes)?;
            }
            let path = |place: usize| format!("items[{place}]");
            unless_broken!(match (old, new) {
                (Some((_, old)), Some((place, new))) => {
                    collector.values(&path(place), &old.value()?, &new.value()?)
                }
                (Some((place, old)), None) => {
                    collector.push(path(place), DifferenceKind::Removed, old.value()?, Value::Nil)
                }
                (None, Some((place, new))) => {
                    collector.push(path(place), DifferenceKind::Added, Value::Nil, new.value()?)
                }
                (None, None) => return Ok(ControlFlow::Continue(())),
            });
        }
    }

    /// Returns the differences of the session's tags from this position to a later one.
    pub fn tag_differences(&self, later: &StateReader) -> Vec<Difference> {
        let text = |map: &BTreeMap<String, String>| {
            let pairs =
                map.iter().map(|(key, value)| (Value::from(key.as_str()), Value::from(value.as_str())));
            Value::Map(pairs.collect())
        };
        let mut found = Vec::new();
        let mut take = |difference| {
            found.push(difference);
            Ok(ControlFlow::Continue(()))
        };
        // Cannot fail: nothing is decoded, and the visitor returns no error.
        let compared = Collector { slice: None, visit: &mut take }.values(
            "tags",
            &text(self.tags()),
            &text(later.tags()),
        );
        debug_assert!(compared.is_ok());
        found
    }

    /// Checks that an item, decoded next to another one, takes no more memory than the reader may.
    pub(super) fn check_decoded(&self, sequence: SequenceNumber, bytes: &[u8]) -> Result<()> {
        let Some((dir, budget)) = self.limit() else { return Ok(()) };
        if decoded_bytes(bytes.len() as u64) <= budget {
            return Ok(());
        }
        hold_decoded(&TextBudget::new(dir, budget), sequence, bytes)
    }
}

/// Counts the memory of decoded MessagePack: many small values take many times their bytes.
pub(super) fn hold_decoded(budget: &TextBudget<'_>, sequence: SequenceNumber, bytes: &[u8]) -> Result<()> {
    let mut tokens = MsgpackReader::new(bytes);
    let mut values = 0;
    while tokens.token().is_ok() {
        values += 1;
    }
    budget.hold(sequence, decoded_bytes(values))
}

/// Returns the memory of this many values, doubled for the values that they are compared with.
fn decoded_bytes(values: u64) -> u64 {
    values.saturating_mul(2 * size_of::<Value>() as u64)
}

/// Number of items that are read together.
const TOGETHER_ITEMS: usize = 256;

/// Bytes of items after which no further item is read with them.
const TOGETHER_BYTES: usize = 1 << 20;

/// Reads the items of a slice that another state does not have, a few at a time.
pub(super) struct UnpairedItems<'a> {
    slice: Option<SliceReader<'a>>,
    /// The items still to read: the gap between items of both states in which each is, its place,
    /// and its name.
    names: Box<dyn Iterator<Item = (usize, usize, ItemName)> + 'a>,
    named: VecDeque<(usize, usize, ItemName)>,
    read: VecDeque<(usize, usize, StoredItem)>,
}

impl<'a> UnpairedItems<'a> {
    /// Reads the items that are not `in_both` states, by their places and names.
    pub(super) fn new(
        slice: Option<SliceReader<'a>>,
        in_both: impl Fn(usize, ItemName) -> bool + 'a,
    ) -> UnpairedItems<'a> {
        let mut gap = 0;
        let names = slice.into_iter().flat_map(|slice| slice.names().enumerate());
        let names = names.filter_map(move |(place, name)| {
            let is_in_both = in_both(place, name);
            gap += usize::from(is_in_both);
            (!is_in_both).then_some((gap, place, name))
        });
        UnpairedItems { slice, names: Box::new(names), named: VecDeque::new(), read: VecDeque::new() }
    }

    /// Returns the gap of the next item; `None` if there is none.
    fn gap(&mut self) -> Result<Option<usize>> {
        if self.read.is_empty() {
            self.read_some()?;
        }
        Ok(self.read.front().map(|(gap, ..)| *gap))
    }

    /// Returns the next item and its place, after it was read.
    fn take(&mut self) -> Option<(usize, StoredItem)> {
        self.read.pop_front().map(|(_, place, item)| (place, item))
    }

    fn read_some(&mut self) -> Result<()> {
        let missing = TOGETHER_ITEMS.saturating_sub(self.named.len());
        self.named.extend(self.names.by_ref().take(missing));
        let Some(slice) = self.slice else { return Ok(()) };
        let names: Vec<ItemName> = self.named.iter().map(|(.., name)| *name).collect();
        let (named, read, mut bytes_read) = (&mut self.named, &mut self.read, 0);
        slice.read_shared(names.into_iter(), |bytes| {
            bytes_read += bytes.len();
            if let Some((gap, place, ItemName { sequence, ordinal, version })) = named.pop_front() {
                read.push_back((gap, place, StoredItem { sequence, ordinal, version, bytes }));
            }
            Ok(match bytes_read < TOGETHER_BYTES {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            })
        })
    }
}

/// Returns the ids of the evaluations of either of two positions, the first position's first.
pub(super) fn of_both(mut evaluations: Vec<SmolStr>, others: Vec<SmolStr>) -> Vec<SmolStr> {
    let known: BTreeSet<_> = evaluations.iter().cloned().collect();
    evaluations.extend(others.into_iter().filter(|one| !known.contains(one)));
    evaluations
}

/// Returns the messages that only one of two versions of a conversation has: first the removed,
/// then the added ones.
pub(crate) fn messages_of(
    evaluation: &str,
    before: Option<&Conversation>,
    after: Option<&Conversation>,
) -> Vec<Difference> {
    let messages = |one: Option<&Conversation>| one.map(Conversation::messages).unwrap_or_default();
    let (before, after) = (messages(before), messages(after));
    let ids = |messages: &[ConversationMessage]| -> BTreeSet<Uuid> {
        messages.iter().map(|message| message.message_id).collect()
    };
    let (in_before, in_after) = (ids(&before), ids(&after));
    let mut found = Vec::new();
    let mut only = |messages: &[ConversationMessage], others: &BTreeSet<Uuid>, change| {
        let own = messages.iter().enumerate().filter(|(_, message)| !others.contains(&message.message_id));
        found.extend(own.map(|(place, message)| {
            let (mut before, mut after) = (message_value(message), Value::Nil);
            if change == DifferenceKind::Added {
                std::mem::swap(&mut before, &mut after);
            }
            let (conversation, path) = (Some(evaluation.to_owned()), format!("messages[{place}]"));
            Difference { slice: None, conversation, path, change, before, after }
        }));
    };
    only(&before, &in_after, DifferenceKind::Removed);
    only(&after, &in_before, DifferenceKind::Added);
    found
}

/// Returns the content of a message as a value, without time and id.
pub(super) fn message_value(message: &ConversationMessage) -> Value {
    let text = |text: &Option<String>| text.as_deref().map_or(Value::Nil, Value::from);
    let mut fields = vec![
        (Value::from("role"), Value::from(message.role.name())),
        (Value::from("content"), text(&message.content)),
    ];
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|call| {
            let (id, name) = (Value::from(call.call_id.as_str()), Value::from(call.name.as_str()));
            let arguments = Value::from(call.arguments.as_str());
            Value::Map(vec![
                (Value::from("call_id"), id),
                (Value::from("name"), name),
                (Value::from("arguments"), arguments),
            ])
        });
        fields.push((Value::from("tool_calls"), Value::Array(calls.collect())));
    }
    if message.tool_call_id.is_some() {
        fields.push((Value::from("tool_call_id"), text(&message.tool_call_id)));
    }
    if let Some(blocks) = &message.blocks {
        fields.push((Value::from("blocks"), Value::from(blocks.json.as_str())));
    }
    Value::Map(fields)
}

pub(super) type VisitorFlow = Result<ControlFlow<()>>;

struct Collector<'a, 'b> {
    slice: Option<&'a String>,
    visit: &'a mut VisitDifference<'b>,
}

impl Collector<'_, '_> {
    fn push(&mut self, path: String, change: DifferenceKind, before: Value, after: Value) -> VisitorFlow {
        let slice = self.slice.cloned();
        (self.visit)(Difference { slice, conversation: None, path, change, before, after })
    }

    /// Compares two values field by field. Decoding has bounded the depth of values from a log.
    fn values(&mut self, path: &str, before: &Value, after: &Value) -> VisitorFlow {
        match (before, after) {
            (before, after) if before == after => Ok(ControlFlow::Continue(())),
            (Value::Map(old), Value::Map(new)) => self.fields(path, old, new),
            (Value::Array(old), Value::Array(new)) => {
                for place in 0..old.len().max(new.len()) {
                    unless_broken!(self.pair(format!("{path}[{place}]"), old.get(place), new.get(place)));
                }
                Ok(ControlFlow::Continue(()))
            }
            _ => self.push(path.to_owned(), DifferenceKind::Changed, before.clone(), after.clone()),
        }
    }

    fn pair(&mut self, path: String, before: Option<&Value>, after: Option<&Value>) -> VisitorFlow {
        match (before, after) {
            (Some(before), Some(after)) => self.values(&path, before, after),
            (Some(before), None) => self.push(path, DifferenceKind::Removed, before.clone(), Value::Nil),
            (None, Some(after)) => self.push(path, DifferenceKind::Added, Value::Nil, after.clone()),
            (None, None) => Ok(ControlFlow::Continue(())),
        }
    }

    /// Compares the fields of two maps: first those of the old one, then the added ones.
    fn fields(&mut self, path: &str, old: &[(Value, Value)], new: &[(Value, Value)]) -> VisitorFlow {
        for (key, value) in old {
            let other = new.iter().find(|(other, _)| other == key).map(|(_, value)| value);
            unless_broken!(self.pair(format!("{path}{}", key.path_step()), Some(value), other));
        }
        for (key, value) in new.iter().filter(|(key, _)| !old.iter().any(|(other, _)| other == key)) {
            unless_broken!(self.pair(format!("{path}{}", key.path_step()), None, Some(value)));
        }
        Ok(ControlFlow::Continue(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(json: &str) -> Value {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn values_are_compared_field_by_field() {
        let before = value(r#"{"a": 1, "b": [1, {"c": 2}], "gone": null, "odd key": 1}"#);
        let after = value(r#"{"b": [1, {"c": 3}, 4], "a": 1, "new": "x", "odd key": 2}"#);
        let mut found = Vec::new();
        let visit = &mut |difference| {
            found.push(difference);
            Ok(ControlFlow::Continue(()))
        };
        assert!(Collector { slice: None, visit }.values("items[0]", &before, &after).is_ok());
        let json = |value: &Value| serde_json::to_string(value).unwrap();
        let shown = |one: Difference| format!("{} {}>{}", one.path, json(&one.before), json(&one.after));
        assert_eq!(
            found.into_iter().map(shown).collect::<Vec<_>>(),
            [
                "items[0].b[1].c 2>3",
                "items[0].b[2] null>4",
                "items[0].gone null>null",
                r#"items[0]["odd key"] 1>2"#,
                r#"items[0].new null>"x""#,
            ]
        );
    }

    #[test]
    fn a_visitor_that_breaks_is_handed_no_more() {
        let mut taken = 0;
        let mut visit = |_: Difference| -> Result<ControlFlow<()>> {
            taken += 1;
            Ok(ControlFlow::Break(()))
        };
        let compared = Collector { slice: None, visit: &mut visit }.values(
            "",
            &value(r#"{"a": 1, "b": 2}"#),
            &value(r#"{"a": 2, "b": 3}"#),
        );
        assert!(compared.unwrap().is_break());
        assert_eq!(taken, 1);
    }

    #[test]
    fn differences_come_back_from_json_as_they_were() {
        let odd = Value::Map(vec![
            (Value::Unsigned(7), Value::Bin(vec![0, 255])),
            (Value::from("$bytes"), Value::F64(f64::INFINITY)),
        ]);
        let difference = Difference {
            slice: Some("slice".to_owned()),
            conversation: None,
            path: "items[0]".to_owned(),
            change: DifferenceKind::Changed,
            before: odd,
            after: Value::F32(0.1),
        };
        let json = serde_json::to_string(&difference).unwrap();
        assert_eq!(serde_json::from_str::<Difference>(&json).unwrap(), difference, "{json}");
    }
}
