//! Rewinds: session, conversations and files are restored together, changes by hand stay, and all
//! of it can be undone.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use foldlog::conversation::NewInput;
use foldlog::filesystem::{
    ChangeKind, ContentDiff, Filesystem, HostFilesystem, HostFilesystemOptions, InMemoryFilesystem,
};
use foldlog::replay::Replay;
use foldlog::tools::{CaptureMoment, RewindOptions, RewindReport};
use foldlog::{Policy, RecordKind, SequenceNumber, SnapshotOptions};
use foldlog_test_support::room::{Room, Script, root, runner_in, store_in};
use proptest::prelude::*;

use super::*;

fn step(title: &str) -> StepAdded {
    StepAdded { title: title.to_owned(), part: 0 }
}

fn files(held: &[(&str, &str)]) -> BTreeMap<String, String> {
    held.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

fn kept(report: &RewindReport) -> Vec<&str> {
    report.resources.iter().flat_map(|one| &one.kept).map(|kept| kept.path.as_str()).collect()
}

const OVERWRITE: RewindOptions = RewindOptions { overwrite: true, of: None, by: None, reason: None };

#[test]
fn session_conversation_and_files_go_back_together_and_come_again() {
    let room = Room::new();
    room.session().conversation().record_input(&NewInput::user("evaluation", "do it")).unwrap();
    room.call("printf one > page; mkdir d; printf x > d/x");
    let then = room.session().snapshot(SnapshotOptions::with_tag("then")).unwrap().position;
    room.session().conversation().record_input(&NewInput::user("evaluation", "go on")).unwrap();
    room.call("printf two > page; rm -r d; printf new > new");
    room.session().snapshot(SnapshotOptions::with_tag("later")).unwrap();
    let before = room.seen();
    let messages =
        |room: &Room| room.session().conversation().read("evaluation").unwrap().unwrap().messages().len();
    assert_eq!(messages(&room), 2);

    let preview = room.state().preview_rewind(then, &RewindOptions::default()).unwrap();
    let [workspace] = preview.resources.as_slice() else { panic!("{preview:?}") };
    let told: Vec<_> = workspace.files.iter().map(|file| (file.path.as_str(), file.change)).collect();
    let expected =
        [("d/x", ChangeKind::Created), ("new", ChangeKind::Removed), ("page", ChangeKind::Modified)];
    assert_eq!(told, expected);
    let diff = ContentDiff::Text {
        unified: "@@ -1 +1 @@\n-two\n\\ No newline at end of file\n+one\n\\ No newline at end of file\n"
            .to_owned(),
    };
    assert_eq!(workspace.files[2].diff, diff);
    let plan = preview.slices.iter().find(|slice| slice.name == "plan").unwrap();
    assert_eq!((plan.policy, plan.items_before, plan.items_after, plan.removed), (Policy::State, 2, 1, 1));
    let [conversation] = preview.conversations.as_slice() else { panic!("{preview:?}") };
    assert_eq!((conversation.messages_before, conversation.messages_after), (2, 1));
    assert_eq!(preview.tags.iter().map(|tag| tag.tag.as_str()).collect::<Vec<_>>(), ["later"]);
    let [outside] = preview.outside.as_slice() else { panic!("{preview:?}") };
    assert_eq!((outside.tool.as_str(), outside.idempotency), ("shell", Idempotency::Keyed));

    let report = room.rewind(then);
    assert_eq!(room.seen(), (vec![before.0[0].clone()], files(&[("d/x", "x"), ("page", "one")])));
    assert_eq!(messages(&room), 1);
    assert_eq!(report.rolled_back.outside.len(), 1);
    assert_eq!(report.resources[0].capture.of, CaptureMoment::CallEnded);
    let room = room.reopen();
    let undone = room.undo();
    assert_eq!(undone.undoes, Some(report.operation));
    assert_eq!((room.seen(), messages(&room)), (before, 2));
}

#[test]
fn what_was_changed_by_hand_is_kept_and_an_undo_brings_back_even_what_was_overwritten() {
    let room = Room::new();
    let then = room.call("printf one > page; printf one > other");
    room.call("printf two > page; printf two > other");
    room.by_hand("printf hand > page; printf mine > notes");
    let (_, before) = room.seen();
    let report = room.rewind(then);
    assert_eq!(kept(&report), ["notes", "page"]);
    assert_eq!(room.seen().1, files(&[("notes", "mine"), ("other", "one"), ("page", "hand")]));
    // After an earlier rewind they are still not a tool's files: they are kept again, and named,
    // also by an undo.
    let report = room.rewind(then);
    assert_eq!(kept(&report), ["notes", "page"]);
    room.undo();
    assert_eq!(room.seen().1, files(&[("notes", "mine"), ("other", "one"), ("page", "hand")]));
    room.undo();
    let report = room.rewind(then);
    assert_eq!(
        (kept(&report), room.file("page").unwrap().as_str(), room.file("notes").as_deref()),
        (vec!["notes", "page"], "hand", Some("mine"))
    );
    // After a call that worked with them, they belong to that call's result.
    room.call("true");
    let report = room.rewind(then);
    assert_eq!((kept(&report), room.file("page").unwrap().as_str()), (vec![], "one"));
    room.undo();
    assert_eq!(room.file("page").unwrap(), "hand");
    // Another rewind targets the start of the first one.
    let first = report.rolled_back.sequence;
    assert!(room.session().rollback_to(first).is_err(), "a position within a rewind is half of it");

    let room = Room::new();
    let then = room.call("printf one > page; printf one > other");
    room.call("printf two > page; printf two > other");
    room.by_hand("printf hand > page; printf mine > notes");
    let report = room.rewind_by(then, &OVERWRITE);
    assert_eq!((kept(&report), room.seen().1), (vec![], files(&[("other", "one"), ("page", "one")])));
    room.undo();
    assert_eq!(room.seen().1, before);
}

#[test]
fn an_undo_works_after_later_work_and_is_itself_undone() {
    let room = Room::new();
    let none = room.state().undo_rewind(&RewindOptions::default());
    assert!(matches!(none, Err(Error::NoRewind(_))), "{none:?}");
    let then = room.call("printf one > page");
    room.call("printf two > page");
    let first = room.seen();
    room.rewind(then);
    room.call("printf three > page; printf later > later");
    let second = room.seen();
    room.by_hand("printf mine > notes");
    let report = room.undo();
    assert_eq!(kept(&report), ["notes"]);
    let with_notes = |(plan, mut held): (Vec<String>, BTreeMap<String, String>)| {
        held.insert("notes".to_owned(), "mine".to_owned());
        (plan, held)
    };
    assert_eq!(room.seen(), with_notes(first.clone()));
    room.undo();
    assert_eq!(room.seen(), with_notes(second));
    // A plain restore, and a rollback of STATE alone, are not rewinds.
    let snapshot = room.state().snapshot(None).unwrap();
    room.state().restore(&snapshot).unwrap();
    room.undo();
    assert_eq!(room.seen(), with_notes(first));
}

/// After a rollback of STATE alone, the captures of the live path do not describe the files: tools'
/// changes would have counted as changes by hand, and stayed.
#[test]
fn what_tools_did_before_a_rollback_of_state_alone_is_nobodys_change_by_hand() {
    let room = Room::new();
    let then = room.call("printf one > page");
    room.call("printf two > page; printf new > new");
    room.session().rollback_to(then).unwrap();
    room.by_hand("printf mine > notes");
    let report = room.rewind(then);
    assert_eq!(kept(&report), ["notes"]);
    assert_eq!(room.seen().1, files(&[("notes", "mine"), ("page", "one")]));
    // Nor are they the files of the rollback's target.
    room.call("printf two > page");
    room.session().rollback_to(report.rolled_back.sequence + 1).unwrap();
    let behind = room.session().dispatch(step("behind")).unwrap();
    room.call("printf three > page");
    room.rewind(behind);
    assert_eq!(room.file("page").as_deref(), Some("one"));
}

/// A rewind once kept such files whole, with the changes of the tools that it undid.
#[test]
fn a_rewind_removes_the_lines_of_tools_from_a_file_that_was_also_changed_by_hand() {
    let room = Room::new();
    let then = room.call("seq 1 9 > page; seq 1 9 > near; echo a > alike");
    room.call("sed -i s/2/tool/ page near; printf new > new; echo a >> alike");
    // Without the second line of `alike`, an undo of the rewind could not bring that line back.
    room.by_hand("sed -i s/8/hand/ page; sed -i s/3/hand/ near; sed -i 1d near; sed -i 1ib alike");
    let before = room.seen();
    let report = room.rewind(then);
    let told: Vec<_> =
        report.resources[0].kept.iter().map(|kept| (kept.path.as_str(), kept.merged)).collect();
    assert_eq!(told, [("alike", false), ("near", false), ("page", true)]);
    let page = "1\n2\n3\n4\n5\n6\n7\nhand\n9\n";
    let near = "tool\nhand\n4\n5\n6\n7\n8\n9\n";
    assert_eq!(room.seen().1, files(&[("alike", "b\na\na\n"), ("near", near), ("page", page)]));
    let rewound = room.seen();
    for expected in [&before, &rewound, &before] {
        room.undo();
        assert_eq!(room.seen(), *expected);
    }
}

/// Files written by hand after a rewind's capture were removed for good: no capture contained them,
/// not even that for an undo.
#[test]
fn what_is_written_while_a_rewind_begins_is_kept_too() {
    let room = Room::new();
    let then = room.call("printf one > page; printf one > other");
    room.call("printf two > page; printf two > other; mkdir gone; printf new > gone/new");
    let root = root(room.directory.path());
    // The subscriber receives the start record, which names the capture, before anything is
    // restored.
    let subscription = room.session().log().subscribe(move |told| {
        if told.kind() == RecordKind::ToolBegin {
            fs::write(root.join("page"), "hand").unwrap();
            fs::write(root.join("gone/late"), "late").unwrap();
        }
    });
    let report = room.state().rewind(then, &RewindOptions::default()).unwrap();
    assert_eq!(kept(&report), ["gone/late", "page"]);
    let expected = files(&[("gone/late", "late"), ("other", "one"), ("page", "hand")]);
    assert_eq!(room.seen().1, expected);
    room.session().log().unsubscribe(subscription);
    // Nor does an undo remove it.
    let report = room.undo();
    assert_eq!(kept(&report), ["gone/late", "page"]);
    assert_eq!(room.file("page").unwrap(), "hand");
}

/// A rewind tried on another directory left that directory's capture as the last one. The next
/// rewind took the whole workspace for changes by hand, and left it unchanged.
#[test]
fn a_rewind_that_was_tried_on_another_directory_says_nothing_of_this_one() {
    let room = Room::new();
    let then = room.call("printf one > page");
    room.call("printf two > page; printf new > new");
    let other = room.directory.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("theirs"), "theirs").unwrap();
    let store = room.session().log().captures_dir();
    let files = HostFilesystem::open(&other, store, HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    let state = ExecutionState::new(room.session().clone(), resources);
    let refused = state.rewind(then, &RewindOptions::default());
    assert!(matches!(refused, Err(Error::Filesystem(_))), "{refused:?}");
    assert_eq!(fs::read_to_string(other.join("theirs")).unwrap(), "theirs");
    let report = room.rewind(then);
    assert_eq!(
        (kept(&report), room.seen().1),
        (vec![], BTreeMap::from([("page".to_owned(), "one".to_owned())]))
    );
}

#[test]
fn the_capture_is_that_of_the_last_call_or_of_the_first_begin_behind_the_position() {
    let room = Room::new();
    let empty = room.at();
    room.by_hand("printf zero > page");
    let preview = room.state().preview_rewind(empty, &RewindOptions::default()).unwrap();
    assert_eq!(preview.left.len(), 1, "no call has captured anything: {preview:?}");
    room.call("printf one > page");
    // A failed call was rolled back, so its start record describes the files after it.
    room.by_hand("printf hand > page");
    room.execute("printf two > page", true);
    let behind = room.at();
    room.call("printf three > page");
    let report = room.rewind(behind);
    assert_eq!((room.file("page").unwrap().as_str(), kept(&report)), ("hand", vec![]));
    assert_eq!(report.resources[0].capture.of, CaptureMoment::CallBegan);
    // Before the first call, the files are as its start record says.
    let report = room.rewind(empty);
    assert_eq!((room.file("page").unwrap().as_str(), plan(room.session()).len()), ("zero", 0));
    assert_eq!(report.resources[0].capture.of, CaptureMoment::CallBeganLater);
    // A position on an abandoned branch is a valid target, with the files of that branch.
    let report = room.rewind(behind);
    assert_eq!((room.file("page").unwrap().as_str(), plan(room.session()).len()), ("hand", 1));
    assert_eq!(report.rolled_back.to, behind);
}

#[test]
fn resources_without_captures_that_outlive_their_process_stay_and_are_named() {
    let session = store_of(&MemoryStorage::new()).create(&types()).unwrap();
    let (files, budget) = (Arc::new(InMemoryFilesystem::new()), Arc::new(BudgetTracker::default()));
    let desk = Desk::default();
    let resources = ResourceRegistry::builder()
        .filesystem(Arc::clone(&files))
        .snapshotable(Arc::clone(&budget))
        .snapshotable(Arc::new(desk.clone()))
        .build()
        .unwrap();
    let runner = ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new());
    let call = |text: &str| {
        let operation = runner.begin(&ToolCall::new("other", "{}"), &ExecuteOptions::default()).unwrap();
        files.write("file", text.as_bytes()).unwrap();
        desk.put("paper", text);
        budget.record("evaluation", Usage { input_tokens: 10, ..Usage::default() });
        operation.end(ToolResult::ok("done", ())).unwrap();
        session.log().position().unwrap()
    };
    let then = call("one");
    call("two");
    let report = runner.state().rewind(then, &RewindOptions::default()).unwrap();
    let left: Vec<_> = report.left.iter().map(|left| (left.name.as_str(), left.reason.as_str())).collect();
    let expected = [
        ("budget", "it is not rolled back with a failed tool"),
        ("filesystem", "its captures end with the process that took them"),
    ];
    assert_eq!(left, expected);
    assert_eq!(files.read("file").unwrap(), b"two");
    assert_eq!(desk.text("paper").as_deref(), Some("one"), "what has a capture goes back");
}

#[test]
fn a_rewind_that_cannot_be_leaves_all_as_it_was() {
    let room = Room::new();
    let then = room.call("printf one > page");
    room.call("printf two > page");
    let (before, at) = (room.seen(), room.at());
    let refused = room.state().rewind(at + 1, &RewindOptions::default());
    assert!(matches!(refused, Err(Error::NoSuchPosition { .. })), "{refused:?}");
    let refused = room.state().rewind(then - 1, &RewindOptions::default());
    assert!(matches!(refused, Err(Error::InsideTransaction { .. })), "{refused:?}");
    assert_eq!((room.seen(), room.at()), (before.clone(), at), "nothing was recorded");
    // An object of the target is missing: nothing is changed, and the log records the failure. The
    // object of `one`, by its git id.
    let one = room.session().log().captures_dir().join("objects/43/dd47ea691c90a5fa7827892c70241913351963");
    fs::rename(&one, one.with_extension("away")).unwrap();
    let refused = room.state().rewind(then, &RewindOptions::default());
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(room.seen(), before);
    assert!(!room.session().calls().is_interrupted());
    fs::rename(one.with_extension("away"), &one).unwrap();
    room.rewind(then);
    assert_eq!(room.file("page").unwrap(), "one");
}

#[test]
fn a_host_that_rewinds_does_the_same_again_over_its_log() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(root(directory.path())).unwrap();
    let host = |session: &Session| -> Result<Vec<RewindReport>> {
        let runner = runner_in(directory.path(), session.clone());
        let call = |script: &str| {
            let arguments =
                serde_json::to_string(&Script { script: script.to_owned(), fails: false }).unwrap();
            runner.execute(&ToolCall::new("shell", arguments), &ExecuteOptions::default())?;
            Ok::<_, Error>(session.log().position().unwrap())
        };
        let then = call("printf one > page")?;
        call("printf two > page; printf new > new")?;
        let options = RewindOptions { by: Some("ada".to_owned()), ..RewindOptions::default() };
        let reports = vec![runner.state().rewind(then, &options)?, runner.state().undo_rewind(&options)?];
        session.dispatch(step("on"))?;
        Ok(reports)
    };
    let session = store_in(directory.path()).create(&types()).unwrap();
    let live = host(&session).unwrap();
    assert_eq!((live[0].resources[0].modified, live[0].resources[0].removed), (1, 1));
    let log = LogReader::open(session.dir()).unwrap();
    let mut again = Vec::new();
    let report = Replay::new(&log, &types()).run(|session| {
        again = host(&session)?;
        Ok::<_, Error>(())
    });
    let report = report.unwrap();
    assert_eq!((again, report.divergences.len()), (live, 0), "{report:?}");
}

#[derive(Clone, Debug)]
enum Act {
    /// A tool writes or removes files, and may fail at the end.
    Call(Vec<(usize, Option<u8>)>, bool),
    Hand(usize, Option<u8>),
    Rename(usize, usize),
    Chmod(usize, usize),
    /// To one of the positions so far.
    Rewind(usize, bool),
    Undo(bool),
}

const PATHS: [&str; 5] = ["a", "b", "d/x", "d/y", "e/f/z"];
const MODES: [u32; 3] = [0o644, 0o755, 0o600];

/// Lines of a file, of which the first and the last one change.
const LINES: usize = 9;

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let file = || (0..PATHS.len(), prop::option::weighted(0.75, 0..9_u8));
    let act = prop_oneof![
        4 => (prop::collection::vec(file(), 1..4), prop::bool::weighted(0.2)).prop_map(|(files, fails)| Act::Call(files, fails)),
        3 => file().prop_map(|(path, text)| Act::Hand(path, text)),
        1 => (0..PATHS.len(), 0..PATHS.len()).prop_map(|(from, to)| Act::Rename(from, to)),
        1 => (0..PATHS.len(), 0..MODES.len()).prop_map(|(path, mode)| Act::Chmod(path, mode)),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(at, overwrite)| Act::Rewind(at, overwrite)),
        2 => any::<bool>().prop_map(Act::Undo),
    ];
    prop::collection::vec(act, 1..14)
}

/// Contents and permissions by path.
type Held = BTreeMap<&'static str, (String, u32)>;

/// A model of a session with a workspace, as maps.
#[derive(Clone, Default)]
struct Model {
    files: Held,
    /// The files after the last call or rewind.
    left: Held,
    /// The files if only tools had changed them since the last call.
    by_tools: Held,
    plan: Vec<String>,
    undo: Option<Then>,
    /// The files before and after the last rollback of a call, or undo of one, if later than the
    /// last rewind.
    files_undo: Option<(Held, Held)>,
}

#[derive(Clone)]
struct Then {
    files: Held,
    by_tools: Held,
    plan: Vec<String>,
}

impl Model {
    /// Rewinds; changes by hand are kept unless overwritten. Returns the paths with kept changes.
    fn go(&mut self, then: &Then, overwrite: bool) -> BTreeSet<&'static str> {
        let Model { files, by_tools, plan, .. } = self.clone();
        let target = &then.files;
        let mut to = target.clone();
        let mut kept = BTreeSet::new();
        for path in PATHS {
            if overwrite || by_tools.get(path) == files.get(path) || target.get(path) == files.get(path) {
                continue;
            }
            let result = merged(target.get(path), by_tools.get(path), files.get(path));
            if result.as_ref() != target.get(path) {
                kept.insert(path);
            }
            match result {
                Some(held) => drop(to.insert(path, held)),
                None => drop(to.remove(path)),
            }
        }
        self.undo = Some(Then { files, by_tools, plan });
        self.files_undo = None;
        (self.files, self.left) = (to.clone(), to);
        (self.by_tools, self.plan) = (then.by_tools.clone(), then.plan.clone());
        kept
    }

    /// Restores files alone; later changes are kept unless overwritten. Returns the kept paths.
    fn go_with_files(&mut self, target: Held, last: Held, overwrite: bool) -> BTreeSet<&'static str> {
        let files = self.files.clone();
        let result = |path: &&'static str| match overwrite || last.get(path) == files.get(path) {
            true => target.get(path).cloned(),
            false => merged(target.get(path), last.get(path), files.get(path)),
        };
        let to: Held = PATHS.iter().filter_map(|path| Some((*path, result(path)?))).collect();
        let kept = PATHS.into_iter().filter(|path| to.get(path) != target.get(path)).collect();
        self.files_undo = Some((files, to.clone()));
        (self.files, self.left) = (to.clone(), to);
        kept
    }
}

/// Returns a file that was changed by hand after a rewind: without the changes of tools, or whole
/// as it is, if these cannot be separated.
fn merged(
    target: Option<&(String, u32)>,
    last: Option<&(String, u32)>,
    now: Option<&(String, u32)>,
) -> Option<(String, u32)> {
    let (Some(target), Some(last), Some(now)) = (target, last, now) else { return now.cloned() };
    let line = |held: &(String, u32), at: usize| held.0.lines().nth(at).unwrap().to_owned();
    let mut lines: Vec<String> = now.0.lines().map(str::to_owned).collect();
    for at in [0, LINES - 1] {
        match (line(target, at), line(last, at), line(now, at)) {
            (target, last, now) if now == last => lines[at] = target,
            (target, last, now) if target == last || target == now => lines[at] = now,
            _ => return Some(now.clone()),
        }
    }
    let mode = if now.1 == last.1 { target.1 } else { now.1 };
    Some((lines.join("\n") + "\n", mode))
}

/// Writes or removes a file, in the workspace and in the model.
fn write_file(root: &Path, held: &mut Held, path: &'static str, text: Option<u8>) {
    let at = root.join(path);
    match text {
        Some(text) => {
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            let text = format!("{}\n{}{}\n", text % 3, "-\n".repeat(LINES - 2), text / 3);
            fs::write(&at, &text).unwrap();
            held.entry(path).or_insert((String::new(), 0o644)).0 = text;
        }
        None if held.remove(path).is_some() => fs::remove_file(&at).unwrap(),
        None => {}
    }
}

fn files_in(root: &Path) -> Held {
    let read = |path: &&'static str| {
        let at = root.join(path);
        let mode = fs::metadata(&at).ok()?.permissions().mode() & 0o7777;
        Some((*path, (fs::read_to_string(&at).ok()?, mode)))
    };
    PATHS.iter().filter_map(read).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::with_cases(24) })]

    /// Compares calls, changes by hand, rewinds and undos with maps that do the same.
    #[test]
    fn rewinds_and_undos_are_what_maps_say(acts in acts(), awaits in any::<bool>()) {
        let room = Room { awaits, ..Room::new() };
        let root = root(room.directory.path());
        let mut model = Model::default();
        // By position: the files after the previous call or rewind, and the plan.
        let mut positions: Vec<(SequenceNumber, Then)> = Vec::new();
        let first = Act::Call(vec![(0, Some(0)), (2, Some(0))], false);
        for (number, act) in std::iter::once(first).chain(acts).enumerate() {
            match &act {
                Act::Call(writes, fails) => {
                    let title = format!("call {number}");
                    let operation = room.runner.begin(&ToolCall::new("writes", "{}"), &ExecuteOptions::default()).unwrap();
                    let mut held = model.files.clone();
                    for (path, text) in writes {
                        write_file(&root, &mut held, PATHS[*path], *text);
                    }
                    operation.context().session().dispatch(step(&title)).unwrap();
                    if *fails {
                        let report = operation.fail(ToolError::failed("as told")).unwrap();
                        if !report.replaced.is_empty() {
                            model.files_undo = Some((held, model.files.clone()));
                        }
                    } else {
                        operation.end(ToolResult::ok("done", ())).unwrap();
                        model.files = held;
                        model.plan.push(title);
                    }
                    (model.left, model.by_tools) = (model.files.clone(), model.files.clone());
                }
                Act::Hand(path, text) => write_file(&root, &mut model.files, PATHS[*path], *text),
                Act::Rename(from, to) => {
                    let (from, to) = (PATHS[*from], PATHS[*to]);
                    if let Some(held) = model.files.remove(from) {
                        fs::create_dir_all(root.join(to).parent().unwrap()).unwrap();
                        fs::rename(root.join(from), root.join(to)).unwrap();
                        model.files.insert(to, held);
                    }
                }
                Act::Chmod(path, mode) => {
                    if let Some(held) = model.files.get_mut(PATHS[*path]) {
                        held.1 = MODES[*mode];
                        fs::set_permissions(root.join(PATHS[*path]), fs::Permissions::from_mode(held.1)).unwrap();
                    }
                }
                Act::Rewind(at, overwrite) => {
                    let (to, then) = positions[at % positions.len()].clone();
                    let expected = model.go(&then, *overwrite);
                    let report = room.rewind_by(to, &RewindOptions { overwrite: *overwrite, ..RewindOptions::default() });
                    let kept: BTreeSet<&str> = kept(&report).into_iter().collect();
                    prop_assert_eq!(kept, expected);
                }
                Act::Undo(overwrite) => {
                    let options = RewindOptions { overwrite: *overwrite, ..RewindOptions::default() };
                    let undone = room.undo_by(&options);
                    let expected = match (model.files_undo.clone(), model.undo.clone()) {
                        (Some((target, last)), _) => model.go_with_files(target, last, *overwrite),
                        (None, Some(then)) => model.go(&then, *overwrite),
                        (None, None) => {
                            prop_assert!(matches!(undone, Err(Error::NoRewind(_))));
                            continue;
                        }
                    };
                    let report = undone.unwrap();
                    let kept: BTreeSet<&str> = kept(&report).into_iter().collect();
                    prop_assert_eq!(kept, expected);
                }
            }
            prop_assert_eq!(&files_in(&root), &model.files, "after {:?}", act);
            prop_assert_eq!(&plan(room.session()), &model.plan);
            let Model { left: files, by_tools, plan, .. } = model.clone();
            positions.push((room.at(), Then { files, by_tools, plan }));
        }
        // The next process finds the same.
        let room = room.reopen();
        prop_assert_eq!(plan(room.session()), model.plan);
    }
}
