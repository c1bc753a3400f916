//! Describes the location of a database, and its user: a URL, and a password that is not part of
//! it.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use url::form_urlencoded;

use super::password;
use super::tls::Tls;
use crate::error::{Error, Result};

/// Schema of the tables if the URL names none.
const SCHEMA: &str = "foldlog";

/// Port of a server if the URL names none.
const PORT: u16 = 5432;

/// Maximum length of a name in a database, in bytes.
const NAME_BYTES_MAX: usize = 63;

/// Describes a database for sessions, and the user that connects to it.
///
/// The URL is libpq's: `postgres://USER@HOST:PORT/DATABASE?…`, with several hosts if there are
/// standbys (`HOST,HOST`, and `target_session_attrs=read-write`), or
/// `postgres:///DATABASE?host=/DIRECTORY` for a socket. Three parameters have the meaning given
/// here:
///
/// | parameter | meaning |
/// |---|---|
/// | `sslmode` | `verify-full`: TLS, with a certificate of that host. `require` and `verify-ca` mean the same. `disable`: none. Default: TLS, except to this machine. `prefer` and `allow`, which protect nothing, are refused |
/// | `sslrootcert` | PEM file of the trusted authorities; default: those that this machine trusts |
/// | `schema` | schema of the tables, which is created with the first session: letters, digits and `_` (`foldlog`) |
///
/// The password comes from the environment: from `PGPASSWORD`, or the file that `PGPASSFILE` names,
/// else `~/.pgpass`. A URL with a password is refused, since other users of the machine can see
/// command lines.
#[derive(Clone)]
pub struct Database {
    pub(super) config: Config,
    pub(super) tls: Tls,
    pub(super) schema: String,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("place", &self.place()).finish_non_exhaustive()
    }
}

impl Database {
    /// Parses a URL, and reads the password from the environment. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::Url`], which does not quote the URL.
    pub fn from_url(url: &str) -> Result<Database> {
        Database::from_url_in(url, &|name| std::env::var_os(name))
    }

    /// Sets a password from another source of the host.
    #[must_use]
    pub fn with_password(mut self, password: &[u8]) -> Database {
        self.config.password(password);
        self
    }

    /// Returns the location of the sessions, in words for people, without user or password.
    pub fn place(&self) -> String {
        let hosts: Vec<String> = self.addresses().map(|(host, port)| format!("{host}:{port}")).collect();
        let database = self.config.get_dbname().unwrap_or("of the user's name");
        format!("PostgreSQL at {}, database `{database}`, schema `{}`", hosts.join(","), self.schema)
    }

    /// Parses a URL as [`Database::from_url`] does, with the password from this environment.
    pub(super) fn from_url_in(url: &str, environment: &dyn Fn(&str) -> Option<OsString>) -> Result<Database> {
        let refused = |reason| Error::Url { reason };
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(refused("it does not begin with postgres://"));
        }
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let mut ours = Parameters::default();
        let theirs = query.split('&').filter(|part| !part.is_empty() && !ours.take(part));
        let mut theirs: Vec<String> = theirs.map(str::to_owned).collect();
        let mut place = Cow::Borrowed(place);
        // The crate parses `USER@/` as an empty host name, but libpq uses the host of the
        // parameters.
        if let Some((start, path)) = place.split_once("@/")
            && let Some((scheme, user)) = start.split_once("://")
            && !user.contains(['/', ':', '@'])
        {
            theirs.push(format!("user={user}"));
            place = Cow::Owned(format!("{scheme}:///{path}"));
        }
        let mut config: Config = format!("{place}?{}", theirs.join("&"))
            .parse()
            .map_err(|_| refused("it is not a URL of PostgreSQL, or has an unknown parameter"))?;
        if config.get_password().is_some() {
            return Err(refused("it contains a password: give that in PGPASSWORD or in a password file"));
        }
        if config.get_user().is_none()
            && let Some(user) = environment("PGUSER").and_then(|user| user.into_string().ok())
        {
            config.user(user);
        }
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(refused("it names no host"));
        }
        let schema = ours.schema.unwrap_or_else(|| SCHEMA.to_owned());
        if !is_name(&schema) {
            return Err(refused("its schema is not a name of letters, digits and `_`"));
        }
        config.ssl_mode(match ours.mode.as_deref() {
            Some("verify-full" | "verify-ca" | "require") => SslMode::Require,
            None if !is_here(&config) => SslMode::Require,
            None | Some("disable") => SslMode::Disable,
            Some(_) => {
                return Err(refused(
                    "its sslmode does not protect the connection: use verify-full, or disable",
                ));
            }
        });
        let tls = Tls::new(ours.authorities.as_deref())
            .ok_or_else(|| refused("its sslrootcert is not a file of certificates"))?;
        if config.get_application_name().is_none() {
            config.application_name("foldlog");
        }
        let mut database = Database { config, tls, schema };
        if let Some(password) = database.password_in(environment) {
            database.config.password(password);
        }
        Ok(database)
    }

    /// Returns the environment's password for this user and this database.
    fn password_in(&self, environment: &dyn Fn(&str) -> Option<OsString>) -> Option<Vec<u8>> {
        use std::os::unix::ffi::OsStringExt;

        if let Some(password) = environment("PGPASSWORD") {
            return Some(password.into_vec());
        }
        let file = environment("PGPASSFILE").map(PathBuf::from);
        let file = file.or_else(|| environment("HOME").map(|home| PathBuf::from(home).join(".pgpass")))?;
        let user = self.config.get_user()?;
        let database = self.config.get_dbname().unwrap_or(user);
        let lines = password::read(&file)?;
        self.addresses().find_map(|(host, port)| password::find(&lines, [&host, &port, database, user]))
    }

    /// Returns host and port of each server. All sockets are `localhost`, as in password files.
    fn addresses(&self) -> impl Iterator<Item = (String, String)> {
        let ports = self.config.get_ports();
        let port = move |place: usize| {
            let port = ports.get(place).or_else(|| ports.first()).copied().unwrap_or(PORT);
            port.to_string()
        };
        let hosts = self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(host) => host.clone(),
            Host::Unix(_) => "localhost".to_owned(),
        });
        let addresses = self.config.get_hostaddrs().iter().map(IpAddr::to_string);
        let addresses = if self.config.get_hosts().is_empty() { Some(addresses) } else { None };
        hosts.chain(addresses.into_iter().flatten()).enumerate().map(move |(place, host)| (host, port(place)))
    }
}

/// The parameters that this crate handles itself.
#[derive(Default)]
struct Parameters {
    mode: Option<String>,
    authorities: Option<PathBuf>,
    schema: Option<String>,
}

impl Parameters {
    /// Takes a part of a query, if it is one of these.
    fn take(&mut self, part: &str) -> bool {
        for (key, value) in form_urlencoded::parse(part.as_bytes()) {
            match &*key {
                "sslmode" => self.mode = Some(value.into_owned()),
                "sslrootcert" => self.authorities = Some(PathBuf::from(&*value)),
                "schema" => self.schema = Some(value.into_owned()),
                _ => return false,
            }
        }
        true
    }
}

/// Returns whether all servers are on this machine.
fn is_here(config: &Config) -> bool {
    let here = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(host) => {
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        }
    };
    config.get_hosts().iter().all(here) && config.get_hostaddrs().iter().all(IpAddr::is_loopback)
}

/// Returns whether a name needs no escaping within quotes, whatever the server's encoding is.
fn is_name(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let rest = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    first && rest && name.len() <= NAME_BYTES_MAX && !name.starts_with("pg_")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn bare(url: &str) -> Result<Database> {
        Database::from_url_in(url, &|_| None)
    }

    fn reason(url: &str) -> &'static str {
        match bare(url) {
            Err(Error::Url { reason }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_no_place_is_refused_and_no_error_quotes_it() {
        assert!(reason("mysql://host/db").contains("postgres://"));
        assert!(reason("postgres://u:secret@host/db").contains("PGPASSWORD"));
        assert!(reason("postgres://u@host/db?password=secret").contains("PGPASSWORD"));
        assert!(reason("postgres://u@host/db?secret=1").contains("unknown parameter"));
        for nowhere in ["postgres:///db", "postgres://u@/db"] {
            assert!(reason(nowhere).contains("no host"));
        }
        assert!(reason("postgres://u:secret@/db?host=/run").contains("PGPASSWORD"));
        for schema in ["", "x\"; drop", "9a", "pg_catalog", "Big", &"a".repeat(64)] {
            assert!(reason(&format!("postgres://u@host/db?schema={schema}")).contains("schema"), "{schema}");
        }
        for mode in ["prefer", "allow", "secret"] {
            assert!(reason(&format!("postgres://u@host/db?sslmode={mode}")).contains("sslmode"));
        }
        assert!(reason("postgres://u@host/db?sslrootcert=/nowhere/secret").contains("sslrootcert"));
        for url in ["postgres://u:secret@host/db", "postgres://u@host/db?secret=1"] {
            assert!(!bare(url).unwrap_err().to_string().contains("secret"));
        }
    }

    #[test]
    fn a_server_elsewhere_is_spoken_to_with_tls_unless_the_url_says_otherwise() {
        let mode = |url: &str| bare(url).unwrap().config.get_ssl_mode();
        assert_eq!(mode("postgres://u@db.example/x"), SslMode::Require);
        assert_eq!(mode("postgres://u@db.example/x?sslmode=disable"), SslMode::Disable);
        for url in ["postgres://u@localhost/x", "postgres://u@127.0.0.1/x", "postgres:///x?host=/run/sockets"]
        {
            assert_eq!(mode(url), SslMode::Disable);
            let join = if url.contains('?') { '&' } else { '?' };
            assert_eq!(mode(&format!("{url}{join}sslmode=verify-full")), SslMode::Require);
        }
        assert_eq!(mode("postgres://u@localhost,db.example/x"), SslMode::Require);
    }

    #[test]
    fn a_password_is_found_in_the_environment_and_shown_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("passwords");
        fs::write(&file, "# hosts\nother:*:*:*:wrong\nhost:5433:*:u:of\\:the\\\\file\n").unwrap();
        let allow = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        allow(0o600);
        let found = |url: &str, variable: Option<&str>| {
            let database = Database::from_url_in(url, &|name| match name {
                "PGPASSWORD" => variable.map(OsString::from),
                "PGPASSFILE" => Some(file.clone().into_os_string()),
                _ => None,
            });
            let database = database.unwrap();
            assert!(!format!("{database:?}{}", database.place()).contains("secret"));
            database.config.get_password().map(|password| String::from_utf8(password.to_vec()).unwrap())
        };
        let url = "postgres://u@host:5433/db";
        assert_eq!(found(url, Some("secret")).as_deref(), Some("secret"));
        assert_eq!(found(url, None).as_deref(), Some("of:the\\file"));
        assert_eq!(found("postgres://u@host:5434/db", None), None);
        // Libpq does not read a file that other users can read; neither does this.
        allow(0o644);
        assert_eq!(found(url, None), None);
    }

    #[test]
    fn a_place_is_told_without_its_user() {
        let database = bare("postgres://someone@/agents?host=/run/sockets&port=6000").unwrap();
        assert_eq!(database.config.get_user(), Some("someone"));
        assert_eq!(database.place(), "PostgreSQL at localhost:6000, database `agents`, schema `foldlog`");
        let database = bare("postgres://someone@a,b:6000/agents?schema=team").unwrap();
        assert_eq!(database.place(), "PostgreSQL at a:5432,b:6000, database `agents`, schema `team`");
    }
}
