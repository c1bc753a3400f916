//! `foldlog pull`, `push` and `takeover`: copy sessions from a bucket, replicate them to it, and
//! take them over from it.
//!
//! All three need the feature `object-store`. Without it they report the command that builds it in.

#[cfg(feature = "object-store")]
mod doing;
#[cfg(not(feature = "object-store"))]
mod doing {
    pub(super) use self::{refuse as pull, refuse as push, refuse as take_over};

    pub(super) fn refuse<T>(_: &T, _: &mut super::Output<'_>) -> super::Result<u8> {
        Err(crate::remote::not_built())
    }
}

use std::path::PathBuf;

use clap::Args;
use uuid::Uuid;

use crate::command::{Access, Argument, Command, Group, Target, Urls};
use crate::failure::Result;
use crate::output::Output;

/// Explains places in the help of each verb.
const PLACES: &str = "\
URL is the bucket or database of the host's replicator, with its prefix: file:///PATH,
s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or postgres://USER@HOST/DATABASE,
if needed with ?schema=NAME&sslrootcert=PATH. Keys, password (PGPASSWORD), region (AWS_REGION) and
endpoint (AWS_ENDPOINT_URL, for MinIO or R2) come from the environment, or from the cloud
provider's credentials for its machines. Never write them into the URL.";

/// Copy sessions from a bucket or database.
///
/// Copies what is new, to be read. The sessions' writers are not affected.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("{PLACES}\n\n\
With --json one object a line, for each session: session, dir, records, new"))]
pub struct Pull {
    /// URL of the bucket or database with the sessions
    pub url: String,
    /// Directory of the store for the copies, created if it does not exist
    #[arg(long, value_name = "STORE")]
    pub to: PathBuf,
    /// Id of the session to copy [default: all sessions at URL]
    #[arg(long, value_name = "ID")]
    pub session: Option<Uuid>,
}

/// Copy sessions to a bucket or database.
///
/// Other machines can then take the sessions over. Each session is claimed under its host's name:
/// no process may have it open, and a session that another worker has taken over is refused.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("{PLACES}\n\n\
With --json one object a line, for each session: session, records, epoch"))]
pub struct Push {
    /// Directory of the store
    #[arg(value_name = "STORE")]
    pub store: PathBuf,
    /// URL of the bucket or database for the sessions
    pub url: String,
    /// Id of the session to copy [default: all sessions of the store]
    #[arg(long, value_name = "ID")]
    pub session: Option<Uuid>,
    /// Name under which the host claims its sessions [default: from the log, or `foldlog push`]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Move sessions to URL that were replicated to another bucket or database
    #[arg(long)]
    pub unreplicated: bool,
}

/// Take over a session of another machine.
///
/// Fences the session's writer, and copies everything that it had acknowledged into STORE.
/// A call that the other worker left open is open here too, and its host recovers it.
/// Captures of workspaces are copied as well. To fill an empty directory from them, run
/// `recover` and then `rewind SESSION POSITION --overwrite` to the last position, both with
/// `--rebind NAME=DIR --unreplicated`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("{PLACES}\n\n\
A worker that writes a session renews a lease, by default of 30 s. The session is not taken over
while its lease is renewed. A bucket shows this only to a reader that watches the lease for its
whole length, as this command does. The lease is not needed for safety: with --now, a live worker
is fenced too.\n\n\
With --json one object: session, dir, epoch, records, open: operation, tool of each call that the
other worker left open"))]
pub struct TakeOver {
    /// URL of the bucket or database with the session
    pub url: String,
    /// Directory of the store for the session, created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// Id of the session [default: the only session at URL]
    #[arg(long, value_name = "ID")]
    pub session: Option<Uuid>,
    /// Name of the new worker, under which the new store's host must claim the session
    #[arg(long, value_name = "WHO", value_parser = crate::value_parsers::parse_nonblank)]
    pub by: String,
    /// Reason for the takeover
    #[arg(long, value_name = "WHY", value_parser = crate::value_parsers::parse_nonblank)]
    pub reason: String,
    /// Take the session over without checking whether its worker is alive
    #[arg(long)]
    pub now: bool,
}

impl Command for Pull {
    const GROUP: Group = Group::Exchange;
    const ACCESS: Access = Access::Creates;
    const TARGET: Target = Target::Store;
    const URLS: Urls = Urls::Separate;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.to);
    const EXAMPLE: &'static str = "foldlog pull s3://BUCKET/PREFIX --to STORE";

    /// Copies sessions, or their new parts, from a bucket into a store. Claims nothing.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if the URL names no place that this
    ///   program supports, or the place is empty.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if a session cannot be read or
    ///   written, or the store has a different history of it.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        doing::pull(&self, output)
    }
}

impl Command for Push {
    const GROUP: Group = Group::Exchange;
    const ACCESS: Access = Access::Changes;
    const TARGET: Target = Target::Store;
    const URLS: Urls = Urls::Separate;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.store);
    const EXAMPLE: &'static str = "foldlog push STORE s3://BUCKET/PREFIX";

    /// Replicates the sessions of a store to a bucket: claims each, as its host does, and waits
    /// until all its records are replicated.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if the URL names no place that this
    ///   program supports.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if a session is open for writing, or
    ///   another worker continued it.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        doing::push(&self, output)
    }
}

impl Command for TakeOver {
    const GROUP: Group = Group::Exchange;
    const ACCESS: Access = Access::Changes;
    const TARGET: Target = Target::Store;
    const URLS: Urls = Urls::Separate;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.to);
    const EXAMPLE: &'static str = "foldlog takeover s3://BUCKET/PREFIX --to STORE --by NAME --reason TEXT";

    /// Takes over a session from a bucket: fences its writer, and creates a local session from the
    /// acknowledged records.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if the URL names no place that this
    ///   program supports, if it is ambiguous which session is meant, or if its worker is alive.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if the store already has the
    ///   session, or it cannot be taken over.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        doing::take_over(&self, output)
    }
}
