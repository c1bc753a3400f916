//! A decoder of compressed segments that shares no code with the engine. It follows the
//! documentation of the format.

pub(super) struct Parts {
    pub(super) codec: u8,
    pub(super) plain_len: usize,
    pub(super) head: std::ops::Range<usize>,
    pub(super) table: std::ops::Range<usize>,
    pub(super) blocks: Vec<std::ops::Range<usize>>,
}

const BLOCK: usize = 64 << 10;

fn number(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// CRC-32, bit by bit.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 },
        )
    })
}

/// Parses a file, and checks each checksum and length in it.
pub(super) fn parts(file: &[u8]) -> Parts {
    assert_eq!(&file[..8], b"FOLDZIP\n");
    assert_eq!((number(&file[8..10]), file[11]), (1, 16));
    let plain_len = number(&file[16..24]);
    let head = 32..32 + plain_len.min(256);
    let count = plain_len.div_ceil(BLOCK);
    let table = head.end..head.end + 8 * count;
    assert_eq!(crc32(&file[..28]) as usize, number(&file[28..32]));
    assert_eq!(crc32(&file[head.clone()]) as usize, number(&file[12..16]));
    assert_eq!(crc32(&file[table.clone()]) as usize, number(&file[24..28]));
    let mut at = table.end;
    let mut blocks = Vec::new();
    for entry in file[table.clone()].chunks(8) {
        let block = at..at + number(&entry[..4]);
        assert_eq!(crc32(&file[block.clone()]) as usize, number(&entry[4..]));
        at = block.end;
        blocks.push(block);
    }
    assert_eq!(at, file.len(), "the file ends with its last block");
    Parts { codec: file[10], plain_len, head, table, blocks }
}

pub(super) fn decoded(file: &[u8]) -> Vec<u8> {
    let parts = parts(file);
    let mut plain = Vec::new();
    for block in &parts.blocks {
        let (stored, len) = (&file[block.clone()], BLOCK.min(parts.plain_len - plain.len()));
        let bytes = match parts.codec {
            _ if stored.len() == len => stored.to_vec(),
            1 => zstd::stream::decode_all(stored).unwrap(),
            2 => lz4(stored),
            other => panic!("codec {other}"),
        };
        assert_eq!(bytes.len(), len);
        plain.extend(bytes);
    }
    assert_eq!(&plain[..parts.head.len()], &file[parts.head]);
    plain
}

fn lz4(stored: &[u8]) -> Vec<u8> {
    let (mut at, mut plain) = (0, Vec::new());
    let length = |at: &mut usize, nibble: u8| {
        let mut length = usize::from(nibble);
        if nibble == 15 {
            loop {
                let more = stored[*at];
                *at += 1;
                length += usize::from(more);
                if more != 255 {
                    break;
                }
            }
        }
        length
    };
    while at < stored.len() {
        let token = stored[at];
        at += 1;
        let literals = length(&mut at, token >> 4);
        plain.extend_from_slice(&stored[at..at + literals]);
        at += literals;
        if at == stored.len() {
            break;
        }
        let back = number(&stored[at..at + 2]);
        at += 2;
        for _ in 0..length(&mut at, token & 15) + 4 {
            plain.push(plain[plain.len() - back]);
        }
    }
    plain
}
