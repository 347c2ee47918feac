"""How long a client waits for the answer to one statement.

The server's own limit ends what the server takes too long for. A server that hangs (stopped, out of memory, its disk
silent) keeps no limit, and its host goes on to acknowledge whatever arrives, so that no limit of TCP is reached either:
whoever waits for its answer would wait as long as it hangs.
"""

from collections.abc import Generator
from typing import Any, Final

import psycopg
import sqlalchemy as sa

from outbox.clock import monotonic

#: Seconds at least: by then a host that vanished has been noticed as well.
LEAST: Final = 25.0
#: Seconds for the server to say that its own limit was reached.
_BEYOND: Final = 5.0


def patience(statement_timeout: float) -> float:
    """Seconds to wait for an answer, where the server ends statements after ``statement_timeout``."""
    return max(LEAST, statement_timeout + _BEYOND)


class PatientConnection(psycopg.Connection[Any]):
    """A connection that ends itself where an answer takes longer than its ``patience``; libpq has no such setting."""

    patience = LEAST

    def wait(self, gen: Generator[Any, Any, Any], *how: Any, **more: Any) -> Any:
        """As the driver's own, which hands a turn to ``gen`` every tenth of a second where nothing arrives."""
        return super().wait(self._limited(gen), *how, **more)

    def _limited(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        until = monotonic() + self.patience
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and monotonic() >= until:
                    self.pgconn.finish()  # an answer that comes later must not be taken for that to the next question
                    raise psycopg.OperationalError(f"the server has not answered for {self.patience:.0f} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value


def wait_for_ever(connection: sa.Connection) -> None:
    """Lifts the limit for the rest of this connection's life, which is no longer the pool's: for DDL."""
    driver: Any = connection.connection.driver_connection
    if isinstance(driver, PatientConnection):
        driver.patience = float("inf")
    elif hasattr(driver, "_read_timeout"):
        driver._read_timeout = None  # PyMySQL has no other way
    connection.detach()
