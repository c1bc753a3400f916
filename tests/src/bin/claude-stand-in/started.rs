//! The stand-in's start: arguments, environment, script.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use serde_json::{Value, json};

pub struct Started {
    flags: Vec<(String, Option<String>)>,
    pub script: PathBuf,
    pub steps: Vec<Value>,
    pub cwd: PathBuf,
}

impl Started {
    /// Reads arguments, environment and script, and records them.
    pub fn take() -> Started {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let flag = |argument: &String| match argument.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (argument.clone(), None),
        };
        let flags = arguments.iter().map(flag).collect();
        let script =
            PathBuf::from(std::env::var_os("STAND_IN_SCRIPT").expect("STAND_IN_SCRIPT names the script"));
        let text = fs::read_to_string(&script).expect("the script can be read");
        let step = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let steps = text.lines().filter(|line| !line.trim().is_empty()).map(step).collect();
        let cwd = std::env::current_dir().expect("the working directory is known");
        let environment: BTreeMap<String, String> = std::env::vars().collect();
        let pid = std::process::id();
        let start = json!({"arguments": arguments, "environment": environment, "cwd": cwd, "pid": pid});
        let started = Started { flags, script, steps, cwd };
        started.note("starts", &start.to_string());
        started
    }

    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|(name, _)| name == flag)
    }

    pub fn value(&self, flag: &str) -> Option<&str> {
        self.flags.iter().find(|(name, _)| name == flag)?.1.as_deref()
    }

    /// Returns the comma-separated names in the value of a flag.
    pub fn names(&self, flag: &str) -> Vec<String> {
        self.value(flag)
            .unwrap_or_default()
            .split(',')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    }

    pub fn servers(&self) -> Vec<String> {
        let config: Value =
            serde_json::from_str(self.value("--mcp-config").unwrap_or("{}")).expect("servers in JSON");
        let servers = config["mcpServers"].as_object().into_iter().flatten();
        servers.filter(|(_, server)| server["type"] == "sdk").map(|(name, _)| name.clone()).collect()
    }

    /// Returns the path of a file next to the script.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.script.parent().expect("the script is in a directory").join(name)
    }

    /// Appends a line to the script's file of an extension.
    pub fn note(&self, extension: &str, line: &str) {
        let mut path = self.script.clone().into_os_string();
        path.push(".");
        path.push(extension);
        let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a note can be made");
        file.write_all(format!("{line}\n").as_bytes()).expect("a note can be written");
    }
}
