//! The manual: pages that `man` shows, and how they are written into a directory.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use foldlog_test_support::runs::Json;
use foldlog_test_support::skipped;
use foldlog_tests::verbs::{Ran, foldlog};

fn man(words: &[&str]) -> Ran {
    foldlog([&["man"], words].concat())
}

/// Returns the text that `man` makes of a page, or `None` if there is no `man`.
fn rendered(page: &str) -> Option<String> {
    let mut command = Command::new("man");
    command.args(["--warnings", "-E", "UTF-8", "-l", "-"]).env("MANPAGER", "cat").env("MANWIDTH", "200");
    command.env("MAN_KEEP_FORMATTING", "").env("LC_ALL", "C.UTF-8");
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut process) = started else {
        skipped("there is no `man` here");
        return None;
    };
    process.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        skipped("`man` shows no pages here");
        return None;
    }
    assert_eq!(said, "", "the page is not as it should be");
    Some(String::from_utf8(output.stdout).unwrap())
}

fn files(dir: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    entries.map(|path| (named(path.clone()), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn each_verb_has_a_page() {
    let page = man(&[]);
    assert_eq!((page.code, page.stderr.as_str()), (0, ""));
    let parts =
        [".TH foldlog 1", ".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", ".SH SUBCOMMANDS", "foldlog\\-show(1)"];
    assert!(parts.iter().all(|part| page.stdout.contains(part)), "{}", page.stdout);
    assert!(!page.stdout.contains("demo\\-child") && !page.stdout.contains("candidates"), "{}", page.stdout);
    let ledger = man(&["ledger"]);
    assert_eq!(ledger.code, 0);
    let help = foldlog(["ledger", "--help"]).stdout;
    if let Some(text) = rendered(&ledger.stdout) {
        // The page contains the table of fields as in the help.
        let (_, fields) = help.split_once("With --json one object a line").unwrap();
        for line in fields.lines().skip(1) {
            assert!(text.contains(line.trim_start()), "{line:?} is not in the page:\n{text}");
        }
    }
    assert!(man(&["import", "aca"]).stdout.contains("foldlog\\-import\\-aca"));
    for wrong in [&["nothing"] as &[&str], &["show", "import"], &["import", "\u{1b}[2J"], &["demo-child"]] {
        let ran = man(wrong);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{wrong:?}");
        assert!(
            ran.stderr.starts_with("error: `foldlog") && !ran.stderr.contains('\u{1b}'),
            "{}",
            ran.stderr
        );
    }
}

/// `foldlog tasks` and `foldlog help tasks` worked, but `foldlog man tasks` was refused.
#[test]
fn a_former_name_of_a_command_has_a_page_too() {
    for name in ["tasks", "validate", "checkpoints", "restore"] {
        let page = man(&[name]);
        assert_eq!((page.code, page.stderr.as_str()), (0, ""), "{name}");
        assert!(page.stdout.contains(&format!("foldlog\\-{name}")), "{}", page.stdout);
    }
}

#[test]
fn pages_are_written_where_none_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("share").join("man1");
    let out = dir.to_str().unwrap();
    let ran = man(&["--out", out, "--json"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let written = files(&dir);
    let listed = Json::parse(&ran.stdout);
    let listed: Vec<_> = listed.get("pages").unwrap().elements().iter().filter_map(Json::as_str).collect();
    assert_eq!(listed.len(), written.len());
    assert!(listed.iter().all(|page| written.contains_key(*page)), "{listed:?}");
    assert_eq!(written["foldlog.1"], man(&[]).stdout);
    assert_eq!(written["foldlog-show.1"], man(&["show"]).stdout);
    assert_eq!(written["foldlog-import-aca.1"], man(&["import", "aca"]).stdout);
    assert!(written.len() > 30 && !written.contains_key("foldlog-demo-child.1"), "{listed:?}");
    // Pages refer only to existing pages.
    for (name, page) in &written {
        for named in page.split_whitespace().filter_map(|word| word.strip_suffix("(1)")) {
            let named = named.replace("\\-", "-").replace("\\fB", "");
            assert!(written.contains_key(&format!("{named}.1")), "{name} names {named}, which is no page");
        }
    }
    // One existing page prevents the writing of all others.
    fs::write(dir.join("foldlog-show.1"), "mine").unwrap();
    fs::remove_file(dir.join("foldlog.1")).unwrap();
    let refused = man(&["--out", out]);
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""));
    assert!(refused.stderr.contains("foldlog-"), "{}", refused.stderr);
    assert_eq!(fs::read_to_string(dir.join("foldlog-show.1")).unwrap(), "mine");
    assert!(!dir.join("foldlog.1").exists());
    // With --force a link is replaced, and its target is unchanged.
    let other = directory.path().join("other");
    fs::write(&other, "mine").unwrap();
    symlink(&other, dir.join("foldlog.1")).unwrap();
    let forced = man(&["--out", out, "--force"]);
    assert_eq!((forced.code, forced.stdout), (0, format!("{out}: {} pages\n", written.len())));
    assert_eq!(files(&dir), written);
    assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
    assert_eq!(man(&["--force"]).code, 2);
    assert_eq!(man(&["show", "--out", out]).code, 2);
}
