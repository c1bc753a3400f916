use super::*;
use crate::generator::Generator;

fn row(sequence: u64, ordinal: u32) -> SliceRow {
    SliceRow {
        id: ItemId { sequence: sequence.into(), ordinal },
        version: 1,
        item: RowItem::Bytes(Arc::from([])),
    }
}

fn value(row: RowRef<'_>) -> Option<u64> {
    row.typed_value()?.downcast_ref().copied()
}

fn ids(rows: &Rows) -> Vec<(u64, u32)> {
    rows.iter().map(|row| (row.id.sequence.get(), row.id.ordinal)).collect()
}

#[test]
fn items_stand_in_order_and_views_stay_as_they_were() {
    let mut rows = Rows::default();
    for sequence in 1..=4 {
        rows.push(row(sequence, 0));
    }
    let view = rows.clone();
    rows.remove(ItemId { sequence: 2.into(), ordinal: 0 });
    rows.insert_before(ItemId { sequence: 3.into(), ordinal: 0 }, vec![row(5, 0), row(5, 1)]);
    rows.push(row(6, 0));
    assert_eq!(ids(&rows), [(1, 0), (5, 0), (5, 1), (3, 0), (4, 0), (6, 0)]);
    assert_eq!(ids(&view), [(1, 0), (2, 0), (3, 0), (4, 0)]);
    assert_eq!(ids(&rows.tail(2)), [(4, 0), (6, 0)]);
}

#[test]
fn a_gap_that_is_used_up_is_made_anew() {
    let mut rows = Rows::default();
    rows.push(row(1, 0));
    rows.push(row(2, 0));
    let mut wanted = vec![(1, 0), (2, 0)];
    let mut anchor = ItemId { sequence: 2.into(), ordinal: 0 };
    // Always before the item inserted last: the gap halves each time.
    for sequence in 3..400 {
        rows.insert_before(anchor, vec![row(sequence, 0)]);
        wanted.insert(1, (sequence, 0));
        anchor = ItemId { sequence: sequence.into(), ordinal: 0 };
    }
    rows.push(row(400, 0));
    wanted.push((400, 0));
    assert_eq!(ids(&rows), wanted);
    for (sequence, ordinal) in wanted {
        assert!(rows.contains(ItemId { sequence: sequence.into(), ordinal }));
        rows.remove(ItemId { sequence: sequence.into(), ordinal });
    }
    assert!(rows.is_empty());
}

#[test]
fn a_view_keeps_what_it_saw_whether_items_came_at_a_stretch_or_one_by_one() {
    let mut rows = Rows::default();
    (1..=200).for_each(|sequence| rows.push_value(sequence.into(), 1, &mut Some(sequence)));
    let view = rows.clone();
    (201..=400).for_each(|sequence| rows.push_value(sequence.into(), 1, &mut Some(sequence)));
    let values = |rows: &Rows| -> Vec<u64> { rows.iter().filter_map(value).collect() };
    assert_eq!(values(&view), Vec::from_iter(1..=200));
    assert_eq!(values(&rows), Vec::from_iter(1..=400));
    let mut looked_at = Rows::default();
    let mut views = Vec::new();
    for sequence in 1..=80 {
        looked_at.push_value(sequence.into(), 1, &mut Some(sequence));
        views.push(looked_at.clone());
    }
    for (len, view) in (1..).zip(&views) {
        assert_eq!(values(view), Vec::from_iter(1..=len));
    }
}

#[test]
fn values_of_another_version_or_too_large_for_a_run_stand_beside() {
    let mut rows = Rows::default();
    rows.push_value(1.into(), 1, &mut Some(1_u64));
    rows.push_value(2.into(), 2, &mut Some(2_u64));
    rows.push_value(3.into(), 2, &mut Some([0_u8; 9_000]));
    rows.push_value(4.into(), 2, &mut Some(4_u64));
    rows.push_value(5.into(), 2, &mut None::<u64>);
    let versions: Vec<u32> = rows.iter().map(|row| row.version).collect();
    assert_eq!((versions, rows.len()), (vec![1, 2, 2, 2], 4));
    let values: Vec<Option<u64>> = rows.iter().map(value).collect();
    assert_eq!(values, [Some(1), Some(2), None, Some(4)]);
}

#[test]
fn rows_are_the_list_that_they_stand_for() {
    for seed in 0..30 {
        let mut numbers = Generator::from_seed(seed);
        let mut rows = Rows::default();
        let mut wanted: Vec<(u64, u32)> = Vec::new();
        let mut views = Vec::new();
        let mut stretch = 0;
        for sequence in 1..600 {
            let at = numbers.next_below(wanted.len() as u64) as usize;
            if stretch > 0 {
                stretch -= 1;
                rows.push_value(sequence.into(), 1, &mut Some(sequence));
                wanted.push((sequence, 0));
                continue;
            }
            match (numbers.next_below(12), wanted.get(at).copied()) {
                (10, _) => stretch = numbers.next_below(100),
                (11, _) => {
                    rows.push_value(sequence.into(), 1, &mut Some(sequence));
                    wanted.push((sequence, 0));
                }
                (0..4, Some((anchor, ordinal))) => {
                    // Often before the same item, so that gaps are used up.
                    let added = 1 + numbers.next_below(3) as u32;
                    let new: Vec<SliceRow> = (0..added).map(|ordinal| row(sequence, ordinal)).collect();
                    rows.insert_before(ItemId { sequence: anchor.into(), ordinal }, new);
                    wanted.splice(at..at, (0..added).map(|ordinal| (sequence, ordinal)));
                }
                (4..7, Some((sequence, ordinal))) => {
                    rows.remove(ItemId { sequence: sequence.into(), ordinal });
                    assert!(!rows.contains(ItemId { sequence: sequence.into(), ordinal }));
                    wanted.remove(at);
                }
                _ => {
                    rows.push(row(sequence, 0));
                    wanted.push((sequence, 0));
                }
            }
            if numbers.next_below(20) == 0 {
                views.push((rows.clone(), wanted.clone()));
            }
            assert_eq!(ids(&rows), wanted);
            assert_eq!(rows.len(), wanted.len());
            assert!(rows.iter().all(|row| value(row).is_none_or(|value| row.id.sequence == value)));
            assert_eq!(
                rows.last().map(|row| (row.id.sequence.get(), row.id.ordinal)),
                wanted.last().copied()
            );
            assert_eq!(ids(&rows.tail(5)), wanted[wanted.len().saturating_sub(5)..]);
            let nth = |place| rows.nth(place).map(|row| (row.id.sequence.get(), row.id.ordinal));
            assert_eq!(nth(at), wanted.get(at).copied());
            assert_eq!((nth(wanted.len()), nth(usize::MAX)), (None, None));
        }
        views.iter().for_each(|(view, wanted): &(Rows, Vec<_>)| assert_eq!(ids(view), *wanted));
    }
}
