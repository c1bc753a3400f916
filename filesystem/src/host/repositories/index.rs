//! Compares indexes of git without the cached stat data of files, which `git status` updates.
//!
//! ```text
//! header      "DIRC", version (4), number of entries (4)
//! entry       times, device and inode (24), mode (4), owner and length (12), id, flags (2; 2 more if bit 14 is set), the name, after
//!             its prefix's length in version 4, a zero; padded with zeros to 8 bytes before version 4
//! extension   name (4), length (4), content
//! checksum    as long as an id
//! ```

/// Range of the mode in an entry, and length of the part before the id.
const MODE: std::ops::Range<usize> = 24..28;
const STAT: usize = 40;

/// Bit of the first byte of flags that announces two more.
const IS_EXTENDED: u8 = 0x40;

/// Extensions that git derives from entries and files: trees, untracked files, changes, and offsets
/// of entries and extensions.
const DERIVED: [&[u8]; 5] = [b"TREE", b"UNTR", b"FSMN", b"IEOT", b"EOIE"];

/// Returns an index without its stat data and derived extensions, or `None` if it cannot be read.
pub(super) fn without_stats(index: &[u8]) -> Option<Vec<u8>> {
    [20, 32].into_iter().find_map(|id_len| read(index, id_len))
}

fn read(index: &[u8], id_len: usize) -> Option<Vec<u8>> {
    let content = index.get(..index.len().checked_sub(id_len)?)?;
    let (header, mut rest) = content.split_at_checked(12)?;
    let number = |bytes: &[u8]| Some(u32::from_be_bytes(*bytes.first_chunk()?));
    let version = number(header.strip_prefix(b"DIRC")?)?;
    let mut left = header.to_vec();
    for _ in 0..number(header.get(8..)?)? {
        let is_extended = rest.get(STAT + id_len)? & IS_EXTENDED != 0;
        let mut end = STAT + id_len + if is_extended { 4 } else { 2 };
        if version == 4 {
            end += 1 + rest.get(end..)?.iter().position(|byte| byte & 0x80 == 0)?;
        }
        end += 1 + rest.get(end..)?.iter().position(|byte| *byte == 0)?;
        if version < 4 {
            end = end.next_multiple_of(8);
        }
        let (entry, behind) = rest.split_at_checked(end)?;
        left.extend_from_slice(entry.get(MODE)?);
        left.extend_from_slice(entry.get(STAT..)?);
        rest = behind;
    }
    while !rest.is_empty() {
        let len = usize::try_from(number(rest.get(4..)?)?).ok()?;
        let (extension, behind) = rest.split_at_checked(len.checked_add(8)?)?;
        if !DERIVED.iter().any(|name| extension.starts_with(name)) {
            left.extend_from_slice(extension);
        }
        rest = behind;
    }
    Some(left)
}
