//! The kinds of record.
//!
//! Content kinds have the high bit clear and take a sequence number. Envelope kinds have it set: they
//! attest, seal and introduce, but they are no content, take no sequence number and enter no digest.
//!
//! All kinds are numbered from the first version on, so that an older reader can name what it does not
//! understand. 0 is never a kind: space filled with zeros must never look like a record.

use std::fmt;

/// The kind byte of a frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(u8);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        impl Kind {
            $($(#[$doc])* pub const $name: Kind = Kind($number);)*

            /// Every kind that this version can name.
            pub const ALL: &'static [Kind] = &[$(Kind::$name),*];

            /// The kind's name in listings and JSON; `unknown` for a kind of a later version.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($number => $text,)*
                    _ => "unknown",
                }
            }

            /// The kind of that name.
            pub fn from_name(name: &str) -> Option<Kind> {
                match name {
                    $($text => Some(Kind::$name),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// The first record of a session: identity, seed, tags, parent.
    OPENED = 1, "opened";
    /// Binds names of events and slices to the small integers that records use.
    DECLARE = 2, "declare";
    /// An event and its effect, or an operation of the engine's own.
    DISPATCH = 3, "dispatch";
    /// An input that the host observed.
    OBSERVED = 4, "observed";
    /// A tool is about to run.
    TOOL_BEGIN = 5, "tool_begin";
    /// A tool has ended.
    TOOL_END = 6, "tool_end";
    /// Somebody decided about an interrupted operation.
    SETTLE = 7, "settle";
    /// A message arrived.
    INPUT = 8, "input";
    /// A provider is about to be asked.
    REQUEST = 9, "request";
    /// A provider answered.
    ANSWER = 10, "answer";
    /// A conversation turn is complete.
    TURN = 11, "turn";
    /// A long conversation was shortened for a provider.
    SHORTENED = 12, "shortened";
    /// A changed prompt was accepted.
    PROMPT_ACCEPTED = 13, "prompt_accepted";
    /// An adapter's state was captured.
    ADAPTER_STATE = 14, "adapter_state";
    /// A position worth coming back to.
    SNAPSHOT = 15, "snapshot";
    /// STATE goes back to a position.
    ROLLBACK = 16, "rollback";
    /// The slices of an export enter a new session.
    IMPORT = 17, "import";
    /// The whole STATE, written where older bodies are to go.
    BASE = 18, "base";
    /// Envelope: the writer was told that everything below the watermark is durable.
    SYNCED = 128, "synced";
    /// Envelope: a segment is finished, and its successor exists.
    SEAL = 129, "seal";
    /// Envelope: the session was opened for writing.
    RESUMED = 130, "resumed";
    /// Envelope: the declarations so far, at a segment's head.
    DECLARED = 131, "declared";
}

impl Kind {
    /// The kind of a byte on disk; `None` for 0, which is never a kind.
    pub fn from_byte(byte: u8) -> Option<Kind> {
        (byte != 0).then_some(Kind(byte))
    }

    /// The byte on disk.
    pub fn byte(self) -> u8 {
        self.0
    }

    /// Whether this is an envelope frame: no content, no sequence number.
    pub fn is_envelope(self) -> bool {
        self.0 & 0x80 != 0
    }

    /// Whether this version can name the kind.
    pub fn is_known(self) -> bool {
        Kind::ALL.contains(&self)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_known() { f.write_str(self.name()) } else { write!(f, "unknown-{}", self.0) }
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
