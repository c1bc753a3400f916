//! Runs a PostgreSQL server for a test, in a directory of its own.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use foldlog_remote::{Database, PostgresReplicator, Retries};
use nix::sys::signal::{self, Signal};
use nix::sys::wait::{self, WaitPidFlag};
use nix::unistd::{Gid, Pid, Uid, User};

/// Longest time for a server to start or stop.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Limits with which a test survives an outage of a second or two.
pub(crate) fn retries() -> Retries {
    Retries {
        within: Duration::ZERO,
        attempts: 40,
        request_timeout: Duration::from_secs(20),
        first_wait: Duration::from_millis(10),
        longest_wait: Duration::from_millis(250),
    }
}

/// Limits with which a test sees a failure at once.
pub(crate) fn hasty() -> Retries {
    let wait = Duration::from_millis(1);
    Retries {
        within: Duration::ZERO,
        attempts: 2,
        request_timeout: Duration::from_secs(20),
        first_wait: wait,
        longest_wait: wait,
    }
}

#[derive(Debug)]
pub(crate) struct Server {
    directory: tempfile::TempDir,
    programs: PathBuf,
    port: u16,
    user: Option<(Uid, Gid)>,
    running: Mutex<Option<Child>>,
}

static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
static SCHEMAS: AtomicU64 = AtomicU64::new(0);

/// Returns the server that several tests share, or reports that the test is skipped.
pub(crate) fn shared() -> Option<Arc<Server>> {
    let mut shared = SHARED.lock().unwrap();
    if let Some(server) = shared.upgrade() {
        return Some(server);
    }
    let server = Arc::new(own()?);
    *shared = Arc::downgrade(&server);
    Some(server)
}

/// Starts a server for one test alone.
pub(crate) fn own() -> Option<Server> {
    own_with(&[])
}

/// Starts such a server with further settings.
pub(crate) fn own_with(settings: &[&str]) -> Option<Server> {
    let Some(programs) = programs() else {
        return skip("there is no PostgreSQL (initdb and postgres, 14 or later)");
    };
    let user = match Uid::effective().is_root() {
        false => None,
        true => match ["postgres", "nobody"].iter().find_map(|name| User::from_name(name).ok().flatten()) {
            Some(user) => Some((user.uid, user.gid)),
            None => {
                return skip("PostgreSQL does not run as root, and there is no user `postgres` or `nobody`");
            }
        },
    };
    // A socket's path may have about a hundred bytes.
    let directory = tempfile::Builder::new().prefix("foldlog-pg").tempdir_in("/tmp").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    if let Some((uid, gid)) = user {
        chown(directory.path(), Some(uid.as_raw()), Some(gid.as_raw())).unwrap();
    }
    let port = free_port();
    let server = Server { directory, programs, port, user, running: Mutex::default() };
    let data = server.data();
    let mut initdb = server.program("initdb");
    initdb.arg("-D").arg(&data).args([
        "-U",
        "foldlog",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
        "--no-sync",
        "--no-instructions",
    ]);
    assert!(initdb.stdout(Stdio::null()).status().unwrap().success(), "initdb failed");
    let mut file = fs::OpenOptions::new().append(true).open(data.join("postgresql.conf")).unwrap();
    // By default a killed server syncs every file of its directory when it starts.
    for setting in ["recovery_init_sync_method = syncfs"].iter().chain(settings) {
        writeln!(file, "{setting}").unwrap();
    }
    drop(file);
    server.start();
    Some(server)
}

pub(crate) fn skip<T>(reason: &str) -> Option<T> {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let line = format!("postgres::{test}: {reason}");
    println!("skipped: {line}");
    if let Some(path) = std::env::var_os("FOLDLOG_SKIPPED") {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
    }
    None
}

/// Returns the directory of the server's programs: one in the path, or the newest that Debian has
/// installed.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut installed: Vec<(u32, PathBuf)> = installed
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    installed.sort();
    directories
        .extend(installed.into_iter().rev().filter(|(version, _)| *version >= 14).map(|(_, path)| path));
    directories
        .into_iter()
        .find(|directory| ["initdb", "postgres"].iter().all(|name| directory.join(name).exists()))
}

/// Returns a free port below those of outgoing connections, one of which could take it while the
/// server starts.
fn free_port() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id().wrapping_mul(16) as u16;
    let tried =
        std::iter::repeat_with(|| 10_000 + first.wrapping_add(TRIED.fetch_add(1, Ordering::SeqCst)) % 20_000);
    tried.take(1_000).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

pub(crate) fn schema_of(url: &str) -> &str {
    url.rsplit('=').next().unwrap()
}

impl Server {
    pub(crate) fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join(format!(".s.PGSQL.{}", self.port))
    }

    fn program(&self, name: &str) -> Command {
        self.as_its_user(&self.programs.join(name))
    }

    /// Runs a program in the server's directory, as the server's user.
    pub(crate) fn as_its_user(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.directory.path()).env("LC_ALL", "C");
        if let Some((uid, gid)) = self.user {
            command.uid(uid.as_raw()).gid(gid.as_raw());
        }
        command
    }

    /// Starts the server, and returns once it answers.
    pub(crate) fn start(&self) {
        let log = fs::OpenOptions::new().append(true).create(true).open(self.log()).unwrap();
        let mut command = self.program("postgres");
        command.arg("-D").arg(self.data()).arg("-k").arg(self.directory.path());
        command.args(["-p", &self.port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
        command.stdout(log.try_clone().unwrap()).stderr(log);
        *self.running.lock().unwrap() = Some(command.spawn().unwrap());
        let began = Instant::now();
        let asks = replicator(&self.url(), "", hasty());
        while asks.sessions().is_err() {
            let log = fs::read_to_string(self.log()).unwrap();
            assert!(began.elapsed() < PATIENCE, "the server does not answer: {log}");
            std::thread::yield_now();
        }
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// Kills the server and its processes at any moment of their work.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.running.lock().unwrap().take() {
            // Waits until it is stopped, so that it starts no more processes.
            let pid = Pid::from_raw(child.id() as i32);
            signal::kill(pid, Signal::SIGSTOP).unwrap();
            wait::waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
            for started in started_by(pid) {
                let _ = signal::kill(started, Signal::SIGKILL);
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // The next server may start only once they have all ended.
        let began = Instant::now();
        while is_held(&self.data()) {
            assert!(began.elapsed() < PATIENCE, "processes of a killed server do not end");
            std::thread::yield_now();
        }
    }

    /// Stops the server as an administrator does, without waiting for clients.
    pub(crate) fn stop(&self) {
        if let Some(mut child) = self.running.lock().unwrap().take() {
            signal::kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
            child.wait().unwrap();
        }
    }

    /// Returns the place of sessions in a new schema of this test.
    pub(crate) fn url(&self) -> String {
        let schema = format!("s{}", SCHEMAS.fetch_add(1, Ordering::SeqCst));
        self.url_of("foldlog", "postgres", &schema)
    }

    /// Returns the place of a user's sessions in a schema of a database.
    pub(crate) fn url_of(&self, user: &str, database: &str, schema: &str) -> String {
        let directory = self.directory.path().display();
        format!("postgres://{user}@/{database}?host={directory}&port={}&schema={schema}", self.port)
    }

    /// Copies a file into the server's directory that only the server's user may read.
    pub(crate) fn give(&self, from: &Path, to: &Path) {
        fs::copy(from, to).unwrap();
        fs::set_permissions(to, fs::Permissions::from_mode(0o600)).unwrap();
        if let Some((uid, gid)) = self.user {
            chown(to, Some(uid.as_raw()), Some(gid.as_raw())).unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the child processes of a process.
fn started_by(parent: Pid) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The state and the parent follow the name, which may contain any character.
        let behind = stat.rsplit_once(") ").map_or("", |(_, behind)| behind);
        behind.split(' ').nth(1).and_then(|ppid| ppid.parse().ok()) == Some(parent.as_raw())
    };
    pids.filter(is_child).map(Pid::from_raw).collect()
}

/// Returns whether a process is still attached to the shared memory that the server's lock file
/// names. The next server would find it in use.
fn is_held(data: &Path) -> bool {
    let Ok(text) = fs::read_to_string(data.join("postmaster.pid")) else { return false };
    // Line 7 has the key and the id of the shared memory, to which each process is attached.
    let Some(id) = text.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
    else {
        return false;
    };
    let Ok(table) = fs::read_to_string("/proc/sysvipc/shm") else { return false };
    table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(1).and_then(|field| field.parse().ok()) == Some(id)
            && fields.get(6).is_some_and(|attached| *attached != "0")
    })
}

pub(crate) fn replicator(url: &str, name: &str, retries: Retries) -> PostgresReplicator {
    PostgresReplicator::new(Database::from_url(url).unwrap(), name, retries).unwrap()
}
