"""What ends an idle relay's rest: notifications of PostgreSQL, a heartbeat that is missed, the bell of the process."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from outbox import Outbox
from outbox.lifecycle import State
from outbox.schema import outbox
from outbox.settings import Settings
from outbox.store.claims import Claims
from outbox.store.commit_leases import CommitLeases
from outbox.store.database import Database
from outbox.store.decisions import Decisions, Outcomes, Winner
from outbox.store.operations import Operations
from relay import wiring
from relay.daemon import Daemon
from relay.notifications import Notifications
from relay.wake import Wake
from tests.crash.proxy import Proxy
from tests.integration.rows import added, column, force, half_of, state_of
from tests.integration.scripted import ScriptedBroker
from tests.services.ports import free_port
from tests.waiting import expect_soon

#: A rest that no test waits for: what is shipped in spite of it was told of.
NEVER = 3600.0
DEADLINE = 60.0
#: Statements of an idle relay's work at intervals: a look at each head and at the lanes, one whether the server takes
#: writes, a heartbeat, and the five of the sweep after the clock.
ONE_OF_EACH = 1 + 1 + 1 + 1 + 1 + 5


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stands still for a moment has not fallen silent."""
    monkeypatch.setattr("relay.notifications._ANSWER", DEADLINE)


@pytest.fixture
def postgresql(postgresql_copies: Callable[..., object], tmp_path: object) -> Iterator[Database]:
    """A fresh PostgreSQL database at head."""
    with postgresql_copies(tmp_path) as url:  # type: ignore[attr-defined]
        database = Database(url)
        yield database
        database.close()


@contextmanager
def relaying(database: Database, broker: ScriptedBroker | None = None, **settings: object) -> Iterator[Daemon]:
    """A relay that rests for ever unless somebody wakes it."""
    rhythm = {"poll_fastest": NEVER, "poll_slowest": NEVER, "reconcile_every": NEVER} | settings
    chosen = Settings(origin="tests", **rhythm)  # type: ignore[arg-type]
    daemon = wiring.build(chosen, database, broker or ScriptedBroker())
    thread = threading.Thread(target=daemon.run)
    thread.start()
    try:
        yield daemon
    finally:
        daemon.stop()
        thread.join(DEADLINE)
    assert not thread.is_alive()


def delivered(database: Database, row_id: int) -> Callable[[], bool]:
    return lambda: state_of(database, row_id) is State.DELIVERED


def sleepers(database: Database) -> int:
    """How many relays let themselves be told."""
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND database = ("
    with database.look() as connection:
        of_ours = f"{query} SELECT oid FROM pg_database WHERE datname = current_database())"
        return int(connection.execute(sa.text(of_ours)).scalar_one())


def notified(database: Database) -> Notifications:
    """Notifications that hear themselves."""
    notifications = Notifications(database, time.monotonic)
    expect_soon(lambda: (notifications.tend(), notifications._hears)[1])
    assert notifications.heard()  # the first heartbeat ends a rest as well
    return notifications


def test_a_sleeping_relay_is_told_of_each_row(postgresql: Database) -> None:
    # Given a relay that sleeps
    with relaying(postgresql):
        expect_soon(lambda: sleepers(postgresql))
        for _ in range(3):
            # When a row is added / Then it is shipped, though nobody polls
            (row_id,) = added(postgresql)
            expect_soon(delivered(postgresql, row_id))
        # And so is one that an operator brings back
        force(postgresql, row_id, state=State.DEAD)
        Operations(postgresql).requeue([row_id])
        expect_soon(delivered(postgresql, row_id))


def test_a_row_that_becomes_due_ends_the_rest(postgresql: Database) -> None:
    with relaying(postgresql):
        expect_soon(lambda: sleepers(postgresql))
        (row_id,) = added(postgresql)
        expect_soon(delivered(postgresql, row_id))
        # When a row is added that may go in a while / Then it goes without a poll
        with postgresql.transaction() as connection:
            row_id = Outbox("tests").add(connection, topic="t", key="later", payload=1, not_before=_soon(connection))
        expect_soon(delivered(postgresql, row_id))


def _soon(connection: sa.Connection) -> datetime:
    soon: datetime = connection.execute(sa.text("SELECT clock_timestamp() + interval '0.5 s'")).scalar_one()
    return soon


def test_a_lane_that_goes_on_by_somebody_else_is_told(postgresql: Database) -> None:
    # Given a lane whose head another process has decided about, and a relay that sleeps
    head, follower = added(postgresql, 2, lane="a")
    (attempt,) = Claims(postgresql).claim(10, 1 << 24, NEVER)
    half = half_of()
    Decisions(postgresql).decide(Outcomes(winners=[Winner(attempt, half)]), NEVER)
    with relaying(postgresql):
        expect_soon(lambda: sleepers(postgresql))
        # When that process settles it / Then the next one of the lane is shipped
        assert CommitLeases(postgresql).settle([(head, half.half_id)]) == {head}
        expect_soon(delivered(postgresql, follower))


def test_a_writer_notifies_only_while_somebody_sleeps(postgresql: Database) -> None:
    # Given a relay that is awake and listens
    notifications = notified(postgresql)
    with postgresql.engine.connect() as busy:
        # When a writer is under way / Then it does not notify, and until it has ended nobody falls asleep
        with busy.begin():
            Outbox("tests").add(busy, topic="t", key="1", payload=1)
            assert not notifications.doze()
        assert not notifications.heard()
        # When it has ended / Then the relay sleeps, and a transaction of many rows tells it once
        expect_soon(notifications.doze)
        told: list[str] = []
        notifications._connection.add_notify_handler(lambda one: told.append(one.payload))  # type: ignore[union-attr]
        added(postgresql, 5)
        expect_soon(lambda: (notifications._ask("SELECT 1"), told)[1])
        assert told == [""]
        # When it has enough to do / Then nobody tells it
        notifications.rise()
        notifications.heard()
        added(postgresql)
        notifications._ask("SELECT 1")
        assert not notifications.heard()
    notifications.close()


def test_a_relay_that_has_rows_asks_at_once_to_be_told(postgresql: Database) -> None:
    # Given a relay that was refused while a writer was under way
    notifications = notified(postgresql)
    with postgresql.engine.begin() as busy:
        Outbox("tests").add(busy, topic="t", key="1", payload=1)
        while notifications._now() >= notifications._ask_again:
            assert not notifications.doze()
    # When it has rows to ship / Then it does not wait before it asks again
    notifications._ask_again = notifications._now() + NEVER
    assert not notifications.doze()
    assert notifications.doze(at_once=True)
    notifications.close()


def test_whoever_stays_is_told_when_a_sleeper_leaves(postgresql: Database) -> None:
    # Given a relay that sleeps, and another one that may not
    leaving = ExitStack()
    leaving.enter_context(relaying(postgresql))
    expect_soon(lambda: sleepers(postgresql) == 1)
    with relaying(postgresql):
        expect_soon(lambda: _asked(postgresql) == 2)
        # When the first one is told to stop / Then the other one is told of rows in its place, once it sleeps (it does
        # not while a writer is under way that found nobody asleep: then it looks again at its next rest, here never)
        leaving.close()
        expect_soon(lambda: sleepers(postgresql) == 1)
        (row_id,) = added(postgresql)
        expect_soon(delivered(postgresql, row_id))


def test_whoever_stays_is_told_of_lanes_that_the_last_passes_let_go_on(postgresql: Database) -> None:
    # Given a relay with the head of a lane in hand, and another one with nothing to do
    broker, go_on, leaving = ScriptedBroker(), threading.Event(), ExitStack()
    broker.before_prepare = lambda: go_on.wait(DEADLINE)
    daemon = leaving.enter_context(relaying(postgresql, broker))
    expect_soon(lambda: sleepers(postgresql) == 1)
    _, follower = added(postgresql, 2, lane="a")
    expect_soon(lambda: column(postgresql, follower, "parked"))
    with relaying(postgresql):
        expect_soon(lambda: _asked(postgresql) == 2)
        # When the first one is told to stop, and delivers the head; Then the other one ships the next
        daemon.stop()
        go_on.set()
        leaving.close()
        expect_soon(delivered(postgresql, follower))


def _asked(database: Database) -> int:
    """How many relays have asked to sleep."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE "
    with database.look() as connection:
        return int(connection.execute(sa.text(query + "'SELECT pg_try_advisory_lock(%'")).scalar_one())


def test_a_row_that_was_rolled_back_is_not_told(postgresql: Database) -> None:
    notifications = notified(postgresql)
    assert notifications.doze()
    with postgresql.engine.connect() as connection, connection.begin() as transaction:
        Outbox("tests").add(connection, topic="t", key="1", payload=1)
        transaction.rollback()
    notifications._ask("SELECT 1")
    assert not notifications.heard()
    notifications.close()


def test_a_lost_connection_is_made_anew(postgresql: Database) -> None:
    # Given a relay that sleeps, and somebody who looks at its database over another connection
    beside = Database(postgresql.engine.url.render_as_string(hide_password=False))
    with relaying(postgresql):
        expect_soon(lambda: sleepers(beside))
        # When the server ends every connection but the asking one
        with beside.look() as connection:
            others = "pid <> pg_backend_pid() AND datname = current_database()"
            connection.execute(sa.text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
        # Then a row that is added later is told of
        expect_soon(lambda: sleepers(beside))
        (row_id,) = added(beside)
        expect_soon(delivered(beside, row_id))
    beside.close()


@pytest.fixture
def silent(postgresql: Database) -> Iterator[tuple[Proxy, Database]]:
    """The database through a proxy that can lose what the server says."""
    url = make_url(postgresql.engine.url)
    proxy = Proxy(("127.0.0.1", free_port()), (str(url.host), int(url.port or 5432)))
    through = url.set(host=proxy.address[0], port=proxy.address[1])
    database = Database(through.render_as_string(hide_password=False), answer_timeout=3600)
    yield proxy, database
    database.close()
    proxy.close()


def test_a_connection_that_fell_silent_is_made_anew(silent: tuple[Proxy, Database]) -> None:
    # Given a listener whose heartbeats come back
    proxy, database = silent
    now = [0.0]
    notifications = Notifications(database, lambda: now[0], every=10, patience=5)
    expect_soon(lambda: (notifications.tend(), notifications._hears)[1])
    before = notifications.fileno()
    # When nothing arrives any more, and no connection ends
    proxy.swallow_answers()
    database.engine.dispose()
    now[0] += 10
    notifications.tend()  # sends a heartbeat, over a new connection
    now[0] += 5
    notifications.tend()  # misses it
    # Then it does not sleep, looks at the rows, and connects again
    assert before is not None
    assert notifications.fileno() is None
    assert not notifications.doze()
    assert notifications.heard()
    now[0] += 1
    expect_soon(lambda: (notifications.tend(), notifications._hears)[1])
    assert notifications.doze()
    notifications.close()


def test_a_lock_that_nobody_answers_for_holds_up_no_claim(silent: tuple[Proxy, Database]) -> None:
    # Given a listener whose connection has fallen silent, as behind a firewall that forgot it
    proxy, database = silent
    notifications = notified(database)
    notifications._connection.patience = 0.1  # type: ignore[union-attr]
    proxy.swallow_answers()
    database.engine.dispose()
    # When its relay would fall asleep; Then it is refused that soon, and connects again
    assert not notifications.doze()
    assert notifications.fileno() is None
    expect_soon(lambda: (notifications.tend(), notifications._hears)[1])
    # And sleeps, once the server has noticed that the session which took the lock unheard is over
    expect_soon(lambda: (notifications.tend(), notifications.doze())[1])
    notifications.close()


def test_behind_a_pooler_it_polls_and_says_so_once(
    postgresql: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given notifications that reach somebody else, as where a pooler lends connections by transaction
    now = [0.0]
    notifications = Notifications(postgresql, lambda: now[0], every=10, patience=5)
    monkeypatch.setattr(notifications, "_note", lambda payload: None)
    # When no heartbeat comes back, again and again
    with caplog.at_level(logging.INFO, "relay"):
        for _ in range(5):
            notifications.tend()
            now[0] += 1000
    # Then it never sleeps, keeps no connection most of the time, and says so once
    assert not notifications.doze()
    assert [it.levelname for it in caplog.records] == ["WARNING"]
    assert "polling" in caplog.text
    notifications.close()


def test_it_is_off_by_a_setting(postgresql: Database) -> None:
    # Given a relay that polls
    with relaying(postgresql, notify=False, poll_fastest=0.05, poll_slowest=0.05):
        # When a row is added / Then it is shipped, and nobody was told
        (row_id,) = added(postgresql)
        expect_soon(delivered(postgresql, row_id))
        assert sleepers(postgresql) == 0


def test_the_process_itself_rings(database: Database) -> None:
    # Given a relay that is told nothing
    with relaying(database, notify=False) as daemon:
        # When the service says that there is a row / Then it is shipped
        (row_id,) = added(database)
        daemon.wake()
        expect_soon(delivered(database, row_id))


def test_a_bell_that_rang_before_the_rest_ends_it() -> None:
    wake = Wake(time.monotonic)
    for _ in range(100_000):  # more than any buffer holds
        wake.ring()
    assert wake.rest(NEVER)
    assert not wake.rest(0)
    wake.close()


def test_an_idle_relay_leaves_the_database_alone(postgresql: Database) -> None:
    """At most two statements a second, BEGIN and COMMIT included; a slow machine makes fewer."""
    # Given a relay of default settings that has nothing to do
    statements = _count(postgresql)
    with relaying(postgresql, poll_fastest=0.1, poll_slowest=1.0, reconcile_every=2.0):
        expect_soon(lambda: sleepers(postgresql))
        before, began = len(statements), time.monotonic()
        # When some time passes
        threading.Event().wait(3)
        asked, seconds = len(statements) - before, time.monotonic() - began
    # Then it has hardly asked; whatever it does at intervals may fall into any period once more
    assert asked <= 2 * seconds + ONE_OF_EACH, statements[before:]
    with postgresql.transaction() as connection:
        assert not connection.execute(sa.select(outbox.c.id)).all()


def _count(database: Database) -> list[str]:
    """Statements as they are sent from now on."""
    sent: list[str] = []
    sa.event.listen(database.engine, "before_cursor_execute", lambda _c, _k, statement, *_: sent.append(statement))
    for end in ("begin", "commit"):
        sa.event.listen(database.engine, end, lambda connection: sent.extend(_sent(connection)))
    return sent


def _sent(connection: sa.Connection) -> list[str]:
    """SQLAlchemy begins and commits in name only where the driver is in autocommit."""
    own = connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"
    return [] if own else ["BEGIN or COMMIT"]
