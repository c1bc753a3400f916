//! `foldlog pull`, `push` and `takeover`: copy sessions from a bucket, replicate them to it, and
//! take them over from it.
//!
//! All three need the feature `object-store`. Without it they report the command that builds it in.

#[cfg(feature = "object-store")]
mod doing;

use std::path::PathBuf;

use clap::Args;
use uuid::Uuid;

use crate::failure::Result;
use crate::output::Output;

/// Explains places in the help of each verb.
const PLACES: &str = "\
URL is the place that the host's replicator keeps its sessions in, with its prefix: file:///PATH, s3://BUCKET/PREFIX,
gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or postgres://USER@HOST/DATABASE with ?schema=NAME&sslrootcert=PATH where needed. Keys,
password (PGPASSWORD), region (AWS_REGION) and endpoint (AWS_ENDPOINT_URL, for MinIO or R2) come from the environment, or from what the
provider gives to its machines, and never stand in the URL.";

/// Holds what the command line asks of `foldlog pull`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("{PLACES}\n\n\
With --json one object a line, for each session: session, dir, records, new"))]
pub struct Pull {
    /// Where the sessions are held.
    pub url: String,
    /// The store that gets the copies; it is created if it does not exist.
    #[arg(long, value_name = "STORE")]
    pub to: PathBuf,
    /// The session [default: all that the place lists].
    #[arg(long, value_name = "ID")]
    pub session: Option<Uuid>,
}

/// Holds what the command line asks of `foldlog push`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("{PLACES}\n\n\
With --json one object a line, for each session: session, records, epoch"))]
pub struct Push {
    /// The store.
    #[arg(value_name = "STORE")]
    pub store: PathBuf,
    /// Where the sessions are to be held.
    pub url: String,
    /// The session [default: all of the store].
    #[arg(long, value_name = "ID")]
    pub session: Option<Uuid>,
    /// The name under which the store's host claims its sessions [default: the name in the session's log, or `foldlog push`].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Let the place hold sessions from now on that their logs say another holds.
    #[arg(long)]
    pub unreplicated: bool,
}

/// Holds what the command line asks of `foldlog takeover`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("{PLACES}\n\n\
A worker that writes a session renews a lease there, of 30 s where its host says nothing else. While it does, the session is not taken
over. A bucket tells whether it does to whoever watches it for that long, which this verb does. That a takeover is safe no lease decides:
--now fences a worker that lives as well.\n\n\
With --json one object: session, dir, epoch, records, open: operation, tool of each call that the other worker left open"))]
pub struct TakeOver {
    /// Where the session is held.
    pub url: String,
    /// The store that gets the session; it is created if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// The session [default: the only one that the place lists].
    #[arg(long, value_name = "ID")]
    pub session: Option<Uuid>,
    /// Who takes it over: also the name under which the new store's host has to claim it.
    #[arg(long, value_name = "WHO", value_parser = crate::cli::parse_nonblank)]
    pub by: String,
    /// Why.
    #[arg(long, value_name = "WHY", value_parser = crate::cli::parse_nonblank)]
    pub reason: String,
    /// Take it over without asking whether the worker that writes it lives.
    #[arg(long)]
    pub now: bool,
}

impl Pull {
    /// Copies sessions, or their new parts, from a bucket into a store. Claims nothing.
    ///
    /// # Errors
    ///
    /// - [`CommandError::Usage`](crate::CommandError::Usage) if the URL names no place that this
    ///   program supports, or the place is empty.
    /// - [`CommandError::Engine`](crate::CommandError::Engine) if a session cannot be read or
    ///   written, or the store has a different history of it.
    pub fn run(self, output: &mut Output<'_>) -> Result<u8> {
        #[cfg(feature = "object-store")]
        return doing::pull(&self, output);
        #[cfg(not(feature = "object-store"))]
        {
            let _ = output;
            Err(crate::remote::not_built())
        }
    }
}

impl Push {
    /// Replicates the sessions of a store to a bucket: claims each, as its host does, and waits
    /// until all its records are replicated.
    ///
    /// # Errors
    ///
    /// - [`CommandError::Usage`](crate::CommandError::Usage) if the URL names no place that this
    ///   program supports.
    /// - [`CommandError::Engine`](crate::CommandError::Engine) if a session is open for writing, or
    ///   another worker continued it.
    pub fn run(self, output: &mut Output<'_>) -> Result<u8> {
        #[cfg(feature = "object-store")]
        return doing::push(&self, output);
        #[cfg(not(feature = "object-store"))]
        {
            let _ = output;
            Err(crate::remote::not_built())
        }
    }
}

impl TakeOver {
    /// Takes over a session from a bucket: fences its writer, and creates a local session from the
    /// acknowledged records.
    ///
    /// # Errors
    ///
    /// - [`CommandError::Usage`](crate::CommandError::Usage) if the URL names no place that this
    ///   program supports, if it is ambiguous which session is meant, or if its worker is alive.
    /// - [`CommandError::Engine`](crate::CommandError::Engine) if the store already has the
    ///   session, or it cannot be taken over.
    pub fn run(self, output: &mut Output<'_>) -> Result<u8> {
        #[cfg(feature = "object-store")]
        return doing::take_over(&self, output);
        #[cfg(not(feature = "object-store"))]
        {
            let _ = output;
            Err(crate::remote::not_built())
        }
    }
}
