//! Writes a session for the tests of pages, and prints its directory: `sessions-to-show STORE
//! history RECORDS SEED`, or with `long RECORDS` or one of `hostile`, `edits`, `work`, `fork`,
//! `spending` and `parting` in place of the last three words.
//!
//! `sessions-to-show STORE growing` prints its directory at once, and follows commands from its
//! input until that ends: `write COUNT` appends records, `rollback POSITION` rolls back. The answer
//! to each is the last record's number.

use std::path::Path;

use foldlog::SessionOptions;
use foldlog_test_support::host::{Noted, types};
use foldlog_tests::shown;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let dir = match arguments.as_slice() {
        [store, "history", records, seed] => {
            let number = |text: &str| text.parse().expect("RECORDS and SEED are numbers");
            shown::history(&shown::store(Path::new(store)), number(records), number(seed))
        }
        [store, "long", records] => {
            shown::long(&shown::store(Path::new(store)), records.parse().expect("RECORDS is a number"))
        }
        [store, "spending"] => shown::spending(&shown::store(Path::new(store))),
        [store, "parting"] => shown::parting(&shown::store(Path::new(store))),
        [store, "work"] => shown::work(&shown::store(Path::new(store))).0,
        [store, "fork"] => shown::work(&shown::store(Path::new(store))).1,
        [store, "edits"] => shown::edits(&shown::store(Path::new(store)), &Path::new(store).join("work")).0,
        [store, "growing"] => return grow(Path::new(store)),
        [store, "hostile"] => shown::hostile(&shown::store(Path::new(store))),
        _ => {
            eprintln!(
                "usage: sessions-to-show STORE (history RECORDS SEED | long RECORDS | hostile | edits | work | fork | spending | parting | growing)"
            );
            std::process::exit(2);
        }
    };
    println!("{}", dir.display());
}

fn grow(store: &Path) {
    let session = shown::store(store).create_with(&types(), SessionOptions::default()).expect("a session");
    println!("{}", session.dir().display());
    for line in std::io::stdin().lines() {
        let line = line.expect("lines");
        let (what, number) = line.split_once(' ').expect("a word and a number");
        let number: u64 = number.parse().expect("a number");
        match what {
            "write" => (0..number).for_each(|count| {
                session.dispatch(Noted { text: format!("note {count}") }).expect("a record");
            }),
            _ => drop(session.rollback_to(number).expect("a rollback")),
        }
        println!("{}", session.log().position().expect("a record"));
    }
    session.close().expect("the end");
}
