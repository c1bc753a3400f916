//! Runs the verbs of the binary `foldlog`, each in a process of its own, and checks the rules that
//! apply to all of them.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::child::{self, Limits};
use crate::report::Result;

/// Name of the part that runs the binary.
pub(crate) const PART: &str = "foldlog";

/// Number of output bytes that are kept.
const KEPT: usize = 256 << 10;

/// Number of output bytes that are read. A verb with more output ends when its pipe is closed.
/// Printing a state of a few KiB on the disk may take hours.
const READ_MAX: u64 = 256 << 20;

/// Result of a verb.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// Whether it was killed at its time limit.
    pub(crate) late: bool,
    pub(crate) elapsed: Duration,
    pub(crate) stdout: Printed,
    pub(crate) stderr: Printed,
    /// Its peak memory, in KiB; `None` if it was killed before it reported it.
    pub(crate) peak_kib: Option<u64>,
}

/// Output of a verb.
#[derive(Debug, Default)]
pub(crate) struct Printed {
    pub(crate) text: String,
    pub(crate) bytes: u64,
    /// The first character that may act on a terminal, and the text before it.
    pub(crate) raw: Option<String>,
}

/// The binary: this one's own file, or another one.
#[derive(Clone, Debug)]
pub(crate) struct Foldlog {
    path: Option<PathBuf>,
    /// File into which it writes its peak memory.
    peak: PathBuf,
}

impl Foldlog {
    pub(crate) fn new(path: Option<&Path>, directory: &Path) -> Foldlog {
        Foldlog { path: path.map(Path::to_owned), peak: directory.join("peak") }
    }

    pub(crate) fn command(&self, arguments: &[OsString]) -> Result<Command> {
        let mut command = match &self.path {
            Some(path) => Command::new(path),
            None => child::part(PART, &[])?,
        };
        command.args(arguments);
        Ok(command)
    }

    /// Runs a verb under limits, for no longer than `within`.
    pub(crate) fn run(&self, arguments: &[OsString], limits: Limits, within: Duration) -> Result<Ended> {
        let mut command = self.command(arguments)?;
        child::tell_peak(&mut command, &self.peak);
        let mut command = child::limited(limits, &command);
        let _ = fs::remove_file(&self.peak);
        let began = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().map(|stdout| thread::spawn(move || Printed::read(stdout)));
        let stderr = child.stderr.take().map(|stderr| thread::spawn(move || Printed::read(stderr)));
        let mut late = false;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if began.elapsed() > within {
                late = true;
                child.kill()?;
            }
            thread::sleep(Duration::from_millis(1));
        };
        let elapsed = began.elapsed();
        let printed = |reader: Option<thread::JoinHandle<Printed>>| {
            reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
        };
        let peak = fs::read_to_string(&self.peak).ok();
        Ok(Ended {
            code: status.code(),
            signal: status.signal(),
            late,
            elapsed,
            stdout: printed(stdout),
            stderr: printed(stderr),
            peak_kib: peak.and_then(|kib| kib.trim().parse().ok()),
        })
    }

    /// Runs a verb without limits.
    pub(crate) fn plain(&self, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Result<Ended> {
        let arguments: Vec<OsString> = arguments.iter().map(|one| one.as_ref().to_owned()).collect();
        self.run(&arguments, Limits::default(), Duration::from_secs(300))
    }
}

impl Ended {
    /// Returns a fault that no verb may have: a signal, a panic, an undefined exit code, a timeout,
    /// or output that may act on a terminal.
    pub(crate) fn wrong(&self) -> Option<String> {
        let said = || self.stderr.text.chars().take(300).collect::<String>();
        if self.late {
            return Some(format!("it did not end within {:.1} s", self.elapsed.as_secs_f64()));
        }
        if let Some(signal) = self.signal {
            return Some(format!("signal {signal}: {}", said()));
        }
        if !matches!(self.code, Some(0..=2)) {
            return Some(format!("exit code {:?}: {}", self.code, said()));
        }
        if self.stderr.text.contains("panicked at") || self.stderr.text.contains("RUST_BACKTRACE") {
            return Some(format!("it panicked: {}", said()));
        }
        let raw = |name: &str, printed: &Printed| {
            printed.raw.as_ref().map(|raw| format!("raw on {name}: {}", raw.escape_unicode()))
        };
        raw("standard output", &self.stdout).or_else(|| raw("standard error", &self.stderr))
    }
}

impl Printed {
    fn read(mut from: impl Read) -> Printed {
        let mut printed = Printed::default();
        let mut kept = Vec::new();
        let mut piece = vec![0; 64 << 10];
        let mut rest = Vec::new();
        while let Ok(len @ 1..) = from.read(&mut piece) {
            let read = piece.get(..len).unwrap_or_default();
            printed.bytes += len as u64;
            kept.extend_from_slice(read.get(..KEPT.saturating_sub(kept.len()).min(len)).unwrap_or_default());
            rest.extend_from_slice(read);
            // Characters are not split: a possible beginning of one waits for the next piece.
            let whole = rest.iter().rposition(|byte| byte.is_ascii()).map_or(0, |at| at + 1);
            printed.look_at(&rest.drain(..whole).collect::<Vec<_>>());
            if printed.bytes > READ_MAX {
                printed.text = String::from_utf8_lossy(&kept).into_owned();
                return printed;
            }
        }
        printed.look_at(&rest);
        printed.text = String::from_utf8_lossy(&kept).into_owned();
        printed
    }

    fn look_at(&mut self, bytes: &[u8]) {
        if self.raw.is_some() {
            return;
        }
        // Most output is plain ASCII, and there may be gigabytes of it.
        if bytes.iter().all(|byte| (b' '..=b'~').contains(byte) || matches!(byte, b'\n' | b'\t')) {
            return;
        }
        let Ok(text) = std::str::from_utf8(bytes) else {
            self.raw = Some(String::from_utf8_lossy(bytes).chars().take(80).collect());
            return;
        };
        if let Some((at, found)) = text.char_indices().find(|(_, found)| acts_on_terminal(*found)) {
            let before = text.get(..at).unwrap_or_default().chars().rev().take(20).collect::<Vec<_>>();
            self.raw = Some(before.into_iter().rev().chain([found]).collect());
        }
    }
}

/// Returns whether a terminal acts on a character instead of showing it: Unicode's Cc except line
/// ends and tabs, Cf, Zl and Zp.
fn acts_on_terminal(found: char) -> bool {
    match found {
        '\n' | '\t' => false,
        found if found.is_control() => true,
        '\u{ad}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}' => true,
        '\u{600}'..='\u{605}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' => true,
        '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' => true,
        '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' => true,
        '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}' => true,
        _ => false,
    }
}

/// Runs the binary in this process.
pub(crate) fn part(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments = std::iter::once(OsString::from("foldlog")).chain(arguments);
    let code = foldlog_cli::output::with_process(|output| foldlog_cli::run(arguments, output));
    child::write_peak();
    ExitCode::from(code)
}
