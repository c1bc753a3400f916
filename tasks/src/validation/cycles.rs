//! Cycles of parents and of dependencies, and the edges to cut.

use std::collections::{BTreeMap, VecDeque};

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};

use super::index::ValidationIndex;
use crate::{DependencyType, TaskId};

/// Tasks that depend on each other.
pub(super) struct FoundCycle {
    /// Shortest cycle through the oldest of them.
    pub(super) cycle: Vec<TaskId>,
    /// Number of them.
    pub(super) tasks: usize,
    /// Dependencies whose removal leaves no cycle among them.
    pub(super) cut: Vec<(TaskId, TaskId, DependencyType)>,
}

struct Edge {
    from: usize,
    to: usize,
    kind: DependencyType,
}

/// Tasks as numbers, the oldest one first, and the dependencies between those that exist.
struct Graph<'a> {
    keys: Vec<&'a TaskId>,
    edges: Vec<Edge>,
    /// Edges of each task, in the order in which it names them.
    of_task: Vec<std::ops::Range<usize>>,
}

impl<'a> Graph<'a> {
    fn from_index(checked: &ValidationIndex<'a>) -> Graph<'a> {
        let by_age = checked.by_age();
        let mut ages = vec![0; by_age.len()];
        by_age.iter().enumerate().for_each(|(age, place)| ages[*place] = age);
        let (mut edges, mut of_task) = (Vec::new(), Vec::with_capacity(by_age.len()));
        for (from, place) in by_age.iter().enumerate() {
            let begin = edges.len();
            for (dependency, on) in checked.dependencies_of(*place) {
                edges.extend(on.map(|on| Edge { from, to: ages[on], kind: dependency.kind }));
            }
            of_task.push(begin..edges.len());
        }
        let keys = by_age.into_iter().map(|place| checked.keys[place]).collect();
        Graph { keys, edges, of_task }
    }

    /// Numbers the strongly connected components of the accepted edges; returns the component of
    /// each task.
    fn components(&self, takes: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut graph: DiGraph<(), ()> = DiGraph::with_capacity(self.keys.len(), self.edges.len());
        let nodes: Vec<NodeIndex> = self.keys.iter().map(|_| graph.add_node(())).collect();
        for (place, edge) in self.edges.iter().enumerate() {
            if takes(place) {
                graph.add_edge(nodes[edge.from], nodes[edge.to], ());
            }
        }
        let mut component_of = vec![0; self.keys.len()];
        // Tarjan's algorithm recurses as deep as the longest path.
        for (number, component) in kosaraju_scc(&graph).into_iter().enumerate() {
            for node in component {
                component_of[node.index()] = number;
            }
        }
        component_of
    }

    /// Walks depth-first along the accepted edges, starting at the oldest task. Returns the edges
    /// that lead back to a task on the current path, and the finishing number of each task. By all
    /// other edges, a task finishes after the tasks to which it leads.
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

/// Finds tasks that depend on each other: one entry for each strongly connected component, in the
/// order of the oldest task of each.
///
/// The cut consists of the `Requires` dependencies that lead back on a walk from the oldest task
/// along such dependencies. Of the `Prefers` dependencies, only those are cut that go against that
/// walk and are on a cycle that remains.
pub(super) fn dependency_cycles(checked: &ValidationIndex<'_>) -> Vec<FoundCycle> {
    let graph = Graph::from_index(checked);
    let (leads_back, _) = graph.walk(|_| true);
    if !leads_back.contains(&true) {
        return Vec::new();
    }
    let component_of = graph.components(|_| true);
    let within = |edge: &Edge| component_of[edge.from] == component_of[edge.to];
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
        // Members are in the order of their age, each as often as it has edges.
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

/// Finds tasks that are parts of each other: each cycle from its oldest task on, in the order of
/// these.
pub(super) fn parent_cycles(checked: &ValidationIndex<'_>) -> Vec<Vec<TaskId>> {
    let by_age = checked.by_age();
    let mut passed_from: Vec<Option<usize>> = vec![None; by_age.len()];
    let mut cycles: Vec<Vec<usize>> = Vec::new();
    for start in &by_age {
        let mut at = Some(*start);
        while let Some(place) = at {
            match passed_from[place] {
                Some(walk) if walk == *start => {
                    cycles.push(cycle_from(checked, place));
                    break;
                }
                Some(_) => break,
                None => passed_from[place] = Some(*start),
            }
            at = checked.parents[place];
        }
    }
    cycles.sort_by_key(|cycle| cycle.first().map(|first| (checked.tasks[*first].number, *first)));
    cycles
        .into_iter()
        .map(|cycle| cycle.into_iter().map(|place| checked.keys[place].clone()).collect())
        .collect()
}

/// Returns the cycle of parents that contains a task, from its oldest task on.
fn cycle_from(checked: &ValidationIndex<'_>, start: usize) -> Vec<usize> {
    let parent_of = |place: &usize| checked.parents[*place];
    let mut cycle = vec![start];
    while let Some(parent) = cycle.last().and_then(parent_of).filter(|parent| *parent != start) {
        cycle.push(parent);
    }
    let oldest = (0..cycle.len()).min_by_key(|at| (checked.tasks[cycle[*at]].number, cycle[*at]));
    cycle.rotate_left(oldest.unwrap_or_default());
    cycle
}
