"""A relay whose own loops die: each is started again, and probes tell."""

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outbox.health.pulse import Life
from outbox.lifecycle import State
from outbox.store.claims import Claims
from outbox.store.database import Database
from relay.daemon import LOOP
from relay.reconciler import Reconciler
from tests.integration.rows import added, column, state_of
from tests.integration.running import DEADLINE, RunningRelay


@pytest.fixture
def database(sqlite_copies: Any, tmp_path: Path) -> Iterator[Database]:
    """A fresh database at head; whose it is does not matter here."""
    with sqlite_copies(tmp_path) as url:
        database = Database(url)
        yield database
        database.close()


class Faulty:
    """What dies so often, or until it is mended, before it works."""

    def __init__(self, works: Callable[..., Any], times: float = math.inf) -> None:
        self._works = works
        self._times = times
        self._calls = itertools.count()
        self.died = 0

    def mend(self) -> None:
        self._times = 0

    def method(self) -> Callable[..., Any]:
        """To be patched in."""

        def call(*arguments: Any, **more: Any) -> Any:
            if next(self._calls) < self._times:
                self.died += 1
                raise ZeroDivisionError("a fault of our own")
            return self._works(*arguments, **more)

        return call


def deaths(relay: RunningRelay, name: str) -> int:
    """How often a loop died; 0 before it was planned."""
    signs = relay.vitals.signs()
    return signs[name].deaths if name in signs else 0


def test_the_claiming_loop_is_started_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a fault that no one expects, in every claim
    faulty = Faulty(Claims.claim)
    monkeypatch.setattr(Claims, "claim", faulty.method())
    added(database, 30)
    relay = RunningRelay(database)
    # When the relay runs
    relay.starts()
    # Then the loop dies of it, which probes tell, and is started again, more often than there are passes
    relay.expect("it tells", lambda: "a fault of our own" in relay.vitals.faults().get(LOOP, ""))
    assert relay.vitals.live()
    relay.expect("it died again and again", lambda: deaths(relay, LOOP) >= 3)
    # When that is mended; Then it is well by itself
    faulty.mend()
    relay.expect_green()
    # And every row is shipped
    relay.expect("all are visible", lambda: len(relay.broker.visible) == 30)
    relay.stops()
    assert set(relay.broker.visible.values()) == {1}
    assert deaths(relay, LOOP) == faulty.died
    assert {sign.life for sign in relay.vitals.signs().values()} >= {Life.STOPPED}


def test_scheduled_work_runs_again_after_a_fault(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a reconciler that fails
    faulty = Faulty(Reconciler.run)
    monkeypatch.setattr(Reconciler, "run", faulty.method())
    relay = RunningRelay(database)
    # When the relay runs; Then that shows, the other loops go on, and it is well again by itself once it is mended
    relay.starts()
    added(database, 5)
    relay.expect("it died again", lambda: deaths(relay, "reconcile") >= 2)
    relay.expect("all are visible", lambda: len(relay.broker.visible) == 5)
    faulty.mend()
    relay.expect_green()
    relay.stops()


def test_whatever_dies_is_told_with_the_name_of_its_database(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given one of several databases whose loop, pass and scheduled work die
    monkeypatch.setattr(Claims, "claim", Faulty(Claims.claim, 1).method())
    monkeypatch.setattr(Reconciler, "run", Faulty(Reconciler.run, 1).method())
    relay = RunningRelay(database, database="east")
    relay.broker.before_prepare = Faulty(lambda: None, 1).method()
    # When its rows are shipped all the same
    with relay:
        added(database, 5)
        relay.expect("all are visible", lambda: len(relay.broker.visible) == 5)
        relay.expect("the reconciler died", lambda: relay.vitals.signs()["reconcile"].deaths == 1)
    # Then each death is told with the database's name
    names = [record.name for record in caplog.records if "a fault of our own" in caplog.handler.format(record)]
    assert names == ["relay.east"] * 3


def test_a_pass_that_fails_ends_no_loop(database: Database) -> None:
    # Given a broker's transport with a fault of its own in the first pass
    relay = RunningRelay(database, lease=4.0)
    relay.broker.before_prepare = Faulty(lambda: None, 1).method()
    with relay:
        # When rows are added; Then they wait for their lease and are shipped
        added(database, 5)
        relay.expect_all_delivered(5)


def test_a_relay_that_drains_is_not_ready(database: Database) -> None:
    relay = RunningRelay(database)
    with relay:
        assert relay.vitals.ready()
        relay.daemon.stop()
        assert not relay.vitals.ready()
        assert relay.vitals.live()


def test_a_drain_leaves_no_lease_behind(database: Database) -> None:
    # Given a relay whose passes are under way when it is told to stop, and rows behind them
    relay = RunningRelay(database, lease=600.0, commit_window=300.0)  # no time of its own runs out meanwhile
    under_way, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        under_way.set()
        go_on.wait(DEADLINE)

    relay.broker.before_prepare = slow
    with relay:
        ids = added(database, 100)
        assert under_way.wait(DEADLINE)
        relay.daemon.stop()
        go_on.set()
    # Then the halves in flight were decided and ended, and every other row can be claimed at once
    states = [state_of(database, it) for it in ids]
    assert set(states) <= {State.DELIVERED, State.PENDING}
    assert states.count(State.DELIVERED) == len(relay.broker.visible) >= 20
    waiting = [it for it, state in zip(ids, states, strict=True) if state is State.PENDING]
    assert [it for it in waiting if column(database, it, "lease_id") or column(database, it, "token")] == []
    assert len(Claims(database).claim(100, 1 << 24, 30)) == len(waiting) > 0
