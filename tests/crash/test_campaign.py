"""A short campaign on each database: whatever it is dealt, every promise is kept."""

import pytest

from tests.acceptance.deployment import patient
from tests.crash.campaign import Plan, Struck, run
from tests.services.require import require

#: One crashes the broker, the other the database; none of their faults takes long.
SEEDS = {"postgresql": 132, "mariadb": 1219}


@patient
@pytest.mark.parametrize("database", SEEDS)
def test_nothing_is_lost_repeated_or_left_over(database: str) -> None:
    # Given a producer, two relays, two check-back processes and a consumer, on servers of their own
    struck: list[Struck] = []
    # When faults strike while orders are written, and all is given time to drain
    audit = require(lambda: run(Plan(database, faults=4, rows=1000, seed=SEEDS[database]), struck.append))
    # Then every committed order is one message and one effect, and no process gave up by itself
    assert audit.clean, f"{audit} after {struck}"
    assert (audit.faults, audit.rows, audit.committed) == (len(struck), 1000, 900)
