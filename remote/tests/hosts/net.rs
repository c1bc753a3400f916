//! Provides network namespaces: one for the bucket's server, and one for each worker, with a link
//! between them.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Port of the server, which has a namespace of its own.
pub(crate) const PORT: u16 = 9000;

static NETS: AtomicU32 = AtomicU32::new(0);

/// Contains the namespaces of one test, which are deleted when it ends.
#[derive(Debug)]
pub(crate) struct Net {
    /// Prefix of their names.
    name: String,
    workers: u8,
}

/// Runs a program. Returns its error output if it fails.
fn run(words: &str) -> Result<(), String> {
    let mut words_of = words.split(' ');
    let mut command = Command::new(words_of.next().unwrap());
    let done = command.args(words_of).stdin(Stdio::null()).output();
    match done {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(format!("`{words}`: {}", String::from_utf8_lossy(&done.stderr).trim())),
        Err(error) => Err(format!("`{words}`: {error}")),
    }
}

/// Reports that the test of this thread, or a part of it, is skipped.
pub(crate) fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("hosts::{}: {}", thread.name().unwrap_or("a test"), reason.replace('\n', " "));
    println!("skipped: {line}");
    if let Some(path) = std::env::var_os("FOLDLOG_SKIPPED") {
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
    }
}

impl Net {
    /// Makes a namespace for the server and one for each worker, or reports that the test is
    /// skipped.
    pub(crate) fn new(workers: u8) -> Option<Net> {
        let number = NETS.fetch_add(1, Ordering::SeqCst);
        let net = Net { name: format!("fl{}-{number}", std::process::id()), workers };
        match net.make() {
            Ok(()) => Some(net),
            Err(reason) => {
                skip(&format!("no namespaces: {reason}"));
                None
            }
        }
    }

    fn make(&self) -> Result<(), String> {
        let server = self.server();
        run(&format!("ip netns add {server}"))?;
        for worker in 0..self.workers {
            let name = self.worker(worker);
            run(&format!("ip netns add {name}"))?;
            // Names of links have at most fifteen letters. In namespaces of their own, short ones
            // do not collide.
            run(&format!("ip -n {server} link add w{worker} type veth peer name eth netns {name}"))?;
            // If the kernel can create such links, it can use them.
            run(&format!("ip -n {server} address add 10.77.{worker}.1/24 dev w{worker}")).unwrap();
            run(&format!("ip -n {name} address add 10.77.{worker}.2/24 dev eth")).unwrap();
            run(&format!("ip -n {server} link set w{worker} up")).unwrap();
            run(&format!("ip -n {name} link set eth up")).unwrap();
        }
        Ok(())
    }

    pub(crate) fn server(&self) -> String {
        format!("{}s", self.name)
    }

    pub(crate) fn worker(&self, worker: u8) -> String {
        format!("{}w{worker}", self.name)
    }

    /// Returns the server's address on a worker's link.
    pub(crate) fn address(worker: u8) -> String {
        format!("10.77.{worker}.1:{PORT}")
    }

    /// Takes a worker's link down or up.
    pub(crate) fn link(&self, worker: u8, is_up: bool) {
        let state = if is_up { "up" } else { "down" };
        run(&format!("ip -n {} link set eth {state}", self.worker(worker))).unwrap();
    }

    /// Delays and drops packets on a worker's link in both directions. Returns the error of a
    /// kernel that cannot.
    pub(crate) fn disturb(&self, worker: u8, how: &str) -> Result<(), String> {
        let ends = [(self.server(), format!("w{worker}")), (self.worker(worker), "eth".to_owned())];
        ends.iter().try_for_each(|(name, link)| {
            run(&format!("ip netns exec {name} tc qdisc add dev {link} root netem {how}"))
        })
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // Deletes the links too.
        for name in (0..self.workers).map(|worker| self.worker(worker)).chain([self.server()]) {
            let _ = run(&format!("ip netns del {name}"));
        }
    }
}
