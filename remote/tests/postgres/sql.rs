//! Runs an administrator's statements on a test's server.

use std::future::poll_fn;
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls, Row, SimpleQueryMessage};

use crate::server::{PATIENCE, Server};

pub(crate) struct Administrator {
    client: Client,
    runtime: Runtime,
    /// Receives the server's notifications.
    heard: mpsc::UnboundedReceiver<String>,
}

impl Administrator {
    pub(crate) fn run(&self, statements: &str) {
        self.runtime.block_on(self.client.batch_execute(statements)).unwrap();
    }

    /// Runs a query on this connection, and returns the texts of its first row.
    pub(crate) fn ask(&self, statement: &str) -> Vec<String> {
        let messages = self.runtime.block_on(self.client.simple_query(statement)).unwrap();
        let row = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let row = row.unwrap();
        (0..row.len()).map(|column| row.get(column).unwrap_or_default().to_owned()).collect()
    }

    /// Returns the payload of the next notification.
    pub(crate) fn hear(&mut self) -> String {
        let heard = async { tokio::time::timeout(PATIENCE, self.heard.recv()).await };
        self.runtime.block_on(heard).expect("nobody notifies").unwrap()
    }
}

impl Server {
    pub(crate) fn administrator(&self) -> Administrator {
        self.administrator_at(self.port())
    }

    /// Connects as the administrator to the socket of that port in the server's directory.
    pub(crate) fn administrator_at(&self, port: u16) -> Administrator {
        let mut config = tokio_postgres::Config::new();
        config.host_path(self.directory()).port(port).user("foldlog").dbname("postgres");
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (hears, heard) = mpsc::unbounded_channel();
        let client = runtime.block_on(async {
            let (client, mut connection) = config.connect(NoTls).await.unwrap();
            tokio::spawn(async move {
                while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                    if let AsyncMessage::Notification(notification) = message {
                        let _ = hears.send(notification.payload().to_owned());
                    }
                }
            });
            client
        });
        Administrator { client, runtime, heard }
    }

    pub(crate) fn sql(&self, statements: &str) {
        self.administrator().run(statements);
    }

    pub(crate) fn query(&self, statement: &str) -> Vec<Row> {
        let Administrator { client, runtime, .. } = self.administrator();
        runtime.block_on(client.query(statement, &[])).unwrap()
    }

    /// Runs statements whose locks and channels last until the connection is dropped.
    pub(crate) fn holding(&self, statements: &str) -> Administrator {
        let administrator = self.administrator();
        administrator.run(statements);
        administrator
    }

    /// Returns once a process waits for a lock.
    pub(crate) fn wait_for_lock(&self) {
        let began = Instant::now();
        while self.query("SELECT 1 FROM pg_locks WHERE NOT granted").is_empty() {
            assert!(began.elapsed() < PATIENCE, "nobody waits");
        }
    }
}
