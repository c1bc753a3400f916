//! Records the tool calls of coding agents in a directory, with the state of the directory's files
//! between them, and undoes single calls.
//!
//! The agents are programs that foldlog did not start, which report the beginning and the end of each
//! call through hooks, from processes that live for milliseconds; `foldlog run` reports calls of the
//! program that it starts. A [`Timeline`] belongs to
//! one directory, the root. It is a session of foldlog, next to a store of captures of the root, and
//! next to a second session with the agents' conversations.
//!
//! | module | contains |
//! |---|---|
//! | `places` | [`TimelinePlace`]: the directory of a root's timeline |
//! | `step` | [`Step`], [`Call`], [`Undo`]: the contents of records |
//! | `timeline` | [`Timeline`]: recording calls |
//! | `attribution` | the author of a change: the user, one step, or several |
//! | `further_roots` | the further roots of a session, and paths outside of all |
//! | `changes` | [`StepChanges`]: the changes of one step |
//! | `collection` | removing captures to free space, those of pinned steps last |
//! | `unreported` | closing calls without a reported end |
//! | `undo_plan` | [`UndoPlan`]: planning an undo |
//! | `selection` | which changes an undo reverses |
//! | `in_effect` | which changes are in effect after earlier undos and redos |
//! | `undo` | carrying a plan out |
//! | `undone` | [`UndoneSteps`]: which steps are undone, and which one is undone next |
//! | `ignored` | files with content that records omit |
//! | `transcripts` | how far the conversations of agents are imported |
//! | `times` | the times of the last change that an undo restores |
//! | `working_tree` | [`WorkingTree`]: repositories of git, and [`HeadChange`]: what a call committed |
//! | `removed_root` | a removed root: its last state, and its retention |
//! | `error` | [`Error`] |
//!
//! # Terms
//!
//! - A *step* is a call or an undo. Steps of one timeline are numbered from 1.
//! - A *lane* is an agent, or a sub-agent, of one session of a program. Calls of different lanes may
//!   overlap. In one lane, the next call's beginning closes an open call as interrupted, unless the
//!   program runs several at a time; if its end is reported nevertheless, the two have overlapped.
//! - A *moment* is the beginning or the end of a step, with a capture of the root.
//! - The root of a *session* is the directory in which its program was started. A session can have
//!   further roots, such as another repository; its calls are steps in the timelines of all of them.
//! - An *interval* is the time between two successive captures. Its *owners* are the steps that
//!   were open at any time in it. No interval spans a moment whose capture was removed.
//!
//! # Authors of changes
//!
//! | changed in an interval | the change belongs to |
//! |---|---|
//! | without an owner | the user |
//! | a path that a step of the interval owns (a file tool owns the path that it names, an undo all that it changes) | that step, first of all an undo |
//! | another path, in a linked working tree of git, if owners work in it | only they count in the next lines |
//! | another path, in a repository within the root in which the agent of an owner does not work, if it works in another linked working tree | that owner does not count in the next lines |
//! | another path, if one owner is not limited to its paths | that owner |
//! | another path, if several such owners overlap | these steps together: it is *shared* |
//! | another path, if all owners are limited to their paths | the user |
//! | before a call's tool was started, while a permission dialog was open | the user |
//!
//! # Invariants
//!
//! 1. Only a person starts an undo. A call without a reported end is closed as interrupted, and its
//!    changes stay.
//! 2. An undo changes only paths that the undone steps changed.
//! 3. An undo never removes or overwrites bytes that no capture contains
//!    ([`HostFilesystem::edit_paths`](foldlog::filesystem::HostFilesystem::edit_paths)).
//! 4. An undo is a step: undoing it brings everything back that it changed.
//! 5. A kill at any moment loses no recorded step, and leaves each file in its state before or after
//!    the undo.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod attribution;
mod changes;
mod collection;
mod error;
mod further_roots;
mod ignored;
mod in_effect;
mod places;
mod removed_root;
mod selection;
mod step;
mod timeline;
mod times;
mod transcripts;
mod undo;
mod undo_plan;
mod undone;
mod unreported;
mod working_tree;

pub use attribution::Intervals;
pub use changes::{ChangesReader, StepChanges};
pub use error::{Error, Result};
pub use further_roots::CallReach;
pub use ignored::{WITHHELD, names_secrets, read_patterns};
pub use places::TimelinePlace;
pub use step::{Call, Edge, Lane, Moment, Outcome, Step, StepChanged, StepKind, Undo};
pub use timeline::{CallEnd, NewCall, Timeline, TimelineOptions, shorten};
pub use transcripts::TranscriptImported;
pub use undo::UndoReport;
pub use undo_plan::{ChangedRepository, Conflict, FileUndo, UndoPlan};
pub use undone::{UndoneSteps, undone_calls};
pub use working_tree::{HeadChange, WorkingTree};
