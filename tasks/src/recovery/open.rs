//! Opens sessions without their hosts.

use foldlog::{Session, SessionTypes, Store};
use uuid::Uuid;

use crate::error::Result;

/// Opens a session for writing with the types of long-running work alone. Events of its host that
/// its log binds to other slices are unchanged; they can be rolled back, but not dispatched. Also
/// returns the types.
pub fn open_without_host(store: &Store, session: Uuid) -> Result<(Session, SessionTypes)> {
    let declare = || foldlog_agent::events::declare(crate::declare(SessionTypes::builder()));
    let types = declare().build()?;
    match store.open_session(session, &types) {
        Ok(opened) => Ok((opened, types)),
        Err(foldlog::Error::NotRegistered(missing)) => {
            let mut declared = declare();
            for (event, slices) in missing.into_iter().map(|one| (one.event, one.slices)) {
                for slice in slices {
                    declared = declared.retired(event.clone(), slice);
                }
            }
            let types = declared.build()?;
            Ok((store.open_session(session, &types)?, types))
        }
        Err(error) => Err(error.into()),
    }
}
