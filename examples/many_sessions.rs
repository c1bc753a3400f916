//! Stores many sessions in one store: writes them from several threads, forks one to try another
//! way, and lists them.
//!
//! `cargo run --bin many_sessions`

use std::thread;

use foldlog::{Event, SessionOptions, SessionTypes, Slice, Store};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Said {
    text: String,
}

impl Event for Said {
    const NAME: &'static str = "said";
}

struct Chat;

impl Slice for Chat {
    const NAME: &'static str = "chat";
    type Item = Said;
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    let store = Store::open(directory.path())?;

    // Threads can share a store and its sessions.
    thread::scope(|scope| {
        let users = ["ada", "grace", "barbara"].map(|user| {
            let (store, types) = (&store, &types);
            scope.spawn(move || -> foldlog::Result<()> {
                let options = SessionOptions::default().tag("user", user);
                let session = store.create_with(types, options)?;
                for n in 0..3 {
                    session.dispatch(Said { text: format!("{user} says {n}") })?;
                }
                session.close()
            })
        });
        users.into_iter().try_for_each(|user| user.join().unwrap_or(Ok(())))
    })?;

    // A fork starts at any position of its parent, and shares the records up to there.
    let first = store.session_ids()?.into_iter().next().ok_or("there is no session")?;
    let session = store.open_session(first, &types)?;
    let before_last = session.log().position().unwrap_or_default() - 1;
    let fork = store.fork(first, before_last, &types, SessionOptions::default())?;
    fork.dispatch(Said { text: "another way".to_owned() })?;
    println!("{} items, and {} in the fork", session.view::<Chat>()?.len(), fork.view::<Chat>()?.len());
    fork.close()?;
    session.close()?;

    let sessions = store.sessions()?;
    for (_, summary) in &sessions {
        let summary = summary.as_ref().map_err(Clone::clone)?;
        println!("{}: {} records", summary.tags.get("user").map_or("-", String::as_str), summary.records);
    }
    println!("{} sessions", sessions.len());
    Ok(())
}
