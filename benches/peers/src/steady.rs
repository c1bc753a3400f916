//! Times every single append of a long run: throughput over time, quantiles, and separately the
//! appends that start another file.

use std::time::Instant;

use crate::child::{ChildTask, Outcome, create};
use crate::contestants::rollovers;
use crate::measure::{Payload, Result, median};

/// Number of pieces of a run whose throughputs are compared.
const PIECES: usize = 20;

pub const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("slowest", 1.0)];

/// Runs the child's part.
pub fn append(task: &ChildTask) -> Result<Outcome> {
    let mut writer = create(task)?.pop().ok_or("there is no writer")?;
    let mut payload = Payload::new(task.size);
    let mut times: Vec<u32> = Vec::with_capacity(task.ops as usize);
    let mut turned = Vec::new();
    let (mut pieces, in_piece) = (Vec::new(), (task.ops / PIECES as u64).max(1));
    let mut file = writer.file();
    let mut piece = Instant::now();
    let outcome = Outcome::timed(|| {
        for number in 0..task.ops {
            let bytes = payload.of(number);
            let start = Instant::now();
            writer.append(number, bytes)?;
            times.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
            let now = writer.file();
            if now != file {
                file = now;
                turned.push(number);
            }
            if (number + 1) % in_piece == 0 {
                pieces.push(in_piece as f64 / piece.elapsed().as_secs_f64());
                piece = Instant::now();
            }
        }
        Ok(task.ops)
    })?;
    writer.close()?;
    turned.extend(rollovers(task.contestant, &task.dir)?);
    let at: Vec<f64> =
        turned.iter().filter_map(|number| times.get(*number as usize)).map(|ns| f64::from(*ns)).collect();
    times.sort_unstable();
    let mut outcome = outcome
        .with("rollovers", at.len() as f64)
        .with("rollover median", median(&at))
        .with("rollover slowest", at.iter().copied().fold(f64::NAN, f64::max))
        .with("piece slowest", pieces.iter().copied().fold(f64::NAN, f64::min))
        .with("piece median", median(&pieces))
        .with("piece fastest", pieces.iter().copied().fold(f64::NAN, f64::max));
    for (name, part) in QUANTILES {
        let place = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
        outcome = outcome.with(name, times.get(place).copied().map_or(f64::NAN, f64::from));
    }
    Ok(outcome)
}
