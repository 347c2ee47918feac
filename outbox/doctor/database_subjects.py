"""What is looked at of the database: its schema, its clock, and what weakens its word."""

from typing import Final

from outbox.doctor.findings import Subject
from outbox.store.supported import oldest_of_each

DATABASE_REACHABLE: Final = Subject(
    "database-reachable",
    "the database cannot be used: nothing is published, and every check is answered unknown",
    "start it, or correct OUTBOX_DATABASE_URL",
)
DATABASE_READABLE: Final = Subject(
    "database-readable",
    "a part of what the database knows could not be read, so nothing is said of it here",
    "read the reason: give its user the right, or mend the schema where it is not this version's",
)
DATABASE_WRITABLE: Final = Subject(
    "database-writable",
    "this server takes no writes: it is a standby or a replica, so no row can be claimed or decided",
    "point OUTBOX_DATABASE_URL at the primary",
)
DATABASE_RELEASE: Final = Subject(
    "database-release",
    "this release of the database is older than the toolkit's statements need: some of them fail",
    f"use {oldest_of_each()}, or a newer release of one of them",
)
SCHEMA_REVISION: Final = Subject(
    "schema-revision",
    "the tables are missing, or of another version of the toolkit: its daemons refuse to start",
    "run `outbox db upgrade`; where this version does not know the revision, install the one that made it",
)
SCHEMA_TABLES: Final = Subject(
    "schema-tables",
    "tables, columns or indexes are not as they were declared: claims may read the whole backlog, keys may repeat",
    "undo the change: `outbox db sql` prints the DDL; an index that is not valid is dropped and made again",
)
SCHEMA_CHECKS: Final = Subject(
    "schema-checks",
    "the database no longer refuses states or modes that the toolkit does not know",
    "add the constraint again, as `outbox db sql` prints it",
)
KEY_COLLATION: Final = Subject(
    "key-collation",
    "keys that differ in case, blanks or accents count as one: facts are refused as duplicates",
    'give the columns their type back, as `outbox db sql` prints it (PostgreSQL: COLLATE "C"; MySQL: VARBINARY)',
)
CLOCK: Final = Subject(
    "database-clock",
    "the clocks of this host and of the database differ; the broker counts the age of a half by its sender's clock",
    "keep both right (NTP); a sender that is ahead delays the broker's first check by as much",
)
TIME_ZONE: Final = Subject(
    "database-time-zone",
    "the server's time zone is not UTC; the toolkit writes and compares UTC all the same",
    "nothing, unless you read the tables by hand",
)
ISOLATION: Final = Subject(
    "database-isolation",
    "under this default isolation a business transaction can fail to commit, and must be repeated by its caller",
    "repeat transactions that the database refuses; the daemons use READ COMMITTED whatever the default is",
)
CONNECTIONS: Final = Subject(
    "database-connections",
    "the daemons may find no connection left: passes fail and are repeated",
    "raise max_connections (or the user's limit), or lower OUTBOX_PASSES or the number of processes",
)
SYNCHRONOUS_COMMIT: Final = Subject(
    "postgresql-synchronous-commit",
    "a business transaction that was told as committed can be lost in a crash, its message with it",
    "set synchronous_commit=on for the sessions that call add; the daemons set it for theirs",
)
STANDBY: Final = Subject(
    "postgresql-standby",
    "replication is asynchronous: after a fail-over decided rows may be pending again, and are published twice",
    "set synchronous_standby_names, and promote a synchronous standby only",
)
FSYNC: Final = Subject(
    "postgresql-fsync",
    "a crash of the host can lose or destroy decided rows, which then are published twice or never",
    "set fsync=on",
)
FULL_PAGE_WRITES: Final = Subject(
    "postgresql-full-page-writes",
    "a crash of the host can leave torn pages, and rows with them",
    "set full_page_writes=on",
)
FLUSH_LOG: Final = Subject(
    "mysql-flush-log",
    "a crash of the host can lose the decisions of the last second, which then are published twice",
    "set innodb_flush_log_at_trx_commit=1",
)
SYNC_BINLOG: Final = Subject(
    "mysql-sync-binlog",
    "a crash of the host can lose what a replica, or the recovery itself, needs of the last decisions",
    "set sync_binlog=1",
)
DOUBLE_WRITE: Final = Subject(
    "mysql-doublewrite",
    "a crash of the host can leave torn pages, and rows with them",
    "set innodb_doublewrite=ON, unless the file system writes pages whole",
)
SEMI_SYNC: Final = Subject(
    "mysql-semi-sync",
    "replication does not wait: after a fail-over decided rows may be pending again, and are published twice",
    "where a replica may be promoted, switch semi-synchronous replication on with AFTER_SYNC",
)
SEVERAL_PRIMARIES: Final = Subject(
    "mysql-several-primaries",
    "several servers take writes: transactions at two of them undo each other, and producers at two of them add to a "
    "lane past each other, so that a message may overtake an earlier one of its lane",
    "lead all that use this outbox, its producers included, to one server, and to another one where that one is down",
)
SQLITE_JOURNAL: Final = Subject(
    "sqlite-journal",
    "in this journal mode a crash can destroy the file, or readers and writers block each other",
    "set PRAGMA journal_mode=WAL, on a local disk",
)
SQLITE_SYNCHRONOUS: Final = Subject(
    "sqlite-synchronous",
    "a crash of the host can lose the last decisions, which then are published twice",
    "use PRAGMA synchronous=FULL, the default of SQLite",
)
