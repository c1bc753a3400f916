//! Cycles of parents and of dependencies, and what opens them.

use std::collections::{BTreeMap, VecDeque};

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};

use crate::persistence::{DependencyType, Task, TaskId};

/// Holds tasks that depend on each other.
pub(super) struct FoundCycle {
    /// Shortest cycle through the oldest of them.
    pub(super) cycle: Vec<TaskId>,
    /// Number of them.
    pub(super) tasks: usize,
    /// Dependencies without which no cycle is left among them.
    pub(super) cut: Vec<(TaskId, TaskId, DependencyType)>,
}

struct Edge {
    from: usize,
    to: usize,
    kind: DependencyType,
}

/// Holds tasks as numbers, the oldest one first, and the dependencies between those that exist.
struct Graph<'a> {
    keys: Vec<&'a TaskId>,
    edges: Vec<Edge>,
    /// Edges of each task, in the order in which it names them.
    of_task: Vec<std::ops::Range<usize>>,
}

/// Returns the keys of tasks, the oldest task first.
fn keys_by_age(tasks: &BTreeMap<TaskId, Task>) -> Vec<&TaskId> {
    let mut keys: Vec<(u64, &TaskId)> = tasks.iter().map(|(key, task)| (task.number, key)).collect();
    keys.sort();
    keys.into_iter().map(|(_, key)| key).collect()
}

impl<'a> Graph<'a> {
    fn of(tasks: &'a BTreeMap<TaskId, Task>) -> Graph<'a> {
        let keys = keys_by_age(tasks);
        let places: BTreeMap<&TaskId, usize> =
            keys.iter().enumerate().map(|(place, key)| (*key, place)).collect();
        let (mut edges, mut of_task) = (Vec::new(), Vec::with_capacity(keys.len()));
        for (from, key) in keys.iter().enumerate() {
            let begin = edges.len();
            for dependency in tasks.get(*key).into_iter().flat_map(|task| &task.dependencies) {
                if let Some(to) = places.get(&dependency.on) {
                    edges.push(Edge { from, to: *to, kind: dependency.kind });
                }
            }
            of_task.push(begin..edges.len());
        }
        Graph { keys, edges, of_task }
    }

    /// Numbers the strongly connected components of the edges that are taken; returns the number of each task.
    fn components(&self, takes: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut graph: DiGraph<(), ()> = DiGraph::with_capacity(self.keys.len(), self.edges.len());
        let nodes: Vec<NodeIndex> = self.keys.iter().map(|_| graph.add_node(())).collect();
        for (place, edge) in self.edges.iter().enumerate() {
            if takes(place) {
                graph.add_edge(nodes[edge.from], nodes[edge.to], ());
            }
        }
        let mut component_of = vec![0; self.keys.len()];
        // That of Tarjan recurses as deep as the longest way is.
        for (number, component) in kosaraju_scc(&graph).into_iter().enumerate() {
            for node in component {
                component_of[node.index()] = number;
            }
        }
        component_of
    }

    /// Walks along the edges that are taken, from the oldest task on. Returns the edges that lead back to a task on the way
    /// to them; and when each task was left, which is later than that of all tasks that it leads to by the other edges.
    fn walk(&self, takes: impl Fn(&Edge) -> bool) -> (Vec<bool>, Vec<usize>) {
        let mut leads_back = vec![false; self.edges.len()];
        let mut left_at: Vec<usize> = vec![usize::MAX; self.keys.len()];
        let mut is_entered = vec![false; self.keys.len()];
        let mut left = 0;
        for start in 0..self.keys.len() {
            let mut way = Vec::new();
            if !is_entered[start] {
                is_entered[start] = true;
                way.push((start, self.of_task[start].clone()));
            }
            while let Some((task, edges)) = way.last_mut() {
                let Some(place) = edges.next() else {
                    left_at[*task] = left;
                    left += 1;
                    way.pop();
                    continue;
                };
                let edge = &self.edges[place];
                if !takes(edge) {
                    continue;
                }
                if !is_entered[edge.to] {
                    is_entered[edge.to] = true;
                    way.push((edge.to, self.of_task[edge.to].clone()));
                } else if left_at[edge.to] == usize::MAX {
                    leads_back[place] = true;
                }
            }
        }
        (leads_back, left_at)
    }

    /// Returns the shortest cycle through a task, within its component.
    fn shortest(&self, start: usize, component_of: &[usize]) -> Vec<TaskId> {
        let mut came_from: BTreeMap<usize, usize> = BTreeMap::new();
        let mut next = VecDeque::from([start]);
        while let Some(task) = next.pop_front() {
            for edge in &self.edges[self.of_task[task].clone()] {
                if edge.to == start {
                    let mut cycle = vec![task];
                    while let Some(before) = cycle.last().and_then(|task| came_from.get(task)) {
                        cycle.push(*before);
                    }
                    return cycle.into_iter().rev().map(|task| self.keys[task].clone()).collect();
                }
                if component_of[edge.to] == component_of[start] && !came_from.contains_key(&edge.to) {
                    came_from.insert(edge.to, task);
                    next.push_back(edge.to);
                }
            }
        }
        Vec::new()
    }
}

/// Finds tasks that depend on each other, one entry for those that are entangled, in the order of the oldest of each.
///
/// What is cut are the dependencies that lead back on a walk from the oldest task along those that require; and of those
/// that prefer only such as go against that walk and are on a cycle that is left then.
pub(super) fn dependency_cycles(tasks: &BTreeMap<TaskId, Task>) -> Vec<FoundCycle> {
    let graph = Graph::of(tasks);
    let component_of = graph.components(|_| true);
    let within = |edge: &Edge| component_of[edge.from] == component_of[edge.to];
    if !graph.edges.iter().any(within) {
        return Vec::new();
    }
    let (mut is_cut, left_at) = graph.walk(|edge| edge.kind == DependencyType::Requires && within(edge));
    let remaining = graph.components(|place| !is_cut[place]);
    for (place, edge) in graph.edges.iter().enumerate() {
        let is_on_cycle = edge.kind == DependencyType::Prefers && remaining[edge.from] == remaining[edge.to];
        is_cut[place] |= is_on_cycle && left_at[edge.to] >= left_at[edge.from];
    }
    let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut cut: BTreeMap<usize, Vec<&Edge>> = BTreeMap::new();
    for (place, edge) in graph.edges.iter().enumerate().filter(|(_, edge)| within(edge)) {
        members.entry(component_of[edge.from]).or_default().push(edge.from);
        if is_cut[place] {
            cut.entry(component_of[edge.from]).or_default().push(edge);
        }
    }
    let key = |place: usize| graph.keys[place].clone();
    let mut found: Vec<(usize, FoundCycle)> = Vec::new();
    for (component, mut members) in members {
        // They come in the order of their age, each as often as it has edges.
        members.dedup();
        let Some(oldest) = members.first().copied() else { continue };
        let cut = cut.remove(&component).unwrap_or_default();
        let cut = cut.into_iter().map(|edge| (key(edge.from), key(edge.to), edge.kind)).collect();
        let cycle = graph.shortest(oldest, &component_of);
        found.push((oldest, FoundCycle { cycle, tasks: members.len(), cut }));
    }
    found.sort_by_key(|(oldest, _)| *oldest);
    found.into_iter().map(|(_, found)| found).collect()
}

/// Finds tasks that are parts of each other: each cycle from its oldest task on, in the order of these.
pub(super) fn parent_cycles(tasks: &BTreeMap<TaskId, Task>) -> Vec<Vec<TaskId>> {
    let keys = keys_by_age(tasks);
    let mut passed_from: BTreeMap<&TaskId, usize> = BTreeMap::new();
    let mut cycles = Vec::new();
    for (start, key) in keys.iter().enumerate() {
        let mut at = Some(*key).and_then(|key| tasks.get_key_value(key));
        while let Some((key, task)) = at {
            match passed_from.get(key) {
                Some(walk) if *walk == start => {
                    cycles.push(cycle_from(tasks, key));
                    break;
                }
                Some(_) => break,
                None => passed_from.insert(key, start),
            };
            at = task.parent.as_ref().and_then(|parent| tasks.get_key_value(parent));
        }
    }
    cycles.sort_by_key(|cycle| {
        cycle.first().and_then(|first| tasks.get_key_value(first)).map(|(key, task)| (task.number, key))
    });
    cycles
}

/// Returns the cycle of parents that a task is on, from its oldest task on.
fn cycle_from(tasks: &BTreeMap<TaskId, Task>, start: &TaskId) -> Vec<TaskId> {
    let parent_of = |key: &TaskId| tasks.get(key).and_then(|task| task.parent.clone());
    let mut cycle = vec![start.clone()];
    while let Some(parent) = cycle.last().and_then(parent_of).filter(|parent| parent != start) {
        cycle.push(parent);
    }
    let age = |key: &TaskId| (tasks.get(key).map(|task| task.number), key.clone());
    let oldest = (0..cycle.len()).min_by_key(|place| age(&cycle[*place]));
    cycle.rotate_left(oldest.unwrap_or_default());
    cycle
}
