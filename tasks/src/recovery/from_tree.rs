//! Creates a session from the intact files of a damaged tree.

use foldlog::{ImportOptions, Session, SessionOptions, SessionTypes, Store};

use super::rebuild::record;
use crate::error::Result;
use crate::files::give_up;
use crate::{
    ArtifactBuilt, Configurations, DependenciesResolved, GitObserved, IMPORTED_FROM, PartialTree,
    RecoveryAction, SessionConfiguration, SessionConfigured, StateImported, Task, TaskTreeState, Tasks,
};

/// Creates a session that requires validation. Its history is recorded last, so a session without
/// it is unfinished.
pub(super) fn session_of(
    tree: &PartialTree,
    store: &Store,
    types: &SessionTypes,
    action: RecoveryAction,
) -> Result<Session> {
    let options = SessionOptions::default().tag(IMPORTED_FROM, tree.state.session_id.to_string());
    let session = match &tree.export {
        Some(export) => {
            store.import(export, types, ImportOptions { session: options, keep_unknown: true })?
        }
        None => store.create_with(types, options)?,
    };
    match fill(tree, &session, action) {
        Ok(()) => Ok(session),
        Err(error) => Err(give_up(store, session, error)),
    }
}

fn fill(tree: &PartialTree, session: &Session, action: RecoveryAction) -> Result<()> {
    if tree.export.is_none() {
        record_slices(tree, session)?;
        for conversation in &tree.state.claude_context.conversation_history.conversations {
            let mut messages = conversation.messages.iter();
            messages.try_for_each(|message| record(session, &conversation.evaluation_id, message))?;
        }
    }
    let known = session.log().latest::<Configurations>()?.map(|one| one.configuration.clone());
    let (lost, from) = (tree.lost.len(), tree.state.session_id);
    let configuration = SessionConfiguration {
        requires_validation: true,
        validation_reason: Some(format!(
            "this was read from files of session {from}, {lost} of which are not what their manifest says"
        )),
        ..known.unwrap_or_else(|| tree.state.configuration.clone())
    };
    session.dispatch(SessionConfigured { configuration })?;
    session.dispatch(action)?;
    let mut imported = StateImported::from_state(&tree.state, tree.position);
    if !tree.has_times {
        let now = session.inputs().now()?;
        (imported.created_at, imported.last_checkpoint) = (now, now);
    }
    session.dispatch(StateImported { checkpoints: tree.checkpoints.clone(), ..imported })?;
    session.sync()?;
    Ok(())
}

/// Records the contents of slices.
fn record_slices(tree: &PartialTree, session: &Session) -> Result<()> {
    let state = &tree.state;
    let tasks: Vec<Task> = in_order(&state.task_tree);
    if !tasks.is_empty() {
        session.seed::<Tasks>(tasks)?;
    }
    for artifact in state.file_system.build_artifacts.values().cloned() {
        session.dispatch(ArtifactBuilt { artifact })?;
    }
    let resolution = state.file_system.dependency_resolution.clone();
    if !resolution.dependencies.is_empty() {
        session.dispatch(DependenciesResolved { resolution })?;
    }
    if let Some(git) = state.file_system.git_state.clone() {
        session.dispatch(GitObserved { git })?;
    }
    for action in state.execution_logs.recovery_actions.iter().cloned() {
        session.dispatch(action)?;
    }
    Ok(())
}

fn in_order(tree: &TaskTreeState) -> Vec<Task> {
    crate::tasks::tree::in_order(&tree.tasks).into_iter().cloned().collect()
}
