use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Holds what a user's git repository is at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitState {
    /// Commit that is checked out; `None` before the first commit.
    pub head: Option<String>,
    /// Branches and the commits that they are at.
    pub branches: BTreeMap<String, String>,
}
