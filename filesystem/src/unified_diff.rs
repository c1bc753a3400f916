//! Unified diffs of two texts.

use std::time::Duration;

use similar::TextDiff;

/// Number of equal lines shown around those that differ.
const CONTEXT: usize = 3;

/// Longest time of the search for the shortest diff. After that, a longer one is shown.
const TIME_MAX: Duration = Duration::from_millis(200);

/// Returns the differing lines of two texts as a unified diff: only hunks, without the header that
/// names files. A last line without a line feed is followed by `\ No newline at end of file`.
pub(crate) fn unified_diff(before: &str, after: &str) -> String {
    let diff = TextDiff::configure().timeout(TIME_MAX).diff_lines(before, after);
    diff.unified_diff().context_radius(CONTEXT).to_string()
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
            unified_diff(before, after),
            "@@ -2,7 +2,7 @@\n b\n c\n d\n-e\n+E\n f\n g\n h\n@@ -10,3 +10,4 @@\n j\n k\n l\n+m\n\\ No newline at end of file\n"
        );
        assert_eq!(unified_diff("", "one\n"), "@@ -0,0 +1 @@\n+one\n");
        assert_eq!(unified_diff("one\ntwo\n", ""), "@@ -1,2 +0,0 @@\n-one\n-two\n");
        assert_eq!(unified_diff(before, before), "");
    }

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
            prop_assert_eq!(applied(&before, &unified_diff(&before, &after)), after);
        }
    }
}
