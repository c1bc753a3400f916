//! A progress bar or a line of status for long work.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Delay before a bar is shown, so that shorter work does not flicker.
const PATIENCE: Duration = Duration::from_secs(1);

/// Shows the progress of work on standard error, if that is a terminal.
#[derive(Debug)]
pub struct Progress {
    since: Instant,
    what: &'static str,
    total: u64,
    wanted: bool,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Starts to show work of `total` steps, named `what`, if a bar is `wanted`.
    pub fn new(wanted: bool, what: &'static str, total: u64) -> Progress {
        Progress { since: Instant::now(), what, total, wanted, bar: None }
    }

    /// Shows that `done` steps are done.
    pub fn at(&mut self, done: u64) {
        if !self.wanted || (self.bar.is_none() && self.since.elapsed() < PATIENCE) {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(Some(self.total), ProgressDrawTarget::stderr());
            // The bar has no colours, so NO_COLOR needs no second style.
            let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}");
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message(self.what)
        });
        bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Shows a line of status for work of unknown length on standard error, if that is a terminal.
#[derive(Debug)]
pub struct Status {
    since: Instant,
    wanted: bool,
    line: Option<ProgressBar>,
}

impl Status {
    /// Starts to show a status, if one is `wanted`.
    pub fn new(wanted: bool) -> Status {
        Status { since: Instant::now(), wanted, line: None }
    }

    /// Returns whether a status is shown.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Shows the result of `text` and the elapsed time.
    pub fn show(&mut self, text: impl FnOnce() -> String) {
        if !self.wanted || (self.line.is_none() && self.since.elapsed() < PATIENCE) {
            return;
        }
        let line = self.line.get_or_insert_with(|| {
            let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}");
            line.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
                .with_elapsed(self.since.elapsed())
        });
        line.set_message(text());
        line.tick();
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}
