//! Enums whose variants have names in records, messages and on the wire.

/// Defines such an enum.
#[doc(hidden)]
#[macro_export]
macro_rules! named {
    ($(#[$attribute:meta])* $type:ident { $($(#[$each:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$each])* $variant,)*
        }

        impl $type {
            #[doc = concat!("Returns the name of the variant: " $(, "`", $name, "` ")*, ".")]
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)*
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
