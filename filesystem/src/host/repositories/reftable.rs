//! Reads the refs of a repository in the format reftable.
//!
//! The file `tables.list` lists the tables in use, the oldest first. The last table that contains a
//! ref determines its value. Of a table, the ref blocks are read:
//!
//! ```text
//! header   "REFT", version (1), block size (3), two update indices (8 each); in version 2 the hash, "sha1" or "s256"
//! block    "r", length (3), records, restart offsets (3 each), their count (2); the first one also contains the header, and its
//!          length includes it; each is padded to the block size, unless that is 0
//! record   length of the prefix that it shares with the previous one, length of the rest * 8 + kind, the rest of the name, update
//!          index; then by kind: 0 (removed) nothing, 1 an id, 2 two ids, 3 the name of another ref after its length
//! ```
//!
//! Lengths in records have 7 bits in each byte, the highest first. Reading a damaged table stops at
//! the first invalid byte.

use std::collections::BTreeMap;

const TABLES: &str = "reftable/tables.list";

const MAGIC: &[u8] = b"REFT";

const HEADER: usize = 24;

/// Returns the refs of a repository, whose files `read` returns, and their ids, in hexadecimal.
pub(super) fn refs(read: impl Fn(&str) -> Vec<u8>) -> BTreeMap<String, String> {
    let (list, mut refs) = (read(TABLES), BTreeMap::new());
    let names = std::str::from_utf8(&list).unwrap_or_default().lines();
    for name in names.filter(|name| !name.contains('/')) {
        // Refs that were read before the table proved damaged count.
        let _ = add_table(&read(&format!("reftable/{name}")), &mut refs);
    }
    refs
}

fn add_table(table: &[u8], refs: &mut BTreeMap<String, String>) -> Option<()> {
    let (header, id_len) = match (table.strip_prefix(MAGIC)?.first()?, table.get(HEADER..HEADER + 4)?) {
        (1, _) => (HEADER, 20),
        (2, b"sha1") => (HEADER + 4, 20),
        (2, b"s256") => (HEADER + 4, 32),
        _ => return None,
    };
    let block_size = number(table.get(5..8)?);
    let (mut at, mut skipped) = (0, header);
    loop {
        let block = table.get(at..)?;
        if block.get(skipped) != Some(&b'r') {
            return Some(());
        }
        let length = number(block.get(skipped + 1..skipped + 4)?);
        let restarts = number(block.get(length.checked_sub(2)?..length)?);
        let records = block.get(skipped + 4..length.checked_sub(2 + 3 * restarts)?)?;
        add_records(records, id_len, refs)?;
        at += if block_size == 0 { length } else { block_size };
        skipped = 0;
    }
}

fn add_records(mut rest: &[u8], id_len: usize, refs: &mut BTreeMap<String, String>) -> Option<()> {
    let mut name = Vec::new();
    while !rest.is_empty() {
        let shared = length(&mut rest)?;
        let kind = length(&mut rest)?;
        name.truncate(shared);
        name.extend_from_slice(take(&mut rest, kind >> 3)?);
        length(&mut rest)?;
        let text = String::from_utf8_lossy(&name).into_owned();
        match kind & 7 {
            1 | 2 => {
                let id = take(&mut rest, id_len)?;
                refs.insert(text, id.iter().map(|byte| format!("{byte:02x}")).collect());
                if kind & 7 == 2 {
                    take(&mut rest, id_len)?;
                }
            }
            other => {
                refs.remove(&text);
                let target = if other == 3 { length(&mut rest)? } else { 0 };
                take(&mut rest, target)?;
            }
        }
    }
    Some(())
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

fn length(rest: &mut &[u8]) -> Option<usize> {
    let mut length: usize = 0;
    for at in 0.. {
        let [byte] = *take(rest, 1)?.first_chunk()?;
        let before = if at == 0 { 0 } else { length.checked_add(1)?.checked_mul(128)? };
        length = before.checked_add(usize::from(byte & 0x7f))?;
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some(length)
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(count)?;
    *rest = after;
    Some(taken)
}
