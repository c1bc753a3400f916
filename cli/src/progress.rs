//! A progress bar or a line of status for long work.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Delay before a bar is shown, so that shorter work does not flicker.
const PATIENCE: Duration = Duration::from_secs(1);

/// A bar or a line on standard error, which appears with some delay and is removed at the end.
#[derive(Debug)]
struct DelayedBar {
    since: Instant,
    wanted: bool,
    bar: Option<ProgressBar>,
}

impl DelayedBar {
    fn new(wanted: bool) -> DelayedBar {
        DelayedBar { since: Instant::now(), wanted, bar: None }
    }

    /// Returns the bar once it is shown. `template` has no colours, so NO_COLOR needs no second
    /// one.
    fn shown(&mut self, total: Option<u64>, template: &str) -> Option<&ProgressBar> {
        if !self.wanted || (self.bar.is_none() && self.since.elapsed() < PATIENCE) {
            return None;
        }
        Some(self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template(template);
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
                .with_elapsed(self.since.elapsed())
        }))
    }
}

impl Drop for DelayedBar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Shows the progress of work on standard error, if that is a terminal.
#[derive(Debug)]
pub struct Progress {
    bar: DelayedBar,
    what: &'static str,
    total: u64,
}

impl Progress {
    /// Starts to show work of `total` steps, named `what`, if a bar is `wanted`.
    pub fn new(wanted: bool, what: &'static str, total: u64) -> Progress {
        Progress { bar: DelayedBar::new(wanted), what, total }
    }

    /// Shows that `done` steps are done.
    pub fn at(&mut self, done: u64) {
        if let Some(bar) = self.bar.shown(Some(self.total), "{msg} {wide_bar} {pos}/{len}") {
            bar.set_message(self.what);
            bar.set_position(done);
        }
    }
}

/// Shows a line of status for work of unknown length on standard error, if that is a terminal.
#[derive(Debug)]
pub struct Status(DelayedBar);

impl Status {
    /// Starts to show a status, if one is `wanted`.
    pub fn new(wanted: bool) -> Status {
        Status(DelayedBar::new(wanted))
    }

    /// Returns whether a status is shown.
    pub fn is_wanted(&self) -> bool {
        self.0.wanted
    }

    /// Shows the result of `text` and the elapsed time.
    pub fn show(&mut self, text: impl FnOnce() -> String) {
        if let Some(line) = self.0.shown(None, "{spinner} {elapsed} {wide_msg}") {
            line.set_message(text());
            line.tick();
        }
    }
}
