"""A relay that runs in the test's own process: a real database, a broker that answers as the test says."""

import threading
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import sqlalchemy as sa

import relay.wiring
from outbox.brokers.base import Ended, Ending, Sought
from outbox.clock import monotonic
from outbox.health.vitals import Vitals
from outbox.lifecycle import Move, State, Verdict, open_states, target_of
from outbox.schema import outbox
from outbox.settings import Settings
from outbox.store.database import Database
from outbox.verdict import Confirmation, Sighting
from tests.integration.scripted import ScriptedBroker
from tests.waiting import expect_soon

#: Generous: the machine may be busy.
DEADLINE = 120.0
#: Short leases, so that what a fault leaves is taken up while a test waits.
QUICK = {
    "lease": 4.0,
    "send_timeout": 1.0,
    "commit_window": 1.0,
    "commit_grace": 1.0,
    "reconcile_every": 0.5,
    "unknown_delay": 0.5,
    "rows_per_pass": 20,
}


class FindingBroker(ScriptedBroker):
    """Counts how often it made each half's message visible, and finds the visible ones.

    As every transport it writes nothing after ``until``, however long the thread that asks was stopped; one call at a
    time, so that none is stopped between the look at the clock and the message.
    """

    def __init__(self) -> None:
        super().__init__()
        self.visible: Counter[str] = Counter()
        self.on_resolve = self._end
        self._one_call = threading.Lock()

    def resolve(self, endings: Sequence[Ending], until: float) -> list[Ended]:
        with self._one_call:
            if monotonic() >= until:
                return [Ended(Confirmation.UNANSWERED)] * len(endings)
            return super().resolve(endings, until)

    def find(self, sought: Sequence[Sought], until: float) -> list[Sighting]:
        with self._one_call:
            return [Sighting.VISIBLE if self.visible[it.half.half_id] else Sighting.ABSENT for it in sought]

    def _end(self, ending: Ending) -> Ended:
        if ending.verdict is Verdict.COMMIT:
            self.visible[ending.half.half_id] += 1
        return Ended(Confirmation.CONFIRMED)


class RunningRelay:
    """Relays from ``with`` on."""

    def __init__(self, database: Database, /, **settings: object) -> None:
        self.vitals = Vitals()
        self.broker = FindingBroker()
        self._database = database
        settings = {**QUICK, "origin": "tests", **settings}
        self.daemon = relay.wiring.build(Settings(**settings), database, self.broker, vitals=self.vitals)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self.daemon.run, daemon=True)  # a test that fails does not stop it

    def __enter__(self) -> Self:
        self.starts()
        self.expect("it is ready", self.vitals.ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stops()

    def starts(self) -> None:
        """Begins without a wait until it is ready."""
        self._thread.start()

    def stops(self) -> None:
        """Drains."""
        self.daemon.stop()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()

    def expect(self, what: str, condition: object) -> None:
        """Waits for a condition; a database that is away does not fulfil it."""

        def holds() -> bool:
            try:
                return bool(condition())  # type: ignore[operator]
            except sa.exc.DBAPIError:
                return False

        try:
            expect_soon(holds, what, within=DEADLINE)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.vitals.as_json()}") from error

    def expect_red(self, *names: str) -> None:
        """Waits until it is not ready for one of these reasons; it is live all the same."""
        self.expect("it is not ready", lambda: set(names) & set(self.vitals.faults()))
        assert self.vitals.live()

    def expect_green(self) -> None:
        """Waits until it is ready again, by itself."""
        self.expect("it is ready again", self.vitals.ready)

    def expect_all_delivered(self, rows: int) -> None:
        """Waits until every row is delivered; each message is visible once, and no loop has died."""
        self.expect("every row is delivered", lambda: _delivered(self._database) == rows)
        assert len(self.broker.visible) == rows
        assert set(self.broker.visible.values()) == {1}
        assert [name for name, sign in self.vitals.signs().items() if sign.deaths] == []


def _delivered(database: Database) -> int:
    with database.transaction() as connection:
        counted = connection.execute(sa.select(outbox.c.state, sa.func.count()).group_by(outbox.c.state))
        rows = {str(state): int(number) for state, number in counted}
    assert State.DEAD.value not in rows
    return 0 if set(open_states()) & set(rows) else rows.get(target_of(Move.DELIVER).value, 0)
