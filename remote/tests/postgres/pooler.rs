//! Shows that sessions work over a pooler in transaction mode, which hands the server's sessions
//! from client to client after each transaction.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Instant;

use uuid::Uuid;

use crate::server::{PATIENCE, Server, replicator, retries, shared, skip};
use crate::worker::{append, claim, held};

const PGBOUNCER: &str = "/usr/sbin/pgbouncer";

/// A pgbouncer with one session at the server for all of its clients.
struct Pooler {
    child: Child,
    port: u16,
}

impl Pooler {
    fn start(server: &Server) -> Pooler {
        // The socket's name contains the port, and no other socket is in this directory.
        let port = server.port().wrapping_add(1).max(1024);
        let directory = server.directory();
        let settings = format!(
            "[databases]\n* = host={} port={} user=foldlog\n[pgbouncer]\nlisten_addr =\nlisten_port = {port}\n\
             unix_socket_dir = {}\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 1\n",
            directory.display(),
            server.port(),
            directory.display()
        );
        let file = directory.join("pgbouncer.ini");
        fs::write(&file, settings).unwrap();
        let mut command = server.as_its_user(Path::new(PGBOUNCER));
        let child = command.arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let socket = directory.join(format!(".s.PGSQL.{port}"));
        let began = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(began.elapsed() < PATIENCE, "the pooler does not answer");
            std::thread::yield_now();
        }
        Pooler { child, port }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The settings of a session stayed at the server and affected other clients of the pool: a search
/// path without their own tables, and a time limit.
#[test]
fn a_pooler_in_transaction_mode_hands_no_setting_to_another_client() {
    if !Path::new(PGBOUNCER).exists() {
        skip::<()>("there is no pgbouncer");
        return;
    }
    let Some(server) = shared() else { return };
    let pooler = Pooler::start(&server);
    let url = server.url().replace(&format!("port={}", server.port()), &format!("port={}", pooler.port));
    let of_another = "SELECT pg_backend_pid()::text, current_setting('search_path'), current_setting('statement_timeout'), \
                      current_setting('client_min_messages'), current_setting('transaction_isolation')";
    let other = server.administrator_at(pooler.port);
    // Settings that another client leaves do no harm either.
    other.run("CREATE SCHEMA IF NOT EXISTS elsewhere; SET search_path = elsewhere, public; SET default_transaction_isolation = 'serializable'");
    let before = other.ask(of_another);
    let (worker, session) = (replicator(&url, "worker", retries()), Uuid::from_u128(50_051));
    let (next, epoch) = claim(&worker, session).unwrap();
    append(&worker, session, epoch, next, &["a", "b"]).unwrap();
    assert_eq!(held(&worker, session).unwrap().1, ["a", "b"]);
    // The server's session is the same, and so are its settings.
    assert_eq!(other.ask(of_another), before);
    assert_eq!(before[1..], ["elsewhere, public", "0", "notice", "serializable"]);
}
