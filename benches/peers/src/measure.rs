//! Medians, quantiles, payloads, and the rows of the tables.

use serde::Serialize;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Largest fraction of its time that a round may wait for a processor before its row reports it.
const WAITED: f64 = 0.1;

/// Contains an incompressible payload, and writes a record's number into it.
pub struct Payload(Vec<u8>);

impl Payload {
    pub fn new(size: usize) -> Payload {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let bytes = (0..size).map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        });
        Payload(bytes.collect())
    }

    pub fn of(&mut self, number: u64) -> &[u8] {
        if let Some(place) = self.0.first_chunk_mut() {
            *place = number.to_le_bytes();
        }
        &self.0
    }

    /// Returns the number that was written into a payload.
    pub fn number(payload: &[u8]) -> Option<u64> {
        payload.first_chunk().map(|number| u64::from_le_bytes(*number))
    }
}

pub fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

pub fn median(values: &[f64]) -> f64 {
    let values = sorted(values.to_vec());
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the time that this thread has waited for a processor so far, in nanoseconds; 0 if the
/// system does not report it.
pub fn waited_ns() -> u64 {
    let all = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    all.split_whitespace().nth(1).and_then(|waited| waited.parse().ok()).unwrap_or_default()
}

/// Formats a number with the digits that a comparison needs.
pub fn shown(value: f64) -> String {
    match value {
        value if value.is_nan() => "-".to_owned(),
        value if value.abs() < 10.0 => format!("{value:.2}"),
        value => {
            let digits = format!("{value:.0}");
            let mut shown = String::new();
            for (place, digit) in digits.chars().enumerate() {
                if place > 0 && (digits.len() - place).is_multiple_of(3) {
                    shown.push(',');
                }
                shown.push(digit);
            }
            shown
        }
    }
}

/// Represents one line of the table.
#[derive(Serialize)]
pub struct PeerRow {
    pub work: String,
    pub contestant: String,
    /// Unit of the numbers, such as `ns a record`.
    pub unit: String,
    pub median: f64,
    pub least: f64,
    pub most: f64,
    /// The median of the rounds without the time that they waited for a busy processor; `None` if
    /// it was not measured. On a busy machine this is more comparable than the medians.
    pub running: Option<f64>,
    /// The ratio of the contestant's median to that of foldlog's row; `None` for foldlog itself.
    pub of_foldlog: Option<f64>,
    pub note: String,
}

impl PeerRow {
    pub fn of(work: &str, contestant: &str, unit: &str, rounds: &[f64]) -> PeerRow {
        let rounds = sorted(rounds.to_vec());
        PeerRow {
            work: work.to_owned(),
            contestant: contestant.to_owned(),
            unit: unit.to_owned(),
            median: median(&rounds),
            least: rounds.first().copied().unwrap_or(f64::NAN),
            most: rounds.last().copied().unwrap_or(f64::NAN),
            running: None,
            of_foldlog: None,
            note: String::new(),
        }
    }

    /// Sets the median of the rounds, in this order, without their waiting time, and notes a large
    /// waiting time.
    pub fn waited(mut self, rounds: &[f64], shares: &[f64]) -> PeerRow {
        let running: Vec<f64> = rounds.iter().zip(shares).map(|(ns, share)| ns * (1.0 - share)).collect();
        self.running = Some(median(&running));
        let share = median(shares);
        if share > WAITED {
            self.note(&format!("waited for a processor {:.0} % of its time", share * 100.0));
        }
        self
    }

    pub fn note(&mut self, note: &str) {
        if !self.note.is_empty() && !note.is_empty() {
            self.note.push_str("; ");
        }
        self.note.push_str(note);
    }

    fn print(&self) {
        let PeerRow { work, contestant, unit, note, .. } = self;
        let (median, least, most) = (shown(self.median), shown(self.least), shown(self.most));
        let running = self.running.map_or_else(|| "-".to_owned(), shown);
        let ratio = self.of_foldlog.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        println!(
            "| {work} | {contestant} | {median} | {least} to {most} | {running} | {unit} | {ratio} | {note} |"
        );
    }
}

/// Prints the rows of one work, each compared with the row `ours`, or as JSON.
pub fn print(mut rows: Vec<PeerRow>, ours: &str, json: bool) -> Result<()> {
    let own = rows.iter().find(|row| row.contestant == ours).map(|row| row.median);
    for row in &mut rows {
        row.of_foldlog = own.filter(|_| row.contestant != ours).map(|own| row.median / own);
        if json { println!("{}", serde_json::to_string(row)?) } else { row.print() }
    }
    Ok(())
}

pub fn print_head(json: bool) {
    if !json {
        println!("| work | contestant | median | of all rounds | running | unit | to foldlog's | note |");
        println!("|---|---|---|---|---|---|---|---|");
    }
}
