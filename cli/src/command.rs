//! How a command describes itself: one trait, implemented in the command's own file.
//!
//! The macro `commands!` makes the list of commands in [`verbs`](crate::verbs). From that list come
//! the parser, the help and its groups, the pages of the manual, the completions, the pager, the
//! treatment of URLs, and the table in `docs/reference/commands.md`.

use std::path::PathBuf;

use crate::failure::Result;
use crate::output::Output;

/// A command of the binary: its arguments, whose doc comment is the help.
pub trait Command: Sized {
    /// Group in the help of the binary.
    const GROUP: Group;
    /// Whether the command changes sessions.
    const ACCESS: Access = Access::Reads;
    /// What [`ARGUMENT`](Command::ARGUMENT) names.
    const TARGET: Target = Target::Session;
    /// Argument that names the one session or store of the command line, if there is one.
    const ARGUMENT: Argument<Self> = |_| None;
    /// How the command accepts the URL of a bucket or database.
    const URLS: Urls = Urls::Refused;
    /// Whether results are long, and shown through a pager.
    const IS_PAGED: bool = false;
    /// A command line, in which the words SESSION and STORE are directories.
    const EXAMPLE: &'static str;

    /// Runs the command, prints its result and returns the exit code.
    ///
    /// # Errors
    ///
    /// Returns the error that ended the command early.
    fn run(self, output: &mut Output<'_>) -> Result<u8>;
}

/// Returns one of a command's arguments; `None` if the command line names several sessions or
/// stores.
pub type Argument<C> = fn(&mut C) -> Option<&mut PathBuf>;

/// Facts about a command, which are the constants of [`Command`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the trait has the same names")]
pub struct CommandMetadata {
    pub group: Group,
    pub access: Access,
    pub target: Target,
    pub urls: Urls,
    pub is_paged: bool,
    pub example: &'static str,
}

/// Groups of commands, in the order of the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Runs an agent, or undoes its work.
    Run,
    /// Shows what happened.
    Look,
    /// Decides about calls, or recovers sessions.
    Decide,
    /// Checks, copies and cleans up.
    Keep,
    /// Exchanges sessions with other programs and machines.
    Exchange,
    /// Long-running work.
    Tasks,
    /// Helps with the shell.
    Shell,
    /// Is called by this program only, and hidden from the help.
    Internal,
}

impl Group {
    /// All groups that the help lists.
    pub const SHOWN: [Group; 7] =
        [Group::Run, Group::Look, Group::Decide, Group::Keep, Group::Exchange, Group::Tasks, Group::Shell];

    /// Returns the heading of the group.
    pub const fn heading(self) -> &'static str {
        match self {
            Group::Run => "Run and undo",
            Group::Look => "Look",
            Group::Decide => "Decide and recover",
            Group::Keep => "Keep",
            Group::Exchange => "Exchange",
            Group::Tasks => "Tasks",
            Group::Shell => "Shell",
            Group::Internal => "Internal",
        }
    }
}

/// Whether a command changes existing sessions, or files next to their logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Leaves all sessions unchanged.
    Reads,
    /// Makes new sessions or copies, and leaves existing sessions unchanged.
    Creates,
    /// Changes sessions.
    Changes,
    /// Changes sessions with this option only.
    ChangesWith(&'static str),
    /// Changes sessions, except with this option.
    ChangesUnless(&'static str),
}

impl Access {
    /// Returns the sentence of the help about changes; `None` if there are none.
    fn sentence(self) -> Option<String> {
        match self {
            Access::Reads | Access::Creates => None,
            Access::Changes => Some("Changes sessions.".to_owned()),
            Access::ChangesWith(option) => Some(format!("Changes sessions with {option} only.")),
            Access::ChangesUnless(option) => Some(format!("Changes sessions, except with {option}.")),
        }
    }
}

/// What the argument of a command names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// There is no such argument.
    Nothing,
    /// The directory of a session.
    Session,
    /// The directory of a store.
    Store,
    /// The directory of a session or of a store.
    SessionOrStore,
}

/// How a command accepts the URL of a bucket or database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urls {
    /// A URL is refused.
    Refused,
    /// The target may be the URL of a session: the command reads a temporary copy.
    Copied,
    /// The target may be a URL, which the command itself reads.
    Read,
    /// An argument besides the target is a URL.
    Separate,
}

/// A command that the help lists.
#[derive(Clone, Debug)]
pub struct ListedCommand {
    /// Words that name the command, such as `show` or `task list`.
    pub name: String,
    /// First line of its help.
    pub about: String,
    /// Facts about it.
    pub metadata: CommandMetadata,
}

/// A command, or a list of commands that are reached by their names.
pub(crate) trait Dispatch: Sized {
    /// Returns the facts about the command of the command line.
    fn metadata(&self) -> CommandMetadata;

    /// Returns the [argument](Command::ARGUMENT) that names the session or store.
    fn target(&mut self) -> Option<&mut PathBuf>;

    /// Runs the command of the command line.
    fn run(self, output: &mut Output<'_>) -> Result<u8>;

    /// Adds the facts to the help of a parser of these commands.
    fn describe(parser: clap::Command) -> clap::Command;

    /// Adds the commands of a parser, whose own name is `name`, to a list.
    fn list(parser: &clap::Command, name: String, listed: &mut Vec<ListedCommand>);
}

impl<C: Command> Dispatch for C {
    fn metadata(&self) -> CommandMetadata {
        metadata::<C>()
    }

    fn target(&mut self) -> Option<&mut PathBuf> {
        C::ARGUMENT(self)
    }

    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        Command::run(self, output)
    }

    fn describe(parser: clap::Command) -> clap::Command {
        if C::GROUP == Group::Internal {
            return parser.hide(true);
        }
        let about = parser.get_about().map(ToString::to_string).unwrap_or_default();
        let help = parser.get_long_about().map(ToString::to_string).unwrap_or_default();
        let details = help.split_once("\n\n").map(|(_, details)| details.to_owned());
        let paragraphs = [Some(format!("{about}.")), Some(format!("Example: `{}`", C::EXAMPLE)), details];
        let paragraphs: Vec<String> =
            paragraphs.into_iter().chain([C::ACCESS.sentence()]).flatten().collect();
        parser.long_about(paragraphs.join("\n\n"))
    }

    fn list(parser: &clap::Command, name: String, listed: &mut Vec<ListedCommand>) {
        let about = parser.get_about().map(ToString::to_string).unwrap_or_default();
        listed.push(ListedCommand { name, about, metadata: metadata::<C>() });
    }
}

const fn metadata<C: Command>() -> CommandMetadata {
    CommandMetadata {
        group: C::GROUP,
        access: C::ACCESS,
        target: C::TARGET,
        urls: C::URLS,
        is_paged: C::IS_PAGED,
        example: C::EXAMPLE,
    }
}

/// Makes an enum with a variant for each command, whose parser has a subcommand for each variant.
/// The name of the subcommand is the variant's.
macro_rules! commands {
    ($(#[$meta:meta])* $name:ident { $($(#[$attribute:meta])* $variant:ident($command:ty),)* }) => {
        $(#[$meta])*
        #[derive(Debug, clap::Subcommand)]
        pub(crate) enum $name {
            $($(#[$attribute])* $variant($command),)*
        }

        impl $crate::command::Dispatch for $name {
            fn metadata(&self) -> $crate::command::CommandMetadata {
                match self {
                    $($name::$variant(command) => $crate::command::Dispatch::metadata(command),)*
                }
            }

            fn target(&mut self) -> Option<&mut std::path::PathBuf> {
                match self {
                    $($name::$variant(command) => $crate::command::Dispatch::target(command),)*
                }
            }

            fn run(self, output: &mut $crate::output::Output<'_>) -> $crate::failure::Result<u8> {
                match self {
                    $($name::$variant(command) => $crate::command::Dispatch::run(command, output),)*
                }
            }

            fn describe(parser: clap::Command) -> clap::Command {
                // The parser has its subcommands in the order of the variants.
                let all: &[fn(clap::Command) -> clap::Command] =
                    &[$(<$command as $crate::command::Dispatch>::describe),*];
                let mut all = all.iter();
                parser.mut_subcommands(|parser| match all.next() {
                    Some(describe) => describe(parser),
                    None => parser,
                })
            }

            fn list(parser: &clap::Command, name: String, listed: &mut Vec<$crate::command::ListedCommand>) {
                // As above.
                let all: &[fn(&clap::Command, String, &mut Vec<$crate::command::ListedCommand>)] =
                    &[$(<$command as $crate::command::Dispatch>::list),*];
                for (parser, list) in parser.get_subcommands().zip(all) {
                    if !parser.is_hide_set() {
                        list(parser, format!("{name} {}", parser.get_name()).trim_start().to_owned(), listed);
                    }
                }
            }
        }
    };
}
pub(crate) use commands;
