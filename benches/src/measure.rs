//! Runs rounds, takes medians and prints rows.

use std::thread;
use std::time::Instant;

use serde::Serialize;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Number of rounds of subject and limit.
pub const ROUNDS: usize = 15;

/// Largest ratio of a limit's median to its minimum before its row is void.
const UNSTEADY: f64 = 1.5;

/// Largest fraction of a subject's time that it may wait for a processor before its row reports it.
const WAITED: f64 = 0.1;

/// Contains the result of one round.
#[derive(Clone, Copy)]
pub struct Round {
    ns_per_op: f64,
    /// Fraction of the time that this thread waited for a processor, which other programs or the
    /// subject's own threads used.
    waited: f64,
}

impl Round {
    /// Makes a round of a value that is not a time.
    pub fn of(value: f64) -> Round {
        Round { ns_per_op: value, waited: 0.0 }
    }
}

/// Times `ops` operations, in nanoseconds an operation.
pub fn timed(ops: u64, run: impl FnOnce() -> Result<()>) -> Result<Round> {
    let waited = waited_ns();
    let start = Instant::now();
    run()?;
    let ns = start.elapsed().as_nanos() as f64;
    let waited = waited_ns().saturating_sub(waited) as f64;
    Ok(Round { ns_per_op: ns / ops as f64, waited: waited / ns })
}

/// Returns the time that this thread has waited for a processor so far; 0 if the system does not
/// report it.
fn waited_ns() -> u64 {
    let all = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    all.split_whitespace().nth(1).and_then(|waited| waited.parse().ok()).unwrap_or_default()
}

/// Contains the rounds of a subject or of a limit.
#[derive(Clone, Copy)]
pub struct Measurement {
    pub median: f64,
    pub least: f64,
    waited: f64,
}

impl Measurement {
    /// Subtracts the time of an operation that the subject included.
    pub fn less(self, other: Measurement) -> Measurement {
        Measurement { median: self.median - other.median, least: self.least - other.least, ..self }
    }

    pub fn of(rounds: Vec<Round>) -> Measurement {
        let times = sorted(rounds.iter().map(|round| round.ns_per_op));
        let least = times.first().copied().unwrap_or(f64::NAN);
        let waited = sorted(rounds.iter().map(|round| round.waited));
        Measurement { median: median(&times), least, waited: median(&waited) }
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs the rounds of subjects and limits alternately. Each contestant runs one round and returns
/// its result.
pub fn take_turns<const N: usize>(
    rounds: usize,
    mut contestants: [&mut dyn FnMut() -> Result<Round>; N],
) -> Result<[Measurement; N]> {
    let mut results = [const { Vec::new() }; N];
    for _ in 0..rounds {
        for (contestant, results) in contestants.iter_mut().zip(&mut results) {
            results.push(contestant()?);
        }
    }
    Ok(results.map(Measurement::of))
}

/// Runs two functions at once, each in a thread of its own.
pub fn at_once(things: [&mut (dyn FnMut() -> Result<()> + Send); 2]) -> Result<()> {
    thread::scope(|scope| {
        let threads = things.map(|thing| scope.spawn(|| thing().map_err(|error| error.to_string())));
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(done) => Ok(done?),
            Err(_) => Err("one of two threads panicked".into()),
        })
    })
}

/// Target of a row: its largest allowed value.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AtMost {
    Ratio(f64),
    Ns(f64),
    /// The value of a row that is not a time.
    Amount(f64),
}

#[derive(Serialize)]
pub struct BenchRow {
    bench: &'static str,
    subject: String,
    param: String,
    ns_per_op: Option<f64>,
    ratio_to_limit: Option<f64>,
    void: bool,
    /// Fraction of the subject's time that it waited for a processor.
    waited: f64,
    at_most: Option<AtMost>,
    /// Whether the target is met; `None` if there is none, or the row is void.
    met: Option<bool>,
}

impl BenchRow {
    /// Makes a row of a time that was measured once, without a limit.
    pub fn once(bench: &'static str, subject: &str, param: impl ToString, ns_per_op: f64) -> BenchRow {
        let (subject, param, ns_per_op) = (subject.to_owned(), param.to_string(), Some(ns_per_op));
        let (ratio_to_limit, void, waited, at_most, met) = (None, false, 0.0, None, None);
        BenchRow { bench, subject, param, ns_per_op, ratio_to_limit, void, waited, at_most, met }
    }

    /// Makes a row of a subject without a limit.
    pub fn alone(
        bench: &'static str,
        subject: &str,
        param: impl ToString,
        measured: Measurement,
    ) -> BenchRow {
        BenchRow { waited: measured.waited, ..BenchRow::once(bench, subject, param, measured.median) }
    }

    /// Makes a row of a subject and its limit.
    pub fn beside(
        bench: &'static str,
        subject: &str,
        param: impl ToString,
        measured: Measurement,
        limit: Measurement,
    ) -> BenchRow {
        BenchRow {
            ratio_to_limit: Some(measured.median / limit.median),
            void: limit.median > UNSTEADY * limit.least,
            ..BenchRow::alone(bench, subject, param, measured)
        }
    }

    /// Makes a row of two sizes of one subject: the ratio is the larger's time to the smaller's.
    pub fn pair(
        bench: &'static str,
        subject: &str,
        param: impl ToString,
        larger: Measurement,
        smaller: Measurement,
    ) -> BenchRow {
        BenchRow { ns_per_op: None, ..BenchRow::beside(bench, subject, param, larger, smaller) }
    }

    pub fn at_most(self, at_most: AtMost) -> BenchRow {
        let met = match at_most {
            AtMost::Ratio(most) => self.ratio_to_limit.map(|ratio| ratio <= most),
            AtMost::Ns(most) | AtMost::Amount(most) => self.ns_per_op.map(|ns| ns <= most),
        };
        BenchRow { at_most: Some(at_most), met: met.filter(|_| !self.void), ..self }
    }

    pub fn print(&self, json: bool) -> Result<()> {
        if json {
            println!("{}", serde_json::to_string(self)?);
            return Ok(());
        }
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let ns = or_dash(self.ns_per_op.map(|ns| format!("{ns:.0}")));
        let ratio = or_dash(self.ratio_to_limit.map(|ratio| format!("{ratio:.2}")));
        let void = if self.void { " void: the machine was busy, run again" } else { "" };
        let waited = match self.waited {
            waited if waited > WAITED => format!(" with {:.0} % waiting for a processor", waited * 100.0),
            _ => String::new(),
        };
        let at_most = or_dash(self.at_most.map(|at_most| match at_most {
            AtMost::Ratio(ratio) => format!("{ratio:.2} x"),
            AtMost::Ns(ns) => format!("{ns:.0} ns"),
            AtMost::Amount(amount) => format!("{amount:.0}"),
        }));
        let met = match self.met {
            Some(true) => " met",
            Some(false) => " missed",
            None => "",
        };
        println!(
            "{}, {}, {}, {ns}{waited}, {ratio}{void}, {at_most}{met}",
            self.bench, self.subject, self.param
        );
        Ok(())
    }
}
