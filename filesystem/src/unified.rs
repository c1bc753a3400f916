//! Unified diffs of two texts.

use std::fmt::Write as _;

/// Number of equal lines that are shown around those that differ.
const CONTEXT: usize = 3;

/// Number of differing lines up to which the shortest diff is looked for. Beyond, all lines between the first and the last
/// difference are shown as replaced.
const STEPS_MAX: usize = 500;

/// Names what becomes of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Edit {
    Stays,
    Goes,
    Comes,
}

/// Returns the lines in which two texts differ as a unified diff: hunks alone, without the head that names files. A last line
/// without a line feed is followed by `\ No newline at end of file`.
pub(crate) fn unified(before: &str, after: &str) -> String {
    let lines = |text: &'_ str| text.split_inclusive('\n').map(str::to_owned).collect::<Vec<String>>();
    let (old, new) = (lines(before), lines(after));
    let edits = edits(&old, &new);
    let mut text = String::new();
    let (mut old_at, mut new_at) = (0, 0);
    let mut at = 0;
    while let Some(first) = next_change(&edits, at) {
        let start = first.saturating_sub(CONTEXT).max(at);
        (old_at, new_at) = (old_at + start - at, new_at + start - at);
        let end = end_of_hunk(&edits, first);
        let hunk = edits.get(start..end).unwrap_or_default();
        let count = |but: Edit| hunk.iter().filter(|edit| **edit != but).count();
        let (went, came) = (count(Edit::Comes), count(Edit::Goes));
        let _ = writeln!(text, "@@ -{} +{} @@", range(old_at, went), range(new_at, came));
        for edit in hunk {
            let (mark, line) = match edit {
                Edit::Comes => ('+', new.get(new_at)),
                Edit::Goes => ('-', old.get(old_at)),
                Edit::Stays => (' ', old.get(old_at)),
            };
            old_at += usize::from(*edit != Edit::Comes);
            new_at += usize::from(*edit != Edit::Goes);
            let line = line.map(String::as_str).unwrap_or_default();
            text.push(mark);
            text.push_str(line);
            if !line.ends_with('\n') {
                text.push_str("\n\\ No newline at end of file\n");
            }
        }
        at = end;
    }
    text
}

/// Returns the place of the first change from `at` on.
fn next_change(edits: &[Edit], at: usize) -> Option<usize> {
    edits.iter().skip(at).position(|edit| *edit != Edit::Stays).map(|behind| at + behind)
}

/// Returns where the hunk ends that begins with the change at `first`.
fn end_of_hunk(edits: &[Edit], first: usize) -> usize {
    let mut last = first;
    while let Some(next) = next_change(edits, last + 1).filter(|next| next - last <= 2 * CONTEXT + 1) {
        last = next;
    }
    (last + 1 + CONTEXT).min(edits.len())
}

/// Writes the lines that a hunk covers as a unified diff names them.
fn range(at: usize, count: usize) -> String {
    match count {
        0 => format!("{at},0"),
        1 => format!("{}", at + 1),
        _ => format!("{},{count}", at + 1),
    }
}

/// Finds which lines stay, go and come.
fn edits(old: &[String], new: &[String]) -> Vec<Edit> {
    let same = |(one, other): &(&String, &String)| one == other;
    let head = old.iter().zip(new).take_while(same).count();
    let (old, new) = (old.get(head..).unwrap_or_default(), new.get(head..).unwrap_or_default());
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(same).count();
    let old = old.get(..old.len() - tail).unwrap_or_default();
    let new = new.get(..new.len() - tail).unwrap_or_default();
    let mut edits = vec![Edit::Stays; head];
    match shortest(old, new) {
        Some(between) => edits.extend(between),
        None => {
            edits.extend(vec![Edit::Goes; old.len()]);
            edits.extend(vec![Edit::Comes; new.len()]);
        }
    }
    edits.extend(vec![Edit::Stays; tail]);
    edits
}

/// Finds the shortest edits by Myers' algorithm; `None` if they are more than [`STEPS_MAX`].
fn shortest(old: &[String], new: &[String]) -> Option<Vec<Edit>> {
    let steps_max = (old.len() + new.len()).min(STEPS_MAX);
    // How far the best path of each diagonal leads in `old`. Diagonal `k` stands at `k + offset`.
    let offset = steps_max + 1;
    let mut reach = vec![0_usize; 2 * offset + 1];
    let at =
        |reach: &[usize], k: isize| reach.get(offset.wrapping_add_signed(k)).copied().unwrap_or_default();
    let mut history = Vec::new();
    for steps in 0..=steps_max {
        history.push(reach.clone());
        let most = isize::try_from(steps).ok()?;
        for k in (-most..=most).step_by(2) {
            let comes = k == -most || (k != most && at(&reach, k - 1) < at(&reach, k + 1));
            let mut x = if comes { at(&reach, k + 1) } else { at(&reach, k - 1) + 1 };
            let mut y = x.checked_add_signed(-k)?;
            while x < old.len() && y < new.len() && old.get(x) == new.get(y) {
                (x, y) = (x + 1, y + 1);
            }
            if let Some(found) = reach.get_mut(offset.wrapping_add_signed(k)) {
                *found = x;
            }
            if x >= old.len() && y >= new.len() {
                return Some(traced(&history, (old.len(), new.len()), offset));
            }
        }
    }
    None
}

/// Follows the best path back from the end.
fn traced(history: &[Vec<usize>], end: (usize, usize), offset: usize) -> Vec<Edit> {
    let (mut x, mut y) = end;
    let mut edits = Vec::new();
    for (steps, reach) in history.iter().enumerate().rev() {
        let at = |k: isize| reach.get(offset.wrapping_add_signed(k)).copied().unwrap_or_default();
        let most = isize::try_from(steps).unwrap_or(isize::MAX);
        let k = x as isize - y as isize;
        let comes = k == -most || (k != most && at(k - 1) < at(k + 1));
        let before = if comes { k + 1 } else { k - 1 };
        let (from_x, from_y) = match steps {
            0 => (0, 0),
            _ => (at(before), at(before).saturating_add_signed(-before)),
        };
        while x > from_x && y > from_y {
            edits.push(Edit::Stays);
            (x, y) = (x - 1, y - 1);
        }
        if steps > 0 {
            edits.push(if comes { Edit::Comes } else { Edit::Goes });
            (x, y) = (from_x, from_y);
        }
    }
    edits.reverse();
    edits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_diff_reads_as_that_of_diff_does() {
        let before = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\n";
        let after = "a\nb\nc\nd\nE\nf\ng\nh\ni\nj\nk\nl\nm";
        assert_eq!(
            unified(before, after),
            "@@ -2,7 +2,7 @@\n b\n c\n d\n-e\n+E\n f\n g\n h\n@@ -10,3 +10,4 @@\n j\n k\n l\n+m\n\\ No newline at end of file\n"
        );
        assert_eq!(unified("", "one\n"), "@@ -0,0 +1 @@\n+one\n");
        assert_eq!(unified("one\ntwo\n", ""), "@@ -1,2 +0,0 @@\n-one\n-two\n");
        assert_eq!(unified(before, before), "");
    }

    /// Applies a diff to the lines that it is of.
    fn applied(before: &str, diff: &str) -> String {
        let old: Vec<&str> = before.split_inclusive('\n').collect();
        let (mut made, mut at) = (String::new(), 0);
        for line in diff.split_inclusive('\n') {
            let (mark, text) = line.split_at(1);
            match mark {
                "@" => {
                    let numbers = text.trim_start_matches("@ -").split(' ').next().unwrap();
                    let (from, count) = numbers.split_once(',').unwrap_or((numbers, "1"));
                    let from: usize = from.parse().unwrap();
                    let from = if count == "0" { from } else { from - 1 };
                    made.extend(old[at..from].iter().copied());
                    at = from;
                }
                "\\" => {
                    made.pop();
                }
                "+" => made.push_str(text),
                "-" => at += 1,
                _ => {
                    made.push_str(text);
                    at += 1;
                }
            }
        }
        made.extend(old[at..].iter().copied());
        made
    }

    proptest! {
        #[test]
        fn a_diff_leads_from_the_one_to_the_other(
            before in prop::collection::vec(0..6_u8, 0..40),
            after in prop::collection::vec(0..6_u8, 0..40),
        ) {
            let text = |lines: &[u8]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
            let (before, after) = (text(&before), text(&after));
            prop_assert_eq!(applied(&before, &unified(&before, &after)), after);
        }
    }
}
