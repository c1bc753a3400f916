//! The verbs, one file each, with their arguments and [facts](crate::command::CommandMetadata), and
//! the list of all.

pub mod backup;
pub mod candidates;
pub mod compact;
pub mod completions;
pub mod demo;
pub mod diff;
pub mod export;
pub mod gc;
pub mod hook;
pub mod import;
pub mod ledger;
pub mod log;
pub mod man;
pub mod pending;
pub mod pin;
pub mod recover;
pub mod replay;
pub mod replica;
pub mod report;
pub mod rewind;
pub mod run;
pub mod salvage;
pub mod sessions;
pub mod settle;
pub mod show;
pub mod state;
pub mod stats;
pub mod tail;
pub mod task;
pub mod transcript;
pub mod undo;
pub mod verify;
pub mod view;

use crate::command::commands;

commands! {
    /// The verb of a command line. The reference lists the verbs in this order, and so does the
    /// help, group by group.
    #[allow(clippy::large_enum_variant, reason = "a process has one of them")]
    Verb {
        Demo(demo::Args),
        Run(run::Args),
        #[command(subcommand)]
        Hook(hook::HookVerb),
        Log(log::Args),
        Undo(undo::Undo),
        Redo(undo::Redo),
        Oops(undo::Oops),
        Pin(pin::Args),
        Rewind(rewind::Args),
        Sessions(sessions::Args),
        Show(show::Args),
        Tail(tail::Args),
        State(state::Args),
        Diff(diff::Args),
        Transcript(transcript::Args),
        Ledger(ledger::Args),
        Stats(stats::Args),
        Report(report::Args),
        View(view::Args),
        Pending(pending::Args),
        Settle(settle::Args),
        Recover(recover::Args),
        Salvage(salvage::Args),
        Verify(verify::Args),
        Replay(replay::Args),
        Backup(backup::Args),
        Compact(compact::Args),
        Gc(gc::Args),
        #[command(subcommand)]
        Import(import::Args),
        Export(export::Args),
        Pull(replica::Pull),
        Push(replica::Push),
        Takeover(replica::TakeOver),
        #[command(subcommand)]
        Task(task::TaskVerb),
        Man(man::Args),
        Completions(completions::Args),
        Candidates(candidates::Args),
        DemoChild(demo::ChildArguments),
        // Former names of the commands of `task`.
        #[command(hide = true)]
        Tasks(task::list::Args),
        #[command(hide = true)]
        Validate(task::validate::Args),
        #[command(hide = true)]
        Checkpoints(task::checkpoints::Args),
        #[command(hide = true)]
        Restore(task::restore::Args),
    }
}
