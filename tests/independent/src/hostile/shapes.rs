//! Valid logs whose files were changed, exchanged, stretched or replaced by links and pipes.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use foldlog::{Durability, SnapshotOptions};
use foldlog_codec::RecordKind;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::forge::{Forge, opened};
use super::{Made, Make};
use crate::chance::Chance;
use crate::host;
use crate::report::Result;

/// Changes the directory of a valid session.
type Change = fn(&Made, &mut Chance) -> Result<()>;

const CHANGES: [(&str, Change); 33] = [
    ("1 MiB of random bytes behind an attested end", |made, chance| tail(made, &chance.bytes(1 << 20))),
    ("1 MiB of zeros behind the end", |made, _| tail(made, &vec![0; 1 << 20])),
    ("1 MiB of 0xff behind the end", |made, _| tail(made, &vec![0xff; 1 << 20])),
    ("the log again behind its end", |made, _| {
        let bytes = fs::read(first(made))?;
        tail(made, &bytes)
    }),
    ("headers of frames behind the end, each of 16 MiB", |made, _| {
        let mut header = [1; 28];
        header[8..12].copy_from_slice(&(16_u32 << 20).to_le_bytes());
        tail(made, &header.repeat(20_000))
    }),
    ("a byte 8 GiB behind the end", |made, _| {
        Ok(OpenOptions::new().write(true).open(first(made))?.write_all_at(b"x", 8 << 30)?)
    }),
    ("64 GiB of nothing behind the end", |made, _| {
        Ok(OpenOptions::new().write(true).open(first(made))?.set_len(64 << 30)?)
    }),
    ("100 bytes far apart in 4 GiB", |made, _| {
        let file = OpenOptions::new().write(true).open(first(made))?;
        Ok((1..100).try_for_each(|n| file.write_all_at(b"FOLDLOG\n", n * (40 << 20)))?)
    }),
    ("cut in the middle", |made, chance| cut(made, chance)),
    ("cut within the header", |made, _| Ok(OpenOptions::new().write(true).open(first(made))?.set_len(40)?)),
    ("an empty segment", |made, _| Ok(OpenOptions::new().write(true).open(first(made))?.set_len(0)?)),
    ("a later format", |made, _| {
        Ok(OpenOptions::new().write(true).open(first(made))?.write_all_at(&[9, 0], 8)?)
    }),
    ("a session's directory that is a link", |made, _| replaced_by_link(&made.session)),
    ("a segment that is a link", |made, _| replaced_by_link(&first(made))),
    ("a segment that is a link to nothing", |made, _| {
        replaced(&first(made), |path| symlink("/nowhere", path))
    }),
    ("a segment that is a link to an endless file", |made, _| {
        replaced(&first(made), |path| symlink("/dev/zero", path))
    }),
    ("a segment that is a pipe", |made, _| replaced(&first(made), pipe)),
    ("a segment that is a directory", |made, _| replaced(&first(made), |path| fs::create_dir(path))),
    ("an objects directory that is a link out of it", |made, _| {
        replaced_by_link(&made.session.join("objects"))
    }),
    ("an object that is a pipe", |made, _| replaced(&object(made)?, pipe)),
    ("an object that is a link", |made, _| replaced_by_link(&object(made)?)),
    ("an object that is gone", |made, _| Ok(fs::remove_file(object(made)?)?)),
    ("an object that is longer by 8 GiB", |made, _| {
        Ok(OpenOptions::new().write(true).open(object(made)?)?.set_len(8 << 30)?)
    }),
    ("an object that is empty", |made, _| {
        Ok(OpenOptions::new().write(true).open(object(made)?)?.set_len(0)?)
    }),
    ("2,000 empty segments", |made, _| {
        (1..2_000).try_for_each(|n| Ok(fs::write(made.session.join(format!("{n:010}.seg")), [])?))
    }),
    ("3,000 segments that were never finished", |made, _| {
        (1..3_000)
            .try_for_each(|n| Ok(fs::write(made.session.join(format!("{n:010}.seg.new")), "FOLDLOG\n")?))
    }),
    ("the same segment under three ordinals", |made, _| {
        for ordinal in ["0000000001", "4294967295", "4294967294"] {
            fs::copy(first(made), made.session.join(format!("{ordinal}.seg")))?;
        }
        Ok(())
    }),
    ("images of anything", |made, chance| {
        fs::write(made.session.join("0000000000000000005.image"), chance.bytes(10_000))?;
        for n in [1, 3, 6] {
            fs::write(made.session.join(format!("{n:010}.image")), chance.bytes(10_000))?;
            fs::write(made.session.join(format!("{n:020}.image")), "FOLDLOG\n")?;
        }
        Ok(())
    }),
    ("an image of 16 GiB of nothing", |made, _| {
        for name in ["0000000006.image", "00000000000000000006.image"] {
            File::create(made.session.join(name))?.set_len(16 << 30)?;
        }
        Ok(())
    }),
    ("files that belong to nobody", |made, chance| {
        for name in ["\u{1b}[31m", "-rf", "seg", ".seg", "00.seg", "\u{202e}.image", "new\nline"] {
            fs::write(made.session.join(name), chance.bytes(100))?;
            fs::create_dir_all(made.store.join("sessions").join(format!("directory {name}")))?;
        }
        Ok(())
    }),
    ("locks and writers of anything", |made, chance| {
        fs::create_dir_all(made.store.join("writers"))?;
        let name = made.session.file_name().unwrap_or_default().to_string_lossy().into_owned();
        fs::write(made.store.join("writers").join(format!("{name}.json")), chance.bytes(1 << 20))?;
        let _ = fs::remove_file(made.store.join("writers.lock"));
        Ok(symlink("/nowhere", made.store.join("writers.lock"))?)
    }),
    ("1,000 sessions of nothing", |made, chance| {
        for _ in 0..1_000 {
            let mut id = [0; 16];
            id.copy_from_slice(&chance.bytes(16));
            let id = uuid::Builder::from_random_bytes(id).into_uuid();
            fs::create_dir_all(made.store.join("sessions").join(id.to_string()))?;
        }
        Ok(())
    }),
    ("a directory of itself within itself", |made, _| {
        Ok(symlink(&made.session, made.session.join("objects").join("again"))?)
    }),
];

/// Number of sessions that are changed at random bytes.
const MUTATED_SHORT: u64 = 6;
const MUTATED_LONG: u64 = 60;

pub(super) fn shapes(seed: u64, long: bool) -> Vec<(String, Make)> {
    let mut shapes: Vec<(String, Make)> = Vec::new();
    for (name, change) in CHANGES {
        let make: Make = Box::new(move |base| {
            let made = sound(base)?;
            change(&made, &mut Chance::new(seed))?;
            Ok(made)
        });
        shapes.push((name.to_owned(), make));
    }
    let unattested: Make = Box::new(move |base| {
        let mut forge = Forge::new(seed)?;
        (0..200).try_for_each(|n| forge.text(&format!("number {n}")))?;
        let made = forge.write(base)?;
        tail(&made, &Chance::new(seed).bytes(1 << 20))?;
        Ok(made)
    });
    shapes.push(("1 MiB of random bytes behind an unattested end".to_owned(), unattested));
    let no_first: Make = Box::new(move |base| {
        let mut forge = Forge::empty(seed, 0);
        forge.text("before any first record")?;
        forge.write(base)
    });
    shapes.push(("no first record".to_owned(), no_first));
    let many: Make = Box::new(move |base| segments(seed, base, 400));
    shapes.push(("400 segments of one record".to_owned(), many));
    for which in 0..if long { MUTATED_LONG } else { MUTATED_SHORT } {
        let make: Make = Box::new(move |base| {
            let made = sound(base)?;
            let mut chance = Chance::of(seed, which);
            let file = OpenOptions::new().read(true).write(true).open(first(&made))?;
            let len = 84 + chance.below(20_000);
            for _ in 0..1 + chance.below(12) {
                let bytes = chance.bytes(1 + usize::try_from(which % 5).unwrap_or_default());
                file.write_all_at(&bytes, chance.below(len))?;
            }
            Ok(made)
        });
        shapes.push((format!("random bytes changed, number {which}"), make));
    }
    shapes
}

/// Writes a session as a host does, with an object, snapshots and rollbacks.
fn sound(base: &Path) -> Result<Made> {
    let store = host::store(&base.join("store"), Durability::Boundary)?;
    let session = store.create(&host::types()?)?;
    for n in 0..120 {
        session.dispatch(host::said(3, n))?;
        if n % 40 == 20 {
            let snapshot = session.snapshot(SnapshotOptions::with_tag("here"))?;
            session.dispatch(host::Said { n, text: "x".repeat(100_000) })?;
            session.rollback(&snapshot)?;
        }
    }
    let last = session.log().position().unwrap_or_default();
    let made = Made { store: store.path().to_owned(), session: session.dir().to_owned(), last: last.get() };
    session.close()?;
    Ok(made)
}

fn first(made: &Made) -> PathBuf {
    made.session.join("0000000000.seg")
}

fn object(made: &Made) -> Result<PathBuf> {
    let mut objects = fs::read_dir(made.session.join("objects"))?;
    Ok(objects.next().ok_or("the session has no object")??.path())
}

fn tail(made: &Made, bytes: &[u8]) -> Result<()> {
    let last = fs::read_dir(&made.session)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
        .max()
        .ok_or("a session has a segment")?;
    Ok(OpenOptions::new().append(true).open(last)?.write_all(bytes)?)
}

fn cut(made: &Made, chance: &mut Chance) -> Result<()> {
    let file = OpenOptions::new().write(true).open(first(made))?;
    Ok(file.set_len(84 + chance.below(8_000))?)
}

fn replaced(path: &Path, by: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    fs::remove_file(path)?;
    Ok(by(path)?)
}

fn pipe(path: &Path) -> std::io::Result<()> {
    Ok(mkfifo(path, Mode::S_IRWXU)?)
}

/// Moves a file or directory aside and leaves a link to it.
fn replaced_by_link(path: &Path) -> Result<()> {
    let elsewhere = path.ancestors().nth(3).unwrap_or(path).join("elsewhere");
    fs::rename(path, &elsewhere)?;
    Ok(symlink(&elsewhere, path)?)
}

/// Makes a session of many segments, none of them sealed.
fn segments(seed: u64, base: &Path, count: u32) -> Result<Made> {
    let id = Forge::empty(seed, 0).id;
    let mut forge = Forge::segment(id, 0, 0, 1, None);
    forge.record(RecordKind::Opened, &opened(id, |_| {}, 0))?;
    forge.declare("e", "s")?;
    for ordinal in 0..count {
        forge.text("one")?;
        forge.write_as(base, ordinal)?;
        let (next, previous) = (forge.next, forge.end(ordinal));
        forge = Forge::segment(id, ordinal + 1, next, u64::from(ordinal) + 2, Some(previous));
    }
    forge.write_as(base, count)
}
