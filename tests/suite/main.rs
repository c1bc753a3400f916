//! The tests that cross crates, in one runner. `README.md` beside this folder says which behaviour each of them shows.

mod backups;
mod bad_input;
mod binary;
mod claude;
mod collection;
mod compaction;
mod compressed;
mod conversation;
mod crash;
mod damage;
mod failing;
mod filesystem;
mod following;
mod fuzz;
mod imports;
mod laws;
mod private;
mod processes;
mod proportion;
mod real_data;
mod replaying;
mod replicated;
mod replicated_captures;
mod replicated_claims;
mod replicated_lineages;
mod replicated_starts;
mod report;
#[cfg(feature = "sabotage")]
mod sabotage;
mod session;
mod tools;
mod view;
