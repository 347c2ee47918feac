"""When the keeper renews the leases of a pass, and when it leaves them alone."""

from collections.abc import Collection
from typing import Any, cast

import pytest

from outbox.store.attempt import Attempt
from outbox.store.claims import Claims
from relay.keeper import LeaseKeeper

LEASE = 30.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Renewals:
    """Renews all but ``lost`` rows, and counts."""

    lost = 0
    count = 0

    def renew(self, attempts: Collection[Attempt], lease: float) -> set[int]:
        self.count += 1
        return set(range(len(attempts) - self.lost))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def claims() -> Renewals:
    return Renewals()


@pytest.fixture
def keeper(clock: Clock, claims: Renewals) -> LeaseKeeper:
    return LeaseKeeper(cast(Claims, claims), LEASE, clock)


#: What a pass holds; the keeper only passes it on.
ROWS: list[Any] = ["one", "two"]


def test_a_young_lease_is_left_alone(keeper: LeaseKeeper, clock: Clock, claims: Renewals) -> None:
    # Given a pass whose lease has more than two thirds of its time left
    with keeper.holding(ROWS, clock.now) as hold:
        clock.now += LEASE / 3 - 1
        # When the keeper comes by; Then it locks no row of a pass that may be about to decide
        keeper.renew()
        assert claims.count == 0
        # When it comes by a third of a lease later; Then the lease lasts longer
        clock.now += LEASE / 3
        keeper.renew()
        clock.now += LEASE - 1
        assert hold.live()


def test_a_pass_that_decides_is_left_alone(keeper: LeaseKeeper, clock: Clock, claims: Renewals) -> None:
    # Given a slow pass
    with keeper.holding(ROWS, clock.now) as hold:
        clock.now += LEASE / 2
        # When the keeper comes by while it decides; Then no row is locked
        with hold.deciding():
            keeper.renew()
        assert claims.count == 0
        # When it comes by again; Then the lease is renewed
        keeper.renew()
        assert claims.count == 1


def test_a_lease_that_is_over_or_lost_is_not_prolonged(keeper: LeaseKeeper, clock: Clock, claims: Renewals) -> None:
    # Given a pass of which a row is no longer its own
    claims.lost = 1
    with keeper.holding(ROWS, clock.now) as hold:
        # When the keeper renews; Then the holder does not rely on it
        clock.now += LEASE / 2
        keeper.renew()
        clock.now += LEASE / 2
        assert not hold.live()
        # When the lease is over; Then it is not renewed any more
        keeper.renew()
        assert claims.count == 1
