"""What ends a rest, without a server."""

import threading
from typing import Any, cast

import psycopg

from outbox.clock import monotonic
from relay.notifications import Notifications
from relay.wake import Wake

#: A rest that no test waits for.
NEVER = 3600.0
DEADLINE = 60.0


class Told:
    """Notifications of which one is taken in while the connection is tended, so that nothing is left to wait for."""

    dozing = True

    def __init__(self) -> None:
        self._rows = False

    def fileno(self) -> int | None:
        return None

    def tend(self) -> float:
        self._rows = True
        return NEVER

    def heard(self) -> bool:
        rows, self._rows = self._rows, False
        return rows

    def leave(self) -> None:
        """Nobody else is there."""

    def close(self) -> None:
        """Nothing is open."""


def test_a_notification_that_was_taken_in_before_the_wait_ends_the_rest() -> None:
    # Given a notification that arrived with the answer to something else
    wake = Wake(monotonic, cast(Notifications, Told()))
    woken: list[Any] = []
    # When the loop rests; Then it is woken at once
    thread = threading.Thread(target=lambda: woken.append(wake.rest(NEVER)), daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert woken == [True]
    wake.close()


class Standby:
    """Stands for a database that refuses LISTEN, for its pooled connection and for the driver's."""

    def __init__(self) -> None:
        self.engine = self.driver_connection = self
        self.autocommit = self.detached = self.closed = False

    def raw_connection(self) -> "Standby":
        return self

    def detach(self) -> None:
        self.detached = True

    def add_notify_handler(self, _: object) -> None:
        """Nothing arrives."""

    def execute(self, _: str) -> None:
        raise psycopg.errors.ReadOnlySqlTransaction("cannot execute LISTEN during recovery")

    def close(self) -> None:
        self.closed = True


def test_a_connection_that_may_not_listen_is_closed() -> None:
    # Given a standby
    standby = Standby()
    tested = Notifications(cast(Any, standby), monotonic)
    # When the relay wants to be told of rows
    again = tested.tend()
    # Then the connection that left the pool is closed, and it is tried again later
    assert standby.detached
    assert standby.closed
    assert tested.fileno() is None
    assert again > 0
