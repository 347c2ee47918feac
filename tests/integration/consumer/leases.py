"""Leases of minutes, whose time tests pass: a short one would end where the machine stands still."""

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from outbox.consumer.schema import inbox as inbox_table
from outbox.store.clock import utc_after
from tests.waiting import expect_soon

#: Seconds.
LEASE = 60.0
#: Of these pass at a time: more than the third after which a lease is renewed.
MOST = 40.0
#: What is left of one that was not renewed since, and less than is left of one that was.
LEFT = LEASE - MOST
MORE = LEASE - 10


class Clock:
    """The monotonic clock of leases, put forward by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in ("leases", "leased"):
            monkeypatch.setattr(f"outbox.consumer.{module}.monotonic", lambda: self.now)

    def passes(self) -> None:
        """Most of a lease's time."""
        self.now += MOST


def renewing_all_the_time(inbox: Any) -> None:
    """Instead of after a third of the lease."""
    inbox._execution._keeper._every = 0.02


def renewed(lease: Any, clock: Clock) -> bool:
    """Whether its holder counts on most of its time."""
    return float(getattr(lease, "_lease", lease)._until) > clock.now + MORE


def await_renewal(lease: Any) -> None:
    """By the real clock, which no renewal repeats."""
    before = lease._until
    expect_soon(lambda: lease._until > before, "renewed")


def nearly_over(engine: Engine) -> None:
    """By the database's clock."""
    with engine.begin() as connection:
        connection.execute(inbox_table.update().values(lease_until=utc_after(LEFT)))


def renewed_in(engine: Engine) -> bool:
    """Whether the row has most of its lease."""
    with engine.connect() as connection:
        return bool(connection.execute(sa.select(inbox_table.c.lease_until > utc_after(MORE))).scalar_one())
