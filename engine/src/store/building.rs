//! Directories under construction. A session that is not created record by record has a temporary
//! name until it is complete, so that a kill leaves no partial session.

use std::path::Path;

use super::Store;
use crate::error::{Error, Result};
use crate::log::layout;
use crate::log::writer::LogWriter;

impl Store {
    /// Creates an empty directory under a temporary name. Replaces one that a kill left.
    pub(super) fn make_building(&self, building: &Path) -> Result<()> {
        let storage = self.storage();
        let io = |op, error| Error::io(op, building, error);
        if storage.entry(building).map_err(|error| io("look up", error))?.is_some() {
            storage.remove_dir_all(building).map_err(|error| io("delete", error))?;
        }
        storage.create_dir_all(building).map_err(|error| Error::unmade("create", building, 0, error))
    }

    /// Renames a directory under construction to the session's name, and then has its log attest
    /// itself. The order matters: the log may attest itself only after the name is durable.
    pub(super) fn name_building(&self, building: &Path, dir: &Path, log: &mut LogWriter) -> Result<()> {
        let storage = self.storage();
        storage.rename(building, dir).map_err(|error| Error::io("rename", dir, error))?;
        self.sync_names_above()?;
        log.attest(log.next_sequence())?;
        log.sync_plan().run(storage.as_ref(), &|| ())
    }

    /// Makes the names on the path to the session directories durable, including that of the last
    /// directory.
    pub(super) fn sync_names_above(&self) -> Result<()> {
        for above in layout::directories_above_session(&self.inner.root) {
            self.storage().sync_dir(&above).map_err(|error| Error::io("sync", &above, error))?;
        }
        Ok(())
    }
}
