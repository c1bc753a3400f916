//! Encodes and decodes what a replica has of a compaction: the known positions, and the list of
//! dropped bodies.

use std::collections::BTreeSet;

use super::fields::{bad, encode_fields, list, store, walk};
use super::{Base, Observed, Payload};
use crate::msgpack::MsgpackWriter;
use crate::{Error, Record, RecordKind, SequenceNumber};

/// States at which positions of a compacted log, from some record on, the slices are known. It
/// serves a replica that has that record and the records after it without the dropped bodies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownPositions {
    /// Last positions of the compacted ranges, in ascending order. Each has a base.
    pub ends: Vec<SequenceNumber>,
    /// Items of the slices at positions, in ascending order of the positions. Several consecutive
    /// bases may belong to one position.
    pub bases: Vec<Base>,
}

impl KnownPositions {
    /// Encodes the positions as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode_fields(0, |fields| {
            fields.set("ends", &self.ends);
            let bases = fields.field("bases").array(self.bases.len());
            for base in &self.bases {
                bases.bin(&base.encode());
            }
        })
    }

    /// Decodes the output of [`encode`](KnownPositions::encode).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, if a field is missing or malformed, or if the positions are
    /// not in order.
    pub fn decode(bytes: &[u8]) -> Result<KnownPositions, Error> {
        const KIND: &str = "known positions";
        let mut known = KnownPositions::default();
        walk(KIND, &["ends", "bases"], bytes, |place, value| match place.field {
            "ends" => value.read_into(place, &mut known.ends),
            "bases" => store(&mut known.bases, list(value, |base| Base::decode(base.bin()?))),
            _ => Ok(()),
        })?;
        if !known.ends.is_sorted_by(|before, after| before < after)
            || !known.bases.is_sorted_by_key(|base| base.position)
        {
            return Err(bad(KIND, "its positions are out of order"));
        }
        Ok(known)
    }
}

/// Name of the observation with [`DroppedBodies`].
pub const DROPPED_BODIES: &str = "foldlog.compacted";

/// Lists the bodies that the compactions of a log have dropped up to some record, so that a replica
/// can drop them too. It is the data of an observation named [`DROPPED_BODIES`].
///
/// After that record, nothing returns to a position within the compacted ranges, except to one with
/// a base. So a writer that has read the record knows that the bodies may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DroppedBodies {
    /// Positions at which the slices are known.
    pub known: KnownPositions,
    /// First record and number of records of each run of records with dropped bodies, in ascending
    /// order.
    pub runs: Vec<(SequenceNumber, u64)>,
}

impl DroppedBodies {
    /// Returns the data of the observation if `record` is one that lists dropped bodies. The data
    /// may be in an object.
    pub fn observed_in<'a>(record: &Record<'a>) -> Option<Payload<'a>> {
        let observed =
            (record.kind == RecordKind::Observed).then(|| Observed::decode(record.body).ok()).flatten()?;
        (observed.name == DROPPED_BODIES).then_some(observed.data)
    }

    /// Adds the next record with a dropped body.
    pub fn push(&mut self, sequence: SequenceNumber) {
        match self.runs.last_mut() {
            Some((first, count)) if *first + *count == sequence => *count += 1,
            _ => self.runs.push((sequence, 1)),
        }
    }

    /// Returns whether the body of a record was dropped.
    pub fn holds(&self, sequence: SequenceNumber) -> bool {
        let behind = self.runs.partition_point(|(first, _)| *first <= sequence);
        let run = behind.checked_sub(1).and_then(|at| self.runs.get(at));
        run.is_some_and(|(first, count)| sequence.since(*first) < *count)
    }

    /// Returns the first record with a dropped body, or `None` if there is none.
    pub fn first(&self) -> Option<SequenceNumber> {
        self.runs.first().map(|(first, _)| *first)
    }

    /// Returns the records with dropped bodies, in ascending order.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceNumber> {
        self.runs.iter().flat_map(|(first, count)| (0..*count).map(|at| *first + at))
    }

    /// Returns the number of records with dropped bodies.
    pub fn count(&self) -> u64 {
        self.runs.iter().map(|(_, count)| *count).sum()
    }

    /// Returns the last position of the compacted ranges, or `None` if there is none.
    pub fn through(&self) -> Option<SequenceNumber> {
        self.known.ends.last().copied()
    }

    /// Returns whether a position cannot be returned to: a body before it may be missing, and no
    /// base lists the items of the slices there.
    pub fn hides(&self, position: SequenceNumber) -> bool {
        let is_within = self.first().is_some_and(|first| first <= position)
            && self.through().is_some_and(|through| position <= through);
        is_within && !self.known.bases.iter().any(|base| base.position == position)
    }

    /// Merges an earlier such record, which may come from another copy of the log. A body counts as
    /// dropped if either record lists it. The slices are known only at positions that neither
    /// record hides.
    ///
    /// The ends of ranges are positions with a base. If an end loses its base, its range continues
    /// to the next end.
    #[must_use]
    pub fn merge_earlier(self, before: &DroppedBodies) -> DroppedBodies {
        let own: BTreeSet<SequenceNumber> = self.known.bases.iter().map(|base| base.position).collect();
        let others = before.known.bases.iter();
        let others = others.filter(|base| !self.hides(base.position) && !own.contains(&base.position));
        let kept = self.known.bases.iter().filter(|base| !before.hides(base.position));
        let mut bases: Vec<Base> = kept.chain(others).cloned().collect();
        bases.sort_by_key(|base| base.position);
        let is_known = |end: &SequenceNumber| bases.binary_search_by_key(end, |base| base.position).is_ok();
        let mut ends: Vec<SequenceNumber> =
            self.known.ends.iter().chain(&before.known.ends).copied().collect();
        ends.sort_unstable();
        ends.dedup();
        let last = ends.last().copied();
        ends.retain(|end| is_known(end) || Some(*end) == last);
        let mut runs = [self.runs, before.runs.clone()].concat();
        runs.sort_unstable();
        let mut joined: Vec<(SequenceNumber, u64)> = Vec::new();
        for (first, count) in runs {
            match joined.last_mut() {
                Some((begin, len)) if *begin + *len >= first => {
                    *len = (*len).max(first.since(*begin) + count);
                }
                _ => joined.push((first, count)),
            }
        }
        DroppedBodies { known: KnownPositions { ends, bases }, runs: joined }
    }

    /// Encodes the list as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let (mut packed, mut next) = (Vec::new(), SequenceNumber::MIN);
        for (first, count) in &self.runs {
            varint(&mut packed, first.since(next));
            varint(&mut packed, *count);
            next = *first + *count;
        }
        let mut writer = MsgpackWriter::new();
        writer.map(2).str("known").bin(&self.known.encode()).str("dropped").bin(&packed);
        writer.finish()
    }

    /// Decodes the output of [`encode`](DroppedBodies::encode).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, if a field is missing or malformed, or if a record is after
    /// the last position.
    pub fn decode(bytes: &[u8]) -> Result<DroppedBodies, Error> {
        const KIND: &str = "dropped bodies";
        let mut dropped = DroppedBodies::default();
        walk(KIND, &["known", "dropped"], bytes, |place, value| match place.field {
            "known" => store(&mut dropped.known, KnownPositions::decode(value.bin()?)),
            "dropped" => {
                let runs = packed_runs(value.bin()?).ok_or_else(|| bad(KIND, "its runs do not decode"));
                store(&mut dropped.runs, runs)
            }
            _ => Ok(()),
        })?;
        let last = dropped.runs.last().map(|(first, count)| *first + (*count - 1));
        if last > dropped.through() {
            return Err(bad(KIND, "it names a record after the last position"));
        }
        Ok(dropped)
    }
}

/// Appends a number in groups of seven bits, the lowest first; all but the last have the highest
/// bit set.
fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let group = u64::from(byte & 0x7f);
        if group << shift >> shift != group {
            return None;
        }
        number |= group << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Reads runs in ascending order, none of them empty.
fn packed_runs(mut packed: &[u8]) -> Option<Vec<(SequenceNumber, u64)>> {
    let (mut runs, mut next) = (Vec::new(), 0_u64);
    while !packed.is_empty() {
        let first = next.checked_add(take_varint(&mut packed)?)?;
        let count = take_varint(&mut packed).filter(|count| *count > 0)?;
        next = first.checked_add(count)?;
        runs.push((first.into(), count));
    }
    Some(runs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::body::{BaseSlice, Dropped, ItemId, ItemRun, ObjectId};

    fn base(position: u64, goes_on: bool) -> Base {
        let first = ItemId { sequence: 1.into(), ordinal: 0 };
        let slices = vec![BaseSlice { slice: 2, items: vec![ItemRun { first, version: 1, count: 2 }] }];
        Base { position: position.into(), goes_on, slices }
    }

    #[test]
    fn what_a_replica_holds_of_a_dropped_record_is_read_as_what_the_log_has() {
        let dropped = Dropped::from_body(RecordKind::Dispatch, b"a body");
        let object = ObjectId::from_content(b"known positions");
        let held = dropped.encode_held(object);
        assert_eq!((Dropped::decode(&held), Dropped::decode_known(&held)), (Ok(dropped), Ok(Some(object))));
        assert_eq!(Dropped::decode_known(&dropped.encode()), Ok(None));
        let mut wrong = MsgpackWriter::new();
        wrong.map(1).str("known").unsigned(7);
        assert!(Dropped::decode_known(&wrong.finish()).is_err());
        for len in 0..held.len() {
            assert!(Dropped::decode_known(held.get(..len).unwrap_or_default()).is_err(), "{len}");
        }
    }

    /// Bodies that a log of 60 records has lost, and the positions at which its slices are known
    /// according to its compactions: at the end of each range, and at some positions within.
    fn dropped_bodies() -> impl Strategy<Value = DroppedBodies> {
        let range = (5_u64..50, 1_u64..20, prop::collection::btree_set(5_u64..60, 0..4));
        prop::collection::vec(range, 0..4).prop_map(|ranges| {
            let (mut known, mut runs, mut next) = (KnownPositions::default(), Vec::new(), 0);
            for (from, len, within) in ranges {
                let (from, end) = (from.max(next), from.max(next) + len);
                let within = within.into_iter().filter(|position| (from..end).contains(position));
                for position in within.chain([end]) {
                    known.bases.extend([base(position, true), base(position, false)]);
                }
                known.ends.push(end.into());
                runs.push((from.into(), len));
                next = end + 2;
            }
            DroppedBodies { known, runs }
        })
    }

    proptest! {
        /// Regression: after a worker's log was compacted elsewhere than another worker's, an end
        /// had no base, and no log of the session could be built any more. And a worker that had
        /// compacted less than another one recorded too many known positions.
        #[test]
        fn what_is_said_behind_another_record_hides_and_drops_what_either_does(
            own in dropped_bodies(),
            before in dropped_bodies(),
        ) {
            let both = own.clone().merge_earlier(&before);
            for position in (0..90).map(SequenceNumber::new) {
                prop_assert_eq!(both.holds(position), own.holds(position) || before.holds(position));
                if own.hides(position) || before.hides(position) {
                    prop_assert!(both.hides(position), "{}", position);
                }
                // Positions that both know stay known, each exactly once.
                let of = |said: &DroppedBodies| {
                    said.known.bases.iter().filter(|base| base.position == position).count()
                };
                let is_known = of(&own) > 0 && of(&before) > 0;
                let is_right = of(&both) == 2 || !is_known && of(&both) == 0;
                prop_assert!(is_right, "{}", position);
            }
            for end in &both.known.ends {
                prop_assert!(both.known.bases.iter().any(|base| base.position == *end), "{}", end);
            }
            prop_assert_eq!(both.through(), own.through().max(before.through()));
            prop_assert_eq!(DroppedBodies::decode(&both.encode()), Ok(both));
        }
    }

    #[test]
    fn known_positions_come_back_in_order_or_not_at_all() {
        let known = KnownPositions {
            ends: vec![5.into(), 9.into()],
            bases: vec![base(5, true), base(5, false), base(9, false)],
        };
        let bytes = known.encode();
        assert_eq!(KnownPositions::decode(&bytes), Ok(known.clone()));
        for len in 0..bytes.len() {
            assert!(KnownPositions::decode(bytes.get(..len).unwrap_or_default()).is_err(), "{len}");
        }
        let back = |known: &KnownPositions| KnownPositions::decode(&known.encode());
        let ends = KnownPositions { ends: vec![9.into(), 5.into()], ..known.clone() };
        let bases = KnownPositions { bases: vec![base(9, false), base(5, false)], ..known };
        assert!(back(&ends).is_err() && back(&bases).is_err());
        assert_eq!(back(&KnownPositions::default()), Ok(KnownPositions::default()));
    }

    #[test]
    fn dropped_bodies_come_back_whole_or_not_at_all() {
        let known = KnownPositions {
            ends: vec![5.into(), 900.into()],
            bases: vec![base(5, false), base(900, false)],
        };
        let mut dropped = DroppedBodies { known, runs: Vec::new() };
        let sequences = [1, 2, 3, 5, 200, 201, 899];
        sequences.iter().for_each(|sequence| dropped.push(SequenceNumber::new(*sequence)));
        assert_eq!(dropped.runs, [(1.into(), 3), (5.into(), 1), (200.into(), 2), (899.into(), 1)]);
        assert_eq!(
            (dropped.count(), dropped.first(), dropped.through()),
            (7, Some(1.into()), Some(900.into()))
        );
        for sequence in 0..1_000 {
            assert_eq!(dropped.holds(sequence.into()), sequences.contains(&sequence), "{sequence}");
        }
        // The slices are known before the first record, where there is a base, and after all of
        // them.
        let known: Vec<u64> = (0..1_000).filter(|position| !dropped.hides((*position).into())).collect();
        assert_eq!(known, [0, 5].into_iter().chain(900..1_000).collect::<Vec<_>>());
        let bytes = dropped.encode();
        assert_eq!(DroppedBodies::decode(&bytes), Ok(dropped.clone()));
        for len in 0..bytes.len() {
            assert!(DroppedBodies::decode(bytes.get(..len).unwrap_or_default()).is_err(), "{len}");
        }
        dropped.push(901.into());
        assert!(DroppedBodies::decode(&dropped.encode()).is_err(), "a record behind the last position");
        let empty = DroppedBodies { runs: vec![(3.into(), 0)], ..dropped };
        assert!(DroppedBodies::decode(&empty.encode()).is_err(), "an empty run");
        assert_eq!(DroppedBodies::decode(&DroppedBodies::default().encode()), Ok(DroppedBodies::default()));
        let far = [0xff; 9].iter().chain(&[1, 1]).copied().collect::<Vec<u8>>();
        assert_eq!(packed_runs(&far), None, "no record is behind the last number");
        assert_eq!(packed_runs(&[0xff; 10]), None);
    }
}
