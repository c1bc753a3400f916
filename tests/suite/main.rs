//! The tests that cross crates, in one runner. `README.md` beside this folder maps the checklist to them.

mod bad_input;
mod binary;
mod crash;
mod damage;
mod filesystem;
mod following;
mod fuzz;
mod laws;
mod processes;
mod real_data;
mod session;
mod tools;
