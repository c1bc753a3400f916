//! Compares an acknowledged record in PostgreSQL with a single statement that writes as many bytes
//! and updates a row.

use std::sync::Arc;

use foldlog_remote::{Database, PostgresReplicator, Retries, Runtime};
use tokio_postgres::NoTls;

use super::{ACKNOWLEDGED, BODY_BYTES, acknowledgement, appender};
use crate::measure::{BenchRow, ROUNDS, Result, take_turns, timed};

const TABLES: &str = "
    DROP TABLE IF EXISTS bare_head, bare_records;
    CREATE TABLE bare_head (id int PRIMARY KEY, next bigint NOT NULL);
    INSERT INTO bare_head VALUES (1, 0);
    CREATE TABLE bare_records (id int, sequence bigint, body bytea NOT NULL, PRIMARY KEY (id, sequence))";

const APPEND: &str = "
    WITH head AS (UPDATE bare_head SET next = next + 1 WHERE id = 1 AND next = $1 RETURNING 1)
    INSERT INTO bare_records SELECT 1, $1, $2 FROM head";

pub(super) fn acknowledged(url: &str) -> Result<BenchRow> {
    let replicator = PostgresReplicator::new(Database::from_url(url)?, "bench", Retries::default())?;
    let mut append = appender(Arc::new(replicator.with_lease(foldlog_remote::LEASE_LENGTH_MAX)?))?;
    append()?;
    let runtime = Runtime::start()?;
    let address = url.to_owned();
    let (client, statement) = runtime.run(async move {
        let (client, connection) = tokio_postgres::connect(&address, NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(TABLES).await?;
        let statement = client.prepare(APPEND).await?;
        Ok::<_, tokio_postgres::Error>((Arc::new(client), statement))
    })??;
    let mut next = 0i64;
    let mut subject = || timed(ACKNOWLEDGED, || (0..ACKNOWLEDGED).try_for_each(|_| append()));
    let mut limit = || {
        timed(ACKNOWLEDGED, || {
            for _ in 0..ACKNOWLEDGED {
                let (client, statement, sequence) = (Arc::clone(&client), statement.clone(), next);
                let body = vec![7u8; BODY_BYTES];
                runtime.run(async move { client.execute(&statement, &[&sequence, &body]).await })??;
                next += 1;
            }
            Ok(())
        })
    };
    let [measured, limit] = take_turns(ROUNDS, [&mut subject, &mut limit])?;
    Ok(acknowledgement(&format!("PostgreSQL, {BODY_BYTES} bytes"), measured, limit))
}
