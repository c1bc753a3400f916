//! Directories under construction. A session that is not created record by record has a temporary
//! name until it is complete, so that a kill leaves no partial session.

use std::path::Path;

use uuid::Uuid;

use super::Store;
use crate::error::{Error, Result};
use crate::log::layout;
use crate::log::writer::LogWriter;

impl Store {
    /// Has `make` build a session in a directory under construction. If that fails, the directory
    /// is removed: the session was never acknowledged.
    pub(super) fn build_session<T>(&self, session: Uuid, make: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let building = layout::building_session_dir(&self.inner.root, session);
        let made = self.make_building(&building).and_then(|()| make(&building));
        made.inspect_err(|_| drop(self.storage().remove_dir_all(&building)))
    }

    /// Creates an empty directory under a temporary name. Replaces one that a kill left.
    pub(super) fn make_building(&self, building: &Path) -> Result<()> {
        let storage = self.storage();
        if storage.look_up(building)?.is_some() {
            storage.remove_dir_all(building).map_err(|error| Error::io("delete", building, error))?;
        }
        storage.make_directory(building)
    }

    /// Renames a directory under construction to the session's name, and then has its log attest
    /// itself. The order matters: the log may attest itself only after the name is durable.
    pub(super) fn name_building(&self, building: &Path, dir: &Path, log: &mut LogWriter) -> Result<()> {
        let storage = self.storage();
        storage.rename_to(building, dir)?;
        self.sync_names_above()?;
        log.attest(log.next_sequence())?;
        log.sync_plan().run(storage.as_ref(), &|| ())
    }

    /// Makes the names on the path to the session directories durable, including that of the last
    /// directory.
    pub(super) fn sync_names_above(&self) -> Result<()> {
        for above in layout::directories_above_session(&self.inner.root) {
            self.storage().sync_directory(&above)?;
        }
        Ok(())
    }
}
