//! Transcripts of Claude Code.

use std::fs;
use std::path::Path;

use foldlog::Store;
use foldlog::inspect::LogReader;
use foldlog_cli::runs::claude_code;

/// The most sub-agents of an input.
const AGENTS_MAX: usize = 4;

/// Reads the bytes as a transcript, and after each zero byte as that of a sub-agent.
///
/// # Panics
///
/// If a property is violated.
pub fn claude_code(bytes: &[u8]) {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let (file, store) = (directory.path().join("s.jsonl"), directory.path().join("store"));
    let agents = directory.path().join("s/subagents");
    let mut parts = bytes.splitn(AGENTS_MAX + 1, |byte| *byte == 0);
    fs::write(&file, parts.next().unwrap_or_default()).expect("there is room for a file");
    fs::create_dir_all(&agents).expect("there is room for a directory");
    for (number, part) in parts.enumerate() {
        fs::write(agents.join(format!("agent-{number}.jsonl")), part).expect("there is room for a file");
    }
    let imported = match claude_code::import(&store, std::slice::from_ref(&file)) {
        Ok(imported) => imported,
        Err(failure) => {
            assert!(!failure.to_string().is_empty());
            assert!(!store.exists() || ids(&store).is_empty(), "nothing is left behind");
            return;
        }
    };
    let ids = ids(&store);
    assert_eq!(ids.len() as u64, imported.written.sessions);
    assert_eq!(ids.len() as u64, imported.agents + 1);
    for finding in &imported.findings {
        assert!(!finding.to_string().chars().any(foldlog_codec::escape::is_escaped));
    }
    let mut exported = 0;
    for id in ids {
        let dir = Store::open(&store).expect("the store opens").session_dir(id);
        let reader = LogReader::open(dir).expect("it opens");
        reader.ledger().expect("it has a ledger");
        for evaluation in reader.evaluations_at(u64::MAX) {
            let conversation = reader.conversation_at(&evaluation, u64::MAX).expect("it is read");
            conversation.expect("it is there").sent_messages();
        }
        if reader.tags().contains_key("claude_code_session") {
            let out = directory.path().join("out");
            let written = claude_code::export(&reader, &out).expect("it comes out");
            assert_eq!(written.lines, imported.lines);
            assert_eq!(fs::read(out.join("s.jsonl")).ok(), fs::read(&file).ok());
            for entry in fs::read_dir(&agents).expect("it can be listed") {
                let path = entry.expect("it can be listed").path();
                let again = out.join(path.strip_prefix(directory.path()).expect("it is in the directory"));
                assert_eq!(fs::read(again).expect("it came out"), fs::read(path).expect("it is read"));
            }
            exported += 1;
        }
    }
    assert_eq!(exported, 1);
}

fn ids(store: &Path) -> Vec<uuid::Uuid> {
    Store::open(store).and_then(|store| store.session_ids()).expect("it can be listed")
}
