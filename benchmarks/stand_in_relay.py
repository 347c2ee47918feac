"""``outbox relay`` over a stand-in transport, for benchmarks; its settings come from the environment.

    python -m benchmarks.stand_in_relay [--seconds 0.005]

At SIGTERM it prints one JSON object: ``statements`` (BEGIN and COMMIT included).
"""

import argparse
import json
import signal
import sys
import threading
from types import FrameType

import sqlalchemy as sa

import relay.wiring
from benchmarks.stand_ins import StandIn
from outbox import settings
from outbox.cli import garbage
from outbox.store.database import Database
from outbox.wiring import open_database


class Statements:
    """How many an engine has sent."""

    def __init__(self, database: Database) -> None:
        self.sent = 0
        sa.event.listen(database.engine, "before_cursor_execute", self._count)
        for name in ("begin", "commit"):
            sa.event.listen(database.engine, name, self._count_ends)

    def _count(self, *_: object) -> None:
        self.sent += 1

    def _count_ends(self, connection: sa.Connection) -> None:
        self.sent += connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT"


def main() -> None:
    """Ships until SIGTERM."""
    parser = argparse.ArgumentParser(description="A relay over a stand-in transport")
    parser.add_argument("--seconds", type=float, default=0.0)
    options = parser.parse_args()
    loaded = settings.load()
    database = open_database(loaded)
    statements = Statements(database)
    daemon = relay.wiring.build(loaded, database, StandIn(options.seconds))

    def stop(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=daemon.stop).start()

    signal.signal(signal.SIGTERM, stop)
    garbage.seldom()
    daemon.run()
    database.close()
    json.dump({"statements": statements.sent}, sys.stdout)


if __name__ == "__main__":
    main()
