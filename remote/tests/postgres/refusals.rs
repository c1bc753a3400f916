//! Shows the errors of servers that refuse a request.

use std::fs;
use std::process::Command;

use foldlog::replication::Replicator;
use foldlog_remote::{Database, PostgresReplicator};
use uuid::Uuid;

use crate::server::{Server, hasty, own_with, replicator, retries, schema_of, shared};
use crate::worker::{append, claim, held, reason};

const SESSION: Uuid = Uuid::from_u128(1);

/// Returns why a claim there fails.
fn refusal(url: &str, password: Option<&str>) -> String {
    let mut database = Database::from_url(url).unwrap();
    if let Some(password) = password {
        database = database.with_password(password.as_bytes());
    }
    let replicator = PostgresReplicator::new(database, "one", hasty()).unwrap();
    let text = reason(claim(&replicator, SESSION));
    let all = format!("{text} {replicator:?} {}", replicator.place());
    assert!(!all.contains("secret") && !all.contains('\u{1b}'), "{all}");
    text
}

#[test]
fn wrong_passwords_missing_databases_rights_and_servers_are_said_and_no_password_is() {
    let Some(server) = own_with(&[]) else { return };
    for statement in [
        "CREATE ROLE agent LOGIN PASSWORD 'secret right'",
        "CREATE DATABASE closed",
        "REVOKE CONNECT ON DATABASE closed FROM public",
    ] {
        server.sql(statement);
    }
    let rules = "local all agent scram-sha-256\nlocal all all trust\nhost all all all reject\n";
    fs::write(server.data().join("pg_hba.conf"), rules).unwrap();
    server.sql("SELECT pg_reload_conf()");
    let url = |database: &str| server.url_of("agent", database, "agents");
    while replicator(&url("postgres"), "x", hasty()).sessions().is_ok() {}

    let place = format!("(PostgreSQL at localhost:{}, database `", server.port());
    let refused = |url: &str, password, said: [&str; 2]| {
        let text = refusal(url, password);
        assert!(said.iter().all(|said| text.contains(said)) && text.contains(&place), "{text}");
    };
    let password = "refuses the user or the password";
    assert!(refusal(&url("postgres"), None).contains(password));
    let wrong = "SQLSTATE 28P01: password authentication failed for user \"agent\"";
    refused(&url("postgres"), Some("secret wrong"), [password, wrong]);
    let nobody = "SQLSTATE 28000: role \"nobody\" does not exist";
    refused(&server.url_of("nobody", "postgres", "x"), Some("secret"), [password, nobody]);
    let right = Some("secret right");
    let nowhere = "SQLSTATE 3D000: database \"nowhere\" does not exist";
    refused(&url("nowhere"), right, ["the database does not exist", nowhere]);
    let closed = "SQLSTATE 42501: permission denied for database \"closed\"";
    refused(&url("closed"), right, ["lacks the right", closed]);
    refused(&url("postgres"), right, ["lacks the right", "SQLSTATE 42501: permission denied for database"]);
    let elsewhere = url("postgres").replace("foldlog-pg", "nowhere-secret-no");
    assert!(refusal(&elsewhere, right).contains("the connection to it, failed"));
    let unused = server.port().to_string();
    let nobody_listens = url("postgres").replace(&format!("port={unused}"), "port=1");
    let nobody_listens = nobody_listens.replace(&server.directory().display().to_string(), "127.0.0.1");
    assert!(
        refusal(&nobody_listens, right)
            .contains("the connection was refused: no server listens there (PostgreSQL at 127.0.0.1:1,")
    );
    // Writing needs rights in the database and in its schema.
    server.sql("CREATE SCHEMA agents");
    assert!(refusal(&url("postgres"), right).contains("lacks the right"));
    server.sql("GRANT ALL ON SCHEMA agents TO agent");
    let database = Database::from_url(&url("postgres")).unwrap().with_password(b"secret right");
    let one = PostgresReplicator::new(database, "one", hasty()).unwrap();
    claim(&one, SESSION).unwrap();
    append(&one, SESSION, 1, 0, &["a"]).unwrap();
    server.sql("REVOKE INSERT ON agents.records FROM agent; ALTER TABLE agents.records OWNER TO foldlog");
    let text = reason(append(&one, SESSION, 1, 1, &["b"]));
    assert!(text.contains("could not append to the database: the user lacks the right"), "{text}");
}

#[test]
fn a_full_or_read_only_database_is_said_with_what_the_server_says_escaped_and_cut_off() {
    let Some(server) = shared() else { return };
    let url = server.url();
    let schema = schema_of(&url);
    let one = replicator(&url, "one", hasty());
    claim(&one, SESSION).unwrap();
    append(&one, SESSION, 1, 0, &["a"]).unwrap();
    for (code, said) in [
        ("53100", "the server's disk is full"),
        ("25006", "the database is read-only"),
        ("42501", "lacks the right"),
        ("P0001", "the server refused the request"),
    ] {
        server.sql(&format!(
            "CREATE OR REPLACE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN \
             RAISE EXCEPTION USING ERRCODE = '{code}', MESSAGE = E'by hand \\x1b[31m' || repeat('x', 500); END$$; \
             CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON {schema}.records EXECUTE FUNCTION {schema}.refuse()"
        ));
        let text = reason(append(&one, SESSION, 1, 1, &["b"]));
        let answer = format!("SQLSTATE {code}: by hand \\u{{1b}}[31mxxx");
        assert!(text.contains(said) && text.contains(&answer) && !text.contains(&"x".repeat(200)), "{text}");
        server.sql(&format!("DROP TRIGGER refuse ON {schema}.records"));
    }
    // Nothing is in doubt: refused records are not stored, and can be appended again.
    append(&one, SESSION, 1, 1, &["b", "c"]).unwrap();
    assert_eq!(held(&one, SESSION).unwrap().1, ["a", "b", "c"]);
    let rows = server.query(&format!("SELECT count(*) FROM {schema}.records"));
    assert_eq!(rows[0].get::<_, i64>(0), 3);

    let text = reason(claim(
        &replicator(&format!("{url}&options=-cdefault_transaction_read_only%3Don"), "two", hasty()),
        SESSION,
    ));
    assert!(text.contains("the database is read-only"), "{text}");
}

#[test]
fn a_commit_waits_for_the_disk_whatever_role_or_database_have_set() {
    let Some(server) = shared() else { return };
    let (url, schema) = (server.url_of("careless", "postgres", "careless"), "careless");
    server.sql("CREATE ROLE careless LOGIN SUPERUSER; ALTER ROLE careless SET synchronous_commit = off");
    let one = replicator(&url, "one", hasty());
    claim(&one, SESSION).unwrap();
    // A trigger records the durability setting of each writing transaction.
    server.sql(&format!(
        "CREATE TABLE {schema}.seen (level text);
         CREATE FUNCTION {schema}.see() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN \
         INSERT INTO {schema}.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END$$;
         CREATE TRIGGER see AFTER INSERT ON {schema}.records EXECUTE FUNCTION {schema}.see();
         CREATE TRIGGER see AFTER INSERT ON {schema}.claims EXECUTE FUNCTION {schema}.see();
         CREATE TRIGGER see AFTER INSERT ON {schema}.objects EXECUTE FUNCTION {schema}.see()"
    ));
    append(&one, SESSION, 1, 0, &["a"]).unwrap();
    claim(&one, SESSION).unwrap();
    one.put_object(SESSION, foldlog::ObjectId::from_content(b"x"), b"x").unwrap();
    let seen = server.query(&format!("SELECT level FROM {schema}.seen"));
    let seen: Vec<String> = seen.iter().map(|row| row.get(0)).collect();
    assert_eq!(seen, ["on", "on", "on"]);
    // A setting that waits for even more is left unchanged.
    server.sql("ALTER ROLE careless SET synchronous_commit = remote_apply");
    let two = replicator(&url, "two", hasty());
    claim(&two, SESSION).unwrap();
    let seen = server.query(&format!("SELECT level FROM {schema}.seen OFFSET 3"));
    assert_eq!(seen[0].get::<_, String>(0), "remote_apply");
}

#[test]
fn a_server_that_does_not_sync_is_refused_also_later() {
    let Some(server) = own_with(&["fsync = off"]) else { return };
    let url = server.url();
    let text = refusal(&url, None);
    assert!(text.contains("`fsync` is off"), "{text}");
    let set = |value: &str| {
        server.sql(&format!("ALTER SYSTEM SET fsync = {value}"));
        server.sql("SELECT pg_reload_conf()");
        while server.query("SHOW fsync")[0].get::<_, String>(0) != value {}
    };
    set("on");
    let one = replicator(&url, "one", hasty());
    claim(&one, SESSION).unwrap();
    append(&one, SESSION, 1, 0, &["a"]).unwrap();
    set("off");
    // The old connection learns of it a moment later.
    let mut next = 1;
    let text = loop {
        match append(&one, SESSION, 1, next, &["b"]) {
            Ok(()) => next += 1,
            failed => break reason(failed),
        }
    };
    assert!(text.contains("`fsync` is off"), "{text}");
}

/// Makes a certificate authority, and a certificate of it for `localhost`, in the server's
/// directory.
fn certify(server: &Server) -> Option<std::path::PathBuf> {
    let directory = server.directory().join("tls");
    fs::create_dir(&directory).unwrap();
    let openssl = |arguments: &str| {
        let run = Command::new("openssl").args(arguments.split(' ')).current_dir(&directory).output();
        run.is_ok_and(|run| run.status.success())
    };
    fs::write(directory.join("names"), "subjectAltName=DNS:localhost\n").unwrap();
    let made = ["authority", "other"].iter().all(|name| {
        openssl(&format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj /CN={name} -keyout {name}.key -out {name}.pem"
        ))
    }) && openssl("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost -keyout server.key -out server.csr")
        && openssl("x509 -req -in server.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 3650 -extfile names -out server.pem");
    if !made {
        println!("skipped: TLS: there is no openssl");
        return None;
    }
    for (from, to) in [("server.key", "server.key"), ("server.pem", "server.crt")] {
        server.give(&directory.join(from), &server.data().join(to));
    }
    Some(directory)
}

#[test]
fn tls_is_spoken_with_the_host_of_the_url_alone_and_only_where_it_is_certified() {
    let Some(server) = own_with(&[]) else { return };
    let port = server.port();
    let url = |host: &str, rest: &str| format!("postgres://foldlog@{host}:{port}/postgres?{rest}");
    assert!(refusal(&url("localhost", "sslmode=verify-full"), None).contains("does not support TLS"));
    let Some(tls) = certify(&server) else { return };
    server.sql("ALTER SYSTEM SET ssl = on");
    fs::write(server.data().join("pg_hba.conf"), "local all all trust\nhostssl all all 127.0.0.1/32 trust\n")
        .unwrap();
    server.stop();
    server.start();
    let trusted = |host, authority| {
        url(host, &format!("sslmode=verify-full&sslrootcert={}", tls.join(authority).display()))
    };
    let untrusted = "the server's certificate cannot be verified";
    assert!(refusal(&trusted("localhost", "other.pem"), None).contains(untrusted));
    assert!(refusal(&trusted("127.0.0.1", "authority.pem"), None).contains(untrusted));
    assert!(refusal(&url("localhost", "sslmode=require"), None).contains(untrusted));
    // The server refuses connections without TLS.
    assert!(refusal(&url("localhost", ""), None).contains("refuses the user"));
    let one = replicator(&trusted("localhost", "authority.pem"), "one", retries());
    claim(&one, SESSION).unwrap();
    append(&one, SESSION, 1, 0, &["a"]).unwrap();
    let rows = server.query("SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'foldlog'");
    assert!(rows[0].get::<_, bool>(0));
}
