//! The graph of a talk: the order of messages, the branches that rewinds abandoned, and the order
//! in which they are recorded.

use std::collections::{HashMap, HashSet};

use foldlog::SmolStr;

use super::findings::FindingKind;
use super::scan::{NodeKind, TranscriptNode, TranscriptScan};

/// A finding about a node: its index, the kind, and the id concerned.
pub(super) type NodeFinding = (usize, FindingKind, Option<SmolStr>);

/// A message, or a node without content that other nodes follow.
#[derive(Debug, Default)]
pub(super) struct Unit {
    /// Indices of the nodes, in order: all nodes of a message, or the one node.
    pub(super) nodes: Vec<usize>,
    pub(super) is_message: bool,
    parent: Option<usize>,
    /// Whether the reason why the unit has no parent is already reported, so that it is not
    /// reported again as the start of a loose part.
    is_reported: bool,
    children: Vec<usize>,
    /// Whether the unit is on the live branch.
    is_live: bool,
    time_us: i64,
}

/// The units of a talk as one tree.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) units: Vec<Unit>,
    pub(super) root: Option<usize>,
    pub(super) found: Vec<NodeFinding>,
}

/// Units that are siblings.
pub(super) type SiblingUnits = Vec<usize>;

impl Graph {
    /// Builds the graph of nodes, which must be in order.
    pub(super) fn new(scan: &TranscriptScan, nodes: &[usize]) -> Graph {
        let mut graph = Graph { units: Vec::new(), root: None, found: Vec::new() };
        let unit_of = graph.merge(scan, nodes);
        graph.link(scan, nodes, &unit_of);
        graph.break_cycles();
        let order = graph.contract();
        graph.join(scan, &order);
        graph
    }

    /// Groups nodes into units: all lines of a message form one.
    fn merge(&mut self, scan: &TranscriptScan, nodes: &[usize]) -> HashMap<usize, usize> {
        let mut unit_of = HashMap::with_capacity(nodes.len());
        let mut messages: HashMap<&SmolStr, usize> = HashMap::new();
        for place in nodes {
            let Some(node) = scan.nodes.get(*place) else { continue };
            let next = self.units.len();
            let unit = match &node.message {
                Some(message) => *messages.entry(message).or_insert(next),
                None => next,
            };
            if unit == next {
                let is_message = node.kind != NodeKind::Other;
                self.units.push(Unit { is_message, time_us: node.time_us, ..Unit::default() });
            }
            if let Some(unit) = self.units.get_mut(unit) {
                unit.nodes.push(*place);
            }
            unit_of.insert(*place, unit);
        }
        unit_of
    }

    /// Finds the parent of each unit: that of its first node.
    fn link(&mut self, scan: &TranscriptScan, nodes: &[usize], unit_of: &HashMap<usize, usize>) {
        for place in nodes {
            let (Some(node), Some(own)) = (scan.nodes.get(*place), unit_of.get(place)) else { continue };
            let is_first = self.units.get(*own).is_some_and(|unit| unit.nodes.first() == Some(place));
            let (parent, missing) = parent_of(scan, node);
            let is_missing = missing.is_some();
            self.found.extend(missing.map(|(kind, id)| (*place, kind, Some(id))));
            let Some(unit) = self.units.get_mut(*own).filter(|_| is_first) else { continue };
            // A sub-agent's first line may follow a line of the transcript, which is not in the
            // sub-agent's graph.
            unit.parent = parent.and_then(|parent| unit_of.get(&parent)).copied();
            unit.is_reported = is_missing;
        }
    }

    /// Removes one parent in each cycle: that of the earliest unit.
    fn break_cycles(&mut self) {
        // 0 means not visited; any other number is the walk that visited the unit.
        let mut visited = vec![0_usize; self.units.len()];
        for start in 0..self.units.len() {
            let mut at = Some(start);
            while let Some(unit) = at.filter(|unit| visited.get(*unit) == Some(&0)) {
                visited[unit] = start + 1;
                at = self.units[unit].parent;
            }
            let Some(met) = at.filter(|unit| visited.get(*unit) == Some(&(start + 1))) else { continue };
            let around =
                std::iter::successors(Some(met), |unit| self.units[*unit].parent.filter(|p| *p != met));
            let Some(first) = around.min_by_key(|unit| (self.units[*unit].time_us, *unit)) else { continue };
            let unit = &mut self.units[first];
            unit.parent = None;
            unit.is_reported = true;
            self.found.extend(unit.nodes.first().map(|node| (*node, FindingKind::Cycle, None)));
        }
    }

    /// Makes every unit a child of the nearest message above it, or else of its root. Returns the
    /// units that are messages or roots, parents before their children.
    fn contract(&mut self) -> Vec<usize> {
        let mut below: Vec<Vec<usize>> = vec![Vec::new(); self.units.len()];
        let mut waiting = Vec::new();
        for (place, unit) in self.units.iter().enumerate() {
            match unit.parent {
                Some(parent) => below[parent].push(place),
                None => waiting.push(place),
            }
        }
        let mut order = Vec::new();
        while let Some(place) = waiting.pop() {
            let (parent, is_message) = (self.units[place].parent, self.units[place].is_message);
            let kept = is_message || parent.is_none();
            if kept {
                order.push(place);
            }
            for child in std::mem::take(&mut below[place]) {
                self.units[child].parent = if kept { Some(place) } else { parent };
                waiting.push(child);
            }
        }
        order
    }

    /// Joins the parts to one tree, and marks its live branch.
    fn join(&mut self, scan: &TranscriptScan, order: &[usize]) {
        // Tip of each part, by its root: the unit with the last line of a message, in the file that
        // ends last.
        let last_us = |node: usize| Some(scan.sources.get(scan.nodes.get(node)?.source)?.last_us);
        let mut tips: HashMap<usize, (Option<i64>, usize, usize)> = HashMap::new();
        let mut root_of: HashMap<usize, usize> = HashMap::new();
        for place in order {
            let unit = &self.units[*place];
            let root = unit.parent.and_then(|parent| root_of.get(&parent)).copied().unwrap_or(*place);
            root_of.insert(*place, root);
            if let (true, Some(last)) = (unit.is_message, unit.nodes.last()) {
                let own = (last_us(*last), *last, *place);
                let tip = tips.entry(root).or_insert(own);
                *tip = (*tip).max(own);
            }
            if let Some(parent) = unit.parent {
                self.units[parent].children.push(*place);
            }
        }
        let mut parts: Vec<(usize, usize)> = tips.into_iter().map(|(root, (.., tip))| (root, tip)).collect();
        parts.sort_by_key(|(root, _)| (self.units[*root].time_us, *root));
        let mut parts = parts.into_iter();
        let Some((root, tip)) = parts.next() else { return };
        self.root = Some(root);
        let mut branch: Vec<usize> =
            std::iter::successors(Some(tip), |unit| self.units[*unit].parent).collect();
        branch.reverse();
        // The index on the branch after which the next part is inserted, and the unit that it
        // follows there.
        let (mut at, mut behind) = (0, branch.first().copied().unwrap_or(root));
        for (root, tip) in parts {
            let time_us = self.units[root].time_us;
            while let Some(next) = branch.get(at + 1).copied() {
                let unit = &self.units[next];
                let results = unit.nodes.iter().filter_map(|node| scan.nodes.get(*node));
                if unit.time_us > time_us && results.clone().all(|node| node.results.is_empty()) {
                    break;
                }
                (at, behind) = (at + 1, next);
            }
            self.insert(root, tip, behind, branch.get(at + 1).copied());
            behind = tip;
        }
        let last = if at + 1 < branch.len() { tip } else { behind };
        let mut live = Some(last);
        while let Some(unit) = live {
            self.units[unit].is_live = true;
            live = self.units[unit].parent;
        }
    }

    /// Inserts a loose part after a unit, so that `next` follows the part's tip.
    fn insert(&mut self, root: usize, tip: usize, behind: usize, next: Option<usize>) {
        let unit = &mut self.units[root];
        unit.parent = Some(behind);
        if !unit.is_reported {
            self.found.extend(unit.nodes.first().map(|node| (*node, FindingKind::SecondBeginning, None)));
        }
        let children = &mut self.units[behind].children;
        if let Some(next) = next {
            children.retain(|child| *child != next);
        }
        children.push(root);
        if let Some(next) = next {
            self.units[next].parent = Some(tip);
            self.units[tip].children.push(next);
        }
    }

    fn units_of<'u>(&'u self, places: &'u [usize]) -> impl Iterator<Item = &'u Unit> {
        places.iter().filter_map(|unit| self.units.get(*unit))
    }

    /// Returns the branches that follow sibling units: the first units of each, with the live
    /// branch last.
    pub(super) fn branches(&self, scan: &TranscriptScan, step: &SiblingUnits) -> Vec<SiblingUnits> {
        let mut children: Vec<usize> =
            self.units_of(step).flat_map(|unit| unit.children.iter().copied()).collect();
        children.sort_unstable();
        let mut branches: Vec<SiblingUnits> = Vec::new();
        let mut at_time: HashMap<i64, usize> = HashMap::new();
        // The number of results of each call so far, and the branch of all first, second, …
        // results.
        let calls = StepCalls::new(scan, self.units_of(step), self.units_of(&children));
        let mut answered: HashMap<(&SmolStr, Option<usize>), usize> = HashMap::new();
        let mut rounds: Vec<usize> = Vec::new();
        for child in children {
            let unit = &self.units[child];
            let nodes = unit.nodes.iter().filter_map(|node| scan.nodes.get(*node));
            let mut round = None;
            for (node, call) in nodes.flat_map(|node| node.results.iter().map(move |call| (node, call))) {
                let (line, calls) = calls.answered_by(scan, node, call);
                let count = answered.entry((call, line)).or_default();
                round = round.max(Some(*count / calls));
                *count += 1;
            }
            let same_time = at_time.get(&unit.time_us).copied();
            let with_results = round.and_then(|round| rounds.get(round)).copied();
            let branch = same_time.or(with_results).unwrap_or(branches.len());
            if branch == branches.len() {
                branches.push(SiblingUnits::new());
            }
            if round.is_some_and(|round| round >= rounds.len()) {
                rounds.push(branch);
            }
            at_time.entry(unit.time_us).or_insert(branch);
            branches[branch].push(child);
        }
        branches.sort_by_key(|branch| branch.iter().any(|unit| self.units[*unit].is_live));
        branches
    }
}

/// The calls of sibling units, and the lines with such calls that have their own results.
struct StepCalls<'a> {
    /// Lines with calls of an id, each with the number of these calls.
    lines: HashMap<&'a SmolStr, Vec<(usize, usize)>>,
    /// Lines that a result of an id follows.
    followed: HashSet<(&'a SmolStr, usize)>,
}

impl<'a> StepCalls<'a> {
    fn new<'u>(
        scan: &'a TranscriptScan,
        units: impl Iterator<Item = &'u Unit>,
        children: impl Iterator<Item = &'u Unit>,
    ) -> StepCalls<'a> {
        let mut all = StepCalls { lines: HashMap::new(), followed: HashSet::new() };
        let node = |place: &usize| Some((*place, scan.nodes.get(*place)?));
        for (place, node) in units.flat_map(|unit| &unit.nodes).filter_map(node) {
            for (call, _) in &node.calls {
                let lines = all.lines.entry(call).or_default();
                match lines.last_mut().filter(|(line, _)| *line == place) {
                    Some((_, count)) => *count += 1,
                    None => lines.push((place, 1)),
                }
            }
        }
        for (_, node) in children.flat_map(|unit| &unit.nodes).filter_map(node) {
            let parent = scan.parent_of(node);
            all.followed.extend(node.results.iter().filter_map(|call| Some((call, parent?))));
        }
        all
    }

    /// Returns the line whose calls a result answers, and the number of these calls, at least one.
    /// The result of a call in an earlier line may follow the last line.
    fn answered_by(
        &self,
        scan: &TranscriptScan,
        node: &TranscriptNode,
        call: &SmolStr,
    ) -> (Option<usize>, usize) {
        let lines = self.lines.get(call).map(Vec::as_slice).unwrap_or_default();
        let parent = scan.parent_of(node);
        let Some(at) = lines.iter().position(|(line, _)| Some(*line) == parent) else {
            return (None, lines.iter().map(|(_, count)| count).sum::<usize>().max(1));
        };
        let is_last = at + 1 == lines.len();
        let own = |(place, (line, _)): &(usize, &(usize, usize))| {
            *place == at || (is_last && !self.followed.contains(&(call, *line)))
        };
        (parent, lines.iter().enumerate().filter(own).map(|(_, (_, count))| count).sum())
    }
}

/// Returns the node that a node follows, or the id that is missing.
fn parent_of(
    scan: &TranscriptScan,
    node: &TranscriptNode,
) -> (Option<usize>, Option<(FindingKind, SmolStr)>) {
    let parent = scan.any_parent_of(node);
    if parent.is_some() {
        return (parent, None);
    }
    let missing = match (&node.parent, &node.logical_parent) {
        (Some(id), _) => Some((FindingKind::DanglingParent, id.clone())),
        (None, Some(id)) => Some((FindingKind::DanglingLogicalParent, id.clone())),
        (None, None) => None,
    };
    (None, missing)
}
