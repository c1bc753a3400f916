use std::path::PathBuf;

use crate::Result;
use crate::step::{FurtherRoots, Lane, RootAdded, Step, StepChanged, StepKind, Steps};
use crate::timeline::Timeline;

/// Greatest number of paths outside of all roots that a call records.
const OUTSIDE_MAX: usize = 8;

/// Where a call can write.
#[derive(Debug, Clone, Default)]
pub struct CallReach {
    /// Current directory of the agent.
    pub directory: Option<PathBuf>,
    /// Roots in whose timelines the call is recorded, the session's own first; empty if there is
    /// one only.
    pub roots: Vec<String>,
    /// Paths outside of all roots that the call names.
    pub outside: Vec<String>,
}

impl Timeline {
    /// Returns the further roots of a lane's session, in the order in which they were added.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`](crate::Error::Engine) if the log cannot be read.
    pub fn further_roots(&self, lane: &Lane) -> Result<Vec<PathBuf>> {
        let added = self.session.view::<FurtherRoots>()?;
        let is_of_session =
            |added: &&RootAdded| added.program == lane.program && added.session == lane.session;
        Ok(added.iter().filter(is_of_session).map(|added| PathBuf::from(&added.root)).collect())
    }

    /// Adds a further root to a lane's session.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`](crate::Error::Engine) if the log cannot be read or written.
    pub fn add_root(&mut self, lane: &Lane, root: &str) -> Result<()> {
        if !self.further_roots(lane)?.iter().any(|known| known.to_str() == Some(root)) {
            let (program, session) = (lane.program.clone(), lane.session.clone());
            self.session.dispatch(RootAdded { program, session, root: root.to_owned() })?;
        }
        Ok(())
    }

    /// Returns the step of a call.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`](crate::Error::Engine) if the log cannot be read.
    pub fn call_step(&self, lane: &Lane, id: &str) -> Result<Option<Step>> {
        let is_same = |step: &&Step| step.call().is_some_and(|call| call.id == id && call.lane == *lane);
        Ok(self.session.view::<Steps>()?.iter().filter(is_same).max_by_key(|step| step.number).cloned())
    }

    /// Records that the latest call of a lane was in a directory outside of all roots.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`](crate::Error::Engine) if the log cannot be read or written.
    pub fn note_outside(&mut self, lane: &Lane, directory: &str) -> Result<()> {
        let is_of_lane = |step: &Step| step.call().is_some_and(|call| call.lane == *lane);
        let Some(mut step) = self.steps()?.into_iter().rfind(is_of_lane) else { return Ok(()) };
        let StepKind::Call(call) = &mut step.kind else { return Ok(()) };
        let is_known = call.roots.iter().any(|root| std::path::Path::new(directory).starts_with(root))
            || call.outside.iter().any(|known| known == directory);
        if is_known || call.outside.len() >= OUTSIDE_MAX {
            return Ok(());
        }
        call.outside.push(directory.to_owned());
        self.session.dispatch(StepChanged { step, moment: None })?;
        Ok(())
    }
}
