//! `foldlog run`: an agent's program over a workspace, killed, interrupted and resumed. A stand-in
//! plays the program.

mod undo;
mod words;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use foldlog_test_support::child;
use foldlog_tests::verbs::{Ran, foldlog, foldlog_following};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

/// The limit of a wait for another process.
const LONG: Duration = Duration::from_secs(60);

/// A directory with a workspace, a prompt and a script of the stand-in.
struct Place(TempDir);

impl Place {
    fn new(script: &Value) -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        fs::create_dir(place.path("work")).unwrap();
        fs::write(place.path("work/notes"), "before").unwrap();
        fs::write(place.path("task.md"), "Add a greeting.\n").unwrap();
        place.play(script);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Replaces the script, for programs that start later.
    fn play(&self, steps: &Value) {
        let lines: String = steps.as_array().unwrap().iter().map(|step| format!("{step}\n")).collect();
        fs::write(self.path("script"), lines).unwrap();
    }

    /// Returns the words of a run, and the others.
    fn words(&self, others: &[&str]) -> Vec<String> {
        let path = |name: &str| self.path(name).to_str().unwrap().to_owned();
        let mut words = ["run", "--adapter", "claude", "--program", env!("CARGO_BIN_EXE_claude-stand-in")]
            .map(str::to_owned)
            .to_vec();
        words.extend(["--env".into(), format!("STAND_IN_SCRIPT={}", path("script"))]);
        words.extend(["--prompt".into(), path("task.md"), "--workspace".into(), path("work")]);
        words.extend(["--store".into(), path("store")]);
        words.extend(others.iter().map(|&word| word.to_owned()));
        words
    }

    fn run(&self, others: &[&str]) -> Ran {
        foldlog_following(self.words(others), || {
            std::thread::sleep(Duration::from_millis(1));
            true
        })
    }

    fn start(&self, others: &[&str]) -> Binary {
        self.start_with(&self.words(others))
    }

    fn start_with(&self, words: &[String]) -> Binary {
        Binary(Some(start(self.binary("part_that_is_the_binary", words).current_dir(self.0.path()))))
    }

    /// Returns a command that runs the binary as a part of these tests, for a user with a home and
    /// records in this place.
    fn binary(&self, part: &str, words: &[String]) -> Command {
        let mut command = child::command(&format!("binary::run::{part}"), &words.join("\n"));
        command.env("HOME", self.path("home")).env("XDG_STATE_HOME", self.path("state"));
        command.env_remove("XDG_CONFIG_HOME").stdin(Stdio::null());
        command
    }

    /// Returns the words of a run with another value for one of its options.
    fn words_with(&self, name: &str, value: &str) -> Vec<String> {
        let mut words = self.words(&[]);
        let at = words.iter().position(|word| word == name).unwrap();
        value.clone_into(&mut words[at + 1]);
        words
    }

    fn session(&self) -> PathBuf {
        let mut sessions = fs::read_dir(self.path("store/sessions")).unwrap();
        let session = sessions.next().unwrap().unwrap().path();
        assert!(sessions.next().is_none(), "there is more than one session");
        session
    }

    fn id(&self) -> String {
        self.session().file_name().unwrap().to_str().unwrap().to_owned()
    }

    fn work(&self, name: &str) -> String {
        fs::read_to_string(self.path("work").join(name)).unwrap_or_else(|_| "none".to_owned())
    }

    /// Returns tool and outcome of each call of the only session.
    fn ledger(&self) -> Vec<(String, String)> {
        let ran = foldlog(["ledger".as_ref(), "--json".as_ref(), self.session().as_os_str()]);
        let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
        let rows = ran.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        rows.map(|row| (text(&row, "tool"), text(&row, "outcome"))).collect()
    }

    fn starts(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("script.starts")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn wait_for(&self, name: &str) {
        let began = Instant::now();
        while !self.path(name).exists() {
            assert!(began.elapsed() < LONG, "nobody made {name}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A process that is killed when it is dropped.
struct Binary(Option<Child>);

impl Binary {
    fn signal(&self, signal: Signal) {
        let id = self.0.as_ref().unwrap().id();
        kill(Pid::from_raw(id.try_into().unwrap()), signal).unwrap();
    }

    /// Waits for the end, and returns the exit code, if there is one, and standard error.
    fn ended(mut self) -> (Option<i32>, String) {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

impl Drop for Binary {
    fn drop(&mut self) {
        if let Some(mut process) = self.0.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

#[test]
#[ignore = "a part of other tests, which run it in a process of its own"]
fn part_that_is_the_binary() {
    let Some(argument) = child::argument() else { return };
    let words = std::iter::once("foldlog").chain(argument.lines()).map(Into::into);
    let code = foldlog_cli::output::with_process(|output| foldlog_cli::run(words, output));
    std::process::exit(code.into());
}

fn ok(ran: &Ran) -> &str {
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    &ran.stdout
}

/// Returns a script whose program writes a file with a tool, and answers.
fn writing() -> Value {
    json!([
        {"turn": true},
        {"native": "Write", "input": {"file_path": "greeting"}, "write": {"greeting": "good morning"}},
        {"text": "I wrote it."},
        {"result": "I wrote it.\nIt says: good morning.", "total_cost_usd": 0.25},
    ])
}

/// Returns a script whose program is within a tool call that has changed the workspace; the file
/// `began` shows that.
fn within(tool: &str) -> Value {
    let call = json!({"type": "tool_use", "id": "t1", "name": tool, "input": {"file_path": "notes"}});
    let hook = json!({"subtype": "hook_callback", "callback_id": "PreToolUse", "tool_use_id": "t1", "input":
        {"hook_event_name": "PreToolUse", "tool_name": tool, "tool_input": {"file_path": "notes"}, "tool_use_id": "t1"}});
    json!([
        {"turn": true},
        {"native": "Write", "input": {"file_path": "greeting"}, "write": {"greeting": "good morning"}, "id": "t0"},
        {"emit": {"type": "assistant", "session_id": "$session", "parent_tool_use_id": null, "message":
            {"id": "m9", "role": "assistant", "model": "m", "content": [call], "usage": {"input_tokens": 1, "output_tokens": 1}}}},
        {"ask": hook},
        {"touch": "work/half"},
        {"touch": "began"},
        {"gate": "never"},
    ])
}

fn answering(text: &str) -> Value {
    json!([{"turn": true}, {"text": text}, {"result": text}])
}

#[test]
fn a_run_works_in_its_directory_and_prints_the_answer() {
    let place = Place::new(&writing());
    let ran = place.run(&[]);
    assert_eq!(ok(&ran), "I wrote it.\nIt says: good morning.\n");
    assert_eq!(place.work("greeting"), "good morning");
    assert_eq!(place.ledger(), [("Write".to_owned(), "committed".to_owned())]);
    assert!(ran.stderr.contains("1 tool call, ") && ran.stderr.contains("$0.2500"), "{}", ran.stderr);
    let transcript = foldlog(["transcript".as_ref(), place.session().as_os_str()]);
    assert!(ok(&transcript).contains("Add a greeting."), "{}", transcript.stdout);
    // The session's directory contains the captures, and excluded variables did not reach the
    // program.
    assert!(place.session().join("files").is_dir());
    let starts = place.starts();
    let environment = starts[0]["environment"].as_object().unwrap();
    assert!(!environment.keys().any(|name| name.starts_with("CARGO")), "{environment:?}");
    let arguments = starts[0]["arguments"].to_string();
    assert!(arguments.contains("--tools") && !arguments.contains("Bash"), "{arguments}");
}

#[test]
fn a_complete_run_is_answered_by_its_session_without_a_program() {
    let place = Place::new(&writing());
    ok(&place.run(&[]));
    let id = place.id();
    for resume in [vec!["--resume"], vec!["--resume", &id]] {
        let ran = place.run(&resume);
        assert_eq!(ok(&ran), "I wrote it.\nIt says: good morning.\n");
        assert!(ran.stderr.contains("no program ran"), "{}", ran.stderr);
    }
    let json: Value = serde_json::from_str(ok(&place.run(&["--resume", "--json"]))).unwrap();
    assert_eq!((&json["recorded"], &json["cost_usd"]), (&json!(true), &json!(0.25)), "{json}");
    assert_eq!((&json["session"], &json["tool_calls"]), (&json!(id), &json!(1)), "{json}");
    assert_eq!(place.starts().len(), 1);
    // Another text continues the same conversation.
    fs::write(place.path("task.md"), "And now?").unwrap();
    place.play(&json!([{"turn": true}, {"text": "$history"}, {"result": "$history"}]));
    assert_eq!(ok(&place.run(&["--resume", &id])), "Add a greeting.|And now?\n");
    // Without `--resume`, a new session is created.
    let other = Uuid::new_v4().to_string();
    assert_eq!(ok(&place.run(&["--session", &other])), "And now?\n");
    assert!(place.path("store/sessions").join(other).is_dir());
}

/// A failing test suite lost the earlier build, and the end of the call did not contain the exit
/// code of the command.
#[test]
fn a_command_that_ends_keeps_its_changes_and_its_exit_code_is_shown() {
    let fails = json!({"native": "Bash", "input": {"command": "c"}, "write": {"notes": "built"}, "fails": "Exit code 3\nred"});
    let place = Place::new(&json!([{"turn": true}, fails, {"text": "done"}, {"result": "done"}]));
    assert_eq!(ok(&place.run(&["--tool", "Bash"])), "done\n");
    assert_eq!(place.work("notes"), "built");
    let session = place.session();
    let tell = |words: &[&str]| {
        let words =
            words.iter().map(|word| if *word == "SESSION" { session.as_os_str() } else { word.as_ref() });
        ok(&foldlog(words)).to_owned()
    };
    let ledger = tell(&["ledger", "SESSION"]);
    assert!(ledger.contains("committed: exit code 3"), "{ledger}");
    let row: Value = serde_json::from_str(&tell(&["ledger", "--json", "SESSION"])).unwrap();
    assert_eq!((&row["outcome"], &row["exit_code"]), (&json!("committed"), &json!(3)));
    let operation = row["operation"].to_string();
    let told = tell(&["ledger", "SESSION", &operation]);
    assert!(told.contains("committed, exit code 3"), "{told}");
    let told: Value = serde_json::from_str(&tell(&["ledger", "--json", "SESSION", &operation])).unwrap();
    assert_eq!(told["each_run"][0]["exit_code"], json!(3));
    let shown = tell(&["show", "SESSION"]);
    assert!(shown.contains("committed: exit code 3"), "{shown}");
    let transcript = tell(&["transcript", "SESSION"]);
    assert!(transcript.contains("failed: Exit code 3"), "{transcript}");
    // The call can be undone like any other.
    let work = place.path("work");
    let (before, by) = ((row["begin"].as_u64().unwrap() - 1).to_string(), ["--by", "me", "--reason", "red"]);
    let words =
        ["rewind".as_ref(), session.as_os_str(), before.as_ref(), "--workspace".as_ref(), work.as_os_str()];
    let undone = foldlog(words.into_iter().chain(by.map(AsRef::as_ref)));
    assert_eq!((ok(&undone).is_empty(), place.work("notes")), (false, "before".to_owned()));
}

/// The run reported it, but the ledger showed a normal call.
#[test]
fn a_run_and_the_ledger_say_that_the_ending_of_a_command_is_unclear() {
    let unclear = json!({"native": "Bash", "input": {"command": "c"}, "write": {"notes": "built"}, "fails": "spawn ENOENT"});
    let place = Place::new(&json!([{"turn": true}, unclear, {"text": "done"}, {"result": "done"}]));
    let ran = place.run(&["--tool", "Bash"]);
    assert_eq!((ok(&ran), place.work("notes")), ("done\n", "built".to_owned()));
    let note = "`Bash`, ended; its changes were kept: check them before you continue";
    assert!(ran.stderr.contains(note), "{}", ran.stderr);
    let said = |words: &[&str]| {
        let (verb, others) = words.split_first().unwrap();
        let session = place.session();
        let words = [verb.as_ref(), session.as_os_str()].into_iter().chain(others.iter().map(AsRef::as_ref));
        ok(&foldlog(words)).to_owned()
    };
    assert!(said(&["ledger"]).contains("committed: ended unknown"), "{}", said(&["ledger"]));
    assert!(said(&["show"]).contains(" committed: ended unknown"), "{}", said(&["show"]));
    let row: Value = serde_json::from_str(&said(&["ledger", "--json"])).unwrap();
    assert_eq!((&row["outcome"], &row["ended"]), (&json!("committed"), &json!("unknown")), "{row}");
    let operation = row["operation"].to_string();
    let told = said(&["ledger", &operation]);
    assert!(told.contains("committed, whether its work ended is unknown"), "{told}");
    let account: Value = serde_json::from_str(&said(&["ledger", &operation, "--json"])).unwrap();
    assert_eq!(account["each_run"][0]["ended"], "unknown", "{account}");
}

/// A long result is a separate file, which a listing of calls does not read.
#[test]
fn an_ending_that_is_unclear_is_shown_however_much_the_program_says() {
    let long = "\u{e9}".repeat(80_000);
    let unclear = json!({"native": "Bash", "input": {"command": "c"}, "fails": long});
    let known = json!({"native": "Bash", "input": {"command": "c"}, "fails": "Exit code 1"});
    let place = Place::new(&json!([{"turn": true}, unclear, known, {"text": "done"}, {"result": "done"}]));
    ok(&place.run(&["--tool", "Bash"]));
    let rows = foldlog(["ledger".as_ref(), place.session().as_os_str(), "--json".as_ref()]);
    let rows: Vec<Value> = ok(&rows).lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    assert_eq!([&rows[0]["ended"], &rows[1]["ended"]], [&json!("unknown"), &Value::Null], "{rows:?}");
}

/// A short deadline was entirely reserved for the program's end: a run was interrupted before it
/// started.
#[test]
fn a_run_has_most_of_the_time_that_a_short_deadline_gives() {
    let place = Place::new(&answering("done"));
    assert_eq!(ok(&place.run(&["--deadline", "2s"])), "done\n");
    let help = foldlog(["run", "--help"]);
    assert!(ok(&help).contains("2 seconds before the limit"), "{}", help.stdout);
}

/// The first call found an unreadable file only after the model had been asked. The message had
/// only its path below the workspace, and no advice.
#[test]
fn a_file_that_may_not_be_read_is_named_with_what_to_do_before_anybody_is_asked() {
    let place = Place::new(&writing());
    for path in ["", "work"] {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(place.path(path), open).unwrap();
    }
    let secret = place.path("work/secret");
    fs::write(&secret, "x").unwrap();
    let program = place.path("stand-in");
    fs::copy(env!("CARGO_BIN_EXE_claude-stand-in"), &program).unwrap();
    let shut = |is_shut: bool| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(if is_shut { 0 } else { 0o666 });
        fs::set_permissions(&secret, mode).unwrap();
    };
    let run = |words: &[String], others: &[&str]| {
        let words: Vec<String> =
            words.iter().map(String::as_str).chain(others.iter().copied()).map(str::to_owned).collect();
        let (code, stderr) = Binary(Some(start(&mut place.binary("part_without_rights", &words)))).ended();
        (code.unwrap(), stderr)
    };
    let words = place.words_with("--program", program.to_str().unwrap());
    shut(true);
    let (code, said) = run(&words, &["--tool", "Write"]);
    if code == SKIPPED {
        foldlog_test_support::skipped("privileges cannot be dropped here");
        return;
    }
    let named = format!("{} in the workspace is not readable for this user", secret.display());
    assert!(code == 2 && said.contains(&named) && said.contains("--leave-out /secret"), "{code}: {said}");
    assert!(!place.path("store").exists() && place.starts().is_empty(), "the model was not asked");
    // If it becomes unreadable during the run, the call that cannot start names it.
    let mut steps = writing();
    steps.as_array_mut().unwrap().splice(1..1, [json!({"touch": "began"}), json!({"gate": "go"})]);
    place.play(&steps);
    shut(false);
    std::thread::scope(|scope| {
        let ran = scope.spawn(|| run(&words, &["--tool", "Write"]));
        place.wait_for("began");
        shut(true);
        fs::write(place.path("go"), "").unwrap();
        let (code, said) = ran.join().unwrap();
        let whole = secret.display().to_string();
        let is_told =
            [&whole, "denied", "--leave-out /secret", "--resume"].iter().all(|part| said.contains(*part));
        assert!(code == 2 && is_told, "{code}: {said}");
    });
    // With the printed option, the run continues without that file.
    place.play(&writing());
    let id = place.id();
    let (code, said) = run(&words, &["--tool", "Write", "--leave-out", "/secret", "--resume", &id]);
    assert_eq!((code, place.work("greeting")), (0, "good morning".to_owned()), "{said}");
}

/// The exit code of a part that cannot run on this machine.
const SKIPPED: i32 = 77;

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_without_rights() {
    if child::argument().is_none() {
        return;
    }
    let nobody = (nix::unistd::Gid::from_raw(65534), nix::unistd::Uid::from_raw(65534));
    if nix::unistd::Uid::effective().is_root()
        && (nix::unistd::setgid(nobody.0).is_err() || nix::unistd::setuid(nobody.1).is_err())
    {
        std::process::exit(SKIPPED);
    }
    part_that_is_the_binary();
}

/// The file was removed with the directories of the run, and a later run referred to a missing
/// path.
#[test]
fn an_output_that_the_program_saved_to_a_file_is_there_as_long_as_the_session() {
    let reads = json!({"native": "Bash", "input": {"command": "c"}, "saves": "all of it"});
    let kills = json!({"native": "Bash", "input": {"command": "c"}, "write": {"half": ""}, "die": 9});
    let place = Place::new(&json!([{"turn": true}, reads, {"mirror": true}, kills]));
    let tools = ["--tool", "Bash"];
    assert_eq!(place.run(&tools).code, 2);
    let saved = |text: &str| {
        let path = text.lines().find_map(|line| line.split_once("saved to: ")).unwrap().1.to_owned();
        (fs::read_to_string(&path).unwrap(), path)
    };
    let transcript = foldlog(["transcript".as_ref(), place.session().as_os_str()]);
    let (text, path) = saved(ok(&transcript));
    assert_eq!(text, "all of it");
    assert!(path.starts_with(place.session().to_str().unwrap()), "{path}");
    place.play(&json!([{"turn": true}, {"text": "$results"}, {"result": "$results"}]));
    let (text, again) = saved(ok(&place.run(&[&tools[..], &["--resume"]].concat())));
    assert_eq!((text.as_str(), &again), ("all of it", &path));
    // No other file of the program remains: the log contains its transcript.
    let program = place.session().join("program");
    let mut left = Vec::new();
    let mut directories = vec![program];
    while let Some(directory) = directories.pop() {
        for found in fs::read_dir(directory).unwrap().flatten() {
            if found.file_type().unwrap().is_dir() {
                directories.push(found.path())
            } else {
                left.push(found.path())
            }
        }
    }
    assert_eq!(left, [PathBuf::from(path)]);
    assert_eq!(foldlog(["verify".as_ref(), place.session().as_os_str()]).code, 0);
    assert_eq!(foldlog(["verify".as_ref(), place.path("store").as_os_str()]).code, 0);
}

#[test]
fn a_tool_that_fails_leaves_no_trace_and_one_that_is_not_named_does_not_run() {
    let fails = json!({"native": "Bash", "input": {"command": "c"}, "write": {"notes": "half", "new": "half"},
        "output": {"stdout": "no", "stderr": "", "exitCode": 3}});
    let place = Place::new(&json!([{"turn": true}, fails, {"text": "done"}, {"result": "done"}]));
    assert_eq!(ok(&place.run(&["--tool", "Read,Bash", "--roll-back-failed"])), "done\n");
    assert_eq!((place.work("notes"), place.work("new")), ("before".to_owned(), "none".to_owned()));
    assert_eq!(place.ledger(), [("Bash".to_owned(), "failed".to_owned())]);
    let place = Place::new(&json!([{"turn": true}, fails, {"text": "done"}, {"result": "done"}]));
    assert_eq!(ok(&place.run(&[])), "done\n");
    assert_eq!(place.work("new"), "none");
    assert!(place.ledger().iter().all(|(_, outcome)| outcome != "committed"), "{:?}", place.ledger());
}

/// The command of a killed run continued, and wrote into the workspace that `recover` had restored.
#[test]
fn a_recovery_ends_what_a_killed_run_left_running() {
    let mut script = within("Bash");
    script.as_array_mut().unwrap().insert(1, json!({"leave": ["setsid", "sleep", "600"]}));
    let place = Place::new(&script);
    let binary = place.start(&["--tool", "Write,Bash"]);
    place.wait_for("began");
    binary.signal(Signal::SIGKILL);
    binary.ended();
    let mark = format!("FOLDLOG_RUN={}-", place.id());
    let left = || child::with_variable(&mark);
    assert!(left() > 0, "nothing outlived the run");
    let (session, work) = (place.session(), place.path("work"));
    let words = ["recover".as_ref(), session.as_os_str(), "--workspace".as_ref(), work.as_os_str()];
    ok(&foldlog(words));
    assert_eq!((left(), place.path("work/half").exists()), (0, false));
}

#[test]
fn a_run_that_is_killed_within_a_call_is_recovered_and_goes_on() {
    let place = Place::new(&within("Bash"));
    let tools = ["--tool", "Write,Bash"];
    let binary = place.start(&tools);
    place.wait_for("began");
    binary.signal(Signal::SIGKILL);
    binary.ended();
    assert!(place.path("work/half").exists());
    place.play(&answering("done"));
    let ran = place.run(&[&tools[..], &["--resume"]].concat());
    assert_eq!(ok(&ran), "done\n");
    assert!(ran.stderr.contains("`Bash`, was interrupted and rolled back"), "{}", ran.stderr);
    assert!(!place.path("work/half").exists());
    assert_eq!(place.work("greeting"), "good morning");
    let ledger = place.ledger();
    assert_eq!(ledger[0], ("Write".to_owned(), "committed".to_owned()));
    assert_ne!(ledger[1].1, "committed");
    assert_eq!(place.starts().len(), 2);
}

/// Files that could neither be captured nor moved aside were lost with the rollback.
#[test]
fn what_can_neither_be_captured_nor_moved_aside_is_given_up_only_if_that_is_asked_for() {
    for resumes in [false, true] {
        let place = Place::new(&within("Bash"));
        let binary = place.start(&["--tool", "Write,Bash"]);
        place.wait_for("began");
        binary.signal(Signal::SIGKILL);
        binary.ended();
        nix::unistd::mkfifo(&place.path("work/pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        fs::write(place.path("work/.foldlog-aside"), "in the way").unwrap();
        place.play(&answering("done"));
        let (session, work) = (place.session(), place.path("work"));
        let go_on = |options: &[&str]| match resumes {
            true => place.run(&[&["--tool", "Write,Bash", "--resume"], options].concat()),
            false => {
                let words =
                    ["recover".as_ref(), session.as_os_str(), "--workspace".as_ref(), work.as_os_str()];
                foldlog(words.into_iter().chain(options.iter().map(AsRef::as_ref)))
            }
        };
        let refused = go_on(&[]);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        let told = ["nothing was rolled back", "`pipe`", ".foldlog-aside", "--without-capture"];
        assert!(told.iter().all(|told| refused.stderr.contains(told)), "{}", refused.stderr);
        assert!(place.path("work/half").exists() && place.path("work/pipe").exists());
        ok(&go_on(&["--without-capture"]));
        assert!(!place.path("work/half").exists() && !place.path("work/pipe").exists());
    }
}

#[test]
fn what_a_failed_call_left_ends_the_run_only_if_that_is_asked_for() {
    let fails = json!({"native": "Bash", "input": {"command": "c"}, "write": {".git/HEAD": "elsewhere"}, "fails": "Exit code 1"});
    for (asked, code) in [(&[][..], 0), (&["--on-leftover", "stop"][..], 2)] {
        let place = Place::new(&json!([{"turn": true}, fails, {"text": "done"}, {"result": "done"}]));
        // Without objects no capture can restore it.
        fs::create_dir(place.path("work/.git")).unwrap();
        fs::write(place.path("work/.git/HEAD"), "ref: refs/heads/main").unwrap();
        let ran = place.run(&[&["--tool", "Bash", "--roll-back-failed"], asked].concat());
        assert_eq!(ran.code, code, "{}", ran.stderr);
        assert!(ran.stderr.contains(".git"), "{}", ran.stderr);
        assert_eq!(ran.stderr.contains("--resume"), code == 2, "{}", ran.stderr);
    }
}

#[test]
fn an_interrupted_run_ends_by_itself_and_says_how_it_goes_on() {
    let place = Place::new(&within("Write"));
    let binary = place.start(&["--model", "a model"]);
    place.wait_for("began");
    binary.signal(Signal::SIGINT);
    let (code, stderr) = binary.ended();
    assert_eq!(code, Some(2), "{stderr}");
    let id = place.id();
    assert!(stderr.contains("--model 'a model'") && stderr.contains(&format!("--resume {id}`")), "{stderr}");
    assert!(!stderr.contains("STAND_IN_SCRIPT="), "a variable's value is printed: {stderr}");
    assert!(stderr.contains("error: the run was interrupted\n"), "{stderr}");
    // Nothing remains to be recovered.
    assert!(!place.path("work/half").exists());
    place.play(&answering("done"));
    assert_eq!(ok(&place.run(&["--resume", &id])), "done\n");
}

/// Bug: closing the terminal killed the run, and its call was left to be recovered. A terminal
/// sends SIGHUP twice.
#[test]
fn a_closed_terminal_ends_a_run_as_an_interrupt_does() {
    // A process that ignores SIGHUP passes that on to its children, and they continue too.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    if u64::from_str_radix(ignored, 16).unwrap() & 1 == 1 {
        foldlog_test_support::skipped("SIGHUP is ignored here, as under nohup");
        return;
    }
    let place = Place::new(&within("Write"));
    let binary = place.start(&[]);
    place.wait_for("began");
    binary.signal(Signal::SIGHUP);
    binary.signal(Signal::SIGHUP);
    let (code, stderr) = binary.ended();
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("the run was interrupted") && stderr.contains("--resume "), "{stderr}");
    assert!(!place.path("work/half").exists());
    assert_eq!(place.ledger()[1], ("Write".to_owned(), "failed".to_owned()));
}

#[test]
fn while_a_run_goes_on_another_process_is_refused() {
    let place = Place::new(&within("Write"));
    let binary = place.start(&[]);
    place.wait_for("began");
    let id = place.id();
    let ran = place.run(&["--resume", &id]);
    assert_eq!(ran.code, 2);
    let pid = binary.0.as_ref().unwrap().id();
    let told = [
        format!("session {id} is in use by another process: process {pid} on "),
        format!("end it by `kill {pid}`"),
    ];
    assert!(told.iter().all(|told| ran.stderr.contains(told)), "{}", ran.stderr);
    // The same without an id: the advice must not be to start another run in parallel.
    let ran = place.run(&["--resume"]);
    assert_eq!(ran.code, 2);
    assert!(told.iter().all(|told| ran.stderr.contains(told)), "{}", ran.stderr);
    assert!(!ran.stderr.contains("leave out --resume"), "{}", ran.stderr);
    drop(binary);
}

#[test]
fn what_goes_wrong_is_named_with_what_to_do() {
    let place = Place::new(&answering("done"));
    let nowhere = place.path("nowhere").to_str().unwrap().to_owned();
    let within = place.path("work/store").to_str().unwrap().to_owned();
    for (others, told) in [
        (vec!["--resume"], vec!["is not a store"]),
        (vec!["--max-budget-usd", "0"], vec!["give an amount above 0"]),
        (vec!["--deadline", "3d"], vec!["as 90s, 10m or 2h"]),
        (vec!["--permission-mode", "some"], vec!["dontAsk"]),
        (vec!["--env", "NO_SUCH_VARIABLE"], vec!["NO_SUCH_VARIABLE is not set", "--env NAME=VALUE"]),
    ] {
        let ran = place.run(&others);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{others:?}");
        assert!(told.iter().all(|told| ran.stderr.contains(told)), "{others:?}: {}", ran.stderr);
    }
    for (name, value, told) in [
        ("--workspace", &nowhere, "nowhere does not exist"),
        ("--prompt", &nowhere, "check the path"),
        ("--program", &nowhere, "npm install -g @anthropic-ai/claude-code"),
        ("--store", &within, "is within the workspace"),
    ] {
        let ran = foldlog_following(place.words_with(name, value), || true);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{name}");
        assert!(ran.stderr.contains(told), "{name}: {}", ran.stderr);
    }
    place.play(
        &json!([{"turn": true}, {"result": "API Error: 529", "is_error": true, "api_error_status": 529}]),
    );
    let ran = place.run(&[]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.stderr.contains("request failed: ") && ran.stderr.contains("next: resume: `foldlog run"),
        "{}",
        ran.stderr
    );
}

/// The program runs in the workspace, where a relative path would lead elsewhere.
#[test]
fn paths_are_those_of_the_directory_in_which_the_command_is_run() {
    let place = Place::new(&writing());
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_claude-stand-in"), place.path("program")).unwrap();
    let mut words = place.words(&[]);
    for (name, value) in
        [("--program", "./program"), ("--workspace", "work"), ("--store", "store"), ("--prompt", "task.md")]
    {
        let at = words.iter().position(|word| word == name).unwrap();
        value.clone_into(&mut words[at + 1]);
    }
    let (code, stderr) = place.start_with(&words).ended();
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(place.work("greeting"), "good morning");
}

#[test]
fn a_system_prompt_is_sent_as_it_is_and_stays_the_sessions() {
    let place = Place::new(&answering("done"));
    ok(&place.run(&["--system", "Say ${nothing} in $HOME."]));
    assert!(place.starts()[0]["arguments"].to_string().contains("Say ${nothing} in $HOME."));
    fs::write(place.path("task.md"), "More.").unwrap();
    let id = place.id();
    let ran = place.run(&["--resume", &id, "--system", "Say all."]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("a different system prompt"), "{}", ran.stderr);
    ok(&place.run(&["--resume", &id]));
    assert!(place.starts()[1]["arguments"].to_string().contains("Say ${nothing} in $HOME."));
}

#[test]
fn no_control_character_of_the_program_reaches_the_terminal() {
    let place = Place::new(&answering("one\u{1b}[2Jtwo\nthree\u{202e}"));
    assert_eq!(ok(&place.run(&[])), "one\\u{1b}[2Jtwo\nthree\\u{202e}\n");
    let place = Place::new(&json!([{"turn": true}, {"stderr": "bad\u{1b}[2J"}, {"exit": 3}]));
    let ran = place.run(&[]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("bad\\u{1b}[2J") && !ran.stderr.contains('\u{1b}'), "{}", ran.stderr);
}

#[test]
fn a_session_of_another_host_is_not_resumed() {
    let place = Place::new(&answering("done"));
    let store = foldlog::Store::open(place.path("store")).unwrap();
    let session = store.create(&foldlog_test_support::host::types()).unwrap();
    let id = session.id().to_string();
    session.close().unwrap();
    let ran = place.run(&["--resume", &id]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("was not created by `foldlog run`"), "{}", ran.stderr);
    let ran = place.run(&["--resume"]);
    assert!(ran.stderr.contains("contains no run that can be resumed"), "{}", ran.stderr);
}
