//! Lives without a close: each opens the session, records twenty events and is killed. Their files,
//! and the bytes that the next opening reads, grow no faster than the records.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use nix::sys::signal::{Signal, raise};
use uuid::Uuid;

use crate::Plan;
use crate::child::{self, Heard};
use crate::host::{self, LEVELS, Level, Talk};
use crate::place::{self, Taken};
use crate::report::{Report, Result};
use crate::verbs::Foldlog;

/// Records of one life.
const RECORDS: u64 = 20;

/// Limits the allocated bytes: a constant, and an amount for each life. A life allocates a segment
/// of the least size, which is 16 KiB, and recovery rewrites its tail into a file of its own.
const BYTES_AT_FIRST: u64 = 512 << 10;
const BYTES_EACH: u64 = 32 << 10;

/// Files: two for each life, a segment and the file that recovery rewrites.
const FILES_AT_FIRST: u64 = 24;
const FILES_EACH: u64 = 2;

/// Bytes that an opening reads: for each life a segment of the least size, including its empty
/// rest, and its records again.
const READ_AT_FIRST: u64 = 256 << 10;
const READ_EACH: u64 = 24 << 10;

/// Limits the openings of the second half of the lives: this multiple of the first half's time, and
/// a constant for each opening. If the cost of an opening grows linearly, the multiple is three.
const LATER_TIMES: u64 = 4;
const LATER_MORE_US: u64 = 3_000;

pub(crate) fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new("cycles");
    let directory = place::directory(&plan.dir)?;
    let foldlog = Foldlog::new(plan.foldlog.as_deref(), directory.path());
    let lives = plan.rounds(40, 1_000);
    for level in LEVELS {
        at_level(&mut report, directory.path(), level, lives, &foldlog)?;
    }
    report.count("lives at each level", lives);
    Ok(report)
}

fn at_level(
    report: &mut Report,
    directory: &Path,
    level: Level,
    lives: u64,
    foldlog: &Foldlog,
) -> Result<()> {
    let Level { word, durability } = level;
    let store = host::store(&directory.join(word), durability)?;
    let session = store.create(&host::types()?)?;
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close()?;
    let (mut first_us, mut later_us) = (0, 0);
    let (mut most, mut read) = (Taken::default(), 0);
    for life in 0..lives {
        let arguments = [&store.path() as &dyn AsRef<_>, &id.to_string(), &word];
        let mut writer = Heard::start(child::part("cycles", &arguments)?)?;
        let told = writer.word("life ")?;
        writer.kill()?;
        let Some(told) = told else {
            let (status, errors) = writer.ended()?;
            report.broken(format!("{word}, life {life}: it ended with {status}: {errors}"));
            return Ok(());
        };
        let numbers: Vec<u64> = told.split(' ').map(str::parse).collect::<std::result::Result<_, _>>()?;
        let [found, read_bytes, us] = numbers[..] else { return Err("three numbers".into()) };
        read = read_bytes;
        report.check(found == life * RECORDS, || format!("{word}, life {life}: {found} records"));
        *(if life < lives / 2 { &mut first_us } else { &mut later_us }) += us;
        let allowed = |first: u64, each: u64| first + (life + 1) * each;
        let taken = place::taken(store.path())?;
        most = Taken { files: most.files.max(taken.files), bytes: most.bytes.max(taken.bytes) };
        let (bytes, files) = (allowed(BYTES_AT_FIRST, BYTES_EACH), allowed(FILES_AT_FIRST, FILES_EACH));
        let read_max = allowed(READ_AT_FIRST, READ_EACH);
        if taken.bytes > bytes || taken.files > files || read > read_max {
            report.broken(format!(
                "{word}, life {life}: {} bytes of {bytes}, {} files of {files}, {read} bytes read of {read_max}",
                taken.bytes, taken.files
            ));
            break;
        }
        report.count("checks", 1);
    }
    let allowed_us = first_us * LATER_TIMES + lives * LATER_MORE_US;
    report.check(later_us <= allowed_us, || {
        format!("{word}: the second half's openings took {later_us} us, the first half's {first_us} us")
    });
    let records = lives * RECORDS;
    report.fact(format!(
        "{word}: {lives} lives, {records} records: {} bytes at most, {} files, the last opening read {read} bytes, \
         openings {first_us} us in the first half and {later_us} us in the second",
        most.bytes, most.files
    ));
    let ended = foldlog.plain(&[&"verify", &dir])?;
    report.check(ended.code == Some(0), || format!("{word}: verify: {}", ended.stderr.text));
    store.delete(id)?;
    Ok(())
}

/// Runs one life: opens the session, reports the time, writes, and is killed before it closes.
pub(crate) fn part(arguments: &[String]) -> Result<()> {
    let [store, id, word] = arguments else { return Err("store, session, level".into()) };
    let durability = host::durability(word)?;
    let store = host::store(Path::new(store), durability)?;
    let (before, began) = (bytes_read()?, Instant::now());
    let session = store.open_session_at(id.parse::<Uuid>()?, &host::types()?, durability)?;
    let (us, read) = (began.elapsed().as_micros(), bytes_read()? - before);
    let first = session.view::<Talk>()?.len();
    for n in first..first + RECORDS {
        session.dispatch(host::said_briefly(n))?;
    }
    writeln!(std::io::stdout().lock(), "life {first} {read} {us}")?;
    raise(Signal::SIGKILL)?;
    Ok(())
}

/// Returns how many bytes this process has read from files, by the system's count.
fn bytes_read() -> Result<u64> {
    let io = fs::read_to_string("/proc/self/io")?;
    let read = io.lines().find_map(|line| line.strip_prefix("rchar: ")).ok_or("no count of bytes read")?;
    Ok(read.trim().parse()?)
}
