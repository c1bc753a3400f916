//! An index of a state for its rules: references between tasks are resolved once.

use std::collections::HashMap;
use std::ops::Range;

use crate::{SessionState, Task, TaskId};

/// A state under validation, with its tasks as numbers in the order of their keys.
pub(super) struct ValidationIndex<'a> {
    pub(super) state: &'a SessionState,
    pub(super) keys: Vec<&'a TaskId>,
    pub(super) tasks: Vec<&'a Task>,
    /// Parent of each task; `None` if it has none, or its parent is missing.
    pub(super) parents: Vec<Option<usize>>,
    /// Dependencies of all tasks, one after the other; `None` is a missing task.
    pub(super) dependencies: Vec<Option<usize>>,
    /// Range of each task's dependencies, in the order in which it names them.
    pub(super) of_task: Vec<Range<usize>>,
    /// Whether each task is stored under its own id. Derived data is compared only then.
    pub(super) is_keyed: bool,
}

impl<'a> ValidationIndex<'a> {
    pub(super) fn from_state(state: &'a SessionState) -> ValidationIndex<'a> {
        let (keys, tasks): (Vec<&TaskId>, Vec<&Task>) = state.task_tree.tasks.iter().unzip();
        let places: HashMap<&TaskId, usize> =
            keys.iter().enumerate().map(|(place, key)| (*key, place)).collect();
        let place = |id: &TaskId| places.get(id).copied();
        let parents = tasks.iter().map(|task| task.parent.as_ref().and_then(place)).collect();
        let (mut dependencies, mut of_task) = (Vec::new(), Vec::with_capacity(tasks.len()));
        for task in &tasks {
            let begin = dependencies.len();
            dependencies.extend(task.dependencies.iter().map(|one| place(&one.on)));
            of_task.push(begin..dependencies.len());
        }
        let is_keyed = keys.iter().zip(&tasks).all(|(key, task)| **key == task.id);
        ValidationIndex { state, keys, tasks, parents, dependencies, of_task, is_keyed }
    }

    /// Returns tasks, the oldest one first.
    pub(super) fn by_age(&self) -> Vec<usize> {
        let mut by_age: Vec<usize> = (0..self.tasks.len()).collect();
        // Keys are in order, and a stable sort preserves that.
        by_age.sort_by_key(|place| self.tasks[*place].number);
        by_age
    }

    /// Returns the dependencies of a task, each with its place.
    pub(super) fn dependencies_of(
        &self,
        place: usize,
    ) -> impl Iterator<Item = (&'a crate::Dependency, Option<usize>)> + '_ {
        let places = self.of_task[place].clone().map(|at| self.dependencies[at]);
        self.tasks[place].dependencies.iter().zip(places)
    }
}
