//! Breaks foldlog on purpose, so that its tests can show that they detect the breakage.
//!
//! This module is for foldlog's own tests only. The feature `sabotage` is off by default, and no
//! host should enable it. Without it, `is` is a constant `false` and no trace of a breakage remains
//! in a binary. With it, the breakage named by the environment variable `FOLDLOG_SABOTAGE` is in
//! force for the whole process; without the variable, none is.
//!
//! Each crate lists its own breakages with [`breakages!`](crate::breakages).
//! `docs/internals/breakages.md` names the tests that catch each breakage, and
//! `tests/support/src/sabotage.rs` runs them.

/// Declares the breakages of a crate, and a function that returns whether one is in force.
#[doc(hidden)]
#[macro_export]
macro_rules! breakages {
    ($($variant:ident = $name:literal: $what:literal,)*) => {
        /// Names one way to break a promise of foldlog.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Breakage {
            $(#[doc = $what] $variant,)*
        }

        impl Breakage {
            /// Every breakage of the crate: the name that selects it in `FOLDLOG_SABOTAGE`, and a
            /// description.
            pub const ALL: &'static [(&'static str, &'static str)] = &[$(($name, $what),)*];

            /// Returns the name that selects the breakage in `FOLDLOG_SABOTAGE`.
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
    CrcWithoutHeader = "crc-without-header": "A frame's checksum covers only its body.",

    // Limits.
    PayloadOverLimit = "payload-over-limit": "A payload is recorded although it is too large for a reader.",

    // Readers.
    ControlsRaw = "controls-raw": "Text from outside is printed with its control characters.",
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
