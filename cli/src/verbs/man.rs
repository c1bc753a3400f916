//! `foldlog man`: the manual, one page for the binary and one per verb.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;
use foldlog_codec::escape;
use foldlog_view::document;
use foldlog_view::documents::PathField;
use foldlog_view::text::count_text;

use crate::command::{Group, Target};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::output_file::{StagedFile, check_replaced};

/// Describes the fields of `man --json`.
const MAN_JSON: &str = "\
With --out and --json one object:
  dir, pages   the directory, and the names of the pages that were written";

/// Print or write pages of the manual.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = MAN_JSON)]
pub struct Args {
    /// Command whose page is printed, such as `show` or `import aca` [default: foldlog]
    #[arg(value_name = "VERB", conflicts_with = "out")]
    pub verb: Vec<String>,
    /// Write all pages into this directory, created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Replace existing pages
    #[arg(long, requires = "out")]
    pub force: bool,
}

impl crate::command::Command for Args {
    const GROUP: Group = Group::Shell;
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "foldlog man show | man -l -";

    /// Prints a page of the manual of `command`, or writes all of them into a directory. `foldlog
    /// man | man -l -` shows one.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if there is no such verb.
    /// - [`Error::File`](foldlog_view::Error::File) if a page already exists, or cannot be written.
    ///   If one exists, none is written.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let mut command = crate::cli::parser().disable_help_subcommand(true);
        // Gives each verb its full name, and the options that all verbs have.
        command.build();
        let Some(dir) = &self.out else {
            output.stdout.write_all(&page(find(&command, &self.verb)?)?)?;
            return Ok(HOLDS);
        };
        let mut pages = Vec::new();
        collect(&command, &mut pages)?;
        write(dir, &pages, self.force)?;
        let names: Vec<&String> = pages.iter().map(|(name, _)| name).collect();
        output.print(&document! { dir: PathField(dir), pages: &names }, |output| {
            output.line(format_args!("{}: {}", escape::path(dir), count_text(names.len() as u64, "page")))
        })?;
        Ok(HOLDS)
    }
}

/// Finds the verb with these words.
fn find<'a>(command: &'a Command, words: &[String]) -> Result<&'a Command> {
    words.iter().try_fold(command, |command, word| {
        // A former name is hidden too. Unlike an internal command, it has a description.
        let is_known = |verb: &&Command| !verb.is_hide_set() || verb.get_long_about().is_some();
        let found = command.get_subcommands().filter(is_known).find(|verb| verb.get_name() == word);
        found.ok_or_else(|| {
            let of = command.get_display_name().unwrap_or("foldlog").replace('-', " ");
            CommandError::usage(
                format!("`{of}` has no command `{}`", escape::text(word)),
                "`foldlog help` lists the commands",
            )
        })
    })
}

/// Collects the pages of a command and of its subcommands, each with its file's name.
fn collect(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    pages.push((format!("{name}.1"), page(command)?));
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    verbs.into_iter().try_for_each(|verb| collect(verb, pages))
}

fn page(command: &Command) -> Result<Vec<u8>> {
    let version = env!("CARGO_PKG_VERSION");
    let details = command.get_after_long_help().or_else(|| command.get_after_help()).map(ToString::to_string);
    let man = Man::new(command.clone()).source(format!("foldlog {version}"));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|verb| !verb.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    // The tables of fields keep their lines, which the generator would reflow.
    if let Some(details) = details {
        page.extend(b".SH DETAILS\n.nf\n");
        details.lines().for_each(|line| page.extend(roff(line).as_bytes()));
        page.extend(b".fi\n");
    }
    Ok(page)
}

/// Escapes a line of text for roff.
fn roff(line: &str) -> String {
    let escaped =
        line.replace('\\', "\\(rs").replace('-', "\\-").replace('\'', "\\(aq").replace('`', "\\(ga");
    // A dot is a request only at the start of a line.
    let guard = if line.starts_with('.') { "\\&" } else { "" };
    format!("{guard}{escaped}\n")
}

fn write(dir: &Path, pages: &[(String, Vec<u8>)], force: bool) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| CommandError::file(&path, source)
    };
    fs::create_dir_all(dir).map_err(failed(dir))?;
    let paths = || pages.iter().map(|(name, page)| (dir.join(name), page));
    paths().try_for_each(|(path, _)| check_replaced(&path, force))?;
    for (path, page) in paths() {
        if force {
            // A page receives its name once it is complete. It replaces a link, not the link's
            // target.
            let mut unplaced = StagedFile::create_for(&path).map_err(failed(dir))?;
            unplaced.file().write_all(page).map_err(failed(&path))?;
            readable(unplaced.file()).map_err(failed(&path))?;
            unplaced.place(&path, force).map_err(failed(&path))?;
            continue;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed(&path))?;
        file.write_all(page).map_err(failed(&path))?;
    }
    Ok(())
}

/// Makes a page readable for all users: temporary files are private to their owner, but a manual is
/// public.
fn readable(file: &fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}
