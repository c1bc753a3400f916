//! Writes a session for the tests of pages, and prints its folder: `sessions-to-show STORE history RECORDS SEED`, or
//! `sessions-to-show STORE hostile` or `sessions-to-show STORE edits`.

use std::path::Path;

use foldlog_tests::shown;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let dir = match arguments.as_slice() {
        [store, "history", records, seed] => {
            let number = |text: &str| text.parse().expect("RECORDS and SEED are numbers");
            shown::history(&shown::store(Path::new(store)), number(records), number(seed))
        }
        [store, "edits"] => shown::edits(&shown::store(Path::new(store)), &Path::new(store).join("work")).0,
        [store, "hostile"] => shown::hostile(&shown::store(Path::new(store))),
        _ => {
            eprintln!("usage: sessions-to-show STORE (history RECORDS SEED | hostile | edits)");
            std::process::exit(2);
        }
    };
    println!("{}", dir.display());
}
