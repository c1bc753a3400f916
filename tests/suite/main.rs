//! The tests that cross crates, in one runner. `docs/internals/checklist.md` lists the behaviour
//! that each of them shows.

mod binary;
mod claude;
mod conversation;
mod crash;
mod damage;
mod fuzz;
mod imports;
mod laws;
mod proportion;
mod real_data;
mod replaying;
mod report;
mod view;
