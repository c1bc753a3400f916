//! `foldlog view`: a store or a session in a browser.

use std::path::PathBuf;

use crate::command::{Argument, Command, Group, Target};
use crate::failure::Result;
use crate::output::Output;
use crate::timelines::RootArgs;

/// Describes the fields of `view --json`.
const VIEW_JSON: &str = "\
With --json one object, before the first page is requested:
  url, port    address with its secret token, and port";

/// Show a store, a session, or the calls of agents in this directory in a browser.
///
/// Without a session, it shows the calls that `foldlog log` lists: their files, what they
/// changed, and the conversation. `--root DIR` shows those of another directory. Ignored files
/// are not shown. Serves pages on 127.0.0.1 only. Everyone who knows the printed address with
/// its token can read the store, so do not pass it on. $BROWSER names the program that opens the page; the default is
/// xdg-open. Nothing is written into the store.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = VIEW_JSON)]
pub struct Args {
    /// Directory of the store or session [default: the calls of agents in this directory]
    #[arg(value_name = "SESSION|STORE", conflicts_with = "root")]
    pub path: Option<PathBuf>,
    /// Port on 127.0.0.1 to listen on [default: a free port]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// Print the address without opening a browser
    #[arg(long)]
    pub no_open: bool,
    /// Directory of the calls.
    #[command(flatten)]
    pub root: RootArgs,
}

impl Command for Args {
    const GROUP: Group = Group::Look;
    const TARGET: Target = Target::SessionOrStore;
    const ARGUMENT: Argument<Self> = |arguments| arguments.path.as_mut();
    const EXAMPLE: &'static str = "foldlog view STORE";

    /// Serves pages that show a store or a session, until a signal ends the process. Prints their
    /// address, which contains a secret token, and opens it in a browser.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if there is neither a store nor a
    ///   session, no agent was recorded in this directory, the server cannot listen at the
    ///   port, or this program was built without the feature `view`.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if no part of a session is intact,
    ///   or it cannot be read.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        serving::run(&self, output)
    }
}

#[cfg(not(feature = "view"))]
mod serving {
    pub(super) fn run(_: &super::Args, _: &mut super::Output<'_>) -> super::Result<u8> {
        Err(crate::CommandError::usage(
            "this program was built without its viewer",
            "build it with the viewer: `cargo install --path cli --features view`; `foldlog report` writes a page without it",
        ))
    }
}

#[cfg(feature = "view")]
mod serving {
    use std::io::Write;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use foldlog::inspect;
    use foldlog_codec::escape;
    use foldlog_view::server::{Server, ServerScope};
    use serde_json::json;
    use tempfile::TempDir;

    use super::Args;
    use crate::failure::{CommandError, HOLDS, Result};
    use crate::output::Output;
    use crate::readers::{open_sound_outline, open_store};

    /// Delay between two checks for a request to end; a signal ends the delay.
    const WAIT: Duration = Duration::from_secs(60);

    pub(super) fn run(arguments: &Args, output: &mut Output<'_>) -> Result<u8> {
        let shown = match &arguments.path {
            Some(path) => open_scope(path, output)?,
            None => open_scope(&arguments.root.open_read_only()?.place().session_dir(), output)?,
        };
        // Signals are handled before the address is printed, so that its reader can already end
        // this process.
        (output.pause)(Duration::ZERO).map_err(CommandError::Wait)?;
        let port = arguments.port;
        let server = Server::start(shown, port, output.memory_bytes).map_err(|error| {
            let what = format!("cannot listen on port {port} of 127.0.0.1: {}", escape::display(error));
            CommandError::usage(what, "leave out --port to take a free one")
        })?;
        let url = server.url();
        output.print(&json!({ "url": url, "port": server.port() }), |output| output.line(&url))?;
        output.stdout.flush()?;
        let redirect = if arguments.no_open { None } else { open_browser(&url, output) };
        if !output.json() {
            output.note("everyone who knows this address can read the pages; Ctrl-C ends the server");
        }
        while (output.pause)(WAIT).map_err(CommandError::Wait)? {}
        drop((redirect, server));
        Ok(HOLDS)
    }

    fn open_scope(path: &Path, output: &mut Output<'_>) -> Result<ServerScope> {
        if inspect::is_store(path) {
            return Ok(ServerScope::Store(open_store(path, output)?));
        }
        // Problems of the session are reported here before a page shows them.
        let reader = open_sound_outline(path, output)?;
        let dir = path.canonicalize().map_err(|source| CommandError::file(path, source))?;
        Ok(ServerScope::Session(reader.opening_record().session, dir))
    }

    /// Opens a browser at an address that no other process may see. Arguments are public, so the
    /// browser receives a file that redirects to the address. Returns the file's directory, which
    /// is removed on drop.
    fn open_browser(url: &str, output: &mut Output<'_>) -> Option<TempDir> {
        match redirect(url).and_then(|(directory, page)| browse(&page).map(|()| directory)) {
            Ok(directory) => Some(directory),
            Err(error) => {
                let error = escape::display(error);
                output.note(format_args!("note: no browser was opened ({error}); open the address yourself"));
                None
            }
        }
    }

    /// Writes a page that redirects to an address, readable by this user only.
    fn redirect(url: &str) -> std::io::Result<(TempDir, std::path::PathBuf)> {
        use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
        let directory = tempfile::Builder::new()
            .prefix("foldlog-view-")
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir()?;
        let page = directory.path().join("open.html");
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&page)?;
        writeln!(
            file,
            "<!doctype html><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\">\
             <meta http-equiv=\"refresh\" content=\"0;url={url}\"><title>foldlog</title><a href=\"{url}\">foldlog</a>"
        )?;
        Ok((directory, page))
    }

    fn browse(page: &Path) -> std::io::Result<()> {
        let program = std::env::var_os("BROWSER").filter(|program| !program.is_empty());
        let mut command = Command::new(program.unwrap_or_else(|| "xdg-open".into()));
        command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        // A browser may run for a long time, but a program that only passes the page on ends soon
        // and must be reaped.
        std::thread::Builder::new().name("foldlog-browser".to_owned()).spawn(move || child.wait())?;
        Ok(())
    }
}
