//! `foldlog view` of the calls of agents, over HTTP.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value as Json, json};

use crate::conversation::Transcript;
use crate::project::{Project, text};

/// `foldlog view` in the project's directory.
struct Viewer {
    child: Child,
    /// The viewer ends with the reader of its output.
    _printed: BufReader<ChildStdout>,
    host: String,
    token: String,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Viewer {
    fn start(project: &Project) -> Viewer {
        Viewer::serve(project.command(&["view", "--no-open"]))
    }

    fn serve(mut command: Command) -> Viewer {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (mut printed, mut url) = (BufReader::new(child.stdout.take().unwrap()), String::new());
        printed.read_line(&mut url).unwrap();
        let (host, token) = url.trim().strip_prefix("http://").unwrap().split_once('/').unwrap();
        let (host, token) = (host.to_owned(), token.trim_end_matches('/').to_owned());
        Viewer { child, _printed: printed, host, token }
    }

    /// Returns the whole answer.
    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let (host, token) = (&self.host, &self.token);
        let request = format!("GET /{token}/{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// A session of the viewer, which collects all answers.
struct Page<'a> {
    viewer: &'a Viewer,
    session: String,
    answers: Vec<(String, String)>,
}

impl<'a> Page<'a> {
    fn open(viewer: &'a Viewer) -> Page<'a> {
        let answer = viewer.get("");
        let place = answer.lines().find_map(|line| line.strip_prefix("location: ")).unwrap();
        Page { viewer, session: place.to_owned(), answers: Vec::new() }
    }

    fn json(&mut self, path: &str) -> Json {
        let answer = self.viewer.get(&format!("{}{path}", self.session));
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let read = serde_json::from_str(body).unwrap();
        self.answers.push((path.to_owned(), body.to_owned()));
        read
    }

    /// Asks for everything that the pages ask for, at each position.
    fn crawl(&mut self, paths: &[&str]) {
        let last = self.json("head")["last"].as_u64().unwrap();
        for path in ["records?chunk=0", "operations", "statistics", "integrity", "facets", "filter?chunk=0"] {
            self.json(path);
        }
        for (from, place) in (0..20).map(|from| (from, 0)) {
            self.json(&format!("search?q=secret&from={from}&place={place}"));
        }
        for at in 0..=last {
            let before = at.saturating_sub(1);
            for path in ["document", "tasks", "usage", "workspaces"] {
                self.json(&format!("{path}?at={at}"));
            }
            self.json(&format!("files?at={at}&workspace=workspace"));
            for path in paths {
                self.json(&format!("content?at={at}&workspace=workspace&path={path}"));
            }
            for before in [0, before] {
                self.json(&format!("file-changes?before={before}&after={at}"));
                self.json(&format!("diff?before={before}&after={at}"));
            }
            let step = self.json(&format!("step?at={at}"));
            for slice in step["slices"].as_array().unwrap() {
                let name = slice["name"].as_str().unwrap();
                self.json(&format!("items?at={at}&slice={name}&from=0&count=1000"));
            }
            for conversation in step["conversations"].as_array().unwrap() {
                let id = conversation["evaluation_id"].as_str().unwrap();
                self.json(&format!("messages?at={at}&evaluation={id}&from=0&count=1000"));
            }
        }
    }
}

#[test]
fn the_steps_are_shown_with_their_files_their_changes_and_the_conversation() {
    let project = Project::new();
    project.call("toolu_1", |project| project.write("src/main.rs", "fn main() { run() }\n"));
    project.call("toolu_2", |project| fs::remove_file(project.root.join("notes")).unwrap());
    project.foldlog(&["undo", "--yes"]);
    let mut transcript = Transcript::new(&project, "f483.jsonl");
    transcript.user(&json!("make it run")).call("toolu_1", "Bash", &json!({"command": "command toolu_1"}));
    transcript.result("toolu_1", "").stop(&project, "Stop");

    let viewer = Viewer::start(&project);
    let mut page = Page::open(&viewer);
    let records = page.json("records?chunk=0");
    let titles: Vec<&str> =
        records["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    for title in
        ["1 Bash: command toolu_1, begins", "1 Bash: command toolu_1, succeeded", "3 undo, succeeded"]
    {
        assert!(titles.contains(&title), "{titles:?}");
    }
    let listed = page.json("operations");
    let steps = listed["ledger"].as_array().unwrap();
    assert_eq!(steps.len(), 3);
    assert_eq!((&steps[0]["title"], &steps[0]["call_id"]), (&json!("command toolu_1"), &json!("toolu_1")));
    assert_eq!(
        steps[0]["files"],
        json!({"total": 1, "ignored": 0, "unrecorded": 0, "listed": [["modified", "src/main.rs"]]})
    );
    assert_eq!((&steps[1]["undone"], &steps[2]["title"]), (&json!("undone"), &json!("of 2")));

    // The captures of the step's moments.
    let (begin, end) = (&steps[0]["begin"], &steps[0]["end"]);
    let content = |at: &Json| format!("content?at={at}&workspace=workspace&path=src/main.rs");
    assert_eq!(page.json(&content(begin)), json!({"text": "fn main() {}\n"}));
    assert_eq!(page.json(&content(end)), json!({"text": "fn main() { run() }\n"}));
    let changes = page.json(&format!("file-changes?before={begin}&after={end}"));
    assert_eq!(changes.as_array().unwrap().len(), 1, "{changes}");
    assert_eq!(page.json(&format!("workspaces?at={end}"))[0]["total"], 2);

    // The call of the conversation is the step's, and the conversation is next to each step.
    assert_eq!((&steps[0]["conversation"], &steps[0]["message"]), (&json!("f483"), &json!(1)));
    assert_eq!(steps[2]["message"], Json::Null);
    let messages = page.json(&format!("messages?at={begin}&evaluation=f483&from=0&count=10"));
    assert_eq!(messages["total"], 3);
    assert!(messages["items"][1]["value"]["text"].as_str().unwrap().contains("toolu_1"));
    assert_eq!(page.json(&format!("step?at={begin}"))["conversations"][0]["total"], 3);
}

#[test]
fn a_removed_root_is_shown_by_its_path_with_its_redos() {
    let project = Project::new();
    project.call("toolu_1", |project| project.write("notes", "changed\n"));
    project.foldlog(&["undo", "--yes"]);
    project.foldlog(&["redo", "--yes"]);
    fs::remove_dir_all(&project.root).unwrap();
    let mut command = project.command(&["view", "--no-open", "--root", project.root.to_str().unwrap()]);
    command.current_dir(project.home());
    let viewer = Viewer::serve(command);
    let mut page = Page::open(&viewer);
    assert_eq!(page.json("head")["root"], json!(project.root));
    let listed = page.json("operations");
    let redo = &listed["ledger"][2];
    assert_eq!((&redo["tool"], &redo["title"]), (&json!("redo"), &json!("of 2")));
}

#[test]
fn without_a_timeline_the_viewer_fails_like_the_log() {
    let project = Project::new();
    let [view, log] =
        [&["view", "--no-open"][..], &["log"]].map(|words| project.command(words).output().unwrap());
    assert_eq!(text(&view), text(&log));
    assert!(text(&view).contains("no call of an agent is recorded"), "{}", text(&view));
}

/// Runs calls that change, edit, read and print ignored files with a secret.
fn with_secret(secret: &str) -> Project {
    let project = Project::new();
    project.write(".gitignore", ".env\n/build/\n*.key\n");
    // Lists outside of the project: that of its repository, and that of git's configuration.
    project.write(".git/HEAD", "ref: refs/heads/main\n");
    project.write(".git/info/exclude", "# Mine\n/private.txt\n");
    fs::write(project.home().join(".gitconfig"), "[user]\n\tname = A\n[core]\n\texcludesFile = ~/ignored\n")
        .unwrap();
    fs::write(project.home().join("ignored"), "*.local\n").unwrap();
    project.write(".env", &format!("TOKEN={secret}\n"));
    project.write("build/config", secret);
    project.call("toolu_1", |project| {
        project.write(".env", &format!("TOKEN={secret}\nMORE={secret}\n"));
        project.write("src/tls.key", secret);
        project.write("private.txt", secret);
        project.write("src/settings.local", secret);
        project.write("plain", "shown");
    });
    let file = project.root.join(".env");
    let write = json!({"file_path": project.root.join("private.txt"), "content": secret});
    let mut input = project
        .input("PreToolUse", &json!({"tool_name": "Write", "tool_input": write, "tool_use_id": "toolu_6"}));
    project.hook(&input);
    input["hook_event_name"] = json!("PostToolUse");
    input["tool_response"] = json!({"content": secret});
    project.hook(&input);
    let edit = json!({"file_path": file, "old_string": "", "new_string": secret});
    let mut input = project
        .input("PreToolUse", &json!({"tool_name": "Edit", "tool_input": edit, "tool_use_id": "toolu_2"}));
    project.hook(&input);
    project.write(".env", &format!("TOKEN={secret}\nLAST={secret}\n"));
    input["hook_event_name"] = json!("PostToolUse");
    input["tool_response"] = json!({"filePath": file, "originalFile": secret});
    project.hook(&input);
    let mut shell = project.shell("PreToolUse", "toolu_3");
    shell["tool_input"] = json!({"command": "cat src/../.env"});
    project.hook(&shell);
    shell["hook_event_name"] = json!("PostToolUse");
    shell["tool_response"] = json!({"stdout": secret});
    project.hook(&shell);

    let mut transcript = Transcript::new(&project, "f483.jsonl");
    transcript
        .user(&json!("rotate the token"))
        .call("toolu_0", "Read", &json!({"file_path": file}))
        .result("toolu_0", secret);
    transcript.call("toolu_4", "Read", &json!({"file_path": "build/config"})).stop(&project, "Stop");
    transcript.result("toolu_4", secret).call("toolu_2", "Edit", &edit).result("toolu_2", secret);
    transcript.call("toolu_3", "Bash", &json!({"command": "cat src/../.env"})).result("toolu_3", secret);
    transcript.call("toolu_5", "Bash", &json!({"command": "cat plain"})).result("toolu_5", "shown to all");
    transcript.stop(&project, "SessionEnd");
    project
}

#[test]
fn a_secret_in_an_ignored_file_is_in_no_answer_no_record_no_export_and_no_backup() {
    let secret = "secret-4f1c9a";
    let project = with_secret(secret);
    let viewer = Viewer::start(&project);
    let mut page = Page::open(&viewer);
    page.crawl(&[".env", "build/config", "src/tls.key", "private.txt", "src/settings.local", "plain"]);
    assert!(page.answers.len() > 200);
    for (path, answer) in &page.answers {
        assert!(!answer.contains(secret), "{path}: {answer}");
    }
    let is_in = |text: &str| page.answers.iter().any(|(_, answer)| answer.contains(text));
    assert!(is_in("\"text\":\"shown\"") && is_in("shown to all") && is_in("rotate the token"));
    for (path, answer) in page.answers.iter().filter(|(path, _)| path.starts_with("file")) {
        assert!(
            ["env", "config", "tls", "private", "settings"].iter().all(|name| !answer.contains(name)),
            "{path}: {answer}"
        );
    }

    let copy = project.home().join("copy");
    let store = project.sessions().parent().unwrap().to_owned();
    project.foldlog(&["backup", store.to_str().unwrap(), "--to", copy.to_str().unwrap()]);
    let mut exported = String::new();
    let tree = project.home().join("tree");
    for session in fs::read_dir(project.sessions()).unwrap() {
        let session = session.unwrap().path();
        let session = session.to_str().unwrap();
        for format in ["jsonl", "snapshot-json"] {
            exported.push_str(&project.foldlog(&["export", session, "--format", format]));
        }
        project.foldlog(&["export", session, "--format", "aca", "--to", tree.to_str().unwrap()]);
    }
    assert!(exported.contains("shown to all") && !exported.contains(secret));
    // What is pushed elsewhere are the files of the sessions.
    let mut left = vec![copy, tree, store];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let has_secret = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
        assert!(!has_secret && !path.to_str().unwrap().contains("captures"), "{}", path.display());
    }
    // The files are captured nevertheless.
    project.foldlog(&["undo", "--to", "1", "--yes"]);
    assert_eq!(fs::read_to_string(project.root.join(".env")).unwrap(), format!("TOKEN={secret}\n"));
}
