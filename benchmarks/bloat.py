"""What a million rows leave behind in PostgreSQL: dead rows, and the sizes of the table and of each index.

    python -m benchmarks.bloat [--rows 1000000] [--wave 10000] [--before 0] [--defaults]

Rows come in waves and are claimed, decided and settled by the relay's own statements as fast as they run, in two
threads, with nothing sent: a day of many services within minutes. So autovacuum looks around each second instead of
each minute. ``--before``: so many delivered rows are there already, as retention leaves them. ``--defaults`` takes the
table's own settings for vacuum away first. The last line is one JSON object: ``dead`` rows at the end and at most,
``table_mb`` and ``index_mb`` beside what they are once rewritten (``…_packed``), ``claim_index_mb`` at most and at the
end, ``hot`` updates of all ``updates``, ``vacuums``, ``rows_per_s``, and the median of a claim in the first and in the
last tenth.
"""

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from benchmarks.backlog import Backlog
from outbox import migrate
from outbox.brokers.base import Half
from outbox.clock import monotonic
from outbox.identity import unique_ids
from outbox.lifecycle import Move, target_of
from outbox.schema import outbox
from outbox.store.claims import Claims
from outbox.store.clock import utc_now
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.store.decisions import Decisions, Outcomes, Winner
from tests.services.databases import fresh_database
from tests.services.postgres import Postgres

_PER_CLAIM: Final = 256
_LEASE: Final = 5.0
_MIB: Final = 2**20

_FIGURES: Final = sa.text("""
    SELECT n_dead_tup AS dead, n_tup_upd AS updates, n_tup_hot_upd AS hot, autovacuum_count AS vacuums,
           pg_table_size(relid) AS table_size, pg_indexes_size(relid) AS index_size,
           pg_relation_size('ix_outbox_claim') AS claim_index
    FROM pg_stat_user_tables WHERE relname = 'outbox'
    """)
_OURS: Final = sa.text("""
    SELECT string_agg(split_part(option, '=', 1), ', ') FROM pg_class, unnest(reloptions) AS option
    WHERE relname = 'outbox'
    """)


@dataclass(slots=True)
class Run:
    """What was seen on the way."""

    samples: list[dict[str, Any]] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)

    def sample(self, database: Database) -> dict[str, Any]:
        """The server's figures as they are now."""
        with database.transaction() as connection:
            connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
            self.samples.append(dict(connection.execute(_FIGURES).mappings().one()))
        return self.samples[-1]


def drained(database: Database, run: Run) -> int:
    """Ships what there is, without a broker; the rows."""
    claims, decisions, leases = Claims(database), Decisions(database), CommitLeases(database)
    shipped = 0
    while True:
        began = monotonic()
        attempts = claims.claim(_PER_CLAIM, 1 << 24, _LEASE)
        if not attempts:
            return shipped
        run.claims.append(1000 * (monotonic() - began))
        winners = [
            Winner(it, Half(it.topic, unique_ids.fresh(), "broker-a", "12345 67890", "bench")) for it in attempts
        ]
        decisions.decide(Outcomes(winners), 15.0)
        shipped += len(leases.settle([(it.attempt.row_id, it.half.half_id) for it in winners]))


def deliver(database: Database, rows: int) -> None:
    """Rows of the days before, with nothing dead among them."""
    with database.transaction() as connection:
        Backlog("before", rows).insert(connection)
        delivered = {"state": target_of(Move.DELIVER), "delivered_at": utc_now()}
        connection.execute(outbox.update().values(delivered))
    with database.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM FULL ANALYZE outbox")


def waves(database: Database, rows: int, wave: int) -> tuple[Run, float]:
    """Adds and ships all rows; what was seen, and the rate."""
    run, began, shipped = Run(), monotonic(), 0
    with ThreadPoolExecutor(2) as pool:
        for number in range(rows // wave):
            with database.transaction() as connection:
                Backlog(f"wave-{number}", wave).insert(connection)
            shipped += sum(pool.map(lambda _: drained(database, run), range(2)))
            seen = run.sample(database)
            if number % max(1, rows // wave // 20) == 0:
                print(f"{(number + 1) * wave:>9} {seen['dead']:>9} {seen['table_size'] / _MIB:>9.1f}", end=" ")
                print(
                    f"{seen['index_size'] / _MIB:>9.1f} {seen['claim_index'] / _MIB:>9.2f} {seen['vacuums']:>8}",
                    flush=True,
                )
        rate = rows / (monotonic() - began)
        while shipped < rows:  # a row that the other thread's claim held just then is decided under its next lease
            time.sleep(0.1)
            shipped += drained(database, run)
    run.sample(database)
    return run, rate


def _report(run: Run, packed: dict[str, Any], rate: float) -> dict[str, Any]:
    last = run.samples[-1]
    tenth = max(1, len(run.claims) // 10)
    return {
        "dead": {"last": last["dead"], "most": max(it["dead"] for it in run.samples)},
        "table_mb": round(last["table_size"] / _MIB, 1),
        "table_mb_packed": round(packed["table_size"] / _MIB, 1),
        "index_mb": round(last["index_size"] / _MIB, 1),
        "index_mb_packed": round(packed["index_size"] / _MIB, 1),
        "claim_index_mb": {
            "last": round(last["claim_index"] / _MIB, 2),
            "most": round(max(it["claim_index"] for it in run.samples) / _MIB, 2),
        },
        "hot": last["hot"],
        "updates": last["updates"],
        "vacuums": last["vacuums"],
        "rows_per_s": round(rate),
        "claim_ms": {
            "first": round(statistics.median(run.claims[:tenth]), 2),
            "last": round(statistics.median(run.claims[-tenth:]), 2),
        },
    }


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description="What a million rows leave behind")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--wave", type=int, default=10_000)
    parser.add_argument("--before", type=int, default=0)
    parser.add_argument("--defaults", action="store_true", help="without the table's own settings")
    given = parser.parse_args()
    print(f"{'rows':>9} {'dead':>9} {'table MB':>9} {'index MB':>9} {'claim MB':>9} {'vacuums':>8}")
    with (
        Postgres(durable=True, shared_buffers="512MB", max_wal_size="4GB", autovacuum_naptime="1s") as server,
        fresh_database(server.url) as url,
    ):
        database = Database(url, statement_timeout=900)
        migrate.upgrade(database)
        with database.transaction() as connection:
            if given.defaults and (ours := connection.execute(_OURS).scalar()):
                connection.exec_driver_sql(f"ALTER TABLE outbox RESET ({ours})")
        if given.before:
            deliver(database, given.before)
        run, rate = waves(database, given.rows, given.wave)
        with database.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM FULL outbox")
        packed = Run().sample(database)
        database.close()
    print(json.dumps({"benchmark": "bloat", **vars(given), **_report(run, packed, rate)}))


if __name__ == "__main__":
    main()
