//! The command line: the verbs with their options and help, and [`run`], which runs one.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::PathBuf;

use chrono::{DateTime, Utc};
use clap::{ColorChoice, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use foldlog::{OperationId, SequenceNumber};
use foldlog_codec::escape;
use uuid::Uuid;

use crate::failure::{Failure, HOLDS, Result, UNUSABLE};
use crate::output::Output;
use crate::reading::Position;
use crate::verbs;
use crate::verbs::export::{Compress, Format, Target};
use crate::verbs::sessions::{Since, Sort, Status};
use crate::verbs::settle::Settled;
use crate::verbs::tail::Start;
use crate::verbs::transcript;

/// Runs agents as sessions, and reads, checks and repairs the logs of sessions without the code that wrote them.
///
/// STORE is a folder of sessions, SESSION the folder of one: STORE/sessions/ID. Records are numbered from 0; a position is
/// the number of the last record at some moment, or the tag of a snapshot (`tag:NAME` where NAME is a number). Only `run`,
/// `recover`, `restore`, `rewind`, `settle` and `validate --repair` write into a session.
///
/// Exit codes: 0 what was asked holds; 1 a log does not hold (corrupt or diverged); 2 wrong usage, something cannot be read,
/// or a run gave no answer.
#[derive(Debug, Parser)]
#[command(name = "foldlog", version, max_term_width = 100)]
struct Arguments {
    /// Print JSON: one document, or for lists one object a line
    #[arg(long, global = true)]
    json: bool,
    /// Refuse a log that takes more memory than this, in bytes or as 64M or 1GiB [default: 64M, and for verbs that ask for
    /// slices three times the log's bytes on top]
    #[arg(long, global = true, value_name = "BYTES", value_parser = bytes)]
    memory: Option<u64>,
    #[command(subcommand)]
    verb: Verb,
}

/// Reads a number of bytes: digits alone, or digits with K, M, G, KiB, MiB or GiB behind them, which are powers of 1024.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return Err("give a number of bytes, such as 67108864, 64M or 1GiB".to_owned()),
    };
    let number: u64 = number.parse().map_err(|error| format!("{error}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "the number is too large".to_owned())
}

/// Describes the fields of `verify --json`.
const VERIFY_JSON: &str = "\
With --json one object:
  sessions, passed_over, records, bytes, torn_bytes
  corrupt      damaged places: session, segment, offset, sequence, reason;
               follows: the sound frames up to the next place: segment, offset, records, sequences (first and last)
  torn         session, segment, offset, sequence, bytes
  unsupported  session, sequence, kind; exposed: session, path, mode; unreadable: path, reason";

/// Describes the fields of `stats --json`; [`verbs::stats::Stats`] describes them one by one.
const STATS_JSON: &str = "\
`rollbacks` counts records of that kind. The end of a call that was rolled back is a `tool_end`.

With --json one object. `bytes` and fields that end in `_bytes` are bytes, other numbers count things:
  session, records, live_records, abandoned_records, snapshots, rollbacks,
  used_bytes, allocated_bytes, segment_header_bytes, torn_bytes,
  segments  ordinal, session, first_sequence, records, used_bytes, allocated_bytes, compression,
            sealed
  kinds     kind, envelope, frames, bytes
  events    event, records, payload_bytes
  slices    slice, policy, live_items, live_bytes, ever_items, ever_bytes
  objects   count, bytes (in the folder), named_count, named_bytes (by records)
  images    name, bytes";

/// Says what a run passes on, and describes the fields of `run --json`.
const RUN_JSON: &str = "\
The program gets none of this process's variables but PATH, HTTPS_PROXY and the like, those given by --env, and:
  ANTHROPIC_API_KEY, ANTHROPIC_AUTH_TOKEN, ANTHROPIC_BASE_URL, ANTHROPIC_CUSTOM_HEADERS, CLAUDE_CODE_OAUTH_TOKEN,
  CLAUDE_CODE_MAX_RETRIES, CLAUDE_CODE_USE_BEDROCK, CLAUDE_CODE_USE_VERTEX
It sees no login of this user, reads no settings, and keeps no files: the session's folder alone resumes it.

Exit codes: 0 the run gave an answer; 1 the session's log does not hold; 2 wrong usage, or no answer.

With --json one object:
  session, dir    the session's id and folder
  recorded        whether the log answered, and no program ran
  text, stop      the answer, and why it ended
  requests, tool_calls, input_tokens, output_tokens, cache_read_tokens
  cost_usd        what the session's runs cost, as far as the program said; else null
If there is no answer, that object is:
  session, dir    null if no session was made or opened
  error, next     what happened, and what to do next, or null
  phase           which part of the run failed: request, response, tool, budget, deadline or prompt_render; else null
  exit_code";

/// Describes the fields of `sessions --json`.
const SESSIONS_JSON: &str = "\
With --json one object a line:
  session, status        the first that is true: damaged, unreadable, running, interrupted, unsettled, suspended, unclosed, closed
  records, log_bytes     of a damaged session those before its damage
  objects, object_bytes  in its folder
  created_at, last_at    times of its own first record and of its last one; tags
  parent                 session, how: fork, child; position or operation
  running                pid, host, since, ended: the process that has it open, as far as that left a note
  open                   calls that have begun and not ended: operation, tool, since
  unsettled, suspended   calls that were interrupted, and that wait for an answer: operation, tool, since
  damage                 where its sound part ends: segment, offset, sequence
  error                  why it cannot be read, or not all of it";

/// Describes the fields of `view --json`.
const VIEW_JSON: &str = "\
With --json one object, before the first page is asked for:
  url, port    the address with its token; nobody but you should know it";

/// Describes the fields of `ledger --json`.
const LEDGER_JSON: &str = "\
With --json one object a line, for each operation:
  operation    its id: the sequence number of its first begin
  parent       the operation within which it ran; undoes: the operation that it undid
  verifies     the operation about which it asked the outside, if any did
  asked_by     the answer that asked for it, by its sequence number, and which of the answer's calls it is
  call_id      the provider's id of the call, which may name several operations
  tool         its name; idempotency: whether it may be run again
  outcome      open, committed, failed, interrupted, suspended, settled, abandoned (committed or suspended, then rolled back)
  cause        why it failed; waits_for: what it waits for while it is suspended: asks, awaits, within
  effects      on anything that a rollback does not reach: none, unknown
  not_undone   changes of its resources that its rollback did not undo: resource, path, reason
  begin, end   sequence numbers of its latest run; elapsed_us: how long that took; runs: how many there were
  settled      decision, by, reason, sequence
With OPERATION and --json one object: these fields, and
  arguments    as they came; digest, question: of a call that asks
  each_run     begin, begun_at, end, ended_at, outcome, cause, elapsed_us, rolled_back, effects, not_undone, message, result
  undone_by    operations that undid it; calls: those within it: operation, tool, outcome, effects
  before       what has to be done before somebody can decide, or null
  decide       what can be decided: meaning, command";

/// Says what a recovery does, and describes the fields of `recover --json`.
const RECOVER_JSON: &str = "\
If it can be captured, what the call left half done is captured first, so that nothing is lost. No tool is run:
the host runs again the calls that may be, and the others wait for `foldlog settle`.

With --json one object:
  session
  ended         the calls that were open: operation, tool, call_id
  workspaces    name, root, snapshots;
                rebound: whether another folder took the place of the call's;
                overwritten: whether files of that folder were removed;
                removed_mark: what the mark said that --force removed
  marks         where no call has a workspace to be restored, the folders given with --force: root, removed_mark
  not_undone    changes of the call that were not undone, and what it left that was not captured: resource, path, reason
  unsettled     calls that the host runs again or a person settles: operation, tool, call_id

With --strategies and --json one object:
  crash         what a crash left: incomplete_writes, corrupted_files, orphaned_resources, detected_at; null if nothing
  strategies    strategy, impossible, new_session, position, tasks, completed_tasks, messages, files, lost_updates, lost
With --strategy and --json one object:
  session       the session that goes on; strategy, tasks, messages, lost_updates, lost
  differences   in what a session made of updates differs from the one that was read
  workspaces    restored: name, root of each workspace that went back; left: names of resources that stay as they are";

/// Describes the fields of `import aca --json`.
const ACA_JSON: &str = "\
With --json one object:
  session, dir      the new session
  exported_session  the session that was exported
  tasks, messages   how many there are
  differing         parts of the state that differ from what was exported
With --partial one object:
  session           the new session, which requires validation; null if nothing was imported
  impossible, position, tasks, completed_tasks, messages, files, lost_updates
  lost              what is lost with each file that is not what the manifest says";

/// Describes the fields of `import snapshot-json --json`.
const SNAPSHOT_JSON: &str = "\
With --json one object:
  session, dir     the new session
  exported_at_us   when the export was taken, in microseconds since 1970
  slices, items, conversations   how many there are";

/// Describes the fields of `backup --json`.
const BACKUP_JSON: &str = "\
With --json one object:
  copied       one for each session: session, dir, records, records_before, segments, objects, files, bytes, verified;
               dir: the copy; records_before: those of the older copy; segments, objects, files, bytes: what was copied now;
               files: what else is in the session's folder, such as captures of workspaces;
               verified: records that were read again from the copy and checked
  failed       sessions of a store that could not be copied: session, reason
  passed_over  number of folders of a store that hold no records";

/// Describes the fields of `compact --json`.
const COMPACT_JSON: &str = "\
With --json one object:
  session   id of the session
  through   position through which bodies were dropped; null if there was nothing to drop
  kept      positions at and before it at which the slices are known
  dropped   number of records whose bodies were dropped
  segments  number of segments that were written anew
  bytes     bytes that the compacted segments have less
  object_bytes  bytes of the objects that the dropped bodies named, which `gc` removes unless other records name them
  compressed  with --compress: compression, segments (files written anew), finished (segments that could be),
              bytes_before, bytes_after (of their files); else null
Of a whole store:
  compacted  the sessions of which something was dropped, each as above
  unchanged  number of sessions with nothing to drop
  open       ids of the sessions that are open for writing, and were left as they are
  failed     sessions that could not be compacted: session, reason";

/// Describes the fields of `gc --json`.
const GC_JSON: &str = "\
With --json one object:
  sessions  by their ids, those of which anything was removed: objects, captures, images, leftovers, bytes;
            objects: of large payloads; captures: objects of captures of workspaces; leftovers: what crashes have left;
            bytes: what the disk gets back
  skipped   by their ids, why nothing was removed of a session, or nothing of its captures
  left      what is in the place of a file or folder of the store's and is none, and was left alone: path, what
  all       what was removed of the whole store, with the same fields";

/// Describes the fields of `checkpoints --json`.
const CHECKPOINTS_JSON: &str = "\
With --json one object:
  latest       the checkpoint that `latest` stands for: the last one on the live path
  mismatch     why a hash does not fit the records; null if all do
  checkpoints  id, created_at, session_id, position, name, occasion, manifest, workspaces, resources, validation_hash;
               manifest: total_tasks, completed_tasks, active_tasks, file_modifications_count,
               conversation_messages_count, storage_size_bytes, dependencies";

/// Describes the fields of `restore --json`.
const RESTORE_JSON: &str = "\
With --json one object:
  checkpoint, position  what the session was restored to
  undo                  the checkpoint of what was there before
  rolled_back           the rollback's record
  applied               later updates that were applied again: their records, old and new
  refused               later updates that were not: sequence, reason
  workspaces            restored: name, root of each workspace that was; left: names of resources that stay as they are";

/// Says what a rewind does, and describes the fields of `rewind --json`.
const REWIND_JSON: &str = "\
A workspace goes back to what the last call before TO had left, or to what the first call behind TO found if there was none.
Files that were changed by hand since the last call are kept whole, also those whose permissions alone were changed; files
that were removed by hand stay removed. What captures leave out, and resources that are no folders, stay as they are.
--undo goes back to before the last rewind, also after later work, which it abandons. --preview tells what either would do.

With --json one object:
  operation    the rewind's own, by which `foldlog ledger` knows it; undoes: the one that it undid
  rolled_back  sequence, to, abandoned, outside: calls that may have effects outside, which stay
  resources    name, capture (record, of), created, modified, removed, kept (path, by_hand, otherwise, in_place_of), kept_more,
               left_out
  left         name, reason of each resource that stays as it is
  not_undone   resource, path, reason of what was restored otherwise
and with --preview:
  from, to, undoes, left, abandoned
  resources    name, capture, kept, left_out, files: path, change, before, after (len, permissions), diff (form: text, binary,
               too_long, equal; unified)
  slices, conversations  items, messages and turns, before and after; differences: as `foldlog diff --json` has them
  tags         tag, position of snapshots that would be abandoned
  outside      operation, tool, call_id, idempotency";

/// Describes the fields of `pending --json`.
const PENDING_JSON: &str = "\
With --json one object a line:
  session, operation   what `foldlog settle` needs
  tool, call_id        its name, and the provider's id of the call
  asked_by             the answer that asked for the call, and which of its calls it is
  parent               the operation within which it ran
  waits_for            approval, result
  question, arguments  as the tool and the model gave them
  digest               BLAKE3 of the arguments, which an approval names
  asked_at, expires_at times; a call that nobody answers in time has failed";

/// Describes the fields of `tasks --json`.
const TASKS_JSON: &str = "\
With --json one object:
  tasks             by their ids: id, number, parent, title, description, status, reason, status_at, priority, dependencies (on, kind),
                    attempts, failures, created_at, updated_at, fields
  root_tasks        ids of the tasks without a parent
  active_task       id of the task that was started last and is in progress
  task_counter      number of tasks that were created
  dependency_graph  what each task that depends on others depends on
  scheduling_state  ready, blocked (task, waits), in_progress, failed";

/// Describes the fields of `validate --json`.
const VALIDATE_JSON: &str = "\
The exit code is 1 if something critical is left. With --json one object:
  position     where the state was read; is_valid: whether nothing critical was found there
  issues       rule (name, component, rule_type, severity), error (its kind and facts), suggested_repair (steps)
  repair_plan  steps (rule, step and the event's fields) in their order; unrepairable (issue, why)
  repair       with --repair: done (rule, step, record), refused, result (is_valid, issues, repair_plan) afterwards";

/// Describes what `transcript --json` prints.
const TRANSCRIPT_JSON: &str = "\
With --json and the formats text and markdown one object a line, for each message:
  role, content, tool_calls (call_id, name, arguments), tool_call_id, name, created_at, message_id, is_error,
  blocks (format, json: the content in a provider's own form)
With --json and the format anthropic one object: system, messages.";

/// Describes the fields of `salvage --json`.
const SALVAGE_JSON: &str = "\
With --json one object:
  session, dir     the new session
  from             the damaged session
  records          number of records that were copied: those below this sequence number
  objects          number of objects that were copied
  damage           the error with which the damaged session does not open; null if it opens
  segment, offset  where its sound part ends
  mended           damaged places that what follows them proves: segment, offset
  left             what was not copied: segment, offset, bytes, records, sequences, more, reason
  missing_objects  objects that are missing or damaged: sequence, path, reason
  open, unsettled  calls to be recovered, and to be settled: operation, tool
  beside           other files in the session's folder, which were not copied";

/// Describes the fields of `import claude-code --json`.
const CLAUDE_CODE_JSON: &str = "\
With --json one object:
  sessions, messages, records, rollbacks, log_bytes, seconds
  lines, rewinds, agents   lines of all files, rewinds, and sub-agents that became child sessions
  findings                 kind, file, line; id: what is missing or repeated; lines: how many repeat earlier ones
The kinds are dangling_parent, dangling_logical_parent, cycle, second_beginning, torn_line, malformed_line,
replayed_lines, repeated_uuid, agent_without_call, call_without_result.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show what foldlog is for: write, kill, recover, roll back, fork, verify, replay.
    Demo {
        /// Keep the store in this folder, which must be new or empty. Without it the store is temporary.
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Copy a session, or all sessions of a store, into another store, or what is new of them.
    ///
    /// The sessions may be written meanwhile. An older copy in DIR is gone on with, if it is the beginning of the session; else
    /// it is left as it is, and what differs is said. What was copied is checked before it counts. A kill at any moment leaves the
    /// older copy. DIR is a store: to restore is to open it. Captures of workspaces are copied where they are kept in the session's
    /// folder, as `foldlog run` keeps them; workspaces are not.
    #[command(after_help = BACKUP_JSON)]
    Backup {
        /// The session's folder, or the store's.
        #[arg(value_name = "SESSION|STORE")]
        from: PathBuf,
        /// Folder of the store of the copies; it is created if it does not exist.
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        /// Copy the newest image too, so that the copy opens as fast as the session.
        #[arg(long)]
        images: bool,
    },
    /// Drop the bodies of STATE that nothing needs any more, of a session that is not open for writing; compress its segments.
    ///
    /// With --compress the files of finished segments are kept compressed, or made plain again by --compress none; they are read as
    /// before, and nothing is lost. With --compress and --keep all nothing else is done: no body is dropped.
    ///
    /// What the slices hold now stays, and so do LOG slices, calls, conversations, times and the hashes of what is dropped. Positions
    /// that are not kept cannot be gone back to any more. Forks that were made before have their own files.
    #[command(after_help = COMPACT_JSON)]
    Compact {
        /// The session's folder, or a store's: then each of its sessions that is not open is compacted.
        #[arg(value_name = "SESSION|STORE")]
        path: PathBuf,
        /// Which snapshots keep their positions.
        #[arg(long, value_enum, default_value_t)]
        keep: verbs::compact::Kept,
        /// Another position that is kept; may be given several times.
        #[arg(long = "keep-position", value_name = "POSITION")]
        positions: Vec<u64>,
        /// Keep the bodies of the last DAYS days.
        #[arg(long = "keep-days", value_name = "DAYS")]
        days: Option<u64>,
        /// How the files of finished segments are kept. Left out, they stay as they are.
        #[arg(long, value_enum, value_name = "CODEC")]
        compress: Option<verbs::compact::Compress>,
        /// Compress segments from BYTES on, in place of 64 KiB.
        #[arg(long = "compress-from", value_name = "BYTES", requires = "compress")]
        compress_from: Option<u64>,
        /// Tell what would be dropped and compressed, and change nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Tell which files of a store nothing needs any more, or remove them with --yes.
    ///
    /// That is, objects of bodies that `compact` has dropped, captures of workspaces that no rewind is to need, old images, and what
    /// crashes have left. Captures of the latest calls, of calls that are open or wait for somebody, of the last rewind, and of
    /// snapshots that are kept stay. Sessions that are open or damaged are skipped.
    #[command(after_help = GC_JSON)]
    Gc {
        /// The folder of a store, or of a session of one.
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// Which snapshots keep their captures.
        #[arg(long, value_enum, default_value_t)]
        keep: verbs::compact::Kept,
        /// Keep the captures of the latest N calls of each session [default: 100].
        #[arg(long = "keep-calls", value_name = "N")]
        calls: Option<u64>,
        /// Keep the captures of the last DAYS days.
        #[arg(long = "keep-days", value_name = "DAYS")]
        days: Option<u64>,
        /// Remove the files.
        #[arg(long)]
        yes: bool,
    },
    /// Import recorded runs of other tools' agents, and conversations, one session each.
    #[command(subcommand)]
    Import(ImportVerb),
    /// Run an agent's program over a workspace, as a session of a store, and print its answer.
    ///
    /// What is said and done is recorded before anything follows from it, and each call of a tool is a transaction over the
    /// workspace. A run that was cut short, in whatever way, is resumed by the same command with --resume.
    #[command(after_help = RUN_JSON)]
    Run(Box<verbs::run::Asked>),
    /// List the sessions of a store: who runs where, who was cut short in which tool, who waits, who is damaged.
    ///
    /// A session that is damaged or cannot be read is a row too, whatever tags and times are asked for. Each session is read from
    /// its newest image on: damage before that is found by `verify`.
    #[command(after_help = SESSIONS_JSON)]
    Sessions {
        /// The store's folder.
        #[arg(value_name = "STORE")]
        dir: PathBuf,
        /// Only sessions of which this is true; may be given several times.
        #[arg(long, value_enum)]
        status: Vec<Status>,
        /// Only sessions with a record since this time, such as 2027-01-31T12:00:00Z, or since so long ago: 30m, 12h, 7d.
        #[arg(long, value_name = "TIME")]
        since: Option<Since>,
        /// Only sessions with this tag, KEY or KEY=VALUE; may be given several times.
        #[arg(long = "tag", value_name = "TAG")]
        tags: Vec<String>,
        /// The order.
        #[arg(long, value_enum, default_value_t)]
        sort: Sort,
    },
    /// List the records, one a line, and whether each is live, abandoned by a rollback, or abandoned but for its item in a
    /// LOG slice, which stays (`log-only`).
    ///
    /// Of a damaged session the records before its first damage are listed; the same holds of state, diff, stats, ledger and
    /// export. They say where the sound part ends, and exit with 1. `tail` does so with damage behind the beginning of the
    /// segment in which it begins.
    Show {
        /// The session's folder.
        session: PathBuf,
        /// The first record.
        #[arg(long, value_name = "SEQUENCE", default_value_t)]
        from: SequenceNumber,
        /// The last record [default: the last one of the log].
        #[arg(long, value_name = "SEQUENCE")]
        to: Option<SequenceNumber>,
        /// Only records of this kind, such as `dispatch` or `rollback`.
        #[arg(long)]
        kind: Option<String>,
        /// Show what hosts and tools put into the records: values of events, arguments and results of calls.
        #[arg(long)]
        payload: bool,
        /// List the sound records behind damage too, as `unattached`: nobody knows what they followed.
        #[arg(long)]
        beyond_damage: bool,
    },
    /// List the last records, and with --follow further ones as another process writes them.
    Tail {
        /// The session's folder.
        session: PathBuf,
        /// How many records before the end.
        #[arg(short = 'n', long, default_value_t = 10, conflicts_with = "from")]
        lines: u64,
        /// The first record, in place of a number of records; with --follow it need not be written yet.
        #[arg(long, value_name = "SEQUENCE")]
        from: Option<SequenceNumber>,
        /// Go on as another process writes, until this one is interrupted.
        #[arg(short, long)]
        follow: bool,
    },
    /// Show the slices at a position.
    State {
        /// The session's folder.
        session: PathBuf,
        /// The position [default: the last one].
        #[arg(long, value_name = "POSITION")]
        at: Option<Position>,
        /// Only the slice of this name.
        #[arg(long, value_name = "NAME")]
        slice: Option<String>,
    },
    /// Show what changed between two positions, by slice and path.
    Diff {
        /// The session's folder.
        session: PathBuf,
        /// The position before.
        before: Position,
        /// The position after.
        after: Position,
    },
    /// Check every frame, body, seal and object of sessions or whole stores, and list all damaged places.
    ///
    /// Each place is listed once, with what of the log is sound behind it. Captures of workspaces are not checked: a restore checks them as it reads them.
    #[command(after_help = VERIFY_JSON)]
    Verify {
        /// Folders of sessions or stores.
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Fold a session from its first record, and check that its rollbacks restored what they claim.
    Replay {
        /// The session's folder.
        session: PathBuf,
        /// Check every rollback, not only 16 of them.
        #[arg(long)]
        thorough: bool,
    },
    /// Count what a session's log is made of, by segment, kind, event and slice.
    #[command(after_help = STATS_JSON)]
    Stats {
        /// The session's folder.
        session: PathBuf,
    },
    /// Write a session as one HTML file that a browser shows: its timeline, and its state at every step.
    Report(verbs::report::Arguments),
    /// Show a store or a session in a browser: its timeline, what there is at any step, and what is written meanwhile.
    ///
    /// Pages are served on 127.0.0.1 alone, to whoever knows the address with its token; whatever was said is shown. $BROWSER names
    /// the program that opens them, else xdg-open does. Nothing is written into the store.
    #[command(after_help = VIEW_JSON)]
    View(verbs::view::Arguments),
    /// Say what became of each tool call, or all that is known of one, with the commands that decide about it.
    #[command(after_help = LEDGER_JSON)]
    Ledger {
        /// The session's folder.
        session: PathBuf,
        /// The operation's id: what a person needs to decide about it, and what can be decided.
        operation: Option<OperationId>,
    },
    /// Print a conversation: what a provider would be sent, or what was recorded.
    ///
    /// Without --as-recorded, results stand behind their calls, calls have ids of their own, and what was shortened is
    /// left out. The formats openai and anthropic print one JSON array of messages; a history that the provider would
    /// refuse is an error then.
    #[command(after_help = TRANSCRIPT_JSON)]
    Transcript {
        /// The session's folder.
        session: PathBuf,
        /// The evaluation whose conversation is printed; may be left out if there is only one.
        #[arg(long, value_name = "ID")]
        evaluation: Option<String>,
        /// The position [default: the last one].
        #[arg(long, value_name = "POSITION")]
        at: Option<Position>,
        /// Print the messages as they were recorded, valid or not.
        #[arg(long)]
        as_recorded: bool,
        /// The form.
        #[arg(long, value_enum, default_value_t = transcript::Format::Text)]
        format: transcript::Format,
    },
    /// Restore the workspaces of an interrupted session and end its open calls, without its host. Writes into the session.
    #[command(after_help = RECOVER_JSON)]
    Recover {
        /// The session's folder.
        session: PathBuf,
        /// The folder of a workspace that the call worked on. `NAME=` may be left out if there is one workspace only.
        #[arg(long = "workspace", value_name = "NAME=DIR")]
        workspaces: Vec<String>,
        /// The folder that holds a workspace's captures, if it is not in the session's folder.
        #[arg(long, value_name = "NAME=DIR")]
        snapshots: Vec<String>,
        /// A folder that takes the place of a workspace which is gone, was replaced, or is a copy. It must be empty, unless
        /// --overwrite is given.
        #[arg(long, value_name = "NAME=DIR")]
        rebind: Vec<String>,
        /// Remove the files of a folder given by --rebind that the capture does not hold.
        #[arg(long, requires = "rebind")]
        overwrite: bool,
        /// Remove another session's mark from the folders given, also if no call is open. Only for a mark that is not true.
        #[arg(long)]
        force: bool,
        /// Tell what a crash left, and what each strategy would bring back. Writes nothing.
        #[arg(long, conflicts_with_all = ["strategy", "workspaces", "snapshots", "rebind", "force"])]
        strategies: bool,
        /// Go on by a strategy: latest, checkpoint:ID, updates (a new session made of the updates alone) or partial (a new
        /// session of what is sound). With latest and checkpoint:ID, the workspaces given go back too; else they stay as they are.
        #[arg(long, value_name = "STRATEGY", conflicts_with = "force")]
        strategy: Option<String>,
        /// The session's tree of files, as `foldlog export --format aca` wrote it: it is looked at too, and `partial` takes its
        /// sound files if nothing of the log is sound.
        #[arg(long, value_name = "DIR", conflicts_with = "force")]
        tree: Option<PathBuf>,
        /// The store of a new session [default: the session's own].
        #[arg(long, value_name = "DIR", requires = "strategy")]
        to: Option<PathBuf>,
        /// Who recovers the session by a strategy.
        #[arg(long, value_name = "WHO", requires = "strategy")]
        by: Option<String>,
        /// Why.
        #[arg(long, value_name = "WHY", requires = "strategy")]
        reason: Option<String>,
    },
    /// List the checkpoints of a session, and check their hashes.
    #[command(after_help = CHECKPOINTS_JSON)]
    Checkpoints {
        /// The session's folder.
        session: PathBuf,
    },
    /// Restore a session to a checkpoint, without its host. Writes into the session.
    ///
    /// What was there is kept as a checkpoint too, by which the restore can be undone. Workspaces stay as they are, unless their
    /// folders are given.
    #[command(after_help = RESTORE_JSON)]
    Restore {
        /// The session's folder.
        session: PathBuf,
        /// The checkpoint, as `foldlog checkpoints` lists it, or `latest`.
        checkpoint: String,
        /// Who restores the session.
        #[arg(long, value_name = "WHO")]
        by: String,
        /// Why.
        #[arg(long, value_name = "WHY")]
        reason: String,
        /// Apply the later events of tasks again, in order, as far as they are still legal.
        #[arg(long)]
        apply_later: bool,
        /// The folder of a workspace that is restored too. `NAME=` may be left out if there is one workspace only.
        #[arg(long = "workspace", value_name = "NAME=DIR")]
        workspaces: Vec<String>,
        /// Another folder that takes the place of a workspace's own: where that is gone, was replaced, or is a copy. It has to be
        /// empty.
        #[arg(long, value_name = "NAME=DIR")]
        rebind: Vec<String>,
        /// With --rebind, remove what is in the folder and not in the checkpoint.
        #[arg(long, requires = "rebind")]
        overwrite: bool,
        /// The folder that holds a workspace's captures, if it is not in the session's folder.
        #[arg(long, value_name = "NAME=DIR")]
        snapshots: Vec<String>,
    },
    /// Take a session back to a position, with the files of its workspaces, without its host. Writes into the session.
    ///
    /// What is there is captured first, and `--undo` brings it back. Files that were changed by hand since the last call are kept. Let
    /// nobody write into the folders meanwhile.
    #[command(after_help = REWIND_JSON)]
    Rewind {
        /// The session's folder.
        session: PathBuf,
        /// The position to go back to, or the tag of a snapshot.
        #[arg(required_unless_present = "undo", conflicts_with = "undo")]
        to: Option<Position>,
        /// Undo the last rewind.
        #[arg(long)]
        undo: bool,
        /// Tell what would change, with diffs. Writes nothing into the session's log.
        #[arg(long)]
        preview: bool,
        /// Take back what was changed by hand, too.
        #[arg(long)]
        overwrite: bool,
        /// Who rewinds the session.
        #[arg(long, value_name = "WHO", required_unless_present = "preview")]
        by: Option<String>,
        /// Why.
        #[arg(long, value_name = "WHY", required_unless_present = "preview")]
        reason: Option<String>,
        /// The folder of a workspace. `NAME=` may be left out if there is one workspace only.
        #[arg(long = "workspace", value_name = "NAME=DIR")]
        workspaces: Vec<String>,
        /// The folder that holds a workspace's captures, if it is not in the session's folder.
        #[arg(long, value_name = "NAME=DIR")]
        snapshots: Vec<String>,
        /// Another folder for a workspace, such as that of a backup or a copy. What is there is captured first. Files that are not as
        /// the last call left them count as changed by hand: an empty folder gets its files with --overwrite.
        #[arg(long, value_name = "NAME=DIR")]
        rebind: Vec<String>,
    },
    /// List the questions of suspended calls that wait for an answer, in all sessions of a store.
    ///
    /// A call that asks has done nothing yet: `foldlog settle` approves it, with the digest of its arguments, or refuses it.
    /// A call that waits for its result has done its part: `foldlog settle` brings the result.
    #[command(after_help = PENDING_JSON)]
    Pending {
        /// The store's folder.
        #[arg(value_name = "STORE")]
        dir: PathBuf,
    },
    /// Draw the tasks of a session as a tree: what each waits for, and what is next.
    ///
    /// [ ] pending, [#] blocked, [>] in progress, [x] completed, [!] failed, [-] skipped, [/] cancelled.
    #[command(after_help = TASKS_JSON)]
    Tasks {
        /// The session's folder.
        session: PathBuf,
        /// The position [default: the last one].
        #[arg(long, value_name = "POSITION")]
        at: Option<Position>,
    },
    /// Check whether the state of a session holds: tasks, conversations, files, logs and digests. With --repair writes into
    /// the session.
    ///
    /// Each issue is told with its severity, its rule, its facts and the event that would repair it. A repair dispatches
    /// these events, each recorded with who asked for it, and checks again. No task is removed. Reducers of the host do not
    /// see these events.
    #[command(after_help = VALIDATE_JSON)]
    Validate {
        /// The session's folder.
        session: PathBuf,
        /// The position [default: the last one].
        #[arg(long, value_name = "POSITION", conflicts_with = "repair")]
        at: Option<Position>,
        /// Dispatch the events that repair what does not hold.
        #[arg(long, requires = "by")]
        repair: bool,
        /// Who repairs.
        #[arg(long, value_name = "WHO", requires = "repair")]
        by: Option<String>,
        /// Why.
        #[arg(long, value_name = "WHY", requires = "repair", default_value = "it did not hold")]
        reason: String,
    },
    /// Record a person's decision about a call that was interrupted and cannot safely be run again, or that is suspended.
    /// Writes into the session.
    Settle {
        /// The session's folder.
        session: PathBuf,
        /// The operation's id, as `foldlog ledger` lists it.
        operation: OperationId,
        /// What is decided.
        #[arg(value_enum)]
        decision: Settled,
        /// Who decides.
        #[arg(long, value_name = "WHO")]
        by: String,
        /// Why.
        #[arg(long, value_name = "WHY")]
        reason: String,
        /// The result of a committed call, as JSON.
        #[arg(long, value_name = "JSON")]
        result: Option<String>,
        /// The text that the model reads [default: the result, or the reason].
        #[arg(long, value_name = "TEXT")]
        shown: Option<String>,
        /// The arguments that are approved: the digest that `foldlog pending` lists, or its first 12 digits or more.
        #[arg(long, value_name = "DIGEST")]
        arguments: Option<String>,
        /// The time from which on the approval does not count, such as 2027-01-31T12:00:00Z.
        #[arg(long, value_name = "TIME")]
        until: Option<DateTime<Utc>>,
    },
    /// Copy what is sound in a damaged session, before its first damage, into a new session. The damaged one is only read.
    ///
    /// Damage in a segment's header, or in a frame that holds no record, does not count if what follows proves what was
    /// there. No byte of a record is repaired: records behind a damaged one, behind a missing segment or behind a record
    /// whose object is missing are counted and not copied.
    #[command(after_help = SALVAGE_JSON)]
    Salvage {
        /// The damaged session's folder.
        session: PathBuf,
        /// The store of the new session; it is created if it does not exist.
        #[arg(long, value_name = "STORE")]
        to: PathBuf,
    },
    /// Print a session for other tools.
    Export {
        /// The session's folder.
        session: PathBuf,
        /// The position [default: the last one].
        #[arg(long, value_name = "POSITION")]
        at: Option<Position>,
        /// What to print.
        #[arg(long)]
        format: Format,
        /// The folder that the files of a transcript are written into. No file that is there is changed.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// The folder whose `.aca` the files of the format aca are written into: of those that are there, those that changed.
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
        /// What files of the format aca of 4 KiB and more are compressed by [default: none].
        #[arg(long, value_name = "CODEC")]
        compress: Option<Compress>,
    },
    /// Print a script that completes the verbs and options in a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Run the demo's child process, which writes until it is killed.
    #[command(hide = true)]
    DemoChild {
        /// The store's folder.
        store: PathBuf,
        /// The session's id.
        session: Uuid,
    },
}

#[derive(Debug, Subcommand)]
enum ImportVerb {
    /// Import a file of tau-bench: an array of runs with `task_id`, `trial` and `traj`.
    TauBench {
        /// The file.
        file: PathBuf,
        /// The store's folder; it is created if it does not exist.
        #[arg(long, value_name = "DIR")]
        store: PathBuf,
    },
    /// Import a conversation in OpenAI's form: a JSON array of messages, or one JSON object a line.
    Openai {
        /// The file.
        file: PathBuf,
        /// The store's folder; it is created if it does not exist.
        #[arg(long, value_name = "DIR")]
        store: PathBuf,
    },
    /// Import transcripts of Claude Code: NAME.jsonl, with the sub-agents in NAME/subagents.
    ///
    /// Every line is kept, and `foldlog export --format claude-code` writes the files again. Files that repeat or
    /// follow lines of each other become one session, others one each. A sub-agent becomes a child session of the call that started it, a
    /// rewind a rollback.
    #[command(after_help = CLAUDE_CODE_JSON)]
    ClaudeCode {
        /// The files.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// The store's folder; it is created if it does not exist.
        #[arg(long, value_name = "DIR")]
        store: PathBuf,
    },
    /// Import the tree of a session, which `foldlog export --format aca` wrote.
    ///
    /// Every file is compared with the tree's manifest first. The new session has another id; what else differs from what was
    /// exported is named.
    #[command(after_help = ACA_JSON)]
    Aca {
        /// The session's folder in a tree, or a folder with an `.aca` that holds one session.
        dir: PathBuf,
        /// The store's folder; it is created if it does not exist.
        #[arg(long, value_name = "DIR")]
        store: PathBuf,
        /// Take the files of a damaged tree that its manifest still vouches for. Tells what that would yield and what is lost with
        /// each other file, and imports it if --by and --reason are given.
        #[arg(long)]
        partial: bool,
        /// Who imports the sound files.
        #[arg(long, value_name = "WHO", requires_all = ["partial", "reason"])]
        by: Option<String>,
        /// Why.
        #[arg(long, value_name = "WHY", requires = "by")]
        reason: Option<String>,
    },
    /// Import the slices of a session, which `foldlog export --format snapshot-json` or another program wrote.
    ///
    /// The new session has another id. Its slices need no types: each keeps its policy and the very values of the session that
    /// was exported. Conversations become records again, and calls stay with the log that they were exported from.
    #[command(after_help = SNAPSHOT_JSON)]
    SnapshotJson {
        /// The file.
        file: PathBuf,
        /// The store's folder; it is created if it does not exist.
        #[arg(long, value_name = "DIR")]
        store: PathBuf,
    },
    /// Import trajectories of SWE-agent: one run a file, with `history`.
    SweAgent {
        /// The files.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// The store's folder; it is created if it does not exist.
        #[arg(long, value_name = "DIR")]
        store: PathBuf,
    },
}

/// Runs the binary with `arguments`, of which the first is the program's name, and returns its exit code.
///
/// The exit code is 0 if what was asked holds, 1 if a log does not hold, and 2 for wrong usage and for what cannot be read.
/// Errors are written to `output.stderr`, with what to do next.
pub fn run(arguments: impl IntoIterator<Item = OsString>, output: &mut Output<'_>) -> u8 {
    let color = if output.color { ColorChoice::Always } else { ColorChoice::Never };
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_run_as_json = asks_for_run_as_json(&arguments);
    let parsed = Arguments::command()
        .color(color)
        .try_get_matches_from(arguments)
        .and_then(|matches| <Arguments as clap::FromArgMatches>::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => return not_parsed(&error, is_run_as_json, output),
    };
    output.json = arguments.json;
    output.memory_bytes = arguments.memory;
    match verb(arguments.verb, output) {
        Ok(code) => code,
        Err(failure) if failure.is_closed_pipe() => HOLDS,
        Err(failure) => {
            output.note(format_args!("error: {failure}"));
            if let Some(next) = failure.next() {
                output.note(format_args!("  next: {next}"));
            }
            failure.exit_code()
        }
    }
}

/// Returns whether arguments that cannot be parsed are those of `run --json`.
fn asks_for_run_as_json(arguments: &[OsString]) -> bool {
    let is_option = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    let behind = arguments.iter().skip(1).zip(arguments);
    let mut words = behind.filter(|(word, before)| !is_option(word) && *before != "--memory");
    arguments.iter().any(|word| word == "--json") && words.next().is_some_and(|(verb, _)| verb == "run")
}

/// Prints what clap has to say in place of running a verb: help and version are results, anything else is wrong usage,
/// whose message quotes what was typed and is escaped for that. For `run --json` it is a result too.
fn not_parsed(error: &clap::Error, is_run_as_json: bool, output: &mut Output<'_>) -> u8 {
    let rendered = error.render();
    let plain = rendered.to_string();
    let is_plain = plain.lines().all(|line| matches!(escape::text(line), Cow::Borrowed(_)));
    let text = match (is_plain, output.color) {
        (true, true) => rendered.ansi().to_string(),
        (true, false) => plain.clone(),
        (false, _) => plain.lines().map(escape::text).collect::<Vec<_>>().join("\n"),
    };
    if error.use_stderr() {
        // If standard error is gone, nobody is left to be told.
        let _ = writeln!(output.stderr, "{}", text.trim_end());
        if is_run_as_json {
            // As above.
            let _ = output.value(&verbs::run::Failed::of_options(&plain));
        }
        return UNUSABLE;
    }
    match writeln!(output.stdout, "{}", text.trim_end()).map_err(Failure::from) {
        Err(failure) if !failure.is_closed_pipe() => UNUSABLE,
        _ => HOLDS,
    }
}

fn verb(verb: Verb, output: &mut Output<'_>) -> Result<u8> {
    match verb {
        Verb::Demo { dir } => verbs::demo::run(dir.as_deref(), output),
        Verb::Backup { from, to, images } => verbs::backup::run(&from, &to, images, output),
        Verb::Compact { path, keep, positions, days, compress, compress_from, dry_run } => {
            let asked = verbs::compact::Asked { keep, positions, days, compress, compress_from, dry_run };
            verbs::compact::run(&path, &asked, output)
        }
        Verb::Gc { path, keep, calls, days, yes } => {
            verbs::gc::run(&path, &verbs::gc::Asked { keep, calls, days, yes }, output)
        }
        Verb::Import(ImportVerb::TauBench { file, store }) => verbs::import::tau_bench(&file, &store, output),
        Verb::Import(ImportVerb::SweAgent { files, store }) => {
            verbs::import::swe_agent(&files, &store, output)
        }
        Verb::Import(ImportVerb::ClaudeCode { files, store }) => {
            verbs::import::claude_code(&files, &store, output)
        }
        Verb::Import(ImportVerb::Aca { dir, store, partial, by, reason }) => {
            let partial =
                partial.then(|| verbs::import::Partial { by: by.as_deref().zip(reason.as_deref()) });
            verbs::import::aca(&dir, &store, partial.as_ref(), output)
        }
        Verb::Import(ImportVerb::SnapshotJson { file, store }) => {
            verbs::import::snapshot_json(&file, &store, output)
        }
        Verb::Import(ImportVerb::Openai { file, store }) => verbs::import::openai(&file, &store, output),
        Verb::Run(asked) => verbs::run::run(&asked, output),
        Verb::Sessions { dir, status, since, tags, sort } => {
            let asked = verbs::sessions::Asked { status, since, tags, sort };
            verbs::sessions::run(&dir, &asked, output)
        }
        Verb::Show { session, from, to, kind, payload, beyond_damage } => {
            let asked = verbs::show::Asked { from, to, kind: kind.as_deref(), payload, beyond_damage };
            verbs::show::run(&session, &asked, output)
        }
        Verb::Tail { session, lines, from, follow } => {
            verbs::tail::run(&session, from.map_or(Start::Last(lines), Start::From), follow, output)
        }
        Verb::Stats { session } => verbs::stats::run(&session, output),
        Verb::State { session, at, slice } => verbs::state::run(&session, at, slice.as_deref(), output),
        Verb::Diff { session, before, after } => verbs::diff::run(&session, before, after, output),
        Verb::Verify { paths } => verbs::verify::run(&paths, output),
        Verb::Replay { session, thorough } => verbs::replay::run(&session, thorough, output),
        Verb::Report(arguments) => verbs::report::run(&arguments, output),
        Verb::View(arguments) => verbs::view::run(&arguments, output),
        Verb::Ledger { session, operation } => verbs::ledger::run(&session, operation, output),
        Verb::Transcript { session, evaluation, at, as_recorded, format } => {
            let asked = transcript::Asked { evaluation: evaluation.as_deref(), at, as_recorded, format };
            transcript::run(&session, asked, output)
        }
        Verb::Checkpoints { session } => verbs::checkpoints::run(&session, output),
        Verb::Restore {
            session,
            checkpoint,
            by,
            reason,
            apply_later,
            workspaces,
            rebind,
            overwrite,
            snapshots,
        } => {
            let folders = &verbs::recover::Asked {
                workspaces: &workspaces,
                rebound: &rebind,
                overwrite,
                snapshots: &snapshots,
                force: false,
            };
            let (checkpoint, by, reason) = (checkpoint.as_str(), by.as_str(), reason.as_str());
            let asked = verbs::restore::Asked { checkpoint, by, reason, apply_later, folders };
            verbs::restore::run(&session, &asked, output)
        }
        Verb::Rewind {
            session,
            to,
            undo: _,
            preview,
            overwrite,
            by,
            reason,
            workspaces,
            snapshots,
            rebind,
        } => {
            let folders = &verbs::recover::Asked {
                workspaces: &workspaces,
                rebound: &rebind,
                overwrite: false,
                snapshots: &snapshots,
                force: false,
            };
            let (by, reason) = (by.as_deref(), reason.as_deref());
            let asked = verbs::rewind::Asked { to, preview, overwrite, by, reason, folders };
            verbs::rewind::run(&session, &asked, output)
        }
        Verb::Recover {
            session,
            strategies,
            strategy,
            tree,
            to,
            by,
            reason,
            workspaces,
            snapshots,
            rebind,
            overwrite,
            force,
        } => {
            let folders = &verbs::recover::Asked {
                workspaces: &workspaces,
                rebound: &rebind,
                overwrite,
                snapshots: &snapshots,
                force,
            };
            if !strategies && strategy.is_none() && tree.is_none() {
                return verbs::recover::run(&session, folders, output);
            }
            let (strategy, by, reason) = (strategy.as_deref(), by.as_deref(), reason.as_deref());
            let (to, tree) = (to.as_deref(), tree.as_deref());
            let asked = verbs::strategies::Asked { strategy, to, by, reason, tree, folders };
            verbs::strategies::run(&session, &asked, output)
        }
        Verb::Pending { dir } => verbs::pending::run(&dir, output),
        Verb::Tasks { session, at } => verbs::tasks::run(&session, at, output),
        Verb::Validate { session, at, repair: _, by, reason } => {
            let repairer = by.as_deref().map(|by| verbs::validate::Repairer { by, reason: &reason });
            verbs::validate::run(&session, at, repairer, output)
        }
        Verb::Settle { session, operation, decision, by, reason, result, shown, arguments, until } => {
            let decided = verbs::settle::Decided {
                operation,
                decision,
                by: &by,
                reason: &reason,
                result: result.as_deref(),
                shown: shown.as_deref(),
                arguments: arguments.as_deref(),
                until,
            };
            verbs::settle::run(&session, &decided, output)
        }
        Verb::Salvage { session, to } => verbs::salvage::run(&session, &to, output),
        Verb::Export { session, at, format, out, to, compress } => {
            verbs::export::run(&session, at, format, &Target { out, to, compress }, output)
        }
        Verb::Completions { shell } => {
            // Built in memory first: the generator panics where it cannot write.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "foldlog", &mut script);
            output.stdout.write_all(&script)?;
            Ok(HOLDS)
        }
        Verb::DemoChild { store, session } => verbs::demo::write_until_killed(&store, session, output),
    }
}
