"""The demo's times fit each other."""

from outbox.cli.demo.stage import PATIENCE, QUICK
from outbox.settings import load
from outbox.wiring import broker_timing


def test_the_broker_asks_for_as_long_as_the_demo_waits() -> None:
    # Given a check-back that is the last thing to start within a step's time
    timing = broker_timing(load(**QUICK))
    # Then the halves that it is to answer for have not been given up by then
    assert timing.transaction_timeout + timing.max_checks * timing.check_interval > PATIENCE
