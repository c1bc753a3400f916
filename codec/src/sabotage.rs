//! Breaking foldlog on purpose, so that its tests can show that they would notice.
//!
//! For foldlog's own tests only. Without the feature `sabotage`, which no build has by default and no host should ask
//! for, `is` is a constant `false` and nothing of this is left in a binary. With it, the breakage whose name the
//! environment variable `FOLDLOG_SABOTAGE` holds is in force for the whole process; without the variable, none is.
//!
//! Each crate lists its own breakages by [`breakages!`](crate::breakages). `tests/README.md` says of each which tests catch it,
//! and `tests/suite/sabotage.rs` sees to it that they do.

/// Declares the breakages of a crate, and whether one is in force.
#[doc(hidden)]
#[macro_export]
macro_rules! breakages {
    ($($variant:ident = $name:literal: $what:literal,)*) => {
        /// Names one way to break what foldlog promises.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Breakage {
            $(#[doc = $what] $variant,)*
        }

        impl Breakage {
            /// All of them: the name by which `FOLDLOG_SABOTAGE` asks for each, and what is broken.
            pub const ALL: &'static [(&'static str, &'static str)] = &[$(($name, $what),)*];

            /// Returns the name by which `FOLDLOG_SABOTAGE` asks for it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Breakage::$variant => $name,)*
                }
            }
        }

        /// Returns whether this breakage is in force.
        #[inline(always)]
        pub fn is(breakage: Breakage) -> bool {
            $crate::sabotage::is_asked_for(breakage.name())
        }
    };
}

breakages! {
    // Frames.
    CrcWithoutHeader = "crc-without-header": "A frame's checksum covers its body alone.",

    // Limits.
    PayloadOverLimit = "payload-over-limit": "A payload is recorded although no reader takes one so large.",

    // Readers.
    ControlsRaw = "controls-raw": "What came from outside is printed with its control characters.",
}

/// Returns whether the breakage of this name is in force.
#[cfg(not(feature = "sabotage"))]
#[doc(hidden)]
#[inline(always)]
pub const fn is_asked_for(_: &str) -> bool {
    false
}

/// Returns whether the breakage of this name is in force.
#[cfg(feature = "sabotage")]
#[doc(hidden)]
pub fn is_asked_for(name: &str) -> bool {
    static IN_FORCE: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    IN_FORCE.get_or_init(|| std::env::var("FOLDLOG_SABOTAGE").ok()).as_deref() == Some(name)
}
