//! Rounds, medians and rows.

use std::time::Instant;

use serde::Serialize;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// How often subject and limit take turns.
pub const ROUNDS: usize = 9;

/// How far a limit's median may be over its minimum.
const UNSTEADY: f64 = 1.5;

/// Nanoseconds an operation, of `ops` operations.
pub fn timed(ops: u64, run: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_nanos() as f64 / ops as f64)
}

/// The rounds of one contestant.
#[derive(Clone, Copy)]
pub struct Measured {
    pub median: f64,
    pub least: f64,
}

impl Measured {
    fn of(mut rounds: Vec<f64>) -> Measured {
        rounds.sort_by(f64::total_cmp);
        let median = rounds.get(rounds.len() / 2).copied().unwrap_or(f64::NAN);
        Measured { median, least: rounds.first().copied().unwrap_or(f64::NAN) }
    }
}

/// Lets contestants take turns, each of which says what one round of it came to.
pub fn take_turns<const N: usize>(
    rounds: usize,
    mut contestants: [&mut dyn FnMut() -> Result<f64>; N],
) -> Result<[Measured; N]> {
    let mut results = [const { Vec::new() }; N];
    for _ in 0..rounds {
        for (contestant, results) in contestants.iter_mut().zip(&mut results) {
            results.push(contestant()?);
        }
    }
    Ok(results.map(Measured::of))
}

/// What a row is meant to be at most.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AtMost {
    Ratio(f64),
    Ns(f64),
}

#[derive(Serialize)]
pub struct Row {
    bench: &'static str,
    subject: String,
    param: String,
    ns_per_op: Option<f64>,
    ratio_to_limit: Option<f64>,
    void: bool,
    at_most: Option<AtMost>,
}

impl Row {
    /// Without a limit.
    pub fn alone(bench: &'static str, subject: &str, param: impl ToString, ns_per_op: f64) -> Row {
        let (subject, param) = (subject.to_owned(), param.to_string());
        Row {
            bench,
            subject,
            param,
            ns_per_op: Some(ns_per_op),
            ratio_to_limit: None,
            void: false,
            at_most: None,
        }
    }

    /// Beside its limit.
    pub fn beside(
        bench: &'static str,
        subject: &str,
        param: impl ToString,
        measured: Measured,
        limit: Measured,
    ) -> Row {
        Row {
            ratio_to_limit: Some(measured.median / limit.median),
            void: limit.median > UNSTEADY * limit.least,
            ..Row::alone(bench, subject, param, measured.median)
        }
    }

    /// What the larger of a pair takes, of what the smaller takes.
    pub fn pair(
        bench: &'static str,
        subject: &str,
        param: impl ToString,
        larger: Measured,
        smaller: Measured,
    ) -> Row {
        Row { ns_per_op: None, ..Row::beside(bench, subject, param, larger, smaller) }
    }

    pub fn at_most(self, at_most: AtMost) -> Row {
        Row { at_most: Some(at_most), ..self }
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
        let at_most = or_dash(self.at_most.map(|at_most| match at_most {
            AtMost::Ratio(ratio) => format!("{ratio:.2} x"),
            AtMost::Ns(ns) => format!("{ns:.0} ns"),
        }));
        println!("{}, {}, {}, {ns}, {ratio}{void}, {at_most}", self.bench, self.subject, self.param);
        Ok(())
    }
}
