//! Generated transcripts, compared with an oracle of their branches.

use std::collections::BTreeMap;

use foldlog_test_support::crash::Chance;

use super::*;

/// Returns a tree of messages, each later than its parent, and the texts of the path to the last
/// one.
fn grown(chance: &mut Chance, messages: u32) -> (Vec<Value>, Vec<String>, u64) {
    let mut parents: BTreeMap<u32, u32> = BTreeMap::new();
    let mut lines = Vec::new();
    let mut branching: BTreeMap<u32, u64> = BTreeMap::new();
    for number in 0..messages {
        let parent = match number {
            0 => None,
            // Mostly a child of the last message, sometimes of an earlier one.
            number if chance.percent(70) => Some(number - 1),
            number => Some(chance.below(number.into()) as u32),
        };
        let (uuid, parent_uuid) =
            (format!("u{number}"), parent.map(|it| format!("u{it}")).unwrap_or_default());
        if let Some(parent) = parent {
            parents.insert(number, parent);
            *branching.entry(parent).or_default() += 1;
        }
        let text = format!("text {number}");
        lines.push(match chance.percent(50) {
            true => user(&uuid, &parent_uuid, number, text),
            false => assistant(&uuid, &parent_uuid, number, &format!("m{number}"), says(&text)),
        });
    }
    let path = std::iter::successors(Some(messages - 1), |at| parents.get(at).copied());
    let mut path: Vec<String> = path.map(|number| format!("text {number}")).collect();
    path.reverse();
    let rewinds = branching.values().map(|children| children - 1).sum();
    (lines, path, rewinds)
}

#[test]
fn the_live_branch_of_any_tree_is_the_path_to_its_last_line() {
    for seed in 0..60 {
        let mut chance = Chance::new(seed);
        let place = Place::new();
        let messages = 2 + chance.below(20) as u32;
        let (lines, path, rewinds) = grown(&mut chance, messages);
        let imported = place.lines(&lines);
        assert_eq!((imported.count("rewinds"), imported.found()), (rewinds, vec![]), "seed {seed}");
        assert_eq!(said(&place.session()), path, "seed {seed}");
        // No message is repeated or missing: all but the live ones are abandoned.
        let shown = foldlog(["show", place.session().to_str().unwrap(), "--json"]).stdout;
        let shown: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of =
            |kinds: &[&str]| shown.iter().filter(|it| kinds.contains(&it["kind"].as_str().unwrap())).count();
        assert_eq!(of(&["input", "answer"]), messages as usize, "seed {seed}");
    }
}

#[test]
fn loose_parts_of_any_tree_are_said_once_in_the_order_of_their_times() {
    for seed in 0..60 {
        let mut chance = Chance::new(seed);
        let place = Place::new();
        let messages = 3 + chance.below(20) as u32;
        // The first part and the loose ones continue in random order.
        let (mut parts, mut first_goes_on, mut last_of_first) = (vec![Vec::new()], true, 0);
        for number in 0..messages {
            let text = format!("text {number}");
            let begins = number > 0 && chance.percent(25);
            first_goes_on = !begins && (first_goes_on || chance.percent(30));
            let parent = match number {
                0 => String::new(),
                number if begins => format!("gone {number}"),
                _ if first_goes_on => format!("u{last_of_first}"),
                number => format!("u{}", number - 1),
            };
            if begins {
                parts.push(Vec::new());
            }
            if first_goes_on {
                last_of_first = number;
            }
            let part = if first_goes_on { parts.first_mut() } else { parts.last_mut() };
            part.unwrap().push(user(&format!("u{number}"), &parent, number, text));
        }
        let loose = parts.len() - 1;
        // The parts are in any order in the file.
        let mut lines = Vec::new();
        while !parts.is_empty() {
            let next = chance.below(parts.len() as u64) as usize;
            lines.extend(parts.remove(next));
        }
        let imported = place.lines(&lines);
        assert_eq!(imported.found().len(), loose, "seed {seed}");
        assert_eq!(imported.count("rewinds"), 0, "seed {seed}");
        let expected: Vec<String> = (0..messages).map(|number| format!("text {number}")).collect();
        assert_eq!(said(&place.session()), expected, "seed {seed}");
    }
}
