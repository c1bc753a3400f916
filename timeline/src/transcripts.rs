//! The conversations of agents. They are in a session of their own, next to that of the steps: each
//! hook opens the latter, which takes longer the more records it has.

use foldlog::{Event, SequenceNumber, Session, SessionTypes, Slice};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::timeline::{Timeline, open_or_create};

/// How far the transcript of a conversation is imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TranscriptImported {
    /// Evaluation of the conversation.
    pub conversation: String,
    /// Length in bytes of the imported lines.
    pub bytes: u64,
    /// BLAKE3 of the last bytes of these lines, in hexadecimal.
    pub digest: String,
    /// Last record of the session with the conversations when they were imported.
    pub position: SequenceNumber,
    /// Ids of calls whose results are not recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<String>,
}

impl Event for TranscriptImported {
    const NAME: &'static str = "transcript_imported";
}

/// How far each transcript is imported.
pub(crate) struct Transcripts;

impl Slice for Transcripts {
    const NAME: &'static str = "transcripts";
    type Item = TranscriptImported;
}

impl Timeline {
    /// Opens the session with the conversations, and creates it if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`](crate::Error::Engine) if it cannot be opened or created.
    pub fn conversations(&self) -> Result<Session> {
        open_or_create(&self.place, self.place.conversations_id(), &SessionTypes::builder().build()?)
    }

    /// Returns how far the transcript of a conversation is imported; `None` if it is not.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`](crate::Error::Engine) if the log cannot be read.
    pub fn imported(&self, conversation: &str) -> Result<Option<TranscriptImported>> {
        let imported = self.session.view::<Transcripts>()?;
        Ok(imported.iter().find(|imported| imported.conversation == conversation).cloned())
    }

    /// Records how far the transcript of a conversation is imported.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`](crate::Error::Engine) if the log cannot be written.
    pub fn set_imported(&self, imported: TranscriptImported) -> Result<()> {
        self.session.dispatch(imported)?;
        Ok(())
    }
}
